"""Collective operations between devices: how long the bytes of one kind of them travel. Seconds."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from typing import NamedTuple

from validator.memory.workload import Sharding

from .device import Device
from .terms import Term

# Seconds to start a collective, and of each hop in its ring: small ones take 38 to 42 microseconds among 8 devices of a
# node and 38 to 40 among 16 of two (NVIDIA/nccl#1530, #949).
_START, _HOP = 25e-6, 2e-6
# Of a main memory's rate, what traffic between devices without an own link reaches, all devices together: 8 RTX 5090 at
# 28 GB/s each over 614 GB/s (NVIDIA/nccl#1639).
_THROUGH_MEMORY = 0.365


class Collective(NamedTuple):
    """`calls` collective operations that carry tensors of `size` bytes in all. Every byte goes round the ring `rounds`
    times: once in an all-gather or a reduce-scatter, twice in an all-reduce."""

    size: float
    rounds: int
    calls: float


def _link(device: Device, sharding: Sharding) -> float:
    """Bytes a second from one device to the next of its node."""
    if device.switched:
        return device.link
    return min(device.link, _THROUGH_MEMORY * device.host_bandwidth / sharding.devices_per_node)


def slowest(device: Device, sharding: Sharding) -> tuple[Term, float]:
    """What a ring through all devices waits for, and its bytes a second. Of each byte that is gathered all but the last
    hop's share passes each link, and each node's network, which its devices share."""
    link = _link(device, sharding)
    if sharding.nodes > 1 and 0 < device.network < link:
        return Term.NETWORK, device.network
    return Term.LINKS, link


def seconds(collective: Collective, device: Device, sharding: Sharding) -> float:
    """Time of ring collectives over all devices (Patarasu and Yuan, Bandwidth optimal all-reduce algorithms, 2009)."""
    world = sharding.world
    if world == 1:
        return 0.0
    travelled = collective.size * (world - 1) / world / slowest(device, sharding)[1]
    started = collective.calls * (_START + _HOP * (world - 1))
    return collective.rounds * travelled + started
