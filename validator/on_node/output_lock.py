"""The lock of a run's output folder: the file `_running.json`, which says who writes to the folder. If each node has a
folder of its own, those after the first lock theirs by `_running.RANK.json`.

The lock works on every file system and between nodes: it is created exclusively, its holder touches it every 20
seconds, and a file that nobody has touched for three minutes is no lock any more. Whether the holder is gone is known
sooner if it ran under this kernel (its processes have ended) or as a job of SLURM (squeue does not list it). The ages
of files are compared by the clock of the file system."""

import json
import os
import platform
import random
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional

from .messages import node_name

# Names of the lock and of files beside it. The Trainer's upload to the hub leaves out what begins with `_`
# (transformers/trainer.py, push_to_hub).
FILE_PREFIX = "_running."
BEAT_SECONDS = 20.0
_STALE_SECONDS = 180.0
# Seconds after which whoever began to take over a lock, and did not end with it, counts as gone.
_CLAIM_SECONDS = 60.0
_POLL_SECONDS = 0.5
_RUNNING, _ENDING, _GONE = "running", "ending", "gone"
# States in which squeue lists a job that has no processes, and those in which the last of them are being ended.
_IDLE_STATES, _CLOSING_STATES = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"), ("COMPLETING", "SIGNALING")


class JobId(NamedTuple):
    """A job of a scheduler. `engine`: its name, such as `SLURM`; `cluster`: empty if it has one only; `restart`: how
    often the scheduler has started the job again, None if the scheduler does not say."""

    engine: str
    number: str
    cluster: str = ""
    restart: Optional[int] = None


class LockedError(Exception):
    """Another run writes to the output folder. The message says who, and what to do."""


class _Holder(NamedTuple):
    """Content of a lock. `token` is random, so that each start has another one. `kernel` tells kernels, and namespaces
    of processes, apart. `processes` are numbers and start times: first of the program that took the lock, then of the
    one that ends the trainer when the first is gone."""

    token: str
    node: str
    kernel: str
    processes: List[List[Any]]
    job: Optional[JobId]
    since: str

    def describe(self) -> str:
        job = self.job and f"{self.job.engine} job {self.job.number}"
        return "{} on {}, since {}".format(job or f"process {self.processes[0][0]}", self.node, self.since)

    def to_json(self) -> str:
        job = self.job and self.job._asdict()
        return json.dumps(dict(self._asdict(), job=job))


class OutputLock:
    """A lock that this run holds. Call `beat` every `BEAT_SECONDS`, and `release` at the end."""

    def __init__(self, file: Path, token: str) -> None:
        self.file, self.token = file, token
        self._beaten = time.monotonic()

    def beat(self) -> bool:
        """Touch the lock, if its time has come. Return False if another run has taken it over, which happens to a run
        that stood still for more than three minutes."""
        if time.monotonic() < self._beaten + BEAT_SECONDS:
            return True
        self._beaten = time.monotonic()
        with suppress(OSError):  # the file server may be away for a moment
            holder = _read_holder(self.file)
            if holder is None or holder.token != self.token:
                return False
            os.utime(str(self.file))
        return True

    def add_process(self) -> None:
        """Note this process as one that outlives the program which took the lock."""
        with suppress(OSError):
            holder = _read_holder(self.file)
            if holder and holder.token == self.token:
                processes = [*holder.processes, _process_identity(os.getpid())]
                _replace_text(self.file, holder._replace(processes=processes).to_json())

    def release(self) -> None:
        """Remove the lock, if it is still this run's."""
        with suppress(OSError):
            holder = _read_holder(self.file)
            if holder and holder.token == self.token:
                self.file.unlink()


def slurm_job() -> Optional[JobId]:
    """Return the SLURM job that this process belongs to; None if it belongs to none."""
    env = os.environ
    if "SLURM_JOB_ID" not in env:
        return None
    restart = int(env.get("SLURM_RESTART_COUNT", "0"))
    return JobId("SLURM", env["SLURM_JOB_ID"], env.get("SLURM_CLUSTER_NAME", ""), restart)


def take_lock(
    folder: Path, report: Callable[[str], None], job: Optional[JobId] = None, rank: int = 0
) -> Optional[OutputLock]:
    """Create the output folder and lock it. A run that is just ending is waited for, and the lock of one that is gone
    is taken over; both are said by `report`. `job`: the scheduler's job that this process belongs to. `rank`: that of
    this node, if each has a folder of its own. Return None if nothing can be written there, which the run itself then
    reports. Raises LockedError if another run goes on there."""
    me = _Holder(
        token=f"{random.SystemRandom().getrandbits(128):032x}",
        node=node_name(),
        kernel=_kernel_identity(),
        processes=[_process_identity(os.getpid())],
        job=job,
        since=time.strftime("%Y-%m-%d %H:%M"),
    )
    lock = folder / (FILE_PREFIX + (f"{rank}.json" if rank else "json"))
    is_waiting = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while not _create_file(lock, me.to_json()):
            holder = _read_holder(lock)
            if holder is None:  # just released
                continue
            try:
                state = _holder_state(lock, holder, me)
                if state == _RUNNING:
                    raise LockedError(_locked_message(lock, holder))
            except FileNotFoundError:
                continue
            if state == _ENDING:
                if not is_waiting:
                    report(f"another run is just ending in {folder}: {holder.describe()}; waiting for it")
                is_waiting = True
                time.sleep(_POLL_SECONDS)
            elif _take_over(lock, holder, me):
                report(f"{folder} was left by a run that is gone: {holder.describe()}")
                break
    except OSError:
        return None
    return OutputLock(lock, me.token)


