"""What is handed out: the same bytes from the same sources, and a list of what comes along."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from validator import __version__

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"(?m)^([\w.-]+)==([^\s;\\]+)")
BUILT_OF = ["pyproject.toml", "release/requirements.txt", "release/constraints.txt", "release/sbom.cdx.json"]
BUILD = """\
import os, sys
os.umask(int(sys.argv[1], 8))
from hatchling.build import build_sdist, build_wheel
build_sdist(sys.argv[2])
build_wheel(sys.argv[2])
"""


def pinned(file: str) -> dict[str, str]:
    return {name.lower(): release for name, release in PINNED.findall((ROOT / file).read_text("utf-8"))}


def needed() -> set[str]:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {re.split(r"[<>=]", word)[0] for word in own["dependencies"]}


def test_every_dependency_is_pinned_to_the_release_that_is_tested() -> None:
    there, tested = pinned("release/requirements.txt"), pinned("release/constraints.txt")
    assert there.keys() >= needed()
    assert there.items() <= tested.items()
    text = (ROOT / "release/requirements.txt").read_text("utf-8")
    assert all(re.search(rf"(?m)^{name}==\S+ \\\n    --hash=sha256:[0-9a-f]{{64}}", text) for name in there)


def test_the_list_of_parts_is_of_this_release_and_those() -> None:
    """`python tools/pin_requirements.py` writes both."""
    parts = json.loads((ROOT / "release/sbom.cdx.json").read_text("utf-8"))
    main = parts["metadata"]["component"]
    assert (main["name"], main["version"]) == ("llamafactory-recipes", __version__)
    assert {part["name"]: part["version"] for part in parts["components"]} == pinned("release/requirements.txt")
    files = [each for part in parts["components"] for each in part["externalReferences"]]
    hashes = [each["content"] for file in files for each in file["hashes"]]
    assert hashes == re.findall(r"--hash=sha256:(\w+)", (ROOT / "release/requirements.txt").read_text("utf-8"))
    references = {main["bom-ref"], *(part["bom-ref"] for part in parts["components"])}
    assert {link["ref"] for link in parts["dependencies"]} == references


def built(folder: Path, umask: str, moment: float) -> list[Path]:
    """A source archive and a wheel of a copy of this repository, with files of that time and umask."""
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "saves", "__pycache__", ".*_cache", ".hypothesis")
    source, out = folder / "source", folder / "out"
    shutil.copytree(ROOT, source, ignore=left_out)
    out.mkdir()
    for path in source.rglob("*"):
        path.chmod(path.stat().st_mode & ~int(umask, 8))
        os.utime(path, (moment, moment), follow_symlinks=False)
    run([sys.executable, "-c", BUILD, umask, str(out)], source)
    return sorted(out.iterdir())


def run(words: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[list[Path]]:
    pytest.importorskip("hatchling")
    return [
        built(tmp_path_factory.mktemp("one"), "022", 1e9),
        built(tmp_path_factory.mktemp("two") / "deeper", "077", 1.5e9),
    ]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.sample(one_in=4, whole_for=BUILT_OF)
def test_archives_are_built_the_same_twice(archives: list[list[Path]]) -> None:
    """Elsewhere, later, with another umask."""
    one, two = archives
    assert [path.name for path in one] == [path.name for path in two]
    assert len(one) == 2
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.sample(one_in=4, whole_for=BUILT_OF)
def test_both_archives_carry_the_list_of_parts(archives: list[list[Path]]) -> None:
    wheel, source = archives[0]
    text = (ROOT / "release/sbom.cdx.json").read_bytes()
    whole = zipfile.ZipFile(wheel)
    assert whole.read(f"{wheel.name.split('-py3')[0]}.dist-info/sboms/sbom.cdx.json") == text
    with tarfile.open(source) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
    assert {"release/sbom.cdx.json", "release/requirements.txt", "SECURITY.md"} <= names


@pytest.mark.slow
@pytest.mark.process
def test_what_is_pinned_installs_by_its_hashes(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--target", str(tmp_path / "site")]
    done = subprocess.run(
        [*words, "-r", str(ROOT / "release/requirements.txt")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "NewConnectionError" in done.stderr or "NameResolutionError" in done.stderr:
        pytest.skip("no package index answers on this machine")
    assert done.returncode == 0, done.stderr
    words = [sys.executable, "-S", "-P", "-c", "import cerberus, click, yaml; print(cerberus.__file__)"]
    site = {"PYTHONPATH": str(tmp_path / "site")}
    told = subprocess.run(words, env=site, capture_output=True, text=True, check=False)
    assert str(tmp_path) in told.stdout, told.stderr
