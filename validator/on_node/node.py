"""The work of each node of a job: lock and clean the output folder, prepare the node, meet the other nodes, and train.

The node reports what is wrong in one line, and ends with 1. Settings that the user, the image or the site has made in
the environment are kept."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import List, Optional, Sequence

from . import checkpoint_integrity
from .meeting import MeetingError, MeetingPlace, host_meeting, join_meeting, local_address
from .messages import node_name, say, write_log
from .output_lock import FILE_PREFIX, JobId, LockedError, OutputLock, take_lock

_RANK_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_SIGTERM_CODE = 128 + signal.SIGTERM
# Seconds for the trainer's processes to end: torchrun takes 30 of them where a process does not heed the signal.
_END_SECONDS = 40.0


class NodeError(Exception):
    """This node cannot run the job. The message says why."""


class Node:
    """One node of a job. `settings` are the options of the job (see main.py), `rank` counts nodes from 0."""

    def __init__(self, settings: Namespace, rank: int, job: JobId) -> None:
        self._settings, self._rank, self._job = settings, rank, job
        self._output = Path(settings.output)
        self._lock: Optional[OutputLock] = None
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._told_to_end = False

    def run(self, words: Sequence[str]) -> int:
        """Train with the command `words`, which has the recipe among them. Return its exit code, 1 if this node cannot
        run it, or 143 after SIGTERM."""
        signal.signal(signal.SIGTERM, self._note_end)
        if self._settings.log:
            write_log(f"{self._settings.log}-{_job_label()}-{node_name()}-{self._rank}.out")
        try:
            code = self._prepare_and_train(words)
        except (NodeError, MeetingError, LockedError) as err:
            if str(err):
                say(str(err))
            code = 1
        finally:
            if self._lock:
                self._lock.release()
        if code and self._settings.nodes > 1:
            time.sleep(5)  # srun ends all nodes as soon as one fails, and loses what that one has just written
        return code

    def _note_end(self, _number: int, _frame: object) -> None:
        self._told_to_end = True
        if self._process is None:
            sys.exit(_SIGTERM_CODE)

    def _prepare_and_train(self, words: Sequence[str]) -> int:
        settings = self._settings
        start = words.index(settings.recipe)
        command, arguments = list(words[:start]), list(words[start:])
        _require_access(settings.recipe, self._output, self._rank)
        if self._rank == 0 or settings.own_folders:
            self._lock = take_lock(self._output, say, self._job, self._rank)
            if settings.resumes:
                clean_output(self._output, self._job.number if settings.anew else "")
        resuming = self._resuming_words()
        raise_limits(settings.max_open_files)
        read_vendor_files(settings.vendor_files, settings.vendor_unless)
        if settings.peers_driver:
            switch_peers_off(settings.peers_driver, settings.peers_variables)
        if settings.nodes > 1:
            set_addresses(settings.hccl)
            # torchrun compares addresses to find the node that hosts its store, which fails if that node has several
            # (torch, distributed/elastic/rendezvous/utils.py).
            os.environ["PET_RDZV_CONF"] = f"is_host={self._rank == 0:d}"
        program = command[2] if command[0] == "timeout" else command[0]
        if shutil.which(program) is None:
            remedy = "setup in the site file takes lines for it"
            raise NodeError(f"{program} is not in the path of {node_name()}; {remedy}")
        if settings.machine and shutil.which("lmf-recipes"):
            # The doctor ends with 1 if this node is not fit for the run; any other end is its own.
            code = self._wait(["lmf-recipes", "doctor", "--machine", settings.machine, *arguments])
            if self._told_to_end:
                return _SIGTERM_CODE
            if code == 1:
                raise NodeError("not started for the errors above; if they are wrong, take `--machine` out of the job")
        if settings.nodes > 1:
            resuming = self._meet(resuming)
        command = [os.environ[word] if word in _RANK_VARIABLES else word for word in command]
        return self._wait(command + arguments + resuming)

    def _resuming_words(self) -> List[str]:
        """Return the words that make this start go on from the last checkpoint. A scheduler that counts starts says
        which is not the first; otherwise a checkpoint says so."""
        is_first = self._job.restart == 0
        return [] if is_first or last_checkpoint(self._output) is None else list(self._settings.resuming)

    def _meet(self, resuming: List[str]) -> List[str]:
        """Return the words that the first node says to start with. Nodes with output folders of their own keep
        theirs."""
        settings, env = self._settings, os.environ
        place = MeetingPlace(env["MASTER_ADDR"], int(env["MASTER_PORT"]), env["RDZV_ID"], settings.wait)
        if self._rank:
            told = join_meeting(place, self._rank)
            return resuming if settings.own_folders else told
        names = env.get("NODE_NAMES", "").split()
        names = names if len(names) == settings.nodes else [f"node {rank}" for rank in range(settings.nodes)]
        host_meeting(place, names, resuming, None if settings.own_folders else self._output, self._keep_lock)
        return resuming

    def _keep_lock(self) -> None:
        if self._lock and not self._lock.beat():
            raise NodeError(f"another run has taken over {self._output}, because this one stood still")

    def _wait(self, words: Sequence[str]) -> int:
        """Run a program, and keep the lock meanwhile. Return its exit code, or 128 + n if signal n ended it. SLURM
        sends SIGTERM to all processes; elsewhere the program is ended here, after a save that is under way."""
        self._process = process = subprocess.Popen(words)
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=1)
                    return code if code >= 0 else 128 - code
                self._keep_lock()
                if self._told_to_end and self._job.engine != "SLURM":
                    self._wait_for_save()
                    say("told to end: stopping")
                    return _SIGTERM_CODE
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_END_SECONDS)
            self._process = None

    def _wait_for_save(self) -> None:
        """Return when no checkpoint is being written. The scheduler kills the pod when its grace is over."""
        if is_saving(self._output):
            say("told to end: a checkpoint is being saved")
            while is_saving(self._output):
                time.sleep(1)
                self._keep_lock()
            time.sleep(2)  # other processes write their random numbers after the Trainer's state


def _job_label() -> str:
    """Return the number of the SLURM job as it stands in the name of its log, such as `7`, or `7_0` in an array."""
    env = os.environ
    array = env.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{env['SLURM_ARRAY_TASK_ID']}" if array else env["SLURM_JOB_ID"]


def _require_access(recipe: str, output: Path, rank: int) -> None:
    if not os.access(recipe, os.R_OK):
        raise NodeError(f"{node_name()} does not see {recipe}; put it where all nodes do")
    probe = output / f"{FILE_PREFIX}writable-{rank}"
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as err:
        raise NodeError(f"{node_name()} cannot write to {output}: {checkpoint_integrity.os_reason(err)}") from None


def last_checkpoint(output: Path) -> Optional[int]:
    """Return the step of the last checkpoint in the output folder that is whole: the Trainer writes its state last.
    None if there is none."""
    states = output.glob("checkpoint-*/" + checkpoint_integrity.TRAINER_STATE)
    found = (checkpoint_integrity.CHECKPOINT_NAME.fullmatch(state.parent.name) for state in states)
    return max((int(match.group(1)) for match in found if match), default=None)


def is_saving(output: Path) -> bool:
    """True if a checkpoint in the output folder is being written."""
    folders = (each for each in output.glob("checkpoint-*") if each.is_dir())
    return any(not (each / checkpoint_integrity.TRAINER_STATE).is_file() for each in folders)


def clean_output(output: Path, anew: str) -> None:
    """Rename half-written checkpoints. If the recipe starts anew, move what other jobs have left to `earlier-JOB` first
    (`anew` is the number of this job, empty if it goes on). That folder tells a later start of this job, which goes on,
    from its first; it gets its name when all is in it. Raises NodeError if a file cannot be moved."""
    try:
        earlier = output / f"earlier-{anew}"
        if anew and not earlier.exists():
            part = earlier.with_name(earlier.name + ".part")
            part.mkdir(exist_ok=True)
            for each in output.iterdir():
                if not each.name.startswith(("earlier-", FILE_PREFIX)):
                    with suppress(FileNotFoundError):  # folders of several nodes may turn out to be one
                        each.rename(part / each.name)
            with suppress(FileNotFoundError):
                part.rename(earlier)
        for message in checkpoint_integrity.quarantine_incomplete(output):
            say(message)
    except OSError as err:
        found = f"{err.filename or output} cannot be put in order for this run: {checkpoint_integrity.os_reason(err)}"
        raise NodeError(f"{found}; rename or remove it") from None


def raise_limits(open_files: int) -> None:
    """Allow many open files, which loaders take, and all locked memory, which network adapters take. Open files are
    limited, because programs that close every possible file when they start lose time."""
    for kind, wanted in ((resource.RLIMIT_NOFILE, open_files), (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY)):
        hard = resource.getrlimit(kind)[1]
        is_allowed = hard == resource.RLIM_INFINITY or resource.RLIM_INFINITY != wanted <= hard
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (wanted if is_allowed else hard, hard))


def read_vendor_files(files: Sequence[str], unless: str) -> None:
    """Take over the environment of the vendor's shell files, unless the image or the site has set the variable
    `unless`. The files that do not exist are passed over."""
    for file in map(os.path.expanduser, files):
        if not os.environ.get(unless) and os.access(file, os.R_OK):
            words = ["bash", "-c", '. "$1" >&2; env -0', "bash", file]
            told = subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout
            for name, _, value in (entry.partition(b"=") for entry in told.split(b"\0") if b"=" in entry):
                os.environb[name] = value


def switch_peers_off(driver: str, variables: Sequence[str]) -> None:
    """Set the variables without which accelerate refuses several of these cards, if the driver is older than
    `driver`."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    found = ""
    with suppress(OSError):
        found = subprocess.run(words, stdout=subprocess.PIPE, universal_newlines=True, check=False).stdout.strip()
    parts = [[int(part) for part in release.split(".") if part.isdigit()] for release in (found, driver)]
    if parts[0] < parts[1]:
        os.environ.update(dict.fromkeys(variables, "1"))


def set_addresses(hccl: bool) -> None:
    """Tell torchrun, Gloo and HCCL which address and interface of this node reach the first node.

    Under an elastic launch the first process announces its host name, which other nodes may not resolve, unless an
    address is set (torch, distributed/elastic/rendezvous/api.py; torchrun reads each option from PET_…, too). Gloo uses
    the address of the host name. HCCL uses the first interface by name, which may lead elsewhere on another node (CANN,
    HCCL_IF_IP). NCCL finds its interface by itself. An address in the job's environment belongs to another node."""
    address = local_address(os.environ["MASTER_ADDR"])
    if address.startswith("127.") or address == "::1":
        return
    os.environ["PET_LOCAL_ADDR"] = address
    with suppress(OSError):
        words = ["ip", "-o", "addr", "show", "to", address]
        shown = subprocess.run(words, stdout=subprocess.PIPE, universal_newlines=True, check=False).stdout.split()
        if len(shown) > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", shown[1])
    if hccl and os.environ.get("HCCL_SOCKET_IFNAME"):
        os.environ.pop("HCCL_IF_IP", None)
    elif hccl:
        os.environ["HCCL_IF_IP"] = address
