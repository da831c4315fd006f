"""Which part of the model is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from validator.simulate.shape import layers_of
from validator.simulate.tracker import Tracker


def mark_layers(model: Any, tracker: Tracker) -> None:
    """The tracker's segment follows the decoder layers: L0, L1, mid, L-2, L-1, then the head. No tensors are made or
    kept alive for it."""
    layers = layers_of(model)
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(_entering(tracker, number, len(layers)), with_kwargs=True)
    layers[-1].register_forward_hook(lambda *_: _leave(tracker))


def _name(number: int, count: int) -> str:
    return f"L{number}" if number < 2 else f"L-{count - number}" if number >= count - 2 else "mid"


def _leave(tracker: Tracker) -> None:
    if tracker.phase.endswith("fwd"):
        tracker.segment = "head"


def _entering(tracker: Tracker, number: int, count: int) -> Callable[..., None]:
    """A hook that names the layer; the gradient of its input is the last that its backward pass makes."""
    before = _name(number - 1, count) if number else "emb"

    def leave(_gradient: torch.Tensor) -> None:
        tracker.segment = before

    def enter(_module: Any, args: Any, more: dict[str, Any]) -> None:
        tracker.segment = _name(number, count)
        hidden = args[0] if args else more.get("hidden_states")
        if torch.is_grad_enabled() and isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(leave)

    return enter
