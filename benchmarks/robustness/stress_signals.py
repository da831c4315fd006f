"""Signals to real runs of `lmf-recipes train`: real LLaMA-Factory, real torchrun, on the CPU.

A model whose checkpoints take about a second to be written is trained from scratch, and the run is ended at several
moments. A try fails where the exit code is another, a process is left, a checkpoint that ought to be whole is not, or
`train` would not go on from the last one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import yaml
from robustness.report import Row, heeding

from validator import processes
from validator.run import checkpoints

ROOT = Path(__file__).parents[2]
INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
# Every process of a try has this in its environment.
_MARK = "LMF_RECIPES_TRY"
_SECONDS = 600.0  # until something that is waited for is taken to never come, on a machine that may be busy
LAUNCHERS = {"one process": 1, "torchrun with 2 processes": 2}
PROMISE = "128 + n, no process left, all checkpoints whole, goes on from the last"
KILLED = "128 + n at once, no process left, goes on from the last whole checkpoint"
LOST = "a failure is told, no process left"
# Other processes of a run that may be killed, and what their command lines hold.
VICTIMS = {"torchrun": b"bin/torchrun", "a rank": b"llamafactory/launcher.py"}
ALONE = "no process left, all checkpoints whole, goes on from the last"


class Run:
    """A training in a folder of its own, which goes on from what lies there."""

    def __init__(self, folder: Path, launcher: str, *words: str) -> None:
        self.output = folder / "out"
        self.words = ("lmf-recipes", "train", str(recipe(folder, LAUNCHERS[launcher])), *words)
        self.mark = uuid4().hex
        self.environment = {
            **os.environ,
            **{"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", _MARK: self.mark},
            # Without it gloo's threads may end a process of several by SIGABRT.
            "PYTHONPATH": str(ROOT / "tests" / "support" / "ending"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.words, cwd=folder, env=self.environment, stdout=log, stderr=log,
                                            start_new_session=True, preexec_fn=heeding)  # fmt: skip

    def until(self, moment: Callable[[Run], bool]) -> None:
        """Wait for a moment of the run. Raises RuntimeError where it does not come."""
        limit = time.monotonic() + _SECONDS
        while not moment(self):
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(self.log.read_text(errors="replace")[-3000:])
            time.sleep(0.002)

    def end(self) -> int:
        """The exit code as a shell has it."""
        code = self.process.wait(_SECONDS)
        return code if code >= 0 else 128 - code

    def left(self) -> list[int]:
        """Processes of this run that are still there."""
        return [int(place.parent.name) for place in Path("/proc").glob("[0-9]*/environ") if self.mark in _read(place)]

    def gone(self) -> bool:
        """Whether none is left, within a while."""
        limit = time.monotonic() + 600.0
        while self.left() and time.monotonic() < limit:
            time.sleep(0.05)
        return not self.left()

    def clear(self) -> None:
        """Whatever a failed try has left."""
        for pid in self.left():
            processes.send_signal(pid, KILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def goes_on(self) -> bool:
        """Whether `train` names the last whole checkpoint, if there is one, as what it goes on from: with one process,
        as several on the CPU cannot load an optimizer (PTH024)."""
        whole = [each.name for each in checkpoints.checkpoints_in(self.output) if not each.problem]
        words = [*self.words, "--dry-run", "--machine=1xcpu"]
        said = subprocess.run(words, cwd=self.output.parent, env=self.environment,
                              capture_output=True, text=True, check=False).stderr  # fmt: skip
        return (f"goes on from {whole[-1]} " in said) if whole else "goes on from" not in said

    def whole(self) -> bool:
        """Whether all checkpoints are."""
        return not any(each.problem for each in checkpoints.checkpoints_in(self.output))


def _read(place: Path) -> str:
    try:
        return place.read_text(errors="replace")
    except OSError:  # it has ended, or is another user's
        return ""


def recipe(folder: Path, processes: int) -> Path:
    """A recipe in the folder for a model of 15 million parameters, most of them an embedding, which takes little time
    to train and some to save."""
    model, data = folder / "model", folder / "data"
    shutil.copytree(
        ROOT / "demo" / "tiny-qwen3", model, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True
    )
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 120_000, "hidden_size": 128}))
    data.mkdir(exist_ok=True)
    rows = [{"instruction": f"say {n}", "input": "", "output": "yes"} for n in range(64)]
    (data / "rows.json").write_text(json.dumps(rows))
    (data / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    values = {
        **{"model_name_or_path": "model", "train_from_scratch": True, "finetuning_type": "full", "stage": "sft"},
        **{"do_train": True, "dataset": "rows", "dataset_dir": "data", "template": "qwen3_nothink", "cutoff_len": 16},
        **{"output_dir": "out", "per_device_train_batch_size": 1, "max_steps": 1000, "save_steps": 4},
        **{"logging_steps": 1, "save_total_limit": 3, "use_cpu": True, "bf16": True, "report_to": "none"},
    }
    file = folder / "recipe.yaml"
    file.write_text(f"# /// recipe\n# machine: {processes}xcpu\n# ///\n{yaml.safe_dump(values)}")
    return file


def _states(run: Run) -> list[bool]:
    """Of each checkpoint, whether the Trainer's state, which it writes last, is there."""
    return [(folder / "trainer_state.json").is_file() for folder in run.output.glob("checkpoint-*")]


