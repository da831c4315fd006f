"""The file that `--html` names."""

from __future__ import annotations

from pathlib import Path

from validator.diagnostic import RecipeError
from validator.show import page


def ready(path: Path) -> None:
    """Raise RecipeError where no page can go: nothing but an earlier page of ours is ever replaced."""
    try:
        if not path.parent.is_dir():
            raise RecipeError(f"`{path}` cannot be written: there is no folder `{path.parent}`")
        if path.exists():
            require_ours(path, path.read_bytes() if path.is_file() else b"no file")
    except OSError as err:
        raise RecipeError(f"`{path}` cannot be written: {(err.strerror or str(err)).lower()}") from None


def require_ours(path: Path, content: bytes | None) -> None:
    """Raise RecipeError where a file holds something else than such a page; None: there is no file."""
    if content is not None and not page.ours(content):
        raise RecipeError(f"`{path}` exists and is not a page of this command; choose another name, or remove it")
