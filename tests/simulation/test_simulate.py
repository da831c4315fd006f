"""Real classes of transformers stepped through with fake tensors, in the process that the commands use: against the
formulas, against a real step on the CPU, and for a type that no formula knows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from simulation import grid

from validator.commands import explain
from validator.errors import RecipeError
from validator.knowledge import families
from validator.knowledge.architectures import read_architecture
from validator.knowledge.tables import yaml_table
from validator.physics import estimate_device_memory, parameter_count
from validator.simulation import session
from validator.simulation.session import SimulatorProcess
from validator.simulation.simulation_request import SimulationRequest

pytest.importorskip("llamafactory")
pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.process]

SIMULATED_BY = ["release/constraints.txt", "validator/simulation/*", "validator/data/models.yaml"]
TINY = {
    "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
    "tie_word_embeddings": False,
}  # fmt: skip
GEMMA = {
    **TINY, "model_type": "gemma3_text", "num_hidden_layers": 23, "sliding_window": 64,
    "layer_types": ([*["sliding_attention"] * 4, "full_attention"] * 5)[:23],
}  # fmt: skip
UNKNOWN = {
    "model_type": "mamba2", "hidden_size": 128, "num_hidden_layers": 7, "vocab_size": 1000, "num_heads": 8,
    "head_dim": 32, "state_size": 16, "n_groups": 1, "chunk_size": 64, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    there = SimulatorProcess()
    yield there
    there.close()


def sample() -> list[dict[str, Any]]:
    """Of each method one recorded cell that the formulas meet exactly, and of every kind of stage."""
    chosen: dict[tuple[str, ...], dict[str, Any]] = {}
    met = {grid.key(row) for pairs in grid.errors().values() for error, row in pairs if abs(error) < 5e-4}
    for cell in grid.cells():
        small = cell["model"] in ("qwen3-0.6b", "llama-3.1-70b", "qwen2.5-7b") and not cell["liger"]
        if small and grid.key(cell) in met:
            chosen.setdefault((cell["method"], cell["precision_mode"], cell["stage"]), cell)
    return list(chosen.values())[:4]


@pytest.mark.sample(one_in=2, whole_for=SIMULATED_BY)
@pytest.mark.parametrize("cell", sample(), ids=lambda cell: f"{cell['model']}-{cell['method']}-{cell['stage']}")
def test_families_that_formulas_know_come_out_equal(simulator: SimulatorProcess, cell: dict[str, Any]) -> None:
    from simulation.simulate import BUILTIN

    answer = simulator.ask(SimulationRequest(**{**cell, "model": BUILTIN[cell["model"]]}, steps=1, warm=True))
    row = {name: str(value) for name, value in cell.items()} | {"versions": ""}
    model, work = grid.architecture(cell["model"]), grid.workload(row)
    assert answer.peak == pytest.approx(estimate_device_memory(model, work).allocated, rel=1e-3)
    assert sum(kind.number for kind in answer.layers) == model.layers


@pytest.mark.sample(one_in=3, whole_for=SIMULATED_BY)
def test_a_real_step_on_the_cpu_has_the_same_peak_and_shallow_copies_that_of_all_layers() -> None:
    """In a process of its own, as torch is changed. Gemma's layers repeat in fives here, and one of five has no
    window."""
    script = """
