"""TRA91x: models that see or hear: what of them trains, how their samples are cut and packed, which files they need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.diagnostic import RecipeError, Severity
from validator.job.job import Job
from validator.read.tree import read_json
from validator.rules.rule import Finding, rule
from validator.tables.models import Model


@rule("TRA911", Severity.ERROR)
def all_frozen(job: Job) -> Iterator[Finding]:
    """Every part of a model that sees or hears is frozen.

    Why: tower and projector are frozen unless the recipe says otherwise. Full and freeze tuning end at the first step
    with "element 0 of tensors does not require grad", LoRA with "No `target_modules` passed" when the adapter is made.
    Source: llamafactory/model/model_utils/visual.py:get_forbidden_modules,
    llamafactory/model/model_utils/visual.py:patch_target_modules
    Fix: `freeze_multi_modal_projector: false`, `freeze_vision_tower: false`, or the language model trained, too.
    """
    work = job.workload if job.trains and _reaches(job) and not job.trains_decoder else None
    if work is None or job.model is None or job.has("adapter_name_or_path"):
        return
    trained = any(part.targets or part.trains or part.projector or part.trainable_layers for part in work.encodings)
    loose = job.method == "full" and any(tower.loose for tower in job.model.arch.towers)
    if not trained and not loose:
        remedy = "freeze_vision_tower: false" if job.adapts else "freeze_multi_modal_projector: false"
        yield "freeze_language_model", f"tower and projector are frozen, too: nothing is left to train; set `{remedy}`"


@rule("TRA912", Severity.ERROR)
def targets_frozen(job: Job) -> Iterator[Finding]:
    """LoRA's targets all lie in a frozen part of a model that sees or hears, or in none.

    Why: "No `target_modules` passed" when the adapter is made, after the data is tokenized and the model loaded on
    every rank.
    Source: llamafactory/model/model_utils/visual.py:patch_target_modules
    Fix: `lora_target: all`, or the part's own key: `freeze_vision_tower: false`, `freeze_multi_modal_projector: false`.
    """
    targets = _named_targets(job)
    if not targets or not job.model or not job.workload or not job.trains_decoder:
        return
    family, bare = job.model.family, [_unnumbered(target) for target in targets]
    linear = [f"language_model.layers.{part}.{name}" for part in family.parts for name in family.linear]
    decoder = any(target in name for target in bare for name in linear)
    if not decoder and not any(part.targets for part in job.workload.encodings):
        key = _kept_frozen(job.model, bare)
        if key and not job.flag(key):
            return  # a module of one layer, by its number
        where, remedy = ("only a frozen part", f"{key}: false") if key else ("no part", "lora_target: all")
        yield (
            "lora_target",
            f"{', '.join(targets)} names {where} of {job.model.kind}: nothing would train; write `{remedy}`",
        )


def _unnumbered(target: str) -> str:
    """A target without the number of its layer."""
    return re.sub(r"\.\d+(?=\.|$)", "", target)


def _kept_frozen(model: Model, targets: list[str]) -> str | None:
    """The key that freezes the part of a tower or a projector which one of the targets names; None: none names any."""
    for tower, names in zip(model.arch.towers, model.modules, strict=True):
        projector = {linear.role for linear in tower.projector}
        for name, role in names.items():
            if any(target in name for target in targets):
                return "freeze_multi_modal_projector" if role in projector else "freeze_vision_tower"
    return None


@rule("TRA913", Severity.ERROR)
def target_is_a_block(job: Job) -> Iterator[Finding]:
    """LoRA's target is part of the name of a whole block of a model that sees or hears.

    Why: for these models LLaMA-Factory takes every module whose name holds the word: "Target module … is not supported"
    when the adapter is made, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/model/model_utils/visual.py:patch_target_modules, peft/tuners/lora/model.py:LoraModel
    Fix: names of linear layers, such as q_proj, or `lora_target: all`.
    """
    targets = _named_targets(job)
    parts = sorted(job.model.family.parts) if targets and job.model and job.trains_decoder else []
    for target in targets:
        if blocks := [part for part in parts if target in part]:
            yield "lora_target", f"`{target}` is in the name of the block {blocks[0]}, too; name its linear layers"


@rule("TRA914", Severity.WARNING)
def thawed_without_effect(job: Job) -> Iterator[Finding]:
    """LoRA adapts nothing in the part that the recipe unfreezes.

    Why: LoRA trains adapters alone; a projector or a tower without a target stays as it is.
    Source: llamafactory/model/model_utils/misc.py:find_all_linear_modules
    Fix: remove it; full or freeze tuning trains the part itself.
    """
    if not job.adapts or not job.model or not _reaches(job) or not job.workload:
        return
    if any("." in target for target in _named_targets(job)):
        return  # a path to modules, which the parts' names do not tell
    adapted = [set(part.targets) for part in job.workload.encodings]
    projectors = [{linear.role for linear in tower.projector} for tower in job.model.arch.towers]
    pairs = list(zip(adapted, projectors, strict=True))
    touched = {"freeze_multi_modal_projector": any(roles & own for roles, own in pairs),
               "freeze_vision_tower": any(roles - own for roles, own in pairs)}  # fmt: skip
    for key, reached in touched.items():
        if key in job.values and not job.flag(key) and not reached:
            part = "tower" if key == "freeze_vision_tower" else "projector"
            yield key, f"LoRA adapts nothing in the {part}: `{key}: false` has no effect; remove it"


@rule("TRA915", Severity.ERROR)
def omni_packed(job: Job) -> Iterator[Finding]:
    """Samples of an omni model are packed with their borders kept.

    Why: "Omni models are not supported for packed sequences" at the first step.
    Source: llamafactory/data/collator.py:MultiModalDataCollatorForSeq2Seq
    Fix: remove `neat_packing`.
    """
    if not job.model or not _reaches(job) or job.stage != "sft" or not job.trains or not job.neat:
        return
    from validator.tables import composite  # which no model of text waits for

    if composite.thinks(job.model.kind):
        yield "neat_packing", "LLaMA-Factory cannot pack samples of omni models so; remove `neat_packing`"


@rule("TRA916", Severity.WARNING)
def pictures_cut(job: Job) -> Iterator[Finding]:
    """The pictures of one sample can be longer than `cutoff_len`.

    Why: a sample is cut wherever `cutoff_len` falls, within a picture, too; the first such sample ends the run with
    "Image features and image tokens do not match". Pictures count as large as `image_max_pixels` lets them be, and as
    many as the fullest of the first rows has; where only the registry is at hand, one.
    Source: llamafactory/data/processor/supervised.py:SupervisedDatasetProcessor._encode_data_example
    Fix: a larger `cutoff_len`, or a smaller `image_max_pixels` (films: `video_max_pixels`, `video_maxlen`).
    """
    if not job.model or not _reaches(job) or not job.trains or job.stage == "pt" or job.tokenized:
        return
    if not any(dataset.mapping.get(part) for dataset in job.datasets for part in ("images", "videos")):
        return
    from validator.job import media  # which no model of text waits for

    tokens, limit = media.longest(job, job.model, job.datasets), int(job.number("cutoff_len"))
    smaller = any(tower.side and not tower.whole for tower in job.model.arch.towers)
    if tokens > limit > 0:
        yield (
            "cutoff_len",
            f"the pictures of a sample are up to {tokens:,} tokens, `cutoff_len` is {limit:,}: one that is cut "
            f"ends the run; set {-(-tokens // 1024) * 1024:,}{' or a smaller `image_max_pixels`' if smaller else ''}",
        )


@rule("TRA917", Severity.ERROR)
def own_layout(job: Job) -> Iterator[Finding]:
    """The checkpoint is in the layout of its own repository, not in that of transformers.

    Why: LLaMA-Factory refuses it once the data is tokenized: "Please download the internvl models in a Hugging
    Face-compatible format".
    Source: llamafactory/model/patcher.py:patch_config
    Fix: the published name with -hf in the end; for LLaVA those of llava-hf.
    """
    if job.model and not _reaches(job):
        return
    from validator.tables import layout  # which no model of text waits for

    name = str(job.get("model_name_or_path"))
    local = job.find(f"{name}/config.json")
    if remedy := layout.instead(name, _architectures(str(local[0])) if local else None):
        text = f"LLaMA-Factory does not load {name}: it is not in transformers' layout; take {remedy}"
        yield "model_name_or_path", text


def _reaches(job: Job) -> bool:
    """Whether the parts of a model that sees or hears are known by name."""
    return job.model is not None and bool(job.model.modules)


def _named_targets(job: Job) -> tuple[str, ...]:
    """LoRA's targets of a model that sees or hears, where they are named."""
    targets = job.words("lora_target") if job.adapts and _reaches(job) else ()
    return () if targets == ("all",) else tuple(target for target in targets if target)


def _architectures(file: str) -> list[str]:
    try:
        config = read_json(file)
    except RecipeError:
        return []
    named = config.get("architectures") if isinstance(config, dict) else None
    return [str(each) for each in named] if isinstance(named, list) else []
