"""The modules of a run's model that get a LoRA or OFT adapter: what LLaMA-Factory and PEFT make of `lora_target`,
`use_llama_pro`, `additional_target` and the `freeze_…` keys of multimodal models."""

from __future__ import annotations

import re
from collections.abc import Set
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from validator.knowledge.models import Model
from validator.knowledge.module_names import ModuleName, module_names
from validator.physics import linear_roles
from validator.physics.workload import AdaptedLayers
from validator.run import model_parts
from validator.run.settings import RunSettings

# A number as a part of its own in the name of a module: that of a layer or of an expert
_NUMBER = re.compile(r"(^|\.)\d+(\.|$)")


class AdaptedModules(NamedTuple):
    """The modules that get an adapter. `roles`: their roles in the memory formulas. `layers`: the roles in each layer,
    if layers differ; `experts`: adapted experts in a layer, 0: all. `towers`: number of adapted modules of each tower
    and its projector, by role. `refused`: the first module among them that PEFT cannot adapt. `lost`: words of
    `lora_target` that name no module. `known`: False if the names of the model's modules are not known, so that roles
    are those of the words' last parts."""

    roles: tuple[str, ...]
    layers: AdaptedLayers = ()
    experts: int = 0
    towers: tuple[tuple[tuple[str, int], ...], ...] = ()
    refused: str = ""
    lost: tuple[str, ...] = ()
    known: bool = True

    @property
    def none(self) -> bool:
        """True if no module gets an adapter."""
        return self.known and not self.roles and not any(self.towers) and not self.refused


class _Selection(NamedTuple):
    """How LLaMA-Factory and PEFT select modules. `words`: the targets. `contains`: a module is selected if its name
    contains a word, else if it is a word or ends with `.` and a word. `blocks`: numbers of the layers that
    `use_llama_pro` lets train; None: all. `spared`: a module is left out if its name contains one of these.
    `saved`: modules that train in full, which get no adapter."""

    words: tuple[str, ...]
    contains: bool
    blocks: tuple[int, ...] | None
    spared: tuple[str, ...]
    saved: tuple[str, ...]

    def selects(self, name: str) -> bool:
        """True if a module of this name is selected. LLaMA-Factory compares first (model_utils/misc.py,
        find_expanded_modules; model_utils/visual.py, patch_target_modules), then PEFT (tuners/tuners_utils.py,
        check_target_module_exists)."""
        if self.contains or self.blocks is not None:
            found = any(word in name for word in self.words)
        else:
            found = name in self.words or name.endswith(tuple(f".{word}" for word in self.words))
        in_block = self.blocks is None or any(f".{number}." in name for number in self.blocks)
        is_spared = any(word in name for word in self.spared) or any(f".{word}." in f".{name}." for word in self.saved)
        return found and in_block and not is_spared


def adapted_modules(run: RunSettings, model: Model, fused: bool) -> AdaptedModules:
    """Return the modules that get an adapter. `fused`: all experts of a layer are one tensor."""
    names = () if run.task.targets_all_linear else tuple(filter(None, run.args.words("lora_target")))
    all_roles = linear_roles(model.arch, fused)
    blocks = expanded_blocks(run, model)
    if not names and blocks is None:
        roles = all_roles if model_parts.is_decoder_trained(run, model) else ()
        return AdaptedModules(roles, towers=_towers_for_all(run, model))
    modules = module_names(model, fused)
    if not modules:
        roles = tuple(role for name in names for role in model.family.roles.get(name.rpartition(".")[2], ()))
        return AdaptedModules(roles or all_roles, known=False)
    spared = model_parts.unadapted_words(run, model)
    words = names or tuple(sorted(model.family.names(all_roles, fused)))
    contains = bool(model_parts.part_words(model))
    selection = _Selection(words, contains, blocks, spared, run.args.words("additional_target"))
    return _resolve(modules, selection, len(model.modules), run.task.method)


