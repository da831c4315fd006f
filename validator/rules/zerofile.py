"""PAR1xx: a DeepSpeed JSON file by itself. What must agree with the recipe is in parallel.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.tables import data
from validator.tables.suggestion import suggest

_COMMENTS = ("_", "/", "#", "comment")
# Where "auto" is replaced: by the Trainer (transformers/integrations/deepspeed.py) and by accelerate
# (utils/dataclasses.py and accelerator.py).
_FILLED = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "fp16.enabled", "bf16.enabled", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
    "optimizer.params.weight_decay", "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps", "zero_optimization.stage",
    "zero_optimization.reduce_bucket_size", "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.device", "zero_optimization.offload_param.nvme_path",
}  # fmt: skip
# deepspeed/runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS, as types of the `optimizer` block
_ZERO_OPTIMIZERS = {"adam", "adamw", "adagrad", "lion", "muon"}
_TRUE_WORDS = {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0"}


@rule("PAR101", Severity.WARNING)
def key_ignored(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON holds a key that DeepSpeed does not read.

    Why: outside the strict blocks unknown keys are ignored without a word, so the default applies.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._initialize_params
    Fix: correct it, move it into its block, or remove it. A remark may be called `_comment`.
    """
    top: Mapping[str, Any] = data.table("deepspeed")["keys"]
    for key in _config(job):
        if key not in top and not key.startswith(_COMMENTS) and _config(job)[key] != "auto":
            yield (
                "deepspeed",
                f"`{key}` is not a key of DeepSpeed and is ignored{_place(key) or suggest(key, top)}",
            )
    for path, block, facts in _blocks(job):
        for key in block if facts["unknown"] == "ignored" else ():
            if key not in facts["fields"]:
                yield "deepspeed", f"`{path}.{key}` is ignored by DeepSpeed{suggest(key, facts['fields'])}"


@rule("PAR102", Severity.ERROR)
def key_refused(job: Job) -> Iterator[Finding]:
    """A strict block of the DeepSpeed JSON holds a key that DeepSpeed does not know.

    Why: "Extra inputs are not permitted", when the engine is built: after the data set is tokenized and the model is
    loaded on every rank.
    Source: deepspeed/runtime/config_utils.py:DeepSpeedConfigModel
    Fix: correct or remove the key.
    """
    for path, block, facts in _blocks(job):
        if facts["unknown"] == "error":
            known = _names(facts)
            for key in block:
                if key not in known and block[key] != "auto":
                    near = suggest(key, known)
                    yield "deepspeed", f"`{path}.{key}` is not known, DeepSpeed stops at it{near}"


@rule("PAR103", Severity.ERROR)
def value_refused(job: Job) -> Iterator[Finding]:
    """A value in the DeepSpeed JSON has the wrong type, or is out of range.

    Why: pydantic refuses it when the engine is built, after the model is loaded on every rank; a block that is no
    object already while the arguments are parsed.
    Source: deepspeed/runtime/config_utils.py:DeepSpeedConfigModel, deepspeed/runtime/zero/config.py:DeepSpeedZeroConfig
    Fix: give a value of the type named, or "auto" where the Trainer fills it in.
    """
    config, tables = _config(job), data.table("deepspeed")["blocks"]
    for key in config:
        wanted = key in {*tables, "optimizer", "scheduler"} - {"zero_optimization"}
        if wanted and not isinstance(config[key], Mapping):
            yield "deepspeed", f"`{key}` is {_spoken(config[key])}, not an object"
    for path, block, facts in _blocks(job):
        for key, fact in _names(facts).items():
            problem = _problem(block[key], fact) if key in block and facts["unknown"] == "error" else None
            if problem:
                yield "deepspeed", f"`{path}.{key}` is {_spoken(block[key])}, {problem}"


@rule("PAR104", Severity.ERROR)
def zero_block_missing(job: Job) -> Iterator[Finding]:
    """The DeepSpeed JSON has no `zero_optimization` object.

    Why: every process stops while the arguments are parsed: "Please specify the ZeRO optimization config".
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.__post_init__
    Fix: `"zero_optimization": {"stage": 2}`; stage 0 shards nothing.
    """
    if _config(job) and not isinstance(_config(job).get("zero_optimization"), Mapping):
        yield (
            "deepspeed",
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
            "deepspeed",
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
                "deepspeed",
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
        yield "deepspeed", 'turns on fp16 and bf16 at once; write `"enabled": "auto"` in both'


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
        yield "deepspeed", f'stage 3 saves shards and no model.safetensors; add `"{names[0]}": true`'


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
            yield "deepspeed", f'{name} goes to nvme, but has no `nvme_path`; add it, or use `"device": "cpu"`'


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
            "deepspeed",
            f"offload_param works in stage 3 only; in stage {job.zero_stage} the weights stay on the device",
        )
    if _block(job, "offload_optimizer").get("device") == "nvme":
        yield "deepspeed", f"offload_optimizer to nvme needs stage 3; in stage {job.zero_stage} it fills main memory"


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
        yield "deepspeed", "offload_optimizer in stage 0 fails at the first step; use stage 1, 2 or 3"
    own = "optimizer" in job.zero.config or job.zero.config.get("zero_force_ds_cpu_optimizer") is False
    if job.zero.block.get("cpu_offload") is True and not own:
        yield "deepspeed", 'the Trainer does not know `cpu_offload`; write `"offload_optimizer": {"device": "cpu"}`'


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
            "deepspeed",
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
            yield "deepspeed", f"scheduler {kind} takes no parameter `{name}`{suggest(name, known)}"


