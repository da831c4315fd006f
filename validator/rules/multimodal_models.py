"""TRA911, TRA914 to TRA920, TRA929 and TRA939 to TRA941: multimodal models: which of their parts train, how their
samples are cut and packed, and what stops the run or corrupts gradients."""

from __future__ import annotations

from math import isqrt

from validator.errors import RecipeError
from validator.knowledge import composites
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.physics import Workload
from validator.recipe.safe_read import read_json
from validator.rules import subjects
from validator.rules.rule import ERROR, WARNING, Findings, remove_keys, rule, set_value
from validator.run import first_rows, image_tokens, model_files, multimodal, row_images
from validator.run.model_parts import is_decoder_trained
from validator.run.settings import RunSettings


@rule("TRA911", ERROR, about=subjects.multimodal_model)
def nothing_trainable(run: RunSettings, model: Model, work: Workload) -> Findings:
    """Every part of a model that sees or hears is frozen.

    Why: tower and projector are frozen unless the recipe says otherwise. Full and freeze tuning end at the first step
    with "element 0 of tensors does not require grad", LoRA with "No `target_modules` passed" when the adapter is made.
    Source: llamafactory/model/model_utils/visual.py:get_forbidden_modules,
    llamafactory/model/model_utils/visual.py:patch_target_modules
    Fix: `freeze_multi_modal_projector: false`, `freeze_vision_tower: false`, or the language model trained, too.
    """
    if not run.task.trains or is_decoder_trained(run, model) or run.args.is_set("adapter_name_or_path"):
        return
    trained = any(part.targets or part.trains or part.projector or part.trainable_layers for part in work.towers)
    loose = run.task.method == "full" and any(tower.never_frozen for tower in model.arch.towers)
    if not trained and not loose:
        remedy = "freeze_vision_tower: false" if run.task.uses_adapter else "freeze_multi_modal_projector: false"
        found = "language model, tower and projector are all frozen, so nothing is left to train"
        yield "freeze_language_model", f"{found}; set `{remedy}`"


@rule("TRA914", WARNING, about=subjects.multimodal_model)
def thawed_without_effect(run: RunSettings, model: Model, work: Workload) -> Findings:
    """LoRA adapts nothing in the part that the recipe unfreezes.

    Why: LoRA trains adapters alone; a projector or a tower without a target stays as it is.
    Source: llamafactory/model/model_utils/misc.py:find_all_linear_modules
    Fix: remove it; full or freeze tuning trains the part itself.
    """
    if not run.task.uses_adapter:
        return
    adapted = [set(part.targets) for part in work.towers]
    projectors = [{linear.role for linear in tower.projector} for tower in model.arch.towers]
    pairs = list(zip(adapted, projectors, strict=True))
    touched = {"freeze_multi_modal_projector": any(roles & own for roles, own in pairs),
               "freeze_vision_tower": any(roles - own for roles, own in pairs)}  # fmt: skip
    for key, reached in touched.items():
        if key in run.args.values and not run.args.flag(key) and not reached:
            part = "tower" if key == "freeze_vision_tower" else "projector"
            yield key, f"LoRA adapts nothing in the {part}, so `{key}: false` has no effect; remove `{key}`"


@rule("TRA915", ERROR, about=subjects.model)
def omni_packed(run: RunSettings, model: Model) -> Findings:
    """Neat packing is used for an omni model.

    Why: "Omni models are not supported for packed sequences" at the first step.
    Source: llamafactory/data/collator.py:MultiModalDataCollatorForSeq2Seq
    Fix: remove `neat_packing`.
    """
    packed = run.task.stage == "sft" and run.task.trains and run.batch.neat_packing
    if packed and model.modules and composites.is_omni_type(model.kind):
        yield "neat_packing", "`neat_packing` does not work for omni models; remove `neat_packing`"


