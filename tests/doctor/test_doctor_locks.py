"""Operators that DeepSpeed builds, what it builds them with, and locks that it would wait for."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import sysconfig
from pathlib import Path
from time import time

import pytest
from support.installed_packages import site

from validator.doctor import deepspeed_ops, hub_checks
from validator.doctor.check_result import CheckContext, CheckResult
from validator.recipe.recipe_file import load_with_overrides
from validator.run.settings import RunSettings, resolve

RECIPES = Path(__file__).parents[2] / "recipes"
OFFLOADED = '{"stage": 3, "offload_optimizer": {"device": "cpu"}}'


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's root."""
    monkeypatch.chdir(RECIPES.parent)


def job(zero: str = OFFLOADED, *overrides: str, machine: str = "8xa100-80g", more: str = "") -> RunSettings:
    words = (f'deepspeed={{"zero_optimization": {zero}{more}}}', *overrides)
    return resolve(load_with_overrides(str(RECIPES / "qwen3-8b-a100-full.yaml"), words), machine)


NAMED = ', "optimizer": {"type": "AdamW", "params": {%s}}'


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (job(), {"cpu_adam"}),
        (job('{"stage": 3}'), set()),
        (job(OFFLOADED, "optim=lion_32bit"), {"cpu_lion"}),
        (job(OFFLOADED, "do_train=false", "do_eval=true"), set()),
        (job(more=', "zero_force_ds_cpu_optimizer": false'), set()),
        (job('{"stage": 2}', more=NAMED % ""), {"fused_adam"}),
        (job('{"stage": 2}', more=NAMED % '"torch_adam": true'), set()),
        (job('{"stage": 2}', more=NAMED % "", machine="8xascend-910b-64g"), set()),
        (job(machine="8xascend-910b-64g"), {"cpu_adam"}),
        (job(more=NAMED % ""), {"cpu_adam"}),
        (job('{"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}}'), {"async_io"}),
        (resolve(load_with_overrides(str(RECIPES / "qwen3-8b-a100-full.yaml"), ("deepspeed=",))), set()),
    ],
)
def test_the_operators_of_a_run(run: RunSettings, names: set[str]) -> None:
    assert deepspeed_ops.operators_to_build(run, CheckContext(site_packages=("/none",))) == names


def test_operators_that_deepspeed_brought(tmp_path: Path) -> None:
    """As DeepSpeed 0.18.4 writes them."""
    text = "version='0.18.4'\ninstalled_ops={'async_io': False, 'cpu_adam': True, 'fused_adam': False}\n"
    folders = site(tmp_path, {"deepspeed": "0.18.4"}, files={"deepspeed/git_version_info_installed.py": text})
    assert deepspeed_ops.operators_to_build(job(), CheckContext(site_packages=folders)) == set()
    assert deepspeed_ops.operators_to_build(
        job('{"stage": 2}', more=NAMED % ""), CheckContext(site_packages=folders)
    ) == {"fused_adam"}


# What they are built with.


def ready(root: Path) -> dict[str, str]:
    """An environment with a compiler, ninja and a toolkit."""
    (root / "bin").mkdir()
    for name in ("c++", "ninja", "llamafactory-cli"):
        (root / "bin" / name).touch(0o755)
    (root / "cuda/bin").mkdir(parents=True)
    (root / "cuda/bin/nvcc").touch(0o755)
    return {"PATH": str(root / "bin"), "CUDA_HOME": str(root / "cuda"), "HOME": str(root)}


def said(run: RunSettings | None, root: Path, environment: dict[str, str], *folders: str) -> list[str]:
    node = CheckContext(root, environment, site_packages=folders or ("/none",))
    return [f"{line.state}: {line.found}" for line in deepspeed_ops.check_operators(run, node)]


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Python's own headers, of the Python that the run has."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path / "include")})
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    return tmp_path / "include" / "Python.h"


@pytest.mark.usefixtures("headers")
def test_all_is_there(tmp_path: Path) -> None:
    assert said(job(), tmp_path, ready(tmp_path)) == ["ok: compiler and ninja are there"]
    assert not said(
        resolve(load_with_overrides(str(RECIPES / "qwen3-8b-a100-full.yaml"), ("deepspeed=",))), tmp_path, {}
    )
    assert not said(None, tmp_path, {})


@pytest.mark.usefixtures("headers")
@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ("ninja", "error: ninja is not on PATH"),
        ("c++", "error: no compiler `c++`"),
    ],
)
def test_something_is_missing(lacks: str, says: str, tmp_path: Path) -> None:
    environment = ready(tmp_path)
    (tmp_path / "bin" / lacks).unlink()
    assert said(job(), tmp_path, environment) == [says]


