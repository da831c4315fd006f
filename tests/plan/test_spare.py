"""What memory to spare would buy: each of it fits by the same margin, is worth having, and is as promised."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from support import following

from validator.advise import changes
from validator.advise.changes import Change
from validator.finding import Severity
from validator.recipe.recipe_file import parse_recipe
from validator.run.prediction import predict
from validator.run.settings import resolve

pytestmark = [
    pytest.mark.usefixtures("from_the_root"),
    pytest.mark.sample(one_in=3, whole_for=["validator/advise/*", "validator/levers/*"]),
]

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
LARGER = [("1xh200-141g", 512.0), ("8xa100-80g", 2048.0), ("8xb200-180g", 2048.0), ("2x8xh100-80g", 2048.0)]
WHOLE = "weights whole on every device; less communication"
ON_DEVICE = "nothing in host memory; much faster steps"
ADAM = "only the optimizer state in host memory; faster steps"
ONCE = "activations computed once: a quarter to a third less time for a step"
HALF = "base weights in half precision: faster and more accurate"
FULLER = "same effective batch in fewer, fuller passes"
LONGER = "fewer samples are cut"
PICTURES = "pictures are read beside the step"
OFF = {"disable_gradient_checkpointing": True}


def zero(name: str) -> str:
    return f"deepspeed: deepspeed/ds_{name}.json\n"


def named(name: str) -> dict[str, str]:
    return {"deepspeed": f"deepspeed/ds_{name}.json"}


def batch(micro: int, accumulation: int) -> dict[str, int]:
    return {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}


def bought(folder: Path, text: str) -> list[Change]:
    """What is bought, followed to the letter."""
    before, advised = following.promises(folder, text, changes.uses_of_free_memory, Severity.ERROR, Severity.WARNING)
    assert len(advised) <= 5
    assert not advised or predict(before).verdict == "fits"
    assert all(change.verdict == "fits" for change in advised)
    return advised


# Machine, host memory, method, what else the recipe says, and all that is bought.
BOUGHT: list[tuple[str, float, str, str, Mapping[str, Mapping[str, object]]]] = [
    ("8xa100-80g", 1024, "full", zero("z3") + "enable_liger_kernel: true",
     {WHOLE: named("z2"), ONCE: OFF, FULLER: batch(8, 1), LONGER: {"cutoff_len": 16384}}),
    ("8xa100-80g", 1024, "lora", zero("z3"),
     {WHOLE: {"deepspeed": None}, FULLER: batch(8, 1), LONGER: {"cutoff_len": 4096}}),
    # ZeRO-2 holds the weights whole already; fuller batches pay where they are not padded
    ("8xa100-80g", 1024, "lora", zero("z2"), {LONGER: {"cutoff_len": 4096}}),
    ("8xa100-80g", 1024, "lora", zero("z2") + "packing: true", {FULLER: batch(8, 1), LONGER: {"cutoff_len": 4096}}),
    ("4xa100-40g", 1024, "full", zero("z3_offload_all"), {ADAM: named("z2_offload")}),
    # much faster even with a smaller micro batch
    ("2xa100-80g", 1024, "full", zero("z3_offload_all"),
     {f"{ON_DEVICE}; same effective batch in smaller steps": {**named("z3"), **batch(2, 4)}, FULLER: batch(8, 1),
      LONGER: {"cutoff_len": 4096}}),
    # on one device nothing is sharded, but less may be offloaded
    ("1xb200-180g", 512, "full", zero("z3_offload_all"),
     {ON_DEVICE: {"deepspeed": None}, ONCE: OFF, FULLER: batch(8, 1), LONGER: {"cutoff_len": 16384}}),
    ("1xa100-80g", 512, "full", zero("z3_offload_all"),
     {ADAM: named("z2_offload"), FULLER: batch(8, 1), LONGER: {"cutoff_len": 4096}}),
    ("1xa100-80g", 64, "lora", "quantization_bit: 4\ncutoff_len: 512",
     {ONCE: OFF, HALF: {"quantization_bit": None}, FULLER: batch(8, 1), LONGER: {"cutoff_len": 2048}}),
    ("1xh200-141g", 64, "lora",
     "cutoff_len: 512\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\ngradient_checkpointing: true",
     {ONCE: {**OFF, "gradient_checkpointing": False}, FULLER: batch(8, 1), LONGER: {"cutoff_len": 4096}}),
    ("1xh200-141g", 64, "lora", "model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct\ntemplate: qwen2_vl\ncutoff_len: 1024",
     {PICTURES: {"dataloader_num_workers": 8}, ONCE: OFF}),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "ram", "method", "more", "all_of_it"), BOUGHT)
def test_what_is_bought(
    tmp_path: Path, machine: str, ram: float, method: str, more: str, all_of_it: Mapping[str, Mapping[str, object]]
) -> None:
    advised = bought(tmp_path / "x", following.recipe(machine, method, ram, more))
    assert {change.note: change.set for change in advised} == all_of_it


def test_every_sentence_is_among_them() -> None:
    assert following.sentences(for_free_memory=True) == {
        note.removesuffix("; same effective batch in smaller steps") for row in BOUGHT for note in row[4]
    }


@pytest.mark.parametrize(
    ("machine", "method", "more"),
    [
        ("1xrtx-3090", "full", ""),  # does not fit
        ("8xa100-80g", "lora", "model_name_or_path: none/such"),  # nobody can say
        ("1xa100-80g", "lora", ""),  # fits, and no more would by the same margin
    ],
)
def test_nothing_is_bought(machine: str, method: str, more: str) -> None:
    text = following.recipe(machine, method, 1024, more)
    assert changes.uses_of_free_memory(resolve(parse_recipe("x.yaml", text))) == []


@pytest.mark.sample(one_in=5)
@pytest.mark.parametrize("path", RECIPES[::12], ids=lambda path: path.stem)
def test_what_a_recipe_buys_is_as_promised(tmp_path: Path, path: Path) -> None:
    bought(tmp_path / "x", path.read_text("utf-8"))


@pytest.mark.sample(one_in=10, whole_for=["validator/advise/*", "validator/levers/*"])
@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES[5::8], ids=lambda path: path.stem)
def test_what_a_recipe_buys_on_larger_machines_is_as_promised(tmp_path: Path, path: Path) -> None:
    for number, (machine, short) in enumerate(product(LARGER, ("", "cutoff_len: 512"))):
        text = following.targeted(path.read_text("utf-8"), machine)
        bought(tmp_path / str(number), following.written(text, short) if short else text)