@rule("TRA916", WARNING, about=subjects.model)
def pictures_cut(run: RunSettings, model: Model) -> Findings:
    """The pictures of one sample can be longer than `cutoff_len`.

    Why: a sample is cut wherever `cutoff_len` falls, within a picture, too; the first such sample ends the run with
    "Image features and image tokens do not match". Pictures count as large as `image_max_pixels` lets them be, and as
    many as the fullest of the first rows has; where only the registry is at hand, one. Where all rows and the sizes of
    their images are at hand, TRA941 judges by these.
    Source: llamafactory/data/processor/supervised.py:SupervisedDatasetProcessor._encode_data_example
    Fix: a larger `cutoff_len`, or a smaller `image_max_pixels` (films: `video_max_pixels`, `video_maxlen`).
    """
    if not model.modules or not run.task.trains or run.task.stage == "pt" or run.data.is_tokenized:
        return
    if not any(dataset.attr.has_images for dataset in run.data.datasets):
        return
    if row_images.are_all_known(run) or first_rows.cut_images(run):
        return
    tokens, limit = multimodal.max_media_tokens(run, model, run.data.datasets), int(run.args.number("cutoff_len"))
    smaller = any(tower.patch_size and not tower.fixed_tokens for tower in model.arch.towers)
    if tokens > limit > 0:
        found = f"the images of a sample take up to {tokens:,} tokens, but `cutoff_len` is {limit:,}"
        remedy = f"set `cutoff_len: {multimodal.cutoff_for_media(tokens)}`"
        remedy += ", or a smaller `image_max_pixels`" if smaller else ""
        yield "cutoff_len", f"{found}, so the run stops at an image that is cut; {remedy}"


@rule("TRA941", ERROR, about=subjects.model)
def images_cut(run: RunSettings, model: Model) -> Findings:
    """`cutoff_len` cuts an image.

    Why: a sample is cut wherever `cutoff_len` falls, within an image, too; the first such sample ends the run with
    "Image features and image tokens do not match". Looked at are the images of the first rows, by the sizes in their
    headers; `data` looks at all rows.
    Source: llamafactory/data/processor/supervised.py:SupervisedDatasetProcessor._encode_data_example
    Fix: a larger `cutoff_len`, or a smaller `image_max_pixels`.
    """
    if model.modules and run.task.trains and run.task.stage != "pt" and (cut := first_rows.cut_images(run)):
        found = cut.found(int(run.args.number("cutoff_len")), run.data.sampled_in_words)
        yield "cutoff_len", f"{found}, and the run stops at the first; {cut.remedy}"


@rule("TRA939", WARNING, about=subjects.model)
def tiles_not_asked_for(run: RunSettings, model: Model) -> Findings:
    """InternVL is trained on pictures that are shrunk to one tile, without a word.

    Why: LLaMA-Factory calls the image processor itself, past the processor that would cut pictures into tiles, and the
    image processor of the published checkpoints has `crop_to_patches: false`. Small print is then lost: a user saw 20 %
    where another model had 80 % (LLaMA-Factory issue 8479). Looked at are the pictures of the first rows that have more
    than twice the pixels of a tile.
    Source: llamafactory/data/mm_plugin.py:InternVLPlugin
    Fix: `crop_to_patches: true`, with a `cutoff_len` for up to 13 tiles of 256 tokens; `crop_to_patches: false` where
    small pictures suffice.
    """
    if model.kind not in ("internvl", "interns1") or run.args.is_set("crop_to_patches") or not run.task.trains:
        return
    counter, largest = image_tokens.image_counter(run)[0], row_images.largest_image(run)
    if counter is None or largest is None or counter.facts["crop_to_patches"]:
        return
    side = counter.facts["tile"]
    if min(largest.width * largest.height, counter.max_pixels) > 2 * side**2:
        cropped = image_tokens.image_counter(run.updated({"crop_to_patches": True}))[0]
        tokens = cropped and cropped.count(largest)
        found = f"pictures of up to {largest.width:,} x {largest.height:,} pixels are shrunk to {side} x {side}"
        remedy = "set `crop_to_patches: true`" + (f" ({tokens.sequence:,} tokens for that picture)" if tokens else "")
        yield "crop_to_patches", f"{found}, and small print is lost; {remedy}, or `false` if that suffices"


