"""What the name of a DeepSpeed file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import parse_recipe
from validator.run import deepspeed, fsdp, training_time
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # LLaMA-Factory's own
        ("examples/deepspeed/ds_z0_config.json", "ZeRO-0"), ("examples/deepspeed/ds_z2_config.json", "ZeRO-2"),
        ("examples/deepspeed/ds_z2_offload_config.json", "ZeRO-2 with optimizer offloaded"), ("z3.json", "ZeRO-3"),
        ("ds_z3_offload_config.json", "ZeRO-3 with optimizer and weights offloaded"),
        # others', as they are called in public repositories
        ("zero2.json", "ZeRO-2"), ("ds_config_stage3.json", "ZeRO-3"), ("configs/zero_stage3_config.json", "ZeRO-3"),
        ("C:\\ds\\stage1.json", "ZeRO-1"), ("zero3_no_offload.json", "ZeRO-3"), ("Zero-3_bf16.JSON", "ZeRO-3"),
        ("stage3-offload-optim.json", "ZeRO-3 with optimizer offloaded"),
        ("ds_zero3_cpuoffload.json", "ZeRO-3 with optimizer and weights offloaded"),
    ],
)  # fmt: skip
def test_a_name_that_tells_the_stage(name: str, words: str) -> None:
    told = deepspeed.deepspeed_by_file_name(name)
    assert told is not None
    assert (told.words, told.is_assumed, told.problem) == (words, True, None)


@pytest.mark.parametrize(
    "name", ["ds_config.json", "deepspeed.json", "zero3/config.json", "z30.json", "ds_z4.json", "ds_z2_z3.json", ""]
)
def test_a_name_that_does_not(name: str) -> None:
    assert deepspeed.deepspeed_by_file_name(name) is None


def test_a_file_that_is_there_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = resolve(parse_recipe("-", "deepspeed: my_zero3.json"))
    assert (one.zero_stage, one.deepspeed and one.deepspeed.is_assumed) == (3, True)
    Path("my_zero3.json").write_text('{"zero_optimization": {"stage": 2}}')
    one = resolve(parse_recipe("-", "deepspeed: my_zero3.json"))
    assert (one.zero_stage, one.deepspeed and one.deepspeed.is_assumed) == (2, False)
    one = resolve(parse_recipe("-", "deepspeed: elsewhere/ds_z3.json"))
    assert one.deepspeed is not None
    assert one.deepspeed.path == str(catalogue_root() / "deepspeed" / "ds_z3.json")


def test_a_file_that_nothing_tells_of() -> None:
    """Judged where all of LLaMA-Factory's own files agree, by the one that needs most, or least where none suffices."""
    recipe = "model_name_or_path: Qwen/Qwen3-8B\ntemplate: qwen3\ndeepspeed: mine.json\nfinetuning_type: "

    def judged(rest: str, machine: str | None) -> RunSettings:
        return resolve(parse_recipe("-", recipe + rest), machine, 512)

    fits = judged("lora", "8xa100-80g")
    fits_unread = predict(fits).outcomes_of_missing_file
    assert fits_unread is not None
    assert fits_unread.agreed is not None
    assert (predict(fits).verdict, set(fits_unread.verdicts.values()), fits.zero_stage) == (
        "fits",
        {"fits"},
        0,
    )
    exceeds = judged("full", "1xrtx-2080ti")
    exceeds_unread = predict(exceeds).outcomes_of_missing_file
    assert exceeds_unread is not None
    assert (predict(exceeds).verdict, set(exceeds_unread.verdicts.values())) == ("exceeds", {"exceeds"})
    differ = judged("full", "8xa100-80g")
    differ_unread = predict(differ).outcomes_of_missing_file
    assert differ_unread is not None
    assert (predict(differ).verdict, differ_unread.agreed, predict(differ).device_memory) == (
        "unknown",
        None,
        None,
    )
    assert (differ_unread.verdicts["ZeRO-0"], differ_unread.verdicts["ZeRO-3"]) == ("exceeds", "fits")
    for unjudged in (judged("lora", None), judged("lora\ndo_train: false\ndo_predict: true", "8xa100-80g")):
        assert predict(unjudged).outcomes_of_missing_file is None
    launched = replace(fits, accelerate=fsdp.AccelerateFile("a.yaml", {"distributed_type": "DEEPSPEED"}))
    assert (predict(launched).outcomes_of_missing_file, predict(launched).verdict) == (None, "unknown")
    assert [training_time.predict_training_time(each) for each in (fits, differ)] == [None, None]
