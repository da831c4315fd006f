"""The modules whose own weights train: what freeze tuning unfreezes, and what `additional_target` trains in full beside
an adapter."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from validator.knowledge.models import Model
from validator.knowledge.module_names import ModuleName, module_names
from validator.physics import Architecture
from validator.physics.architecture import Linear
from validator.physics.decoder_layers import loaded_layers
from validator.run.adapted_modules import expanded_blocks
from validator.run.settings import RunSettings


class UnfrozenLayers(NamedTuple):
    """The layers that freeze tuning trains. `layers`: their number; `first`: they are the first layers, not the last.
    `passed`: number of frozen layers that gradients pass on their way to what trains. `roles`: roles of the linear
    modules that train; empty: the layers train as a whole."""

    layers: int
    first: bool = False
    passed: int = 0
    roles: tuple[str, ...] = ()


def unfrozen_layers(run: RunSettings, model: Model, fused: bool) -> UnfrozenLayers:
    """Return the layers that freeze tuning trains. A negative `freeze_trainable_layers` trains the first layers, and
    `use_llama_pro` the last one of equal groups (model/adapter.py, _setup_freeze_tuning). `fused`: all experts of a
    layer are one tensor."""
    number, layers = int(run.args.number("freeze_trainable_layers")), model.arch.layers
    trained, blocks = min(abs(number), layers), expanded_blocks(run, model)
    passed = layers - blocks[0] - trained if blocks else layers - trained if number < 0 else 0
    if model.family.embedding in run.args.words("freeze_extra_modules"):
        passed = layers - trained
    is_first = number < 0 and not blocks
    return UnfrozenLayers(trained, is_first, passed, _unfrozen_roles(run, model, fused))


def _unfrozen_roles(run: RunSettings, model: Model, fused: bool) -> tuple[str, ...]:
    """Return the roles of the linear modules that `freeze_trainable_modules` names, and `experts` if a block that it
    names holds fused experts. Empty for all. A name is the beginning of a module's path below its layer."""
    words = tuple(filter(None, run.args.words("freeze_trainable_modules")))
    if not words or "all" in words:
        return ()
    place, roles = f"{model.family.layers_at}.", set[str]()
    for module in module_names(model, fused):
        path = module.name.removeprefix(place).partition(".")[2]
        if module.layer is not None and path.startswith(words) and module.role:
            roles.add(f"{'routed' if module.experts else 'shared'} {module.role}")
    named_experts = (path for path in model.family.blocks if path.startswith(words) and path.endswith("experts"))
    return tuple(sorted(roles | ({"experts"} if fused and any(named_experts) else set())))


class SavedModules(NamedTuple):
    """The modules that train in full beside an adapter: the embedding, the output layer, and `elements` elements of
    other linear modules. `lost`: words that name no module."""

    embedding: bool = False
    head: bool = False
    elements: int = 0
    lost: tuple[str, ...] = ()


def saved_modules(run: RunSettings, model: Model, fused: bool) -> SavedModules:
    """Return the modules that train in full beside an adapter. A word of `additional_target` names every module whose
    name ends with it, even within a word (peft/utils/other.py, _set_trainable). `fused`: all experts of a layer are one
    tensor."""
    words = tuple(filter(None, run.args.words("additional_target")))
    modules = module_names(model, fused)
    if not modules:
        return SavedModules(any("embed" in word for word in words), any("head" in word for word in words))
    return _find_saved(model.arch, modules, words, fused)


@lru_cache(maxsize=32)
def _find_saved(
    arch: Architecture, modules: tuple[ModuleName, ...], words: tuple[str, ...], fused: bool
) -> SavedModules:
    names = [(module, name) for module in modules for name in (module.names if words else ())]
    lost = tuple(word for word in words if not any(name.endswith(word) for _, name in names))
    saved = [module for module, name in names if any(above.endswith(words) for above in _with_blocks_above(name))]
    outside = {module.role for module in saved if module.layer is None and module.tower is None}
    layers = [layer for number, layer in loaded_layers(arch, fused) for _ in range(number)]
    elements = 0
    for module in saved:
        linears: tuple[Linear, ...] = ()
        if module.tower is not None:
            tower = arch.towers[module.tower]
            linears = (*tower.linears, *tower.outside, *tower.projector)
        elif module.layer is not None:
            linears = layers[module.layer].linears
        alike = (each for each in linears if each.role == module.role and each.routed == bool(module.experts))
        elements += next((each.inputs * each.outputs + each.outputs * each.bias for each in alike), 0)
    return SavedModules("embedding" in outside, "head" in outside, elements, lost)


def _with_blocks_above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
