"""Messages about a model name that is not known: the name may be an adapter or a GGUF file, or a known name was likely
meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from validator.errors import RecipeError
from validator.knowledge.near_models import NearModels, near_models
from validator.knowledge.tables import json_table, yaml_table
from validator.recipe import safe_read
from validator.recipe.recipe_file import RECIPE_SUFFIXES
from validator.recipe.safe_read import read_json
from validator.recipe.suggestions import edit_distance, nearest_name

# A name so many letters off another is a slip; in a shorter one than that, one letter, and no digit.
_MAX_SLIPS = 2
_LONG_NAME = 7
_BASE_HINT = (
    "name the model that it comes from: `# base: NAME` in the header block (`# /// recipe` to `# ///`), or "
    "`check --base NAME` for all recipes whose model is not known"
)
_REMEDY = f"its config.json in a folder is enough (`model_name_or_path=FOLDER`, `plan --model FOLDER`); or {_BASE_HINT}"

# The names of a family that fit a line, and the nearest ones of another size.
_MAX_FAMILY_NAMES = 8
_MAX_NEAR_NAMES = 4
_HUB_LINK = r"https?://[^/]+/(?:models/)?([^/?#]+/[^/?#]+).*"
_ALL_MODELS = "docs/reference/models.md"


def unknown_model_message(name: str) -> str:
    """Return the message that the model of a recipe is not known. The message says what the name is instead (an
    adapter, a GGUF file) if that can be seen, which name was likely meant, and how to make the model known."""
    if message := not_a_model_message(name):
        return message
    if _is_path(name):
        return f"model `{name}` is not known: it is no folder with a config.json; {_BASE_HINT}"
    owner, question = name.strip().rpartition("/")[0], _family_hint(name) or _near_name_question(name)
    where = ", and no local hub cache holds it" if owner and not question else ""
    return f"model `{name}` is not known{where}{f'{question} else ' if question else '; '}{_REMEDY}"


def unknown_asked_model_message(name: str) -> str:
    """Return the message that a model named on the command line is not known: what the name is instead, or the known
    models and folders that are near, and where all known models are listed."""
    if message := not_a_model_message(name):
        return message
    if name.endswith(RECIPE_SUFFIXES):
        return f"`{name}` is the name of a recipe, not of a model; `lmf-recipes explain {name}` says what it needs"
    if link := re.fullmatch(_HUB_LINK, name.strip()):
        return f"model `{name}` is a link; name it by `{link[1]}`"
    folder = _near_folder(name)
    if _is_path(name):
        hint = f"; did you mean `{folder}`?" if folder else ""
        return f"model `{name}` is not known: it is no folder with a config.json{hint}"
    near, spelled = near_models(name), _near_name(name)
    if near and (near.is_family or not spelled or not (near.is_general or near.has_name(spelled))):
        hint = near_models_hint(near)
    elif found := spelled or folder:
        hint = f"did you mean `{found}`?"
    else:
        hint = f"{_ALL_MODELS} lists the known ones;"
    return f"model `{name}` is not known; {hint} any other model is named by a folder with its config.json"


def near_models_hint(near: NearModels) -> str:
    """Return which known models are near a name: all of a family as far as they fit a line, or the nearest few."""
    number = _MAX_FAMILY_NAMES if near.is_family else _MAX_NEAR_NAMES
    listed = ", ".join(f"`{each}`" for each in near.names[:number])
    if near.is_family and (near.has_size or len(near.names) == 1):
        return f"did you mean {listed}?"
    if len(near.names) == 1:
        return f"known of `{near.beginning}` is {listed};" if near.is_general else f"did you mean {listed}?"
    more = f" and {len(near.names) - number} more ({_ALL_MODELS})" if len(near.names) > number else ""
    return f"{'it is a family of models:' if near.is_family else f'known of `{near.beginning}` are'} {listed}{more};"


def _family_hint(name: str) -> str:
    """Return the beginning of a hint with hub names of a family, if `name` is a family and no misspelling of one of its
    models; else an empty string."""
    near = near_models(name)
    if near is None or not near.is_family or _near_name(name) in (None, *near.names):
        return ""
    hubs = dict.fromkeys(str(yaml_table("models")[each.key]["hub"][0]) for each in near.known[:_MAX_NEAR_NAMES])
    return f"; it is a family of models, such as {', '.join(f'`{hub}`' for hub in hubs)};"


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~", "$")) or name.count("/") > 1


def _near_folder(name: str) -> str | None:
    """Return the folder beside the one that `name` means whose name is similar and that holds a config.json; None if
    there is none."""
    path = Path(name)
    beside = {each.parent.name: each.parent for each in safe_read.glob_folder(path.parent, "*/config.json")}
    near = nearest_name(path.name, beside) if path.name else None
    return f"./{near}" if near and str(path.parent) == "." else near and str(beside[near])


def unknown_base_message(name: str) -> str:
    """Return the message that the model after `base:` in a recipe's header block is not known, and which names are
    possible."""
    if message := not_a_model_message(name):
        return message
    return (
        f"`base: {name}` is not known{_near_name_question(name)}; "
        f"name one of docs/reference/models.md, or a folder with its config.json"
    )


def not_a_model_message(name: str) -> str:
    """Return the message that LLaMA-Factory cannot load a folder, file or hub name as a model because it is an adapter
    or a GGUF file. Empty if nothing suggests an adapter or a GGUF file."""
    folder = Path(name)
    with suppress(RecipeError):  # an adapter that is no JSON
        if safe_read.path_kind(folder / "adapter_config.json") == "file":
            adapter = read_json(str(folder / "adapter_config.json"))
            base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
            remedy = f"its base model is {base}: use that" if base else "use its base model"
            return f"`{name}` is an adapter; {remedy}, with adapter_name_or_path={name}"
        if "gguf" in folder.name.lower() or next(safe_read.glob_folder(folder, "*.gguf"), None):
            return f"`{name}` is in llama.cpp's format (GGUF); LLaMA-Factory needs the original weights"
    return ""


def likely_meant_name(name: str) -> str | None:
    """Return the known hub name that `name` likely misspells: it has the same owner and differs by one or two letters.
    A known name with the same numbers is preferred. None if `name` is itself known, even under another owner, or if no
    known name of the owner is near."""
    owner, _, last_part = name.strip().lower().partition("/")
    groups = json_table("registry")["groups"].values()
    listed = yaml_table("models").matches(r"\n  (?:hub|modelscope): \[(.+)\]")
    hubs = dict.fromkeys([*(hub for line in listed for hub in line.split(", ")), *chain.from_iterable(groups)])
    if not last_part or any(hub.lower().rpartition("/")[2] == last_part for hub in hubs):
        return None
    slips: dict[str, tuple[bool, int, float]] = {}
    for hub in hubs:
        its_owner, _, hub_name = hub.lower().partition("/")
        edits = edit_distance(last_part, hub_name, _MAX_SLIPS) if its_owner == owner else None
        if not edits:
            continue
        has_other_numbers, distance = numbers_differ(last_part, hub_name), _number_distance(last_part, hub_name)
        if distance is not None and (len(last_part) >= _LONG_NAME or (edits == 1 and not has_other_numbers)):
            slips[hub] = has_other_numbers, edits, distance
    return min(slips, key=slips.__getitem__, default=None)


def numbers_differ(one: str, other: str) -> bool:
    """True if two names have different digits. Then the names may be two models, of different size, generation or
    version."""
    return re.sub(r"\D", "", one) != re.sub(r"\D", "", other)


def _number_distance(one: str, other: str) -> float | None:
    """Return the sum of the differences between the numbers of two names. None if one name has more numbers than the
    other, such as chatglm3-6b and chatglm-6b."""
    if not numbers_differ(one, other):
        return 0.0
    numbers, other_numbers = _name_numbers(one), _name_numbers(other)
    return (
        sum(abs(float(a) - float(b)) for a, b in zip(numbers, other_numbers, strict=True))
        if len(numbers) == len(other_numbers)
        else None
    )


def _near_name_question(name: str) -> str:
    """Return a question that suggests the known name that was likely meant, to be put after a message. Empty if no
    known name is near."""
    near = _near_name(name)
    return f"; did you mean `{near}`?" if near else ""


def _near_name(name: str) -> str | None:
    """Return the known name that `name` likely misspells; None if no known name is near."""
    query = name.strip().lower()
    owner, _, last_part = query.rpartition("/")
    if near := nearest_name(query, _similar_names(owner, last_part), 0.85 if owner else 0.6):
        return near
    likely_name = likely_meant_name(name)
    return likely_name if likely_name and not numbers_differ(name, likely_name) else None


def _similar_names(owner: str, last_part: str) -> Iterator[str]:
    """Yield the known names that `last_part` may misspell: names of the same owner, with the same size and generation,
    and without other words for a variant, such as VL or Coder. `owner`: empty if the user wrote none; then ids and
    short forms are compared."""
    numbers, models = _name_numbers(last_part), yaml_table("models")
    short = [*models, *models.matches(r"\n  short: (?!null)(\S+)")]
    for name in models.matches(rf"(?<![\w./-])({re.escape(owner)}/[\w.\-]+)") if owner else short:
        known_numbers = _name_numbers(name.rpartition("/")[2])
        is_similar = known_numbers == numbers if owner else set(numbers) <= set(known_numbers)
        if is_similar and _has_same_words(last_part, name.rpartition("/")[2].lower(), all_of_them=bool(owner)):
            yield name


def _has_same_words(name: str, known_name: str, *, all_of_them: bool) -> bool:
    """True if each word of `name` is a word of `known_name`, give or take a letter. `all_of_them`: the two names must
    also have the same number of words."""
    words, known_words = _name_words(name), _name_words(known_name)
    counts = len(words) == len(known_words) or not all_of_them
    return counts and all(get_close_matches(word, known_words, n=1, cutoff=0.7) for word in words)


def _name_numbers(name: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", name)


def _name_words(name: str) -> list[str]:
    """Return the words of a name. The b of billions, as in 7b, is left out."""
    return [word for word in re.findall(r"[^\W\d_]+", name) if word != "b"]
