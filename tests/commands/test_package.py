"""The wheel carries recipes, ZeRO files and data, and works with click, PyYAML and Cerberus alone, from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import cerberus
import click
import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(ROOT)], check=True, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents and the three dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    for package in (cerberus, click, yaml):
        (folder / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    return folder


def run(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`lmf-recipes WORDS` without site-packages (-S) and without the working directory on the path (-P)."""
    command = [sys.executable, "-S", "-P", "-m", "validator", *words]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_only_the_validator_is_a_package(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"validator", "llamafactory_recipes"}
    assert "validator/py.typed" in names
    assert not [name for name in names if name.endswith(".py") and not name.startswith("validator/")]


@pytest.mark.parametrize("folder", ["recipes", "deepspeed", "accelerate", "data", "demo/tiny-qwen3"])
def test_the_wheel_carries_every_file(wheel: Path, folder: str) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = {f"llamafactory_recipes/{folder}/{file.name}" for file in (ROOT / folder).iterdir()} - names
    assert not missing


@pytest.mark.parametrize("folder", ["submit/script"])
def test_the_wheel_carries_what_jobs_are_made_of(wheel: Path, folder: str) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [*(ROOT / "validator" / folder).glob("*.*")]
    assert files
    assert not {f"validator/{folder}/{file.name}" for file in files} - names


def test_list_works_anywhere(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    assert not [path.stem for path in (ROOT / "recipes").glob("*.yaml") if path.stem not in listed.stdout]


def test_check_needs_three_libraries(installed: Path, tmp_path: Path) -> None:
    checked = run(installed, tmp_path, "check", str(installed / "llamafactory_recipes" / "recipes"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_demonstration_can_be_copied_anywhere(installed: Path, tmp_path: Path) -> None:
    copied = run(installed, tmp_path, "copy", "tiny-cpu-lora", ".")
    assert copied.returncode == 0, copied.stderr
    checked = run(installed, tmp_path, "check", "--strict", "tiny-cpu-lora.yaml")
    assert (checked.returncode, checked.stdout) == (0, "1 file: 0 errors, 0 warnings\n")


@pytest.mark.parametrize("command", [("check",), ("explain",), ("diff", "qwen3-8b-a100-lora")])
def test_a_name_works_anywhere(installed: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = run(installed, tmp_path, *command, "qwen3-8b-a100-full")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


def test_this_environment_finds_the_package_from_anywhere(tmp_path: Path) -> None:
    """Anything an editable install leaves in site-packages/validator/ would hide the checkout."""
    code = "import validator.cli; print(validator.cli.__file__)"
    found = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.strip() == str(ROOT / "validator" / "cli.py"), found.stderr


def test_the_environment_does_not_see_the_repository_root(tmp_path: Path) -> None:
    """With the root on sys.path, the folder deepspeed/ would pass for the package where that is not installed."""
    code = "import sys; print(*sys.path, sep='\\n')"
    seen = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(ROOT) not in seen.stdout.splitlines()
