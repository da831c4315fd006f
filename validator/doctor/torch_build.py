"""Checks of the installed torch build: against the driver, against the devices, and against packages that were compiled
for another torch (by the symbols in their libraries)."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result
from validator.knowledge.tables import yaml_table
from validator.machine import installed_packages, nvidia
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.machine.nvidia import NvidiaDriver
from validator.run.needed_packages import INSTALL_PAGE
from validator.run.settings import RunSettings

_INSTALL_REMEDY = f"install the build for it as {INSTALL_PAGE} says"
_VERSION_LINE = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= '([^']*)'", re.MULTILINE)


class PackageBuild(NamedTuple):
    """The build of torch, or of a package that is compiled for torch, such as `2.8.0+cu128`. `cuda` and `hip` are the
    releases of CUDA and ROCm that the build uses; empty if the build uses none, or if its `is_known` is false."""

    release: str
    cuda: str
    hip: str
    is_known: bool = True


def read_build(packages: InstalledPackages, package: str) -> PackageBuild | None:
    """Read the build of a package from its version.py. The metadata of wheels on the package index do not state what
    they are built for. Return None if the package is not installed."""
    if package not in packages.all_versions:
        return None
    text = packages.read_file(f"{package}/version.py")
    facts = dict(_VERSION_LINE.findall(text))
    release = facts.get("__version__", packages.all_versions[package])
    tag, rocm = re.search(r"\+cu(\d+)(\d)$", release), re.search(r"\+rocm([\d.]+)$", release)
    cuda = facts.get("cuda") or (f"{tag[1]}.{tag[2]}" if tag else "")
    return PackageBuild(release, cuda, facts.get("hip") or (rocm[1] if rocm else ""), bool(text))


def vendor_of(run: RunSettings | None, context: CheckContext) -> str:
    """Return the vendor of the devices that the run uses: of this machine's, or, if this machine shows none, of those
    that the recipe or `--machine` names. Empty if the run uses none, or if nothing names any."""
    if run and run.on_cpu:
        return ""
    if context.machine:
        return context.machine.vendor
    return context.recipe_machine.device.vendor if context.recipe_machine else ""


def check_torch(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The build of torch, compared with driver, devices and packages that are compiled for torch.

    Yield a result for each mismatch, or the releases of torch and driver if nothing is wrong."""
    packages = find_installed(context.site_packages)
    torch = read_build(packages, "torch")
    if torch is None:
        return
    vendor = vendor_of(run, context)
    driver = None if run and run.on_cpu else nvidia.read_driver()
    faults = [*_check_kind(torch, "nvidia" if driver else vendor), *_check_for_driver(torch, driver)]
    faults += [*_check_companions(torch, packages), *_check_bitsandbytes(torch, packages, run)]
    yield from faults
    if not faults and torch.is_known and (driver or vendor in _RUNTIMES):
        yield ok(f"torch {torch.release}{f' with driver {driver.release}' if driver else f', for {_kind(torch)}'}")


# What torch has to be built for, by the vendor of the devices. To Ascend's it is torch_npu that matters.
_RUNTIMES = {"nvidia": "CUDA", "amd": "ROCm"}
_VENDORS = {"nvidia": "NVIDIA's", "amd": "AMD's"}


def _check_kind(torch: PackageBuild, vendor: str) -> Iterator[CheckResult]:
    """Yield an error if torch is built for other devices than the vendor's. The wheels of the package index are for
    CUDA, which AMD's devices do not run."""
    runtime, built = _RUNTIMES.get(vendor), _kind(torch)
    if runtime and torch.is_known and not built.startswith(runtime):
        alone = " alone" if built == "CPUs" else ""
        found = f"torch {torch.release} is built for {built}{alone}, and the devices are {_VENDORS[vendor]}"
        yield error(found, f"a build for {runtime}", _INSTALL_REMEDY)


