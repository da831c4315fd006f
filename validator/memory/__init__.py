"""Physics: an architecture and a workload in, bytes by term out. Knows no YAML key and no product."""

from .allocator import Runtime
from .device import device_memory
from .disk import disk
from .estimate import Estimate
from .host import host_memory
from .parameters import linear_roles, parameters, trainable_parameters
from .workload import Adapter, Architecture, Attn, Ffn, Sharding, Workload

__all__ = [
    "Adapter",
    "Architecture",
    "Attn",
    "Estimate",
    "Ffn",
    "Runtime",
    "Sharding",
    "Workload",
    "device_memory",
    "disk",
    "host_memory",
    "linear_roles",
    "parameters",
    "trainable_parameters",
]
