"""Tells what a file is by what it holds: a recipe, a DeepSpeed file, an Accelerate file, a data set registry, or
something else that is known (data/file_kinds.yaml). Each file is of one kind, whatever its name and whoever asks: a
name on the command line, a folder or a commit. Only configuration files, tables and a dataset_info.json that is
broken are told by their names, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.recipe.outline import Outline, outline_of
from validator.recipe.recipe_file import find_header_block
from validator.recipe.safe_read import path_kind, read_bytes

RECIPE, DEEPSPEED, ACCELERATE, REGISTRY, UNKNOWN = "recipe", "deepspeed", "accelerate", "registry", "unknown"
YAML_NAME, TOML_NAME = ".lmf-recipes.yaml", "pyproject.toml"
CONFIGURATION_FILES = (YAML_NAME, ".lmf-recipes.yml", TOML_NAME)  # the first in a folder counts
DATA_SUFFIXES = (".jsonl", ".csv", ".parquet", ".arrow")
_CONFIGURATION = "configuration"
_ROWS = "rows"
_JUDGED = (RECIPE, DEEPSPEED, ACCELERATE, REGISTRY)
_LABELS, _MIN_LABELS = "labels", 5
_WORDS_AS_VALUES = ("true", "false", "yes", "no", "on", "off", "null", "none", "auto", "inf", "nan")
_MIN_SURE_KEYS = 3
_MAX_SEARCHED = 1 << 16  # characters in which the texts of the table are looked for
_MAX_TRAINED = 200  # characters of a path that a script trains with
_TRAINED_RECIPE = (
    r"(?:llamafactory-cli|lmf) +train(?: |\\\n)+[\"']?([\w./@%+,=:~-]+\.(?:ya?ml|json))\b|"
    r"(?:src/)?train(?:_bash)?\.py(?: |\\\n)+[\"']?([\w./@%+,=:~-]+\.(?:ya?ml|json))\b"
)
_EVAL_COMMAND = r"(?:llamafactory-cli|lmf) +eval\b|\bsrc/evaluate\.py\b"
_TRAIN_OPTIONS = r"(?:(?:llamafactory-cli|lmf) +train|train(?:_bash)?\.py)\b((?:[^\n]*\\\n)*[^\n]*)"


class FileKind(NamedTuple):
    """The kind of a file. `name`: a key of data/file_kinds.yaml, or `unknown`. `words`: the kind in words, for behind
    "is". `advice`: what to do with such a file; empty for the kinds that are judged."""

    name: str
    words: str = ""
    advice: str = ""

    @property
    def may_be_recipe(self) -> bool:
        """True for a recipe, and for a file of no kind that is known: the user may take it for a recipe."""
        return self.name in (RECIPE, UNKNOWN)

    @property
    def is_judged(self) -> bool:
        """True if there are rules for files of this kind."""
        return self.name in _JUDGED

    @property
    def is_read_by_recipes(self) -> bool:
        """True if recipes name files of this kind, which are judged with them."""
        return self.name in (DEEPSPEED, ACCELERATE, REGISTRY)

    @property
    def why_not_judged(self) -> str:
        """Why a file of this kind is not judged, and what to do, as text for a message behind the file's name."""
        return f"is {self.words}, which is not judged; {self.advice}"


def kind_of_file(path: str) -> FileKind:
    """Return the kind of the file at a path; of the kind `unknown` is also a file that cannot be read. A file of the
    name that LLaMA-Factory's registry has may be too broken to be told by what it holds."""
    try:
        text = read_bytes(path).decode(errors="replace")
    except RecipeError:
        return FileKind(UNKNOWN)
    if Path(path).name in CONFIGURATION_FILES:
        return _kind_with_advice(_CONFIGURATION, _row(_CONFIGURATION), "")
    kind, row = kind_of_text(text), _row(REGISTRY)
    if kind.name in (UNKNOWN, _ROWS) and Path(path).name == row["file"]:
        words = "|".join(row["source"] if kind.name == _ROWS else [*row["source"], *row["also"]])
        if not text.strip() or re.search(rf"\b(?:{words})[\"']? *:", text[:_MAX_SEARCHED]):
            return FileKind(REGISTRY, row["is"])
    if kind.name == UNKNOWN and path.lower().endswith(tuple(_row(_ROWS)["suffixes"])):
        return _kind_with_advice(_ROWS, _row(_ROWS), "")
    return kind


