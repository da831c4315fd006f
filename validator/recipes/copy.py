"""`copy`: a recipe of the catalogue as the start of one's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from validator import __version__
from validator.diagnostic import RecipeError, plural
from validator.job.job import Job, resolve
from validator.quoting import join
from validator.read import disk
from validator.read.disk import expanded
from validator.read.recipe import SUFFIXES, load
from validator.recipes import catalogue
from validator.recipes.place import Placed, place
from validator.samples.kinds import KINDS, STAGES

if TYPE_CHECKING:
    from validator.study.own import Own

_CLOSE = "# ///"
_DATASET = re.compile(r"(?m)^dataset:.*$")


def copy(name: str, dest: str, own: Own | None = None) -> Placed:
    """Write the recipe and what it reads to a file or folder; `own` is the user's own data in place of the recipe's.

    Raises RecipeError rather than overwrite anything, and for data that the recipe's stage does not train."""
    source = catalogue.file(name)
    target = _target(dest, source.name)
    document = load(str(source))
    text = with_origin(document.text, source.stem)
    if own is None:
        return place(target, text, document.values)
    job = resolve(document)
    _suit(own, source.stem, job)
    own.require_media(job)
    placed = place(target, _DATASET.sub(f"dataset: {own.name}", text), document.values, own)
    return replace(placed, notes=(*_amount(own, job), *placed.notes))


def _suit(own: Own, name: str, job: Job) -> None:
    """Raise RecipeError where the recipe trains another kind of rows; with the recipe that does, or how to get one."""
    wanted = own.form.stage
    if job.stage in STAGES[wanted]:
        return
    other = name.removesuffix(f"-{job.stage}") + ("" if wanted == "sft" else f"-{wanted}")
    options = ["--model", job.model_name, "--machine", job.header.get("machine"), "--data", own.path]
    way = f"copy `{other}`" if other in catalogue.names() else f"`{_command('plan', *options, '--write', 'FILE.yaml')}`"
    raise RecipeError(f"`{own.path}` holds {KINDS[wanted]}, which stage {job.stage} of `{name}` does not train; {way}")


def _amount(own: Own, job: Job) -> Iterator[str]:
    """How many rows there are beside how many the header states, and whose number that is."""
    if job.samples and own.rows < job.samples:
        rows = f"{own.rows:,} {plural(own.rows, 'row')}"
        whose = job.guidance.whose(job.samples) if job.guidance else None
        yield f"`{own}` holds {rows}, the recipe is made for {job.samples:,}{f', {whose}' if whose else ''}"


def _command(*words: object) -> str:
    return join(["lmf-recipes", *map(str, words)])


def with_origin(text: str, name: str) -> str:
    """The recipe's text, with its origin and version in the header block."""
    lines = [line for line in text.splitlines() if not line.startswith("# origin:")]
    lines.insert(lines.index(_CLOSE), f"# origin: {name} of llamafactory-recipes {__version__}")
    return "\n".join(lines) + "\n"


def _target(dest: str, name: str) -> Path:
    path = expanded(dest)
    if disk.kind(path) == "folder" or path.suffix not in SUFFIXES:
        return path / name
    return path
