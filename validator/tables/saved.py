"""Checkpoints of a run as the Trainer writes them: which there are, and what one tells of its run.

Sources: transformers/trainer.py, Trainer._save_checkpoint; deepspeed/runtime/engine.py, save_checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from validator.read import disk
from validator.tables import whole


class Saved:
    """The folder of a checkpoint, read when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def aside(self) -> Path:
        """Where it is set aside; neither the Trainer nor LLaMA-Factory takes it for a checkpoint there."""
        return whole.aside(self.path)

    @cached_property
    def flaw(self) -> str | None:
        """Why it is half-written, in words; None where it is whole."""
        return whole.flaw(self.path)

    @cached_property
    def state(self) -> Mapping[str, Any]:
        """trainer_state.json, which is written last; empty where it cannot be read."""
        return whole.mapping(self.path / whole.STATE)

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        step, name = self.state.get("global_step"), whole.NAME.fullmatch(self.name)
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
        if disk.kind(self.path / "rng_state.pth") == "file":
            return 1
        return len([*disk.matching(self.path, "rng_state_*.pth")]) or None

    @cached_property
    def engine(self) -> bool:
        """Whether it holds states of DeepSpeed."""
        return any(disk.matching(self.path, "global_step*"))

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """File names of the optimizer states of each process under ZeRO; none of stage 0."""
        return tuple(sorted(each.name for each in disk.matching(self.path, "global_step*/*_optim_states.pt")))

    @property
    def splits_weights(self) -> bool:
        """Whether the weights are split, too (stage 3)."""
        return any(disk.matching(self.path, "global_step*/*zero_pp_rank_*_model_states.pt"))

    @property
    def schedules(self) -> bool:
        """Whether optimizer and learning rate go on; the Trainer loads both or neither, without a word."""
        optimizer = self.engine or any(disk.matching(self.path, "optimizer*"))
        return optimizer and disk.kind(self.path / "scheduler.pt") == "file"

    @property
    def adapts(self) -> bool | None:
        """Whether its weights are those of an adapter; None where FSDP has spread them."""
        if any(disk.matching(self.path, "adapter_model.*")):
            return True
        return False if any(disk.kind(self.path / name) == "file" for name in whole.WEIGHTS) else None

    @cached_property
    def adapter(self) -> Mapping[str, Any]:
        """adapter_config.json; empty where it holds no adapter, or that cannot be read."""
        return whole.mapping(self.path / "adapter_config.json")


def checkpoints(folder: Path) -> list[Saved]:
    """Those in a folder, the last one last, whole or not (transformers/trainer_utils.py, get_last_checkpoint); none
    where it cannot be read."""
    named = ((whole.NAME.fullmatch(path.name), path) for path in disk.inside(folder))
    steps = {int(match[1]): path for match, path in named if match and disk.kind(path) == "folder"}
    return [Saved(steps[step]) for step in sorted(steps)]
