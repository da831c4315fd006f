"""PAR: DeepSpeed values against the recipe's, one and several devices. What shards cannot do is in sharded.py, the JSON
itself in zerofile.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from validator.diagnostic import Place, Severity
from validator.job import ray, zero
from validator.job.job import Job
from validator.rules.inside import deepspeed
from validator.rules.rule import Finding, rule

# Key in the JSON, key in the recipe: the Trainer demands equality (transformers/integrations/deepspeed.py).
_EQUAL = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
}
_BATCH = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@rule("PAR001", Severity.ERROR)
def value_contradicted(job: Job) -> Iterator[Finding]:
    """A fixed value in the DeepSpeed JSON differs from the recipe's.

    Why: "Please correct the following DeepSpeed config values that mismatch TrainingArguments values", after the data
    set is tokenized and the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: "auto" in the JSON: the recipe alone decides.
    """
    for path, key in _EQUAL.items():
        fixed, wanted = _value(job, path), job.get(key)
        free = path in _BATCH[:1] and job.flag("auto_find_batch_size")
        if fixed is not None and fixed != "auto" and fixed != wanted and not free:
            yield _at(job, path, key), _contradiction(job, path, fixed, key, wanted)
    path, keys = "optimizer.params.betas", ("adam_beta1", "adam_beta2")
    fixed, betas = _value(job, path), [job.get(key) for key in keys]
    if fixed is not None and fixed != "auto" and fixed != betas:
        yield _at(job, path, *keys), _contradiction(job, path, fixed, " and ".join(keys), betas)


@rule("PAR002", Severity.ERROR)
def batch_size_wrong(job: Job) -> Iterator[Finding]:
    """train_batch_size in the JSON is not micro batch x accumulation x devices.

    Why: the Trainer and DeepSpeed both check the product, after the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    deepspeed/runtime/config.py:DeepSpeedConfig._batch_assertion
    Fix: `"train_batch_size": "auto"`.
    """
    size = _value(job, "train_batch_size")
    right = all(_value(job, path) in (None, "auto", job.get(_EQUAL[path])) for path in _BATCH)
    if size in (None, "auto") or job.machine is None or not right or job.flag("auto_find_batch_size"):
        return
    micro, steps = job.micro_batch, job.accumulation
    if size != job.effective_batch:
        yield (
            _at(job, "train_batch_size", *(_EQUAL[path] for path in _BATCH)),
            (
                f"train_batch_size is {size}, but {micro} x {steps} x {job.world} = {job.effective_batch} (micro "
                'batch x accumulation x devices); write "auto"'
            ),
        )


@rule("PAR003", Severity.ERROR)
def precision_contradicted(job: Job) -> Iterator[Finding]:
    """The JSON fixes a precision that is not the recipe's.

    Why: the Trainer refuses the pair; with `bf16: true` in the recipe and fp16 in the JSON, or the other way round,
    after the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: `"enabled": "auto"` in both blocks of the JSON: the recipe alone decides.
    """
    both = all(_value(job, f"{name}.enabled") is True for name in ("fp16", "bf16"))
    for name in ("fp16", "bf16") if not both else ():
        fixed, wanted = _value(job, f"{name}.enabled"), job.flag(name) or job.flag(f"{name}_full_eval")
        if fixed not in (None, "auto") and fixed != wanted:
            yield (
                _at(job, f"{name}.enabled", name),
                (
                    f"{_file(job)} sets {name}.enabled to {json.dumps(fixed)}, the recipe has {name} "
                    f'{"on" if wanted else "off"}; write "auto" in the JSON'
                ),
            )


@rule("PAR004", Severity.ERROR)
def accumulation_missing(job: Job) -> Iterator[Finding]:
    """The JSON leaves gradient accumulation out, and the recipe accumulates.

    Why: accelerate then puts 1 into the JSON, and the batch sizes no longer multiply, after the model is loaded.
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.__post_init__
    Fix: `"gradient_accumulation_steps": "auto"`.
    """
    steps = job.accumulation
    config = job.zero.config if job.zero else {}
    sized = all(config.get(key) is not None for key in ("zero_optimization", "train_batch_size", _BATCH[0]))
    if sized and "gradient_accumulation_steps" not in config and steps > 1:
        yield (
            _at(job, "gradient_accumulation_steps", "gradient_accumulation_steps"),
            (
                f"{_file(job)} leaves out gradient_accumulation_steps, which then is 1 and not {steps}; "
                'add `"gradient_accumulation_steps": "auto"`'
            ),
        )


@rule("PAR005", Severity.WARNING)
def optimizer_replaced(job: Job) -> Iterator[Finding]:
    """The JSON brings its own optimizer or scheduler, so the recipe's is not used.

    Why: `optim` and `lr_scheduler_type` have no effect, and a missing learning rate becomes DeepSpeed's 0.001.
    Source: accelerate/accelerator.py:Accelerator._prepare_deepspeed,
    transformers/integrations/deepspeed.py:deepspeed_optim_sched
    Fix: remove the `optimizer` and `scheduler` blocks from the JSON.
    """
    for block, key in (("optimizer", "optim"), ("scheduler", "lr_scheduler_type")):
        if _value(job, f"{block}.type") and job.has(key):
            kind = _value(job, f"{block}.type")
            place = deepspeed(job, block, at_key=True, against=(key,))
            yield place, f"{block} {kind} of {_file(job)} replaces `{key}: {job.get(key)}`; remove the block"
    if _value(job, "optimizer.type") and _value(job, "optimizer.params.lr") is None:
        yield (
            _at(job, "optimizer.params.lr", "learning_rate"),
            (
                f"the optimizer block of {_file(job)} has no lr, so `learning_rate` is not used but DeepSpeed's 0.001; "
                'write `"params": {"lr": "auto"}`'
            ),
        )


@rule("PAR023", Severity.WARNING)
def gradients_lost(job: Job) -> Iterator[Finding]:
    """ZeRO-2 with the optimizer in host memory, and more than two micro batches to a step.

    Why: from DeepSpeed 0.15.2 to 0.18.9 only the first and the last micro batch of a step train: the gradients of the
    others are never copied to host memory. The loss falls all the same, and the gradient norm is too small.
    Source: deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.async_accumulate_grad_in_cpu_via_gpu
    Fix: `deepspeed: deepspeed/ds_z3_offload.json`; or at most 2 for `gradient_accumulation_steps`, and more samples in
    each micro batch; DeepSpeed 0.19 has it right.
    """
    lost = job.accumulation - zero.KEPT_OFFLOADED
    if job.trains and job.zero and job.zero_stage == 2 and job.zero.offload("offload_optimizer") and lost > 0:
        yield (
            "gradient_accumulation_steps",
            (
                f"{lost} of {job.accumulation} micro batches of a step are lost: ZeRO-2 with the optimizer in host "
                "memory keeps the first and the last (DeepSpeed 0.15.2 to 0.18.9); set "
                "`deepspeed: deepspeed/ds_z3_offload.json`"
            ),
        )


@rule("PAR006", Severity.NOTE)
def launcher_needed(job: Job) -> Iterator[Finding]:
    """DeepSpeed on one device.

    Why: LLaMA-Factory starts torchrun by itself only for several devices: "Please use FORCE_TORCHRUN=1".
    Source: llamafactory/launcher.py:launch, llamafactory/hparams/parser.py:get_train_args
    Fix: `FORCE_TORCHRUN=1 llamafactory-cli train ...`; `lmf-recipes train` sets it.
    """
    if job.zero and job.machine and job.world == 1:
        yield (
            "deepspeed",
            "DeepSpeed on one device needs FORCE_TORCHRUN=1 in the environment; `lmf-recipes train` sets it",
        )


@rule("PAR007", Severity.NOTE)
def nodes_to_join(job: Job) -> Iterator[Finding]:
    """The machine has several nodes.

    Why: each node starts its own command and must be told its place; LLaMA-Factory reads NODE_RANK, not RANK. With
    RDZV_ID nodes find their places themselves.
    Source: llamafactory/launcher.py:launch
    Fix: `lmf-recipes submit`, which has SLURM, SkyPilot or Kubernetes start all of them; without a scheduler NNODES,
    NODE_RANK, MASTER_ADDR and MASTER_PORT on every node: `lmf-recipes explain` shows the commands.
    """
    otherwise = job.accelerate or ray.on() or "RDZV_ID" in os.environ
    if job.machine and job.machine.nodes > 1 and not otherwise:
        yield (
            "machine",
            (
                f"{job.machine.nodes} nodes: `lmf-recipes submit` has a scheduler start them; by hand each needs "
                f"FORCE_TORCHRUN=1 NNODES={job.machine.nodes} NODE_RANK MASTER_ADDR MASTER_PORT in its environment"
            ),
        )


def _value(job: Job, path: str) -> Any:
    return job.zero.value(path) if job.zero else None


def _at(job: Job, path: str, *keys: str) -> Place:
    """The value at a dotted path of the JSON, against these keys of the recipe."""
    return deepspeed(job, *path.split("."), against=keys)


def _file(job: Job) -> str:
    return f"`{Path(job.zero.path).name}`" if job.zero and job.zero.path else "the DeepSpeed configuration"


def _contradiction(job: Job, path: str, fixed: Any, key: str, wanted: Any) -> str:
    return f'{path} is {fixed} in {_file(job)}, {key} is {wanted} in the recipe; write "auto" in the JSON'
