"""The process between `lmf-recipes` and the trainer, a program of its own: it ends everything that the trainer
started, however `lmf-recipes` ends, and waits for a save in progress.

`lmf-recipes` writes signal numbers into a pipe; end of file means that `lmf-recipes` has died. Each direct child gets
the signal once. When a child dies, the kernel gives its children to the guard, which signals them next; torchrun
signals the ranks in their own sessions itself (torch, elastic/agent/server/api.py)."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from validator.errors import os_reason
from validator.launch import process_tree
from validator.recipe import safe_read
from validator.run import checkpoint_integrity

# Seconds in which nothing may be written any more. After the Trainer's own state, which shows that a checkpoint is
# whole, other processes may write their random numbers, and callbacks the files of a processor or a value head.
_QUIET_SECONDS = 2.0
_RESULT_NAME = "the result"
# Files that hold weights, also in shards.
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


class SaveWatcher:
    """What a run that is about to start saves into `output`; what lies there before it does not count."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self._before = self._touched()
        self._state_before = _latest_mtime([output / checkpoint_integrity.TRAINER_STATE])
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
        return None if max(quiet, time.monotonic() - self._since) > _QUIET_SECONDS else last

    def _touched(self) -> Mapping[str, float]:
        """When each checkpoint, and the result, was last written to."""
        folders = (
            path
            for path in safe_read.glob_folder(self.output, "checkpoint-*")
            if checkpoint_integrity.CHECKPOINT_NAME.fullmatch(path.name)
        )
        times = {folder.name: _latest_mtime(_folder_entries(folder)) for folder in folders}
        result = [file for form in _WEIGHT_PATTERNS for file in safe_read.glob_folder(self.output, form)]
        return {**times, **({_RESULT_NAME: _latest_mtime(result)} if result else {})}

    def _whole(self, name: str, when: float) -> bool:
        """LLaMA-Factory writes the Trainer's state beside the result when that is written (train/*/workflow.py)."""
        if name != _RESULT_NAME:
            return checkpoint_integrity.integrity_problem(self.output / name) is None
        state = _latest_mtime([self.output / checkpoint_integrity.TRAINER_STATE])
        return state != self._state_before and state >= when


def _folder_entries(folder: Path) -> Iterator[Path]:
    """The folder and what is in it, which may be on its way out."""
    for place, _, files in os.walk(folder):
        yield from (Path(place), *(Path(place, file) for file in files))


def _latest_mtime(paths: Iterable[Path]) -> float:
    """When the last of them was written to; zero where none is there."""
    return max(map(_mtime, paths), default=0.0)


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has just been removed
        return 0.0


