"""Python packages that a run needs beside LLaMA-Factory's own requirements: which setting asks for them, and when the
run ends without them (data/packages.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from validator.escaping import shell_join
from validator.knowledge.node_environment import is_env_enabled
from validator.knowledge.releases import ENGINE_FIELDS, range_admits
from validator.knowledge.tables import yaml_table

from .model_files import hub_models
from .settings import RunSettings

NEVER = "never"
INSTALL_PAGE = "docs/howto/install.md"
_OTHER_ENTRIES = ("sources", "bounds", "elsewhere")  # of the table, beside settings
_REQUIREMENT = re.compile(r"([\w.-]+)(.*)")
# A model of a folder is not asked for at a hub (extras/misc.py, try_download_model_from_other_hub).
_HUBS = ("USE_MODELSCOPE_HUB", "USE_OPENMIND_HUB")
# How a message names a setting whose values are resolved; `{}` stands for the value.
_REASONS = {
    "deepspeed": "`deepspeed`",
    "quantization_bit": "`quantization_bit`",
    "fp8": "`fp8`",
    "checkpoint": "a checkpoint quantized with {}",
    "model_type": "model type `{}`",
}


class NeededPackage(NamedTuple):
    """A package that a run needs. `range`: releases that the software itself stops for; empty: it takes any. `why`: the
    setting that asks for the package, as text for a message, and `setting` its key. `dies`: when the run ends without
    the package; "never" if it goes on without what was asked for. `module`: a module to look for if the package is not
    installed under its own name. `install`: what to do if `pip install` is not enough. `note`: True if the setting does
    not name the package."""

    package: str
    why: str
    setting: str
    dies: str
    range: str = ""
    module: str = ""
    install: str = ""
    note: bool = False


def needed_packages(run: RunSettings) -> Iterator[NeededPackage]:
    """Yield the packages that a run needs in addition to LLaMA-Factory's own requirements. A package that two settings
    ask for comes twice."""
    for setting in asking_settings():
        values = _values(run, setting)
        for row in yaml_table("packages")[setting] if values else ():
            asking = [value for value in values if "values" not in row or value in map(str, row["values"])]
            if asking and _device_can_use(run, row):
                yield from _of_row(setting, row, asking[0])
    yield from _kernels_of_header(run)
    for dataset in () if run.data.is_tokenized else (*run.data.datasets, *run.data.evaluation_datasets):
        if dataset.package:
            yield NeededPackage(dataset.package, f"data set `{dataset.name}`", "dataset", "while the data set is read")


def _device_can_use(run: RunSettings, row: Mapping[str, Any]) -> bool:
    """True if the run's device can use the packages of a row. Without a machine it is taken to have every ability."""
    on_gpu = not row.get("gpu") or (run.on_gpu and not run.on_cpu)
    return on_gpu and ("ability" not in row or not run.machine or getattr(run.machine.device, row["ability"]))


def asking_settings() -> Iterator[str]:
    """Yield the settings of the table, each of which is an entry: the rows of an entry are parsed when it is used."""
    return (name for name in yaml_table("packages") if name not in _OTHER_ENTRIES)


def _of_row(setting: str, row: Mapping[str, Any], value: str) -> Iterator[NeededPackage]:
    if setting in _REASONS or setting.isupper():
        why = _REASONS.get(setting, f"{setting}=1").format(value.upper() if setting == "checkpoint" else value)
    else:
        why = f"`{setting}: {value}`" if "values" in row else f"`{setting}`"
    for requirement in row["packages"]:
        package, version_range = _split(requirement)
        further = {name: row[name] for name in ("module", "install", "note") if name in row}
        yield NeededPackage(package, why, setting, row["dies"], version_range, **further)


def _split(requirement: str) -> tuple[str, str]:
    match = _REQUIREMENT.fullmatch(requirement)
    return (match[1], match[2]) if match else (requirement, "")


