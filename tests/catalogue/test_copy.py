"""`copy` and `diff`: a copy is right where it stands, nothing is overwritten, and every change is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.program import run_to_exception as run

from validator import __version__
from validator.catalogue import bundled_recipes
from validator.catalogue.recipe_copy import copy_recipe, with_origin
from validator.catalogue.recipe_diff import compare_recipes
from validator.check import checking
from validator.cli import group
from validator.commands import copy as copies
from validator.commands import explain, plan
from validator.errors import RecipeError
from validator.finding import Severity
from validator.output import written_files as printer
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import load_recipe, parse_recipe, with_overrides
from validator.run.dataset_registry import hub_entry_remedy, read_registry

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/catalogue/*", "validator/commands/*"])

NAME = "qwen3-8b-a100-full"
# One device with DeepSpeed, whose recipe has to say how to get torchrun; its catalogue is that of the tests.
ONE_DEVICE = (catalogue_root() / "tests" / "fixtures", "llama3.2-1b-4090x1-full-offload")


def problems(path: Path) -> set[str]:
    """Codes of errors and warnings, without those on this repository's conventions."""
    found = checking.check_file(str(path)).diagnostics
    return {d.code for d in found if d.severity is not Severity.NOTE and not d.code.startswith("CUR")}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Copies differ by what they bring: a cross-section is fast.
@pytest.mark.sample(one_in=10)
@pytest.mark.parametrize(
    "name",
    [
        each if at % 9 == 0 or each == "tiny-cpu-lora" else pytest.param(each, marks=pytest.mark.slow)
        for at, each in enumerate(bundled_recipes.recipe_names())
    ],
)
def test_a_copy_is_right_where_it_stands(here: Path, name: str) -> None:
    source = bundled_recipes.recipe_path(name)
    placed = copy_recipe(name, str(here / "own"))
    assert placed.recipe == here / "own" / f"{name}.yaml"
    assert problems(placed.recipe) <= problems(source)
    written = load_recipe(str(placed.recipe))
    assert written.values == load_recipe(str(source)).values
    assert written.header["origin"] == f"{name} of llamafactory-recipes {__version__}"


@pytest.mark.parametrize("dest", ["mine.yaml", "mine.yml", "new/deep/mine.yaml"])
def test_a_file_keeps_the_name_it_is_given(here: Path, dest: str) -> None:
    assert copy_recipe(NAME, dest).recipe == Path(dest)
    assert (here / dest).is_file()
    assert (here / dest).parent.joinpath("deepspeed/ds_z3.json").is_file()


@pytest.mark.parametrize("word", [NAME, f"recipes/{NAME}.yaml", f"{NAME}.yaml"])
@pytest.mark.parametrize(("dest", "around"), [("recipes/", "."), ("recipes/mine.yaml", "."), ("lab/recipes", "lab")])
def test_what_a_recipe_in_recipes_reads_lies_beside_that_folder(here: Path, word: str, dest: str, around: str) -> None:
    placed = copy_recipe(word, dest)
    assert (placed.folder, placed.start.parts[0]) == (here / around, "recipes")
    assert {str(path.relative_to(here / around)) for path in placed.files} == {
        "deepspeed/ds_z3.json",
        "data/dataset_info.json",
    }
    assert problems(placed.recipe) <= problems(bundled_recipes.recipe_path(NAME))


@pytest.mark.usefixtures("here")
def test_a_file_of_ones_own_is_not_taken_for_the_catalogues() -> None:
    placed = copy_recipe(NAME, "recipes/")
    with pytest.raises(RecipeError, match=f"is a file of yours, .* give `{NAME}`"):
        copy_recipe(f"recipes/{NAME}.yaml", "other/")
    assert copy_recipe(NAME, "other/").recipe != placed.recipe


