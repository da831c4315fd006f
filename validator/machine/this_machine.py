"""Describes this machine with the device names of the catalogue (data/devices.yaml): kind and number of its devices,
main memory, and the environment variables that restrict a run to some of the devices."""

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
    """A sentence about this machine for the user. `kind` is the subject: the machine itself, devices that the driver
    cannot reach, memory that other processes hold, or something else."""

    text: str
    kind: Literal["machine", "unreachable", "memory use", "other"] = "other"


@dataclass(frozen=True)
class ThisMachine:
    """This machine. `device` is the id of its device in the catalogue (data/devices.yaml), or the memory size (`48g`)
    if the catalogue lacks the device. A run can use `accelerators`, which are of this kind; `other_accelerators` are of
    other kinds. `unreachable` holds the driver's error lines about devices that the driver cannot reach."""

    vendor: str
    device: str
    accelerators: tuple[Accelerator, ...]
    other_accelerators: tuple[Accelerator, ...]
    host_ram_gib: float | None
    unreachable: tuple[str, ...]

    @property
    def variables(self) -> Sequence[str]:
        """Environment variables that can hide devices from a run, such as CUDA_VISIBLE_DEVICES. If several are set, the
        first counts."""
        return vendor_drivers()[self.vendor].variables

    @property
    def machine(self) -> str:
        """Name of this machine in the form that `--machine` accepts, such as `8xa100-80g`."""
        return f"{len(self.accelerators)}x{self.device}"

    @property
    def max_devices(self) -> int:
        """Number of devices, of all kinds, that one run could use. With MIG slices the number is 1."""
        return 1 if self.accelerators[0].is_mig_slice else len(self.accelerators) + len(self.other_accelerators)

    def __str__(self) -> str:
        size = f", {self.host_ram_gib:.0f} GiB of RAM" if self.host_ram_gib else ""
        return f"{_count_products(self.accelerators)} ({self.device}){size}"

    def notes(self) -> Iterator[Note]:
        """Yield notes about this machine for the user: a device that the catalogue lacks, the limit to one MIG slice,
        devices that cannot be reached or are not counted, and memory that other processes hold."""
        first = self.accelerators[0]
        if self.device not in devices.device_ids():
            size = f"taken as `{self.device}`, a device known by its memory"
            yield Note(f"{first.product} is not in the catalogue: {size}")
        if first.is_mig_slice:
            yield Note("a process can use one MIG slice")
        yield from (Note(line, "unreachable") for line in self.unreachable)
        if self.other_accelerators:
            chosen, others = _count_products(self.accelerators), _count_products(self.other_accelerators)
            words = " ".join(f"{name}={value}" for name, value in self._variables_for(self.other_accelerators).items())
            found = f"{chosen} and {others} are here, and a run takes one kind: {chosen}, with most memory in all"
            yield Note(f"{found}; `{words}` takes {others} instead")
        if used := self.memory_use_note():
            yield Note(used, "memory use")

    def memory_use_note(self) -> str | None:
        """Return a message that says how much device memory other processes hold. Return None if every device has no
        more memory in use than an idle device (8 %)."""
        busy = [one for one in self.accelerators if _used_gib(one) > _IDLE_MEMORY_SHARE * (one.memory_gib or 0.0)]
        if not busy:
            return None
        fullest = max(busy, key=_used_gib)
        total = "" if fullest.memory_gib is None else f" of {fullest.memory_gib:.1f}"
        names = ", ".join(accelerator.visible_ids[0] for accelerator in busy)
        devices = f"{plural(len(busy), 'device')} {names}"
        return f"other processes hold memory of {devices}: up to {_used_gib(fullest):.1f}{total} GiB"

    def select_devices(self, count: int) -> tuple[list[Accelerator], Mapping[str, str]]:
        """Return the `count` devices with the least memory in use, and the environment variables that hide all other
        devices from a run. If the user has set a variable such as CUDA_VISIBLE_DEVICES, its new value keeps the user's
        notation. No variable is needed if all devices are selected."""
        freest = sorted(self.accelerators, key=_used_gib)[:count]
        selected = [accelerator for accelerator in self.accelerators if accelerator in freest]
        if len(selected) == len(self.accelerators) + len(self.other_accelerators):
            return selected, {}
        return selected, self._variables_for(selected)

    def _variables_for(self, selected: Sequence[Accelerator]) -> Mapping[str, str]:
        """Return the environment variables that hide all devices but the selected ones."""
        if hiding := visibility_variable(self.variables):
            return {hiding: restrict_visible(hiding, selected)}
        # CUDA counts the fastest device first; nvidia-smi counts along the bus.
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.variables[0] == "CUDA_VISIBLE_DEVICES" else {}
        return {**order, self.variables[0]: ",".join(accelerator.visible_ids[0] for accelerator in selected)}


