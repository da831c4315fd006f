"""`plan`: what it writes passes `check`, what it ranks fits, and where nothing fits it says what would."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from support import laws, program
from support.count_calls import calls
from support.real_parser import Parser

from validator.advise.explanation import explain
from validator.catalogue import bundled_recipes
from validator.check import checking
from validator.cli import group
from validator.errors import RecipeError
from validator.finding import Severity
from validator.knowledge import devices, guidance, models, releases
from validator.physics.estimate import GIB
from validator.plan import answer, base_model, new_recipe, recipe_text
from validator.plan import search as plan
from validator.plan.answer import _read_settings, nearest_recipe
from validator.plan.plan_json import answer_rows
from validator.recipe.recipe_file import load_recipe
from validator.run import calibration
from validator.run.prediction import predict
from validator.run.settings import resolve

pytestmark = pytest.mark.sample(one_in=4, whole_for=["validator/plan/*"])

_MACHINES = [
    *("1xrtx-3090", "2xrtx-4090", "1xrtx-5090", "4xrtx-3090", "1xa6000-48g", "1xt4-16g", "8xl4-24g", "8xv100-32g"),
    *("1xa100-80g", "4xa100-40g", "8xa100-80g", "8xh100-80g", "8xh200-141g", "8xmi300x-192g", "2x8xa100-80g"),
    *("8xascend-910a-32g", "8xascend-910b-32g", "8xascend-910b-64g", "16xascend-910c-64g", "4x8xh100-80g"),
]
_TRIPLES = laws.chance(5).sample(
    [
        (model, machine, method)
        for model in models.model_ids()
        for machine in _MACHINES
        for method in plan.PLANNED_METHODS
    ],
    200,
)

_ASKED = [
    {"model": chance.choice(models.model_ids()), "machine": chance.choice([*_MACHINES, "1x48g", "8x80g"]),
     "length": chance.choice([None, 512, 4096, 8192]), "stage": chance.choice(new_recipe.PLANNED_STAGES),
     "method": chance.choice([None, *guidance.TUNING_METHODS]), "fsdp": chance.random() < 0.2,
     "host_ram_gib": chance.choice([None, 64.0, 512.0])}
    for chance in map(laws.chance, range(120))
]  # fmt: skip


@pytest.fixture
def models_of_april(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that were released after April 2026 are not proposed, so that a model that is added breaks no test."""
    released = {key: month for key, month in models.release_months().items() if month <= "2026-04"}
    months = {key: 12 * int(month[:4]) + int(month[5:]) for key, month in released.items()}
    offered = [key for key in models.offered_models() if key in released]
    successors = {older: key for older, key in models.successor_ids().items() if key in released}
    monkeypatch.setattr(models, "offered_models", lambda: offered)
    monkeypatch.setattr(models, "successor_ids", lambda: successors)
    monkeypatch.setattr(base_model, "_release_months", lambda: months)


@cache
def triple(model: str, machine: str, method: str) -> answer.Answer:
    """The answer for one of the random triples, which several tests look at."""
    return answer.find_answer(model, machine, method=method)


def plan_for(asked: dict[str, Any]) -> plan.Plan | None:
    """The best plan; None where the request is refused or nothing fits."""
    try:
        return answer.find_answer(**asked).best
    except RecipeError:
        return None


def run(*words: str) -> Result:
    return program.run_to_exception("plan", *words)


def plans(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--format", "json").output)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sample(one_in=20)
@pytest.mark.parametrize(
    ("model", "machine", "method"),
    _TRIPLES,
)
def test_what_it_writes_passes_check(here: Path, model: str, machine: str, method: str) -> None:
    found = triple(model, machine, method)
    if found.best is None:
        with pytest.raises(RecipeError, match="nothing fits"):
            answer.write_best_plan(found.best, Path("mine.yaml"))
        assert not list(here.iterdir())
        return
    answer.write_best_plan(found.best, Path("mine.yaml"))
    report = checking.check_file("mine.yaml")
    assert [d for d in report.diagnostics if d.severity is not Severity.NOTE] == []
    assert report.verdict == "fits"
    expected = {**answer_rows(found).plans[0].set, "output_dir": "saves/mine"}
    assert load_recipe("mine.yaml").values.items() >= expected.items()


@pytest.mark.sample(one_in=20)
@pytest.mark.parametrize(
    "asked",
    _ASKED,
)
@pytest.mark.usefixtures("here")
def test_whatever_is_asked_the_plan_is_what_explain_says_of_the_file(asked: dict[str, Any]) -> None:
    """Where there is one; what is refused or does not fit is for other tests."""
    best = plan_for(asked)
    if best is None:
        return
    answer.write_best_plan(best, Path("mine.yaml"))
    report = checking.check_file("mine.yaml")
    assert [d for d in report.diagnostics if d.severity is not Severity.NOTE] == []
    told = explain(resolve(load_recipe("mine.yaml")))
    assert told.verdict == "fits"
    assert told.device_gib
    assert told.device_gib.expected == pytest.approx(best.device_gib, abs=0.01)
    assert told.host_gib
    assert told.host_gib.expected == pytest.approx(best.host_gib, abs=0.01)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.real
def test_most_of_the_triples_are_possible() -> None:
    found = [triple(*each).best for each in _TRIPLES]
    assert sum(best is not None for best in found) > 100


@pytest.mark.nightly
def test_a_third_of_what_is_asked_can_be_planned() -> None:
    """The test that compares plans with explain shows nothing where there is no plan."""
    found = [plan_for(asked) for asked in _ASKED]
    assert sum(best is not None for best in found) > len(_ASKED) / 3


@pytest.mark.slow
@pytest.mark.real
def test_llamafactory_accepts_what_it_writes(tmp_path: Path, parser: Parser) -> None:
    """One in five of the random triples and requests, through the real parser from the repository's root."""
    written = []
    for number, best in enumerate([*(triple(*each).best for each in _TRIPLES[::5]), *map(plan_for, _ASKED[::5])]):
        if best:
            written.append(tmp_path / f"{number}.yaml")
            written[-1].write_text(recipe_text.render_recipe(best.draft), "utf-8")
    rows = parser(Path(__file__).parents[2], *written)
    assert len(rows) == len(written) > 10
    assert [row for row in rows if "error" in row] == []


@pytest.mark.parametrize("device", ["v100-32g", "ascend-910a-32g", "t4-16g"])
def test_devices_without_bf16_get_fp16(device: str) -> None:
    chosen = plans("--model", "qwen3-1.7b", "--machine", f"8x{device}", "--method", "lora")["plans"][0]["set"]
    assert chosen["fp16"] is True
    assert "bf16" not in chosen


def test_ascend_gets_neither_bitsandbytes_nor_liger() -> None:
    for found in plans("--model", "qwen3-14b", "--machine", "8xascend-910b-64g")["plans"]:
        assert not {"quantization_bit", "enable_liger_kernel"} & set(found["set"])


def test_a_device_by_its_memory_is_taken_to_run_liger() -> None:
    found = plans("--model", "qwen3-8b", "--machine", "1x12g")
    assert found["plans"][0]["set"]["enable_liger_kernel"] is True
    assert any("only the memory of 12g is known" in note and "liger-kernel" in note for note in found["notes"])


def test_the_rows_are_ordered_by_time_and_fit() -> None:
    found = plans("--model", "qwen32b", "--machine", "8xa100-80g", "--samples", "20000")["plans"]
    hours = [row["hours"]["expected"] for row in found]
    assert hours[1:] == sorted(hours[1:])
    assert hours[0] == min(hours) or (found[0]["method"] == "lora" and hours[0] < 1.3 * min(hours))
    assert {row["method"] for row in found} == {"lora", "full", "qlora"}
    assert all(row["headroom_gib"] > 0 for row in found)


def ranked(found: list[tuple[str, float]], methods: list[str]) -> list[str]:
    """Methods in the order of their plans, which take so many hours."""
    start = new_recipe.NewRecipe(models.find_model("qwen7b"), devices.parse_machine("1xa100-80g", 256.0), "lora")
    made = [plan.Plan(replace(start, method=method), "fast") for method, _ in found]
    for each, (_, hours) in zip(made, found, strict=True):
        vars(each)["expected_time"] = hours
    return [each.draft.method for each in plan._rank_plans(made, methods)]


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ([("lora", 1.0), ("full", 1.2)], "lora"),
        ([("lora", 1.2), ("full", 1.0)], "lora"),  # about as long
        ([("lora", 1.5), ("full", 1.0)], "full"),
        ([("qlora", 1.0), ("full", 1.1)], "qlora"),  # the preferred method does not fit
        ([("lora", 0.0), ("full", 0.0)], "lora"),  # no rates of the device are known
    ],
)
def test_the_soonest_comes_first_but_for_a_method_that_takes_about_as_long(
    found: list[tuple[str, float]], first: str
) -> None:
    methods = ["lora", "full", "qlora"]
    assert ranked(found, methods)[0] == ranked(found[::-1], methods)[0] == first


