"""What `doctor` says of devices: recorded machines (tests/fixtures/recorded/), broken and sound."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from support.recordings import RECORDED, show_all

from validator.doctor import device_checks, diagnosis
from validator.doctor.check_result import CheckContext, CheckResult
from validator.launch.device_allocation import DeviceAllocation
from validator.machine import driver
from validator.recipe.recipe_file import load_recipe
from validator.run.settings import resolve

RECIPE = str(Path(__file__).parents[2] / "recipes" / "qwen3-8b-a100-lora.yaml")  # for 8xa100-80g


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No driver's program, and none of the variables that hide devices."""
    show_all(monkeypatch)
    monkeypatch.delenv("NPROC_PER_NODE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(driver, "_EXTRA_FOLDERS", ())


def on(monkeypatch: pytest.MonkeyPatch, folder: str) -> CheckContext:
    """The recorded machine."""
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    return diagnosis.with_devices(CheckContext())


def told(lines: list[CheckResult]) -> list[str]:
    return [f"{line.state}: {line.found}" for line in lines]


# What is wrong with the machine itself.


@pytest.mark.parametrize(
    ("folder", "state", "says", "remedy"),
    [
        ("nvidia-smi-8xa100", "ok", "8 x NVIDIA A100-SXM4-80GB (a100-80g)", ""),
        ("none", "note", "this machine shows no device", ""),
        ("nvidia-smi-mismatch", "error", "Driver/library version mismatch; NVML library version: 570.124", "reboot"),
        ("nvidia-smi-no-driver", "error", "couldn't communicate with the NVIDIA driver", "sudo modprobe nvidia"),
        ("npu-smi-used", "error", "the device is used. ret is -8020", "another container holds the devices"),
        ("nvidia-smi-gb10", "ok", "1 x NVIDIA GB10 (gb10-128g)", ""),
        ("nvidia-smi-thor", "warning", "NVIDIA Thor is not in the catalogue, and its memory is not shown", ""),
    ],
)
def test_a_machine_by_itself(folder: str, state: str, says: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(device_checks.check_devices(None, on(monkeypatch, folder)))
    assert first.state == state
    assert says in first.found
    assert remedy in first.remedy


def test_a_device_that_left_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lost = device_checks.check_devices(None, on(monkeypatch, "nvidia-smi-lost"))
    assert (lost.state, lost.found[:36]) == ("error", "Unable to determine the device handl")
    assert "reboot" in lost.remedy


@pytest.mark.parametrize("file", ["dev/nvidia0", "dev/davinci0", "dev/kfd"])
def test_devices_without_their_program(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).touch()
    (line,) = device_checks.check_devices(None, CheckContext(tmp_path))
    assert line.state == "warning"
    assert f"/{file} is there, but" in line.found


# Beside what a recipe wants.


@pytest.mark.parametrize(
    ("folder", "machine", "states", "says"),
    [
        ("nvidia-smi-8xa100", None, ["ok"], "8 x NVIDIA A100-SXM4-80GB"),
        ("nvidia-smi-8xa100", "8xa100-80g", ["ok"], "8 x NVIDIA A100-SXM4-80GB"),
        ("nvidia-smi-2xa100-450", None, ["warning", "ok"], "runs on 2 devices instead of 8"),
        ("nvidia-smi-2xa100-450", "8xa100-80g", ["error"], "`--machine 8xa100-80g` has 8 devices, 2 devices here"),
        ("nvidia-smi-2x5090-busy", None, ["warning", "ok", "error"], "device 1 has 2.2 GiB free of 31.8"),
        ("nvidia-smi-mismatch", None, ["error"], "Driver/library version mismatch"),
        ("none", None, ["error"], "this machine shows no device"),
    ],
)
def test_for_a_recipe(
    folder: str, machine: str | None, states: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    lines = list(device_checks.check_devices(*diagnosis.run_and_context(load_recipe(RECIPE), machine)))
    assert [line.state for line in lines] == states
    assert lines[0].wanted == "8xa100-80g"
    assert says in lines[-1].found


def test_a_recipe_for_the_cpu_wants_no_device() -> None:
    tiny = str(Path(RECIPE).with_name("tiny-cpu-lora.yaml"))
    (line,) = device_checks.check_devices(*diagnosis.run_and_context(load_recipe(tiny), None))
    assert (line.state, line.wanted) == ("ok", "")


# What the drivers know.


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("nvidia-smi-h100", []),
        ("nvidia-smi-8xa100", []),
        ("nvidia-smi-h100-fabric", ["error: device 0: Fabric / State: In Progress"]),
        ("nvidia-smi-a100-remap", ["warning: device 0: Remapped Rows / Pending: Yes"]),
        ("npu-smi-8x910b2", []),
        ("none", []),
    ],
)
def test_health(folder: str, says: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(list(device_checks.check_health(None, on(monkeypatch, folder))))
    assert [line.partition(";")[0] for line in lines] == says


@pytest.mark.parametrize(
    ("old", "new", "state"),
    [
        ("Reset Required                    : No", "Reset Required                    : Yes", "error"),
        (
            "Compute Mode                          : Default",
            "Compute Mode                          : Prohibited",
            "error",
        ),
        ("Failure Occurred        : No", "Failure Occurred        : Yes", "error"),
        ("DRAM Uncorrectable            : 0\n        Agg", "DRAM Uncorrectable            : 3\n        Agg", "warning"),
        ("HW Thermal Slowdown           : Not Active", "HW Thermal Slowdown           : Active", "warning"),
        ("Fabric\n", "GPU Recovery Action           : Reset\n    Fabric\n", "error"),
        ("Fabric\n", "GPU Recovery Action           : Drain and Reset\n    Fabric\n", "warning"),
        ("Fabric\n", "GPU Recovery Action           : None\n    Fabric\n", ""),
        # Nothing to worry about: errors of a former life, and devices that wait.
        ("DRAM Uncorrectable            : 0\n    Ret", "DRAM Uncorrectable            : 3\n    Ret", ""),
        ("SW Power Cap                      : Not Active", "SW Power Cap                      : Active", ""),
        ("Compute Mode                          : Default", "Compute Mode           : Exclusive_Process", ""),
    ],
)
def test_a_fault_in_an_otherwise_sound_device(
    old: str, new: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (RECORDED / "nvidia-smi-h100" / "details.txt").read_text()
    assert old in text
    (tmp_path / "details.txt").write_text(text.replace(old, new))
    (tmp_path / "nvidia-smi").symlink_to(RECORDED / "nvidia-smi-h100" / "nvidia-smi")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [line.state for line in device_checks.check_health(None, CheckContext())] == ([state] if state else [])


@pytest.mark.parametrize(("word", "state"), [("Alarm", "error"), ("Warning", "warning"), ("OK", "")])
def test_health_of_an_ascend(word: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (RECORDED / "npu-smi-2x910b3" / "info.txt").read_text()
    (tmp_path / "info.txt").write_text(text.replace("| OK   ", f"| {word:<5}", 1))
    (tmp_path / "npu-smi").symlink_to(RECORDED / "npu-smi-2x910b3" / "npu-smi")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [line.state for line in device_checks.check_health(None, CheckContext())] == ([state] if state else [])


def test_a_fault_of_a_device_that_the_run_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    node = on(monkeypatch, "nvidia-smi-h100-fabric")
    assert node.machine
    (device,) = node.machine.accelerators
    for names, state in ((device.visible_ids, "error"), (("7", "GPU-7"), "warning")):
        target = DeviceAllocation(accelerators=[device._replace(visible_ids=names)])
        assert [line.state for line in device_checks.check_health(None, node._replace(allocation=target))] == [state]


def test_a_run_on_the_cpu_does_without_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = resolve(load_recipe(str(Path(RECIPE).with_name("tiny-cpu-lora.yaml"))))
    assert not list(device_checks.check_health(run, on(monkeypatch, "nvidia-smi-h100-fabric")))
    assert not list(device_checks.check_processes(run, on(monkeypatch, "nvidia-smi-a100-held")))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert not list(device_checks.check_device_files(run, CheckContext(tmp_path)))


# As kernels wrote it: a device that left the bus, what the driver wants then, and a fault of a program.
LOG = """[81712.1] NVRM: Xid (PCI:0000:01:00): 79, pid=4321, name=python, GPU has fallen off the bus.
[81712.2] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.
[81712.3] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
[90000.0] NVRM: Xid (PCI:0000:02:00): 31, pid=4400, name=python, MMU Fault: ENGINE CE2
"""


@pytest.mark.parametrize(
    ("log", "codes"), [(LOG, ["79", "154"]), ("dmesg: read kernel buffer failed: Operation not permitted\n", [])]
)
def test_the_kernel_s_log(log: str, codes: list[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log)
    (tmp_path / "dmesg").write_text('#!/bin/sh\n/bin/cat "${0%/*}/log"\n')
    (tmp_path / "dmesg").chmod(0o755)
    lines = list(device_checks.check_health(None, CheckContext()))
    assert [line.found.split()[1] for line in lines] == codes
    assert all(line.state == "warning" for line in lines)


def test_no_log() -> None:
    assert not list(device_checks.check_health(None, CheckContext()))


@pytest.mark.parametrize(
    ("there", "lacks"),
    [
        ([], []),
        (["nvidiactl", "nvidia0", "nvidia-uvm"], []),
        (["nvidiactl", "nvidia0"], ["/dev/nvidia-uvm"]),
        (["nvidiactl", "nvidia0", "../usr/bin/nvidia-modprobe"], []),  # which makes it when it is asked for
        (["davinci0", "davinci_manager", "devmm_svm", "hisi_hdc"], []),
        (["davinci6", "davinci_manager"], ["/dev/devmm_svm", "/dev/hisi_hdc"]),
        (["kfd"], ["/dev/dri"]),
    ],
)
def test_device_files(there: list[str], lacks: list[str], tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "usr/bin").mkdir(parents=True)
    for name in there:
        (tmp_path / "dev" / name).touch()
    lines = list(device_checks.check_device_files(None, CheckContext(tmp_path)))
    assert [line.found.split(",")[0] for line in lines] == [f"no {file}" for file in lacks]
    assert all(line.state == "error" for line in lines)


# Who holds memory.


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("nvidia-smi-8xa100", []),
        ("nvidia-smi-h100", []),
        ("none", []),
        ("nvidia-smi-a100-held", ["warning: 21.8 GiB of device 0 held by python (pid 280058, of {me})"]),
        ("npu-smi-2x910c", ["warning: 7.6 GiB of device 3 held by python (pid 990711, not seen from here)"]),
        ("rocm-smi-8xmi300x-held",
         ["warning: 165.2 GiB of the devices held by pt_main_thread (pid 1168514, not seen from here)"]),
        ("npu-smi-8x910b2", ["warning: other processes hold memory of devices 0, 1, 2, 3: up to 29.3 of 64.0 GiB, "
                             "none of which is seen from here"]),
    ],
)  # fmt: skip
def test_who_holds_memory(folder: str, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc" / "280058").mkdir(parents=True)
    node = on(monkeypatch, folder)._replace(root=tmp_path)
    me = pwd.getpwuid(os.getuid()).pw_name
    assert told(list(device_checks.check_processes(None, node))) == [line.format(me=me) for line in says]


def test_only_a_process_of_the_user_s_own_may_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = on(monkeypatch, "nvidia-smi-a100-held")._replace(root=tmp_path)
    assert [line.remedy for line in device_checks.check_processes(None, node)] == [""]
    (tmp_path / "proc" / "280058").mkdir(parents=True)
    assert [line.remedy for line in device_checks.check_processes(None, node)] == [
        "if it is a left-over: `kill 280058`"
    ]
