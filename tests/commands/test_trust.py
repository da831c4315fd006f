"""What SECURITY.md promises of a repository that strangers may change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner
from robustness import hostile_repository, outside
from robustness.stress_trust import ASKING

from validator.cli import group

PROGRAM = str(Path(sys.executable).with_name("lmf-recipes"))
# Keeps, by the hooks that Python itself calls, which programs and connections a process asks for, and what it
# writes or removes.
GUARD = """\
import os
import sys

ASKS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate")


def note(event, arguments):
    writes = event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    changes = event in CHANGES or writes and arguments[0] != os.environ["WATCHED"]
    if event in ASKS or changes and "__pycache__" not in str(arguments):
        with open(os.environ["WATCHED"], "a") as log:
            log.write(f"{event} {arguments}\\n")


sys.addaudithook(note)
"""
KNOWN = "recipes/known.yaml"
COMMANDS = {
    "check": ["check", "recipes"],
    "hook": ["check", "--hook", "--strict", KNOWN, "recipes/tagged.yaml", "data/dataset_info.json", "conftest.py"],
    "fix": ["check", "--hook", "--fix", "--unsafe-fixes", "recipes/interpolated.yaml"],
    "sarif": ["check", "--format", "sarif", "recipes"],
    "explain": ["explain", KNOWN, "--machine", "1xa100-80g"],
    "list": ["list", "--model", "qwen3-4b"],
}


class Stranger:
    """A hostile repository, and what came of running the program in it."""

    def __init__(self, folder: Path) -> None:
        self.ran, self.watched, guard = folder / "ran", folder / "watched", folder / "guard"
        self.folder = hostile_repository.repository(folder / "repo", self.ran)
        guard.mkdir()
        (guard / "sitecustomize.py").write_text(GUARD)
        self._environment = {**os.environ, "PYTHONPATH": str(guard), "WATCHED": str(self.watched)}

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self._environment, **more}
        return subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True)

    @property
    def code(self) -> list[str]:
        """Which of its files were run."""
        return sorted(path.name for path in self.ran.iterdir())

    @property
    def asked(self) -> str:
        """Programs, connections, and what was written or removed."""
        return self.watched.read_text() if self.watched.exists() else ""


def said(*words: str, **environment: str) -> str:
    """What the program says on both streams, within this process, and why it fails."""
    done = CliRunner(env=environment).invoke(group, words)
    assert done.exit_code in (0, 1)
    return f"{done.output}{done.exception or ''}"


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


@pytest.mark.sample(one_in=3, whole_for=["validator/commands/*", "validator/recipe/*"])
@pytest.mark.process
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_nothing_of_it_runs_and_nothing_is_asked_or_written(words: list[str], stranger: Stranger) -> None:
    done = stranger.run(PROGRAM, *words)
    assert done.returncode in (0, 1), done.stderr
    fixed = [line for line in stranger.asked.splitlines() if "interpolated.yaml" in line]
    assert (stranger.code, stranger.asked.splitlines()) == ([], fixed)
    assert bool(fixed) == ("--fix" in words)


@pytest.mark.process
def test_the_module_runs_nothing_of_it(stranger: Stranger) -> None:
    done = stranger.run(sys.executable, "-m", "validator", "check", KNOWN)
    assert (done.returncode, stranger.code) == (1, []), done.stderr


def test_the_guards_see_what_they_are_to_see(stranger: Stranger) -> None:
    stranger.run(sys.executable, "-c", "import subprocess, socket; socket.getaddrinfo('localhost', 1)")
    stranger.run(sys.executable, "-P", "-c", "import socket; socket.getaddrinfo('localhost', 1)")
    assert stranger.code == ["subprocess"]
    assert re.findall(r"(?m)^[\w.]+", stranger.asked) == ["open", "socket.getaddrinfo"]  # in this order


@pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "validator/simulation/*"])
@pytest.mark.slow
@pytest.mark.process
def test_a_simulation_runs_nothing_of_it(stranger: Stranger) -> None:
    """Neither its modules in the process that answers, nor the classes of its config.json."""
    for package in ("torch", "transformers", "llamafactory"):
        pytest.importorskip(package)
    words = ["explain", "recipes/remote.yaml", "--simulate", "--full", "--machine", "1xa100-80g"]
    words.append("lora_target=in_proj")
    done = stranger.run(PROGRAM, *words, XDG_CACHE_HOME=str(stranger.folder.parent))
    assert "simulated: no formula knows the model" in done.stdout, done.stderr
    assert stranger.code == []


@pytest.mark.sample(one_in=3, whole_for=["validator/recipe/*"])
def test_nothing_of_files_outside_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of those that benchmarks/robustness/stress_trust.py tries."""
    here = tmp_path / "repo"
    here.mkdir()
    monkeypatch.chdir(here)
    sample = [*islice(outside.cases(), 0, None, 41)]
    assert len({case.kind for case in sample}) == 9
    for number, case in enumerate(sample):
        recipe = here / "recipe.yaml"
        recipe.write_text(outside.laid_out(case, tmp_path / f"{number}"))
        assert outside.WORD not in outside.shown(recipe), case


