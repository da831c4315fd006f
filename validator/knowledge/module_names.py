"""Names of the modules of a model, as its class in transformers has them, each with its role in the memory formulas.
The targets of LoRA are matched with these names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from validator.knowledge import families
from validator.knowledge.families import Family
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.physics import Architecture
from validator.physics.architecture import Linear
from validator.physics.decoder_layers import DecoderLayer, build_layers, mtp_layers

_ATTENTION_ROLES = frozenset({"q", "k", "v", "qkv", "q_a", "kv_a"})
_FEED_FORWARD_ROLES = frozenset({"gate", "up", "gate_up", "down"})
# Stands in a path for the number of a layer, of an expert, or of another module of a list.
_NUMBER = "N"


class ModuleName(NamedTuple):
    """A module of a model. `layer`: number of the decoder's layer that holds the module; None: no layer of the decoder.
    `tower`: number of its tower; None: it belongs to the decoder. `role`: its role in the memory formulas; empty: the
    formulas do not count the module. `adaptable`: PEFT can put an adapter on it. `experts`: number of experts that have
    such a module, and N stands for theirs in the name; 0: it belongs to no expert."""

    name: str
    layer: int | None = None
    tower: int | None = None
    role: str = ""
    adaptable: bool = True
    experts: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The full names: of one module, or of this module in every expert."""
        return tuple(_numbered(self.name, self.experts)) if self.experts else (self.name,)


def module_names(model: Model, fused: bool) -> tuple[ModuleName, ...]:
    """Return the modules of a model: the decoder's, those outside its layers, and the linear modules of its towers.
    Empty if the names are not known. `fused`: all experts of a layer are one tensor."""
    if not model.family.linear_paths:
        return ()
    towers = tuple(tuple(names.items()) for names in model.modules)
    return _module_names(model.kind, model.decoder, model.arch, towers, fused)


TowerNames = tuple[tuple[str, str], ...]


@lru_cache(maxsize=8)
def _module_names(
    kind: str, decoder: str, arch: Architecture, towers: tuple[TowerNames, ...], fused: bool
) -> tuple[ModuleName, ...]:
    family = families.composite_family(kind, decoder) if decoder else families.family_of_type(kind)
    projectors = yaml_table("composites")[kind]["projector_at"].values() if decoder else ()
    return (
        *_outer_modules(family, arch),
        *_decoder_modules(family, arch, fused),
        *(module for number, names in enumerate(towers) for module in _tower_modules(arch, number, names)),
        *(ModuleName(place, tower=0, adaptable=False) for place in projectors),
    )


def _outer_modules(family: Family, arch: Architecture) -> Iterator[ModuleName]:
    """Yield the modules outside the decoder's layers. The output layer of a model whose decoder is a whole model of its
    own, such as `language_model.model`, stands in that model."""
    root = family.layers_at.rpartition(".")[0]
    places = family.layers_at.split(".")
    yield from (ModuleName(".".join(places[:end]), adaptable=False) for end in range(1, len(places) + 1))
    yield ModuleName(f"{root}.{family.embedding}", role="embedding")
    yield ModuleName(f"{root}.{family.last_norm}", adaptable=False)
    yield ModuleName(f"{root}.rotary_emb", adaptable=False)
    above = root.removesuffix("model").removesuffix("transformer") if len(places) == 3 and places[1] == "model" else ""
    yield ModuleName(f"{above}{family.head}", role="head")
    names = [name for name, roles in family.roles.items() if "inputs" in roles] if arch.per_layer_input_width else []
    yield from (ModuleName(f"{root}.{name}", role="inputs") for name in names)


def _decoder_modules(family: Family, arch: Architecture, fused: bool) -> Iterator[ModuleName]:
    """Yield the modules of the decoder's layers, then those of its multi-token-prediction layers."""
    root = family.layers_at.rpartition(".")[0]
    decoders = [decoder for _, decoder in arch.layer_groups] or [arch] * len(build_layers(arch, fused))
    groups = [
        *((number, layer, each, family.layers_at)
          for (number, layer), each in zip(build_layers(arch, fused), decoders, strict=True)),
        *((number, layer, arch, f"{root}.mtp_layers") for number, layer in mtp_layers(arch, fused)),
    ]  # fmt: skip
    index = 0
    for number, layer, decoder, place in groups:
        paths = _layer_paths(family, decoder, layer, fused)
        for _ in range(number):
            at = f"{place}.{index if index < arch.layers else index - arch.layers}"
            yield ModuleName(at, index, adaptable=False)
            yield from (
                ModuleName(f"{at}.{path}", index, None, role, adaptable, experts)
                for path, role, adaptable, experts in paths
            )
            index += 1