def _locked_message(lock: Path, holder: _Holder) -> str:
    remedy = "wait for its end, or set another folder for this run: output_dir=DIR"
    silent = _seconds_since_write(lock)
    if silent > 2 * BEAT_SECONDS:
        remedy += f"; it was last seen {silent:.0f} s ago, and {_STALE_SECONDS:.0f} s after that counts as gone"
    return f"another run writes to `{lock.parent}`: {holder.describe()}; {remedy}"


def _holder_state(lock: Path, holder: _Holder, me: _Holder) -> str:
    """Return whether the holder of a lock is running, about to end, or gone. An earlier start of this same job on
    another node is about to end. If the scheduler counts its starts, it has ended the earlier one before. Raises
    FileNotFoundError if the lock has just been released."""
    if holder.kernel == me.kernel:
        runs = [_process_identity(number)[1] == start for number, start in holder.processes]
        return _RUNNING if runs[0] else _ENDING if any(runs) else _GONE
    if _seconds_since_write(lock) > _STALE_SECONDS:
        return _GONE
    if holder.job and me.job and holder.job[:3] == me.job[:3]:
        return _ENDING if holder.job.restart == me.job.restart else _GONE
    return _slurm_state(holder.job) if holder.job and holder.job.engine == "SLURM" else _RUNNING


def _slurm_state(job: JobId) -> str:
    """Return whether a job of SLURM is running, about to end, or gone. A job of another cluster, or on a machine
    without squeue, counts as running."""
    if shutil.which("squeue") is None or job.cluster != os.environ.get("SLURM_CLUSTER_NAME", ""):
        return _RUNNING
    command = ["squeue", "--noheader", "--jobs", job.number, "--format=%T"]
    try:
        asked = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return _RUNNING
    states = asked.stdout.split()
    if asked.returncode:
        return _GONE if "Invalid job id" in asked.stderr else _RUNNING
    if all(state in _IDLE_STATES for state in states):
        return _GONE
    return _ENDING if all(state in _CLOSING_STATES for state in states) else _RUNNING


def _take_over(lock: Path, gone: _Holder, me: _Holder) -> bool:
    """Replace the lock of a run that is gone. Of several runs that try, one succeeds: the file that replaces the lock
    is created exclusively. Return False for all others."""
    claim = lock.with_name(lock.name + ".next")
    if not _create_file(claim, me.to_json()):
        with suppress(FileNotFoundError):
            if _seconds_since_write(claim) > _CLAIM_SECONDS:
                claim.unlink()
        time.sleep(_POLL_SECONDS)
        return False
    if _read_holder(lock) != gone:
        claim.unlink()
        return False
    os.replace(str(claim), str(lock))
    holder = _read_holder(lock)
    return holder is not None and holder.token == me.token


def _create_file(file: Path, text: str) -> bool:
    """Create a file that does not exist yet, and return True. Return False if there is one."""
    try:
        opened = os.open(str(file), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(opened, "w") as content:
        content.write(text)
    return True


def _replace_text(lock: Path, text: str) -> None:
    """Replace the lock's text at once."""
    opened, name = tempfile.mkstemp(prefix=lock.name, dir=str(lock.parent))
    with os.fdopen(opened, "w") as content:
        content.write(text)
    os.chmod(name, 0o644)  # other users of the folder read it
    os.replace(name, str(lock))


def _read_holder(lock: Path) -> Optional[_Holder]:
    """Return the holder that a lock names; None if there is no such file. The holder is unknown if the file cannot be
    read, or if its text is not that of a lock, for example because another process is just writing it."""
    try:
        text = lock.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError:
        text = ""
    try:
        read = json.loads(text)
        if not read["processes"] or any(len(each) != 2 or type(each) is not list for each in read["processes"]):
            raise ValueError("no lock")
        job = JobId(**read.pop("job")) if read.get("job") else None
        return _Holder(job=job, **{name: read[name] for name in _Holder._fields if name != "job"})
    except (ValueError, LookupError, TypeError, AttributeError):
        return _Holder(text, "unknown node", "", [["unknown", ""]], None, "unknown time")


def _seconds_since_write(file: Path) -> float:
    """Return how long ago a file was written, by the clock of its file system. Raises FileNotFoundError."""
    opened, name = tempfile.mkstemp(prefix=FILE_PREFIX, dir=str(file.parent))
    os.close(opened)
    now = os.stat(name).st_mtime
    os.unlink(name)
    return now - file.stat().st_mtime


def _kernel_identity() -> str:
    """Return what tells this kernel, since its start, and the namespace of its processes apart from all others."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _process_identity(number: int) -> List[Any]:
    """Return the number and the start of a process: by the kernel's clock, or if the system does not say, `alive`. The
    start is empty if the process has ended."""
    if platform.system() == "Linux":
        try:
            fields = Path(f"/proc/{number}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            return [number, ""]
        return [number, "" if fields[0] in "ZX" else fields[19]]  # state, and starttime, of proc_pid_stat(5)
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return [number, ""]
    except OSError:
        pass
    return [number, "alive"]
