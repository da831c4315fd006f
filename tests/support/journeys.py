"""Journeys: stories of docs/tutorials/, docs/howto/ and the READMEs whose console blocks are replayed as a newcomer
would type them, in an empty folder, with the program installed from its wheel and no network.

A block ```console holds commands behind `$ ` and what they print, with `[exit code N]` after what fails. A block of
another kind below `<!-- file NAME -->` is a file that the traveller has; `<!-- on NAME -->` puts the programs of
tests/fixtures/recorded/NAME on PATH from there on. `<!-- on slurm -->` is a real cluster of two nodes, whose jobs end
before the next command. `<!-- empty folder -->` begins another story of the same page, with nothing of the one
before. Of a page with `<!-- journey begins -->` only what stands between that and `<!-- journey ends -->` is replayed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from support import cluster
from support.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    ROOT / "README.md",
    ROOT / "README.zh.md",
]
HOME = "/home/me"
LIBRARY = re.compile(r"/\S+/venv/lib/python[\d.]+/site-packages")
STORY = re.compile(r"(?m)^(?=<!-- empty folder -->$)")
PART = re.compile(r"(?s)(?P<before>.*<!-- journey begins -->\n)(?P<way>.*)(?P<after><!-- journey ends -->.*)")
BLOCK = re.compile(r"(?ms)(?:^<!-- (?P<what>file|on) (?P<name>\S+) -->\n)|^```(?P<kind>\w*)\n(?P<text>.*?)^```$")

# What would leave this machine fails, whatever library tries it.
ALONE = """
import socket

def connect(self, address, *, real=socket.socket.connect):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        with socket.socket(self.family, socket.SOCK_DGRAM) as own:
            try:
                own.bind((address[0], 0))  # an address of this machine
            except OSError:
                raise OSError(f"a journey has no network: {address}") from None
    return real(self, address)

socket.socket.connect = connect
"""
ENDING = (ROOT / "tests" / "support" / "ending" / "sitecustomize.py").read_text("utf-8")


class Story(NamedTuple):
    """The part of a page that is replayed in a folder of its own."""

    page: Path
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.number}"


def stories() -> list[Story]:
    """Return every story of every page; what stands before the first one of several runs no command."""
    parts = [(page, [each for each in STORY.split(page.read_text("utf-8")) if "\n$ " in each]) for page in PAGES]
    return [Story(page, number, text) for page, texts in parts for number, text in enumerate(texts, 1)]


@dataclass
class Journey:
    """A story replayed: its text as it should be, and the commands that `train --dry-run` printed, with their folder.
    `cluster` takes its jobs, whose numbers are told as if each were the next one: asking takes numbers, too."""

    text: str = ""
    dry_runs: list[tuple[Path, str]] = field(default_factory=list)
    cluster: Cluster | None = None
    jobs: dict[str, str] = field(default_factory=dict)

    def shell(self, script: str) -> list[str]:
        """How to start what a command is."""
        words = ["bash", "-c", script]
        return self.cluster.command(*words) if self.cluster else words

    def told(self, output: str) -> str:
        """What a command has printed, once the jobs that it has submitted are over."""
        if self.cluster:
            for number in re.findall(r"(?m)^job (\d+) is queued", output):
                self.jobs[number] = str(101 + len(self.jobs))
                assert self.cluster.end(number) == "COMPLETED", output
        for number, name in self.jobs.items():
            output = re.sub(rf"\b{number}\b", name, output)
        return output

    def meant(self, command: str) -> str:
        """A command with the numbers that jobs really have."""
        for number, name in self.jobs.items():
            command = re.sub(rf"-{name}\b", f"-{number}", command)
        return command


def installation(folder: Path) -> Path:
    """A virtual environment with the wheel, beside the packages of this one; returns its folder of programs."""
    pip = [sys.executable, "-m", "pip"]
    wheels = folder / "wheels"
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, cwd=folder)
    venv.create(folder / "venv", with_pip=False)
    programs = folder / "venv" / "bin"
    wheel = next(wheels.glob("*.whl"))
    install = [*pip, "--python", str(programs / "python"), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, cwd=folder)
    library = next((folder / "venv" / "lib").glob("python*/site-packages"))
    # A folder named in a .pth file comes after the wheel's; its own .pth files, an editable install's, are not read.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (library / "others.pth").write_text("\n".join(others) + "\n")
    (library / "sitecustomize.py").write_text(ALONE + ENDING)
    for name, module in {"llamafactory-cli": "llamafactory.cli", "torchrun": "torch.distributed.run"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{programs}/python" -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "pre-commit").symlink_to(Path(sys.executable).parent / "pre-commit")
    return programs


def replay(story: Story, programs: Path, folder: Path) -> Journey:
    """Run the commands of a story in a folder of its own."""
    with ExitStack() as stack:
        return _walked(story.text, programs, folder, stack)


def _walked(whole: str, programs: Path, folder: Path, stack: ExitStack) -> Journey:
    home = folder / "me"
    here = home / "work"
    here.mkdir(parents=True)
    part = PART.fullmatch(whole)
    journey = Journey(part["before"] if part else "")
    environment = _environment(home, programs)
    text, at, name = part["way"] if part else whole, 0, ""
    for block in BLOCK.finditer(text):
        journey.text += text[at : block.start()]
        at, made = block.end(), block[0]
        if block["name"] == "slurm":
            journey.cluster = stack.enter_context(cluster.running())
            environment |= {"SLURM_CONF": journey.cluster.environment["SLURM_CONF"]}
        elif block["what"] == "on":
            environment["PATH"] = f"{ROOT / 'tests' / 'fixtures' / 'recorded' / block['name']}:{_path(programs)}"
        elif block["what"] == "file":
            name = block["name"]
        elif block["kind"] == "console":
            made = "```console\n" + "".join(_typed(journey, block["text"], here, environment)) + "```"
        elif name:
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_text(block["text"], "utf-8")
            name = ""
        journey.text += made
    journey.text += text[at:] + (part["after"] if part else "")
    return journey


def _environment(home: Path, programs: Path) -> dict[str, str]:
    git = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    git |= {f"GIT_{role}_{part}": "me@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    plain = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    return {"HOME": str(home), "PATH": _path(programs), **git, **plain}


def _path(programs: Path) -> str:
    return f"{programs}:/usr/local/bin:/usr/bin:/bin"


def _typed(journey: Journey, text: str, here: Path, environment: dict[str, str]) -> Iterator[str]:
    """Each command and what it prints now. `cd` holds for the commands after it."""
    for command in _commands(text):
        yield "".join(f"{'$ ' if not at else '> '}{line}\n" for at, line in enumerate(command.split("\n")))
        script = f"cd -- {shlex.quote(str(here))} && {{ {journey.meant(command)}\n}}; code=$?; pwd >&3; exit $code"
        reader, writer = os.pipe()
        ended = subprocess.run(
            journey.shell(f"exec 3>&{writer}; {script}"), env=environment, pass_fds=[writer], text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as pwd:
            here = Path(pwd.read().strip() or here)
        if "--dry-run" in command:
            lines = [line for line in ended.stdout.splitlines() if "llamafactory-cli train " in line]
            journey.dry_runs += [(here, line) for line in lines]
        printed = journey.told(ended.stdout)
        yield LIBRARY.sub("/venv/site-packages", printed.replace(environment["HOME"], HOME))
        if ended.returncode:
            yield f"[exit code {ended.returncode}]\n"


def _commands(text: str) -> list[str]:
    """The commands of a block; `> ` continues one."""
    commands: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif line.startswith("> ") and commands:
            commands[-1] += "\n" + line[2:]
    return commands
