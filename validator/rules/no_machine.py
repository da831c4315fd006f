"""FIT014 and FIT015: memory of a run for which no machine is named."""

from __future__ import annotations

from dataclasses import replace

from validator.knowledge import devices
from validator.knowledge.devices import Device, Machine
from validator.physics import Estimate
from validator.physics.estimate import GIB
from validator.rules.rule import ERROR, NOTE, Findings, rule
from validator.run.first_rows import certain_tokens
from validator.run.prediction import predict
from validator.run.settings import RunSettings

# GiB on one device, beyond which a run is too large for any one device that many people have.
_LARGE_GIB = 80.0
# More devices than any run of one recipe has, so that sharded states take next to nothing.
_MANY_NODES, _MANY_DEVICES = 128, 8


@rule("FIT014", ERROR)
def no_device_holds_it(run: RunSettings) -> Findings:
    """No machine is named, and not even the largest device that is known could hold the run, however many there are.

    Why: without DeepSpeed's ZeRO-3 or FSDP each device holds the whole model, and more devices do not help. Without a
    machine memory is not judged otherwise.
    Source: own (the memory model)
    Fix: shard the states with `deepspeed` (ZeRO-3) or `fsdp`; name the file that `accelerate launch` gets as
    `# accelerate: FILE` in the header block; or train an adapter, such as `finetuning_type: lora`.
    """
    if _need_on_one_device(run) and (largest := _largest_that_is_too_small(run)):
        device, estimate = largest
        where = f"{estimate.expected / GIB:,.0f} GiB (at least {estimate.low / GIB:,.0f}) on each device"
        found = f"the run needs {where}, and the largest device that is known, {device.id}, has {device.usable_gib:.0f}"
        yield _key_to_blame(run), f"{found}{_remedy(run)}"


@rule("FIT015", NOTE)
def large_without_machine(run: RunSettings) -> Findings:
    """No machine is named, so the memory of a large run is not judged.

    Why: whether it fits depends on the device and, where ZeRO or FSDP shards states, on their number.
    Source: own (the memory model)
    Fix: `# machine: 8xa100-80g` in the header block with what it is for, or `--machine`.
    """
    if (need := _need_on_one_device(run)) and not _largest_that_is_too_small(run):
        is_sharded = run.zero_stage or run.fsdp or run.accelerate
        spread = "one device, less on each of several" if is_sharded else "each device"
        needs = f"the run needs at least {need.expected / GIB:,.0f} GiB on {spread}"
        remedy = "write what it will run on into the header block, such as `# machine: 8xa100-80g`"
        yield _key_to_blame(run), f"no machine is named, so memory is not judged: {needs}; {remedy}"


def _need_on_one_device(run: RunSettings) -> Estimate | None:
    """Return the memory that the run needs on one device with samples as short as they surely are, if no machine is
    named and the run is a large one; None also if memory is not predicted, as with KTransformers and Megatron."""
    if run.machine or run.machine_problem:
        return None
    need = predict(run).device_memory_at(certain_tokens(run))
    return need if need and need.expected > _LARGE_GIB * GIB else None


def _largest_that_is_too_small(run: RunSettings) -> tuple[Device, Estimate] | None:
    """Return the known device with most memory, and what the run needs on each of very many of them, if that is more
    than the device has even with samples as short as they surely are, and even at the low end of the band."""
    known = (devices.find_device(name)[0] for name in devices.device_ids())
    largest = max((one for one in known if not one.shared_memory), key=lambda one: one.usable_gib or 0.0)
    many = replace(run, machine=Machine(_MANY_NODES, _MANY_DEVICES, largest))
    prediction = predict(many)
    estimate, usable = prediction.device_memory, (largest.usable_gib or 0.0) * GIB
    exceeds = prediction.device_verdict == "exceeds" and not prediction.fitting_length
    return (largest, estimate) if exceeds and estimate and estimate.low > usable else None


def _remedy(run: RunSettings) -> str:
    if run.zero_stage == 3 or run.fsdp:
        return ""
    sharding = "shard it with `deepspeed` (ZeRO-3) or `fsdp`, or name the file of `accelerate launch` as"
    return f"; {sharding} `# accelerate: FILE` in the header block"


def _key_to_blame(run: RunSettings) -> str:
    return "deepspeed" if run.uses_deepspeed else "model_name_or_path"
