"""How long a recipe takes: which samples, which lengths, which parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from validator.knowledge.devices import parse_machine
from validator.physics import RunPart
from validator.run import training_time as timing
from validator.run.prediction import predict
from validator.run.recipe_arguments import Price, parse_price
from validator.run.sample_lengths import estimate_sample_lengths
from validator.run.settings import RunSettings, run_of_values
from validator.run.training_time import TrainingTime, seconds_per_sample

BASE = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "dataset": "mine", "template": "qwen", "cutoff_len": 2048, "output_dir": "saves/x", "bf16": True,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_train_epochs": 2.0,
}  # fmt: skip


def job(header: dict[str, Any] | None = None, on: str = "8xa100-80g", **values: Any) -> RunSettings:
    told = {"samples": 6400, **(header or {})}
    there = parse_machine(on, 1024.0)._replace(network=told.pop("network", None), price=told.pop("price", None))
    return run_of_values({**BASE, **values}, told, there)


def parts(header: dict[str, Any] | None = None, **values: Any) -> Mapping[RunPart, float]:
    run = paced(header, **values).run
    assert run
    return run.terms


def paced(header: dict[str, Any] | None = None, on: str = "8xa100-80g", **values: Any) -> TrainingTime:
    found = timing.predict_training_time(job(header, on, **values))
    assert found
    return found


@pytest.mark.parametrize("on", ["1xcpu", "1x48g"])
def test_nothing_is_said_of_devices_whose_rates_are_not_published(on: str) -> None:
    assert timing.predict_training_time(job(on=on)) is None
    assert seconds_per_sample(job(on=on), [100]) is None


@pytest.mark.parametrize(
    ("header", "values", "steps"),
    [
        ({}, {}, 200),
        ({}, {"max_steps": 50}, 50),
        ({"samples": None}, {"max_steps": 50}, 50),
        ({"samples": None}, {}, None),
        ({}, {"val_size": 0.5}, 100),
        ({}, {"val_size": 3200}, 100),
        ({}, {"max_samples": 640}, 20),
        ({"rows": 3200}, {}, 100),
        ({"rows": 3200}, {"max_samples": 640}, 20),  # as `--smoke` gives it on the command line
        ({"rows": 3200}, {"max_samples": 640, "dataset": "one,two"}, 40),
        ({}, {"gradient_accumulation_steps": 8}, 100),
        ({"lengths": 205}, {"packing": True}, 22),  # ten samples fill a sequence
    ],
)
def test_steps_follow_from_the_samples(header: dict[str, Any], values: dict[str, Any], steps: int | None) -> None:
    found = paced(header, **values)
    assert found.steps == pytest.approx(steps, abs=1) if steps else found.steps is None
    assert (found.run is None) == (steps is None)
    assert found.step.expected > 0


def test_epochs_below_none_are_none() -> None:
    none = paced({}, num_train_epochs=-3)
    assert none.steps == 0
    assert none.run is not None
    assert set(none.run.terms) == {RunPart.STARTING, RunPart.TOKENIZING}


def test_rows_that_are_there_count_before_the_recommended_ones(tmp_path: Path) -> None:
    rows = [{"instruction": "ask " * 20, "output": "answer " * 80} for _ in range(320)]
    (tmp_path / "mine.json").write_text(json.dumps(rows), "utf-8")
    (tmp_path / "dataset_info.json").write_text('{"mine": {"file_name": "mine.json"}}', "utf-8")
    there = paced(dataset_dir=str(tmp_path))
    assert there.steps == 10
    assert there.assumed == ("samples of some 176 tokens, estimated from all 320 rows",)
    assert there.step.high < paced().step.high


def test_evaluations_take_their_part() -> None:
    each = [
        parts(val_size=0.1, **values).get(RunPart.EVALUATIONS, 0.0)
        for values in (
            {},
            {"do_eval": True},
            {"eval_strategy": "epoch"},
            {"eval_strategy": "steps", "eval_steps": 0.1},
            {"eval_strategy": "steps", "eval_steps": 10},
        )
    ]
    assert each == sorted(each)
    assert each[0] == 0
    assert each[2] == pytest.approx(3 * each[1])


def test_saves_take_their_part() -> None:
    none, epochs, steps = (
        parts(save_strategy=how, save_steps=20, finetuning_type="full").get(RunPart.SAVES, 0.0)
        for how in ("no", "epoch", "steps")
    )
    assert none == 0 < epochs < steps


@pytest.mark.parametrize(
    ("header", "values", "widest"),
    [
        ({"lengths": [600, 1500]}, {}, 1.6),
        ({"lengths": 600}, {}, 1.6),
        ({}, {"packing": True}, 1.6),
        ({}, {"stage": "pt"}, 1.6),
    ],
)
def test_a_step_of_known_lengths_has_a_narrow_band(
    header: dict[str, Any], values: dict[str, Any], widest: float
) -> None:
    known, unknown = paced(header, **values).step, paced().step
    assert known.high / known.low < widest**2
    assert unknown.high / unknown.low > widest**2


@pytest.mark.parametrize(("on", "counts"), [("1xa100-80g", True), ("1xmi300x", True), ("1xascend-910b-64g", False)])
def test_kernels_that_the_header_names_count_where_transformers_takes_them(on: str, counts: bool) -> None:
    hybrid = {"model_name_or_path": "Qwen/Qwen3.5-9B", "dataset": "alpaca_gpt4_en", "enable_liger_kernel": True}
    header = {"lengths": 512, "packages": "flash-linear-attention"}
    plain, named = (paced(each, on, **hybrid).step for each in ({"lengths": 512}, header))
    memory = [predict(job(each, on, **hybrid)).device_memory for each in ({"lengths": 512}, header)]
    assert memory[0]
    assert memory[1]
    assert (named.expected < 0.9 * plain.expected) == counts
    assert (named.high / named.low < 0.9 * plain.high / plain.low) == counts
    assert (memory[1].expected < 0.9 * memory[0].expected) == counts


def test_what_is_not_known_is_said() -> None:
    assert "samples of some 512 tokens" in " ".join(paced().assumed)
    assert paced({"lengths": 600}).assumed == ()
    several = {"on": "2x8xa100-80g", "deepspeed": "deepspeed/ds_z3.json"}
    assert "8xinfiniband-200g" in " ".join(paced({"lengths": 600}, **several).assumed)
    assert paced({"lengths": 600, "network": "ethernet-10g"}, **several).assumed == ()
    assert "8xinfiniband-200g" in " ".join(paced({"lengths": 600, "network": "no-such"}, **several).assumed)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_faster_network_is_never_slower(method: str) -> None:
    names = ["ethernet-1g", "ethernet-10g", "ethernet-25g", "infiniband-100g", "8xinfiniband-400g"]
    several = {"on": "2x8xa100-80g", "deepspeed": "deepspeed/ds_z3.json", "finetuning_type": method}
    seconds = [paced({"lengths": 600, "network": name}, **several).step.expected for name in names]
    assert seconds == sorted(seconds, reverse=True)


def test_devices_that_meet_in_every_batch_wait_longer() -> None:
    lengths, stages = {"lengths": [500, 2000]}, ("", "deepspeed/ds_z3.json")
    plain, sharded = (paced(lengths, deepspeed=stage).step.expected for stage in stages)
    assert sharded > 1.1 * plain


@pytest.mark.parametrize("key", [{"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}])
def test_batches_of_samples_about_as_long_are_hardly_padded(key: dict[str, Any]) -> None:
    lengths, sharded = {"lengths": [500, 2000]}, {"deepspeed": "deepspeed/ds_z2.json", "finetuning_type": "full"}
    random, grouped = paced(lengths, **sharded), paced(lengths, **sharded, **key)
    assert grouped.step.expected < 0.7 * random.step.expected
    assert paced(lengths, **sharded, **key, disable_shuffling=True).step == random.step
    assert grouped.step.tokens == pytest.approx(4 * 2 * 8 * 500, rel=0.06)


def test_padding_counts_as_tokens_and_waiting_does_not() -> None:
    """Sixteen sequences of a device in a step, of eight devices."""
    known = paced({"lengths": [512, 513]}, per_device_train_batch_size=1, gradient_accumulation_steps=16)
    assert known.tokens_per_second * known.step.expected == pytest.approx(16 * 8 * 512, rel=0.03)


def test_lengths_of_the_data_come_before_all() -> None:
    one = job({"lengths": 600})
    assert estimate_sample_lengths(one, [100, 4000]).lengths[1] == [100, 2048]
    short, long = (
        timing.predict_training_time(one, 6400, (100,) * 9),
        timing.predict_training_time(one, 6400, (2000,) * 9),
    )
    assert short
    assert long
    assert short.step.expected < long.step.expected
    assert short.steps == long.steps == 200


def test_samples_longer_than_the_cutoff_are_cut_to_it() -> None:
    """More of them the longer they may be; the job keeps 2,048 tokens."""
    reached = [
        sum(each == 2048 for each in estimate_sample_lengths(job({"lengths": [1500, most]})).lengths[1])
        for most in (2048, 6000)
    ]
    assert reached[0] < reached[1] < len(estimate_sample_lengths(job({"lengths": [1500, 6000]})).lengths[1])


def test_the_same_samples_compare_jobs() -> None:
    lengths = [300.0, 600.0]
    before, without = (
        seconds_per_sample(job(), lengths),
        seconds_per_sample(job(disable_gradient_checkpointing=True), lengths),
    )
    cut = seconds_per_sample(job(cutoff_len=400), lengths)
    assert before
    assert without
    assert cut
    assert 0.6 < without / before < 0.9
    assert 0.6 < cut / before < 1
    packed = seconds_per_sample(job(packing=True), lengths)
    assert packed
    assert packed < before


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1.99 USD", Price(1.99, "USD")), ("12元", Price(12, "元")), ("0.5 $", Price(0.5, "$")), (2, Price(2)),
        ("3", Price(3)), ("-1 USD", None), ("0 USD", None), (0, None), ("USD 1", None), (True, None), ([1], None),
        ("1.99 USD/h", None), (None, None),
    ],
)  # fmt: skip
def test_a_price_is_an_amount_and_a_currency(written: object, meant: Price | None) -> None:
    assert parse_price(written) == meant
    assert job({"price": written}).price == meant
