"""A model's layers, counted on the class itself: which there are, how they repeat, and what each holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from validator.simulate.answer import Kind, Linear


class Shape(NamedTuple):
    """`kinds`: a number for each layer, equal for layers that are alike. `counted`: what a layer of each run of alike
    layers holds. Elements of the whole model, of its embedding, of an output layer of its own, and of a hidden
    state."""

    kinds: list[int]
    counted: list[Kind]
    parameters: int
    embedding: int
    head: int
    hidden: int


def layers_of(model: Any) -> nn.ModuleList:
    """The decoder's layers: of the lists of modules that lie in no other, the one that holds most; of a model that sees
    one of its decoder's.

    Raises LookupError where there is none."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    lists = {name: module for name, module in lists.items() if "language_model." in name} or lists
    outer = [module for name, module in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    if not outer:
        raise LookupError(f"{type(model).__name__} has no list of layers")
    return max(outer, key=lambda module: sum(parameter.numel() for parameter in module.parameters()))


def measure(model: Any, config: Any) -> Shape:
    """The shape of a model without values. Raises LookupError."""
    layers = layers_of(model)
    types = getattr(config, "layer_types", None) or [""] * len(layers)
    seen: dict[tuple[object, ...], int] = {}
    kinds = [seen.setdefault(_signature(layer, kind), len(seen)) for layer, kind in zip(layers, types, strict=False)]
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    own = head.weight.numel() if head is not None and head.weight is not embedding else 0
    parameters = sum({id(each): each.numel() for each in model.parameters()}.values())
    return Shape(kinds, _counted(layers, kinds), parameters, embedding.numel(), own, embedding.shape[1])


def period(kinds: Sequence[int]) -> tuple[int, int] | None:
    """(layers before the repetition, layers that repeat), of which the shortest in all; None where nothing repeats
    at least twice."""
    ways = [
        (before, length)
        for length in range(1, len(kinds) // 2 + 1)
        for before in range(len(kinds) - 2 * length + 1)
        if all(kinds[i] == kinds[i + length] for i in range(before, len(kinds) - length))
    ]
    return min(ways, key=sum, default=None)


def _signature(layer: nn.Module, kind: str) -> tuple[object, ...]:
    return (kind, *((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()))


def _counted(layers: nn.ModuleList, kinds: Sequence[int]) -> list[Kind]:
    """Neighbours that are alike count as one."""
    counted: list[Kind] = []
    for number, layer in enumerate(layers):
        if number and kinds[number] == kinds[number - 1]:
            counted[-1] = counted[-1]._replace(number=counted[-1].number + 1)
        else:
            counted.append(_kind(layer))
    return counted


def _kind(layer: nn.Module) -> Kind:
    linear: Counter[tuple[str, int, int, bool]] = Counter()
    inside = stacked = 0
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            linear[name.rpartition(".")[2], module.in_features, module.out_features, module.bias is not None] += 1
            inside += module.weight.numel()
        else:
            mine = module.parameters(recurse=False)
            stacked += sum(each.numel() for each in mine if each.dim() > 2 and "expert" in name)
    total = sum(parameter.numel() for parameter in layer.parameters())
    linears = [Linear(role, inputs, outputs, number, bias) for (role, inputs, outputs, bias), number in linear.items()]
    return Kind(1, linears, stacked, total - inside - stacked)
