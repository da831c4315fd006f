"""Everything the `data` command says of a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import gt

from validator.diagnostic import RecipeError
from validator.job.job import GIB, Job
from validator.job.schedule import schedule
from validator.samples.fate import REASONS
from validator.study import amount, ceiling, columns, distribution, duration, near, quality, sets, tokens
from validator.study.duration import Duration
from validator.study.quality import Finding
from validator.study.results import Drop, Memory, RowCounts, SetRow, Study, Tokens
from validator.study.sets import Set
from validator.study.survey import Report
from validator.study.tokens import Counter
from validator.study.training import Training, training
from validator.tables.guidance import BLOCK_TOKENS

# Near duplicates among more rows are looked for only when asked: they take most of the time.
NEAR_ROWS = 200_000
_EXAMPLES = 3


def overview(job: Job, wanted: bool | None, report: Report) -> Study:
    """The study of a job's data. `wanted`: look for near duplicates; None: where they are quick to
    find. Raises RecipeError where there is nothing to study."""
    if job.tokenized:
        raise RecipeError(f"{job.path}: `tokenized_path` holds tokenized data, which is trained on as it is")
    counter, reason = tokens.counter(job)
    chosen = sets.surveyed(job, counter, report)
    if not chosen:
        raise RecipeError(f"{job.path}: names no data set; set `dataset`")
    run = training(job, chosen)
    trained = run.kept(run.train)
    rows, evaluated = sorted(set(trained)), sorted(set(run.kept(run.evaluation)))
    whole = not any(one.note for one in chosen)
    steps = schedule(job, run.sequences) if run.sequences and whole else None
    exact = not run.why_not and (counter.exact or not job.packs)
    first, again = quality.repeats(run, rows)
    lengths = _tokens(job, run, counter, trained)
    amounts = math.ceil(lengths.per_epoch / BLOCK_TOKENS) if job.stage == "pt" else len(first) * run.stride
    unlooked = _looks(wanted, len(rows), run.stride)
    alike = [] if unlooked else _near(job, run, first, len(rows), counter, report)
    return Study(
        path=job.path,
        model=job.model_name,
        stage=job.stage,
        method=job.method,
        template=job.get("template"),
        cutoff_len=int(job.number("cutoff_len")),
        sets=[_set(one) for one in chosen],
        problems=run.problems,
        notes=[*_notes(job, run, reason), *([unlooked] if unlooked else [])],
        rows=RowCounts(
            read=sum(one.rows.read for one in chosen),
            selected=len(run.train) * run.stride,
            dropped=run.drops.total(),
            trained=len(trained) * run.stride,
            evaluated=run.evaluated,
            sequences=run.sequences,
            exact=exact,
        ),
        drops=list(_drops(run)),
        steps=steps,
        tokens=lengths,
        memory=_memory(job, run, rows),
        amount=amount.judged(job, amounts if whole else 0, steps.epochs if steps else 0.0),
        quality=[
            replace(one, rows=one.rows * run.stride) for one in (*quality.findings(run, rows, evaluated, again), *alike)
        ],
        time=_time(job, run, trained) if steps else None,
    )


def _set(one: Set) -> SetRow:
    return SetRow(
        name=one.name,
        role="evaluation" if one.evaluates else "training",
        source=one.dataset.source if one.dataset else None,
        formatting=one.form.formatting,
        files=[str(path) for path in sets.files(one)],
        rows=one.rows.read,
        columns=columns.names(one.rows),
        note=one.note,
    )


def _notes(job: Job, run: Training, reason: str) -> Iterator[str]:
    """What keeps figures from being exact."""
    if reason:
        yield f"token counts are estimates: {reason}"
    elif not job.has("template") and job.stage != "pt":
        yield "no `template`: what the tokenizer's own chat template adds to a sample is not counted"
    if any(one.rows.approximate for one in run.sets):
        yield "descriptions and calls of tools are counted as they stand in the data, not as the template writes them"
    if _shows(run):
        yield "images, videos and audios are not counted; each adds tokens"
    if job.flag("streaming"):
        yield "streamed data are read row by row until `max_steps`; the counts are those of the files"
    yield from run.why_not


def _shows(run: Training) -> bool:
    """Whether rows hold more than text, so that their tokens alone say neither where to cut nor what a batch needs."""
    return any(one.form.columns.get(kind) for one in run.sets for kind in ("images", "videos", "audios"))


def _drops(run: Training) -> Iterator[Drop]:
    fates = run.column("fates")
    for code, rows in run.drops.most_common():
        places = [run.place(int(at)) for at in _first(run.train, fates, code)]
        yield Drop(REASONS[code], rows, places)


def _first(positions: Iterable[int], fates: Sequence[int], code: int) -> Iterator[int]:
    yield from islice((at for at in positions if fates[at] == code), _EXAMPLES)


def _tokens(job: Job, run: Training, counter: Counter, trained: Sequence[int]) -> Tokens:
    lengths, kept, answer, lost = (
        list(map(run.column(name).__getitem__, trained)) for name in ("full", "kept", "answer", "lost")
    )
    ordered = sorted(lengths)
    spread = distribution.distribution(ordered)
    positions = job.model.positions if job.model else None
    return Tokens(
        source=counter.name,
        exact=counter.exact and not any(one.rows.approximate for one in run.sets),
        mean=spread.mean,
        median=spread.median,
        p95=spread.p95,
        p99=spread.p99,
        longest=spread.longest,
        histogram=spread.histogram,
        per_epoch=sum(kept) * run.stride,
        answers_per_epoch=(sum(answer) - sum(lost)) * run.stride,
        rows_cut=sum(map(gt, lengths, kept)) * run.stride,
        tokens_cut=(sum(lengths) - sum(kept)) * run.stride,
        recommended_cutoff_len=distribution.recommended(ordered, positions) if ordered and not _shows(run) else None,
    )


def _memory(job: Job, run: Training, rows: Sequence[int]) -> Memory | None:
    """Device memory with the longest batch there is, beside `cutoff_len` as the upper bound. GiB of 2^30 bytes."""
    limit = int(job.number("cutoff_len"))
    kept = run.column("kept") if rows else ()
    most = max(map(kept.__getitem__, rows), default=0)
    longest = limit if job.packs else min(-(-most // 8) * 8, limit)
    real = replace(job, values={**job.values, "cutoff_len": longest})
    if not longest or _shows(run) or job.device_memory is None or real.device_memory is None:
        return None
    usable = job.machine.device.usable_gib if job.machine else None
    longest_gib, cutoff_gib = (round(each.expected / GIB, 2) for each in (real.device_memory, job.device_memory))
    return Memory(longest, longest_gib, cutoff_gib, usable)


def _time(job: Job, run: Training, trained: Sequence[int]) -> Duration | None:
    kept = run.column("kept")
    return None if _shows(run) else duration.duration(job, run.sequences, [kept[at] for at in trained])


def _near(
    job: Job, run: Training, first: Sequence[int], rows: int, counter: Counter, report: Report
) -> Iterator[Finding]:
    """Near duplicates within each data set among so many rows; `first` are those that are no exact duplicates."""
    start, pairs = 0, []
    for one in run.sets:
        end = start + len(one.rows)
        own = [at - start for at in first if start <= at < end]
        if own:
            signed = near.signatures(sets.files(one), sets.plan(job, one.form, counter), report)
            pairs += [(row + start, other + start) for row, other in near.duplicates(signed, own)]
        start = end
    if pairs:
        yield quality.finding("near duplicates", len(pairs), rows, quality.couples(run, pairs),
                              f"rows that share {near.THRESHOLD:.0%} of their word pairs with one before")  # fmt: skip


def _looks(wanted: bool | None, rows: int, stride: int) -> str:
    """Why near duplicates are not looked for; empty where they are."""
    if wanted is not False and stride > 1:
        return f"near duplicates are looked for among {ceiling.KEPT:,} rows at most; these are more"
    if wanted is None and rows > NEAR_ROWS:
        return f"near duplicates among {rows:,} rows take a while; --near looks for them"
    return "near duplicates were not looked for, as asked" if wanted is False else near.missing()
