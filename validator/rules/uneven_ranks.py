"""PAR026 to PAR029: batches by which devices differ: in the passes through a sharded tower or sharded experts, in the
parameters that get a gradient, and in the length of streamed samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from validator.errors import RecipeError
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.physics import Tower, TowerWorkload, Workload
from validator.recipe.safe_read import read_json
from validator.rules import subjects
from validator.rules.fsdp_and_accelerate import wrapped_classes
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.run import multimodal
from validator.run.dataset_registry import Dataset
from validator.run.settings import RunSettings

_ZERO_2 = "use ZeRO-2 (`deepspeed: deepspeed/ds_z2.json`)"
_MEDIA_WORDS = {"images": "pictures", "videos": "films"}


@rule("PAR026", WARNING, about=subjects.model)
def tower_passes_differ(run: RunSettings, model: Model) -> Findings:
    """Batches make different numbers of passes through a tower that ZeRO-3 or FSDP shards.

    Why: a batch that holds pictures and films makes two passes through the vision tower, one that holds either makes
    one. Each pass gathers the tower's weights from all devices; where these disagree, they wait for each other for ever
    (LLaMA-Factory issue 10450, Qwen3-VL issue 126; seen with two processes). Texts are no such batch: LLaMA-Factory
    adds a blank picture to them. Video-LLaVA has a tower for films, which that picture does not pass, and MiniCPM-V
    passes its tower once for each sixteen pieces.
    Source: llamafactory/data/collator.py:MultiModalDataCollatorForSeq2Seq.__call__,
    transformers/models/qwen2_vl/modeling_qwen2_vl.py:Qwen2VLModel.forward
    Fix: ZeRO-2; one sample a batch without packing, if no sample holds both; or a run for each kind of data.
    """
    key = _sharding_key(run, model)
    if not key or not model.modules or run.data.is_tokenized or run.template is None or run.task.stage in ("pt", "kto"):
        return  # kto hands on no films
    entry = yaml_table("composites")[model.kind]
    pieces = multimodal.max_tower_pieces(run, model, run.data.datasets) * run.batch.micro_batch
    if pieces > entry.get("pass_size", pieces):
        found = f"{model.kind} passes its tower once for each {entry['pass_size']} pieces of pictures and frames"
        yield key, f"{found}, of which batches have up to {pieces:,}, so devices may wait for each other; {_ZERO_2}"
        return
    if (films := entry.get("films")) is None:
        return
    for datasets, one_sample_per_batch, batch_key in _batches(run):
        held = {one.name: multimodal.media_of_rows(one) for one in datasets}
        rows = frozenset().union(*held.values())
        passes = {_tower_passes(row, films) for row in rows}
        if not one_sample_per_batch:
            passes.add(_tower_passes(frozenset().union(*rows), films))
        if len(passes) > 1:
            names = "; ".join(f"`{name}` holds {_kinds_text(kinds)}" for name, kinds in held.items())
            alone = len({_tower_passes(row, films) for row in rows}) == 1
            smaller = f", `{batch_key}: 1` without packing," if alone else ""
            found = f"{names}, so batches differ in how often they pass a tower, and devices wait for each other"
            yield key, f"{found}; {_ZERO_2}{smaller} or a run for each kind of data"
            return


def _sharding_key(run: RunSettings, model: Model) -> str:
    """Return the recipe's key by which several devices gather the weights of a tower each time that it runs; an empty
    string if they do not. FSDP does so if it wraps the layers of the tower, which it does unless the recipe names other
    classes to wrap."""
    if not run.task.trains or (run.machine and run.batch.world_size == 1):
        return ""
    if run.zero_stage == 3:
        return "deepspeed"
    classes = wrapped_classes(run)[1] if run.fsdp else ()
    wraps = run.fsdp is not None and run.fsdp.shards and run.fsdp.resharded and set(classes) != {model.family.layer}
    return ("fsdp" if run.fsdp_words else "accelerate") if wraps else ""


def _batches(run: RunSettings) -> Iterable[tuple[tuple[Dataset, ...], bool, str]]:
    """Yield the data sets of training and of evaluation, each with whether a batch of them is one sample, and with the
    recipe's key for the size of the batch."""
    train = "per_device_train_batch_size"
    yield run.data.datasets, run.batch.micro_batch == 1 and not run.batch.packing, train
    if run.evaluation.runs:
        datasets = run.data.evaluation_datasets or run.data.datasets
        yield datasets, run.args.number("per_device_eval_batch_size") == 1, "per_device_eval_batch_size"


def _tower_passes(media: frozenset[str], films: str) -> tuple[int, int]:
    """Return how often a batch passes the tower of pictures, and a tower that is for films alone. `media`: what the
    batch holds, images and videos; a batch without either gets a blank picture. `films`: as in data/composites.yaml."""
    pictures, videos = "images" in media or "videos" not in media, "videos" in media
    return (int(pictures), int(videos)) if films == "own tower" else (int(pictures) + int(videos), 0)


def _kinds_text(kinds: frozenset[frozenset[str]]) -> str:
    held = frozenset().union(*kinds)
    return " and ".join(word for part, word in _MEDIA_WORDS.items() if part in held) or "neither pictures nor films"


