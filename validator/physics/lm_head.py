"""Bytes of the output layer and the loss, per micro batch. Because vocabularies are large, most memory peaks lie
here."""

from __future__ import annotations

from validator.physics.saved_inputs import saved_by_norm
from validator.physics.training_step import TrainingStep

# Bytes per logit in PPO, all in fp32: a copy of the logits and their log-probabilities; beside them, for the entropy, a
# softmax and a product, or in the backward pass the gradients of both (trl, trainer/ppo_trainer.py, loss).
_PPO_LOSS_BYTES = 16.0


def lm_head_saved_bytes(step: TrainingStep) -> float:
    """Bytes that the final norm and the output layer save for backward: the norm's copies of its input and, if the
    output layer trains, the output layer's input."""
    head_input = step.sizes.compute * step.arch.hidden if step.trains_head else 0.0
    norm = saved_by_norm(step, step.arch.hidden, step.sizes.residual)
    return step.tokens * (norm + head_input)


def _softcap_bytes(step: TrainingStep) -> float:
    """Bytes per logit that a soft cap of the logits saves for backward: the result of its tanh. Zero for models without
    a soft cap."""
    return step.sizes.compute if step.arch.logit_softcap else 0.0


def logits_in_compute_precision(step: TrainingStep) -> float:
    """Bytes of the logits in compute precision, as the output layer makes them. Their gradient is as large."""
    return step.sizes.compute * step.tokens * step.arch.vocab


def _fused_loss_bytes(step: TrainingStep) -> float:
    """Bytes of a fused loss, which works on chunks of tokens (Liger Kernel, arXiv 2410.10989): the logits of one chunk,
    the gradient of the loss's input, and the gradient of the output weight if this weight trains.

    A chunk holds the share hidden / vocabulary of all tokens, rounded up to a power of two. The formula counts the
    largest chunk that rounding can give, so that a larger vocabulary never seems to need less."""
    sizes, count, arch = step.sizes, step.tokens, step.arch
    weight = sizes.trained * step.lm_head_elements if step.trains_head else 0.0
    chunk = 2.0 * (count * arch.hidden + arch.vocab + arch.hidden)
    return min(chunk, count * arch.vocab) * (sizes.compute + 4.0) + sizes.compute * count * arch.hidden + weight


def _supervised_loss_bytes(step: TrainingStep) -> float:
    """Bytes per logit when the supervised loss is complete: the logits in compute precision, an fp32 copy, a shifted
    copy in releases that shift the logits, and log-probabilities."""
    work, compute = step.work, step.sizes.compute
    half = 0.0 if compute == 4 or work.logits_upcast else compute
    return half + 4.0 + (4.0 if work.loss == "shifted" else 0.0) + 4.0


def logits_in_model_forward(step: TrainingStep) -> float:
    """Bytes of the logits at the end of the model's own forward pass in a preference stage. The supervised loss is
    included if the model computes it in that pass."""
    return (
        step.tokens * step.arch.vocab * (_supervised_loss_bytes(step) + _softcap_bytes(step))
        if step.work.adds_supervised_loss
        else logits_in_compute_precision(step)
    )


def logits_forward(step: TrainingStep) -> float:
    """Bytes of the logits when the loss is complete: in compute precision, an fp32 copy, and log-probabilities in fp32.
    Older transformers releases also make a shifted copy.

    A preference stage has freed the half-precision logits by then, but keeps the policy's tensors while the reference
    runs its forward pass. In older releases each forward pass also computes the supervised loss. KTO runs a second pass
    while the logits of the first pass are kept (LLaMA-Factory, train/kto/trainer.py)."""
    work, compute = step.work, step.sizes.compute
    upcast = 4.0 if compute < 4 else 0.0
    if work.loss == "fused" and not (work.needs_full_logits or work.value_head):
        return _fused_loss_bytes(step)
    if work.value_head:
        each = compute + upcast
    elif work.rollout:
        each = _PPO_LOSS_BYTES
    elif work.needs_full_logits:
        reference = 8.0 if work.reference_copies or work.reference_logits else 0.0
        each = reference + (
            12.0 if work.estimates_kl else _supervised_loss_bytes(step) if work.adds_supervised_loss else 8.0
        )
    else:
        each = _supervised_loss_bytes(step)
    return step.tokens * step.arch.vocab * (each + _softcap_bytes(step))


def logits_backward(step: TrainingStep) -> float:
    """Bytes of the loss's backward pass: log-probabilities, their gradient and the gradient of the logits, all in fp32.
    A fused loss keeps only the gradient of its input. Zero for a value head."""
    if step.work.value_head:
        return 0.0
    if step.work.loss == "fused" and not step.work.needs_full_logits:
        return step.sizes.compute * step.tokens * step.arch.hidden
    each = _PPO_LOSS_BYTES if step.work.rollout else 12.0
    return step.tokens * step.arch.vocab * (each + _softcap_bytes(step))


def logits_evaluation(step: TrainingStep) -> float:
    """Bytes of the logits of an evaluation batch: the tensors of the forward pass, without gradients."""
    work, compute = step.work, step.sizes.compute
    each = compute + (4.0 if compute < 4 else 0.0) + 4.0 + _softcap_bytes(step)
    count = work.eval_batch * work.sequences_per_sample * (work.eval_length or work.length)
    return count * (step.arch.vocab * each + step.arch.hidden * 4.0)
