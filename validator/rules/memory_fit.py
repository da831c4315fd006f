"""FIT: whether the machine has the device memory, host memory and disk space that the run needs."""

from __future__ import annotations

from collections.abc import Mapping

from validator.finding import Verdict
from validator.knowledge import releases
from validator.knowledge.devices import Machine
from validator.knowledge.models import Model
from validator.knowledge.releases import ReleaseRange
from validator.physics import Estimate
from validator.physics.estimate import GIB, HostTerm
from validator.rules import subjects
from validator.rules.file_paths import assumed_model
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.run.assumptions import offloads_to_host, verdict_assumptions
from validator.run.first_rows import certain_tokens
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.trained_model import is_local_name
from validator.run.variants import model_sizes_that_fit
from validator.wording import distinguishing_decimals

_THIN_MARGIN = "the margin is thin, so try a few steps with the longest samples first"


def _memory_range(estimate: Estimate, digits: int = 1) -> str:
    low, expected, high = (f"{size / GIB:.{digits}f}" for size in (estimate.low, estimate.expected, estimate.high))
    return f"{expected} GiB ({low} to {high})"


def _needed_memory(memories: Mapping[str, Estimate], verdicts: Mapping[str, Verdict], digits: int = 1) -> str:
    """Return the range of memory that the run needs, as text for a message; with each transformers release if the
    verdict depends on the release. `memories`, `verdicts`: estimates and verdicts by release. `digits`: decimals of the
    numbers."""
    if not _depends_on_release(verdicts):
        return _memory_range(next(iter(memories.values())), digits)
    return " or ".join(f"{_memory_range(one, digits)} with transformers {release}" for release, one in memories.items())


def _device_need_and_limit(run: RunSettings) -> str:
    """Return, as text for a message, the memory that the run needs on a device, and the memory that the device has. If
    few public measurements exist for a part of the model, the text says so, because the predicted range is wide
    then."""
    prediction = predict(run)
    if not prediction.device_memory or not run.machine:
        return ""
    device, usable = run.machine.device, run.machine.device.usable_gib
    needed = prediction.device_memory
    digits = distinguishing_decimals(usable, needed.expected / GIB, needed.high / GIB)
    needs = _needed_memory(prediction.device_memories, prediction.device_verdicts, digits)
    longest, certain = run.batch.max_tokens, certain_tokens(run)
    condition = f" if samples reach {longest:,} tokens" if certain < longest and prediction.depends_on_length else ""
    whose = ", which device, host and page cache share" if device.shared_memory else ""
    gaps = ", ".join(prediction.device_memory.gaps)
    wide = f" (wide range, as few measurements of {gaps} are public)" if gaps else ""
    found = f"{needs} per device{condition}, and {device.id} has {usable:.{digits}f} usable{whose}{wide}"
    if prediction.depends_on_length:
        return found
    return f"{found}; memory peaks in the phase {prediction.peak}; shorter samples do not help"


def _depends_on_release(verdicts: Mapping[str, Verdict]) -> bool:
    """True if the verdict differs between the transformers releases that the recipe's header block allows."""
    return len(set(verdicts.values())) > 1


def _name_release(verdicts: Mapping[str, Verdict]) -> str:
    """Return the advice to state the transformers release, with the oldest one judged as the example."""
    return f"write the release that you use into the header block, such as `# transformers: {[*verdicts][-1]}`"


@rule("FIT001", ERROR, appends_advice=True)
def device_memory_exceeded(run: RunSettings) -> Findings:
    """The run needs more device memory than a device of the target machine has.

    Why: it stops with "out of memory" at loading, at the first step or at the first long batch, after queueing,
    tokenizing and loading the model on every rank.
    Source: own (the memory model)
    Fix: `lmf-recipes explain` lists the cheapest changes that fit: a smaller micro batch with more accumulation,
    torchrun's expandable segments, `enable_liger_kernel`, a shorter `cutoff_len`, 4-bit weights, a higher ZeRO stage,
    offload, or a smaller method. Where the launch adds what the recipe lacks, judge that: `lmf-recipes explain RECIPE
    deepspeed=FILE`, or `# accelerate: FILE` in the header block for `accelerate launch`.
    """
    prediction = predict(run)
    if prediction.device_verdict == "exceeds" and not prediction.fitting_length:
        hints = f"{_not_sharded_hint(run)}{_quantized_loading_hint(run)}{_kept_layers_hint(run)}"
        needs = f"the run needs {_device_need_and_limit(run)}{hints}"
        yield _key_for_device_memory(run), "; ".join([needs, *_turning_lengths(run)])


