"""The decoder's layers, found on the model class itself: which there are, how they repeat, what each holds, and
which one is at work during a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from validator.simulation.simulated_memory import LayerGroup, LinearModules
from validator.simulation.tracker import Tracker


class ModelShape(NamedTuple):
    """`kinds`: a number for each layer, equal for layers that are alike. `counted`: what a layer of each run of alike
    layers holds. Elements of the whole model, of its embedding, of an output layer of its own, and of a hidden
    state."""

    kinds: list[int]
    counted: list[LayerGroup]
    parameters: int
    embedding: int
    head: int
    hidden: int


def find_layers(model: Any) -> nn.ModuleList:
    """The decoder's layers: of the lists of modules that lie in no other, the one that holds most; of a model that sees
    one of its decoder's.

    Raises LookupError where there is none."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    lists = {name: module for name, module in lists.items() if "language_model." in name} or lists
    outer = [module for name, module in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    if not outer:
        raise LookupError(f"{type(model).__name__} has no list of layers")
    return max(outer, key=lambda module: sum(parameter.numel() for parameter in module.parameters()))


def count_layers(model: Any, config: Any) -> ModelShape:
    """The shape of a model without values. Raises LookupError."""
    layers = find_layers(model)
    types = getattr(config, "layer_types", None) or [""] * len(layers)
    seen: dict[tuple[object, ...], int] = {}
    kinds = [
        seen.setdefault(_layer_signature(layer, kind), len(seen)) for layer, kind in zip(layers, types, strict=False)
    ]
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    own = head.weight.numel() if head is not None and head.weight is not embedding else 0
    parameters = sum({id(each): each.numel() for each in model.parameters()}.values())
    return ModelShape(kinds, _layer_groups(layers, kinds), parameters, embedding.numel(), own, embedding.shape[1])


def repeating_pattern(kinds: Sequence[int]) -> tuple[int, int] | None:
    """(layers before the repetition, layers that repeat), of which the shortest in all; None where nothing repeats
    at least twice."""
    ways = [
        (before, length)
        for length in range(1, len(kinds) // 2 + 1)
        for before in range(len(kinds) - 2 * length + 1)
        if all(kinds[i] == kinds[i + length] for i in range(before, len(kinds) - length))
    ]
    return min(ways, key=sum, default=None)


def _layer_signature(layer: nn.Module, kind: str) -> tuple[object, ...]:
    return (kind, *((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()))


def _layer_groups(layers: nn.ModuleList, kinds: Sequence[int]) -> list[LayerGroup]:
    """Neighbours that are alike count as one."""
    counted: list[LayerGroup] = []
    for number, layer in enumerate(layers):
        if number and kinds[number] == kinds[number - 1]:
            counted[-1] = counted[-1]._replace(number=counted[-1].number + 1)
        else:
            counted.append(_layer_group(layer))
    return counted


def _layer_group(layer: nn.Module) -> LayerGroup:
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
    linears = [
        LinearModules(role, inputs, outputs, number, bias) for (role, inputs, outputs, bias), number in linear.items()
    ]
    return LayerGroup(1, linears, stacked, total - inside - stacked)


def follow_layers(model: Any, tracker: Tracker) -> None:
    """The tracker's segment follows the decoder layers: L0, L1, mid, L-2, L-1, then the head. No tensors are made or
    kept alive for it."""
    layers = find_layers(model)
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(_entering_hook(tracker, number, len(layers)), with_kwargs=True)
    layers[-1].register_forward_hook(lambda *_: _enter_head(tracker))


def _segment_name(number: int, count: int) -> str:
    return f"L{number}" if number < 2 else f"L-{count - number}" if number >= count - 2 else "mid"


def _enter_head(tracker: Tracker) -> None:
    if tracker.phase.endswith("fwd"):
        tracker.segment = "head"


def _entering_hook(tracker: Tracker, number: int, count: int) -> Callable[..., None]:
    """A hook that names the layer; the gradient of its input is the last that its backward pass makes."""
    before = _segment_name(number - 1, count) if number else "emb"

    def leave(_gradient: torch.Tensor) -> None:
        tracker.segment = before

    def enter(_module: Any, args: Any, more: dict[str, Any]) -> None:
        tracker.segment = _segment_name(number, count)
        hidden = args[0] if args else more.get("hidden_states")
        if torch.is_grad_enabled() and isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(leave)

    return enter
