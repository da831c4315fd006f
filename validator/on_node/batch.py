"""The batch step of a SLURM job, on the job's first node: tell the nodes where they meet, start the program of the
nodes with srun, and queue the job again before its time limit and after the loss of a node."""

import os
import re
import signal
import subprocess
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import List, Optional, Sequence

from . import checkpoint_integrity
from .meeting import local_address
from .messages import say
from .node import last_checkpoint

_POLL_SECONDS = 5.0
# Seconds before the time limit at which the job is queued again in any case.
_LAST_SECONDS = 90.0


class Batch:
    """The batch step of a job. `settings` are the options of the job (see main.py)."""

    def __init__(self, settings: Namespace) -> None:
        self._settings, self._output = settings, Path(settings.output)
        self._started, self._before = time.time(), last_checkpoint(Path(settings.output))
        self._warned = 0.0  # when SLURM told that the limit is near
        self._known = self._before  # the last checkpoint when this was looked at

    def run(self, words: Sequence[str]) -> int:
        """Start the command `words`, which is srun with the program of the nodes, and return its exit code."""
        _set_meeting_place(self._settings.nodes)
        if self._settings.npus:
            _set_visible_npus()
        # srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later).
        cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE")
        if cpus:
            os.environ["SRUN_CPUS_PER_TASK"] = cpus
        signal.signal(signal.SIGUSR1, self._note_limit)
        process = subprocess.Popen(words)
        code: Optional[int] = None
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=_POLL_SECONDS)
            if self._warned and code is None and self._must_queue_again():
                self._queue_again("the limit is near")
                self._warned = 0.0
        code = code if code >= 0 else 128 - code
        # A node that dies ends the training long before SLURM knows of it.
        if code and self._settings.resumes and last_checkpoint(self._output) != self._before:
            self._queue_again(f"the training ended with exit code {code}")
        return code

    def _note_limit(self, _number: int, _frame: object) -> None:
        self._warned, self._known = time.time(), last_checkpoint(self._output)

    def _must_queue_again(self) -> bool:
        """True after the last checkpoint that comes before the limit, and in any case shortly before the limit. The
        processes get no signal: told to save, they would not all do so at the same step."""
        now, last = time.time(), last_checkpoint(self._output)
        deadline = self._warned + self._settings.notice - _LAST_SECONDS
        if now >= deadline:
            return True
        is_new, self._known = last != self._known, last
        return is_new and (self._is_finished() or now + self._seconds_between_checkpoints() > deadline)

    def _queue_again(self, why: str) -> None:
        """Queue the job again, which ends this start of it. Do nothing if the run is complete, or if it has written no
        checkpoint since this start."""
        last = last_checkpoint(self._output)
        if self._is_finished():
            return
        if last == self._before:
            say(f"{why}, and no checkpoint was written since this start: not queued again")
            return
        say(f"{why}: queued again, to go on from checkpoint-{last} (SLURM waits two minutes with that)")
        time.sleep(10)
        if subprocess.call(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]) == 0:
            time.sleep(300)
        say(f"not queued again; submit it anew, and it goes on from checkpoint-{last}")

    def _is_finished(self) -> bool:
        last = last_checkpoint(self._output)
        if last is None:
            return False
        state = self._output / f"checkpoint-{last}" / checkpoint_integrity.TRAINER_STATE
        read = checkpoint_integrity.read_json_mapping(state)
        return bool(read.get("global_step", 0) >= read.get("max_steps", float("inf")))

    def _seconds_between_checkpoints(self) -> float:
        """Return the time between the last two checkpoints of this start, or from the start to the only one."""
        times = sorted(
            state.stat().st_mtime for state in self._output.glob("checkpoint-*/" + checkpoint_integrity.TRAINER_STATE)
        )
        before = times[-2] if len(times) > 1 and times[-2] > self._started else self._started
        return times[-1] - before if times else 0.0


def _set_meeting_place(nodes: int) -> None:
    """Set MASTER_ADDR, MASTER_PORT, RDZV_ID and NODE_NAMES for the nodes. The address is the one from which this node,
    the first, reaches the second: a name can lead to the loopback address on its own node, be known to SLURM alone, or
    be that of several nodes. The port is computed from the job number, because a node may run several jobs; it stays
    below 32768, where the kernel's own range of ports begins."""
    number, address = os.environ["SLURM_JOB_ID"], "127.0.0.1"
    if nodes > 1:
        names = _ask(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]).split()
        second = re.search(r"NodeAddr=(\S+)", _ask(["scontrol", "show", "node", names[1]]))
        address = local_address(second.group(1) if second else names[1])
        if address.startswith("127."):
            address = (_ask(["hostname", "-I"]).split() or [address])[0]
        os.environ["NODE_NAMES"] = " ".join(names)
    os.environ.update(RDZV_ID=number, MASTER_ADDR=address, MASTER_PORT=str(10000 + int(number) % 20000))


def _set_visible_npus() -> None:
    """Set ASCEND_RT_VISIBLE_DEVICES to the NPUs of this job. SLURM sets a variable for devices called gpu only."""
    shown = _ask(["scontrol", "show", "job", "-d", os.environ["SLURM_JOB_ID"]])
    found = re.search(r"GRES=npu\S*\(IDX:([0-9,-]+)\)", shown)
    if found and not os.environ.get("ASCEND_RT_VISIBLE_DEVICES"):
        ends = [part.split("-") for part in found.group(1).split(",")]
        numbers = [str(number) for each in ends for number in range(int(each[0]), int(each[-1]) + 1)]
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(numbers)


def _ask(words: List[str]) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, universal_newlines=True, check=False).stdout
