"""FIT: which finding for which verdict, and that its numbers are the estimate's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import clean_recipe

from validator.check import checking
from validator.finding import Diagnostic
from validator.physics.estimate import GIB
from validator.recipe.recipe_file import Document, parse_recipe
from validator.run.prediction import predict
from validator.run.settings import resolve
from validator.wording import distinguishing_decimals

pytestmark = pytest.mark.usefixtures("from_the_root")

ROOT = Path(__file__).parents[2]
VALUES: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "template": "qwen", "output_dir": "saves/x", "bf16": True, "save_total_limit": 2,
}  # fmt: skip
OFFLOAD: dict[str, Any] = {"deepspeed": "deepspeed/ds_z3_offload.json", "finetuning_type": "full"}


def document(**values: Any) -> Document:
    return Document("x.yaml", "", {**VALUES, **values})


def fit(machine: str | None, ram: float | None = None, **values: Any) -> dict[str, Diagnostic]:
    found = checking.check_document(document(**values), machine, ram).diagnostics
    return {d.code: d for d in found if d.code.startswith("FIT")}


def test_host_memory_around_its_limits() -> None:
    """Just below the expected value, between it and the upper end, and above that."""
    host = predict(resolve(document(**OFFLOAD), "8xa100-80g", 4096)).host_memory
    assert host is not None
    expected, high = host.expected / GIB, host.high / GIB
    assert set(fit("8xa100-80g", expected * 0.99, **OFFLOAD)) == {"FIT003"}
    assert set(fit("8xa100-80g", (expected + high) / 2, **OFFLOAD)) == {"FIT004"}
    assert set(fit("8xa100-80g", high * 1.01, **OFFLOAD)) == set()


def test_device_memory_around_its_limits() -> None:
    """The verdict and the code go together whatever the length of the samples."""
    codes: dict[str, list[set[str]]] = {"fits": [set()], "tight": [{"FIT002"}, {"FIT011"}], "exceeds": [{"FIT001"}]}
    seen: set[str] = set()
    for length in range(512, 40_000, 2048):
        values: dict[str, Any] = {"cutoff_len": length, "per_device_train_batch_size": 2}
        said = set(fit("1xa100-40g", 1024, **values))
        assert said in codes[predict(resolve(document(**values), "1xa100-40g", 1024)).verdict]
        packed = {**values, "packing": True}
        assert (
            set(fit("1xa100-40g", 1024, **packed))
            in codes[predict(resolve(document(**packed), "1xa100-40g", 1024)).verdict_at_longest]
        )
        seen |= said
    assert seen == {"FIT002", "FIT011"}


def test_the_message_names_need_limit_and_remedy() -> None:
    found = fit("1xrtx-4090", 1024, finetuning_type="full")["FIT001"]
    device = predict(resolve(document(finetuning_type="full"), "1xrtx-4090", 1024)).device_memory
    assert device is not None
    assert f"needs {device.expected / GIB:.1f} GiB ({device.low / GIB:.1f} to {device.high / GIB:.1f})" in found.message
    assert "rtx-4090 has 23" in found.message
    assert "set `" in found.message


def test_the_message_about_the_host_names_what_would_fit() -> None:
    expected = predict(resolve(document(**OFFLOAD), "8xa100-80g", 4096)).host_memory
    assert expected is not None
    found = fit("8xa100-80g", 0.99 * expected.expected / GIB, **OFFLOAD)["FIT003"]
    assert "exit code -9); set `" in found.message
    none = fit("1xt4-16g", 2, model_name_or_path="Qwen/Qwen2-72B-Instruct")["FIT003"]
    assert "no change makes it fit" in none.message


def test_a_band_that_is_wide_for_lack_of_measurements_says_so() -> None:
    for values in ({"finetuning_type": "full"}, {"cutoff_len": 12000}):
        for found in fit("1xascend-910b-32g", 1024, **values).values():
            assert "(wide range, as few measurements of this kind of device are public)" in found.message
    assert "wide band" not in fit("1xrtx-4090", 1024, finetuning_type="full")["FIT001"].message


def test_without_a_machine_a_model_or_host_memory() -> None:
    assert set(fit(None)) == set()
    assert set(fit(None, model_name_or_path="none/such")) == set()
    assert set(fit("8xa100-80g", model_name_or_path="none/such")) == {"FIT005", "FIT013"}
    assert set(fit("8xa100-80g", **OFFLOAD)) == {"FIT007"}
    assert set(fit("8xa100-80g")) == set()


def test_a_mistake_in_the_machine_is_reported_once() -> None:
    one = Document("x.yaml", "", dict(VALUES), header={"machine": "8xa1000"})
    assert [d.code for d in checking.check_document(one).diagnostics if d.code.startswith("FIT")] == ["FIT006"]


@pytest.mark.parametrize(
    ("values", "found"),
    [({"save_total_limit": None, "save_steps": 500}, {"FIT008"}), ({"save_steps": 500}, set()),
     ({"save_total_limit": None, "save_strategy": "no"}, set()),
     ({"save_total_limit": None, "save_steps": 500, "save_only_model": True}, {"FIT008"}),
     ({"save_total_limit": None, "save_steps": 5000, "save_only_model": True}, set())],
)  # fmt: skip
def test_checkpoints(values: dict[str, Any], found: set[str]) -> None:
    run = {"deepspeed": "deepspeed/ds_z3.json", "finetuning_type": "full", "per_device_train_batch_size": 1,
           "gradient_accumulation_steps": 2, "num_train_epochs": 3.0}  # fmt: skip
    one = Document("x.yaml", "", {**VALUES, **run, **values}, header={"samples": 300_000})
    codes = {d.code for d in checking.check_document(one, "8xa100-80g", 2048).diagnostics}
    assert codes & {"FIT008"} == found


# Needs a few MiB more than the device has.
ALMOST = f"{clean_recipe.FOUR_BITS}enable_liger_kernel: true\ndeepspeed: deepspeed/ds_z3_offload_all.json\n"


@pytest.mark.parametrize(
    ("limit", "sizes", "decimals"),
    [
        (31.71, (27.7, 31.68), 2),
        (31.71, (28.5, 31.71), 1),  # the band is cut off at the limit
        (31.71, (31.708, 31.71), 3),
        (31.71, (27.7, 31.5), 1),
        (None, (27.7, 31.71), 1),
    ],
)
def test_the_ends_of_a_band_are_told_from_the_limit(
    limit: float | None, sizes: tuple[float, ...], decimals: int
) -> None:
    assert distinguishing_decimals(limit, *sizes) == decimals


def test_need_and_limit_have_the_decimals_that_tell_them_apart() -> None:
    machine = resolve(document(), "1xa100-40g").machine
    assert machine
    usable = machine.device.usable_gib
    assert usable
    found = checking.check_document(parse_recipe("recipes/x.yaml", ALMOST), "1xa100-40g", 1024).diagnostics
    (message,) = [each.message for each in found if each.code == "FIT001"]
    need = message.split()[3]
    assert float(need) > usable > float(need) - 0.05
    assert f", and a100-40g has {usable:.3f} usable" in message
