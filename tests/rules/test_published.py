"""Published runs of others, judged by TRA418 and TRA419: their values and sources are in tests/fixtures/published.csv.

`slip` marks values that their neighbours contradict by a factor of ten or more, as where an example took the rate of
another stage over; some of them are told."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from validator.knowledge import devices, models
from validator.rules import good_practice
from validator.run.settings import run_of_values

RUNS = list(csv.DictReader((Path(__file__).parents[1] / "fixtures" / "published.csv").open(encoding="utf-8")))
# A model of about each size; a run of another family is judged by its size alone.
SIZES = {
    0.0: "qwen0.5b",
    1.0: "qwen1.5b",
    3.0: "qwen3b",
    5.0: "qwen7b",
    11.0: "qwen14b",
    28.0: "qwen32b",
    60.0: "qwen72b",
}
OPTIMIZERS = {"galore", "apollo", "badam"}


def told(run: dict[str, str]) -> list[str]:
    """What TRA418 says of a run's values."""
    size = max(each for each in SIZES if each <= float(run["billions"] or 7))
    values: dict[str, Any] = {"stage": run["stage"], "do_train": True, "learning_rate": float(run["learning_rate"])}
    values["finetuning_type"] = "lora" if run["method"] == "qlora" else run["method"]
    values |= {"quantization_bit": 4} if run["method"] == "qlora" else {}
    values |= {f"use_{run['optimizer']}": True} if run["optimizer"] in OPTIMIZERS else {}
    values["model_name_or_path"] = models.find_model(SIZES[size]).name
    for field, key in (("epochs", "num_train_epochs"), ("rank", "lora_rank"), ("alpha", "lora_alpha")):
        values |= {key: float(run[field])} if run[field] else {}
    values |= {"lora_dropout": float(run["dropout"])} if run["dropout"] else {}
    values["per_device_train_batch_size"] = int(float(run["batch"] or 16))
    job = run_of_values(values, {}, devices.parse_machine("1xa100-80g", None) if run["batch"] else None)
    rule = good_practice.far_from_published
    return [text for setting in rule.about(job) for _, text in rule.check(job, *setting)]  # type: ignore[misc]


def test_no_warning_on_what_others_published() -> None:
    assert len(RUNS) > 300
    wrong = {(run["source"], *told(run)) for run in RUNS if run["note"] != "slip" and told(run)}
    assert wrong == set()


def test_most_slips_lie_within_three_times_the_range() -> None:
    slips = [run for run in RUNS if run["note"] == "slip"]
    assert 0 < len([run for run in slips if told(run)]) < len(slips) / 2
