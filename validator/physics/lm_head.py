"""Memory of the output layer and the loss, where the vocabulary makes most peaks. Bytes of a micro batch."""

from __future__ import annotations

from validator.physics.saved_inputs import saved_by_norm
from validator.physics.training_step import TrainingStep


def lm_head_saved_bytes(run: TrainingStep) -> float:
    """The final norm's copies and, if the output layer trains, its input."""
    head_input = run.sizes.compute * run.arch.hidden if run.trains_head else 0.0
    norm = saved_by_norm(run, run.arch.hidden, run.sizes.residual)
    return run.tokens * (norm + head_input)


def _softcap_bytes(run: TrainingStep) -> float:
    """Bytes per logit: a soft cap keeps its tanh."""
    return run.sizes.compute if run.arch.logit_softcap else 0.0


def logits_in_compute_precision(run: TrainingStep) -> float:
    """Logits in compute precision, as the output layer makes them, and as large their gradient."""
    return run.sizes.compute * run.tokens * run.arch.vocab


def _fused_loss_bytes(run: TrainingStep) -> float:
    """A fused loss walks over chunks of hidden / vocabulary of the tokens, rounded up to a power of two (Liger Kernel,
    arXiv 2410.10989), and makes the gradient of its input, and of the output weight if that trains, on the way. What
    rounding up can make of a chunk's logits is counted, so that a larger vocabulary never seems to need less."""
    sizes, count, arch = run.sizes, run.tokens, run.arch
    weight = sizes.trained * run.head if run.trains_head else 0.0
    chunk = 2.0 * (count * arch.hidden + arch.vocab + arch.hidden)
    return min(chunk, count * arch.vocab) * (sizes.compute + 4.0) + sizes.compute * count * arch.hidden + weight


def _supervised_loss_bytes(run: TrainingStep) -> float:
    """Bytes per logit when the supervised loss is complete: the logits, an fp32 copy, perhaps a shifted one, and
    log-probabilities."""
    work, compute = run.work, run.sizes.compute
    half = 0.0 if compute == 4 or work.logits_raised else compute
    return half + 4.0 + (4.0 if work.loss == "shifted" else 0.0) + 4.0


def logits_in_model_forward(run: TrainingStep) -> float:
    """Logits at the end of the model's own forward pass in a preference stage."""
    return (
        run.tokens * run.arch.vocab * (_supervised_loss_bytes(run) + _softcap_bytes(run))
        if run.work.supervised
        else logits_in_compute_precision(run)
    )


def logits_forward(run: TrainingStep) -> float:
    """Logits when the loss is complete: in compute precision, an fp32 copy and log-probabilities in fp32.

    Older releases also made a shifted copy; a preference stage has dropped the half-precision logits by then, but runs
    the reference's forward pass beside what the policy's keeps, and older ones made the supervised loss in each pass;
    KTO runs a second pass beside the first one's logits (LLaMA-Factory, train/kto/trainer.py)."""
    work, compute = run.work, run.sizes.compute
    upcast = 4.0 if compute < 4 else 0.0
    if work.loss == "fused" and not (work.needs_full_logits or work.value_head):
        return _fused_loss_bytes(run)
    if work.value_head:
        each = compute + upcast
    elif work.needs_full_logits:
        before = 8.0 if work.reference_copies or work.reference_logits else 0.0
        each = before + (12.0 if work.estimates_kl else _supervised_loss_bytes(run) if work.supervised else 8.0)
    else:
        each = _supervised_loss_bytes(run)
    return run.tokens * run.arch.vocab * (each + _softcap_bytes(run))


def logits_backward(run: TrainingStep) -> float:
    """Log-probabilities, their gradient and the gradient of the logits, all fp32, at the loss's backward pass."""
    if run.work.value_head:
        return 0.0
    if run.work.loss == "fused" and not run.work.needs_full_logits:
        return run.sizes.compute * run.tokens * run.arch.hidden
    return run.tokens * run.arch.vocab * (12.0 + _softcap_bytes(run))


def logits_evaluation(run: TrainingStep) -> float:
    """Logits of an evaluation batch: as in the forward pass, without gradients."""
    work, compute = run.work, run.sizes.compute
    each = compute + (4.0 if compute < 4 else 0.0) + 4.0 + _softcap_bytes(run)
    count = work.eval_batch * work.sequences_per_sample * (work.eval_length or work.length)
    return count * (run.arch.vocab * each + run.arch.hidden * 4.0)
