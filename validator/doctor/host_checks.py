"""Main memory, CPUs, /dev/shm and limits of the system (ulimit, control groups) against what the run needs; and the
folder that it writes to: is it writable, large enough, fast enough for checkpoints, and still there afterwards?"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.errors import os_reason
from validator.knowledge import hub_caches, node_environment
from validator.knowledge.node_environment import MAX_OPEN_FILES
from validator.machine import host, network
from validator.machine.host import find_mount, own_cgroups
from validator.physics.estimate import GIB, DiskTerm
from validator.recipe.safe_read import expand_home, glob_folder
from validator.run import node_demand
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.wording import format_duration


def check_main_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Main memory that is available, against what the run is predicted to take of it.

    Available: free, or cached and given back on demand, within the limits of batch job and container; for a device that
    shares main memory its own need counts, too. Without enough the kernel kills a process of the run, which torchrun
    reports as exit code -9.
    """
    total, available = host.memory_gib(context.root), host.available_memory_gib(context.root)
    if available is None:
        yield warning("the kernel does not say how much is available")
        return
    swap = host.free_swap_gib(context.root)
    there = f"{available:.1f} GiB of {total or available:.1f} available{f', {swap:.0f} of swap' if swap >= 1 else ''}"
    shared = run is not None and run.machine is not None and run.machine.device.shared_memory
    need = (predict(run).device_memory if shared else predict(run).host_memory) if run else None
    if need is None:
        yield ok(there)
        return
    low, expected, high = need.low / GIB, need.expected / GIB, need.high / GIB
    state: State = "error" if expected >= available else "warning" if high >= available else "ok"
    remedy = ""
    if state != "ok":
        more = "ask for more (`--mem` of a batch job, the memory limit of a container)"
        some = expected < (total or available)
        way = f"end other processes, or {more}" if some else f"{more}; `lmf-recipes explain` shows what fits"
        remedy = f"the kernel {'would' if state == 'error' else 'may'} kill the run (exit code -9): {way}"
    yield result(state, there, f"{expected:.1f} GiB ({low:.1f} to {high:.1f})", remedy)