def test_evaluations_and_checkpoints_count_when_plans_are_ordered() -> None:
    found = plans("--model", "qwen3-14b", "--machine", "4xa100-40g", "--stage", "pt")
    hours = [row["hours"]["expected"] for row in found["plans"]]
    assert hours == sorted(hours)
    assert not any("stands first" in note for note in found["notes"])


def test_a_usual_method_that_stands_before_a_sooner_one_is_told() -> None:
    found = plans("--model", "qwen3-8b", "--machine", "1xrtx-4090", "--cutoff-len", "512")
    first, second, third = found["plans"]
    assert [row["method"] for row in found["plans"]] == ["lora", "qlora", "full"]
    assert third["hours"]["expected"] < second["hours"]["expected"] < first["hours"]["expected"]
    assert "full by BAdam is sooner, and stands behind lora, because it approximates AdamW:" in str(found["notes"])
    assert any(note.startswith("lora stands first, as the usual method: qlora is sooner by") for note in found["notes"])


def test_device_hours_that_bring_more_on_more_devices_are_explained() -> None:
    words = ("--model", "qwen2.5-72b", "--machine", "8x910b", "--method", "lora", "--scale", "--host-ram", "1024")
    said = " ".join(run(*words).output.split())
    assert max(row["efficiency"] or 0 for row in plans(*words)["scale"]) > 1
    assert "above 100%: what 1xascend-910b-64g needs to hold the run slows each step there: weights fetched" in said


def test_another_way_of_training_has_no_efficiency() -> None:
    words = ("--model", "qwen3-32b", "--machine", "8xa100-80g", "--method", "full", "--scale")
    rows = {row["machine"]: (row["optimizer"], row["efficiency"]) for row in plans(*words)["scale"]}
    assert rows["1xa100-80g"] == ("BAdam", None)
    assert rows["8xa100-80g"] == (None, 1)
    assert "1xa100-80g trains in another way, with BAdam" in run(*words).output


def test_more_devices_finish_sooner_and_take_more_device_hours() -> None:
    found = plans("--model", "qwen7b", "--machine", "4xa100-80g", "--samples", "50000", "--scale", "--price", "2 USD")
    rows = found["scale"]
    assert [row["machine"] for row in rows] == ["1xa100-80g", "2xa100-80g", "4xa100-80g", "8xa100-80g", "2x8xa100-80g"]
    hours, spent = [row["hours"]["expected"] for row in rows], [row["device_hours"] for row in rows]
    assert hours == sorted(hours, reverse=True)
    assert rows[0]["efficiency"] == 1
    assert all(row["efficiency"] == pytest.approx(spent[0] / row["device_hours"], rel=0.01) for row in rows)
    assert all(row["money"]["expected"] == pytest.approx(2 * row["device_hours"], rel=0.01) for row in rows)
    assert rows[2]["hours"] == min((row["hours"] for row in found["plans"]), key=lambda each: each["expected"])
    assert plans("--model", "qwen7b", "--machine", "4xa100-80g")["scale"] == []


@pytest.mark.parametrize(
    ("words", "planned", "says"),
    [
        ("--model qwen7b --machine 1000x8xh100 --samples 2000", "8x8xh100-80g",
         "planned for 8x8xh100-80g, a part of 1000x8xh100-80g: a step takes a sample of every device, and more than "
         "114 leave fewer than 50 steps"),
        ("--model qwen7b --machine 1000x8xh100 --samples 2000000", "16x8xh100-80g", "more than 128 are a larger batch"),
        ("--model qwen7b --machine 125x8xh100 --samples 10000 --method full", "64x8xh100-80g", "than 588 leave fewer"),
        ("--machine 64x8xh100 --samples 1000", "4x8xh100-80g", "more than 57 leave fewer than 50 steps"),
        # It needs the memory of more devices.
        ("--model qwen3-235b-a22b --machine 8x8xh100 --samples 200 --method full", "4x8xh100-80g",
         "4x8xh100-80g has too many devices, but the run needs their memory: a step takes a sample of every device"),
        # Samples that are few whatever the batch are another matter.
        ("--model qwen7b --machine 8xh100 --samples 100", "8xh100-80g", ""),
        ("--model qwen7b --machine 8xh100 --samples 2000", "8xh100-80g", ""),
    ],
)  # fmt: skip
def test_no_more_devices_than_leave_enough_steps(words: str, planned: str, says: str) -> None:
    found = plans(*words.split())
    assert found["machine"]["name"] == planned
    told = [note for note in found["notes"] if "a sample of every device" in note]
    assert len(told) == bool(says)
    assert all(says in note for note in told)
    rows = found["plans"] or found["choices"]
    assert " more than " not in says or all(row["steps"] >= guidance.FEWEST_STEPS for row in rows)


def test_a_comparison_marks_more_devices_than_leave_enough_steps() -> None:
    words = ("--model", "qwen7b", "--machine", "16x8xh100-80g", "--samples", "2000", "--scale")
    rows = {row["machine"]: row for row in plans(*words)["scale"]}
    assert [name for name, row in rows.items() if row["too_many_devices"]] == ["16x8xh100-80g"]
    assert (rows["8x8xh100-80g"]["hours"], rows["16x8xh100-80g"]["hours"]) != (None, None)
    assert "\n16x8xh100-80g  too many devices\n" in run(*words).output
    few = " ".join(run("--model", "qwen7b", "--machine", "8xh100-80g", "--samples", "200", "--scale").output.split())
    assert "note: too many devices: a step takes a sample of every device, and more than 11 leave" in few


def test_on_too_few_devices_the_table_says_so() -> None:
    shown = run("--model", "qwen72b", "--machine", "8xa100-80g", "--method", "lora", "--scale").output
    assert "1xa100-80g    does not fit" in shown
    assert "efficiency: device hours of the fewest" in shown


def test_devices_without_published_rates_are_ranked_all_the_same() -> None:
    found = plans("--model", "qwen3-8b", "--machine", "2x48g")["plans"]
    assert all(row["hours"] is row["device_hours"] is row["bottleneck"] is None for row in found)
    assert [plan.SPEED_CLASSES.index(row["speed"]) for row in found] == sorted(
        plan.SPEED_CLASSES.index(r["speed"]) for r in found
    )
    assert "not known" in run("--model", "qwen3-8b", "--machine", "2x48g").output


def test_a_device_that_shares_the_hosts_memory_is_planned_without_offload_and_without_a_time() -> None:
    found = plans("--model", "qwen3-8b", "--machine", "1xgb10")
    assert found["machine"] == {"name": "1xgb10-128g", "host_ram_gib": 117.0, "usable_gib": 117.0}
    assert "device and host share one memory" in found["notes"][0]
    assert not any("host's memory is not known" in note for note in found["notes"])
    assert {row["method"] for row in found["plans"]} == {"lora", "full", "qlora"}
    assert not any("offload" in str(row["zero"]) for row in found["plans"])
    assert all(row["hours"] is row["device_hours"] is row["bottleneck"] is None for row in found["plans"])
    assert all(row["device_gib"] > row["host_gib"] for row in found["plans"])


