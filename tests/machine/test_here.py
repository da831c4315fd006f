"""This machine, read from what the drivers' programs print: a folder of tests/fixtures/recorded/ for each machine."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.recordings import RECORDED, show_all

from validator.errors import RecipeError
from validator.machine import driver, host, this_machine
from validator.machine.driver import Accelerator
from validator.machine.this_machine import ThisMachine

GIB = 1 << 30


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No driver's program, and none of the variables that hide devices."""
    show_all(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(driver, "_EXTRA_FOLDERS", ())


def on(monkeypatch: pytest.MonkeyPatch, *folders: str, **variables: str) -> ThisMachine:
    """The machine of these recordings, in this environment."""
    monkeypatch.setenv("PATH", os.pathsep.join(str(RECORDED / folder) for folder in folders))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return this_machine.require_machine()


@pytest.mark.parametrize(
    ("folder", "name", "product"),
    [
        ("nvidia-smi-8xa100", "8xa100-80g", "8 x NVIDIA A100-SXM4-80GB"),
        ("nvidia-smi-8xa100-mig", "7xa100-80g", "7 x NVIDIA A100-SXM4-80GB"),
        ("nvidia-smi-mig", "1x10g", "1 x NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
        ("nvidia-smi-1xt4", "1xt4-16g", "1 x Tesla T4"),
        ("nvidia-smi-2x4090", "2xrtx-4090", "2 x NVIDIA GeForce RTX 4090"),
        ("nvidia-smi-2x5090-busy", "2xrtx-5090", "2 x NVIDIA GeForce RTX 5090"),
        ("nvidia-smi-2xquadro", "2x8g", "2 x Quadro RTX 4000"),
        ("nvidia-smi-2xa100-450", "2xa100-80g", "2 x A100-SXM-80GB"),
        ("nvidia-smi-gb10", "1xgb10-128g", "1 x NVIDIA GB10"),
        ("nvidia-smi-lost", "1xrtx-4090", "1 x NVIDIA GeForce RTX 4090"),
        ("nvidia-smi-h100", "1xh100-80g", "1 x NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-h100-fabric", "1xh100-80g", "1 x NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-a100-remap", "1xa100-80g", "1 x NVIDIA A100-SXM4-80GB"),
        ("nvidia-smi-a100-held", "1xa100-80g", "1 x NVIDIA A100-SXM4-80GB"),
        ("npu-smi-8x910b2", "8xascend-910b-64g", "8 x 910B2"),
        ("npu-smi-8x910b3-busy", "8xascend-910b-64g", "8 x 910B3"),
        ("npu-smi-2x910b3", "2xascend-910b-64g", "2 x 910B3"),
        ("npu-smi-8x910", "8xascend-910a-32g", "8 x 910B"),
        ("npu-smi-2x910c", "4xascend-910c-64g", "4 x Ascend910"),
        ("rocm-smi-8xmi300x", "8xmi300x-192g", "8 x AMD Instinct MI300X OAM"),
        ("rocm-smi-8xmi300x-held", "8xmi300x-192g", "8 x AMD Instinct MI300X OAM"),
        ("rocm-smi-mi210", "1x64g", "1 x Instinct MI210"),
        ("rocm-smi-radeon", "1x16g", "1 x Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]"),
        ("amd-smi-mi300x", "1xmi300x-192g", "1 x AMD Instinct MI300X"),
        ("amd-smi-mi300x-list", "1xmi300x-192g", "1 x AMD Instinct MI300X"),
    ],
)
def test_a_recorded_machine(folder: str, name: str, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = on(monkeypatch, folder)
    assert here.machine == name
    assert str(here).startswith(f"{product} ({here.device})")


def test_every_recording_is_read() -> None:
    assert {path.name for path in RECORDED.iterdir() if path.is_dir()} <= set(Path(__file__).read_text().split('"'))


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("nvidia-smi-no-driver", "nvidia-smi shows no device: NVIDIA-SMI has failed because it couldn't communicate"),
        ("nvidia-smi-mismatch", "Driver/library version mismatch; NVML library version: 570.124; name the machine"),
        ("nvidia-smi-thor", "NVIDIA Thor is not in the catalogue, and its memory is not shown"),
        ("npu-smi-used", "npu-smi shows no device: DrvMngGetConsoleLogLevel failed.*the device is used. ret is -8020"),
        ("rocm-smi-nothing", "rocm-smi shows no device: WARNING: No JSON data to report"),
        ("none", "no accelerator is known here: nvidia-smi, npu-smi, rocm-smi and amd-smi are not installed"),
    ],
)
def test_a_machine_that_shows_none(folder: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=says) as told:
        on(monkeypatch, folder)
    assert "\n" not in str(told.value)
    assert "--machine 8xa100-80g" in str(told.value)


def test_a_driver_that_works_counts_before_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on(monkeypatch, "nvidia-smi-no-driver", "npu-smi-8x910b2").machine == "8xascend-910b-64g"


def test_a_program_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It blocks on a pipe that nobody writes to. The notice comes once, as the program is not asked again."""
    os.mkfifo(tmp_path / "pipe")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nread line < {tmp_path}/pipe\n")
    tool.chmod(0o755)
    monkeypatch.setattr(driver, "_NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(driver, "_TIMEOUT_SECONDS", 0.6)
    monkeypatch.setattr(driver, "_HANGING_TOOLS", {})
    says = "nvidia-smi does not answer within 1 seconds: the driver or a device hangs"
    with pytest.raises(RecipeError, match=says):
        this_machine.require_machine()
    with pytest.raises(RecipeError, match=says):
        driver.run_tool("nvidia-smi", "-q")
    assert capfd.readouterr().err == "waiting for nvidia-smi, 1 seconds at most\n"


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/no/such/shell\n")
    tool.chmod(0o755)
    with pytest.raises(RecipeError, match="nvidia-smi cannot be started: no such file"):
        this_machine.detect_machine()


def test_warnings_before_the_json(tmp_path: Path) -> None:
    shown = (RECORDED / "rocm-smi-8xmi300x" / "vram.json").read_text()
    tool = tmp_path / "rocm-smi"
    tool.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n[WARN] GPU[0]: {{low power}}\n{shown}END\n")
    tool.chmod(0o755)
    assert this_machine.require_machine().machine == "8xmi300x-192g"


NAMELESS = '[{"gpu": {}, "asic": {"market_name": "MI300X"}, "vram": {"size": {"value": %s}}}]'
ROW = "| 0     X | OK | 98.6 |\n| 0 | 0000:C1:00.0 | %s |\n"


@pytest.mark.parametrize(
    ("name", "prints", "says"),
    [
        ("amd-smi", NAMELESS % "NaN", "its memory is not shown"),
        ("amd-smi", NAMELESS % "1e999", "its memory is not shown"),
        ("amd-smi", NAMELESS % "[" * 9000, "shows no device"),
        ("npu-smi", ROW % "no pair of sizes", "its memory is not shown"),
        ("npu-smi", ROW % f"1 / {'9' * 9000}", "its memory is not shown"),
        ("nvidia-smi", "0, GPU-0, NVIDIA X, inf, -1", "its memory is not shown"),
    ],
)
def test_sizes_that_are_none(name: str, prints: str, says: str, tmp_path: Path) -> None:
    tool = tmp_path / name
    tool.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{prints}\nEND\n")
    tool.chmod(0o755)
    with pytest.raises(RecipeError, match=says):
        this_machine.require_machine()


def test_taken_memory_of_a_device_that_shows_no_size() -> None:
    busy = Accelerator("NVIDIA X", None, 3.0, ("0",))
    assert (
        ThisMachine("nvidia", "48g", (busy,), (), None, ()).memory_use_note()
        == "other processes hold memory of device 0: up to 3.0 GiB"
    )


# What is hidden.


@pytest.mark.parametrize(
    ("folder", "variables", "name"),
    [
        ("nvidia-smi-8xa100", {"CUDA_VISIBLE_DEVICES": "0,1"}, "2xa100-80g"),
        ("nvidia-smi-8xa100", {"CUDA_VISIBLE_DEVICES": "GPU-4ce12868, GPU-b9ce234f"}, "2xa100-80g"),
        ("nvidia-smi-8xa100", {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, "1xa100-80g"),
        ("nvidia-smi-8xa100", {"HIP_VISIBLE_DEVICES": "0"}, "8xa100-80g"),
        ("nvidia-smi-8xa100-mig", {"CUDA_VISIBLE_DEVICES": "MIG-fca28630-a1bd-5e73-9206-ccd17a013f5f"}, "1x40g"),
        ("nvidia-smi-8xa100-mig", {"CUDA_VISIBLE_DEVICES": "0"}, "1x40g"),
        ("npu-smi-8x910b2", {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}, "4xascend-910b-64g"),
        ("rocm-smi-8xmi300x", {"CUDA_VISIBLE_DEVICES": "3"}, "1xmi300x-192g"),
        ("rocm-smi-8xmi300x", {"ROCR_VISIBLE_DEVICES": "4,5,6,7"}, "4xmi300x-192g"),
        ("rocm-smi-8xmi300x", {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,1"}, "2xmi300x-192g"),
        ("rocm-smi-8xmi300x", {"ROCR_VISIBLE_DEVICES": "GPU-dc91284879207f2b"}, "8xmi300x-192g"),
        ("rocm-smi-8xmi300x", {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "3"}, "2xmi300x-192g"),
    ],
)
def test_hidden_devices(folder: str, variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on(monkeypatch, folder, **variables).machine == name


def test_all_hidden_below_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="ROCR_VISIBLE_DEVICES hides all devices of this machine"):
        on(monkeypatch, "rocm-smi-8xmi300x", ROCR_VISIBLE_DEVICES="8")


@pytest.mark.parametrize("value", ["", "-1", "8"])
def test_all_devices_hidden(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="CUDA_VISIBLE_DEVICES hides all devices of this machine, 8 x NVIDIA A100"):
        on(monkeypatch, "nvidia-smi-8xa100", CUDA_VISIBLE_DEVICES=value)


# What is told, and what a run gets.


@pytest.mark.parametrize(
    ("folder", "notes"),
    [
        ("nvidia-smi-8xa100", []),
        ("nvidia-smi-2xquadro", ["Quadro RTX 4000 is not in the catalogue: taken as `8g`"]),
        ("nvidia-smi-lost", ["Unable to determine the device handle for gpu 0000:3B:00.0: Unknown Error"]),
        ("nvidia-smi-mig", ["is not in the catalogue", "a process can use one MIG slice"]),
        ("npu-smi-2x910b3", []),
        ("npu-smi-8x910b2", ["other processes hold memory of devices 0, 1, 2, 3: up to 29.3 of 64.0 GiB"]),
        ("npu-smi-2x910c", ["other processes hold memory of device 3: up to 10.3 of 64.0 GiB"]),
        ("nvidia-smi-8xa100-mig", ["7 x NVIDIA A100-SXM4-80GB and 1 x NVIDIA A100-SXM4-80GB MIG 4g.40gb are here"]),
    ],
)
def test_notes(folder: str, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = [note.text for note in on(monkeypatch, folder).notes()]
    assert len(told) == len(notes)
    assert all(part in line for part, line in zip(notes, told, strict=True))


MIXED = """\
0, GPU-0, NVIDIA A100-SXM4-80GB, 81920, 5
1, GPU-1, NVIDIA GeForce RTX 3090, 24576, 5
2, GPU-2, NVIDIA GeForce RTX 3090, 24576, 5
{more}"""


@pytest.mark.parametrize(
    ("more", "name", "variables", "others"),
    [
        ("", "1xa100-80g", "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1,2", "2 x NVIDIA GeForce RTX 3090"),
        ("".join(f"{each}, GPU-{each}, NVIDIA GeForce RTX 3090, 24576, 5\n" for each in (3, 4)), "4xrtx-3090",
         "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0", "1 x NVIDIA A100-SXM4-80GB"),
    ],
)  # fmt: skip
def test_of_two_kinds_of_devices_it_says_which_is_taken(
    more: str, name: str, variables: str, others: str, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{MIXED.format(more=more)}END\n")
    tool.chmod(0o755)
    here = this_machine.require_machine()
    (note,) = here.notes()
    assert here.machine == name
    assert note.text.endswith(f"with most memory in all; `{variables}` takes {others} instead")


@pytest.mark.parametrize(
    ("folder", "count", "names", "variables"),
    [
        ("nvidia-smi-2x4090", 2, "0,1", {}),
        ("nvidia-smi-2x4090", 1, "0", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}),
        ("npu-smi-8x910b2", 4, "4,5,6,7", {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}),
        ("nvidia-smi-8xa100-mig", 7, "1,2,3,4,5,6,7",
         {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,2,3,4,5,6,7"}),
        ("rocm-smi-8xmi300x", 1, "0", {"HIP_VISIBLE_DEVICES": "0"}),
    ],
)  # fmt: skip
def test_a_run_gets_the_devices_with_most_free_memory(
    folder: str, count: int, names: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, chosen = on(monkeypatch, folder).select_devices(count)
    assert (",".join(one.visible_ids[0] for one in taken), chosen) == (names, variables)


def test_the_users_own_choice_of_devices_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    here = on(monkeypatch, "nvidia-smi-2x4090", CUDA_VISIBLE_DEVICES="1,0")
    assert here.select_devices(1)[1] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert here.select_devices(2)[1] == {}


@pytest.mark.parametrize(
    ("folder", "name", "value", "left"),
    [
        # Device 0 is busy.
        ("npu-smi-8x910b2", "ASCEND_RT_VISIBLE_DEVICES", "0,4", "4"),
        ("nvidia-smi-8xa100", "CUDA_VISIBLE_DEVICES", "GPU-4ce12868, GPU-b9ce234f", "GPU-4ce12868"),
    ],
)
def test_a_run_gets_fewer_of_the_devices_that_the_user_has_left(
    folder: str, name: str, value: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, chosen = on(monkeypatch, folder, **{name: value}).select_devices(1)
    assert chosen == {name: left}
    assert any(word.startswith(left) for word in taken[0].visible_ids)


@pytest.mark.parametrize(
    ("folder", "free"),
    [("nvidia-smi-2x5090-busy", [3.2, 2.2]), ("npu-smi-2x910b3", [60.6, 60.6]), ("rocm-smi-mi210", [64.0]),
     ("amd-smi-mi300x", [191.7]), ("nvidia-smi-mig", [None])],
)  # fmt: skip
def test_memory_that_others_have_left(folder: str, free: list[float | None], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [one.free_gib for one in on(monkeypatch, folder).accelerators]
    assert [None if size is None else round(size, 1) for size in shown] == free


# Main memory and disk.

MEMINFO = f"MemTotal:       {64 * (1 << 20)} kB\nMemFree:        1 kB\n"
WITHIN = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 64),
        # Version 2: the process's own group, one above it, none that limits.
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job/step\n",
          f"{WITHIN}/job/step/memory.max": f"{32 * GIB}\n", f"{WITHIN}/job/memory.max": f"{48 * GIB}\n"}, 32),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job/step\n", f"{WITHIN}/job/step/memory.max": "max\n",
          f"{WITHIN}/job/memory.max": f"{48 * GIB}\n"}, 48),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", f"{WITHIN}/memory.max": "max\n"}, 64),
        # A container whose process file shows the host's path: the tree's root is its own group.
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/kubepods/pod1\n",
          f"{WITHIN}/memory.max": f"{16 * GIB}\n"}, 16),
        # Version 1: a controller of its own; no limit is a number beyond all memory.
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "9:cpu:/x\n4:memory:/docker/ab\n",
          f"{WITHIN}/memory/memory.limit_in_bytes": f"{8 * GIB}\n"}, 8),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "4:memory:/\n",
          f"{WITHIN}/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 64),
    ],
)  # fmt: skip
def test_main_memory(files: dict[str, str], size: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host.memory_gib(tmp_path) == size


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/pod\n", f"{WITHIN}/pod/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/pod\n", f"{WITHIN}/pod/cpu.max": "350000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/pod\n", f"{WITHIN}/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/pod\n", f"{WITHIN}/cpu.max": "6400000 100000\n"}, 8),
        # Version 1: two files, and -1 for no limit.
        ({"proc/self/cgroup": "3:cpu,cpuacct:/ab\n", f"{WITHIN}/cpu/cpu.cfs_quota_us": "400000\n",
          f"{WITHIN}/cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/ab\n", f"{WITHIN}/cpu/cpu.cfs_quota_us": "-1\n",
          f"{WITHIN}/cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)  # fmt: skip
def test_processors(files: dict[str, str], processors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host.usable_cpus(tmp_path) == processors


def test_free_disk_is_that_of_the_nearest_folder_there_is(tmp_path: Path) -> None:
    assert host.free_disk_gib(tmp_path / "saves" / "x") == pytest.approx(host.free_disk_gib(tmp_path), rel=0.2)


def test_a_program_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/log\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: driver.run_tool("npu-smi", "info"), range(4)))
    assert (tmp_path / "log").read_text() == "asked\n"
