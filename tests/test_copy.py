"""`copy` and `diff`: a copy is right where it stands, nothing is overwritten, and every change is named."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from validator import __version__
from validator.cli import group
from validator.commands import copy as copies
from validator.commands import explain, plan
from validator.diagnostic import RecipeError, Severity
from validator.judge import check
from validator.read.recipe import load
from validator.recipes import catalogue
from validator.recipes.compare import compare
from validator.recipes.copy import copy, with_origin
from validator.show import placed as printer

NAME = "qwen3-8b-a100-full"
# A copy cannot bring the model that `make demo` builds.
PORTABLE = [name for name in catalogue.names() if name != "tiny-cpu-lora"]


def run(*words: str) -> Result:
    return CliRunner().invoke(group, words, standalone_mode=False)


def problems(path: Path) -> set[str]:
    """Codes of errors and warnings, without those on this repository's conventions."""
    found = check.check_file(str(path)).diagnostics
    return {d.code for d in found if d.severity is not Severity.NOTE and not d.code.startswith("CUR")}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Copies differ by what they bring: a cross-section is fast.
@pytest.mark.parametrize(
    "name", [each if at % 9 == 0 else pytest.param(each, marks=pytest.mark.slow) for at, each in enumerate(PORTABLE)]
)
def test_a_copy_is_right_where_it_stands(here: Path, name: str) -> None:
    source = catalogue.file(name)
    placed = copy(name, str(here / "own"))
    assert placed.recipe == here / "own" / f"{name}.yaml"
    assert problems(placed.recipe) <= problems(source)
    written = load(str(placed.recipe))
    assert written.values == load(str(source)).values
    assert written.header["origin"] == f"{name} of llamafactory-recipes {__version__}"


@pytest.mark.parametrize("dest", ["mine.yaml", "mine.yml", "new/deep/mine.yaml"])
def test_a_file_keeps_the_name_it_is_given(here: Path, dest: str) -> None:
    assert copy(NAME, dest).recipe == Path(dest)
    assert (here / dest).is_file()
    assert (here / dest).parent.joinpath("deepspeed/ds_z3.json").is_file()


@pytest.mark.parametrize("name", ["qwen72b-a100x32-full", "qwen3-4b-5090x1-lora-32k"])
def test_the_command_in_a_copy_is_for_the_copy(here: Path, name: str) -> None:
    assert f"llamafactory-cli train recipes/{name}.yaml\n" in catalogue.file(name).read_text("utf-8")
    copy(name, "own/mine.yaml")
    assert "llamafactory-cli train mine.yaml\n" in (here / "own" / "mine.yaml").read_text("utf-8")


def test_a_second_copy_names_its_origin_once() -> None:
    text = catalogue.file(NAME).read_text("utf-8")
    assert with_origin(with_origin(text, "old"), NAME) == with_origin(text, NAME)


def test_nothing_is_overwritten(here: Path) -> None:
    mine = here / "mine.yaml"
    mine.write_text("own work\n", "utf-8")
    with pytest.raises(RecipeError, match="exists and is not overwritten"):
        copy(NAME, "mine.yaml")
    assert mine.read_text("utf-8") == "own work\n"
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]


def test_files_of_the_user_are_kept_and_named(here: Path) -> None:
    (here / "deepspeed").mkdir()
    (here / "deepspeed/ds_z3.json").write_text("{}", "utf-8")
    (here / "data").mkdir()
    (here / "data/dataset_info.json").write_text('{"mine": {"file_name": "mine.json"}}', "utf-8")
    placed = copy(NAME, "mine.yaml")
    assert placed.files == ()
    assert "does not define alpaca_gpt4_en, alpaca_gpt4_zh" in placed.notes[1]
    assert "differs from the catalogue's" in placed.notes[0]
    assert (here / "deepspeed/ds_z3.json").read_text("utf-8") == "{}"


def test_a_folder_above_that_has_everything_is_used(here: Path) -> None:
    copy(NAME, "first.yaml")
    placed = copy(NAME, "inner/second.yaml")
    assert (placed.files, placed.folder) == ((), here)
    assert printer.text(placed).splitlines()[-1] == "run: lmf-recipes train inner/second.yaml"


