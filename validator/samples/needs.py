"""What a recipe for rows of a form should heed beside its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator.samples.form import form
from validator.samples.guess import Guess
from validator.samples.media import MARKS, miscounted
from validator.samples.names import LABELS, PAIRS
from validator.samples.outcome import Row, turns

# Text of so many words is more than a name or an address.
_WORDS = 4


def needs(suited: Guess, rows: Sequence[Row]) -> Iterator[str]:
    """What to know of the template and the media of such rows."""
    meant, text = form(suited.entry), "\n".join(map(str, rows))
    if meant.formatting == "openai":
        yield "formatting openai is known from LLaMA-Factory 0.9.4 on, and alone reads `tool_calls`"
        yield "rows without tools get the system prompt 'detailed thinking off' with it"
    if meant.columns.get("tools"):
        yield "calls of tools are written as `template` has them: take the model's own"
    if unused := [*_unused(suited, rows)]:
        yield f"not used: {', '.join(f'`{name}`' for name in unused)}"
    for part, mark in MARKS.items():
        if column := meant.columns.get(part):
            yield f"files in `{column}` are looked for in `media_dir` (default: `dataset_dir`)"
            if why := miscounted(suited.entry, suited.stage, rows, part):
                yield f"{why}: LLaMA-Factory stops"
        elif mark in text:  # llamafactory/data/mm_plugin.py:_validate_messages
            yield f"the rows hold {mark} and no column `{part}`: a template that takes {part} stops the run there"
    if "<think>" in text:
        yield "answers hold <think>: `template` must be one that reasons, such as qwen3 or deepseekr1"


def templates(suited: Guess) -> Iterator[str]:
    """What the template of a recipe for such rows must be able to do."""
    meant = form(suited.entry)
    yield from (f"`template` must be one that takes {part}" for part in MARKS if meant.columns.get(part))


def _unused(suited: Guess, rows: Sequence[Row]) -> Iterator[str]:
    """Columns with lists, sentences or labels that the entry leaves out; beside plain text they tell of it."""
    meant = form(suited.entry)
    used = meant.columns.values()
    if any(turn.get("reasoning_content") for turn in turns(meant, rows)):
        yield "reasoning_content"
    labels = {*LABELS, *(side for pair in PAIRS for side in pair)}
    for name in dict.fromkeys(name for row in rows for name in row) if suited.stage != "pt" else ():
        held = (row[name] for row in rows if row.get(name) not in (None, "", []))
        if name not in used and any(str(name).lower() in labels or _weighs(value) for value in held):
            yield name


def _weighs(value: object) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and len(value.split()) >= _WORDS)
