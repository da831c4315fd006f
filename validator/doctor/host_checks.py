"""Checks of main memory, CPUs, /dev/shm and system limits (ulimit, control groups) against what the run needs. Also
checks the output folder: is it writable, large enough, fast enough for checkpoints, and does it outlive the run?"""

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
from validator.recipe import safe_read
from validator.recipe.safe_read import expand_home, glob_folder
from validator.run import node_demand
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.wording import format_duration


def check_main_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Available main memory, compared with what the run is predicted to need.

    Yield an error if the expected need exceeds the available memory, a warning if only the high end of the prediction
    does. Available memory is free memory and file cache that the kernel gives back on demand, within the limits of
    batch job and container. If the device shares main memory with the CPU, the predicted device memory is the need.
    Without enough memory the kernel kills a process of the run, which torchrun reports as exit code -9."""
    total, available = host.memory_gib(context.root), host.available_memory_gib(context.root)
    if available is None:
        yield warning("the kernel does not say how much is available")
        return
    swap = host.free_swap_gib(context.root)
    found = f"{available:.1f} GiB of {total or available:.1f} available{f', {swap:.0f} of swap' if swap >= 1 else ''}"
    shared = run is not None and run.machine is not None and run.machine.device.shared_memory
    need = (predict(run).device_memory if shared else predict(run).host_memory) if run else None
    if need is None:
        yield ok(found)
        return
    low, expected, high = need.low / GIB, need.expected / GIB, need.high / GIB
    state: State = "error" if expected >= available else "warning" if high >= available else "ok"
    remedy = ""
    if state != "ok":
        request = f"ask for more ({_granted_by('--mem', 'memory')})"
        fits_total = expected < (total or available)
        advice = (
            f"end other processes, or {request}" if fits_total else f"{request}; `lmf-recipes explain` shows what fits"
        )
        remedy = f"the kernel {'would' if state == 'error' else 'may'} kill the run (exit code -9): {advice}"
    yield result(state, found, f"{expected:.1f} GiB ({low:.1f} to {high:.1f})", remedy)


def _granted_by(option: str, what: str) -> str:
    """Return, as text for a message, what limits a process here: the container, and the batch job where SLURM is."""
    job = f"`{option}` of a batch job, or " if host.has_slurm() else ""
    return f"{job}the {what} limit of a container"


def check_processors(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """CPUs that the run may use; a batch job without `--cpus-per-task` has one.

    Yield a warning if this process may use fewer CPUs than the run's processes and their loader workers need."""
    cpus = host.usable_cpus(context.root)
    if run is None:
        yield ok(str(cpus))
        return
    needed_cpus = node_demand.training_cpus(run, run.machine.devices if run.machine and not run.on_cpu else 1)
    remedy = f"the devices wait for CPUs: raise {_granted_by('--cpus-per-task', 'CPU')}"
    yield warning(str(cpus), str(needed_cpus), remedy) if cpus < needed_cpus else ok(str(cpus), str(needed_cpus))


_SHM_REMEDY = (
    "`docker run --shm-size=16g` or `--ipc=host`, in Kubernetes an emptyDir of medium Memory at /dev/shm; that cures a "
    "bus error and NCCL's `Error while creating shared memory segment`, not exit code -9, which is main memory"
)


