#!/usr/bin/env python3
"""Peak-memory ground truth for one-GPU LLM fine-tuning, computed without a GPU: the command of validator/simulate.

python -m benchmarks simulator simulate --model qwen3-8b --method lora --seq-len 2048 --by-depth
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from simulation.caching_allocator import LargestMoment, largest_moment, reserved_bytes

from validator.simulation import fake_training_step as runs
from validator.simulation import worker
from validator.simulation.model_layers import shallow_copies
from validator.simulation.simulation_request import SIMULATED_OPTIMIZERS, SimulationRequest

GIB = 1 << 30
METHODS = ("full", "freeze", "lora", "qlora4", "qlora8", "dora", "oft")
PRECISIONS = ("bf16", "pure_bf16", "engine", "fp32")
ATTENTIONS = ("sdpa", "fa2", "eager")
STAGES = ("sft", "rm", "dpo", "orpo", "simpo", "kto")


def _cfg(model_type, hidden, width, layers, heads, kv_heads, vocab, tied, **more):
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        **more,
    }


_Q3 = {"head_dim": 128, "max_position_embeddings": 40960, "sliding_window": None}
_Q25 = {"max_position_embeddings": 32768, "sliding_window": 131072}
_L3 = {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
BUILTIN = {
    "qwen3-0.6b": _cfg("qwen3", 1024, 3072, 28, 16, 8, 151936, True, **_Q3),
    "qwen3-1.7b": _cfg("qwen3", 2048, 6144, 28, 16, 8, 151936, True, **_Q3),
    "qwen3-4b": _cfg("qwen3", 2560, 9728, 36, 32, 8, 151936, True, **_Q3),
    "qwen3-8b": _cfg("qwen3", 4096, 12288, 36, 32, 8, 151936, False, **_Q3),
    "qwen3-14b": _cfg("qwen3", 5120, 17408, 40, 40, 8, 151936, False, **_Q3),
    "qwen3-32b": _cfg("qwen3", 5120, 25600, 64, 64, 8, 151936, False, **_Q3),
    "qwen2.5-7b": _cfg("qwen2", 3584, 18944, 28, 28, 4, 152064, False, **_Q25),
    "qwen2.5-14b": _cfg("qwen2", 5120, 13824, 48, 40, 8, 152064, False, **_Q25),
    "qwen2.5-32b": _cfg("qwen2", 5120, 27648, 64, 40, 8, 152064, False, **_Q25),
    "qwen2.5-72b": _cfg("qwen2", 8192, 29568, 80, 64, 8, 152064, False, **_Q25),
    "llama-3.1-8b": _cfg("llama", 4096, 14336, 32, 32, 8, 128256, False, **_L3),
    "llama-3.1-70b": _cfg("llama", 8192, 28672, 80, 64, 8, 128256, False, **_L3),
    "llama-3.2-3b": _cfg("llama", 3072, 8192, 28, 24, 8, 128256, True, head_dim=128, **_L3),
    "mistral-7b": _cfg("mistral", 4096, 14336, 32, 32, 8, 32768, False, max_position_embeddings=32768,
        sliding_window=None),
    "gemma-2-9b": _cfg("gemma2", 3584, 14336, 42, 16, 8, 256000, True, head_dim=256,
        max_position_embeddings=8192, sliding_window=4096, query_pre_attn_scalar=256,
        hidden_activation="gelu_pytorch_tanh"),
    "qwen3-30b-a3b": _cfg("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, False, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True, max_position_embeddings=40960),
    # Qwen (1) 7B / 1.8B / 14B expressed in the llama class (same shapes; the original has qkv bias):
    "qwen1-1.8b": _cfg("qwen2", 2048, 5504, 24, 16, 16, 151936, False, max_position_embeddings=32768),
    "qwen1-7b": _cfg("qwen2", 4096, 11008, 32, 32, 32, 151936, False, max_position_embeddings=32768),
    "qwen1-14b": _cfg("qwen2", 5120, 13696, 40, 40, 40, 152064, False, max_position_embeddings=32768),
    # small models for verification by a real CPU run
    "tiny-100m": _cfg("qwen3", 512, 1536, 12, 8, 4, 32000, False, head_dim=64, max_position_embeddings=4096),
    "tiny-200m-llama": _cfg("llama", 768, 2048, 12, 12, 4, 64000, False, max_position_embeddings=4096),
    "tiny-smallvocab": _cfg("qwen3", 512, 1536, 6, 8, 4, 1024, False, head_dim=64,
        max_position_embeddings=4096),
    "tiny-100m-qwen2": _cfg("qwen2", 640, 1792, 10, 10, 2, 48000, True, max_position_embeddings=4096),
}  # fmt: skip


def gib(size: float) -> float:
    return round(size / GIB, 4)


def categories(sizes: dict[str, int], gradients: int, states: int) -> dict[str, float]:
    """GiB at the peak by category, and all gradients and optimizer states whenever they live."""
    kept = ("param", "grad", "optim")
    return {
        "params_gib": gib(sizes.get("param", 0)),
        "grads_gib": gib(sizes.get("grad", 0)),
        "optim_gib": gib(sizes.get("optim", 0)),
        "activations_gib": gib(sum(size for name, size in sizes.items() if name not in kept)),
        "logits_gib": gib(sizes.get("logits", 0)),
        "weight_cast_gib": gib(sizes.get("weight_cast", 0)),
        "workspace_gib": gib(sizes.get("workspace", 0)),
        "grads_total_gib": gib(gradients),
        "optim_total_gib": gib(states),
    }


def whole(cell: SimulationRequest, real: bool = False) -> tuple[dict[str, Any], LargestMoment]:
    """The peak of all layers."""
    run = runs.follow_steps(cell, real)
    peak = largest_moment(run.tracker)
    sizes: Counter[str] = Counter()
    for birth in peak.alive:
        sizes[birth.category] += birth.size
    answer = {
        "peak_bytes": peak.size,
        "peak_gib": gib(peak.size),
        **categories(sizes, run.gradients, run.states),
        "reserved_gib": gib(reserved_bytes(run.tracker)),
        "peak_phase": peak.last.phase,
        "peak_op": peak.last.operator,
        "n_params": run.parameters,
        "n_trainable": run.trainable,
    }
    return answer, peak


def by_depth(cell: SimulationRequest) -> dict[str, Any]:
    """The same peak from two shallow copies of the model."""
    to = shallow_copies(worker.model_shape(cell).kinds, cell.freeze_layers if cell.method == "freeze" else 0)
    result = worker.extrapolate(cell, to) if to else worker.simulate_all_layers(cell)
    part = result.highest
    peak = result.parts[part]
    return {
        "peak_bytes": peak.size,
        "peak_gib": gib(peak.size),
        **categories(peak.categories, result.gradients, result.states),
        "peak_phase": part[0],
        "peak_seg": part[1],
        "peak_op": peak.operator,
        "n_params": result.parameters,
        "n_trainable": result.trainable,
        "moments": {name: moment.size for name, moment in result.moments().items()},
    }


def largest(peak: LargestMoment, number: int) -> list[str]:
    """The largest groups of tensors at the peak, a line each."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for birth in peak.alive:
        shape = "" if birth.category in ("param", "grad", "optim") else birth.shape
        groups.setdefault((birth.category, birth.operator, shape, birth.dtype), []).append(birth.size)
    ordered = sorted(groups.items(), key=lambda pair: -sum(pair[1]))[:number]
    return [
        f"{sum(sizes) / GIB:8.3f} GiB {len(sizes):5}x {category:8} {operator:22} {dtype:10} {shape}"
        for (category, operator, shape, dtype), sizes in ordered
    ]


