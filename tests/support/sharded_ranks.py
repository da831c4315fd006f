"""A training of two optimizer steps by four CPU processes, each for two devices of a node, on a small Llama. The first
process prints as JSON the bytes that it holds of weights, and those that its collectives carried in the second step,
by number of processes.

    torchrun --nproc_per_node 4 sharded_ranks.py hpz|hsdp full|lora
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

SHAPES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
ACCUMULATION, LENGTH = 2, 32
carried: Counter[str] = Counter()


# Collectives of torch, some under the names of several releases: what they do, and where the whole tensor stands in a
# call.
COLLECTIVES = [
    ("all_gather_into_tensor", "gathered", 0, "output_tensor"), ("all_gather_single", "gathered", 0, "output"),
    ("all_gather", "gathered", 0, "tensor_list"), ("reduce_scatter_tensor", "scattered", 1, "input"),
    ("reduce_scatter_single", "scattered", 1, "input"), ("all_reduce", "reduced", 0, "tensor"),
]  # fmt: skip


def count(name: str, kind: str, position: int, keyword: str) -> None:
    """Have a collective of torch add the bytes of its whole tensor to `carried`, by the number of its processes."""
    real = getattr(dist, name)

    def counted(*args: Any, **options: Any) -> Any:
        whole = args[position] if len(args) > position else options[keyword]
        parts = whole if isinstance(whole, list) else [whole]
        size = sum(each.numel() * each.element_size() for each in parts)
        carried[f"{kind} {dist.get_world_size(options.get('group'))}"] += size
        return real(*args, **options)

    setattr(dist, name, counted)


def adapted(model: Any, method: str) -> Any:
    if method == "full":
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))


def base_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPES)).to(torch.bfloat16)


def train_hpz(method: str) -> dict[str, Any]:
    from transformers.integrations import HfDeepSpeedConfig

    import deepspeed

    zero = {
        "stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0,
    }  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": ACCUMULATION, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True, "zero_optimization": zero,
    }  # fmt: skip
    deepspeed.init_distributed("gloo")
    kept = HfDeepSpeedConfig(config)  # as long as it lives, transformers partitions what it loads
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = base_model()
    model = adapted(model, method)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    del kept
    held = 0
    for _ in range(2):
        carried.clear()
        for _ in range(ACCUMULATION):
            ids = torch.randint(0, SHAPES["vocab_size"], (1, LENGTH))
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            parts = [p for each in model.parameters() for p in (each.ds_tensor, each.ds_secondary_tensor)]
            held = max(held, sum(part.numel() * part.element_size() for part in parts if part is not None))
            engine.step()
    return {"weights": held, "carried": carried}


def train_hsdp(method: str) -> dict[str, Any]:
    from peft.utils.other import fsdp_auto_wrap_policy
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    dist.init_process_group("gloo")
    nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank, half = dist.get_rank(), torch.bfloat16
    os.environ["FSDP_TRANSFORMER_CLS_TO_WRAP"] = "LlamaDecoderLayer"
    whole = adapted(base_model(), method).float()
    model = FullyShardedDataParallel(
        whole, (nodes[rank // 2], across[rank % 2]), ShardingStrategy.HYBRID_SHARD,
        auto_wrap_policy=fsdp_auto_wrap_policy(whole),  # type: ignore[no-untyped-call]
        mixed_precision=MixedPrecision(half, half, half),
        use_orig_params=True, device_id=torch.device("cpu"),
    )  # fmt: skip
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    for _ in range(2):
        carried.clear()
        for micro_batch in range(ACCUMULATION):
            is_last = micro_batch == ACCUMULATION - 1
            ids = torch.randint(0, SHAPES["vocab_size"], (1, LENGTH))
            with nullcontext() if is_last else model.no_sync(), torch.autocast("cpu", half):
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": sum(each.numel() * each.element_size() for each in model.parameters()), "carried": carried}


if __name__ == "__main__":
    for collective in COLLECTIVES:
        if hasattr(dist, collective[0]):
            count(*collective)
    found = {"hpz": train_hpz, "hsdp": train_hsdp}[sys.argv[1]](sys.argv[2])
    if os.environ["RANK"] == "0":
        sys.stdout.write(f"found {json.dumps(found)}\n")
