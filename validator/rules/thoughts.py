"""TRA618, TRA619 and TRA621: thoughts in the answers, the template and `enable_thinking`, judged together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.diagnostic import Severity
from validator.job.datasets import Dataset
from validator.job.job import Job
from validator.rules import edits
from validator.rules.rule import Finding, rule
from validator.rules.templates import registered
from validator.tables import data
from validator.tables.template import thought_words

# Answers of a data set that are left out of account: a few rows of another kind ruin nothing.
_FEW = 0.1
# First rows of a local data set that are looked at.
_READ = 200
# How far public data sets go without thoughts, by what sets.yaml says of them.
_PUBLIC = {"none": 1.0, "some": 0.5, "all": 0.0}
# Stages that train on answers as the template writes them (llamafactory/data/processor).
_STAGES = ("sft", "dpo", "kto", "rm")


@rule("TRA618", Severity.WARNING)
def empty_thoughts_trained(job: Job) -> Iterator[Finding]:
    """Answers without a thought are trained with an empty one, so that the model unlearns to think.

    Why: the templates of reasoning models put an empty thought before each answer that has none. With `enable_thinking`
    left at true, the loss counts it: the model learns to open and close its thought at once. The loss looks good.
    Source: llamafactory/data/template.py:ReasoningTemplate
    Fix: `enable_thinking: false` puts the empty thought into the prompt, out of the loss, and removes thoughts that
    are there; null does the same and keeps them, for mixed data. Or answers that have thoughts.
    """
    if job.get("enable_thinking") is not True:
        return
    lacking = _without_thoughts(job)
    named = [name for name, share in lacking.items() if share > _FEW]
    if not named:
        return
    own = registered(str(job.get("model_name_or_path"))) or ""
    if own == f"{job.get('template')}_nothink":
        remedy, fix = f"write `template: {own}`, the one of this model", edits.put("template", own, safe=False)
    elif all(share == 1 for share in lacking.values()):
        remedy, fix = "write `enable_thinking: false`", edits.put("enable_thinking", False, safe=False)
    else:
        remedy, fix = "write `enable_thinking: null`, which keeps the thoughts that are there", None
    key = "enable_thinking" if job.has("enable_thinking") else "template"
    text = f"{_named(named)} no thoughts, so template {job.get('template')} trains an empty one before each answer"
    yield key, f"{text}; {remedy}", fix


@rule("TRA619", Severity.WARNING)
def thoughts_removed(job: Job) -> Iterator[Finding]:
    """`enable_thinking: false` removes the thoughts of data that have them.

    Why: the model is trained on the bare answers; the long thoughts that the data were chosen for are never seen.
    Source: llamafactory/data/template.py:ReasoningTemplate
    Fix: remove `enable_thinking`; null where some answers have no thought.
    """
    if job.get("enable_thinking") is not False:
        return
    if named := [name for name, share in _without_thoughts(job).items() if share < 1 - _FEW]:
        text = f"{_named(named)} thoughts, which `enable_thinking: false` removes; remove the key to train on them"
        yield "enable_thinking", text, edits.drop("enable_thinking", safe=False)


@rule("TRA621", Severity.WARNING)
def thoughts_in_other_words(job: Job) -> Iterator[Finding]:
    """Answers have thoughts between words that the template does not know, so that they are trained as answers.

    Why: gpt-oss, Gemma 4, Seed-OSS and Kimi-VL think between words of their own. A thought between `<think>` and
    `</think>` is to their templates a part of the answer, before which they put an empty thought.
    Source: llamafactory/data/template.py:ReasoningTemplate
    Fix: the words of the template in the data, which the message names.
    """
    words = _thought_words(job)
    if words is None:
        return
    opens, closes = words
    foreign = {dataset.name: _foreign(dataset, opens) for dataset in job.datasets}
    if named := [name for name, opener in foreign.items() if opener]:
        found = next(filter(None, foreign.values()))
        trained = f"which template {job.get('template')} trains as part of the answer"
        yield (
            "dataset",
            f"{_named(named)} thoughts in `{found}`, {trained}; write them between `{opens}` and `{closes}`",
        )


def _named(names: list[str]) -> str:
    return f"{', '.join(f'`{name}`' for name in names)} {'has' if len(names) == 1 else 'have'}"


def _without_thoughts(job: Job) -> Mapping[str, float]:
    """Share of the answers that the template finds no thought in, by data set; nothing where the template writes no
    thoughts, and no entry for a data set whose answers are not known."""
    words = _thought_words(job)
    if words is None:
        return {}
    shares = {each.name: _share(each, *words) for each in job.datasets if not _foreign(each, words[0])}
    return {name: share for name, share in shares.items() if share is not None}


def _thought_words(job: Job) -> tuple[str, str] | None:
    """The words that the job's template looks for around a thought; None where it writes none or nothing is trained."""
    reasons = job.template is not None and job.template.get("reasoning")
    if not reasons or job.stage not in _STAGES or job.tokenized or not job.trains:
        return None
    opens, closes = thought_words(data.table("formats")["formats"][str(job.get("template"))])
    return opens.strip(), closes.strip()


def _foreign(dataset: Dataset, opens: str) -> str | None:
    """The word of another template that opens thoughts in more than a few of the answers; None where there is none."""
    if dataset.rows and dataset.rows.head:
        others = {thought_words(slots)[0].strip() for slots in data.table("formats")["formats"].values()} - {opens}
        answers = [*_answers(dataset)][:_READ]
        counts = {each: sum(each in text for text in answers) for each in sorted(others)}
        return next((each for each, count in counts.items() if count > _FEW * len(answers)), None)
    known: Mapping[str, Any] | None = dataset.published
    return "<think>" if known and known["thoughts"] != "none" and opens != "<think>" else None


def _share(dataset: Dataset, opens: str, closes: str) -> float | None:
    """Share of the first rows' answers without either word; of a public data set what is known of the whole."""
    if dataset.rows and dataset.rows.head:
        answers = [*_answers(dataset)][:_READ]
        return sum(opens not in text and closes not in text for text in answers) / len(answers) if answers else None
    known: Mapping[str, Any] | None = dataset.published
    if known is None:
        return None
    return _PUBLIC[known["thoughts"]]


def _answers(dataset: Dataset) -> Iterator[str]:
    """The last answer of each of the first rows, both of a pair."""
    from validator.samples.conversion import StopsRunError, converter  # which few recipes need
    from validator.samples.form import form

    convert = converter(form(dataset.entry))
    rows: Sequence[Any] = dataset.rows.head[:_READ] if dataset.rows else ()
    for row in rows:
        try:
            yield from (content for _, content in convert(row).answers if isinstance(content, str) and content)
        except (StopsRunError, KeyError, TypeError, AttributeError):
            continue
