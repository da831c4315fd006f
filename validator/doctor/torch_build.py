"""The build of the installed torch against the driver, the devices, and packages that were compiled for another torch
(by the symbols of their libraries); and torch_npu with CANN, which take the place of CUDA on Ascend."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.knowledge import releases
from validator.knowledge.tables import yaml_table
from validator.machine import ascend, installed_packages, nvidia
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.machine.nvidia import NvidiaDriver
from validator.run.settings import RunSettings

_INSTALL_REMEDY = "install the build for it as pytorch.org/get-started says"
_VERSION_LINE = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= '([^']*)'", re.MULTILINE)


class PackageBuild(NamedTuple):
    """A release of torch, or of a package built for it: `2.8.0+cu128`. `cuda` and `hip` are empty if it was built
    without them."""

    release: str
    cuda: str
    hip: str


def read_build(there: InstalledPackages, package: str) -> PackageBuild | None:
    """Read a package's build from its version.py: the metadata of wheels on the package index hide what they are built
    for. None if it is not installed."""
    if package not in there.all_versions:
        return None
    facts = dict(_VERSION_LINE.findall(there.read_file(f"{package}/version.py")))
    release = facts.get("__version__", there.all_versions[package])
    tag = re.search(r"\+cu(\d+)(\d)$", release)
    return PackageBuild(release, facts.get("cuda") or (f"{tag[1]}.{tag[2]}" if tag else ""), facts.get("hip", ""))


def check_torch(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The build of torch against driver and devices, and of packages that are built for torch."""
    there = find_installed(context.site_packages)
    torch = read_build(there, "torch")
    if torch is None:
        return
    driver = None if run and run.on_cpu else nvidia.read_driver()
    faults = [*_check_for_driver(torch, driver)]
    # The wheels of the package index are for CUDA, which AMD's devices do not run.
    if context.machine and context.machine.vendor == "amd" and not torch.hip and not (run and run.on_cpu):
        found = f"torch {torch.release} is built for {_kind(torch)}, and the devices are AMD's"
        faults.append(error(found, "a build for ROCm", _INSTALL_REMEDY))
    faults += [*_check_companions(torch, there), *_check_bitsandbytes(torch, there, run)]
    yield from faults
    if driver and not faults:
        yield ok(f"torch {torch.release} with driver {driver.release}")


def _check_for_driver(torch: PackageBuild, driver: NvidiaDriver | None) -> Iterator[CheckResult]:
    if driver and not (torch.cuda or torch.hip):
        yield error(f"torch {torch.release} is built for CPUs alone", "a build for CUDA", _INSTALL_REMEDY)
    if driver is None or not torch.cuda:
        return
    leasts: dict[int, int] = yaml_table("together")["driver"]["least"]
    least = leasts.get(int(torch.cuda.partition(".")[0]))
    if least and driver.major < least:
        wanted = f"driver {least} or later for torch {torch.release} (CUDA {torch.cuda})"
        newest = max((cuda for cuda, one in leasts.items() if one <= driver.major), default=None)
        other = f", or a build of torch for CUDA {newest}" if newest else ""
        yield error(f"driver {driver.release}", wanted, f"a newer driver{other}", what="driver")
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


def _check_companions(torch: PackageBuild, there: InstalledPackages) -> Iterator[CheckResult]:
    """Yield torchvision and torchaudio of another kind of build: they do not load, and neither does transformers."""
    for package in ("torchvision", "torchaudio"):
        other = read_build(there, package)
        if other is None or not ("+" in other.release or other.cuda or other.hip):  # its kind is not known
            continue
        if other.cuda.partition(".")[0] != torch.cuda.partition(".")[0]:
            found = f"{package} {other.release} is built for {_kind(other)}, torch {torch.release} for {_kind(torch)}"
            yield error(found, f"a build for {_kind(torch)}", _INSTALL_REMEDY, what=package)


def _kind(one: PackageBuild) -> str:
    return f"CUDA {one.cuda}" if one.cuda else "ROCm" if one.hip else "CPUs"


def _check_bitsandbytes(
    torch: PackageBuild, there: InstalledPackages, run: RunSettings | None
) -> Iterator[CheckResult]:
    """Check that bitsandbytes has a library for torch's CUDA, or for one of the same major number, which it loads
    (cextension.py, get_cuda_bnb_library_path, of 0.50; earlier releases want the very one)."""
    files = there.files("bitsandbytes/libbitsandbytes_cuda*.so")
    if "bitsandbytes" not in there.all_versions or not torch.cuda:
        return
    majors = {match[1] for file in files if (match := re.search(r"cuda(\d+)\d", file.name))}
    if torch.cuda.partition(".")[0] not in majors:
        needed = run is None or run.quantization.works
        found = f"bitsandbytes {there.all_versions['bitsandbytes']} has no library for CUDA {torch.cuda}"
        yield result("error" if needed else "warning", found, "", "pip install -U bitsandbytes", what="bitsandbytes")


# name, type, flags, address, offset, size, link, info, alignment, entry size
_SECTION_FORMAT = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_FORMAT = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_DYNAMIC_SYMBOLS = 11


