"""Switches of the environment, as LLaMA-Factory reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping

_ON = ("true", "y", "1")


def on(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether LLaMA-Factory takes the variable as on (llamafactory/extras/misc.py, is_env_enabled); all other words
    than these are off, "yes" and "on" too."""
    return environment.get(name, "").lower() in _ON
