"""What `doctor` says of main memory, shared memory and the limits on processes."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.network_roots import adapters

from validator.doctor import host_checks
from validator.doctor.check_result import CheckContext
from validator.machine import host
from validator.physics.estimate import GIB
from validator.recipe.recipe_file import load_with_overrides
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve

RECIPES = Path(__file__).parents[2] / "recipes"
KIB = 1 << 20  # in a GiB
GROUP = "sys/fs/cgroup"


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECIPES.parent)
    for name in ("NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"):
        monkeypatch.delenv(name, raising=False)


def job(name: str = "qwen3-8b-a100-lora", *overrides: str, machine: str | None = None) -> RunSettings:
    return resolve(load_with_overrides(str(RECIPES / f"{name}.yaml"), overrides), machine)


def root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def meminfo(total: int, available: int, swap: int = 0) -> str:
    return f"MemTotal: {total * KIB} kB\nMemAvailable: {available * KIB} kB\nSwapFree: {swap * KIB} kB\n"


# Main memory.


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, None),
        ({"proc/meminfo": meminfo(64, 50)}, 50),
        # A container: 32 GiB, 20 in use, 8 of which are copies of files.
        ({"proc/meminfo": meminfo(64, 50), "proc/self/cgroup": "0::/\n", f"{GROUP}/memory.max": f"{32 << 30}\n",
          f"{GROUP}/memory.current": f"{20 << 30}\n",
          f"{GROUP}/memory.stat": f"inactive_file {5 << 30}\nactive_file {3 << 30}\n"},
         20),
        ({"proc/meminfo": meminfo(64, 50), "proc/self/cgroup": "0::/\n", f"{GROUP}/memory.max": "max\n",
          f"{GROUP}/memory.current": f"{20 << 30}\n"}, 50),
        # Version 1.
        ({"proc/meminfo": meminfo(64, 50), "proc/self/cgroup": "4:memory:/job\n",
          f"{GROUP}/memory/job/memory.limit_in_bytes": f"{16 << 30}\n",
          f"{GROUP}/memory/job/memory.usage_in_bytes": f"{10 << 30}\n",
          f"{GROUP}/memory/job/memory.stat": f"total_inactive_file {1 << 30}\n"}, 7),
    ],
)  # fmt: skip
def test_memory_that_is_available(files: dict[str, str], available: float | None, tmp_path: Path) -> None:
    assert host.available_memory_gib(root(tmp_path, files)) == available


@pytest.mark.parametrize(("part", "state"), [(1.02, "ok"), (0.98, "warning")])
def test_main_memory_at_the_end_of_the_band(part: float, state: str, tmp_path: Path) -> None:
    run = job()
    host_memory = predict(run).host_memory
    assert host_memory
    there = int(host_memory.high / GIB * part)
    (line,) = host_checks.check_main_memory(run, CheckContext(root(tmp_path, {"proc/meminfo": meminfo(1024, there)})))
    assert line.state == state


@pytest.mark.parametrize(("total", "remedy"), [(1024, "end other processes"), (44, "`lmf-recipes explain` shows")])
def test_main_memory_that_is_too_little(total: int, remedy: str, tmp_path: Path) -> None:
    (line,) = host_checks.check_main_memory(
        job(), CheckContext(root(tmp_path, {"proc/meminfo": meminfo(total, 40, 8)}))
    )
    assert (line.state, line.found) == ("error", f"40.0 GiB of {total}.0 available, 8 of swap")
    assert "exit code -9" in line.remedy
    assert remedy in line.remedy


def test_main_memory_that_the_device_shares_is_for_both(tmp_path: Path) -> None:
    run = job(machine="1xgb10-128g")
    host_memory = predict(run).host_memory
    assert host_memory
    memory = predict(run).device_memory
    assert memory
    there = int(host_memory.high / GIB) + 1
    assert there < memory.expected / GIB
    (line,) = host_checks.check_main_memory(run, CheckContext(root(tmp_path, {"proc/meminfo": meminfo(120, there)})))
    assert (line.state, line.wanted.partition(" GiB")[0]) == (
        "error",
        f"{memory.expected / GIB:.1f}",
    )


def test_main_memory_of_no_run(tmp_path: Path) -> None:
    (line,) = host_checks.check_main_memory(None, CheckContext(root(tmp_path, {"proc/meminfo": meminfo(64, 1)})))
    assert (line.state, line.found) == ("ok", "1.0 GiB of 64.0 available")


# Shared memory.


def shm(monkeypatch: pytest.MonkeyPatch, mib: int, free: int | None = None) -> None:
    """/dev/shm of this size."""
    size = SimpleNamespace(f_frsize=1 << 20, f_blocks=mib, f_bavail=mib if free is None else free)
    monkeypatch.setattr(os, "statvfs", lambda _folder: size)


@pytest.mark.parametrize(
    ("mib", "overrides", "machine", "state"),
    [
        # NCCL in a container of 64 MiB: two devices pass (NVIDIA/nccl issue 1518), four do not, but those on NVLink
        # (issue 525).
        (64, (), "2xrtx-4090", "warning"),
        (64, (), "4xrtx-4090", "error"),
        (64, (), "8xa100-80g", "warning"),
        (64, (), "1xa100-80g", "ok"),
        (1024, (), "8xa100-80g", "ok"),
        # Loader workers, each with two batches.
        (64, ("dataloader_num_workers=16", "per_device_train_batch_size=128"), "1xa100-80g", "warning"),
        (64, ("dataloader_num_workers=16", "per_device_train_batch_size=256"), "1xa100-80g", "error"),
        (64, ("dataloader_num_workers=1",), "1xa100-80g", "ok"),
        # No NCCL there.
        (64, (), "8xascend-910b-64g", "ok"),
    ],
)
def test_shared_memory(
    mib: int, overrides: tuple[str, ...], machine: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shm(monkeypatch, mib)
    run = job("qwen3-8b-a100-lora", *overrides, machine=machine)
    (line,) = host_checks.check_shared_memory(run, CheckContext())
    assert line.state == state
    assert ("not exit code -9" in line.remedy) == (state != "ok")


def test_shared_memory_that_ended_runs_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    shm(monkeypatch, 4096, 10)
    (line,) = host_checks.check_shared_memory(job(machine="8xrtx-4090"), CheckContext())
    assert (line.state, line.found) == ("error", "10 MiB free of 4.0 GiB")
    assert "`ls -l /dev/shm`" in line.remedy


@pytest.mark.parametrize(("mib", "state"), [(64, "warning"), (1024, "ok")])
def test_shared_memory_of_no_run(mib: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shm(monkeypatch, mib)
    assert [line.state for line in host_checks.check_shared_memory(None, CheckContext())] == [state]


def test_shared_memory_that_nccl_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    shm(monkeypatch, 64)
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    assert [line.state for line in host_checks.check_shared_memory(job(machine="4xrtx-4090"), CheckContext())] == ["ok"]


def test_no_shared_memory(tmp_path: Path) -> None:
    assert [line.state for line in host_checks.check_shared_memory(None, CheckContext(tmp_path))] == ["warning"]


# Limits.


def limited(monkeypatch: pytest.MonkeyPatch, kind: int, soft: int, hard: int = resource.RLIM_INFINITY) -> None:
    """One limit that is low; none of the others."""
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (soft, hard) if asked == kind else free)


def said(run: RunSettings | None, folder: Path) -> list[tuple[str, str]]:
    return [(line.state, line.what) for line in host_checks.check_limits(run, CheckContext(folder))]


FILES = resource.RLIMIT_NOFILE


@pytest.mark.parametrize(
    ("soft", "hard", "overrides", "state", "remedy"),
    [
        (1024, 1 << 20, (), "ok", ""),
        (256, 1 << 20, (), "warning", "`ulimit -n 1048576`"),
        (256, 4096, (), "warning", "`ulimit -n 4096`"),
        (256, 256, (), "warning", "--ulimit nofile=1048576"),
        (1024, 1 << 20, ("dataloader_num_workers=80",), "warning", "`ulimit -n 1048576`"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, ("dataloader_num_workers=80",), "ok", ""),
    ],
)
def test_open_files(
    soft: int, hard: int, overrides: tuple[str, ...], state: str, remedy: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    limited(monkeypatch, FILES, soft, hard)
    (line,) = host_checks.check_limits(job("qwen3-8b-a100-lora", *overrides), CheckContext(tmp_path))
    assert (line.state, line.what) == (state, "open files")
    assert remedy in line.remedy


@pytest.mark.parametrize(
    ("machine", "infiniband", "soft", "state"),
    [
        ("2x8xa100-80g", True, 8 << 20, "error"),
        ("2x8xa100-80g", True, 4 << 30, "warning"),
        ("2x8xa100-80g", True, resource.RLIM_INFINITY, ""),
        ("2x8xa100-80g", False, 8 << 20, ""),
        ("8xa100-80g", True, 8 << 20, ""),
    ],
)
def test_locked_memory(
    machine: str, infiniband: bool, soft: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, resource.RLIMIT_MEMLOCK, soft)
    if infiniband:
        adapters(tmp_path, {"mlx5_0": "4: ACTIVE"})
    told = said(job(machine=machine), tmp_path)
    assert told == [("ok", "open files"), *([(state, "locked memory")] if state else [])]


@pytest.mark.parametrize(("mask", "told"), [("00000000a80425fb", True), ("00000000a80465fb", False)])
def test_locked_memory_of_who_may_lock_more(
    mask: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's usual capabilities, and those with IPC_LOCK."""
    limited(monkeypatch, resource.RLIMIT_MEMLOCK, 8 << 20)
    adapters(tmp_path, {"mlx5_0": "4: ACTIVE"})
    root(tmp_path, {"proc/self/status": f"Name:\tpython\nCapEff:\t{mask}\n"})
    assert (("error", "locked memory") in said(job(machine="2x8xa100-80g"), tmp_path)) == told


