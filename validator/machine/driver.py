"""Reads accelerators and the processes on them from a vendor's command line tool (nvidia-smi, npu-smi, rocm-smi,
amd-smi), and applies CUDA_VISIBLE_DEVICES and the corresponding variables of other vendors. The output of each command
is cached, and each command has a time limit."""

from __future__ import annotations

import math
import os
import pwd
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from validator.errors import RecipeError, os_reason

# Seconds after which the user is told what is waited for, and all that a tool gets. Without its persistence daemon a
# server's eight devices take ten to wake.
_NOTICE_SECONDS, _TIMEOUT_SECONDS = 2.0, 20.0
# Where installers put these programs without adding the folder to PATH: ROCm, the Ascend driver, WSL.
_EXTRA_FOLDERS = ("/opt/rocm/bin", "/usr/local/sbin", "/usr/lib/wsl/lib")

# doctor runs its checks at once, and several ask the same tool.
_TOOL_LOCKS: defaultdict[str, Lock] = defaultdict(Lock)
_HANGING_TOOLS: dict[str, DriverError] = {}


class DriverError(RecipeError):
    """Error of a driver's tool: the tool fails, or shows no device that a run could use. `finding` is the message
    without the remedy."""

    def __init__(self, finding: str, remedy: str = "") -> None:
        super().__init__(f"{finding}; {remedy}" if remedy else finding)
        self.finding = finding


def run_tool(name: str, *words: str) -> str | None:
    """Return the standard output of a driver's tool, or its standard error if the output is empty. Return None if the
    tool is not installed. The exit code is ignored: rocm-smi ends with 2 if one of many figures is missing. Raises
    DriverError if the tool does not answer in time or cannot be started.

    The same command line runs only once in this process. Later calls return the cached output, and a tool that did not
    answer once is not asked again."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_EXTRA_FOLDERS]))
    if path is None:
        return None
    with _TOOL_LOCKS[path]:
        output = _HANGING_TOOLS.get(path) or _cached_output(path, *words)
    if isinstance(output, DriverError):
        raise DriverError(output.finding)
    return output


@cache
def _cached_output(path: str, *words: str) -> str | DriverError:
    name = Path(path).name
    try:
        process = subprocess.Popen([path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace")  # fmt: skip
    except OSError as err:
        return DriverError(f"{name} cannot be started: {os_reason(err)}")
    try:
        output, errors = process.communicate(timeout=_NOTICE_SECONDS)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"waiting for {name}, {_TIMEOUT_SECONDS:.0f} seconds at most\n")
        try:
            output, errors = process.communicate(timeout=_TIMEOUT_SECONDS - _NOTICE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # and no wait: a process that hangs in the kernel does not end
            found = f"{name} does not answer within {_TIMEOUT_SECONDS:.0f} seconds: the driver or a device hangs"
            return _HANGING_TOOLS.setdefault(path, DriverError(found))
    return output if output.strip() else errors


def no_device_error(name: str, text: str) -> DriverError:
    """Return the error for a tool that runs but shows no device. The message quotes in one line, cut to 200 characters,
    what the tool prints instead."""
    message = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    return DriverError(f"{name} shows no device: {message[:200] or 'it prints nothing'}")


class Accelerator(NamedTuple):
    """A device, or a MIG slice of a device. A process can use only one MIG slice.

    Sizes are in GiB of 2^30 bytes, or None if the driver's tool does not print them. `used_gib` is the memory in use
    before a run starts. `visible_ids` are the names that CUDA_VISIBLE_DEVICES accepts for the device (index, UUID or
    MIG id); messages show the first."""

    product: str
    memory_gib: float | None
    used_gib: float | None
    visible_ids: tuple[str, ...]
    is_mig_slice: bool = False

    @property
    def free_gib(self) -> float | None:
        """GiB of the device's memory that are free for a run; None if the driver's tool does not print them."""
        if self.memory_gib is None or self.used_gib is None:
            return None
        return self.memory_gib - self.used_gib


class DriverReading(NamedTuple):
    """The output of a driver's tool: the devices in the tool's order, and the error lines that the tool prints for
    devices that it cannot reach."""

    accelerators: list[Accelerator]
    unreachable: tuple[str, ...] = ()


MIB_PER_GIB = 1024


def parse_size(text: str, per_gib: float) -> float | None:
    """Return in GiB a size that a driver's tool prints in another unit. `per_gib` is the number of these units in one
    GiB. Return None if the text is not a number, such as `[N/A]` or `[Insufficient Permissions]`."""
    try:
        size = float(text)
    except ValueError:
        return None
    return size / per_gib if 0 <= size < math.inf else None


class DeviceProcess(NamedTuple):
    """A process that uses a device. `gib` is the device memory that the process holds. `device` is one of the device's
    `visible_ids`. `gib` and `device` are None if the driver's tool does not print them."""

    pid: int
    name: str
    gib: float | None
    device: str | None


class ProcessOwner(NamedTuple):
    """The user who runs a process. `is_me` is true if this program runs under the same user."""

    name: str
    is_me: bool


def process_owner(pid: int, root: Path) -> ProcessOwner | None:
    """Return the user who runs the process. Return None if the process is not visible, for example from within a
    container. `root` is the folder that contains `proc`."""
    try:
        number = (root / "proc" / str(pid)).stat().st_uid
    except OSError:
        return None
    try:
        return ProcessOwner(pwd.getpwuid(number).pw_name, number == os.getuid())
    except KeyError:
        return ProcessOwner(str(number), number == os.getuid())


def visibility_variable(names: Sequence[str]) -> str | None:
    """Return the name of the first of these environment variables that is set; None if none of them is set."""
    return next((name for name in names if name in os.environ), None)


def visible_accelerators(found: Sequence[Accelerator], names: Sequence[str]) -> list[Accelerator]:
    """Return the devices that a variable such as CUDA_VISIBLE_DEVICES leaves visible, in the order of its value. Only
    the first of the variables in `names` that is set counts; if none is set, all devices are returned. As in CUDA, the
    first unknown id ends the list, and the beginning of a UUID is enough."""
    hiding = visibility_variable(names)
    if hiding is None:
        return list(found)
    visible: list[Accelerator] = []
    for word in os.environ[hiding].split(","):
        matches = [device for device in found if _matches_device(word.strip(), device)]
        if not matches:
            break
        visible += [device for device in matches if device not in visible]
    return visible


def restrict_visible(name: str, kept: Sequence[Accelerator]) -> str:
    """Return the value of the environment variable `name` without the devices that are not in `kept`. The remaining ids
    stay as the user wrote them."""
    words = os.environ[name].split(",")
    return ",".join(word.strip() for word in words if any(_matches_device(word.strip(), device) for device in kept))


def _matches_device(word: str, device: Accelerator) -> bool:
    return any(word == name or (word[:4] in ("GPU-", "MIG-") and name.startswith(word)) for name in device.visible_ids)
