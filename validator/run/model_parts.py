"""The parts of a multimodal model as LLaMA-Factory tells them apart: towers, projector and decoder. Also which of them
the recipe's `freeze_…` keys freeze."""

from __future__ import annotations

from collections.abc import Mapping

from validator.knowledge import tables
from validator.knowledge.models import Model
from validator.run.settings import RunSettings

_FROZEN_BY = {
    "freeze_vision_tower": "vision_model_keys",
    "freeze_multi_modal_projector": "projector_keys",
    "freeze_language_model": "language_model_keys",
}


def part_words(model: Model) -> Mapping[str, list[str]]:
    """Return the words by which LLaMA-Factory finds the towers, the projector and the decoder to freeze, by
    LLaMA-Factory's name for the part. Empty for a model type whose parts LLaMA-Factory does not know and so never
    freezes."""
    entry = tables.yaml_table("composites")[model.kind] if model.modules else {}
    composites: Mapping[str, Mapping[str, list[str]]] = tables.json_table("families")["composites"]
    return composites.get(entry.get("registered", model.kind), {})


def frozen_words(run: RunSettings, model: Model) -> tuple[str, ...]:
    """Return the words that mark the parameters which the recipe's `freeze_…` keys freeze: a parameter whose name
    contains one of the words is frozen (model_utils/visual.py, get_forbidden_modules)."""
    words = part_words(model)
    return tuple(word for key, part in _FROZEN_BY.items() if run.args.flag(key) for word in words.get(part, ()))


def unadapted_words(run: RunSettings, model: Model) -> tuple[str, ...]:
    """Return the words that mark the modules which get no adapter: those of frozen parts, and those that LLaMA-Factory
    leaves out for each model type (model_utils/visual.py, patch_target_modules)."""
    return (*frozen_words(run, model), *part_words(model).get("lora_conflict_keys", ()))


def is_decoder_trained(run: RunSettings, model: Model) -> bool:
    """True unless `freeze_language_model` freezes the decoder."""
    words = part_words(model).get("language_model_keys", ())
    return not (run.args.flag("freeze_language_model") and any(word in model.family.layers_at for word in words))
