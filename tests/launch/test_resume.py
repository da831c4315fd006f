"""From what a run goes on: said in a line, half-written checkpoints set aside, and real runs that were interrupted."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from knowledge.test_checkpoints import cut, tensors, whole
from real.test_training import RECIPE, ROOT, SHORT, start, train

from validator.cli import group
from validator.errors import RecipeError
from validator.launch import resume
from validator.on_node import checkpoint_integrity as written
from validator.recipe.recipe_file import load_recipe, parse_recipe, with_overrides
from validator.run.checkpoints import checkpoints_in
from validator.run.settings import RunSettings, resolve

BASE = "stage: sft\ndo_train: true\nfinetuning_type: lora\noutput_dir: out\nmax_steps: 1000\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def resolved(*words: str) -> RunSettings:
    return resolve(with_overrides(parse_recipe("x.yaml", BASE), words))


def half(folder: Path, step: int) -> None:
    (whole(folder, step).path / "trainer_state.json").unlink()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "goes on from checkpoint-300 (step 300 of 1,000, 30%)"),
        (("resume_from_checkpoint=true",), "goes on from checkpoint-300 (step 300 of 1,000, 30%)"),
        (("resume_from_checkpoint=out/checkpoint-200",), "goes on from checkpoint-200 (step 200 of 1,000, 20%)"),
        (("max_steps=null", "num_train_epochs=2"), "goes on from checkpoint-300 (step 300 of 400, 75%)"),
        (("resume_from_checkpoint=false",), "starts anew: `resume_from_checkpoint` says so"),
        (
            ("overwrite_output_dir=true",),
            "starts anew: `overwrite_output_dir` is true; with =false the run goes on from checkpoint-300 "
            "(step 300 of 1,000, 30%)",
        ),
        (("stage=rm", "finetuning_type=full"), "starts anew: stage rm with full never resumes"),
    ],
)
def test_the_line(words: tuple[str, ...], says: str, folder: Path) -> None:
    for step in (200, 300):
        whole(folder, step, epoch=step / 200)
    assert [*resume.resume_messages(resolved(*words), dry=False)] == [says]


@pytest.mark.parametrize("absolute", [False, True])
def test_the_output_folder_is_the_working_directorys_wherever_the_recipe_lies(
    absolute: bool, folder: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-recipes"
    (elsewhere / "out").mkdir(parents=True)
    recipe = elsewhere / "x.yaml"
    recipe.write_text(BASE)
    whole(folder, 300)
    words = (f"output_dir={folder}",) if absolute else ()
    run = resolve(with_overrides(load_recipe(str(recipe)), words))
    assert [*resume.resume_messages(run, dry=True)] == ["goes on from checkpoint-300 (step 300 of 1,000, 30%)"]


@pytest.mark.parametrize("words", [(), ("do_train=false",), ("output_dir=elsewhere",)])
def test_nothing_is_said_of_a_folder_without_checkpoints(words: tuple[str, ...]) -> None:
    assert not [*resume.resume_messages(resolved(*words), dry=False)]


def test_the_number_of_steps_is_left_out_where_it_is_not_known(folder: Path) -> None:
    whole(folder, 300)
    assert [*resume.resume_messages(resolved("max_steps=null"), dry=False)] == [
        "goes on from checkpoint-300 (step 300)"
    ]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dry", [True, False])
def test_half_written_ones_are_set_aside(dry: bool, folder: Path) -> None:
    whole(folder, 100)
    for step in (50, 200, 300):
        half(folder, step)
    (folder / "incomplete-checkpoint-300").mkdir()
    would = "would be " if dry else ""
    before = names(folder)
    assert [*resume.resume_messages(resolved(), dry=dry)] == [
        f"checkpoint-300 is half-written (no trainer_state.json): {would}renamed to incomplete-checkpoint-300-1",
        f"checkpoint-200 is half-written (no trainer_state.json): {would}renamed to incomplete-checkpoint-200",
        "goes on from checkpoint-100 (step 100 of 1,000, 10%)",
    ]
    # The one before the last whole one stops no run, and may be another's at work.
    moved = {"checkpoint-300": "incomplete-checkpoint-300-1", "checkpoint-200": "incomplete-checkpoint-200"}
    assert names(folder) == (before if dry else sorted(moved.get(name, name) for name in before))


def test_what_another_node_may_have_whole_is_left_alone(folder: Path) -> None:
    """Without `save_on_each_node` all but the first write the states of their own processes alone."""
    half(folder, 300)
    (folder / "checkpoint-300" / "adapter_model.safetensors").unlink()
    several = resolve(parse_recipe("x.yaml", BASE), "2x8xa100-80g")
    with pytest.raises(RecipeError, match="`out/checkpoint-300` holds no weights on this node; share the folder"):
        [*resume.resume_messages(several, dry=False)]
    assert names(folder) == ["checkpoint-300"]
    [*resume.resume_messages(resolved(), dry=False)]
    assert names(folder) == ["incomplete-checkpoint-300"]


def test_a_name_that_another_process_takes_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half(folder, 300)
    free = written.quarantine_path
    taken: list[Path] = []

    def slow(checkpoint: Path) -> Path:
        place = free(checkpoint)
        if not taken:
            taken.append(place / "theirs")
            taken[0].mkdir(parents=True)
        return place

    monkeypatch.setattr(written, "quarantine_path", slow)
    (said,) = resume.resume_messages(resolved(), dry=False)
    assert said.endswith("renamed to incomplete-checkpoint-300-1")
    assert names(folder) == ["incomplete-checkpoint-300", "incomplete-checkpoint-300-1"]
    assert taken[0].is_dir()


def test_one_that_cannot_be_renamed_stops_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half(folder, 300)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(RecipeError, match="cannot be renamed: permission denied; rename or remove it"):
        [*resume.resume_messages(resolved(), dry=False)]
    assert names(folder) == ["checkpoint-300"]


def test_a_folder_of_half_written_ones_alone(folder: Path) -> None:
    half(folder, 300)
    assert [*resume.resume_messages(resolved(), dry=False)] == [
        "checkpoint-300 is half-written (no trainer_state.json): renamed to incomplete-checkpoint-300"
    ]


@pytest.mark.parametrize(
    ("words", "result", "done"),
    [
        ((), True, True),
        ((), False, False),  # killed between the last checkpoint and the result
        (("max_steps=301",), True, False),  # told to stop before the end: the result is that of its last checkpoint
        (("overwrite_output_dir=true",), True, False),
    ],
)
def test_a_finished_run(words: tuple[str, ...], result: bool, done: bool, folder: Path) -> None:
    whole(folder, 300)
    if result:
        (folder / "adapter_model.safetensors").write_bytes(tensors())
    told = resume.finished_message(resolved("max_steps=300", *words))
    assert (told is not None) is done
    if told:
        assert told.startswith("already finished: `out` holds the result and checkpoint-300 (step 300 of 300, 100%); ")


def test_a_result_that_is_cut_off_is_no_end(folder: Path) -> None:
    """Killed while it wrote the result, the run has to write it again."""
    whole(folder, 300)
    result = folder / "adapter_model.safetensors"
    result.write_bytes(tensors())
    assert resume.finished_message(resolved("max_steps=300"))
    cut(result)
    assert not resume.finished_message(resolved("max_steps=300"))


def words(folder: Path, *more: str) -> list[str]:
    return ["train", "--machine", "1xcpu", str(RECIPE), f"output_dir={folder}", "overwrite_output_dir=false", *more]


def test_train_starts_no_finished_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without llamafactory-cli on the PATH a start would be refused."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", "")
    whole(folder, 50)
    (folder / "adapter_model.safetensors").write_bytes(tensors())
    done = CliRunner().invoke(group, words(folder, "max_steps=50"))
    assert done.exit_code == 0, done.output
    assert "already finished" in done.stderr
    assert CliRunner().invoke(group, words(folder, "max_steps=60")).exit_code == 1


def test_a_dry_run_sets_nothing_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    half(folder, 50)
    done = CliRunner().invoke(group, [*words(folder), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "would be renamed to incomplete-checkpoint-50" in done.stderr
    assert names(folder) == ["checkpoint-50"]


def test_submit_says_it_and_sets_nothing_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    whole(folder, 25)
    half(folder, 50)
    more = ("--to", "slurm", "--dry-run", "--hours", "1", "max_steps=100")
    done = CliRunner().invoke(group, ["submit", *words(folder)[1:], *more])
    assert done.exit_code == 0, done.output
    assert "would be renamed to incomplete-checkpoint-50\n" in done.stderr
    assert "goes on from checkpoint-25 (step 25 of 100, 25%)\n" in done.stderr
    assert names(folder) == ["checkpoint-25", "checkpoint-50"]


@pytest.mark.parametrize(
    ("words", "there", "says"),
    [
        ((), (100, 300), "the same command goes on from checkpoint-300 (step 300 of 1,000, 30%)"),
        (("max_steps=300",), (300,), "the run had come to its end"),
        (("overwrite_output_dir=true",), (300,), "the same command starts anew: `overwrite_output_dir` is true; with "),
        ((), (), "no checkpoint was saved; the log above names the reason"),
        (("do_train=false",), (), ""),
    ],
)
def test_what_follows_is_told_of_the_folder_as_it_is_then(
    words: tuple[str, ...], there: tuple[int, ...], says: str, folder: Path
) -> None:
    job = resolved(*words)
    assert not resume.finished_message(job)
    for step in there:
        whole(folder, step)
    (folder / "adapter_model.safetensors").write_bytes(tensors())
    assert (resume.after_exit_message(job, 1) or "").startswith(says)
    assert says or resume.after_exit_message(job, 1) is None


def test_a_run_that_a_signal_ended_before_a_checkpoint_starts_anew() -> None:
    assert resume.after_exit_message(resolved(), 130) == "the same command starts anew: no checkpoint was saved"


LONG = (*SHORT, "overwrite_output_dir=false", "max_steps=60", "save_steps=10", "save_total_limit=9")


def losses(output: Path) -> dict[int, float]:
    """By step, the last one of each."""
    lines = (output / "trainer_log.jsonl").read_text().splitlines() if output.is_dir() else []
    return {row["current_steps"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}


# The trainer says that it begins with a checkpoint, and stands still before it is there.
GATE = """
import os, signal, sys
def at(event, words):
    if event == "os.mkdir" and str(words[0]).endswith("checkpoint-40"):
        os.write(1, b"\\ncheckpoint-40 begins\\n")
        while True: signal.pause()
