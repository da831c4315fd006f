"""A model and what is asked of it, together, and the sizes that most formulas start from."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import NamedTuple

from . import parameters
from .blocks import blocks, last_layers
from .linear import Linear
from .precision import Bytes, element_bytes
from .shapes import Block
from .tower import Tower
from .workload import Architecture, Checkpointing, Encoding, Workload

# (how many, layer) for each kind of layer, first layers first
Layers = tuple[tuple[int, Block], ...]


class Place(NamedTuple):
    """A layer, and how many layers and elements of them lie between it and the end that is counted from."""

    block: Block
    passed: int
    elements: int


class Run:
    """What every formula of this room takes. Equal only to itself: use `run_of`, which gives the same run for the same
    architecture and workload, so that formulas that remember their answers are asked once."""

    def __init__(self, arch: Architecture, work: Workload, residual: float = 0.0) -> None:
        """`residual`: bytes per element of hidden states between layers; 0: those that the precision gives."""
        self.arch, self.work, self.sharding, self._residual = arch, work, work.sharding, residual

    @cached_property
    def sizes(self) -> Bytes:
        """Bytes per element of every kind of tensor."""
        sizes = element_bytes(self.work)
        lifted = self.raised or (self.arch.embedding_norm and self.work.precision == "amp")
        residual = self._residual or (4.0 if lifted else sizes.residual)
        return sizes._replace(residual=residual)

    @cached_property
    def raised(self) -> bool:
        """Whether modules that read a norm, and so the residual stream, give fp32: autocast gives LayerNorm fp32."""
        return self.arch.norm == "layer" and self.turned and self.work.precision == "amp"

    @cached_property
    def turned(self) -> bool:
        """Whether linear modules hand results back in the precision of the input: those of bitsandbytes (nn/modules.py,
        Linear4bit.forward), and with orthogonal adapters (peft, tuners/oft/layer.py)."""
        return self.work.quant_bits > 0 or self.work.method == "oft"

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro batch."""
        return self.work.micro_batch * self.work.sequences_per_sample * self.work.length

    @cached_property
    def layers(self) -> Layers:
        return blocks(self.arch, self.work.experts_fused)

    @cached_property
    def visited(self) -> Layers:
        """The layers that the backward pass visits: below the first trained layer nothing is kept."""
        if self.work.method != "freeze":
            return self.layers
        return last_layers(self.layers, self.work.trainable_layers)

    @cached_property
    def closing(self) -> tuple[Place, ...]:
        """Kinds of the layers, from the last, where the backward pass begins."""
        return _first_of_each(reversed(self.visited) if self._mixed else self.visited[-1:])

    @cached_property
    def opening(self) -> tuple[Place, ...]:
        """Kinds of the layers, from the first, where it ends."""
        return _first_of_each(self.visited if self._mixed else self.visited[:1])

    @cached_property
    def _mixed(self) -> bool:
        """Whether layers of several kinds follow each other."""
        return bool(self.arch.kinds or self.arch.runs)

    @cached_property
    def _inner(self) -> dict[Block, Run]:
        if not self.arch.runs:
            return {}
        decoders = [decoder for _, decoder in self.arch.runs]
        runs = {each: Run(each, self.work, self._residual) for each in dict.fromkeys(decoders)}
        return {block: runs[each] for (_, block), each in zip(self.layers, decoders, strict=True)}

    def of(self, block: Block) -> Run:
        """That of a decoder which has such layers alone, where the shapes of layers differ."""
        return self._inner.get(block, self)

    @cached_property
    def largest_layer(self) -> int:
        """Elements."""
        return max(block.elements for _, block in self.layers)

    @cached_property
    def parameters(self) -> int:
        return parameters.parameters(self.arch)

    @cached_property
    def trained(self) -> int:
        """Parameters that receive gradients."""
        return parameters.trainable_parameters(self.arch, self.work)

    @cached_property
    def trained_in_towers(self) -> int:
        """Of these, those of towers and projectors."""
        return parameters.trained_in_towers(self.arch, self.work)

    @cached_property
    def encoded(self) -> tuple[tuple[Tower, Encoding], ...]:
        """Each tower with what is asked of it."""
        return parameters.encoded(self.arch, self.work)

    @cached_property
    def saved(self) -> int:
        """Elements of embedding and output layer that train whole beside an adapter."""
        return parameters.saved_elements(self.arch, self.work)

    @cached_property
    def embedding(self) -> int:
        return parameters.embedding(self.arch)

    @cached_property
    def head(self) -> int:
        """Elements of the matrix that makes logits, whether or not it is the embedding's."""
        return self.embedding if self.arch.tied else parameters.head(self.arch)

    @cached_property
    def tables(self) -> int:
        """Elements of embedding and output layer; tied ones count once."""
        return self.embedding + parameters.head(self.arch)

    @cached_property
    def adapts(self) -> bool:
        """Whether adapters train beside frozen base weights."""
        return self.work.method in ("lora", "oft")

    def adapted(self, linear: Linear) -> bool:
        """Whether an adapter trains beside this module."""
        return self.adapts and linear.role in self.work.adapter.targets

    @cached_property
    def checkpointing(self) -> Checkpointing:
        """Of the decoder's layers: those without a trained parameter keep everything that gradients on their way to a
        tower need (LLaMA-Factory, model_utils/checkpointing.py)."""
        frozen = self.adapts and not self.work.adapter.targets
        return "off" if frozen else self.work.checkpointing

    @cached_property
    def trains_head(self) -> bool:
        return self.work.method == "full" or self.work.adapter.full_head

    @cached_property
    def trains_embedding(self) -> bool:
        return self.work.method == "full" or self.work.adapter.full_embedding

    @cached_property
    def spreads_weights(self) -> bool:
        return self.sharding.zero == 3 or self.sharding.fsdp

    @cached_property
    def attends_in_squares(self) -> bool:
        """Whether scores of all pairs of tokens are made. PyTorch's fused attention knows no sinks."""
        attn, asked = self.arch.attn, self.work.attention
        return attn.written or asked == "eager" or (attn.sinks and asked == "sdpa")


def _first_of_each(layers: Iterable[tuple[int, Block]]) -> tuple[Place, ...]:
    """Where each kind comes first."""
    first: dict[Block, Place] = {}
    passed = elements = 0
    for number, block in layers:
        first.setdefault(block, Place(block, passed, elements))
        passed, elements = passed + number, elements + number * block.elements
    return tuple(first.values())


@lru_cache(maxsize=64)
def run_of(arch: Architecture, workload: Workload) -> Run:
    """The run of these two. Device, host and disk memory of a recipe ask for the same one."""
    return Run(arch, workload)
