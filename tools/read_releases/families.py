"""families.json: what LLaMA-Factory and transformers say of the model types of families.yaml. The facts of a decoder
layer come from the source of its class: what it is built of, and how."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from validator.knowledge.tables import DATA_FOLDER

from .packages import ModuleTrees, classes, name_of
from .static_eval import calls, constant

Part = tuple[str, ast.Call]

# Column -> module of LLaMA-Factory and a word of the branch that it takes for the model types of the column.
_BRANCHES = {
    "liger": ("llamafactory.model.model_utils.liger_kernel", "apply_liger_kernel"),
    "own_kernel": ("llamafactory.model.model_utils.attention", "load_and_register_kernel"),
    "aux_loss": ("llamafactory.model.model_utils.moe", "router_aux_loss_coef"),
    "no_neat_packing": ("llamafactory.data.collator", "Neat packing is not supported"),
}
_CONSTANTS = {"mixture_of_depths": "MOD_SUPPORTED_MODELS", "shift_attention": "SUPPORTED_CLASS_FOR_S2ATTN"}
_FOLDERS = ("transformers.models.auto.auto_mappings", "transformers.models.auto.configuration_auto")
_QUERY_NORMS = ("q_norm", "query_layernorm")
# Endings of the names of PyTorch's classes of modules without a matrix product
_PLAIN_MODULES = ("Norm", "Dropout", "ModuleList", "Conv1d", "Embedding")


def table(
    kinds: Iterable[str], release: str, llamafactory: ModuleTrees, transformers: Mapping[str, ModuleTrees]
) -> dict[str, Any]:
    """The whole of families.json from an opened LLaMA-Factory and opened transformers releases, newest first."""
    return {
        "source": {"llamafactory": release, "transformers": next(iter(transformers))},
        "llamafactory": columns(llamafactory),
        "composites": composites(llamafactory("llamafactory.model.model_utils.visual")),
        "transformers": rows(kinds, transformers),
        "modules": {"Conv3d": _kinds_with_module("Conv3d", next(iter(transformers.values())))},
    }


def kinds() -> list[str]:
    """The model types of families.yaml."""
    return list(yaml.safe_load((DATA_FOLDER / "families.yaml").read_text(encoding="utf-8")))


def _kinds_with_module(name: str, transformers: ModuleTrees) -> list[str]:
    """The model types of composites.yaml whose class makes a module of torch of this name."""
    composites = yaml.safe_load((DATA_FOLDER / "composites.yaml").read_text(encoding="utf-8"))
    trees = ((kind, _module(transformers, kind, "modeling")) for kind in composites)
    return sorted(
        kind
        for kind, tree in trees
        if tree and any(isinstance(node, ast.Call) and name_of(node.func) == name for node in ast.walk(tree))
    )


def columns(llamafactory: ModuleTrees) -> dict[str, list[str]]:
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


def rows(kinds: Iterable[str], transformers: Mapping[str, ModuleTrees]) -> dict[str, dict[str, Any]]:
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


def _facts(kind: str, transformers: Mapping[str, ModuleTrees]) -> dict[str, Any] | None:
    """Facts by the newest release; None where it has no class for the type."""
    newest, *_ = transformers.values()
    tree = _module(newest, kind, "modeling")
    if tree is None:
        return None
    since, grouped = (list(_since(kind, transformers, holds)) for holds in (fuses_experts, groups_experts))
    settings = config_class(newest, kind)
    told = {
        "tied": settings is not None and bool(dict(_fields(settings)).get("tie_word_embeddings")),
        "fused_experts": since[-1] if since else None,
        "grouped_experts": grouped[-1] if grouped else None,
        "separate": _separate(kind, list(transformers.values())[len(since) :]) if since else [],
    }
    return decoder_layer_facts(tree) | {name: value for name, value in told.items() if value}


def _since(kind: str, transformers: Mapping[str, ModuleTrees], holds: Callable[[ast.Module], bool]) -> Iterator[str]:
    """Releases, from the newest back, of whose modeling module something holds."""
    for version, release in transformers.items():
        tree = _module(release, kind, "modeling")
        if tree is None or not holds(tree):
            return
        yield version


def _separate(kind: str, earlier: list[ModuleTrees]) -> list[str]:
    """Linear layers in the last release before the experts were one parameter; none where that has no such class."""
    tree = _module(earlier[0], kind, "modeling") if earlier else None
    linear: list[str] = decoder_layer_facts(tree)["linear"] if tree else []
    return linear


def _module(transformers: ModuleTrees, kind: str, purpose: str) -> ast.Module | None:
    folder = _folders(transformers).get(kind, kind)
    try:
        return transformers(f"transformers.models.{folder}.{purpose}_{folder}")
    except KeyError:
        return None


def _folders(transformers: ModuleTrees) -> dict[str, str]:
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


def config_class(transformers: ModuleTrees, kind: str) -> ast.ClassDef | None:
    """The configuration class of this model type; None where the release has none."""
    settings = _module(transformers, kind, "configuration")
    nodes = classes(settings).values() if settings else ()
    return next((node for node in nodes if dict(_fields(node)).get("model_type") == kind), None)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Fields of a configuration class and their values, as far as they are literals."""
    for item in node.body:
        if isinstance(item, (ast.Assign, ast.AnnAssign)) and isinstance(item.value, ast.Constant):
            yield name_of(item.targets[0] if isinstance(item, ast.Assign) else item.target), item.value.value


