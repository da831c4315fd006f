"""Physics: an architecture and a workload in, bytes by term out. Knows no YAML key and no product."""

from .allocator import Runtime
from .device import device_memory
from .disk import disk
from .estimate import Estimate
from .host import host_memory
from .parameters import linear_roles, parameters, trainable_parameters
from .tower import Tower
from .workload import Adapter, Architecture, Attn, Counted, Encoding, Ffn, LayerKind, Sharding, Workload

__all__ = [
    "Adapter",
    "Architecture",
    "Attn",
    "Counted",
    "Encoding",
    "Estimate",
    "Ffn",
    "LayerKind",
    "Runtime",
    "Sharding",
    "Tower",
    "Workload",
    "device_memory",
    "disk",
    "host_memory",
    "linear_roles",
    "parameters",
    "trainable_parameters",
]
