"""Whether a run is just writing a checkpoint or its result, seen from outside by the files in its output folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from validator.read import disk
from validator.tables import whole

# Seconds in which nothing may be written any more. After the Trainer's own state, which shows that a checkpoint is
# whole, other processes may write their random numbers, and callbacks the files of a processor or a value head.
_CALM = 2.0
_RESULT = "the result"
# Files that hold weights, also in shards.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


class Saves:
    """What a run that is about to start saves into `output`; what lies there before it does not count."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self._before = self._touched()
        self._state_before = _newest([output / whole.STATE])
        self._since = 0.0  # when one was first seen to be whole: the next may follow at once

    def under_way(self) -> str | None:
        """What is being written: the name of a checkpoint, or the result; None where nothing is."""
        touched = {name: when for name, when in self._touched().items() if when != self._before.get(name)}
        last = max(touched, key=touched.__getitem__, default=None)
        if last is None:
            return None
        if not self._whole(last, touched[last]):
            return last
        self._since = self._since or time.monotonic()
        quiet = abs(time.time() - touched[last])  # the clock of a file server may be another
        return None if max(quiet, time.monotonic() - self._since) > _CALM else last

    def _touched(self) -> Mapping[str, float]:
        """When each checkpoint, and the result, was last written to."""
        folders = (path for path in disk.matching(self.output, "checkpoint-*") if whole.NAME.fullmatch(path.name))
        times = {folder.name: _newest(_all(folder)) for folder in folders}
        result = [file for form in _WEIGHTS for file in disk.matching(self.output, form)]
        return {**times, **({_RESULT: _newest(result)} if result else {})}

    def _whole(self, name: str, when: float) -> bool:
        """LLaMA-Factory writes the Trainer's state beside the result when that is written (train/*/workflow.py)."""
        if name != _RESULT:
            return whole.flaw(self.output / name) is None
        state = _newest([self.output / whole.STATE])
        return state != self._state_before and state >= when


def _all(folder: Path) -> Iterator[Path]:
    """The folder and what is in it, which may be on its way out."""
    for place, _, files in os.walk(folder):
        yield from (Path(place), *(Path(place, file) for file in files))


def _newest(paths: Iterable[Path]) -> float:
    """When the last of them was written to; zero where none is there."""
    return max(map(_written, paths), default=0.0)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has just been removed
        return 0.0
