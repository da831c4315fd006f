"""`plan --simulate`: plans of models that no formula knows, from few simulations. But for the last test, a fake answers
in place of the process that simulates."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from support import program

from validator.cli import group
from validator.commands import plan
from validator.errors import RecipeError
from validator.knowledge import devices, families
from validator.plan import answer
from validator.recipe.recipe_file import load_recipe
from validator.run.prediction import predict
from validator.simulation import session
from validator.simulation.predict import simulations_of_plan
from validator.simulation.simulated_memory import LayerGroup, LinearModules, PhasePeak, SimulatedStep
from validator.simulation.simulation_request import SimulationRequest

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/plan/*", "validator/simulation/*"])

CONFIG = {"model_type": "xglm", "hidden_size": 4096, "vocab_size": 32000, "dtype": "bfloat16",
          "max_position_embeddings": 4096}  # fmt: skip
LAYERS, WIDTH, TABLE = 32, 4096, 32000 * 4096
PARAMETERS = 12 * LAYERS * WIDTH * WIDTH + 2 * TABLE


class Fake:
    """A model of 6.7 billion parameters, whose activations grow with the batch and with what is kept of them."""

    asked: list[SimulationRequest]
    fails: set[str]

    def ask(self, cell: SimulationRequest) -> SimulatedStep:
        Fake.asked.append(cell)
        if cell.method in Fake.fails:
            raise RecipeError("is not simulated: ValueError: no adapters here")
        tokens = cell.micro_batch * cell.seq_len
        passing = tokens * WIDTH * LAYERS * (2 if cell.grad_ckpt else 60)
        trained = PARAMETERS if cell.method == "full" else LAYERS * 16 * 6 * WIDTH
        weights = PARAMETERS // 2 if cell.method == "qlora4" else 2 * PARAMETERS
        each = 4 if cell.precision_mode == "bf16" else 2
        states = 0 if cell.optimizer == "sgd" else 2 * each * trained
        categories = {"param": weights, "grad": each * trained, "optim": states, "act": passing}
        moment = PhasePeak(sum(categories.values()), categories, passing)
        kinds = [LayerGroup(LAYERS, [LinearModules("up", WIDTH, 6 * WIDTH, 2, False)], 0, 0)]
        return SimulatedStep({"bwd_head": moment}, PARAMETERS, trained, kinds, TABLE, TABLE, WIDTH, False)

    def close(self) -> None:
        """Nothing was started."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with that model, and a cache of its own."""
    Fake.asked, Fake.fails = [], set()
    monkeypatch.setattr(session, "SimulatorProcess", Fake)
    monkeypatch.setattr(session, "missing_packages", list)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def run(words: str, *more: str) -> Result:
    return program.run_to_exception("plan", *words.split(), *more)


def rows(words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(words, "--format", "json").stdout)
    return found


def said(words: str) -> str:
    """What is printed, in one line."""
    return " ".join(run(words).stdout.split())


ON_ONE = "--model ./mine --machine 1xa100-80g --simulate"
ON_EIGHT = "--model ./mine --machine 8xa100-80g --simulate"