def check_processors(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """CPUs that the run may use; a batch job without `--cpus-per-task` has one.

    Those that this process is bound to, against processes and their loader workers.
    """
    there = host.usable_cpus(context.root)
    if run is None:
        yield ok(str(there))
        return
    wanted = node_demand.training_cpus(run, run.machine.devices if run.machine and not run.on_cpu else 1)
    remedy = "the devices wait for CPUs: raise `--cpus-per-task` of a batch job, or the CPU limit of a container"
    yield warning(str(there), str(wanted), remedy) if there < wanted else ok(str(there), str(wanted))


_SHM_REMEDY = (
    "`docker run --shm-size=16g` or `--ipc=host`, in Kubernetes an emptyDir of medium Memory at /dev/shm; that cures a "
    "bus error and NCCL's `Error while creating shared memory segment`, not exit code -9, which is main memory"
)


def check_shared_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Shared memory, /dev/shm; a container has 64 MiB unless more is asked for.

    What is free, against what loader workers and NCCL put there.
    """
    try:
        there = os.statvfs(context.root / "dev/shm")
    except OSError:
        yield warning("is not there: loader workers and NCCL need it", "", _SHM_REMEDY)
        return
    free, size = (blocks * there.f_frsize / node_demand.MIB for blocks in (there.f_bavail, there.f_blocks))
    found = f"{_format_mib(free)} free of {_format_mib(size)}"
    if run is None:
        tiny = size <= 64
        yield result("warning" if tiny else "ok", found, "", _SHM_REMEDY if tiny else "")
        return
    disabled = node_environment.is_env_enabled("NCCL_SHM_DISABLE", context.environment)
    least, enough = node_demand.shared_memory_mib(run, nccl=not disabled)
    state: State = "error" if free < least else "warning" if free < enough else "ok"
    is_filled = free < least <= size
    remedy = "remove what ended runs have left there: `ls -l /dev/shm`" if is_filled else _SHM_REMEDY
    yield result(state, found, _format_mib(enough) if enough >= 1 else "", "" if state == "ok" else remedy)


def _format_mib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


# What one process of a run has open and started beside what is counted, with room for what CUDA and NCCL add: a run on
# the CPU with two loader workers has 26 files and 11 threads at most (seen with torch 2.13).
_FILES_PER_PROCESS = 256
_THREADS_PER_PROCESS = 128
# Tensors of two batches that a loader worker passes on, a file each (torch, multiprocessing/reductions.py).
_FILES_PER_WORKER = 12
_THREADS_PER_WORKER = 8  # threads of a loader worker
_IPC_LOCK = 1 << 14  # the bit of the capability (linux/capability.h)


def check_limits(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Limits of the system on a process and its children: open files, locked memory, processes, addresses.

    Open files in any case, other limits if they may be too low.
    """
    yield from _check_open_files(run)
    yield from _check_locked_memory(run, context)
    yield from _check_process_limit(run, context)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    # CUDA reserves addresses for all memory of devices and host as it begins, and stops if it may not.
    if soft != resource.RLIM_INFINITY and not (run and run.on_cpu):
        yield warning(f"{soft / GIB:.1f} GiB", "unlimited", "`ulimit -v unlimited`", what="address space")


def _check_open_files(run: RunSettings | None) -> Iterator[CheckResult]:
    """Check the limit of open files. Each loader worker passes tensors as open files; each process of another node is a
    socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = 4 * run.batch.world_size + _FILES_PER_WORKER * run.batch.dataloader_workers if run else 768
    wanted = f"{_FILES_PER_PROCESS + more:,}"
    if soft == resource.RLIM_INFINITY or soft >= _FILES_PER_PROCESS + more:
        yield ok("no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}", wanted, what="open files")
        return
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    raised = f"raise the hard limit: limits.conf, or the container's --ulimit nofile={MAX_OPEN_FILES}"
    remedy = raised if most == soft else f"`ulimit -n {most}` before the run"
    yield warning(f"{soft:,}", wanted, remedy, what="open files")


def _check_locked_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Check the limit of locked memory. InfiniBand registers buffers that count as locked (NCCL: `ibv_reg_mr failed`),
    and so do those of DeepSpeed's offload to NVMe. What CUDA pins does not count."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = host.read_lines(context.root / "proc/self/status")
    capabilities = [int(line.split()[1], 16) for line in status if line.startswith("CapEff:")]
    # The limit does not hold for root, and in pods that are given IPC_LOCK.
    if soft == resource.RLIM_INFINITY or any(mask & _IPC_LOCK for mask in capabilities):
        return
    disabled = network.is_infiniband_disabled(context.environment)
    infiniband = bool(network.infiniband_ports(context.root)) and not disabled
    across = run is not None and run.machine is not None and run.machine.nodes > 1 and infiniband
    nvme = run is not None and run.deepspeed is not None and run.deepspeed.nvme
    if not (across or nvme or (run is None and infiniband)):
        return
    why = "DeepSpeed locks the buffers of its offload to NVMe" if nvme else "InfiniBand is here"
    state: State = "error" if across and soft < GIB else "warning"
    remedy = "`ulimit -l unlimited`, or the container's --ulimit memlock=-1; a batch system hands on its daemon's limit"
    yield result(state, f"{soft / GIB:.2g} GiB; {why}", "unlimited", remedy, what="locked memory")


def _check_process_limit(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Check how many processes and threads the container, the batch job or the user may still start."""
    limits = []
    for group in own_cgroups(context.root, "pids"):
        most, now = group.number("pids.max"), group.number("pids.current")
        if most is not None and now is not None:
            limits.append(most - now)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)  # of all the user's processes: told if it is low as such
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    if not limits or run is None:
        return
    devices = run.machine.devices if run.machine else 1
    tokenizers = int(run.args.number("preprocessing_num_workers"))
    wanted = devices * (_THREADS_PER_PROCESS + _THREADS_PER_WORKER * run.batch.dataloader_workers) + tokenizers
    if (left := min(limits)) < wanted:
        remedy = "raise `ulimit -u`, the container's --pids-limit or the kubelet's podPidsLimit"
        yield warning(f"{left:,} more may be started", f"about {wanted:,}", remedy, what="process limit")


def output_folder(run: RunSettings) -> Path | None:
    """Return the folder that the run writes to; None if it keeps nothing."""
    folder = run.args.get("output_dir")
    return expand_home(folder).absolute() if isinstance(folder, str) and run.task.trains else None


