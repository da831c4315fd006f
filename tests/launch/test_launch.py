"""The command line for each node, the launcher's environment, and what is refused before a trainer starts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.launch import local_launch
from validator.machine.installed_packages import InstalledPackages
from validator.recipe.recipe_file import parse_recipe
from validator.run.launch_command import Launch, ProcessSpec
from validator.run.settings import resolve

ZERO = "deepspeed: {zero_optimization: {stage: 2}}\n"


def launch(machine: str, text: str = "stage: sft\n", accelerate: str = "") -> Launch:
    """The launch of a recipe for this machine; `accelerate`: the file that its header block names."""
    head = f"# /// recipe\n# machine: {machine}\n{f'# accelerate: {accelerate}' if accelerate else '#'}\n# ///\n"
    return Launch(resolve(parse_recipe("x.yaml", head + text)))


@pytest.mark.parametrize(
    ("machine", "text", "launcher", "expected"),
    [
        ("1xa100-80g", "stage: sft\n", "python", {}),
        # One process with DeepSpeed stops without torchrun: "Please use `FORCE_TORCHRUN=1`".
        ("1xa100-80g", ZERO, "torchrun", {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "1"}),
        ("8xa100-80g", "stage: sft\n", "torchrun", {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "8"}),
        ("2x8xa100-80g", ZERO, "torchrun", {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "8", "NNODES": "2"}),
    ],
)
def test_who_starts_the_processes(machine: str, text: str, launcher: str, expected: dict[str, str]) -> None:
    assert (launch(machine, text).launcher, launch(machine, text).start_env) == (launcher, expected)


@pytest.mark.parametrize(
    ("variables", "accelerate", "launcher"),
    [
        ({"FORCE_TORCHRUN": "1"}, "", "torchrun"),
        ({"USE_RAY": "1"}, "", "ray"),
        ({"USE_RAY": "1"}, "f.yaml", "accelerate"),
        ({"FORCE_TORCHRUN": "1"}, "f.yaml", "accelerate"),
    ],
)
def test_only_torchrun_splits_a_word_at_its_space(
    variables: dict[str, str], accelerate: str, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = launch("1xa100-80g", accelerate=accelerate)
    assert found.launcher == launcher
    assert bool(found.split_problem(["x.yaml", "run_name=a b"])) == (launcher == "torchrun")


def test_one_command_for_one_node_survives_a_shell() -> None:
    (line,) = launch("1xa100-80g").commands("a b/x.yaml", ["run_name=it's"], {})
    assert shlex.split(line) == ["llamafactory-cli", "train", "a b/x.yaml", "run_name=it's"]


def test_one_command_for_each_node() -> None:
    lines = launch("3x8xa100-80g", ZERO).printed_commands("x.yaml", [])
    assert [word for line in lines for word in line.split() if word.startswith("NODE_RANK=")] == [
        "NODE_RANK=0", "NODE_RANK=1", "NODE_RANK=2",
    ]  # fmt: skip
    assert all({"NNODES=3", "NPROC_PER_NODE=8", "MASTER_PORT=29500"} <= set(line.split()) for line in lines)
    assert len({line.split("MASTER_ADDR=")[1].split()[0] for line in lines}) == 1


def test_accelerate_gets_the_numbers_of_the_machine_and_its_place_among_the_nodes() -> None:
    (line,) = launch("8xa100-80g", accelerate="a b.yaml").commands("x.yaml", ["a=1"], {})
    assert shlex.split(line) == [
        *("accelerate", "launch", "--config_file", "a b.yaml", "--num_processes", "8", "--num_machines", "1"),
        *("-m", "llamafactory.launcher", "x.yaml", "a=1"),
    ]
    lines = launch("2x8xa100-80g", accelerate="f.yaml").commands("x.yaml", [], {})
    for rank, line in enumerate(lines):
        assert line.startswith("accelerate launch --config_file f.yaml --num_processes 16 --num_machines 2 ")
        assert f" --machine_rank {rank} --main_process_ip ADDRESS_OF_NODE_0 --main_process_port 29500 -m " in line


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with nothing on it, and none of the variables that matter."""
    for name in ("NODE_RANK", "RANK", "RDZV_ID", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({}, "llamafactory-cli is not installed here: pip install torch==2.8.0 "),
        ({"llamafactory": "0.9.5"}, "llamafactory-cli is not on PATH; activate the environment"),
    ],
)
def test_without_llamafactory(there: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: there)
    with pytest.raises(RecipeError, match=re.escape(says)):
        local_launch.check_launchable(launch("1xa100-80g"), 1)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("machine", "extra"), [("8xascend-910b-64g", "ascend"), ("8xmi300x-192g", "amd")])
def test_without_llamafactory_the_page_counts_where_pip_brings_another_torch(
    machine: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: {})
    says = f' && pip install ".[{extra}]" in a copy of this repository'
    with pytest.raises(RecipeError, match=re.escape(says)):
        local_launch.check_launchable(launch(machine), 1)


