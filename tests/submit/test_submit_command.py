"""`lmf-recipes submit`: what it prints and where, and how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from validator.cli import group
from validator.commands import submit as commands_submit
from validator.submit import site_file

RECIPE = """\
# /// recipe
# machine: 2xa100-80g
# host_ram_gib: 256
# samples: 20000
# ///
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
template: qwen
dataset_dir: ONLINE
dataset: me/own
cutoff_len: 2048
bf16: true
learning_rate: 1.0e-4
num_train_epochs: 3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
warmup_ratio: 0.1
lr_scheduler_type: cosine
save_steps: 200
output_dir: saves/mine
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return tmp_path


def submit(*words: str, to: str = "slurm", typed: str | None = None) -> Result:
    return CliRunner().invoke(group, ["submit", *words, "--to", to], input=typed)


def test_a_dry_run_prints_the_job_and_nothing_else(here: Path) -> None:
    done = submit("mine.yaml", "--dry-run", "learning_rate=2e-4")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=mine\n")
    assert "#SBATCH --gres=gpu:2\n" in done.stdout
    assert "  learning_rate=2e-4\n" in done.stdout
    assert f"no partition, account or set-up; write them to {here}/config/lmf-recipes/site.yaml" in done.stderr
    assert submit("mine.yaml", "--dry-run", "learning_rate=2e-4").stdout == done.stdout


def test_a_recipe_that_is_not_there_is_the_first_word() -> None:
    done = submit("none.yaml", "--dry-run")
    assert done.exit_code == 1
    assert "no site settings" not in done.stderr


def test_a_recipe_with_an_error_makes_no_job() -> None:
    done = submit("mine.yaml", "--dry-run", "finetuning_type=lore")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "[SCH004]" in done.stderr


def test_the_machine_that_is_named_counts() -> None:
    done = submit("mine.yaml", "--dry-run", "--machine", "2x4xa100-80g", "--hours", "3")
    assert "#SBATCH --nodes=2\n" in done.stdout
    assert "#SBATCH --gres=gpu:4\n" in done.stdout
    assert "#SBATCH --time=03:00:00\n" in done.stdout
    assert "PAR007" not in done.stderr
    assert "between nodes (`network:` in the header block tells another)" in done.stderr
    assert "between nodes" not in submit("mine.yaml", "--dry-run", "--hours", "3").stderr


