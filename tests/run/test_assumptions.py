"""What a verdict takes for granted: at the value that is named it holds, and a little beyond it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator.check.checking import check_document
from validator.cli import group
from validator.finding import Assumption, Report
from validator.output.findings import format_findings
from validator.physics.estimate import GIB
from validator.recipe.recipe_file import parse_recipe
from validator.run.assumptions import longer_samples_in_words, verdict_assumptions
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve

ROOT = Path(__file__).parents[2]
QWEN3 = {"model_name_or_path": "Qwen/Qwen3-8B", "template": "qwen3"}
QWEN_VL = {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "template": "qwen2_vl"}
MIXTRAL = {"model_name_or_path": "mistralai/Mixtral-8x7B-Instruct-v0.1", "template": "mistral", "quantization_bit": 4}
VALUES: dict[str, Any] = {
    "stage": "sft", "do_train": True, "finetuning_type": "lora", "dataset": "own_set", "cutoff_len": 8192,
    "output_dir": "saves/x", "bf16": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4,
}  # fmt: skip


def text(machine: str, *header: str, **values: Any) -> str:
    head = "".join(f"# {line}\n" for line in (f"machine: {machine}", *header))
    body = "".join(f"{key}: {json.dumps(value)}\n" for key, value in {**VALUES, **values}.items())
    return f"# /// recipe\n{head}# ///\n{body}"


def judged(machine: str, *header: str, **values: Any) -> RunSettings:
    return resolve(parse_recipe("x.yaml", text(machine, *header, **values)))


def assumption(run: RunSettings, about: str) -> Assumption | None:
    return next((one for one in verdict_assumptions(run) if one.about == about), None)


@pytest.mark.parametrize(
    ("machine", "values"),
    [
        ("1xrtx-4090", {**QWEN3, "per_device_train_batch_size": 2}),
        ("1xrtx-4090", QWEN3),
        ("1xa6000-48g", {**QWEN3, "cutoff_len": 16384}),
        ("8xa100-40g", {**QWEN3, "finetuning_type": "full", "deepspeed": "deepspeed/ds_z3.json", "cutoff_len": 32768}),
        ("1xrtx-3090", {**QWEN3, "quantization_bit": 4, "cutoff_len": 16384}),
        ("2xrtx-4090", {**QWEN3, "stage": "dpo", "pref_loss": "simpo", "cutoff_len": 4096}),
    ],
)
def test_samples_of_the_named_length_fit_and_longer_ones_do_not(machine: str, values: dict[str, Any]) -> None:
    """Each verdict is that of the recipe whose header block tells that length."""
    found = assumption(judged(machine, "host_ram_gib: 1024", **values), "length")
    assert found
    assert isinstance(found.turns_at, int)
    verdicts = [
        predict(judged(machine, "host_ram_gib: 1024", f"lengths: [64, {length}]", **values)).verdict
        for length in (found.turns_at - 8, round(1.05 * found.turns_at) + 8)
    ]
    if "fits up to" in found.text:
        assert verdicts[0] == "fits"
        assert verdicts[1] != "fits"
    else:
        assert verdicts == ["tight", "exceeds"]


def test_a_verdict_on_declared_lengths_says_up_to_which_it_holds() -> None:
    told = judged("1xrtx-4090", "host_ram_gib: 64", "lengths: [200, 500]", **QWEN3)
    assert predict(told).verdict == "fits"
    found = assumption(told, "length")
    assert found
    assert found.assumed == 500
    assert found.code == ""
    assert f"{found.text}\n" in format_findings_of(
        text("1xrtx-4090", "host_ram_gib: 64", "lengths: [200, 500]", **QWEN3)
    )
    for length, holds in ((found.turns_at, True), (round(1.06 * float(found.turns_at)) + 8, False)):
        longer = judged("1xrtx-4090", "host_ram_gib: 64", f"lengths: [200, {length}]", **QWEN3)
        assert (predict(longer).verdict == "fits") == holds


@pytest.mark.parametrize(("own", "fits", "words"), [
    (2048, 2060, "up to 2,048 tokens"), (2048, 2190, "up to 2,100 tokens"), (2048, 1030, "up to 1,000 tokens"),
])  # fmt: skip
def test_a_run_that_fits_at_its_cutoff_len_is_not_said_to_fit_up_to_less(own: int, fits: int, words: str) -> None:
    assert f"this run fits {words} a sample" in longer_samples_in_words(own, 4096, fits)


def format_findings_of(recipe: str) -> str:
    return format_findings(Report("", [check_document(parse_recipe("x.yaml", recipe))]))


@pytest.mark.parametrize(
    ("machine", "header", "values"),
    [
        ("8xa100-80g", ("host_ram_gib: 1024",), {**QWEN3, "cutoff_len": 2048}),  # fits whatever the length
        ("1xrtx-4090", ("host_ram_gib: 64",), {**QWEN3, "packing": True}),  # always as long
        ("1xrtx-4090", ("host_ram_gib: 64", "lengths: [2000, 8000]"), QWEN3),  # does not fit at the length that is told
        ("1xt4-16g", ("host_ram_gib: 64",), {**QWEN3, "finetuning_type": "full"}),  # at no length
    ],
)
def test_what_would_not_turn_the_verdict_is_not_named(
    machine: str, header: tuple[str, ...], values: dict[str, Any]
) -> None:
    assert verdict_assumptions(judged(machine, *header, **values)) == ()


PICTURES = {
    **QWEN_VL, "image_max_pixels": 589824, "enable_liger_kernel": True, "freeze_vision_tower": False,
    "per_device_train_batch_size": 1, "cutoff_len": 8192,
}  # fmt: skip


def test_as_many_pictures_as_are_named_fit_and_one_more_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same recipe is judged with rows that have so many pictures."""
    monkeypatch.chdir(tmp_path)
    head = ("host_ram_gib: 1024", 'transformers: "5.6.0"')
    run = judged("1xa100-40g", *head, **PICTURES, dataset_dir="ONLINE")
    found = assumption(run, "pictures")
    assert predict(run).verdict == "tight"
    assert found
    assert found.assumed == 1
    assert isinstance(found.turns_at, int)
    assert f"fits up to {found.turns_at} pictures a sample" in found.text
    Path("data").mkdir()
    for number, fits in ((found.turns_at, True), (found.turns_at + 1, False)):
        name = f"of_{number}"
        row = {"messages": [{"role": "user", "content": "<image>" * number}, {"role": "assistant", "content": "so"}],
               "images": [f"{each}.png" for each in range(number)]}  # fmt: skip
        entry = {"file_name": f"{name}.json", "formatting": "sharegpt", "tags": TAGS,
                 "columns": {"messages": "messages", "images": "images"}}  # fmt: skip
        Path("data", f"{name}.json").write_text(json.dumps([row]), "utf-8")
        Path("data", "dataset_info.json").write_text(json.dumps({name: entry}), "utf-8")
        counted = judged("1xa100-40g", *head, **{**PICTURES, "dataset": name, "dataset_dir": "data"})
        assert assumption(counted, "pictures") is None
        assert (predict(counted).verdict == "fits") == fits


TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}


def test_a_release_with_another_verdict_is_named() -> None:
    run = judged("1xa100-80g", "host_ram_gib: 512", **{**MIXTRAL, "cutoff_len": 2048})
    found = assumption(run, "release")
    assert found
    older = judged(
        "1xa100-80g", "host_ram_gib: 512", f"transformers: {found.turns_at}", **{**MIXTRAL, "cutoff_len": 2048}
    )
    assert predict(older).device_verdict != predict(run).device_verdict
    assert found.text == f"exceeds with transformers {found.assumed}, fits with transformers {found.turns_at}"


def test_main_memory_that_is_not_given_is_named_where_it_is_much() -> None:
    values = {**MIXTRAL, "cutoff_len": 1024}
    found = assumption(judged("2xa100-80g", **values), "host_memory")
    assert found
    band = predict(judged("2xa100-80g", **values)).host_memory
    assert band
    assert f" a node, the upper end of {band.low / GIB:,.1f} to {band.high / GIB:,.1f}; " in found.text
    for ram, fits in ((float(found.turns_at), True), (0.7 * float(found.turns_at), False)):
        assert (predict(judged("2xa100-80g", f"host_ram_gib: {ram:.0f}", **values)).host_verdict == "fits") == fits
    assert assumption(judged("1xrtx-4090", **{**QWEN3, "cutoff_len": 512}), "host_memory") is None


def test_a_plan_says_that_it_takes_the_main_memory_of_a_usual_server() -> None:
    words = ["plan", "--model", "mistralai/Mixtral-8x7B-Instruct-v0.1", "--machine", "2xa100-80g", "--method", "lora"]
    shown = CliRunner().invoke(group, words).output
    (row, *_) = json.loads(CliRunner().invoke(group, [*words, "--format", "json"]).stdout)["plans"]
    (found,) = row["assumes"]
    assert found["about"] == "host_memory"
    assert row["host_gib"] <= found["turns_at"] <= found["assumed"]
    assert f"    depends: {found['text']}\n" in shown
    given = CliRunner().invoke(group, [*words, "--host-ram", "256", "--format", "json"]).stdout
    assert all(each["assumes"] == [] for each in json.loads(given)["plans"])


def test_json_has_it_in_each_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(text("1xrtx-4090", "host_ram_gib: 64", **QWEN3), "utf-8")

    def answer(*words: str) -> Any:
        return json.loads(CliRunner().invoke(group, [*words, "--format", "json"]).stdout)

    (file,), explained = answer("check", "x.yaml")["files"], answer("explain", "x.yaml")
    assert file["verdict"] == explained["verdict"] == "tight"
    assert explained["device_gib"]["low"] > explained["machine"]["usable_gib"]
    assert file["enough_for_tokens"] == explained["enough_for_tokens"]
    assert file["assumes"] == explained["assumes"]
    assert file["assumes"][0]["turns_at"] <= file["enough_for_tokens"]
    assert all(row["assumes"] == [] for row in answer("list", "--machine", "1xrtx-4090"))
    assert all("assumes" in row for row in answer("plan", "--model", "qwen3-8b", "--machine", "1xrtx-4090")["plans"])
