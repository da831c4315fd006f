"""DeepSpeed configurations, and how they shard weights, gradients and optimizer states. If the file that a recipe names
does not exist, the configuration is guessed from the file's name; failing that, the run is judged under each of
LLaMA-Factory's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.finding import Verdict
from validator.knowledge.releases import ReleaseRange
from validator.physics import BF16_OPTIMIZER, ZERO_STAGES, Sharding
from validator.physics.workload import ShardingStrategy
from validator.recipe.safe_read import parse_json, read_json
from validator.run.recipe_arguments import finite_number

# Micro batches of a step, the first and the last, whose gradients ZeRO-2 keeps where the optimizer lies in host memory
# (rule PAR023).
MICRO_BATCHES_KEPT_OFFLOADED = 2
_ZERO_STAGES = (0, 1, 2, 3)


class DeepSpeedConfig(NamedTuple):
    """A DeepSpeed configuration. `path`: its file; None if the configuration stands in the recipe. `problem`: why the
    file could not be read; `config` is then empty. `is_assumed`: the file does not exist, and `config` is guessed from
    its name. `is_missing`: the file does not exist, and its name gives no ZeRO stage."""

    config: Mapping[str, Any] = MappingProxyType({})
    path: str | None = None
    problem: str | None = None
    is_assumed: bool = False
    is_missing: bool = False

    @property
    def words(self) -> str:
        """The ZeRO stage and what is offloaded, for a message, such as "ZeRO-3 with optimizer offloaded"."""
        kept = {"offload_optimizer": "optimizer", "offload_param": "weights"}
        offloaded = " and ".join(word for name, word in kept.items() if self.offload(name))
        return f"ZeRO-{self.stage}{f' with {offloaded} offloaded' if offloaded else ''}"

    @property
    def block(self) -> Mapping[str, Any]:
        block = self.config.get("zero_optimization")
        return block if isinstance(block, Mapping) else {}

    @property
    def stage(self) -> int:
        """The ZeRO stage as pydantic reads the value: "3" and 3.0 are 3. A value that DeepSpeed refuses (PAR103) counts
        as 0. "auto" counts as 2, the default that accelerate fills in (utils/dataclasses.py, DeepSpeedPlugin)."""
        value = self.block.get("stage", 0)
        if value == "auto":
            return 2
        if isinstance(value, str) and value.isdecimal():
            value = float(value)
        number = None if isinstance(value, bool) else finite_number(value)
        return int(number) if number in _ZERO_STAGES else 0

    def value(self, path: str) -> Any:
        """Return the value at a dotted path of the configuration; None if there is no such path."""
        value: Any = self.config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def offload(self, name: str) -> bool:
        """True if the block `name` (`offload_optimizer` or `offload_param`) names a device, cpu or nvme."""
        return self._offload_block(name).get("device", "none") in ("cpu", "nvme")

    @property
    def offloads(self) -> bool:
        """True if optimizer states or parameters are kept in main memory or on NVMe."""
        return self.offload("offload_optimizer") or self.offload("offload_param")

    @property
    def nvme(self) -> bool:
        """True if optimizer states or parameters are kept on NVMe."""
        return "nvme" in [self._offload_block(name).get("device") for name in ("offload_optimizer", "offload_param")]

    @property
    def steps_on_cpu(self) -> bool:
        """True if accelerate replaces the optimizer that `optim` names by one of DeepSpeed's CPU optimizers
        (accelerate, accelerator.py, _prepare_deepspeed)."""
        forced = self.config.get("zero_force_ds_cpu_optimizer", True) is not False
        return self.stage > 0 and self.offload("offload_optimizer") and "optimizer" not in self.config and forced

    def pinned(self) -> bool:
        """True if the optimizer states or parameters that are offloaded are in page-locked memory."""
        return any(self._offload_block(n).get("pin_memory") is True for n in ("offload_optimizer", "offload_param"))

    def _offload_block(self, name: str) -> Mapping[str, Any]:
        block = self.block.get(name)
        return block if isinstance(block, Mapping) else {}


def read_deepspeed(value: Any, path: str | None) -> DeepSpeedConfig:
    """Return the configuration that the recipe's `deepspeed` key gives: `value` itself if it is a mapping or a JSON
    text, else the file at `path`. Never raises: `problem` of the result says what is wrong."""
    if isinstance(value, Mapping):
        return DeepSpeedConfig(_with_text_keys(value))
    try:
        config = parse_json(value) if isinstance(value, str) and value.startswith("{") else read_json(str(path))
    except RecipeError as err:
        return DeepSpeedConfig(path=path, problem=str(err) if path else f"the JSON text {err}")
    if not isinstance(config, dict):
        return DeepSpeedConfig(path=path, problem=f"`{path}` is not a JSON object")
    return DeepSpeedConfig(config, path)


def _with_text_keys(value: Any) -> Any:
    """Return a value of the recipe with every mapping key turned into text, at all depths. YAML allows keys of other
    types, JSON does not."""
    if isinstance(value, Mapping):
        return {str(key): _with_text_keys(inner) for key, inner in value.items()}
    return [_with_text_keys(each) for each in value] if isinstance(value, list) else value


# First release that sums gradients of bf16 in bf16 in stage 0, for which every device has all states. Up to the second
# it takes the same optimizer even if they shall be summed in fp32, as two names for a wrapper are alike
# (runtime/constants.py, DDP_BFLOAT16 and BFLOAT16).
STAGE_0_UNSHARDED_SINCE = "deepspeed 0.17.6"
_STAGE_0_ALWAYS_UNSHARDED_UNTIL = "deepspeed 0.18.5"
# Number formats by their names in DeepSpeed (runtime/config.py, DtypeEnum).
DTYPE_OF_WORD = {
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
}


def accumulation_dtype(zero: DeepSpeedConfig, compute_dtype: str | None, releases: ReleaseRange) -> str:
    """Return the number format in which the engine sums gradients: `data_types.grad_accum_dtype`, or else that of the
    model. In stage 0 with bf16 it was fp32 up to 0.17.5 (deepspeed, runtime/engine.py, get_data_types).
    `compute_dtype`: bf16, fp16, or None for fp32. Of several releases that differ, the one counts that needs more
    memory."""
    stated = zero.value("data_types.grad_accum_dtype")
    if stated is not None:
        return DTYPE_OF_WORD.get(str(stated), str(stated))
    was_fp32 = zero.stage == 0 and compute_dtype == "bf16" and not releases.requires(since=STAGE_0_UNSHARDED_SINCE)
    return "fp32" if was_fp32 else compute_dtype or "fp32"


def sharding_strategy(zero: DeepSpeedConfig, compute_dtype: str | None, releases: ReleaseRange) -> ShardingStrategy:
    """Return how the engine shards states: by its ZeRO stage, or by BF16_Optimizer, which spreads fp32 weights and
    moments over all devices. The engine takes that in stage 0 if gradients of a bf16 model are summed in fp32
    (deepspeed, runtime/engine.py, _do_optimizer_sanity_check)."""
    in_fp32 = compute_dtype == "bf16" and accumulation_dtype(zero, compute_dtype, releases) == "fp32"
    unsharded = releases.requires(STAGE_0_UNSHARDED_SINCE, _STAGE_0_ALWAYS_UNSHARDED_UNTIL)
    return BF16_OPTIMIZER if zero.stage == 0 and in_fp32 and not unsharded else ZERO_STAGES[zero.stage]


GATHERS_ON_SAVE = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")


def deepspeed_sharding(
    zero: DeepSpeedConfig, nodes: int, devices: int, hidden: int, strategy: ShardingStrategy | None = None
) -> Sharding:
    """Return how a DeepSpeed configuration shards and offloads states. `devices`: devices per node. `strategy`: None
    for that of the ZeRO stage. `hidden`: the model's hidden size, from which transformers computes "auto" sizes in
    stage 3: hidden^2, 0.9 hidden^2 and 10 hidden elements (integrations/deepspeed.py, trainer_config_finalize).
    DeepSpeed also takes the names without `stage3_` (runtime/zero/config.py)."""
    stage, block = zero.stage, zero.block

    def size(name: str, default: int, auto: int) -> int:
        value = block.get(name, block.get(name.removeprefix("stage3_"), default))
        if value == "auto":
            return auto if stage == 3 else default
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18
        return int(value) if usable else default

    copy_devices = min(size("zero_hpz_partition_size", 1, 1), nodes * devices) if stage == 3 else 1
    return Sharding(
        nodes=nodes,
        devices_per_node=devices,
        strategy=strategy or ZERO_STAGES[stage],
        offload_optimizer=zero.offload("offload_optimizer"),
        offload_parameters=stage == 3 and zero.offload("offload_param"),
        pin_memory=zero.pinned(),
        reduce_bucket=size("reduce_bucket_size", 500_000_000, hidden * hidden),
        allgather_bucket=size("allgather_bucket_size", 500_000_000, 500_000_000),
        prefetch_bucket=size("stage3_prefetch_bucket_size", 50_000_000, int(0.9 * hidden * hidden)),
        persistence_threshold=size("stage3_param_persistence_threshold", 100_000, 10 * hidden),
        max_live_parameters=size("stage3_max_live_parameters", 1_000_000_000, 1_000_000_000),
        max_reuse_distance=size("stage3_max_reuse_distance", 1_000_000_000, 1_000_000_000),
        sub_group_size=size("sub_group_size", 1_000_000_000, 1_000_000_000),
        overlap_comm=bool(block.get("overlap_comm", stage == 3)),
        contiguous_gradients=bool(block.get("contiguous_gradients", True)),
        gather_on_save=any(block.get(name) is True for name in GATHERS_ON_SAVE),
        second_copy_devices=copy_devices if copy_devices > 1 else 0,
        weights_sent_in_8_bits=stage == 3 and block.get("zero_quantized_weights") is True,
        gradients_sent_in_4_bits=stage == 3 and block.get("zero_quantized_gradients") is True,
    )


_STAGE_IN_NAME = re.compile(r"(?:zero|stage|(?<![a-z])z)[-_]?(?:stage[-_]?)?([0-3])(?!\d)")
_OFFLOADS_OPTIMIZER_ALONE = re.compile(r"offload[-_]?optim")
# What LLaMA-Factory's own files hold beside the stage (examples/deepspeed/).
_COMMON_KEYS = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
           "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
           "zero_allow_untested_optimizer": True}  # fmt: skip
_BUCKET_KEYS = {"overlap_comm": False, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000}
_STAGE_3_KEYS = {"overlap_comm": False, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True}  # fmt: skip
_OFFLOAD_TO_CPU = {"device": "cpu", "pin_memory": True}
_STOCK_FILES = ("ds_z0.json", "ds_z2.json", "ds_z2_offload.json", "ds_z3.json", "ds_z3_offload.json")


class DeepSpeedOutcome(NamedTuple):
    """The memory verdict (fits, tight, exceeds) of a run under the DeepSpeed configuration `zero`. `high_bytes`: the
    upper end of the memory estimate for a device."""

    zero: DeepSpeedConfig
    verdict: Verdict
    high_bytes: float


class DeepSpeedAlternatives(NamedTuple):
    """The memory verdicts (fits, tight, exceeds) of a run under each of LLaMA-Factory's own DeepSpeed files."""

    outcomes: tuple[DeepSpeedOutcome, ...]

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        """The verdict for each file; the keys name the file's ZeRO stage and offload, such as "ZeRO-2 with optimizer
        offloaded"."""
        return {each.zero.words: each.verdict for each in self.outcomes}

    @property
    def agreed(self) -> DeepSpeedConfig | None:
        """The DeepSpeed configuration by which the run can be judged although the recipe's own file does not exist. If
        device memory suffices under every configuration, the configuration that needs most memory; if it suffices under
        none, the one that needs least. None if device memory suffices only under some."""
        verdicts = {each.verdict for each in self.outcomes}
        if "exceeds" in verdicts and len(verdicts) > 1:
            return None
        choose = min if verdicts == {"exceeds"} else max
        return choose(self.outcomes, key=lambda each: (each.verdict == "tight", each.high_bytes)).zero


