"""A SLURM cluster of two nodes on this host: munged, slurmctld and two slurmd, all in one folder and one network.

It needs no root, systemd or cgroups. All processes of it and of its jobs have its SLURM_CONF in their environment: by
that they are known and ended. Clients run in its network (`Cluster.command`)."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from support import networks
from support.networks import Network

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
NODES = ("n1", "n2")
# Where daemons are installed, which is not on the path of all users.
PATH = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
PATIENCE = 600  # seconds after which what comes in a few is taken to hang; a busy machine is slow, not broken
_SOON = timedelta(seconds=30)

# Ports of a daemon and processors and memory of a node are what is said here, whatever this machine has.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=6817
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
FirstJobId=1001
MinJobAge=86400
JobRequeue=1
ReturnToService=2
MessageTimeout=100
KillWait=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
NodeName=n1 NodeHostname={host} NodeAddr={address} Port=6818 CPUs=4 RealMemory=16000
NodeName=n2 NodeHostname={host} NodeAddr={address} Port=6819 CPUs=4 RealMemory=16000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What this machine lacks, as the reason for skipping a test; empty where a cluster can run."""
    if not all(shutil.which(name, path=PATH) for name in PROGRAMS):
        return f"no SLURM (as root: apt-get update && {INSTALL}) on this machine"
    return networks.missing()


def wait(condition: Callable[[], object], what: str) -> None:
    """Return as soon as the condition holds, for programs that tell nobody and can only be asked again and again.
    What a test proves must not depend on when it hears the answer. Raises TimeoutError where they hang."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.2)


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `folder` is its own. Of `own`, each node sees another folder, and to `locked` the second may
    not write; None where this machine lets no process have mounts of its own."""

    network: Network
    folder: Path
    own: Path | None
    locked: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """What clients need."""
        return {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *words: str) -> list[str]:
        """How to start a client."""
        return self.network.command(*words)

    def ask(self, *words: str) -> str:
        """What a client prints; nothing where it fails."""
        return subprocess.run(
            self.command(*words), env=self.environment, stdout=subprocess.PIPE, text=True, check=False
        ).stdout

    def job(self, number: str) -> dict[str, str]:
        """What the controller says of a job, by its own names."""
        words = self.ask("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, number: str) -> str:
        return self.job(number)["JobState"]

    def end(self, number: str) -> str:
        """The state in which a job ends."""
        wait(lambda: self.state(number) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), f"job {number}")
        return self.state(number)

    def queued_again(self, number: str, times: int) -> None:
        """Return when a job has been queued again so many times, and waits."""
        wait(lambda: int(self.job(number)["Restarts"]) >= times, f"job {number} is not queued again")
        wait(lambda: self.state(number) == "PENDING", f"job {number} does not end")

    def hurry(self, number: str) -> None:
        """Return when a job runs that was queued again."""
        wait(lambda: self._hurried(number)["JobState"] == "RUNNING", f"job {number} does not run again")

    def _hurried(self, number: str) -> dict[str, str]:
        """What the controller says of a job. SLURM holds back one that was queued again for two minutes, here for three
        seconds: within the second in which its processes were ended its credential is revoked."""
        job = self.job(number)
        held = job["JobState"] == "PENDING" and job["Reason"] == "BeginTime" and job["StartTime"] != "Unknown"
        if held and datetime.fromisoformat(job["StartTime"]) > datetime.now() + _SOON:
            self.ask("scontrol", "update", f"JobId={number}", "StartTime=now+3")
        return job

    def lose(self, node: str) -> None:
        """A node stops, with all that runs on it, and says nothing to anybody; the controller, which would find out
        after five minutes, is told."""
        while left := self._processes() & (carrying("SLURMD_NODENAME", node) | carrying("NODE", node)):
            kill(left)
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def start(self, node: str) -> None:
        """Start a node; return when it takes jobs."""
        program = [_program("slurmd"), "-D", "-N", node]
        if self.own and self.locked and node != NODES[0]:
            program = [*_apart(self.own, self.locked), *program]
        states = ("sinfo", "-h", "-n", node, "-o", "%t")
        self._daemon(node, program, lambda: self.ask(*states).strip() in ("idle", "mix"), NODE=node)

    def _daemon(self, name: str, words: list[str], ready: Callable[[], object], **further: str) -> None:
        """Start one; return when it is ready. It fails where it ends before."""
        path = self.folder / f"{name}.log"
        with path.open("a") as log:
            process = subprocess.Popen(
                self.command(*words),
                env={**self.environment, **further},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait(lambda: ready() or process.poll() is not None, name)
        assert process.poll() is None, path.read_text(errors="replace")

    def _begin(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        names = {"socket": "munge.socket", "key-file": key.name, "pid-file": "munge.pid", "seed-file": "munge.seed"}
        files = [f"--{option}={self.folder / name}" for option, name in names.items()]
        munged = [_program("munged"), "--foreground", "--force", "--num-threads=2", *files]
        self._daemon("munged", munged, (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", [_program("slurmctld"), "-D"], lambda: " is UP" in self.ask("scontrol", "ping"))
        for node in NODES:
            self.start(node)

    def _stop(self) -> None:
        """Until nothing of it is left."""
        while left := self._processes():
            kill(left)

    def _processes(self) -> set[int]:
        return carrying("SLURM_CONF", str(self.folder / "slurm.conf"))


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster that is ended in any case. Its folder has a short name, as those of sockets must."""
    with (
        networks.own() as network,
        tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name)
        own, locked = folder / "own", folder / "locked"
        for each in (folder / "state", own, locked):
            each.mkdir()
        host = socket.gethostname().partition(".")[0]
        text = _CONFIGURATION.format(host=host, user=getpass.getuser(), folder=folder, address=networks.ADDRESS)
        (folder / "slurm.conf").write_text(text)
        apart = (own, locked) if _mounts(own, locked) else (None, None)
        cluster = Cluster(network, folder, *apart)
        try:
            cluster._begin()
            yield cluster
        finally:
            cluster._stop()


def _program(name: str) -> str:
    return shutil.which(name, path=PATH) or name


def _apart(own: Path, locked: Path) -> list[str]:
    """How to start a program with mounts of its own, on these folders; its words follow."""
    mounts = (f"mount -t tmpfs {how} none {shlex.quote(str(each))}" for how, each in (("", own), ("-o ro", locked)))
    return ["unshare", "--mount", "sh", "-c", " && ".join((*mounts, 'exec "$0" "$@"'))]


def _mounts(*folders: Path) -> bool:
    """Whether this machine lets a process have mounts of its own."""
    with contextlib.suppress(OSError):
        return subprocess.run([*_apart(*folders), "true"], capture_output=True).returncode == 0
    return False


def carrying(name: str, value: str) -> set[int]:
    """Processes, of those that are ours, with this variable in their environment."""
    return {int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal() and _has(each, name, value)}


def _has(process: Path, name: str, value: str) -> bool:
    with contextlib.suppress(OSError):
        return os.fsencode(f"{name}={value}") in (process / "environ").read_bytes().split(b"\0")
    return False


def kill(processes: Iterable[int]) -> None:
    """All at once: none sees another one die. Returns when all have ended."""
    with contextlib.ExitStack() as stack:
        handles = []
        for each in processes:
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(each))
                stack.callback(os.close, handles[-1])
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        for handle in handles:
            select.select([handle], [], [])
