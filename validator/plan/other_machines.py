"""The same run on other machines: the smallest change of machine or request that makes it fit, and the same training on
one, two, four, eight and more devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from validator.knowledge import devices, guidance
from validator.knowledge.devices import Machine
from validator.physics.estimate import GIB
from validator.plan.new_recipe import NewRecipe
from validator.plan.search import (
    PLANNED_METHODS,
    SPEED_CLASSES,
    USUAL_LENGTHS,
    Plan,
    find_plans,
    first_plan,
    fitting_runs,
)
from validator.run.prediction import predict

_MORE_NODES = (2, 4, 8)


@dataclass(frozen=True)
class Upgrade:
    """A recipe with a changed machine or a changed request, which fits. `note` says what was changed."""

    draft: NewRecipe
    note: str


def nearest_upgrades(start: NewRecipe, methods: Sequence[str]) -> list[Upgrade]:
    """Return the smallest sufficient change of each kind: ZeRO in place of FSDP, another method, shorter samples, fewer
    devices of the same machine, more host memory, more devices of the same kind, larger devices. Kinds of change that
    do not suffice are left out."""
    ways = (
        _without_fsdp(start, methods),
        _with_other_method(start, methods),
        _with_shorter_samples(start, methods),
        _with_fewer_devices(start, methods),
        _with_more_host_memory(start, methods),
        _with_more_devices(start, methods),
        _with_larger_devices(start, methods),
    )
    return [upgrade for way in ways if (upgrade := next(way, None))]


def other_fitting_way(start: NewRecipe, methods: Sequence[str], older: str) -> list[Upgrade]:
    """Return a list with one recipe: that of the first other fine-tuning method that fits with the newest transformers,
    or else with the transformers release `older`, or else on larger devices that have bf16 if the machine's have not.
    The list is empty if none fits."""
    releases = (None, older)
    ways = (way for release in releases for way in _with_other_method(replace(start, transformers=release), methods))
    other_devices = iter(()) if start.machine.device.bf16 else _with_larger_devices(start, methods)
    return [*islice(chain(ways, other_devices), 1)]


def _first_fitting_run(start: NewRecipe, machine: Machine, methods: Sequence[str]) -> NewRecipe | None:
    plan = first_plan(replace(start, machine=machine), methods)
    return plan.draft if plan else None


def _without_fsdp(start: NewRecipe, methods: Sequence[str]) -> Iterator[Upgrade]:
    if start.sharding == "fsdp" and (
        draft := _first_fitting_run(replace(start, sharding=None), start.machine, methods)
    ):
        yield Upgrade(draft, "without --fsdp")


def _with_other_method(start: NewRecipe, methods: Sequence[str]) -> Iterator[Upgrade]:
    other_methods = [each for each in guidance.methods_with_rates(PLANNED_METHODS, start.stage) if each not in methods]
    if draft := _first_fitting_run(start, start.machine, other_methods):
        yield Upgrade(draft, f"with --method {draft.method}")


def _with_shorter_samples(start: NewRecipe, methods: Sequence[str]) -> Iterator[Upgrade]:
    """Yield the run with half of the sample length, with a quarter and so on, down to the shortest usual length.
    Lengths with which the run does not fit are left out."""
    length = start.length // 2
    while length >= max(USUAL_LENGTHS[-1], start.image_tokens):
        if draft := _first_fitting_run(replace(start, length=length), start.machine, methods):
            yield Upgrade(draft, f"with --cutoff-len {length}")
        length //= 2


def _with_fewer_devices(start: NewRecipe, methods: Sequence[str]) -> Iterator[Upgrade]:
    """Yield the run on 8, 4, 2 and 1 devices of the machine, as far as these are fewer than now and the run fits. Each
    device's process takes host memory of its own, so that fewer devices need less of it."""
    current = start.machine
    for count in (8, 4, 2, 1):
        if count < current.devices and (draft := _first_fitting_run(start, current._replace(devices=count), methods)):
            yield Upgrade(draft, "fewer of the devices")


