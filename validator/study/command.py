"""The `data` command: one study, and the forms it is shown in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from validator.study import output, page, subject, text
from validator.study import study as studies
from validator.study.progress import Progress


def study(source: str, model: str | None, near: bool | None, html: str | None) -> dict[str, Any]:
    """The study of a recipe or data file; written as a page to `html`, too. Raises RecipeError."""
    if html:
        output.ready(Path(html))
    job = subject.job(source, model)
    progress = Progress(sum(found.rows.count for found in job.datasets if found.rows))
    try:
        found = studies.study(job, near, progress)
    finally:
        progress.close()
    if html:
        output.write(Path(html), page.page(found))
    return found


def as_json(found: Mapping[str, Any]) -> str:
    """For programs."""
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Mapping[str, Any]], str]] = {"text": text.text, "json": as_json}
