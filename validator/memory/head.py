"""The output layer and the loss: where the vocabulary makes most peaks. Bytes of a micro batch."""

from __future__ import annotations

from .activations import norm_kept, tokens
from .precision import element_bytes
from .states import head_elements
from .workload import Architecture, Workload


def _trains(workload: Workload) -> bool:
    return workload.method == "full" or workload.adapter.full_head


def kept(arch: Architecture, workload: Workload) -> float:
    """The final norm's copies and, if the output layer trains, its input."""
    sizes = element_bytes(workload)
    head_input = sizes.compute * arch.hidden if _trains(workload) else 0.0
    return tokens(workload) * (norm_kept(arch.hidden, sizes.residual, arch.norms_per_layer == 4, workload) + head_input)


def _fused(arch: Architecture, workload: Workload) -> float:
    """A fused loss walks over chunks of hidden / vocabulary of the tokens, rounded up to a power of two (Liger Kernel,
    arXiv 2410.10989), and makes the gradient of its input, and of the output weight if that trains, on the way. What
    rounding up can make of a chunk's logits is counted, so that a larger vocabulary never seems to need less."""
    sizes, count = element_bytes(workload), tokens(workload)
    weight = sizes.trained * head_elements(arch) if _trains(workload) else 0.0
    chunk = 2.0 * (count * arch.hidden + arch.vocab + arch.hidden)
    return min(chunk, count * arch.vocab) * (sizes.compute + 4.0) + sizes.compute * count * arch.hidden + weight


def forward_bytes(arch: Architecture, workload: Workload) -> float:
    """Logits when the loss is complete: in compute precision, an fp32 copy and log-probabilities in fp32.

    A soft cap keeps its tanh; older releases also made a shifted copy; a preference stage has dropped the
    half-precision logits by then, but runs the reference's forward pass beside what the policy's keeps; KTO runs a
    second pass beside the first one's logits (LLaMA-Factory, train/kto/trainer.py)."""
    compute = element_bytes(workload).compute
    upcast = 4.0 if compute < 4 else 0.0
    if workload.loss == "fused" and not (workload.needs_full_logits or workload.value_head):
        return _fused(arch, workload)
    if workload.value_head:
        each = compute + upcast
    elif workload.needs_full_logits:
        each = 16.0 if workload.reference_copies or workload.reference_logits else 8.0
        each += 4.0 if workload.estimates_kl else 0.0
    else:
        each = compute + upcast + 4.0 + (4.0 if workload.loss == "shifted" else 0.0)
    return tokens(workload) * arch.vocab * (each + (compute if arch.logit_softcap else 0.0))


def backward_bytes(arch: Architecture, workload: Workload) -> float:
    """Log-probabilities, their gradient and the gradient of the logits, all fp32, at the loss's backward pass."""
    if workload.value_head:
        return 0.0
    if workload.loss == "fused" and not workload.needs_full_logits:
        return element_bytes(workload).compute * tokens(workload) * arch.hidden
    softcap = element_bytes(workload).compute if arch.logit_softcap else 0.0
    return tokens(workload) * arch.vocab * (12.0 + softcap)


def evaluation_bytes(arch: Architecture, workload: Workload) -> float:
    """Logits of an evaluation batch: as in the forward pass, without gradients."""
    compute = element_bytes(workload).compute
    each = compute + (4.0 if compute < 4 else 0.0) + 4.0 + (compute if arch.logit_softcap else 0.0)
    count = workload.eval_batch * workload.sequences_per_sample * (workload.eval_length or workload.length)
    return count * (arch.vocab * each + arch.hidden * 4.0)