def check_shared_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Shared memory, /dev/shm; a container has 64 MiB unless more is asked for.

    Yield an error or a warning if less is free than loader workers and NCCL put there. Without a recipe, yield a
    warning if the size is 64 MiB or less."""
    try:
        file_system = os.statvfs(context.root / "dev/shm")
    except OSError:
        yield warning("is not there: loader workers and NCCL need it", "", _SHM_REMEDY)
        return
    free, size = (
        blocks * file_system.f_frsize / node_demand.MIB for blocks in (file_system.f_bavail, file_system.f_blocks)
    )
    found = f"{_format_mib(free)} free of {_format_mib(size)}"
    if run is None:
        is_tiny = size <= 64
        yield result("warning" if is_tiny else "ok", found, "", _SHM_REMEDY if is_tiny else "")
        return
    is_disabled = node_environment.is_env_enabled("NCCL_SHM_DISABLE", context.environment)
    min_mib, enough_mib = node_demand.shared_memory_mib(run, nccl=not is_disabled)
    state: State = "error" if free < min_mib else "warning" if free < enough_mib else "ok"
    is_filled = free < min_mib <= size
    remedy = "remove what ended runs have left there: `ls -l /dev/shm`" if is_filled else _SHM_REMEDY
    yield result(state, found, _format_mib(enough_mib) if enough_mib >= 1 else "", "" if state == "ok" else remedy)


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
    """System limits on a process and its children: open files, locked memory, processes, address space.

    Yield a result on open files in any case, and a result on each other limit that may be too low."""
    yield from _check_open_files(run)
    yield from _check_locked_memory(run, context)
    yield from _check_process_limit(run, context)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    # CUDA reserves addresses for all memory of devices and host as it begins, and stops if it may not.
    if soft != resource.RLIM_INFINITY and not (run and run.on_cpu):
        yield warning(f"{soft / GIB:.1f} GiB", "unlimited", "`ulimit -v unlimited`", what="address space")


def _check_open_files(run: RunSettings | None) -> Iterator[CheckResult]:
    """Yield a result on the limit of open files, a warning if the limit may be too low. Each loader worker passes
    tensors as open files. Each process of the run needs sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    extra_files = 4 * run.batch.world_size + _FILES_PER_WORKER * run.batch.dataloader_workers if run else 768
    needed = f"{_FILES_PER_PROCESS + extra_files:,}"
    if soft == resource.RLIM_INFINITY or soft >= _FILES_PER_PROCESS + extra_files:
        yield ok("no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}", needed, what="open files")
        return
    max_files = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    hard_limit_remedy = f"raise the hard limit: limits.conf, or the container's --ulimit nofile={MAX_OPEN_FILES}"
    remedy = hard_limit_remedy if max_files == soft else f"`ulimit -n {max_files}` before the run"
    yield warning(f"{soft:,}", needed, remedy, what="open files")


def _check_locked_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a result if the limit of locked memory is too low. InfiniBand registers buffers that count as locked (NCCL:
    `ibv_reg_mr failed`), and so do the buffers of DeepSpeed's offload to NVMe. Memory that CUDA pins does not count."""
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
    """Yield a warning if the container, the batch job or the user may not start as many processes and threads as the
    run needs."""
    limits = []
    for group in own_cgroups(context.root, "pids"):
        limit, count = group.number("pids.max"), group.number("pids.current")
        if limit is not None and count is not None:
            limits.append(limit - count)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)  # of all the user's processes: told if it is low as such
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    if not limits or run is None:
        return
    devices = run.machine.devices if run.machine else 1
    tokenizers = int(run.args.number("preprocessing_num_workers"))
    needed = devices * (_THREADS_PER_PROCESS + _THREADS_PER_WORKER * run.batch.dataloader_workers) + tokenizers
    if (left := min(limits)) < needed:
        remedy = "raise `ulimit -u`, the container's --pids-limit or the kubelet's podPidsLimit"
        yield warning(f"{left:,} more may be started", f"about {needed:,}", remedy, what="process limit")


def output_folder(run: RunSettings) -> Path | None:
    """Return the absolute path of the run's output folder. Return None if the run does not train or sets no
    `output_dir`."""
    folder = run.args.get("output_dir")
    return expand_home(folder).absolute() if isinstance(folder, str) and run.task.trains else None


def check_disk_space(run: RunSettings | None, _context: CheckContext) -> Iterator[CheckResult]:
    """Yield a result if the checkpoints and the result do not fit on the disk of `output_dir`. The result is an error
    if not even one checkpoint fits, or if the number of checkpoints is certain; otherwise it is a warning. The number
    is uncertain if `save_total_limit` is unset, if the number of steps is an estimate, or if the folder holds
    checkpoints that a resumed run would replace."""
    output = output_folder(run) if run else None
    if run is None or output is None or run.args.get("save_strategy") == "no":
        return
    prediction = predict(run)
    if prediction.disk is None:
        return
    free = host.free_disk_gib(output)
    if free is None:
        return
    checkpoint_gib, total_gib = prediction.checkpoint_bytes / GIB, prediction.output_bytes / GIB
    where = f"{free:.1f} GiB are free on the disk of {output}"
    if free < checkpoint_gib:
        yield error(f"{where}, one checkpoint takes {checkpoint_gib:.1f}: free some, or set another `output_dir`")
    elif free < total_gib:
        kept, at_once = prediction.checkpoint_counts
        counted = run.args.number("save_total_limit") > 0 and run.steps > 0 and not run.batch.packing
        is_certain = counted and not any(glob_folder(output, "checkpoint-*"))
        what = "and the result" if at_once == kept else "at once (a new one is written before the oldest is removed)"
        remedy = "free some, set another `output_dir` or a smaller `save_total_limit`"
        text = f"{where}, {at_once} checkpoints {what} take {total_gib:.1f}: {remedy}"
        yield result("error" if is_certain else "warning", text)


