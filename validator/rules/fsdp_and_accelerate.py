"""PAR010 to PAR015 and PAR3xx: FSDP by the recipe's keys `fsdp` and `fsdp_config`, and by the accelerate file that
the header block names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.errors import RecipeError
from validator.finding import Place
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.recipe import safe_read
from validator.recipe.safe_read import read_json
from validator.recipe.suggestions import suggest, unknown_name
from validator.rules import subjects
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.rules.subjects import in_accelerate_file, in_fsdp_config, in_json_setting
from validator.run.fsdp import AccelerateFile
from validator.run.settings import RunSettings
from validator.wording import shown_value

_LAYER_SUFFIX = "DecoderLayer"
_LARGEST_NUMBERS = {"machine_rank": 4095, "main_process_port": 65535}
_FSDP_WORDS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")


@rule("PAR010", ERROR)
def fsdp_word_unknown(run: RunSettings) -> Findings:
    """`fsdp` holds a word that transformers does not know.

    Why: ValueError while the arguments are parsed. Words are separated by spaces, not commas.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args, transformers/trainer_utils.py:FSDPOption
    Fix: full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2, with auto_wrap and offload.
    """
    value = run.args.get("fsdp")
    for word in value.split() if isinstance(value, str) else ():
        if word not in _FSDP_WORDS:
            commas = f"`fsdp` word `{word}` is not known; write spaces in place of commas" if "," in word else ""
            yield "fsdp", commas or unknown_name("`fsdp` word", word, _FSDP_WORDS)


@rule("PAR011", ERROR)
def fsdp_words_conflict(run: RunSettings) -> Findings:
    """`fsdp` asks for offload alone, or for two kinds of sharding.

    Why: ValueError while the arguments are parsed.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: `fsdp: full_shard auto_wrap offload`.
    """
    words = run.fsdp_words
    if words == ("offload",):
        yield "fsdp", "`fsdp: offload` does not work alone; write `fsdp: full_shard auto_wrap offload`"
    elif {"full_shard", "shard_grad_op"} <= set(words):
        yield "fsdp", "`full_shard` and `shard_grad_op` exclude each other; remove `shard_grad_op`"


@rule("PAR012", ERROR)
def fsdp_with_deepspeed(run: RunSettings) -> Findings:
    """FSDP and DeepSpeed are both on.

    Why: "Using --fsdp xxx together with --deepspeed is not possible", after the model is loaded.
    Source: transformers/trainer.py:Trainer.__init__
    Fix: keep one of them.
    """
    if run.fsdp_words and run.uses_deepspeed:
        yield "fsdp", "`fsdp` and `deepspeed` exclude each other; remove `fsdp` or `deepspeed`"


@rule("PAR013", WARNING)
def fsdp_alone(run: RunSettings) -> Findings:
    """FSDP is used on one device.

    Why: "Using fsdp only works in distributed training" after the model is loaded, unless FORCE_TORCHRUN=1; and there
    is nothing to share with.
    Source: transformers/trainer.py:Trainer.__init__
    Fix: remove `fsdp`.
    """
    if run.fsdp_words and run.machine and run.batch.world_size == 1:
        yield "fsdp", "FSDP on one device shards nothing, and stops without FORCE_TORCHRUN=1; remove `fsdp`"
    elif run.fsdp and run.machine and run.batch.world_size == 1:
        yield "accelerate", "FSDP on one device shards nothing; remove `accelerate` from the header block"


@rule("PAR014", WARNING)
def fsdp_unwrapped(run: RunSettings) -> Findings:
    """FSDP does not wrap the layers.

    Why: the whole model is one unit, so every device gathers all weights at once, and sharding saves little.
    Source: accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.set_auto_wrap_policy
    Fix: `fsdp: full_shard auto_wrap`.
    """
    words = run.fsdp_words
    known = all(word in _FSDP_WORDS for word in words) and words != ("offload",)
    if words and known and "auto_wrap" not in words and not _fsdp_settings(run).get("xla"):
        found = "without `auto_wrap` each device gathers all weights at once"
        yield "fsdp", f"{found}; write `fsdp: full_shard auto_wrap`"


@rule("PAR015", ERROR)
def fsdp_config_conflict(run: RunSettings) -> Findings:
    """Two settings of `fsdp_config` exclude each other.

    Why: ValueError while the arguments are parsed.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: wrap by layer class or by size, not both; keep `sync_module_states` with `cpu_ram_efficient_loading`.
    """
    config = _fsdp_settings(run) if run.fsdp_words else {}
    least = config.get("min_num_params")
    if config.get("transformer_layer_cls_to_wrap") and isinstance(least, (int, float)) and least > 0:
        place = _fsdp_setting_place(run, "min_num_params")
        found = "`min_num_params` and `transformer_layer_cls_to_wrap` exclude each other"
        yield place, f"{found}; remove `min_num_params`"
    lazy = str(config.get("cpu_ram_efficient_loading", False)).lower() == "true"
    if lazy and str(config.get("sync_module_states", True)).lower() == "false" and not config.get("xla"):
        text = "`cpu_ram_efficient_loading` leaves random weights on most ranks; set `sync_module_states: true`"
        yield _fsdp_setting_place(run, "sync_module_states"), text


@rule("PAR304", ERROR, about=subjects.model)
def layer_of_another_model(run: RunSettings, model: Model) -> Findings:
    """FSDP wraps the layer class of another model.

    Why: "Could not find the transformer layer class", when the trainer wraps the model, after loading it on every rank.
    Source: accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.set_auto_wrap_policy
    Fix: the class of the model's own layers, or leave it out: accelerate then asks the model.
    """
    own = model.family.layer
    place, classes = wrapped_classes(run) if run.fsdp else (None, ())
    for word in classes:
        if own and own.endswith(_LAYER_SUFFIX) and word.endswith(_LAYER_SUFFIX) and word != own:
            found = f"FSDP is to wrap `{word}`, which {run.model_name} does not have"
            yield place, f"{found}; write `{own}`, or remove `transformer_layer_cls_to_wrap`"


def wrapped_classes(run: RunSettings) -> tuple[Place, tuple[str, ...]]:
    """Return the names of the layer classes that FSDP wraps, after the place where they are written: in the accelerate
    config file if it sets up FSDP, otherwise in the recipe."""
    name = "transformer_layer_cls_to_wrap"
    if run.accelerate and run.accelerate.fsdp:
        place, value = in_fsdp_config(run, f"fsdp_{name}"), run.accelerate.setting(f"fsdp_{name}")
    else:
        place = _fsdp_setting_place(run, name)
        value = _fsdp_settings(run).get(name) if "auto_wrap" in run.fsdp_words else None
    if isinstance(value, str):
        return place, tuple(value.split(","))
    return place, tuple(str(word) for word in value) if isinstance(value, list) else ()


def _fsdp_settings(run: RunSettings) -> Mapping[str, Any]:
    """Return the recipe's `fsdp_config` with the prefix `fsdp_` removed from its names, as transformers does."""
    return {str(key).removeprefix("fsdp_"): item for key, item in _fsdp_settings_as_written(run).items()}


