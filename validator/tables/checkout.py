"""Locate recipes/, deepspeed/, accelerate/ and data/."""

from __future__ import annotations

from pathlib import Path


def home() -> Path:
    """The folder that holds recipes/, deepspeed/, accelerate/ and data/: the checkout, or their copy beside an
    installed package."""
    root = Path(__file__).parent.parent.parent
    return root if (root / "recipes").is_dir() else root / "llamafactory_recipes"
