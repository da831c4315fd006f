"""Compiled packages whose names the installed torch does not have, as they were built for another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.doctor.symbols import symbols
from validator.here.installed import Installed, installed
from validator.job.job import Job

# The library of a package that Python stops at when it is imported, and what to do.
_LIBRARIES = {
    "flash-attn": ("flash_attn_2_cuda*.so", "install the wheel that is named for it, or uninstall flash-attn"),
    "torch-npu": ("torch_npu/lib/libtorch_npu.so", "install the torch_npu of the same release as torch"),
    "xformers": ("xformers/_C*.so", "install the xformers that names this torch, or uninstall it"),
}
# torch's own names: its core, and the interface to CUDA.
_CORE = "_ZN3c10"
_WHEEL = re.compile(r"\+(cu\d+)torch([\d.]+)cxx11abi(TRUE|FALSE)")


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """One line for each package that cannot be imported beside this torch."""
    there = installed(node.folders)
    given = sorted(there.files("torch/lib/*.so"), key=lambda path: path.stat().st_size)
    for package, (pattern, remedy) in _LIBRARIES.items() if given else ():
        library = next(iter(there.files(pattern)), None)
        if package in there.releases and library and (missing := _missing(library, given)):
            torch = there.releases["torch"]
            found = f"{package} {there.releases[package]}{_made_for(there, package)} needs `{missing}`"
            state: State = "error" if _imported(package, job, there) else "warning"
            yield Line(state, package, f"{found}, which torch {torch} has not", f"a build for torch {torch}", remedy)


def _imported(package: str, job: Job | None, there: Installed) -> bool:
    """Whether a run imports it, any run where none is named. torch imports torch_npu itself; with devices transformers
    before 5 imports flash-attn beside each model, later ones where it is asked for (modeling_flash_attention_utils.py);
    xformers is asked for by unsloth alone."""
    if package == "torch-npu":
        return True
    if job and (job.on_cpu or job.flag("use_unsloth")):
        return not job.on_cpu
    early = there.releases.get("transformers", "").startswith("4.")
    return package == "flash-attn" and (early or bool(job and job.get("flash_attn") == "fa2"))


def _missing(library: Path, given: list[Path]) -> str:
    """A name of torch's that the library needs and none of torch's libraries has; they are asked smallest first."""
    needed = symbols(library, _CORE).needed
    for path in given:
        if not needed:
            break
        needed -= symbols(path, _CORE).offered
    return min(needed, default="")


def _made_for(there: Installed, package: str) -> str:
    """What the name of its wheel says it was built for, where it was installed by that name."""
    match = _WHEEL.search(there.origin(package))
    return f" for {match[1]}, torch {match[2]}, cxx11abi {match[3]}" if match else ""
