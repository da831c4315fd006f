"""The data sets that a recipe names, each surveyed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job import datasets
from validator.job.datasets import Dataset
from validator.job.job import Job
from validator.samples.fate import TURNS
from validator.samples.form import Form, form
from validator.samples.guess import ENOUGH
from validator.samples.media import KINDS, Media
from validator.samples.outcome import Row, lacking, reason
from validator.samples.remedy import remedy
from validator.study import columns, pool, reading
from validator.study.markup import Markup
from validator.study.opening import missing
from validator.study.survey import Plan, Report, Survey
from validator.study.tokens import Counter
from validator.study.values import UnreadableError
from validator.tables import data
from validator.tables.suggestion import suggest


@dataclass(frozen=True)
class Problem:
    """Why LLaMA-Factory stops; `place` is a file, with a row where one is to blame, `remedy` what to write instead."""

    place: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join([f"{self.place}: error: {self.message}", "LLaMA-Factory stops", *filter(None, [self.remedy])])


@dataclass
class Set:
    """One data set of a recipe. `note` says why a set without rows has none here."""

    name: str
    evaluates: bool
    dataset: Dataset | None = None
    form: Form = field(default_factory=lambda: form({}))
    rows: Survey = field(default_factory=Survey)
    note: str = ""
    problems: list[Problem] = field(default_factory=list)


def surveyed(job: Job, counter: Counter, report: Report) -> list[Set]:
    """Every data set of the recipe, those trained on first; of all of them as many rows are kept of each hundred."""
    held = [
        _surveyed(job, name, key == "eval_dataset", counter, report)
        for key in ("dataset", "eval_dataset")
        for name in dict.fromkeys(job.words(key))
    ]
    stride = max((one.rows.stride for one in held), default=1)
    for one in held:
        one.rows.thin(0, stride // one.rows.stride)
    return held


def plan(job: Job, meant: Form, counter: Counter) -> Plan:
    """How the rows of a data set of this form are taken."""
    return Plan(meant, job.stage, _markup(job, counter), counter, job.length, job.packs, _media(job))


def _media(job: Job) -> Media:
    """What the template reads; paths count from `media_dir`, by default `dataset_dir` (hparams/data_args.py)."""
    folder = str(job.get("media_dir") or job.get("dataset_dir"))
    there = job.find(folder)
    return Media(frozenset((job.template or {}).get("media", ())), str(there[0]) if there else folder)


def _markup(job: Job, counter: Counter) -> Markup:
    name, facts = str(job.get("template")), job.template or {}
    system = job.get("default_system")
    return Markup(
        data.table("formats")["formats"].get(name, {}),
        counter,
        bool(facts.get("efficient_eos")),
        job.get("enable_thinking"),
        job.flag("preserve_thinking"),
        job.flag("mask_history"),
        system if isinstance(system, str) else None,
    )


def _surveyed(job: Job, name: str, evaluates: bool, counter: Counter, report: Report) -> Set:
    one = Set(name, evaluates, job.registry.get(name) if job.registry else None)
    if one.dataset is None:
        one.note = "" if job.registry else "not in a local dataset_info.json"
        one.problems += _undefined(job, name)
        return one
    one.problems += _odd(job, name)
    if one.problems:
        return one
    one.form = form(one.dataset.entry)
    one.problems += _refused(job, one)
    if one.dataset.source != "file":
        one.note = f"not on this machine: its source is a {one.dataset.source or 'missing file_name'}"
    elif not one.problems:
        one.rows = pool.whole(one.dataset.files, plan(job, one.form, counter), report)
        one.problems += _unusable(one)
        if not one.rows.problems:
            columns.recode(one.rows, one.form)
    if one.problems and not one.rows.problems:
        blamed = one.problems[0]
        one.problems[0] = replace(blamed, remedy=_remedy(job, one))
    return one


def explained(job: Job, one: Set, otherwise: str) -> Problem:
    """Why no row of a set is trained; `otherwise` where its first rows do not tell."""
    why = reason(one.dataset.entry, job.stage, _first(one)) if one.dataset else ""
    return Problem(one.name, f"no row is left to train on: {why or otherwise}", _remedy(job, one))


def _remedy(job: Job, one: Set) -> str:
    """The entry that suits the rows; empty where it is there already, or not known."""
    return remedy(one.name, one.dataset.entry, job.stage, _first(one)) if one.dataset else ""


def _first(one: Set) -> Sequence[Row]:
    try:
        return reading.first(files(one), ENOUGH)
    except (RecipeError, UnreadableError):
        return ()


def _undefined(job: Job, name: str) -> Iterator[Problem]:
    """A name that the registry lacks; of data that are not on this machine nothing is known."""
    if job.registry and job.registry.problem:
        yield Problem(name, job.registry.problem)
    elif job.registry:
        near = suggest(name, job.registry.entries)
        yield Problem(name, f"is not defined in {job.registry.path}{near}")


def _odd(job: Job, name: str) -> Iterator[Problem]:
    """What is not of the kind that LLaMA-Factory takes for granted."""
    assert job.registry is not None
    entry = job.registry.entries[name]
    if not isinstance(entry, Mapping):
        yield Problem(name, "its entry in dataset_info.json is no object of settings")
        return
    for part in ("columns", "tags"):
        held = entry.get(part, {})
        if not isinstance(held, Mapping):
            yield Problem(name, f"`{part}` in dataset_info.json is no object; leave it out for the default")
        elif wrong := next((key for key, value in held.items() if not isinstance(value, str | None)), ""):
            said = f"`{wrong}` among `{part}` in dataset_info.json is no text"
            yield Problem(name, f"{said}; write the name that the rows have for it")


def _refused(job: Job, one: Set) -> Iterator[Problem]:
    """What needs no look at the rows."""
    assert one.dataset is not None
    where = str(one.dataset.path)
    if one.form.ranking is not job.pairs:
        kind = "needs pairs (`ranking: true`)" if job.pairs else "takes no pairs (`ranking: true`)"
        yield Problem(one.name, f"stage {job.stage} {kind}")
    if one.form.formatting not in ("alpaca", "sharegpt", "openai"):
        yield Problem(one.name, f"`formatting: {one.form.formatting}` is none of alpaca, sharegpt, openai")
    taken = job.template.get("media", ()) if job.template and job.stage != "pt" else KINDS.values()
    for part, kind in KINDS.items():
        if one.form.columns.get(part) and kind not in taken:
            yield Problem(one.name, f"holds {part}, which template {job.get('template')} does not take")
    if one.dataset.source == "file" and not one.dataset.files:
        yield Problem(where, missing(one.dataset.path))
    kinds = {datasets.suffixes().get(path.suffix[1:]) for path in one.dataset.files}
    if None in kinds:
        wrong = next(path for path in one.dataset.files if path.suffix[1:] not in datasets.suffixes())
        yield Problem(str(wrong), f"is none of {', '.join(datasets.suffixes())}")
    elif len(kinds) > 1:
        yield Problem(where, "holds files of more than one type")


def _unusable(one: Set) -> Iterator[Problem]:
    rows, where = one.rows, str(one.dataset.path if one.dataset else one.name)
    for path, row, why in rows.problems:
        yield Problem(f"{path}:{row}" if row else str(path), f"row {row} {why}" if row else why)
    if rows.problems:
        return
    if not len(rows):
        yield Problem(where, "holds no row")
    for why in columns.problems(rows, one.form):
        yield Problem(where, why)
    if rows.fates.count(TURNS) == len(rows) and (why := lacking(one.form, _first(one))):
        yield Problem(where, why)


def files(one: Set) -> list[Path]:
    """The files of a set."""
    return list(one.dataset.files) if one.dataset else []
