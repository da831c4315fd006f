"""PAR104 to PAR111, PAR116 and PAR117: what a DeepSpeed JSON file asks for, by itself. Its keys and values are in
zerokeys.py, its optimizer and scheduler in zeroengine.py, what must agree with the recipe in parallel.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.inside import deepspeed
from validator.rules.rule import Finding, rule


@rule("PAR104", Severity.ERROR)
def zero_block_missing(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON has no `zero_optimization` object.

    Why: every process stops while the arguments are parsed: "Please specify the ZeRO optimization config".
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.__post_init__
    Fix: `"zero_optimization": {"stage": 2}`; stage 0 shards nothing.
    """
    read = job.zero is not None and (job.zero.config or job.zero.path) and not job.zero.problem
    if read and not isinstance(_config(job).get("zero_optimization"), Mapping):
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


@rule("PAR116", Severity.NOTE)
def recomputation_unread(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON has an `activation_checkpointing` block, which nothing reads.

    Why: it configures deepspeed.checkpointing, which no model of transformers calls; activations are recomputed as the
    recipe says, by default always, and none of them goes to main memory.
    Source: deepspeed/runtime/activation_checkpointing/checkpointing.py:configure,
    transformers/modeling_utils.py:PreTrainedModel.gradient_checkpointing_enable
    Fix: remove the block; `disable_gradient_checkpointing` in the recipe is the switch.
    """
    if "activation_checkpointing" in _config(job):
        place = deepspeed(job, "activation_checkpointing", at_key=True)
        yield place, "nothing reads `activation_checkpointing`; `disable_gradient_checkpointing` in the recipe decides"


@rule("PAR117", Severity.WARNING)
def gradients_overtaken(job: Job) -> Iterator[Finding]:
    """ZeRO-2 overlaps communication with the contiguous buffer of gradients.

    Why: before release 0.19.0 (LLaMA-Factory asks for at most 0.18.4) DeepSpeed can overwrite or free a buffer that is
    still being reduced: grad_norm becomes nan and the loss 0, on some runs only (github.com/deepspeedai/DeepSpeed
    issues 7188 and 5347, pull requests 7371, 7805 and 7965; LLaMA-Factory issues 4850, 5627 and 8137).
    Source: deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.allreduce_and_copy
    Fix: `"overlap_comm": false`, as in LLaMA-Factory's own ZeRO-2 files.
    """
    block = job.zero.block if job.zero else {}
    if job.zero_stage == 2 and block.get("overlap_comm") is True and block.get("contiguous_gradients", True) is True:
        place = deepspeed(job, "zero_optimization", "overlap_comm")
        yield place, "overlap_comm in ZeRO-2 can turn gradients into nan before DeepSpeed 0.19.0; write false"


def _config(job: Job) -> Mapping[str, Any]:
    return job.zero.config if job.zero else {}


def _block(job: Job, name: str) -> Mapping[str, Any]:
    block = job.zero.block.get(name) if job.zero else None
    return block if isinstance(block, Mapping) else {}


def _enabled(job: Job, name: str) -> Any:
    block = _config(job).get(name)
    return block.get("enabled") if isinstance(block, Mapping) else None
