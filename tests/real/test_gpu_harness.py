"""The program that measures on a GPU, with models of four layers on the CPU: cells load side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import records
from support.cases import ROOT

pytestmark = [pytest.mark.training, pytest.mark.process]
# Two cells: with weights in 16 bits and in 4.
ONLY = [
    "model=qwen3-0.6b", "seq_len=512", "micro_batch=1", "stage=sft", "eval_batch=0", "checkpointing=True",
    "method=lora",
]  # fmt: skip


def test_two_cells_side_by_side_leave_a_row_each_and_are_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"

    def measure(*options: str) -> str:
        command = [sys.executable, "-m", "benchmarks", "gpu", "measure", "--tiny", "--out", str(out), *options]
        return subprocess.run([*command, "--only", *ONLY], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert len(measure("--list").splitlines()) == 2
    measure("--workers", "2")
    rows = records.read(out)
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert all(float(row["seconds_per_step"]) > 0 and row["host_used_peak_gib"] == "" for row in rows)
    assert measure("--list").split() == []
