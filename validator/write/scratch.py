"""A folder for a while."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from validator.diagnostic import RecipeError


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, which is removed with the block, as far as it can be. Raises RecipeError where there is none
    to be had."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="lmf-recipes-", ignore_cleanup_errors=True)
    except OSError as err:
        why = (err.strerror or str(err)).lower()
        raise RecipeError(f"no temporary folder can be made: {why}; TMPDIR names another place") from None
    with folder as place:
        yield Path(place)
