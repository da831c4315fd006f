"""Checks of Ascend's software: torch_npu, the torch that it is built for, and CANN. Docs/howto/install.md says how to
install them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from validator.doctor.check_result import CheckContext, CheckResult, error, ok, warning
from validator.doctor.torch_build import vendor_of
from validator.knowledge import releases
from validator.knowledge.tables import yaml_table
from validator.machine import ascend, installed_packages
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.recipe import safe_read
from validator.run.needed_packages import INSTALL_PAGE
from validator.run.settings import RunSettings

_HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # which set_env.sh sets
_DEFAULT_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
_PIP_FOLDERS = "ascend/cann-*/set_env.sh"  # where `pip install ascend-cann-toolkit` puts it, within site-packages
_FOLDER_VERSION = re.compile(r"(\d+\.\d+\S*)$")  # after `cann-`, or alone in ascend-toolkit/
_OPERATORS_FROM = (8, 5)  # since when the operators' installer leaves ascend_ops_install.info beside the toolkit's file
_CANN_VERSION_LINE = re.compile(r"^version=(\S+)", re.MULTILINE | re.IGNORECASE)


def check_torch_npu(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """torch_npu, without which torch does not see an NPU, and the torch that it is built for.

    Yield an error if the devices are Ascend's and torch_npu is missing, or if it is built for another torch; otherwise
    the two releases. Nothing is yielded if neither the devices nor the packages are Ascend's."""
    packages = find_installed(context.site_packages).all_versions
    torch, npu = packages.get("torch", ""), packages.get("torch-npu")
    if npu is None:
        if _runs_on_ascend(run, context):
            found = "torch_npu is not installed, without which torch sees no NPU"
            yield error(found, _suitable_npu(torch), f"install it as {INSTALL_PAGE}#ascend says")
        return
    match = re.match(r"\d+\.\d+\.\d+", npu)  # the torch that it is built for
    if match and torch.partition("+")[0] != match[0]:
        remedy = f"install torch {match[0]} for CPUs, as {INSTALL_PAGE}#ascend says"
        yield error(f"torch_npu {npu} beside {f'torch {torch}' if torch else 'no torch'}", f"torch {match[0]}", remedy)
    else:
        yield ok(f"torch_npu {npu} beside torch {torch}")


def _runs_on_ascend(run: RunSettings | None, context: CheckContext) -> bool:
    return vendor_of(run, context) == "ascend" or (not (run and run.on_cpu) and ascend.has_driver())


def _suitable_npu(torch: str) -> str:
    """Return the torch_npu that was released for the installed torch, or else the set that LLaMA-Factory is released
    with."""
    table = yaml_table("together")
    pairs = table["npu"]["releases"].items()
    release = torch.partition("+")[0]
    if npu := next((npu for npu, pair in pairs if pair["torch"] == release), None):
        return f"torch_npu {npu} for torch {release}"
    packages = table["sets"]["ascend"]["packages"]
    beside = f", not {torch}" if torch else ""
    return f"torch_npu {packages['torch-npu']} with torch {packages['torch']}{beside}"


