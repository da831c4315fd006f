"""A real run of several ranks under torchrun is ended in the middle of a save, and goes on. The signals, moments and
launchers that are not tried here: benchmarks/robustness/stress_signals.py."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from robustness import stress_signals
from robustness.stress_signals import Run
from support.holding import Hold

from validator.run.checkpoints import checkpoints_in

pytestmark = [pytest.mark.training, pytest.mark.process]

SAVED = " is being saved: the run ends after that"


@pytest.mark.sample(one_in=6, whole_for=["release/constraints.txt", "validator/launch/*"])
def test_a_save_ends_and_the_run_goes_on_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLD", str(tmp_path))
    hold = Hold(tmp_path, 4)
    run = Run(tmp_path, "torchrun with 2 processes", "save_steps=2")
    try:
        run.until(lambda _: hold.taken())
        run.process.send_signal(signal.SIGTERM)
        run.until(lambda run: SAVED in run.log.read_text(errors="replace"))
        hold.let_go()
        assert stress_signals.judged(run, [signal.SIGTERM]) is None
    finally:
        run.clear()
    last = checkpoints_in(run.output)[-1]
    assert 4 <= last.step < 1000  # the next save may begin before the program sees that this one is whole
    said = run.log.read_text(errors="replace")
    assert f"ended by SIGTERM; the same command goes on from {last.name} (step {last.step} of 1,000" in said
    again = Run(tmp_path, "one process", f"max_steps={last.step + 1}")
    try:
        assert again.end() == 0, again.log.read_text(errors="replace")[-3000:]
    finally:
        again.clear()
    assert f"goes on from {last.name} " in again.log.read_text(errors="replace")