@pytest.mark.parametrize(
    ("words", "methods", "most"),
    [
        (ON_ONE, {"lora", "full", "qlora"}, 12),
        (ON_EIGHT, {"lora", "full", "qlora"}, 12),
        (f"{ON_EIGHT} --scale", {"lora", "full", "qlora"}, 18),
        (f"{ON_EIGHT} --method lora --stage dpo", {"lora"}, 6),
        ("--model ./mine --machine 1xrtx-4090 --method full --simulate", set(), 12),
        ("--model ./mine --machine 1xt4-16g --method lora --host-ram 16 --simulate", set(), 16),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_plan_takes_few_simulations_and_the_next_one_none(words: str, methods: set[str], most: int) -> None:
    found = rows(words)
    assert {row["method"] for row in found["plans"]} == methods
    assert 0 < len(Fake.asked) <= most
    asked = len(Fake.asked)
    assert rows(words) == found
    assert len(Fake.asked) == asked


@pytest.mark.usefixtures("here")
def test_the_answer_has_the_keys_of_any_plan_and_says_what_it_rests_on() -> None:
    ours, known = rows(ON_ONE), rows("--model qwen7b --machine 1xa100-80g")
    assert ours.keys() == known.keys()
    assert ours["plans"][0].keys() == known["plans"][0].keys()
    assert any("no formula knows model type xglm" in note for note in ours["notes"])
    assert not any("simulat" in note for note in known["notes"])


@pytest.mark.usefixtures("here")
def test_what_is_simulated_is_said_beside_the_answer_and_the_next_command_asks_for_it() -> None:
    done = run(ON_ONE)
    assert "simulating a `xglm` model, lora at 2048 tokens; this takes seconds" in done.stderr
    assert "lora at 2048 tokens, all activations kept" in done.stderr
    assert "simulating a" not in done.stdout
    assert "--model ./mine --simulate --write mine-a100x1-" in done.stdout


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", [ON_ONE, ON_EIGHT, f"{ON_ONE} --method full", f"{ON_EIGHT} --stage kto"])
def test_the_recipe_that_is_written_passes_a_simulated_check(words: str) -> None:
    best = rows(words)["plans"][0]
    run(words, "--write", "mine.yaml")
    asked = len(Fake.asked)
    done = CliRunner().invoke(group, ["check", "mine.yaml", "--simulate", "--strict"])
    assert (done.exit_code, len(Fake.asked)) == (0, asked), done.output
    told = CliRunner().invoke(group, ["explain", "mine.yaml", "--simulate", "--format", "json"]).stdout
    assert json.loads(told)["verdict"] == "fits"
    assert json.loads(told)["device_gib"]["expected"] == pytest.approx(best["device_gib"], abs=0.06)
    assert load_recipe("mine.yaml").header["predicted"]["device_gib"] == best["device_gib"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("model", ["qwen3-8b", "bigscience/bloom-7b1"])
def test_a_model_that_formulas_know_is_planned_as_without_it(model: str) -> None:
    words = f"--model {model} --machine 2xa100-80g"
    plain, simulated = run(words), run(f"{words} --simulate")
    assert plain.stdout == simulated.stdout != ""
    assert (simulated.stderr, Fake.asked) == ("", [])


@pytest.mark.usefixtures("here")
def test_where_the_allowance_ends_the_plan_is_made_of_what_was_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = rows(ON_ONE)
    for path in Path("cache/lmf-recipes/simulations").iterdir():
        path.unlink()
    Fake.asked.clear()
    monkeypatch.setattr(plan, "_MAX_FURTHER_SIMULATIONS", 0)
    found = rows(ON_ONE)
    assert len(Fake.asked) == 2
    assert 0 < len(found["plans"]) < len(everything["plans"])
    assert any("no more than 2 simulations are made at a time" in note for note in found["notes"])
    for _ in range(8):  # the same command goes on from there
        found = rows(ON_ONE)
    assert found == everything


@pytest.mark.usefixtures("here")
def test_a_method_that_cannot_be_simulated_is_asked_about_once_and_left_out() -> None:
    Fake.fails = {"lora", "qlora4"}
    found = rows(ON_ONE)
    assert {row["method"] for row in found["plans"]} == {"full"}
    methods = [cell.method for cell in Fake.asked]
    assert (methods.count("lora"), methods.count("qlora4")) == (1, 1)
    assert "lora, qlora is left out: it is not simulated: ValueError: no adapters here" in found["notes"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "model type `xglm` is not simulated: ValueError: no adapters here"),
        ({"vision_config": {}}, "pictures and sounds of a type that the formulas do not know"),
        ({"quantization_config": {"quant_method": "gptq"}}, "a checkpoint that is quantized already"),
    ],
)
def test_what_cannot_be_simulated_at_all_is_one_sentence(here: Path, more: dict[str, Any], why: str) -> None:
    Fake.fails = {"lora", "full", "qlora4"}
    (here / "mine/config.json").write_text(json.dumps({**CONFIG, **more}))
    done = run(ON_ONE)
    assert isinstance(done.exception, RecipeError)
    assert why in str(done.exception)


@pytest.mark.usefixtures("here")
def test_what_is_known_without_a_simulation_is_not_simulated() -> None:
    """Weights and states alone are too large; the host is too small; the answer is taken from what there is."""
    with session.SimulationSession(lambda _: None, 22) as made:
        best = answer.find_answer("./mine", "8xa100-80g", simulations=partial(simulations_of_plan, session=made)).best
        assert best
        assert best.draft.planned
        Fake.asked.clear()
        long = replace(best.draft, length=4096)
        poor, settled = long.machine._replace(host_ram_gib=1.0), best.draft.planned.without_new_ones
        small = devices.parse_machine("8xrtx-3090")
        assert not replace(long, method="full", sharding=None, machine=small).fits
        assert (replace(long, machine=poor).fits, replace(long, planned=settled).fits, Fake.asked) == (False, False, [])
        assert predict(replace(long, planned=settled).run).device_verdict == "unknown"
        assert replace(best.draft, planned=settled).fits
        assert predict(long.run).device_verdict in ("fits", "tight", "exceeds")
        assert len(Fake.asked) == 1


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--machine 1xa100-80g --simulate", "--simulate is for one model; give --model"),
        ("--machine 1xa100-80g --scale --simulate", "--scale is for one model; give --model"),
    ],
)
def test_without_a_model_it_is_wrong_usage(words: str, message: str) -> None:
    wrong = run(words).exception
    assert isinstance(wrong, click.UsageError)
    assert wrong.format_message() == message


