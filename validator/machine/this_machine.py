"""This machine in the terms of the catalogue: which device it has, how many, how much main memory, and the variables
that restrict a run to some of the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge import devices
from validator.machine import amd, ascend, host, nvidia
from validator.machine.accelerator import (
    Accelerator,
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
DRIVER_REMEDY = "mend the driver"


class _Driver(NamedTuple):
    """How a vendor's accelerators are read, and the variables that hide some from a run, the one that counts first."""

    read: Callable[[], DriverReading | None]
    variables: tuple[str, ...]


_DRIVERS = (
    _Driver(nvidia.read_accelerators, ("CUDA_VISIBLE_DEVICES",)),
    _Driver(ascend.read_accelerators, ("ASCEND_RT_VISIBLE_DEVICES",)),
    _Driver(amd.read_accelerators, ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
)


@dataclass(frozen=True)
class ThisMachine:
    """What this machine is. `device` is an id of the catalogue, or the size of a device that it lacks (`48g`);
    `accelerators` are those of it that a run can use, `others` those of other kinds. `variables` hide devices from a
    run, the one that counts first; `lost` are the program's words on devices that it cannot reach."""

    device: str
    accelerators: tuple[Accelerator, ...]
    others: tuple[Accelerator, ...]
    host_ram_gib: float | None
    variables: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def machine(self) -> str:
        """As `--machine` takes it."""
        return f"{len(self.accelerators)}x{self.device}"

    @property
    def most(self) -> int:
        """Devices that one run could use, of whatever kind."""
        return 1 if self.accelerators[0].part else len(self.accelerators) + len(self.others)

    def __str__(self) -> str:
        size = f", {self.host_ram_gib:.0f} GiB of RAM" if self.host_ram_gib else ""
        return f"{_count_products(self.accelerators)} ({self.device}){size}"

    def notes(self) -> Iterator[str]:
        """What to know of how this machine was read."""
        first = self.accelerators[0]
        if self.device not in devices.device_ids():
            yield f"{first.product} is not in the catalogue: taken as `{self.device}`, a device known by its memory"
        if first.part:
            yield "a process can use one MIG slice"
        yield from self.lost
        if self.others:
            yield f"not counted: {_count_products(self.others)}; {self.variables[0]} chooses other devices"
        if taken := self.taken():
            yield taken

    def taken(self) -> str | None:
        """What other processes hold of the devices' memory, in words; None where that is nothing to speak of."""
        busy = [accelerator for accelerator in self.accelerators if _is_busy(accelerator)]
        if not busy:
            return None
        fullest = max(busy, key=_used_gib)
        whole = "" if fullest.memory_gib is None else f" of {fullest.memory_gib:.1f}"
        return f"other processes hold memory of {_name_devices(busy)}: up to {_used_gib(fullest):.1f}{whole} GiB"

    def only(self, count: int) -> tuple[list[Accelerator], Mapping[str, str]]:
        """So many of the accelerators, those with the most free memory, and the environment that leaves a run no other.
        Where the user has hidden devices already, fewer of the user's own words are left."""
        freest = sorted(self.accelerators, key=_used_gib)[:count]
        taken = [accelerator for accelerator in self.accelerators if accelerator in freest]
        if len(taken) == len(self.accelerators) + len(self.others):
            return taken, {}
        if hiding := visibility_variable(self.variables):
            return taken, {hiding: restrict_visible(hiding, taken)}
        # CUDA counts the fastest device first; nvidia-smi counts along the bus.
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.variables[0] == "CUDA_VISIBLE_DEVICES" else {}
        return taken, {**order, self.variables[0]: ",".join(accelerator.names[0] for accelerator in taken)}


def require_machine() -> ThisMachine:
    """This machine. Raises RecipeError where it shows no device that a run could use."""
    here = detect_machine(_NAME_MACHINE_REMEDY)
    if here is None:
        raise RecipeError(f"no accelerator is known here: {NO_DRIVER_TOOL}; {_NAME_MACHINE_REMEDY}")
    return here


def detect_machine(remedy: str = DRIVER_REMEDY) -> ThisMachine | None:
    """This machine; None where no driver's program is installed. Raises RecipeError where one is and shows no device
    that a run could use; `remedy` is for one that fails."""
    faults = []
    for driver in _DRIVERS:
        try:
            shown = driver.read()
        except RecipeError as err:
            faults.append(err)
            continue
        if shown is not None:
            return _from_reading(shown, driver.variables)
    if faults:
        raise RecipeError(f"{faults[0]}; {remedy}")
    return None


def _from_reading(shown: DriverReading, variables: tuple[str, ...]) -> ThisMachine:
    left = visible_accelerators(shown.accelerators, variables)
    if not left:
        there = _count_products(shown.accelerators)
        raise RecipeError(f"{visibility_variable(variables)} hides all devices of this machine, {there}; unset it")
    kinds: dict[str, list[Accelerator]] = {}
    for accelerator in left:
        if kind := _catalogue_id(accelerator):
            kinds.setdefault(kind, []).append(accelerator)
    if not kinds:
        raise RecipeError(
            f"{left[0].product} is not in the catalogue, and its memory is not shown; {_NAME_MACHINE_REMEDY}"
        )
    # The kind with most memory: beside the devices that train there may be one for the screen.
    device, usable = max(kinds.items(), key=lambda kind: _usable_gib_and_count(kind[1]))
    taken = usable[:1] if usable[0].part else usable
    others = tuple(accelerator for accelerator in left if accelerator not in usable)
    return ThisMachine(device, tuple(taken), others, host.memory_gib(), variables, shown.lost)


def _usable_gib_and_count(alike: Sequence[Accelerator]) -> tuple[float, int]:
    """GiB that a run could use of these, and their number."""
    number = 1 if alike[0].part else len(alike)
    return number * (alike[0].memory_gib or 0.0), number


def _used_gib(accelerator: Accelerator) -> float:
    return accelerator.taken_gib or 0.0


def _is_busy(accelerator: Accelerator) -> bool:
    """Whether more is in use than where nothing runs."""
    return _used_gib(accelerator) > _IDLE_MEMORY_SHARE * (accelerator.memory_gib or 0.0)


def _catalogue_id(accelerator: Accelerator) -> str | None:
    """The catalogue's id of the device, else its size as the catalogue takes one: whole GiB. None where that is not
    shown, or less than one, as of a processor's own graphics."""
    size = int((accelerator.memory_gib or 0.0) + 0.05)
    return devices.device_id_of_product(accelerator.product, accelerator.memory_gib) or (f"{size}g" if size else None)


def _name_devices(some: Sequence[Accelerator]) -> str:
    names = ", ".join(accelerator.names[0] for accelerator in some)
    return f"{plural(len(some), 'device')} {names}"


def _count_products(some: Sequence[Accelerator]) -> str:
    products = [accelerator.product for accelerator in some]
    return ", ".join(f"{products.count(name)} x {name}" for name in dict.fromkeys(products))
