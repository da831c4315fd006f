"""Predicts what a training run needs: bytes by term on a device, on a node and on disk, and seconds by term of a step
and of a whole run.

The inputs are the shapes of a model (`Architecture`), how it is trained (`Workload`) and what a device does in a
second (`DeviceRates`). The results are bands: low, expected, high. This room knows no recipe key, no file and no
product."""

from validator.physics.activation_checkpointing import layers_kept_whole
from validator.physics.architecture import (
    Architecture,
    AttentionShape,
    CountedLayers,
    FeedForwardShape,
    LayerKind,
    Tower,
)
from validator.physics.device_memory import DeviceRuntime, estimate_device_memory, resident_bytes
from validator.physics.estimate import Band, Estimate, TimeTerm
from validator.physics.host_memory import disk_usage, estimate_host_memory
from validator.physics.parameters import linear_roles, parameter_count, trainable_parameter_count
from validator.physics.rates import DeviceRates
from validator.physics.run_time import RunCounts, RunPart, RunTime, estimate_run_time
from validator.physics.step_time import StepTime, estimate_step_time
from validator.physics.workload import (
    BF16_OPTIMIZER,
    DDP,
    FSDP_FULL_SHARD,
    FSDP_SHARD_GRAD_OP,
    ZERO_0,
    ZERO_1,
    ZERO_2,
    ZERO_3,
    ZERO_STAGES,
    Adapter,
    Sharding,
    ShardingStrategy,
    TowerWorkload,
    Workload,
)

__all__ = [
    "BF16_OPTIMIZER",
    "DDP",
    "FSDP_FULL_SHARD",
    "FSDP_SHARD_GRAD_OP",
    "ZERO_0",
    "ZERO_1",
    "ZERO_2",
    "ZERO_3",
    "ZERO_STAGES",
    "Adapter",
    "Architecture",
    "AttentionShape",
    "Band",
    "CountedLayers",
    "DeviceRates",
    "DeviceRuntime",
    "Estimate",
    "FeedForwardShape",
    "LayerKind",
    "RunCounts",
    "RunPart",
    "RunTime",
    "Sharding",
    "ShardingStrategy",
    "StepTime",
    "TimeTerm",
    "Tower",
    "TowerWorkload",
    "Workload",
    "disk_usage",
    "estimate_device_memory",
    "estimate_host_memory",
    "estimate_run_time",
    "estimate_step_time",
    "layers_kept_whole",
    "linear_roles",
    "parameter_count",
    "resident_bytes",
    "trainable_parameter_count",
]