def _check_for_driver(torch: PackageBuild, driver: NvidiaDriver | None) -> Iterator[CheckResult]:
    if driver is None or not torch.cuda:
        return
    min_drivers: dict[int, int] = yaml_table("together")["driver"]["least"]
    min_driver = min_drivers.get(int(torch.cuda.partition(".")[0]))
    if min_driver and driver.major < min_driver:
        requirement = f"driver {min_driver} or later for torch {torch.release} (CUDA {torch.cuda})"
        newest = max((cuda for cuda, one in min_drivers.items() if one <= driver.major), default=None)
        alternative = f", or a build of torch for CUDA {newest}" if newest else ""
        yield error(f"driver {driver.release}", requirement, f"a newer driver{alternative}", what="driver")
    for capability in sorted(set(driver.capabilities)):
        entries = yaml_table("together")["kernels"]["lacking"]
        if entry := next((each for each in entries if _lacks_kernels(torch, capability, each)), None):
            found = f"torch {torch.release} has no kernels for compute capability {capability}: {entry['why']}"
            yield error(found, "CUDA 12.8 or later" if capability >= 10 else "a build for CUDA 12.6", _INSTALL_REMEDY)


def _lacks_kernels(torch: PackageBuild, capability: float, entry: dict[str, Any]) -> bool:
    return (
        entry.get("from", 0.0) <= capability < entry.get("below", 1000.0)
        and installed_packages.satisfies_range(entry["cuda"], torch.cuda)
        and installed_packages.satisfies_range(entry.get("torch", ""), torch.release)
    )


def _check_companions(torch: PackageBuild, packages: InstalledPackages) -> Iterator[CheckResult]:
    """Yield an error if torchvision or torchaudio is built for another major release of CUDA than torch. Neither
    package can then be imported, and neither can transformers."""
    for package in ("torchvision", "torchaudio"):
        build = read_build(packages, package)
        if build is None or not ("+" in build.release or build.cuda or build.hip):  # its kind is not known
            continue
        if build.cuda.partition(".")[0] != torch.cuda.partition(".")[0]:
            found = f"{package} {build.release} is built for {_kind(build)}, torch {torch.release} for {_kind(torch)}"
            yield error(found, f"a build for {_kind(torch)}", _INSTALL_REMEDY, what=package)


def _kind(one: PackageBuild) -> str:
    rocm = ".".join(one.hip.split(".")[:2])  # a build number follows
    return f"CUDA {one.cuda}" if one.cuda else f"ROCm {rocm}" if one.hip else "CPUs"


def _check_bitsandbytes(
    torch: PackageBuild, packages: InstalledPackages, run: RunSettings | None
) -> Iterator[CheckResult]:
    """Yield a result if bitsandbytes holds no library for the CUDA release of torch. The result is an error if the run
    quantizes with bitsandbytes or doctor has no recipe, otherwise a warning. bitsandbytes accepts a library for the
    same major release of CUDA (cextension.py, get_cuda_bnb_library_path, of 0.50; earlier releases need exactly the
    same release)."""
    files = packages.files("bitsandbytes/libbitsandbytes_cuda*.so")
    if "bitsandbytes" not in packages.all_versions or not torch.cuda:
        return
    majors = {match[1] for file in files if (match := re.search(r"cuda(\d+)\d", file.name))}
    if torch.cuda.partition(".")[0] not in majors:
        is_needed = run is None or run.quantization.works
        found = f"bitsandbytes {packages.all_versions['bitsandbytes']} has no library for CUDA {torch.cuda}"
        yield result("error" if is_needed else "warning", found, "", "pip install -U bitsandbytes", what="bitsandbytes")


# name, type, flags, address, offset, size, link, info, alignment, entry size
_SECTION_FORMAT = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_FORMAT = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_DYNAMIC_SYMBOLS = 11


