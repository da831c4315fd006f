"""What device and processor wait for each other. Seconds of a micro batch."""

from __future__ import annotations

from validator.memory.run import Run

from .cost import Cost
from .hooks import hooks
from .launches import launches
from .terms import Term
from .visits import again, forward_passes, visits

# How sharply the slower of the two decides: infinitely if one of them never waited for the other. Qwen's README times
# 256 to 8192 tokens on A100, where each is the slower one in turn.
_AHEAD = 3


def waiting(run: Run, worked: float) -> Cost:
    """What a processor that starts kernels slower than the device ends them adds to the device's `worked` seconds: it
    runs ahead where it can."""
    forward, backward = _started(run)
    whole = forward + backward
    share = ((worked**_AHEAD + whole**_AHEAD) ** (1 / _AHEAD) - worked) / whole
    return Cost(Term.LAUNCHES, share * forward, share * backward)


def _started(run: Run) -> tuple[float, float]:
    """What the processor takes in the forward and in the backward pass."""
    forward = backward = 0.0
    for block, every, visited in visits(run):
        starts, holds = launches(run.of(block), block), hooks(run, block)
        once = starts.forward + holds.forward
        forward += forward_passes(run) * every * once
        backward += visited * (starts.backward + holds.backward + again(run) * once)
    return forward, backward