@pytest.mark.parametrize(("root", "name"), [(catalogue_root(), "qwen72b-a100x16-full-offload"), ONE_DEVICE])
def test_the_command_in_a_copy_is_for_the_copy(
    here: Path, monkeypatch: pytest.MonkeyPatch, root: Path, name: str
) -> None:
    monkeypatch.setattr(bundled_recipes, "catalogue_root", lambda: root)
    assert f"llamafactory-cli train recipes/{name}.yaml\n" in bundled_recipes.recipe_path(name).read_text("utf-8")
    copy_recipe(name, "own/mine.yaml")
    assert "llamafactory-cli train mine.yaml\n" in (here / "own" / "mine.yaml").read_text("utf-8")


def test_a_second_copy_names_its_origin_once() -> None:
    text = bundled_recipes.recipe_path(NAME).read_text("utf-8")
    assert with_origin(with_origin(text, "old"), NAME) == with_origin(text, NAME)


def test_nothing_is_overwritten(here: Path) -> None:
    mine = here / "mine.yaml"
    mine.write_text("own work\n", "utf-8")
    with pytest.raises(RecipeError, match="exists and is not overwritten"):
        copy_recipe(NAME, "mine.yaml")
    assert mine.read_text("utf-8") == "own work\n"
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]


REGISTRY = {
    "mine": {"file_name": "mine.json"},
    "alpaca_gpt4_en": {"hf_hub_url": "llamafactory/alpaca_gpt4_en", "ms_hub_url": "llamafactory/alpaca_gpt4_en"},
    # As LLaMA-Factory's own registry has it: more than ours says.
    "alpaca_gpt4_zh": {"hf_hub_url": "llamafactory/alpaca_gpt4_zh", "ms_hub_url": "llamafactory/alpaca_gpt4_zh",
                       "om_hub_url": "State_Cloud/alpaca-gpt4-data-zh"},
}  # fmt: skip


def write(path: Path, content: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return path.read_text("utf-8")


def everything(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def test_entries_that_a_registry_lacks_are_added(here: Path) -> None:
    write(here / "data/dataset_info.json", {"mine": REGISTRY["mine"]})
    placed = copy_recipe(NAME, "mine.yaml")
    assert placed.files == (here / "deepspeed/ds_z3.json", here / "data/dataset_info.json")
    assert list(json.loads((here / "data/dataset_info.json").read_text("utf-8"))) == list(REGISTRY)
    assert problems(placed.recipe) <= problems(bundled_recipes.recipe_path(NAME))


@pytest.mark.parametrize(
    "entry",
    [
        REGISTRY["alpaca_gpt4_en"],
        {"hf_hub_url": "llamafactory/alpaca_gpt4_en"},
        {"ms_hub_url": "llamafactory/alpaca_gpt4_en", "split": "train", "formatting": "alpaca",
         "columns": {"prompt": "instruction", "query": "input", "response": "output"}},
    ],
)  # fmt: skip
def test_a_registry_that_leads_to_the_same_data_stays(here: Path, entry: object) -> None:
    text = write(here / "data/dataset_info.json", {**REGISTRY, "alpaca_gpt4_en": entry})
    assert copy_recipe(NAME, "mine.yaml").files == (here / "deepspeed/ds_z3.json",)
    assert (here / "data/dataset_info.json").read_text("utf-8") == text


def test_the_entry_that_check_asks_for_is_the_one_that_a_copy_writes() -> None:
    entries = read_registry(catalogue_root() / "data/dataset_info.json").entries
    hubs = {entry["hf_hub_url"]: (name, entry) for name, entry in reversed([*entries.items()]) if "hf_hub_url" in entry}
    for hub, (name, entry) in hubs.items():
        asked = f"write `{json.dumps({name: entry})}` into dataset_info.json, and `dataset: {name}` into the recipe"
        assert hub_entry_remedy(hub, {}) == asked


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("deepspeed/ds_z3.json", {}, "differs from the catalogue's"),
        ("data/dataset_info.json", {"alpaca_gpt4_en": {"file_name": "own.json"}}, "defines `alpaca_gpt4_en` for other"),
        ("data/dataset_info.json", {"alpaca_gpt4_en": {**REGISTRY["alpaca_gpt4_en"], "num_samples": 9}}, "for other"),
        ("data/dataset_info.json", {"alpaca_gpt4_en": {}}, "for other data"),
        ("data/dataset_info.json", [], "is not a JSON object of data sets"),
    ],
)
def test_a_folder_that_says_otherwise_gets_nothing(here: Path, path: str, content: object, message: str) -> None:
    write(here / path, content)
    before = everything(here)
    with pytest.raises(RecipeError, match=message):
        copy_recipe(NAME, "mine.yaml")
    assert everything(here) == before