@rule("TRA940", ERROR)
def pan_and_scan_fails(run: RunSettings) -> Findings:
    """Pan and scan of Gemma 3 ends the run.

    Why: "IndexError: invalid index of a 0-dim tensor" at the first picture: LLaMA-Factory reads the numbers of crops as
    a list for each sample, and transformers 4.50 to 5.6 return one list for all.
    Source: llamafactory/data/mm_plugin.py:Gemma3Plugin
    Fix: delete `image_do_pan_and_scan`; for more detail train a model that takes pictures as large as they are, such as
    Qwen3-VL.
    """
    reads_images = any(dataset.attr.has_images for dataset in run.data.datasets) and not run.data.is_tokenized
    if not run.args.flag("image_do_pan_and_scan") or run.task.stage == "pt" or not reads_images:
        return
    counter, _ = image_tokens.image_counter(run)
    if counter and counter.facts["rule"] == "crops":
        found = "LLaMA-Factory cannot read the crops that Gemma 3's image processor makes"
        fix = remove_keys("image_do_pan_and_scan", safe=False)
        yield "image_do_pan_and_scan", f"{found}, so the run ends at the first picture; delete the key", fix


@rule("TRA917", ERROR)
def own_layout(run: RunSettings) -> Findings:
    """The checkpoint is in the layout of its own repository, not in that of transformers.

    Why: LLaMA-Factory refuses it once the data is tokenized: "Please download the internvl models in a Hugging
    Face-compatible format".
    Source: llamafactory/model/patcher.py:patch_config
    Fix: the published name with -hf in the end; for LLaVA those of llava-hf.
    """
    if run.model and not run.model.modules:
        return
    name = str(run.args.get("model_name_or_path"))
    local = run.workspace.find(f"{name}/config.json")
    if remedy := model_files.replacement_for_layout(name, _read_architectures(str(local[0])) if local else None):
        text = f"LLaMA-Factory does not load {name}, which is not in transformers' layout; take {remedy}"
        yield "model_name_or_path", text


def _read_architectures(file: str) -> list[str]:
    try:
        config = read_json(file)
    except RecipeError:
        return []
    architectures = config.get("architectures") if isinstance(config, dict) else None
    return [str(each) for each in architectures] if isinstance(architectures, list) else []


# Pixels above which LFM2-VL splits a picture, each side rounded to whole tokens of so many, and what the largest
# picture that is not split is made to (transformers, image_processing_lfm2_vl.py).
_SPLIT_PIXELS, _TOKEN_SIDE, _UNSPLIT_PIXELS = 524288, 32, 262144
_FREEZE_TOWER = set_value("freeze_vision_tower", True, safe=False)


@rule("TRA918", ERROR, about=subjects.multimodal_model)
def reentrant_checkpointing_fails(run: RunSettings, model: Model, work: Workload) -> Findings:
    """Re-entrant checkpointing recomputes layers that read pictures, and gradients reach the tower.

    Why: each such layer sends its gradients through the tower at once, and the first frees what the others need:
    "Trying to backward through the graph a second time" in the first backward pass, after the model is loaded on every
    rank. LoRA without quantization asks for gradients there since transformers 5, even of a frozen tower.
    Source: transformers/models/mllama/modeling_mllama.py:MllamaCrossAttentionDecoderLayer,
    transformers/modeling_utils.py:PreTrainedModel.enable_input_require_grads
    Fix: `use_reentrant_gc: false`.
    """
    if not run.task.trains or not model.arch.has_cross_attention or not _reenters_layers(run):
        return
    reached = any(
        part.tokens
        and (part.input_requires_grad or part.trains or part.projector or part.targets or part.trainable_layers)
        for part in work.towers
    )
    if reached:
        found = f"re-entrant checkpointing fails on the layers of {model.kind} that read pictures"
        yield "use_reentrant_gc", f"{found}; set `use_reentrant_gc: false`", set_value("use_reentrant_gc", False)


@rule("TRA929", WARNING, about=subjects.model)
def borrowed_without_gradient(run: RunSettings, model: Model) -> Findings:
    """Layers share keys and values, and re-entrant checkpointing loses gradients of what they share.

    Why: the last layers of Gemma 4's small models read keys and values of earlier layers. Re-entrant checkpointing
    first computes these without gradients, and nothing tells: the loss looks right, and the earlier layers train on a
    part of their gradients. In a model of six layers, of which three borrow, the cosine of the gradients to the right
    ones was 0.90 to 0.98 in the layers that lend, and 1.0 without re-entry.
    Source: transformers/models/gemma4/modeling_gemma4.py:Gemma4TextAttention,
    own (a tiny model; unsloth-zoo pull request 813)
    Fix: `use_reentrant_gc: false`.
    """
    if run.task.trains and model.arch.shares_kv and _reenters_layers(run):
        text = f"re-entrant checkpointing loses gradients of keys and values that layers of {model.kind} share"
        yield "use_reentrant_gc", f"{text}; set `use_reentrant_gc: false`", set_value("use_reentrant_gc", False)


