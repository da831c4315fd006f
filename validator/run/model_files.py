"""What a model's folder lacks that a run needs: weights, a tokenizer, files behind Git LFS pointers; and checkpoints
in their own repository's layout, which LLaMA-Factory does not load (`own_layout` of data/composites.yaml)."""

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
    """Whether the folder holds weights of a model."""
    files = (file for pattern in _WEIGHT_PATTERNS for file in safe_read.glob_folder(folder, pattern))
    return any(not file.name.startswith(_OTHER_FILES) for file in files)


def missing_files(folder: Path, *, scratch: bool = False) -> Iterator[str]:
    """What a run cannot do without and the folder lacks, with the files it would be; a model that is trained from
    `scratch` needs no weights."""
    if not scratch and not has_weights(folder):
        yield "weights (*.safetensors)"
    if not any(file for pattern in _TOKENIZER_PATTERNS for file in safe_read.glob_folder(folder, pattern)):
        yield "tokenizer (tokenizer.json, tokenizer.model or vocab.json)"


def incomplete_downloads(folder: Path) -> Iterator[str]:
    """Weights of a download that did not end: files that the index names and the folder lacks, and pointers of Git LFS
    in the place of files. transformers takes the first of these names that is there (modeling_utils.py,
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
    """What to take in place of such a checkpoint, in words; None for any other. It is told by the classes that its
    config.json names, where that is at hand, else by its name on the hub."""
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