def _fsdp_settings_as_written(run: RunSettings) -> Mapping[str, Any]:
    """Return the recipe's `fsdp_config`, or the contents of the JSON file that it names; empty if the file cannot be
    read."""
    value = run.args.get("fsdp_config")
    if isinstance(value, str) and (location := run.workspace.find(value)):
        try:
            value = read_json(str(location[0]))
        except RecipeError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _fsdp_setting_place(run: RunSettings, name: str) -> Place:
    """Return the place of a setting in the recipe's `fsdp_config`. `name`: the setting's name without the prefix
    `fsdp_`, which the recipe may write."""
    prefixed = f"fsdp_{name}"
    return in_json_setting(run, "fsdp_config", prefixed if prefixed in _fsdp_settings_as_written(run) else name)


@rule("PAR301", ERROR, about=subjects.accelerate_file)
def accelerate_file_unusable(run: RunSettings, file: AccelerateFile) -> Findings:
    """The accelerate file is not there, or accelerate does not take it.

    Why: `accelerate launch` stops before anything starts.
    Source: accelerate/commands/config/config_args.py:load_config_from_file,
    accelerate/commands/config/config_args.py:BaseConfig.from_yaml_file
    Fix: name an existing YAML file, from the working directory, with `distributed_type` and keys that accelerate knows.
    """
    if file.problem:
        lies = safe_read.path_kind(file.path)
        if not lies and run.workspace.may_be_elsewhere(file.path, "file"):
            return
        why = file.problem if lies else "does not exist; name an existing Accelerate config file"
        yield in_accelerate_file(run), why if lies == "file" else f"`{run.header['accelerate']}` {why}"
        return
    known = yaml_table("accelerate")
    if file.kind not in known["kinds"]:
        wrong = f"is `{file.kind}`, which Accelerate does not know" if file.kind else "is missing"
        yield in_accelerate_file(run, "distributed_type"), f"`distributed_type` {wrong}; write `distributed_type: FSDP`"
    for key in map(str, file.config):
        if key not in known["keys"]:
            text = unknown_name("Accelerate key", key, known["keys"], ", and `accelerate launch` stops at it")
            yield in_accelerate_file(run, key, at_key=True), text


