"""PAR010 to PAR016 and PAR304: FSDP through the `fsdp` and `fsdp_config` keys of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Place, RecipeError, Severity
from validator.job.job import Job
from validator.read.tree import read_json
from validator.rules import inside
from validator.rules.rule import Finding, rule
from validator.tables.suggestion import suggest

_PREFIX, _LAYER = "fsdp_", "DecoderLayer"
_WORDS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")


@rule("PAR010", Severity.ERROR)
def fsdp_word_unknown(job: Job) -> Iterator[Finding]:
    """`fsdp` holds a word that transformers does not know.

    Why: ValueError while the arguments are parsed. Words are separated by spaces, not commas.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args, transformers/trainer_utils.py:FSDPOption
    Fix: full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2, with auto_wrap and offload.
    """
    value = job.get("fsdp")
    for word in value.split() if isinstance(value, str) else ():
        if word not in _WORDS:
            remedy = "; separate the words by spaces" if "," in word else suggest(word, _WORDS)
            yield "fsdp", f"`{word}` is none of {', '.join(_WORDS)}{remedy}"


@rule("PAR011", Severity.ERROR)
def fsdp_words_conflict(job: Job) -> Iterator[Finding]:
    """`fsdp` asks for offload alone, or for two kinds of sharding.

    Why: ValueError while the arguments are parsed.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: `fsdp: full_shard auto_wrap offload`.
    """
    words = job.fsdp_words
    if words == ("offload",):
        yield "fsdp", "`offload` does not work alone; write `full_shard auto_wrap offload`"
    elif {"full_shard", "shard_grad_op"} <= set(words):
        yield "fsdp", "`full_shard` and `shard_grad_op` exclude each other; keep one"


@rule("PAR012", Severity.ERROR)
def fsdp_with_deepspeed(job: Job) -> Iterator[Finding]:
    """FSDP and DeepSpeed are both on.

    Why: "Using --fsdp xxx together with --deepspeed is not possible", after the model is loaded.
    Source: transformers/trainer.py:Trainer.__init__
    Fix: keep one of them.
    """
    if job.fsdp_words and job.engine:
        yield "fsdp", "`fsdp` and `deepspeed` exclude each other; keep one"


@rule("PAR013", Severity.WARNING)
def fsdp_alone(job: Job) -> Iterator[Finding]:
    """FSDP on one device.

    Why: "Using fsdp only works in distributed training" after the model is loaded, unless FORCE_TORCHRUN=1; and there
    is nothing to share with.
    Source: transformers/trainer.py:Trainer.__init__
    Fix: remove `fsdp`.
    """
    if job.fsdp_words and job.machine and job.world == 1:
        yield "fsdp", "FSDP on one device shards nothing, and stops without FORCE_TORCHRUN=1; remove it"
    elif job.fsdp and job.machine and job.world == 1:
        yield "accelerate", "FSDP on one device shards nothing; remove `accelerate`"


@rule("PAR014", Severity.WARNING)
def fsdp_unwrapped(job: Job) -> Iterator[Finding]:
    """FSDP without wrapping the layers.

    Why: the whole model is one unit, so every device gathers all weights at once, and sharding saves little.
    Source: accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.set_auto_wrap_policy
    Fix: `fsdp: full_shard auto_wrap`.
    """
    words = job.fsdp_words
    known = all(word in _WORDS for word in words) and words != ("offload",)
    if words and known and "auto_wrap" not in words and not _xla(job):
        yield "fsdp", "without `auto_wrap` all weights are gathered at once; write `full_shard auto_wrap`"


@rule("PAR015", Severity.ERROR)
def fsdp_config_conflict(job: Job) -> Iterator[Finding]:
    """Two settings of `fsdp_config` exclude each other.

    Why: ValueError while the arguments are parsed.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: wrap by layer class or by size, not both; keep `sync_module_states` with `cpu_ram_efficient_loading`.
    """
    config = _config(job)
    if not job.fsdp_words:
        return
    if config.get("transformer_layer_cls_to_wrap") and _positive(config.get("min_num_params")):
        place = _at(job, "min_num_params")
        yield place, "`min_num_params` and `transformer_layer_cls_to_wrap` exclude each other; keep one"
    lazy = str(config.get("cpu_ram_efficient_loading", False)).lower() == "true"
    if lazy and str(config.get("sync_module_states", True)).lower() == "false" and not _xla(job):
        yield (
            _at(job, "sync_module_states"),
            "`cpu_ram_efficient_loading` needs `sync_module_states: true`; else ranks keep random weights",
        )


@rule("PAR016", Severity.WARNING)
def fsdp_config_ignored(job: Job) -> Iterator[Finding]:
    """`fsdp_config` without `fsdp`.

    Why: nothing is sharded; every device holds the whole model.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: `fsdp: full_shard auto_wrap`, or remove `fsdp_config`.
    """
    if job.get("fsdp_config") and not job.fsdp_words:
        yield "fsdp_config", "has no effect without `fsdp`, nothing is sharded; add `fsdp: full_shard auto_wrap`"


@rule("PAR304", Severity.ERROR)
def layer_of_another_model(job: Job) -> Iterator[Finding]:
    """FSDP is told to wrap the layers of another model.

    Why: "Could not find the transformer layer class", when the trainer wraps the model, after loading it on every rank.
    Source: accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.set_auto_wrap_policy
    Fix: the class of the model's own layers, or leave it out: accelerate then asks the model.
    """
    own = job.model.family.layer if job.model else None
    place, value = _wrapped(job) if job.fsdp else (None, ())
    for word in value:
        if own and own.endswith(_LAYER) and word.endswith(_LAYER) and word != own:
            yield place, f"{job.model_name} has no `{word}`; write `{own}`, or leave it out"


def _wrapped(job: Job) -> tuple[Place, tuple[str, ...]]:
    """The classes that are wrapped, and where they are written: in the accelerate file, else in the recipe."""
    name = "transformer_layer_cls_to_wrap"
    if job.accelerate and job.accelerate.fsdp:
        place, value = inside.fsdp(job, _PREFIX + name), job.accelerate.setting(_PREFIX + name)
    else:
        place, value = _at(job, name), _config(job).get(name) if "auto_wrap" in job.fsdp_words else None
    if isinstance(value, str):
        return place, tuple(value.split(","))
    return place, tuple(str(word) for word in value) if isinstance(value, list) else ()


def _config(job: Job) -> Mapping[str, Any]:
    """The FSDP settings without the prefix `fsdp_`, which transformers strips."""
    return {str(key).removeprefix(_PREFIX): item for key, item in _written(job).items()}


def _written(job: Job) -> Mapping[str, Any]:
    """The FSDP settings by the names under which they are written."""
    value = job.get("fsdp_config")
    if isinstance(value, str) and (location := job.find(value)):
        try:
            value = read_json(str(location[0]))
        except RecipeError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _at(job: Job, name: str) -> Place:
    """A setting, under either name."""
    return inside.settings(job, "fsdp_config", f"{_PREFIX}{name}" if f"{_PREFIX}{name}" in _written(job) else name)


def _xla(job: Job) -> bool:
    return bool(_config(job).get("xla"))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and value > 0
