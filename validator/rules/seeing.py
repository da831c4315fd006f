"""TRA918 to TRA920 and TRA929: faults of vision models that stop the run or spoil gradients."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules import edits
from validator.rules.rule import Finding, rule
from validator.tables.data import listing

# Pixels above which LFM2-VL splits a picture, each side rounded to whole tokens of so many, and what the largest
# picture that is not split is made to (transformers, image_processing_lfm2_vl.py).
_SPLIT, _TOKEN, _WHOLE = 524288, 32, 262144
_FROZEN = edits.put("freeze_vision_tower", True, safe=False)


@rule("TRA918", Severity.ERROR)
def reentered(job: Job) -> Iterator[Finding]:
    """Layers that read pictures are computed again with re-entry, and gradients reach the tower.

    Why: each such layer sends its gradients through the tower at once, and the first frees what the others need:
    "Trying to backward through the graph a second time" in the first backward pass, after the model is loaded on every
    rank. LoRA without quantization asks for gradients there since transformers 5, even of a frozen tower.
    Source: transformers/models/mllama/modeling_mllama.py:MllamaCrossAttentionDecoderLayer,
    transformers/modeling_utils.py:PreTrainedModel.enable_input_require_grads
    Fix: `use_reentrant_gc: false`.
    """
    if not job.model or not job.model.modules or not job.trains or not job.workload:
        return
    if not job.model.arch.crosses or job.checkpointing != "layer" or not job.reentrant:
        return
    reached = any(
        part.tokens and (part.watched or part.trains or part.projector or part.targets or part.trainable_layers)
        for part in job.workload.encodings
    )
    if reached:
        text = f"layers of {job.model.kind} that read pictures stop in the backward pass; set `use_reentrant_gc: false`"
        yield "use_reentrant_gc", text, edits.put("use_reentrant_gc", False)


@rule("TRA929", Severity.WARNING)
def borrowed_without_gradient(job: Job) -> Iterator[Finding]:
    """Layers share keys and values, and checkpointing with re-entry loses the gradients of what is shared.

    Why: the last layers of Gemma 4's small models read keys and values of earlier layers. Re-entrant checkpointing
    first computes these without gradients, and nothing tells: the loss looks right, and the earlier layers train on a
    part of their gradients. In a model of six layers, of which three borrow, the cosine of the gradients to the right
    ones was 0.90 to 0.98 in the layers that lend, and 1.0 without re-entry.
    Source: transformers/models/gemma4/modeling_gemma4.py:Gemma4TextAttention,
    own (a tiny model; unsloth-zoo pull request 813)
    Fix: `use_reentrant_gc: false`.
    """
    if job.model and job.trains and job.model.arch.borrows and job.checkpointing == "layer" and job.reentrant:
        text = f"re-entrant checkpointing loses gradients of keys and values that layers of {job.model.kind} share"
        yield "use_reentrant_gc", f"{text}; set `use_reentrant_gc: false`", edits.put("use_reentrant_gc", False)


@rule("TRA919", Severity.ERROR)
def untaken(job: Job) -> Iterator[Finding]:
    """LoRA's targets reach modules of a model that sees which PEFT does not take.

    Why: "Target module … is not supported" when the adapter is made, after the data is tokenized and the model loaded
    on every rank. A tower may wrap its linear layers in modules of the same name, and `all` may hold the name of a
    linear layer of the projector that whole blocks of the decoder have, or one that is a letter in the names of others.
    Source: peft/tuners/lora/model.py:LoraModel, llamafactory/model/model_utils/visual.py:patch_target_modules
    Fix: `freeze_vision_tower: true`, or targets by name.
    """
    if not job.model or not job.model.modules or not job.adapts or not job.workload:
        return
    kind = job.model.kind
    told = listing("composites")[kind]
    pairs = zip(job.model.arch.towers, job.workload.encodings, strict=True)
    inside = any({linear.role for linear in tower.linears} & set(part.targets) for tower, part in pairs)
    if inside and (wrapped := told.get("wrapped")):
        text = f"the towers of {kind} hold {wrapped}, which PEFT does not take; set `freeze_vision_tower: true`"
        yield "freeze_vision_tower", text, _FROZEN
    if inside and (clash := told.get("tower_clash")) and job.targets_all:
        text = f"`{clash}`, a layer of the tower, is in the name of other modules of {kind}, which PEFT does not take"
        yield "freeze_vision_tower", f"{text}; set `freeze_vision_tower: true`", _FROZEN
    if (clash := told.get("clash")) and job.targets_all:
        named = job.model.family.targets
        text = f"`{clash}`, a layer of the projector, is the name of blocks of {kind}, too, which PEFT does not take"
        yield "lora_target", f"{text}; write `{named}`", edits.put("lora_target", named, safe=False)


@rule("TRA920", Severity.WARNING)
def tiles_uncounted(job: Job) -> Iterator[Finding]:
    """LFM2-VL splits large pictures into tiles, and LLaMA-Factory counts the tokens of the first tile alone.

    Why: "Image features and image tokens do not match, tokens: 256, features: 1280" at the first such picture (seen
    with a made one of 724 x 724, a tiny model of the real class and stand-ins for torchvision's resizing).
    LLaMA-Factory leaves pictures as large as `image_max_pixels` lets them be, 589,824 by default; of squares those from
    720 x 720 on are split.
    Source: llamafactory/data/mm_plugin.py:LFMVLPlugin
    Fix: `image_max_pixels: 262144`, which is as large as the processor keeps a picture that is not split.
    """
    if not job.model or job.model.kind != "lfm2_vl" or not job.trains or job.stage == "pt" or job.tokenized:
        return
    pixels = int(job.number("image_max_pixels"))
    side = round(isqrt(max(pixels, 0)) / _TOKEN) * _TOKEN
    if side * side > _SPLIT and any(dataset.mapping.get("images") for dataset in job.datasets):
        text = f"{job.model.name} splits pictures of {pixels:,} pixels; LLaMA-Factory counts the first tile's tokens"
        yield (
            "image_max_pixels",
            f"{text} alone: training stops at the first; set `image_max_pixels: {_WHOLE}`",
            edits.put("image_max_pixels", _WHOLE, safe=False),
        )
