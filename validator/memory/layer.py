"""What the layers keep between the forward and the backward pass. Bytes of a micro batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from .attention import attention_kept, attention_peak
from .feedforward import feedforward_kept, feedforward_peak
from .run import Run
from .shapes import Block
from .terms import Device


class Kept(NamedTuple):
    """Bytes kept by the two halves of a layer, and the largest transients of their backward passes."""

    attention: float
    ffn: float
    attention_peak: float
    ffn_peak: float

    @property
    def total(self) -> float:
        return self.attention + self.ffn


def _rotations(run: Run, block: Block) -> float:
    """The orthogonal matrices of one layer, with two powers of the series that makes them, in fp32."""
    if run.work.method != "oft":
        return 0.0
    adapted = sum(linear.inputs for linear in block.by_role(*run.work.adapter.targets))
    return 3 * 4.0 * run.work.adapter.block * adapted


@lru_cache(maxsize=128)
def layer(run: Run, block: Block) -> Kept:
    """Everything one layer of this kind keeps for its backward pass, and the peaks inside that pass."""
    run = run.of(block)
    return Kept(
        attention=attention_kept(run, block) + _rotations(run, block),
        ffn=feedforward_kept(run, block),
        attention_peak=attention_peak(run, block),
        ffn_peak=feedforward_peak(run, block),
    )


def checkpoint(run: Run) -> float:
    """One layer's checkpoint: its input, in the precision of the residual stream."""
    return run.sizes.residual * run.tokens * run.arch.hidden


@lru_cache(maxsize=64)
def kept(run: Run) -> Mapping[Device, float]:
    """What all layers keep; offloaded checkpoints keep two in flight."""
    match run.checkpointing:
        case "layer":
            return {Device.CHECKPOINTS: sum(number for number, _ in run.visited) * checkpoint(run)}
        case "offloaded":
            return {Device.CHECKPOINTS: 2 * checkpoint(run)}
    return {Device.ACTIVATIONS: sum(number * layer(run, block).total for number, block in run.visited)}