def expanded_blocks(run: RunSettings, model: Model) -> tuple[int, ...] | None:
    """Return the numbers of the layers that `use_llama_pro` lets train: every last layer of equal groups, and none if
    the number of groups is negative. None without it, and if it is refused because the groups are not equal."""
    number, layers = int(run.args.number("freeze_trainable_layers")), model.arch.layers
    if not run.args.flag("use_llama_pro") or not number or layers % number:
        return None
    return tuple(range(layers // number - 1, layers, layers // number)) if number > 0 else ()


def _towers_for_all(run: RunSettings, model: Model) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return the roles of the adapted modules of each tower for `lora_target: all`, with 0 for all modules of the role.
    `all` stands for the last parts of the names of all linear modules that are neither in the projector nor in a frozen
    tower. Any module whose name contains one of these words gets an adapter, unless the module is frozen
    (model_utils/misc.py, find_all_linear_modules; model_utils/visual.py, patch_target_modules)."""
    keys = model_parts.part_words(model)
    left_out = [*keys.get("projector_keys", ()),
                *(keys.get("vision_model_keys", ()) if run.args.flag("freeze_vision_tower") else ())]  # fmt: skip
    words = set(model.family.names(linear_roles(model.arch)))
    for names in model.modules:
        words |= {name.rpartition(".")[2] for name in names if not any(word in name for word in left_out)}
    selection = _Selection(tuple(words), True, None, model_parts.unadapted_words(run, model), ())
    return tuple(
        tuple((role, 0) for role in dict.fromkeys(role for name, role in names.items() if selection.selects(name)))
        for names in model.modules
    )


@lru_cache(maxsize=64)
def _resolve(modules: tuple[ModuleName, ...], selection: _Selection, towers: int, method: str) -> AdaptedModules:
    routed = {module.role for module in modules if module.experts}
    in_layers: dict[int, set[str]] = {}
    present: dict[int, set[str]] = {}
    in_towers: list[dict[str, int]] = [{} for _ in range(towers)]
    outside: set[str] = set()
    refused, experts = "", 0
    for module in modules:
        role, count = _role(module, routed), _count(module, selection)
        if module.layer is not None:
            present.setdefault(module.layer, set()).update({role} - {""})
            in_layers.setdefault(module.layer, set()).update({role} - {""} if count else ())
        elif module.tower is None:
            outside.update({role} - {""} if count else ())
        elif count:
            in_towers[module.tower][role] = in_towers[module.tower].get(role, 0) + count
        refused = refused or (module.name if count and not _is_adaptable(module, method) else "")
        experts = max(experts, count if module.experts else 0)
    roles = set().union(*in_layers.values())
    # Each layer has an adapter on whatever it has of these roles
    is_uniform = all(adapted and adapted == roles & present[layer] for layer, adapted in in_layers.items())
    runs = groupby(tuple(sorted(adapted)) for adapted in in_layers.values())
    return AdaptedModules(
        tuple(sorted(roles | outside)),
        () if is_uniform else tuple((len(list(alike)), each) for each, alike in runs),
        experts,
        tuple(tuple(each.items()) for each in in_towers),
        refused,
        _lost_words(modules, selection),
    )


def _role(module: ModuleName, routed: Set[str]) -> str:
    """Return the module's role, which tells experts from the others if both kinds have it. `routed`: roles of
    experts."""
    if module.role not in routed:
        return module.role
    return f"routed {module.role}" if module.experts else f"shared {module.role}"


def _count(module: ModuleName, selection: _Selection) -> int:
    """Return how many modules that `module` stands for are selected: 0 or 1, or a number of experts. Experts are asked
    one by one only if a word has a number."""
    if not module.experts:
        return int(selection.selects(module.name))
    if not any(map(_NUMBER.search, selection.words)):
        return module.experts if selection.selects(module.names[0]) else 0
    return sum(map(selection.selects, module.names))


def _is_adaptable(module: ModuleName, method: str) -> bool:
    """True if PEFT can put an adapter on the module. OFT has none for embeddings (peft, tuners/oft/model.py)."""
    return module.adaptable and not (method == "oft" and module.role == "embedding")


def _lost_words(modules: tuple[ModuleName, ...], selection: _Selection) -> tuple[str, ...]:
    """Return the words that alone would select no module."""
    return tuple(
        word for word in selection.words
        if not any(_count(module, selection._replace(words=(word,))) for module in modules)
    )  # fmt: skip
