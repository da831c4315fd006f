"""The model's own tokenizer, where it is on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from validator.job.job import Job
from validator.read import disk
from validator.study import opening
from validator.study.estimate import Estimate, estimate
from validator.study.values import UnreadableError
from validator.tables import cache, data

# Longer texts are estimated: a tokenizer takes minutes over them, and they are cut anyway.
_LONGEST = 1_000_000
_PREFIX = "continuing_subword_prefix"
_CUTS = re.compile(rf'"{_PREFIX}"\s*:\s*"[^"]'.encode())
_LARGEST = 128 << 20  # bytes of a tokenizer.json; the largest there are have 35 MB


class Vocabulary:
    """Counts with a tokenizer.json, as transformers does without special tokens of its own. LLaMA-Factory adds the stop
    words of the template to the vocabulary where it lacks them."""

    exact = True

    def __init__(self, path: Path, stops: Sequence[str] = ()) -> None:
        from tokenizers import Tokenizer

        here = Path.cwd()
        self.name = str(path.relative_to(here) if path.is_relative_to(here) else path)
        _bears(path)
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.add_special_tokens(list(stops))
        settings = path.with_name("tokenizer_config.json")
        self.begins = disk.kind(settings) == "file" and bool(_settings(settings).get("bos_token"))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; on all cores."""
        short = [_characters(text) if len(text) < _LONGEST else "" for text in texts]
        counts = [len(one) for one in self._tokenizer.encode_batch_fast(short, add_special_tokens=False)]
        return [estimate(text) if len(text) >= _LONGEST else n for text, n in zip(texts, counts, strict=True)]


def _characters(text: str) -> str:
    """The text without halves of surrogate pairs, which the real run leaves out: tokenizers 0.20 would count them, and
    0.23 raises TypeError."""
    return text if text.isascii() else text.encode(errors="ignore").decode()


def _bears(path: Path) -> None:
    """Raises ValueError for what the library would end this whole process over: pairs of a BPE model with a second half
    that is shorter than the prefix which is cut off, or is cut within a letter (tokenizers, models/bpe/model.rs,
    BpeBuilder::build, which panics; from 0.23 on nothing can be caught)."""
    with opening.plain(path) as stream:
        text = stream.read(_LARGEST)
    if not _CUTS.search(text):
        return
    model = json.loads(text)["model"]
    cut = len(model.get(_PREFIX) or "")
    for pair in model.get("merges") or ():
        half = (pair.split(" ") if isinstance(pair, str) else pair)[1].encode()
        if len(half) < cut or (half[cut : cut + 1] and half[cut] & 0xC0 == 0x80):
            raise ValueError(f"`{half.decode()}` is shorter than what is to be cut off it, {_PREFIX}")


Counter = Vocabulary | Estimate


def counter(job: Job) -> tuple[Counter, str]:
    """The best way to count tokens for a job, and why it is no better; the reason is empty for the tokenizer itself."""
    path = next((place for place in _places(job) if disk.kind(place) == "file"), None)
    if path is None:
        return Estimate(), "the model's tokenizer.json is not on this machine"
    if path.stat().st_size > _LARGEST:
        return Estimate(), f"`{path}` is larger than {_LARGEST >> 20} MiB"
    try:
        template = data.table("formats")["formats"].get(str(job.get("template")), {})
        return Vocabulary(path, template.get("stop_words", ())), ""
    except ImportError:
        return Estimate(), "the tokenizers library is missing: pip install tokenizers"
    except BaseException as err:  # the library raises no narrower class, and none that is an Exception where it panics
        if isinstance(err, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return Estimate(), f"`{path}` cannot be read: {err}"


def _places(job: Job) -> Iterator[Path]:
    """Where tokenizer.json may be: a local model, then the caches of both hubs."""
    name = job.get("model_name_or_path")
    if not isinstance(name, str):
        return
    if folders := job.find(name):
        yield folders[0] / "tokenizer.json"
    for known in dict.fromkeys((name, job.model.name if job.model else name)):
        if there := cache.model(known, "tokenizer.json", *job.origin):
            yield there.folder / "tokenizer.json"


def _settings(path: Path) -> dict[str, Any]:
    try:
        with opening.plain(path) as stream:
            settings = json.loads(stream.read(_LARGEST))
    except (ValueError, RecursionError, UnreadableError):
        return {}
    return settings if isinstance(settings, dict) else {}
