"""A name of the catalogue works wherever RECIPE does, from any folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from support import program

from validator.catalogue import bundled_recipes
from validator.catalogue.bundled_recipes import locate_recipe, open_recipe
from validator.errors import RecipeError
from validator.finding import Severity
from validator.recipe.known_folders import catalogue_root

NAME = "qwen3-8b-a100-full"
DEEPSPEED = f"deepspeed={catalogue_root() / 'deepspeed/ds_z3.json'}"
DATA = f"dataset_dir={catalogue_root() / 'data'}"


def run(*words: str) -> Result:
    return program.run(*words, env={"PATH": ""})  # no driver's program, on any machine


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own project, whose files of the same names say something else."""
    monkeypatch.chdir(tmp_path)
    for path in ("deepspeed/ds_z2.json", "deepspeed/ds_z3.json", "data/dataset_info.json"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "overrides"),
    [
        ((), (DEEPSPEED, DATA)),
        (("deepspeed=x.json",), (DATA, "deepspeed=x.json")),
        (("dataset=mine",), ("dataset_dir={here}/data", DEEPSPEED, "dataset=mine")),  # of the user's own registry
        (("dataset_dir=own", "bf16=true"), (DEEPSPEED, "dataset_dir=own", "bf16=true")),
    ],
)
def test_a_name_brings_its_own_paths_and_the_users_count_from_here(
    given: tuple[str, ...], overrides: tuple[str, ...]
) -> None:
    overrides = tuple(each.format(here=Path.cwd()) for each in overrides)
    assert locate_recipe(NAME, given) == (str(bundled_recipes.recipe_path(NAME)), overrides)
    for word in (f"{NAME}.yaml", f"./{NAME}.yml", f"recipes/{NAME}.yaml", f"./recipes/{NAME}"):
        assert locate_recipe(word, given) == locate_recipe(NAME, given)


def test_from_the_catalogues_home_a_name_is_the_file_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(catalogue_root())
    assert locate_recipe(NAME, ["bf16=true"]) == (f"recipes/{NAME}.yaml", ("bf16=true",))


@pytest.mark.parametrize(
    "path", [NAME, f"{NAME}.yaml", f"recipes/{NAME}.yaml", "-", "missing/x.yaml", "x.yaml", "x.jsonl"]
)
def test_paths_stay_as_they_are(here: Path, path: str) -> None:
    (here / NAME).write_text("")
    (here / f"{NAME}.yaml").write_text("")
    (here / "recipes").mkdir()
    (here / f"recipes/{NAME}.yaml").write_text("")
    assert locate_recipe(path, ["a=1"]) == (path, ("a=1",))


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("qwen3-8b-a100-ful", f"is no file, and no recipe of the catalogue; did you mean `{NAME}`?"),
        ("qwen3-8b-a100-ful.yaml", f"did you mean `{NAME}`?"),
        ("recipes/qwen3-8b-a100-ful.yaml", f"did you mean `{NAME}`?"),
        ("recipes/qwen32b-910b-lor.yaml", "did you mean `qwen32b-910b-lora`?"),
        (f"other/{NAME}.yaml", f"the catalogue's is `{NAME}`, without a folder"),
        (f"/home/me/recipes/{NAME}.yaml", f"the catalogue's is `{NAME}`, without a folder"),
        (
            "qwen3-8b",
            "is no file, and no recipe of the catalogue; it is a model: see `lmf-recipes list --model qwen3-8b`",
        ),
        ("Qwen/Qwen3-8B", "it is a model: see `lmf-recipes list --model Qwen3-8B`"),
        ("8xa100", "it is a machine: see `lmf-recipes list --machine 8xa100`"),
        # Without a machine in the name no vendor's recipe comes first.
        (
            "qwen3-8b-lora",
            "is no file, and no recipe of the catalogue; see `lmf-recipes list --model qwen3-8b --method",
        ),
        ("qwen3-8b-h100-lora", "see `lmf-recipes list --model qwen3-8b --method lora`"),
        ("qwen2.5-7b-lora", "see `lmf-recipes list --model qwen2.5-7b --method lora`"),
        ("qwen3-8b-qlora.yaml", "see `lmf-recipes list --model qwen3-8b --method qlora`"),
        ("llama3-8b-chat", "see `lmf-recipes list --model llama3-8b`"),
        ("glm4.7-lora", "did you mean `glm4.7-flash`? `lmf-recipes list --model M` names the recipes of one"),
        ("tiny-lora", "did you mean `tiny-cpu-lora`?"),
        ("stage=sft", "is no file; a setting comes behind the recipe, such as `mine.yaml stage=sft`"),
        ("nonsense", "is no file, and no recipe of the catalogue; `lmf-recipes list` shows all"),
    ],
)
def test_a_word_that_is_neither_gets_a_near_name(word: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        locate_recipe(word)
    assert says in str(caught.value)
    (problem,) = open_recipe(word).problems
    assert (problem.code, problem.severity) == ("LOA001", Severity.ERROR)
    assert run("check", word).exit_code == 1


@pytest.mark.parametrize("word", ["qwen3-8b", "qwen3-8b-a100-ful", "nonsense"])
def test_copy_and_explain_say_the_same_of_an_unknown_name(word: str) -> None:
    copied, explained = (str(run(*words).exception) for words in (("copy", word, "."), ("explain", word)))
    assert copied.partition(";")[2] == explained.partition(";")[2] != ""
    for command in ("explain", "train", "data"):
        assert isinstance(run(command, word).exception, RecipeError)


def test_each_command_takes_a_name(here: Path) -> None:
    (checked,) = json.loads(run("check", NAME, "--format", "json").output)["files"]
    assert (checked["path"], checked["verdict"]) == (str(bundled_recipes.recipe_path(NAME)), "fits")
    assert {each["severity"] for each in checked["diagnostics"]} <= {"note"}
    explained = json.loads(run("explain", NAME, "--format", "json").output)
    assert explained["verdict"] == "fits"
    assert DEEPSPEED in explained["command"][0]
    small = "qwen3-8b-a100x4-lora"  # for whose checkpoints there is room
    line = run("train", small, "--dry-run").output
    assert f"{DEEPSPEED.replace('z3', 'z2')} {DATA} output_dir={here / 'saves' / small}" in line
    assert run("data", "tiny-cpu-lora").output.startswith(str(bundled_recipes.recipe_path("tiny-cpu-lora")))


def test_two_names_are_compared_as_the_catalogue_has_them() -> None:
    compared = json.loads(run("diff", NAME, "qwen3-8b-a100-lora", "--format", "json").output)
    assert (compared["recipe"], compared["path"]) == (NAME, str(bundled_recipes.recipe_path("qwen3-8b-a100-lora")))
    assert compared["changed"]["finetuning_type"] == ["full", "lora"]
    assert [compared[when]["verdict"] for when in ("before", "after")] == ["fits", "fits"]
