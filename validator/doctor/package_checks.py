"""Checks of the installed packages: packages that the run needs, releases that other packages' requirements exclude,
and pairs of releases that are known to fail together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.doctor.torch_build import vendor_of
from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.knowledge import node_environment, releases
from validator.knowledge.chat_templates import registering_factories
from validator.knowledge.tables import yaml_table
from validator.launch.local_launch import missing_requirements
from validator.machine import installed_packages
from validator.machine.installed_packages import InstalledPackages, find_installed, normalize_name
from validator.run import needed_packages
from validator.run.broken_run import broken_for_run
from validator.run.model_release import loading_problem, loading_releases, model_types, no_release_clause
from validator.run.needed_packages import NeededPackage, pip_requirement
from validator.run.settings import RunSettings


def check_required_packages(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line for each package that a setting of the recipe asks for and that is there, and one for each setting
    whose packages are not installed, or are of a release that is refused: an error if the run would stop, a warning if
    it would go on without what the setting asks for. Nothing is yielded if LLaMA-Factory itself is not installed."""
    packages = find_installed(context.site_packages)
    needed = list(needed_packages.needed_packages(run)) if run else []
    versions = packages.versions(["llamafactory", *(each.package for each in needed)])
    if run is None or "llamafactory" not in versions:
        return
    missing: dict[str, list[NeededPackage]] = {}
    for each in needed:
        if each.package == "bitsandbytes" and _quantizes_on_npu(run):
            continue  # check_npu_quantization tells of it
        if not _is_installed(each, versions, packages):
            missing.setdefault(each.why, []).append(each)
        elif each.package in versions:
            yield _installed_line(each, versions[each.package], run)
    for why, packages_of_setting in missing.items():
        yield _missing_line(why, packages_of_setting, versions, run)


def _installed_line(needed: NeededPackage, release: str, run: RunSettings) -> CheckResult:
    """Return the line for a package that is there: a warning if it is of a release that neither LLaMA-Factory is made
    for nor the header block names."""
    suitable = needed_packages.suitable_releases(needed.package)
    admitted = (suitable, run.declared.packages.get(needed.package, ""))
    if needed.package in releases.ENGINE_FIELDS:
        admitted = (suitable, run.releases.pip_range(needed.package))
    comparable = installed_packages.has_packaging() and suitable
    if comparable and not any(each and installed_packages.satisfies_range(each, release) for each in admitted):
        wanted = f"{needed.package}{suitable}"
        remedy = shell_join(["pip", "install", wanted])
        return warning(
            f"{needed.package} {release}", f"{wanted}, which LLaMA-Factory is made for", remedy, what="package"
        )
    return ok(f"{needed.package} {release}, for {needed.why}", what="package")


def _is_installed(needed: NeededPackage, versions: Mapping[str, str], packages: InstalledPackages) -> bool:
    """True if the package is installed in a release that is taken, or a module that stands for it."""
    release = versions.get(needed.package)
    if release is None:
        return bool(needed.module) and packages.has_module(needed.module)
    comparable = installed_packages.has_packaging() and not needed.install
    return not comparable or installed_packages.satisfies_range(needed.range, release)


def _missing_line(
    why: str, missing: Sequence[NeededPackage], versions: Mapping[str, str], run: RunSettings
) -> CheckResult:
    """Return the line for one setting (`why`): the packages that it lacks, when the run ends, and how to get them."""
    several = "packages that are" if len(missing) > 1 else "a package that is"
    old = ", ".join(f"{each.package} {versions[each.package]}" for each in missing if each.package in versions)
    found = f"{why} needs another release than {old}" if old else f"{why} needs {several} not installed"
    state: State = "warning" if missing[0].dies == needed_packages.NEVER else "error"
    install = shell_join(["pip", "install", *(pip_requirement(each, run) for each in missing)])
    without = "; without it the run goes on, as if nothing was asked for" if state == "warning" else ""
    return result(state, f"{found}: {missing[0].install or install}{without}", what="package")