def test_what_was_measured_on_the_machine_corrects_the_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    words = ("--model", "qwen7b", "--machine", "1xrtx-3090", "--samples", "100000", "--method", "lora")
    before = plans(*words)["plans"][0]["hours"]["expected"]
    calibration.save_calibration(calibration.Calibration("1xrtx-3090", "x.yaml", 3.0, 2.0, 10, "2026-01-01"))
    assert plans(*words)["plans"][0]["hours"]["expected"] == pytest.approx(1.5 * before, rel=0.03)


def test_what_the_times_assume_is_noted(tmp_path: Path) -> None:
    words = ("--model", "qwen7b", "--machine", "2x8xa100-80g")
    assumed = [note for note in plans(*words)["notes"] if note.startswith("times are for")]
    assert "samples of some 512 tokens" in assumed[0]
    assert "8xinfiniband-200g between nodes" in assumed[1]
    rows = [json.dumps({"instruction": "Say this.", "input": "", "output": "word " * 80}) for _ in range(50)]
    (tmp_path / "mine.jsonl").write_text("\n".join(rows))
    own = plans(*words, "--network", "roce-100g", "--data", str(tmp_path / "mine.jsonl"))["notes"]
    assert [note for note in own if note.startswith("times are for")] == [
        "times are for samples of some 125 tokens, estimated from all 50 rows"
    ]


@pytest.mark.usefixtures("here")
def test_network_and_price_reach_the_recipe_that_is_written() -> None:
    words = ("--model", "qwen7b", "--machine", "2x8xa100-80g", "--network", "ethernet-10g", "--price", "1.99 USD")
    slow = plans(*words)["plans"][0]["hours"]["expected"]
    assert slow > plans(*words[:4])["plans"][0]["hours"]["expected"]
    run(*words, "--write", "mine.yaml")
    header = load_recipe("mine.yaml").header
    assert (header["network"], header["price"]) == ("ethernet-10g", "1.99 USD")


@pytest.mark.parametrize(
    "words",
    [
        ("--network", "ethernet"), ("--price", "free"), ("--scale",),
    ],
)  # fmt: skip
def test_options_of_time_that_say_nothing_are_wrong_usage(words: tuple[str, ...]) -> None:
    wrong = CliRunner().invoke(group, ["plan", "--machine", "8xa100-80g", *words], standalone_mode=False)
    assert isinstance(wrong.exception, click.UsageError)


@pytest.mark.parametrize(
    ("model", "machine", "host", "savers"),
    [
        ("qwen1.5b", "1xa100-80g", 24.0, [None]),
        ("qwen7b", "1xa100-80g", 24.0, ["bf16"]),
        ("qwen7b", "1xa100-80g", 256.0, ["bf16", None]),
        ("qwen7b", "1xrtx-4090", 24.0, ["badam"]),
        ("qwen7b", "1xrtx-4090", 256.0, [None]),
        ("qwen7b", "1xv100-32g", 24.0, []),
        ("qwen7b", "2xrtx-4090", 24.0, []),
    ],
)
def test_a_saving_optimizer_is_taken_only_where_all_else_is_slow_or_does_not_fit(
    model: str, machine: str, host: float, savers: list[str | None]
) -> None:
    """It takes one device with bf16; offload takes host memory. Those that approximate do not stand beside it."""
    found = plan.find_plans(
        new_recipe.NewRecipe(models.find_model(model), devices.parse_machine(machine, host), "full"),
        ["full"],
        plan.USUAL_LENGTHS,
    )
    assert list(dict.fromkeys(each.draft.optimizer for each in found)) == savers


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (("--stage", "dpo"), {"stage": "dpo", "pref_beta": 0.1, "dataset": "dpo_mix_en,dpo_mix_zh"}),
        (("--stage", "pt", "--method", "full"), {"stage": "pt", "dataset": "wikipedia_en", "learning_rate": 5e-5}),
        (("--method", "freeze"), {"finetuning_type": "freeze", "freeze_trainable_layers": 2}),
        (("--stage", "rm"), {"stage": "rm", "dataset": "dpo_mix_en,dpo_mix_zh", "learning_rate": 1e-4}),
        (("--stage", "kto"), {"stage": "kto", "pref_beta": 0.1, "dataset": "kto_mix_en", "learning_rate": 5e-6}),
        (("--fsdp", "--method", "full"), {"fsdp": "full_shard auto_wrap"}),
        (("--fsdp", "--stage", "dpo", "--cutoff-len", "4096"), {"fsdp": "full_shard auto_wrap", "cutoff_len": 4096}),
    ],
)
@pytest.mark.usefixtures("here")
def test_stages_and_engines_on_request(words: tuple[str, ...], settings: dict[str, Any]) -> None:
    run("--model", "qwen3-8b", "--machine", "8xa100-80g", *words, "--write", "mine.yaml")
    assert load_recipe("mine.yaml").values.items() >= settings.items()
    report = checking.check_file("mine.yaml")
    assert [d for d in report.diagnostics if d.severity is not Severity.NOTE] == []


def test_offload_waits_until_the_host_is_known() -> None:
    words = ("--model", "qwen3-8b", "--machine", "2xrtx-3090", "--method", "full")
    unknown, known = plans(*words), plans(*words, "--host-ram", "256")
    assert unknown["plans"] == []
    assert "--host-ram" in unknown["notes"][0]
    assert "offload" in known["plans"][0]["zero"]
    assert known["plans"][0]["host_gib"] < 256


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (("--cutoff-len", "4096"), "cutoff_len", 4096),
        (("--samples", "7000"), "samples", 7000),
        ((), "samples", 20000),
        ((), "effective_batch", 16),
        ((), "learning_rate", 2e-4),
        ((), "epochs", 3),
    ],
)
def test_values_follow_the_request_and_the_tables(words: tuple[str, ...], key: str, value: float) -> None:
    assert plans("--model", "qwen3b", "--machine", "8xa100-80g", *words)["plans"][0][key] == value


@pytest.mark.parametrize(
    ("billions", "method", "rate"), [("qwen7b", "full", 1e-5), ("qwen72b", "full", 7e-6), ("qwen72b", "qlora", 1e-4)]
)
def test_rates_go_by_size_and_method(billions: str, method: str, rate: float) -> None:
    assert guidance.published_rates(models.find_model(billions), method)["learning_rate"]["default"] == rate


@pytest.mark.parametrize(("host", "workers"), [("128", 1), ("256", 4)])
def test_one_process_loads_samples_where_the_hosts_memory_is_short(host: str, workers: int) -> None:
    words = ("--model", "qwen3-30b-a3b", "--machine", "2xrtx-3090", "--method", "lora", "--host-ram", host)
    best = plans(*words)["plans"][0]
    assert best["set"]["dataloader_num_workers"] == workers
    assert ("loaded by one process" in best["gives_up"]) is (workers == 1)


def test_samples_are_cut_shorter_only_where_nothing_else_fits() -> None:
    words = ("--model", "gemma3-12b", "--machine", "8xascend-910b-32g", "--host-ram", "100")
    short = plans(*words)["plans"]
    assert short[0]["cutoff_len"] == 1024
    assert {row["cutoff_len"] for row in short if row["speed"] in ("slow", "slowest")} == {1024}
    assert all(f"samples cut at {row['cutoff_len']} tokens" in row["gives_up"] for row in short)
    assert plans(*words, "--cutoff-len", "2048")["plans"] == []


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "cutoff", "said"),
    [
        (600, 896, "cutoff_len 896 cuts none of your samples, of which the longest has up to"),
        (50, 512, "cutoff_len 512 cuts none"),
        (1600, 2048, ""),
        (2200, 2048, "samples cut at 2048 tokens"),
    ],
)
def test_no_longer_a_cutoff_is_planned_than_the_samples_need(words: int, cutoff: int, said: str) -> None:
    """Every row is measured, also the last one."""
    short = {"instruction": "Say this.", "input": "", "output": "word " * 20}
    Path("mine.json").write_text(json.dumps([short] * 2000 + [{**short, "output": "word " * words}]))
    asked = ("--model", "qwen3-8b", "--data", "mine.json", "--method", "lora")
    one = (*asked, "--machine", "1xa100-80g")
    assert {row["cutoff_len"] for row in plans(*one)["plans"]} == {cutoff}
    shown = " ".join(run(*one).output.split())
    assert said in shown
    assert ("cuts none of" in shown) is (cutoff < 2048)
    assert plans(*one, "--cutoff-len", "2048")["plans"][0]["cutoff_len"] == 2048
    assert {each["cutoff_len"] for each in plans(*asked, "--machines", "h100,2xa100")["machines"]} == {cutoff}


