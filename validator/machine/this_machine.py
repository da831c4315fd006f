"""This machine in the terms of the catalogue: which device it has, how many, how much main memory, and the variables
that restrict a run to some of the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from validator.knowledge import devices
from validator.knowledge.node_environment import vendor_drivers
from validator.machine import amd, ascend, host, nvidia
from validator.machine.driver import (
    Accelerator,
    DeviceProcess,
    DriverError,
    DriverReading,
    restrict_visible,
    visibility_variable,
    visible_accelerators,
)
from validator.wording import plural

NO_DRIVER_TOOL = "nvidia-smi, npu-smi, rocm-smi and amd-smi are not installed"
# The share of a device's memory that is in use where nothing runs, at most: firmware takes 5 % of an Ascend 910B's.
_IDLE_MEMORY_SHARE = 0.08
_NAME_MACHINE_REMEDY = "name the machine, such as `--machine 8xa100-80g`"
_DRIVER_REMEDY = "mend the driver"


# In the order in which they are asked.
_READERS = {"nvidia": nvidia.read_accelerators, "ascend": ascend.read_accelerators, "amd": amd.read_accelerators}


class Note(NamedTuple):
    """A sentence on this machine for the user; `kind` tells what it is of: the machine itself, devices that the driver
    cannot reach, memory that other processes hold, or something else."""

    text: str
    kind: Literal["machine", "unreachable", "memory use", "other"] = "other"


@dataclass(frozen=True)
class ThisMachine:
    """This machine. `device` is an id of the catalogue, or the memory of a device that the catalogue lacks (`48g`);
    `accelerators` of this kind can be used by a run, `other_accelerators` are of other kinds. `unreachable`: the
    driver's lines on devices that it cannot reach."""

    vendor: str
    device: str
    accelerators: tuple[Accelerator, ...]
    other_accelerators: tuple[Accelerator, ...]
    host_ram_gib: float | None
    unreachable: tuple[str, ...]

    @property
    def variables(self) -> Sequence[str]:
        """The variables that hide devices from a run, in order of precedence."""
        return vendor_drivers()[self.vendor].variables

    @property
    def machine(self) -> str:
        """The machine as `--machine` takes it."""
        return f"{len(self.accelerators)}x{self.device}"

    @property
    def max_devices(self) -> int:
        """Number of devices that one run could use, of all kinds."""
        return 1 if self.accelerators[0].is_mig_slice else len(self.accelerators) + len(self.other_accelerators)

    def __str__(self) -> str:
        size = f", {self.host_ram_gib:.0f} GiB of RAM" if self.host_ram_gib else ""
        return f"{_count_products(self.accelerators)} ({self.device}){size}"

    def notes(self) -> Iterator[Note]:
        """Yield what a user should know of how this machine was read."""
        first = self.accelerators[0]
        if self.device not in devices.device_ids():
            size = f"taken as `{self.device}`, a device known by its memory"
            yield Note(f"{first.product} is not in the catalogue: {size}")
        if first.is_mig_slice:
            yield Note("a process can use one MIG slice")
        yield from (Note(line, "unreachable") for line in self.unreachable)
        if self.other_accelerators:
            others = _count_products(self.other_accelerators)
            yield Note(f"not counted: {others}; {self.variables[0]} chooses other devices")
        if used := self.memory_use_note():
            yield Note(used, "memory use")

    def memory_use_note(self) -> str | None:
        """Say how much of the devices' memory other processes hold; None if it is no more than an idle driver's."""
        busy = [one for one in self.accelerators if _used_gib(one) > _IDLE_MEMORY_SHARE * (one.memory_gib or 0.0)]
        if not busy:
            return None
        fullest = max(busy, key=_used_gib)
        whole = "" if fullest.memory_gib is None else f" of {fullest.memory_gib:.1f}"
        names = ", ".join(accelerator.visible_ids[0] for accelerator in busy)
        devices = f"{plural(len(busy), 'device')} {names}"
        return f"other processes hold memory of {devices}: up to {_used_gib(fullest):.1f}{whole} GiB"

    def select_devices(self, count: int) -> tuple[list[Accelerator], Mapping[str, str]]:
        """Return the `count` devices with the most free memory, and the variables that hide all others from a run. If
        the user has hidden devices already, the variable keeps the user's own notation."""
        freest = sorted(self.accelerators, key=_used_gib)[:count]
        taken = [accelerator for accelerator in self.accelerators if accelerator in freest]
        if len(taken) == len(self.accelerators) + len(self.other_accelerators):
            return taken, {}
        if hiding := visibility_variable(self.variables):
            return taken, {hiding: restrict_visible(hiding, taken)}
        # CUDA counts the fastest device first; nvidia-smi counts along the bus.
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.variables[0] == "CUDA_VISIBLE_DEVICES" else {}
        return taken, {**order, self.variables[0]: ",".join(accelerator.visible_ids[0] for accelerator in taken)}


