"""Runs whose model is split or kept by something for which there are no formulas of memory."""

from __future__ import annotations

from pathlib import Path

from validator.knowledge import tables
from validator.knowledge.node_environment import is_env_enabled
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.recipe_arguments import Arguments


def find_other_engine(args: Arguments, deepspeed: DeepSpeedConfig | None, sharded: bool, recipe: str) -> str:
    """Return, as text for a message, what splits or keeps the model of a run so that its memory is not judged; an empty
    string if nothing does. `sharded`: True if the recipe itself names a DeepSpeed file, FSDP or an Accelerate file.
    `recipe`: its path."""
    strangers = tables.yaml_table("strangers") if any("parallel" in str(key) for key in args.values) else {}
    if is_env_enabled("USE_MCA") or any("engine" in strangers.get(key, {}) for key in args.values):
        return "Megatron (mcore_adapter) is not judged"
    if args.flag("use_kt"):
        return "KTransformers is not judged"
    if deepspeed and (deepspeed.value("tensor_parallel.autotp_size") or 1) != 1:
        return "tensor parallelism is not judged"
    if "fsdp" in Path(recipe).stem.lower() and not sharded:
        return "named after FSDP, and no `# accelerate: FILE` says how"
    return ""
