"""Limits of the system on a process and its children: open files, locked memory, processes, addresses."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.here import kernel, network
from validator.here.groups import groups
from validator.job.job import Job

# What one process of a run has open and started beside what is counted, with room for what CUDA and NCCL add: a run on
# the CPU with two loader workers has 26 files and 11 threads at most (seen with torch 2.13).
_FILES = 256
_THREADS = 128
# Tensors of two batches that a loader worker passes on, a file each (torch, multiprocessing/reductions.py).
_PASSED = 12
_WORKER = 8  # threads of a loader worker
_GIB = 1 << 30
_IPC_LOCK = 1 << 14  # the bit of the capability (linux/capability.h)


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Open files in any case; other limits where they may be too low."""
    yield from _files(job)
    yield from _locked(job, node)
    yield from _processes(job, node)
    yield from _addresses(job)


def _files(job: Job | None) -> Iterator[Line]:
    """Each loader worker passes tensors as open files; each process of another node is a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES + (4 * job.world + _PASSED * job.loaders if job else 768)
    enough = soft == resource.RLIM_INFINITY or soft >= wanted
    most = "65536" if hard == resource.RLIM_INFINITY or hard >= 65536 else str(hard)
    raised = "raise the hard limit: limits.conf, or the container's --ulimit nofile=65536"
    remedy = raised if most == str(soft) else f"`ulimit -n {most}` before the run"
    yield Line("ok" if enough else "warning", "open files", _count(soft), f"{wanted:,}", "" if enough else remedy)


def _locked(job: Job | None, node: Node) -> Iterator[Line]:
    """InfiniBand registers buffers that count as locked (NCCL: `ibv_reg_mr failed`), and so do those of DeepSpeed's
    offload to NVMe. What CUDA pins does not count."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    infiniband = bool(network.ports(node.root)) and not network.infiniband_off(node.environment)
    across = job is not None and job.machine is not None and job.machine.nodes > 1 and infiniband
    nvme = job is not None and job.zero is not None and job.zero.nvme
    if soft == resource.RLIM_INFINITY or _privileged(node.root):
        return
    if not (across or nvme or (job is None and infiniband)):
        return
    why = "DeepSpeed locks the buffers of its offload to NVMe" if nvme else "InfiniBand is here"
    state: State = "error" if across and soft < _GIB else "warning"
    remedy = "`ulimit -l unlimited`, or the container's --ulimit memlock=-1; a batch system hands on its daemon's limit"
    yield Line(state, "locked memory", f"{soft / _GIB:.2g} GiB; {why}", "unlimited", remedy)


def _processes(job: Job | None, node: Node) -> Iterator[Line]:
    """Processes and threads that the container, the batch job or the user may still start."""
    left = min([*_groups(node.root), *_user()], default=None)
    if left is None or job is None:
        return
    devices = job.machine.devices if job.machine else 1
    wanted = devices * (_THREADS + _WORKER * job.loaders) + int(job.number("preprocessing_num_workers"))
    if left < wanted:
        remedy = "`ulimit -u`, the container's --pids-limit or the kubelet's podPidsLimit"
        yield Line("warning", "process limit", f"{left:,} more may be started", f"about {wanted:,}", f"raise {remedy}")


def _addresses(job: Job | None) -> Iterator[Line]:
    """CUDA reserves addresses for all memory of devices and host as it begins, and stops where it may not."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and not (job and job.on_cpu):
        yield Line("warning", "address space", f"{soft / _GIB:.1f} GiB", "unlimited", "`ulimit -v unlimited`")


def _privileged(root: Path) -> bool:
    """Whether the limit does not hold: for root, and in pods that are given IPC_LOCK."""
    held = [line.split()[1] for line in kernel.lines(root / "proc/self/status") if line.startswith("CapEff:")]
    return any(int(mask, 16) & _IPC_LOCK for mask in held)


def _user() -> Iterator[int]:
    """The user's own limit, which counts threads of all processes: it is told where it is low as such."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        yield soft


def _groups(root: Path) -> Iterator[int]:
    """What the control groups for the number of processes have left."""
    for group in groups(root, "pids"):
        most, now = group.number("pids.max"), group.number("pids.current")
        if most is not None and now is not None:
            yield most - now


def _count(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}"
