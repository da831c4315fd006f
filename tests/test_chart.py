"""`explain` in a terminal: bars against the limit, and every number of the structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from validator.show import chart

GOLDEN = Path(__file__).parent / "golden"


def explanation(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": "recipes/x.yaml",
        "machine": {"nodes": 2, "devices": 8, "device": "a100-80g", "device_gib": 80.0, "usable_gib": 79.3,
                    "host_ram_gib": 1024},
        "model": {"name": "Qwen/Qwen3-8B", "parameters": 8_000_000_000, "trainable_parameters": 40_000_000},
        "verdict": "tight",
        "device_gib": {"allocated": 60.0, "low": 62.5, "expected": 70.0, "high": 84.0,
                       "terms": {"weights": 40.0, "logits": 19.99, "buffers": 0.01}},
        "host_gib": {"low": 40.0, "expected": 50.0, "high": 60.0, "terms": {"processes": 50.0}},
        "disk_gib": {"checkpoint": 1.5, "total": 3.0},
        "samples": {"recommended": 20_000, "found": 18_500},
        "changes": [{"set": {"enable_liger_kernel": True, "per_device_train_batch_size": 1}, "device_gib": 33.3,
                     "host_gib": 50.0, "verdict": "fits", "note": "fuses the loss"}],
        "command": [f"NODE_RANK={rank} llamafactory-cli train recipes/x.yaml" for rank in (0, 1)],
    }  # fmt: skip
    return {**found, **changes}


def test_golden(request: pytest.FixtureRequest) -> None:
    path = GOLDEN / "explain.txt"
    found = chart.text(explanation())
    if request.config.getoption("--golden"):
        path.write_text(found, "utf-8")
    assert found == path.read_text("utf-8")


def bars(text: str) -> dict[str, int]:
    """Filled cells of each line of a term."""
    return {line.split()[0]: line.count("█") for line in text.splitlines() if line.startswith("  ") and "█" in line}


def test_bars_are_in_proportion_to_the_limit_or_the_high_end() -> None:
    found = bars(chart.text(explanation()))
    assert found["weights"] == pytest.approx(40 / 84 * 44, abs=1)
    assert found["expected"] in {round(70 / 84 * 44), round(50 / 1024 * 44)}


def test_terms_and_slack_add_up_to_what_is_expected() -> None:
    lines = [line.split() for line in chart.text(explanation()).splitlines()]
    (slack,) = [line for line in lines if line[:3] == ["context", "and", "slack"]]
    assert float(slack[3]) == 10.0


@pytest.mark.parametrize("missing", ["machine", "model", "device_gib", "host_gib", "disk_gib"])
def test_what_is_not_known_is_left_out(missing: str) -> None:
    shown = chart.text(explanation(**{missing: None}))
    assert "None" not in shown
    assert len(shown.splitlines()) < len(chart.text(explanation()).splitlines()) or missing == "machine"


def test_no_line_is_wider_than_a_terminal_but_for_commands() -> None:
    lines = chart.text(explanation()).partition("run:")[0].splitlines()
    assert max(len(line) for line in lines) <= 100


@pytest.mark.parametrize(("high", "usable"), [(0.0, 80.0), (1e6, 80.0), (80.0, 80.0), (0.0, None)])
def test_extreme_sizes_do_not_break_the_ruler(high: float, usable: float | None) -> None:
    band = {"allocated": high, "low": high, "expected": high, "high": high, "terms": {"weights": high}}
    machine = {**explanation()["machine"], "usable_gib": usable}
    shown = chart.text(explanation(device_gib=band, machine=machine))
    assert max(line.count("█") for line in shown.splitlines()) <= 44
