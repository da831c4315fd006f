"""What a site asks of jobs: read from its file, or asked for once."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from validator.commands.say import say
from validator.submit import site as sites
from validator.submit.site import Site
from validator.write import file


def site(engine: str, named: Path | None, *, ask: bool) -> Site:
    """The settings of the file that is named, else of the usual one. Where there is none, a person is asked for
    those of SLURM, if `ask`, and they are kept; without one, jobs ask for nothing of the site's. Raises RecipeError."""
    usual = sites.default()
    if engine != "slurm" or named or (usual and usual.exists()):
        return sites.read(named)
    if not (usual and ask and sys.stdin.isatty() and sys.stderr.isatty()):
        places = f"{usual} or `--site FILE`" if usual else "`--site FILE`"
        say(f"no partition, account or set-up line is known; {places} may hold them", err=True)
        return Site()
    file.create(
        usual, sites.written(*map(_asked, ("Partition", "Account", "Set-up line, such as `source …/activate`")))
    )
    say(f"kept in {usual}; change it there", err=True)
    return sites.read(None)


def _asked(what: str) -> str:
    answer: str = click.prompt(f"{what} (none: Enter)", default="", show_default=False, err=True)
    return answer.strip()