import json, sys
from validator.simulation import worker
from validator.simulation.fake_training_step import follow_steps
from validator.simulation.model_layers import shallow_copies
from validator.simulation.simulation_request import SimulationRequest
from validator.simulation.tracker import peaks_by_part
settings = {"seq_len": 256, "micro_batch": 2, "steps": 1, "warm": True}
tiny, gemma = (SimulationRequest(model, **settings) for model in json.load(sys.stdin))
steps = (follow_steps(tiny, real) for real in (True, False))
peaks = [max(peak.size for peak in peaks_by_part(step.tracker).values()) for step in steps]
copies = shallow_copies(worker.model_shape(gemma).kinds)
both = worker.extrapolate(gemma, copies), worker.simulate_all_layers(gemma)
print(json.dumps([peaks, [one.parts[one.highest].size for one in both], [one.parameters for one in both]]))
"""
    told = json.dumps([TINY, GEMMA])
    done = subprocess.run([sys.executable, "-P", "-c", script], input=told, check=True, capture_output=True, text=True)
    (real, fake), (extended, whole), parameters = json.loads(done.stdout.splitlines()[-1])
    assert fake == pytest.approx(real, rel=3e-3)
    assert extended == pytest.approx(whole, rel=1e-3)
    assert len(set(parameters)) == 1


def test_a_type_that_no_formula_knows_is_judged(
    simulator: SimulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UNKNOWN["model_type"] not in families.known_types()
    monkeypatch.setattr(session, "SimulatorProcess", lambda: simulator)
    monkeypatch.setattr(simulator, "close", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(UNKNOWN))
    Path("recipe.yaml").write_text(
        "model_name_or_path: .\nstage: sft\ndo_train: true\nfinetuning_type: lora\nlora_target: in_proj\n"
        "dataset: identity\ntemplate: default\ncutoff_len: 128\noutput_dir: out\nbf16: true\n"
    )
    words = ["recipe.yaml", "--simulate", "--machine", "1xrtx-4090", "--format", "json"]
    answer = json.loads(CliRunner().invoke(explain.command, words).stdout)
    assert (answer["simulated"], answer["verdict"]) == (True, "fits")
    assert answer["simulation"]["parameters"] == answer["model"]["parameters"]
    assert answer["simulation"]["trainable_parameters"] == answer["model"]["trainable_parameters"]
    assert answer["simulation"]["releases"].keys() >= {"torch", "transformers", "llamafactory"}


@pytest.mark.parametrize(
    ("kinds", "trained", "depths"),
    [
        ([0] * 36, 0, (4, 6, 36)), ([0] * 36, 4, (8, 10, 36)), ([0, *[1] * 26], 0, (5, 7, 27)), ([0] * 5, 0, None),
        ([0, 0, 0, 1] * 12, 0, (8, 12, 48)), ([0, 0, 0, 1] * 12 + [0], 0, (9, 13, 49)), ([0, 1, 2, 3, 4, 5], 0, None),
        ([0, 1] * 21, 0, (6, 8, 42)), ([1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1], 0, (7, 9, 11)),
    ],
)  # fmt: skip
def test_copies_end_as_the_model_does(kinds: list[int], trained: int, depths: tuple[int, ...] | None) -> None:
    from validator.simulation.model_layers import shallow_copies

    there = shallow_copies(kinds, trained)
    assert there == depths
    if there:
        assert kinds[: there.small][-4:] == kinds[: there.large][-4:] == kinds[-4:]


def shallow(config: dict[str, Any]) -> dict[str, Any]:
    """Four layers of the decoder and two of the tower that sees, of an omni model's thinker, too."""
    if "thinker_config" in config:
        return {**config, "thinker_config": shallow(config["thinker_config"])}
    text = {name: each[:4] if name == "layer_types" else each for name, each in config["text_config"].items()}
    seen = {**config["vision_config"], "depth": 2}
    return {**config, "text_config": {**text, "num_hidden_layers": 4}, "vision_config": seen}


@pytest.mark.sample(one_in=4, whole_for=SIMULATED_BY)
@pytest.mark.parametrize("name", ["qwen2.5-vl-7b", "glm-4.1v-9b", "qwen3.5-4b", "qwen2.5-omni-7b"])
def test_models_that_see_are_stepped_through_with_a_picture(simulator: SimulatorProcess, name: str) -> None:
    config = shallow(yaml_table("models")[name]["config"])
    there = simulator.ask(SimulationRequest(config, seq_len=1024, steps=1, warm=True))
    assert there.parameters == parameter_count(read_architecture(config))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"model_type": "no_such_type"}, "transformers has no causal language model of the type `no_such_type`"),
        ({**TINY, "hidden_size": "wide"}, "is not simulated"),
    ],
)
def test_what_cannot_be_built_is_told(simulator: SimulatorProcess, model: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        simulator.ask(SimulationRequest(model))


@pytest.mark.sample(one_in=3, whole_for=SIMULATED_BY)
def test_a_process_that_dies_is_told() -> None:
    there = SimulatorProcess()
    there._process.kill()
    with pytest.raises(RecipeError, match="the process was killed; is there memory for it"):
        there.ask(SimulationRequest(TINY))
    there.close()
    assert session.missing_packages() == []