def arguments() -> argparse.Namespace:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="qwen3-0.6b", help="built-in name, or a config.json path")
    ap.add_argument("--method", default="lora", choices=METHODS)
    ap.add_argument("--lora-rank", type=int, default=8)
    ap.add_argument("--lora-targets", default="all")
    ap.add_argument("--precision-mode", default="bf16", choices=PRECISIONS)
    ap.add_argument("--seq-len", type=int, default=1024)
    ap.add_argument("--micro-batch", type=int, default=1)
    ap.add_argument("--no-grad-ckpt", dest="grad_ckpt", action="store_false")
    ap.add_argument("--attn", default="sdpa", choices=ATTENTIONS)
    ap.add_argument("--optimizer", default="adamw", choices=SIMULATED_OPTIMIZERS)
    ap.add_argument("--grad-accum", type=int, default=1, help="2 stands for any value above 1")
    ap.add_argument("--freeze-layers", type=int, default=2)
    ap.add_argument("--stage", default="sft", choices=STAGES)
    ap.add_argument("--padded", action="store_true", help="batches hold padding")
    ap.add_argument("--liger", action="store_true", help="fused kernels and loss; needs liger-kernel and triton")
    ap.add_argument("--additional-target", default="", help="modules trained in full beside the adapter")
    ap.add_argument("--top", type=int, default=12, help="list the largest live groups at the peak")
    ap.add_argument("--by-depth", action="store_true", help="from two shallow copies of the model (fast)")
    ap.add_argument("--real", action="store_true", help="run on the CPU for real (small models only)")
    return ap.parse_args()


def main() -> None:
    options = vars(arguments())
    real, top, shallow = options.pop("real"), options.pop("top"), options.pop("by_depth")
    name = options.pop("model")
    model = json.loads(Path(name).read_text(encoding="utf-8")) if name.endswith(".json") else BUILTIN[name]
    started, lines = time.time(), []
    if shallow:
        answer = by_depth(SimulationRequest(model, **options, steps=1, warm=True))
    else:
        answer, peak = whole(SimulationRequest(model, **options), real)
        lines = largest(peak, top)
    print(json.dumps({**answer, "seconds": round(time.time() - started, 1)}, indent=1))
    for line in lines:
        print(line)
