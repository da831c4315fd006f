"""torch_npu, the torch that it is built for, and CANN."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from validator.doctor.check_result import CheckContext, CheckResult
from validator.knowledge import releases
from validator.knowledge.tables import yaml_table
from validator.machine import driver
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.run.settings import RunSettings

_CANN = "CANN"
_HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # which set_env.sh sets
_DEFAULT_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
_VERSION_LINE = re.compile(r"^version=(\S+)", re.MULTILINE | re.IGNORECASE)


def check_cann(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """torch_npu, the torch that it is built for, and CANN.

    Nothing on a machine without Ascend's driver.
    """
    there = find_installed(context.site_packages)
    if "torch-npu" not in there.all_versions:
        torch = there.all_versions.get("torch", "").partition("+")[0]
        if torch and not (run and run.on_cpu) and driver.run_tool("npu-smi", "info"):
            found = "torch_npu is not installed: torch would run on the processors"
            yield CheckResult("error", "torch_npu", found, f"torch_npu {torch}", f'pip install "torch-npu~={torch}"')
        return
    yield from _check_torch_npu(there)
    yield from _check_cann_release(there.all_versions["torch-npu"], context)


def _check_torch_npu(there: InstalledPackages) -> Iterator[CheckResult]:
    """Check torch against torch_npu, whose first three numbers are those of the torch that it is built for."""
    npu, torch = there.all_versions["torch-npu"], there.all_versions.get("torch", "none")
    wanted = re.match(r"\d+\.\d+\.\d+", npu)
    if wanted and torch.partition("+")[0] != wanted[0]:
        remedy = f"install torch {wanted[0]} for CPUs, as pytorch.org/get-started says"
        yield CheckResult("error", "torch_npu", f"torch_npu {npu} beside torch {torch}", f"torch {wanted[0]}", remedy)


def _check_cann_release(npu: str, context: CheckContext) -> Iterator[CheckResult]:
    wanted = str(yaml_table("together")["npu"]["releases"].get(npu.partition("+")[0], {}).get("cann", ""))
    home = next((Path(context.environment[name]) for name in _HOME_VARIABLES if context.environment.get(name)), None)
    if home is None:
        folder = next((place for name in _DEFAULT_FOLDERS if (place := context.root / name).is_dir()), None)
        yield _missing_variables(folder, wanted or f"the CANN that torch_npu {npu} was released for")
        return
    version = _read_version(home)
    # 8.0 of 8.0.RC3 and of 8.0.0.alpha002: releases of one series go together.
    if version and wanted and releases.release_series(version) != releases.release_series(wanted):
        remedy = "install that CANN, or the torch_npu that was released for yours"
        released = f"{wanted}, for which torch_npu {npu} was released"
        yield CheckResult("warning", _CANN, f"CANN {version}", released, remedy)
    else:
        yield CheckResult("ok", _CANN, f"CANN {version or 'of an unknown release'} with torch_npu {npu}")


def _missing_variables(folder: Path | None, wanted: str) -> CheckResult:
    """Return the error for missing variables of CANN: its libraries are not found, and torch_npu is not imported."""
    if folder is None:
        return CheckResult("error", _CANN, "no CANN", wanted, "install its toolkit and the kernels of the device")
    script = (folder.parent if folder.name == "latest" else folder) / "set_env.sh"
    found = f"CANN {_read_version(folder)} is there, and its variables are not set"
    return CheckResult("error", _CANN, found, _HOME_VARIABLES[0], f"source {script}")


def _read_version(home: Path) -> str:
    """Read CANN's version from its installer's file, as torch_npu does (torch_npu/utils/collect_env.py)."""
    for pattern in ("ascend_*_install.info", "*/ascend_*_install.info"):
        for file in sorted(home.glob(pattern)):
            if match := _VERSION_LINE.search(file.read_text("utf-8", errors="replace")):
                return match[1]
    return ""
