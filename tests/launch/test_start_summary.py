"""What a dry run says: the verdict, time, downloads, where the result lies, what was verified, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import program
from support.clean_recipe import RECIPE

from validator.doctor import start_checks
from validator.doctor.check_result import error
from validator.errors import RecipeError
from validator.launch import local_launch

HEADER = "# /// recipe\n# machine: 1xa100-80g\n# host_ram_gib: 256\n# ///\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a recipe, on a machine without devices on which nothing is missing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(start_checks, "PREFLIGHT", ())
    monkeypatch.setattr(local_launch, "check_can_start", lambda _prepared, **_more: None)
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text('{"alpaca_gpt4_en": {"hf_hub_url": "llamafactory/alpaca_gpt4_en"}}')
    Path("x.yaml").write_text(HEADER + RECIPE)


def summary(*words: str) -> tuple[int, dict[str, str], str]:
    """The exit code, the lines of the summary, and the command."""
    done = program.run("train", "x.yaml", "--dry-run", *words)
    lines = (line.partition("  ") for line in done.stderr.splitlines())
    return done.exit_code, {name: text.strip() for name, _, text in lines if text and name}, done.stdout


def test_a_dry_run_says_what_a_start_would_do() -> None:
    code, said, command = summary()
    assert code == 0
    assert said["memory"].startswith("fits: 19")
    assert "usable), " in said["memory"]
    assert " expected (" in said["time"]
    assert " steps; assumed: samples of some " in said["time"]
    assert said["time"].endswith(" tokens, as published of the data sets")
    assert said["download"].startswith("`Qwen/Qwen2.5-7B-Instruct`, 14.2 GiB from Hugging Face into ")
    assert said["download"].endswith("; data set `llamafactory/alpaca_gpt4_en`")
    assert said["result"].startswith(f"{Path.cwd()}/saves/x, up to ")
    assert said["verified"] == "keys and values, paths, packages of this Python"
    assert said["not verified"].startswith("devices and free disk of 1xa100-80g, whether the hub answers")
    assert said["start"] == "nothing that was verified stands in its way"
    assert command.startswith("llamafactory-cli train ")


@pytest.mark.parametrize(("seconds", "is_told"), [(7200, True), (1800, False)])
def test_a_limit_that_only_some_commands_set_is_explained(seconds: int, is_told: bool) -> None:
    Path("x.yaml").write_text(
        HEADER.replace("1xa100-80g", "2x8xascend-910b-64g") + RECIPE + f"ddp_timeout: {seconds}\n"
    )
    _, said, command = summary()
    assert ("HCCL_EXEC_TIMEOUT=7200" in command, "environment" in said) == (is_told, is_told)


@pytest.mark.parametrize(
    ("name", "template", "licence"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3", "llama3.1"),
        ("google/gemma-3-1b-it", "gemma", "gemma"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama3", ""),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral", ""),
    ],
)
def test_a_licence_to_accept_before_the_download_is_named(name: str, template: str, licence: str) -> None:
    said = summary(f"model_name_or_path={name}", f"template={template}")[1]["download"]
    assert said.startswith(f"`{name}`, ")
    assert (f"gated: accept its licence ({licence})" in said) == bool(licence)
    assert ("gated" in said) == bool(licence)


def test_what_is_not_known_is_said() -> None:
    Path("x.yaml").write_text(RECIPE)
    _, said, _ = summary()
    assert said["memory"] == "not judged: model or machine is not known"
    assert said["time"].startswith("not predicted: ")


def test_the_exit_code_is_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_checks, "PREFLIGHT", [lambda _run, _context: [error("torch is missing")]])
    code, said, command = summary()
    assert (code, said["start"]) == (1, "would be refused: torch is missing")
    assert command.startswith("llamafactory-cli train ")
    # For a machine elsewhere it does not count what is missing here.
    code, said, _ = summary("--machine", "1xh100-80g")
    assert (code, said["start"]) == (0, "here it would be refused: torch is missing")
    assert "packages" not in said["verified"]


def test_a_missing_launcher_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_prepared: object, **_more: object) -> None:
        raise RecipeError("llamafactory-cli is not installed here")

    monkeypatch.setattr(local_launch, "check_can_start", refuse)
    code, said, _ = summary()
    assert (code, said["start"]) == (1, "would be refused: llamafactory-cli is not installed here")
    Path("x.yaml").write_text(RECIPE.replace("bf16: true\n", ""))
    started = program.run("train", "x.yaml", "use_cpu=true")
    assert "llamafactory-cli is not installed here" in str(started.exception)
    assert not Path("saves").exists(), "a start that is refused leaves no folder"


def test_what_is_in_the_cache_or_a_folder_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert summary()[1]["download"] == "nothing"