def _values(run: RunSettings, setting: str) -> Sequence[str]:
    """Return the values of a setting, as text. Empty if the setting is off."""
    resolved = {
        "deepspeed": "on" if run.deepspeed else "",
        "checkpoint": run.quantization.checkpoint or "",
        "quantization_bit": run.quantization.method if run.quantization.works else "",
        "fp8": str(run.args.get("fp8_backend")) if run.args.flag("fp8") else "",
        "model_type": run.model.kind if run.model else "",
    }
    if setting in resolved:
        return [resolved[setting]] if resolved[setting] else []
    if setting.isupper():
        is_asked = setting not in _HUBS or any(hub_models(run))
        return ["1"] if is_asked and is_env_enabled(setting) else []
    if setting not in run.args.values:  # no default asks for a package
        return []
    return run.args.words(setting) or ([str(run.args.get(setting))] if run.args.flag(setting) else [])


def _kernels_of_header(run: RunSettings) -> Iterator[NeededPackage]:
    """Yield what the header block names under `packages`, and the kernels of linear attention that patched layers call
    by themselves. Of a package that a setting asks for, the header block only says the release."""
    mixer = run.model.arch.mixer if run.model else None
    unused = () if run.on_gpu or mixer is None else mixer.facts.packages
    for package in sorted(run.declared.packages.keys() - {*unused, *_packages_of_settings(run)}):
        yield NeededPackage(package, "`packages` of the header block", "packages", "while the model loads")
    if run.model and run.model.family.mixers_patched and run.args.get("flash_attn") == "fa2":
        why = f"`flash_attn: fa2` of {run.model.name}"
        yield NeededPackage("flash-linear-attention", why, "flash_attn", "while the model loads")


def _packages_of_settings(run: RunSettings) -> Iterator[str]:
    """Yield the packages that a setting can ask for; none if the header block names no package, to save time."""
    for setting in asking_settings() if run.declared.packages else ():
        yield from (_split(each)[0] for row in yaml_table("packages")[setting] for each in row["packages"])


def pip_requirement(needed: NeededPackage, run: RunSettings) -> str:
    """Return the package as a pip requirement, with the releases that the recipe's header block names, that
    LLaMA-Factory is made for, or that the setting asks for."""
    named = run.releases.pip_range(needed.package) if needed.package in ENGINE_FIELDS else ""
    return f"{needed.package}{named or suitable_releases(needed.package) or needed.range}"


def suitable_releases(package: str) -> str:
    """Return the releases of a package that LLaMA-Factory is made for, as a range of PEP 440; empty if any will do."""
    bounds: Mapping[str, str] = yaml_table("packages")["bounds"]["releases"]
    return bounds.get(package, "")


def install_set(vendor: str) -> Mapping[str, Any]:
    """Return the releases that docs/howto/install.md installs for the devices of a vendor; if the vendor is not known,
    those for NVIDIA."""
    sets = yaml_table("together")["sets"]
    found: Mapping[str, Any] = sets.get(vendor, sets["nvidia"])
    return found


def torch_words(vendor: str, release: str = "") -> Sequence[str]:
    """Return the words after `pip install` that bring PyTorch for the devices of a vendor, as docs/howto/install.md
    does it. `release`: the range of torch releases that the recipe's header block names; empty: it names none."""
    table = install_set(vendor)
    pins = [f"{name}=={pin}" for name, pin in table["packages"].items() if name != "torch-npu"]
    if not range_admits(release or None, table["packages"]["torch"]):
        pins = [f"torch{release}", "torchvision", "torchaudio"]
    return [*pins, "--index-url", table["index"]]


def llamafactory_install(vendor: str, requirements: Sequence[str]) -> str:
    """Return how `requirements`, which name LLaMA-Factory, are installed for the devices of a vendor, as
    docs/howto/install.md does it. If torch is among them, it comes first, from the index that has the build for these
    devices. On Ascend and AMD the others are those of an extra of this package (pyproject.toml)."""
    vendor = "" if vendor == "unknown" else vendor
    page, has_extra = f"{INSTALL_PAGE}{vendor and f'#{vendor}'}", vendor in ("ascend", "amd")
    rest = shell_join(["pip", "install", *(each for each in requirements if each != "torch")])
    steps = [f'pip install ".[{vendor}]"' if has_extra else rest]
    if "torch" in requirements:
        steps.insert(0, shell_join(["pip", "install", *torch_words(vendor)]))
    where = " in a copy of this repository" if has_extra else ""
    return f"{' && '.join(steps)}{where}{f', as {page} says' if has_extra or len(steps) > 1 else ''}"