def check_disk_space(run: RunSettings | None, _context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line if checkpoints and the result do not fit on the disk of `output_dir`. How many checkpoints are kept
    is an estimate if `save_total_limit` is unset or the number of steps is an estimate; a resumed run replaces those
    that are there."""
    output = output_folder(run) if run else None
    if run is None or output is None or run.args.get("save_strategy") == "no":
        return
    prediction = predict(run)
    if prediction.disk is None:
        return
    free = host.free_disk_gib(output)
    if free is None:
        return
    each, most = prediction.checkpoint_bytes / GIB, prediction.output_bytes / GIB
    where = f"{free:.1f} GiB are free on the disk of {output}"
    if free < each:
        yield error(f"{where}, one checkpoint takes {each:.1f}: free some, or set another `output_dir`")
    elif free < most:
        kept, at_once = prediction.checkpoint_counts
        counted = run.args.number("save_total_limit") > 0 and run.steps > 0 and not run.batch.packing
        certain = counted and not any(glob_folder(output, "checkpoint-*"))
        beside = "and the result" if at_once == kept else "at once (a new one is written before the oldest is removed)"
        remedy = "free some, set another `output_dir` or a smaller `save_total_limit`"
        text = f"{where}, {at_once} checkpoints {beside} take {most:.1f}: {remedy}"
        yield result("error" if certain else "warning", text)


# A file of this size, or of what is written in this time, shows how fast the disk is.
_MAX_TRIAL_BYTES, _MAX_TRIAL_SECONDS = 256 << 20, 1.0
_MIN_FREE_GIB = 1.0  # with less nothing is tried
_DATA_COPIES = 2.0  # rows as they were read, and as they are trained on
_MIN_FREE_FILES = 1000  # a few checkpoints have as many
# A smaller checkpoint is not timed; one that takes longer is a warning.
_MIN_CHECKPOINT_BYTES, _SLOW_SECONDS = 0.05 * GIB, 600.0


def check_disk(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The folder that a run writes to: can it be written, and how fast; disk space for the cache of data."""
    yield from _check_output_folder(run, context)
    disk = predict(run).disk if run and run.data.datasets and not run.data.is_tokenized else None
    if run and disk:
        # `No space left on device` with much room in the output folder (hiyouga/LLaMA-Factory issue 275)
        folder = hub_caches.datasets_cache(run.hub_source[1])
        wanted = max(_DATA_COPIES * disk[DiskTerm.DATA] / GIB, _MIN_FREE_GIB)
        free = host.free_disk_gib(folder)
        if free is not None and free < wanted:
            remedy = "free some, or set HF_DATASETS_CACHE to another disk"
            yield warning(f"{free:.1f} GiB free at {folder}", f"about {wanted:.1f} GiB", remedy, what="data cache")


def _check_output_folder(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Check the run's output folder, or without a run the working directory. The file of the trial does not stay."""
    folder = output_folder(run) if run else Path.cwd()
    if folder is None:
        return
    there = host.existing_parent(folder)
    under, free = find_mount(there.resolve(), context.root), host.free_disk_gib(there)
    kind = f" on {under.kind}{f' of {under.source}' if under.network else ''}" if under else ""
    place = f"{there}{kind}{f', {free:.1f} GiB free' if free is not None else ''}"
    try:
        rate = _measure_write_rate(there)
    except OSError as err:
        found = f"{place}: {os_reason(err)}"
        yield error(found, "a folder that can be written", "set another `output_dir`" if run else "")
        return
    short = [*check_disk_space(run, context)]
    yield _judge_write_rate(None if any(each.state == "error" for each in short) else run, place, rate)
    yield from short
    if under and under.kind == "overlay":
        remedy = "mount a folder of the host there, or set another `output_dir`"
        yield warning(f"{there} is in the container's own layer, which is lost with the container", "", remedy)
    if under and under.kind in ("tmpfs", "ramfs"):
        yield warning(f"{there} is main memory ({under.kind})", "", "set another `output_dir`")
    disk = os.statvfs(there)
    if disk.f_files and disk.f_favail < _MIN_FREE_FILES:  # a file system that counts no files has 0 in all
        yield warning(f"room for {disk.f_favail} more files", f"{_MIN_FREE_FILES:,}", "remove some: `df -i`")


def _measure_write_rate(folder: Path) -> float | None:
    """Return bytes a second of a file that is written and synced in pieces, each twice as long as the one before, until
    the next would take too long; None if there is no room to try. Raises OSError if it cannot be written."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        if (host.free_disk_gib(folder) or 0.0) < _MIN_FREE_GIB:
            return None
        piece, size, end = os.urandom(1 << 20), 1 << 20, monotonic() + _MAX_TRIAL_SECONDS
        while True:
            begun = monotonic()
            for _ in range(size // len(piece)):
                file.write(piece)
            os.fsync(file.fileno())
            took = max(monotonic() - begun, 1e-6)
            if monotonic() + 2 * took > end or file.tell() + 2 * size > _MAX_TRIAL_BYTES:
                return size / took
            size *= 2


def _judge_write_rate(run: RunSettings | None, place: str, rate: float | None) -> CheckResult:
    found = place if rate is None else f"{place}, {rate / 1e6:,.0f} MB/s"
    checkpoint = predict(run).checkpoint_bytes if run else 0.0
    if checkpoint < _MIN_CHECKPOINT_BYTES or rate is None:
        return ok(found)
    seconds = checkpoint / rate
    wanted = f"{checkpoint / GIB:.1f} GiB for a checkpoint, about {format_duration(seconds)}"
    if seconds < _SLOW_SECONDS:
        return ok(found, wanted)
    remedy = "all devices wait meanwhile: a faster disk, `save_only_model: true` or a larger `save_steps`"
    return warning(found, wanted, remedy)
