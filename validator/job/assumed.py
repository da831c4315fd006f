"""A DeepSpeed file that is not there: by what its name says, as most are called for their stage and for offload, else
by what each of LLaMA-Factory's own would make of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from validator.diagnostic import Verdict
from validator.job.zero import Zero

_STAGE = re.compile(r"(?:zero|stage|(?<![a-z])z)[-_]?(?:stage[-_]?)?([0-3])(?!\d)")
_OPTIMIZER_ALONE = re.compile(r"offload[-_]?optim")
# What LLaMA-Factory's own files hold beside the stage (examples/deepspeed/).
_COMMON = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
           "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
           "zero_allow_untested_optimizer": True}  # fmt: skip
_BUCKETS = {"overlap_comm": False, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000}
_SHARDED = {"overlap_comm": False, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True}  # fmt: skip
_CPU = {"device": "cpu", "pin_memory": True}
_FILES = ("ds_z0.json", "ds_z2.json", "ds_z2_offload.json", "ds_z3.json", "ds_z3_offload.json")


class Outcome(NamedTuple):
    """What a configuration makes of a run: the verdict, and the most bytes that a device may need."""

    zero: Zero
    verdict: Verdict
    most: float


class Unread(NamedTuple):
    """What each of LLaMA-Factory's own files makes of a run."""

    outcomes: tuple[Outcome, ...]

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        """By what each file does."""
        return {each.zero.words: each.verdict for each in self.outcomes}

    @property
    def agreed(self) -> Zero | None:
        """The configuration that stands for all: which needs most where none exceeds, or least where all do; None where
        some exceed."""
        told = {each.verdict for each in self.outcomes}
        if "exceeds" in told and len(told) > 1:
            return None
        choose = min if told == {"exceeds"} else max
        return choose(self.outcomes, key=lambda each: (each.verdict == "tight", each.most)).zero


def own() -> tuple[Zero, ...]:
    """LLaMA-Factory's own configurations that shard in different ways."""
    return tuple(there for name in _FILES if (there := by_name(name)))


def by_name(path: str) -> Zero | None:
    """The configuration that a file of this name most likely holds: LLaMA-Factory's of that stage, with offload where
    the name has the word, in stage 3 of the parameters, too, unless it says `offload_optimizer`. None where the name
    tells no stage, or several."""
    name = Path(path.replace("\\", "/")).name.lower()
    told = {int(stage) for stage in _STAGE.findall(name)}
    if len(told) != 1:
        return None
    (stage,) = told
    own = _SHARDED if stage == 3 else _BUCKETS
    return Zero({**_COMMON, "zero_optimization": {"stage": stage, **own, **_offload(name, stage)}}, assumed=True)


def _offload(name: str, stage: int) -> Mapping[str, Any]:
    if "offload" not in name or re.search(r"no[-_]?offload", name) or stage < 2:
        return {}
    if stage == 2 or _OPTIMIZER_ALONE.search(name):
        return {"offload_optimizer": _CPU}
    return {"offload_optimizer": _CPU, "offload_param": _CPU}