def kind_of_text(text: str) -> FileKind:
    """Return the kind of a file that holds this text. The text may be broken, and cut off behind its beginning."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    outline, head = outline_of(text), text[:_MAX_SEARCHED]
    keys = _meant_keys(outline)
    for name in _kind_names():
        row = _row(name)  # parsed only now: most files are told by the first rows
        if name == _LABELS and _is_labels(outline):
            return _kind_with_advice(name, row, head)
        if name == RECIPE and (_is_surely_recipe(keys) or find_header_block(text)):
            return FileKind(RECIPE, row["is"])
        if name == REGISTRY and _is_registry(outline):
            return FileKind(REGISTRY, row["is"])
        if _has_form(outline, row) and (_holds_keys(keys, row) or _holds_text(head, row)):
            return _kind_with_advice(name, row, head)
    if _is_likely_recipe(keys):
        return FileKind(RECIPE, _row(RECIPE)["is"])
    return FileKind(UNKNOWN)


def require_recipe(path: str) -> None:
    """Raise RecipeError if a folder lies at a path, or a file that is known to be something else than a recipe. The
    message says what it is, and what to do."""
    if path_kind(path) == "folder":
        remedy = "name a recipe in it; `lmf-recipes check` takes a folder of recipes, `lmf-recipes data` one of data"
        raise RecipeError(f"`{path}` is a folder, not a recipe; {remedy}")
    kind = kind_of_file(path)
    if not kind.may_be_recipe:
        advice = kind.advice or "name the recipe (.yaml) that uses it"
        raise RecipeError(f"`{path}` is {kind.words}, not a recipe; {advice}")


def is_strange(text: str) -> bool:
    """True if a text holds keys, is of no kind that is known, and is probably not meant as a recipe either: most of its
    keys are taken by no command of LLaMA-Factory, were taken by no earlier release, and are not written for one by
    users of other trainers."""
    if kind_of_text(text).name != UNKNOWN:
        return False
    arguments, strangers = tables.json_table("arguments"), tables.yaml_table("strangers")
    known = (arguments["arguments"], arguments["elsewhere"], tables.yaml_table("renamed"))
    keys = outline_of(text.replace("\r", "\n")).keys
    meant = [
        key
        for key in keys
        if any(key in each for each in known) or (key in strangers and "belongs" not in strangers[key])
    ]
    return 2 * len(meant) < len(keys)


@cache
def _kind_names() -> tuple[str, ...]:
    return tuple(name for name in tables.yaml_table("file_kinds") if name != "advice")


def _row(name: str) -> Mapping[str, Any]:
    row: Mapping[str, Any] = tables.yaml_table("file_kinds")[name]
    return row


def _meant_keys(outline: Outline) -> frozenset[str]:
    """Return the keys at the top of a file. `stage` is left out if its value is no stage of LLaMA-Factory: other
    programs have that key, too."""
    word = re.match(r"[\"']?(\w*)", outline.keys.get("stage", ""))
    is_other = word is not None and word[1].lower() not in _row(RECIPE)["stages"]
    return frozenset(outline.keys) - ({"stage"} if is_other else set())


def _has_form(outline: Outline, row: Mapping[str, Any]) -> bool:
    form = row.get("form", "mapping")
    if form == "script":
        return outline.form in ("block", "text", "list")
    return outline.form in (("block", "braces", "text") if form == "mapping" else (form,))


def _holds_keys(keys: frozenset[str], row: Mapping[str, Any]) -> bool:
    if keys & {*row.get("unless", ())}:
        return False
    return any(all(_holds_key(keys, name) for name in names.split()) for names in row.get("keys", ()))


def _holds_key(keys: frozenset[str], name: str) -> bool:
    return name in keys or (name.endswith("*") and any(fnmatchcase(key, name) for key in keys))


def _holds_text(text: str, row: Mapping[str, Any]) -> bool:
    return "text" in row and bool(re.search(f"(?m){row['text']}", text))


def _is_surely_recipe(keys: frozenset[str]) -> bool:
    """True for a file for training with LLaMA-Factory: not for another trainer, nor for chat and export."""
    row = _row(RECIPE)
    used = keys & {*row["sure"]}
    return len(used) >= _MIN_SURE_KEYS and bool(used & {*row["own"]}) and bool(used & {*row["train"]})


def _is_likely_recipe(keys: frozenset[str]) -> bool:
    """True if a file holds keys that LLaMA-Factory alone reads, and most of its keys are LLaMA-Factory's."""
    row = _row(RECIPE)
    own = keys & {*row["own"]} if "model_name_or_path" in keys else keys & ({*row["own"]} - {*row["shared"]})
    if not (own or keys >= {"model_name_or_path", "dataset"}):
        return False
    known = tables.json_table("arguments")["arguments"]
    return 2 * sum(key in known for key in keys) >= len(keys)