# Seconds between two looks at what is being saved, and until what was killed has to be gone: only a process that waits
# for a driver or a disk stays longer.
_POLL_SECONDS, _KILL_SECONDS = 0.3, 20.0
# Seconds in which a process that is stopped stands still, unless it waits for a disk; and in which a launcher that is
# told to end tells its ranks.
_STOP_SECONDS, _FORWARD_SECONDS = 1.0, 5.0
# What the kernel tells this process itself is not what it was asked for: a manager that signals every process of a job
# has told the trainer, too.
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Guard:
    """Runs the words; `orders` is the pipe, `grace` seconds from the first order to the end of all."""

    def __init__(self, words: Sequence[str], orders: int, grace: float, saves: SaveWatcher | None) -> None:
        self._orders, self._grace, self._saves = [orders], grace, saves
        self._bell = _wakeup_pipe()
        process_tree.become_subreaper()
        self._trainer = subprocess.Popen(words)  # held, as it would else look for the exit code itself
        self._alone = [self._trainer.pid]  # what is known where the system does not tell of processes
        self._code = 0
        self._number = 0  # the signal that it all ends by; none yet
        self._asked = False
        self._until = self._killed = self._held = 0.0
        self._told: set[int] = set()
        self._waits = ""

    def run(self) -> int:
        """Returns when nothing is left: the trainer's exit code, or 128 + n where it was told to end by signal n."""
        while self._reaped():
            for order in self._next(self._act()):
                self._take(order)
        return self._code

    def _reaped(self) -> bool:
        """Takes note of what has ended; whether anything is left."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._trainer.pid:
                    self._alone.clear()
                    self._ended(os.waitstatus_to_exitcode(ended[1]))
            return not self._killed or time.monotonic() < self._killed + _KILL_SECONDS or self._lost()
        return False

    def _ended(self, code: int) -> None:
        """What the trainer leaves behind ends, too."""
        if not self._number:
            self._code = code if code >= 0 else 128 - code
            self._end(signal.SIGTERM)

    def _lost(self) -> bool:
        left = ", ".join(map(str, process_tree.descendant_pids(os.getpid())))
        _print_message(f"killed, and still there, waiting for a driver or a disk: {left}")
        return False

    def _next(self, seconds: float | None) -> Iterator[int]:
        """Orders that come within the seconds, or before a process ends."""
        for ready in select.select([self._bell, *self._orders], [], [], seconds)[0]:
            said = os.read(ready, 64)
            if ready != self._bell:
                yield from said
                if not said:
                    self._orders.clear()
                    self._hold()
                    yield signal.SIGTERM

    def _hold(self) -> None:
        """Keep the output folder locked until the trainer has ended: `lmf-recipes`, which had locked it, is gone."""
        if self._saves:
            with suppress(OSError):
                fcntl.flock(os.open(self._saves.output, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _take(self, order: int) -> None:
        if order in (signal.SIGSTOP, signal.SIGCONT):
            self._send(order)
        elif order == signal.SIGKILL:
            self._kill("killed")
        elif not self._number:
            self._code, self._asked = 128 + order, True
            self._end(order)

    def _end(self, number: int) -> None:
        self._number, self._until = number, time.monotonic() + self._grace

    def _act(self) -> float | None:
        """What is due now; returns the seconds until something may be due again."""
        if not self._number:
            return None
        if not self._killed and time.monotonic() >= self._until:
            self._kill(f"not ended within {self._grace:.0f} s (`--grace`): killed")
        if self._killed:
            self._send(signal.SIGKILL)
        elif not self._told and (saved := self._saved()):
            self._wait(saved)
        else:
            self._tell()
        return _POLL_SECONDS / 10 if self._held else _POLL_SECONDS

    def _saved(self) -> str | None:
        """What is being saved. Where nothing is, all stand still from here on: another save may else begin before they
        hear that they are to end, which ranks do by way of their launcher."""
        if not self._saves:
            return None
        if saved := self._saves.under_way():
            return saved
        self._stop()
        if saved := self._saves.under_way():
            self._send(signal.SIGCONT)
        else:
            self._held = time.monotonic()
        return saved

    def _stop(self) -> None:
        """Returns when all processes stand still."""
        self._send(signal.SIGSTOP)
        until = time.monotonic() + _STOP_SECONDS
        while (
            not all(map(process_tree.is_stopped, process_tree.descendant_pids(os.getpid())))
            and time.monotonic() < until
        ):
            time.sleep(0.01)

    def _kill(self, why: str) -> None:
        self._killed = time.monotonic()
        _print_message(why)

    def _wait(self, saved: str) -> None:
        if saved != self._waits:
            left = self._until - time.monotonic()
            _print_message(
                f"{saved} is being saved: the run ends after that, in {left:.0f} s at the latest; Ctrl-C ends it now"
            )
        self._waits = saved

    def _tell(self) -> None:
        """Whoever was stopped hears it when it goes on."""
        if self._asked and self._saves and not self._told:
            left = self._until - time.monotonic()
            _print_message(f"the trainer is told to end, and has {left:.0f} s; Ctrl-C ends it now")
        for pid in {*(process_tree.child_pids(os.getpid()) or self._alone)} - self._told:
            self._told.add(pid)
            process_tree.send_signal(pid, self._number)
        if time.monotonic() > self._held + _FORWARD_SECONDS:
            self._held = 0.0
        for pid in self._all():
            if not self._held or pid in self._told or process_tree.is_signal_pending(pid, self._number):
                process_tree.send_signal(pid, signal.SIGCONT)

    def _send(self, number: int) -> None:
        for pid in self._all():
            process_tree.send_signal(pid, number)

    def _all(self) -> list[int]:
        """All processes."""
        return [*process_tree.descendant_pids(os.getpid())] or self._alone


def _wakeup_pipe() -> int:
    """Where a byte can be read when a child has ended. Programs that are started get none of this."""
    listening, ringing = os.pipe()
    os.set_blocking(ringing, False)
    signal.set_wakeup_fd(ringing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_IGNORED_SIGNALS):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    return listening


def _print_message(text: str) -> None:
    """The terminal may be gone."""
    with suppress(OSError):
        os.write(2, f"lmf-recipes: {text}\n".encode())


def main() -> NoReturn:
    """`PIPE GRACE OUTPUT WORD…`; no output folder where nothing that is saved is wanted."""
    orders, grace, output, *words = sys.argv[1:]
    try:
        guard = Guard(words, int(orders), float(grace), SaveWatcher(Path(output)) if output else None)
    except OSError as err:
        _print_message(f"{words[0]} cannot be started: {os_reason(err)}")
        os._exit(126)
    os._exit(guard.run())
