"""`explain` in a terminal: bars against the limit, and every number of the structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from validator.advise.changes import Change
from validator.advise.explanation import (
    DeviceMemoryBand,
    DiskUse,
    Explanation,
    MemoryBand,
    ModelSize,
    OptimizerStep,
    RunTime,
    SampleNumbers,
    TargetMachine,
)
from validator.finding import Assumption, Diagnostic, Severity, Verdict
from validator.output import explain_summary, explain_text
from validator.physics import Band, RunPart
from validator.physics import TimeTerm as Work
from validator.physics.estimate import DeviceTerm, HostTerm, SharedTerm
from validator.run.recipe_arguments import Cost

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"

TERMS = {DeviceTerm.WEIGHTS: 40.0, DeviceTerm.LOGITS: 19.99, DeviceTerm.BUCKETS: 0.01}
EXPLANATION = Explanation(
    path="recipes/x.yaml",
    machine=TargetMachine(2, 8, "a100-80g", 80.0, 79.3, 1024),
    model=ModelSize("Qwen/Qwen3-8B", 8_000_000_000, 40_000_000),
    verdict="tight",
    device_gib=DeviceMemoryBand(
        60.0, 62.5, 70.0, 84.0, {DeviceTerm.WEIGHTS: 40.0, DeviceTerm.LOGITS: 19.99, DeviceTerm.BUCKETS: 0.01}, []
    ),
    host_gib=MemoryBand(40.0, 50.0, 60.0, {HostTerm.PROCESSES: 50.0}),
    disk_gib=DiskUse(1.5, 1, 3.0),
    time=RunTime(
        OptimizerStep(0.9, 1.5, 4.0, {Work.MATMUL: 1.0, Work.COMMUNICATION: 0.5}),
        12_345.0,
        Band(1.6, 2.5, 6.6),
        40.0,
        Work.MATMUL,
        6000,
        {RunPart.STARTING: 0.02, RunPart.STEPS: 2.48},
        ["lengths of samples"],
        ["offload"],
        Band(10.0, 20.0, 60.0),
    ),
    cost=Cost(51.0, 79.6, 211.0, "USD"),
    samples=SampleNumbers(20_000, 18_500, "one field report's count (Ascend 910B, LoRA)"),
    changes=[
        Change(
            {"enable_liger_kernel": True, "per_device_train_batch_size": 1},
            33.3,
            50.0,
            "fits",
            "fuses the loss",
            time_ratio=1.35,
        ),
        Change(
            {"deepspeed": "deepspeed/ds_z2.json"},
            22.25,
            50.0,
            "fits",
            "shards nothing on one device, but torchrun turns on PyTorch's expandable segments; longer samples are cut",
            ["lmf-recipes copy ds_z2.json ."],
            {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "1"},
            2.5,
        ),
    ],
    command=[f"NODE_RANK={rank} llamafactory-cli train recipes/x.yaml" for rank in (0, 1)],
)


def test_golden(request: pytest.FixtureRequest) -> None:
    path = GOLDEN / "explain.txt"
    shown = explain_text.format_explanation(EXPLANATION)
    if request.config.getoption("--golden"):
        path.write_text(shown, "utf-8")
    assert shown == path.read_text("utf-8")


def bars(text: str) -> dict[str, int]:
    """Filled cells of each line of a term."""
    return {line.split()[0]: line.count("█") for line in text.splitlines() if line.startswith("  ") and "█" in line}


def test_bars_are_in_proportion_to_the_limit_or_the_high_end() -> None:
    device, host = explain_text.format_explanation(EXPLANATION).split("host memory per node")
    assert bars(device)["weights"] == pytest.approx(40 / 84 * 44, abs=1)
    assert (bars(device)["expected"], bars(host)["expected"]) == (round(70 / 84 * 44), round(50 / 1024 * 44))


def test_terms_and_slack_add_up_to_what_is_expected() -> None:
    lines = [line.split() for line in explain_text.format_explanation(EXPLANATION).splitlines()]
    (slack,) = [line for line in lines if line[:3] == ["context", "and", "slack"]]
    assert float(slack[3]) == 10.0


@pytest.mark.parametrize("missing", ["machine", "model", "device_gib", "host_gib", "disk_gib", "time", "cost"])
def test_what_is_not_known_is_left_out(missing: str) -> None:
    unknown: dict[str, Any] = {missing: None}
    shown = explain_text.format_explanation(replace(EXPLANATION, **unknown))
    assert "None" not in shown
    assert len(shown.splitlines()) < len(explain_text.format_explanation(EXPLANATION).splitlines()) or missing in (
        "machine",
        "cost",
    )


def test_memory_that_device_and_host_share_is_called_so() -> None:
    assert EXPLANATION.device_gib
    terms = {**EXPLANATION.device_gib.terms, SharedTerm.HOST: 4.0}
    shown = explain_text.format_explanation(
        replace(EXPLANATION, device_gib=replace(EXPLANATION.device_gib, terms=terms))
    )
    assert "memory that device and host share: 70.0 GiB expected" in shown
    assert "of it host memory: 50.0 GiB expected" in shown
    assert "host memory per node:" not in shown


def test_without_rates_of_the_device_it_says_how_to_get_them() -> None:
    shown = explain_text.format_explanation(replace(EXPLANATION, time=None, cost=None))
    said = "time: no rates of a100-80g are published; there, `lmf-recipes calibrate recipes/x.yaml` measures them"
    assert said in shown.splitlines()
    assert "calibrate" not in explain_text.format_explanation(replace(EXPLANATION, time=None, cost=None, machine=None))


def error(code: str) -> Diagnostic:
    return Diagnostic(code, Severity.ERROR, "")


@pytest.mark.parametrize(
    ("codes", "left_out", "verdict"),
    [
        ([], [], "tight: expected to fit, but the upper end does not"),
        (["FIT001", "FIT003"], [], "tight: expected to fit, but the upper end does not"),
        (["TRA501"], [], "will not run: 1 error above; memory alone: tight: expected to fit"),
        (["SCH001", "FIT001", "SCH002"], ["a", "b"], "will not run: 2 errors above; memory alone, without a, b: tight"),
    ],
)
def test_errors_other_than_memory_stand_before_the_verdict(codes: list[str], left_out: list[str], verdict: str) -> None:
    shown = explain_text.format_explanation(replace(EXPLANATION, diagnostics=[*map(error, codes)], left_out=left_out))
    assert f"  verdict  {verdict}" in shown


@pytest.mark.parametrize(
    ("verdict", "best", "title"),
    [
        ("tight", "fits", "nearest changes:"),
        ("exceeds", "tight", "nothing fits with a margin; nearest changes:"),
        ("exceeds", "exceeds", "nothing fits; nearest changes:"),
        ("unknown", "unknown", "nearest changes:"),
    ],
)
def test_the_title_says_how_near_the_changes_are(verdict: Verdict, best: Verdict, title: str) -> None:
    change = replace(EXPLANATION.changes[0], verdict=best)
    shown = explain_text.format_explanation(replace(EXPLANATION, verdict=verdict, changes=[change]))
    assert f"\n{title}\n" in shown
    assert "changes:" not in explain_text.format_explanation(replace(EXPLANATION, changes=[]))


@pytest.mark.parametrize(
    ("needs", "usable", "shown"),
    [
        (39.51, 39.49, "39.51 GiB of 39.49 per device"),
        (39.61, 39.49, "39.6 GiB per device"),
        (9.0, None, "9.0 GiB per"),
    ],
)
def test_a_second_decimal_where_one_does_not_tell_need_and_limit_apart(
    needs: float, usable: float | None, shown: str
) -> None:
    changes = [replace(EXPLANATION.changes[0], device_gib=needs)]
    band = DeviceMemoryBand(needs, needs, needs, needs, {}, [])
    machine = TargetMachine(1, 1, "a100-40g", 40.0, usable, 64.0)
    text = explain_text.format_explanation(replace(EXPLANATION, machine=machine, device_gib=band, changes=changes))
    assert f"      {shown}" in text
    assert ("39.51 GiB expected" in text and "39.49 GiB usable" in text) == (needs == 39.51)


@pytest.mark.parametrize(("ram", "said"), [(40.0, True), (50.0, False), (None, False)])
def test_too_little_main_memory_is_said_with_how_much_would_do(ram: float | None, said: bool) -> None:
    shown = explain_text.format_explanation(
        replace(EXPLANATION, machine=TargetMachine(2, 8, "a100-80g", 80.0, 79.3, ram))
    )
    line = "kill a process (exit code -9); 50 GiB would do, 60 with a margin\n"
    assert (line in shown) == said
    assert ("exit code -9" in shown) == said


def test_a_job_that_fits_is_told_what_it_could_buy_instead() -> None:
    fits = replace(EXPLANATION, verdict="fits", spare=[replace(EXPLANATION.changes[0], set={"cutoff_len": 4096})])
    shown = explain_text.format_explanation(fits)
    assert "\nmemory to spare, which would buy one of:\n  cutoff_len: 4096\n" in shown
    assert "enable_liger_kernel" not in shown
    assert "which would buy" not in explain_text.format_explanation(
        replace(fits, spare=[])
    ) + explain_text.format_explanation(replace(fits, verdict="tight"))


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("form", [explain_text.format_explanation, explain_summary.format_summary])
def test_no_line_is_wider_than_a_terminal_but_for_commands(
    monkeypatch: pytest.MonkeyPatch, form: Callable[[Explanation], str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = form(EXPLANATION).partition("run:")[0].splitlines()
    assert max(len(line) for line in lines) <= width


def test_the_short_form_says_the_verdict_and_what_it_rests_on() -> None:
    assumes = (Assumption("length", 8192, 3100, "fits up to 3,100 tokens a sample"),)
    shown = explain_summary.format_summary(replace(EXPLANATION, assumes=assumes)).splitlines()
    assert len(shown) < len(explain_text.format_explanation(EXPLANATION).splitlines()) / 2
    assert "  depends  fits up to 3,100 tokens a sample" in shown
    (verdict, memory, cost) = (next(line for line in shown if line.split()[0] == word)
                               for word in ("verdict", "memory", "cost"))  # fmt: skip
    assert verdict.endswith("; 70.0 GiB of 79.3 usable per device, 62.5 to 84.0 (90 % band)")
    assert memory.startswith("  memory   mostly weights, 57% (")
    assert cost == "  cost     40 device hours; 80 USD (51 to 210); 20 kWh (10 to 60)"
    assert [line for line in shown if line.startswith("  change   `enable_liger_kernel: true`, ")]
    assert shown[-1].startswith("every term, all changes"), "each of two nodes has a command of its own"
    one = replace(EXPLANATION, command=["FORCE_TORCHRUN=1 llamafactory-cli train recipes/x.yaml cutoff_len=1024"])
    assert explain_summary.format_summary(one).endswith("\nrun: lmf-recipes train recipes/x.yaml cutoff_len=1024\n")
    untimed = explain_summary.format_summary(replace(EXPLANATION, time=None, cost=None))
    assert "\n  time     no rates of a100-80g are published; there, " in untimed


def test_the_short_form_says_what_main_memory_a_change_takes_beside_that_of_the_device() -> None:
    offload = Change({"deepspeed": "deepspeed/ds_z3_offload.json"}, 15.7, 163.0, "fits", "")
    shown = explain_summary.format_summary(replace(EXPLANATION, changes=[offload]))
    assert "ds_z3_offload.json`: 15.7 GiB per device, 163 GiB of main memory per node, fits" in shown


@pytest.mark.parametrize("missing", ["machine", "model", "device_gib", "host_gib", "disk_gib", "time", "cost"])
def test_the_short_form_leaves_out_what_is_not_known(missing: str) -> None:
    unknown: dict[str, Any] = {missing: None}
    assert "None" not in explain_summary.format_summary(replace(EXPLANATION, **unknown))


def test_the_largest_part_is_that_of_the_longest_bar_and_of_the_whole() -> None:
    assert EXPLANATION.device_gib
    slack = replace(EXPLANATION.device_gib, allocated=20.0, terms={DeviceTerm.WEIGHTS: 20.0})
    shown = explain_text.format_explanation(replace(EXPLANATION, device_gib=slack)).splitlines()
    (largest, _host, _time) = (line for line in shown if line.startswith("  largest: "))
    assert largest.startswith("  largest: context and slack, 71% (")
    assert shown.index(next(line for line in shown if "context and slack" in line)) < shown.index(
        next(line for line in shown if line.startswith("  weights"))
    )


@pytest.mark.parametrize(("high", "usable"), [(0.0, 80.0), (1e6, 80.0), (80.0, 80.0), (0.0, None)])
def test_extreme_sizes_do_not_break_the_ruler(high: float, usable: float | None) -> None:
    band = DeviceMemoryBand(high, high, high, high, {DeviceTerm.WEIGHTS: high}, [])
    machine = TargetMachine(2, 8, "a100-80g", 80.0, usable, 1024)
    shown = explain_text.format_explanation(replace(EXPLANATION, device_gib=band, machine=machine))
    assert max(line.count("█") for line in shown.splitlines()) <= 44


def test_a_number_of_samples_of_its_own_is_not_called_recommended() -> None:
    shown = explain_text.format_explanation(replace(EXPLANATION, samples=SampleNumbers(1_500, None)))
    assert "samples: made for 1,500\n" in shown
