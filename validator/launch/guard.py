"""The guard: a separate program between `lmf-recipes` and the trainer. The guard ends every process that the trainer
has started, whatever way `lmf-recipes` ends, and first waits for a save in progress.

`lmf-recipes` writes signal numbers into a pipe, and end of file means that `lmf-recipes` has died. The guard signals
each of its direct children once. When a child dies, the kernel makes the child's own children direct children of the
guard, which signals them next. torchrun itself signals the ranks, which are in sessions of their own (torch,
elastic/agent/server/api.py). The guard keeps the lock of the output folder, and ends the run if another one has taken
it."""

from __future__ import annotations

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

from validator import processes
from validator.errors import os_reason
from validator.on_node import checkpoint_integrity
from validator.on_node.output_lock import BEAT_SECONDS, OutputLock
from validator.recipe import safe_read

# Seconds in which nothing may be written any more. After the Trainer's own state, which shows that a checkpoint is
# whole, other processes may write their random numbers, and callbacks the files of a processor or a value head.
_QUIET_SECONDS = 2.0
_RESULT_NAME = "the result"
# Files that hold weights, also in shards.
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


class SaveWatcher:
    """Watches a run's output folder for a checkpoint or a result that is being written. Create the watcher before the
    run starts: checkpoints and results that are already in the folder are ignored."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self._before = self._last_writes()
        self._state_before = _latest_mtime([output / checkpoint_integrity.TRAINER_STATE])
        self._complete_since = 0.0  # when a checkpoint was first seen to be complete: the next may follow at once

    def in_progress(self) -> str | None:
        """Return the name of the checkpoint that is being written, or "the result". Return None if nothing is being
        written: the last save is complete and nothing has been written to the save for two seconds."""
        written = {name: when for name, when in self._last_writes().items() if when != self._before.get(name)}
        last = max(written, key=written.__getitem__, default=None)
        if last is None:
            return None
        if not self._is_complete(last, written[last]):
            return last
        self._complete_since = self._complete_since or time.monotonic()
        quiet = abs(time.time() - written[last])  # the clock of a file server may be another
        return None if max(quiet, time.monotonic() - self._complete_since) > _QUIET_SECONDS else last

    def _last_writes(self) -> Mapping[str, float]:
        """Return the time of the last write to each checkpoint folder, by its name, and to the weight files of the
        result."""
        is_checkpoint = checkpoint_integrity.CHECKPOINT_NAME.fullmatch
        folders = [path for path in safe_read.glob_folder(self.output, "checkpoint-*") if is_checkpoint(path.name)]
        times = {folder.name: _latest_mtime(_folder_entries(folder)) for folder in folders}
        result = [file for form in _WEIGHT_PATTERNS for file in safe_read.glob_folder(self.output, form)]
        return {**times, **({_RESULT_NAME: _latest_mtime(result)} if result else {})}

    def _is_complete(self, name: str, when: float) -> bool:
        """True if the checkpoint, or the result, is completely written. `when` is the time of the last write to its
        files. The result is complete when LLaMA-Factory has written the Trainer's state into the output folder, after
        the weights (train/*/workflow.py)."""
        if name != _RESULT_NAME:
            return checkpoint_integrity.integrity_problem(self.output / name) is None
        state = _latest_mtime([self.output / checkpoint_integrity.TRAINER_STATE])
        return state != self._state_before and state >= when


def _folder_entries(folder: Path) -> Iterator[Path]:
    """Yield the folder and everything in it, at all depths. A yielded file may have been removed meanwhile."""
    for place, _, files in os.walk(folder):
        yield from (Path(place), *(Path(place, file) for file in files))


def _latest_mtime(paths: Iterable[Path]) -> float:
    """Return the time of the last write to any of these files; zero if none of them exists."""
    latest = 0.0
    for path in paths:
        with suppress(OSError):  # it has just been removed
            latest = max(latest, path.stat().st_mtime)
    return latest


# Seconds between two looks at what is being saved.
_POLL_SECONDS = 0.3
# Seconds until what was killed has to be gone: only a process that waits for a driver or a disk stays longer.
_KILL_SECONDS = 20.0


class Guard:
    """Runs the trainer's command and ends its processes on request. `commands` is the file descriptor of the pipe from
    which signal numbers are read. `grace` is the number of seconds from the first signal until all remaining processes
    are killed. `lock`: the lock of the output folder, if it is locked."""

    def __init__(
        self, words: Sequence[str], commands: int, grace: float, saves: SaveWatcher | None, lock: OutputLock | None
    ) -> None:
        self._commands, self._grace, self._saves, self._lock = [commands], grace, saves, lock
        if lock:
            lock.add_process()
        self._wakeup = _wakeup_pipe()
        processes.become_subreaper()
        self._trainer = subprocess.Popen(words)  # held, as it would else look for the exit code itself
        self._code = 0
        self._number = 0  # the signal that ends the run; none yet
        self._asked = False  # by `lmf-recipes` or its end, not by the trainer's own end
        self._deadline = self._killed = 0.0
        self._signalled: set[int] = set()
        self._waits_for = ""

    def run(self) -> int:
        """Wait until every process has ended, and pass signals on meanwhile. Return the trainer's exit code, or 128 + n
        if signal n ended the run."""
        while self._reap():
            if self._lock and not self._lock.beat() and not self._number:
                _print_message(f"another run has taken over {self._lock.file.parent}, because this one stood still")
                self._code = 1
                self._end(signal.SIGTERM)
            for number in self._read_commands(self._step()):
                if number == signal.SIGKILL:
                    self._kill("killed")
                elif not self._number:
                    self._code, self._asked = 128 + number, True
                    self._end(number)
        if self._lock:
            self._lock.release()
        return self._code

    def _reap(self) -> bool:
        """Collect the exit codes of processes that have ended. Return True while processes are left. Return False if
        none is left, or if killed processes still exist after 20 seconds."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._trainer.pid and not self._number:  # what the trainer leaves behind ends, too
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._code = code if code >= 0 else 128 - code
                    self._end(signal.SIGTERM)
            if not self._killed or time.monotonic() < self._killed + _KILL_SECONDS:
                return True
            left = ", ".join(map(str, processes.descendant_pids(os.getpid())))
            _print_message(f"killed, and still there, waiting for a driver or a disk: {left}")
        return False

    def _read_commands(self, seconds: float | None) -> Iterator[int]:
        """Wait until a signal number arrives, a child process ends, or `seconds` have passed (None: no limit). Yield
        the signal numbers. If `lmf-recipes` has died, yield SIGTERM."""
        for ready in select.select([self._wakeup, *self._commands], [], [], seconds)[0]:
            read = os.read(ready, 64)
            if ready != self._wakeup:
                yield from read
                if not read:  # `lmf-recipes` is gone
                    self._commands.clear()
                    yield signal.SIGTERM

    def _end(self, number: int) -> None:
        self._number, self._deadline = number, time.monotonic() + self._grace

    def _step(self) -> float | None:
        """Signal the trainer's processes, or kill them after the time allowed, if a signal has arrived. Return the
        seconds until the next call of this method; None for no limit. The first signal is held back while a checkpoint
        or the result is being written."""
        if not self._number:
            return BEAT_SECONDS if self._lock else None
        if not self._killed and time.monotonic() >= self._deadline:
            self._kill(f"not ended within {self._grace:.0f} s (`--grace`): killed")
        left = self._deadline - time.monotonic()
        if self._killed:
            for pid in processes.descendant_pids(os.getpid()):
                processes.send_signal(pid, signal.SIGKILL)
        elif not self._signalled and self._saves and (saved := self._saves.in_progress()):
            if saved != self._waits_for:
                remaining_time = f"the run ends after that, in {left:.0f} s at the latest; Ctrl-C kills it now"
                _print_message(f"{saved} is being saved: {remaining_time}")
            self._waits_for = saved
        else:
            if self._asked and self._saves and not self._signalled:
                _print_message(f"stopping the trainer, which has {left:.0f} s to end; Ctrl-C kills it now")
            for pid in {*processes.child_pids(os.getpid())} - self._signalled:
                self._signalled.add(pid)
                processes.send_signal(pid, self._number)
        return _POLL_SECONDS

    def _kill(self, why: str) -> None:
        self._killed = time.monotonic()
        _print_message(why)


def _wakeup_pipe() -> int:
    """Return a file descriptor that becomes readable when a child process ends. Signals sent to the guard itself have
    no effect: a batch system that signals every process has signalled the trainer, too. Only numbers in the command
    pipe count. Programs that the guard starts do not inherit the signal handlers."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *processes.END_SIGNALS):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    return reads


def _print_message(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"lmf-recipes: {text}\n".encode())


def main() -> NoReturn:
    """Run the guard with the arguments `PIPE GRACE OUTPUT LOCK TOKEN WORD…`, and exit with the trainer's exit code.
    PIPE is a file descriptor, GRACE is in seconds, the words are the trainer's command. With an empty OUTPUT (the
    output folder), the guard does not wait for saves. LOCK is the folder's lock and TOKEN what it holds; both are empty
    if the folder is not locked."""
    commands, grace, output, file, token, *words = sys.argv[1:]
    lock = OutputLock(Path(file), token) if file else None
    try:
        guard = Guard(words, int(commands), float(grace), SaveWatcher(Path(output)) if output else None, lock)
    except OSError as err:
        _print_message(f"{words[0]} cannot be started: {os_reason(err)}")
        os._exit(126)
    os._exit(guard.run())
