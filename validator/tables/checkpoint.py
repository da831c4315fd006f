"""What a model's folder holds beside its config.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_WEIGHTS = ("*.safetensors", "*.bin")
# Files that end like weights: of an adapter, and of Trainer beside a checkpoint.
_OTHER = ("adapter_model", "training_args", "optimizer", "scheduler")
# Of fast tokenizers, of sentencepiece, of vocabularies as files, and of those that come with code of their own.
_TOKENIZER = ("tokenizer.json", "tekken.json", "*.model", "vocab.*", "*.tiktoken", "tokenization_*.py")


def weighs(folder: Path) -> bool:
    """Whether the folder holds weights of a model."""
    files = (file for pattern in _WEIGHTS for file in folder.glob(pattern))
    return any(not file.name.startswith(_OTHER) for file in files)


def missing(folder: Path, *, scratch: bool = False) -> Iterator[str]:
    """What a run cannot do without and the folder lacks, with the files it would be; a model that is trained from
    `scratch` needs no weights."""
    if not scratch and not weighs(folder):
        yield "weights (*.safetensors)"
    if not any(file for pattern in _TOKENIZER for file in folder.glob(pattern)):
        yield "tokenizer (tokenizer.json, tokenizer.model or vocab.json)"
