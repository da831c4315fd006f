"""What is found in a file and how it is reported: severities, diagnostics, reports, the one expected exception."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

Verdict = Literal["fits", "tight", "exceeds", "unknown"]


class Severity(StrEnum):
    """Error: it will fail. Warning: it runs, but not as written. Note: worth knowing, never changes the exit code."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class RecipeError(Exception):
    """An expected failure with a message for the user: what, where, what to do."""


class Diagnostic(NamedTuple):
    """One finding. `line` and `column` are 1-based; 1, 1 where the whole file is meant."""

    code: str
    severity: Severity
    message: str
    line: int = 1
    column: int = 1
    key: str | None = None
    help: str | None = None


@dataclass
class FileReport:
    """All findings of one file, and its memory verdict. `text` is the source, for carets."""

    path: str
    diagnostics: list[Diagnostic] = field(default_factory=list)
    verdict: Verdict = "unknown"
    text: str = ""

    def count(self, severity: Severity) -> int:
        """Number of findings of this severity."""
        return sum(d.severity is severity for d in self.diagnostics)


@dataclass
class Report:
    """The findings of one invocation."""

    version: str
    files: list[FileReport] = field(default_factory=list)

    def count(self, severity: Severity) -> int:
        """Number of findings of this severity in all files."""
        return sum(f.count(severity) for f in self.files)
