"""PAR301 to PAR303 and PAR305 to PAR312: the accelerate file that the header block names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.read import disk
from validator.rules import inside
from validator.rules.rule import Finding, rule
from validator.tables.data import listing
from validator.tables.suggestion import suggest

if TYPE_CHECKING:  # few recipes name such a file
    from validator.job.accelerate import Accelerate


@rule("PAR301", Severity.ERROR)
def accelerate_file_unusable(job: Job) -> Iterator[Finding]:
    """The accelerate file is not there, or accelerate does not take it.

    Why: `accelerate launch` stops before anything starts.
    Source: accelerate/commands/config/config_args.py:load_config_from_file,
    accelerate/commands/config/config_args.py:BaseConfig.from_yaml_file
    Fix: name an existing YAML file, from the working directory, with `distributed_type` and keys that accelerate knows.
    """
    file = job.accelerate
    if file is None:
        return
    if file.problem:
        lies = disk.kind(file.path)
        why = file.problem if lies else "does not exist"
        yield inside.accelerate(job), why if lies == "file" else f"`{job.header['accelerate']}` {why}"
        return
    known = listing("accelerate")
    if file.kind not in known["kinds"]:
        wrong = f"`{file.kind}` is unknown" if file.kind else "is missing"
        yield inside.accelerate(job, "distributed_type"), f"`distributed_type` {wrong}; write `distributed_type: FSDP`"
    for key in file.config:
        if key not in known["keys"]:
            place = inside.accelerate(job, str(key), at_key=True)
            yield place, f"accelerate does not know `{key}` and stops{suggest(str(key), known['keys'])}"


@rule("PAR302", Severity.ERROR)
def accelerate_value_refused(job: Job) -> Iterator[Finding]:
    """The accelerate file holds a value that accelerate or PyTorch refuses.

    Why: ValueError or KeyError at the launch, or when the trainer is made, after the model is loaded.
    Source: accelerate/utils/launch.py:prepare_multi_gpu_env,
    accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.__post_init__
    Fix: one of the values that the message names; text such as "no" in quotes.
    """
    file = job.accelerate
    if file is None or file.problem:
        return
    for name, choices in listing("accelerate")["choices"].items():
        value = file.config.get(name) if name in file.config else file.setting(name) if file.kind == "FSDP" else None
        if value is not None and not _one_of(value, choices, numbered=name.startswith("fsdp")):
            known = ", ".join(choices if name.startswith("fsdp") else (choice.lower() for choice in choices))
            quoted = "; put it in quotes" if isinstance(value, bool) else ""
            yield inside.fsdp(job, name), f"`{name}` is {_shown(value)}, none of {known}{quoted}"
    if file.kind == "FSDP":
        yield from _clashes(job, file)


def _clashes(job: Job, file: Accelerate) -> Iterator[Finding]:
    name = "fsdp_reshard_after_forward"
    if file.version == 2 and str(file.setting(name) or "true").upper() not in ("TRUE", "FALSE", "1", "0", "YES", "NO"):
        yield inside.fsdp(job, name), f"`{name}` is {_shown(file.setting(name))}; FSDP2 takes true or false"
    lazy, sync = (file.setting(f"fsdp_{each}") for each in ("cpu_ram_efficient_loading", "sync_module_states"))
    if (lazy or lazy is None) and not (sync or sync is None):
        text = "`fsdp_cpu_ram_efficient_loading`, on by default, needs `fsdp_sync_module_states: true`"
        yield inside.fsdp(job, "fsdp_sync_module_states"), text


@rule("PAR303", Severity.WARNING)
def accelerate_setting_ignored(job: Job) -> Iterator[Finding]:
    """`fsdp_config` of the accelerate file has a setting that nothing reads.

    Why: the launcher hands on only what it knows, so a misspelt setting keeps its default.
    Source: accelerate/utils/launch.py:prepare_multi_gpu_env
    Fix: the setting's right name, or remove it.
    """
    file = job.accelerate
    if file is None or file.kind != "FSDP":
        return
    known = listing("accelerate")["fsdp"]
    for name, written in file.written.items():
        if name not in known:
            place = inside.accelerate(job, "fsdp_config", written, at_key=True)
            yield place, f"`{written}` is not known to accelerate and does nothing{suggest(name, known)}"


@rule("PAR305", Severity.WARNING)
def accelerate_processes_differ(job: Job) -> Iterator[Finding]:
    """The accelerate file starts another number of processes than the machine has devices.

    Why: memory and batches are judged for the machine; with fewer processes each holds more, and the other devices
    idle, with more a process finds no device. The command that `explain` prints and `train` runs sets the number.
    Source: accelerate/utils/launch.py:prepare_multi_gpu_env
    Fix: `num_processes`: the devices of all nodes together; `num_machines`: the nodes.
    """
    if job.accelerate is None or job.machine is None:
        return
    for name, there, what in (
        ("num_processes", job.machine.world, "devices"),
        ("num_machines", job.machine.nodes, "nodes"),
    ):
        value = job.accelerate.config.get(name, 1 if name == "num_machines" else None)
        if isinstance(value, int) and value != there:
            yield inside.accelerate(job, name), f"`{name}` is {value}, the machine has {there} {what}; write {there}"


@rule("PAR306", Severity.WARNING)
def accelerate_precision_differs(job: Job) -> Iterator[Finding]:
    """The accelerate file names another mixed precision than the recipe.

    Why: `bf16: true` and `fp16: true` of the recipe count, and the file only where neither is there: then `pure_bf16`
    is no longer pure, as FSDP raises the weights to 32 bits.
    Source: transformers/training_args.py:TrainingArguments.__post_init__,
    accelerate/accelerator.py:Accelerator.prepare_model
    Fix: the same in both.
    """
    file = job.accelerate
    if file is None or file.half is None:
        return
    own = next((name for name in ("bf16", "fp16") if job.flag(name)), None)
    place = inside.accelerate(job, "mixed_precision", against=("bf16", "fp16", "pure_bf16"))
    if own and own != file.half:
        yield place, f"`mixed_precision` is {file.half}, the recipe's `{own}: true` counts; write {own}"
    elif not own and job.pure and job.fsdp:
        yield place, f'{file.half} raises the weights of `pure_bf16` to 32 bits; write "no"'


@rule("PAR307", Severity.WARNING)
def sharded_twice(job: Job) -> Iterator[Finding]:
    """The recipe asks for FSDP or DeepSpeed, and the accelerate file for FSDP.

    Why: the recipe's `fsdp` overrides a part of the file; with `deepspeed` the engine runs the step, and nothing is
    left of FSDP but how the weights are loaded (seen in a run).
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args,
    transformers/integrations/fsdp.py:is_fsdp_enabled
    Fix: keep one of them.
    """
    if job.accelerate and job.accelerate.fsdp and not _recomputes_wrongly(job):
        for key in ("fsdp", "deepspeed"):
            if job.fsdp_words if key == "fsdp" else job.engine:
                yield key, f"`{key}` stands beside the FSDP of `{job.header['accelerate']}`; keep one"


@rule("PAR308", Severity.WARNING)
def accelerate_not_judged(job: Job) -> Iterator[Finding]:
    """The accelerate file runs the processes in a way that is not judged here.

    Why: memory depends on it, so nothing is said of that.
    Source: own (the header block)
    Fix: for DeepSpeed name its JSON file by `deepspeed` in the recipe, and no accelerate file.
    """
    file = job.accelerate
    if file and not file.problem and not file.judged and file.kind in listing("accelerate")["kinds"]:
        place = inside.accelerate(job, "distributed_type")
        text = "FSDP, MULTI_GPU and MULTI_NPU are, and DeepSpeed by the recipe's `deepspeed`"
        yield place, f"memory is not judged under `distributed_type: {file.kind}`; {text}"


@rule("PAR309", Severity.ERROR)
def states_in_pieces(job: Job) -> Iterator[Finding]:
    """FSDP saves its states in pieces, and the recipe wants the model only.

    Why: ValueError, "save_only_model option is not compatible with FSDP state dict type 'SHARDED_STATE_DICT'", after
    the model is loaded.
    Source: transformers/trainer.py:Trainer.create_accelerator_and_postprocess
    Fix: `fsdp_state_dict_type: FULL_STATE_DICT`, or remove `save_only_model`.
    """
    if _in_pieces(job) and job.flag("save_only_model"):
        place = inside.fsdp(job, "fsdp_state_dict_type")._replace(against=("save_only_model",))
        yield place, "`save_only_model` needs whole states; write `fsdp_state_dict_type: FULL_STATE_DICT`"


@rule("PAR310", Severity.WARNING)
def model_left_in_pieces(job: Job) -> Iterator[Finding]:
    """FSDP saves its states in pieces, so the run ends without a model to load.

    Why: the last save writes no safetensors; `accelerate merge-weights` can make them of a checkpoint. FSDP2 does so
    by default.
    Source: transformers/trainer.py:Trainer.save_model,
    accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.set_state_dict_type
    Fix: `fsdp_state_dict_type: FULL_STATE_DICT`.
    """
    if _in_pieces(job) and not job.flag("save_only_model"):
        text = "the trained model is saved in pieces only; write `fsdp_state_dict_type: FULL_STATE_DICT`"
        yield inside.fsdp(job, "fsdp_state_dict_type"), text


@rule("PAR311", Severity.WARNING)
def recomputed_twice(job: Job) -> Iterator[Finding]:
    """FSDP checkpoints activations, and so does LLaMA-Factory.

    Why: each layer is recomputed twice, for nothing; with `gradient_checkpointing: true` the trainer refuses.
    Source: llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training,
    transformers/trainer.py:Trainer.create_accelerator_and_postprocess
    Fix: remove `fsdp_activation_checkpointing`; LLaMA-Factory's own is on by default.
    """
    recomputes = job.accelerate and job.accelerate.fsdp and job.accelerate.fsdp.recomputes
    if recomputes and job.own_checkpointing != "off":
        yield (
            inside.fsdp(job, "fsdp_activation_checkpointing"),
            "LLaMA-Factory recomputes activations already; remove it",
        )


@rule("PAR312", Severity.ERROR)
def stage_3_under_fsdp_2(job: Job) -> Iterator[Finding]:
    """ZeRO-3 is launched with an accelerate file of FSDP2.

    Why: DeepSpeed runs the step, but LLaMA-Factory takes the run for FSDP2 and recomputes without reentry, which fails
    in the first backward pass: "Recomputed values for the following tensors have different metadata" (seen in a run).
    Source: llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: keep one of them.
    """
    if _recomputes_wrongly(job):
        yield "deepspeed", f"ZeRO-3 fails under the FSDP2 of `{job.header['accelerate']}`; keep one"


def _recomputes_wrongly(job: Job) -> bool:
    """Whether ZeRO-3 meets recomputation without reentry, which LLaMA-Factory takes up for FSDP2."""
    second = job.accelerate is not None and job.accelerate.fsdp is not None and job.accelerate.version == 2
    return second and job.zero_stage == 3 and job.own_checkpointing != "off"


def _in_pieces(job: Job) -> bool:
    return job.accelerate is not None and job.accelerate.fsdp is not None and not job.accelerate.fsdp.gathers


def _one_of(value: Any, choices: list[str], numbered: bool) -> bool:
    numbers = [str(number) for number in range(1, len(choices) + 1)] if numbered else []
    return not isinstance(value, bool) and str(value).upper() in (*choices, *numbers)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)[:40]
