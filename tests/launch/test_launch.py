"""The command line for each node, the launcher's environment, and what is refused before a trainer starts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.launch import local_launch, supervisor
from validator.machine.installed_packages import InstalledPackages
from validator.run import launch_command


@pytest.mark.parametrize(
    ("nodes", "devices", "engine", "expected"),
    [
        (1, 1, False, {}),
        # One process with DeepSpeed stops without torchrun: "Please use `FORCE_TORCHRUN=1`".
        (1, 1, True, {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "1"}),
        (1, 8, False, {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "8"}),
        (2, 8, True, {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "8", "NNODES": "2"}),
    ],
)
def test_environment(nodes: int, devices: int, engine: bool, expected: dict[str, str]) -> None:
    assert launch_command.torchrun_env(nodes, devices, engine) == expected


def test_one_command_for_one_node_survives_a_shell() -> None:
    (line,) = launch_command.node_commands("a b/x.yaml", ["run_name=it's"], 1, {})
    assert shlex.split(line) == ["llamafactory-cli", "train", "a b/x.yaml", "run_name=it's"]


def test_one_command_for_each_node() -> None:
    lines = launch_command.node_commands("x.yaml", [], 3, launch_command.torchrun_env(3, 8, True))
    assert [word for line in lines for word in line.split() if word.startswith("NODE_RANK=")] == [
        "NODE_RANK=0", "NODE_RANK=1", "NODE_RANK=2",
    ]  # fmt: skip
    assert all({"NNODES=3", "NPROC_PER_NODE=8", "MASTER_PORT=29500"} <= set(line.split()) for line in lines)
    assert len({line.split("MASTER_ADDR=")[1].split()[0] for line in lines}) == 1


def test_accelerate_gets_the_numbers_of_the_machine_and_its_place_among_the_nodes() -> None:
    (line,) = launch_command.node_commands("x.yaml", ["a=1"], 1, {}, launch_command.accelerate_words("a b.yaml", 1, 8))
    assert shlex.split(line) == [
        *("accelerate", "launch", "--config_file", "a b.yaml", "--num_processes", "8", "--num_machines", "1"),
        *("-m", "llamafactory.launcher", "x.yaml", "a=1"),
    ]
    lines = launch_command.node_commands("x.yaml", [], 2, {}, launch_command.accelerate_words("f.yaml", 2, 8))
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
        ({}, "llamafactory-cli is not installed here: pip install llamafactory==0.9.5"),
        ({"llamafactory": "0.9.5"}, "llamafactory-cli is not on PATH; activate the environment"),
    ],
)
def test_without_llamafactory(there: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: there)
    with pytest.raises(RecipeError, match=re.escape(says)):
        local_launch.check_launchable(1, "0.9.5")


def test_several_nodes_need_rank_and_address(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", "exit 0")
    with pytest.raises(RecipeError, match="needs NODE_RANK"):
        local_launch.check_launchable(2, "0.9.5")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RecipeError, match="LLaMA-Factory reads NODE_RANK"):
        local_launch.check_launchable(2, "0.9.5")
    monkeypatch.setenv("NODE_RANK", "2")
    with pytest.raises(RecipeError, match="NODE_RANK=2; of 2 nodes it is a whole number from 0 to 1"):
        local_launch.check_launchable(2, "0.9.5")
    monkeypatch.setenv("NODE_RANK", "0")
    with pytest.raises(RecipeError, match="needs MASTER_ADDR"):
        local_launch.check_launchable(2, "0.9.5")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    local_launch.check_launchable(2, "0.9.5")


def test_an_elastic_launch_needs_no_rank(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", "exit 0")
    monkeypatch.setenv("RDZV_ID", "7")
    with pytest.raises(RecipeError, match="needs MASTER_ADDR"):
        local_launch.check_launchable(2, "0.9.5")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    local_launch.check_launchable(2, "0.9.5")
    with pytest.raises(RecipeError, match="needs NODE_RANK"):
        local_launch.check_launchable(2, "0.9.5", launch_command.accelerate_words("f.yaml", 2, 8))


def ran(process: launch_command.ProcessSpec) -> int:
    return supervisor.run_supervised(process, 60.0, Path("out"))


@pytest.mark.process
def test_nodes_meet_at_one_port(bare: Path) -> None:
    tool(bare, "llamafactory-cli", f'echo "port $MASTER_PORT" >> {bare}/ports')
    for nodes in (1, 2):
        assert (
            ran(
                launch_command.build_process_spec(
                    Path("x.yaml"), [], launch_command.torchrun_env(nodes, 8, engine=True)
                )
            )
            == 0
        )
    assert (bare / "ports").read_text() == "port \nport 29500\n"


@pytest.mark.parametrize("rank", ["-1", "2", "node-1", "", "0.5"])
@pytest.mark.usefixtures("bare")
def test_a_rank_that_is_none(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", rank)
    with pytest.raises(RecipeError, match=f"NODE_RANK={rank}; of 2 nodes"):
        launch_command.rendezvous_env(2)
    assert launch_command.rendezvous_env(1) == {}


@pytest.mark.usefixtures("bare")
def test_what_the_environment_tells_of_the_place_stands_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    lines = launch_command.node_commands("x.yaml", [], 2, {}, rendezvous=launch_command.rendezvous_env(2))
    assert [line.split()[:3] for line in lines] == [
        [f"NODE_RANK={rank}", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500"] for rank in range(2)
    ]
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    (line,) = launch_command.node_commands("x.yaml", [], 2, {}, rendezvous=launch_command.rendezvous_env(2))
    assert line.split()[:3] == ["NODE_RANK=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=1234"]
    (line,) = launch_command.node_commands(
        "x.yaml", [], 2, {}, launch_command.accelerate_words("f.yaml", 2, 8), launch_command.rendezvous_env(2)
    )
    assert " --machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 1234 " in line


@pytest.mark.process
def test_run_passes_words_environment_and_exit_code(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", f'echo "$NPROC_PER_NODE $FORCE_TORCHRUN $@" > {bare}/seen; exit 7')
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    variables = {"NPROC_PER_NODE": "8", "FORCE_TORCHRUN": "1"}
    assert ran(launch_command.build_process_spec(Path("x.yaml"), ["a=1", "b=2"], variables)) == 7
    # What the user has set wins.
    assert (bare / "seen").read_text() == "4 1 train x.yaml a=1 b=2\n"


@pytest.mark.process
def test_the_devices_that_were_chosen_win(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "llamafactory-cli", f'echo "$CUDA_VISIBLE_DEVICES" > {bare}/seen')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert ran(launch_command.build_process_spec(Path("x.yaml"), [], {}, device_env={"CUDA_VISIBLE_DEVICES": "1"})) == 0
    assert (bare / "seen").read_text() == "1\n"


@pytest.mark.process
def test_a_killed_trainer_has_the_exit_code_of_a_shell(bare: Path) -> None:
    tool(bare, "llamafactory-cli", "kill -9 $$")
    assert ran(launch_command.build_process_spec(Path("x.yaml"), [], {})) == 137


@pytest.mark.usefixtures("bare")
def test_a_trainer_that_cannot_be_started() -> None:
    with pytest.raises(RecipeError, match="cannot be started"):
        ran(launch_command.build_process_spec(Path("x.yaml"), [], {}))


@pytest.mark.process
def test_accelerate_is_told_the_node_that_the_environment_names(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "accelerate", f'echo "$@" > {bare}/words')
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    assert (
        ran(launch_command.build_process_spec(Path("x.yaml"), [], {}, launch_command.accelerate_words("f.yaml", 2, 8)))
        == 0
    )
    assert "--machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29500" in (bare / "words").read_text()