def require_machine() -> ThisMachine:
    """Return this machine. Raises DriverError if no driver's tool is installed, or if the tool shows no device that a
    run could use."""
    machine = detect_machine(_NAME_MACHINE_REMEDY)
    if machine is None:
        raise DriverError(f"no accelerator is known here: {NO_DRIVER_TOOL}", _NAME_MACHINE_REMEDY)
    return machine


def detect_machine(remedy: str = _DRIVER_REMEDY) -> ThisMachine | None:
    """Return this machine, or None if no driver's tool is installed. Raises DriverError if every installed tool fails
    or shows no device, or if a run could use none of the devices. `remedy` is the advice in the message about a tool
    that fails."""
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
    """Return the processes that hold device memory. The drivers of NVIDIA, Ascend and AMD are asked in this order, and
    the first that lists a process counts."""
    return nvidia.read_processes() or ascend.read_processes() or amd.read_processes()


def _from_reading(reading: DriverReading, vendor: str) -> ThisMachine:
    variables = vendor_drivers()[vendor].variables
    visible = visible_accelerators(reading.accelerators, variables)
    if not visible:
        products = _count_products(reading.accelerators)
        raise DriverError(f"{visibility_variable(variables)} hides all devices of this machine, {products}; unset it")
    kinds: dict[str, list[Accelerator]] = {}
    for accelerator in visible:
        kind = _catalogue_id(accelerator)
        if kind and not (kind in kinds and accelerator.is_mig_slice):  # a run can use one MIG slice
            kinds.setdefault(kind, []).append(accelerator)
    if not kinds:
        found = f"{visible[0].product} is not in the catalogue, and its memory is not shown"
        raise DriverError(f"{found}; {_NAME_MACHINE_REMEDY}")
    # The kind with most memory: beside the devices that train there may be one for the screen.
    device, usable = max(kinds.items(), key=lambda kind: (len(kind[1]) * (kind[1][0].memory_gib or 0.0), len(kind[1])))
    other_accelerators = tuple(accelerator for accelerator in visible if _catalogue_id(accelerator) != device)
    return ThisMachine(vendor, device, tuple(usable), other_accelerators, host.memory_gib(), reading.unreachable)


def _used_gib(accelerator: Accelerator) -> float:
    return accelerator.used_gib or 0.0


def _catalogue_id(accelerator: Accelerator) -> str | None:
    """Return the id of the device in the catalogue. If the catalogue lacks the device, return its memory in whole GiB,
    such as `48g`. Return None if the memory is unknown or below 1 GiB, as for graphics built into a CPU."""
    size = int((accelerator.memory_gib or 0.0) + 0.05)
    return devices.device_id_of_product(accelerator.product, accelerator.memory_gib) or (f"{size}g" if size else None)


def _count_products(accelerators: Sequence[Accelerator]) -> str:
    products = [accelerator.product for accelerator in accelerators]
    return ", ".join(f"{products.count(name)} x {name}" for name in dict.fromkeys(products))
