"""PAR101 to PAR103 and PAR114: keys and values of a DeepSpeed JSON file against DeepSpeed's own tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Place, Severity
from validator.job.job import Job
from validator.rules.inside import deepspeed
from validator.rules.lenient import problem, spoken
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

# Words outside the blocks that have a table, in any spelling (deepspeed/runtime/config.py).
_WORDS = {
    "communication_data_type": ("fp16", "bf16", "fp32"),
    "seq_parallel_communication_data_type": ("fp16", "bf16", "fp32"),
    "checkpoint.tag_validation": ("warn", "ignore", "fail"),
}


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
            hint = _belongs(key) or suggest(key, top)
            yield deepspeed(job, key, at_key=True), f"`{key}` is not a key of DeepSpeed and is ignored{hint}"
    for path, block, facts in _blocks(job):
        for key in block if facts["unknown"] == "ignored" else ():
            if key not in facts["fields"]:
                hint = suggest(key, facts["fields"])
                yield _at(job, path, key, at_key=True), f"`{path}.{key}` is ignored by DeepSpeed{hint}"


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
                    yield _at(job, path, key, at_key=True), f"`{path}.{key}` is not known, DeepSpeed stops at it{near}"


@rule("PAR103", Severity.ERROR)
def value_refused(job: Job) -> Iterator[Finding]:
    """A value in the DeepSpeed JSON has the wrong type, or is out of range.

    Why: pydantic refuses it when the engine is built, after the model is loaded on every rank; a block that is no
    object already while the arguments are parsed.
    Source: deepspeed/runtime/config_utils.py:DeepSpeedConfigModel,
    deepspeed/runtime/zero/config.py:DeepSpeedZeroConfig,
    deepspeed/runtime/config.py:get_communication_data_type,
    deepspeed/runtime/config.py:get_checkpoint_tag_validation_mode,
    accelerate/accelerator.py:Accelerator._prepare_deepspeed
    Fix: give a value of the type named, or "auto" where the Trainer fills it in.
    """
    config, tables = _config(job), data.table("deepspeed")["blocks"]
    objects = {*tables, "optimizer", "scheduler"} - {"zero_optimization"}
    for key in config:
        if key in objects and not isinstance(config[key], Mapping):
            yield deepspeed(job, key), f"`{key}` is {spoken(config[key])}, not an object"
    yield from _outside_blocks(job)
    for path, block, facts in _blocks(job):
        for key, fact in _names(facts).items():
            fault = problem(block[key], fact) if key in block and facts["unknown"] == "error" else None
            if fault:
                yield _at(job, path, key), f"`{path}.{key}` is {spoken(block[key])}, {fault}"


def _outside_blocks(job: Job) -> Iterator[Finding]:
    """Values that no table of a block describes."""
    for path, words in _WORDS.items():
        value = job.zero.value(path) if job.zero else None
        if value not in (None, "auto") and str(value).lower() not in words:
            yield deepspeed(job, *path.split(".")), f"`{path}` is {spoken(value)}, not one of {', '.join(words)}"
    if isinstance(clock := _config(job).get("wall_clock_breakdown"), str) and clock != "auto":
        yield deepspeed(job, "wall_clock_breakdown"), f"`wall_clock_breakdown` is {spoken(clock)}, not true or false"
    block = job.zero.block if job.zero else {}
    if "offload_optimizer" in block and block["offload_optimizer"] is None:
        place = deepspeed(job, "zero_optimization", "offload_optimizer")
        yield place, "`offload_optimizer` is null, at which accelerate stops; leave it out"


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
    for route in _autos(_config(job)):
        path = ".".join(route)
        if path not in _FILLED:
            near = "" if route[-1] in known else suggest(path, _FILLED)
            yield (
                deepspeed(job, *route),
                f'`{path}` is "auto", which nothing fills in; write a value or remove it{near}',
            )


def _autos(block: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Routes to every "auto"."""
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _autos(value, (*above, str(key)))
        elif value == "auto":
            yield (*above, str(key))


def _config(job: Job) -> Mapping[str, Any]:
    return job.zero.config if job.zero else {}


def _blocks(job: Job) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Every block of the configuration that DeepSpeed has a table for, by its dotted path."""
    for path, facts in data.table("deepspeed")["blocks"].items():
        block: Any = _config(job)
        for part in path.split("."):
            block = block.get(part) if isinstance(block, Mapping) else None
        if isinstance(block, Mapping):
            yield path, block, facts


def _at(job: Job, path: str, key: str, at_key: bool = False) -> Place:
    """A key of the block at a dotted path."""
    return deepspeed(job, *path.split("."), key, at_key=at_key)


def _names(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Fields of a block under each of their spellings."""
    fields: Mapping[str, Mapping[str, Any]] = facts["fields"]
    return {**fields, **{fact["alias"]: fact for fact in fields.values() if "alias" in fact}}


def _belongs(key: str) -> str:
    """Where a key belongs that stands at the top by mistake."""
    for path, facts in data.table("deepspeed")["blocks"].items():
        if key in _names(facts) and "." not in path and key != "enabled":
            return f"; it belongs into `{path}`"
    return ""
