"""Broken releases for a run: releases that have the run's model and cannot train it under the run's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from validator.errors import RecipeError
from validator.knowledge.broken_releases import BrokenReleases, broken_releases
from validator.physics.decoder_layers import build_layers
from validator.recipe.safe_read import read_json
from validator.run.adapted_modules import adapted_modules
from validator.run.settings import RunSettings

# What transformers 5 calls the classes of tokenizers that no class of a model's own stands for
# (models/auto/tokenization_auto.py).
_NEW_TOKENIZER_CLASSES = ("TokenizersBackend", "PythonBackend")


def broken_for_run(run: RunSettings, kinds: Sequence[str]) -> list[BrokenReleases]:
    """Return the releases that cannot train the run's model as the recipe says. `kinds`: the model's type first (see
    `model_types`); empty if it is not known."""
    found = broken_releases(kinds[0]) if kinds else ()
    applying = (each for each in found if not each.when or _CONDITIONS[each.when](run))
    return [each for each in applying if str(run.model_name).startswith(each.named)]


def overflows_in_fp16(run: RunSettings) -> bool:
    """True if fp16 is known not to hold the numbers of the run's model."""
    kinds = [run.model.kind] if run.model else []
    return any(each.when == "fp16" for each in broken_for_run(run.updated({"fp16": True}), kinds))


def _loads_under_zero3(run: RunSettings) -> bool:
    """True if transformers loads a checkpoint into weights that ZeRO-3 shards. Quantized weights are loaded whole."""
    return run.zero_stage == 3 and not run.quantization.is_quantized and not run.args.flag("train_from_scratch")


def _adapts_experts_in_ddp(run: RunSettings) -> bool:
    """True if LoRA adapts modules of experts and every one of them needs a gradient in every step. LLaMA-Factory turns
    the search for unused parameters off for LoRA (hparams/parser.py, get_train_args)."""
    if run.model is None or run.task.method != "lora" or not run.task.trains or not run.ddp_needs_all_gradients:
        return False
    roles = adapted_modules(run, run.model, fused=False).roles
    routed = (each for _, layer in build_layers(run.model.arch, fused=False) for each in layer.linears if each.routed)
    return any(each.has_role(roles) for each in routed)


def _has_new_tokenizer(run: RunSettings) -> bool:
    """True if transformers 5 saved the tokenizer in the model's folder, under a class that earlier releases lack."""
    place = run.workspace.find(f"{run.args.get('model_name_or_path')}/tokenizer_config.json")
    try:
        settings = read_json(str(place[0])) if place else None
    except RecipeError:
        return False
    return isinstance(settings, Mapping) and settings.get("tokenizer_class") in _NEW_TOKENIZER_CLASSES


_CONDITIONS: Mapping[str, Callable[[RunSettings], bool]] = {
    "zero3": _loads_under_zero3,
    "fa2": lambda run: run.uses_flash_attention,
    "fa2_npu": lambda run: (
        run.uses_flash_attention and run.machine is not None and run.machine.device.vendor == "ascend"
    ),
    "experts_ddp": _adapts_experts_in_ddp,
    "fp16": lambda run: run.args.flag("fp16"),
    "saved_by_transformers_5": _has_new_tokenizer,
}
