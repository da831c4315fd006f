"""torch_npu, the torch that it is built for, and CANN."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import program
from validator.here.installed import Installed, installed
from validator.job.job import Job
from validator.tables import releases
from validator.tables.data import listing

_WHAT = "CANN"
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # which set_env.sh sets
_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
_VERSION = re.compile(r"^version=(\S+)", re.MULTILINE | re.IGNORECASE)


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Nothing on a machine without Ascend's driver."""
    there = installed(node.folders)
    if "torch-npu" not in there.releases:
        torch = there.releases.get("torch", "").partition("+")[0]
        if torch and not (job and job.on_cpu) and program.output("npu-smi", "info"):
            found = "torch_npu is not installed: torch would run on the processors"
            yield Line("error", "torch_npu", found, f"torch_npu {torch}", f'pip install "torch-npu~={torch}"')
        return
    yield from _torch(there)
    yield from _cann(there.releases["torch-npu"], node)


def _torch(there: Installed) -> Iterator[Line]:
    """The first three numbers are those of the torch that it is built for."""
    npu, torch = there.releases["torch-npu"], there.releases.get("torch", "none")
    wanted = re.match(r"\d+\.\d+\.\d+", npu)
    if wanted and torch.partition("+")[0] != wanted[0]:
        yield Line("error", "torch_npu", f"torch_npu {npu} beside torch {torch}", f"torch {wanted[0]}",
                   f"install torch {wanted[0]} for CPUs, as pytorch.org/get-started says")  # fmt: skip


def _cann(npu: str, node: Node) -> Iterator[Line]:
    wanted = str(listing("together")["npu"]["releases"].get(npu.partition("+")[0], {}).get("cann", ""))
    home = next((Path(node.environment[name]) for name in _HOMES if node.environment.get(name)), None)
    if home is None:
        folder = next((place for name in _FOLDERS if (place := node.root / name).is_dir()), None)
        yield _unset(folder, wanted or f"the CANN that torch_npu {npu} was released for")
        return
    version = _version(home)
    # 8.0 of 8.0.RC3 and of 8.0.0.alpha002: releases of one series go together.
    if version and wanted and releases.series(version) != releases.series(wanted):
        remedy = "install that CANN, or the torch_npu that was released for yours"
        yield Line("warning", _WHAT, f"CANN {version}", f"{wanted}, for which torch_npu {npu} was released", remedy)
    else:
        yield Line("ok", _WHAT, f"CANN {version or 'of an unknown release'} with torch_npu {npu}")


def _unset(folder: Path | None, wanted: str) -> Line:
    """Without CANN's variables its libraries are not found, and torch_npu cannot be imported."""
    if folder is None:
        return Line("error", _WHAT, "no CANN", wanted, "install its toolkit and the kernels of the device")
    script = (folder.parent if folder.name == "latest" else folder) / "set_env.sh"
    found = f"CANN {_version(folder)} is there, and its variables are not set"
    return Line("error", _WHAT, found, _HOMES[0], f"source {script}")


def _version(home: Path) -> str:
    """By the file that its installer leaves, which torch_npu asks, too (torch_npu/utils/collect_env.py)."""
    for pattern in ("ascend_*_install.info", "*/ascend_*_install.info"):
        for file in sorted(home.glob(pattern)):
            if match := _VERSION.search(file.read_text("utf-8", errors="replace")):
                return match[1]
    return ""
