"""The same training on one, two, four, eight devices and more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from validator.plan.draft import Draft
from validator.plan.search import Plan, search
from validator.plan.upgrade import usual_ram
from validator.tables.machines import Machine

# Nodes after the first, where one is full.
_NODES = (2, 4)


def scale(best: Draft, own_ram: bool) -> Sequence[tuple[Machine, Plan | None]]:
    """The soonest plan of a draft's method and length on each machine of its kind, None where nothing fits. `own_ram`:
    a node has the main memory that the draft's machine names, not that of the usual server."""
    start = Draft(best.model, best.machine, best.method, "fsdp" if best.engine == "fsdp" else None, length=best.length,
                  samples=best.samples, stage=best.stage, own=best.own, planned=best.planned)  # fmt: skip
    machines = (_equipped(machine, start.machine, own_ram) for machine in _machines(start.machine))
    return [(machine, _soonest(replace(start, machine=machine))) for machine in machines]


def _machines(here: Machine) -> Iterator[Machine]:
    """Of one node up to what its usual server holds, then full ones."""
    full = max(here.devices, here.device.server_devices)
    counts = [count for count in (1, 2, 4, 8, 16) if count < full] + [full]
    yield from (here._replace(nodes=1, devices=count) for count in counts)
    nodes = sorted({*_NODES, here.nodes} - {1})
    yield from (here._replace(nodes=count, devices=full) for count in nodes if count <= max(_NODES[0], here.nodes))


def _equipped(machine: Machine, here: Machine, own_ram: bool) -> Machine:
    return machine if own_ram else machine._replace(host_ram_gib=usual_ram(machine) or here.host_ram_gib)


def _soonest(start: Draft) -> Plan | None:
    plans = search(start, [start.method], [start.length])
    return min(plans, key=lambda plan: plan.duration, default=None)