@pytest.mark.parametrize("linked", ["deepspeed", "data"])
def test_nothing_is_written_behind_a_link_out_of_the_folder(here: Path, linked: str) -> None:
    (here / "elsewhere").mkdir()
    (here / "own").mkdir()
    (here / "own" / linked).symlink_to(here / "elsewhere")
    with pytest.raises(RecipeError, match="a link leads from"):
        copy_recipe(NAME, "own")
    assert everything(here) == {}


def test_two_recipes_in_one_folder_are_both_right(here: Path) -> None:
    for name in (NAME, "qwen3-8b-a100x1-lora-dpo", "qwen3-8b-a100-full-pt"):
        assert problems(copy_recipe(name, ".").recipe) <= problems(bundled_recipes.recipe_path(name))
    assert len(json.loads((here / "data/dataset_info.json").read_text("utf-8"))) == 6


def test_an_empty_folder_of_a_project_becomes_one_of_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_recipe(NAME, ".")
    (here / "inner").mkdir()
    monkeypatch.chdir(here / "inner")
    placed = copy_recipe(NAME, ".")
    assert (placed.folder, str(placed.start)) == (here / "inner", f"{NAME}.yaml")
    assert len(placed.files) == 2


@pytest.mark.parametrize("name", ["bad\nname.yaml", "bad\udcff.yaml"])
def test_a_name_that_no_command_can_show_is_refused(here: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="choose another name"):
        copy_recipe(NAME, name)
    assert everything(here) == {}


@pytest.mark.parametrize("name", ["ds_z2", "ds_z2.json", "deepspeed/ds_z2.json"])
@pytest.mark.parametrize("dest", [".", "deepspeed", "own"])
def test_a_deepspeed_file_by_name(here: Path, name: str, dest: str) -> None:
    folder = here / dest if dest == "own" else here
    assert f"wrote {'own/' if dest == 'own' else ''}deepspeed/ds_z2.json\n" in run("copy", name, dest).output
    file = folder / "deepspeed/ds_z2.json"
    assert file.read_text("utf-8") == (catalogue_root() / "deepspeed/ds_z2.json").read_text("utf-8")
    again = run("copy", name, dest)
    assert (again.exit_code, "is there already, the same" in again.output) == (0, True)
    file.write_text("{}", "utf-8")
    with pytest.raises(RecipeError, match="differs from the catalogue's"):
        CliRunner().invoke(group, ("copy", name, dest), standalone_mode=False, catch_exceptions=False)
    assert file.read_text("utf-8") == "{}"


def test_a_deepspeed_file_keeps_its_name(here: Path) -> None:
    assert "give the folder" in str(run("copy", "ds_z2", "mine.json").exception)
    assert everything(here) == {}


@pytest.mark.usefixtures("here")
def test_a_deepspeed_file_works_where_it_says() -> None:
    shown = run("copy", "ds_z2", "own").output
    assert "use: `deepspeed: deepspeed/ds_z2.json` in a recipe that is started from own" in shown
    recipe = copy_recipe(NAME, "own/mine.yaml").recipe
    recipe.write_text(recipe.read_text("utf-8").replace("ds_z3", "ds_z2"), "utf-8")
    assert "PTH001" not in problems(recipe)


