"""The run whose result a recipe starts from: the recipe beside it that writes the model or adapter which it names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from validator.read import disk
from validator.read.recipe import load

_MOST, _LARGE = 1000, 1 << 18  # so many files are looked into, and none of more bytes
# LLaMA-Factory's own examples have a folder for each way to train and one for exports.
_BESIDE = re.compile(r"(?:train|merge|extras)(?:_|$)")
_WRITES = re.compile(r"(?m)^(?:output|export)_dir: *[\"']?([^\s\"'#]+)")


class Run(NamedTuple):
    """A recipe, the model that it starts from, and the template of that model afterwards."""

    recipe: Path
    model: str
    template: object


def run(recipe: str, name: str) -> Run | None:
    """The run that writes the model `name`, by the recipes in the same folder and, in the layout of LLaMA-Factory's
    examples, in those beside it; None where none writes it, or several do that start from different models."""
    if recipe == "-":
        return None
    files = _writers(Path(recipe).absolute().parent).get(_plain(name), ())
    runs = [run for file in files if (run := _run(file, name))]
    return runs[0] if len({run[1:] for run in runs}) == 1 else None


def adapter(recipe: str, name: str) -> Path | None:
    """The recipe beside this one that trains the adapter `name`; None where none does."""
    if recipe == "-":
        return None
    for file in _writers(Path(recipe).absolute().parent).get(_plain(name), ()):
        values = load(str(file)).values
        written = values.get("output_dir")
        if isinstance(written, str) and _plain(written) == _plain(name) and _is_adapter(values):
            return file
    return None


def _is_adapter(values: Mapping[str, Any]) -> bool:
    """True if a run saves an adapter instead of a whole model."""
    return bool(values.get("do_train")) and values.get("finetuning_type", "lora") in ("lora", "oft")


@lru_cache(maxsize=_MOST)
def _run(file: Path, name: str) -> Run | None:
    """What a recipe makes of which model, where it writes a whole one there: a LoRA run leaves an adapter alone, and an
    export may be quantized."""
    values = load(str(file)).values
    written = values.get("output_dir" if values.get("do_train") else "export_dir")
    model = values.get("model_name_or_path")
    whole = not values.get("export_quantization_bit") and not _is_adapter(values)
    if not isinstance(written, str) or not isinstance(model, str) or not whole:
        return None
    return Run(file, model, values.get("template")) if _plain(written) == _plain(name) != _plain(model) else None


@lru_cache(maxsize=64)
def _writers(folder: Path) -> dict[str, list[Path]]:
    """Recipes by what they may write, at first sight."""
    writers: dict[str, list[Path]] = {}
    for file in _beside(folder):
        try:
            text = file.read_text("utf-8") if disk.kind(file) == "file" and file.stat().st_size < _LARGE else ""
        except (OSError, ValueError):
            continue
        for written in _WRITES.findall(text):
            writers.setdefault(_plain(written), []).append(file)
    return writers


def _beside(folder: Path) -> Iterator[Path]:
    """Recipes in a folder and in those beside it, as far as they are alike."""
    beside = sorted(disk.matching(folder.parent, "*/")) if _BESIDE.match(folder.name) else []
    folders = [folder, *(other for other in beside if _BESIDE.match(other.name) and other != folder)]
    files = (file for each in folders for file in sorted(disk.matching(each, "*.y*ml")))
    return (file for file, _ in zip(files, range(_MOST), strict=False))


def _plain(path: str) -> str:
    return os.path.normpath(path)
