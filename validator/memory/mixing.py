"""What a layer's mixer keeps for its backward pass, and what that pass needs. Bytes of a micro batch."""

from __future__ import annotations

from . import convolution, delta, lightning, scan, statespace
from .mixers import Convolution, Delta, Lightning, Mixer, Scan, StateSpace
from .run import Run
from .shapes import Block


def kept(run: Run, block: Block, mixer: Mixer) -> float:
    """What it keeps, the norm before it apart."""
    match mixer:
        case Delta():
            return delta.kept(run, block, mixer)
        case Convolution():
            return convolution.kept(run, block)
        case StateSpace():
            return statespace.kept(run, block, mixer)
        case Scan():
            return scan.kept(run, block, mixer)
        case Lightning():
            return lightning.kept(run, block, mixer)


def peak(run: Run, mixer: Mixer) -> float:
    """Transients of its backward pass."""
    match mixer:
        case Delta():
            return delta.peak(run, mixer)
        case Convolution():
            return convolution.peak(run)
        case StateSpace():
            return statespace.peak(run, mixer)
        case Scan():
            return scan.peak(run, mixer)
        case Lightning():
            return lightning.peak(run, mixer)


def buffers(run: Run) -> float:
    """What all layers hold beside their weights, on every device: how lightning attention lets each pair of tokens of a
    chunk, and each token of it, fade."""
    mixer = run.arch.mixer
    if not isinstance(mixer, Lightning):
        return 0.0
    number = sum(count for count, block in run.layers if block.mixer)
    return run.work.base_bytes * number * mixer.heads * (mixer.chunk * (mixer.chunk + 2) + 1)