# A file of this size, or of what is written in this time, shows how fast the disk is.
_MAX_TRIAL_BYTES, _MAX_TRIAL_SECONDS = 256 << 20, 1.0
_MIN_FREE_GIB = 1.0  # with less nothing is tried
_DATA_COPIES = 2.0  # rows as they were read, and as they are trained on
_MIN_FREE_FILES = 1000  # a few checkpoints have as many
# A smaller checkpoint is not timed; one that takes longer is a warning.
_MIN_CHECKPOINT_BYTES, _SLOW_SECONDS = 0.05 * GIB, 600.0


def check_disk(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The folder that a run writes to: whether and how fast it can be written; disk space for cached data.

    Yield a result on the folder, and a result for each fault. A small temporary file is written to measure the
    speed."""
    yield from _check_output_folder(run, context)
    disk = predict(run).disk if run and run.data.datasets and not run.data.is_tokenized else None
    if run and disk:
        # `No space left on device` with much room in the output folder (hiyouga/LLaMA-Factory issue 275)
        folder = hub_caches.datasets_cache(run.hub_source[1])
        needed_gib = max(_DATA_COPIES * disk[DiskTerm.DATA] / GIB, _MIN_FREE_GIB)
        free = host.free_disk_gib(folder)
        if free is not None and free < needed_gib:
            remedy = "free some, or set HF_DATASETS_CACHE to another disk"
            yield warning(f"{free:.1f} GiB free at {folder}", f"about {needed_gib:.1f} GiB", remedy, what="data cache")


def _check_output_folder(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Check the run's output folder, or the working directory if there is no recipe. Yield a result on its speed and
    free space, and a result for each fault: not writable, too small, lost with the container, main memory, or few files
    left. The test file is removed."""
    folder = output_folder(run) if run else Path.cwd()
    if folder is None:
        return
    existing = host.existing_parent(folder)
    mount, free = find_mount(safe_read.real_path(existing), context.root), host.free_disk_gib(existing)
    kind = f" on {mount.kind}{f' of {mount.source}' if mount.network else ''}" if mount else ""
    place = f"{existing}{kind}{f', {free:.1f} GiB free' if free is not None else ''}"
    try:
        rate = _measure_write_rate(existing)
    except OSError as err:
        found = f"{place}: {os_reason(err)}"
        yield error(found, "a folder that can be written", "set another `output_dir`" if run else "")
        return
    short = [*check_disk_space(run, context)]
    yield _judge_write_rate(None if any(each.state == "error" for each in short) else run, place, rate)
    yield from short
    if mount and mount.kind == "overlay":
        remedy = "mount a folder of the host there, or set another `output_dir`"
        yield warning(f"{existing} is in the container's own layer, which is lost with the container", "", remedy)
    if mount and mount.kind in ("tmpfs", "ramfs"):
        yield warning(f"{existing} is main memory ({mount.kind})", "", "set another `output_dir`")
    disk = os.statvfs(existing)
    if disk.f_files and disk.f_favail < _MIN_FREE_FILES:  # a file system that counts no files has 0 in all
        yield warning(f"room for {disk.f_favail} more files", f"{_MIN_FREE_FILES:,}", "remove some: `df -i`")


def _measure_write_rate(folder: Path) -> float | None:
    """Return the speed of the folder's disk in bytes per second; None if less than 1 GiB is free. A temporary file is
    written and synced in pieces, each twice as large as the one before. The last piece counts: the next would exceed
    one second or 256 MiB in all. Raises OSError if the folder cannot be written."""
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
    need = f"{checkpoint / GIB:.1f} GiB for a checkpoint, about {format_duration(seconds)}"
    if seconds < _SLOW_SECONDS:
        return ok(found, need)
    remedy = "all devices wait meanwhile: a faster disk, `save_only_model: true` or a larger `save_steps`"
    return warning(found, need, remedy)
