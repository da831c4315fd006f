"""The closed form, told the releases, against peaks that were simulated with several sets of them."""

from __future__ import annotations

import pytest
from simulation import grid, releases

SETS = releases.sets()
NEWEST = next(iter(SETS.values()))
# Before peft 0.16 orthogonal adapters turn weights in place of what enters them; no header names peft.
TURNED = "peft==0.14"


def of(llamafactory: str, transformers: str) -> list[dict[str, str]]:
    """The rows of a set."""
    wanted = {"llamafactory": llamafactory, "transformers": transformers}
    return next(rows for rows in SETS.values() if releases.header(rows[0]) == wanted)


def test_the_record_covers_each_llamafactory_and_how_it_trains() -> None:
    assert {releases.header(rows[0])["llamafactory"] for rows in SETS.values()} == {"0.9.3", "0.9.4", "0.9.5"}
    assert {(row["stage"], row["padded"], row["grad_ckpt"]) for row in NEWEST} >= {
        ("sft", "True", "False"), ("sft", "False", "True"), ("dpo", "False", "True"), ("orpo", "False", "False"),
    }  # fmt: skip
    assert {row["method"] for row in NEWEST} >= {"full", "freeze", "lora", "dora", "oft", "qlora4", "qlora8"}


@pytest.mark.parametrize("versions", SETS)
def test_predicted_peaks_are_the_simulated_ones(versions: str) -> None:
    rows = [row for row in SETS[versions] if not (row["method"] == "oft" and TURNED in versions)]
    errors = sorted(abs(releases.error(row)) for row in rows)
    assert len(errors) > 25
    assert errors[len(errors) // 2] < 0.002
    assert errors[-1] < 0.01


def test_formulas_that_are_not_told_the_releases_miss_the_older_ones() -> None:
    missed = [row for row in of("0.9.3", "4.52.4") if abs(releases.error(row, told=False)) > 0.015]
    assert {row["stage"] for row in missed} >= {"sft", "dpo", "orpo"}
    assert all(row["grad_ckpt"] == "False" or row["stage"] == "dpo" for row in missed)


def test_other_releases_of_peft_trl_and_accelerate_alone_make_no_difference() -> None:
    """Those of LLaMA-Factory 0.9.4 beside the newest: but for experts, which transformers 5 keeps as one tensor."""
    rows = [row for row in of("0.9.4", "4.57.1") if row["model"] not in grid.MIXTURES]
    assert len(rows) > 30
    assert all(abs(releases.apart(row, NEWEST)) < 0.001 for row in rows)