@pytest.mark.parametrize("length", [2048, 32768])
def test_one_device_takes_torchruns_memory_settings_only_where_it_needs_them(length: int) -> None:
    """They come with DeepSpeed; a plain launch fills its cache with the lengths of earlier batches."""
    found = plans("--model", "qwen3-4b", "--machine", "1xrtx-5090", "--method", "lora", "--cutoff-len", str(length))
    first = next(row for row in found["plans"] if row["speed"] == "fast")
    assert first["zero"] == ("ds_z2.json" if length == 32768 else None)


@pytest.mark.sample(one_in=7)
@pytest.mark.parametrize(
    ("asked", "notes"),
    [
        ("--model qwen72b --method full --machine 1xa100-80g --host-ram 32", {"more devices of the same kind"}),
        ("--model qwen72b --method full --machine 1xa100-80g --host-ram 512", {"with --method lora"}),
        ("--model phi-4 --machine 8xmi300x --method qlora --stage dpo --host-ram 64", {"more host memory per node"}),
        (
            "--model qwen3-0.6b --machine 8x910b --method lora --stage dpo --cutoff-len 32768",
            {"with --cutoff-len 2048"},
        ),
        ("--model qwen3-32b --machine 2xa6000-48g --fsdp --cutoff-len 8192", {"without --fsdp", "larger devices"}),
        ("--model qwen3-8b --machine 2xrtx-4090 --host-ram 24", {"fewer of the devices", "more host memory per node"}),
        (
            "--model qwen3-8b --machine 2xrtx-4090 --host-ram 64 --method full",
            {"fewer of the devices, with BAdam: one layer trained at a time"},
        ),
        ("--model qwen72b --machine 1x4090", {"more devices of the same kind", "larger devices"}),
    ],
)
def test_nothing_fits_names_changes_with_which_it_does(asked: str, notes: set[str]) -> None:
    """Each is followed to the letter: the machine, the host memory, and the option that the note names."""
    words = asked.split()
    refused = run(*words)
    assert isinstance(refused.exception, SystemExit)
    assert refused.exception.code == 1
    assert "nothing fits" in refused.output
    upgrades = plans(*words)["upgrades"]
    assert notes <= {each["note"] for each in upgrades}
    for each in upgrades:
        how, *option = each["note"].split() if "--" in each["note"] else ("with",)
        kept = [word for word in words if how == "with" or word not in option]
        changed = ("--machine", each["machine"], *(option if how == "with" else ()))
        ram = ("--host-ram", str(each["host_ram_gib"])) if each["host_ram_gib"] else ()
        assert plans(*kept, *changed, *ram)["plans"], each


@pytest.mark.parametrize(
    ("method", "tight", "said"),
    [
        ("lora", "ds_z3.json", "nothing fits with a margin; tight is lora"),
        ("full", None, "nothing fits, even with every saving that is tried"),
    ],
)
def test_what_is_tight_is_named_where_nothing_fits(method: str, tight: str | None, said: str) -> None:
    words = ("--model", "qwen3-14b", "--machine", "2xrtx-3090", "--method", method, "--cutoff-len", "8192")
    shown = plans(*words)
    assert shown["plans"] == []
    assert (shown["tight"] and shown["tight"]["zero"]) == tight
    refused = run(*words)
    assert isinstance(refused.exception, SystemExit)
    assert refused.exception.code == 1
    assert said in refused.output


def test_where_no_one_change_helps_it_is_said() -> None:
    words = ("--model", "qwen3-235b-a22b", "--machine", "1x24g", "--cutoff-len", "8192", "--method", "lora")
    assert plans(*words)["upgrades"] == []
    said = run(*words).output
    assert "tried one by one, none is enough: another method" in said
    assert said.endswith(
        "next: lmf-recipes plan --model qwen3-235b-a22b --method lora --cutoff-len 8192 --machines all\n"
    )


def test_a_rare_device_is_not_proposed_before_a_common_one() -> None:
    """An H20 with 141 GB is as large as an H200, and stands before it in the table."""
    words = ("--model", "qwen72b", "--method", "qlora", "--cutoff-len", "32768", "--host-ram", "256")
    upgrades = plans(*words, "--machine", "1xl4-24g")["upgrades"]
    assert [each["machine"] for each in upgrades if each["note"] == "larger devices"] == ["1xh200-141g"]


@pytest.mark.usefixtures("models_of_april")
@pytest.mark.parametrize(
    ("samples", "machine", "low", "high"),
    [
        *((20_000, "8xascend-910b-64g", 6, 10), (40_000, "8xascend-910b-64g", 12, 16)),
        *((80_000, "8xascend-910b-64g", 23, 36), (150_000, "8xh200-141g", 65, 75)),
    ],
)
def test_the_model_goes_with_the_amount_of_data(samples: int, machine: str, low: float, high: float) -> None:
    """The field report's steps: 7B 20,000, 14B 40,000, 32B 80,000, and where it is trained within days, 72B 150,000."""
    best = plans("--machine", machine, "--samples", str(samples))["choices"][0]
    assert low < models.find_model(best["model"]).billions < high


_CHOOSING = [
    *("1xrtx-3060", "1xrtx-4070-ti-super", "1xt4-16g", "1xv100-16g", "1xrtx-3090", "1xrtx-4090", "2xrtx-3090"),
    *("1xrtx-5090", "1xl40s-48g", "1xa100-80g", "8xa100-80g", "8xh100-80g", "8xascend-910b-64g", "8xmi300x-192g"),
    "8xh200-141g",
]


def _month(model: str) -> int:
    year, month = models.release_months()[str(models.find_model(model).id)].split("-")
    return 12 * int(year) + int(month)


@pytest.mark.parametrize("samples", [None, 20_000])
@pytest.mark.parametrize("machine", _CHOOSING)
def test_the_first_proposals_are_current_soon_trained_and_of_several_makers(machine: str, samples: int | None) -> None:
    chosen = plans("--machine", machine, *(("--samples", str(samples)) if samples else ()))["choices"]
    newest = max(_month(key) for key in models.release_months())
    assert all(newest - _month(row["model"]) <= base_model.CURRENT_MONTHS == 18 for row in chosen[:3])
    assert all(row["hours"]["expected"] < base_model.SOON_HOURS == 72 for row in chosen[:3])
    makers = [row["model"].partition("/")[0] for row in chosen]
    assert len(set(makers[:3])) >= 2
    assert max(map(makers.count, makers)) <= 2
    assert not any(models.find_model(row["model"]).base for row in chosen)


@pytest.mark.usefixtures("models_of_april")
def test_a_model_gives_way_to_its_successor_where_that_fits_too() -> None:
    """On the smallest card only Qwen3-4B fits, not Qwen3.5-4B, which takes its place elsewhere."""
    large = [row["model"] for row in plans("--machine", "1xrtx-3090")["choices"]]
    small = [row["model"] for row in plans("--machine", "1xrtx-2060")["choices"]]
    assert "Qwen/Qwen3.5-9B" in large
    assert "Qwen/Qwen3-8B" not in large
    assert "Qwen/Qwen3-4B" in small


@pytest.mark.usefixtures("models_of_april")
def test_models_that_take_longer_stand_below_where_they_suit_the_samples() -> None:
    rows = plans("--machine", "1xrtx-4090", "--samples", "500000")["choices"]
    soon = [row["hours"]["expected"] < base_model.SOON_HOURS for row in rows]
    assert soon == sorted(soon, reverse=True)
    assert {True, False} == set(soon)
    doublings = [abs(log2(row["samples"] / row["recommended"])) for row in rows]
    assert max(doublings[soon.index(False) :]) < min(doublings[: soon.index(False)])


def test_where_no_model_is_trained_soon_those_that_fit_are_proposed_all_the_same() -> None:
    rows = plans("--machine", "1xt4-16g", "--samples", "700000")["choices"]
    assert len(rows) == 6
    assert all(row["hours"]["expected"] > base_model.SOON_HOURS for row in rows)
    assert "Qwen/Qwen3-14B" in {row["model"] for row in rows}