def require_machine() -> ThisMachine:
    """Return this machine. Raises DriverError if it shows no device that a run could use."""
    here = detect_machine(_NAME_MACHINE_REMEDY)
    if here is None:
        raise DriverError(f"no accelerator is known here: {NO_DRIVER_TOOL}", _NAME_MACHINE_REMEDY)
    return here


def detect_machine(remedy: str = _DRIVER_REMEDY) -> ThisMachine | None:
    """Return this machine; None if no driver's tool is installed. Raises DriverError if one is installed and shows no
    device that a run could use; `remedy` is for a tool that fails."""
    faults = []
    for vendor, read in _READERS.items():
        try:
            reading = read()
        except DriverError as err:
            faults.append(err.finding)
            continue
        if reading is not None:
            return _from_reading(reading, vendor)
    if faults:
        raise DriverError(faults[0], remedy)
    return None


def read_processes() -> list[DeviceProcess]:
    """Return the processes that hold memory of devices, by the first driver that lists any."""
    return nvidia.read_processes() or ascend.read_processes() or amd.read_processes()


def _from_reading(reading: DriverReading, vendor: str) -> ThisMachine:
    variables = vendor_drivers()[vendor].variables
    left = visible_accelerators(reading.accelerators, variables)
    if not left:
        there = _count_products(reading.accelerators)
        raise DriverError(f"{visibility_variable(variables)} hides all devices of this machine, {there}; unset it")
    kinds: dict[str, list[Accelerator]] = {}
    for accelerator in left:
        kind = _catalogue_id(accelerator)
        if kind and not (kind in kinds and accelerator.is_mig_slice):  # a run can use one MIG slice
            kinds.setdefault(kind, []).append(accelerator)
    if not kinds:
        found = f"{left[0].product} is not in the catalogue, and its memory is not shown"
        raise DriverError(f"{found}; {_NAME_MACHINE_REMEDY}")
    # The kind with most memory: beside the devices that train there may be one for the screen.
    device, usable = max(kinds.items(), key=lambda kind: (len(kind[1]) * (kind[1][0].memory_gib or 0.0), len(kind[1])))
    others = tuple(accelerator for accelerator in left if _catalogue_id(accelerator) != device)
    return ThisMachine(vendor, device, tuple(usable), others, host.memory_gib(), reading.unreachable)


def _used_gib(accelerator: Accelerator) -> float:
    return accelerator.used_gib or 0.0


def _catalogue_id(accelerator: Accelerator) -> str | None:
    """Return the catalogue's id of the device, or else its memory in whole GiB as the catalogue takes it. None if the
    memory is not shown or below one GiB, as of a processor's own graphics."""
    size = int((accelerator.memory_gib or 0.0) + 0.05)
    return devices.device_id_of_product(accelerator.product, accelerator.memory_gib) or (f"{size}g" if size else None)


def _count_products(some: Sequence[Accelerator]) -> str:
    products = [accelerator.product for accelerator in some]
    return ", ".join(f"{products.count(name)} x {name}" for name in dict.fromkeys(products))
