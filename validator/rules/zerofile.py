"""PAR104 to PAR113: what a DeepSpeed JSON file asks for, by itself. Its keys and values are in zerokeys.py, what must
agree with the recipe in parallel.py."""

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


@rule("PAR104", Severity.ERROR)
def zero_block_missing(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON has no `zero_optimization` object.

    Why: every process stops while the arguments are parsed: "Please specify the ZeRO optimization config".
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.__post_init__
    Fix: `"zero_optimization": {"stage": 2}`; stage 0 shards nothing.
    """
    if _config(job) and not isinstance(_config(job).get("zero_optimization"), Mapping):
        yield (
            deepspeed(job, "zero_optimization"),
            'has no `zero_optimization` object; write `"zero_optimization": {"stage": 2}` (0 shards nothing)',
        )


@rule("PAR105", Severity.ERROR)
def batch_keys_missing(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON gives neither the batch size nor the micro batch size.

    Why: "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided", after the model is loaded.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._set_batch_related_parameters
    Fix: `"train_batch_size": "auto"` and `"train_micro_batch_size_per_gpu": "auto"`.
    """
    config = _config(job)
    if config and all(config.get(key) is None for key in ("train_batch_size", "train_micro_batch_size_per_gpu")):
        yield (
            deepspeed(job, "train_batch_size"),
            'has no batch size; add `"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"`',
        )


@rule("PAR106", Severity.ERROR)
def batch_sizes_disagree(job: Job) -> Iterator[Finding]:
    """No number of devices makes the batch size of the JSON.

    Why: train_batch_size is micro batch x accumulation x devices; DeepSpeed checks it after the model is loaded.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._batch_assertion
    Fix: "auto" for all three.
    """
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    sizes = [_config(job).get(name) for name in names]
    if job.machine is None and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        total, micro, steps = (int(size) for size in sizes if size)
        if total % (micro * steps):
            yield (
                deepspeed(job, "train_batch_size"),
                f"train_batch_size {total} is no multiple of {micro} x {steps} (micro batch x accumulation)",
            )


@rule("PAR107", Severity.ERROR)
def both_precisions(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON turns on fp16 and bf16.

    Why: DeepSpeed takes one; with values fixed like this the Trainer refuses the file in any case.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._initialize_params
    Fix: `"enabled": "auto"` in both blocks: the recipe decides.
    """
    if _enabled(job, "fp16") is True and _enabled(job, "bf16") is True:
        yield deepspeed(job, "fp16", "enabled"), 'turns on fp16 and bf16 at once; write `"enabled": "auto"` in both'


@rule("PAR108", Severity.WARNING)
def weights_not_gathered(job: Job) -> Iterator[Finding]:
    """Stage 3 saves no usable weights.

    Why: each rank saves its shard; the output holds a global_step folder and no model.safetensors, not even an adapter.
    "auto" means false here.
    Source: accelerate/accelerator.py:Accelerator.get_state_dict, transformers/trainer.py:Trainer.save_model
    Fix: `"stage3_gather_16bit_weights_on_model_save": true`. Without it, zero_to_fp32.py in the checkpoint converts.
    """
    names = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")
    old = "stage3_gather_fp16_weights_on_model_save"
    if job.zero_stage == 3 and job.zero and not any(job.zero.block.get(name) is True for name in (*names, old)):
        place = deepspeed(job, "zero_optimization", names[0])
        yield place, f'stage 3 saves shards and no model.safetensors; add `"{names[0]}": true`'


@rule("PAR109", Severity.ERROR)
def offload_path_missing(job: Job) -> Iterator[Finding]:
    """Offload to NVMe without a path.

    Why: DeepSpeed stops when it builds the swap folder, after the model is loaded.
    Source: deepspeed/runtime/zero/partition_parameters.py:Init._validate_remote_device,
    deepspeed/runtime/zero/stage3.py:DeepSpeedZeroOptimizer_Stage3._configure_tensor_swapping
    Fix: `"nvme_path": "/local_nvme"`, or `"device": "cpu"`.
    """
    for name in ("offload_optimizer", "offload_param") if job.zero_stage == 3 else ():
        block = _block(job, name)
        if block.get("device") == "nvme" and block.get("nvme_path") in (None, "auto"):
            place = deepspeed(job, "zero_optimization", name, "device")
            yield place, f'{name} goes to nvme, but has no `nvme_path`; add it, or use `"device": "cpu"`'


@rule("PAR110", Severity.WARNING)
def offload_without_effect(job: Job) -> Iterator[Finding]:
    """Offload of parameters below stage 3, or to NVMe below stage 3.

    Why: only stage 3 moves parameters, and only stage 3 uses NVMe; the weights stay on every device, and optimizer
    state meant for NVMe goes to main memory.
    Source: deepspeed/runtime/zero/config.py:DeepSpeedZeroConfig,
    deepspeed/runtime/engine.py:DeepSpeedEngine._configure_zero_optimizer
    Fix: stage 3, or remove the block.
    """
    if not job.zero or job.zero_stage == 3:
        return
    if job.zero.offload("offload_param"):
        yield (
            deepspeed(job, "zero_optimization", "offload_param", at_key=True),
            f"offload_param works in stage 3 only; in stage {job.zero_stage} the weights stay on the device",
        )
    if _block(job, "offload_optimizer").get("device") == "nvme":
        place = deepspeed(job, "zero_optimization", "offload_optimizer", "device")
        yield place, f"offload_optimizer to nvme needs stage 3; in stage {job.zero_stage} it fills main memory"


@rule("PAR111", Severity.ERROR)
def offload_without_sharding(job: Job) -> Iterator[Finding]:
    """Optimizer offload in stage 0, or spelled the old way.

    Why: the Trainer then builds the CPU's Adam for weights on the device ("must be 'cpu'", at the first step), or with
    the old `cpu_offload: true` none at all (ZeRORuntimeException after the model is loaded).
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._configure_optimizer,
    deepspeed/ops/adam/cpu_adam.py:DeepSpeedCPUAdam.step,
    accelerate/utils/deepspeed.py:HfDeepSpeedConfig.set_stage_and_offload
    Fix: `"offload_optimizer": {"device": "cpu"}` with stage 1, 2 or 3.
    """
    if not job.zero:
        return
    on_cpu = job.machine is not None and job.machine.device.vendor == "cpu"  # where the weights are, too
    if job.zero.offload("offload_optimizer") and job.zero_stage == 0 and not on_cpu:
        place = deepspeed(job, "zero_optimization", "offload_optimizer", at_key=True)
        yield place, "offload_optimizer in stage 0 fails at the first step; use stage 1, 2 or 3"
    own = "optimizer" in job.zero.config or job.zero.config.get("zero_force_ds_cpu_optimizer") is False
    if job.zero.block.get("cpu_offload") is True and not own:
        place = deepspeed(job, "zero_optimization", "cpu_offload", at_key=True)
        yield place, 'the Trainer does not know `cpu_offload`; write `"offload_optimizer": {"device": "cpu"}`'


@rule("PAR112", Severity.ERROR)
def optimizer_untested(job: Job) -> Iterator[Finding]:
    """The optimizer in the DeepSpeed JSON is not one that ZeRO was tested with.

    Why: "You are using an untested ZeRO Optimizer", after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._do_optimizer_sanity_check,
    deepspeed/runtime/zero/utils.py:is_zero_supported_optimizer
    Fix: remove the block, so that the recipe's `optim` applies; or `"zero_allow_untested_optimizer": true`.
    """
    kind = _type(job, "optimizer")
    allowed = _config(job).get("zero_allow_untested_optimizer")
    if kind and kind.lower() not in _ZERO_OPTIMIZERS and job.zero_stage > 0 and not allowed:
        yield (
            deepspeed(job, "optimizer", "type"),
            f"optimizer {kind} is untested with ZeRO; remove the block: the recipe's `optim` applies then",
        )


@rule("PAR113", Severity.ERROR)
def scheduler_parameter_unknown(job: Job) -> Iterator[Finding]:
    """The scheduler in the DeepSpeed JSON does not take one of its parameters.

    Why: TypeError when the engine is built, after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._scheduler_from_config,
    deepspeed/runtime/lr_schedules.py:WarmupLR.__init__, deepspeed/runtime/lr_schedules.py:WarmupDecayLR.__init__,
    deepspeed/runtime/lr_schedules.py:WarmupCosineLR.__init__, deepspeed/runtime/lr_schedules.py:OneCycle.__init__,
    deepspeed/runtime/lr_schedules.py:LRRangeTest.__init__
    Fix: remove the block, so that the recipe's `lr_scheduler_type` and `warmup_steps` apply; or correct the name.
    """
    known = data.table("deepspeed")["schedulers"].get(_type(job, "scheduler") or "", [])
    block = _config(job).get("scheduler")
    given = block.get("params") if isinstance(block, Mapping) else None
    for name in given if known and isinstance(given, Mapping) else ():
        if name not in known:
            kind = _type(job, "scheduler")
            place = deepspeed(job, "scheduler", "params", name, at_key=True)
            yield place, f"scheduler {kind} takes no parameter `{name}`{suggest(name, known)}"


def _config(job: Job) -> Mapping[str, Any]:
    return job.zero.config if job.zero else {}


def _block(job: Job, name: str) -> Mapping[str, Any]:
    block = job.zero.block.get(name) if job.zero else None
    return block if isinstance(block, Mapping) else {}


def _type(job: Job, name: str) -> str | None:
    block = _config(job).get(name)
    kind = block.get("type") if isinstance(block, Mapping) else None
    return kind if isinstance(kind, str) else None


def _enabled(job: Job, name: str) -> Any:
    block = _config(job).get(name)
    return block.get("enabled") if isinstance(block, Mapping) else None
