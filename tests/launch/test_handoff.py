"""A checked recipe on its way to llamafactory-cli: its paths become absolute, the file itself stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.launch import local_launch
from validator.machine import host, nvidia
from validator.recipe.recipe_file import load_recipe, parse_recipe, with_overrides
from validator.run.launch_command import Launch
from validator.run.settings import RunSettings, resolve


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a recipe, a ZeRO file, data and a model, and a working directory elsewhere."""
    root = tmp_path / "project"
    for folder in ("recipes", "deepspeed", "data", "model", "adapter"):
        (root / folder).mkdir(parents=True)
    (root / "deepspeed" / "z.json").write_text('{"zero_optimization": {"stage": 2}}')
    (root / "data" / "dataset_info.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return root


def resolved(project: Path, text: str, *overrides: str, name: str = "x.yaml") -> RunSettings:
    path = project / "recipes" / name
    path.write_text(text)
    return resolve(with_overrides(load_recipe(str(path)), overrides))


def absolute(found: local_launch.LocalLaunch) -> dict[str, str]:
    return dict(word.split("=", 1) for word in found.overrides)


def test_what_is_read_is_found_beside_the_recipe_and_what_is_written_goes_where_the_user_stands(project: Path) -> None:
    text = "model_name_or_path: model\ndataset: x\ndeepspeed: deepspeed/z.json\noutput_dir: saves/x\n"
    found = local_launch.build_launch(resolved(project, text), [])
    assert absolute(found) == {
        "deepspeed": str(project / "deepspeed" / "z.json"),
        "dataset_dir": str(project / "data"),
        "model_name_or_path": str(project / "model"),
        "output_dir": str(Path.cwd() / "saves" / "x"),
    }
    assert found.recipe == project / "recipes" / "x.yaml"
    assert found.output == Path.cwd() / "saves" / "x"
    assert found.recipe.read_text() == text


def test_the_recipes_own_folders_win_over_the_working_directory(project: Path) -> None:
    Path("deepspeed").mkdir()
    Path("deepspeed/z.json").write_text("{}")
    found = local_launch.build_launch(resolved(project, "deepspeed: deepspeed/z.json\n"), [])
    assert absolute(found)["deepspeed"] == str(project / "deepspeed" / "z.json")


def test_hub_names_absolute_paths_and_inline_json_stay(project: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\noutput_dir: /x/y\ntokenized_path: ~/z\ndeepspeed: '{\"a\": 1}'\n"
    assert set(absolute(local_launch.build_launch(resolved(project, text), []))) == {"dataset_dir"}


def test_every_adapter_of_a_list_and_every_file_is_found_beside_the_recipe(project: Path) -> None:
    (project / "adapter2").mkdir()
    (project / "gather.json").write_text("{}")
    text = "adapter_name_or_path: adapter, adapter2\nreward_model_adapters: adapter,org/name\n"
    text += "accelerator_config: gather.json\n"
    found = absolute(local_launch.build_launch(resolved(project, text), []))
    assert found["adapter_name_or_path"] == f"{project}/adapter,{project}/adapter2"
    assert found["reward_model_adapters"] == f"{project}/adapter,org/name"
    assert found["accelerator_config"] == f"{project}/gather.json"


def test_the_users_override_is_made_absolute_too_and_stands_last(project: Path) -> None:
    overrides = ["deepspeed=deepspeed/z.json", "max_steps=2"]
    found = local_launch.build_launch(resolved(project, "deepspeed: none.json\n", *overrides), overrides)
    assert list(found.overrides[:2]) == overrides
    assert absolute(found)["deepspeed"] == str(project / "deepspeed" / "z.json")


def test_paths_survive_the_way_llamafactory_reads_overrides(project: Path) -> None:
    folder = project / "it's: #1, 中"
    folder.mkdir()
    found = local_launch.build_launch(resolved(project, 'model_name_or_path: "it\'s: #1, 中"\n'), [])
    read = with_overrides(parse_recipe("x.yaml", "a: 1\n"), found.overrides)
    assert read.values["model_name_or_path"] == str(folder)


def test_a_space_is_refused_only_where_the_launcher_splits(project: Path) -> None:
    text = "output_dir: saves/x\n"
    assert local_launch.build_launch(resolved(project, text, name="a b.yaml"), []).recipe.name == "a b.yaml"
    with pytest.raises(RecipeError, match="holds a space"):
        local_launch.build_launch(resolved(project, text + "deepspeed: deepspeed/z.json\n", name="a b.yaml"), [])


@pytest.mark.parametrize(
    ("machine", "variables"),
    [
        ("1xcpu", {}),
        ("8xa100-80g", {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "8"}),
        ("2x4xa100-80g", {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "4", "NNODES": "2"}),
    ],
)
def test_the_launchers_environment_follows_the_machine(machine: str, variables: dict[str, str], project: Path) -> None:
    text = f"# /// recipe\n# machine: {machine}\n# ///\noutput_dir: x\n"
    assert local_launch.build_launch(resolved(project, text), []).launch.env == variables


def test_another_number_of_nodes_in_the_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNODES", "2")
    one, several, alike = (
        resolved(project, f"# /// recipe\n# machine: {name}\n# ///\noutput_dir: x\n", name=f"{name}.yaml")
        for name in ("1xa100-80g", "8xa100-80g", "2x8xa100-80g")
    )
    with pytest.raises(RecipeError, match="the environment has NNODES=2, the run has 1; unset it"):
        local_launch.build_launch(several, [])
    local_launch.build_launch(alike, [])
    local_launch.build_launch(one, [])  # without torchrun, which alone reads it
    monkeypatch.setenv("FORCE_TORCHRUN", "1")
    with pytest.raises(RecipeError, match="NNODES=2"):
        local_launch.build_launch(one, [])


def test_a_run_by_accelerate_gets_the_file_found_beside_the_recipe(project: Path) -> None:
    (project / "accelerate").mkdir()
    (project / "accelerate" / "f.yaml").write_text("distributed_type: FSDP\n")
    head = "# /// recipe\n# machine: 8xa100-80g\n# accelerate: accelerate/f.yaml\n# ///\n"
    found = resolved(project, f"{head}stage: sft\n")
    file = str(project / "accelerate" / "f.yaml")
    assert local_launch.build_launch(found, []).launch.words[:4] == ("accelerate", "launch", "--config_file", file)
    assert local_launch.build_launch(found, []).launch.env == {}
    (project / "accelerate").rename(Path.cwd() / "accelerate")
    (line,) = Launch(resolved(project, f"{head}stage: sft\n")).printed_commands("x.yaml", [])
    assert line.startswith("accelerate launch --config_file accelerate/f.yaml --num_processes 8 ")


def test_results_are_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "training_loss.png").touch()
    (tmp_path / "adapter_model.safetensors").touch()
    assert [path.name for path in local_launch.result_files(tmp_path)] == [
        "adapter_model.safetensors",
        "training_loss.png",
    ]
    assert local_launch.result_files(tmp_path / "none") == []


OFFLOADED = "deepspeed: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}\nstage: sft\n"


def test_an_optimizer_in_main_memory_gets_the_processors(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell of a node counts its own; a run here gets those of this machine, unless the user has said how many."""
    monkeypatch.setattr(host, "usable_cpus", lambda: 64)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    recipe = resolved(project, f"# /// recipe\n# machine: 8xa100-80g\n# ///\n{OFFLOADED}")
    (line,) = Launch(recipe).printed_commands("x.yaml", [])
    assert " OMP_NUM_THREADS=$(($(nproc) / 8)) " in line
    assert local_launch.build_launch(recipe, []).process.env["OMP_NUM_THREADS"] == "8"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert local_launch.build_launch(recipe, []).process.env["OMP_NUM_THREADS"] == "3"


def test_nodes_get_what_their_devices_want(project: Path) -> None:
    recipe = resolved(project, "# /// recipe\n# machine: 2x8x910b\n# ///\nstage: sft\nddp_timeout: 7200\n")
    wanted = {"HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "PYTORCH_NPU_ALLOC_CONF"}
    assert wanted <= set(local_launch.build_launch(recipe, []).launch.env)
    assert all(f" {name}=" in line for name in wanted for line in Launch(recipe).printed_commands("x.yaml", []))


@pytest.mark.parametrize(("release", "off"), [("535.183.01", "1"), ("570.86.15", None)])
def test_an_old_driver_of_cards_without_peers(
    project: Path, release: str, off: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    monkeypatch.setattr(nvidia, "read_driver", lambda: nvidia.NvidiaDriver(release, (8.9,)))
    recipe = resolved(project, "# /// recipe\n# machine: 2xrtx-4090\n# ///\nstage: sft\n")
    assert local_launch.build_launch(recipe, []).process.env.get("NCCL_P2P_DISABLE") == off