def test_locked_memory_of_an_offload_to_nvme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, resource.RLIMIT_MEMLOCK, 8 << 20)
    block = '{"stage": 3, "offload_param": {"device": "%s", "nvme_path": "/tmp"}}'
    runs = [job("qwen3-8b-a100-full", f'deepspeed={{"zero_optimization": {block % kind}}}') for kind in ("nvme", "cpu")]
    assert [said(run, tmp_path)[1:] for run in runs] == [[("warning", "locked memory")], []]


@pytest.mark.parametrize(
    ("files", "soft", "warned"),
    [
        ({}, resource.RLIM_INFINITY, False),
        ({}, 512, True),
        ({}, 96000, False),
        ({"proc/self/cgroup": "0::/\n", f"{GROUP}/pids.max": "1024\n", f"{GROUP}/pids.current": "900\n"}, 96000, True),
        ({"proc/self/cgroup": "0::/\n", f"{GROUP}/pids.max": "max\n", f"{GROUP}/pids.current": "900\n"}, 96000, False),
        ({"proc/self/cgroup": "8:pids:/\n", f"{GROUP}/pids/pids.max": "2048\n", f"{GROUP}/pids/pids.current": "2000\n"},
         96000, True),
    ],
)  # fmt: skip
def test_processes(
    files: dict[str, str], soft: int, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, resource.RLIMIT_NPROC, soft)
    told = said(job(machine="8xa100-80g"), root(tmp_path, files))
    assert (("warning", "process limit") in told) == warned


