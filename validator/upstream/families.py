"""families.json: what LLaMA-Factory and transformers say of the model types of families.yaml."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from validator.upstream import layers
from validator.upstream.source import Modules, classes, name_of
from validator.upstream.templates import calls, constant

# Column -> module of LLaMA-Factory and a word of the branch that it takes for the model types of the column.
_BRANCHES = {
    "liger": ("llamafactory.model.model_utils.liger_kernel", "apply_liger_kernel"),
    "own_kernel": ("llamafactory.model.model_utils.attention", "load_and_register_kernel"),
    "aux_loss": ("llamafactory.model.model_utils.moe", "router_aux_loss_coef"),
    "no_neat_packing": ("llamafactory.data.collator", "Neat packing is not supported"),
}
_CONSTANTS = {"mixture_of_depths": "MOD_SUPPORTED_MODELS", "shift_attention": "SUPPORTED_CLASS_FOR_S2ATTN"}
_FOLDERS = ("transformers.models.auto.auto_mappings", "transformers.models.auto.configuration_auto")


def table(
    kinds: Iterable[str], release: str, llamafactory: Modules, transformers: Mapping[str, Modules]
) -> dict[str, Any]:
    """The whole of families.json from an opened LLaMA-Factory and opened transformers releases, newest first."""
    return {
        "source": {"llamafactory": release, "transformers": next(iter(transformers))},
        "llamafactory": columns(llamafactory),
        "composites": composites(llamafactory("llamafactory.model.model_utils.visual")),
        "transformers": rows(kinds, transformers),
    }


def kinds() -> list[str]:
    """The model types of families.yaml."""
    path = Path(__file__).parent.parent / "data" / "families.yaml"
    return list(yaml.safe_load(path.read_text(encoding="utf-8")))


def columns(llamafactory: Modules) -> dict[str, list[str]]:
    """The model types that LLaMA-Factory does something for."""
    constants = llamafactory("llamafactory.extras.constants")
    branches = {name: sorted(set(_branch(llamafactory(module), word))) for name, (module, word) in _BRANCHES.items()}
    return branches | {name: sorted(constant(constants, given)) for name, given in _CONSTANTS.items()}


def composites(visual: ast.Module) -> dict[str, dict[str, list[str]]]:
    """Words in the names of parameters by which LLaMA-Factory tells the parts of a model that sees or hears."""
    function = "_register_composite_model"
    made = (node for node in visual.body if isinstance(node, ast.FunctionDef) and node.name == function)
    choices = (part.values for node in made for part in ast.walk(node) if isinstance(part, ast.BoolOp))
    usual = {ast.unparse(given): ast.literal_eval(otherwise) for given, otherwise in choices}
    calls_of = ({name: ast.literal_eval(word) for name, word in call.items()} for call in calls(visual, function))
    return {words["model_type"]: {part: words.get(part, usual[part]) for part in usual} for words in calls_of}


def rows(kinds: Iterable[str], transformers: Mapping[str, Modules]) -> dict[str, dict[str, Any]]:
    """Facts of the model types that transformers has a class for, by its releases, newest first."""
    return {kind: facts for kind in kinds if (facts := _facts(kind, transformers))}


def _branch(tree: ast.Module, word: str) -> Iterator[str]:
    """Texts that model_type is compared with by each `if` whose body has the word."""
    branches = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    chosen = (node.test for node in branches if any(word in ast.unparse(line) for line in node.body))
    compared = (node for test in chosen for node in ast.walk(test) if isinstance(node, ast.Compare))
    for node in compared:
        if "model_type" in ast.unparse(node.left):
            texts = (part.value for part in ast.walk(node.comparators[0]) if isinstance(part, ast.Constant))
            yield from (text for text in texts if isinstance(text, str))


def _facts(kind: str, transformers: Mapping[str, Modules]) -> dict[str, Any] | None:
    """Facts by the newest release; None where it has no class for the type."""
    newest, *_ = transformers.values()
    tree = _module(newest, kind, "modeling")
    if tree is None:
        return None
    since = list(_fusing(kind, transformers))
    settings = _module(newest, kind, "configuration")
    told = {
        "tied": settings is not None and _tied(settings, kind),
        "fused_experts": since[-1] if since else None,
        "separate": _separate(kind, list(transformers.values())[len(since) :]) if since else [],
    }
    return layers.facts(tree) | {name: value for name, value in told.items() if value}


def _fusing(kind: str, transformers: Mapping[str, Modules]) -> Iterator[str]:
    """Releases, from the newest back, that keep the experts as one parameter."""
    for version, release in transformers.items():
        tree = _module(release, kind, "modeling")
        if tree is None or not layers.fuses_experts(tree):
            return
        yield version


def _separate(kind: str, earlier: list[Modules]) -> list[str]:
    """Linear layers in the last release before the experts were one parameter; none where that has no such class."""
    tree = _module(earlier[0], kind, "modeling") if earlier else None
    linear: list[str] = layers.facts(tree)["linear"] if tree else []
    return linear


def _module(transformers: Modules, kind: str, purpose: str) -> ast.Module | None:
    folder = _folders(transformers).get(kind, kind)
    try:
        return transformers(f"transformers.models.{folder}.{purpose}_{folder}")
    except KeyError:
        return None


def _folders(transformers: Modules) -> dict[str, str]:
    """Model type -> folder, for those of another name; the table stands in one of two modules, by the release."""
    for module in _FOLDERS:
        try:
            tree = transformers(module)
        except KeyError:
            continue
        for statement in (item for item in tree.body if isinstance(item, ast.Assign)):
            named = name_of(statement.targets[0]) == "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"
            if named and isinstance(statement.value, ast.Call):
                return dict(ast.literal_eval(statement.value.args[0]))
    return {}


def _tied(settings: ast.Module, kind: str) -> bool:
    """Default of tie_word_embeddings in the configuration class of this type."""
    for node in classes(settings).values():
        fields = dict(_fields(node))
        if fields.get("model_type") == kind:
            return bool(fields.get("tie_word_embeddings"))
    return False


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Fields of a configuration class and their values, as far as they are literals."""
    for item in node.body:
        if isinstance(item, (ast.Assign, ast.AnnAssign)) and isinstance(item.value, ast.Constant):
            yield name_of(item.targets[0] if isinstance(item, ast.Assign) else item.target), item.value.value