def read_symbols(library: Path, start: str) -> tuple[set[str], set[str]]:
    """Return two sets of symbol names in a shared library: those that it needs from other libraries, without weak
    symbols, and those that it offers. Only names that begin with `start` are read. Raises ValueError if the file is not
    a 64-bit ELF library."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{library} is no library of 64 bits")
        rows = [row for row in _read_symbol_rows(data) if row[2].startswith(start)]
    needed = {name for defined, weak, name in rows if not (defined or weak)}
    return needed, {name for defined, _, name in rows if defined}


def _read_symbol_rows(data: mmap.mmap) -> Iterator[tuple[bool, bool, str]]:
    """Yield for each dynamic symbol: true if the library defines the symbol, true if the symbol is weak (may be
    missing), and the symbol's name."""
    (place,) = struct.unpack_from("<Q", data, 0x28)
    header_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION_FORMAT.unpack_from(data, place + number * header_size) for number in range(count)]
    for section in sections:
        if section[1] == _DYNAMIC_SYMBOLS:
            offset, size, names = section[4], section[5], sections[section[6]][4]
            for name, info, _, at, _, _ in _SYMBOL_FORMAT.iter_unpack(data[offset : offset + size]):
                text = data[names + name : data.find(b"\0", names + name)]
                yield at != 0, info >> 4 == 2, text.decode("ascii", errors="replace")


# torch's own names: its core, and the interface to CUDA.
_TORCH_CORE = "_ZN3c10"
_WHEEL_NAME = re.compile(r"\+(cu\d+)torch([\d.]+)cxx11abi(TRUE|FALSE)")


def check_compiled_packages(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Compiled packages that need symbols which the installed torch lacks, being built for another torch.

    Yield a result for each package that cannot be imported with this torch: an error if the run imports the package,
    otherwise a warning."""
    packages = find_installed(context.site_packages)
    torch_libraries = sorted(packages.files("torch/lib/*.so"), key=lambda path: path.stat().st_size)
    compiled = yaml_table("together")["compiled"]["packages"]
    for package, (pattern, remedy) in compiled.items() if torch_libraries else ():
        library = next(iter(packages.files(pattern)), None)
        if package in packages.all_versions and library and (missing := _missing_symbol(library, torch_libraries)):
            torch, wheel = packages.all_versions["torch"], _WHEEL_NAME.search(packages.origin(package))
            built = f" for {wheel[1]}, torch {wheel[2]}, cxx11abi {wheel[3]}" if wheel else ""
            found = f"{package} {packages.all_versions[package]}{built} needs `{missing}`, which torch {torch} lacks"
            state: State = "error" if _is_imported(package, run, packages) else "warning"
            yield result(state, found, f"a build for torch {torch}", remedy, what=package)


def _is_imported(package: str, run: RunSettings | None, packages: InstalledPackages) -> bool:
    """Return whether the run imports the package. If `run` is None (doctor without a recipe), return whether every run
    on devices imports it. torch itself imports torch_npu. transformers before release 5 imports flash-attn with each
    model if there are devices; later releases only if the recipe asks for it (modeling_flash_attention_utils.py). Only
    unsloth imports xformers."""
    if package == "torch-npu":
        return True
    if run and (run.on_cpu or run.args.flag("use_unsloth")):
        return not run.on_cpu
    is_early = packages.all_versions.get("transformers", "").startswith("4.")
    return package == "flash-attn" and (is_early or bool(run and run.args.get("flash_attn") == "fa2"))


def _missing_symbol(library: Path, torch_libraries: list[Path]) -> str:
    """Return the name of a torch symbol that the library needs and that none of torch's own libraries offers; empty if
    no symbol is missing. torch's libraries are read smallest first, and reading stops when every needed symbol is
    found."""
    needed, _ = read_symbols(library, _TORCH_CORE)
    for path in torch_libraries:
        if not needed:
            break
        needed -= read_symbols(path, _TORCH_CORE)[1]
    return min(needed, default="")
