"""What the optimizer's step allocates for a moment. Bytes."""

from __future__ import annotations

from .optimizer import FOREACH, partitions
from .run import Run
from .trained import largest_tensor, trained_bytes


def step_bytes(run: Run) -> float:
    """A foreach step holds the root of every second moment at once; Adafactor holds the update and its square for the
    largest matrix, and fp32 copies of gradient and parameter when these are half precision. Fused steps need none."""
    if run.sharding.offload_optimizer:
        return 0.0
    if run.sharding.engine:
        return _engine_step(run)
    if run.work.optimizer in FOREACH:
        return trained_bytes(run, run.sizes.moment) / partitions(run)
    match run.work.optimizer:
        case "adafactor" | "galore_adafactor":
            return (8.0 if run.sizes.gradient == 4 else 16.0) * largest_tensor(run)
        case "galore" | "apollo" | "galore_8bit" | "muon" | "adam_mini":
            return 8.0 * largest_tensor(run)
    return 0.0


def _engine_step(run: Run) -> float:
    """A ZeRO engine flattens this device's gradients, copies them to fp32 and updates; stage 3 one sub-group at a
    time."""
    share, gradient = run.trained / partitions(run), run.sizes.gradient
    if run.sharding.zero == 3:
        share = min(share, run.sharding.sub_group)
    copying = gradient + (4.0 if gradient < 4 else 0.0)
    return share * max(copying, 8.0 if run.work.optimizer in FOREACH else 4.0)
