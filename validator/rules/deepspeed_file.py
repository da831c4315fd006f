"""PAR104 to PAR113, PAR115 to PAR119: settings in a DeepSpeed file that are wrong by themselves, and settings that stop
the engine when it is built."""

from __future__ import annotations

from collections.abc import Mapping

from validator.knowledge.tables import json_table
from validator.recipe.suggestions import unknown_name
from validator.rules import subjects
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.run.deepspeed import GATHERS_ON_SAVE, DeepSpeedConfig
from validator.run.settings import RunSettings


@rule("PAR104", ERROR, about=subjects.deepspeed_file)
def zero_block_missing(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON has no `zero_optimization` object.

    Why: every process stops while the arguments are parsed: "Please specify the ZeRO optimization config".
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.__post_init__
    Fix: `"zero_optimization": {"stage": 2}`; stage 0 shards nothing.
    """
    read = (zero.config or zero.path) and not zero.problem
    if read and not isinstance(zero.config.get("zero_optimization"), Mapping):
        found = "the DeepSpeed configuration has no `zero_optimization` object"
        yield at("zero_optimization"), f'{found}; write `"zero_optimization": {{"stage": 2}}` (stage 0 shards nothing)'


@rule("PAR105", ERROR, about=subjects.deepspeed_file)
def batch_keys_missing(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON gives neither the batch size nor the micro batch size.

    Why: "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided", after the model is loaded.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._set_batch_related_parameters
    Fix: `"train_batch_size": "auto"` and `"train_micro_batch_size_per_gpu": "auto"`.
    """
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu")
    if zero.config and all(zero.config.get(key) is None for key in keys):
        remedy = 'add `"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"`'
        yield at("train_batch_size"), f"the DeepSpeed configuration has no batch size; {remedy}"


@rule("PAR106", ERROR, about=subjects.deepspeed_file)
def batch_sizes_disagree(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """No number of devices makes the batch size of the JSON.

    Why: train_batch_size is micro batch x accumulation x devices; DeepSpeed checks it after the model is loaded.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._batch_assertion
    Fix: "auto" for all three.
    """
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    sizes = [zero.config.get(name) for name in names]
    if run.machine is None and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        total, micro, steps = (int(size) for size in sizes if size)
        if total % (micro * steps):
            found = f"`train_batch_size` is {total}, no multiple of {micro} x {steps} (micro batch x accumulation)"
            remedy = f'write "auto" for `{names[0]}`, `{names[1]}` and `{names[2]}`'
            yield at("train_batch_size"), f"{found}; {remedy}"


@rule("PAR107", ERROR, about=subjects.deepspeed_file)
def both_precisions(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON turns on fp16 and bf16.

    Why: DeepSpeed takes one; with values fixed like this the Trainer refuses the file in any case.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._initialize_params
    Fix: `"enabled": "auto"` in both blocks: the recipe decides.
    """
    if zero.value("fp16.enabled") is True and zero.value("bf16.enabled") is True:
        found = "the DeepSpeed configuration turns on fp16 and bf16 at once"
        yield at("fp16.enabled"), f'{found}; write `"enabled": "auto"` in both blocks'


@rule("PAR108", WARNING, about=subjects.deepspeed_file)
def weights_not_gathered(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """Stage 3 saves no usable weights.

    Why: each rank saves its shard; the output holds a global_step folder and no model.safetensors, not even an adapter.
    "auto" means false here.
    Source: accelerate/accelerator.py:Accelerator.get_state_dict, transformers/trainer.py:Trainer.save_model
    Fix: `"stage3_gather_16bit_weights_on_model_save": true`. Without it, zero_to_fp32.py in the checkpoint converts.
    """
    old, name = "stage3_gather_fp16_weights_on_model_save", GATHERS_ON_SAVE[0]
    if zero.stage == 3 and not any(zero.block.get(each) is True for each in (*GATHERS_ON_SAVE, old)):
        place = at("zero_optimization", name)
        text = f'ZeRO-3 saves shards instead of model.safetensors; add `"{name}": true` to `zero_optimization`'
        yield place, text


@rule("PAR109", ERROR, about=subjects.deepspeed_file)
def offload_path_missing(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """States are offloaded to NVMe, and no path is given.

    Why: DeepSpeed stops when it builds the swap folder, after the model is loaded.
    Source: deepspeed/runtime/zero/partition_parameters.py:Init._validate_remote_device,
    deepspeed/runtime/zero/stage3.py:DeepSpeedZeroOptimizer_Stage3._configure_tensor_swapping
    Fix: `"nvme_path": "/local_nvme"`, or `"device": "cpu"`.
    """
    for name in ("offload_optimizer", "offload_param") if zero.stage == 3 else ():
        path = f"zero_optimization.{name}"
        if zero.value(f"{path}.device") == "nvme" and zero.value(f"{path}.nvme_path") in (None, "auto"):
            remedy = 'add `"nvme_path": "/local_nvme"`, or write `"device": "cpu"`'
            yield at(path, "device"), f"`{name}` goes to NVMe, but has no `nvme_path`; {remedy}"


@rule("PAR110", WARNING, about=subjects.deepspeed_file)
def offload_without_effect(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """Parameters are offloaded below stage 3, or states go to NVMe below stage 3.

    Why: only stage 3 moves parameters, and only stage 3 uses NVMe; the weights stay on every device, and optimizer
    state meant for NVMe goes to main memory.
    Source: deepspeed/runtime/zero/config.py:DeepSpeedZeroConfig,
    deepspeed/runtime/engine.py:DeepSpeedEngine._configure_zero_optimizer
    Fix: stage 3, or remove the block.
    """
    if zero.stage == 3:
        return
    if zero.offload("offload_param"):
        found = f"`offload_param` works in stage 3 only; in stage {zero.stage} the weights stay on the device"
        place = at("zero_optimization.offload_param", at_key=True)
        yield place, f'{found}; set `"stage": 3`, or remove `offload_param`'
    if zero.value("zero_optimization.offload_optimizer.device") == "nvme":
        place = at("zero_optimization.offload_optimizer.device")
        found = f"`offload_optimizer` to NVMe works in stage 3 only; in stage {zero.stage} it fills host memory"
        yield place, f'{found}; set `"stage": 3`, or `"device": "cpu"` if host memory is enough'


@rule("PAR111", ERROR, about=subjects.deepspeed_file)
def offload_without_sharding(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The optimizer is offloaded in stage 0, or by the old spelling.

    Why: the Trainer then builds the CPU's Adam for weights on the device ("must be 'cpu'", at the first step), or with
    the old `cpu_offload: true` none at all (ZeRORuntimeException after the model is loaded).
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._configure_optimizer,
    deepspeed/ops/adam/cpu_adam.py:DeepSpeedCPUAdam.step,
    accelerate/utils/deepspeed.py:HfDeepSpeedConfig.set_stage_and_offload
    Fix: `"offload_optimizer": {"device": "cpu"}` with stage 1, 2 or 3.
    """
    on_cpu = run.machine is not None and run.machine.device.vendor == "cpu"  # where the weights are, too
    if zero.offload("offload_optimizer") and zero.stage == 0 and not on_cpu:
        place = at("zero_optimization.offload_optimizer", at_key=True)
        remedy = 'set `"stage": 2`, or remove `offload_optimizer`'
        yield place, f"`offload_optimizer` in stage 0 fails at the first step; {remedy}"
    own = "optimizer" in zero.config or zero.config.get("zero_force_ds_cpu_optimizer") is False
    if zero.block.get("cpu_offload") is True and not own:
        place = at("zero_optimization.cpu_offload", at_key=True)
        remedy = 'write `"offload_optimizer": {"device": "cpu"}` in its place'
        yield place, f"the Trainer does not know `cpu_offload`; {remedy}"


@rule("PAR116", NOTE, about=subjects.deepspeed_file)
def recomputation_unread(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON has an `activation_checkpointing` block, which nothing reads.

    Why: it configures deepspeed.checkpointing, which no model of transformers calls; activations are recomputed as the
    recipe says, by default always, and none of them goes to main memory.
    Source: deepspeed/runtime/activation_checkpointing/checkpointing.py:configure,
    transformers/modeling_utils.py:PreTrainedModel.gradient_checkpointing_enable
    Fix: remove the block; `disable_gradient_checkpointing` in the recipe is the switch.
    """
    if "activation_checkpointing" in zero.config:
        text = "nothing reads `activation_checkpointing`, as the recipe decides what is recomputed; remove the block"
        yield at("activation_checkpointing", at_key=True), text


@rule("PAR117", WARNING, about=subjects.deepspeed_file, until="deepspeed 0.19.0")
def gradients_overtaken(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """ZeRO-2 overlaps communication with the contiguous buffer of gradients.

    Why: before release 0.19.0 (LLaMA-Factory asks for at most 0.18.4) DeepSpeed can overwrite or free a buffer that is
    still being reduced: grad_norm becomes nan and the loss 0, on some runs only (github.com/deepspeedai/DeepSpeed
    issues 7188 and 5347, pull requests 7371, 7805 and 7965; LLaMA-Factory issues 4850, 5627 and 8137).
    Source: deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.allreduce_and_copy
    Fix: `"overlap_comm": false`, as in LLaMA-Factory's own ZeRO-2 files.
    """
    overlaps = zero.block.get("overlap_comm") is True and zero.block.get("contiguous_gradients", True) is True
    if zero.stage == 2 and overlaps:
        found = "`overlap_comm` in ZeRO-2 can turn gradients into nan before DeepSpeed 0.19.0"
        yield at("zero_optimization.overlap_comm"), f'{found}; write `"overlap_comm": false`'


# deepspeed/runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS, as types of the `optimizer` block
_ZERO_OPTIMIZERS = {"adam", "adamw", "adagrad", "lion", "muon"}
# What the Adam of DeepSpeed, its CPU Adam or torch's takes (deepspeed/ops/adam/fused_adam.py, cpu_adam.py;
# torch/optim/adamw.py), or the engine reads before (runtime/engine.py, _configure_basic_optimizer).
ADAM_PARAMETERS = {
    *("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "torch_adam", "adam_w_mode"),
    *("set_grad_none", "fp32_optimizer_states", "fused", "foreach", "capturable", "differentiable", "maximize"),
}


@rule("PAR112", ERROR, about=subjects.deepspeed_file)
def optimizer_untested(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The optimizer in the DeepSpeed JSON is not one that ZeRO was tested with, or has no type.

    Why: "You are using an untested ZeRO Optimizer" or "requires an optimizer", after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._do_optimizer_sanity_check,
    deepspeed/runtime/zero/utils.py:is_zero_supported_optimizer
    Fix: remove the block, so that the recipe's `optim` applies; or `"zero_allow_untested_optimizer": true`.
    """
    kind = _block_type(zero, "optimizer")
    if kind is None and isinstance(zero.value("optimizer"), Mapping) and zero.stage > 0:
        text = "the block `optimizer` has no `type`; add `type`, or remove the block, so that `optim` applies"
        yield at("optimizer", at_key=True), text
    allowed = zero.value("zero_allow_untested_optimizer")
    if kind and kind.lower() not in _ZERO_OPTIMIZERS and zero.stage > 0 and not allowed:
        found = f"DeepSpeed refuses optimizer {kind}, which is untested with ZeRO"
        yield at("optimizer.type"), f"{found}; remove the block `optimizer`, so that the recipe's `optim` applies"


@rule("PAR113", ERROR, about=subjects.deepspeed_file)
def scheduler_parameters(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The scheduler in the DeepSpeed JSON does not take one of its parameters, or lacks one that it needs.

    Why: TypeError when the engine is built, after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._scheduler_from_config,
    deepspeed/runtime/lr_schedules.py:WarmupLR.__init__, deepspeed/runtime/lr_schedules.py:WarmupDecayLR.__init__,
    deepspeed/runtime/lr_schedules.py:WarmupCosineLR.__init__, deepspeed/runtime/lr_schedules.py:OneCycle.__init__,
    deepspeed/runtime/lr_schedules.py:LRRangeTest.__init__
    Fix: remove the block, so that the recipe's `lr_scheduler_type` and `warmup_steps` apply; or correct the name.
    """
    kind, table = _block_type(zero, "scheduler") or "", json_table("deepspeed")
    known, given = table["schedulers"].get(kind, []), zero.value("scheduler.params")
    if known and not isinstance(given, Mapping):
        yield at("scheduler", at_key=True), f'scheduler {kind} has no `params`; write `"params": {{}}`'
        return
    for name in given if known else ():
        if name not in known:
            yield at("scheduler.params", name, at_key=True), unknown_name(f"{kind} parameter", name, known)
    for name in table["needed"].get(kind, ()):
        if name not in given:
            remedy = f"add `{name}` to `params`, or remove the block `scheduler`"
            yield at("scheduler.params"), f"scheduler {kind} needs the parameter `{name}`; {remedy}"


@rule("PAR115", ERROR, about=subjects.deepspeed_file)
def scheduler_unknown(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON names a scheduler that DeepSpeed does not have.

    Why: "DeepSpeed does not recognize LR scheduler", after the model is loaded on every rank. Classes of
    torch.optim.lr_scheduler are found, but refuse the optimizer that DeepSpeed has wrapped: "is not an Optimizer" (seen
    in a run in stages 0, 2 and 3). Without a type, the Trainer stops at the first step.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._scheduler_from_config,
    deepspeed/runtime/engine.py:DeepSpeedEngine._configure_lr_scheduler
    Fix: remove the block, so that the recipe's `lr_scheduler_type` applies; or the right name, such as WarmupCosineLR.
    """
    known, block = json_table("deepspeed")["schedulers"], zero.value("scheduler")
    kind = _block_type(zero, "scheduler")
    wrapped = zero.stage > 0 or run.precision.compute_dtype  # else a class of torch gets torch's own
    if isinstance(block, Mapping) and kind not in known and (wrapped or kind is None):
        remedy = "add `type`, or remove the block, so that `lr_scheduler_type` applies"
        missing = f"the block `scheduler` has no `type`; {remedy}"
        text = unknown_name("DeepSpeed scheduler", kind, known) if kind else missing
        yield at("scheduler.type" if kind else "scheduler", at_key=not kind), text


@rule("PAR118", ERROR, about=subjects.deepspeed_file)
def optimizer_parameter_unknown(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """Adam in the DeepSpeed JSON does not take one of its parameters.

    Why: TypeError "unexpected keyword argument" when the engine is built, after the model is loaded on every rank.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._configure_basic_optimizer,
    deepspeed/ops/adam/fused_adam.py:FusedAdam.__init__
    Fix: remove the block, so that the recipe's `optim` applies; or correct the name. `max_grad_norm` is called
    `gradient_clipping` and stands at the top.
    """
    given = zero.value("optimizer.params")
    if (_block_type(zero, "optimizer") or "").lower() in ("adam", "adamw") and isinstance(given, Mapping):
        for name in given:
            if name not in ADAM_PARAMETERS:
                text = unknown_name("Adam parameter", name, sorted(ADAM_PARAMETERS))
                yield at("optimizer.params", name, at_key=True), text


# Optimizers of DeepSpeed that compress what they send, in lower case
_COMPRESSED_OPTIMIZERS = ("onebitadam", "onebitlamb", "zerooneadam")


@rule("PAR119", ERROR, about=subjects.deepspeed_file)
def engine_refuses(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON asks for things that exclude each other.

    Why: the engine stops when it is built, after the model is loaded on every rank: amp and ZeRO, gradients scaled
    before the reduction and ZeRO-2's reduce_scatter, elasticity and fixed batch sizes (which the Trainer always gives),
    sequences spread over devices and the Trainer's batch size, which counts all devices, ZeRO and its first stage 1,
    ZeRO and optimizers that compress what they send.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._do_optimizer_sanity_check,
    deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.__init__,
    deepspeed/runtime/config.py:DeepSpeedConfig.__init__,
    deepspeed/runtime/engine.py:DeepSpeedEngine._configure_zero_optimizer,
    deepspeed/runtime/engine.py:DeepSpeedEngine._configure_basic_optimizer
    Fix: remove the key in the message.
    """
    sharded, value, optimizer = zero.stage > 0, zero.value, _block_type(zero, "optimizer") or ""
    scattered = zero.stage == 2 and value("zero_optimization.reduce_scatter") is not False
    rows = (
        ("amp.enabled", value("amp.enabled") is True and sharded,
         "`amp` does not work with ZeRO; remove the block `amp`, and set `bf16: true` in the recipe"),
        ("prescale_gradients", value("prescale_gradients") is True and scattered,
         "`prescale_gradients` does not work with `reduce_scatter`, which is on; remove `prescale_gradients`"),
        ("elasticity.enabled",
         value("elasticity.enabled") is True and not value("elasticity.ignore_non_elastic_batch_info"),
         "`elasticity` refuses the batch sizes that the Trainer fills in; remove the block `elasticity`"),
        ("sequence_parallel_size", value("sequence_parallel_size") not in (None, 1),
         "`sequence_parallel_size` divides the batch size that the Trainer fills in; remove `sequence_parallel_size`"),
        ("zero_optimization.legacy_stage1", value("zero_optimization.legacy_stage1") is True and sharded,
         "DeepSpeed stops at `legacy_stage1`, which is no longer there; remove `legacy_stage1`"),
        ("optimizer.type", optimizer.lower() in _COMPRESSED_OPTIMIZERS and sharded,
         f"{optimizer} does not work with ZeRO; remove the block `optimizer`, so that `optim` applies"),
    )  # fmt: skip
    yield from ((at(key), text) for key, is_refused, text in rows if is_refused)


def _block_type(zero: DeepSpeedConfig, block: str) -> str | None:
    kind = zero.value(f"{block}.type")
    return kind if isinstance(kind, str) else None
