"""Machines as their drivers' programs showed them: a folder of tests/fixtures/recorded/ for each, to stand on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded"
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


def show_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the environment hides devices."""
    for name in HIDING:
        monkeypatch.delenv(name, raising=False)
