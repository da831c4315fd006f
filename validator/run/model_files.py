"""Files that a run needs and a model's folder lacks: weights, a tokenizer, files behind Git LFS pointers; and
checkpoints in their own repository's layout, which LLaMA-Factory does not load (`own_layout` of
data/composites.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validator.knowledge.tables import yaml_table
from validator.recipe import safe_read
from validator.run import checkpoint_integrity

_WEIGHT_PATTERNS = ("*.safetensors", "*.bin")
# Files that end like weights: of an adapter, and of Trainer beside a checkpoint.
_OTHER_FILES = ("adapter_model", "training_args", "optimizer", "scheduler")
# Of fast tokenizers, of sentencepiece, of vocabularies as files, and of those that come with code of their own.
_TOKENIZER_PATTERNS = ("tokenizer.json", "tekken.json", "*.model", "vocab.*", "*.tiktoken", "tokenization_*.py")

_FIRST_FOUND = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_LFS_POINTER = b"version https://git-lfs"


def has_weights(folder: Path) -> bool:
    """True if the folder holds weights of a model."""
    files = (file for pattern in _WEIGHT_PATTERNS for file in safe_read.glob_folder(folder, pattern))
    return any(not file.name.startswith(_OTHER_FILES) for file in files)


def missing_files(folder: Path, *, scratch: bool = False) -> Iterator[str]:
    """Yield what a run needs and the folder lacks, with the names of the files that would hold it. A model that is
    trained from `scratch` needs no weights."""
    if not scratch and not has_weights(folder):
        yield "weights (*.safetensors)"
    if not any(file for pattern in _TOKENIZER_PATTERNS for file in safe_read.glob_folder(folder, pattern)):
        yield "tokenizer (tokenizer.json, tokenizer.model or vocab.json)"


def incomplete_downloads(folder: Path) -> Iterator[str]:
    """Yield weights of an unfinished download: files that the index names and the folder lacks, and Git LFS pointers in
    place of files. transformers takes the first file of `_FIRST_FOUND` that exists (modeling_utils.py,
    _get_resolved_checkpoint_files)."""
    name = next((name for name in _FIRST_FOUND if safe_read.path_kind(folder / name) is not None), "")
    if name.endswith(".index.json"):
        files = checkpoint_integrity.read_json_mapping(folder / name).get("weight_map")
        named = set(map(str, files.values())) if isinstance(files, dict) else set()
        if lacking := sorted(each for each in named if safe_read.path_kind(folder / each) is None):
            yield f"{lacking[0]}, which {name} names ({len(lacking)} of {len(named)} files are missing)"
    if pointer := next(filter(_is_lfs_pointer, sorted(safe_read.glob_folder(folder, "*.safetensors"))), None):
        yield f"weights in {pointer.name}, a pointer of Git LFS (`git lfs pull`)"


def _is_lfs_pointer(file: Path) -> bool:
    if safe_read.path_kind(file) == "file":
        with suppress(OSError), file.open("rb") as opened:
            return opened.read(len(_LFS_POINTER)) == _LFS_POINTER
    return False


def replacement_for_layout(name: str, classes: Sequence[str] | None) -> str | None:
    """Return what to use instead of a checkpoint in its own repository's layout, in words; None for any other
    checkpoint. Such a checkpoint is recognized by the classes in its config.json if the file is at hand, else by its
    name on the hub."""
    table = yaml_table("composites")
    for own in (table[kind]["own_layout"] for kind in table.mention("own_layout:")):
        if classes is not None:
            found = own["class"] in classes
        else:
            found = bool(re.fullmatch(own["names"], name, re.IGNORECASE)) and not name.lower().endswith("-hf")
        if found:
            return _converted_name(name, own)
    return None


def _converted_name(name: str, own: Mapping[str, Any]) -> str:
    for pattern, published in own["converted"]:
        if match := re.fullmatch(pattern, name, re.IGNORECASE):
            return f"`{match.expand(published)}`"
    return str(own["instead"])
