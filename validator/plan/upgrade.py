"""When nothing fits: the smallest changes of what was asked for, or of the machine, with which something does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from validator.job.job import GIB
from validator.plan.draft import Draft
from validator.plan.search import LENGTHS, METHODS, SPEEDS, members
from validator.tables import devices, guidance
from validator.tables.machines import Machine

# From the most frugal class on: what fits in none of these fits in none at all.
_SPEEDS = ("slowest", "medium", "fast")
_NODES = (2, 4, 8)


@dataclass(frozen=True)
class Upgrade:
    """A draft that fits its machine, and what had to change for it."""

    draft: Draft
    note: str


def nearest(start: Draft, methods: Sequence[str]) -> list[Upgrade]:
    """ZeRO for FSDP, another method, shorter samples, fewer of the devices; more host memory, more devices of the same
    kind, larger devices: of each the smallest step that suffices."""
    ways = (_unsharded(start, methods), _other_methods(start, methods), _shorter(start, methods),
            _fewer_devices(start, methods), _more_ram(start, methods), _more_devices(start, methods),
            _larger_devices(start, methods))  # fmt: skip
    return [upgrade for way in ways if (upgrade := next(way, None))]


def other_method(start: Draft, methods: Sequence[str], older: str) -> list[Upgrade]:
    """Another method that fits, with the newest transformers or else with an older one."""
    releases = (None, older)
    ways = (way for release in releases for way in _other_methods(replace(start, transformers=release), methods))
    return [*islice(ways, 1)]


def _fitting(start: Draft, machine: Machine, methods: Sequence[str]) -> Draft | None:
    drafts = (replace(start, machine=machine, method=method) for method in methods)
    return next((fitting for draft in drafts for speed in _SPEEDS for fitting in members(draft, speed)), None)


def _unsharded(start: Draft, methods: Sequence[str]) -> Iterator[Upgrade]:
    if start.engine == "fsdp" and (draft := _fitting(replace(start, engine=None), start.machine, methods)):
        yield Upgrade(draft, "without --fsdp")


def _other_methods(start: Draft, methods: Sequence[str]) -> Iterator[Upgrade]:
    others = [each for each in guidance.rated(METHODS, start.stage) if each not in methods]
    if draft := _fitting(start, start.machine, others):
        yield Upgrade(draft, f"with --method {draft.method}")


def _shorter(start: Draft, methods: Sequence[str]) -> Iterator[Upgrade]:
    """Half the length, and again, down to the shortest usual one."""
    length = start.length // 2
    while length >= max(LENGTHS[-1], start.pictures):
        if draft := _fitting(replace(start, length=length), start.machine, methods):
            yield Upgrade(draft, f"with --cutoff-len {length}")
        length //= 2


def _fewer_devices(start: Draft, methods: Sequence[str]) -> Iterator[Upgrade]:
    """Each device's process takes host memory of its own."""
    here = start.machine
    for count in (8, 4, 2, 1):
        if count < here.devices and (draft := _fitting(start, here._replace(devices=count), methods)):
            yield Upgrade(draft, "fewer of the devices")


def _more_ram(start: Draft, methods: Sequence[str]) -> Iterator[Upgrade]:
    """The least host memory with which it fits, in steps of 16 GiB."""
    plenty = replace(start, machine=start.machine._replace(host_ram_gib=1e6), workers=1)
    fitting = [draft for method in methods for speed in SPEEDS[1:]
               for draft in members(replace(plenty, method=method), speed)]  # fmt: skip
    if fitting:
        least = min(fitting, key=_host)
        machine = start.machine._replace(host_ram_gib=float(-(-_host(least) // (16 * GIB)) * 16))
        yield Upgrade(replace(least, machine=machine), "more host memory per node")


def _host(draft: Draft) -> float:
    return draft.job.host_memory.high if draft.job.host_memory else 0.0


def _more_devices(start: Draft, methods: Sequence[str]) -> Iterator[Upgrade]:
    here, most = start.machine, start.machine.device.server_devices
    counts = [(here.nodes, n) for n in (2, 4, 8, 16) if here.devices < n <= most]
    counts += [(n, max(here.devices, most)) for n in _NODES if n > here.nodes]
    for nodes, count in counts:
        machine = here._replace(nodes=nodes, devices=count)
        machine = machine._replace(host_ram_gib=_ram(machine, here))
        if draft := _fitting(start, machine, methods):
            yield Upgrade(draft, "more devices of the same kind")


def _larger_devices(start: Draft, methods: Sequence[str]) -> Iterator[Upgrade]:
    here = start.machine
    kinds = (devices.device(key)[0] for key in devices.device_ids())
    larger = [kind for kind in kinds if kind.vendor == here.device.vendor and kind.common
              and (kind.usable_gib or 0) > (here.device.usable_gib or 0)]  # fmt: skip
    for kind in sorted(larger, key=lambda kind: kind.usable_gib or 0):
        machine = here._replace(device=kind)
        machine = machine._replace(host_ram_gib=_ram(machine, here))
        if draft := _fitting(start, machine, methods):
            yield Upgrade(draft, "larger devices")


def _ram(machine: Machine, here: Machine) -> float | None:
    return max(usual_ram(machine) or 0.0, here.host_ram_gib or 0.0) or None


def usual_ram(machine: Machine) -> float | None:
    """Main memory of the usual server with this device, GiB, in proportion to the devices used; None: not known."""
    device = machine.device
    if device.shared_memory:
        return device.usable_gib
    if device.server_ram_gib is None:
        return None
    return float(int(device.server_ram_gib * min(1.0, machine.devices / device.server_devices)))
