"""Messages about a model name that is not known: it is an adapter or a GGUF file, or which known name was likely
meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from validator.errors import RecipeError
from validator.knowledge.tables import json_table, yaml_table
from validator.recipe import safe_read
from validator.recipe.safe_read import read_json
from validator.recipe.suggestions import edit_distance, suggest

# A name so many letters off another is a slip; in a shorter one than that, one letter, and no digit.
_MAX_SLIPS = 2
_LONG_NAME = 7
_BASE_HINT = "write the model that it comes from into the header block, `# base: NAME`"
_REMEDY = (
    "its config.json in a folder is enough: plan --model FOLDER, or explain RECIPE model_name_or_path=FOLDER; or "
    f"{_BASE_HINT}"
)


def unknown_model_message(name: str) -> str:
    """Return the message that the model is not known: what it is instead if that shows, the name that was likely meant,
    and what suffices to make it known."""
    if message := not_a_model_message(name):
        return message
    if name.startswith((".", "/", "~", "$")) or name.count("/") > 1:
        return f"model `{name}` is not known: it is no folder with a config.json; {_BASE_HINT}"
    owner, near = name.strip().rpartition("/")[0], _near_name_question(name)
    where = ", and no local hub cache holds it" if owner and not near else ""
    return f"model `{name}` is not known{where}{f'{near} else ' if near else '; '}{_REMEDY}"


def unknown_base_message(name: str) -> str:
    """Return the message that the base in the header block is not known, and which names are possible."""
    if message := not_a_model_message(name):
        return message
    return (
        f"`base: {name}` is not known{_near_name_question(name)}; "
        f"name one of docs/reference/models.md, or a folder with its config.json"
    )


def not_a_model_message(name: str) -> str:
    """Return what a folder, file or name is if LLaMA-Factory cannot load it as a model: an adapter, a GGUF file; empty
    if nothing says so."""
    folder = Path(name)
    with suppress(RecipeError):  # an adapter that is no JSON
        if safe_read.path_kind(folder / "adapter_config.json") == "file":
            adapter = read_json(str(folder / "adapter_config.json"))
            base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
            its = f"its base model is {base}: use that" if base else "use its base model"
            return f"`{name}` is an adapter; {its}, with adapter_name_or_path={name}"
        if "gguf" in folder.name.lower() or next(safe_read.glob_folder(folder, "*.gguf"), None):
            return f"`{name}` is in llama.cpp's format (GGUF); LLaMA-Factory needs the original weights"
    return ""


def likely_meant_name(name: str) -> str | None:
    """Return the known hub name of the same owner that is one or two letters off, preferably one with the same numbers.
    None for a known name, be it as another owner's, and for an owner of no known name."""
    owner, _, own = name.strip().lower().partition("/")
    groups = json_table("registry")["groups"].values()
    listed = yaml_table("models").matches(r"\n  (?:hub|modelscope): \[(.+)\]")
    known = dict.fromkeys([*(hub for line in listed for hub in line.split(", ")), *chain.from_iterable(groups)])
    if not own or any(hub.lower().rpartition("/")[2] == own for hub in known):
        return None
    slips: dict[str, tuple[bool, int, float]] = {}
    for hub in known:
        its_owner, _, its = hub.lower().partition("/")
        edits = edit_distance(own, its, _MAX_SLIPS) if its_owner == owner else None
        if not edits:
            continue
        other, apart = numbers_differ(own, its), _number_distance(own, its)
        if apart is not None and (len(own) >= _LONG_NAME or (edits == 1 and not other)):
            slips[hub] = other, edits, apart
    return min(slips, key=slips.__getitem__, default=None)


def numbers_differ(one: str, other: str) -> bool:
    """True if the digits of two names differ, so that each may be a model: of another size, generation or version."""
    return re.sub(r"\D", "", one) != re.sub(r"\D", "", other)


def _number_distance(one: str, other: str) -> float | None:
    """Return the sum of the differences between the numbers of two names; None if one name has more numbers, such as
    chatglm-6b and chatglm3-6b."""
    if not numbers_differ(one, other):
        return 0.0
    its, others = _name_numbers(one), _name_numbers(other)
    return sum(abs(float(a) - float(b)) for a, b in zip(its, others, strict=True)) if len(its) == len(others) else None


def _near_name_question(name: str) -> str:
    """Return the name that was likely meant, as a question; empty if none is near."""
    wanted = name.strip().lower()
    owner, _, own = wanted.rpartition("/")
    if near := suggest(wanted, _similar_names(owner, own), 0.85 if owner else 0.6):
        return near
    meant = likely_meant_name(name)
    return f"; did you mean `{meant}`?" if meant and not numbers_differ(name, meant) else ""


def _similar_names(owner: str, own: str) -> Iterator[str]:
    """Yield known names from which a slip of the finger may have come: of the same owner, of the same size and
    generation, and without a word that tells a variant, such as VL or Coder."""
    numbers, models = _name_numbers(own), yaml_table("models")
    short = [*models, *models.matches(r"\n  short: (?!null)(\S+)")]
    for name in models.matches(rf"(?<![\w./-])({re.escape(owner)}/[\w.\-]+)") if owner else short:
        known = _name_numbers(name.rpartition("/")[2])
        same = known == numbers if owner else set(numbers) <= set(known)
        if same and _has_same_words(own, name.rpartition("/")[2].lower(), all_of_them=bool(owner)):
            yield name


def _has_same_words(own: str, known: str, *, all_of_them: bool) -> bool:
    """True if each word is one of the known name, give or take a letter; the other way round, too, if all of them."""
    mine, its = _name_words(own), _name_words(known)
    counts = len(mine) == len(its) or not all_of_them
    return counts and all(get_close_matches(word, its, n=1, cutoff=0.7) for word in mine)


def _name_numbers(name: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", name)


def _name_words(name: str) -> list[str]:
    """Return the words of a name, without the b of billions."""
    return [word for word in re.findall(r"[^\W\d_]+", name) if word != "b"]
