"""Memory of the output layer and the loss, which make most peaks because of the vocabulary. Bytes of a micro batch."""

from __future__ import annotations

from validator.physics.saved_inputs import saved_by_norm
from validator.physics.training_step import TrainingStep


def lm_head_saved_bytes(step: TrainingStep) -> float:
    """Bytes of the final norm's copies and, if the output layer trains, of its input."""
    head_input = step.sizes.compute * step.arch.hidden if step.trains_head else 0.0
    norm = saved_by_norm(step, step.arch.hidden, step.sizes.residual)
    return step.tokens * (norm + head_input)


def _softcap_bytes(step: TrainingStep) -> float:
    """Bytes per logit that a soft cap saves: its tanh."""
    return step.sizes.compute if step.arch.logit_softcap else 0.0


def logits_in_compute_precision(step: TrainingStep) -> float:
    """Bytes of the logits in compute precision, as the output layer makes them. Their gradient is as large."""
    return step.sizes.compute * step.tokens * step.arch.vocab


def _fused_loss_bytes(step: TrainingStep) -> float:
    """Bytes of a fused loss, which processes chunks of hidden / vocabulary of the tokens, rounded up to a power of two
    (Liger Kernel, arXiv 2410.10989). It also makes the gradients of its input and of a trained output weight. A chunk
    counts with the most that rounding up can add, so that a larger vocabulary never seems to need less."""
    sizes, count, arch = step.sizes, step.tokens, step.arch
    weight = sizes.trained * step.lm_head_elements if step.trains_head else 0.0
    chunk = 2.0 * (count * arch.hidden + arch.vocab + arch.hidden)
    return min(chunk, count * arch.vocab) * (sizes.compute + 4.0) + sizes.compute * count * arch.hidden + weight


def _supervised_loss_bytes(step: TrainingStep) -> float:
    """Bytes per logit when the supervised loss is complete: the logits, an fp32 copy, in older releases a shifted copy,
    and log-probabilities."""
    work, compute = step.work, step.sizes.compute
    half = 0.0 if compute == 4 or work.logits_upcast else compute
    return half + 4.0 + (4.0 if work.loss == "shifted" else 0.0) + 4.0


def logits_in_model_forward(step: TrainingStep) -> float:
    """Bytes of the logits at the end of the model's own forward pass in a preference stage."""
    return (
        step.tokens * step.arch.vocab * (_supervised_loss_bytes(step) + _softcap_bytes(step))
        if step.work.adds_supervised_loss
        else logits_in_compute_precision(step)
    )


def logits_forward(step: TrainingStep) -> float:
    """Bytes of the logits when the loss is complete: in compute precision, an fp32 copy and log-probabilities in fp32.

    A preference stage has dropped the half-precision logits by then, but runs the reference's forward pass beside what
    the policy's saves; with older releases each pass also makes the supervised loss. KTO runs a second pass beside the
    first one's logits (LLaMA-Factory, train/kto/trainer.py)."""
    work, compute = step.work, step.sizes.compute
    upcast = 4.0 if compute < 4 else 0.0
    if work.loss == "fused" and not (work.needs_full_logits or work.value_head):
        return _fused_loss_bytes(step)
    if work.value_head:
        each = compute + upcast
    elif work.needs_full_logits:
        before = 8.0 if work.reference_copies or work.reference_logits else 0.0
        each = before + (
            12.0 if work.estimates_kl else _supervised_loss_bytes(step) if work.adds_supervised_loss else 8.0
        )
    else:
        each = _supervised_loss_bytes(step)
    return step.tokens * step.arch.vocab * (each + _softcap_bytes(step))


def logits_backward(step: TrainingStep) -> float:
    """Bytes of log-probabilities, their gradient and the gradient of the logits, all fp32, in the loss's backward
    pass."""
    if step.work.value_head:
        return 0.0
    if step.work.loss == "fused" and not step.work.needs_full_logits:
        return step.sizes.compute * step.tokens * step.arch.hidden
    return step.tokens * step.arch.vocab * (12.0 + _softcap_bytes(step))


def logits_evaluation(step: TrainingStep) -> float:
    """Bytes of the logits of an evaluation batch: as in the forward pass, without gradients."""
    work, compute = step.work, step.sizes.compute
    each = compute + (4.0 if compute < 4 else 0.0) + 4.0 + _softcap_bytes(step)
    count = work.eval_batch * work.sequences_per_sample * (work.eval_length or work.length)
    return count * (step.arch.vocab * each + step.arch.hidden * 4.0)
