"""Growing inputs: what each kind of file of 1 MiB costs each command that reads it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from robustness.report import Answer, Row, answer
from support.growing import GROUPS, RECIPE, Kind

_SIZE, _MOST = 1 << 20, 2.0  # bytes; seconds of a processor
COMMANDS = (
    ("check",),
    ("check", "--diff", "--unsafe-fixes"),
    ("explain",),
    ("train", "--dry-run"),
    ("diff", RECIPE),
)


def rows() -> Iterator[Row]:
    """A row for each group of kinds: its worst answer to any of the commands."""
    for group, kinds in GROUPS.items():
        answers = [answered for kind in kinds.values() for answered in _answers(kind)]
        yield Row(
            f"{group}: {len(kinds)} kinds of 1 MiB, {len(COMMANDS)} commands",
            "an answer within 2 s of a processor",
            len(answers),
            sum(each.seconds > _MOST or each.code not in (0, 1) for each in answers),
            max(each.seconds for each in answers),
            max(each.mebibytes for each in answers),
        )


def _answers(kind: Kind) -> Iterator[Answer]:
    with tempfile.TemporaryDirectory() as name:
        path = kind.write(Path(name), _SIZE)
        # A DeepSpeed file by itself can only be checked.
        for words in COMMANDS if path.suffix == ".yaml" else COMMANDS[:1]:
            yield answer([*words, path.name], cwd=path.parent)
