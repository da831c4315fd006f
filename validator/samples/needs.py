"""What a recipe for rows of a form should heed beside its keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from validator.samples.form import form
from validator.samples.guess import Guess
from validator.samples.outcome import Row


def needs(suited: Guess, rows: Iterable[Row]) -> Iterator[str]:
    """What to know of the template and the media of such rows."""
    meant = form(suited.entry)
    if meant.formatting == "openai":
        yield "formatting openai is known from LLaMA-Factory 0.9.4 on, and alone reads `tool_calls`"
        yield "rows without tools get the system prompt 'detailed thinking off' with it"
    if meant.columns.get("tools"):
        yield "calls of tools are written as `template` has them: take the model's own"
    for part in ("images", "videos", "audios"):
        if column := meant.columns.get(part):
            yield f"files in `{column}` are looked for in `media_dir` (default: `dataset_dir`)"
            yield f"`template` must be one that takes {part}"
    if any("<think>" in str(row) for row in rows):
        yield "answers hold <think>: `template` must be one that reasons, such as qwen3 or deepseekr1"