def test_several_nodes_need_rank_and_address(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", "exit 0")
    with pytest.raises(RecipeError, match="needs NODE_RANK"):
        local_launch.check_launchable(launch("2x8xa100-80g"), 2)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RecipeError, match="LLaMA-Factory reads NODE_RANK"):
        local_launch.check_launchable(launch("2x8xa100-80g"), 2)
    monkeypatch.setenv("NODE_RANK", "2")
    with pytest.raises(RecipeError, match="NODE_RANK=2; of 2 nodes it is a whole number from 0 to 1"):
        local_launch.check_launchable(launch("2x8xa100-80g"), 2)
    monkeypatch.setenv("NODE_RANK", "0")
    with pytest.raises(RecipeError, match="needs MASTER_ADDR"):
        local_launch.check_launchable(launch("2x8xa100-80g"), 2)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    local_launch.check_launchable(launch("2x8xa100-80g"), 2)


def test_an_elastic_launch_needs_no_rank(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", "exit 0")
    monkeypatch.setenv("RDZV_ID", "7")
    with pytest.raises(RecipeError, match="needs MASTER_ADDR"):
        local_launch.check_launchable(launch("2x8xa100-80g"), 2)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    local_launch.check_launchable(launch("2x8xa100-80g"), 2)
    with pytest.raises(RecipeError, match="needs NODE_RANK"):
        local_launch.check_launchable(launch("2x8xa100-80g", accelerate="f.yaml"), 2)


def ran(process: ProcessSpec) -> int:
    return local_launch.run_supervised(process, 60.0, Path("out"))


@pytest.mark.process
def test_nodes_meet_at_one_port(bare: Path) -> None:
    tool(bare, "llamafactory-cli", f'echo "port $MASTER_PORT" >> {bare}/ports')
    for machine in ("1x8xa100-80g", "2x8xa100-80g"):
        assert ran(launch(machine, ZERO).process(Path("x.yaml"), [])) == 0
    assert (bare / "ports").read_text() == "port \nport 29500\n"


@pytest.mark.parametrize("rank", ["-1", "2", "node-1", "", "0.5"])
@pytest.mark.usefixtures("bare")
def test_a_rank_that_is_none(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", rank)
    with pytest.raises(RecipeError, match=f"NODE_RANK={rank}; of 2 nodes"):
        local_launch.rendezvous_env(2)
    assert local_launch.rendezvous_env(1) == {}


@pytest.mark.usefixtures("bare")
def test_what_the_environment_tells_of_the_place_stands_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    lines = launch("2x8xa100-80g").commands("x.yaml", [], {}, local_launch.rendezvous_env(2))
    assert [line.split()[:3] for line in lines] == [
        [f"NODE_RANK={rank}", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500"] for rank in range(2)
    ]
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    (line,) = launch("2x8xa100-80g").commands("x.yaml", [], {}, local_launch.rendezvous_env(2))
    assert line.split()[:3] == ["NODE_RANK=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=1234"]
    found = launch("2x8xa100-80g", accelerate="f.yaml")
    (line,) = found.commands("x.yaml", [], {}, local_launch.rendezvous_env(2))
    assert " --machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 1234 " in line


@pytest.mark.process
def test_run_passes_words_environment_and_exit_code(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", f'echo "$NPROC_PER_NODE $FORCE_TORCHRUN $@" > {bare}/seen; exit 7')
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    assert ran(launch("8xa100-80g").process(Path("x.yaml"), ["a=1", "b=2"])) == 7
    # What the user has set wins.
    assert (bare / "seen").read_text() == "4 1 train x.yaml a=1 b=2\n"


@pytest.mark.process
def test_the_devices_that_were_chosen_win(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", f'echo "$CUDA_VISIBLE_DEVICES" > {bare}/seen')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert ran(launch("1xa100-80g").process(Path("x.yaml"), [], device_env={"CUDA_VISIBLE_DEVICES": "1"})) == 0
    assert (bare / "seen").read_text() == "1\n"


@pytest.mark.process
def test_a_killed_trainer_has_the_exit_code_of_a_shell(bare: Path) -> None:
    tool(bare, "llamafactory-cli", "kill -9 $$")
    assert ran(launch("1xa100-80g").process(Path("x.yaml"), [])) == 137


@pytest.mark.usefixtures("bare")
def test_a_trainer_that_cannot_be_started() -> None:
    with pytest.raises(RecipeError, match="cannot be started"):
        ran(launch("1xa100-80g").process(Path("x.yaml"), []))


@pytest.mark.process
def test_accelerate_is_told_the_node_that_the_environment_names(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "accelerate", f'echo "$@" > {bare}/words')
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    assert ran(launch("2x8xa100-80g", accelerate="f.yaml").process(Path("x.yaml"), [])) == 0
    assert "--machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29500" in (bare / "words").read_text()
