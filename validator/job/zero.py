"""The DeepSpeed side of a recipe: read its JSON file, and say how it spreads states."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from validator.diagnostic import RecipeError
from validator.job.values import quantity
from validator.memory import Sharding
from validator.read.tree import parse_json, read_json

# Micro batches of a step, the first and the last, whose gradients ZeRO-2 keeps where the optimizer lies in host memory
# (rule PAR023).
KEPT_OFFLOADED = 2
_STAGES = (0, 1, 2, 3)


class Zero(NamedTuple):
    """A DeepSpeed configuration. `path` is None for one inside the recipe; `problem` says why `config` is empty;
    `assumed`: the file is not there, and its name tells what it most likely holds; `missing`: nor does its name."""

    config: Mapping[str, Any] = MappingProxyType({})
    path: str | None = None
    problem: str | None = None
    assumed: bool = False
    missing: bool = False

    @property
    def words(self) -> str:
        """What it makes of the run, for a message."""
        kept = {"offload_optimizer": "optimizer", "offload_param": "weights"}
        offloaded = " and ".join(word for name, word in kept.items() if self.offload(name))
        return f"ZeRO-{self.stage}{f' with {offloaded} offloaded' if offloaded else ''}"

    @property
    def block(self) -> Mapping[str, Any]:
        block = self.config.get("zero_optimization")
        return block if isinstance(block, Mapping) else {}

    @property
    def stage(self) -> int:
        """As pydantic reads it: "3" and 3.0 are 3. What DeepSpeed refuses (PAR103) counts as 0. For "auto" accelerate
        writes its default, 2 (utils/dataclasses.py, DeepSpeedPlugin)."""
        value = self.block.get("stage", 0)
        if value == "auto":
            return 2
        if isinstance(value, str) and value.isdecimal():
            value = float(value)
        number = None if isinstance(value, bool) else quantity(value)
        return int(number) if number in _STAGES else 0

    def value(self, path: str) -> Any:
        """What stands at a dotted path of the configuration; None where nothing does."""
        value: Any = self.config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def offload(self, name: str) -> bool:
        """Whether `offload_optimizer` or `offload_param` names a device."""
        return self._offload_block(name).get("device", "none") in ("cpu", "nvme")

    @property
    def offloads(self) -> bool:
        """Whether any state is kept in main memory or on NVMe."""
        return self.offload("offload_optimizer") or self.offload("offload_param")

    @property
    def nvme(self) -> bool:
        """Whether any state is kept on NVMe."""
        return "nvme" in [self._offload_block(name).get("device") for name in ("offload_optimizer", "offload_param")]

    @property
    def steps_on_cpu(self) -> bool:
        """Whether accelerate hands the optimizer's work to one of DeepSpeed's CPU optimizers, whatever `optim` names
        (accelerate, accelerator.py, _prepare_deepspeed)."""
        forced = self.config.get("zero_force_ds_cpu_optimizer", True) is not False
        return self.stage > 0 and self.offload("offload_optimizer") and "optimizer" not in self.config and forced

    def pinned(self) -> bool:
        """Whether any offloaded state is page-locked."""
        return any(self._offload_block(n).get("pin_memory") is True for n in ("offload_optimizer", "offload_param"))

    def _offload_block(self, name: str) -> Mapping[str, Any]:
        block = self.block.get(name)
        return block if isinstance(block, Mapping) else {}


def read(value: Any, path: str | None) -> Zero:
    """The configuration that `deepspeed:` names: a mapping, a JSON text, or the file at `path`.

    Never raises: `problem` says what is wrong."""
    if isinstance(value, Mapping):
        return Zero(_named(value))
    try:
        config = parse_json(value) if isinstance(value, str) and value.startswith("{") else read_json(str(path))
    except RecipeError as err:
        return Zero(path=path, problem=str(err) if path else f"the JSON text {err}")
    if not isinstance(config, dict):
        return Zero(path=path, problem=f"`{path}` is not a JSON object")
    return Zero(config, path)


def _named(value: Any) -> Any:
    """A value in the recipe with texts for keys, which YAML need not have, and JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _named(inner) for key, inner in value.items()}
    return [_named(each) for each in value] if isinstance(value, list) else value


def sharding(zero: Zero, nodes: int, devices: int, hidden: int) -> Sharding:
    """How states are spread. `hidden` resolves "auto" sizes as transformers does for stage 3
    (integrations/deepspeed.py, trainer_config_finalize): hidden^2, 0.9 hidden^2 and 10 hidden elements."""
    stage, block = zero.stage, zero.block

    def size(name: str, default: int, auto: int) -> int:
        value = block.get(name, default)
        if value == "auto":
            return auto if stage == 3 else default
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18
        return int(value) if usable else default

    return Sharding(
        nodes=nodes,
        devices_per_node=devices,
        stage=stage,
        engine=True,
        offload_optimizer=zero.offload("offload_optimizer"),
        offload_parameters=stage == 3 and zero.offload("offload_param"),
        pin_memory=zero.pinned(),
        reduce_bucket=size("reduce_bucket_size", 500_000_000, hidden * hidden),
        allgather_bucket=size("allgather_bucket_size", 500_000_000, 500_000_000),
        prefetch_bucket=size("stage3_prefetch_bucket_size", 50_000_000, int(0.9 * hidden * hidden)),
        persistence_threshold=size("stage3_param_persistence_threshold", 100_000, 10 * hidden),
        max_live_parameters=size("stage3_max_live_parameters", 1_000_000_000, 1_000_000_000),
        max_reuse_distance=size("stage3_max_reuse_distance", 1_000_000_000, 1_000_000_000),
        sub_group=size("sub_group_size", 1_000_000_000, 1_000_000_000),
        overlap=bool(block.get("overlap_comm", stage == 3)),
        contiguous_gradients=bool(block.get("contiguous_gradients", True)),
        gather_on_save=block.get("stage3_gather_16bit_weights_on_model_save") is True,
    )
