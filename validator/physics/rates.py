"""What a device and its links do in a second: published rates, the rates that kernels reach, and the formula for the
time of matmuls and memory-bound work.

Only the shares of published rates that kernels reach were fitted; the comment at each share names the measurements. The
reference device is the A100. Other devices differ from it only by `attained` and `attained_attention` in
data/devices.yaml."""

from typing import Literal, NamedTuple

from validator.physics.estimate import TimeTerm


class DeviceRates(NamedTuple):
    """One accelerator and its links to other devices, main memory and disk. All rates are per second; the rates of
    links are for one direction."""

    half_flops: float  # FLOP of dense products in the half precision that runs train in, as the vendor publishes them
    fp32_flops: float  # FLOP of products of fp32 numbers, as PyTorch makes them by default: no TF32
    bandwidth: float  # bytes of the device's own memory
    link: float  # bytes between devices of one node, of one device
    network: float  # bytes between nodes, of one node, whose devices share it; 0: there is one node
    host_link: float  # bytes between a device and main memory
    host_bandwidth: float  # bytes of a node's main memory
    cores: int  # of a node
    disk: float  # bytes of one node
    nvlink_switch: bool = True  # each pair of devices has the whole link (NVLink switch); else a root or ring is shared
    evidence: Literal["good", "few", "none"] = "good"  # published runs of this device that efficiencies rest on
    matmul_efficiency: float = 1.0  # of the published rate, what large products reach, relative to the reference kind
    attention_efficiency: float = (
        1.0  # of what products attain, what attention kernels reach, relative to the reference kind
    )
    cuda: bool = True  # kernels are those that bitsandbytes was written for, not ports of them
    correction: float = 1.0  # measured seconds of a step over predicted, on the user's own machine


class PassCost(NamedTuple):
    """Seconds that one time term takes in the forward and in the backward pass, without recomputation."""

    term: TimeTerm
    forward: float
    backward: float


# Of the published rate, what a product of large matrices reaches beside the traffic of its operands, which is counted
# apart. Packed Mistral-7B of fms-acceleration and MPT-1b to 30b of llm-foundry on A100.
MATMUL_EFFICIENCY = 0.82
# Of the published bandwidth, what a memory-bound kernel reaches.
BANDWIDTH_EFFICIENCY = 0.8


class AttainedRates(NamedTuple):
    """Rates that kernels reach on a device: FLOP per second of matmuls in half precision and in fp32, bytes per second
    of device memory, and the efficiency of attention kernels relative to the reference device (A100)."""

    half_flops: float
    fp32_flops: float
    bandwidth: float
    attention_efficiency: float

    def product(self, tokens: float, inputs: int, outputs: int, size: float, number: float = 1) -> float:
        """Seconds of `number` matmuls of a matrix (inputs x outputs) with another matrix of `tokens` rows, all elements
        of `size` bytes. Counts the computation, and one move of operands and result through memory, which makes small
        matmuls inefficient."""
        flops = 2.0 * tokens * inputs * outputs
        traffic = size * (tokens * (inputs + outputs) + float(inputs) * outputs)
        return number * (flops / self.flops(size) + traffic / self.bandwidth)

    def flops(self, size: float) -> float:
        """FLOP per second of matmuls whose elements have `size` bytes."""
        return self.fp32_flops if size >= 4 else self.half_flops


def attained_rates(device: DeviceRates) -> AttainedRates:
    """Return the rates that kernels reach on this device, which are shares of the published rates."""
    share = MATMUL_EFFICIENCY * device.matmul_efficiency
    return AttainedRates(
        share * device.half_flops,
        share * device.fp32_flops,
        BANDWIDTH_EFFICIENCY * device.bandwidth,
        device.attention_efficiency,
    )