@pytest.mark.usefixtures("models_of_april")
def test_several_sizes_are_proposed() -> None:
    rows = plans("--machine", "2xrtx-4090", "--samples", "20000")["choices"]
    assert len(rows) == 6
    assert len({round(2 * log2(models.find_model(row["model"]).billions)) for row in rows}) > 2


@pytest.mark.usefixtures("models_of_april")
def test_a_small_machine_gets_a_smaller_model_than_the_data_asks_for() -> None:
    found = plans("--machine", "1xrtx-3090", "--samples", "150000")["choices"]
    assert all(models.find_model(row["model"]).billions < 40 for row in found)
    assert [row["cost"] for row in found] == sorted(row["cost"] for row in found)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (None, "the header states 20,000 samples, one field report's count (Ascend 910B, LoRA)"),
        (30, "30 samples: form and style change from some 50"),
        (300, "300 samples: enough to teach form and style"),
        (500, "500 samples: public runs usually took 1,000 to 170,000"),
        (5_000, "5,000 samples are as many as usual: public runs usually took 1,000 to 170,000; 20,000 is one field"),
        (500_000, "train on a chosen part first, and compare"),
    ],
)
def test_the_amount_of_data_is_judged(samples: int | None, words: str) -> None:
    given = ["--samples", str(samples)] if samples else []
    shown = run("--model", "qwen7b", "--machine", "8xa100-80g", *given).output
    assert words in " ".join(shown.split())


def test_the_nearest_recipe_is_for_the_same_model() -> None:
    rows = plans("--model", "qwen3-8b", "--machine", "8xa100-80g", "--method", "full")["plans"]
    assert rows[-1]["nearest"].startswith("qwen3-8b-a100-full")


def test_a_device_known_by_its_memory_alone_has_nearest_recipes_too() -> None:
    assert [row["nearest"] is not None for row in plans("--model", "qwen3-8b", "--machine", "1x48g")["plans"]] == [
        True
    ] * 2


@pytest.mark.parametrize(
    ("names", "nearest"),
    [
        (["qwen7b-a100-lora", "qwen7b-a100x1-qlora", "qwen3-8b-a100x2-lora"], "qwen7b-a100-lora"),
        (["qwen7b-910b-lora", "qwen7b-a100-40gx1-lora", "qwen7b-a100-lora"], "qwen7b-a100-lora"),
        (["qwen7b-a100-lora", "qwen7b-a100x1-lora-32k"], "qwen7b-a100x1-lora-32k"),
        (["qwen7b-a100x1-lora", "qwen7b-a100x1-lora-32k"], "qwen7b-a100x1-lora"),
        (["qwen7b-910b-lora", "qwen7b-a100x1-lora-dpo"], "qwen7b-910b-lora"),
        (["qwen7b-a100x1-full", "qwen7b-a100x1-qlora", "qwen7b-a100x1-lora-pt"], None),
        (["qwen72b-a100x2-lora"], None),
    ],
)
def test_the_nearest_recipe_shares_model_method_and_stage_before_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], nearest: str | None
) -> None:
    """In a catalogue of these names, each read anew."""
    (tmp_path / "recipes").mkdir()
    for name in names:
        (tmp_path / "recipes" / f"{name}.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-7B-Instruct\n", "utf-8")
    monkeypatch.setattr(bundled_recipes, "catalogue_root", lambda: tmp_path)
    monkeypatch.setattr("validator.plan.answer._read_settings", _read_settings.__wrapped__)
    made = new_recipe.NewRecipe(models.find_model("qwen7b"), devices.parse_machine("1xa100-80g", 256.0), "lora")
    assert nearest_recipe(made) == nearest


@pytest.mark.parametrize(
    ("model", "length", "nearest", "copied"),
    [
        ("Qwen/Qwen3-8B", 2048, "qwen3-8b-a100-40gx4-lora", True),
        ("Qwen/Qwen3-8B", 4096, "qwen3-8b-a100-40gx4-lora", False),
        ("Qwen/Qwen3-8B-Base", 2048, None, False),
    ],
)
def test_a_recipe_of_another_tuning_or_length_is_no_copy_of_the_plan(
    model: str, length: int, nearest: str | None, copied: bool
) -> None:
    words = ("--model", model, "--machine", "4xa100-40g", "--cutoff-len", str(length))
    assert plans(*words)["plans"][0]["nearest"] == nearest
    assert ("  or: lmf-recipes copy" in run(*words).output) is copied


def test_a_folder_with_other_data_sets_is_planned_for_like_any(here: Path) -> None:
    (here / "data").mkdir()
    (here / "data" / "dataset_info.json").write_text('{"own": {"file_name": "own.json"}}', "utf-8")
    words = ("--model", "qwen7b", "--machine", "8xa100-80g")
    assert plans(*words)["plans"]
    assert "wrote data/dataset_info.json" in run(*words, "--write", "mine.yaml").output
    defined = json.loads((here / "data" / "dataset_info.json").read_text("utf-8"))
    assert list(defined) == ["own", "alpaca_gpt4_en", "alpaca_gpt4_zh"]


@pytest.mark.usefixtures("here")
def test_a_plan_with_data_is_what_explain_says_of_the_file() -> None:
    pairs = [{"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"}] * 1200
    Path("pairs.json").write_text(json.dumps(pairs), "utf-8")
    words = ("--model", "qwen3-8b", "--machine", "1xa100-80g", "--data", "pairs.json")
    best = plans(*words)["plans"][0]
    assert run(*words, "--write", "mine.yaml").exit_code == 0
    predicted = load_recipe("mine.yaml").header["predicted"]
    assert (predicted["device_gib"], predicted["host_gib"]) == (best["device_gib"], best["host_gib"])


TURNS = [{"role": "user", "content": "<image>" * 7 + "?"}, {"role": "assistant", "content": "seven"}]
FILES = [f"{number}.jpg" for number in range(7)]
PICTURES = [{"messages": TURNS, "images": FILES}]
SEEN = ("--model", "qwen2.5-vl-7b", "--machine", "1xrtx-4090", "--data", "pictures.json")


@pytest.mark.usefixtures("here")
def test_a_plan_counts_the_pictures_of_the_data() -> None:
    """Seven of 334 tokens are longer than the usual length, and take memory of the tower."""
    Path("pictures.json").write_text(json.dumps(PICTURES * 100), "utf-8")
    Path("data").mkdir(exist_ok=True)
    for name in FILES:
        Path("data", name).write_bytes(b"P5 768 768 255\n")
    best = plans(*SEEN)["plans"][0]
    assert run(*SEEN, "--write", "mine.yaml").exit_code == 0
    report = checking.check_file("mine.yaml")
    assert best["cutoff_len"] == 3072
    assert {each.code for each in report.diagnostics if each.severity is not Severity.NOTE} == {"DAT001"}
    assert load_recipe("mine.yaml").header["predicted"]["device_gib"] == best["device_gib"]
    written = resolve(load_recipe("mine.yaml"))
    memory = predict(written).device_memory
    assert memory is not None
    assert round(memory.expected / GIB, 1) == best["device_gib"]


@pytest.mark.usefixtures("here")
def test_a_length_that_cuts_the_pictures_is_refused() -> None:
    Path("pictures.json").write_text(json.dumps(PICTURES), "utf-8")
    refused = run(*SEEN, "--cutoff-len", "2048").exception
    assert "up to 2,478 tokens" in str(refused)
    assert "give --cutoff-len 3072" in str(refused)


def test_a_model_whose_one_picture_is_longer_than_the_usual_length_is_planned() -> None:
    found = plans("--model", "llava-next-7b", "--machine", "1xa100-80g")["plans"]
    assert {each["cutoff_len"] for each in found} == {4096}


def test_a_stage_without_a_published_rate_for_a_method_leaves_it_out() -> None:
    refused = run("--model", "qwen7b", "--machine", "8xa100-80g", "--stage", "kto", "--method", "freeze").exception
    assert isinstance(refused, RecipeError)
    assert "for lora, qlora, full one is" in str(refused)


