"""Findings and reports: a finding has a severity, a place, a message and, if there is a definite one, a fix.

Rules know a `Place` (a route of keys in a file); a `Diagnostic` has line and column. A `FileReport` holds the
diagnostics and the memory verdict of one file, a `Report` those of one invocation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

Verdict = Literal["fits", "tight", "exceeds", "unknown"]


class Severity(StrEnum):
    """Error: it will fail. Warning: it runs, but not as written. Note: worth knowing, never changes the exit code."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


PathSeverity = Literal["error", "note"]


class FindingOptions(NamedTuple):
    """Options that choose the findings to show.

    `select`, `ignore`: rule codes or their beginnings; an empty `select` selects all codes, and `ignore` wins over
    `select`. `pedantic`: also notes on what is fine as it is. `paths`: the severity of a path that may exist on the
    training machine alone. `path_prefixes`: folders of the training machine, whose paths are taken to exist; None
    if the run starts on this machine. `strict`: codes, or beginnings of codes, of warnings that fail a check as errors
    do; True means all."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    pedantic: bool = False
    paths: PathSeverity = "error"
    path_prefixes: tuple[str, ...] | None = ()
    strict: bool | tuple[str, ...] = False


USUAL_FINDINGS = FindingOptions()


class Place(NamedTuple):
    """The place of a fault as rules know it. `route` are the keys and indices that lead to it in `file`; None is the
    recipe with its header block. `key` is the recipe's key to blame, such as the one that names the file. `at_key`: the
    key at the end of the route is wrong, not its value. `conflicts_with` are keys of the recipe that contradict the
    value. `quotes_file` is a further file that the message may quote."""

    route: tuple[str | int, ...] = ()
    file: str | None = None
    key: str | None = None
    at_key: bool = False
    conflicts_with: tuple[str, ...] = ()
    quotes_file: str | None = None


class Edit(NamedTuple):
    """A change of one key at the top level of a recipe: rename it to `to`, set it to `to`, or remove it."""

    do: Literal["rename", "set", "remove"]
    key: str
    to: str | float | bool | tuple[str, ...] | None = None


class Fix(NamedTuple):
    """Edits that remove a finding. `safe`: the edits do not change what is trained, or the recipe was refused
    before."""

    edits: tuple[Edit, ...]
    safe: bool = True


class Related(NamedTuple):
    """A place in another file that belongs to a finding. `message` says how: "named", or the key that is set there.
    Line and column are 1-based."""

    path: str
    line: int
    column: int
    message: str


class Diagnostic(NamedTuple):
    """One finding. `line` and `column` are 1-based, and 1, 1 if the finding is about the whole file. `path` is the file
    of the fault, None for the checked file itself. `key` is the recipe's key to blame. `fix` is what `check --fix`
    would change."""

    code: str
    severity: Severity
    message: str
    line: int = 1
    column: int = 1
    key: str | None = None
    help: str | None = None
    path: str | None = None
    related: tuple[Related, ...] = ()
    fix: Fix | None = None


class ManualPage(NamedTuple):
    """The manual page of a code. `name` is a word for programs, `violation` one sentence, `text` the whole page."""

    name: str
    severity: Severity
    violation: str
    why: str
    fix: str
    text: str


class NotJudged(NamedTuple):
    """A reason why memory was not judged: a summary in a few words, which many files can share, and the reason for this
    file. `code` is the code of a finding that also states it."""

    summary: str
    reason: str
    code: str = ""


class OutputPlace(NamedTuple):
    """The output folder of a recipe, as written there, and the line and column of the value."""

    folder: str
    line: int
    column: int


class Assumption(NamedTuple):
    """Something that the verdict on memory takes for granted and that could be otherwise. `assumed`: the value that is
    taken; None if none is. `turns_at`: the value that would turn the verdict: of `length` the most tokens of a sample
    with which the run fits (or keeps its verdict), of `pictures` the most pictures of a sample, of `release` a release
    of transformers with another verdict, of `host_memory` the GiB of a node from which the run fits. `text`: both in
    words. `code`: the code of the finding that also states it; empty if none does."""

    about: Literal["length", "pictures", "release", "host_memory"]
    assumed: float | str | None
    turns_at: float | str
    text: str
    code: str = ""


@dataclass(eq=False)
class FileReport:
    """All findings of one file, and its memory verdict. `enough_for_tokens`: device memory is expected to suffice if no
    sample is longer, and it is not known whether one is; None if it suffices or does not whatever the length.
    `assumes`: what the verdict takes for granted. `sources` are the texts of the files that findings lie in, by
    path. `overrides` are the words of the command line that set keys of the recipe, by key. `unjudged` are reasons why
    memory was not judged. `fixed` are findings that `--fix` removed; `not_fixed` are those that it left, with the
    reason. `kind` is what the file is by what it holds: recipe, deepspeed, accelerate, registry, another key of
    data/file_kinds.yaml, or unknown. `output` is the folder to which a recipe that trains writes.
    `strict`: the codes of warnings that fail the check, as in FindingOptions."""

    path: str
    diagnostics: list[Diagnostic] = field(default_factory=list)
    verdict: Verdict = "unknown"
    sources: dict[str, str] = field(default_factory=dict)
    unjudged: tuple[NotJudged, ...] = ()
    fixed: list[Diagnostic] = field(default_factory=list)
    not_fixed: list[tuple[Diagnostic, str]] = field(default_factory=list)
    kind: str = "recipe"
    overrides: Mapping[str, str] = field(default_factory=dict)
    output: OutputPlace | None = None
    enough_for_tokens: int | None = None
    assumes: tuple[Assumption, ...] = ()
    strict: bool | tuple[str, ...] = False

    def count(self, severity: Severity) -> int:
        """Return the number of findings of this severity."""
        return sum(d.severity is severity for d in self.diagnostics)

    def raise_strict_warnings(self) -> None:
        """Make errors of the warnings that `strict` names, so that every output format agrees with the exit code."""
        codes = ("",) if self.strict is True else self.strict or ()
        for at, each in enumerate(self.diagnostics):
            if each.severity is Severity.WARNING and each.code.startswith(codes):
                self.diagnostics[at] = each._replace(severity=Severity.ERROR)


@dataclass(eq=False)
class Report:
    """The findings of one invocation. `pages` are the manual pages of their codes, for formats that show them."""

    version: str
    files: list[FileReport] = field(default_factory=list)
    pages: dict[str, ManualPage] = field(default_factory=dict)

    def count(self, severity: Severity) -> int:
        """Return the number of findings of this severity in all files."""
        return sum(f.count(severity) for f in self.files)

    def codes(self) -> set[str]:
        """Return the codes of all findings."""
        return {diagnostic.code for file in self.files for diagnostic in file.diagnostics}
