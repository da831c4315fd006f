"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from validator.diagnostic import RecipeError


def create(target: Path, content: str | bytes) -> None:
    """Write a new file, with the folders it stands in. Raises RecipeError where it exists or cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part") as part:
            part.write(content if isinstance(content, bytes) else content.encode())
            part.flush()
            os.fchmod(part.fileno(), 0o666 & ~_umask())
            os.link(part.name, target)
    except OSError as err:
        why = "exists and is not overwritten; choose another name, or remove it" if target.exists() else _why(err)
        raise RecipeError(f"`{target}` {why}") from None


def replace(target: Path, text: str) -> None:
    """Write a file in place of one that is there or not; its mode stays, and a link keeps pointing to it. What cannot
    be encoded, as names of files need not be UTF-8, is written as a number. Raises RecipeError."""
    file = Path(os.path.realpath(target))
    try:
        mode = file.stat().st_mode & 0o7777 if file.exists() else 0o666 & ~_umask()
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="xmlcharrefreplace", newline="", dir=file.parent, delete=False
        ) as part:
            try:
                part.write(text)
                part.flush()
                os.fchmod(part.fileno(), mode)
                Path(part.name).replace(file)
            except BaseException:
                Path(part.name).unlink()
                raise
    except OSError as err:
        raise RecipeError(f"`{target}` {_why(err)}") from None


def _umask() -> int:
    """What the user wants new files not to allow; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _why(err: OSError) -> str:
    return f"cannot be written: {(err.strerror or str(err)).lower()}"