@pytest.mark.parametrize(("stage", "first"), [("sft", "lora"), ("pt", "full")])
def test_equally_fast_ways_come_in_the_order_of_the_stage(stage: str, first: str) -> None:
    found = plans("--model", "qwen7b", "--machine", "8xa100-80g", "--stage", stage)["plans"]
    assert next(row["method"] for row in found if row["speed"] == "fastest") == first


@pytest.mark.usefixtures("models_of_april")
def test_models_are_ranked_for_the_stage_asked_for() -> None:
    words = ("--machine", "8xa100-80g", "--samples", "60000")
    chosen = plans(*words, "--stage", "dpo")["choices"]
    assert all(row["set"]["stage"] == "dpo" for row in chosen)
    assert {row["recommended"] for row in chosen} == {10_000}
    assert chosen[0]["model"] != plans(*words)["choices"][0]["model"]


@pytest.mark.usefixtures("models_of_april")
def test_without_model_and_samples_the_largest_of_each_size_that_fits() -> None:
    chosen = plans("--machine", "2xrtx-4090")["choices"]
    assert run("--machine", "2xrtx-4090").output.startswith("models on 2xrtx-4090")
    sizes = [round(2 * log2(models.find_model(row["model"]).billions)) for row in chosen]
    assert len(set(sizes)) == len(sizes) > 4
    ranks = [(row["cost"], -size) for row, size in zip(chosen, sizes, strict=True)]
    assert ranks == sorted(ranks)


def test_a_base_model_is_told_from_the_one_tuned_for_chat() -> None:
    words = ("--machine", "8xa100-80g", "--model")
    told = "Qwen/Qwen1.5-72B is the base model; the one tuned for chat is Qwen/Qwen1.5-72B-Chat"
    assert told in plans(*words, "qwen1.5-72b")["notes"]
    assert told not in plans(*words, "Qwen/Qwen1.5-72B-Chat")["notes"]


@pytest.mark.sample(one_in=6)
@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize(
    "words",
    [
        ("--model", "qwen3-8b", "--machine", "2xrtx-4090", "--host-ram", "256"),
        ("--model", "qwen7b", "--machine", "8xa100-80g", "--cutoff-len", "131072"),
        ("--machine", "8xa100", "--samples", "300"),
    ],
)
def test_it_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, words: tuple[str, ...]) -> None:
    """All but the title and the commands, which are copied whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    _title, *lines = run(*words).output.splitlines()
    assert len(lines) > 1
    assert max(len(line) for line in lines if not line.startswith(("next: ", "  or: "))) <= max(columns, 75)


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "qwen7b", "--machine", "2xrtx-4090", "--host-ram", "96.5"),
        ("--model", "qwen3-8b", "--machine", "2 x 3090", "--method", "qlora", "--cutoff-len", "1024"),
        ("--model", "qwen3-8b", "--machine", "8xa100", "--fsdp", "--stage", "pt"),
        ("--machine", "1xrtx-4090", "--samples", "5000", "--stage", "dpo"),
        ("--machine", "8xascend-910b-64g"),
    ],
)
def test_each_command_it_prints_works_as_printed(here: Path, words: tuple[str, ...]) -> None:
    """In an empty folder each, down to a recipe that `check` passes."""
    printed = [line[6:] for line in run(*words).output.splitlines() if line.startswith(("next: ", "  or: "))]
    assert printed
    for number, command in enumerate(printed):
        (here / str(number)).mkdir()
        os.chdir(here / str(number))
        program, *rest = shlex.split(command)
        assert program == "lmf-recipes"
        result = CliRunner().invoke(group, rest)
        assert result.exit_code == 0, result.output
        written = [*Path().glob("*.yaml")]
        assert bool(written) is ("next: " not in result.output)
        assert all(checking.check_file(str(path)).verdict == "fits" for path in written)


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "mine.yaml").write_text("own work\n", "utf-8")
    result = run("--model", "qwen7b", "--machine", "8xa100-80g", "--write", "mine.yaml")
    assert isinstance(result.exception, RecipeError)
    assert result.output == ""  # said before the search
    assert (here / "mine.yaml").read_text("utf-8") == "own work\n"


def test_a_model_that_was_chosen_can_be_written(here: Path) -> None:
    run("--machine", "1xrtx-4090", "--samples", "20000", "--write", "mine.yaml")
    assert load_recipe(str(here / "mine.yaml")).header["samples"] == 20000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--machine", "8xa100-80g", "--samples", "9", "--fsdp"), "give --model"),
        (("--model", "qwen7b", "--machine", "8xa100-81g"), "not known"),
        (("--model", "qwen7b", "--machine", "8"), "not of the form"),
        (("--model", "qwen7b", "--machine", "8xa100", "--write", "mine.txt"), "a recipe's name ends with .yaml"),
    ],
)
def test_wrong_usage_is_refused(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert isinstance(result.exception, click.UsageError)
    assert message in result.exception.format_message()


def test_without_a_machine_it_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    unseen = run().exception
    assert isinstance(unseen, click.UsageError)
    assert "name the machine, such as `--machine 8xa100-80g`" in unseen.format_message()
    assert "--machine auto" not in unseen.format_message()


@pytest.mark.parametrize(
    ("model", "machine", "message"),
    [
        ("qwen3-9b", "8xa100-80g", "known of `qwen3` are `qwen3-8b`"),
        ("Qwen/Qwen2.5-7B-Instuct", "8xa100-80g", "did you mean `Qwen/Qwen2.5-7B-Instruct`"),
        ("qwen7b", "1xcpu", "no device memory is known"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(model: str, machine: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        answer.find_answer(model, machine)


def test_a_model_that_overflows_in_fp16_gets_a_machine_with_bf16() -> None:
    found = plans("--model", "glm-4-9b-0414", "--machine", "1xt4-16g")
    assert [(each["note"], each["machine"]) for each in found["upgrades"]] == [
        ("larger devices, with bf16", "1xa10-24g")
    ]
    assert (
        "t4-16g has no bf16, and fp32 is not planned; take a machine that has bf16, or another model" in found["notes"]
    )


@pytest.mark.sample(one_in=4)
@pytest.mark.parametrize(
    ("words", "reason", "cures"),
    [
        (("--model", "gpt-oss-20b", "--machine", "8xascend-910b-64g"), "FlashAttention-3 kernel", []),
        (("--model", "qwen7b", "--machine", "8xa100-80g", "--cutoff-len", "131072"), "32768 positions", []),
        (("--model", "qwen7b", "--machine", "8xascend-910b-64g", "--method", "qlora"), "bitsandbytes", ["lora"]),
        (
            ("--model", "gpt-oss-20b", "--machine", "1xh100-80g", "--method", "qlora"),
            "mxfp4-quantized already",
            ["lora"],
        ),
    ],
)
def test_what_memory_cannot_cure_is_said_and_no_machine_proposed(
    words: tuple[str, ...], reason: str, cures: list[str]
) -> None:
    """One reason each, as a release that cures the other is no cure; at most another method is proposed."""
    found = plans(*words)
    assert [reason in each for each in found["reasons"]] == [True]
    assert found["plans"] == []
    assert [(each["note"], each["machine"]) for each in found["upgrades"]] == [
        (f"with --method {method}", words[3]) for method in cures
    ]
    assert all(plans(*words[:4], "--method", method)["plans"] for method in cures)
    assert reason in run(*words).output


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", ["AWQ", "GPTQ-Int4"])
def test_a_quantized_checkpoint_is_planned_for_lora_alone(kind: str) -> None:
    words = ("--model", f"Qwen/Qwen2.5-7B-Instruct-{kind}", "--machine", "1xrtx-4090")
    found = plans(*words)
    assert {row["method"] for row in found["plans"]} == {"lora"}
    assert any(f"quantized by {kind[:4].strip('-')}" in note and "--smoke" in note for note in found["notes"])
    run(*words, "--write", "mine.yaml")
    codes = {each.code for each in checking.check_file("mine.yaml").diagnostics if each.severity is not Severity.NOTE}
    assert codes == {"TRA315"}
    for method in ("full", "qlora"):
        refused = plans(*words, "--method", method)
        assert len(refused["reasons"]) == 1
        assert [each["note"] for each in refused["upgrades"]] == ["with --method lora"]


def folder(here: Path, name: str, **files: str) -> str:
    """A model folder with the shapes of a small Qwen3."""
    config = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
              "num_attention_heads": 4, "intermediate_size": 128, "dtype": "bfloat16"}  # fmt: skip
    (here / name).mkdir(parents=True)
    for file, text in {"config.json": json.dumps(config), **files}.items():
        (here / name / file).write_text(text)
    return f"./{name}"


CHATML = {"chat_template.jinja": "<|im_start|> <|im_end|>"}


@pytest.mark.parametrize(
    ("name", "files", "template", "told"),
    [
        ("mine", CHATML, "qwen3_nothink", "template qwen3_nothink: by the chat template in chat_template.jinja"),
        ("mine", {"tokenizer.json": "{}"}, "default", "template default: the folder has no chat template and is taken"),
        ("mine", {"chat_template.jinja": "?"}, None, "no template, so it is derived from the tokenizer: none of"),
        ("a: #1 {x}", CHATML, "qwen3_nothink", "by the chat template"),
        ("-1", CHATML, "qwen3_nothink", "by the chat template"),
    ],
)
def test_a_folder_gets_a_template_and_an_output_of_its_own(
    name: str, files: dict[str, str], template: str | None, told: str, here: Path
) -> None:
    model = folder(here, name, **files)
    shown = run("--model", model, "--machine", "1xa100-80g", "--write", "recipe.yaml").output
    assert told in shown
    values = load_recipe("recipe.yaml").values
    assert values["model_name_or_path"] == model
    assert values.get("template") == template
    assert all(each.severity is not Severity.ERROR for each in checking.check_file("recipe.yaml").diagnostics)


def test_two_folders_share_neither_file_name_nor_output(here: Path) -> None:
    ways = ["mine", "yours/checkpoint-100", "theirs/checkpoint-100", "Mine 2!"]
    found = [
        plans("--model", folder(here, way, **CHATML), "--machine", "1xa100-80g", "--method", "lora")["plans"][0]["set"]
        for way in ways
    ]
    outputs = [each["output_dir"] for each in found]
    assert outputs == [
        "saves/mine-a100x1-lora", "saves/yours-checkpoint-100-a100x1-lora", "saves/theirs-checkpoint-100-a100x1-lora",
        "saves/mine-2-a100x1-lora",
    ]  # fmt: skip


@pytest.mark.usefixtures("here")
def test_plans_written_to_one_folder_save_apart() -> None:
    """The base model and longer samples would share their name in the catalogue with the chat model's recipe."""
    for file, words in {
        "chat.yaml": ("--model", "Qwen/Qwen3-8B"),
        "base.yaml": ("--model", "Qwen/Qwen3-8B-Base"),
        "long.yaml": ("--model", "Qwen/Qwen3-8B", "--cutoff-len", "4096"),
    }.items():
        assert run("--machine", "4xa100-40g", *words, "--write", file).exit_code == 0
        assert load_recipe(file).values["output_dir"] == f"saves/{Path(file).stem}"


