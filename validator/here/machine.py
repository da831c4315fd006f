"""This machine in the terms of the catalogue: which device, how many, how much main memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from validator.diagnostic import RecipeError, plural
from validator.here import amd, ascend, host, nvidia
from validator.here.accelerator import Accelerator, Shown
from validator.here.visible import narrowed, variable, visible
from validator.tables import devices

NONE = "nvidia-smi, npu-smi, rocm-smi and amd-smi are not installed"
# The share of a device's memory that is in use where nothing runs, at most: firmware takes 5 % of an Ascend 910B's.
_IDLE = 0.08
_REMEDY = "name the machine, such as `--machine 8xa100-80g`"
MEND = "mend the driver"


class _Driver(NamedTuple):
    """How a vendor's accelerators are read, and the variables that hide some from a run, the one that counts first."""

    read: Callable[[], Shown | None]
    variables: tuple[str, ...]


_DRIVERS = (
    _Driver(nvidia.accelerators, ("CUDA_VISIBLE_DEVICES",)),
    _Driver(ascend.accelerators, ("ASCEND_RT_VISIBLE_DEVICES",)),
    _Driver(amd.accelerators, ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
)


@dataclass(frozen=True)
class Here:
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
        return f"{_counted(self.accelerators)} ({self.device}){size}"

    def notes(self) -> Iterator[str]:
        """What to know of how this machine was read."""
        first = self.accelerators[0]
        if self.device not in devices.device_ids():
            yield f"{first.product} is not in the catalogue: taken as `{self.device}`, a device known by its memory"
        if first.part:
            yield "a process can use one MIG slice"
        yield from self.lost
        if self.others:
            yield f"not counted: {_counted(self.others)}; {self.variables[0]} chooses other devices"
        if taken := self.taken():
            yield taken

    def taken(self) -> str | None:
        """What other processes hold of the devices' memory, in words; None where that is nothing to speak of."""
        busy = [accelerator for accelerator in self.accelerators if _busy(accelerator)]
        if not busy:
            return None
        fullest = max(busy, key=_taken)
        whole = "" if fullest.memory_gib is None else f" of {fullest.memory_gib:.1f}"
        return f"other processes hold memory of {_named(busy)}: up to {_taken(fullest):.1f}{whole} GiB"

    def only(self, count: int) -> tuple[list[Accelerator], Mapping[str, str]]:
        """So many of the accelerators, those with the most free memory, and the environment that leaves a run no other.
        Where the user has hidden devices already, fewer of the user's own words are left."""
        freest = sorted(self.accelerators, key=_taken)[:count]
        taken = [accelerator for accelerator in self.accelerators if accelerator in freest]
        if len(taken) == len(self.accelerators) + len(self.others):
            return taken, {}
        if hiding := variable(self.variables):
            return taken, {hiding: narrowed(hiding, taken)}
        # CUDA counts the fastest device first; nvidia-smi counts along the bus.
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.variables[0] == "CUDA_VISIBLE_DEVICES" else {}
        return taken, {**order, self.variables[0]: ",".join(accelerator.names[0] for accelerator in taken)}


def require() -> Here:
    """This machine. Raises RecipeError where it shows no device that a run could use."""
    here = look(_REMEDY)
    if here is None:
        raise RecipeError(f"no accelerator is known here: {NONE}; {_REMEDY}")
    return here


def look(remedy: str = MEND) -> Here | None:
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
            return _here(shown, driver.variables)
    if faults:
        raise RecipeError(f"{faults[0]}; {remedy}")
    return None


def _here(shown: Shown, variables: tuple[str, ...]) -> Here:
    left = visible(shown.accelerators, variables)
    if not left:
        there = _counted(shown.accelerators)
        raise RecipeError(f"{variable(variables)} hides all devices of this machine, {there}; unset it")
    kinds: dict[str, list[Accelerator]] = {}
    for accelerator in left:
        if kind := _kind(accelerator):
            kinds.setdefault(kind, []).append(accelerator)
    if not kinds:
        raise RecipeError(f"{left[0].product} is not in the catalogue, and its memory is not shown; {_REMEDY}")
    # The kind with most memory: beside the devices that train there may be one for the screen.
    device, usable = max(kinds.items(), key=lambda kind: _usable(kind[1]))
    taken = usable[:1] if usable[0].part else usable
    others = tuple(accelerator for accelerator in left if accelerator not in usable)
    return Here(device, tuple(taken), others, host.memory_gib(), variables, shown.lost)


def _usable(alike: Sequence[Accelerator]) -> tuple[float, int]:
    """GiB that a run could use of these, and their number."""
    number = 1 if alike[0].part else len(alike)
    return number * (alike[0].memory_gib or 0.0), number


def _taken(accelerator: Accelerator) -> float:
    return accelerator.taken_gib or 0.0


def _busy(accelerator: Accelerator) -> bool:
    """Whether more is in use than where nothing runs."""
    return _taken(accelerator) > _IDLE * (accelerator.memory_gib or 0.0)


def _kind(accelerator: Accelerator) -> str | None:
    """The catalogue's id of the device, else its size as the catalogue takes one: whole GiB. None where that is not
    shown, or less than one, as of a processor's own graphics."""
    size = int((accelerator.memory_gib or 0.0) + 0.05)
    return devices.recognised(accelerator.product, accelerator.memory_gib) or (f"{size}g" if size else None)


def _named(some: Sequence[Accelerator]) -> str:
    names = ", ".join(accelerator.names[0] for accelerator in some)
    return f"{plural(len(some), 'device')} {names}"


def _counted(some: Sequence[Accelerator]) -> str:
    products = [accelerator.product for accelerator in some]
    return ", ".join(f"{products.count(name)} x {name}" for name in dict.fromkeys(products))
