"""`lmf-recipes data`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from validator.commands import options


@click.command("data")
@click.argument("source", metavar="RECIPE|FILE")
@click.option("--model", metavar="M", help="Such as qwen3-8b; for a data file, or instead of the recipe's.")
@options.MACHINE
@click.option("--near/--no-near", default=None, help="Look for near duplicates; default: up to 200,000 rows.")
@options.FORMAT
@click.option("--html", metavar="FILE", help="Write one self-contained page, too.")
@click.option("--register", metavar="NAME", help="Write the file's entry into dataset_info.json instead.")
@click.option("--dataset-dir", metavar="DIR", help="Folder of that dataset_info.json; default: data, or beside FILE.")
def command(
    source: str,
    model: str | None,
    machine: str | None,
    near: bool | None,
    form: str,
    html: str | None,
    register: str | None,
    dataset_dir: str | None,
) -> None:
    """Show what will be trained: rows, drops, steps, lengths, quality.

    Exit code 1 where the run stops.
    """
    from validator.recipes.named import named
    from validator.show import data, output, page, structure  # with numpy, which --help does not wait for
    from validator.study.inquiry import study

    if register is not None:
        _register(source, register, dataset_dir, form)
        return
    if html:
        output.ready(Path(html))
    path, overrides = named(source)
    studied = study(path, model, near, overrides, machine)
    try:
        if html:
            # Names of files need not be UTF-8; a page shows such characters as numbers.
            _write(Path(html), page.page(studied).encode("utf-8", "xmlcharrefreplace"))
    finally:  # what took minutes is shown, also where the page finds no room
        click.echo(structure.text(studied) if form == "json" else data.text(studied), nl=False)
    sys.exit(1 if studied.problems else 0)


def _write(path: Path, content: bytes) -> None:
    from validator.show import output
    from validator.write import file

    def anew(before: bytes | None) -> bytes:
        output.require_ours(path, before)
        return content

    file.edit(path, anew)


def _register(source: str, name: str, dataset_dir: str | None, form: str) -> None:
    from validator.show import registered, structure
    from validator.study import registering

    done = registering.register(Path(source), name, Path(dataset_dir) if dataset_dir else None)
    click.echo(structure.text(done) if form == "json" else registered.text(done), nl=False)
