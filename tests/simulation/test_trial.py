"""Simulated jobs: what is asked, what is kept, and how an answer becomes a verdict. No simulation runs here; the real
ones are in test_simulate.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator.commands import check, explain
from validator.errors import RecipeError
from validator.knowledge.releases import newest_pair
from validator.physics import (
    ZERO_2,
    ZERO_3,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Sharding,
    Workload,
    disk_usage,
    estimate_device_memory,
    estimate_host_memory,
)
from validator.physics.estimate import GIB
from validator.recipe.recipe_file import parse_recipe
from validator.run.hyperparameters import ORDINARY_TOKENS
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve
from validator.run.simulated import SimulationFigures
from validator.simulation import session, simulation_request
from validator.simulation.predict import Simulation, with_simulations
from validator.simulation.session import SimulatorProcess
from validator.simulation.simulated_memory import (
    LayerGroup,
    LinearModules,
    PhasePeak,
    SimulatedStep,
    estimate_from_step,
    step_from_json,
)
from validator.simulation.simulation_request import SimulationRequest

QWEN = Architecture(3584, 28, 152064, AttentionShape(28, 4, 128, qkv_bias=True), FeedForwardShape(18944))
CONFIG = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000}
ANSWER = SimulatedStep(
    moments={"bwd_head": PhasePeak(3000, {"param": 2000, "logits": 600, "act": 400}, 1200)},
    parameters=64 * 1000 + 4 * 8192 + 64 + 10,
    trainable=4 * 8 * 192,
    layers=[LayerGroup(4, [LinearModules("in_proj", 64, 128, 1, False)], 0, 0)],
    embedding=64000,
    head=0,
    hidden=64,
    whole=False,
)


def recipe(folder: Path, *lines: str) -> Path:
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine/config.json").write_text(json.dumps(CONFIG))
    values = {
        "model_name_or_path": "mine", "stage": "sft", "do_train": "true", "finetuning_type": "lora",
        "dataset": "identity", "template": "default", "cutoff_len": "128", "output_dir": "out", "bf16": "true",
    } | dict(line.split(": ", 1) for line in lines)  # fmt: skip
    file = folder / "recipe.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    return file


class Told:
    """In place of the process that simulates: the same answer to every cell, and a list of what was asked."""

    asked: list[SimulationRequest]
    fails_at = 0  # tokens of a sequence
    answer = ANSWER
    ended = 0

    def ask(self, cell: SimulationRequest) -> SimulatedStep:
        self.asked.append(cell)
        if cell.seq_len == self.fails_at:
            raise RecipeError("is not simulated: no answer")
        return Told.answer

    def close(self) -> None:
        Told.ended += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[SimulationRequest]:
    Told.asked, Told.ended = [], 0
    monkeypatch.setattr(session, "SimulatorProcess", Told)
    monkeypatch.setattr(session, "missing_packages", list)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Told.asked


def figures(there: RunSettings) -> SimulationFigures | None:
    assert isinstance(there.memory_source, Simulation)
    return there.memory_source.figures(there)


def job(folder: Path, *lines: str, more: int = 0) -> RunSettings:
    file = recipe(folder, *lines)
    there = resolve(parse_recipe("recipe.yaml", file.read_text()), "1xa100-80g")
    return with_simulations(there, session.SimulationSession(lambda _: None, more))


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ((), {"method": "lora", "precision_mode": "bf16", "seq_len": 128, "grad_ckpt": True, "padded": True}),
        (("quantization_bit: 4", "use_dora: true"), {"method": "qlora4", "dora": True}),
        (("finetuning_type: full", "pure_bf16: true", "packing: true"),
         {"method": "full", "precision_mode": "pure_bf16", "padded": False}),
        (("stage: pt",), {"stage": "sft", "padded": False}),
        (("stage: dpo", "pref_loss: simpo"), {"stage": "simpo"}),
        (("flash_attn: fa2", "disable_gradient_checkpointing: true"), {"attn": "fa2", "grad_ckpt": False}),
        (("gradient_accumulation_steps: 16", "optim: adamw_bnb_8bit"), {"grad_accum": 2, "optimizer": "adamw_8bit"}),
        (("optim: lion_32bit",), {"optimizer": "sgd"}),
        (("deepspeed: '{\"zero_optimization\": {\"stage\": 2}}'",), {"precision_mode": "engine", "optimizer": "sgd"}),
        (("enable_liger_kernel: true",), {"liger": False}),
        ((), {"freeze_vision_tower": True, "freeze_multi_modal_projector": True, "freeze_language_model": False}),
        (("freeze_vision_tower: false", "freeze_language_model: true"),
         {"freeze_vision_tower": False, "freeze_multi_modal_projector": True, "freeze_language_model": True}),
    ],
)  # fmt: skip
def test_what_is_asked(
    told: list[SimulationRequest], tmp_path: Path, lines: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    there = simulation_request.request_for(job(tmp_path, *lines), CONFIG, 128)
    assert {name: getattr(there, name) for name in wanted} == wanted
    assert (there.model, there.steps, there.warm) == (CONFIG, 1, True)
    assert not told


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("stage: ppo", "the stage `ppo`"), ("use_galore: true", "`use_galore`"),
        ("resize_vocab: true", "`resize_vocab`"), ("quantization_method: hqq", ""),
        ("use_unsloth: true", "`use_unsloth`"),
    ],
)  # fmt: skip
def test_what_is_not_simulated_is_refused_with_the_reason(
    told: list[SimulationRequest], tmp_path: Path, line: str, why: str
) -> None:
    there = job(tmp_path, line)
    if not why:
        simulation_request.request_for(there, CONFIG, 128)
        return
    with pytest.raises(RecipeError, match=why):
        simulation_request.request_for(there, CONFIG, 128)
    assert not told


def test_weights_are_loaded_in_the_format_of_the_checkpoint(tmp_path: Path) -> None:
    assert simulation_request.request_for(job(tmp_path), CONFIG, 128, 4.0).base_bytes == 4
    assert simulation_request.request_for(job(tmp_path), CONFIG, 128, 2.0).base_bytes == 2


def test_a_quantized_checkpoint_is_not_simulated(told: list[SimulationRequest], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="quantized already"):
        simulation_request.request_for(job(tmp_path), {**CONFIG, "quantization_config": {"quant_method": "gptq"}}, 128)
    assert not told


@pytest.mark.parametrize("part", ["vision_config", "audio_config", "thinker_config"])
def test_what_an_unknown_type_sees_and_hears_is_not_simulated(
    told: list[SimulationRequest], tmp_path: Path, part: str
) -> None:
    with pytest.raises(RecipeError, match="pictures and sounds of a type that the formulas do not know"):
        simulation_request.request_for(job(tmp_path), {**CONFIG, part: {"hidden_size": 64}}, 128)
    known = {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {"hidden_size": 1280}}}
    assert simulation_request.request_for(job(tmp_path), known, 128).model == known
    assert not told


def test_a_type_that_no_formula_knows_is_counted_and_judged(told: list[SimulationRequest], tmp_path: Path) -> None:
    there = job(tmp_path)
    assert (there.model_problem, predict(there).verdict, predict(there).is_simulated) == (None, "fits", True)
    assert there.model
    assert there.model.parameters == ANSWER.parameters
    memory = predict(there).device_memory
    assert memory
    assert memory.allocated == 3000
    assert "models that no formula knows" in memory.gaps
    assert len(told) == 1


def test_trained_parameters_follow_the_targets(told: list[SimulationRequest], tmp_path: Path) -> None:
    from validator.physics import trainable_parameter_count

    there = job(tmp_path, "lora_rank: 8")
    assert there.model
    workload = predict(there).workload
    assert workload
    assert trainable_parameter_count(there.model.arch, workload) == ANSWER.trainable
    assert told


def test_without_a_config_nothing_is_simulated(told: list[SimulationRequest], tmp_path: Path) -> None:
    there = job(tmp_path, "model_name_or_path: nowhere/nothing")
    assert there.model_problem
    assert "is not known" in there.model_problem
    assert figures(there) is None
    assert not told


def test_changes_are_simulated_as_many_as_are_allowed(told: list[SimulationRequest], tmp_path: Path) -> None:
    there = job(tmp_path, more=1)
    memory = predict(there).device_memory
    assert memory
    lengths = [there.updated({"cutoff_len": length}) for length in (64, 32, 16)]
    assert [predict(one).device_memory is not None for one in lengths] == [True, True, False]
    assert [cell.seq_len for cell in told] == [128, 64, 32]


def test_answers_are_kept_and_a_spoiled_one_is_made_anew(told: list[SimulationRequest], tmp_path: Path) -> None:
    for _ in range(2):
        assert predict(job(tmp_path)).verdict == "fits"
    assert len(told) == 1
    (file,) = (tmp_path / "cache/lmf-recipes/simulations").iterdir()
    assert step_from_json(json.loads(file.read_text())) == ANSWER
    for spoiled in ("", "[]", '{"moments": 1}', "null"):
        file.write_text(spoiled)
        assert session.read_cached_step(file) is None
    assert predict(job(tmp_path)).verdict == "fits"
    assert len(told) == 2
    assert session.read_cached_step(file) == ANSWER


def test_what_is_kept_is_told_apart_by_settings_and_releases() -> None:
    one = SimulationRequest(CONFIG)
    places = {
        session.cached_step_path(SimulationRequest(CONFIG, seq_len=length), {"torch": torch})
        for length in (1, 2)
        for torch in ("2", "3")
    }
    assert len(places) == 4
    assert session.cached_step_path(one, {}) == session.cached_step_path(SimulationRequest(dict(CONFIG)), {})


def test_installed_releases_are_read() -> None:
    assert session.installed_releases(["click", "no-such-package"]).keys() == {"click"}


def test_a_cache_that_cannot_be_written_to_is_done_without(
    told: list[SimulationRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert predict(job(tmp_path)).verdict == "fits"
    assert told


def test_on_one_device_every_byte_is_the_simulation_s() -> None:
    there = estimate_from_step(QWEN, Workload(eval_batch=0), ANSWER, stepped=True, runtime=None)
    assert (there.allocated, there.phase) == (3000, "loss backward")


@pytest.mark.parametrize("sharding", [Sharding(1, 4, ZERO_2), Sharding(1, 4, ZERO_3), Sharding(1, 4)])
def test_over_several_devices_the_formulas_divide_what_stays(sharding: Sharding) -> None:
    work = Workload("full", "engine" if sharding.strategy.deepspeed else "amp", sharding=sharding)
    none = SimulatedStep(**{**ANSWER._asdict(), "moments": {"opt": PhasePeak(0, {}, 0)}})
    formula = estimate_device_memory(QWEN, work)
    ours = estimate_from_step(QWEN, work, none, stepped=False, runtime=None)
    for term in ("weights", "optimizer"):
        assert {str(t): size for t, size in ours.terms.items()}[term] == pytest.approx(
            {str(t): size for t, size in formula.terms.items()}[term]
        )


@pytest.mark.parametrize("command", [check.command, explain.command])
def test_without_the_packages_it_is_wrong_usage_and_says_what_to_install(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "peft" else name)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [str(recipe(tmp_path)), "--simulate"])
    assert done.exit_code == 2
    assert (
        f"needs peft, which this Python lacks; run `pip install torch llamafactory=={newest_pair()[0]}`" in done.stderr
    )


def test_explain_says_what_was_simulated(told: list[SimulationRequest], tmp_path: Path) -> None:
    pytest.importorskip("torch")  # whose release is shown
    words = [str(recipe(tmp_path)), "--simulate", "--machine", "1xa100-80g"]
    assert "as no formula knows it" in " ".join(CliRunner().invoke(explain.command, words).stdout.split())
    done = CliRunner().invoke(explain.command, [*words, "--full"])
    assert "simulated: no formula knows the model" in done.stdout
    assert "torch" in done.stdout
    answer = json.loads(CliRunner().invoke(explain.command, [*words, "--format", "json"]).stdout)
    assert (answer["simulated"], answer["verdict"]) == (True, "fits")
    assert answer["simulation"]["trainable_parameters"] == ANSWER.trainable
    assert answer["simulation"]["allocated"] == round(3000 / GIB, 2)
    assert len(told) == 1


def test_check_names_the_way_and_takes_it(told: list[SimulationRequest], tmp_path: Path) -> None:
    words = [str(recipe(tmp_path)), "--machine", "1xa100-80g", "--select", "FIT"]
    assert "explain RECIPE --simulate may judge it" in CliRunner().invoke(check.command, words).stdout
    assert not told
    assert "FIT005" not in CliRunner().invoke(check.command, [*words, "--simulate"]).stdout
    assert len(told) == 1


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("more", [[], ["--simulate"]])
def test_of_several_files_each_says_why_its_simulation_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    def fail(_self: Told, _cell: SimulationRequest) -> SimulatedStep:
        raise RecipeError("is not simulated: LookupError: no class")

    monkeypatch.setattr(Told, "ask", fail)
    words = [str(recipe(tmp_path)), str(recipe(tmp_path)), "--machine", "1xa100-80g", "--select", "FIT", *more]
    said = CliRunner().invoke(check.command, words).stdout
    assert said.count("model type `mamba` is not simulated: LookupError: no class [FIT005]") == (2 if more else 0)
    assert "memory not judged in 2 (model not known" in said


def test_liger_s_kernels_need_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulation_request, "find_spec", lambda _name: None)
    fused, plain = job(tmp_path, "enable_liger_kernel: true"), {"model_type": "qwen2"}
    with pytest.raises(RecipeError, match="pip install liger-kernel"):
        simulation_request.request_for(fused, plain, 128)
    assert not simulation_request.request_for(fused, CONFIG, 128).liger


def test_a_process_that_cannot_import_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    simulator = SimulatorProcess()
    with pytest.raises(RecipeError, match=r"OSError: libcudart\.so"):
        simulator.ask(SimulationRequest(CONFIG))
    simulator.close()


def test_a_model_that_formulas_know_stays_theirs(told: list[SimulationRequest], tmp_path: Path) -> None:
    there = job(tmp_path, "model_name_or_path: Qwen/Qwen2.5-7B-Instruct")
    memory = predict(there).device_memory
    assert memory
    assert memory.allocated > GIB
    assert (predict(there).is_simulated, len(told)) == (False, 0)
    shown = figures(there)
    assert shown
    assert shown.allocated == 3000 / GIB


HUGE = ANSWER._replace(moments={"bwd_head": PhasePeak(200 << 30, {"act": 200 << 30}, 200 << 30)})


@pytest.mark.parametrize("method", ["full", "freeze", "lora"])
@pytest.mark.parametrize("precision", ["amp", "engine"])
@pytest.mark.parametrize("sharding", [Sharding(), Sharding(1, 4), Sharding(1, 4, ZERO_3)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_is_not_known_of_a_counted_model_decides_nothing(
    told: list[SimulationRequest], tmp_path: Path, method: Any, precision: Any, sharding: Sharding, attention: Any
) -> None:
    model = job(tmp_path).model
    assert told
    assert model
    assert (model.arch.attn, model.arch.ffn) == (AttentionShape(1, 1, 1), FeedForwardShape(1))
    other = model.arch._replace(attn=AttentionShape(64, 8, 128), ffn=FeedForwardShape(1 << 20))
    work = Workload(method, precision, sharding=sharding, attention=attention, eval_batch=8)
    one, two = (estimate_from_step(arch, work, ANSWER, stepped=False, runtime=None) for arch in (model.arch, other))
    assert one == two
    assert estimate_host_memory(model.arch, work) == estimate_host_memory(other, work)
    assert disk_usage(model.arch, work, 1, 1, save_optimizer=True) == disk_usage(other, work, 1, 1, save_optimizer=True)


def test_a_second_length_that_is_not_simulated_makes_nothing_fit(
    told: list[SimulationRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "answer", HUGE)
    monkeypatch.setattr(Told, "fails_at", ORDINARY_TOKENS)
    there = job(tmp_path, "cutoff_len: 4096")
    assert (predict(there).device_verdict, predict(there).fitting_length, predict(there).verdict) == (
        "exceeds",
        None,
        "exceeds",
    )
    assert [cell.seq_len for cell in told] == [4096, ORDINARY_TOKENS]


def test_a_typical_length_that_is_not_simulated_leaves_the_longest_one_s_band(
    told: list[SimulationRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "fails_at", 800)
    file = recipe(tmp_path, "cutoff_len: 4096")
    text = f"# /// recipe\n# lengths: 800\n# ///\n{file.read_text()}"
    there = with_simulations(
        resolve(parse_recipe("recipe.yaml", text), "1xa100-80g"), session.SimulationSession(lambda _: None)
    )
    memory = predict(there).device_memory
    assert memory
    assert memory.allocated == 3000
    assert [cell.seq_len for cell in told] == [4096, 800]


def test_after_a_failure_a_new_process_answers(told: list[SimulationRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Told] = []

    def simulator() -> Told:
        made.append(Told())
        return made[-1]

    monkeypatch.setattr(session, "SimulatorProcess", simulator)
    monkeypatch.setattr(Told, "fails_at", 128)
    with session.SimulationSession(lambda _: None) as ours:
        ours.begin()
        with pytest.raises(RecipeError, match="no answer"):
            ours.answer(SimulationRequest(CONFIG, seq_len=128))
        assert Told.ended == 1
        assert ours.answer(SimulationRequest(CONFIG, seq_len=64)) == ANSWER
    assert (len(told), len(made), Told.ended) == (2, 2, 2)


def test_what_is_kept_is_not_written_again(told: list[SimulationRequest], tmp_path: Path) -> None:
    assert predict(job(tmp_path)).verdict == "fits"
    (file,) = (tmp_path / "cache/lmf-recipes/simulations").iterdir()
    before = file.stat().st_ino
    assert predict(job(tmp_path)).verdict == "fits"
    assert (file.stat().st_ino, len(told)) == (before, 1)
