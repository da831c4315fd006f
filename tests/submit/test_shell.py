"""Lines of bash that jobs share, run by a real bash."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from validator.run import checkpoint_integrity
from validator.run.checkpoints import TrainerCheckpoint
from validator.submit import node_script

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine"),
]


def run(lines: list[str], **variables: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    words = ["bash", "-c", "\n".join(["set -euo pipefail", *lines])]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True)


def safetensors(size: int = 16) -> bytes:
    head = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(size)


def checkpoint(
    folder: Path,
    *,
    state: str | None = '{"global_step": 200}',
    tensors: bytes | None = None,
    optimizer: bytes | None = None,
    mark: bool = False,
) -> None:
    folder.mkdir(parents=True)
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    if optimizer is not None:
        (folder / "optimizer.pt").write_bytes(optimizer)
    (folder / "model.safetensors").write_bytes(safetensors() if tensors is None else tensors)
    if mark:
        (folder / "checkpoint-is-incomplete.txt").write_text("Checkpoint started")


@pytest.mark.parametrize(
    ("how", "stays"),
    [
        ({}, True),
        ({"state": None}, False),
        ({"mark": True}, False),
        ({"tensors": safetensors(8)}, False),
        ({"tensors": safetensors()[:20]}, False),
        ({"tensors": safetensors(24)}, False),
        ({"tensors": b""}, False),
        ({"tensors": bytes(64)}, False),
        ({"tensors": (16).to_bytes(8, "little") + bytes(64)}, False),
        ({"state": ""}, False),
        ({"optimizer": b"PK\x05\x06" + bytes(18)}, True),
        ({"optimizer": b"PK\x03\x04" + bytes(18)}, False),
    ],
)
def test_a_half_written_checkpoint_gets_another_name(tmp_path: Path, how: dict[str, bool], stays: bool) -> None:
    checkpoint(tmp_path / "checkpoint-100")
    checkpoint(tmp_path / "checkpoint-200", **how)  # type: ignore[arg-type]
    assert (TrainerCheckpoint(tmp_path / "checkpoint-200").problem is None) is stays, "the node judges as `train` does"
    ended = run([*node_script.quarantine_function_lines(), "set_aside"], output=tmp_path)
    assert (tmp_path / "checkpoint-100").is_dir()
    assert (tmp_path / "checkpoint-200").is_dir() is stays
    assert (tmp_path / "incomplete-checkpoint-200").is_dir() is not stays
    assert ("checkpoint-200 was not written to its end" in ended.stderr) is not stays


def test_nodes_need_nothing_but_python(tmp_path: Path) -> None:
    """3.8 and later, without packages."""
    checkpoint(tmp_path / "checkpoint-200", state=None)
    for file in (Path(checkpoint_integrity.__file__), Path(node_script.__file__).parent / "script" / "reach.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))
        argument = str(tmp_path) if file.stem == "checkpoint_integrity" else "127.0.0.1"
        words = [sys.executable, "-I", "-S", "-", argument]
        with file.open() as program:
            subprocess.run(words, stdin=program, check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == ["incomplete-checkpoint-200"]


@pytest.mark.parametrize(
    "file", sorted((Path(node_script.__file__).parent / "script").glob("*.sh")), ids=lambda file: file.name
)
def test_bash_reads_each_piece(file: Path) -> None:
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    for _ in range(2):
        checkpoint(tmp_path / "checkpoint-200", state=None)
        run([*node_script.quarantine_function_lines(), "set_aside"], output=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "incomplete-checkpoint-200", "incomplete-checkpoint-200-1",
    ]  # fmt: skip


def test_an_output_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    run([*node_script.quarantine_function_lines(), "set_aside"], output=tmp_path / "none")
    assert not [*tmp_path.iterdir()]


def test_checkpoints_of_an_earlier_run_are_set_aside(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoint-900")
    run(node_script.script_lines("anew"), output=tmp_path, RDZV_ID="7")
    assert [path.name for path in tmp_path.rglob("checkpoint-*")] == ["checkpoint-900"]
    assert (tmp_path / "earlier-7" / "checkpoint-900" / "trainer_state.json").is_file()


def test_a_start_that_was_killed_while_it_set_aside_is_made_up_for(tmp_path: Path) -> None:
    """Else the next start would go on from what another job has left."""
    for name in ("checkpoint-2", "earlier-7.part/checkpoint-1", "earlier-6/checkpoint-9"):
        (tmp_path / name).mkdir(parents=True)
    for _ in range(2):
        run(node_script.script_lines("anew"), output=tmp_path, RDZV_ID="7")
        assert sorted(path.name for path in (tmp_path / "earlier-7").iterdir()) == ["checkpoint-1", "checkpoint-2"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier-6", "earlier-7"]


def test_a_pod_that_is_told_to_end_ends_after_a_save(tmp_path: Path) -> None:
    """A checkpoint is being written; the training itself is told nothing. The save is over when the script has waited
    for it three times."""
    (tmp_path / "checkpoint-5").mkdir()
    sleep = """
    sleep() {
      waits+=$1
      if [ "$waits" = 111 ]; then touch "$output/checkpoint-5/trainer_state.json"; fi
      if [ "$1" = 2 ]; then echo "$waits"; fi
    }"""
    trains = ["exec 3<&0", "cat <&3 &", "echo trains", "wait $!"]
    lines = [f"output={tmp_path} waits=", sleep, *node_script.script_lines("ending"), *trains]
    with subprocess.Popen(["bash", "-c", "\n".join(["set -euo pipefail", *lines])], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:  # fmt: skip
        assert job.stdout
        assert job.stdout.readline() == "trains\n"
        job.terminate()
        assert "told to end: that is after the checkpoint" in job.stdout.readline()
        assert job.stdout.readline() == "1112\n"  # and two seconds for what is written after the state
        assert job.wait(600) == 143
