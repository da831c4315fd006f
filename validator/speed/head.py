"""The output layer and the loss over the vocabulary. Seconds of a micro batch."""

from __future__ import annotations

from validator.memory.run import Run

from .cost import Cost
from .elementwise import norm
from .rates import Rates
from .terms import Term

# Bytes moved for each logit beside its product: to fp32, log-softmax, the chosen ones; backward the gradients of both
# and back (transformers, loss/loss_utils.py, ForCausalLMLoss). Shifted logits are copied once more each way. A fused
# loss (Liger Kernel, ops/fused_linear_cross_entropy.py) reads and writes half-precision pieces.
_UPCAST, _SHIFTED, _FUSED = (18.0, 22.0), (26.0, 30.0), (10.0, 0.0)


def head(run: Run, rates: Rates) -> Cost:
    """Final norm, product with the vocabulary and loss. A fused loss makes gradients in the forward pass."""
    forward, backward = norm(run)
    moved = run.tokens * run.arch.hidden / rates.bandwidth
    final = Cost(Term.HEAD, forward * moved, backward * moved)
    if run.work.value_head and not run.work.needs_full_logits:
        return final
    once = rates.product(run.tokens, run.arch.hidden, run.arch.vocab, run.sizes.compute)
    gradients = once * (2 if run.trains_head else 1)
    made, unmade = {"upcast": _UPCAST, "shifted": _SHIFTED, "fused": _FUSED}[run.work.loss]
    logits = run.tokens * run.arch.vocab / rates.bandwidth
    if run.work.loss == "fused":
        return Cost(Term.HEAD, final.forward + once + gradients + made * logits, final.backward)
    return Cost(Term.HEAD, final.forward + once + made * logits, final.backward + gradients + unmade * logits)