def _not_sharded_hint(run: RunSettings) -> str:
    """Return a hint, as text for a message, that neither DeepSpeed nor FSDP shards the states over the devices. An
    empty string if there is only one process, or if the recipe, the accelerate file or an adapter makes the hint
    pointless."""
    spread = run.batch.world_size == 1 or run.uses_deepspeed or run.fsdp or run.accelerate or run.task.uses_adapter
    return "" if spread else "; without `deepspeed` or `fsdp` each device holds the whole model"


def _quantized_loading_hint(run: RunSettings) -> str:
    """Return a hint, as text for a message, which transformers release does not fill the device with 4-bit weights
    while they load under FSDP (`host_copies` in run/fsdp.py). An empty string if loading is not the peak."""
    prediction = predict(run)
    loads = prediction.device_memory is not None and prediction.device_memory.phase == "loading"
    if not (loads and run.fsdp and run.fsdp.lazy and run.quantization.is_requested):
        return ""
    return f"; transformers {releases.previous_major_pair()[1]} does not load them on every device"


def _kept_layers_hint(run: RunSettings) -> str:
    """Return a hint, as text for a message, that layers without an adapter are not recomputed (LLaMA-Factory,
    model_utils/checkpointing.py, get_custom_gradient_checkpointing_func). An empty string if every layer has one."""
    kept = predict(run).layers_kept_whole
    if not kept or not run.model:
        return ""
    reached = f"{kept} of {run.model.arch.layers} layers, which `lora_target` does not reach"
    return f"; {reached}, keep all activations, because LLaMA-Factory recomputes only layers with an adapter"


@rule("FIT002", WARNING)
def device_memory_tight(run: RunSettings) -> Findings:
    """The run is expected to fit, but the upper end of the 90 % band does not; or it depends on transformers' release.

    Why: fragmentation, a longer batch or another release may push it over, often hours into the run. Since transformers
    5 the experts of a mixture are one tensor, which 4 bits and LoRA do not reach; before, they were linear modules.
    Where no data tell how many pictures a sample has, one is expected, and the band ends where they fill `cutoff_len`.
    Source: own (the memory model)
    Fix: make room as for FIT001, or try a few steps with the longest samples first; `transformers` in the header block,
    with the release that is installed where it will run; the data where the recipe looks for them, or a shorter
    `cutoff_len`.
    """
    prediction = predict(run)
    if prediction.device_verdict == "tight":
        by_release = _depends_on_release(prediction.device_verdicts)
        thin = _THIN_MARGIN if prediction.depends_on_length else "the margin is thin, so try a few steps first"
        why = _name_release(prediction.device_verdicts) if by_release else thin
        turns = "; ".join(f"it {one.text}" for one in verdict_assumptions(run) if one.about in ("length", "pictures"))
        if prediction.fits_with_one_image:
            why = "check that in the data, or set a smaller `cutoff_len`"
        why = f"{turns}; {why}" if turns else why
        yield (
            _key_for_device_memory(run),
            f"the run may need {_device_need_and_limit(run)}{_kept_layers_hint(run)}; {why}",
        )


@rule("FIT011", WARNING, appends_advice=True)
def device_memory_for_short_samples(run: RunSettings) -> Findings:
    """The run fits only if no sample is as long as `cutoff_len` allows.

    Why: without packing a micro batch is as long as its longest sample, so the run goes well until one is too long, and
    stops there with "out of memory". How long samples are is not known here; that some have 512 tokens is assumed.
    Source: own (the memory model)
    Fix: `lmf-recipes data RECIPE` shows the lengths where the data are at hand; write them into the header block, as
    `lengths: [800, 3000]` (typical and longest, in tokens), and the verdict is firm. Else a shorter `cutoff_len`, or
    make room as for FIT001.
    """
    if predict(run).fitting_length:
        needs = f"the run needs {_device_need_and_limit(run)}"
        yield _key_for_device_memory(run), "; ".join([needs, *_turning_lengths(run)])


def _turning_lengths(run: RunSettings) -> list[str]:
    """Return, as text for a message, up to which length of samples the run fits, if that is not known to be so."""
    return [f"it {one.text}" for one in verdict_assumptions(run) if one.about == "length"]


@rule("FIT003", ERROR, about=subjects.machine, appends_advice=True)
def host_memory_exceeded(run: RunSettings, machine: Machine) -> Findings:
    """A node of the target machine has too little main memory for the run.

    Why: the kernel kills a process; torch elastic reports "exitcode: -9" with no other message.
    Source: own (the memory model)
    Fix: less offload, `pin_memory: false` in the DeepSpeed JSON, fewer processes per node, LoRA instead of full
    fine-tuning, or a node with more memory. `lmf-recipes explain` shows what each change brings.
    """
    prediction = predict(run)
    if prediction.host_verdict == "exceeds" and prediction.host_memory:
        needs = f"the run needs {_memory_range(prediction.host_memory)} of host memory per node"
        killed = f"so a process would be killed (exit code -9){_loaded_experts_hint(run)}"
        yield _key_for_host_memory(run), f"{needs}, and the machine has {machine.host_ram_gib:.0f}, {killed}"


