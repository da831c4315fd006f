"""Which machine to rent: `plan --machines`, its prices, and that each row is what the single `plan` says."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from support import laws, program
from support.every import every

from validator.errors import RecipeError
from validator.knowledge import devices, models, prices
from validator.knowledge.tables import yaml_table
from validator.machine import this_machine
from validator.physics import Band
from validator.plan import answer, own_prices, rented_machines
from validator.plan.plan_json import answer_rows
from validator.plan.rented_machines import MachineOffer, RentalQuestion, machines_to_compare
from validator.run.recipe_arguments import Price

_MODELS = {"qwen3-0.6b": "sft", "qwen3-8b": "sft", "qwen3-32b": "dpo", "qwen2.5-72b": "sft", "gpt-oss-120b": "sft"}
_ALL = machines_to_compare("all")
_SAMPLES = 20_000


def compare(*words: str) -> Any:
    return json.loads(program.run("plan", *words, "--format", "json").output)


def question(model: str, stage: str = "sft", **others: Any) -> RentalQuestion:
    empty = RentalQuestion(models.find_model_by_any_name(model), _SAMPLES, None, None, None, stage, None, None, None)
    return replace(empty, **others)


@pytest.mark.sample(one_in=8, whole_for=["validator/plan/*"])
@pytest.mark.parametrize("machine", laws.chance(31).sample(_ALL, 16))
@pytest.mark.parametrize(("model", "stage"), _MODELS.items())
def test_each_row_is_what_the_single_plan_says(model: str, stage: str, machine: str) -> None:
    offer, *shorter = question(model, stage).offers(machine)
    unit_price = str(offer.price) if offer.price else None
    alone = answer_rows(
        answer.find_answer(models.find_model_by_any_name(model).name, machine, _SAMPLES, stage=stage, price=unit_price)
    )
    assert offer.fits == bool(alone.plans)
    for first in alone.plans[:1]:
        for field in ("method", "zero", "micro_batch", "cutoff_len", "device_gib", "hours", "device_hours", "money"):
            assert getattr(offer, field) == getattr(first, field), field
    cut = [each for each in alone.plans if each.cutoff_len < alone.plans[0].cutoff_len]
    assert [(each.method, each.hours) for each in shorter] == [(each.method, each.hours) for each in cut[:1]]


def test_no_machine_is_offered_on_which_too_few_steps_are_left() -> None:
    few = question("qwen2.5-7b", samples=200)
    offers = [offer for name in ("64x8xh100-80g", "8xh100-80g", "1xh100-80g") for offer in few.offers(name)]
    assert [(offer.machine, offer.part_of) for offer in offers] == [
        ("8xh100-80g", "64x8xh100-80g"), ("8xh100-80g", None), ("1xh100-80g", None)
    ]  # fmt: skip
    assert offers[0].money == offers[1].money
    shown = program.run("plan", "--model", "qwen2.5-7b", "--samples", "200", "--machines", "64x8xh100,8xh100").output
    assert shown.count("\n8xh100-80g") == 1
    assert "note: compared are 64x8xh100-80g as 8xh100-80g: more devices would harm the model" in shown


def test_all_machines_are_those_of_every_device_with_known_memory() -> None:
    known = {key for key in devices.device_ids() if devices.find_device(key)[0].usable_gib}
    assert {devices.parse_machine(name).device.id for name in _ALL} == known
    assert len(known) > 45
    assert {"1xgh200-96g", "8xh100-80g", "16xascend-910c-64g"} <= set(_ALL)
    assert not {"2xgh200-96g", "16xh100-80g", "1xcpu"} & set(_ALL)


@every(
    [
        ("h100", ["1xh100-80g", "2xh100-80g", "4xh100-80g", "8xh100-80g"]),
        ("8xh100-SXM,4090*2", ["8xh100-80g", "2xrtx-4090"]),
        ("8卡910B, 1x48g", ["8xascend-910b-64g", "1x48g"]),
        ("gh200,gh200", ["1xgh200-96g"]),
        ("2x8xa100-80g", ["2x8xa100-80g"]),
    ],
)  # fmt: skip
def test_machines_are_named_with_or_without_a_number(text: str, names: list[str]) -> None:
    assert machines_to_compare(text) == names


@pytest.mark.parametrize("text", ["", " , ", "h100,h10000x", "cpu", "all,h1000"])
def test_a_list_with_an_unknown_machine_is_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        machines_to_compare(text)


def test_a_vendor_stands_for_all_its_devices() -> None:
    ascend = machines_to_compare("Ascend")
    assert {devices.parse_machine(name).device.vendor for name in ascend} == {"ascend"}
    assert set(machines_to_compare("nvidia,amd,ascend")) == set(_ALL) == set(machines_to_compare("all,h100"))


def test_every_list_price_has_its_day_and_its_link() -> None:
    for key in yaml_table("prices"):
        price = prices.list_price(key)
        assert price is not None
        assert key in devices.device_ids()
        assert 0.05 < price.amount < 50
        assert price.currency == "USD"
        assert price.date == str(yaml_table("prices")[key]["date"])
        assert len(price.date) == 10
        assert price.source
        assert price.source.startswith("https://")
        assert yaml_table("prices")[key]["product"]
    assert prices.list_price("ascend-910b-64g") is None, "no list price of it is public"


def made(machine: str, hours: float | None, price: float | None, currency: str = "USD") -> MachineOffer:
    """An offer that takes so many hours at such a price of all devices."""
    (offer,) = question("qwen3-0.6b").offers("1x80g")
    assert offer.hours is None
    band = None if hours is None else Band(0.5 * hours, hours, 2 * hours)
    unit = None if price is None else prices.RentalPrice(price, currency)
    cost = Price(price, currency).of(1, band) if price and band else None
    return replace(offer, machine=machine, hours=band, price=unit, money=cost)


def test_the_cheapest_comes_first_and_what_has_no_price_last() -> None:
    offers = [
        made("1xh20-96g", 1.0, None), replace(made("1xt4-16g", None, None), fits=False), made("1xh100-80g", 5.0, 2.0),
        made("1xa100-80g", 9.0, 1.0), made("1x80g", None, None), made("1xrtx-4090", 4.0, 0.5),
    ]  # fmt: skip
    ordered = rented_machines.order_offers(offers, None)
    assert [each.machine for each in ordered] == [
        "1xrtx-4090", "1xa100-80g", "1xh100-80g", "1xh20-96g", "1x80g", "1xt4-16g",
    ]  # fmt: skip


def test_of_a_device_without_price_the_soonest_is_named() -> None:
    offers = [made("1xh20-96g", 9.0, None), made("8xh20-96g", 1.5, None), made("1xt4-16g", None, None)]
    offers += [made("2xt4-16g", None, None), replace(made("4xv100-32g", None, None), fits=False)]
    assert [each.machine for each in rented_machines.unpriced_offers(offers)] == ["8xh20-96g", "1xt4-16g"]


def test_what_is_cheaper_with_shorter_samples_does_not_hide_the_others() -> None:
    short = replace(made("1xrtx-5090", 1.0, 0.1), cutoff_len=1024)
    offers = [made("1xmi300x-192g", 4.0, 2.0), made("1xa6000-48g", 9.0, 0.5), short]
    offers = [each if each is short else replace(each, cutoff_len=2048) for each in offers]
    ordered = rented_machines.order_offers(offers, None)
    assert [each.machine for each in ordered] == ["1xa6000-48g", "1xmi300x-192g", "1xrtx-5090"]
    assert rented_machines.offers_to_show(ordered) == ordered


def test_currencies_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("910b: 9 CNY\nH100 SXM: 2 USD\n", "utf-8")
    own = own_prices.read_own_prices(str(file))
    assert own.price("ascend-910b-64g") == Price(9.0, "CNY")
    assert own.price("rtx-4090") is None
    offers = [made("1xrtx-4090", 1.0, 0.1), made("8xascend-910b-64g", 1.0, 9.0, "CNY")]
    assert rented_machines.order_offers(offers, own)[0].machine == "8xascend-910b-64g"
    assert rented_machines.offers_to_show(offers) == offers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cheap", "is not an amount and a currency, such as 1.99 USD or `h100: 1.99 USD`, nor a file"),
        ("h100: 1.99\n", "`h100: 1.99` is not an amount and a currency, such as `h100: 1.99 USD`"),
        ("h1000: 2 USD\n", "device `h1000` is not known; did you mean h100-80g?"),
        ("h100: two\n", "`h100: two` is not an amount and a currency"),
        ("- 1\n", "it holds no prices"), ("", "it holds no prices"), ("a: [\n", "prices.yaml: "),
    ],
)  # fmt: skip
def test_prices_that_cannot_be_read_are_told(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(RecipeError) as caught:
        own_prices.read_own_prices(text if text == "cheap" else str(file))
    assert said in str(caught.value)


@every(
    [
        ("nofile.yaml", "price file `nofile.yaml` does not exist"), ("prices/mine.json", "does not exist"),
        ("1.99", "price `1.99` names no currency; write such as `1.99 USD`"), ("0", "is not an amount and a currency"),
        ("h100: 1", "such as `h100: 1 USD`"), ("h1000: 1 USD", "did you mean h100-80g?"),
        ("h100: 1 USD, 2", "nor a file"),
    ],
)  # fmt: skip
def test_a_price_on_the_command_line_that_cannot_be_read_is_told(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        own_prices.read_own_prices(text)
    assert said in str(caught.value)


@every(
    [
        ("1.99 USD", {"h100-80g": 1.99, "rtx-4090": 1.99}), ("h100: 1.99 USD", {"h100-80g": 1.99, "rtx-4090": None}),
        ("H100 SXM: 2 EUR, 4090: 0.4 EUR", {"h100-80g": 2.0, "rtx-4090": 0.4}),
    ],
)  # fmt: skip
def test_prices_by_device_need_no_file(text: str, amounts: dict[str, float | None]) -> None:
    own = own_prices.read_own_prices(text)
    assert {device: price and price.amount for device in amounts for price in [own.price(device)]} == amounts


_DPO_32B = ("--model", "qwen3-32b", "--stage", "dpo", "--samples", "20000", "--machines")


@pytest.mark.parametrize("words", [("mi300x,5090",), ("5090,1xa100", "--host-ram", "256")])
def test_machines_with_shorter_samples_come_behind(words: tuple[str, ...]) -> None:
    rows = [row for row in compare(*_DPO_32B, *words)["machines"] if row["fits"]]
    lengths = [row["cutoff_len"] for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 2048
    assert lengths[-1] < 2048
    assert {(row["cutoff_len"], row["mean_tokens"]) for row in rows} <= {(2048, 512), (1024, 256), (512, 128)}


def test_a_length_that_is_asked_for_is_that_of_all() -> None:
    rows = compare(*_DPO_32B, "1xmi300x,1xrtx-5090", "--cutoff-len", "1024")["machines"]
    assert {row["cutoff_len"] for row in rows if row["fits"]} == {1024}


def test_known_host_memory_takes_no_plan_away() -> None:
    less, more = (compare(*_DPO_32B, "1xrtx-5090", *words) for words in ((), ("--host-ram", "256")))
    (cheapest,) = less["machines"]
    assert [(row["method"], row["cutoff_len"]) for row in more["machines"]] == [("lora", 2048), ("qlora", 1024)]
    assert more["machines"][1]["money"] == cheapest["money"]
    assert [row["method"] for row in more["plans"]] == ["lora", "qlora"]


@every(
    [
        ("1xh100,1xrtx-5090 --host-ram 64", "2 machines compared, none fit\n"),
        ("1xh100,1xrtx-5090 --host-ram 64", "1xh100-80g: fits from 70 GiB of host memory a node, 64 are given; "),
        ("1xrtx-5090", "1 machine compared, 1 fits\n"),
        ("1xrtx-5090 --host-ram 256", "with samples cut at 1024 tokens, of some 256 each:"),
        ("1xrtx-5090", "note: times are for samples cut at 1024 tokens, of some 256 each"),
        ("1xh100,1xrtx-5090", "host memory: that of a usual server is assumed; not known of rtx-5090, so that offload"),
        ("8xh100", "as recorded by github.com/toolshedlabs-hash/gpu-price-feed on 2026-10-03"),
        ("8xh100,8xa100 --price '2 USD'", "your 2 USD is taken for every device; --price 'h100-80g: 2 USD' is for one"),
    ],
)  # fmt: skip
def test_the_text_says_what_rows_stand_for(words: str, said: str) -> None:
    assert said in program.run("plan", *_DPO_32B, *shlex.split(words)).output


def test_the_note_on_one_price_is_for_different_devices() -> None:
    for words in ("4xh100,8xh100 --price '2 USD'", "8xh100,8xa100 --price 'h100: 2 USD'", "8xh100,8xa100"):
        assert "for every device" not in program.run("plan", *_DPO_32B, *shlex.split(words)).output


def test_the_answer_goes_on_with_the_first_machine() -> None:
    words = ("--model", "qwen3-8b", "--machines", "a100,4090,910b", "--samples", "5000")
    found = compare(*words)
    assert len(found["machines"]) == 12
    costs = [row["money"]["expected"] for row in found["machines"] if row["money"]]
    assert costs == sorted(costs)
    assert [row["price"] for row in found["machines"][-4:]] == [None] * 4
    assert found["machine"]["name"] == found["machines"][0]["machine"]
    assert found["plans"][0]["money"] == found["machines"][0]["money"]
    said = program.run("plan", *words)
    assert said.exit_code == 0
    *_, last = said.output.splitlines()
    assert last.startswith("next: lmf-recipes plan --machine 1xrtx-4090 --model qwen3-8b ")
    again = program.run(*shlex.split(last.removeprefix("next: lmf-recipes"))[:-2], "--format", "json")
    assert json.loads(again.output)["plans"] == found["plans"]


def test_ones_own_price_goes_before_a_list_price(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"h100": "1 EUR", "910b": "2 EUR"}', "utf-8")
    words = ("--model", "qwen3-8b", "--machines", "8xh100,8x910b,8xa100", "--price")
    by_file = compare(*words, str(tmp_path / "mine.json"))["machines"]
    assert [(row["price"]["amount"], row["price"]["currency"]) for row in by_file] == [
        (1.0, "EUR"), (2.0, "EUR"), (1.39, "USD"),
    ]  # fmt: skip
    assert [bool(row["price"]["source"]) for row in by_file] == [False, False, True]
    assert {row["price"]["amount"] for row in compare(*words, "3 USD")["machines"]} == {3.0}


def test_a_model_that_fits_no_server_is_tried_on_several() -> None:
    found = compare("--model", "deepseek-v3", "--machines", "h100", "--method", "full")
    assert {"2x8xh100-80g", "4x8xh100-80g"} <= {row["machine"] for row in found["machines"]}
    assert not any(row["fits"] for row in found["machines"])
    assert program.run("plan", "--model", "deepseek-v3", "--machines", "h100", "--method", "full").exit_code == 1


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RecipeError("no accelerator is known here; name the machine, such as `--machine 8xa100-80g`")

    monkeypatch.setattr(this_machine, "require_machine", refuse)


@pytest.mark.usefixtures("laptop")
def test_an_unknown_model_is_the_first_word() -> None:
    said = program.run("plan", "--model", "none-of-this-name")
    assert said.exit_code == 1
    assert "known machines are compared" not in said.stderr


@pytest.mark.usefixtures("laptop")
def test_a_model_alone_compares_all_machines_on_one_screen() -> None:
    said = program.run("plan", "--model", "qwen3-0.6b", env={"COLUMNS": "80"})
    assert said.exit_code == 0
    assert said.stderr.startswith("no accelerator is known here; name the machine, such as `--machine 8xa100-80g`")
    assert " ".join(said.stderr.split()).endswith("; without one, all known machines are compared")
    assert "--machine auto" not in said.output
    lines = said.stdout.splitlines()
    assert f"{len(_ALL)} machines compared" in lines[0]
    assert len(lines) < 50
    assert all(len(line) <= 80 for line in lines if not line.startswith(("next", "  or")))
    assert any(line.startswith("no list price: ") for line in lines)
    assert lines[-1].startswith(("next: lmf-recipes plan --machine 1x", "  or: lmf-recipes copy "))


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the machine, such as `--machine 8xa100-80g`; to compare machines, name a model, such as `--model q"),
        (("--samples", "500"), "name the machine, such as `--machine 8xa100-80g`"),
        (("--machines", "h100"), "--machines is for one model; give --model"),
        (("--model", "qwen3-8b", "--write", "mine.yaml"), "--write is for one machine; give --machine"),
        (("--model", "qwen3-8b", "--machines", "all", "--scale"), "--scale is for one machine; give --machine"),
        (("--model", "qwen3-8b", "--machines", "all", "--machine", "h100"), "give one of them"),
        (("--model", "qwen3-8b", "--machines", "h1000"), "did you mean h100-80g?"),
        (("--model", "qwen3-8b", "--machine", "h100", "--price", "much"), "nor a file of such prices"),
    ],
)
def test_what_does_not_go_together_is_told(words: tuple[str, ...], said: str) -> None:
    result = program.run_to_exception("plan", *words)
    assert isinstance(result.exception, click.UsageError)
    assert said in str(result.exception)


def test_a_quantized_model_that_fits_nowhere_names_the_checkpoint_that_is_not() -> None:
    """Of two machines on which nothing fits, the reason is that of NVIDIA's."""
    answer = program.run("plan", "--model", "openai/gpt-oss-120b", "--machines", "8xmi355x,8xh100", "--host-ram", "64")
    assert "openai/gpt-oss-120b on 8xh100-80g" in answer.output
    assert "is the same model unpacked: --model unsloth/gpt-oss-120b-BF16" in answer.output
