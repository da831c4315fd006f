"""TRA418 and TRA419: learning rate, batch, epochs and the like, against what published runs used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.tables import guidance

# Beyond the published range by this factor a value is a mistake more often than a choice.
_FAR = 3.0
# Where nobody published a range, so far from the one known value.
_FARTHEST = 10.0
_CLOSE = 1 + 1e-9  # numbers that differ by rounding are equal
# What a setting is called whose key says only a part of it.
_WORDS = {"learning_rate": "learning rate", "batch": "effective batch", "epochs": "epochs"}
_KEYS = {"batch": "per_device_train_batch_size", "epochs": "num_train_epochs"}
_SHOWN = 3  # sources


class _Setting(NamedTuple):
    """A value of the recipe beside its row: `row` has low, default and high, `sources` the keys of rates.yaml."""

    key: str
    words: str
    value: float
    row: Mapping[str, float | None]
    sources: list[str]

    @property
    def distance(self) -> float:
        """How many times the value is beyond the published range, at least 1; 1 within."""
        low, high = self.row["low"], self.row["high"]
        if high is not None and self.value > high * _CLOSE:
            return self.value / high if high else float("inf")
        if low is not None and self.value < low / _CLOSE:
            return low / self.value if self.value > 0 else float("inf")
        return 1.0

    @property
    def ranged(self) -> bool:
        """Whether the range is published on the side on which the value stands."""
        return self.row["high" if self.value > float(self.row["default"] or 0) else "low"] is not None

    @property
    def text(self) -> str:
        low, default, high = (self.row[name] for name in ("low", "default", "high"))
        used = "and".join(f" {each:g} " for each in (low, high) if each is not None).strip()
        used = f"between {used}" if low is not None and high is not None else used or f"{default:g}"
        by = ", ".join(self.sources[:_SHOWN])
        return f"{self.words} {self.value:g}, published runs used {used} ({by}); {default:g} is a good start"


@rule("TRA418", Severity.WARNING)
def far_from_published(job: Job) -> Iterator[Finding]:
    """A setting that decides what is learned is far outside of what any published run used.

    Why: the run goes through, and the model is ruined (a rate ten times too high, thirty epochs) or has learned
    nothing. The log does not say so. Told above three times the highest value, and below a third of the lowest.
    Source: own (guidance)
    Fix: a value within the range, such as the one that is named. `overfit: true` in the header block for a run that is
    meant to learn its samples by heart.
    """
    for each in _settings(job):
        if each.ranged and each.distance > _FAR * _CLOSE:
            yield each.key, each.text


@rule("TRA419", Severity.NOTE)
def outside_published(job: Job) -> Iterator[Finding]:
    """A setting that decides what is learned is outside of what published runs used.

    Why: it may be right for the data; nobody has shown it.
    Source: own (guidance)
    Fix: none, where it was chosen on purpose; else the value that is named.
    """
    for each in _settings(job):
        if each.ranged:
            told = 1.0 < each.distance <= _FAR * _CLOSE
        else:
            default = float(each.row["default"] or 0)
            told = not default / _FARTHEST / _CLOSE <= each.value <= default * _FARTHEST * _CLOSE
        if told:
            yield each.key, each.text


def _settings(job: Job) -> Iterator[_Setting]:
    """Each setting for which rates.yaml has a row; none in a run that is meant to overfit."""
    if not job.trains or job.trains_nothing or job.overfits:
        return
    row = guidance.row(job.stage, job.method, job.model.billions if job.model else None, _optimizer(job))
    values = {
        "learning_rate": job.number("learning_rate"),
        "batch": job.effective_batch if job.machine and not job.packs else None,
        "epochs": job.number("num_train_epochs") if job.number("max_steps") <= 0 else None,
    }
    for name, value in values.items():
        if row and value is not None and _sensible(name, value):
            yield _Setting(_KEYS.get(name, name), _words(name, job), value, row[name], row["source"])
    for shape in guidance.shapes(job.stage, job.method, str(job.get("pref_loss"))):
        key, per = shape["key"], shape.get("per")
        value, base = job.number(key), job.number(per) if per else 1.0
        if job.has(key) and base > 0 and _sensible(key, value):
            words = f"`{key}` over `{per}`" if per else f"`{key}`"
            yield _Setting(key, f"{words} is", value / base, shape, shape["source"])


def _sensible(name: str, value: float) -> bool:
    """Whether no other rule speaks of the value (TRA410, TRA411)."""
    if name == "lora_dropout":
        return 0 <= value <= 1
    return value > 0 and not (name == "learning_rate" and value >= 0.1)


def _words(name: str, job: Job) -> str:
    return f"{_WORDS[name]} of {job.stage} with {job.method} is"


def _optimizer(job: Job) -> str | None:
    own = job.optimizers[:1]
    return own[0].removeprefix("use_") if own else None