def check_cann(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """CANN, the runtime of Ascend's devices: installed, its variables set, of a release for torch_npu and the driver.

    Yield a result if the devices are Ascend's or torch_npu is installed."""
    packages = find_installed(context.site_packages)
    npu = packages.all_versions.get("torch-npu", "")
    if not npu and not _runs_on_ascend(run, context):
        return
    table = yaml_table("together")
    wanted = str(table["npu"]["releases"].get(npu.partition("+")[0], {}).get("cann", ""))
    home = next((Path(context.environment[name]) for name in _HOME_VARIABLES if context.environment.get(name)), None)
    if home is None:
        yield _without_variables(npu, wanted, packages, context)
        return
    versions = _read_versions(home)
    version = _toolkit_version(versions)
    # 8.0 of 8.0.RC3 and of 8.0.0.alpha002: releases of one series go together.
    if version and wanted and releases.release_series(version) != releases.release_series(wanted):
        remedy = "install that CANN, or the torch_npu that was released for yours"
        yield warning(f"CANN {version}", f"{wanted}, for which torch_npu {npu} was released", remedy)
    else:
        yield ok(f"CANN {version or '(release unknown)'} at {home}{f' with torch_npu {npu}' if npu else ''}")
    yield from _missing_operators(versions)
    driver, least = ascend.read_driver_release(), str(table["cann"]["driver"].get(releases.release_series(version), ""))
    is_comparable = driver and least and installed_packages.has_packaging()
    if is_comparable and not installed_packages.satisfies_range(f">={least}", driver):
        remedy = f"install that driver and firmware, as {INSTALL_PAGE}#ascend says"
        yield warning(f"driver {driver} beside CANN {version}", f"Ascend HDK {least} or later", remedy)


def _without_variables(npu: str, wanted: str, packages: InstalledPackages, context: CheckContext) -> CheckResult:
    """Return the error that CANN is not installed, or that its variables are not set: then its libraries are not found,
    and torch_npu is not imported."""
    folder = next((place for name in _DEFAULT_FOLDERS if (place := context.root / name).is_dir()), None)
    script = folder and (folder.parent if folder.name == "latest" else folder) / "set_env.sh"
    script = script or next(iter(packages.files(_PIP_FOLDERS)), None)
    if script is None:
        default = f"{yaml_table('together')['sets']['ascend']['cann']}, as LLaMA-Factory is released with"
        found = wanted or (f"the CANN that torch_npu {npu} was released for" if npu else default)
        remedy = f"install its toolkit and the operators of the device, as {INSTALL_PAGE}#ascend says"
        return error("no CANN", found, remedy)
    version = _toolkit_version(_read_versions(folder or script.parent))
    found = f"CANN {version}".strip() + " is installed, but its variables are not set"
    return error(found, _HOME_VARIABLES[0], f"source {script}")


def _read_versions(home: Path) -> Mapping[str, str]:
    """Read the releases of CANN's parts, such as toolkit and ops, from its installers' files in the folder, as
    torch_npu does (torch_npu/utils/collect_env.py). Without such files, the toolkit's is that in the folder's name."""
    versions: dict[str, str] = {}
    for file in (*sorted(home.glob("ascend_*_install.info")), *sorted(home.glob("*/ascend_*_install.info"))):
        text = ""
        with suppress(OSError):  # of another user
            text = file.read_text("utf-8", errors="replace")
        if match := _CANN_VERSION_LINE.search(text):
            versions.setdefault(file.name.removeprefix("ascend_").removesuffix("_install.info"), match[1])
    named = _FOLDER_VERSION.search(safe_read.real_path(home).name)
    return versions or ({"toolkit": named[1]} if named else {})


def _toolkit_version(versions: Mapping[str, str]) -> str:
    """Return the release of CANN's toolkit, or of the part that is there; empty if nothing tells it."""
    return versions.get("toolkit") or next(iter(versions.values()), "")


def _missing_operators(versions: Mapping[str, str]) -> Iterator[CheckResult]:
    """Yield a warning if CANN's operators are missing, which are installed by themselves, or of another series than the
    toolkit. Earlier installers do not tell of them in the same way."""
    toolkit, operators = versions.get("toolkit", ""), versions.get("ops")
    numbers = re.match(r"(\d+)\.(\d+)", toolkit)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _OPERATORS_FROM:
        return
    if operators and releases.release_series(operators) == releases.release_series(toolkit):
        return
    found = f"operators {operators}" if operators else "no operators (ascend_ops_install.info)"
    remedy = f"install those of the device, as {INSTALL_PAGE}#ascend says"
    yield warning(f"{found} beside toolkit {toolkit}", f"operators {toolkit}", remedy)
