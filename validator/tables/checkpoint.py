"""What a model's folder holds beside its config.json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from validator.read import disk
from validator.tables import whole

_WEIGHTS = ("*.safetensors", "*.bin")
# Files that end like weights: of an adapter, and of Trainer beside a checkpoint.
_OTHER = ("adapter_model", "training_args", "optimizer", "scheduler")
# Of fast tokenizers, of sentencepiece, of vocabularies as files, and of those that come with code of their own.
_TOKENIZER = ("tokenizer.json", "tekken.json", "*.model", "vocab.*", "*.tiktoken", "tokenization_*.py")

_FIRST = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_POINTER = b"version https://git-lfs"


def weighs(folder: Path) -> bool:
    """Whether the folder holds weights of a model."""
    files = (file for pattern in _WEIGHTS for file in disk.matching(folder, pattern))
    return any(not file.name.startswith(_OTHER) for file in files)


def missing(folder: Path, *, scratch: bool = False) -> Iterator[str]:
    """What a run cannot do without and the folder lacks, with the files it would be; a model that is trained from
    `scratch` needs no weights."""
    if not scratch and not weighs(folder):
        yield "weights (*.safetensors)"
    if not any(file for pattern in _TOKENIZER for file in disk.matching(folder, pattern)):
        yield "tokenizer (tokenizer.json, tokenizer.model or vocab.json)"


def partial(folder: Path) -> Iterator[str]:
    """Weights of a download that did not end: files that the index names and the folder lacks, and pointers of Git LFS
    in the place of files. transformers takes the first of these names that is there (modeling_utils.py,
    _get_resolved_checkpoint_files)."""
    name = next((name for name in _FIRST if disk.kind(folder / name) is not None), "")
    if name.endswith(".index.json"):
        files = whole.mapping(folder / name).get("weight_map")
        named = set(map(str, files.values())) if isinstance(files, dict) else set()
        if lacking := sorted(each for each in named if disk.kind(folder / each) is None):
            yield f"{lacking[0]}, which {name} names ({len(lacking)} of {len(named)} files are missing)"
    if pointer := next(filter(_points, sorted(disk.matching(folder, "*.safetensors"))), None):
        yield f"weights in {pointer.name}, a pointer of Git LFS (`git lfs pull`)"


def _points(file: Path) -> bool:
    if disk.kind(file) == "file":
        with suppress(OSError), file.open("rb") as opened:
            return opened.read(len(_POINTER)) == _POINTER
    return False
