"""Checks of the operators that DeepSpeed compiles when a run starts, of the compilers and headers needed to compile
them, and of locks that an earlier build has left."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import time

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result
from validator.escaping import shell_quote
from validator.knowledge.node_environment import node_needs
from validator.knowledge.optimizers import optimizer_choice
from validator.machine import host
from validator.machine.installed_packages import find_installed
from validator.recipe import safe_read
from validator.recipe.safe_read import expand_home
from validator.run.settings import RunSettings
from validator.wording import format_duration

# DeepSpeed asks nvcc for its release as it is imported (ops/op_builder/fp_quantizer.py, is_compatible;
# hiyouga/LLaMA-Factory issue 9270).
_NVCC_CALL = "installed_cuda_version()"
_INSTALLED_OPS_LINE = re.compile(r"^installed_ops=\{(.*)\}", re.MULTILINE)
_OPERATOR_ENTRY = re.compile(r"'(\w+)': (\w+)")
_INCLUDE_FOLDERS = ("usr/include", "usr/local/include")
_MAX_BUILD_SECONDS = 15 * 60  # seconds that no operator takes to build: cpu_adam takes 95 on two cores


def operators_to_build(run: RunSettings, context: CheckContext) -> set[str]:
    """Return the DeepSpeed operators that must be compiled when this run starts, such as `cpu_adam`. Operators that
    were compiled when DeepSpeed was installed are left out.

    accelerate replaces the optimizer by a CPU optimizer if its states are offloaded (utils/deepspeed.py,
    map_pytorch_optim_to_deepspeed). An optimizer in the DeepSpeed file is DeepSpeed's own (runtime/engine.py,
    _configure_basic_optimizer); on Ascend its fused Adam is written in Python and needs no compiler. A run on the CPU
    compiles an all-reduce (comm/torch.py)."""
    zero = run.deepspeed
    if zero is None or not run.task.trains:
        return set()
    offloads, cpu = zero.offload("offload_optimizer"), run.on_cpu
    optimizer = str(zero.value("optimizer.type") or "").lower() if not zero.value("optimizer.params.torch_adam") else ""
    names = {"deepspeed_shm_comm"} if cpu else set()
    if zero.steps_on_cpu:
        names.add(optimizer_choice(run.args.get("optim")).cpu_operator)
    if optimizer in ("adam", "adamw"):
        names.add("cpu_adam" if offloads else "fused_adam")
    if zero.nvme:
        names.add("async_io")
    # Those that were built when DeepSpeed was installed (`DS_BUILD_OPS`).
    installed = find_installed(context.site_packages).read_file("deepspeed/git_version_info_installed.py")
    row = _INSTALLED_OPS_LINE.search(installed)
    prebuilt = {name for name, is_built in _OPERATOR_ENTRY.findall(row[1] if row else "") if is_built == "True"}
    return names.difference(prebuilt, node_needs(run.machine.device).python_ops if run.machine else ())


def extension_folders(context: CheckContext) -> list[Path]:
    """Return the folders in which torch compiles extensions. Each holds one subfolder for each operator (torch,
    utils/cpp_extension.py, _get_build_directory)."""
    folder = context.environment.get("TORCH_EXTENSIONS_DIR")
    if folder:
        return [Path(folder)]
    home = context.environment.get("XDG_CACHE_HOME") or Path(context.environment.get("HOME", "~"), ".cache")
    return sorted(expand_home(Path(home, "torch_extensions")).glob("*/"))


def check_operators(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Operators that DeepSpeed compiles when a run starts, and the compilers and headers for them.

    Yield a result for each missing tool. A missing tool is only a warning if all operators are compiled already, except
    ninja, which is needed in any case."""
    if run is None or run.deepspeed is None:
        return
    names = operators_to_build(run, context)
    yield from _check_compilers(names, context) if names else ()
    yield from _check_toolkit(run, names, context)


def _check_compilers(names: set[str], context: CheckContext) -> Iterator[CheckResult]:
    missing_tools = list(_missing_tools(context))
    is_built = all(any((root / name / f"{name}.so").is_file() for root in extension_folders(context)) for name in names)
    purpose = _builds_sentence(names)
    for found, remedy in missing_tools:
        yield result("warning" if is_built and not found.startswith("ninja") else "error", found, purpose, remedy)
    if not missing_tools:
        yield ok("compiler and ninja are there", "" if is_built else purpose)


def _builds_sentence(names: set[str]) -> str:
    return f"DeepSpeed builds {', '.join(sorted(names))}"


