"""What a driver's tool (nvidia-smi, npu-smi, rocm-smi, amd-smi) tells: the accelerators, the processes on them, and
which accelerators CUDA_VISIBLE_DEVICES and its kin leave to a run. A tool runs once for each question, with a time
limit."""

from __future__ import annotations

import math
import os
import pwd
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from validator.errors import RecipeError, os_reason

_TIMEOUT_SECONDS = 30  # without its persistence daemon a server's eight devices take ten to wake
# Where installers put these programs without adding the folder to PATH: ROCm, the Ascend driver, WSL.
_EXTRA_FOLDERS = ("/opt/rocm/bin", "/usr/local/sbin", "/usr/lib/wsl/lib")

# doctor runs its checks at once, and several ask the same tool.
_TOOL_LOCKS: defaultdict[str, Lock] = defaultdict(Lock)


class DriverError(RecipeError):
    """A driver's tool shows no device that a run could use. `finding` is what it says, without the remedy."""

    def __init__(self, finding: str, remedy: str = "") -> None:
        super().__init__(f"{finding}; {remedy}" if remedy else finding)
        self.finding = finding


def run_tool(name: str, *words: str) -> str | None:
    """Return what the tool prints, or its complaint if it prints nothing else; None if it is not installed. The exit
    code is ignored: rocm-smi ends with 2 if one of many figures is missing. Raises DriverError if it does not answer.

    Each tool runs once for each question in the life of this process."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_EXTRA_FOLDERS]))
    if path is None:
        return None
    with _TOOL_LOCKS[path]:
        said = _cached_output(path, *words)
    if isinstance(said, DriverError):
        raise DriverError(said.finding)
    return said


@cache
def _cached_output(path: str, *words: str) -> str | DriverError:
    name = Path(path).name
    try:
        done = subprocess.run([path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=_TIMEOUT_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return DriverError(f"{name} does not answer within {_TIMEOUT_SECONDS} seconds")
    except OSError as err:
        return DriverError(f"{name} cannot be started: {os_reason(err)}")
    return done.stdout if done.stdout.strip() else done.stderr


def no_device_error(name: str, text: str) -> DriverError:
    """Return the error for a tool that shows no device: what it says instead, in one line."""
    said = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    return DriverError(f"{name} shows no device: {said[:200] or 'it prints nothing'}")


class Accelerator(NamedTuple):
    """A device, or a MIG slice of one, of which a process can use a single one.

    GiB are 2^30 bytes; None: the driver's tool does not say. `used_gib` is in use before a run starts. `visible_ids`:
    index, UUID or MIG id, as CUDA_VISIBLE_DEVICES accepts them; the first is shown to users."""

    product: str
    memory_gib: float | None
    used_gib: float | None
    visible_ids: tuple[str, ...]
    is_mig_slice: bool = False

    @property
    def free_gib(self) -> float | None:
        """GiB that are left for a run; None: not known."""
        if self.memory_gib is None or self.used_gib is None:
            return None
        return self.memory_gib - self.used_gib


class DriverReading(NamedTuple):
    """One reading of a driver's tool: the devices in its order, and its lines on devices that it cannot reach."""

    accelerators: list[Accelerator]
    unreachable: tuple[str, ...] = ()


MIB_PER_GIB = 1024


def parse_size(text: str, per_gib: float) -> float | None:
    """Return GiB of a size as driver tools print it, in units of which a GiB has so many; None for `[N/A]`,
    `[Insufficient Permissions]` and their like."""
    try:
        size = float(text)
    except ValueError:
        return None
    return size / per_gib if 0 <= size < math.inf else None


class DeviceProcess(NamedTuple):
    """A process with memory on a device. `gib` and `device` (one of the device's `visible_ids`) are None if the
    driver's tool does not say."""

    pid: int
    name: str
    gib: float | None
    device: str | None


class ProcessOwner(NamedTuple):
    """The user who runs a process; `is_me`: the user of this program."""

    name: str
    is_me: bool


def process_owner(pid: int, root: Path) -> ProcessOwner | None:
    """Return the user who runs the process; None if it cannot be seen, as from within a container. `root`: where the
    kernel's files are."""
    try:
        number = (root / "proc" / str(pid)).stat().st_uid
    except OSError:
        return None
    try:
        return ProcessOwner(pwd.getpwuid(number).pw_name, number == os.getuid())
    except KeyError:
        return ProcessOwner(str(number), number == os.getuid())


def visibility_variable(names: Sequence[str]) -> str | None:
    """Return the first of these variables that is set."""
    return next((name for name in names if name in os.environ), None)


def visible_accelerators(found: Sequence[Accelerator], names: Sequence[str]) -> list[Accelerator]:
    """Return the devices that the first of these variables leaves visible, in its order; all if none is set. As in
    CUDA, the first unknown id ends the list, and a UUID may be shortened to its beginning."""
    hiding = visibility_variable(names)
    if hiding is None:
        return list(found)
    left: list[Accelerator] = []
    for word in os.environ[hiding].split(","):
        meant = [device for device in found if _matches_device(word.strip(), device)]
        if not meant:
            break
        left += [device for device in meant if device not in left]
    return left


def restrict_visible(name: str, kept: Sequence[Accelerator]) -> str:
    """Return the variable's value reduced to these devices, in the user's own notation."""
    words = os.environ[name].split(",")
    return ",".join(word.strip() for word in words if any(_matches_device(word.strip(), device) for device in kept))


def _matches_device(word: str, device: Accelerator) -> bool:
    return any(word == name or (word[:4] in ("GPU-", "MIG-") and name.startswith(word)) for name in device.visible_ids)