@pytest.mark.usefixtures("here")
def test_without_the_packages_it_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "missing_packages", lambda: ["torch"])
    wrong = run(ON_ONE).exception
    assert isinstance(wrong, click.UsageError)
    assert "--simulate needs torch, which this Python lacks; run `pip install" in wrong.format_message()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--model ./mine --machine 1xa100-80g",
            "`xglm` is not among the supported ones; .* plan or explain RECIPE --simulate",
        ),
        ("--model ./nowhere --machine 1xa100-80g --simulate", "it is no folder with a config.json"),
        ("--model qwen3-9b --machine 1xa100-80g --simulate", "`qwen3-9b` is not known"),
        (f"{ON_EIGHT} --fsdp", "wraps a model by its layer class, which is not known for xglm"),
    ],
)
def test_what_is_refused_before_anything_is_simulated(words: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        raise run(words).exception or AssertionError
    assert Fake.asked == []


@pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "validator/plan/*", "validator/simulation/*"])
@pytest.mark.slow
def test_with_the_real_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tiny model of a type that no formula knows: planned, written, and checked to the same figures."""
    pytest.importorskip("llamafactory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tiny = {"model_type": "codegen", "n_embd": 128, "n_layer": 6, "n_head": 4, "vocab_size": 1000, "rotary_dim": 16,
            "max_position_embeddings": 512, "dtype": "bfloat16"}  # fmt: skip
    assert tiny["model_type"] not in families.known_types()
    Path("config.json").write_text(json.dumps(tiny))
    done = run("--model . --machine 1xrtx-4090 --method lora --simulate --write mine.yaml --format json")
    best = json.loads(done.stdout)["plans"][0]
    assert (best["cutoff_len"], best["device_gib"] > 0) == (512, True)
    checked = CliRunner().invoke(group, ["check", "mine.yaml", "--simulate", "--strict"])
    assert (checked.exit_code, "simulating" in checked.stderr) == (0, False), checked.output
    told = json.loads(CliRunner().invoke(group, ["explain", "mine.yaml", "--simulate", "--format", "json"]).stdout)
    assert (told["simulated"], told["verdict"]) == (True, "fits")
    assert told["device_gib"]["expected"] == pytest.approx(best["device_gib"], abs=0.06)
