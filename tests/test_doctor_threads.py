"""Public threads of runs that failed on their machine: what `doctor` says of each before the run."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from recordings import RECORDED, show_all

from validator.doctor import checks, disk, examine
from validator.here import host, program
from validator.read.override import overridden

ROOT = Path(__file__).parent.parent


class Thread(NamedTuple):
    """A thread, the nearest recipe and its changes, what the reporter's machine had, and the line that tells it. Sizes
    are GiB, but for `shm`, MiB."""

    where: str
    line: tuple[str, str]  # state, what
    says: str
    recipe: str = "qwen7b-a100-lora"
    machine: str = "8xa100-80g"
    overrides: tuple[str, ...] = ()
    recording: str = ""
    shm: int = 65536
    memory: int = 2048
    free: float = 4000.0
    lock: bool = False
    nvcc: bool = True


THREADS = (
    # "Error while creating shared memory segment /dev/shm/nccl-… (size 9637888)" and "bus error" in containers.
    Thread("hiyouga/LLaMA-Factory issue 7233", ("error", "/dev/shm"), "64 MiB free", "qwen7b-3090x2-lora", "4xrtx-3090",
           shm=64),
    Thread("hiyouga/LLaMA-Factory issue 4316", ("warning", "/dev/shm"), "64 MiB free", "qwen7b-a100-full",
           "3xa6000-48g", shm=64),
    Thread("NVIDIA/nccl issue 525", ("error", "/dev/shm"), "64 MiB free", "qwen7b-t4x1-qlora", "4xt4-16g", shm=64),
    Thread("NVIDIA/nccl issue 1518", ("error", "/dev/shm"), "64 MiB free", machine="4xrtx-4090", shm=64),
    # Exit code -9: 65B with offload on 8 A100 and 900 GB, of which "approximately 1.5TB" are wanted.
    Thread("hiyouga/LLaMA-Factory issue 103", ("error", "main memory"), "838.0 GiB of 838.0 available",
           "qwen2-72b-a100-full-offload", memory=838),
    # "No space left on device", while rows are read and while a checkpoint is saved.
    Thread("hiyouga/LLaMA-Factory issue 275", ("warning", "data cache"), "0.5 GiB free", free=0.5),
    Thread("hiyouga/LLaMA-Factory issue 5155", ("error", "output folder"), "one checkpoint takes", machine="2xrtx-4090",
           free=0.1),
    # Stands still after "Using …/torch_extensions/… as PyTorch extensions root".
    Thread("huggingface/transformers issue 26015", ("error", "stale lock"), "without end", "qwen7b-4090-full-offload",
           "8xrtx-4090", lock=True),
    Thread("OpenRLHF/OpenRLHF issue 208", ("error", "stale lock"), "without end", "qwen7b-4090-full-offload",
           "2x8xrtx-4090", lock=True),
    # "CUDA_HOME does not exist, unable to compile CUDA op(s)".
    Thread("hiyouga/LLaMA-Factory issue 9270", ("error", "operators"), "no nvcc", "qwen7b-4090-full-offload",
           "8xrtx-4090", nvcc=False),
    # "CUDA error 802: system not yet initialized", a device off the bus, a driver that was updated, another container.
    Thread("NVIDIA/gpu-operator issue 2511", ("error", "health"), "In Progress", machine="1xh100-80g",
           recording="nvidia-smi-h100-fabric"),
    Thread("NVIDIA/open-gpu-kernel-modules issue 387", ("error", "devices"), "has 2 devices, 1 device here",
           machine="2xrtx-4090", recording="nvidia-smi-lost"),
    Thread("tinygrad/open-gpu-kernel-modules issue 47", ("error", "devices"), "Driver/library version mismatch",
           recording="nvidia-smi-mismatch"),
    Thread("Ascend/cann-container-image issue 46", ("error", "devices"), "the device is used",
           "qwen7b-910b-lora", "8xascend-910b-64g", recording="npu-smi-used"),
)  # fmt: skip
_CHECKS = ("devices", "health", "main memory", "/dev/shm", "disk", "operators", "locks")


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's root, and no driver but the recorded one."""
    show_all(monkeypatch)
    for name in ("NPROC_PER_NODE", "NCCL_SHM_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(program, "_FOLDERS", ())


def said(thread: Thread, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """What the checks of the machine say on one like the reporter's."""
    monkeypatch.setenv("PATH", str(RECORDED / thread.recording) if thread.recording else "/none")
    document = overridden(str(ROOT / "recipes" / f"{thread.recipe}.yaml"), (f"output_dir={root}", *thread.overrides))
    job, node = examine.wanted(document, thread.machine)
    _lay_out(thread, root)
    monkeypatch.setattr(disk, "_rate", lambda _folder: 5e9)
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: thread.free)
    shm = SimpleNamespace(f_frsize=1 << 20, f_blocks=thread.shm, f_bavail=thread.shm, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda _folder: shm)
    tools = {"PATH": str(root / "bin"), "HOME": str(root), "CUDA_HOME": str(root / "cuda")}
    node = node._replace(root=root, environment=tools, folders=("/none",))
    lines = (line for name in _CHECKS for line in checks.CHECKS[name](job, node))
    return [(line.state, line.what, line.found) for line in lines]


def _lay_out(thread: Thread, root: Path) -> None:
    for name in ("bin/ninja", "bin/c++", *(["cuda/bin/nvcc"] if thread.nvcc else [])):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch(0o755)
    (root / "proc").mkdir()
    size = thread.memory << 20
    (root / "proc/meminfo").write_text(f"MemTotal: {size} kB\nMemAvailable: {size} kB\n")
    if thread.lock:
        lock = root / ".cache/torch_extensions/py310_cu118/cpu_adam/lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        os.utime(lock, (0, 0))


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread.where)
def test_a_thread(thread: Thread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [found for *line, found in said(thread, tmp_path, monkeypatch) if tuple(line) == thread.line]
    assert any(thread.says in found for found in told)


@pytest.mark.parametrize("thread", [each for each in THREADS if not each.recording], ids=lambda thread: thread.where)
def test_the_same_run_where_nothing_is_wrong(thread: Thread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Thread(thread.where, thread.line, thread.says, thread.recipe, thread.machine, thread.overrides)
    told = [line for line in said(sound, tmp_path, monkeypatch) if line[1] not in ("devices", "operators")]
    assert [line for line in told if line[0] != "ok"] == []
