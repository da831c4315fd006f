"""Layers for further tokens, which are loaded and never run: weights that lie there."""

from __future__ import annotations

from functools import lru_cache

from .blocks import blocks, norm_elements
from .linear import Linear
from .shapes import Block
from .workload import Architecture, Workload


@lru_cache(maxsize=64)
def layers(arch: Architecture, fused: bool = True) -> tuple[tuple[int, Block], ...]:
    """(how many, layer), or nothing. Each is as the decoder's last, but joins a hidden state with an embedding before
    that, and has a norm for either and one in the end (arXiv 2505.07608, MiMoMTPLayers of modeling_mimo.py)."""
    if not arch.idle:
        return ()
    last = blocks(arch, fused)[-1][1]
    joined = Linear("joined", 2 * arch.hidden, arch.hidden)
    return ((arch.idle, Block((joined, *last.linears), last.experts, last.vectors + 3 * norm_elements(arch))),)


def loaded(arch: Architecture, fused: bool = True) -> tuple[tuple[int, Block], ...]:
    """(how many, layer) of all that are loaded, with those that run."""
    return (*blocks(arch, fused), *layers(arch, fused))


def elements(arch: Architecture) -> int:
    """Parameters of all that never run."""
    return sum(number * block.elements for number, block in layers(arch))


def unstepped(arch: Architecture, workload: Workload) -> int:
    """Their elements that could train but get no gradient, and so no state: engines keep both for all that could."""
    flat = workload.sharding.engine or workload.sharding.fsdp
    return 0 if flat or workload.method != "full" else elements(arch)
