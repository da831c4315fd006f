"""The accelerate side of a recipe: read the file that its header block names, and say how `accelerate launch` runs it.

Sources: accelerate/commands/config/config_args.py, commands/launch.py, utils/launch.py and utils/dataclasses.py."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from validator.diagnostic import RecipeError
from validator.job.fsdp import Fsdp
from validator.read.tree import read_yaml

PREFIX = "fsdp_"
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


class Accelerate(NamedTuple):
    """An accelerate file. `problem` says why `config` is empty."""

    path: str
    config: Mapping[str, Any] = MappingProxyType({})
    problem: str | None = None

    @property
    def kind(self) -> str:
        """What runs the processes: FSDP, MULTI_GPU, MULTI_NPU, DEEPSPEED, NO …"""
        return str(self.config.get("distributed_type", ""))

    @property
    def judged(self) -> bool:
        """Whether it is known what the processes then hold: sharded by FSDP, or each the whole."""
        return self.kind in ("FSDP", "MULTI_GPU", "MULTI_NPU")

    @property
    def half(self) -> Literal["bf16", "fp16"] | None:
        """The format of mixed precision where the recipe names none (transformers, training_args.py)."""
        formats: dict[str, Literal["bf16", "fp16"]] = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16"}
        return formats.get(str(self.config.get("mixed_precision")).lower())

    @property
    def written(self) -> Mapping[str, str]:
        """The names under which the settings of FSDP are written, by their full ones: the prefix may be left out."""
        block = self.config.get("fsdp_config")
        names = [str(name) for name in block] if isinstance(block, Mapping) else []
        return {name if name.startswith("fsdp") else PREFIX + name: name for name in names}

    def setting(self, name: str) -> Any:
        """A setting of FSDP by its full name; None where it is left out."""
        block = self.config.get("fsdp_config")
        return block.get(self.written.get(name)) if isinstance(block, Mapping) else None

    def on(self, name: str, default: bool = False) -> bool:
        """Whether a switch of FSDP is on, as accelerate reads its text (utils/environment.py, str_to_bool)."""
        value = self.setting(name)
        return default if value is None else str(value).lower() in ("y", "yes", "t", "true", "on", "1")

    @property
    def version(self) -> int:
        """Of FSDP; 1 where the file does not say."""
        return 2 if str(self.setting("fsdp_version")) == "2" else 1

    @property
    def strategy(self) -> str:
        """The kind of sharding of FSDP1, which may be given by its number."""
        value = str(self.setting("fsdp_sharding_strategy") or STRATEGIES[0]).upper()
        return STRATEGIES[int(value) - 1] if value in ("1", "2", "3", "4", "5") else value

    @property
    def whole_states(self) -> bool:
        """Whether a save collects all weights; FSDP2 leaves them in pieces unless it is asked."""
        value = self.setting("fsdp_state_dict_type") or ("FULL_STATE_DICT" if self.version == 1 else "")
        return str(value).upper() in ("FULL_STATE_DICT", "1")

    @property
    def fsdp(self) -> Fsdp | None:
        """FSDP as the file asks for it; None where it is of another kind. Wrapping by size is counted as none."""
        if self.kind != "FSDP":
            return None
        wraps = str(self.setting("fsdp_auto_wrap_policy")).upper() == "TRANSFORMER_BASED_WRAP"
        first, strategy = self.version == 1, self.strategy
        dropped = strategy in ("FULL_SHARD", "HYBRID_SHARD") if first else self.on("fsdp_reshard_after_forward", True)
        return Fsdp(
            version=self.version,
            shards=not (first and strategy == "NO_SHARD"),
            resharded=wraps and dropped,
            hybrid=first and strategy.startswith("HYBRID"),
            offload=self.on("fsdp_offload_params"),
            lazy=self.on("fsdp_cpu_ram_efficient_loading", True),
            gathers=self.whole_states,
            recomputes=self.on("fsdp_activation_checkpointing"),
        )


def read(path: str) -> Accelerate:
    """The file at `path`. Never raises: `problem` says what is wrong."""
    try:
        config = read_yaml(path)
    except RecipeError as err:
        return Accelerate(path, problem=str(err))
    if not isinstance(config, dict):
        return Accelerate(path, problem="is not a mapping; write `key: value` lines")
    return Accelerate(path, config)
