"""Finds the decoder layers in a model class: their number, the pattern in which they repeat, their modules, and the
depths of two shallow copies that stand for the whole model. Also tells the tracker which layer is running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from validator.simulation.simulated_memory import LayerGroup, LinearModules
from validator.simulation.tracker import Tracker


class ModelShape(NamedTuple):
    """The layers and sizes of a model. `kinds` has a number for each layer, equal for layers of the same kind.
    `counted` describes the modules of a layer, once for each group of consecutive equal layers. `parameters`,
    `embedding` and `head` count elements of the whole model, of its embedding, and of the output layer (0 if tied to
    the embedding). `hidden` is the hidden size."""

    kinds: list[int]
    counted: list[LayerGroup]
    parameters: int
    embedding: int
    head: int
    hidden: int


def find_layers(model: Any) -> nn.ModuleList:
    """Return the list of decoder layers: among the outermost module lists, the list with the most parameters. In a
    multimodal model only lists inside its language model count.

    Raises LookupError if the model has no list of modules."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    lists = {name: module for name, module in lists.items() if "language_model." in name} or lists
    outer = [module for name, module in lists.items() if not any(name.startswith(f"{ancestor}.") for ancestor in lists)]
    if not outer:
        raise LookupError(f"{type(model).__name__} has no list of layers")
    return max(outer, key=lambda module: sum(parameter.numel() for parameter in module.parameters()))


def count_layers(model: Any, config: Any) -> ModelShape:
    """Return the shape of a model, whose parameters need no values. Raises LookupError if the model has no list of
    layers."""
    layers = find_layers(model)
    types = getattr(config, "layer_types", None) or [""] * len(layers)
    signatures: dict[tuple[object, ...], int] = {}
    kinds: list[int] = []
    groups: list[LayerGroup] = []
    for layer, kind in zip(layers, types, strict=False):
        signature = (kind, *((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()))
        number = signatures.setdefault(signature, len(signatures))
        if kinds and number == kinds[-1]:
            groups[-1] = groups[-1]._replace(number=groups[-1].number + 1)
        else:
            groups.append(_layer_group(layer))
        kinds.append(number)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    head_elements = head.weight.numel() if head is not None and head.weight is not embedding else 0
    parameters = sum({id(each): each.numel() for each in model.parameters()}.values())
    return ModelShape(kinds, groups, parameters, embedding.numel(), head_elements, embedding.shape[1])


def _layer_group(layer: nn.Module) -> LayerGroup:
    linear: Counter[tuple[str, int, int, bool]] = Counter()
    in_linears = in_experts = 0
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            linear[name.rpartition(".")[2], module.in_features, module.out_features, module.bias is not None] += 1
            in_linears += module.weight.numel()
        else:
            parameters = module.parameters(recurse=False)
            in_experts += sum(each.numel() for each in parameters if each.dim() > 2 and "expert" in name)
    total = sum(parameter.numel() for parameter in layer.parameters())
    linears = [
        LinearModules(role, inputs, outputs, number, bias) for (role, inputs, outputs, bias), number in linear.items()
    ]
    return LayerGroup(1, linears, in_experts, total - in_linears - in_experts)


# A copy tells two layers from each end apart; all layers in between are alike. The larger copy has so many more.
_SHALLOW_LAYERS, _EXTRA_LAYERS = 4, 2


class LayerCounts(NamedTuple):
    """Numbers of layers: of the smaller shallow copy, of the larger shallow copy, and of the full model."""

    small: int
    large: int
    full: int

    def extend(self, near: int, far: int) -> int:
        """Extrapolate a number linearly to the full model. `near` is the value of the smaller copy, `far` the value of
        the larger copy."""
        return near + (far - near) * (self.full - self.small) // (self.large - self.small)


def shallow_copies(kinds: Sequence[int], trained: int = 0) -> LayerCounts | None:
    """Return the depths of two shallow copies that stand for a model with these kinds of layers. `trained` is the
    number of last layers that are trained (0: all). Return None if the layers do not repeat, or if the model is hardly
    deeper than the copies."""
    repeats = _repeating_pattern(kinds)
    if repeats is None:
        return None
    before, length = repeats
    step = length if length > 1 else _EXTRA_LAYERS
    small = _SHALLOW_LAYERS + (length if length > 1 else 0)  # so that the layers in between are of every kind
    small = max(small, before + _SHALLOW_LAYERS if before else 0, trained + _SHALLOW_LAYERS if trained > 2 else 0)
    small += (len(kinds) - small) % length
    return LayerCounts(small, small + step, len(kinds)) if small + step < len(kinds) else None


def _repeating_pattern(kinds: Sequence[int]) -> tuple[int, int] | None:
    """Return how many layers come before a repeating pattern of layers, and how many layers the pattern has. `kinds`
    are the kinds of the layers, in order. If several pairs are possible, the pair with the smallest sum is returned.
    Return None if no pattern repeats at least twice."""
    ways = [
        (before, length)
        for length in range(1, len(kinds) // 2 + 1)
        for before in range(len(kinds) - 2 * length + 1)
        if all(kinds[i] == kinds[i + length] for i in range(before, len(kinds) - length))
    ]
    return min(ways, key=sum, default=None)


def follow_layers(model: Any, tracker: Tracker) -> None:
    """Add hooks to the model that set the tracker's `segment`, to which allocations are attributed, to the running
    layer: L0, L1, mid, L-2, L-1, then head. The hooks create no tensors and keep none alive."""
    layers = find_layers(model)
    names = [
        f"L{number}" if number < 2 else f"L-{len(layers) - number}" if number >= len(layers) - 2 else "mid"
        for number in range(len(layers))
    ]
    for layer, before, name in zip(layers, ["emb", *names], names, strict=False):
        layer.register_forward_pre_hook(_entering_hook(tracker, before, name), with_kwargs=True)

    def enter_head(*_: Any) -> None:
        if tracker.phase.endswith("fwd"):
            tracker.segment = "head"

    layers[-1].register_forward_hook(enter_head)


def _entering_hook(tracker: Tracker, before: str, name: str) -> Callable[..., None]:
    """Return a forward hook that sets the tracker's `segment`, to which allocations are attributed, to the layer's
    name. In the backward pass the gradient of the layer's input is the last that the layer computes. A hook on this
    gradient sets the segment to `before`, the preceding layer."""

    def leave(_gradient: torch.Tensor) -> None:
        tracker.segment = before

    def enter(_module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        tracker.segment = name
        hidden = args[0] if args else kwargs.get("hidden_states")
        if torch.is_grad_enabled() and isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(leave)

    return enter
