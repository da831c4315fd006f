"""How long samples are, and what that makes of a verdict."""

from __future__ import annotations

import pytest

from validator.recipe.recipe_file import parse_recipe
from validator.run.hyperparameters import ORDINARY_TOKENS
from validator.run.prediction import predict
from validator.run.recipe_arguments import HeaderLengths, header_lengths
from validator.run.settings import RunSettings, resolve

RECIPE = """# /// recipe
# machine: 8xa100-40g
# host_ram_gib: 1024
# {}
# ///
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: full
cutoff_len: {}
bf16: true
per_device_train_batch_size: 1
deepspeed: ds_z3_config.json
{}
"""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (800, HeaderLengths(800)), (800.0, HeaderLengths(800)), ([800], HeaderLengths(800)),
        ([800, 3000], HeaderLengths(800, 3000)), ([800, 800], HeaderLengths(800, 800)),
        ([3000, 800], None), ("800", None), ([], None), ([1, 2, 3], None), (0, None),
        (-5, None), (True, None), ({"typical": 800}, None), ([800, "x"], None), (None, None), (float("nan"), None),
    ],
)  # fmt: skip
def test_what_the_header_says(value: object, told: HeaderLengths | None) -> None:
    assert header_lengths(value) == told


def resolved(header: str = "", cutoff: int = 16384, more: str = "") -> RunSettings:
    return resolve(parse_recipe("-", RECIPE.format(header, cutoff, more)))


@pytest.mark.parametrize(
    ("header", "cutoff", "more", "reached", "longest"),
    [
        ("", 16384, "", ORDINARY_TOKENS, 16384),
        ("", 512, "", 512, 512),
        ("lengths: 800", 16384, "", 800, 16384),
        ("lengths: 800", 512, "", 512, 512),
        ("lengths: [800, 3001]", 16384, "", 3008, 3008),  # padded to a multiple of 8
        ("lengths: [800, 3000]", 2048, "", 2048, 2048),
        ("lengths: [800, 3000]", 16384, "packing: true", 16384, 16384),
        ("", 16384, "packing: true", 16384, 16384),
    ],
)
def test_the_longest_sequence(header: str, cutoff: int, more: str, reached: int, longest: int) -> None:
    one = resolved(header, cutoff, more)
    assert (one.batch.certain_tokens, one.batch.max_tokens) == (reached, longest)
    workload = predict(one).workload
    assert workload is not None
    assert workload.length == longest


def test_where_lengths_decide_and_are_not_known_the_verdict_is_tight() -> None:
    one = resolved()
    assert (predict(one).verdict, predict(one).verdict_at_longest, predict(one).device_verdict) == (
        "tight",
        "exceeds",
        "exceeds",
    )
    enough_for = predict(one).fitting_length
    assert enough_for is not None
    assert ORDINARY_TOKENS <= enough_for < 16384
    # and the length named is one at which it does not exceed, while little more does
    assert predict(resolved(f"lengths: [1, {enough_for}]")).verdict_at_longest != "exceeds"
    assert predict(resolved(f"lengths: [1, {enough_for * 11 // 10}]")).verdict_at_longest == "exceeds"


@pytest.mark.parametrize(
    ("header", "more", "verdict"),
    [
        ("lengths: [800, 3000]", "", "fits"), ("lengths: [800, 12000]", "", "exceeds"),
        ("", "packing: true", "exceeds"), ("", "eval_strategy: epoch\nper_device_eval_batch_size: 64", "exceeds"),
    ],
)  # fmt: skip
def test_what_is_known_makes_it_firm(header: str, more: str, verdict: str) -> None:
    one = resolved(header, more=more)
    assert (predict(one).verdict, predict(one).fitting_length) == (verdict, None)


def test_a_typical_length_widens_the_band_downwards() -> None:
    usual, told = predict(resolved()).device_memory, predict(resolved("lengths: 800")).device_memory
    assert usual is not None
    assert told is not None
    assert told.low < usual.low
    assert (told.expected, told.high) == (usual.expected, usual.high)