@pytest.mark.usefixtures("here")
def test_a_copy_brings_the_accelerate_file_that_its_header_names() -> None:
    placed = copy_recipe("llama3.3-70b-4090x2-qlora-fsdp", "own/mine.yaml")
    assert Path("accelerate/fsdp_qlora_offload.yaml") in [each.relative_to(placed.folder) for each in placed.files]
    assert "PAR301" not in problems(placed.recipe)
    assert "llamafactory.launcher mine.yaml" in placed.recipe.read_text("utf-8")


def test_a_folder_above_that_has_everything_is_used(here: Path) -> None:
    copy_recipe(NAME, "first.yaml")
    placed = copy_recipe(NAME, "inner/second.yaml")
    assert (placed.files, placed.folder) == ((), here)
    assert printer.format_installed_recipe(placed).splitlines()[-1] == "run: lmf-recipes train inner/second.yaml"


def test_a_recipe_without_engine_gets_no_engine_file(here: Path) -> None:
    copy_recipe("qwen3-8b-4090x1-lora", "mine.yaml")
    assert sorted(path.name for path in here.iterdir()) == ["data", "mine.yaml"]


def test_the_registry_defines_what_the_recipe_uses_and_no_more(here: Path) -> None:
    copy_recipe(NAME, "mine.yaml")
    assert set(json.loads((here / "data/dataset_info.json").read_text("utf-8"))) == {"alpaca_gpt4_en", "alpaca_gpt4_zh"}


@pytest.mark.parametrize("words", [("copy", "qwen3-8b-a100-ful", "x.yaml"), ("diff", "qwen3-8b-a100-ful", "x.yaml")])
def test_a_near_miss_gets_a_suggestion(here: Path, words: tuple[str, ...]) -> None:
    result = run(*words)
    assert isinstance(result.exception, RecipeError)
    assert f"did you mean `{NAME}`?" in str(result.exception)
    assert not list(here.iterdir())


def test_a_model_in_place_of_a_recipe_is_told_where_its_recipes_are() -> None:
    refused = run("copy", "qwen3-8b", ".").exception
    assert isinstance(refused, RecipeError)
    assert str(refused).endswith("see `lmf-recipes list --model qwen3-8b`")


def test_an_unwritable_place_is_one_sentence(here: Path) -> None:
    (here / "file").write_text("", "utf-8")
    with pytest.raises(RecipeError, match="cannot be made: not a directory"):
        copy_recipe(NAME, "file/mine.yaml")


@pytest.mark.parametrize("dest", ["x" * 300, "x" * 300 + ".yaml", "x" * 300 + "/mine.yaml"])
def test_a_name_that_no_file_can_have_is_one_sentence(here: Path, dest: str) -> None:
    with pytest.raises(RecipeError, match="file name too long"):
        copy_recipe(NAME, dest)
    assert not [path for path in here.rglob("*") if path.suffix == ".yaml"]


@pytest.mark.usefixtures("here")
def test_a_fresh_copy_does_not_differ() -> None:
    copy_recipe(NAME, "mine.yaml")
    same = compare_recipes(NAME, "mine.yaml")
    assert [same.changed, same.added, same.removed] == [{}, {}, {}]
    assert same.before == same.after
    assert "no setting differs" in run("diff", NAME, "mine.yaml").output


@pytest.mark.usefixtures("here")
def test_every_kind_of_change_is_named() -> None:
    copy_recipe(NAME, "mine.yaml")
    text = Path("mine.yaml").read_text("utf-8")
    text = text.replace("plot_loss: true\n", "").replace("cutoff_len: 2048", "cutoff_len: 8192\npacking: true")
    Path("mine.yaml").write_text(text.replace("# samples: 20000", "# samples: 5000"), "utf-8")
    found = json.loads(run("diff", NAME, "mine.yaml", "--format", "json").output)
    assert found["changed"] == {"(header) samples": [20000, 5000], "cutoff_len": [2048, 8192]}
    assert (found["added"], found["removed"]) == ({"packing": True}, {"plot_loss": True})
    assert found["after"]["device_gib"] > found["before"]["device_gib"]


