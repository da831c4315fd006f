"""What to know beside the plans."""

from __future__ import annotations

from collections.abc import Iterator

from validator.tables import guidance
from validator.tables.machines import Machine
from validator.tables.models import Model


def notes(model: Model | None, machine: Machine, samples: int | None) -> Iterator[str]:
    """Which device was meant, what is left out, and whether the samples suffice."""
    if machine.note:
        yield machine.note
    if machine.device.vendor == "unknown":
        yield f"only the memory of {machine.device.id} is known: bf16, FlashAttention-2 and bitsandbytes are assumed"
    if machine.host_ram_gib is None:
        yield "offload is left out, because the host's memory is not known; give --host-ram"
    if samples:
        yield from _of_size(model, samples) if model else _of_any(samples)


def _of_any(samples: int) -> Iterator[str]:
    least = min(entry["minimum"] for entry in guidance.sizes("sft", "lora"))
    if samples < least:
        yield f"{samples:,} samples are too few for any size: public work with LoRA starts at {least:,}"


def _of_size(model: Model, samples: int) -> Iterator[str]:
    good, least = guidance.recommended(model, "lora"), guidance.recommended(model, "lora", "minimum")
    most = guidance.recommended(model, "lora", "saturating")
    if least and samples < least:
        yield f"{samples:,} samples are too few: public work with LoRA on this size starts at {least:,}"
    elif most and samples > most:
        yield f"{samples:,} samples are more than this size uses with LoRA ({most:,}); choose the best ones"
    elif good and samples < good:
        yield f"{samples:,} samples; {good:,} good ones are recommended for LoRA on this size"