def _reenters_layers(run: RunSettings) -> bool:
    return run.activation_checkpointing.mode == "layer" and run.activation_checkpointing.reentrant


@rule("TRA919", ERROR, about=subjects.multimodal_model)
def unsupported_lora_target(run: RunSettings, model: Model, work: Workload) -> Findings:
    """LoRA's targets reach modules of a model that sees which PEFT cannot adapt.

    Why: "Target module … is not supported" when the adapter is made, after the data is tokenized and the model loaded
    on every rank. A tower may wrap its linear layers in modules of the same name, and `all` may hold the name of a
    linear layer of the projector that whole blocks of the decoder have, or one that is a letter in the names of others.
    Source: peft/tuners/lora/model.py:LoraModel, llamafactory/model/model_utils/visual.py:patch_target_modules
    Fix: `freeze_vision_tower: true`, or targets by name.
    """
    if not run.task.uses_adapter:
        return
    kind, family = model.kind, yaml_table("composites")[model.kind]
    pairs = zip(model.arch.towers, work.towers, strict=True)
    inside = any({linear.role for linear in tower.linears} & set(part.targets) for tower, part in pairs)
    if inside and (wrapped := family.get("wrapped")):
        text = f"the towers of {kind} hold {wrapped}, which PEFT cannot adapt; set `freeze_vision_tower: true`"
        yield "freeze_vision_tower", text, _FREEZE_TOWER
    if inside and (clash := family.get("tower_clash")) and run.task.targets_all_linear:
        text = f"`{clash}`, a layer of the tower, also matches modules of {kind} that PEFT cannot adapt"
        yield "freeze_vision_tower", f"{text}; set `freeze_vision_tower: true`", _FREEZE_TOWER
    if (clash := family.get("clash")) and run.task.targets_all_linear:
        named = model.family.targets
        found = f"`lora_target: all` picks up `{clash}`, which is a projector layer and also a whole block of {kind}"
        fix = set_value("lora_target", named, safe=False)
        yield "lora_target", f"{found}, which PEFT cannot adapt; write `lora_target: {named}`", fix


@rule("TRA920", WARNING, about=subjects.model)
def tiles_uncounted(run: RunSettings, model: Model) -> Findings:
    """LFM2-VL splits large pictures into tiles, and LLaMA-Factory counts the tokens of the first tile alone.

    Why: "Image features and image tokens do not match, tokens: 256, features: 1280" at the first such picture (seen
    with a made one of 724 x 724, a tiny model of the real class and stand-ins for torchvision's resizing).
    LLaMA-Factory leaves pictures as large as `image_max_pixels` lets them be, 589,824 by default; of squares those from
    720 x 720 on are split.
    Source: llamafactory/data/mm_plugin.py:LFMVLPlugin
    Fix: `image_max_pixels: 262144`, which is as large as the processor keeps a picture that is not split.
    """
    if model.kind != "lfm2_vl" or not run.task.trains or run.task.stage == "pt" or run.data.is_tokenized:
        return
    pixels = int(run.args.number("image_max_pixels"))
    side = round(isqrt(max(pixels, 0)) / _TOKEN_SIDE) * _TOKEN_SIDE
    if side * side > _SPLIT_PIXELS and any(dataset.attr.columns.get("images") for dataset in run.data.datasets):
        found = f"{model.name} splits pictures of {pixels:,} pixels, and LLaMA-Factory counts only the first tile"
        remedy = f"set `image_max_pixels: {_UNSPLIT_PIXELS}`"
        fix = set_value("image_max_pixels", _UNSPLIT_PIXELS, safe=False)
        yield "image_max_pixels", f"{found}, so training stops at the first such picture; {remedy}", fix
