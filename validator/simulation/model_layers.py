"""The decoder's layers, found on the model class itself: their number, how they repeat, their modules, the shallow
copies that stand for all of them, and the layer at work during a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from validator.simulation.simulated_memory import LayerGroup, LinearModules
from validator.simulation.tracker import Tracker


class ModelShape(NamedTuple):
    """`kinds`: a number for each layer, equal for layers that are alike. `counted`: the modules of a layer, for each
    run of layers that are alike. Elements of the whole model, of its embedding, of an output layer of its own, and of a
    hidden state."""

    kinds: list[int]
    counted: list[LayerGroup]
    parameters: int
    embedding: int
    head: int
    hidden: int


def find_layers(model: Any) -> nn.ModuleList:
    """Return the decoder's layers: the outermost list of modules that holds most parameters. In a multimodal model only
    lists of its language model count.

    Raises LookupError if there is no list."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    lists = {name: module for name, module in lists.items() if "language_model." in name} or lists
    outer = [module for name, module in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    if not outer:
        raise LookupError(f"{type(model).__name__} has no list of layers")
    return max(outer, key=lambda module: sum(parameter.numel() for parameter in module.parameters()))


def count_layers(model: Any, config: Any) -> ModelShape:
    """Return the shape of a model without values. Raises LookupError if it has no list of layers."""
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
    own = head.weight.numel() if head is not None and head.weight is not embedding else 0
    parameters = sum({id(each): each.numel() for each in model.parameters()}.values())
    return ModelShape(kinds, groups, parameters, embedding.numel(), own, embedding.shape[1])


def _layer_group(layer: nn.Module) -> LayerGroup:
    linear: Counter[tuple[str, int, int, bool]] = Counter()
    in_linears = stacked = 0
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            linear[name.rpartition(".")[2], module.in_features, module.out_features, module.bias is not None] += 1
            in_linears += module.weight.numel()
        else:
            parameters = module.parameters(recurse=False)
            stacked += sum(each.numel() for each in parameters if each.dim() > 2 and "expert" in name)
    total = sum(parameter.numel() for parameter in layer.parameters())
    linears = [
        LinearModules(role, inputs, outputs, number, bias) for (role, inputs, outputs, bias), number in linear.items()
    ]
    return LayerGroup(1, linears, stacked, total - in_linears - stacked)


# A copy tells two layers from each end apart; all layers in between are alike. The larger copy has so many more.
_SHALLOW_LAYERS, _EXTRA_LAYERS = 4, 2


class LayerCounts(NamedTuple):
    """Numbers of layers: of two shallow copies and of the model."""

    small: int
    large: int
    full: int

    def extend(self, near: int, far: int) -> int:
        """Extrapolate a figure of the two copies to the model."""
        return near + (far - near) * (self.full - self.small) // (self.large - self.small)


def shallow_copies(kinds: Sequence[int], trained: int = 0) -> LayerCounts | None:
    """Return the depths of the two copies that stand for a model with such layers, of which only the last `trained`
    train (0: all). None if its layers do not repeat, or the model is hardly deeper than the copies."""
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
    """Return (layers before the repetition, layers that repeat), the pair with the smallest sum; None if nothing
    repeats at least twice."""
    ways = [
        (before, length)
        for length in range(1, len(kinds) // 2 + 1)
        for before in range(len(kinds) - 2 * length + 1)
        if all(kinds[i] == kinds[i + length] for i in range(before, len(kinds) - length))
    ]
    return min(ways, key=sum, default=None)


def follow_layers(model: Any, tracker: Tracker) -> None:
    """Make the tracker's segment follow the decoder layers: L0, L1, mid, L-2, L-1, then the head. No tensors are made
    or kept alive for it."""
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
    """Return a hook that names the layer. The gradient of the layer's input is the last that its backward pass makes;
    after it the layer before is at work."""

    def leave(_gradient: torch.Tensor) -> None:
        tracker.segment = before

    def enter(_module: Any, args: Any, more: dict[str, Any]) -> None:
        tracker.segment = name
        hidden = args[0] if args else more.get("hidden_states")
        if torch.is_grad_enabled() and isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(leave)

    return enter
