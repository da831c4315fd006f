"""The search for a transformers release that runs a mixture of experts faster than a release that the recipe allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from validator.knowledge import releases
from validator.levers.search import VERDICT_RANKS
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.training_time import predict_training_time

# A step has to take so many times as long, beyond what the time model errs by where launches decide.
_MIN_TIME_RATIO = 1.3
# Vendors whose builds of torch have grouped matmuls. Of Ascend's it is not known.
_GROUPING_VENDORS = ("nvidia", "amd")


class FasterRelease(NamedTuple):
    """A transformers release that the recipe allows and that runs experts one after another (`older`), a release that
    runs them together (`newer`), and the expected seconds of an optimizer step with each."""

    older: str
    newer: str
    older_seconds: float
    newer_seconds: float


def faster_release(run: RunSettings, is_sound: Callable[[RunSettings], bool]) -> FasterRelease | None:
    """Return the newest transformers release that runs the experts of the run's model together, if the recipe's header
    block allows a release that runs them one after another. None if even the slow end of the newer release's time is
    not below the time that is expected of the older. `is_sound`: returns True if a run has no error."""
    older = _release_with_loop(run)
    newer = _release_of_grouped_experts(run, is_sound) if older and is_sound(run) else None
    if not older or not newer:
        return None
    known = run.declared.lengths.typical is not None or run.data.has_first_rows
    lengths = None if known else (run.batch.max_tokens,)
    slow, fast = (predict_training_time(_with_transformers(run, each), None, lengths) for each in (older, newer))
    if not slow or not fast or slow.step.expected <= max(fast.step.high, _MIN_TIME_RATIO * fast.step.expected):
        return None
    return FasterRelease(older, newer, slow.step.expected, fast.step.expected)


def _release_with_loop(run: RunSettings) -> str | None:
    """Return the newest transformers release that the header block allows and that runs experts one after another. None
    if there is none, and if the header block states no transformers release though a newer one is allowed, by which the
    run is judged then."""
    grouping = run.machine is not None and run.machine.device.vendor in _GROUPING_VENDORS
    if not grouping or run.model is None or not run.model.arch.ffn.experts:
        return None
    forms = run.model.family.forms(run.releases)
    if "transformers" not in run.header and "grouped" in forms:
        return None
    return forms.get("separate") or forms.get("sliced")


def _release_of_grouped_experts(run: RunSettings, is_sound: Callable[[RunSettings], bool]) -> str | None:
    """Return the newest transformers release that runs the model's experts in grouped matmuls, and with which the run
    fits as well and has no error. None if there is none."""
    for _, version in releases.known_pairs():
        after = _with_transformers(run, version)
        if run.model is None or "grouped" not in run.model.family.forms(after.releases):
            continue
        fits_as_well = VERDICT_RANKS[predict(after).verdict] <= VERDICT_RANKS[predict(run).verdict]
        if fits_as_well and is_sound(after):
            return version
    return None


def _with_transformers(run: RunSettings, version: str) -> RunSettings:
    """Return a copy of the run for another transformers release, with any LLaMA-Factory release that admits it."""
    stated = {key: value for key, value in run.header.items() if key != "llamafactory"}
    return run.with_header({**stated, "transformers": version})