def check_model_support(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield an error if the installed releases cannot train the recipe's model: transformers does not know its type, or
    LLaMA-Factory finds no class for it, or has no template of this name, or they are known to fail with it. Yield a
    warning if they are known to lose a part of it. Nothing is yielded if LLaMA-Factory or transformers is not
    installed."""
    if run is None:
        return
    versions = find_installed(context.site_packages).versions([*releases.RELEASE_FIELDS, "torch"])
    if not versions.keys() >= {*releases.RELEASE_FIELDS}:
        return
    factory, kinds = versions["llamafactory"], model_types(run)
    broken = broken_for_run(run, kinds)
    found = loading_releases(kinds, [factory, *releases.known_factories()], broken) if kinds else None
    remedy = found.pip_command(found.factory != factory) if found else no_release_clause(kinds)
    if kinds and (problem := loading_problem(kinds, (factory, versions["transformers"]))):
        yield error(f"{problem}: {remedy}", what="model")
    for each in broken:
        if each.admits(versions):
            name = next(iter(each.releases))
            state: State = "warning" if each.effect == "loses" else "error"
            yield result(state, f"{name} {versions[name]} {each.what}: {each.instead or remedy}", what="model")
    template = str(run.args.get("template"))
    having = registering_factories(template)
    if having and factory in releases.known_factories() and factory not in having:
        install = f"pip install llamafactory=={having[0]}"
        yield error(
            f"LLaMA-Factory {factory} has no template `{template}`, which {having[0]} has: {install}", what="model"
        )


def _quantizes_on_npu(run: RunSettings) -> bool:
    """True if bitsandbytes quantizes the weights and the run is for Ascend."""
    return run.machine is not None and run.machine.device.vendor == "ascend" and run.quantization.bnb_bits > 0


def check_npu_quantization(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield an error if bitsandbytes quantizes a run on Ascend, and the installed bitsandbytes has no library for NPUs
    or goes by a name that LLaMA-Factory does not find. A build for another device stops at the first weight or step."""
    packages = find_installed(context.site_packages)
    if run is None or not _quantizes_on_npu(run) or "llamafactory" not in packages.all_versions:
        return
    facts, releases_by_name = yaml_table("together")["npu_quantization"], packages.all_versions
    release = releases_by_name.get("bitsandbytes")
    other = next((name for name in facts["other_names"] if name in releases_by_name), "")
    if release is None:
        found = f"{other} is installed, and LLaMA-Factory asks for bitsandbytes" if other else "no bitsandbytes"
    elif packages.files(facts["library"]):
        return
    else:
        found = f"bitsandbytes {release} has no library for NPUs"
    remedy = "train on 16-bit weights, sharded by ZeRO-3"
    yield error(found, "a build of its branch multi-backend-refactor for the NPU", remedy, what="bitsandbytes")


# What LLaMA-Factory compares on start, and stops for (extras/misc.py, check_dependencies).
_CHECK_FUNCTION = re.compile(r"def check_dependencies.*?(?=\ndef |\Z)", re.DOTALL)
_CHECK_CALL = re.compile(r'check_version\("([^"]+)"\)')
# What is named where all is well.
_SHOWN_PACKAGES = ("llamafactory", "transformers", "torch", "torch-npu", "deepspeed", "peft", "trl", "accelerate")


def check_packages(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Releases of packages that do not fit together, by their requirements or by known failures.

    Yield a result for each package that does not fit, or the installed releases if no package would stop a run. If
    LLaMA-Factory is missing, yield one result with all that is: an error with a recipe, a warning without."""
    packages = find_installed(context.site_packages)
    if "llamafactory" not in packages.all_versions:
        missing = missing_requirements(run, packages)
        names = ", ".join(re.split("[=<>~!]", each)[0] for each in missing)
        vendor = "cpu" if run and run.on_cpu else vendor_of(run, context)
        remedy = needed_packages.llamafactory_install(vendor, missing)
        yield result("error" if run else "warning", f"not installed: {names}", "", remedy)
        return
    if not installed_packages.has_packaging():
        yield warning("releases are not compared", "packaging", "pip install packaging")
        return
    problems: list[str] = []
    with suppress(RecipeError):  # a release of somebody's own, which no range means
        problems += run.releases.excluded(packages.all_versions) if run else ()
    # Each package once: as LLaMA-Factory stops for it, or as known to fail, or as another package requires it.
    faults: dict[str, CheckResult] = {}
    for name, line in (*_startup_requirements(packages), *_known_failures(packages), *_metadata_requirements(packages)):
        faults.setdefault(name, line)
    lines = [*map(error, problems), *faults.values()]
    yield from lines
    if not any(line.state == "error" for line in lines):
        shown = (f"{name} {packages.all_versions[name]}" for name in _SHOWN_PACKAGES if name in packages.all_versions)
        yield ok(", ".join(shown))


def _startup_requirements(packages: InstalledPackages) -> Iterator[tuple[str, CheckResult]]:
    compared = _CHECK_FUNCTION.search(packages.read_file("llamafactory/extras/misc.py"))
    if compared and not node_environment.is_env_enabled("DISABLE_VERSION_CHECK"):
        for name, version_range in installed_packages.parse_requirements(_CHECK_CALL.findall(compared[0])):
            yield from _unmet_requirement(packages, "llamafactory", "error", name, version_range)


def _metadata_requirements(packages: InstalledPackages) -> Iterator[tuple[str, CheckResult]]:
    table = yaml_table("together")["asked"]
    for package in (*table["stops"], *table["warns"]):
        # LLaMA-Factory's metadata are narrower than what it stops for.
        state: State = "error" if package in table["stops"] and package != "llamafactory" else "warning"
        for name, version_range in installed_packages.parse_requirements(packages.requirements(package)):
            yield from _unmet_requirement(packages, package, state, name, version_range)


def _unmet_requirement(
    packages: InstalledPackages, package: str, state: State, name: str, version_range: str
) -> Iterator[tuple[str, CheckResult]]:
    release = packages.all_versions.get(normalize_name(name))
    asks = f"{package} {packages.all_versions[package]} wants {name}{version_range}"
    remedy = f'pip install "{name}{version_range}"'
    if release is None and not packages.has_module(name.replace("-", "_")) and package == "llamafactory":
        missing: State = "error" if normalize_name(name) in yaml_table("together")["asked"]["imported"] else state
        yield normalize_name(name), result(missing, f"{name} is not installed", asks, remedy)
    elif release is not None and not installed_packages.satisfies_range(version_range, release):
        yield normalize_name(name), result(state, f"{name} {release}", asks, remedy)


def _known_failures(packages: InstalledPackages) -> Iterator[tuple[str, CheckResult]]:
    for pair in yaml_table("together")["fails"]["pairs"]:
        known = {name: packages.all_versions.get(name, "") for name in (pair["what"], pair["beside"])}
        fit = zip((pair["at"], pair["of"]), known.values(), strict=True)
        if all(release and installed_packages.satisfies_range(wanted, release) for wanted, release in fit):
            first, second = (f"{name} {release}" for name, release in known.items())
            yield pair["what"], error(f"{first} beside {second}: {pair['why']}", f"not {pair['what']}{pair['at']}")