def decoder_layer_facts(tree: ast.Module) -> dict[str, Any]:
    """What a modeling module says of its decoder layer; a fact that is false or empty is left out."""
    layers, nodes = _layers(tree), _classes_by_name(tree)
    built = [part for node in _reachable_classes(nodes, layers) for part in _submodules(nodes, node)]
    own = [(nodes[layer], part) for layer in layers for part in _submodules(nodes, nodes[layer])]
    paths = dict(path for layer in layers for path in _module_paths(nodes, nodes[layer]))
    told = {
        "layer": layers[0],
        "parts": sorted(
            {name for node, (name, call) in own if {*nodes, "LayerNorm"}.intersection(_called_class(node, call))}
        ),
        "linear": sorted(path for path, is_linear in paths.items() if is_linear),
        "blocks": sorted(path for path, is_linear in paths.items() if not is_linear),
        "norms": len(set(_norms(nodes, (part for _, part in own)))),
        "qk_norm": any(name in _QUERY_NORMS and _is_per_head(call) for name, call in built),
        "qkv_bias": any(name in ("q_proj", "qkv_proj") and _biased(call) for name, call in built),
        "sinks": any(name == "sinks" for name, _ in built),
        "concatenated": _concatenates(tree),
    }
    return {name: value for name, value in told.items() if value}


def _module_paths(nodes: dict[str, ast.ClassDef], node: ast.ClassDef, above: str = "") -> Iterator[tuple[str, bool]]:
    """(path, whether it is linear) of all modules below one of a class; N stands for a number in a list of modules."""
    lists: set[str] = set()
    for name, call in _submodules(nodes, node):
        made = _called_class(node, call)
        path = f"{above}{name}.N" if name in lists else f"{above}{name}"
        if made == ["ModuleList"]:
            lists.add(name)
        if _is_linear(call):
            yield path, True
        elif any(each in nodes or each.endswith(_PLAIN_MODULES) for each in made):
            yield path, False
        for inner in (nodes[each] for each in made if each in nodes):
            yield from _module_paths(nodes, inner, f"{path}.")


def fuses_experts(tree: ast.Module) -> bool:
    """Whether a layer holds the weights of all experts as one tensor of three dimensions, not as linear layers."""
    nodes = _classes_by_name(tree)
    calls = (call for node in _reachable_classes(nodes, _layers(tree)) for _, call in _submodules(nodes, node))
    tensors = (call.args[0] for call in calls if name_of(call.func) == "Parameter")
    return any(isinstance(tensor, ast.Call) and len(tensor.args) == 3 for tensor in tensors)


def groups_experts(tree: ast.Module) -> bool:
    """Whether a layer's experts run in grouped matmuls unless the configuration says otherwise."""
    reached = _reachable_classes(_classes_by_name(tree), _layers(tree))
    return any("use_experts_implementation" in ast.unparse(each) for node in reached for each in node.decorator_list)


