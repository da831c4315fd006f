"""model_classes.json: which model types each transformers release has a configuration and a class for, and which of
the Auto classes LLaMA-Factory loads a model by.

A row says in which release a type came. So a new transformers release adds a row, and older releases, of which there
are dozens, need not be read again."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .families import config_class
from .packages import ModuleTrees, name_of

CONFIG = "AutoConfig"
# Auto class -> (the mapping from model types that it looks in, modules that hold the mapping, by release).
_MAPPINGS = {
    CONFIG: ("CONFIG_MAPPING_NAMES", ("auto_mappings", "configuration_auto")),
    "AutoModelForCausalLM": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", ("modeling_auto",)),
    "AutoModelForImageTextToText": ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", ("modeling_auto",)),
    "AutoModelForVision2Seq": ("MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES", ("modeling_auto",)),
    "AutoModelForSeq2SeqLM": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", ("modeling_auto",)),
    "AutoModelForTextToWaveform": ("MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", ("modeling_auto",)),
}
Types = Mapping[str, frozenset[str]]  # Auto class -> model types


def table(
    kept: Mapping[str, Any],
    versions: Sequence[str],
    llamafactory: Mapping[str, ModuleTrees],
    transformers: Callable[[str], ModuleTrees],
    newest: ModuleTrees,
) -> dict[str, Any]:
    """The whole of model_classes.json. `kept`: the present table, whose releases are not read again; empty to read all.
    `versions`: the transformers releases to read, oldest first. `newest`: the newest one that LLaMA-Factory admits."""
    known = list(kept.get("source", {}).get("transformers", []))
    if known != list(versions[: len(known)]):
        kept, known = {}, []
    built: dict[str, Any] = {
        "source": {"transformers": list(versions)},
        "loaders": {release: loaders(package) for release, package in llamafactory.items()},
        "nested": {"types": nested(newest)},
        **{name: dict(kept.get(name, {})) for name in _MAPPINGS},
        "removed": dict(kept.get("removed", {})),
    }
    before = {name: frozenset(_present(name, built)) for name in _MAPPINGS}
    for version in versions[len(known) :]:
        now = types(transformers(version))
        _add_row(built, version, before, now)
        before = dict(now)
    return built


def _present(name: str, built: Mapping[str, Any]) -> Iterator[str]:
    """Model types that an Auto class has in the last release that was read."""
    lost = {kind for gone in built["removed"].values() for kind in gone.get(name, ())}
    return (kind for kinds in built[name].values() for kind in kinds if kind not in lost)


def _add_row(built: dict[str, Any], version: str, before: Types, now: Types) -> None:
    gone = {name: sorted(before[name] - now[name]) for name in _MAPPINGS}
    for name in _MAPPINGS:
        if fresh := sorted(now[name] - before[name]):
            built[name][version] = fresh
    if any(gone.values()):
        built["removed"][version] = {name: kinds for name, kinds in gone.items() if kinds}


def types(transformers: ModuleTrees) -> Types:
    """Model types that each Auto class of a release has. Classes are looked up by the configuration, so that a type
    which shares its configuration with another one shares its class, too."""
    configs = _mapping(transformers, *_MAPPINGS[CONFIG])
    having = {name: {configs[kind] for kind in _mapping(transformers, *_MAPPINGS[name]) if kind in configs}
              for name in _MAPPINGS}  # fmt: skip
    return {name: frozenset(kind for kind, made in configs.items() if made in having[name]) for name in _MAPPINGS}


def _mapping(transformers: ModuleTrees, mapping: str, modules: Sequence[str]) -> dict[str, str]:
    """Keys and values that are written into a mapping, where it is made and by `update`; values as they are written."""
    pairs: dict[str, str] = {}
    for module in modules:
        try:
            tree = transformers(f"transformers.models.auto.{module}")
        except KeyError:
            continue
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.Expr) and _fills(node, mapping):
                pairs |= _pairs(node.value)
    return pairs


def _fills(node: ast.Assign | ast.Expr, mapping: str) -> bool:
    """Whether a statement makes a mapping, or updates it."""
    if isinstance(node, ast.Assign):
        return name_of(node.targets[0]) == mapping
    called = node.value.func if isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "update" and name_of(called.value) == mapping


def _pairs(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Pairs of a dict, of a list of pairs, or of a call that is given either; `**` is followed."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield from _pairs(value) if key is None else [(ast.literal_eval(key), ast.unparse(value))]
    elif isinstance(node, ast.List):
        written = (pair.elts for pair in node.elts if isinstance(pair, ast.Tuple))
        yield from ((ast.literal_eval(key), ast.unparse(value)) for key, value in written)
    elif isinstance(node, ast.Call):
        for given in (*node.args, *(word.value for word in node.keywords if word.arg is None)):
            yield from _pairs(given)


def loaders(llamafactory: ModuleTrees) -> list[str]:
    """Auto classes that LLaMA-Factory loads a model by, in the order in which it tries them."""
    tree = llamafactory("llamafactory.model.loader")
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    chosen = [name_of(node.value) for node in assigned if name_of(node.targets[0]) == "load_class"]
    assert {"AutoModelForCausalLM"} <= set(chosen) <= set(_MAPPINGS)
    return chosen


def nested(transformers: ModuleTrees) -> list[str]:
    """Model types whose configuration looks the type of its text model up among all types, so that this must be known,
    too. The others have a class of their own for it."""
    every = types(transformers)
    kinds = frozenset().union(*(every[name] for name in _MAPPINGS if name != CONFIG))
    looked_up = ((kind, config_class(transformers, kind)) for kind in sorted(kinds & every[CONFIG]))
    return [kind for kind, node in looked_up if node and "CONFIG_MAPPING[" in ast.unparse(node)]
