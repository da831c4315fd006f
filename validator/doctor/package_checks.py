"""Installed packages: those that the run needs, and releases that do not go together, by what packages ask of each
other and by what is known to fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.knowledge import node_environment, releases
from validator.knowledge.tables import yaml_table
from validator.machine import installed_packages
from validator.machine.installed_packages import InstalledPackages, find_installed, normalize_name
from validator.run.node_demand import packages_for_run, pip_requirement
from validator.run.settings import RunSettings


def check_required_packages(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line for each missing package that LLaMA-Factory would stop for, if LLaMA-Factory itself is installed."""
    if run is None:
        return
    wanted = dict(packages_for_run(run))
    there = find_installed(context.site_packages).versions(["llamafactory", *wanted])
    for package, why in wanted.items() if "llamafactory" in there else ():
        if package not in there:
            install = shell_join(["pip", "install", pip_requirement(package)])
            yield error(f"{why} needs a package that is not installed: {install}", what="package")


# What LLaMA-Factory compares on start, and stops for (extras/misc.py, check_dependencies).
_CHECK_FUNCTION = re.compile(r"def check_dependencies.*?(?=\ndef |\Z)", re.DOTALL)
_CHECK_CALL = re.compile(r'check_version\("([^"]+)"\)')
# What is named where all is well.
_SHOWN_PACKAGES = ("llamafactory", "transformers", "torch", "torch-npu", "deepspeed", "peft", "trl", "accelerate")


def check_packages(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Packages that do not go together, by what they require of each other and by what is known to fail."""
    there = find_installed(context.site_packages)
    if "llamafactory" not in there.all_versions:
        wanted = f"llamafactory {run.releases.required_pairs[0][0] if run else releases.newest_pair()[0]}"
        remedy = f"pip install {wanted.replace(' ', '==')}"
        yield result("error" if run else "warning", "llamafactory is not installed", wanted, remedy)
        return
    if not installed_packages.has_packaging():
        yield warning("releases are not compared", "packaging", "pip install packaging")
        return
    problems: list[str] = []
    with suppress(RecipeError):  # a release of somebody's own, which no range means
        problems += run.releases.excluded(there.all_versions) if run else ()
    # Each package once: as LLaMA-Factory stops for it, or as known to fail, or as another package requires it.
    faults: dict[str, CheckResult] = {}
    for name, line in (*_startup_requirements(there), *_known_failures(there), *_metadata_requirements(there)):
        faults.setdefault(name, line)
    lines = [*map(error, problems), *faults.values()]
    yield from lines
    if not any(line.state == "error" for line in lines):
        shown = (f"{name} {there.all_versions[name]}" for name in _SHOWN_PACKAGES if name in there.all_versions)
        yield ok(", ".join(shown))


def _startup_requirements(there: InstalledPackages) -> Iterator[tuple[str, CheckResult]]:
    compared = _CHECK_FUNCTION.search(there.read_file("llamafactory/extras/misc.py"))
    if compared and not node_environment.is_env_enabled("DISABLE_VERSION_CHECK"):
        for name, wanted in installed_packages.parse_requirements(_CHECK_CALL.findall(compared[0])):
            yield from _unmet_requirement(there, "llamafactory", "error", name, wanted)


def _metadata_requirements(there: InstalledPackages) -> Iterator[tuple[str, CheckResult]]:
    asked = yaml_table("together")["asked"]
    for package in (*asked["stops"], *asked["warns"]):
        # LLaMA-Factory's metadata are narrower than what it stops for.
        state: State = "error" if package in asked["stops"] and package != "llamafactory" else "warning"
        for name, wanted in installed_packages.parse_requirements(there.requirements(package)):
            yield from _unmet_requirement(there, package, state, name, wanted)


def _unmet_requirement(
    there: InstalledPackages, package: str, state: State, name: str, wanted: str
) -> Iterator[tuple[str, CheckResult]]:
    release = there.all_versions.get(normalize_name(name))
    asks = f"{package} {there.all_versions[package]} wants {name}{wanted}"
    remedy = f'pip install "{name}{wanted}"'
    if release is None and not there.has_module(name.replace("-", "_")) and package == "llamafactory":
        missing: State = "error" if normalize_name(name) in yaml_table("together")["asked"]["imported"] else state
        yield normalize_name(name), result(missing, f"{name} is not installed", asks, remedy)
    elif release is not None and not installed_packages.satisfies_range(wanted, release):
        yield normalize_name(name), result(state, f"{name} {release}", asks, remedy)


def _known_failures(there: InstalledPackages) -> Iterator[tuple[str, CheckResult]]:
    for pair in yaml_table("together")["fails"]["pairs"]:
        known = {name: there.all_versions.get(name, "") for name in (pair["what"], pair["beside"])}
        fit = zip((pair["at"], pair["of"]), known.values(), strict=True)
        if all(release and installed_packages.satisfies_range(wanted, release) for wanted, release in fit):
            first, second = (f"{name} {release}" for name, release in known.items())
            yield pair["what"], error(f"{first} beside {second}: {pair['why']}", f"not {pair['what']}{pair['at']}")
