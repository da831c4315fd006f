"""What the installed builds were made for: driver, device and each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from validator.doctor import ranges
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import nvidia
from validator.here.installed import Installed, installed
from validator.here.nvidia import Driver
from validator.job.job import Job
from validator.tables import devices
from validator.tables.data import listing

_INSTALL = "install the build for it as pytorch.org/get-started says"
_VERSION = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= '([^']*)'", re.MULTILINE)


class Build(NamedTuple):
    """A release of torch or of what is built for it: `2.8.0+cu128`. `cuda` and `hip` are empty where it was built
    without."""

    release: str
    cuda: str
    hip: str

    @property
    def accelerated(self) -> bool:
        return bool(self.cuda or self.hip)


def build(there: Installed, package: str) -> Build | None:
    """By its version.py, which says more than the metadata: wheels of the package index hide what they are built for.
    None where it is not there."""
    if package not in there.releases:
        return None
    facts = dict(_VERSION.findall(there.text(f"{package}/version.py")))
    release = facts.get("__version__", there.releases[package])
    tag = re.search(r"\+cu(\d+)(\d)$", release)
    cuda = facts.get("cuda") or (f"{tag[1]}.{tag[2]}" if tag else "")
    return Build(release, cuda, facts.get("hip", ""))


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Whether torch runs on these devices, and what is built for torch on this torch."""
    there = installed(node.folders)
    torch = build(there, "torch")
    if torch is None:
        return
    driver = None if job and job.on_cpu else nvidia.driver()
    faults = [*_torch(torch, driver), *_amd(torch, node, job), *_beside(torch, there)]
    faults += _bitsandbytes(torch, there, job)
    yield from faults
    if driver and not faults:
        yield Line("ok", "torch", f"torch {torch.release} with driver {driver.release}")


def _torch(torch: Build, driver: Driver | None) -> Iterator[Line]:
    if driver is None:
        return
    if not torch.accelerated:
        yield Line("error", "torch", f"torch {torch.release} is built for CPUs alone", "a build for CUDA", _INSTALL)
    elif torch.cuda:
        yield from _driver(torch, driver)
        yield from _kernels(torch, driver.capabilities)


def _amd(torch: Build, node: Node, job: Job | None) -> Iterator[Line]:
    """The wheels of the package index are for CUDA, which AMD's devices do not run."""
    if node.here is None or node.here.device not in devices.device_ids() or (job and job.on_cpu):
        return
    if devices.device(node.here.device)[0].vendor == "amd" and not torch.hip:
        found = f"torch {torch.release} is built for {_kind(torch)}, and the devices are AMD's"
        yield Line("error", "torch", found, "a build for ROCm", _INSTALL)


def _driver(torch: Build, driver: Driver) -> Iterator[Line]:
    leasts: dict[int, int] = listing("together")["driver"]["least"]
    least = leasts.get(int(torch.cuda.partition(".")[0]))
    if least and driver.major < least:
        wanted = f"driver {least} or later for torch {torch.release} (CUDA {torch.cuda})"
        newest = max((cuda for cuda, one in leasts.items() if one <= driver.major), default=None)
        other = f", or a build of torch for CUDA {newest}" if newest else ""
        yield Line("error", "driver", f"driver {driver.release}", wanted, f"a newer driver{other}")


def _kernels(torch: Build, capabilities: Sequence[float]) -> Iterator[Line]:
    for one in sorted(set(capabilities)):
        why = next(
            (entry["why"] for entry in listing("together")["kernels"]["lacking"] if _lacks(torch, one, entry)), ""
        )
        if why:
            found = f"torch {torch.release} has no kernels for compute capability {one}: {why}"
            wanted = "CUDA 12.8 or later" if one >= 10 else "a build for CUDA 12.6"
            yield Line("error", "torch", found, wanted, _INSTALL)


def _lacks(torch: Build, capability: float, entry: dict[str, Any]) -> bool:
    meant = entry.get("from", 0.0) <= capability < entry.get("below", 1000.0)
    return meant and ranges.admits(entry["cuda"], torch.cuda) and ranges.admits(entry.get("torch", ""), torch.release)


def _beside(torch: Build, there: Installed) -> Iterator[Line]:
    """torchvision and torchaudio of another kind of build: they do not load, and neither does transformers."""
    for package in ("torchvision", "torchaudio"):
        other = build(there, package)
        if other and other.cuda.partition(".")[0] != torch.cuda.partition(".")[0] and _known(other):
            found = f"{package} {other.release} is built for {_kind(other)}, torch {torch.release} for {_kind(torch)}"
            yield Line("error", package, found, f"a build for {_kind(torch)}", _INSTALL)


def _known(other: Build) -> bool:
    return "+" in other.release or other.accelerated


def _kind(one: Build) -> str:
    return f"CUDA {one.cuda}" if one.cuda else "ROCm" if one.hip else "CPUs"


def _bitsandbytes(torch: Build, there: Installed, job: Job | None) -> Iterator[Line]:
    """It loads the library for torch's CUDA, or one of the same major number (cextension.py, get_cuda_bnb_library_path,
    of 0.50; earlier releases want the very one)."""
    files = there.files("bitsandbytes/libbitsandbytes_cuda*.so")
    if "bitsandbytes" not in there.releases or not torch.cuda:
        return
    majors = {match[1] for file in files if (match := re.search(r"cuda(\d+)\d", file.name))}
    if torch.cuda.partition(".")[0] not in majors:
        needed = job is None or job.quantization.works
        found = f"bitsandbytes {there.releases['bitsandbytes']} has no library for CUDA {torch.cuda}"
        yield Line("error" if needed else "warning", "bitsandbytes", found, "", "pip install -U bitsandbytes")