@rule("PAR114", Severity.ERROR)
def auto_not_filled(job: Job) -> Iterator[Finding]:
    """A key is "auto" that neither the Trainer nor accelerate fills in.

    Why: ValueError "not found in kwargs", after the data set is tokenized and the model is loaded on every rank.
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.fill_match,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: write a value, or remove the key: DeepSpeed's default applies then.
    """
    known = {name for path in _FILLED for name in path.split(".")}
    for path in _autos(_config(job)):
        if path not in _FILLED:
            near = "" if path.rpartition(".")[2] in known else suggest(path, _FILLED)
            yield "deepspeed", f'`{path}` is "auto", which nothing fills in; write a value or remove it{near}'


def _autos(block: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _autos(value, f"{above}{key}.")
        elif value == "auto":
            yield f"{above}{key}"


def _config(job: Job) -> Mapping[str, Any]:
    return job.zero.config if job.zero else {}


def _block(job: Job, name: str) -> Mapping[str, Any]:
    found = job.zero.block.get(name) if job.zero else None
    return found if isinstance(found, Mapping) else {}


def _type(job: Job, name: str) -> str | None:
    block = _config(job).get(name)
    found = block.get("type") if isinstance(block, Mapping) else None
    return found if isinstance(found, str) else None


def _enabled(job: Job, name: str) -> Any:
    block = _config(job).get(name)
    return block.get("enabled") if isinstance(block, Mapping) else None


def _blocks(job: Job) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Every block of the configuration that DeepSpeed has a table for, by its dotted path."""
    for path, facts in data.table("deepspeed")["blocks"].items():
        found: Any = _config(job)
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            yield path, found, facts


def _names(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Fields of a block under each of their spellings."""
    fields: Mapping[str, Mapping[str, Any]] = facts["fields"]
    return {**fields, **{fact["alias"]: fact for fact in fields.values() if "alias" in fact}}


def _place(key: str) -> str:
    """Where a key belongs that stands at the top by mistake."""
    for path, facts in data.table("deepspeed")["blocks"].items():
        if key in _names(facts) and "." not in path and key != "enabled":
            return f"; it belongs into `{path}`"
    return ""


def _problem(value: Any, fact: Mapping[str, Any]) -> str | None:
    """Why pydantic refuses a value; None where it takes it. Lenient as DeepSpeed's models are."""
    if value == "auto" or "type" not in fact or (value is None and fact.get("optional")):
        return None
    kinds = fact["type"].split("|")
    if not any(_fits(value, kind) for kind in kinds):
        return f"not {' or '.join(_SPOKEN.get(kind, kind) for kind in kinds)}"
    if "choices" in fact and _number(value) not in fact["choices"]:
        return f"not one of {', '.join(str(choice) for choice in fact['choices'])}"
    low, high = fact.get("minimum"), fact.get("maximum")
    number = _number(value)
    if isinstance(number, (int, float)) and (
        (low is not None and number < low) or (high is not None and number > high)
    ):
        return f"not {f'between {low} and {high}' if high is not None else f'at least {low}'}"
    return None


_SPOKEN = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
           "dict": "an object"}  # fmt: skip


def _fits(value: Any, kind: str) -> bool:
    number = _number(value)
    match kind:
        case "bool":
            return number in (0, 1) or str(value).lower() in _TRUE_WORDS
        case "int":
            return isinstance(number, int) or (isinstance(value, float) and value.is_integer())
        case "float":
            return isinstance(number, (int, float))
        case "str":
            return isinstance(value, str)
        case "list":
            return isinstance(value, list)
        case "dict":
            return isinstance(value, Mapping)
    return True


def _number(value: Any) -> Any:
    """Text as the number pydantic reads in it; anything else as it is. An integer takes no exponent."""
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return value


def _spoken(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"`{value}`" if isinstance(value, str) else str(value)
