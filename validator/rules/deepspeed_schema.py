"""PAR101 to PAR103 and PAR114: keys and values of a DeepSpeed JSON file against DeepSpeed's own pydantic models.

These models are lenient: "1e8" is a number, "yes" is true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from validator.knowledge.releases import range_admits
from validator.knowledge.tables import json_table
from validator.recipe.suggestions import suggest, unknown_name
from validator.rules import subjects
from validator.rules.recipe_schema import TYPE_WORDS
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.recipe_arguments import finite_number
from validator.run.settings import RunSettings
from validator.wording import shown_value

_TYPE_WORDS = {**TYPE_WORDS, "dict": "an object"}
_LARGEST_NUMBER_SHOWN = 1e15
_BOOL_WORDS = {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0"}


def pydantic_problem(value: Any, fact: Mapping[str, Any]) -> str | None:
    """Return why pydantic refuses the value of a field of a DeepSpeed file, as text for a message; None if it accepts
    the value. `fact`: the field's type, choices and limits. Strings are converted to numbers and truth values, as in
    DeepSpeed's models."""
    if value == "auto" or "type" not in fact or (value is None and fact.get("optional")):
        return None
    kinds = fact["type"].split("|")
    if not any(_is_of_type(value, kind) for kind in kinds):
        number = _as_number(value)
        whole = "int" in kinds and isinstance(number, float) and abs(number) < _LARGEST_NUMBER_SHOWN
        remedy = f"; write {round(number)}" if whole else ""
        return f"it must be {' or '.join(_TYPE_WORDS.get(kind, kind) for kind in kinds)}{remedy}"
    if "choices" in fact and _as_number(value) not in fact["choices"]:
        return f"it must be one of {', '.join(str(choice) for choice in fact['choices'])}"
    low, high = fact.get("minimum"), fact.get("maximum")
    number = _as_number(value)
    within = isinstance(number, (int, float)) and (low is None or number >= low) and (high is None or number <= high)
    if isinstance(number, (int, float)) and not within:  # which NaN is not, either
        return f"it must be {f'between {low} and {high}' if high is not None else f'at least {low}'}"
    return None


def _is_of_type(value: Any, kind: str) -> bool:
    number = _as_number(value)
    match kind:
        case "bool":
            return number in (0, 1) or str(value).lower() in _BOOL_WORDS
        case "int":
            return isinstance(number, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**63)
        case "float":
            return isinstance(number, (int, float))
        case "str":
            return isinstance(value, str)
        case "list":
            return isinstance(value, list)
        case "dict":
            return isinstance(value, Mapping)
    return True


def _as_number(value: Any) -> Any:
    """Return the number that pydantic reads in a string; any other value is returned unchanged. An integer cannot have
    an exponent, so "1e8" becomes a float."""
    for read in (int, float) if isinstance(value, str) else ():
        with suppress(ValueError):
            return read(value)
    return value