def loads(run: Run) -> bool:
    """The trainer, all processes of it, is at the data set: before the first step."""
    return "Loading dataset" in run.log.read_text(errors="replace")


def saves(run: Run) -> bool:
    """A checkpoint, not the first, is being written."""
    states = _states(run)
    return len(states) > 1 and not all(states)


def trains(run: Run) -> bool:
    """A checkpoint has been written a while ago."""
    states = [folder / "trainer_state.json" for folder in run.output.glob("checkpoint-*")]
    return all(_states(run)) and any(_since(state) > 2.5 for state in states)


def _since(file: Path) -> float:
    with suppress(OSError):
        return time.time() - file.stat().st_mtime
    return 0.0


class Moment(NamedTuple):
    """When it is; `words` are what the recipe needs for it to come."""

    comes: Callable[[Run], bool]
    words: tuple[str, ...] = ()


MOMENTS = {
    "before the first step": Moment(loads),
    "in the middle of a save": Moment(saves),
    "long after a save": Moment(trains, ("save_steps=8", "per_device_train_batch_size=8")),
}


def attempt(launcher: str, moment: Moment, numbers: Sequence[int]) -> str | None:
    """One try, ended by these signals, one after the other; why it failed, None where the promise held."""
    with tempfile.TemporaryDirectory(prefix="lmf-recipes-stress-") as place:
        run = Run(Path(place), launcher, *moment.words)
        try:
            run.until(moment.comes)
            for number in numbers:
                run.process.send_signal(number)
                time.sleep(0.3 if len(numbers) > 1 else 0)
            return judged(run, numbers)
        except (RuntimeError, subprocess.TimeoutExpired) as err:
            return str(err)
        finally:
            run.clear()


def lost(launcher: str, victim: bytes) -> str | None:
    """One try: a process of the run whose command line holds these words is killed, before the first step."""
    with tempfile.TemporaryDirectory(prefix="lmf-recipes-stress-") as place:
        run = Run(Path(place), launcher)
        try:
            run.until(loads)
            processes.send_signal(
                next(pid for pid in processes.descendant_pids(run.process.pid) if victim in _command(pid)), KILL
            )
            return None if run.end() and run.gone() else "success, or processes are left"
        except (RuntimeError, subprocess.TimeoutExpired, StopIteration) as err:
            return str(err)
        finally:
            run.clear()


def _command(pid: int) -> bytes:
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def judged(run: Run, numbers: Sequence[int]) -> str | None:
    """What a run that got these signals comes to: why that is not what is promised, None where it is."""
    code, gone = run.end(), run.gone()
    if code != 128 + numbers[0]:
        return f"exit code {code}"
    if not gone:
        return "processes are left"
    if len(numbers) == 1 and not run.whole():
        return "half-written checkpoint"
    return None if run.goes_on() else "does not go on"


def tried(what: str, promise: str, tries: Iterator[str | None]) -> Row:
    """A row; why a try failed goes to standard error."""
    failures = [*tries]
    for why in filter(None, failures):
        print(f"{what}: {why}", file=sys.stderr)
    return Row(what, promise, len(failures), len([*filter(None, failures)]))


def rows() -> Iterator[Row]:
    """A row for each kind of end, tried once at each moment with each launcher."""
    places = f"{', '.join(MOMENTS)}; {', '.join(LAUNCHERS)}"
    for what, numbers, promise in (
        *((signal.Signals(number).name, (number,), PROMISE) for number in (TERM, HUP, INT)),
        ("SIGINT twice", (INT, INT), KILLED),
        ("SIGKILL of lmf-recipes itself", (KILL,), ALONE),
    ):
        tries = (attempt(launcher, moment, numbers) for launcher in LAUNCHERS for moment in MOMENTS.values())
        yield tried(f"{what}: {places}", promise, tries)
    launcher = [*LAUNCHERS][-1]
    for what, victim in VICTIMS.items():
        yield tried(f"SIGKILL of {what}: before the first step; {launcher}", LOST, iter([lost(launcher, victim)]))
