"""`copy`: a recipe of the catalogue as the start of one's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from validator import __version__
from validator.diagnostic import RecipeError, plural
from validator.job.job import Job, resolve
from validator.job.naming import flow, stated
from validator.quoting import join
from validator.read import disk
from validator.read.disk import expanded
from validator.read.recipe import SUFFIXES, load, parse
from validator.recipes import catalogue
from validator.recipes.place import Placed, place
from validator.samples.kinds import KINDS, STAGES

if TYPE_CHECKING:
    from validator.study.own import Own

_CLOSE = "# ///"
_DATASET = re.compile(r"(?m)^dataset:.*$")
_OUTPUT = re.compile(r"(?m)^output_dir:.*$")
# Lines that speak of the data that the recipe names, in the header block and below it.
_OF_DATA = re.compile(r"(?m)^# (?:lengths|For): .*\n")
_PREDICTED = re.compile(r"(?m)^# predicted: .*\n")
_ROWS = re.compile(r"(?m)^# rows: .*$")
# Public text is streamed for so many steps; a file is read whole, once.
_STREAMED = {
    r"(?m)^streaming: .*$": "preprocessing_num_workers: 16",
    r"(?m)^max_steps: .*$": "num_train_epochs: 1.0",
    r"(?m)^val_size: 200\b": "val_size: 0.01",
}


def copy(name: str, dest: str, own: Own | None = None) -> Placed:
    """Write the recipe and what it reads to a file or folder, and the recipe that trains the adapter it starts from.
    `own` is the user's own data in place of the recipe's. A copy of another name saves its results under that name.

    Raises RecipeError rather than overwrite anything, and for data that the recipe's stage does not train."""
    source = catalogue.file(name)
    target = _target(dest, source.name)
    document = load(str(source))
    text = with_origin(document.text, source.stem)
    if target.stem != source.stem:
        text = _OUTPUT.sub(f"output_dir: saves/{target.stem}", text)
    if own is None:
        return _with_first(place(target, text, document.values), document.values)
    job = resolve(document)
    _suit(own, source.stem, job)
    own.require_media(job)
    placed = place(target, _for_own(text, target, own), document.values, own)
    return _with_first(replace(placed, notes=(*_amount(own, job), *placed.notes)), document.values)


def _for_own(text: str, target: Path, own: Own) -> str:
    """The recipe's text for the user's own data: their number of rows, and what is predicted for them."""
    text = _DATASET.sub(f"dataset: {own.name}", _OF_DATA.sub("", text))
    text = _ROWS.sub(f"# rows: {own.rows}", text)
    for written, instead in _STREAMED.items():
        text = re.sub(written, instead, text)
    job = resolve(parse(str(target), text))
    job.registry = own.registry  # no registry on the disk has them yet
    prediction = stated(job)
    return _PREDICTED.sub(f"# predicted: {flow(prediction)}\n", text) if prediction else text


def _with_first(placed: Placed, values: Mapping[str, object]) -> Placed:
    """Write the recipe that trains the adapter which this one starts from beside it, if the catalogue has one."""
    first = Path(str(values.get("adapter_name_or_path"))).name
    beside = placed.recipe.with_name(f"{first}.yaml")
    if first not in catalogue.names() or disk.kind(beside):
        return placed
    document = load(str(catalogue.file(first)))
    brought = place(beside, with_origin(document.text, first), document.values)
    note = f"train `{beside.name}` first: this recipe starts from the adapter that it saves"
    return replace(
        placed, files=(*dict.fromkeys((*placed.files, beside, *brought.files)),), notes=(note, *placed.notes)
    )


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
