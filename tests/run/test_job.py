"""What LLaMA-Factory would run: defaults, batch, steps, checkpoints, verdicts; and where paths are looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from validator.recipe.recipe_file import Document
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve


def resolved(machine: str | None = None, ram: float | None = None, header: Any = None, **values: Any) -> RunSettings:
    return resolve(Document("x.yaml", values=values, header=header or {}), machine, ram)


def test_defaults_are_llamafactorys() -> None:
    one = resolved()
    assert (one.task.stage, one.task.method, one.args.number("cutoff_len"), one.args.get("none_such")) == (
        "sft",
        "lora",
        2048,
        None,
    )


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (8, 8.0),
        (0.5, 0.5),
        (True, 1.0),
        ("8", 0.0),
        (None, 0.0),
        (float("inf"), 0.0),
        (float("nan"), 0.0),
        (10**400, 0.0),
    ],
)
def test_number(value: object, number: float) -> None:
    assert resolved(learning_rate=value).args.number("learning_rate") == number


def test_truth_is_pythons_and_words_are_split_at_commas() -> None:
    assert resolved(bf16="false").args.flag("bf16")
    assert resolved(dataset="a, b,c").args.words("dataset") == ("a", "b", "c")
    assert resolved(dataset=["a", "b"]).args.words("dataset") == ("a", "b")
    assert resolved(dataset=3).args.words("dataset") == ()


def test_batch_and_steps_over_all_devices_and_epochs() -> None:
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_train_epochs": 2.5}
    one = resolved("2x8xa100-80g", header={"samples": 1001}, **batch)
    assert one.batch.effective_batch == 128
    assert one.steps == 20  # 8 a pass, the last one short, two and a half passes
    assert resolved("1xa100-80g", max_steps=7, **batch).steps == 7
    assert resolved("1xa100-80g", **batch).steps == 0


BEST = {"metric_for_best_model": "eval_loss", "eval_strategy": "steps", "val_size": 0.1}


@pytest.mark.parametrize(
    ("more", "kept", "at_once"),
    [
        ({"save_steps": 10}, 10, 10),
        ({"save_steps": 0.25}, 4, 4),
        ({"save_steps": 1000}, 1, 1),
        ({"save_strategy": "epoch"}, 2, 2),
        ({"save_steps": 10, "save_strategy": "no"}, 0, 0),
        ({"save_steps": 10, "save_total_limit": 3}, 3, 4),
        ({"save_steps": 40, "save_total_limit": 3}, 3, 3),
        ({"save_steps": 60, "save_total_limit": 3}, 2, 2),
        ({"save_steps": 10, "save_total_limit": 1}, 1, 2),
        ({"save_steps": 10, "save_total_limit": 1, **BEST}, 2, 3),
        ({"save_steps": 10, "save_total_limit": 2, **BEST}, 2, 3),
        ({"save_steps": 10, "save_total_limit": 1, **BEST, "eval_strategy": "no"}, 1, 2),
        ({"save_strategy": "best", **BEST, "eval_steps": 30}, 3, 3),
    ],
)
def test_checkpoints(more: dict[str, Any], kept: int, at_once: int) -> None:
    """The run has 100 steps, 90 where a tenth of the samples is held back."""
    values = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "num_train_epochs": 2.0, **more}
    assert predict(resolved("1xa100-80g", header={"samples": 100}, **values)).checkpoint_counts == (kept, at_once)


def test_a_run_of_unknown_length_is_taken_to_remove_checkpoints() -> None:
    assert predict(resolved("1xa100-80g", save_total_limit=2)).checkpoint_counts == (2, 3)
    assert predict(resolved("1xa100-80g")).checkpoint_counts == (1, 1)


def test_the_verdict_is_the_worse_of_device_and_host() -> None:
    values: dict[str, Any] = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "bf16": True}
    assert predict(resolved("8xa100-80g", 1024, **values)).verdict == "fits"
    assert predict(resolved("8xa100-80g", 8, **values)).verdict == "exceeds"
    assert predict(resolved("8xa100-80g", 8, **values)).device_verdict == "fits"
    assert predict(resolved("1xt4-16g", 1024, **{**values, "finetuning_type": "full"})).verdict == "exceeds"
    assert predict(resolved(**values)).verdict == "unknown"
    assert predict(resolved("8xa100-80g", 1024, model_name_or_path="none/such")).verdict == "unknown"


def test_of_shared_memory_device_and_host_need_their_sum() -> None:
    values: dict[str, Any] = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "bf16": True,
                              "per_device_train_batch_size": 1}  # fmt: skip
    own, shared = resolved("1xa100-80g", 1024, **values), resolved("1xgb10-128g", **values)
    own_memory = predict(own).device_memory
    assert own_memory
    shared_memory = predict(shared).device_memory
    assert shared_memory
    host_memory = predict(shared).host_memory
    assert host_memory
    live = shared_memory.allocated - own_memory.allocated
    assert live == pytest.approx(host_memory.expected)
    assert predict(shared).verdict == "fits"
    # The checkpoint of 32B stays in the page cache beside the weights.
    assert (
        predict(resolved("1xgb10-128g", **values | {"model_name_or_path": "Qwen/Qwen2.5-32B-Instruct"})).verdict
        == "tight"
    )
    assert predict(resolved("1xgb10-128g", **values | {"finetuning_type": "full"})).verdict == "exceeds"


def test_less_main_memory_is_less_of_what_a_device_shares() -> None:
    values: dict[str, Any] = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "bf16": True}
    assert predict(resolved("1xgb10-128g", 16, **values)).device_verdict == "exceeds"
    assert resolved("1xgb10-128g", 1024, **values).machine == resolved("1xgb10-128g", **values).machine


@pytest.mark.parametrize("ram", ["1024", True, -1, 0, float("nan"), None, [1]])
def test_a_header_value_that_is_no_size_is_no_size(ram: object) -> None:
    machine = resolved(header={"machine": "8xa100-80g", "host_ram_gib": ram, "samples": ram}).machine
    assert machine is not None
    assert machine.host_ram_gib is None


def test_what_is_asked_for_wins_over_the_header() -> None:
    one = resolved("1xa100-80g", 64, header={"machine": "8xt4-16g", "host_ram_gib": 512})
    assert str(one.machine) == "1xa100-80g"
    assert one.machine is not None
    assert one.machine.host_ram_gib == 64


def test_paths_are_looked_for_beside_a_recipe_that_lies_elsewhere_and_else_here_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "project/recipes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / "z.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    recipe = resolve(Document(str(tmp_path / "project" / "recipes" / "x.yaml")))
    assert recipe.workspace.find("z.json") == (tmp_path / "project" / "z.json", False)
    (tmp_path / "here" / "z.json").write_text("{}")
    (tmp_path / "z.json").write_text("{}")
    assert recipe.workspace.find("z.json") == (tmp_path / "project" / "z.json", False)
    (tmp_path / "project" / "z.json").unlink()
    assert recipe.workspace.find("z.json") == (tmp_path / "here" / "z.json", True)
    below = resolve(Document(str(tmp_path / "here" / "recipes" / "x.yaml")))
    (tmp_path / "here" / "recipes").mkdir()
    (tmp_path / "here" / "recipes" / "z.json").write_text("{}")
    assert below.workspace.find("z.json") == (tmp_path / "here" / "z.json", True)
    assert recipe.workspace.find("none.json") is None
    assert recipe.workspace.find("x" * 5000) is None


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("cutoff_len", "long", 2048),
        ("cutoff_len", "512", 512),
        ("cutoff_len", 512.0, 512),
        ("cutoff_len", 512.5, 2048),
        ("val_size", "0.1", 0.1),
        ("val_size", "nan", 0.0),
        ("bf16", "true", True),
        ("bf16", 1, False),
        ("stage", "DPO", "dpo"),
        ("stage", "rl", "sft"),
        ("save_strategy", False, "no"),
        ("model_name_or_path", 7, None),
        ("model_name_or_path", ["Qwen/Qwen3-8B"], "Qwen/Qwen3-8B"),
        ("model_name_or_path", ["Qwen/Qwen3-8B", "x"], None),
        ("cutoff_len", [512], 512),
    ],
)
def test_a_refused_value_counts_as_what_it_plainly_means_or_not_at_all(key: str, value: object, meant: object) -> None:
    document = Document("x.yaml", values={key: value})
    assert resolve(document, refused=frozenset({key})).args.get(key) == meant


def test_a_deepspeed_file_that_is_not_there_is_the_catalogues_or_memory_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"model_name_or_path": "Qwen/Qwen3-8B", "finetuning_type": "full", "bf16": True}
    for name, verdict in (("no_such.json", "unknown"), ("deepspeed/ds_z3.json", "fits"), ("ds_z0.json", "exceeds")):
        assert predict(resolved("8xa100-80g", 1024, deepspeed=name, **values)).verdict == verdict, name
    (tmp_path / "ds_z2.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert predict(resolved("8xa100-80g", 1024, deepspeed="ds_z2.json", **values)).verdict == "fits"
    (tmp_path / "ds_z2.json").write_text("{")
    broken = resolved("8xa100-80g", 1024, deepspeed="ds_z2.json", **values)
    assert (
        predict(broken).device_memory,
        predict(broken).host_memory,
        predict(broken).disk,
        predict(broken).verdict,
    ) == (None, None, None, "unknown")


def test_new_tokens_are_rows_of_the_vocabulary() -> None:
    added: tuple[dict[str, Any], ...] = ({}, {"add_tokens": "<a>, <b>", "add_special_tokens": ["<c>"]})
    rows = [
        one.model.arch.vocab
        for tokens in added
        if (one := resolved(model_name_or_path="Qwen/Qwen3-8B", **tokens)).model
    ]
    assert rows == [151936, 151939]


MIXTRAL: dict[str, Any] = {
    "model_name_or_path": "mistralai/Mixtral-8x7B-Instruct-v0.1", "quantization_bit": 4, "bf16": True,
    "per_device_train_batch_size": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "verdicts", "verdict"),
    [
        ({"transformers": "4.57.1"}, ["fits"], "fits"),
        ({"transformers": ">=5"}, ["exceeds"], "exceeds"),
        ({"llamafactory": "0.9.4"}, ["fits"], "fits"),
        ({}, ["exceeds", "fits"], "tight"),
    ],
)
def test_experts_are_those_of_the_releases_that_the_recipe_admits(
    wanted: dict[str, str], verdicts: list[str], verdict: str
) -> None:
    one = resolved("1xa100-80g", header=wanted, **MIXTRAL)
    assert (list(predict(one).device_verdicts.values()), predict(one).device_verdict) == (verdicts, verdict)


def test_adapters_reach_experts_that_are_linear_modules() -> None:
    older, newer = predict(resolved("1xa100-80g", **MIXTRAL)).workloads.values()
    assert newer.adapter.targets == ("q", "k", "v", "o", "router", "gate", "up", "down")
    assert older.adapter.targets == ("q", "k", "v", "o")


def test_a_dense_model_is_the_same_with_every_release() -> None:
    assert len(predict(resolved(model_name_or_path="Qwen/Qwen2.5-7B-Instruct")).workloads) == 1