def _loaded_experts_hint(run: RunSettings) -> str:
    """Return a hint, as text for a message, why a mixture of experts fills main memory while it loads, and which
    transformers release needs less. An empty string for other models."""
    prediction = predict(run)
    if run.model is None or prediction.host_memory is None or HostTerm.EXPERTS not in prediction.host_memory.terms:
        return ""
    older = run.model.family.forms(ReleaseRange()).get("separate")
    instead = f", and transformers {older} does not" if older else ""
    return f"; transformers 5 loads all experts in every process{instead}"


@rule("FIT004", WARNING, about=subjects.machine)
def host_memory_tight(run: RunSettings, machine: Machine) -> Findings:
    """Main memory may not suffice: the upper end of the 90 % band exceeds it, or it depends on transformers' release.

    Why: loading peaks and page-locked buffers vary; the symptom of too little is exit code -9. Under ZeRO-3 every
    process holds all experts of a mixture while transformers 5 loads them, and transformers 4 reads file by file.
    Source: own (the memory model; transformers issue 47514)
    Fix: as for FIT003; `transformers` in the header block, with the release that is installed where it will run; stop
    other processes on the node.
    """
    prediction = predict(run)
    if prediction.host_verdict == "tight":
        needed = _needed_memory(prediction.host_memories, prediction.host_verdicts)
        by_release = _depends_on_release(prediction.host_verdicts)
        thin = "the margin is thin: a process that ends with exit code -9 was killed for it"
        why = _name_release(prediction.host_verdicts) if by_release else thin
        needs = f"the run may need {needed} of host memory per node"
        yield _key_for_host_memory(run), f"{needs}, and the machine has {machine.host_ram_gib:.0f}; {why}"


@rule("FIT005", NOTE, about=subjects.machine)
def memory_not_judged(run: RunSettings, _machine: Machine) -> Findings:
    """A machine is named, but memory is not judged, because the model is not known.

    Why: without the model's shapes nothing can be predicted, so the run may stop with "out of memory" all the same.
    Source: own (the memory model)
    Fix: give a folder that holds the model's config.json, which is enough, as `model_name_or_path`; for a type that no
    formula knows, `lmf-recipes explain RECIPE --simulate` where torch and LLaMA-Factory are installed, or for a new
    recipe `lmf-recipes plan --model FOLDER --simulate`; or add the model to validator/data/models.yaml.
    """
    if run.model_problem:
        folder = run.workspace.find(f"{run.args.get('model_name_or_path')}/config.json")
        at = "base" if isinstance(run.header.get("base"), str) and not folder else "model_name_or_path"
        yield at, f"memory is not judged: {run.model_problem}"


@rule("FIT013", NOTE, about=subjects.machine)
def sizes_for_the_machine(run: RunSettings, _machine: Machine) -> Findings:
    """The model is not known; the message says how large a model with this template may be.

    Why: recipes are shared with a placeholder for the model, or with a name that tells nothing. Its template tells
    which models it may be; each of the catalogue's is judged in its place, the smallest first.
    Source: own (the memory model)
    Fix: nothing to do; with the model's own name, or `# base: NAME` in the header block, memory is judged.
    """
    if run.model_problem and (there := model_sizes_that_fit(run)):
        each = f"catalogue model with template `{run.args.get('template')}`"
        largest, beyond = (f"{one.id} ({one.size})" if one else "" for one in there)
        if not beyond:
            yield "template", f"every {each} fits this machine; the largest is {largest}"
        elif not largest:
            yield "template", f"no {each} fits this machine; the smallest is {beyond}"
        else:
            yield "template", f"the largest {each} that fits this machine is {largest}; {beyond} does not fit"


@rule("FIT009", NOTE, about=subjects.model)
def judged_from_cache(_run: RunSettings, model: Model) -> Findings:
    """The model is not in the catalogue, and its shapes are read in a local hub cache.

    Why: the verdict rests on the config.json of that download, and elsewhere the model may not be known.
    Source: own (the memory model)
    Fix: nothing to do; to have it known everywhere, add the model to validator/data/models.yaml.
    """
    if model.cached:
        found = f"{model.name} is not in the catalogue, so memory is judged"
        yield "model_name_or_path", f"{found} from its config.json in the {model.cached} cache"