def _missing_tools(context: CheckContext) -> Iterator[tuple[str, str]]:
    """Yield for each missing build tool (ninja, C++ compiler, Python.h) a message and the remedy."""
    path = context.environment.get("PATH", "")
    if shutil.which("ninja", path=path) is None:
        yield "ninja is not on PATH", "pip install ninja, or activate the environment that holds it"
    compiler = context.environment.get("CXX") or "c++"
    if shutil.which(compiler, path=path) is None:
        yield f"no compiler `{compiler}`", "install one: `apt install g++`, or `conda install gxx_linux-64`"
    program = shutil.which("llamafactory-cli", path=path)
    runs_this_python = program is not None and Path(program).parent == Path(sys.executable).parent
    if runs_this_python and not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        version = sysconfig.get_python_version()
        yield "no Python.h", f"install the headers of Python: `apt install python{version}-dev`"


def _check_toolkit(run: RunSettings, names: set[str], context: CheckContext) -> Iterator[CheckResult]:
    """Yield an error if nvcc is missing and DeepSpeed needs it, either to compile an operator or to be imported. Yield
    another error if libaio.h is missing and the run offloads to NVMe. `names` are the operators that the run
    compiles."""
    vendor = run.machine.device.vendor if run.machine and not run.on_cpu else ""
    imports = _NVCC_CALL in find_installed(context.site_packages).read_file("deepspeed/ops/op_builder/fp_quantizer.py")
    if vendor == "nvidia" and (imports or names) and not _has_nvcc(context):
        remedy = "load the module of CUDA, or `conda install -c nvidia cuda-toolkit`, of the release that torch is for"
        purpose = "DeepSpeed does not import without" if imports else _builds_sentence(names)
        yield error("no nvcc (CUDA_HOME, PATH, /usr/local/cuda)", purpose, remedy)
    if "async_io" in names and not any((context.root / folder / "libaio.h").exists() for folder in _INCLUDE_FOLDERS):
        yield error("no libaio.h", _builds_sentence(names), "`apt install libaio-dev`")


def _has_nvcc(context: CheckContext) -> bool:
    """Return whether nvcc is in one of the places where torch looks for it (utils/cpp_extension.py,
    _find_cuda_home)."""
    home = context.environment.get("CUDA_HOME") or context.environment.get("CUDA_PATH")
    if home:
        return Path(home, "bin/nvcc").is_file()
    found = shutil.which("nvcc", path=context.environment.get("PATH", ""))
    return found is not None or (context.root / "usr/local/cuda/bin/nvcc").is_file()


def check_build_locks(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Locks of processes that compile an operator; a run would wait until they are released.

    Yield a result for each lock of an operator that the run compiles, or of any operator if there is no recipe. torch
    creates a file `lock` beside an operator that it compiles, and waits until the file is removed, even if the process
    that created the file is dead (torch, utils/file_baton.py). The run then hangs after "Using … as PyTorch extensions
    root" (huggingface/transformers issue 26015, OpenRLHF 208)."""
    names = operators_to_build(run, context) if run else None
    for lock in (lock for folder in extension_folders(context) for lock in sorted(folder.glob("*/lock"))):
        name = lock.parent.name
        if names is None or name in names:
            yield _describe_build_lock(lock, name, context.root, run is not None)


def _describe_build_lock(lock: Path, name: str, root: Path, is_needed: bool) -> CheckResult:
    age = max(time() - lock.stat().st_mtime, 0.0)
    found = f"{lock} is {format_duration(age)} old"
    if builder := _find_builder(lock.parent, root):
        return ok(f"{found}; process {builder} builds {name}")
    state: State = "error" if is_needed and age > _MAX_BUILD_SECONDS else "warning"
    nobody = "no process builds here" if age > _MAX_BUILD_SECONDS else "no process builds here; another node may"
    waits = f"DeepSpeed waits for {name} without end"
    return result(state, f"{found}, and {nobody}; {waits}", "", f"`rm {shell_quote(str(lock))}`")


def _find_builder(folder: Path, root: Path) -> int | None:
    """Return the id of the ninja process that compiles in the folder; None if there is no such process. torch starts
    ninja with the folder as its working directory."""
    for process in (root / "proc").glob("[0-9]*"):
        if host.read_first_line(process / "comm") == "ninja":
            with suppress(OSError):  # another user's
                if (process / "cwd").readlink() == safe_read.real_path(folder):
                    return int(process.name)
    return None
