"""Run the fast tests on each release of Python, with the oldest and the newest packages that pyproject.toml admits.

python tools/try_pythons.py                      python3.11 to python3.14, those of them that are on PATH
python tools/try_pythons.py /path/to/python3.14  this one

Each environment and the log of its tests stay in build/versions/. Oldest is the oldest release that the bound admits
and that has a wheel for this Python; the tools of the tests themselves are the newest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "versions"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}


class Tried(NamedTuple):
    """The fast tests in one environment. `packages` are the releases of what pyproject.toml asks for."""

    python: str
    age: str
    packages: str
    passed: int
    failed: int

    def __str__(self) -> str:
        return f"Python {self.python}, {self.age} ({self.packages}): {self.passed} passed, {self.failed} failed"


def main(pythons: Sequence[str]) -> int:
    """Exit code 1 where a test failed somewhere, or nothing could be tried."""
    sound = []
    for each in tried(pythons or PYTHONS):
        print(each, flush=True)
        sound.append(each.failed == 0)
    return int(not sound or not all(sound))


def tried(pythons: Sequence[str] = PYTHONS) -> Iterator[Tried]:
    """Each interpreter that is here, with either age of packages."""
    BUILD.mkdir(parents=True, exist_ok=True)
    runner = uv()
    for name in pythons:
        python = shutil.which(name)
        # pyenv puts a name on PATH also where no such Python is chosen.
        if python and subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0:
            yield from (_try(runner, python, age) for age in RESOLUTIONS)
        else:
            print(f"{name} is not on PATH, or does not start, and was not tried", file=sys.stderr)


def uv() -> str:
    """uv, of which pip lacks the choice of the oldest releases and the hashes, in an environment of its own."""
    folder = BUILD / "uv"
    if not (folder / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "bin" / "uv")


def _try(runner: str, python: str, age: str) -> Tried:
    release = _printed([python, "-c", "import platform; print(platform.python_version())"])
    folder = BUILD / f"{release}-{age}"
    chosen = folder.with_suffix(folder.suffix + ".txt")
    words = ["--extra", "data", "--resolution", RESOLUTIONS[age], "--only-binary", ":all:", "--quiet"]
    _run([runner, "pip", "compile", "pyproject.toml", *words, "--python", python, "--output-file", str(chosen)])
    _run([runner, "venv", "--quiet", "--clear", "--python", python, str(folder)])
    here = ["--quiet", "--python", str(folder / "bin" / "python")]
    _run([runner, "pip", "install", *here, "--constraint", str(chosen), "--editable", ".[test]"])
    passed, failed = _tests(folder)
    return Tried(release, age, _packages(chosen), passed, failed)


def _run(words: Sequence[str]) -> None:
    subprocess.run(words, cwd=ROOT, check=True)


def _printed(words: Sequence[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _packages(chosen: Path) -> str:
    """What pip-compile wrote for a package that pyproject.toml names itself."""
    own = r"(?m)^(\S+)==(\S+)\n    # via(?:\n    #  )? llamafactory-recipes"
    return ", ".join(f"{name} {release}" for name, release in re.findall(own, chosen.read_text()))


def _tests(folder: Path) -> tuple[int, int]:
    """Tests that passed, and tests that failed or could not start."""
    log = folder.with_suffix(folder.suffix + ".log")
    variables = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    with log.open("w") as stream:
        words = [str(folder / "bin" / "pytest"), "-q", "-p", "no:cacheprovider"]
        code = subprocess.run(words, cwd=ROOT, env=variables, stdout=stream, stderr=stream, check=False).returncode
    last = log.read_text().rstrip().rpartition("\n")[2]
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", last)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return counts.get("passed", 0), failed or int(code != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
