"""FSDP and how it shards weights, gradients and optimizer states, as set by the recipe's own keys or by the accelerate
file that the recipe's header block names; and the settings that `accelerate launch` reads from that file. Sources:
accelerate/commands/config/config_args.py, commands/launch.py, utils/launch.py and utils/dataclasses.py."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from validator.errors import RecipeError
from validator.knowledge.releases import ReleaseRange
from validator.physics import FSDP_FULL_SHARD, FSDP_SHARD_GRAD_OP, Sharding
from validator.recipe.safe_read import read_yaml


class Fsdp(NamedTuple):
    """FSDP's settings for a run. `resharded`: layers free their gathered weights after the forward pass. `hybrid`:
    states are sharded within a node and replicated across nodes. `lazy`: each process keeps the weights in main memory
    until they are sharded; otherwise every device loads the whole model. `gathers`: a save collects all weights in one
    process. `recomputes`: FSDP itself checkpoints activations."""

    version: int = 1
    shards: bool = True
    resharded: bool = True
    hybrid: bool = False
    offload: bool = False
    lazy: bool = False
    gathers: bool = False
    recomputes: bool = False


def fsdp_of_words(words: tuple[str, ...]) -> Fsdp:
    """Return the FSDP settings that the recipe's own `fsdp` key gives. `words`: the words of that key, such as
    full_shard and auto_wrap. Every device loads the whole model, because the Trainer sets ACCELERATE_USE_FSDP only
    after loading (patcher.py, device_map; transformers/integrations/fsdp.py); only `accelerate launch` sets the
    variable before. Without auto_wrap FSDP treats the whole model as one unit."""
    return Fsdp(
        shards="no_shard" not in words,
        resharded="auto_wrap" in words and not {"shard_grad_op", "hybrid_shard_zero2"} & set(words),
        hybrid=any(word.startswith("hybrid_shard") for word in words),
        offload="offload" in words,
    )


def host_copies(fsdp: Fsdp, devices: int, quantized: bool, releases: ReleaseRange) -> int:
    """Return how many processes of a node keep the whole model in main memory until FSDP shards it; 0 if every device
    loads the whole model instead. `devices`: devices per node. `quantized`: the model is quantized while it loads.

    Unquantized, every process of the node keeps the model, not only the first: the other processes allocate zeros of
    the same size, which LLaMA-Factory raises to fp32 if they are trained (transformers,
    modeling_utils._move_missing_keys_from_meta_to_device; model/adapter.py; seen in a run of two processes).

    A model that is quantized while it loads goes whole to every device with transformers 5.0 and later, at least up to
    5.6: LLaMA-Factory names no device_map under FSDP, so the quantizer takes the current device
    (quantizer_bnb_4bit.update_device_map), and nothing moves the weights back
    (core_model_loading.convert_and_load_state_dict_in_model). transformers 4.55 to 4.57 moves each quantized weight to
    the main memory of the node's first process, and drops it in every other process
    (modeling_utils._load_state_dict_into_meta_model). Seen in two processes of 4.57.6 and 5.6.0."""
    if not fsdp.lazy:
        return 0
    if quantized:
        return 0 if releases.requires(since="transformers 5.0.0") else 1
    return devices


def fsdp_sharding(fsdp: Fsdp, nodes: int, devices: int, copies: int) -> Sharding:
    """Return how FSDP shards and offloads states. `copies`: processes per node that keep the whole model in main memory
    while it loads (`host_copies`)."""
    if not fsdp.shards:
        return Sharding(nodes, devices)
    return Sharding(
        nodes,
        devices,
        FSDP_FULL_SHARD if fsdp.resharded else FSDP_SHARD_GRAD_OP,
        sharded_load=copies > 0,
        full_model_ranks=max(copies, 1),
        upcasts_frozen_weights=fsdp.version == 2,
        offload_optimizer=fsdp.offload,
        offload_parameters=fsdp.offload,
        pin_memory=False,
        gather_on_save=fsdp.gathers,
        replicated_across_nodes=fsdp.hybrid,
    )


FSDP_PREFIX = "fsdp_"
FSDP_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


class AccelerateFile(NamedTuple):
    """A configuration file of `accelerate launch`. `problem`: why the file could not be read; `config` is then
    empty."""

    path: str
    config: Mapping[str, Any] = MappingProxyType({})
    problem: str | None = None

    @property
    def kind(self) -> str:
        """The file's `distributed_type`: FSDP, MULTI_GPU, MULTI_NPU, DEEPSPEED, NO …"""
        return str(self.config.get("distributed_type", ""))

    @property
    def is_judged(self) -> bool:
        """True if memory can be predicted for this kind of file, because the states that each process holds are known:
        FSDP shards them, or each process has a whole copy (MULTI_GPU, MULTI_NPU)."""
        return self.kind in ("FSDP", "MULTI_GPU", "MULTI_NPU")

    @property
    def half(self) -> Literal["bf16", "fp16"] | None:
        """The 16-bit format of the file's `mixed_precision`, which counts if the recipe sets neither bf16 nor fp16
        (transformers, training_args.py). None if the file sets no such format."""
        formats: dict[str, Literal["bf16", "fp16"]] = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16"}
        return formats.get(str(self.config.get("mixed_precision")).lower())

    @property
    def written(self) -> Mapping[str, str]:
        """The spelling of each FSDP setting in the file, by the setting's full name. The file may leave out the prefix
        `fsdp_`."""
        block = self.config.get("fsdp_config")
        names = [str(name) for name in block] if isinstance(block, Mapping) else []
        return {name if name.startswith("fsdp") else FSDP_PREFIX + name: name for name in names}

    def setting(self, name: str) -> Any:
        """Return the value of an FSDP setting. `name`: the full name, with `fsdp_`. None if the file leaves the setting
        out."""
        block = self.config.get("fsdp_config")
        return block.get(self.written.get(name)) if isinstance(block, Mapping) else None

    def on(self, name: str, default: bool = False) -> bool:
        """True if the FSDP setting with this full name is on, read as accelerate reads a string (utils/environment.py,
        str_to_bool). Return `default` if the file leaves the setting out."""
        value = self.setting(name)
        return default if value is None else str(value).lower() in ("y", "yes", "t", "true", "on", "1")

    @property
    def version(self) -> int:
        """FSDP's version, 1 or 2; 1 if the file does not name a version."""
        return 2 if str(self.setting("fsdp_version")) == "2" else 1

    @property
    def strategy(self) -> str:
        """The name of FSDP1's sharding strategy. The file may give the strategy's number instead of its name; the
        default is FULL_SHARD."""
        value = str(self.setting("fsdp_sharding_strategy") or FSDP_STRATEGIES[0]).upper()
        return FSDP_STRATEGIES[int(value) - 1] if value in ("1", "2", "3", "4", "5") else value

    @property
    def whole_states(self) -> bool:
        """True if a save collects all weights in one state dict. FSDP2 leaves the weights sharded unless the file sets
        FULL_STATE_DICT."""
        value = self.setting("fsdp_state_dict_type") or ("FULL_STATE_DICT" if self.version == 1 else "")
        return str(value).upper() in ("FULL_STATE_DICT", "1")

    @property
    def fsdp(self) -> Fsdp | None:
        """The FSDP settings of the accelerate config file; None if its `distributed_type` is not FSDP. Wrapping by size
        (SIZE_BASED_WRAP) counts as no wrapping."""
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


def read_accelerate(path: str) -> AccelerateFile:
    """Return the accelerate file at `path`. Never raises: `problem` of the result says what is wrong."""
    try:
        config = read_yaml(path)
    except RecipeError as err:
        return AccelerateFile(path, problem=str(err))
    if not isinstance(config, dict):
        return AccelerateFile(path, problem="is not a mapping; write `key: value` lines")
    return AccelerateFile(path, config)
