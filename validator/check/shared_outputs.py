"""LOA015: recipes that are checked together and write to one output folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from validator.check.locate import Locations
from validator.check.other_files import sort_findings
from validator.check.suppression import is_selected
from validator.errors import RecipeError
from validator.finding import Diagnostic, FileReport, FindingOptions, OutputPlace, Place, Severity
from validator.recipe import safe_read
from validator.run.settings import RunSettings

CODE = "LOA015"
_MAX_NAMED = 2  # other recipes in a message


def output_place(run: RunSettings, locations: Locations, options: FindingOptions) -> OutputPlace | None:
    """Return the output folder of a run that trains, and where the recipe names it. None if the recipe names none or
    has no file, or if `options` leave the finding out."""
    folder = run.args.get("output_dir")
    if not is_selected(options, Diagnostic(CODE, Severity.WARNING, "")):
        return None
    if not run.task.trains or run.workspace.recipe == "-" or not isinstance(folder, str) or not folder:
        return None
    return OutputPlace(folder, *locations.position(Place(("output_dir",))))


def report_shared_outputs(files: Sequence[FileReport]) -> None:
    """Add a finding to each recipe whose output folder another of the recipes writes to, too. LLaMA-Factory goes on
    from the last checkpoint in the folder, whoever wrote it (hparams/parser.py, get_train_args)."""
    users: dict[str, dict[str, FileReport]] = {}
    for file in files:
        if file.output:
            users.setdefault(os.path.realpath(file.output.folder), {})[os.path.realpath(file.path)] = file
    for sharing in users.values():
        for file in sharing.values() if len(sharing) > 1 else ():
            others = [f"`{other.path}`" for other in sharing.values() if other is not file]
            more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
            assert file.output
            folder, line, column = file.output
            found = f"`{folder}` is the `output_dir` of {', '.join(others[:_MAX_NAMED])}{more}, too"
            text = f"{found}: the run that starts second goes on from the checkpoints of the first; set another folder"
            diagnostic = Diagnostic(CODE, Severity.WARNING, text, line, column, "output_dir")
            file.diagnostics = sort_findings([*file.diagnostics, diagnostic])
            with suppress(RecipeError):  # the line is shown then
                file.sources.setdefault(file.path, safe_read.read_text(file.path))