def test_a_recipe_without_engine_gets_no_engine_file(here: Path) -> None:
    copy("qwen3-8b-4090x1-lora", "mine.yaml")
    assert sorted(path.name for path in here.iterdir()) == ["data", "mine.yaml"]


def test_the_registry_defines_what_the_recipe_uses_and_no_more(here: Path) -> None:
    copy(NAME, "mine.yaml")
    assert set(json.loads((here / "data/dataset_info.json").read_text("utf-8"))) == {"alpaca_gpt4_en", "alpaca_gpt4_zh"}


@pytest.mark.parametrize("words", [("copy", "qwen3-8b-a100-ful", "x.yaml"), ("diff", "qwen3-8b-a100-ful", "x.yaml")])
def test_a_near_miss_gets_a_suggestion(here: Path, words: tuple[str, ...]) -> None:
    result = run(*words)
    assert isinstance(result.exception, RecipeError)
    assert f"did you mean `{NAME}`?" in str(result.exception)
    assert not list(here.iterdir())


def test_an_unwritable_place_is_one_sentence(here: Path) -> None:
    (here / "file").write_text("", "utf-8")
    with pytest.raises(RecipeError, match="cannot be written"):
        copy(NAME, "file/mine.yaml")


@pytest.mark.usefixtures("here")
def test_a_fresh_copy_does_not_differ() -> None:
    copy(NAME, "mine.yaml")
    same = compare(NAME, "mine.yaml")
    assert [same.changed, same.added, same.removed] == [{}, {}, {}]
    assert same.before == same.after
    assert "no setting differs" in run("diff", NAME, "mine.yaml").output


@pytest.mark.usefixtures("here")
def test_every_kind_of_change_is_named() -> None:
    copy(NAME, "mine.yaml")
    text = Path("mine.yaml").read_text("utf-8")
    text = text.replace("plot_loss: true\n", "").replace("cutoff_len: 2048", "cutoff_len: 8192\npacking: true")
    Path("mine.yaml").write_text(text.replace("# samples: 28000", "# samples: 5000"), "utf-8")
    found = json.loads(run("diff", NAME, "mine.yaml", "--format", "json").output)
    assert found["changed"] == {"(header) samples": [28000, 5000], "cutoff_len": [2048, 8192]}
    assert (found["added"], found["removed"]) == ({"packing": True}, {"plot_loss": True})
    assert found["after"]["device_gib"] > found["before"]["device_gib"]


def test_a_change_inside_the_deepspeed_file_is_named(here: Path) -> None:
    copy(NAME, "mine.yaml")
    file = here / "deepspeed/ds_z3.json"
    file.write_text(file.read_text("utf-8").replace('"overlap_comm": false', '"overlap_comm": true'), "utf-8")
    changed = compare(NAME, "mine.yaml").changed
    assert changed == {"(deepspeed file) zero_optimization.overlap_comm": (False, True)}


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), ("a: [", "LOA002")])
def test_a_file_that_cannot_be_compared_is_refused(here: Path, content: str | None, message: str) -> None:
    if content is not None:
        Path("mine.yaml").write_text(content, "utf-8")
    with pytest.raises(RecipeError, match=message):
        compare(NAME, str(here / "mine.yaml"))


def test_names_complete_in_the_shell() -> None:
    command = copies.command
    begun = command.params[0].shell_complete(click.Context(command), "qwen3-8b-a100-fu")
    assert NAME in [item.value for item in begun]
    assert all(item.value.startswith("qwen3-8b-a100-fu") for item in begun)


def test_models_and_files_complete_in_the_shell() -> None:
    command = plan.command
    model = next(option for option in command.params if option.name == "model")
    assert [item.value for item in model.shell_complete(click.Context(command), "qwen3-1")] == [
        "qwen3-1.7b",
        "qwen3-14b",
    ]
    recipe = explain.command.params[0]
    assert [item.type for item in recipe.shell_complete(click.Context(command), "rec")] == ["file"]