def stock_deepspeed() -> tuple[DeepSpeedConfig, ...]:
    """Return LLaMA-Factory's own DeepSpeed configurations: ZeRO 0, 2 and 3, and ZeRO 2 and 3 with offload. Files that
    shard states in the same way are represented by one of them."""
    return tuple(config for name in _STOCK_FILES if (config := deepspeed_by_file_name(name)))


def deepspeed_by_file_name(path: str) -> DeepSpeedConfig | None:
    """Return the configuration that a file of this name most likely holds: LLaMA-Factory's own configuration for the
    ZeRO stage in the name, with offload if the name contains "offload". In stage 3 offload includes the parameters
    unless the name says `offload_optimizer`. None if the name contains no stage, or several."""
    name = Path(path.replace("\\", "/")).name.lower()
    stages = {int(stage) for stage in _STAGE_IN_NAME.findall(name)}
    if len(stages) != 1:
        return None
    (stage,) = stages
    auto_keys = _STAGE_3_KEYS if stage == 3 else _BUCKET_KEYS
    return DeepSpeedConfig(
        {**_COMMON_KEYS, "zero_optimization": {"stage": stage, **auto_keys, **_offload_keys(name, stage)}},
        is_assumed=True,
    )


def _offload_keys(name: str, stage: int) -> Mapping[str, Any]:
    if "offload" not in name or re.search(r"no[-_]?offload", name) or stage < 2:
        return {}
    if stage == 2 or _OFFLOADS_OPTIMIZER_ALONE.search(name):
        return {"offload_optimizer": _OFFLOAD_TO_CPU}
    return {"offload_optimizer": _OFFLOAD_TO_CPU, "offload_param": _OFFLOAD_TO_CPU}
