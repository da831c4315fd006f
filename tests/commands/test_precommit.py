"""The hooks in real pre-commit runs, on a temporary repository, with no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from robustness import hostile_repository
from support.clean_recipe import RECIPE

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROOT = Path(__file__).parents[2]
HOOKS = [".pre-commit*.yaml", "validator/commands/check.py", "validator/commands/check_files.py"]
GOOD = f"{RECIPE}deepspeed: deepspeed/ds_z2.json\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """PATH with this environment's tools and with `lmf-recipes` running the checkout; git without a user's settings."""
    tools = tmp_path / "bin"
    tools.mkdir()
    script = tools / "lmf-recipes"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m validator "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    who = {f"GIT_{role}_{part}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    git = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    home = {"PRE_COMMIT_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**inherited, **who, **git, **home, "PATH": path, "PYTHONPATH": str(ROOT)}


def repository(folder: Path, environment: dict[str, str], config: str) -> Path:
    """A repository with recipes/, deepspeed/ and the hooks installed."""
    (folder / "recipes").mkdir(parents=True)
    shutil.copytree(ROOT / "deepspeed", folder / "deepspeed")
    shutil.copytree(ROOT / "data", folder / "data")
    (folder / ".pre-commit-config.yaml").write_text(config)
    run(folder, environment, "git", "init", "--quiet", "--template=")
    run(folder, environment, "pre-commit", "install")
    return folder


def run(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert words[1] == "commit" or done.returncode == 0, done.stdout + done.stderr
    return done


def commit(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    run(folder, environment, "git", "add", "--all")
    return run(folder, environment, "git", "commit", "--message", "x")


def ours() -> str:
    """This repository's own configuration, without the Python hooks, which a repository of recipes has no use for."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    config["repos"][0]["hooks"] = [hook for hook in config["repos"][0]["hooks"] if hook["id"] == "lmf-recipes"]
    return yaml.safe_dump(config)


def published(name: str) -> str:
    """A published hook as another repository uses it, but from the tools at hand instead of a new environment."""
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    return yaml.safe_dump({"repos": [{"repo": "local", "hooks": [{**hooks[name], "language": "system"}]}]})


def for_others() -> str:
    return published("lmf-recipes")


def fixing() -> str:
    return published("lmf-recipes-fix")


@pytest.mark.sample(one_in=2, whole_for=HOOKS)
@pytest.mark.parametrize("config", [ours, for_others, fixing])
def test_a_broken_recipe_fails_the_commit_and_a_mended_one_passes(
    config: object, tmp_path: Path, environment: dict[str, str]
) -> None:
    assert callable(config)
    folder = repository(tmp_path / "repo", environment, config())
    recipe = folder / "recipes" / "qwen3-8b-lora.yaml"
    recipe.write_text(GOOD.replace("learning_rate:", "learing_rate:"))
    refused = commit(folder, environment)
    assert refused.returncode == 1
    assert "did you mean `learning_rate`? [SCH001]" in refused.stdout + refused.stderr
    recipe.write_text(GOOD)
    passed = commit(folder, environment)
    assert passed.returncode == 0, passed.stdout + passed.stderr


