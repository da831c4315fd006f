"""Routed experts, on the tokens that reach them. Seconds of a micro batch in one layer."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .products import adapter, weight_gradients
from .rates import Rates
from .terms import Term

# Times that a chosen token is read or written between products: gathered, weighted, masked, brought back in order,
# added (transformers, integrations/moe.py, grouped_mm_experts_forward).
_PERMUTED = 9


def active(run: Run) -> float:
    """How many experts of a layer tokens reach: each token passes one by with probability 1 - chosen / all."""
    ffn = run.arch.ffn
    return float(ffn.experts * (1 - (1 - ffn.experts_per_token / ffn.experts) ** run.tokens))


def experts(run: Run, rates: Rates, block: Block) -> Cost:
    """Products of the chosen experts, each by its share of the tokens; permuting tokens there and back."""
    ffn, hidden, size = run.arch.ffn, run.arch.hidden, run.sizes.compute
    if not ffn.experts or not block.mixture:
        return Cost(Term.EXPERTS, 0.0, 0.0)
    reached = active(run)
    each = run.tokens * ffn.experts_per_token / reached
    shapes = (3 if ffn.gated else 2) * reached
    once = rates.product(each, hidden, ffn.expert_width, size, shapes)
    moved = run.tokens * (ffn.experts_per_token * _PERMUTED * size * hidden + 16.0 * ffn.experts) / rates.bandwidth
    adapted = _adapted(run, rates, block)
    back = (1 + weight_gradients(run)) * once
    return Cost(Term.EXPERTS, once + moved + adapted.forward, back + moved + adapted.backward)


def _adapted(run: Run, rates: Rates, block: Block) -> Cost:
    """Adapters of routed experts that are linear modules: each sees its share of the tokens."""
    costs = [adapter(run, rates, each) for each in block.linears if each.routed and run.adapted(each)]
    share = run.arch.ffn.experts_per_token / run.arch.ffn.experts
    return Cost(Term.EXPERTS, share * sum(cost.forward for cost in costs), share * sum(cost.backward for cost in costs))
