"""The run whose result a recipe starts from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validator.recipe.recipe_file import load_recipe
from validator.run.settings import RunSettings, resolve

TRAIN = "model_name_or_path: {}\ntemplate: {}\ndo_train: true\nfinetuning_type: {}\noutput_dir: {}\n"
FIRST = TRAIN.format("Qwen/Qwen3-8B", "qwen3", "full", "saves/first/")
EXPORT = "model_name_or_path: Qwen/Qwen3-8B\nadapter_name_or_path: saves/a\ntemplate: qwen3\nexport_dir: saves/first\n"
SECOND = TRAIN.format("saves/first", "qwen3", "lora", "saves/second")


def started(folder: Path, files: dict[str, str], name: str = "second.yaml") -> RunSettings:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return resolve(load_recipe(str(folder / name)))


@pytest.mark.parametrize(
    ("beside", "makes"),
    [
        ({"first.yaml": FIRST}, "first.yaml"),
        ({"first.yml": EXPORT}, "first.yml"),
        ({"first.yaml": FIRST, "again.yaml": FIRST}, "again.yaml"),
        # an adapter alone, a quantized export, another template, another folder, nothing that is read
        ({"first.yaml": FIRST.replace("full", "lora")}, None),
        ({"first.yaml": EXPORT + "export_quantization_bit: 4\n"}, None),
        ({"first.yaml": FIRST.replace("template: qwen3", "template: qwen")}, None),
        ({"first.yaml": FIRST.replace("saves/first", "saves/other")}, None),
        ({"first.yaml": ": {" + FIRST}, None), ({"first.yaml": FIRST + "#" * (1 << 20)}, None),
        # two that differ, itself, and a circle
        ({"first.yaml": FIRST, "again.yaml": FIRST.replace("8B", "4B")}, None),
        ({"first.yaml": FIRST.replace("Qwen/Qwen3-8B", "saves/first")}, None),
        ({"first.yaml": FIRST.replace("Qwen/Qwen3-8B", "saves/third"),
          "third.yaml": FIRST.replace("Qwen/Qwen3-8B", "saves/first").replace("saves/first/", "saves/third")}, None),
    ],
)  # fmt: skip
def test_what_a_recipe_beside_makes(beside: dict[str, str], makes: str | None, tmp_path: Path) -> None:
    one = started(tmp_path, {"second.yaml": SECOND, **beside})
    assert (one.model and (one.model.identified_by, one.model.name, one.model.identified_from)) == (
        ("run", "Qwen/Qwen3-8B", makes) if makes else None
    )
    assert bool(one.model_problem) is (makes is None)


def test_a_run_of_a_run(tmp_path: Path) -> None:
    zeroth = FIRST.replace("saves/first/", "saves/zeroth")
    first = FIRST.replace("Qwen/Qwen3-8B", "saves/zeroth")
    one = started(tmp_path, {"second.yaml": SECOND, "first.yaml": first, "zeroth.yaml": zeroth})
    assert (one.model and (one.model.name, one.model.identified_from)) == ("Qwen/Qwen3-8B", "first.yaml")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "first.yaml")
    (tmp_path / "again.yaml").mkdir()
    assert started(tmp_path, {"second.yaml": SECOND}).model is None
    assert resolve(load_recipe(str(tmp_path / "nowhere" / "second.yaml"))).model is None


@pytest.mark.parametrize(("folder", "known"), [("merge_lora", True), ("train_full", True), ("others", False)])
def test_the_layout_of_the_examples(folder: str, known: bool, tmp_path: Path) -> None:
    files = {"train_lora/second.yaml": SECOND, f"{folder}/first.yaml": EXPORT}
    assert bool(started(tmp_path, files, "train_lora/second.yaml").model) is known
