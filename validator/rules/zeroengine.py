"""PAR112, PAR113, PAR115, PAR118 and PAR119: at what in a DeepSpeed JSON file the engine stops when it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.inside import deepspeed
from validator.rules.rule import Finding, rule
from validator.tables import data
from validator.tables.suggestion import suggest

# deepspeed/runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS, as types of the `optimizer` block
_ZERO_OPTIMIZERS = {"adam", "adamw", "adagrad", "lion", "muon"}
# What the Adam of DeepSpeed, its CPU Adam or torch's takes (deepspeed/ops/adam/fused_adam.py, cpu_adam.py;
# torch/optim/adamw.py), or the engine reads before (runtime/engine.py, _configure_basic_optimizer).
OF_ADAM = {
    *("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "torch_adam", "adam_w_mode"),
    *("set_grad_none", "fp32_optimizer_states", "fused", "foreach", "capturable", "differentiable", "maximize"),
}


@rule("PAR112", Severity.ERROR)
def optimizer_untested(job: Job) -> Iterator[Finding]:
    """The optimizer in the DeepSpeed JSON is not one that ZeRO was tested with, or none.

    Why: "You are using an untested ZeRO Optimizer" or "requires an optimizer", after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._do_optimizer_sanity_check,
    deepspeed/runtime/zero/utils.py:is_zero_supported_optimizer
    Fix: remove the block, so that the recipe's `optim` applies; or `"zero_allow_untested_optimizer": true`.
    """
    kind = _kind(job, "optimizer")
    if kind is None and isinstance(_value(job, "optimizer"), Mapping) and job.zero_stage > 0:
        yield deepspeed(job, "optimizer", at_key=True), "the optimizer has no `type`; without the block `optim` applies"
    allowed = _value(job, "zero_allow_untested_optimizer")
    if kind and kind.lower() not in _ZERO_OPTIMIZERS and job.zero_stage > 0 and not allowed:
        yield (
            deepspeed(job, "optimizer", "type"),
            f"optimizer {kind} is untested with ZeRO; remove the block: the recipe's `optim` applies then",
        )


@rule("PAR113", Severity.ERROR)
def scheduler_parameters(job: Job) -> Iterator[Finding]:
    """The scheduler in the DeepSpeed JSON does not take one of its parameters, or lacks one that it needs.

    Why: TypeError when the engine is built, after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._scheduler_from_config,
    deepspeed/runtime/lr_schedules.py:WarmupLR.__init__, deepspeed/runtime/lr_schedules.py:WarmupDecayLR.__init__,
    deepspeed/runtime/lr_schedules.py:WarmupCosineLR.__init__, deepspeed/runtime/lr_schedules.py:OneCycle.__init__,
    deepspeed/runtime/lr_schedules.py:LRRangeTest.__init__
    Fix: remove the block, so that the recipe's `lr_scheduler_type` and `warmup_steps` apply; or correct the name.
    """
    kind = _kind(job, "scheduler") or ""
    known = data.table("deepspeed")["schedulers"].get(kind, [])
    given = _value(job, "scheduler.params")
    if known and not isinstance(given, Mapping):
        yield deepspeed(job, "scheduler", at_key=True), f'scheduler {kind} has no `params`; write `"params": {{}}`'
        return
    for name in given if known else ():
        if name not in known:
            place = deepspeed(job, "scheduler", "params", name, at_key=True)
            yield place, f"scheduler {kind} takes no parameter `{name}`{suggest(name, known)}"
    for name in data.table("deepspeed")["needed"].get(kind, ()):
        if name not in given:
            yield deepspeed(job, "scheduler", "params"), f"scheduler {kind} needs the parameter `{name}`"


@rule("PAR115", Severity.ERROR)
def scheduler_unknown(job: Job) -> Iterator[Finding]:
    """The scheduler in the DeepSpeed JSON is none of DeepSpeed's.

    Why: "DeepSpeed does not recognize LR scheduler", after the model is loaded on every rank. Classes of
    torch.optim.lr_scheduler are found, but refuse the optimizer that DeepSpeed has wrapped: "is not an Optimizer" (seen
    in a run in stages 0, 2 and 3). Without a type, the Trainer stops at the first step.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._scheduler_from_config,
    deepspeed/runtime/engine.py:DeepSpeedEngine._configure_lr_scheduler
    Fix: remove the block, so that the recipe's `lr_scheduler_type` applies; or the right name, such as WarmupCosineLR.
    """
    known, block = data.table("deepspeed")["schedulers"], _value(job, "scheduler")
    kind = _kind(job, "scheduler")
    wrapped = job.zero_stage > 0 or job.half  # else a class of torch gets torch's own
    if isinstance(block, Mapping) and kind not in known and (wrapped or kind is None):
        what = f"DeepSpeed has no scheduler {kind}{suggest(kind, known)}" if kind else "the scheduler has no `type`"
        place = deepspeed(job, "scheduler", "type") if kind else deepspeed(job, "scheduler", at_key=True)
        yield place, f"{what}; without the block `lr_scheduler_type` applies"


@rule("PAR118", Severity.ERROR)
def optimizer_parameter_unknown(job: Job) -> Iterator[Finding]:
    """Adam in the DeepSpeed JSON does not take one of its parameters.

    Why: TypeError "unexpected keyword argument" when the engine is built, after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._configure_basic_optimizer,
    deepspeed/ops/adam/fused_adam.py:FusedAdam.__init__
    Fix: remove the block, so that the recipe's `optim` applies; or correct the name. `max_grad_norm` is called
    `gradient_clipping` and stands at the top.
    """
    given = _value(job, "optimizer.params")
    if (_kind(job, "optimizer") or "").lower() in ("adam", "adamw") and isinstance(given, Mapping):
        for name in given:
            if name not in OF_ADAM:
                place = deepspeed(job, "optimizer", "params", name, at_key=True)
                yield place, f"Adam takes no parameter `{name}`{suggest(name, OF_ADAM)}"


@rule("PAR119", Severity.ERROR)
def engine_refuses(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON asks for things that exclude each other.

    Why: the engine stops when it is built, after the model is loaded on every rank: amp and ZeRO, gradients scaled
    before the reduction and ZeRO-2's reduce_scatter, elasticity and fixed batch sizes (which the Trainer always gives).
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._do_optimizer_sanity_check,
    deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.__init__,
    deepspeed/runtime/config.py:DeepSpeedConfig.__init__
    Fix: remove the key in the message.
    """
    if _value(job, "amp.enabled") is True and job.zero_stage > 0:
        yield deepspeed(job, "amp", "enabled"), "amp does not work with ZeRO; remove the block, `bf16: true` does"
    scattered = job.zero_stage == 2 and _value(job, "zero_optimization.reduce_scatter") is not False
    if scattered and _value(job, "prescale_gradients") is True:
        yield deepspeed(job, "prescale_gradients"), "prescale_gradients does not work with reduce_scatter; remove it"
    if _value(job, "elasticity.enabled") is True and not _value(job, "elasticity.ignore_non_elastic_batch_info"):
        place = deepspeed(job, "elasticity", "enabled")
        yield place, "elasticity refuses the batch sizes that the Trainer fills in; remove the block"


def _value(job: Job, path: str) -> Any:
    return job.zero.value(path) if job.zero else None


def _kind(job: Job, block: str) -> str | None:
    kind = _value(job, f"{block}.type")
    return kind if isinstance(kind, str) else None
