"""Symbolic places to files, lines and columns."""

from __future__ import annotations

from pathlib import Path

from validator.diagnostic import Diagnostic, Fix, Place, RecipeError, Related, Severity
from validator.read import place as routes
from validator.read.dialect import Position
from validator.read.recipe import Document
from validator.read.text import read_text


class Locations:
    """Resolves the places of one file's findings. `sources` are the texts that the places lie in, by the path that is
    shown: each is read once, and only where a finding lies in it."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.sources = {document.path: document.text}

    def diagnostic(
        self,
        code: str,
        severity: Severity,
        place: Place,
        message: str,
        remedy: str | None = None,
        fix: Fix | None = None,
    ) -> Diagnostic:
        """The finding at a place."""
        if place.file is None and not place.against:  # most findings, and the quick way
            return Diagnostic(code, severity, message, *self.position(place), place.key, remedy, fix=fix)
        path, related = self.path(place), self.related(place)
        return Diagnostic(code, severity, message, *self.position(place), place.key, remedy, path, related, fix)

    def path(self, place: Place) -> str | None:
        """The file, from the working directory where it lies in that; None for the one that is checked."""
        if place.file is None or Path(place.file).absolute() == Path(self._document.path).absolute():
            return None
        file, here = Path(place.file).absolute(), Path.cwd()
        return str(file.relative_to(here) if file.is_relative_to(here) else file)

    def position(self, place: Place) -> Position:
        """Line and column; the top of a file that cannot be read."""
        if place.file is None:
            return self._document.position(place.route, place.at_key)
        path = self.path(place) or self._document.path
        if path not in self.sources:
            try:
                self.sources[path] = read_text(place.file)
            except RecipeError:
                self.sources[path] = ""
        return routes.in_file(path, self.sources[path], place.route, place.at_key)

    def related(self, place: Place) -> tuple[Related, ...]:
        """Where the recipe names the file, and where it sets what the value contradicts."""
        named = {place.key: "named"} if place.key and self.path(place) else {}
        words = {**named, **{key: f"{key} set" for key in place.against}}
        positions = {key: self._document.position((key,)) for key in words}
        return tuple(
            Related(self._document.path, *position, words[key])
            for key, position in positions.items()
            if position != (1, 1)  # a default, or set on the command line
        )
