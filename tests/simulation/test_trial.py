"""Simulated jobs: what is asked, what is kept, and how an answer becomes a verdict. No simulation runs here; the real
ones are in test_simulate.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator.commands import check, explain
from validator.diagnostic import RecipeError
from validator.job.job import GIB, resolve
from validator.job.lengths import ORDINARY
from validator.memory import Architecture, Attn, Ffn, Sharding, Workload, device_memory, disk, host_memory
from validator.read.recipe import parse
from validator.simulate.answer import Answer, Kind, Linear, Moment, from_json
from validator.simulate.cell import Cell
from validator.tables.releases import newest
from validator.trial import asked, kept, trials
from validator.trial.estimate import estimate
from validator.trial.job import SimulatedJob, simulated
from validator.trial.process import Simulator

QWEN = Architecture(3584, 28, 152064, Attn(28, 4, 128, qkv_bias=True), Ffn(18944))
CONFIG = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000}
ANSWER = Answer(
    moments={"bwd_head": Moment(3000, {"param": 2000, "logits": 600, "act": 400}, 1200)},
    parameters=64 * 1000 + 4 * 8192 + 64 + 10,
    trainable=4 * 8 * 192,
    layers=[Kind(4, [Linear("in_proj", 64, 128, 1, False)], 0, 0)],
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

    asked: list[Cell]
    fails_at = 0  # tokens of a sequence
    answer = ANSWER
    ended = 0

    def ask(self, cell: Cell) -> Answer:
        self.asked.append(cell)
        if cell.seq_len == self.fails_at:
            raise RecipeError("is not simulated: no answer")
        return Told.answer

    def close(self) -> None:
        Told.ended += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Cell]:
    Told.asked, Told.ended = [], 0
    monkeypatch.setattr(trials, "Simulator", Told)
    monkeypatch.setattr(trials, "lacking", list)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Told.asked


def job(folder: Path, *lines: str, more: int = 0) -> SimulatedJob:
    file = recipe(folder, *lines)
    there = resolve(parse("recipe.yaml", file.read_text()), "1xa100-80g")
    return simulated(there, trials.Trials(lambda _: None, more))


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
def test_what_is_asked(told: list[Cell], tmp_path: Path, lines: tuple[str, ...], wanted: dict[str, Any]) -> None:
    there = asked.cell(job(tmp_path, *lines), CONFIG, 128)
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
    told: list[Cell], tmp_path: Path, line: str, why: str
) -> None:
    there = job(tmp_path, line)
    if not why:
        asked.cell(there, CONFIG, 128)
        return
    with pytest.raises(RecipeError, match=why):
        asked.cell(there, CONFIG, 128)
    assert not told


def test_weights_are_loaded_in_the_format_of_the_checkpoint(tmp_path: Path) -> None:
    assert asked.cell(job(tmp_path), CONFIG, 128, 4.0).base_bytes == 4
    assert asked.cell(job(tmp_path), CONFIG, 128, 2.0).base_bytes == 2


def test_a_quantized_checkpoint_is_not_simulated(told: list[Cell], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="quantized already"):
        asked.cell(job(tmp_path), {**CONFIG, "quantization_config": {"quant_method": "gptq"}}, 128)
    assert not told


@pytest.mark.parametrize("part", ["vision_config", "audio_config", "thinker_config"])
def test_what_an_unknown_type_sees_and_hears_is_not_simulated(told: list[Cell], tmp_path: Path, part: str) -> None:
    with pytest.raises(RecipeError, match="pictures and sounds of a type that the formulas do not know"):
        asked.cell(job(tmp_path), {**CONFIG, part: {"hidden_size": 64}}, 128)
    known = {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {"hidden_size": 1280}}}
    assert asked.cell(job(tmp_path), known, 128).model == known
    assert not told


def test_a_type_that_no_formula_knows_is_counted_and_judged(told: list[Cell], tmp_path: Path) -> None:
    there = job(tmp_path)
    assert (there.model_problem, there.verdict, there.simulated) == (None, "fits", True)
    assert there.model
    assert there.model.parameters == ANSWER.parameters
    assert there.device_memory
    assert there.device_memory.allocated == 3000
    assert "models that no formula knows" in there.device_memory.gaps
    assert len(told) == 1


def test_trained_parameters_follow_the_targets(told: list[Cell], tmp_path: Path) -> None:
    from validator.memory import trainable_parameters

    there = job(tmp_path, "lora_rank: 8")
    assert there.model
    assert there.workload
    assert trainable_parameters(there.model.arch, there.workload) == ANSWER.trainable
    assert told


def test_without_a_config_nothing_is_simulated(told: list[Cell], tmp_path: Path) -> None:
    there = job(tmp_path, "model_name_or_path: nowhere/nothing")
    assert there.model_problem
    assert "is not known" in there.model_problem
    assert there.simulation is None
    assert not told


def test_changes_are_simulated_as_many_as_are_allowed(told: list[Cell], tmp_path: Path) -> None:
    from dataclasses import replace

    there = job(tmp_path, more=1)
    assert there.device_memory
    lengths = [replace(there, values={**there.values, "cutoff_len": length}) for length in (64, 32, 16)]
    assert [one.device_memory is not None for one in lengths] == [True, True, False]
    assert [cell.seq_len for cell in told] == [128, 64, 32]


def test_answers_are_kept_and_a_spoiled_one_is_made_anew(told: list[Cell], tmp_path: Path) -> None:
    for _ in range(2):
        assert job(tmp_path).verdict == "fits"
    assert len(told) == 1
    (file,) = (tmp_path / "cache/lmf-recipes/simulations").iterdir()
    assert from_json(json.loads(file.read_text())) == ANSWER
    for spoiled in ("", "[]", '{"moments": 1}', "null"):
        file.write_text(spoiled)
        assert kept.read(file) is None
    assert job(tmp_path).verdict == "fits"
    assert len(told) == 2
    assert kept.read(file) == ANSWER


def test_what_is_kept_is_told_apart_by_settings_and_releases() -> None:
    one = Cell(CONFIG)
    places = {kept.place(Cell(CONFIG, seq_len=length), {"torch": torch}) for length in (1, 2) for torch in ("2", "3")}
    assert len(places) == 4
    assert kept.place(one, {}) == kept.place(Cell(dict(CONFIG)), {})


def test_a_cache_that_cannot_be_written_to_is_done_without(
    told: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert job(tmp_path).verdict == "fits"
    assert told


def test_on_one_device_every_byte_is_the_simulation_s() -> None:
    there = estimate(QWEN, Workload(eval_batch=0), ANSWER, stepped=True, runtime=None)
    assert (there.allocated, there.moment) == (3000, "loss backward")


@pytest.mark.parametrize("sharding", [Sharding(1, 4, 2, engine=True), Sharding(1, 4, 3, engine=True), Sharding(1, 4)])
def test_over_several_devices_the_formulas_divide_what_stays(sharding: Sharding) -> None:
    work = Workload("full", "engine" if sharding.engine else "amp", sharding=sharding)
    none = Answer(**{**ANSWER._asdict(), "moments": {"opt": Moment(0, {}, 0)}})
    formula = device_memory(QWEN, work)
    ours = estimate(QWEN, work, none, stepped=False, runtime=None)
    for term in ("weights", "optimizer"):
        assert {str(t): size for t, size in ours.terms.items()}[term] == pytest.approx(
            {str(t): size for t, size in formula.terms.items()}[term]
        )


@pytest.mark.parametrize("command", [check.command, explain.command])
def test_without_the_packages_it_is_wrong_usage_and_says_what_to_install(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "find_spec", lambda name: None if name == "peft" else name)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [str(recipe(tmp_path)), "--simulate"])
    assert done.exit_code == 2
    assert f"needs peft, which this Python lacks; run `pip install torch llamafactory=={newest()[0]}`" in done.stderr


def test_explain_says_what_was_simulated(told: list[Cell], tmp_path: Path) -> None:
    pytest.importorskip("torch")  # whose release is shown
    words = [str(recipe(tmp_path)), "--simulate", "--machine", "1xa100-80g"]
    done = CliRunner().invoke(explain.command, words)
    assert "simulated: no formula knows the model" in done.stdout
    assert "torch" in done.stdout
    answer = json.loads(CliRunner().invoke(explain.command, [*words, "--format", "json"]).stdout)
    assert (answer["simulated"], answer["verdict"]) == (True, "fits")
    assert answer["simulation"]["trainable_parameters"] == ANSWER.trainable
    assert answer["simulation"]["allocated"] == round(3000 / GIB, 2)
    assert len(told) == 1


def test_check_names_the_way_and_takes_it(told: list[Cell], tmp_path: Path) -> None:
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
    def fail(_self: Told, _cell: Cell) -> Answer:
        raise RecipeError("is not simulated: LookupError: no class")

    monkeypatch.setattr(Told, "ask", fail)
    words = [str(recipe(tmp_path)), str(recipe(tmp_path)), "--machine", "1xa100-80g", "--select", "FIT", *more]
    said = CliRunner().invoke(check.command, words).stdout
    assert said.count("model type `mamba` is not simulated: LookupError: no class [FIT005]") == (2 if more else 0)
    assert "memory not judged in 2 (model not known" in said


def test_liger_s_kernels_need_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asked, "find_spec", lambda _name: None)
    fused, plain = job(tmp_path, "enable_liger_kernel: true"), {"model_type": "qwen2"}
    with pytest.raises(RecipeError, match="pip install liger-kernel"):
        asked.cell(fused, plain, 128)
    assert not asked.cell(fused, CONFIG, 128).liger


def test_a_process_that_cannot_import_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    simulator = Simulator()
    with pytest.raises(RecipeError, match=r"OSError: libcudart\.so"):
        simulator.ask(Cell(CONFIG))
    simulator.close()


def test_a_model_that_formulas_know_stays_theirs(told: list[Cell], tmp_path: Path) -> None:
    there = job(tmp_path, "model_name_or_path: Qwen/Qwen2.5-7B-Instruct")
    assert there.device_memory
    assert there.device_memory.allocated > GIB
    assert (there.simulated, len(told)) == (False, 0)
    assert there.simulation
    assert there.simulation.allocated == 3000 / GIB


HUGE = ANSWER._replace(moments={"bwd_head": Moment(200 << 30, {"act": 200 << 30}, 200 << 30)})


@pytest.mark.parametrize("method", ["full", "freeze", "lora"])
@pytest.mark.parametrize("precision", ["amp", "engine"])
@pytest.mark.parametrize("sharding", [Sharding(), Sharding(1, 4), Sharding(1, 4, 3, engine=True)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_is_not_known_of_a_counted_model_decides_nothing(
    told: list[Cell], tmp_path: Path, method: Any, precision: Any, sharding: Sharding, attention: Any
) -> None:
    model = job(tmp_path).model
    assert told
    assert model
    assert (model.arch.attn, model.arch.ffn) == (Attn(1, 1, 1), Ffn(1))
    other = model.arch._replace(attn=Attn(64, 8, 128), ffn=Ffn(1 << 20))
    work = Workload(method, precision, sharding=sharding, attention=attention, eval_batch=8)
    one, two = (estimate(arch, work, ANSWER, stepped=False, runtime=None) for arch in (model.arch, other))
    assert one == two
    assert host_memory(model.arch, work) == host_memory(other, work)
    assert disk(model.arch, work, 1, 1, save_optimizer=True) == disk(other, work, 1, 1, save_optimizer=True)


def test_a_second_length_that_is_not_simulated_makes_nothing_fit(
    told: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "answer", HUGE)
    monkeypatch.setattr(Told, "fails_at", ORDINARY)
    there = job(tmp_path, "cutoff_len: 4096")
    assert (there.device_verdict, there.enough_for, there.verdict) == ("exceeds", None, "exceeds")
    assert [cell.seq_len for cell in told] == [4096, ORDINARY]


def test_a_typical_length_that_is_not_simulated_leaves_the_longest_one_s_band(
    told: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "fails_at", 800)
    file = recipe(tmp_path, "cutoff_len: 4096")
    text = f"# /// recipe\n# lengths: 800\n# ///\n{file.read_text()}"
    there = simulated(resolve(parse("recipe.yaml", text), "1xa100-80g"), trials.Trials(lambda _: None))
    assert there.device_memory
    assert there.device_memory.allocated == 3000
    assert [cell.seq_len for cell in told] == [4096, 800]


def test_after_a_failure_a_new_process_answers(told: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Told] = []

    def simulator() -> Told:
        made.append(Told())
        return made[-1]

    monkeypatch.setattr(trials, "Simulator", simulator)
    monkeypatch.setattr(Told, "fails_at", 128)
    with trials.Trials(lambda _: None) as ours:
        ours.begin()
        with pytest.raises(RecipeError, match="no answer"):
            ours.answer(Cell(CONFIG, seq_len=128))
        assert Told.ended == 1
        assert ours.answer(Cell(CONFIG, seq_len=64)) == ANSWER
    assert (len(told), len(made), Told.ended) == (2, 2, 2)


def test_what_is_kept_is_not_written_again(told: list[Cell], tmp_path: Path) -> None:
    assert job(tmp_path).verdict == "fits"
    (file,) = (tmp_path / "cache/lmf-recipes/simulations").iterdir()
    before = file.stat().st_ino
    assert job(tmp_path).verdict == "fits"
    assert (file.stat().st_ino, len(told)) == (before, 1)