LINKS = {
    "recipe": ("recipes/x.yaml", f"learing_rate: {outside.WORD}\n{outside.WORD}: 1\n"),
    "broken recipe": ("recipes/x.yaml", f"{outside.WORD}: [\n"),
    "DeepSpeed file": ("recipes/x.json", f'{{"zero_optimization": {{"stage": "{outside.WORD}"}}}}'),
    "folder": ("recipes", f"learing_rate: {outside.WORD}\n"),
}


@pytest.mark.parametrize(("name", "text"), LINKS.values(), ids=LINKS)
def test_a_link_that_leads_outside_shows_nothing_and_is_not_fixed(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "repo", tmp_path / "there"
    file = there / "x.yaml" if name == "recipes" else there
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    (here / name).parent.mkdir(parents=True)
    (here / name).symlink_to(there)
    monkeypatch.chdir(here)
    path = "recipes/x.yaml" if name == "recipes" else name
    assert outside.WORD not in outside.shown(Path(path))
    for option in ("--fix", "--diff"):
        assert outside.WORD not in said("check", option, "--unsafe-fixes", path)
    assert file.read_text() == text


def test_a_registry_alone_shows_nothing_of_rows_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(f'{{"{outside.WORD}": "{outside.WORD}"}}\n')
    (tmp_path / "broken.json").write_text(f'[{{"{outside.WORD}": 1}}, {outside.WORD}]')
    here = tmp_path / "repo/data"
    here.mkdir(parents=True)
    (tmp_path / "repo/.git").mkdir()
    files = ("../../rows.jsonl", "../../broken.json")
    (here / "dataset_info.json").write_text(json.dumps({name: {"file_name": name} for name in files}))
    monkeypatch.chdir(here.parent)
    shown = outside.shown(Path("data/dataset_info.json"))
    assert "PTH110" in shown
    assert outside.WORD not in shown


def test_what_git_keeps_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration that CI clones with may hold a token."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config.yaml").write_text(f"[{outside.WORD}]\n")
    (tmp_path / "x.yaml").symlink_to(".git/config.yaml")
    monkeypatch.chdir(tmp_path)
    assert outside.WORD not in outside.shown(Path("x.yaml"))


QUOTED = {
    "in the working folder": ("repo", "repo/x.yaml", "repo/ds.json"),
    "in its repository": ("repo/recipes", "repo/recipes/x.yaml", "repo/deepspeed/ds.json"),
    "beside a recipe elsewhere": ("else", "repo/x.yaml", "repo/ds.json"),
    "in the repository of a recipe elsewhere": ("else", "repo/recipes/x.yaml", "repo/deepspeed/ds.json"),
}


@pytest.mark.parametrize(("here", "recipe", "zero"), QUOTED.values(), ids=QUOTED)
def test_files_of_the_repository_are_quoted(
    here: str, recipe: str, zero: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (here, Path(recipe).parent, Path(zero).parent, "repo/.git"):
        (tmp_path / each).mkdir(parents=True, exist_ok=True)
    (tmp_path / zero).write_text(f'{{"{outside.WORD}": 1}}')
    case = outside.Case("", {}, {"deepspeed": str(tmp_path / zero)})
    (tmp_path / recipe).write_text(outside.laid_out(case, tmp_path))
    monkeypatch.chdir(tmp_path / here)
    assert f"DeepSpeed key `{outside.WORD}` is not known" in outside.shown(tmp_path / recipe)


def test_who_starts_a_recipe_is_told_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    case = outside.Case("", {"ds.json": f'{{"{outside.WORD}": 1}}'}, {"deepspeed": f"{outside.OUT}/ds.json"})
    Path("x.yaml").write_text(outside.laid_out(case, tmp_path))
    assert f"DeepSpeed key `{outside.WORD}` is not known" in said("train", "x.yaml", "--dry-run")


ADDRESS = f"http://{outside.WORD}:{outside.WORD}@127.0.0.1:9"
SECRET = {
    **dict.fromkeys(("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OWN"), outside.WORD),
    **dict.fromkeys(("HF_ENDPOINT", "https_proxy", "http_proxy"), ADDRESS),
}


@pytest.mark.parametrize(
    "words",
    [
        ["check", "x.yaml"],
        ["explain", "x.yaml"],
        ["train", "x.yaml", "--dry-run"],
        ["submit", "x.yaml", "--to", "slurm", "--dry-run"],
        ["submit", "x.yaml", "--to", "skypilot", "--dry-run"],
    ],
    ids=" ".join,
)
def test_no_secret_of_the_environment_is_shown(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in a job, nor in the address of a mirror that the run needs."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(ASKING)
    assert outside.WORD not in said(*words, **SECRET)


@pytest.mark.slow
@pytest.mark.process
def test_no_secret_of_the_environment_is_shown_by_doctor(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(ASKING)
    words, environment = [PROGRAM, "doctor", "x.yaml"], {**os.environ, **SECRET}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert outside.WORD not in done.stdout + done.stderr