def _is_labels(outline: Outline) -> bool:
    """True if most keys of LLaMA-Factory that take a number or a truth have words instead, such as `learning_rate: "The
    learning rate"`."""
    arguments = tables.json_table("arguments")["arguments"]
    typed = [
        value.strip("\"' ")
        for key, value in outline.keys.items()
        if key in arguments and {*arguments[key]["type"].split("|")} <= {"int", "float", "bool"}
    ]
    words = [value for value in typed if re.match(r"[^\W\d_]", value) and value.lower() not in _WORDS_AS_VALUES]
    return len(words) >= _MIN_LABELS and 2 * len(words) > len(typed)


def _is_registry(outline: Outline) -> bool:
    """True if at least half of the values in a JSON object are mappings that say where data are. An entry may hold
    keys that are misspelt, but most of its keys must be those of an entry."""
    row = _row(REGISTRY)
    entries = [inner for inner in outline.inner.values() if inner & {*row["source"]} or inner >= {"columns", "tags"}]
    alike = [inner for inner in entries if 2 * len(inner & {*row["entry"]}) > len(inner)]
    return bool(alike) and 2 * len(alike) >= len(outline.keys)


def _kind_with_advice(name: str, row: Mapping[str, Any], text: str) -> FileKind:
    if name in _JUDGED:
        return FileKind(name, row["is"])
    advice = _row("advice")[row["advice"]]
    if row["advice"] != "script" or name == "python":
        return FileKind(name, row["is"], advice)
    words, wanted = next(_training_by_script(text), ("", advice))
    return FileKind(name, f"{row['is']}{words}", wanted)


def _training_by_script(text: str) -> Iterator[tuple[str, str]]:
    """Yield how a shell script trains, as text for a message, and what to check in its place."""
    text = re.sub(r"(?m)^[ \t]*#[^\n]*", "", text)
    trained = re.search(_TRAINED_RECIPE, text)
    if re.search(_EVAL_COMMAND, text):
        yield " that runs `llamafactory-cli eval`", _row("advice")["eval"]
    if trained and len(path := trained[1] or trained[2]) <= _MAX_TRAINED:
        yield f" that trains `{path}`", f"check that: `lmf-recipes check {path}`"
    command = re.search(_TRAIN_OPTIONS, text)
    options = re.findall(r"(?<!\S)--(\w+)", command[1]) if command else []
    if options:
        count = f"{len(options)} options" if len(options) > 1 else "one option"
        remedy = (
            "write each as a line of a recipe (`--cutoff_len 2048` is `cutoff_len: 2048`, an option alone `true`), "
            "and check that"
        )
        yield f" that trains with {count}", remedy
