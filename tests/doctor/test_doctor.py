"""`lmf-recipes doctor`: one line for each thing that was looked at, on recorded machines (tests/fixtures/recorded/)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner, Result
from support.recordings import RECORDED, show_all

from validator.cli import group
from validator.doctor import diagnosis, host_checks, hub_checks, torch_build
from validator.doctor.check_result import CheckContext, CheckResult
from validator.errors import RecipeError
from validator.machine import host
from validator.run.settings import RunSettings

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "qwen3-8b-a100-lora.yaml")  # for 8xa100-80g


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No driver's program, none of the variables that hide devices, no network and a disk that is not tried long."""
    show_all(monkeypatch)
    monkeypatch.setattr(hub_checks, "_request_status", lambda _address: 200)
    monkeypatch.setattr(host_checks, "_MAX_TRIAL_BYTES", 1 << 20)
    monkeypatch.delenv("NPROC_PER_NODE", raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(tmp_path))


def doctor(*words: str) -> Result:
    return CliRunner().invoke(group, ["doctor", *words])


def devices(result: Result) -> str:
    return next(line for line in result.output.splitlines() if " devices " in line)


def test_a_login_node_alone_is_no_fault() -> None:
    result = doctor()
    assert devices(result).startswith("note ")
    assert result.exit_code == 0


def test_a_login_node_is_no_place_for_a_run() -> None:
    result = doctor(RECIPE)
    assert result.exit_code == 1
    assert "wanted: 8xa100-80g; run `lmf-recipes doctor` on that machine" in devices(result)  # no SLURM is here


def test_a_recipe_for_another_machine_is_not_held_against_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without devices, what this machine has of memory and processors says nothing about the one of the recipe."""
    monkeypatch.setattr(host, "memory_gib", lambda _root=None: 1.0)
    told = json.loads(doctor(str(ROOT / "recipes" / "qwen32b-910b-lora.yaml"), "--format", "json").output)
    lines = {line["what"]: line for line in told["lines"]}
    assert {"driver", "main memory", "processors", "/dev/shm", "interfaces"} <= {*told["not_looked_at"]}
    assert lines.keys().isdisjoint(told["not_looked_at"])
    assert lines["devices"]["state"] == "error"
    assert [lines[name]["state"] for name in ("torch_npu", "CANN")] == ["error", "error"]
    text = doctor(str(ROOT / "recipes" / "qwen32b-910b-lora.yaml")).output
    assert "\nnot looked at, as this is another machine: driver, device files" in text
    monkeypatch.setenv("PATH", str(RECORDED / "npu-smi-8x910b2"))
    assert "not looked at" not in doctor(str(ROOT / "recipes" / "qwen32b-910b-lora.yaml")).output


def test_srun_is_advised_where_slurm_is(tmp_path: Path) -> None:
    assert "srun" not in doctor(RECIPE).output
    (tmp_path / "srun").touch(0o755)
    assert "on a compute node, such as by `srun`" in devices(doctor(RECIPE))


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("npu-smi-8x910b2", "npu-smi shows the devices, release 23.0.7"),
        ("nvidia-smi-h100", "nvidia-smi shows the devices"),
        ("rocm-smi-8xmi300x", "rocm-smi shows the devices"),
    ],
)
def test_the_driver_is_a_line(folder: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    assert says in next(line for line in doctor().output.splitlines() if line.split()[1] == "driver")


def test_fewer_devices_than_the_machine_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(RECORDED / "nvidia-smi-2x4090"))
    result = doctor(RECIPE, "--machine", "8xa100-80g")
    assert result.exit_code == 1
    assert "`--machine 8xa100-80g` has 8 devices, 2 devices here" in result.output


def test_other_devices_than_the_machine_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device cannot do is told of the one that is here."""
    monkeypatch.setenv("PATH", str(RECORDED / "nvidia-smi-1xt4"))
    result = doctor(RECIPE, "--machine", "1xa100-80g")
    assert devices(result).startswith("warning")
    assert "t4-16g has no bf16" in result.output


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(RECORDED / "nvidia-smi-8xa100"))
    told = json.loads(doctor(RECIPE, "--format", "json").output)
    assert [*told] == ["host", "recipe", "machine", "lines", "errors", "warnings", "not_looked_at"]
    assert told["machine"] == "8xa100-80g"
    assert [*told["lines"][0]] == ["state", "what", "found", "wanted", "remedy"]


def fails(_job: RunSettings | None, _node: CheckContext) -> Iterator[CheckResult]:
    raise RecipeError("the program says nonsense")


def test_a_check_that_fails_or_hangs_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    hung, over = Event(), Event()

    def hangs(_job: RunSettings | None, _node: CheckContext) -> Iterator[CheckResult]:
        hung.set()
        over.wait()
        yield CheckResult("ok", "disk", "there after all")

    def wait_for_the_first(under_way: Iterable[Future[list[CheckResult]]], _seconds: float) -> None:
        hung.wait()
        wait([*under_way][:1])

    monkeypatch.setattr(diagnosis, "CHECKS", {"driver": fails, "disk": hangs})
    monkeypatch.setattr(diagnosis, "wait", wait_for_the_first)
    told = [*diagnosis.run_checks(None, CheckContext())]
    over.set()
    assert [(line.state, line.what) for line in told] == [("warning", "driver"), ("warning", "disk")]
    assert "the program says nonsense" in told[0].found
    assert told[1].found == "no answer within 40 seconds"


@pytest.mark.parametrize("text", ["# nothing\n", "a: [1\n"])
def test_a_recipe_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert isinstance(doctor(str(tmp_path / "x.yaml")).exception, RecipeError)


@pytest.mark.parametrize(("folder", "code"), [("nvidia-smi-8xa100", 0), ("nvidia-smi-2xa100-450", 1), ("none", 1)])
def test_a_machine_that_should_be_the_one_that_is_named(
    folder: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    monkeypatch.setattr(torch_build, "read_build", lambda *_: torch_build.PackageBuild("2.8.0+cu128", "12.8", ""))
    result = doctor("--machine", "8xa100-80g")
    assert result.exit_code == code
    assert "wanted: 8xa100-80g" in devices(result)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("nvidia-smi-2x5090-busy", "qwen3-8b-a100-lora"), ("npu-smi-8x910b3-busy", "qwen7b-910b-lora")],
)
def test_train_and_doctor_answer_alike(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    monkeypatch.setattr(host, "memory_gib", lambda _root=None: 1000.0)
    recipe = str(ROOT / "recipes" / f"{name}.yaml")
    trained = CliRunner().invoke(group, ["train", "--dry-run", recipe]).output
    said = re.findall(r"^this machine: (?:error|warning): (.*)$", trained, re.MULTILINE)
    assert said
    told = doctor(recipe).output
    assert [words for words in said if words not in told] == []
