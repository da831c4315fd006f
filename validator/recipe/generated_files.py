"""Files that lmf-recipes generates and people may edit. A generated file ends with a checksum, and is replaced only
while nobody has changed the lines above it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from validator.recipe import atomic_write

_CHECKSUM_LINE = "# lmf-recipes writes this file anew as long as the lines above are as it wrote them: "


def write_generated(target: Path, text: str) -> None:
    """Write the job. A file that is there is replaced only where nobody changed it since it was written here. Raises
    RecipeError."""
    atomic_write.make_folder(target.parent)
    sealed = f"{text}{_CHECKSUM_LINE}{_checksum(text)}\n"
    edited = "is not as it was written here, and not overwritten; choose another name"
    atomic_write.replace_own_file(target, sealed, _is_untouched, edited)


def _is_untouched(data: bytes) -> bool:
    try:
        text, seal, number = data.decode().rpartition(_CHECKSUM_LINE)
    except UnicodeDecodeError:
        return False
    return bool(seal) and number.strip() == _checksum(text)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