NO_NVCC = ["error: no nvcc (CUDA_HOME, PATH, /usr/local/cuda)"]


@pytest.mark.usefixtures("headers")
def test_an_operator_needs_nvcc_and_an_import_may(tmp_path: Path) -> None:
    environment, plain = ready(tmp_path), job('{"stage": 3}')
    asks = {"deepspeed/ops/op_builder/fp_quantizer.py": "sys_cuda_major, _ = installed_cuda_version()"}
    (folder,) = site(tmp_path / "site", {"deepspeed": "0.18.4"}, files=asks)
    assert not said(plain, tmp_path, environment, folder)
    (tmp_path / "cuda/bin/nvcc").unlink()
    assert said(plain, tmp_path, environment, folder) == NO_NVCC
    assert not said(plain, tmp_path, environment)  # a DeepSpeed that does not ask
    assert said(job(), tmp_path, environment)[1:] == NO_NVCC
    assert not said(job('{"stage": 3}', machine="8xascend-910b-64g"), tmp_path, environment, folder)
    environment.pop("CUDA_HOME")
    (tmp_path / "bin/nvcc").touch(0o755)
    assert not said(plain, tmp_path, environment, folder)


@pytest.mark.usefixtures("headers")
def test_what_an_offload_to_nvme_needs(tmp_path: Path) -> None:
    environment = ready(tmp_path)
    nvme = job('{"stage": 3, "offload_param": {"device": "nvme"}}')
    assert said(nvme, tmp_path, environment)[1:] == ["error: no libaio.h"]
    (tmp_path / "usr/include").mkdir(parents=True)
    (tmp_path / "usr/include/libaio.h").touch()
    assert not said(nvme, tmp_path, environment)[1:]


# Locks.


def locked(home: Path, seconds: float, name: str = "cpu_adam") -> Path:
    """A lock of this age, where torch makes it."""
    lock = home / ".cache/torch_extensions/py311_cu128" / name / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time() - seconds, time() - seconds))
    return lock


def found(run: RunSettings | None, home: Path, **environment: str) -> list[CheckResult]:
    context = CheckContext(home, {"HOME": str(home), **environment}, site_packages=("/none",))
    return [*deepspeed_ops.check_build_locks(run, context), *hub_checks.check_download_locks(run, context)]


HOUR = 3600.0


@pytest.mark.parametrize(
    ("run", "seconds", "name", "states"),
    [
        (job(), 4 * HOUR, "cpu_adam", ["error"]),
        (job(), 60, "cpu_adam", ["warning"]),
        (None, 4 * HOUR, "cpu_adam", ["warning"]),
        (job(), 4 * HOUR, "fused_adam", []),
        (job('{"stage": 3}'), 4 * HOUR, "cpu_adam", []),
    ],
)
def test_a_lock(run: RunSettings | None, seconds: float, name: str, states: list[str], tmp_path: Path) -> None:
    lock = locked(tmp_path, seconds, name)
    lines = found(run, tmp_path)
    assert [line.state for line in lines] == states
    assert all(line.remedy == f"`rm {lock}`" for line in lines)


def test_a_lock_of_somebody_who_builds(tmp_path: Path) -> None:
    lock = locked(tmp_path, 60)
    process = tmp_path / "proc" / "4711"
    process.mkdir(parents=True)
    (process / "comm").write_text("ninja\n")
    (process / "cwd").symlink_to(lock.parent)
    (line,) = found(job(), tmp_path)
    assert (line.state, "process 4711 builds cpu_adam" in line.found) == ("ok", True)
    (process / "comm").write_text("bash\n")
    assert [line.state for line in found(job(), tmp_path)] == ["warning"]


def test_a_lock_in_a_folder_of_the_user_s_own(tmp_path: Path) -> None:
    lock = tmp_path / "own" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert [line.state for line in found(job(), tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "own"))] == ["warning"]


def test_no_lock(tmp_path: Path) -> None:
    locked(tmp_path, 60).unlink()
    assert not found(job(), tmp_path)


# Downloads of others.


@pytest.fixture
def downloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock that huggingface_hub makes for a file of the model."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    lock = tmp_path / ".locks/models--Qwen--Qwen3-8B/0123.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


def test_a_download_of_another_process(downloading: Path, tmp_path: Path) -> None:
    assert not found(job(), tmp_path)
    assert not found(None, tmp_path)
    with downloading.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (line,) = found(job(), tmp_path)
    assert (line.state, f"{downloading} is held" in line.found) == ("warning", True)
    assert not found(job(), tmp_path)


def test_a_file_system_without_locks(downloading: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_file: object, _how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuses)
    (line,) = found(job(), tmp_path)
    assert line.remedy == f"if nobody downloads: `rm {downloading}`"