@rule("FIT010", NOTE)
def model_taken_by_name(run: RunSettings) -> Findings:
    """The model is judged as one of the catalogue that its name stands for, or that a recipe beside this one trains.

    Why: no config.json of it can be read here, so the verdict, the template and all else that asks for the model rest
    on its name. Words behind a known name are taken for those of a fine-tune, which has the same shapes and perhaps
    another template; words before it, too, where the recipe's template is that of the known model. A folder whose name
    tells nothing is what a recipe beside this one writes there (`output_dir`, `export_dir`), if that has the same
    template; else what the recipe itself or its run is called, as dpo_qwen3_8b.yaml is, if that is a model of its
    template. Of 55 public recipes that are called so, and name their model, it is the same in all.
    Source: own (how people name folders and copies of models)
    Fix: nothing to do where it is that model; else `base:` in the header block, or a folder with its config.json.
    """
    path = run.args.get("model_name_or_path")
    is_missing = isinstance(path, str) and is_local_name(path) and not run.workspace.find(path)  # by PTH004 or PTH006
    if (guessed := assumed_model(run)) and not is_missing:
        remedy = "if that is wrong, write the right model into the header block as `# base: NAME`"
        yield "model_name_or_path", f"the model is assumed to be {guessed}; {remedy}"


@rule("FIT012", NOTE, about=subjects.model)
def custom_model_class(run: RunSettings, model: Model) -> Findings:
    """The model's config.json names a class of its own, although transformers has one for this type.

    Why: memory is judged as that of transformers' class. With `trust_remote_code: true` the folder's own is trained,
    which may have further parts; without it transformers' is, and weights of parts that it lacks are left out.
    Source: transformers/models/auto/auto_factory.py:_BaseAutoModelClass.from_pretrained
    Fix: nothing to do where the class has the same shapes; else `explain --simulate`, and room to spare.
    """
    if model.own_class:
        own = "the model's config.json names a class of its own (`auto_map`)"
        plain = f"but without `trust_remote_code: true` plain {model.kind} is trained, and judged"
        other = f"which is trained; memory is judged for plain {model.kind}, and may differ"
        yield "model_name_or_path", f"{own}, {other if run.args.flag('trust_remote_code') else plain}"


@rule("FIT006", ERROR)
def machine_unknown(run: RunSettings) -> Findings:
    """The header block names a machine that is not known.

    Why: nothing that depends on the machine can be judged.
    Source: own (the header block)
    Fix: write it as devices x device (`8xascend-910b-64g`) or nodes x devices x device (`2x8xa100-80g`).
    """
    if run.machine_problem:
        yield "machine", run.machine_problem


@rule("FIT007", WARNING, about=subjects.machine)
def host_memory_not_judged(run: RunSettings, machine: Machine) -> Findings:
    """States are offloaded to main memory, but the size of the target's main memory is not given.

    Why: offload moves hundreds of GiB to the host; too little of it ends with exit code -9.
    Source: own (the memory model)
    Fix: `host_ram_gib` in the header block, or `--host-ram`.
    """
    prediction = predict(run)
    if offloads_to_host(run) and machine.host_ram_gib is None and prediction.host_memory:
        found = f"offload needs {_memory_range(prediction.host_memory)} of host memory per node"
        remedy = "write the machine's as `# host_ram_gib: NUMBER` into the header block"
        yield _key_for_host_memory(run), f"{found}, but the machine's is not given; {remedy}"


@rule("FIT008", WARNING)
def checkpoints_without_limit(run: RunSettings) -> Findings:
    """Checkpoints pile up: no limit is set and their sum is large.

    Why: a full disk ends the run in the middle of a save.
    Source: own (the memory model)
    Fix: `save_total_limit: 2`, `save_only_model: true`, or a larger `save_steps`.
    """
    prediction = predict(run)
    if run.args.number("save_total_limit") > 0 or run.args.get("save_strategy") == "no":
        return
    total, kept = prediction.output_bytes / GIB, prediction.checkpoint_counts.kept
    if total > 500 and kept > 2:
        found = f"{kept} checkpoints of this run take {total:,.0f} GiB, and no limit is set"
        yield "save_steps", f"{found}; set `save_total_limit: 2`"


def _key_for_device_memory(run: RunSettings) -> str:
    """Return the recipe's key to look at first if device memory does not suffice: `deepspeed` if the recipe uses
    DeepSpeed, else the micro batch."""
    return "deepspeed" if run.uses_deepspeed else "per_device_train_batch_size"


def _key_for_host_memory(run: RunSettings) -> str:
    """Return the key to change first if main memory does not suffice: `deepspeed` if the recipe uses DeepSpeed;
    otherwise `host_ram_gib` or, if the header block does not state that, `machine`."""
    return "deepspeed" if run.uses_deepspeed else "host_ram_gib" if "host_ram_gib" in run.header else "machine"
