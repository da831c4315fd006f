"""What `doctor` found, one line for each thing."""

from __future__ import annotations

from validator import printable
from validator.diagnostic import plural
from validator.doctor.examine import Diagnosis
from validator.doctor.line import Line


def text(diagnosis: Diagnosis) -> str:
    """State, what was looked at, what is there, what is wanted, what to do; a summary last, with the node's name."""
    width = max((len(line.what) for line in diagnosis.lines), default=0)
    counts = ((diagnosis.errors, "error"), (diagnosis.warnings, "warning"))
    summary = f"{diagnosis.host}: {', '.join(f'{count} {plural(count, noun)}' for count, noun in counts)}"
    return printable.lines([*(_line(line, width) for line in diagnosis.lines), summary])


def _line(line: Line, width: int) -> str:
    wanted = f"wanted: {line.wanted}" if line.wanted else ""
    return f"{line.state:<7}  {line.what:<{width}}  {'; '.join(filter(None, (line.found, wanted, line.remedy)))}"