sys.addaudithook(at)
"""


@pytest.mark.sample(
    one_in=6, whole_for=["release/constraints.txt", "validator/launch/*", "validator/run/checkpoints.py"]
)
@pytest.mark.slow
@pytest.mark.process
def test_a_run_that_is_killed_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """It is killed in the middle, as it were while it saved, and once more started when it is finished."""
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
    expected = losses(train(tmp_path / "undisturbed", LONG).output)
    assert len(expected) == 60
    (tmp_path / "sitecustomize.py").write_text(GATE)
    first, output = start(tmp_path / "killed", LONG, {"PYTHONPATH": str(tmp_path)}), tmp_path / "killed" / "out"
    assert first.stdout
    assert any("checkpoint-40 begins" in line for line in first.stdout)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    before, last = checkpoints_in(output)[-2:]
    assert (before.step, last.step) == (20, 30)
    weights = last.path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    second = train(tmp_path / "killed", LONG)
    assert second.exit_code == 0, second.text[-3000:]
    assert f"{last.name} is half-written (adapter_model.safetensors is cut off)" in second.text
    assert f"goes on from {before.name} (step {before.step} of 60, {before.step / 60:.0%})" in second.text
    assert losses(output) == expected
    third = train(tmp_path / "killed", LONG)
    assert (third.exit_code, losses(output)) == (0, expected)
    assert "already finished" in third.text
