"""FSDP, whether the recipe's own keys ask for it or an accelerate file, and how it spreads states."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.memory import Sharding
from validator.tables import releases


class Fsdp(NamedTuple):
    """How FSDP spreads a run. `resharded`: layers give their gathered weights back after the forward pass. `lazy`: each
    process keeps the weights in main memory until they are spread; else they go to every device whole. `gathers`: a
    save collects all weights in one process. `recomputes`: it checkpoints activations itself."""

    version: int = 1
    shards: bool = True
    resharded: bool = True
    hybrid: bool = False
    offload: bool = False
    lazy: bool = False
    gathers: bool = False
    recomputes: bool = False


def by_words(words: tuple[str, ...]) -> Fsdp:
    """FSDP by the recipe's own `fsdp`. ACCELERATE_USE_FSDP is set when the trainer is made, after loading, so the whole
    model has gone to every device (patcher.py, device_map; transformers/integrations/fsdp.py): only `accelerate
    launch` sets it before. Without auto_wrap the whole model is one unit."""
    return Fsdp(
        shards="no_shard" not in words,
        resharded="auto_wrap" in words and not {"shard_grad_op", "hybrid_shard_zero2"} & set(words),
        hybrid=any(word.startswith("hybrid_shard") for word in words),
        offload="offload" in words,
    )


def copies(fsdp: Fsdp, devices: int, quantized: bool, header: Mapping[str, Any]) -> int:
    """How many processes of a node keep the whole model in main memory until it is spread; 0 where all devices do.

    Each does, not the first alone: the others make zeros of the same size, which LLaMA-Factory raises to fp32 where
    they are trained (transformers, modeling_utils._move_missing_keys_from_meta_to_device; model/adapter.py; seen
    in a run of two processes).

    A model that is quantized while it loads goes to every device whole from transformers 5.0 on, at least to 5.6:
    LLaMA-Factory names no device_map under FSDP, so the quantizer takes the current device
    (quantizer_bnb_4bit.update_device_map), and nothing moves the weights back
    (core_model_loading.convert_and_load_state_dict_in_model). transformers 4.55 to 4.57 moves each weight, once it is
    quantized, to the main memory of the node's first process, and drops it in every other one
    (modeling_utils._load_state_dict_into_meta_model). Seen in two processes of 4.57.6 and 5.6.0."""
    if not fsdp.lazy:
        return 0
    if quantized:
        return 0 if releases.holds(header, since="transformers 5.0.0") else 1
    return devices


def sharding(fsdp: Fsdp, nodes: int, devices: int, copies: int) -> Sharding:
    """How states are spread. Hybrid sharding is that of one node, on each."""
    if not fsdp.shards:
        return Sharding(nodes, devices)
    return Sharding(
        1 if fsdp.hybrid else nodes,
        devices,
        stage=3 if fsdp.resharded else 2,
        fsdp=True,
        sharded_load=copies > 0,
        loaders=max(copies, 1),
        raised=fsdp.version == 2,
        offload_optimizer=fsdp.offload,
        offload_parameters=fsdp.offload,
        pin_memory=False,
        gather_on_save=fsdp.gathers,
    )
