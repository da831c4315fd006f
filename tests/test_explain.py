"""The fixed JSON structure of `explain`, and that its numbers are those of the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validator.advise import explain
from validator.advise.explanation import Samples, Target
from validator.diagnostic import RecipeError
from validator.job import job
from validator.job.job import GIB
from validator.read.recipe import parse
from validator.show import chart, structure

ROOT = Path(__file__).parent.parent
HEAD = "# /// recipe\n# machine: 2x8xa100-80g\n# host_ram_gib: 2048\n# samples: 5000\n# ///\n"
BODY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: tiny_demo
template: qwen
cutoff_len: 2048
output_dir: saves/x
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
save_total_limit: 2
"""


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def resolved(text: str) -> job.Job:
    return job.resolve(parse("recipes/x.yaml", text))


def test_the_fixed_shape() -> None:
    found = json.loads(structure.text(explain.explain(resolved(HEAD + BODY))))
    assert list(found) == [
        "path", "machine", "model", "verdict", "device_gib", "host_gib", "disk_gib", "samples", "changes", "command",
    ]  # fmt: skip
    assert list(found["machine"]) == ["nodes", "devices", "device", "device_gib", "usable_gib", "host_ram_gib"]
    assert list(found["model"]) == ["name", "parameters", "trainable_parameters"]
    assert list(found["device_gib"]) == ["allocated", "low", "expected", "high", "terms", "few_measurements_of"]
    assert list(found["host_gib"]) == ["low", "expected", "high", "terms"]
    assert list(found["disk_gib"]) == ["checkpoint", "total"]
    assert list(found["samples"]) == ["recommended", "found", "sure"]
    assert {tuple(change) for change in found["changes"]} == {("set", "device_gib", "host_gib", "verdict", "note")}


def test_numbers_are_the_jobs_own_in_gib() -> None:
    one = resolved(HEAD + BODY)
    explanation = explain.explain(one)
    device, model = explanation.device_gib, explanation.model
    assert one.device_memory
    assert device
    assert model
    assert device.expected == round(one.device_memory.expected / GIB, 2)
    assert device.low <= device.expected <= device.high
    assert sum(device.terms.values()) == pytest.approx(device.allocated, abs=0.1)
    assert list(device.terms.values()) == sorted(device.terms.values(), reverse=True)
    assert model.parameters == 7_615_616_512
    # rank 8 on the seven linear layers of each block: 8 x (inputs + outputs), summed
    sizes = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)
    assert model.trainable_parameters == 28 * 8 * sizes


def test_thin_evidence_is_said() -> None:
    ascend = explain.explain(resolved(HEAD.replace("2x8xa100-80g", "8xascend-910b-64g") + BODY))
    assert ascend.device_gib
    assert ascend.device_gib.few_measurements_of == ["this kind of device"]
    assert "few measurements of this kind of device are public" in chart.text(ascend)
    common = explain.explain(resolved(HEAD.replace("2x8xa100-80g", "8xa100-80g") + BODY))
    assert common.device_gib
    assert common.device_gib.few_measurements_of == []
    assert "few measurements" not in chart.text(common)


def test_machine_and_commands() -> None:
    explanation = explain.explain(resolved(HEAD + BODY), ["max_steps=1"])
    machine = explanation.machine
    assert machine
    assert machine == Target(2, 8, "a100-80g", 80.0, machine.usable_gib, 2048.0)
    assert 78 < (machine.usable_gib or 0) < 80
    assert len(explanation.command) == 2
    assert all(line.endswith("llamafactory-cli train recipes/x.yaml max_steps=1") for line in explanation.command)


def test_samples_are_counted_where_they_are_local() -> None:
    rows = len(json.loads((ROOT / "data" / "tiny_demo.json").read_text()))
    assert explain.explain(resolved(HEAD + BODY)).samples == Samples(5000, rows)
    for name in ("alpaca_gpt4_en", "tiny_demo,alpaca_gpt4_en", "tiny_demo,none_such"):
        explanation = explain.explain(resolved(HEAD + BODY.replace("tiny_demo", name)))
        assert explanation.samples.found is None, name


def test_without_machine() -> None:
    explanation = explain.explain(resolved(BODY))
    assert explanation.machine is None
    assert explanation.verdict == "unknown"
    assert explanation.device_gib
    assert explanation.device_gib.expected > 10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "model_name_or_path: none/such\n", "model `none/such` is not known"),
        (HEAD + "stage: sft\n", "names no model"),
        (HEAD.replace("8x", "0x") + BODY, "1 to 4096 nodes"),
    ],
)
def test_nothing_is_explained_of_what_is_not_known(text: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        explain.explain(resolved(text))