@pytest.mark.parametrize(
    ("soft", "name", "warned"),
    [
        (64 << 30, "qwen3-8b-a100-lora", True),
        (resource.RLIM_INFINITY, "qwen3-8b-a100-lora", False),
        (64 << 30, "tiny-cpu-lora", False),
    ],
)
def test_addresses(soft: int, name: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, resource.RLIMIT_AS, soft)
    assert (("warning", "address space") in said(job(name), tmp_path)) == warned


# Processors.


@pytest.mark.parametrize(
    ("there", "overrides", "state"),
    [(16, ("dataloader_num_workers=0",), "ok"), (15, ("dataloader_num_workers=0",), "warning"),
     (16, ("dataloader_num_workers=4",), "warning"), (48, ("dataloader_num_workers=4",), "ok"),
     (128, ("dataloader_num_workers=64",), "ok")],
)  # fmt: skip
def test_processors(there: int, overrides: tuple[str, ...], state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "usable_cpus", lambda _root: there)
    (line,) = host_checks.check_processors(job("qwen3-8b-a100-lora", *overrides, machine="8xa100-80g"), CheckContext())
    assert (line.state, line.found) == (state, str(there))
    assert [each.state for each in host_checks.check_processors(None, CheckContext())] == ["ok"]


def test_limits_of_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, resource.RLIMIT_NPROC, 512)
    assert said(None, tmp_path) == [("ok", "open files")]
