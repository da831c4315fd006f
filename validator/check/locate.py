"""From the place that a rule knows to a file, line and column.

Of files outside of the repository that is checked nothing is quoted: findings in them get general words."""

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
    """Return the finding in general words: the first line of its manual page."""
    words = all_rules.rule_page(code).violation.rstrip(".")
    start = words[0].lower() if words.partition(" ")[0].istitle() else words[0]
    return f"{start}{words[1:]}; what stands in files outside of this repository is not shown"


def report_without_quotes(report: FileReport) -> FileReport:
    """Return the report of a link to a file outside: what is wrong and where, without a line or a value of the file."""
    found = [each._replace(message=general_message(each.code), key=None, fix=None) for each in report.diagnostics]
    gaps = tuple(NotJudged(gap.summary, gap.summary, gap.code) for gap in report.unjudged)
    return FileReport(report.path, found, report.verdict, unjudged=gaps)


class Locations:
    """Resolves the places of one file's findings. `sources` are the texts in which the places lie, by the path that is
    shown; each is read once, and only if a finding lies in it. `guarded`: nothing is quoted of files outside of the
    repository."""

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
        """Return the finding at a place."""
        if (
            place.quotes_file is None and place.file is None and not place.conflicts_with
        ):  # most findings, and the quick way
            return Diagnostic(code, severity, message, *self.position(place), place.key, remedy, fix=fix)
        if not self._quotes(place.file, place.quotes_file):
            message, fix = general_message(code), None
        path, related = self.path(place), self.related(place)
        return Diagnostic(code, severity, message, *self.position(place), place.key, remedy, path, related, fix)

    def path(self, place: Place) -> str | None:
        """Return the file, from the working directory if it lies in that; None for the file that is checked."""
        if place.file is None or Path(place.file).absolute() == Path(self._document.path).absolute():
            return None
        return str(relative_to_cwd(Path(place.file)))

    def position(self, place: Place) -> Position:
        """Return line and column; the top of a file that cannot be read."""
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
        """True if all of the files may be quoted."""
        return not self._guarded or all(
            known_folders.is_in_repository(file, self._document.path) for file in files if file
        )

    def related(self, place: Place) -> tuple[Related, ...]:
        """Return where the recipe names the file, and where it sets the keys that the value contradicts."""
        named = {place.key: "named"} if place.key and self.path(place) else {}
        words = {**named, **{key: f"{key} set" for key in place.conflicts_with}}
        positions = {key: self._document.position((key,)) for key in words}
        return tuple(
            Related(self._document.path, *position, words[key])
            for key, position in positions.items()
            if position != (1, 1)  # a default, or set on the command line
        )
