"""Checkpoints of a run as the Trainer writes them: which there are, whether one is whole, and what it tells of its run.

Sources: transformers/trainer.py, Trainer._save_checkpoint; deepspeed/runtime/engine.py, save_checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.read.tree import read_json

# A checkpoint that is set aside begins with this: what begins with `checkpoint-` takes a place of `save_total_limit`,
# whatever follows (transformers/trainer_utils.py, sort_checkpoints).
_ASIDE = "incomplete-"
_NAME = re.compile(r"checkpoint-(\d+)")
# What a checkpoint taken at SIGTERM holds until it is written (transformers/trainer_jit_checkpoint.py).
_SENTINEL = "checkpoint-is-incomplete.txt"
_STATE = "trainer_state.json"
_INDEX = "model.safetensors.index.json"
# extras/constants.py, CHECKPOINT_NAMES
WEIGHTS = (
    "adapter_model.safetensors", "adapter_model.bin", "model.safetensors", _INDEX, "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # fmt: skip


class Saved:
    """The folder of a checkpoint, read when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def aside(self) -> str:
        """The name under which neither the Trainer nor LLaMA-Factory takes it for a checkpoint."""
        return f"{_ASIDE}{self.name}"

    @cached_property
    def flaw(self) -> str | None:
        """Why it is half-written, in words; None where it is whole."""
        try:
            return next(_flaws(self), None)
        except OSError as err:
            return f"cannot be read: {(err.strerror or str(err)).lower()}"

    @cached_property
    def state(self) -> Mapping[str, Any]:
        """trainer_state.json, which is written last; empty where it cannot be read."""
        return _mapping(self.path / _STATE)

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        step, name = self.state.get("global_step"), _NAME.fullmatch(self.name)
        return step if isinstance(step, int) else int(name[1]) if name else 0

    @property
    def per_epoch(self) -> int | None:
        """Optimizer steps of an epoch; `epoch` counts micro batches, of which the last step may have fewer."""
        epoch = self.state.get("epoch")
        if not isinstance(epoch, (int, float)) or not epoch > 0 or not self.step:
            return None
        return math.ceil(self.step / epoch - 1e-6)

    @cached_property
    def processes(self) -> int | None:
        """How many wrote it, by their random numbers; None where those are not kept, as with `save_only_model`."""
        if (self.path / "rng_state.pth").is_file():
            return 1
        return len([*self.path.glob("rng_state_*.pth")]) or None

    @cached_property
    def engine(self) -> bool:
        """Whether it holds states of DeepSpeed."""
        return any(self.path.glob("global_step*"))

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """File names of the optimizer states of each process under ZeRO; none of stage 0."""
        return tuple(sorted(each.name for each in self.path.glob("global_step*/*_optim_states.pt")))

    @property
    def splits_weights(self) -> bool:
        """Whether the weights are split, too (stage 3)."""
        return any(self.path.glob("global_step*/*zero_pp_rank_*_model_states.pt"))

    @property
    def schedules(self) -> bool:
        """Whether optimizer and learning rate go on; the Trainer loads both or neither, without a word."""
        optimizer = self.engine or any(self.path.glob("optimizer*"))
        return optimizer and (self.path / "scheduler.pt").is_file()

    @property
    def adapts(self) -> bool | None:
        """Whether its weights are those of an adapter; None where FSDP has spread them."""
        if any(self.path.glob("adapter_model.*")):
            return True
        return False if any((self.path / name).is_file() for name in WEIGHTS) else None

    @cached_property
    def adapter(self) -> Mapping[str, Any]:
        """adapter_config.json; empty where it holds no adapter, or that cannot be read."""
        return _mapping(self.path / "adapter_config.json")


def checkpoints(folder: Path) -> list[Saved]:
    """Those in a folder, the last one last, whole or not (transformers/trainer_utils.py, get_last_checkpoint); none
    where it cannot be read."""
    try:
        inside = [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []
    steps = {int(match[1]): path for path in inside if (match := _NAME.fullmatch(path.name))}
    return [Saved(steps[step]) for step in sorted(steps)]


def _mapping(file: Path) -> Mapping[str, Any]:
    """What a JSON file holds; nothing where it cannot be read."""
    try:
        content = read_json(str(file)) if file.is_file() else {}
    except RecipeError:
        return {}
    return content if isinstance(content, dict) else {}


def _flaws(saved: Saved) -> Iterator[str]:
    folder = saved.path
    if (folder / _SENTINEL).exists():
        yield f"its {_SENTINEL} is still there"
    if not saved.state:
        yield f"no {_STATE}" if not (folder / _STATE).is_file() else f"{_STATE} is cut off"
    yield from _weights(folder, saved.engine)
    for file in (*folder.glob("optimizer.*"), *folder.glob("global_step*/*.pt")):
        if not _ended(file):
            yield f"{file.name} is cut off"
    if saved.engine:
        yield from _shards(saved)


def _weights(folder: Path, engine: bool) -> Iterator[str]:
    """The index says which files there are, the head of each how long it is. DeepSpeed loads its own states."""
    sharded = any(folder.glob("*model*_0/")) or any(folder.glob("*/adapter_model.*"))  # by FSDP, or several adapters
    if not (engine or sharded or any((folder / name).is_file() for name in WEIGHTS)):
        yield "no weights"
    if (folder / _INDEX).is_file():
        files = _mapping(folder / _INDEX).get("weight_map")
        if not isinstance(files, dict):
            yield f"{_INDEX} is cut off"
        else:
            yield from (f"{name} is missing" for name in map(str, files.values()) if not (folder / name).is_file())
    for file in folder.glob("*.safetensors"):
        if file.stat().st_size < _length(file):
            yield f"{file.name} is cut off"


def _ended(file: Path) -> bool:
    """Whether a file of torch.save, which is a ZIP archive, has its last record."""
    if file.stat().st_size < 22:
        return False
    with file.open("rb") as content:
        content.seek(-22, os.SEEK_END)
        return content.read(4) == b"PK\x05\x06"


def _length(file: Path) -> int:
    """Bytes that a safetensors file has by its own head: eight bytes of the head's length, the head, the tensors."""
    with file.open("rb") as content:
        told = int.from_bytes(content.read(8), "little")
        head = content.read(told) if told < file.stat().st_size else b""
    try:
        tensors = json.loads(head)
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
        return 8 + len(head) + int(max(ends, default=0))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return file.stat().st_size + 1


def _shards(saved: Saved) -> Iterator[str]:
    """`latest` is written when all processes are done. On disks of their own nodes have some of the files each."""
    if not (saved.path / "latest").is_file():
        yield "no file `latest`"
    ranks = sorted(int(match[1]) for name in saved.shards if (match := re.search(r"_pp_rank_(\d+)_", name)))
    for before, after in pairwise(ranks):
        if after > before + 1:
            yield f"the optimizer states of process {before + 1} are missing"
