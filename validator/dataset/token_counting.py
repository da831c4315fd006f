"""Counts the tokens of texts. If the model's tokenizer.json is on this machine, the tokens are counted with it;
otherwise they are estimated from the characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from validator.knowledge import hub_caches
from validator.knowledge.chat_templates import template_slots
from validator.recipe import safe_read
from validator.rows.reading_limits import UnreadableError
from validator.rows.token_estimate import BYTE_TABLE, PARTS_PER_TOKEN
from validator.run import data_streams
from validator.run.settings import RunSettings
from validator.wording import relative_to_cwd


class CharacterCounter:
    """Estimates the number of tokens from the characters of a text. `exact` is false, because the numbers are
    estimates. `begins` says whether the tokenizer has a `bos_token`, and is false, too."""

    name, exact, begins = "estimated from the script of the text", False, False

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the estimated number of tokens of each text."""
        data = [text.encode("utf-8", "surrogatepass") for text in texts]
        if not data:
            return []
        # All texts at once. A byte that counts nothing follows each text: numpy's sum of no bytes is not 0.
        parts = np.frombuffer(b"\x00".join(data).translate(BYTE_TABLE) + b"\x00", np.uint8)
        starts = list(accumulate((len(one) + 1 for one in data[:-1]), initial=0))
        sums = np.add.reduceat(parts, starts, dtype=np.uint64)
        tokens: list[int] = ((sums + PARTS_PER_TOKEN // 2) // PARTS_PER_TOKEN).tolist()
        return tokens


# Longer texts are estimated: a tokenizer takes minutes for one, and all of them are cut anyway.
_MAX_TOKENIZED_CHARACTERS = 1_000_000
_SUBWORD_PREFIX = "continuing_subword_prefix"
_HAS_SUBWORD_PREFIX = re.compile(rf'"{_SUBWORD_PREFIX}"\s*:\s*"[^"]'.encode())
_MAX_TOKENIZER_BYTES = 128 << 20  # bytes of a tokenizer.json; the largest known ones have 35 MB


class TokenizerCounter:
    """Counts tokens with a tokenizer.json, as transformers does without special tokens. `stops` are the template's stop
    words, which LLaMA-Factory adds to a vocabulary that lacks them. `begins` says whether the tokenizer has a
    `bos_token`."""

    exact = True

    def __init__(self, path: Path, stops: Sequence[str] = ()) -> None:
        self.name = str(relative_to_cwd(path))
        _refuse_panicking_model(path)
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.add_special_tokens(list(stops))
        settings = path.with_name("tokenizer_config.json")
        self.begins = safe_read.path_kind(settings) == "file" and bool(_tokenizer_settings(settings).get("bos_token"))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text. The tokenizer uses all CPU cores. Texts of a million characters or
        more are estimated."""
        # Halves of surrogate pairs are left out by the real run: tokenizers 0.20 would count them, 0.23 raises
        # TypeError.
        short = [text if text.isascii() else text.encode(errors="ignore").decode()
                 for text in texts if len(text) < _MAX_TOKENIZED_CHARACTERS]  # fmt: skip
        counts = iter(map(len, self._tokenizer.encode_batch_fast(short, add_special_tokens=False)))
        return [next(counts) if len(text) < _MAX_TOKENIZED_CHARACTERS else CharacterCounter().count([text])[0]
                for text in texts]  # fmt: skip


def _refuse_panicking_model(path: Path) -> None:
    """Raise ValueError if the tokenizers library would panic while it loads this BPE model, which would end the whole
    process.

    The library panics at a merge whose second half is shorter than the prefix that is cut off the half, or is cut
    within a letter (models/bpe/model.rs, BpeBuilder::build). From 0.23 on the panic cannot be caught."""
    with data_streams.open_raw(path) as stream:
        text = stream.read(_MAX_TOKENIZER_BYTES)
    if not _HAS_SUBWORD_PREFIX.search(text):
        return
    model = json.loads(text)["model"]
    cut = len(model.get(_SUBWORD_PREFIX) or "")
    for pair in model.get("merges") or ():
        half = (pair.split(" ") if isinstance(pair, str) else pair)[1].encode()
        if len(half) < cut or (half[cut : cut + 1] and half[cut] & 0xC0 == 0x80):
            raise ValueError(f"`{half.decode()}` is shorter than what is to be cut off it, {_SUBWORD_PREFIX}")


TokenCounter = TokenizerCounter | CharacterCounter


def best_counter(run: RunSettings) -> tuple[TokenCounter, str]:
    """Return the best token counter for the run, and the reason why the counter only estimates. The reason is empty if
    the model's tokenizer.json is used."""
    path = next((place for place in _tokenizer_paths(run) if safe_read.path_kind(place) == "file"), None)
    if path is None:
        return CharacterCounter(), "the model's tokenizer.json is not on this machine"
    if path.stat().st_size > _MAX_TOKENIZER_BYTES:
        return CharacterCounter(), f"`{path}` is larger than {_MAX_TOKENIZER_BYTES >> 20} MiB"
    try:
        template = template_slots().get(str(run.args.get("template")), {})
        return TokenizerCounter(path, template.get("stop_words", ())), ""
    except BaseException as err:  # a panic of the library is no Exception
        if isinstance(err, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return CharacterCounter(), f"`{path}` cannot be read: {err}"


def _tokenizer_paths(run: RunSettings) -> Iterator[Path]:
    """Yield the paths where the model's tokenizer.json may be: first the local model folder, then the caches of Hugging
    Face and ModelScope."""
    name = run.args.get("model_name_or_path")
    if not isinstance(name, str):
        return
    if folders := run.workspace.find(name):
        yield folders[0] / "tokenizer.json"
    for model_name in dict.fromkeys((name, run.model.name if run.model else name)):
        if cached := hub_caches.cached_model(model_name, "tokenizer.json", *run.hub_source):
            yield cached.folder / "tokenizer.json"


def _tokenizer_settings(path: Path) -> dict[str, Any]:
    try:
        with data_streams.open_raw(path) as stream:
            settings = json.loads(stream.read(_MAX_TOKENIZER_BYTES))
    except (ValueError, RecursionError, UnreadableError):
        return {}
    return settings if isinstance(settings, dict) else {}
