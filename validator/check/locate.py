"""Locates findings: turns the place that a rule names into a file, line and column. Nothing is quoted from files
outside of the repository that is checked; findings in these files get a general message."""

from __future__ import annotations

from pathlib import Path

from validator.errors import RecipeError
from validator.finding import Diagnostic, FileReport, Fix, NotJudged, Place, Related, Severity
from validator.recipe import known_folders
from validator.recipe import places as routes
from validator.recipe.omegaconf import Position
from validator.recipe.recipe_file import Document
from validator.recipe.safe_read import read_text
from validator.rules import all_rules
from validator.wording import relative_to_cwd


def general_message(code: str) -> str:
    """Return a message about a finding that quotes nothing from the user's files. It is made of the first line of the
    manual page of the rule `code`."""
    words = all_rules.rule_page(code).violation.rstrip(".")
    start = words[0].lower() if words.partition(" ")[0].istitle() else words[0]
    return f"{start}{words[1:]}; what stands in files outside of this repository is not shown"


def report_without_quotes(report: FileReport) -> FileReport:
    """Return the report of a checked file that lies outside of the repository. General messages replace the messages,
    because they may quote the file, and fixes are left out. Codes and positions stay."""
    found = [each._replace(message=general_message(each.code), key=None, fix=None) for each in report.diagnostics]
    gaps = tuple(NotJudged(gap.summary, gap.summary, gap.code) for gap in report.unjudged)
    return FileReport(report.path, found, report.verdict, unjudged=gaps, kind=report.kind)


class Locations:
    """Turns the places that rules name into files, lines and columns, for the findings of one checked file. `sources`:
    texts of the files in which findings lie, by path; each file is read only if a finding lies in it. `guarded`: quote
    nothing from files outside of the repository."""

    def __init__(self, document: Document, guarded: bool = True) -> None:
        self._document, self._guarded = document, guarded
        self._texts: dict[str, str] = {}
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
        """Return a finding with the file, line and column of its place. If the message may quote a file that must not
        be quoted, a general message replaces it."""
        if (
            place.quotes_file is None and place.file is None and not place.conflicts_with
        ):  # most findings, and the quick way
            return Diagnostic(code, severity, message, *self.position(place), place.key, remedy, fix=fix)
        if not self._quotes(place.file, place.quotes_file):
            message, fix = general_message(code), None
        path, related = self.path(place), self.related(place)
        return Diagnostic(code, severity, message, *self.position(place), place.key, remedy, path, related, fix)

    def path(self, place: Place) -> str | None:
        """Return the path of the place's file for messages, relative to the working directory if the file lies below
        it; None if the place is in the checked file itself."""
        if place.file is None or Path(place.file).absolute() == Path(self._document.path).absolute():
            return None
        return str(relative_to_cwd(Path(place.file)))

    def position(self, place: Place) -> Position:
        """Return the line and column of a place; (1, 1) in a file that cannot be read."""
        if place.file is None:
            return self._document.position(place.route, place.at_key)
        path = self.path(place)
        text = self._document.text if path is None else self._text(path, place.file)
        return routes.place_in_file(path or self._document.path, text, place.route, place.at_key)

    def _text(self, path: str, file: str) -> str:
        if path not in self._texts:
            try:
                self._texts[path] = read_text(file)
            except RecipeError:
                self._texts[path] = ""
            if self._quotes(file):
                self.sources[path] = self._texts[path]
        return self._texts[path]

    def _quotes(self, *files: str | None) -> bool:
        """True if messages may quote all of these files. None in place of a path stands for the checked file."""
        return not self._guarded or all(
            known_folders.is_in_repository(file, self._document.path) for file in files if file
        )

    def related(self, place: Place) -> tuple[Related, ...]:
        """Return further positions in the recipe to show with a finding: the key that names the file in which the
        finding lies, and the keys that contradict the value at the place. A key that the recipe does not contain has no
        position."""
        words_of_key = {place.key: "named"} if place.key and self.path(place) else {}
        words = {**words_of_key, **{key: f"{key} set" for key in place.conflicts_with}}
        positions = {key: self._document.position((key,)) for key in words}
        return tuple(
            Related(self._document.path, *position, words[key])
            for key, position in positions.items()
            if position != (1, 1)  # a default, or set on the command line
        )
