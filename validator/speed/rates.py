"""What a device attains of its published rates, and the law by which products and memory-bound work take time.

These constants are all that was fitted; each says to what. The reference kind of device is the A100; other kinds
differ by their `attained` alone."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from functools import lru_cache
from typing import NamedTuple

from .device import Device

# Of the published rate, what a product of large matrices reaches beside the traffic of its operands, which is counted
# apart. Packed Mistral-7B of fms-acceleration and MPT-1b to 30b of llm-foundry on A100.
PRODUCT = 0.82
# Of the published bandwidth, what a memory-bound kernel reaches.
BANDWIDTH = 0.8


class Rates(NamedTuple):
    """A second's work, as attained: FLOP of products in half and in single precision, bytes of memory; and the share of
    the reference kind's efficiency that attention has."""

    half: float
    single: float
    bandwidth: float
    attention: float

    def product(self, tokens: float, inputs: int, outputs: int, size: float, number: float = 1) -> float:
        """Seconds of `number` products of a matrix by `tokens` rows, all elements of `size` bytes: computation, and
        operands and result moved once, which makes small ones inefficient."""
        flops = 2.0 * tokens * inputs * outputs
        moved = size * (tokens * (inputs + outputs) + float(inputs) * outputs)
        return number * (flops / self.compute(size) + moved / self.bandwidth)

    def compute(self, size: float) -> float:
        """FLOP of products whose elements have so many bytes."""
        return self.single if size >= 4 else self.half


@lru_cache(maxsize=64)
def rates(device: Device) -> Rates:
    """What this device attains."""
    share = PRODUCT * device.attained
    return Rates(share * device.half, share * device.single, BANDWIDTH * device.bandwidth, device.attention)
