"""Folders of the person at the machine, who need not have a home there."""

from __future__ import annotations

import os
from pathlib import Path

from validator.read.disk import expanded


def base(variable: str, usual: str) -> Path | None:
    """The folder for a kind of files: that of the variable, else the usual one of the home; None without a home. A
    path that does not begin at the root says nothing (XDG Base Directory Specification)."""
    given = expanded(os.environ.get(variable, ""))
    folder = given if given.is_absolute() else expanded("~") / usual
    return folder if folder.is_absolute() else None
