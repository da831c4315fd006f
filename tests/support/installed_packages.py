"""Folders of installed packages: the metadata that importlib.metadata reads, and the files that checks read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def site(
    folder: Path,
    packages: Mapping[str, Any],
    requires: Mapping[str, Sequence[str]] | None = None,
    files: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """A folder that holds these releases; `requires` are requirements by package, `files` further files. A torch with a
    local version has the version.py of its kind."""
    for name, release in packages.items():
        info = folder / f"{name.replace('-', '_')}-{release}.dist-info"
        info.mkdir(parents=True)
        asked = "".join(f"Requires-Dist: {one}\n" for one in (requires or {}).get(name, ()))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n{asked}")
        if name == "torch":
            write(folder / "torch/version.py", version_file(str(release)))
    for path, text in (files or {}).items():
        write(folder / path, text)
    return (str(folder),)


def version_file(release: str) -> str:
    """torch/version.py, as its builds write it."""
    tag = re.search(r"\+cu(\d+)(\d)$", release)
    cuda = f"'{tag[1]}.{tag[2]}'" if tag else "None"
    return f"__version__ = '{release}'\ndebug = False\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = None\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def gpu(folder: Path, driver: str, capabilities: Sequence[float]) -> None:
    """A folder for PATH whose nvidia-smi answers what the driver and the compute capabilities are."""
    rows = "".join(f"{driver}, {one}\\n" for one in capabilities)
    script = f'#!/bin/sh\ncase "$1" in --query-gpu=driver_version,compute_cap) printf "{rows}" ;; esac\n'
    write(folder / "nvidia-smi", script)
    (folder / "nvidia-smi").chmod(0o755)