def test_a_fix_fails_the_commit_once_and_touches_no_file_that_is_not_in_it(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = repository(tmp_path / "repo", environment, fixing())
    staged, other = folder / "recipes" / "staged.yaml", folder / "recipes" / "other.yaml"
    text = GOOD + "ddp_timeout: 180000000\n"

    other.write_text(text)
    run(folder, environment, "git", "add", "--all")
    run(folder, environment, "git", "commit", "--no-verify", "--message", "x")
    staged.write_text(text)
    (folder / "deepspeed" / "ds_z2.json").write_text((ROOT / "deepspeed" / "ds_z2.json").read_text() + "\n")
    assert commit(folder, environment).returncode == 1
    assert (staged.read_text(), other.read_text()) == (text.replace("180000000", "604800"), text)
    passed = commit(folder, environment)
    assert passed.returncode == 0, passed.stdout + passed.stderr


def test_a_broken_deepspeed_file_fails_the_commit(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = repository(tmp_path / "repo", environment, ours())
    (folder / "deepspeed" / "ds_z3.json").write_text('{"zero_optimization": {"stage": 3},}')
    refused = commit(folder, environment)
    assert refused.returncode == 1
    assert "not valid JSON" in refused.stdout + refused.stderr


OTHERS: dict[str, str | bytes] = {
    "compose.yaml": "services: {web: {image: nginx}}\n",
    "package.json": '{"name": "x", "scripts": {}}',
    "chart/several.yaml": "kind: Pod\n---\n{{ .Values.x }}\n",
    ".github/workflows/test.yml": "on: push\njobs: {test: {runs-on: ubuntu-latest, steps: [{run: make}]}}\n",
    "latin.yml": "name: größe\n".encode("latin-1"),
}


def test_another_repository_passes_with_what_copy_writes(tmp_path: Path, environment: dict[str, str]) -> None:
    """Recipes where their users put them, and files that are not ours, one of them no YAML and one not UTF-8."""
    folder = repository(tmp_path / "repo", environment, for_others())
    for name in ("data", "deepspeed"):
        shutil.rmtree(folder / name)
    for where, dest in [("recipes", "."), (".", "."), (".", "train/")]:
        run(folder / where, environment, "lmf-recipes", "copy", "qwen3-8b-a100-full", dest)
    assert (folder / "recipes/data/dataset_info.json").is_file()
    run(folder, environment, "lmf-recipes", "copy", "qwen3-8b-a100x1-lora-dpo", "train/own/")
    for name, content in OTHERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    passed = commit(folder, environment)
    assert passed.returncode == 0, passed.stdout + passed.stderr


def test_a_change_of_a_deepspeed_file_is_judged_with_its_recipes(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = repository(tmp_path / "repo", environment, for_others())
    run(folder, environment, "lmf-recipes", "copy", "qwen72b-910b-lora", "train/")
    assert commit(folder, environment).returncode == 0
    shutil.copy(ROOT / "deepspeed/ds_z2.json", folder / "deepspeed/ds_z3.json")
    refused = commit(folder, environment)
    assert refused.returncode == 1
    assert "train/qwen72b-910b-lora.yaml" in refused.stdout + refused.stderr


@pytest.mark.sample(one_in=2, whole_for=HOOKS)
@pytest.mark.parametrize("config", [for_others, fixing])
def test_the_hook_runs_nothing_of_it(config: object, tmp_path: Path, environment: dict[str, str]) -> None:
    """On what a stranger's pull request may hold."""
    assert callable(config)
    folder = repository(tmp_path / "repo", environment, config())
    ran = tmp_path / "ran"
    hostile_repository.repository(folder, ran)
    run(folder, environment, "git", "add", "--all")
    everywhere = ["pre-commit", "run", "--all-files"]
    done = subprocess.run(everywhere, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "LOA002" in done.stdout + done.stderr
    assert [*ran.iterdir()] == []
    # The hook that pre-commit puts into .git runs it as a module, which would look into the working folder.
    refused = commit(folder, {**environment, "PYTHONSAFEPATH": "1"})
    assert "LOA002" in refused.stdout + refused.stderr
    assert [*ran.iterdir()] == []


def test_other_files_are_left_alone(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = repository(tmp_path / "repo", environment, ours())
    (folder / "notes.yaml").write_text("learing_rate: 1\n")
    assert commit(folder, environment).returncode == 0


def test_every_hook_of_this_repository_passes_here() -> None:
    """ruff, ruff format and mypy are run by `make test` itself; here only that their hooks are what they say."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"]: hook["entry"].split()[0] for repo in config["repos"] for hook in repo["hooks"]}
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert hooks == {"ruff": "ruff", "ruff-format": "ruff", "mypy": "mypy", "lmf-recipes": "lmf-recipes"}
    for word in ("ruff", "mypy"):
        if not shutil.which(word, path=Path(sys.executable).parent):
            pytest.skip(f"{word} is not installed")


def test_both_configurations_are_valid() -> None:
    for words in (["validate-config", ".pre-commit-config.yaml"], ["validate-manifest", ".pre-commit-hooks.yaml"]):
        tool = Path(sys.executable).parent / "pre-commit"
        done = subprocess.run([tool, *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