def _classes_by_name(tree: ast.Module) -> dict[str, ast.ClassDef]:
    """Classes by name; by the name of a table of classes, its first, as older releases chose attention by."""
    nodes = classes(tree)
    for item in tree.body:
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Dict) and item.value.values:
            made = name_of(item.value.values[0])
            if made in nodes:
                nodes[name_of(item.targets[0])] = nodes[made]
    return nodes


def _layers(tree: ast.Module) -> list[str]:
    """The decoder layers among the classes that must not be split over devices; by the first FSDP wraps a model."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and name_of(node.targets[0]) == "_no_split_modules":
            kept: list[str] = ast.literal_eval(node.value) or []
            decoders = [name for name in kept if name.endswith("DecoderLayer")]
            if yours := decoders or [name for name in kept if name.endswith("Block")][:1]:
                return yours
    raise LookupError("no decoder layer among _no_split_modules")


def _reachable_classes(nodes: dict[str, ast.ClassDef], names: list[str]) -> list[ast.ClassDef]:
    """The classes and all classes of their module that they build, directly or not."""
    reached, waiting = {name: nodes[name] for name in names}, [*names]
    while waiting:
        node = nodes[waiting.pop()]
        for made in (name for _, call in _submodules(nodes, node) for name in _called_class(node, call)):
            if made in nodes and made not in reached:
                reached[made] = nodes[made]
                waiting.append(made)
    return list(reached.values())


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of attention to another model's states, which a decoder alone is made without."""
    crosses = isinstance(node, ast.If) and "cross_attention" in ast.unparse(node.test)
    yield node
    for child in node.orelse if isinstance(node, ast.If) and crosses else ast.iter_child_nodes(node):
        yield from _walk(child)


def _is_linear(call: ast.Call) -> bool:
    """Whether it makes a linear module, or what peft and bitsandbytes take for one."""
    name = name_of(call.func)
    return name.endswith("Linear") or name == "Conv1D"


def _called_class(node: ast.ClassDef, call: ast.Call) -> list[str]:
    """Names of the class that a call makes one of: both where a class chooses between two."""
    name = name_of(call.func.value if isinstance(call.func, ast.Subscript) else call.func)
    for item in ast.walk(node):
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.IfExp) and name_of(item.targets[0]) == name:
            return [name_of(item.value.body), name_of(item.value.orelse)]
    return [name]


def _submodules(nodes: dict[str, ast.ClassDef], node: ast.ClassDef) -> Iterator[Part]:
    """(attribute, call) of what a class and its bases in the module assign to themselves when they are made."""
    for base in node.bases:
        if name_of(base) in nodes:
            yield from _submodules(nodes, nodes[name_of(base)])
    made = (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    assigned = (item for function in made for item in _walk(function) if isinstance(item, ast.Assign))
    for item in assigned:
        calls = [call for call in ast.walk(item.value) if isinstance(call, ast.Call)]
        yield from ((name_of(item.targets[0]), call) for call in calls)


def _norms(nodes: dict[str, ast.ClassDef], parts: Iterable[Part]) -> Iterator[str]:
    """Names of norms; of a part that is called one and holds others, these."""
    for name, call in parts:
        made = name_of(call.func)
        if made.endswith("Norm"):
            inside = [*_norms(nodes, _submodules(nodes, nodes[made]))] if made in nodes else []
            yield from inside or [name]


def _is_per_head(call: ast.Call) -> bool:
    """Whether a norm's width is that of one head, not of all."""
    written = ast.unparse(call)
    return "head_dim" in written and "*" not in written and "num_attention_heads" not in written


def _biased(call: ast.Call) -> bool:
    return any(word.arg == "bias" and ast.unparse(word.value) == "True" for word in call.keywords)


def _concatenates(tree: ast.Module) -> bool:
    """Whether only a part of each head is rotated, and then joined with the rest."""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    rotary = (node for node in functions if node.name == "apply_rotary_pos_emb")
    return any(isinstance(node, ast.Call) and name_of(node.func) == "cat" for each in rotary for node in ast.walk(each))
