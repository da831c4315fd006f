"""The `data` command's figures equal LLaMA-Factory's own, on small data sets of every form."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import nasty_sets, small_sets
from support.sampling import chosen

from validator.dataset import recipe_datasets, row_selection, token_counting
from validator.knowledge import tables
from validator.run import schedule
from validator.run.settings import RunSettings, run_of_values
from validator.run.workspace import Workspace

HERE = Path(__file__).parents[1]
MODEL = HERE.parent / "demo" / "tiny-qwen3"


CASES = small_sets.CASES | nasty_sets.CASES


def run_of(recipe: dict[str, Any]) -> tuple[RunSettings, row_selection.RowSelection]:
    job = run_of_values(recipe, workspace=Workspace("recipe.yaml", (Path.cwd(),)))
    counter = token_counting.best_counter(job)
    return job, row_selection.select_rows(job, recipe_datasets.load_datasets(job, counter, lambda _rows: None))


@pytest.fixture(scope="session")
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What LLaMA-Factory makes of each case whose turn it is."""
    pytest.importorskip("llamafactory")
    folder = tmp_path_factory.mktemp("real")
    names = chosen(request.session, "test_rows_tokens_drops_and_steps_are_those_of_the_real_run", "name")
    command: list[str | Path] = [sys.executable, HERE / "support" / "real_data.py", folder, MODEL, *names]
    environment = {**os.environ, "PYTHONSAFEPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.sample(one_in=5, whole_for=["release/constraints.txt", "validator/dataset/*", "tests/support/*_sets.py"])
@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", CASES)
def test_rows_tokens_drops_and_steps_are_those_of_the_real_run(name: str, real: dict[str, Any], tmp_path: Path) -> None:
    job, run = run_of({**CASES[name].write(tmp_path), "model_name_or_path": str(MODEL)})
    theirs = real[name]
    if "error" in theirs:
        assert run.problems, theirs["error"]
        return
    assert not run.problems
    steps, kept, rows = schedule.training_schedule(job, run.sequences), run.rows["kept_tokens"], run.trained(run.train)
    ours = {"rows": run.sequences, "examples": run.sequences, "evaluated": run.evaluated, "batch": steps.batch,
            "per_epoch": steps.per_epoch, "total": steps.total, "warmup": steps.warmup}  # fmt: skip
    if not job.batch.packing:
        ours["tokens"] = kept[rows].sum()
    if not len(run.evaluation):
        ours["dropped"] = run.drops.total()
    assert ours == {figure: theirs[figure] for figure in ours}


@pytest.mark.slow
@pytest.mark.real
def test_formats_equal_the_registry() -> None:
    template = pytest.importorskip("llamafactory.data.template")
    table = tables.json_table("formats")["formats"]
    assert table.keys() == template.TEMPLATES.keys()
    for name, real_template in template.TEMPLATES.items():
        entry = table[name]
        assert entry.get("default_system", "") == real_template.default_system
        for turn in ("user", "assistant", "system", "observation", "function", "prefix"):
            if turn in entry:
                slots = getattr(real_template, f"format_{turn}").slots
                assert entry[turn] == [s if isinstance(s, str) else list(s if isinstance(s, set) else s.values())
                                       for s in slots]  # fmt: skip


def test_a_packed_file_is_read_as_it_is(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in small_sets.alpaca(4)).encode()
    case = small_sets.one("a.jsonl", gzip.compress(lines))
    _, run = run_of(case.write(tmp_path))
    assert (run.sequences, run.problems) == (4, [])