def test_a_model_that_needs_an_older_transformers_is_planned_and_written_for_it(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    shown = run("--model", "gpt-oss-20b", "--machine", "8xh100-80g", "--write", str(file)).output
    assert "load_and_register_kernel" in shown
    assert "no such run" not in shown
    report = checking.check_file(str(file))
    assert load_recipe(str(file)).header["transformers"] == releases.previous_major_pair()[1]
    assert not [each for each in report.diagnostics if each.severity is not Severity.NOTE]


def test_a_method_that_an_earlier_transformers_cures_stands_beside_the_others() -> None:
    """Without --method, too: its experts are then quantized."""
    shown = answer.find_answer("mixtral-8x7b", "1xa100-80g")
    assert {(each.draft.method, each.draft.transformers) for each in shown.plans} == {("qlora", "4.57.1")}
    assert [
        note
        for note in answer_rows(shown).notes
        if note.startswith("qlora for transformers 4.57.1, as a written recipe")
    ]
    both = answer.find_answer("mixtral-8x7b", "8xa100-80g")
    assert {each.draft.method: each.draft.transformers for each in both.plans}["lora"] is None


def test_memory_is_not_said_to_be_no_reason_where_a_release_cures_the_rest() -> None:
    words = ("--model", "hunyuan-a13b", "--machine", "1xa100-80g", "--method", "qlora")
    found = plans(*words)
    assert found["reasons"] == []
    assert "more host memory per node" in [each["note"] for each in found["upgrades"]]
    assert plans(*words, "--host-ram", "512")["plans"]


@pytest.mark.parametrize(
    ("model", "machine", "method", "message"),
    [
        ("qwen7b", "1xa100-80g", None, "several devices, and 1xa100-80g has one; leave out --fsdp"),
        ("internlm2.5-7b", "8xa100-80g", None, "layer class"),
        ("qwen7b", "8xa100-80g", "qlora", "4-bit weights are not planned with FSDP; leave out --fsdp"),
    ],
)
def test_fsdp_is_refused_where_it_cannot_be(model: str, machine: str, method: str | None, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        answer.find_answer(model, machine, method=method, fsdp=True)


@pytest.mark.parametrize("name", ["qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct", "qwen7b", " QWEN7B"])
def test_models_by_the_names_people_type(name: str) -> None:
    model = answer.find_answer(name, "2 x 3090").model
    assert model
    assert model.name == "Qwen/Qwen2.5-7B-Instruct"


def test_a_draft_is_judged_as_the_recipe_it_becomes(here: Path) -> None:
    best = answer.find_answer("qwen3-14b", "2xrtx-4090").best
    assert best is not None
    answer.write_best_plan(best, Path("mine.yaml"))
    document = load_recipe(str(here / "mine.yaml"))
    assert document.header["predicted"]["device_gib"] == round(best.device_gib, 1)
    assert predict(replace(best.draft, micro_batch=16).run).verdict == "exceeds"


LARGE = ("--model", "qwen2.5-vl-32b", "--machine", "16xascend-910c-64g", "--stage", "dpo", "--cutoff-len", "512",
         "--host-ram", "512")  # fmt: skip


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("--model", "qwen7b", "--machine", "8xa100-80g", "--method", "lora"), 0.1),
        (("--model", "qwen7b", "--machine", "1xa100-80g", "--method", "lora", "--samples", "200000"), 0.02),
        (("--model", "open-llama-3b", "--machine", "16xascend-910c-64g", "--method", "full"), 0.5),
        ((*LARGE, "--method", "full"), 154),  # two of 428 GiB take a fifth of the run
    ],
)
def test_checkpoints_take_a_tenth_of_the_run_at_most(words: tuple[str, ...], steps: float) -> None:
    assert "wrote mine.yaml" in run(*words, "--write", "mine.yaml").output
    values = load_recipe("mine.yaml").values
    assert values["save_steps"] == steps
    assert values["eval_steps"] == min(steps, 0.5)
    assert [d for d in checking.check_file("mine.yaml").diagnostics if d.severity is not Severity.NOTE] == []


def evaluation(*words: str) -> tuple[dict[str, object], str]:
    """Settings of the evaluation in the recipe that is written, and the reason why there is none."""
    assert "wrote mine.yaml" in run(*words, "--write", "mine.yaml").output
    text, values = Path("mine.yaml").read_text("utf-8"), load_recipe("mine.yaml").values
    Path("mine.yaml").unlink()
    names = ("val_size", "per_device_eval_batch_size", "eval_strategy", "eval_steps", "load_best_model_at_end")
    return {name: values[name] for name in names if name in values}, text.partition("# nothing is held back: ")[2]


