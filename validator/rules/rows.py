"""PTH123: the entry of a data set beside the first rows of its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.diagnostic import Place, Severity
from validator.job.job import Job
from validator.rules import columns, entries
from validator.rules.rule import Finding, rule
from validator.rules.sets import At, remedied, sets, unknown

# What is wrong with an entry by itself, or beside the names of the columns, is told by these.
_BEFORE = (
    columns.ranking_against_stage,
    columns.formatting_unknown,
    columns.part_without_column,
    columns.column_absent,
    columns.tags_incomplete,
)


@rule("PTH123", Severity.ERROR)
def rows_unlike_entry(job: Job) -> Iterator[Finding]:
    """No row of the data can be trained as the registry entry describes it.

    Why: KeyError such as 'from' while the data set is converted; or every row is dropped, a warning for each: "Cannot
    find valid samples". Looked at are the first rows of a local file.
    Source: llamafactory/data/converter.py:AlpacaDatasetConverter.__call__,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__,
    llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: the entry that the message gives; `lmf-recipes data FILE --register NAME` writes it for a file.
    """
    for at, dataset in sets(job):
        rows = dataset.rows
        if rows and rows.head and not rows.problem and (why := _why(job, at, dataset.entry, rows.head)):
            shape = unknown(dataset)
            yield at(), f"`{dataset.name}`: no row can be trained: {why}{remedied(job, dataset, shape)}"


def _why(job: Job, at: At, entry: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Why no row is trained, where no other rule says it."""
    from validator.samples.outcome import reason  # for which a recipe without local data does not wait

    if any(True for _ in entries.faults(entry)):
        return ""
    why, route = reason(entry, job.stage, rows), at().route
    told = (place for each in _BEFORE for place, _ in each.check(job)) if why else ()
    return "" if any(isinstance(place, Place) and place.route[: len(route)] == route for place in told) else why
