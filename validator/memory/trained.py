"""The tensors that train. Elements, and bytes of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from .run import Layers, Run
from .workload import Architecture


class Matrix(NamedTuple):
    """`number` trained two-dimensional tensors of one shape."""

    outputs: int
    inputs: int
    number: int

    @property
    def elements(self) -> int:
        """Of one of them."""
        return self.outputs * self.inputs


def trained_layers(run: Run) -> Layers:
    """Those whose own weights train."""
    return () if run.adapts else run.visited


@lru_cache(maxsize=64)
def trained_matrices(run: Run) -> tuple[Matrix, ...]:
    """Every trained two-dimensional tensor; what remains of the trained parameters are vectors."""
    if run.adapts:
        return tuple(_adapter_matrices(run))
    inside = [
        Matrix(linear.outputs, linear.inputs, linear.number * count)
        for count, block in trained_layers(run)
        for linear in block.linears
    ]
    if run.arch.towers:
        inside += _tower_matrices(run)
    if run.work.method == "freeze":
        return tuple(inside)
    tables = Matrix(run.arch.vocab, run.arch.hidden, 1 if run.arch.tied else 2)
    return (*inside, *(_expert_matrices(run.arch) if run.work.experts_fused else ()), tables, *_input_tables(run.arch))


def _input_tables(arch: Architecture) -> Iterator[Matrix]:
    """What gives each layer an input of its own: an embedding, and the linear module that reads the usual one."""
    if width := arch.layers * arch.layer_input:
        yield Matrix(arch.layer_vocab, width, 1)
        yield Matrix(width, arch.hidden, 1)


def _tower_matrices(run: Run) -> Iterator[Matrix]:
    for tower, encoding in run.encoded:
        layers = tower.layers if encoding.trains else encoding.trainable_layers
        yield from (Matrix(linear.outputs, linear.inputs, layers) for linear in tower.linears if layers)
        beside = (*(tower.outside if encoding.trains else ()), *(tower.projector if encoding.projector else ()))
        yield from (Matrix(linear.outputs, linear.inputs, linear.number) for linear in beside)


def _expert_matrices(arch: Architecture) -> Iterator[Matrix]:
    ffn, layers = arch.ffn, arch.mixtures
    widths = (ffn.expert_width, ffn.seeing_width) if ffn.experts else ()
    for width in filter(None, widths):
        yield Matrix((2 if ffn.gated else 1) * width, arch.hidden, ffn.experts * layers)
        yield Matrix(arch.hidden, width, ffn.experts * layers)


def _adapter_matrices(run: Run) -> Iterator[Matrix]:
    adapter = run.work.adapter
    for count, block in run.layers:
        for linear in block.by_role(*adapter.targets) if run.work.method == "lora" else ():
            yield Matrix(adapter.rank, linear.inputs, linear.number * count)
            yield Matrix(linear.outputs, adapter.rank, linear.number * count)
    if "inputs" in adapter.targets and run.work.method == "lora":
        yield Matrix(adapter.rank, run.arch.hidden, 1)
        yield Matrix(run.arch.layers * run.arch.layer_input, adapter.rank, 1)
    if copies := int(adapter.full_embedding) + int(adapter.full_head):
        yield Matrix(run.arch.vocab, run.arch.hidden, copies)


def largest_tensor(run: Run) -> int:
    """Elements of the largest trained tensor; fused experts are one tensor."""
    arch, work = run.arch, run.work
    fused = arch.ffn.experts if work.experts_fused and work.method == "full" else 0
    experts = fused * max((matrix.elements for matrix in _expert_matrices(arch)), default=0)
    return max([experts, *(matrix.elements for matrix in trained_matrices(run))])


def trained_bytes(run: Run, each: float) -> float:
    """Bytes of all trained elements at `each`, or less for modules that train whole in half precision."""
    return each * (run.trained - run.saved) + min(each, run.sizes.saved) * run.saved
