"""What a device and the links that join it to others can do in a second."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from typing import Literal, NamedTuple


class Device(NamedTuple):
    """One accelerator and what joins it to others. All rates are a second's, links in one direction."""

    half: float  # FLOP of dense products in the half precision that runs train in, as the vendor publishes them
    single: float  # FLOP of products of fp32 numbers, as PyTorch makes them by default: no TF32
    bandwidth: float  # bytes of the device's own memory
    link: float  # bytes between devices of one node, of one device
    network: float  # bytes between nodes, of one node, whose devices share it; 0: there is one node
    host_link: float  # bytes between a device and main memory
    host_bandwidth: float  # bytes of a node's main memory
    cores: int  # of a node
    disk: float  # bytes of one node
    switched: bool = True  # each pair of devices has the whole link (NVLink switch); else a root or ring is shared
    evidence: Literal["good", "few", "none"] = "good"  # published runs of this device that efficiencies rest on
    attained: float = 1.0  # of the published rate, what large products reach, relative to the reference kind
    attention: float = 1.0  # of what products attain, what attention kernels reach, relative to the reference kind
    cuda: bool = True  # kernels are those that bitsandbytes was written for, not ports of them
    correction: float = 1.0  # measured seconds of a step over predicted, on the user's own machine
