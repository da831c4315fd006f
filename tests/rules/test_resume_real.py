"""The real LLaMA-Factory with the real Trainer and DeepSpeed goes on from checkpoints, or fails: as the rules say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from validator.check.checking import check_file

ROOT = Path(__file__).parents[2]
RECIPE: dict[str, Any] = {
    **{"model_name_or_path": str(ROOT / "demo" / "tiny-qwen3"), "stage": "sft", "do_train": True},
    **{"finetuning_type": "lora", "lora_rank": 8, "lora_target": "all", "dataset": "rows", "dataset_dir": "data"},
    **{"template": "qwen3_nothink", "cutoff_len": 64, "use_cpu": True, "bf16": True, "report_to": "none"},
    **{"learning_rate": 5.0e-3, "warmup_steps": 2, "per_device_train_batch_size": 2, "max_steps": 8, "save_steps": 4},
    **{"logging_steps": 1, "disable_tqdm": True},
}
ROWS = [{"instruction": f"say {n}", "input": "", "chosen": "yes", "rejected": "no", "output": "yes"} for n in range(64)]
PAIRS = {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}
SETS = {
    "rows": {"file_name": "rows.json"},
    "pairs": {"file_name": "rows.json", "ranking": True, "columns": PAIRS},
}
ENGINES = {f"z{stage}": f"deepspeed/ds_z{stage}.json" for stage in (0, 1, 2, 3)}
# ZeRO-3 on the CPU works only where the Trainer does not know that it is on the CPU.
THREE = {"deepspeed": ENGINES["z3"], "use_cpu": False, "bf16": False}
# Runs whose checkpoint at step 4 is gone on from: what is changed of the recipe, and the number of processes.
FIRST: dict[str, tuple[dict[str, Any], int]] = {
    "one": ({}, 1),
    "two": ({}, 2),
    "bare": ({"save_only_model": True}, 1),
    "reward": ({"stage": "rm", "dataset": "pairs"}, 1),
    "zero": ({"deepspeed": ENGINES["z0"]}, 1),
    "second": ({"deepspeed": ENGINES["z2"]}, 2),
}


class Case(NamedTuple):
    """`first` is gone on from with changes. `word` of what the real run says; none where it ends well."""

    first: str
    changes: dict[str, Any]
    processes: int
    codes: set[str]
    word: str = ""


CASES = {
    "one": Case("one", {}, 1, set()),
    "rank": Case("one", {"lora_rank": 16}, 1, {"PTH021"}, "size mismatch"),
    "layers": Case("one", {"lora_target": "q_proj,v_proj"}, 1, {"PTH021"}, "parameter group"),
    "method": Case("one", {"finetuning_type": "full"}, 1, {"PTH021"}, "checkpoint index"),
    "reward model": Case("reward", {}, 1, {"PTH022"}, "checkpoint index"),
    "engine": Case("one", {"deepspeed": ENGINES["z2"]}, 1, {"PTH020"}, "Can't find a valid checkpoint"),
    "processes on the CPU": Case("two", {}, 2, {"PTH024"}, "restore data location"),
    "fewer processes": Case("two", {}, 1, {"PTH026"}),
    "ZeRO": Case("second", {}, 2, set()),
    "ZeRO-1 from ZeRO-2": Case("second", {"deepspeed": ENGINES["z1"]}, 2, set()),
    "ZeRO-3 from ZeRO-2": Case("second", THREE, 2, {"PTH020"}, "AssertionError"),
    "fewer of ZeRO": Case("second", {}, 1, {"PTH019", "PTH026"}, "DP world size of 2"),
    "number format": Case("second", {"bf16": False, "use_cpu": False}, 2, {"PTH020"}, "optim_states.pt"),
    "without the engine": Case("second", {"deepspeed": None}, 1, {"PTH025", "PTH026"}),
    "no optimizer": Case("bare", {}, 1, {"PTH025"}),
    "stage 0": Case("zero", {}, 1, {"PTH023"}),
    "at the end": Case("one", {"max_steps": 4}, 1, {"PTH027"}),
}

SAID_BY = [
    "release/constraints.txt",
    "validator/rules/resume_rules.py",
    "validator/run/checkpoints.py",
    "tests/support/real_runs.py",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.process,
    pytest.mark.sample(one_in=6, whole_for=SAID_BY, together=True),
]

Run = tuple[str, dict[str, Any], int]  # name, recipe, number of processes


@contextmanager
def runner(folder: Path) -> Iterator[Callable[[list[Run]], None]]:
    """A function that makes runs there, each in forks of one process, which imports LLaMA-Factory once."""
    own = {"OMP_NUM_THREADS": "1"}
    environment = {**own, **os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "support" / "real_runs.py")], text=True, env=environment, cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        asked, answered = process.stdin, process.stdout
        assert asked
        assert answered

        def run(runs: list[Run]) -> None:
            print(json.dumps(runs), file=asked, flush=True)
            assert answered.readline(), "it ended"

        yield run


def recipe(output: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """The recipe after the changes, of which None takes a key away."""
    made = {key: value for change in (RECIPE, *changes) for key, value in change.items()}
    return {key: value for key, value in made.items() if value is not None} | {"output_dir": output}


def codes(place: Path, made: dict[str, Any], processes: int) -> set[str]:
    """What `check` says of going on, in the working directory."""
    text = f"# /// recipe\n# machine: {processes}xcpu\n# ///\n{yaml.safe_dump(made)}"
    place.write_text(text)
    found = {each.code for each in check_file(str(place)).diagnostics}
    return {code for code in found if "PTH018" <= code <= "PTH028"}


class Ended(NamedTuple):
    """What `check` said of each case before, and the folder in which they were run."""

    codes: dict[str, set[str]]
    folder: Path

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def steps(self, output: str) -> dict[int, tuple[float, float]]:
        """Loss and learning rate by step."""
        lines = (self.folder / output / "trainer_log.jsonl").read_text().splitlines()
        return {row["current_steps"]: (row["loss"], row["lr"]) for row in map(json.loads, lines) if "loss" in row}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All cases, which have their turn together."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "deepspeed").symlink_to(ROOT / "deepspeed")
    (folder / "data").mkdir()
    (folder / "data" / "dataset_info.json").write_text(json.dumps(SETS))
    (folder / "data" / "rows.json").write_text(json.dumps(ROWS))
    said: dict[str, set[str]] = {}
    runs: list[Run] = []
    with runner(folder) as run, chdir(folder):
        run([(f"first {name}", recipe(f"first/{name}", made), count) for name, (made, count) in FIRST.items()])
        for name in FIRST:
            assert Path("first", name, "checkpoint-4").is_dir(), Path(f"first {name}.log").read_text()[-5000:]
        for name, case in CASES.items():
            shutil.copytree(f"first/{case.first}/checkpoint-4", f"out/{name}/checkpoint-4")
            made = recipe(f"out/{name}", FIRST[case.first][0], {"save_only_model": None}, case.changes)
            said[name] = codes(folder / "recipe.yaml", made, case.processes)
            runs.append((name, made, case.processes))
        run(runs)
    return Ended(said, folder)


@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_or_stops_as_check_says(name: str, ended: Ended) -> None:
    case = CASES[name]
    assert ended.codes[name] == case.codes
    assert ("Traceback" in ended.log(name)) is bool(case.word)
    assert case.word in ended.log(name)


@pytest.mark.parametrize("name", ["one", "ZeRO", "ZeRO-1 from ZeRO-2"])
def test_steps_are_those_of_a_run_that_was_not_interrupted(name: str, ended: Ended) -> None:
    whole = ended.steps(f"first/{CASES[name].first}")
    assert ended.steps(f"out/{name}") == {step: whole[step] for step in (5, 6, 7, 8)}


@pytest.mark.parametrize("name", ["no optimizer", "without the engine"])
def test_the_warm_up_comes_again(name: str, ended: Ended) -> None:
    assert ended.steps(f"out/{name}")[5][1] == 0 < ended.steps(f"first/{CASES[name].first}")[5][1]


def test_stage_0_throws_the_weights_back(ended: Ended) -> None:
    whole, continued = ended.steps("first/zero"), ended.steps("out/stage 0")
    assert continued[5] == whole[5]
    assert continued[6][0] > whole[5][0]


def test_one_more_step_after_the_end(ended: Ended) -> None:
    assert [*ended.steps("out/at the end")] == [5]
