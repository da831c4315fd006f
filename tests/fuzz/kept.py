"""Inputs that were answered wrongly once, made smaller and kept in tests/fixtures/fuzzed/ for the tests."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from fuzz.campaign import HUNG, examined
from fuzz.given import ROOT, Input

FOLDER = ROOT / "tests" / "fixtures" / "fuzzed"
# Processes that may be spent on making one smaller; what hangs takes seconds in each.
_TRIES, _SLOW = 300, 20


def keep(kind: str, given: Input, what: str) -> Path:
    """Write the input, made smaller, to a file of its own, which is named after the fault."""
    small = smaller(given, what)
    path = FOLDER / kind / f"{hashlib.sha256(what.encode()).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {"was": what, "words": small.words, "files": {name: _text(data) for name, data in small.files.items()}}
    path.write_text(json.dumps(held, indent=1) + "\n", "utf-8")
    return path


def load(path: Path) -> Input:
    """A kept input."""
    held = json.loads(path.read_text("utf-8"))
    return Input(tuple(held["words"]), {name: _bytes(text) for name, text in held["files"].items()})


def every(kind: str = "*") -> list[Path]:
    """All that are kept, or those of a kind."""
    return sorted(FOLDER.glob(f"{kind}/*.json"))


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(held: str | dict[str, str]) -> bytes:
    return held.encode() if isinstance(held, str) else base64.b64decode(held["base64"])


def smaller(given: Input, what: str) -> Input:
    """The input without the files, and then the parts of files, that the fault does not need."""
    left = iter(range(_SLOW if what == HUNG else _TRIES))

    def fails(**files: bytes) -> bool:
        return next(left, None) is not None and _fails(given._replace(files=files), what)

    held = dict(given.files)
    for name in sorted(held):
        without = {other: data for other, data in held.items() if other != name}
        held = without if fails(**without) else held
    for name in sorted(held):
        size = len(held[name])
        while size := size // 2:
            place = 0
            while place < len(held[name]):
                shorter = {**held, name: held[name][:place] + held[name][place + size :]}
                held, place = (shorter, place) if fails(**shorter) else (held, place + size)
    return given._replace(files=held)


def _fails(given: Input, what: str) -> bool:
    return any(fault.what == what for fault in examined(lambda _: given, 0, 1).faults)
