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

    def anew(before: bytes | None) -> str:
        if before is not None and not _untouched(before):
            raise RecipeError(f"`{target}` is not as it was written here, and not overwritten; choose another name")
        return f"{text}{_SEAL}{_sum(text)}\n"

    file.folder(target.parent)
    file.edit(target, anew)


def _untouched(data: bytes) -> bool:
    try:
        text, seal, number = data.decode().rpartition(_SEAL)
    except UnicodeDecodeError:
        return False
    return bool(seal) and number.strip() == _sum(text)


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