def test_a_change_inside_the_deepspeed_file_is_named(here: Path) -> None:
    copy_recipe(NAME, "mine.yaml")
    file = here / "deepspeed/ds_z3.json"
    file.write_text(file.read_text("utf-8").replace('"overlap_comm": false', '"overlap_comm": true'), "utf-8")
    changed = compare_recipes(NAME, "mine.yaml").changed
    assert changed == {"(deepspeed file) zero_optimization.overlap_comm": (False, True)}


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), ("a: [", "LOA002")])
def test_a_file_that_cannot_be_compared_is_refused(here: Path, content: str | None, message: str) -> None:
    if content is not None:
        Path("mine.yaml").write_text(content, "utf-8")
    with pytest.raises(RecipeError, match=message):
        compare_recipes(NAME, str(here / "mine.yaml"))


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
    begun = [(item.type, item.value) for item in recipe.shell_complete(click.Context(command), "qwen3-8b-a100-fu")]
    assert begun[0] == ("plain", "qwen3-8b-a100-full")
    assert begun[-1] == ("file", "qwen3-8b-a100-fu")


@pytest.fixture
def stub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with this program, and with a llamafactory-cli that writes down where it is started and with what."""
    script = here / "bin" / "llamafactory-cli"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([os.getcwd(), sys.argv[1:]]))\n")
    script.chmod(0o755)
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(script.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    return here


def shell(line: str) -> str:
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def started(line: str) -> tuple[Path, str, dict[str, Any]]:
    """Folder, recipe and overrides of a llamafactory-cli that a shell was told to run."""
    folder, (train, recipe, *overrides) = json.loads(shell(line))
    assert train == "train"
    return Path(folder), recipe, with_overrides(parse_recipe("x.yaml", "a: 1\n"), overrides).values


@pytest.mark.sample(one_in=7)
@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(("root", "name"), [(catalogue_root(), "qwen3-8b-a100x4-lora"), ONE_DEVICE])
@pytest.mark.parametrize("folder", ["plain", "with space", "größe", "it's", "-dash", "$HOME", "中文"])
def test_printed_commands_work_from_where_they_are_printed(
    monkeypatch: pytest.MonkeyPatch, root: Path, name: str, folder: str
) -> None:
    monkeypatch.setattr(bundled_recipes, "catalogue_root", lambda: root)
    printed = printer.format_installed_recipe(copy_recipe(name, folder))
    command = printed.splitlines()[-1].removeprefix("run: ")
    line = shell(f"{command} --dry-run")
    change = command.split(" && ")[0]
    where, recipe, overrides = started(f"{change} && {line}")
    assert (where / recipe).samefile(Path(folder) / f"{name}.yaml")
    file = Path(overrides["deepspeed"])
    assert (where / file).samefile(Path(folder) / "deepspeed" / file.name)
    if " " in folder:  # the launcher splits there; `train` refuses from outside the folder, and says why
        return
    explained = json.loads(run("explain", "--format", "json", "--", f"{folder}/{name}.yaml").output)["command"][0]
    where, recipe, overrides = started(explained)
    assert (where / recipe).samefile(Path(folder) / f"{name}.yaml")
    assert Path(overrides["dataset_dir"]).samefile(Path(folder) / "data")


def test_a_space_in_the_path_of_a_recipe_is_told(here: Path) -> None:
    (here / "with space").mkdir()
    assert "splits" not in printer.format_installed_recipe(copy_recipe(NAME, "with space"))
    with pytest.raises(RecipeError, match=r"`my own\.yaml` holds a space, .*; choose another name"):
        copy_recipe(NAME, "my own.yaml")  # on eight devices, which torchrun serves
    assert not (here / "my own.yaml").exists()
    assert "splits at spaces" in printer.format_installed_recipe(
        copy_recipe("qwen3-4b-2507-4090x1-lora", "my own.yaml")
    )