def _with_more_host_memory(start: NewRecipe, methods: Sequence[str]) -> Iterator[Upgrade]:
    """Yield the run on a machine with just enough host memory, rounded up to a multiple of 16 GiB. Yield nothing if the
    run would not fit with any amount of host memory."""
    plenty = replace(start, machine=start.machine._replace(host_ram_gib=1e6), workers=1)
    fitting = [draft for method in methods for speed in SPEED_CLASSES[1:]
               for draft in fitting_runs(replace(plenty, method=method), speed)]  # fmt: skip
    if fitting:
        smallest_draft = min(fitting, key=_host_memory_bytes)
        machine = start.machine._replace(host_ram_gib=float(-(-_host_memory_bytes(smallest_draft) // (16 * GIB)) * 16))
        yield Upgrade(replace(smallest_draft, machine=machine), "more host memory per node")


def _host_memory_bytes(draft: NewRecipe) -> float:
    memory = predict(draft.run).host_memory
    return memory.high if memory else 0.0


def _with_more_devices(start: NewRecipe, methods: Sequence[str]) -> Iterator[Upgrade]:
    current, max_devices = start.machine, start.machine.device.server_devices
    counts = [(current.nodes, n) for n in (2, 4, 8, 16) if current.devices < n <= max_devices]
    counts += [(n, max(current.devices, max_devices)) for n in _MORE_NODES if n > current.nodes]
    for nodes, count in counts:
        machine = current._replace(nodes=nodes, devices=count)
        machine = machine._replace(host_ram_gib=_larger_host_ram(machine, current))
        if draft := _first_fitting_run(start, machine, methods):
            yield Upgrade(draft, "more devices of the same kind")


def _with_larger_devices(start: NewRecipe, methods: Sequence[str]) -> Iterator[Upgrade]:
    current = start.machine
    kinds = (devices.find_device(key)[0] for key in devices.device_ids())
    larger = [kind for kind in kinds if kind.vendor == current.device.vendor and kind.common
              and (kind.usable_gib or 0) > (current.device.usable_gib or 0)]  # fmt: skip
    for kind in sorted(larger, key=lambda kind: kind.usable_gib or 0):
        machine = current._replace(device=kind)
        machine = machine._replace(host_ram_gib=_larger_host_ram(machine, current))
        if draft := _first_fitting_run(start, machine, methods):
            yield Upgrade(
                draft, "larger devices" if current.device.bf16 or not kind.bf16 else "larger devices, with bf16"
            )


def _larger_host_ram(machine: Machine, current: Machine) -> float | None:
    return max(usual_host_ram(machine) or 0.0, current.host_ram_gib or 0.0) or None


def usual_host_ram(machine: Machine) -> float | None:
    """Return the host memory, in GiB, that belongs to the machine's devices in a usual server: in proportion to the
    server's devices that are used. None if not known."""
    device = machine.device
    if device.shared_memory:
        return device.usable_gib
    if device.server_ram_gib is None:
        return None
    return float(int(device.server_ram_gib * min(1.0, machine.devices / device.server_devices)))


# Nodes after the first, where one is full.
_NODES_COMPARED = (2, 4)


def has_too_many_devices(machine: Machine, best: NewRecipe) -> bool:
    """True if more devices than those of `best`, as the machine has them, would harm the model."""
    return machine.world > max(best.most_devices, best.machine.world)


def plans_by_device_count(best: NewRecipe, asked: Machine, own_ram: bool) -> Sequence[tuple[Machine, Plan | None]]:
    """Return pairs of a machine and the fastest plan on it, for each number of devices of the same kind, up to those of
    the machine `asked` for. The plan has the method and sample length of `best`, and is None if nothing fits the
    machine, or if it has too many devices. If `own_ram` is true, each node has the host memory of `best`'s machine;
    otherwise that of a usual server."""
    start = NewRecipe(
        best.model,
        best.machine,
        best.method,
        "fsdp" if best.sharding == "fsdp" else None,
        length=best.length,
        samples=best.samples,
        stage=best.stage,
        own_datasets=best.own_datasets,
        planned=best.planned,
    )
    compared: list[tuple[Machine, Plan | None]] = []
    for machine in _machines_of_kind(asked, best.machine.nodes):
        if not own_ram:
            machine = machine._replace(host_ram_gib=usual_host_ram(machine) or start.machine.host_ram_gib)
        if has_too_many_devices(machine, best):
            compared.append((machine, None))
            continue
        plans = find_plans(replace(start, machine=machine), [start.method], [start.length])
        compared.append((machine, min(plans, key=lambda plan: plan.expected_time, default=None)))
    return compared


def _machines_of_kind(current: Machine, planned_nodes: int) -> Iterator[Machine]:
    """Yield machines with the same devices: one node with 1, 2, 4 … devices up to a full server, then several full
    servers, among them as many as the plan takes (`planned_nodes`)."""
    full = max(current.devices, current.device.server_devices)
    counts = [count for count in (1, 2, 4, 8, 16) if count < full] + [full]
    yield from (current._replace(nodes=1, devices=count) for count in counts)
    nodes = sorted({*_NODES_COMPARED, planned_nodes, current.nodes} - {1})
    yield from (
        current._replace(nodes=count, devices=full)
        for count in nodes
        if count <= max(_NODES_COMPARED[0], current.nodes)
    )
