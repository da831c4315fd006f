"""Checkpoints in made folders: which are whole, and what they tell of their run."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from validator.run.checkpoints import TrainerCheckpoint, checkpoints_in


def tensors(size: int = 40) -> bytes:
    """A safetensors file of one tensor."""
    head = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}, "__metadata__": {}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(size)


def archive(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 99)


def whole(folder: Path, step: int = 8, **state: object) -> TrainerCheckpoint:
    """A checkpoint of one process, with an adapter."""
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step, **state}))
    (place / "adapter_model.safetensors").write_bytes(tensors())
    (place / "adapter_config.json").write_text('{"r": 8}')
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        archive(place / name)
    return TrainerCheckpoint(place)


def sharded(folder: Path, processes: int, step: int = 8) -> TrainerCheckpoint:
    """A checkpoint of so many processes under ZeRO-2."""
    saved = whole(folder, step)
    for name in ("optimizer.pt", "rng_state.pth"):
        (saved.path / name).unlink()
    for rank in range(processes):
        archive(saved.path / f"global_step{step}" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        archive(saved.path / f"rng_state_{rank}.pth")
    archive(saved.path / f"global_step{step}" / "mp_rank_00_model_states.pt")
    (saved.path / "latest").write_text(f"global_step{step}")
    return saved


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def test_a_whole_checkpoint_tells_of_its_run(tmp_path: Path) -> None:
    saved = whole(tmp_path, 8, epoch=0.16)
    assert (saved.problem, saved.step, saved.steps_per_epoch, saved.process_count) == (None, 8, 50, 1)
    assert (saved.is_adapter, saved.has_deepspeed_states, saved.restores_optimizer, saved.optimizer_shards) == (
        True,
        False,
        True,
        (),
    )
    zero = sharded(tmp_path / "zero", 2)
    assert (
        zero.problem,
        zero.process_count,
        len(zero.optimizer_shards),
        zero.has_deepspeed_states,
        zero.has_weight_shards,
    ) == (None, 2, 2, True, False)


@pytest.mark.parametrize(
    ("step", "epoch", "steps"),
    [
        (8, 0.16, 50),
        (1, 0.4, 3),
        (2, 0.8, 3),
        (3, 1.0, 3),
        (14, 1.08, 13),
        (8, 0, None),
        (8, "x", None),
        (0, 0.1, None),
    ],
)
def test_steps_of_an_epoch_whose_last_one_is_short(step: int, epoch: object, steps: int | None, tmp_path: Path) -> None:
    assert whole(tmp_path, step, epoch=epoch).steps_per_epoch == steps


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("trainer_state.json", "trainer_state.json is cut off"),
        ("adapter_model.safetensors", "adapter_model.safetensors is cut off"),
        ("optimizer.pt", "optimizer.pt is cut off"),
    ],
)
def test_a_file_that_is_cut_off(name: str, flaw: str, tmp_path: Path) -> None:
    file = whole(tmp_path).path / name
    file.write_bytes(file.read_bytes()[:12])
    assert TrainerCheckpoint(file.parent).problem == flaw
    file.write_bytes(b"")
    assert TrainerCheckpoint(file.parent).problem == flaw


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("trainer_state.json", "no trainer_state.json"),
        ("adapter_model.safetensors", "no weights"),
        # The Trainer goes on without these.
        ("optimizer.pt", None),
        ("scheduler.pt", None),
        ("rng_state.pth", None),
    ],
)
def test_a_file_that_is_not_there(name: str, flaw: str | None, tmp_path: Path) -> None:
    saved = whole(tmp_path)
    (saved.path / name).unlink()
    assert saved.problem == flaw


def brackets(path: Path) -> None:
    path.write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000)


def endless(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "flaw"), [(brackets, "adapter_model.safetensors is cut off"), (endless, "no weights")]
)
def test_weights_that_nobody_can_read(spoil: Callable[[Path], None], flaw: str, tmp_path: Path) -> None:
    saved = whole(tmp_path, 8)
    spoil(saved.path / "adapter_model.safetensors")
    assert saved.problem == flaw


@pytest.mark.parametrize(("name", "flaw"), [("trainer_state.json", "no trainer_state.json"), ("optimizer.pt", "cut")])
def test_a_pipe_is_not_waited_for(name: str, flaw: str, tmp_path: Path) -> None:
    saved = whole(tmp_path, 8)
    endless(saved.path / name)
    assert flaw in str(saved.problem)


def test_the_mark_of_a_checkpoint_at_the_last_moment(tmp_path: Path) -> None:
    saved = whole(tmp_path)
    (saved.path / "checkpoint-is-incomplete.txt").touch()
    assert saved.problem == "its checkpoint-is-incomplete.txt is still there"


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("latest", "no file `latest`"),
        (
            "global_step8/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "the optimizer states of process 1 are missing",
        ),
        ("adapter_model.safetensors", None),  # DeepSpeed loads its own
    ],
)
def test_what_deepspeed_misses(name: str, flaw: str | None, tmp_path: Path) -> None:
    saved = sharded(tmp_path, 3)
    (saved.path / name).unlink()
    assert saved.problem == flaw


def test_a_state_of_one_process_that_is_cut_off(tmp_path: Path) -> None:
    file = next(sharded(tmp_path, 2).path.glob("global_step8/*rank_1*"))
    cut(file)
    assert TrainerCheckpoint(file.parents[1]).problem == f"{file.name} is cut off"


def test_files_of_the_index(tmp_path: Path) -> None:
    saved = whole(tmp_path)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (saved.path / "model.safetensors.index.json").write_text(json.dumps(index))
    (saved.path / "model-00001-of-00002.safetensors").write_bytes(tensors())
    assert saved.problem == "model-00002-of-00002.safetensors is missing"


def test_weights_that_fsdp_has_spread(tmp_path: Path) -> None:
    saved = whole(tmp_path)
    for name in ("adapter_model.safetensors", "optimizer.pt"):
        (saved.path / name).unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        (saved.path / name).mkdir()
    assert (saved.problem, saved.is_adapter, saved.restores_optimizer) == (None, None, True)


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": 3}'])
def test_an_index_that_is_none(text: str, tmp_path: Path) -> None:
    saved = whole(tmp_path)
    (saved.path / "model.safetensors.index.json").write_text(text)
    assert saved.problem == "model.safetensors.index.json is cut off"


def test_the_last_one_is_last_and_what_is_set_aside_is_none(tmp_path: Path) -> None:
    for step in (900, 1000, 20):
        whole(tmp_path, step)
    for name in ("incomplete-checkpoint-2000", "checkpoint-3000.old", "checkpoint-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-4000").touch()
    assert [saved.step for saved in checkpoints_in(tmp_path)] == [20, 900, 1000]