def read_symbols(library: Path, start: str) -> tuple[set[str], set[str]]:
    """Read the names that begin with `start`: those that a library needs from others, without weak ones, and those that
    it offers. Raises ValueError if the file is no 64-bit library."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{library} is no library of 64 bits")
        rows = [row for row in _read_symbol_rows(data) if row[2].startswith(start)]
    needed = {name for defined, weak, name in rows if not (defined or weak)}
    return needed, {name for defined, _, name in rows if defined}


def _read_symbol_rows(data: mmap.mmap) -> Iterator[tuple[bool, bool, str]]:
    """Yield for each symbol whether it is defined here, whether it may be missing, and its name."""
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
    """Compiled packages that need names which the installed torch lacks, as they were built for another torch.

    One line for each package that cannot be imported beside this torch.
    """
    there = find_installed(context.site_packages)
    given = sorted(there.files("torch/lib/*.so"), key=lambda path: path.stat().st_size)
    compiled = yaml_table("together")["compiled"]["packages"]
    for package, (pattern, remedy) in compiled.items() if given else ():
        library = next(iter(there.files(pattern)), None)
        if package in there.all_versions and library and (missing := _missing_symbol(library, given)):
            torch, wheel = there.all_versions["torch"], _WHEEL_NAME.search(there.origin(package))
            built = f" for {wheel[1]}, torch {wheel[2]}, cxx11abi {wheel[3]}" if wheel else ""
            found = f"{package} {there.all_versions[package]}{built} needs `{missing}`, which torch {torch} lacks"
            state: State = "error" if _is_imported(package, run, there) else "warning"
            yield result(state, found, f"a build for torch {torch}", remedy, what=package)


def _is_imported(package: str, run: RunSettings | None, there: InstalledPackages) -> bool:
    """Return whether a run imports the package; without a run, whether any run would. torch imports torch_npu itself;
    with devices transformers before 5 imports flash-attn beside each model, later ones only if it is asked for
    (modeling_flash_attention_utils.py); only unsloth asks for xformers."""
    if package == "torch-npu":
        return True
    if run and (run.on_cpu or run.args.flag("use_unsloth")):
        return not run.on_cpu
    early = there.all_versions.get("transformers", "").startswith("4.")
    return package == "flash-attn" and (early or bool(run and run.args.get("flash_attn") == "fa2"))


def _missing_symbol(library: Path, given: list[Path]) -> str:
    """Return a name of torch's that the library needs and none of torch's libraries, smallest first, offers."""
    needed, _ = read_symbols(library, _TORCH_CORE)
    for path in given:
        if not needed:
            break
        needed -= read_symbols(path, _TORCH_CORE)[1]
    return min(needed, default="")


_HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # which set_env.sh sets
_DEFAULT_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
_CANN_VERSION_LINE = re.compile(r"^version=(\S+)", re.MULTILINE | re.IGNORECASE)


def check_cann(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """torch_npu, the torch that it is built for, and CANN.

    Nothing on a machine without Ascend's driver.
    """
    there = find_installed(context.site_packages)
    if "torch-npu" not in there.all_versions:
        torch = there.all_versions.get("torch", "").partition("+")[0]
        if torch and not (run and run.on_cpu) and ascend.has_driver():
            found = "torch_npu is not installed: torch would run on the processors"
            yield error(found, f"torch_npu {torch}", f'pip install "torch-npu~={torch}"', what="torch_npu")
        return
    npu, torch = there.all_versions["torch-npu"], there.all_versions.get("torch", "none")
    wanted = re.match(r"\d+\.\d+\.\d+", npu)  # the torch that it is built for
    if wanted and torch.partition("+")[0] != wanted[0]:
        remedy = f"install torch {wanted[0]} for CPUs, as pytorch.org/get-started says"
        yield error(f"torch_npu {npu} beside torch {torch}", f"torch {wanted[0]}", remedy, what="torch_npu")
    yield from _check_cann_release(npu, context)


def _check_cann_release(npu: str, context: CheckContext) -> Iterator[CheckResult]:
    wanted = str(yaml_table("together")["npu"]["releases"].get(npu.partition("+")[0], {}).get("cann", ""))
    home = next((Path(context.environment[name]) for name in _HOME_VARIABLES if context.environment.get(name)), None)
    if home is None:
        folder = next((place for name in _DEFAULT_FOLDERS if (place := context.root / name).is_dir()), None)
        if folder is None:
            remedy = "install its toolkit and the kernels of the device"
            yield error("no CANN", wanted or f"the CANN that torch_npu {npu} was released for", remedy)
            return
        # Without its variables CANN's libraries are not found, and torch_npu is not imported.
        script = (folder.parent if folder.name == "latest" else folder) / "set_env.sh"
        found = f"CANN {_read_version(folder)} is installed, but its variables are not set"
        yield error(found, _HOME_VARIABLES[0], f"source {script}")
        return
    version = _read_version(home)
    # 8.0 of 8.0.RC3 and of 8.0.0.alpha002: releases of one series go together.
    if version and wanted and releases.release_series(version) != releases.release_series(wanted):
        remedy = "install that CANN, or the torch_npu that was released for yours"
        yield warning(f"CANN {version}", f"{wanted}, for which torch_npu {npu} was released", remedy)
    else:
        yield ok(f"CANN {version or '(release unknown)'} with torch_npu {npu}")


def _read_version(home: Path) -> str:
    """Read CANN's version from its installer's file, as torch_npu does (torch_npu/utils/collect_env.py)."""
    for pattern in ("ascend_*_install.info", "*/ascend_*_install.info"):
        for file in sorted(home.glob(pattern)):
            if match := _CANN_VERSION_LINE.search(file.read_text("utf-8", errors="replace")):
                return match[1]
    return ""