_COMMENT_STARTS = ("_", "/", "#", "comment")
# Where "auto" is replaced: by the Trainer (transformers/integrations/deepspeed.py) and by accelerate
# (utils/dataclasses.py and accelerator.py).
_FILLED_KEYS = {
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

# Compared with the recipe's, so that no wrong number passes (PAR001, PAR002)
_COMPARED_KEYS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
_SCHEDULE_NUMBERS = {"warmup_min_lr": {"type": "float"}}
# Words outside the blocks that have a table, in any spelling (deepspeed/runtime/config.py).
_CHOICES_OUTSIDE_BLOCKS = {
    "communication_data_type": ("fp16", "bf16", "fp32"),
    "seq_parallel_communication_data_type": ("fp16", "bf16", "fp32"),
    "checkpoint.tag_validation": ("warn", "ignore", "fail"),
}


@rule("PAR101", WARNING, about=subjects.deepspeed_file)
def key_ignored(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON holds a key that DeepSpeed does not read.

    Why: outside the strict blocks unknown keys are ignored without a word, so the default applies.
    Source: deepspeed/runtime/config.py:DeepSpeedConfig._initialize_params
    Fix: correct it, move it into its block, or remove it. A remark may be called `_comment`.
    """
    top: Mapping[str, Any] = json_table("deepspeed")["keys"]
    for key, value in zero.config.items():
        if key not in top and not key.startswith(_COMMENT_STARTS) and value != "auto":
            belongs = _where_key_belongs(key)
            wrong = f"DeepSpeed does not read `{key}` at the top; move `{key}` into `{belongs}`" if belongs else ""
            yield at("", key, at_key=True), wrong or unknown_name("DeepSpeed key", key, top, " and is ignored")
    for path, block, facts in _known_blocks(zero):
        for key in block if facts["unknown"] == "ignored" else ():
            if key not in facts["fields"]:
                text = unknown_name(f"`{path}` key", key, facts["fields"], " to DeepSpeed and is ignored")
                yield at(path, key, at_key=True), text


@rule("PAR102", ERROR, about=subjects.deepspeed_file)
def key_refused(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """A strict block of the DeepSpeed JSON holds a key that DeepSpeed, or the release of it, does not know.

    Why: "Extra inputs are not permitted", when the engine is built: after the data set is tokenized and the model is
    loaded on every rank.
    Source: deepspeed/runtime/config_utils.py:DeepSpeedConfigModel
    Fix: correct or remove the key.
    """
    table = json_table("deepspeed")
    # A release after that of the table may know more.
    may_be_older = any(range_admits(f"<={table['source']['deepspeed']}", one)
                       for one in run.releases.engine_releases("deepspeed"))  # fmt: skip
    for path, block, facts in _known_blocks(zero):
        names = {fact.get("alias", name): name for name, fact in facts["fields"].items()}
        known = _field_names(facts)
        for key in block if facts["unknown"] == "error" else ():
            since = table["since"].get(f"{path}.{names.get(key, key)}")
            if block[key] == "auto":
                continue
            if key not in known and may_be_older:
                text = unknown_name(f"`{path}` key", key, known, ", and DeepSpeed stops at it")
                yield at(path, key, at_key=True), text
            elif since and run.releases.requires(until=f"deepspeed {since}"):
                found = f"DeepSpeed knows the `{path}` key `{key}` since {since}, and the run's stops at it"
                yield at(path, key, at_key=True), f"{found}; remove `{key}`"


@rule("PAR103", ERROR, about=subjects.deepspeed_file)
def value_refused(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
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
    objects = {*json_table("deepspeed")["blocks"], "optimizer", "scheduler"} - {"zero_optimization"}
    for key, value in zero.config.items():
        if key in objects and not isinstance(value, Mapping):
            found = f"`{key}` is {shown_value(value)}; it must be an object"
            yield at("", key), f"{found}; write the settings in braces, or remove `{key}`"
    for path, words in _CHOICES_OUTSIDE_BLOCKS.items():
        value = zero.value(path)
        if value not in (None, "auto") and str(value).lower() not in words:
            yield at(path), f"`{path}` is {shown_value(value)}; it must be one of {', '.join(words)}"
    if isinstance(clock := zero.config.get("wall_clock_breakdown"), str) and clock != "auto":
        text = f"`wall_clock_breakdown` is {shown_value(clock)}; write true or false, without quotes"
        yield at("wall_clock_breakdown"), text
    if zero.block.get("offload_optimizer", {}) is None:
        place = at("zero_optimization.offload_optimizer")
        yield place, "`offload_optimizer` is null, at which Accelerate stops; remove `offload_optimizer`"
    for path, block, facts in _known_blocks(zero):
        for key, fact in _field_names(facts).items():
            fault = pydantic_problem(block[key], fact) if key in block and facts["unknown"] == "error" else None
            if fault:
                yield at(path, key), f"`{path}.{key}` is {shown_value(block[key])}; {fault}"


@rule("PAR122", WARNING, about=subjects.deepspeed_file)
def number_unusable(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """A number in the DeepSpeed JSON is not finite or larger than any run can mean, or something else stands for it.

    Why: DeepSpeed takes it as it is: a loss scale or a rate that is NaN makes the weights NaN, `true` counts as 1, and
    text ends in a TypeError where it is computed with.
    Source: deepspeed/runtime/config_utils.py:get_scalar_param,
    deepspeed/runtime/precision_config.py:DeepSpeedFP16Config
    Fix: a number, or leave the key out.
    """
    top = {key: fact for key, fact in json_table("deepspeed")["keys"].items() if key not in _COMPARED_KEYS}
    blocks = [("", zero.config, top), ("scheduler.params", zero.value("scheduler.params"), _SCHEDULE_NUMBERS)]
    blocks += [(path, block, _field_names(facts)) for path, block, facts in _known_blocks(zero)]
    refused = {place for place, *_ in value_refused.check(run, at, zero)}
    for path, block, facts in blocks:
        for key, value in block.items() if isinstance(block, Mapping) else ():
            is_number = {"int", "float"} >= {*str(facts.get(key, {}).get("type")).split("|")}
            given = value not in (None, "auto") and at(path, key) not in refused
            if is_number and given and finite_number(_as_number(value)) is None:
                found = f"`{f'{path}.{key}'.lstrip('.')}` is {shown_value(value)}, which DeepSpeed takes for a number"
                yield at(path, key), f"{found}; write a number below 1e18, or remove `{key}`"


@rule("PAR114", ERROR, about=subjects.deepspeed_file)
def auto_not_filled(_run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """A key is "auto" that neither the Trainer nor accelerate fills in.

    Why: ValueError "not found in kwargs", after the data set is tokenized and the model is loaded on every rank.
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.fill_match,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: write a value, or remove the key: DeepSpeed's default applies then.
    """
    known = {name for path in _FILLED_KEYS for name in path.split(".")}
    for route in _auto_routes(zero.config):
        path = ".".join(route)
        if path not in _FILLED_KEYS:
            near = "" if route[-1] in known else suggest(path, _FILLED_KEYS)
            remedy = near or f"; write a value, or remove `{route[-1]}`"
            yield at("", *route), f'`{path}` is "auto", which nothing fills in{remedy}'


def _auto_routes(block: Mapping[str, Any], route: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys that lead to each "auto" in a block of the DeepSpeed configuration, as a tuple."""
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _auto_routes(value, (*route, str(key)))
        elif value == "auto":
            yield (*route, str(key))


def _known_blocks(zero: DeepSpeedConfig) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each block of the DeepSpeed configuration whose fields are in this package's tables: the block's dotted
    path, its values, and the tables' facts about its fields."""
    for path, facts in json_table("deepspeed")["blocks"].items():
        block = zero.value(path)
        if isinstance(block, Mapping):
            yield path, block, facts


def _field_names(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the facts about each field of a block of the DeepSpeed configuration, by the field's name and by its
    alias. `facts`: the entry of the block in this package's tables."""
    fields: Mapping[str, Mapping[str, Any]] = facts["fields"]
    return {**fields, **{fact["alias"]: fact for fact in fields.values() if "alias" in fact}}


def _where_key_belongs(key: str) -> str:
    """Return the name of the block to which a key belongs that is written at the top level by mistake; an empty string
    if no block has such a key."""
    for path, facts in json_table("deepspeed")["blocks"].items():
        if key in _field_names(facts) and "." not in path and key != "enabled":
            return str(path)
    return ""
