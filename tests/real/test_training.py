"""Real training of the tiny model through `lmf-recipes train`, from a working directory that is not the repository."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from validator.recipe.recipe_file import load_recipe, with_overrides
from validator.run.prediction import predict
from validator.run.settings import resolve

pytestmark = [pytest.mark.training, pytest.mark.process]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "tiny-cpu-lora.yaml"
MODEL = ROOT / "demo" / "tiny-qwen3"
TWO_PROCESSES = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2"}
TRAINED_BY = ["release/constraints.txt", "deepspeed/*", "demo/*", "validator/launch/*", "recipes/tiny*"]
LIMIT = 850  # seconds after which a training hangs: less than pytest's own limit, so that no process is left behind


@dataclass(frozen=True)
class Run:
    """What one training left behind."""

    exit_code: int
    text: str
    output: Path

    @property
    def losses(self) -> list[float]:
        """Every logged training loss, in order."""
        lines = (self.output / "trainer_log.jsonl").read_text().splitlines()
        return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


@dataclass(frozen=True)
class Case:
    """Overrides of the demo recipe, the environment, and the weights that must come out."""

    weights: str
    overrides: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    processes: int = 1


SHORT = ("max_steps=4", "logging_steps=1", "warmup_steps=0", "plot_loss=false")
# ZeRO-3 on the CPU works only where the Trainer does not know that it is on the CPU (micro batch assertion otherwise).
ZERO3 = ("deepspeed=deepspeed/ds_z3.json", "use_cpu=false", "bf16=false")
CASES = {
    "full": Case("model.safetensors", ("finetuning_type=full", *SHORT)),
    "lora-zero2-one-process": Case("adapter_model.safetensors", ("deepspeed=deepspeed/ds_z2.json", *SHORT)),
    "lora-zero2": Case("adapter_model.safetensors", ("deepspeed=deepspeed/ds_z2.json", *SHORT), TWO_PROCESSES, 2),
    "full-zero3": Case("model.safetensors", ("finetuning_type=full", *ZERO3, *SHORT), TWO_PROCESSES, 2),
}


@pytest.fixture
def unchanged_recipe() -> Iterator[None]:
    before = RECIPE.read_bytes()
    yield
    assert RECIPE.read_bytes() == before


def start(folder: Path, overrides: tuple[str, ...], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Training of the demo recipe from `folder`, with the output in it."""
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        # Without it gloo's threads may end a process of several by SIGABRT.
        "PYTHONPATH": str(ROOT / "tests" / "support" / "ending"),
    }
    return subprocess.Popen(
        ["lmf-recipes", "train", str(RECIPE), f"output_dir={folder / 'out'}", *overrides],
        cwd=folder,
        env={**os.environ, **own, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def train(folder: Path, overrides: tuple[str, ...], environment: dict[str, str] | None = None) -> Run:
    """Train the demo recipe, with no process left behind."""
    process = start(folder, overrides, environment)
    try:
        text, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
    return Run(process.returncode, text, folder / "out")


@pytest.mark.usefixtures("unchanged_recipe")
def test_the_demo_recipe_learns_and_plots_its_loss(tmp_path: Path) -> None:
    run = train(tmp_path, ())
    assert run.exit_code == 0, run.text[-20000:]
    assert (run.output / "adapter_model.safetensors").stat().st_size > 0
    assert json.loads((run.output / "adapter_config.json").read_text())["r"] == 8
    assert (run.output / "training_loss.png").read_bytes().startswith(b"\x89PNG")
    assert run.losses[-1] < run.losses[0] - 0.2
    assert str(run.output) in run.text


def predicted_checkpoint(overrides: tuple[str, ...]) -> float:
    """Bytes of one checkpoint of the demo recipe with overrides."""
    return predict(resolve(with_overrides(load_recipe(str(RECIPE)), overrides))).checkpoint_bytes


def written(checkpoint: Path) -> int:
    """Bytes of weights and states in a checkpoint."""
    files = (file for kind in ("*.safetensors", "optimizer.pt", "global_step*/*.pt") for file in checkpoint.glob(kind))
    return sum(file.stat().st_size for file in files)


@pytest.mark.usefixtures("unchanged_recipe")
@pytest.mark.sample(one_in=4, whole_for=TRAINED_BY)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_trains(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tmp_path, case.overrides, case.environment)
    assert run.exit_code == 0, run.text[-20000:]
    assert (run.output / case.weights).stat().st_size > 0
    assert len(run.losses) == 4
    assert all(math.isfinite(loss) for loss in run.losses)
    assert f"world size: {case.processes}," in run.text
    sharded = list(run.output.glob("checkpoint-4/global_step4/*_states.pt"))
    assert bool(sharded) == any(word.startswith("deepspeed=") for word in case.overrides)
    monkeypatch.chdir(ROOT)
    expected, names = predicted_checkpoint(case.overrides), 200_000  # bytes of tensors' names and shapes, for each file
    assert expected <= written(run.output / "checkpoint-4") <= 1.05 * expected + names


MEASURED = ("val_size=0.2", "eval_strategy=steps", "eval_steps=1", "metric_for_best_model=eval_loss")


@pytest.mark.usefixtures("unchanged_recipe")
@pytest.mark.sample(one_in=2, whole_for=TRAINED_BY)
@pytest.mark.parametrize(
    ("overrides", "kept", "at_once"),
    [(("save_total_limit=2",), 2, 3), (("save_total_limit=1", "learning_rate=5.0", *MEASURED), 2, 3)],
    ids=["the-last-two", "the-last-and-the-best"],
)
def test_a_checkpoint_is_written_before_the_oldest_is_removed(
    overrides: tuple[str, ...], kept: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With that learning rate the first checkpoint stays the best. A limit of 1 keeps it beside the last, until the run
    ends."""
    removed = tmp_path / "removed"
    watched = {"PYTHONPATH": str(ROOT / "tests" / "support" / "removing"), "REMOVED": str(removed)}
    overrides = (*SHORT, "save_steps=1", *overrides)
    run = train(tmp_path, overrides, watched)
    assert run.exit_code == 0, run.text[-20000:]
    lay_there = [len(line.split()) for line in removed.read_text().splitlines()]
    assert max(lay_there) == at_once
    monkeypatch.chdir(ROOT)
    assert predict(resolve(with_overrides(load_recipe(str(RECIPE)), overrides))).checkpoint_counts == (kept, at_once)


@pytest.mark.sample(one_in=3, whole_for=TRAINED_BY)
def test_the_exit_code_is_the_trainers(tmp_path: Path) -> None:
    """A model whose weights are cut short passes every check that reads no weights, and fails in the trainer."""
    model = tmp_path / "broken"
    model.mkdir()
    for file in MODEL.iterdir():
        (model / file.name).write_bytes(file.read_bytes()[: 1000 if file.suffix == ".safetensors" else None])
    run = train(tmp_path, (f"model_name_or_path={model}", *SHORT))
    assert run.exit_code == 1
    assert "safetensor" in run.text.lower()
    assert not (run.output / "adapter_model.safetensors").exists()


@pytest.mark.sample(one_in=3, whole_for=TRAINED_BY)
@pytest.mark.usefixtures("unchanged_recipe")
def test_real_steps_correct_what_is_predicted_here(tmp_path: Path) -> None:
    """Nothing is saved, no process is left, and the next prediction is that of the measured steps."""
    words = ("calibrate", str(RECIPE), "--steps", "4")
    done = lmf(tmp_path, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[TRA" not in done.stderr  # nothing is said of the settings of the timed steps
    (kept,) = json.loads((tmp_path / "lmf-recipes" / "measured.json").read_text())
    assert (kept["machine"], kept["steps"]) == ("1xcpu", 4)
    assert kept["seconds"] > 0
    shown = lmf(tmp_path, "explain", str(RECIPE), "--format", "json")
    time = json.loads(shown.stdout)["time"]
    assert time["correction"] == pytest.approx(kept["seconds"] / kept["expected"], rel=1e-3)
    assert not [*tmp_path.glob("lmf-recipes-*")]


def lmf(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program from `folder`, which is the user's data folder and that for temporary files, too."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"XDG_DATA_HOME": str(folder), "TMPDIR": str(folder), "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["lmf-recipes", *words], cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, check=False
    )


PAIR = """\
model_name_or_path: {model}
{start}stage: {stage}
do_train: true
finetuning_type: lora
lora_rank: 8
dataset_dir: data
dataset: {stage}
template: qwen3_nothink
cutoff_len: 128
output_dir: saves/{stage}
logging_steps: 1
max_steps: 4
use_cpu: true
bf16: true
per_device_train_batch_size: 2
learning_rate: 1.0e-3
report_to: none
"""


@pytest.mark.sample(one_in=3, whole_for=TRAINED_BY)
def test_preferences_go_on_from_the_adapter_of_the_recipe_beside_them(tmp_path: Path) -> None:
    """Until that recipe has run, `train` refuses. Then its adapter is merged, and the model with it is the reference:
    before the first update both give an answer the same probability."""
    rows = json.loads((ROOT / "data" / "tiny_demo.json").read_text("utf-8"))[:24]
    pairs = [{**row, "chosen": row["output"], "rejected": "I do not know."} for row in rows]
    columns = {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}
    registry = {
        "sft": {"file_name": "sft.json"},
        "dpo": {"file_name": "dpo.json", "ranking": True, "columns": columns},
    }
    (tmp_path / "data").mkdir()
    for name, content in {"sft": rows, "dpo": pairs, "dataset_info": registry}.items():
        (tmp_path / "data" / f"{name}.json").write_text(json.dumps(content), "utf-8")
    begun = "adapter_name_or_path: saves/sft\ncreate_new_adapter: true\n"
    for stage, start_line in {"sft": "", "dpo": begun}.items():
        (tmp_path / f"{stage}.yaml").write_text(PAIR.format(model=MODEL, stage=stage, start=start_line), "utf-8")
    early = lmf(tmp_path, "train", "dpo.yaml")
    assert early.returncode == 1
    assert "`saves/sft` does not exist yet; train `" in early.stderr
    for stage in ("sft", "dpo"):
        done = lmf(tmp_path, "train", f"{stage}.yaml")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    state = json.loads((tmp_path / "saves" / "dpo" / "trainer_state.json").read_text())
    first, *_, last = (row["rewards/chosen"] for row in state["log_history"] if "rewards/chosen" in row)
    assert first == 0.0
    assert last != 0.0
