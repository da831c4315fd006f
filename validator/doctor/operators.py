"""Operators that DeepSpeed builds when a run starts, and what it builds them with."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here.installed import installed
from validator.job.job import Job
from validator.read.disk import expanded

_WHAT = "operators"
# By `optim`; cpu_adam for all others.
_OPTIMIZERS = {"adagrad": "cpu_adagrad", "lion_32bit": "cpu_lion", "paged_lion_32bit": "cpu_lion"}
# DeepSpeed asks nvcc for its release as it is imported (ops/op_builder/fp_quantizer.py, is_compatible;
# hiyouga/LLaMA-Factory issue 9270).
_ASKED = "installed_cuda_version()"
_SHIPPED = re.compile(r"^installed_ops=\{(.*)\}", re.MULTILINE)
_OPERATOR = re.compile(r"'(\w+)': (\w+)")
_INCLUDES = ("usr/include", "usr/local/include")


def built(job: Job, node: Node) -> set[str]:
    """The operators that are built when this run first starts, by their folder's name.

    accelerate replaces the optimizer by a CPU one where its states are offloaded (utils/deepspeed.py,
    map_pytorch_optim_to_deepspeed); one that the DeepSpeed file names is DeepSpeed's own (runtime/engine.py,
    _configure_basic_optimizer), which on Ascend is written in Python. A run on the CPU builds an all-reduce
    (comm/torch.py)."""
    zero = job.zero
    if zero is None or not job.trains:
        return set()
    offloads, cpu = zero.offload("offload_optimizer"), job.on_cpu
    named = str(zero.value("optimizer.type") or "").lower() if not zero.value("optimizer.params.torch_adam") else ""
    names = {"deepspeed_shm_comm"} if cpu else set()
    if zero.steps_on_cpu:
        names.add(_OPTIMIZERS.get(str(job.get("optim")), "cpu_adam"))
    if named in ("adam", "adamw"):
        names.add("cpu_adam" if offloads else "fused_adam")
    if zero.nvme:
        names.add("async_io")
    ascend = job.machine is not None and job.machine.device.vendor == "ascend"
    return names - ({"fused_adam"} if ascend else set()) - _shipped(node)


def _shipped(node: Node) -> set[str]:
    """Operators that were built when DeepSpeed was installed (`DS_BUILD_OPS`)."""
    row = _SHIPPED.search(installed(node.folders).text("deepspeed/git_version_info_installed.py"))
    return {name for name, there in _OPERATOR.findall(row[1] if row else "") if there == "True"}


def roots(node: Node) -> list[Path]:
    """Folders with a folder for each operator (torch, utils/cpp_extension.py, _get_build_directory)."""
    given = node.environment.get("TORCH_EXTENSIONS_DIR")
    if given:
        return [Path(given)]
    home = node.environment.get("XDG_CACHE_HOME") or Path(node.environment.get("HOME", "~"), ".cache")
    return sorted(expanded(Path(home, "torch_extensions")).glob("*/"))


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What is missing to build what this run builds; ninja is asked for even where all is built."""
    if job is None or job.zero is None:
        return
    names = built(job, node)
    yield from _compilers(names, node) if names else ()
    yield from _toolkit(job, names, node)


def _compilers(names: set[str], node: Node) -> Iterator[Line]:
    lacking = list(_lacking(node))
    done = all(any((root / name / f"{name}.so").is_file() for root in roots(node)) for name in names)
    wanted = _wanted(names)
    for found, remedy in lacking:
        yield Line("warning" if done and not found.startswith("ninja") else "error", _WHAT, found, wanted, remedy)
    if not lacking:
        yield Line("ok", _WHAT, "compiler and ninja are there", "" if done else wanted)


def _wanted(names: set[str]) -> str:
    return f"DeepSpeed builds {', '.join(sorted(names))}"


def _lacking(node: Node) -> Iterator[tuple[str, str]]:
    """What is missing, and how to get it."""
    path = node.environment.get("PATH", "")
    if shutil.which("ninja", path=path) is None:
        yield "ninja is not on PATH", "pip install ninja, or activate the environment that holds it"
    compiler = node.environment.get("CXX") or "c++"
    if shutil.which(compiler, path=path) is None:
        yield f"no compiler `{compiler}`", "install one: `apt install g++`, or `conda install gxx_linux-64`"
    if _runs_here(path) and not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        version = sysconfig.get_python_version()
        yield "no Python.h", f"install the headers of Python: `apt install python{version}-dev`"


def _runs_here(path: str) -> bool:
    """Whether the run's Python is this one, whose headers are known."""
    program = shutil.which("llamafactory-cli", path=path)
    return program is not None and Path(program).parent == Path(sys.executable).parent


def _toolkit(job: Job, names: set[str], node: Node) -> Iterator[Line]:
    """The device's own compiler, and headers."""
    vendor = job.machine.device.vendor if job.machine and not job.on_cpu else ""
    imports = _ASKED in installed(node.folders).text("deepspeed/ops/op_builder/fp_quantizer.py")
    if vendor == "nvidia" and (imports or names) and not _nvcc(node):
        remedy = "load the module of CUDA, or `conda install -c nvidia cuda-toolkit`, of the release that torch is for"
        wanted = "DeepSpeed does not import without" if imports else _wanted(names)
        yield Line("error", _WHAT, "no nvcc (CUDA_HOME, PATH, /usr/local/cuda)", wanted, remedy)
    if "async_io" in names and not any((node.root / folder / "libaio.h").exists() for folder in _INCLUDES):
        yield Line("error", _WHAT, "no libaio.h", _wanted(names), "`apt install libaio-dev`")


def _nvcc(node: Node) -> bool:
    """Where torch looks for it (utils/cpp_extension.py, _find_cuda_home)."""
    home = node.environment.get("CUDA_HOME") or node.environment.get("CUDA_PATH")
    if home:
        return Path(home, "bin/nvcc").is_file()
    found = shutil.which("nvcc", path=node.environment.get("PATH", ""))
    return found is not None or (node.root / "usr/local/cuda/bin/nvcc").is_file()