@rule("PAR027", ERROR, about=subjects.multimodal_model)
def idle_tower_in_ddp(run: RunSettings, model: Model, work: Workload) -> Findings:
    """A part of the model trains in DDP that the data never reach.

    Why: stage pt gives the model texts alone, and a template of text no pictures. A tower or projector that trains then
    gets no gradient, and neither LLaMA-Factory for LoRA nor transformers with checkpointed layers searches for unused
    parameters: "Expected to have finished reduction" at the second step (seen with two processes).
    Source: llamafactory/hparams/parser.py:get_train_args, llamafactory/train/pt/workflow.py:run_pt
    Fix: freeze the tower and the projector, or ZeRO-2, which leaves parameters without gradients as they are.
    """
    recomputed = run.activation_checkpointing.llamafactory_mode != "off"
    if not run.task.trains or not run.ddp_needs_all_gradients or not (run.task.method == "lora" or recomputed):
        return
    media = run.template_media if run.task.stage != "pt" else ()
    for tower, part in zip(model.arch.towers, work.towers, strict=True):
        key = _key_that_trains(tower, part)
        sense = "image" if tower.patch_size else "audio"
        if key and sense not in media:
            cause = "stage pt" if run.task.stage == "pt" else f"template {run.args.get('template')}"
            idle = f"{'vision' if sense == 'image' else 'audio'} part of {model.kind}"
            freeze = f"`{key}: true`, or " if key.startswith("freeze") else ""
            found = f"{cause} gives the {idle} nothing to compute, but it trains, and DDP stops at the second step"
            yield key, f"{found}; set {freeze}`deepspeed: deepspeed/ds_z2.json`"
            return


def _key_that_trains(tower: Tower, part: TowerWorkload) -> str:
    """Return the recipe's key by which something of a tower or its projector trains; `finetuning_type` if only
    parameters train that LLaMA-Factory never freezes; an empty string if nothing does."""
    if part.targets or part.trains or part.trainable_layers:
        return "freeze_vision_tower"
    if part.projector:
        return "freeze_multi_modal_projector"
    return "finetuning_type" if part.never_frozen and tower.never_frozen else ""


@rule("PAR028", ERROR)
def streamed_batches_differ(run: RunSettings) -> Findings:
    """Samples of different lengths are streamed to several devices.

    Why: accelerate has the first process read a streamed data set for all and joins their batches, which are padded
    each to its own length: "You can't use batches of different size with `dispatch_batches=True`", at the first step
    at which two differ (seen with two processes; LLaMA-Factory issue 2763, transformers issue 26548).
    Source: accelerate/data_loader.py:DataLoaderDispatcher._fetch_batches,
    accelerate/data_loader.py:prepare_data_loader
    Fix: `accelerator_config: {"dispatch_batches": false}`, with which each process reads for itself; or `packing: true`
    (stages pt and sft), which makes all samples of texts equally long.
    """
    reads_media = bool(run.template_media) and run.task.stage != "pt"
    computes_loss = run.task.trains or run.evaluation.runs
    if not run.args.flag("streaming") or not computes_loss or run.data.is_tokenized or run.batch.world_size == 1:
        return
    settings = _accelerator_settings(run)
    if (run.batch.packing and not reads_media) or settings.get("dispatch_batches") is False:
        return
    if not settings.get("split_batches"):
        found = "with `streaming` the first process reads for all devices, and batches of unlike lengths stop the run"
        yield "streaming", f'{found}; add `accelerator_config: {{"dispatch_batches": false}}`'


def _accelerator_settings(run: RunSettings) -> Mapping[str, Any]:
    """Return the recipe's `accelerator_config`, which may be JSON or name a JSON file; empty if it cannot be read."""
    value = run.args.get("accelerator_config")
    try:
        if isinstance(value, str) and value.startswith("{"):
            value = json.loads(value)
        elif isinstance(value, str) and (location := run.workspace.find(value)):
            value = read_json(str(location[0]))
    except (RecipeError, ValueError):
        return {}
    return value if isinstance(value, Mapping) else {}


@rule("PAR029", WARNING, about=subjects.model)
def experts_run_unevenly(run: RunSettings, model: Model) -> Findings:
    """ZeRO-3 shards experts one by one, and a device runs only those that its tokens chose.

    Why: until transformers 5 experts were modules of their own, and those without tokens are left out. LLaMA-Factory
    tells DeepSpeed to gather a mixture as a whole, but not every one; of the others a device waits for the weights of
    an expert that the rest do not run (DeepSpeed issues 5066 and 7461).
    Source: llamafactory/model/model_utils/moe.py:add_z3_leaf_module
    Fix: ZeRO-2 or FSDP, or the releases that the message names.
    """
    limit = model.family.no_leaf_before
    if limit and run.zero_stage == 3 and run.task.trains and run.releases.requires(until=limit):
        found = f"LLaMA-Factory does not have ZeRO-3 gather the experts of {model.kind} together, so devices may wait"
        yield "deepspeed", f"{found} for each other for ever; use ZeRO-2 or FSDP, or {limit} or later"
