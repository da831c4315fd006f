"""The decoder layer of a transformers model, from the source of its class: what it is built of, and how."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from validator.upstream.source import classes, name_of

Part = tuple[str, ast.Call]
_QUERY_NORMS = ("q_norm", "query_layernorm")


def facts(tree: ast.Module) -> dict[str, Any]:
    """What a modeling module says of its decoder layer; a fact that is false or empty is left out."""
    layers, nodes = _layers(tree), _nodes(tree)
    built = [part for node in _built(nodes, layers) for part in _parts(nodes, node)]
    own = [(nodes[layer], part) for layer in layers for part in _parts(nodes, nodes[layer])]
    told = {
        "layer": layers[0],
        "parts": sorted({name for node, (name, call) in own if {*nodes, "LayerNorm"}.intersection(_made(node, call))}),
        "linear": sorted({name for name, call in built if _is_linear(call)}),
        "norms": len(set(_norms(nodes, (part for _, part in own)))),
        "head_norms": any(name in _QUERY_NORMS and _over_a_head(call) for name, call in built),
        "qkv_bias": any(name in ("q_proj", "qkv_proj") and _biased(call) for name, call in built),
        "sinks": any(name == "sinks" for name, _ in built),
        "concatenated": _concatenates(tree),
    }
    return {name: value for name, value in told.items() if value}


def fuses_experts(tree: ast.Module) -> bool:
    """Whether a layer holds the weights of all experts as one tensor of three dimensions, not as linear layers."""
    nodes = _nodes(tree)
    calls = (call for node in _built(nodes, _layers(tree)) for _, call in _parts(nodes, node))
    tensors = (call.args[0] for call in calls if name_of(call.func) == "Parameter")
    return any(isinstance(tensor, ast.Call) and len(tensor.args) == 3 for tensor in tensors)


def _nodes(tree: ast.Module) -> dict[str, ast.ClassDef]:
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


def _built(nodes: dict[str, ast.ClassDef], names: list[str]) -> list[ast.ClassDef]:
    """The classes and all classes of their module that they build, directly or not."""
    reached, waiting = {name: nodes[name] for name in names}, [*names]
    while waiting:
        node = nodes[waiting.pop()]
        for made in (name for _, call in _parts(nodes, node) for name in _made(node, call)):
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


def _made(node: ast.ClassDef, call: ast.Call) -> list[str]:
    """Names of the class that a call makes one of: both where a class chooses between two."""
    name = name_of(call.func.value if isinstance(call.func, ast.Subscript) else call.func)
    for item in ast.walk(node):
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.IfExp) and name_of(item.targets[0]) == name:
            return [name_of(item.value.body), name_of(item.value.orelse)]
    return [name]


def _parts(nodes: dict[str, ast.ClassDef], node: ast.ClassDef) -> Iterator[Part]:
    """(attribute, call) of what a class and its bases in the module assign to themselves when they are made."""
    for base in node.bases:
        if name_of(base) in nodes:
            yield from _parts(nodes, nodes[name_of(base)])
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
            inside = [*_norms(nodes, _parts(nodes, nodes[made]))] if made in nodes else []
            yield from inside or [name]


def _over_a_head(call: ast.Call) -> bool:
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