@rule("PAR302", ERROR, about=subjects.accelerate_file)
def accelerate_value_refused(run: RunSettings, file: AccelerateFile) -> Findings:
    """The accelerate file holds a value that accelerate or PyTorch refuses.

    Why: ValueError or KeyError at the launch, or when the trainer is made, after the model is loaded.
    Source: accelerate/utils/launch.py:prepare_multi_gpu_env,
    accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.__post_init__
    Fix: one of the values that the message names; text such as "no" in quotes.
    """
    for name, choices in yaml_table("accelerate")["choices"].items() if not file.problem else ():
        value = file.config.get(name) if name in file.config else file.setting(name) if file.kind == "FSDP" else None
        if value is not None and not _is_one_of(value, choices, numbered=name.startswith("fsdp")):
            known = ", ".join(choices if name.startswith("fsdp") else (choice.lower() for choice in choices))
            quoted = "; put the word in quotes" if isinstance(value, bool) else ""
            yield in_fsdp_config(run, name), f"`{name}` is {shown_value(value)}; it must be one of {known}{quoted}"
    for name, most in _LARGEST_NUMBERS.items():
        text = str(file.config.get(name) or 0)
        if not (text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
            found = f"`{name}` is {shown_value(file.config[name])}"
            yield in_accelerate_file(run, name), f"{found}; it must be a whole number from 0 to {most}"
    if file.kind == "FSDP" and not file.problem:
        yield from _conflicting_values(run, file)


def _conflicting_values(run: RunSettings, file: AccelerateFile) -> Findings:
    name = "fsdp_reshard_after_forward"
    value = file.setting(name)
    if file.version == 2 and str(value or "true").upper() not in ("TRUE", "FALSE", "1", "0", "YES", "NO"):
        yield in_fsdp_config(run, name), f"`{name}` is {shown_value(value)}; FSDP2 needs true or false; write true"
    name, by_size = "fsdp_min_num_params", str(file.setting("fsdp_auto_wrap_policy")).upper() == "SIZE_BASED_WRAP"
    value = file.setting(name)
    if by_size and value is not None and not str(value).isdecimal():
        yield in_fsdp_config(run, name), f"`{name}` is {shown_value(value)}; write a whole number, such as 100000000"
    lazy, sync = (file.setting(f"fsdp_{each}") for each in ("cpu_ram_efficient_loading", "sync_module_states"))
    if (lazy or lazy is None) and not (sync or sync is None):
        found = "`fsdp_cpu_ram_efficient_loading`, on by default, needs synchronized weights"
        text = f"{found}; write `fsdp_sync_module_states: true`"
        yield in_fsdp_config(run, "fsdp_sync_module_states"), text


@rule("PAR303", WARNING, about=subjects.accelerate_file)
def accelerate_setting_ignored(run: RunSettings, file: AccelerateFile) -> Findings:
    """`fsdp_config` of the accelerate file has a setting that nothing reads.

    Why: the launcher hands on only what it knows, so a misspelt setting keeps its default.
    Source: accelerate/utils/launch.py:prepare_multi_gpu_env
    Fix: the setting's right name, or remove it.
    """
    known = yaml_table("accelerate")["fsdp"]
    for name, written in file.written.items() if file.kind == "FSDP" else ():
        if name not in known:
            place = in_accelerate_file(run, "fsdp_config", written, at_key=True)
            remedy = suggest(name, known) or f"; remove `{written}`"
            yield place, f"`{written}` is not known to Accelerate and does nothing{remedy}"


@rule("PAR305", WARNING, about=subjects.accelerate_file)
def accelerate_processes_differ(run: RunSettings, file: AccelerateFile) -> Findings:
    """The accelerate file starts a number of processes that is not the machine's number of devices.

    Why: memory and batches are judged for the machine; with fewer processes each holds more, and the other devices
    idle, with more a process finds no device. The command that `explain` prints and `train` runs sets the number.
    Source: accelerate/utils/launch.py:prepare_multi_gpu_env
    Fix: `num_processes`: the devices of all nodes together; `num_machines`: the nodes.
    """
    if run.machine is None:
        return
    processes, nodes = file.config.get("num_processes"), file.config.get("num_machines", 1)
    pairs = (("num_processes", processes, run.machine.world), ("num_machines", nodes, run.machine.nodes))
    for name, value, there in pairs:
        what = "devices" if name == "num_processes" else "nodes"
        if value is not None and (type(value) is not int or value != there):
            found = f"`{name}` is {shown_value(value)}, and the machine has {there} {what}"
            yield in_accelerate_file(run, name), f"{found}; write `{name}: {there}`"


@rule("PAR306", WARNING, about=subjects.accelerate_file)
def accelerate_precision_differs(run: RunSettings, file: AccelerateFile) -> Findings:
    """The accelerate file names a mixed precision that is not the recipe's.

    Why: `bf16: true` and `fp16: true` of the recipe count, and the file only where neither is there: then `pure_bf16`
    is no longer pure, as FSDP raises the weights to 32 bits.
    Source: transformers/training_args.py:TrainingArguments.__post_init__,
    accelerate/accelerator.py:Accelerator.prepare_model
    Fix: the same in both.
    """
    own = next((name for name in ("bf16", "fp16") if run.args.flag(name)), None)
    place = in_accelerate_file(run, "mixed_precision", conflicts_with=("bf16", "fp16", "pure_bf16"))
    if file.half and own and own != file.half:
        found = f"`mixed_precision` is {file.half}, but the recipe's `{own}: true` counts"
        yield place, f"{found}; write `mixed_precision: {own}`"
    elif file.half and not own and run.precision.trains_in_16_bit and run.fsdp:
        found = f"`mixed_precision: {file.half}` raises the weights of `pure_bf16` to 32 bits"
        yield place, f'{found}; write `mixed_precision: "no"`'


@rule("PAR307", WARNING, about=subjects.accelerate_file)
def sharded_twice(run: RunSettings, file: AccelerateFile) -> Findings:
    """The recipe asks for FSDP or DeepSpeed, and the accelerate file for FSDP.

    Why: the recipe's `fsdp` overrides a part of the file; with `deepspeed` the engine runs the step, and nothing is
    left of FSDP but how the weights are loaded (seen in a run).
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args,
    transformers/integrations/fsdp.py:is_fsdp_enabled
    Fix: keep one of them.
    """
    if file.fsdp and not _zero3_with_fsdp2_checkpointing(run, file):
        for key in ("fsdp", "deepspeed"):
            if run.fsdp_words if key == "fsdp" else run.uses_deepspeed:
                found = f"`{key}` is set, and `{run.header['accelerate']}` sets up FSDP, too"
                yield key, f"{found}; remove `{key}`, or `accelerate` from the header block"


@rule("PAR308", WARNING, about=subjects.accelerate_file)
def accelerate_not_judged(run: RunSettings, file: AccelerateFile) -> Findings:
    """The accelerate file runs the processes in a way that is not judged here.

    Why: memory depends on it, so nothing is said of that.
    Source: own (the header block)
    Fix: for DeepSpeed name its JSON file by `deepspeed` in the recipe, and no accelerate file.
    """
    if not file.problem and not file.is_judged and file.kind in yaml_table("accelerate")["kinds"]:
        place = in_accelerate_file(run, "distributed_type")
        remedy = "use FSDP, MULTI_GPU or MULTI_NPU, or name a DeepSpeed file by `deepspeed` in the recipe"
        yield place, f"memory is not judged under `distributed_type: {file.kind}`; {remedy}"


@rule("PAR309", ERROR, about=subjects.accelerate_file)
def states_in_pieces(run: RunSettings, file: AccelerateFile) -> Findings:
    """FSDP saves sharded states, and the recipe saves the model only.

    Why: ValueError, "save_only_model option is not compatible with FSDP state dict type 'SHARDED_STATE_DICT'", after
    the model is loaded.
    Source: transformers/trainer.py:Trainer.create_accelerator_and_postprocess
    Fix: `fsdp_state_dict_type: FULL_STATE_DICT`, or remove `save_only_model`.
    """
    if file.fsdp and not file.fsdp.gathers and run.args.flag("save_only_model"):
        place = in_fsdp_config(run, "fsdp_state_dict_type")._replace(conflicts_with=("save_only_model",))
        found = "`save_only_model` fails, because FSDP saves the model in shards"
        yield place, f"{found}; write `fsdp_state_dict_type: FULL_STATE_DICT`"


@rule("PAR310", WARNING, about=subjects.accelerate_file)
def model_left_in_pieces(run: RunSettings, file: AccelerateFile) -> Findings:
    """FSDP saves sharded states only, so the run ends without a model to load.

    Why: the last save writes no safetensors; `accelerate merge-weights` can make them of a checkpoint. FSDP2 does so
    by default.
    Source: transformers/trainer.py:Trainer.save_model,
    accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.set_state_dict_type
    Fix: `fsdp_state_dict_type: FULL_STATE_DICT`.
    """
    if file.fsdp and not file.fsdp.gathers and not run.args.flag("save_only_model"):
        text = "the trained model is saved in shards only; write `fsdp_state_dict_type: FULL_STATE_DICT`"
        yield in_fsdp_config(run, "fsdp_state_dict_type"), text


@rule("PAR311", WARNING, about=subjects.accelerate_file)
def recomputed_twice(run: RunSettings, file: AccelerateFile) -> Findings:
    """FSDP checkpoints activations, and so does LLaMA-Factory.

    Why: each layer is recomputed twice, for nothing; with `gradient_checkpointing: true` the trainer refuses.
    Source: llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training,
    transformers/trainer.py:Trainer.create_accelerator_and_postprocess
    Fix: remove `fsdp_activation_checkpointing`; LLaMA-Factory's own is on by default.
    """
    if file.fsdp and file.fsdp.recomputes and run.activation_checkpointing.llamafactory_mode != "off":
        key = "fsdp_activation_checkpointing"
        yield in_fsdp_config(run, key), f"`{key}` recomputes what LLaMA-Factory recomputes already; remove `{key}`"


@rule("PAR312", ERROR, about=subjects.accelerate_file)
def stage_3_under_fsdp_2(run: RunSettings, file: AccelerateFile) -> Findings:
    """ZeRO-3 is launched with an accelerate file of FSDP2.

    Why: DeepSpeed runs the step, but LLaMA-Factory takes the run for FSDP2 and recomputes without reentry, which fails
    in the first backward pass: "Recomputed values for the following tensors have different metadata" (seen in a run).
    Source: llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: keep one of them.
    """
    if _zero3_with_fsdp2_checkpointing(run, file):
        found = f"ZeRO-3 fails in the first backward pass under the FSDP2 of `{run.header['accelerate']}`"
        yield "deepspeed", f"{found}; remove `deepspeed`, or `accelerate` from the header block"


def _zero3_with_fsdp2_checkpointing(run: RunSettings, file: AccelerateFile) -> bool:
    """True if ZeRO-3 is combined with non-reentrant activation checkpointing, which LLaMA-Factory selects if the
    accelerate file sets up FSDP2."""
    second = file.fsdp is not None and file.version == 2
    return second and run.zero_stage == 3 and run.activation_checkpointing.llamafactory_mode != "off"


def _is_one_of(value: Any, choices: list[str], numbered: bool) -> bool:
    numbers = [str(number) for number in range(1, len(choices) + 1)] if numbered else []
    return not isinstance(value, bool) and str(value).upper() in (*choices, *numbers)
