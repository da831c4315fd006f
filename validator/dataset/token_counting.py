"""Counts the tokens of texts. If the model's tokenizer.json is on this machine, the tokens are counted with it;
otherwise they are estimated from the characters."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from validator import processes
from validator.dataset import file_parts
from validator.knowledge import hub_caches
from validator.knowledge.chat_templates import template_slots
from validator.recipe import safe_read
from validator.rows import reading_limits
from validator.rows.reading_limits import UnreadableError
from validator.rows.token_estimate import BYTE_TABLE, PARTS_PER_TOKEN
from validator.run import data_streams
from validator.run.settings import RunSettings
from validator.wording import relative_to_cwd

NO_TOKENIZER = "the model's tokenizer.json is not on this machine"


class CharacterCounter:
    """Estimates the number of tokens from the characters of a text. `exact` is false, because the numbers are
    estimates, and `reason` says why they are not counted. `begins` says whether the tokenizer has a `bos_token`, and is
    false, too."""

    name, exact, begins = "estimated from the script of the text", False, False

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

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

    def close(self) -> None:
        """Do nothing: there is no process to end."""


# Longer texts are estimated: a tokenizer takes minutes for one, and all of them are cut anyway.
_MAX_TOKENIZED_CHARACTERS = 1_000_000
_MAX_TOKENIZER_BYTES = 128 << 20  # bytes of a tokenizer.json; the largest known ones have 35 MB
_MAX_SETTINGS_BYTES = 16 << 20  # bytes of a tokenizer_config.json; large ones have 1 MB
# What the child process may take while it loads a tokenizer.json, and for the texts that it counts at once: bytes and
# seconds, and more of both for each byte of the file or the texts. Tokenizers of four kinds (byte-level BPE, BPE of
# SentencePiece, WordPiece, Unigram; tokenizers 0.22) took at most a third of the memory for _BATCH_BYTES of words,
# digits, Chinese or emoji, four fifths for a text of a million characters, and a sixth of the time.
_MEMORY, _THREAD_MEMORY, _SECONDS = 192 << 20, 3 << 20, 5.0
_LOADING, _COUNTING = (20, 1e-6), (256, 5e-6)
_BATCH_BYTES = 256 << 10  # bytes of text from which on no further text is counted at once
_TEXT_BYTES = 100  # bytes that each text counts beside its own: what the library makes of an empty one
_ALLOCATION_FAILED = b"memory allocation of"  # what Rust prints before it aborts
# Why a tokenizer.json was given up. A command that reads its data twice does not wait for that twice.
_FAULTS: dict[Path, str] = {}


class _TokenizerError(Exception):
    """The reason why tokens are not counted with a tokenizer.json."""


class TokenizerCounter:
    """Counts tokens with a tokenizer.json, as transformers does without special tokens. `stops` are the template's stop
    words, which LLaMA-Factory adds to a vocabulary that lacks them. `begins` says whether the tokenizer has a
    `bos_token`.

    A tokenizer.json of a few lines can turn each letter into a million, or make the tokenizers library panic or search
    without end. So a child process with limits of memory and time counts. If it fails, the counter estimates from there
    on: `exact` becomes false, and `reason` says why."""

    exact, reason = True, ""

    def __init__(self, path: Path, stops: Sequence[str] = ()) -> None:
        self.name, self._path = str(relative_to_cwd(path)), path
        allowance, context = _allowance(path.stat().st_size, *_LOADING), file_parts.START_METHOD
        self._mine, theirs = context.Pipe()
        self._stderr, stderr = context.Pipe(duplex=False)
        process = context.Process(target=_serve_counts, args=(theirs, stderr, path, stops, allowance[0]), daemon=True)
        with processes.delay_interrupt():
            process.start()
        self._process = process
        theirs.close()
        stderr.close()
        self.begins = bool(self._answer(allowance, "to be loaded"))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text. The tokenizer uses all CPU cores. Texts of a million characters or
        more are estimated."""
        try:
            counts = iter(self._counts([text for text in texts if len(text) < _MAX_TOKENIZED_CHARACTERS]))
        except _TokenizerError as err:
            self.name, self.exact, self.reason = CharacterCounter.name, False, str(err)
        if not self.exact:
            return CharacterCounter().count(texts)
        return [next(counts) if len(text) < _MAX_TOKENIZED_CHARACTERS else CharacterCounter().count([text])[0]
                for text in texts]  # fmt: skip

    def _counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, or nothing if the tokenizer failed before."""
        counts, batch, size = list[int](), list[bytes](), 0
        for number, text in enumerate(texts if self.exact else (), start=1):
            # Halves of surrogate pairs are left out by the real run: tokenizers 0.20 would count them, 0.23 raises
            # TypeError.
            batch.append(text.encode(errors="ignore"))
            size += len(batch[-1]) + _TEXT_BYTES
            if size > _BATCH_BYTES or number == len(texts):
                allowance = _allowance(size, *_COUNTING)
                text_bytes = sum(map(len, batch))
                counts += self._answer(allowance, f"for {text_bytes:,} bytes of text", (batch, allowance[0]))
                batch, size = [], 0
        return counts

    def _answer(self, allowance: tuple[int, float], what_for: str, request: object = None) -> Any:
        """Send a request, unless it is None, and return the child's answer. Raises _TokenizerError if the child reports
        an error or ends, or if no answer comes in time."""
        memory, seconds = allowance
        most = f"{what_for}, the most that it may take"
        try:
            if request:
                self._mine.send(request)
            if self._mine.poll(seconds):
                answer = self._mine.recv()
                if not isinstance(answer, str):
                    return answer
                fault = f"cannot be used: {answer}"
            else:
                fault = f"needs more than {seconds:.0f} s {most}"
        except (EOFError, OSError):
            self._process.join()
            number = -(self._process.exitcode or 0)
            end = signal.Signals(number).name if number > 0 else f"exit code {-number}"
            fault = f"ends the tokenizers library with {end}"
            if _ALLOCATION_FAILED in os.read(self._stderr.fileno(), 1 << 16):
                fault = f"needs more than {memory >> 20} MiB of memory {most}"
        self.close()
        _FAULTS[self._path] = f"`{self.name}` {fault}; fetch it again from where the model comes from"
        raise _TokenizerError(_FAULTS[self._path])

    def close(self) -> None:
        """End the child process."""
        self._process.kill()
        self._process.join()
        self._mine.close()
        self._stderr.close()


def _allowance(size: int, memory_rate: int, seconds_rate: float) -> tuple[int, float]:
    """Return the bytes of memory and the seconds that the child may take for so many bytes. Each thread of the library
    has a stack."""
    threads = (os.cpu_count() or 1) * _THREAD_MEMORY
    return _MEMORY + threads + memory_rate * size, _SECONDS + seconds_rate * size


def _serve_counts(connection: Connection, stderr: Connection, path: Path, stops: Sequence[str], memory: int) -> None:
    """Load a tokenizer.json, send whether the tokenizer has a `bos_token`, and answer lists of texts with their numbers
    of tokens. If the library raises an error, send its message. Runs in a child process, which the parent ends.
    `memory`: the bytes that loading may use."""
    file_parts.follow_parent()
    processes.prctl(processes.PR_SET_DUMPABLE, 0)  # an abort leaves no core file, and no trace
    faulthandler.disable()
    os.dup2(stderr.fileno(), 2)
    try:
        with reading_limits.memory_limit(memory):
            tokenizer = Tokenizer.from_file(str(path))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.add_special_tokens(list(stops))
            begins = bool(_tokenizer_settings(path.with_name("tokenizer_config.json")).get("bos_token"))
        connection.send(begins)
        used = reading_limits.used_memory()
        while True:
            texts, memory = connection.recv()
            with reading_limits.memory_limit(memory, used):
                encodings = tokenizer.encode_batch_fast([text.decode() for text in texts], add_special_tokens=False)
                connection.send([*map(len, encodings)])
                del encodings
    except MemoryError:
        os.write(2, _ALLOCATION_FAILED)
    except BaseException as err:  # a panic of the library is no Exception
        connection.send(str(err)[:300])


TokenCounter = TokenizerCounter | CharacterCounter


def best_counter(run: RunSettings) -> TokenCounter:
    """Return the best token counter for the run: one that uses the model's tokenizer.json, or one that estimates and
    says why."""
    path = next((place for place in _tokenizer_paths(run) if safe_read.path_kind(place) == "file"), None)
    if path is None:
        return CharacterCounter(NO_TOKENIZER)
    if path.stat().st_size > _MAX_TOKENIZER_BYTES:
        return CharacterCounter(f"`{path}` is larger than {_MAX_TOKENIZER_BYTES >> 20} MiB")
    if path in _FAULTS:
        return CharacterCounter(_FAULTS[path])
    template = template_slots().get(str(run.args.get("template")), {})
    try:
        return TokenizerCounter(path, template.get("stop_words", ()))
    except (_TokenizerError, OSError) as err:  # the system may allow no further process
        return CharacterCounter(str(err))


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
            settings = json.loads(stream.read(_MAX_SETTINGS_BYTES))
    except (ValueError, RecursionError, UnreadableError):
        return {}
    return settings if isinstance(settings, dict) else {}