def test_settings_of_a_site_are_read_from_a_file(here: Path) -> None:
    (here / "site.yaml").write_text("slurm: {partition: gpu}\nsetup: [source venv/bin/activate]\n")
    done = submit("mine.yaml", "--dry-run", "--site", "site.yaml")
    assert "#SBATCH --partition=gpu\n" in done.stdout
    assert "\nsource venv/bin/activate\n" in done.stdout
    (here / "site.yaml").write_text("slurm: {partitions: gpu}\n")
    done = submit("mine.yaml", "--dry-run", "--site", "site.yaml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "did you mean `partition`?" in str(done.exception)


def test_a_person_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(commands_submit, "sys", SimpleNamespace(stdin=terminal, stderr=terminal))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    asked = submit("mine.yaml", typed="gpu\n\nsource /opt/it's mine/activate\n")
    assert "sbatch is not installed here" in str(asked.exception)
    assert f"kept in {site_file.site_file_path()}" in asked.stderr
    there = site_file.read_site(None)
    assert (there.slurm.partition, there.slurm.account, there.setup) == ("gpu", "", ("source /opt/it's mine/activate",))
    again = submit("mine.yaml")
    assert "Partition" not in again.output
    assert "kept in" not in again.output


def test_the_job_is_kept_and_written_anew_until_somebody_changes_it(here: Path) -> None:
    for hours in ("3", "4"):
        done = submit("mine.yaml", "--dry-run", "--hours", hours, "--write", "mine.sh")
        assert (done.exit_code, done.stdout) == (0, "")
        assert f"the job is in mine.sh; start it: mkdir -p {here / 'saves'} && sbatch mine.sh" in done.stderr
    text = (here / "mine.sh").read_text()
    assert "#SBATCH --time=04:00:00\n" in text
    (here / "mine.sh").write_text(text.replace("04:00:00", "05:00:00"))
    done = submit("mine.yaml", "--dry-run", "--write", "mine.sh")
    assert done.exit_code == 1
    assert "`mine.sh` is not as it was written here, and not overwritten" in str(done.exception)
    assert "05:00:00" in (here / "mine.sh").read_text()


def test_a_folder_becomes_an_array(here: Path) -> None:
    (here / "sweep").mkdir()
    for name in ("a", "b"):
        (here / "sweep" / f"{name}.yaml").write_text(RECIPE.replace("saves/mine", f"saves/{name}"))
    done = submit("sweep", "--dry-run")
    assert "#SBATCH --job-name=sweep\n#SBATCH --array=0-1\n" in done.stdout
    assert done.stdout.index("saves/a") < done.stdout.index("saves/b")
    (here / "none").mkdir()
    assert "`none` holds no recipe" in str(submit("none", "--dry-run").exception)


def test_two_runs_of_an_array_write_to_folders_of_their_own(here: Path) -> None:
    (here / "sweep").mkdir()
    for name in ("a", "b"):
        (here / "sweep" / f"{name}.yaml").write_text(RECIPE)
    done = submit("sweep", "--dry-run")
    assert done.exit_code == 1
    assert "a and b both write to" in str(done.exception)


def test_a_smoke_run_is_short_and_not_queued_again() -> None:
    done = submit("mine.yaml", "--dry-run", "--smoke")
    assert done.exit_code == 0, done.output
    assert "#SBATCH --job-name=mine-smoke\n" in done.stdout
    assert "#SBATCH --no-requeue\n" in done.stdout
    assert "  max_steps=2\n" in done.stdout
    assert "saves/mine-smoke" in done.stdout


def saved(output: Path, step: int, of: int) -> None:
    """A checkpoint as LLaMA-Factory leaves it, and a result."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for place in (folder, output):
        weights = len(head).to_bytes(8, "little") + head + bytes(4)
        (place / "adapter_model.safetensors").write_bytes(weights)
    state = {"global_step": step, "max_steps": of, "num_train_epochs": 1, "epoch": step / of}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def test_it_says_what_the_run_goes_on_from(here: Path) -> None:
    saved(here / "saves" / "mine", 200, 1000)
    done = submit("mine.yaml", "--dry-run", "max_steps=1000")
    assert done.exit_code == 0, done.output
    assert "mine goes on from checkpoint-200 (step 200 of 1,000, 20%)" in done.stderr


def test_it_says_once_why_the_run_starts_anew(here: Path) -> None:
    saved(here / "saves" / "mine", 200, 1000)
    done = submit("mine.yaml", "--dry-run", "max_steps=1000", "overwrite_output_dir=true")
    assert done.stderr.count("starts anew") == 1
    assert "mine starts anew: `overwrite_output_dir` is true" in done.stderr


def test_a_run_that_has_come_to_its_end_is_not_submitted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "config" / "lmf-recipes").mkdir(parents=True)
    Path(str(site_file.site_file_path())).write_text("slurm: {partition: gpu}")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    saved(here / "saves" / "mine", 1000, 1000)
    assert submit("mine.yaml", "--dry-run", "max_steps=1000").exit_code == 0
    done = submit("mine.yaml", "max_steps=1000")
    assert (done.exit_code, done.stdout) == (0, "nothing is submitted\n"), "as `train` ends"
    assert done.stderr.count("mine already finished: `saves/mine` holds the result and checkpoint-1000") == 1


def test_runs_of_an_array_that_have_come_to_their_end_are_left_out(here: Path) -> None:
    (here / "sweep").mkdir()
    for name in ("a", "b", "c"):
        (here / "sweep" / f"{name}.yaml").write_text(RECIPE.replace("saves/mine", f"saves/{name}"))
    saved(here / "saves" / "b", 1000, 1000)
    done = submit("sweep", "--dry-run", "max_steps=1000")
    assert "#SBATCH --array=0-1\n" in done.stdout
    assert "saves/c" in done.stdout
    assert "saves/b" not in done.stdout
    assert "b already finished" in done.stderr


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "1e9"])
def test_hours_that_no_job_can_take_are_wrong_usage(hours: str) -> None:
    done = submit("mine.yaml", "--dry-run", "--hours", hours)
    assert done.exit_code == 2
    assert "hours are a number above 0 and at most 8,760" in done.stderr


def test_standard_input_is_no_file_that_nodes_read() -> None:
    done = submit("-", "--dry-run")
    assert done.exit_code == 2
    assert "save it first" in done.stderr
