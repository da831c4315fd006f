"""Many files: 10,000 recipes in one check, few recipes among a million other files, and what ends a check of many."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from robustness.report import Answer, Row, answer, heeding

ROOT = Path(__file__).parents[2]
_RECIPES, _OTHERS, _ENDS = 10_000, 1_000_000, 10


def rows() -> Iterator[Row]:
    """Each in a folder of its own, with the catalogue's recipes again and again."""
    with tempfile.TemporaryDirectory() as name:
        folder = _folder(Path(name), _RECIPES)
        began = time.monotonic()
        said, waited = answer(["check", "recipes"], cwd=folder), time.monotonic() - began
        what = f"{_RECIPES:,} recipes, {waited:.0f} s on {len(os.sched_getaffinity(0))} processors"
        yield _row(what, "a minute of two processors", said, said.seconds < 2 * 60)
        alone = _alone(folder)
        yield _row(f"{_RECIPES:,} recipes on one processor", "the same, byte for byte", alone, alone[:3] == said[:3])
        yield from (_ended(folder, number) for number in (signal.SIGINT, signal.SIGTERM))
    with tempfile.TemporaryDirectory() as name:
        folder = _folder(Path(name), 100)
        for number in range(_OTHERS):
            (folder / "recipes" / f"{number}.txt").touch()
        said = answer(["check", "recipes"], cwd=folder)
        yield _row(
            f"100 recipes among {_OTHERS:,} other files", "found within 10 s of a processor", said, said.seconds < 10
        )


def _folder(folder: Path, count: int) -> Path:
    """Recipes of the catalogue, again and again, with what they name."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "recipes").glob("*.yaml"))]
    (folder / "recipes").mkdir()
    for number in range(count):
        (folder / "recipes" / f"{number}.yaml").write_text(texts[number % len(texts)], "utf-8")
    for beside in ("deepspeed", "data"):
        shutil.copytree(ROOT / beside, folder / beside)
    return folder


def _alone(folder: Path) -> Answer:
    """The same by one process: on one processor no other is started."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        return answer(["check", "recipes"], cwd=folder)
    finally:
        os.sched_setaffinity(0, before)


def _ended(folder: Path, number: signal.Signals) -> Row:
    """Started and ended, after ever more time; what is left of it is looked for by its group."""
    failed = 0
    for tenths in range(1, _ENDS + 1):
        program = [Path(sys.executable).with_name("lmf-recipes"), "check", "recipes"]
        process = subprocess.Popen(
            program, cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=heeding
        )
        time.sleep(tenths / 2)
        os.killpg(process.pid, number)
        failed += process.wait() not in (128 + number, -number) or _left(process.pid)
    promise = f"ended at once with {128 + number}, no process left"
    return Row(f"{number.name} during a check of {_RECIPES:,} recipes", promise, _ENDS, failed)


def _left(group: int) -> bool:
    """Whether a process of the group runs a second later. One that has ended may wait to be buried (proc(5))."""
    time.sleep(1)
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has gone
            state, _, its = place.read_text("utf-8", "replace").rpartition(")")[2].split()[:3]
            if int(its) == group and state not in "ZX":
                return True
    return False


def _row(what: str, promise: str, said: Answer, kept: bool) -> Row:
    return Row(what, promise, 1, int(not kept or said.code not in (0, 1)), said.seconds, said.mebibytes)