SMALL = ("--model", "qwen3-4b", "--machine", "1xrtx-4090")
HELD = {"per_device_eval_batch_size": 1, "eval_strategy": "steps", "eval_steps": 0.1, "load_best_model_at_end": True}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "share"),
    [
        ((*SMALL, "--samples", "50"), 0.05),
        ((*SMALL, "--samples", "5000"), 0.02),
        ((*SMALL, "--samples", "20000"), 0.01),
        # Evaluations of a hundredth would take a tenth of a run of days, of which a checkpoint is written each hour.
        (("--model", "qwen3-32b", "--machine", "1xrtx-4090"), 0.005),
    ],
)
def test_a_plan_holds_back_part_of_the_data(words: tuple[str, ...], share: float) -> None:
    settings, reason = evaluation(*words)
    assert settings["val_size"] == share
    assert reason == ""
    if words[:4] == SMALL:
        assert settings == {"val_size": share, **HELD}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((*SMALL, "--samples", "49"), "that takes 50 samples or more\n"),
        (
            ("--model", "ministral-8b", "--machine", "1xt4-16g", "--method", "qlora"),
            "an evaluation holds the logits of whole samples, which may not fit beside it\n",
        ),
        (
            ("--model", "glm-4.5v", "--machine", "4xa100-40g", "--stage", "pt", "--method", "lora",
             "--cutoff-len", "4096", "--host-ram", "512"),
            "evaluations would take a tenth of the run\n",
        ),
    ],
)  # fmt: skip
def test_a_plan_says_why_it_holds_nothing_back(words: tuple[str, ...], reason: str) -> None:
    assert evaluation(*words) == ({}, reason)
    found = plans(*words)
    assert f"nothing is held back for evaluation: {reason.strip()}" in found["notes"]
    assert ("evaluation" in found["plans"][0]["gives_up"].split(", ")) is (words[:4] != SMALL)


@pytest.mark.parametrize(("method", "differ"), [(None, True), ("lora", False)])
def test_plans_that_differ_in_the_samples_of_an_optimizer_step_say_so(method: str | None, differ: bool) -> None:
    """Time and what is learned depend on it."""
    found = plans("--model", "qwen3-32b", "--machine", "2x8xa100-80g", *(("--method", method) if method else ()))
    told = [note for note in found["notes"] if note.startswith("samples of an optimizer step")]
    assert bool(told) is differ is (len({row["effective_batch"] for row in found["plans"]}) > 1)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("lines", "held"), [(12000, True), (6000, False)])
def test_texts_that_fill_few_sequences_are_not_split(lines: int, held: bool) -> None:
    """Some 42 sequences of 2,048 tokens: LLaMA-Factory splits the lines, and what is held back has to fill one, too."""
    text = "".join(f"On line {number} the quick brown fox jumps over the lazy dog.\n" for number in range(lines))
    Path("book.txt").write_text(text, "utf-8")
    settings, reason = evaluation("--model", "qwen3-8b", "--machine", "1xa100-80g", "--data", "book.txt")
    assert (bool(settings), bool(reason)) == (held, not held)


@pytest.mark.usefixtures("here")
def test_the_share_of_own_data_goes_by_their_own_number() -> None:
    """Not by the recommended one, which the header states."""
    rows = [{"instruction": "Say this.", "input": "", "output": f"word {number}"} for number in range(300)]
    Path("mine.json").write_text(json.dumps(rows), "utf-8")
    settings, _ = evaluation(*SMALL, "--data", "mine.json")
    assert settings["val_size"] == 0.05


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "words",
    [
        ("--model", "qwen3-8b", "--machine", "2xrtx-4090"),
        ("--model", "qwen7b", "--machine", "8xascend-910b-64g", "--method", "full"),
        ("--machine", "1xrtx-4090", "--samples", "300"),
    ],
)
def test_hours_of_a_plan_are_those_that_explain_tells_of_the_file(words: tuple[str, ...]) -> None:
    found = plans(*words)
    best = (found["plans"] or found["choices"])[0]
    run(*words, "--write", "mine.yaml")
    time = json.loads(program.run_to_exception("explain", "mine.yaml", "--format", "json").stdout)["time"]
    assert best["hours"] == time["hours"]
    assert best["by_length"] == time["by_length"]
    assert [*best["by_length"]] == ["256", "512", "1024", "2048"]


def test_hours_at_a_few_lengths_stand_below_the_plans_where_nobody_told_the_length(tmp_path: Path) -> None:
    words, told = ("--model", "qwen7b", "--machine", "8xa100-80g"), "first row by mean length of samples"
    shown = run(*words).output
    assert shown.count("`lmf-recipes data FILE --model M`") == shown.count("256 tokens") == 1
    assert told in run("--machine", "8xa100-80g").output
    rows = [{"instruction": "Say this.", "input": "", "output": "word " * 80}] * 50
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    own = (*words, "--data", str(tmp_path / "mine.json"))
    assert told not in run(*own).output
    assert all(row["by_length"] == {} for row in plans(*own)["plans"])
    assert told not in run("--model", "qwen3-8b", "--machine", "2x48g").output  # no rates, so no hours


@pytest.mark.parametrize(
    "words", [("--model", "qwen3-14b", "--machine", "2xrtx-4090"), ("--machine", "8xa100-80g", "--samples", "80000")]
)
def test_a_plan_is_little_work(words: tuple[str, ...]) -> None:
    run(*words)  # what is imported and read once does not count
    assert calls(lambda: run(*words)) < 1_000_000


@pytest.mark.parametrize("machine", ["1xrtx-4090", "8xa100-80g"])
def test_a_machine_whose_devices_cannot_hold_the_weights_is_little_work(machine: str) -> None:
    """`plan --machines all` asks this of most of 187 machines. Neither step nor release is looked at there."""
    asked = (models.find_model("gpt-oss-120b"), devices.parse_machine(machine, 256.0), None, None, None, "sft", None)
    assert answer.plans_on_machine(*asked) == []
    assert calls(lambda: answer.plans_on_machine(*asked)) < 450_000


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("model", "method", "said"),
    [
        ("qwen2.5-vl-7b", "lora", True),
        ("gemma4-e4b", "lora", False),  # the tower's linear modules are of a class of their own
        ("qwen2.5-omni-7b", "lora", False),  # the tower's `v` is in the names of other modules
        ("gemma4-e4b", "full", True),
    ],
)
def test_a_tower_is_said_to_train_only_where_it_can(model: str, method: str, said: bool) -> None:
    run("--model", model, "--machine", "8xa100-80g", "--method", method, "--write", "mine.yaml")
    written = Path("mine.yaml").read_text("utf-8")
    assert ("# false trains the tower, too" in written) is said
    Path("mine.yaml").write_text(written.replace("freeze_vision_tower: true", "freeze_vision_tower: false"), "utf-8")
    assert ("TRA919" in {each.code for each in checking.check_file("mine.yaml").diagnostics}) is not said


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("model", "stage", "lines"),
    [
        ("qwen2.5-vl-7b", "sft", ["image_max_pixels: 262144  # larger pictures are scaled down to it: some 334 tokens",
                                  "freeze_vision_tower: true  # false trains the tower, too",
                                  "dataset: llava_1k_en,llava_1k_zh", "template: qwen2_vl"]),
        ("llava-1.5-7b", "sft", ["image_max_pixels: 262144  # larger pictures are scaled down to it"]),
        ("qwen2.5-vl-7b", "dpo", ["dataset: rlhf_v"]),
        ("qwen2-audio-7b", "sft", ["freeze_vision_tower: true  # false trains the tower, too",
                                   "dataset: alpaca_gpt4_en,alpaca_gpt4_zh"]),
    ],
)  # fmt: skip
def test_a_model_that_sees_is_given_pictures(model: str, stage: str, lines: list[str]) -> None:
    words = ("--model", model, "--machine", "8xa100-80g", "--stage", stage, "--method", "lora")
    assert "wrote mine.yaml" in run(*words, "--write", "mine.yaml").output
    written = Path("mine.yaml").read_text("utf-8").splitlines()
    assert set(lines) <= set(written)
    assert any(line.startswith("image_max_pixels") for line in written) is ("audio" not in model)


def test_a_model_of_few_positions_is_planned_for_all_of_them(tmp_path: Path) -> None:
    shapes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "intermediate_size": 128}
    config = {"model_type": "qwen2", "num_attention_heads": 4, "max_position_embeddings": 128, **shapes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert {each.draft.length for each in answer.find_answer(str(tmp_path), "8xa100-80g").plans} == {128}
