"""What `data --register` has written, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator

from validator import printable
from validator.samples.remedy import written
from validator.study.registering import Registration


def text(done: Registration) -> str:
    """The entry, rows that are of another form, the keys for the recipe and the next command as lines of text."""
    return printable.lines(_lines(done))


def _lines(done: Registration) -> Iterator[str]:
    yield f"{done.path}: {'added' if done.added else 'holds already'} {written(done.name, done.entry)}"
    for drop in done.drops:
        share = f"{drop.rows:,} of {done.rows:,} rows {'is' if drop.rows == 1 else 'are'}"
        yield f"warning: {share} not trained: {drop.reason} ({', '.join(drop.examples)})"
    yield "in the recipe:"
    yield from (f"  {key}: {value}" for key, value in done.settings.items())
    yield from (f"note: {note}" for note in done.notes)
    yield "then, with that recipe: lmf-recipes data RECIPE"