def _numbered(path: str, number: int) -> Iterator[str]:
    if f".{_NUMBER}." in path:
        yield from (path.replace(f".{_NUMBER}.", f".{each}.") for each in range(number))
    else:
        yield path


LayerPath = tuple[str, str, bool, int]


def _layer_paths(family: Family, decoder: Architecture, layer: DecoderLayer, fused: bool) -> list[LayerPath]:
    """Return the modules of one layer: path below the layer, role, whether PEFT can adapt it, number of experts that
    have it."""
    paths = family.linear_paths if fused or not family.separate_paths else family.separate_paths
    linears = {(linear.role, linear.routed): linear for linear in layer.linears}
    roles = {path: _role(family, paths, path, linears) for path in paths}
    crosses = decoder.attn.cross_attention
    other_attention = "self_attn." if crosses else "cross_attn."
    present = [
        (path, role, True, decoder.ffn.experts if _is_routed(path) else 0)
        for path, role in roles.items()
        if role is not None and not path.startswith(other_attention) and _stands_in_layer(family, paths, path, layer)
    ]
    blocks = [path for path in family.blocks if path not in paths and _has_block(family, path, paths, present)]
    # PEFT has adapters for convolutions, which the formulas do not count.
    return [*present, *((path, "", "conv" in path.rpartition(".")[2], 0) for path in blocks)]


def _has_block(family: Family, block: str, paths: tuple[str, ...], present: list[LayerPath]) -> bool:
    """False if the block belongs to attention or to a mixer that the layer does not have, as in hybrid models; else
    True. `paths`: the linear modules of the type; `present`: those of the layer."""
    inside = f"{block.partition('.')[0]}."
    names = {path.rpartition(".")[2] for path in paths if path.startswith(inside)}
    roles = {role for name in names for role in family.roles.get(name, ())}
    return not roles or bool(roles & _FEED_FORWARD_ROLES) or any(path.startswith(inside) for path, *_ in present)


def _is_routed(path: str) -> bool:
    return f".{_NUMBER}." in path


def _role(family: Family, paths: tuple[str, ...], path: str, linears: dict[tuple[str, bool], Linear]) -> str | None:
    """Return the role of the linear module at `path`, empty if its name has no role. None if no linear module of the
    layer has the role. If a name has several roles, the modules beside it decide: those of attention, or those of the
    feed-forward block."""
    block, _, name = path.rpartition(".")
    roles = family.roles.get(name)
    if roles is None:
        return ""
    if len(roles) > 1:
        names = (each.rpartition(".")[2] for each in paths if each.rpartition(".")[0] == block and each != path)
        beside = {role for each in names for role in family.roles.get(each, ())}
        roles = tuple(each for each in roles if _belongs_beside(each, beside))
    return next((each for each in roles if (each, _is_routed(path)) in linears), None)


def _belongs_beside(role: str, beside: set[str]) -> bool:
    if beside & _ATTENTION_ROLES:
        return role == "o"
    if beside & _FEED_FORWARD_ROLES:
        return role in _FEED_FORWARD_ROLES
    return role not in {"o", *_FEED_FORWARD_ROLES}


def _stands_in_layer(family: Family, paths: tuple[str, ...], path: str, layer: DecoderLayer) -> bool:
    """True unless the module belongs to another kind of feed-forward block than the layer has. Beside routed experts
    stands a shared one, if the model type has any; other layers have an ordinary block."""
    name = path.rpartition(".")[2]
    if not _FEED_FORWARD_ROLES.intersection(family.roles.get(name, ())) or _is_routed(path):
        return True
    alike = [each for each in paths if each.rpartition(".")[2] == name and not _is_routed(each)]
    shared = [each for each in alike if "shared" in each]
    plain = [each for each in alike if "shared" not in each]
    return path in ((shared or plain) if layer.mixture else (plain or shared))


def _tower_modules(arch: Architecture, number: int, names: TowerNames) -> Iterator[ModuleName]:
    """Yield the linear modules of a tower and its projector, and the blocks that hold them."""
    tower = arch.towers[number]
    copies = {linear.role: linear.number for linear in (*tower.outside, *tower.projector)}
    blocks: dict[str, None] = {}
    for path, role in names:
        for name in _numbered(path, copies.get(role, tower.layers)):
            yield ModuleName(name, tower=number, role=role)
            parts = name.split(".")
            blocks |= dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts)))
    yield from (ModuleName(name, tower=number, adaptable=False) for name in blocks)
