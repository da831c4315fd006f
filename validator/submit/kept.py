"""Jobs kept in files, which people edit."""

from __future__ import annotations

import hashlib
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.write import file

_SEAL = "# lmf-recipes writes this file anew as long as the lines above are as it wrote them: "


def keep(target: Path, text: str) -> None:
    """Write the job. A file that is there is replaced only where nobody changed it since it was written here. Raises
    RecipeError."""
    sealed = f"{text}{_SEAL}{_sum(text)}\n"
    if not target.exists():
        file.create(target, sealed)
    elif _untouched(target):
        file.replace(target, sealed)
    else:
        raise RecipeError(f"`{target}` is not as it was written here, and not overwritten; choose another name")


def _untouched(target: Path) -> bool:
    try:
        text, seal, number = target.read_text("utf-8").rpartition(_SEAL)
    except (OSError, UnicodeDecodeError):
        return False
    return bool(seal) and number.strip() == _sum(text)


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
