"""A run that the environment hands to Ray: what it lacks on this machine, and how it is started."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from validator.doctor import start_checks
from validator.doctor.check_result import CheckContext
from validator.errors import RecipeError
from validator.launch import local_launch
from validator.machine import host
from validator.machine.installed_packages import InstalledPackages
from validator.recipe.recipe_file import parse_recipe
from validator.run.launch_command import Launch
from validator.run.settings import RunSettings, resolve
from validator.submit.cluster_job import build_cluster_job
from validator.submit.site_file import Site

MODEL = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: lora\noutput_dir: saves\n"


def job(settings: str = "", machine: str = "8xa100-80g") -> RunSettings:
    return resolve(parse_recipe("recipe.yaml", MODEL + settings), machine)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE_RAY alone is set, and all of Ray installed."""
    for name in ("FORCE_TORCHRUN", "RAY_ADDRESS", "NNODES", "NPROC_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USE_RAY", "1")
    installed(monkeypatch, "ray", "aiohttp-cors")


def installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    def there(_self: InstalledPackages, names: Sequence[str]) -> dict[str, str]:
        return {name: "1" for name in names if name in packages}

    monkeypatch.setattr(InstalledPackages, "versions", there)


def told(one: RunSettings, cpus: int = 256) -> list[str]:
    with patch.object(host, "usable_cpus", lambda _root: cpus):
        lines = [*start_checks.check_ray(one, CheckContext())]
    return [f"{line.state}: {line.found}" for line in lines if line.state != "ok"]


@pytest.mark.parametrize(
    ("settings", "cpus", "expected"),
    [
        ("", 80, []),
        ("", 79, ["error: this node has 79 CPUs, and 10 are reserved for each of 8 devices: Ray would wait for ever; "
                  "set `ray_init_kwargs: {num_cpus: 80}`, or unset USE_RAY"]),
        ("ray_init_kwargs: {num_cpus: 80}\n", 2, []),
        ("ray_init_kwargs: {address: auto}\n", 79, ["warning: this node has 79 CPUs, and 10 are reserved for each of 8 "
                                                    "devices: it has to join with `ray start --num-cpus 80`"]),
        ("use_cpu: true\n", 80, ["error: on CPUs alone each counts as a device, for which Ray reserves 10: it would "
                                 "wait for ever; unset USE_RAY"]),
    ],
)  # fmt: skip
def test_cpus(settings: str, cpus: int, expected: list[str]) -> None:
    assert told(job(settings), cpus) == expected


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "ray")
    [message] = told(job())
    assert 'pip install "ray[default]", or set `master_addr`' in message
    assert told(job("master_addr: 10.0.0.1\n")) == []
    installed(monkeypatch)
    [message] = told(job())
    assert message.endswith('USE_RAY is set and the package is not installed: pip install "ray[default]"')


def test_nothing_is_said_where_torchrun_starts_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_RAY", "0")
    assert told(job(), 1) == []


def test_no_second_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_TORCHRUN", "1")
    assert told(job()) == ["error: USE_RAY is set, and torchrun starts the processes, each of which would start Ray"]


def test_one_command_starts_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    two = job("ray_num_workers: 16\n", "2x8xa100-80g")
    assert Launch(two).printed_commands("x.yaml", []) == ["USE_RAY=1 llamafactory-cli train x.yaml"]
    assert "FORCE_TORCHRUN" not in local_launch.build_launch(two, []).process.env
    monkeypatch.setattr(shutil, "which", lambda _name: "there")
    local_launch.check_launchable(Launch(two), 1)
    monkeypatch.delenv("USE_RAY")
    assert [line.split()[0] for line in Launch(two).printed_commands("x.yaml", [])] == ["FORCE_TORCHRUN=1"] * 2


def test_a_scheduler_is_not_given_a_run_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="USE_RAY is set, and the job starts torchrun"):
        build_cluster_job(job(), Site())
    monkeypatch.delenv("USE_RAY")
    assert build_cluster_job(job(), Site()).launcher == "torchrun"
    with pytest.raises(RecipeError, match="unset it"):
        build_cluster_job(job(), Site(environment={"USE_RAY": "true"}))
