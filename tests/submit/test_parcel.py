"""What a node is sent that sees none of our folders, and the paths that lead to it there."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from support.engine_jobs import ROOT, run, written

from validator.errors import RecipeError
from validator.recipe.recipe_file import Document, with_overrides
from validator.submit import skypilot
from validator.submit.cluster_job import ClusterJob
from validator.submit.site_file import Site
from validator.submit.uploads import Uploads, collect_uploads


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, with a folder beside it."""
    (tmp_path / "here").mkdir()
    (tmp_path / "beside").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def packed(path: str, *overrides: str, seen: tuple[str, ...] = ()) -> tuple[ClusterJob, Uploads]:
    return collect_uploads(run(path, Site(), *overrides), seen)


def registered(folder: Path, **entries: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "dataset_info.json").write_text(json.dumps(entries))
    (folder / "own.json").write_text("[]")


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    shutil.copyfile(ROOT / "demo/tiny-qwen3/config.json", folder / "config.json")
    return folder


def test_relative_paths_stay(there: Path) -> None:
    registered(there / "data", own={"file_name": "own.json"})
    shutil.copytree(ROOT / "deepspeed", there / "deepspeed")
    work, parcel = packed(written(there, "deepspeed: deepspeed/ds_z3.json\n"), "learning_rate=1e-5")
    assert (str(work.recipe), str(work.output)) == ("mine.yaml", "saves/mine")
    assert work.overrides == ("learning_rate=1e-5",)
    assert {*parcel.files} == {"mine.yaml", "deepspeed/ds_z3.json", "data/dataset_info.json"}
    assert {place: path.resolve() for place, path in parcel.data.items()} == {"data/own.json": there / "data/own.json"}


def test_whole_paths_below_the_working_directory_count_from_there(there: Path) -> None:
    registered(there / "data", own={"file_name": "own.json"})
    more = f"dataset_dir: {there}/data\nmodel_name_or_path: {model(there / 'models/mine')}\n"
    text = Path(written(there)).read_text().replace("model_name_or_path: Qwen/Qwen2.5-7B-Instruct\n", "")
    (there / "mine.yaml").write_text(text + more)
    work, parcel = packed("mine.yaml", f"output_dir={there}/out")
    assert {*work.overrides} == {"dataset_dir=data", "model_name_or_path=models/mine", "output_dir=out"}
    assert {*parcel.data} == {"data/own.json", "models/mine"}


def test_what_is_elsewhere_comes_along_by_its_name(there: Path) -> None:
    beside = there.parent / "beside"
    registered(beside / "sets", own={"file_name": "own.json"})
    shutil.copyfile(ROOT / "deepspeed/ds_z3.json", beside / "mine.json")
    path = written(there, f"deepspeed: {beside}/mine.json\ndataset_dir: ../beside/sets\n")
    work, parcel = packed(path, f"model_name_or_path={model(beside / 'base')}")
    assert {*work.overrides} == {"deepspeed=mine.json", "dataset_dir=sets", "model_name_or_path=base"}
    assert {*parcel.files} == {"mine.yaml", "mine.json", "sets/dataset_info.json"}
    assert {*parcel.data} == {"sets/own.json", "base"}


def test_a_folder_whose_name_is_a_number_stays_text(there: Path) -> None:
    named = model(there.parent / "models/2024")
    job = skypilot.prepare([run(written(there), Site(), f"model_name_or_path={named}")], Site()).text
    (line,) = [line for line in yaml.safe_load(job)["run"].splitlines() if "model_name_or_path=" in line]
    (override,) = [word for word in shlex.split(line) if word.startswith("model_name_or_path=")]
    assert with_overrides(Document("x.yaml"), [override]).values == {"model_name_or_path": "2024"}


def test_adapters_of_a_list_and_all_configuration_files_come_along(there: Path) -> None:
    for name in ("one", "two"):
        (there.parent / "beside" / name).mkdir()
    (there / "gather.json").write_text("{}")
    more = (
        f"adapter_name_or_path: {there.parent}/beside/one,{there.parent}/beside/two\naccelerator_config: gather.json\n"
    )
    work, parcel = packed(written(there, more))
    assert work.overrides == ("adapter_name_or_path=one,two",)
    assert {*parcel.data} == {"one", "two"}
    assert {*parcel.files} == {"mine.yaml", "gather.json"}


def test_a_folder_that_nodes_see_stays(there: Path) -> None:
    base = model(there.parent / "beside/base")
    work, parcel = packed(written(there), f"model_name_or_path={base}", seen=(str(base.parent),))
    assert work.overrides == (f"model_name_or_path={base}",)
    assert {*parcel.data} == {str(base)}


def test_pictures_come_with_the_folder_that_holds_them(there: Path) -> None:
    shown = {"file_name": "own.json", "columns": {"prompt": "a", "response": "b", "images": "images"}}
    registered(there / "data", own=shown)
    assert {*packed(written(there))[1].data} == {"data"}
    (there / "pictures").mkdir()
    assert {*packed(written(there, "media_dir: pictures\n"))[1].data} == {"data/own.json", "pictures"}


def test_a_data_set_of_a_hub_needs_its_entry_alone(there: Path) -> None:
    registered(there / "data", own={"hf_hub_url": "someone/own"}, other={"file_name": "own.json"})
    _, parcel = packed(written(there))
    assert ({*parcel.files}, parcel.data) == ({"mine.yaml", "data/dataset_info.json"}, {})


def test_the_accelerate_file_comes_along(there: Path) -> None:
    shutil.copytree(ROOT / "accelerate", there / "accelerate")
    path = Path(written(there))
    path.write_text(path.read_text().replace("# host_ram", "# accelerate: accelerate/fsdp2.yaml\n# host_ram"))
    work, parcel = packed(str(path))
    assert "accelerate/fsdp2.yaml" in parcel.files
    assert work.starter[work.starter.index("--config_file") + 1] == "accelerate/fsdp2.yaml"


def test_two_of_one_name(there: Path) -> None:
    ones = [model(there.parent / folder / "base") for folder in ("beside", "beyond")]
    with pytest.raises(RecipeError, match=r"would have one place, `base`; rename one of them"):
        packed(written(there), f"model_name_or_path={ones[0]}", f"adapter_name_or_path={ones[1]}")


def test_a_space_at_which_the_launcher_splits(there: Path) -> None:
    with pytest.raises(RecipeError, match="holds a space"):
        packed(written(there), "output_dir=my runs/one")
