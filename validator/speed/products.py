"""Linear modules of a layer and their adapters. Seconds of a micro batch.

A product's gradient with respect to its input is a product of the same size, and so is that with respect to its weight,
which frozen weights do not ask for."""

from __future__ import annotations

from validator.memory.linear import Linear
from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .rates import Rates
from .terms import Term


def products(run: Run, rates: Rates, block: Block) -> Cost:
    """Linear modules of the base that every token passes, with their adapters."""
    size = run.sizes.compute
    base = [linear for linear in block.linears if not linear.routed]
    once = sum(rates.product(run.tokens, each.inputs, each.outputs, size, each.number) for each in base)
    adapted = [adapter(run, rates, each) for each in base if run.adapted(each)]
    forward, backward = sum(cost.forward for cost in adapted), sum(cost.backward for cost in adapted)
    return Cost(Term.PRODUCTS, once + forward, (1 + weight_gradients(run)) * once + backward)


def weight_gradients(run: Run) -> float:
    """Products for gradients of weights that each product of the base brings: none where it is frozen; BAdam trains one
    block of layers at a time (arXiv 2404.02827)."""
    if run.adapts:
        return 0.0
    return 1 / run.arch.layers if run.work.optimizer == "badam" else 1.0


def spared(run: Run, rates: Rates, block: Block) -> float:
    """Seconds that checkpointing without re-entry saves: it stops once all tensors are there that gradients need (torch
    utils/checkpoint.py, early_stop), and the last product's result is not one of them."""
    last = block.down[-1:] if not (run.work.reentrant or block.mixture) else ()
    plain = [each for each in last if not run.adapted(each)]
    return sum(rates.product(run.tokens, each.inputs, each.outputs, run.sizes.compute) for each in plain)


def adapter(run: Run, rates: Rates, linear: Linear) -> Cost:
    """The adapter of one module. LoRA (arXiv 2106.09685): two products through the rank, and around them its input
    brought to the adapter's precision, dropped out and brought back, its result scaled and added (peft,
    tuners/lora/layer.py, Linear.forward); DoRA (2402.09353) scales the base's result once more and takes the norm of
    the whole matrix. Orthogonal (2306.07280): blocks of the input are rotated before the base's product."""
    work, sizes, tokens = run.work, run.sizes, run.tokens
    if work.method == "oft":
        moved = linear.number * tokens * linear.inputs * (sizes.adapter + 2 * sizes.compute) / rates.bandwidth
        turned = rates.product(tokens, work.adapter.block, linear.inputs, sizes.compute, linear.number)
        return Cost(Term.PRODUCTS, turned + moved, 2 * turned + 2 * moved)
    rank, size = work.adapter.rank, sizes.compute if work.precision == "amp" else sizes.adapter
    through = rates.product(tokens, linear.inputs, rank, size) + rates.product(tokens, rank, linear.outputs, size)
    around = linear.inputs * _input_bytes(run) + linear.outputs * 5 * size
    forward = through + tokens * around / rates.bandwidth
    backward = 2 * through + tokens * (around + 3 * size * linear.inputs) / rates.bandwidth
    if work.adapter.dora:
        extra = _magnitude(run, rates, linear)
        forward, backward = forward + extra, backward + extra
    return Cost(Term.PRODUCTS, linear.number * forward, linear.number * backward)


def _input_bytes(run: Run) -> float:
    """Moved for each element of an adapted module's input: to the adapter's precision, through dropout, and back to
    what autocast computes in."""
    sizes = run.sizes
    raised = sizes.adapter + sizes.compute if sizes.adapter != sizes.compute else 0.0
    dropped = 2 * sizes.adapter + 1 if run.work.adapter.dropout else 0.0
    return raised * (2 if run.work.precision == "amp" else 1) + dropped


def _magnitude(run: Run, rates: Rates, linear: Linear) -> float:
    """DoRA's norm of base and adapter together: their product made whole, and both read in fp32 (peft,
    tuners/lora/dora.py)."""
    whole = rates.product(linear.inputs, run.work.adapter.rank, linear.outputs, run.sizes.adapter)
    moved = 6 * 4.0 * linear.inputs * linear.outputs + 3 * run.sizes.compute * run.tokens * linear.outputs
    return whole + moved / rates.bandwidth
