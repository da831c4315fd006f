"""The simulator over a grid of models and settings, recorded; and the memory formulas against that record.

python -m benchmarks simulator grid
                                                            run what evidence/simulator/grid.csv lacks (needs torch,
                                                            llamafactory, liger-kernel)
python -m benchmarks simulator grid --compare    error of the closed form by method (needs neither)
"""

from __future__ import annotations

import random
from functools import cache
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import records

from validator.knowledge import architectures as families
from validator.knowledge import composites, tables
from validator.knowledge.families import family_of_type
from validator.physics import (
    Adapter,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Workload,
    estimate_device_memory,
    linear_roles,
    trainable_parameter_count,
)
from validator.physics.workload import Precision

RECORD = records.EVIDENCE / "simulator" / "grid.csv"
QWEN3 = {"qk_norm": True}
QWEN2 = {"qkv_bias": True}
# name: hidden, feed-forward, layers, heads, key/value heads, head width, vocabulary, tied, more about the attention
SHAPES_OF = {
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, 128, 151936, True, QWEN3),
    "qwen3-1.7b": (2048, 6144, 28, 16, 8, 128, 151936, True, QWEN3),
    "qwen3-4b": (2560, 9728, 36, 32, 8, 128, 151936, True, QWEN3),
    "qwen3-8b": (4096, 12288, 36, 32, 8, 128, 151936, False, QWEN3),
    "qwen3-14b": (5120, 17408, 40, 40, 8, 128, 151936, False, QWEN3),
    "qwen3-32b": (5120, 25600, 64, 64, 8, 128, 151936, False, QWEN3),
    "qwen2.5-7b": (3584, 18944, 28, 28, 4, 128, 152064, False, QWEN2),
    "qwen2.5-14b": (5120, 13824, 48, 40, 8, 128, 152064, False, QWEN2),
    "qwen2.5-32b": (5120, 27648, 64, 40, 8, 128, 152064, False, QWEN2),
    "qwen2.5-72b": (8192, 29568, 80, 64, 8, 128, 152064, False, QWEN2),
    "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128, 128256, False, {}),
    "llama-3.1-70b": (8192, 28672, 80, 64, 8, 128, 128256, False, {}),
    "llama-3.2-3b": (3072, 8192, 28, 24, 8, 128, 128256, True, {}),
    "mistral-7b": (4096, 14336, 32, 32, 8, 128, 32768, False, {}),
    "gemma-2-9b": (3584, 14336, 42, 16, 8, 256, 256000, True, {"window": 4096}),
    "qwen3-30b-a3b": (2048, 6144, 48, 32, 4, 128, 151936, False, QWEN3),
}
# Model families with other attention, experts or norms: shapes from the validator's catalogue, and one too new for it.
FAMILIES = [
    "glm-4-9b", "glm-4-9b-0414", "phi-4", "phi-4-mini", "deepseek-v2-lite", "mixtral-8x7b", "gpt-oss-20b",
    "gemma-3-4b", "gemma-3-12b", "mistral-small-24b",
]  # fmt: skip
# Further families of ordinary decoders: norms, biases, halves and dropout of other forms.
DECODERS = [
    "gemma-2b", "gemma-7b", "granite-3-8b", "ernie-4.5-0.3b", "hunyuan-4b", "hunyuan-7b", "seed-oss-36b", "smollm3-3b",
    "olmo-1b", "olmo-7b", "aya-23-8b", "command-r-plus-104b", "starcoder2-3b", "starcoder2-15b", "youtu-llm-2b",
    "bloom-3b", "mobilellm-r1-950m", "falcon-7b", "falcon-11b", "falcon-40b",
]  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 768,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "moe_intermediate_size": 1024, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4, "tie_word_embeddings": False,
}  # fmt: skip
MIXTURES = ("qwen3-30b-a3b", "qwen3.5-35b-a3b", "deepseek-v2-lite", "deepseek-v3-small", "mixtral-8x7b", "gpt-oss-20b")
# Of these a few settings are enough: their parts are those of the families above.
MIXED = [
    "glm-4.5-air", "glm-4.7-flash", "qwen2-57b-a14b", "ernie-4.5-21b-a3b", "hunyuan-a13b", "minimax-m2", "hy3",
    "moonlight-16b-a3b", "deepseek-v3", "glm-4.5", "phi-3.5-moe",
    "llama-4-scout", "llama-4-maverick",
]  # fmt: skip
# Gated delta nets in three layers of four.
ALTERNATING = ["qwen3.5-0.8b", "qwen3.5-4b", "qwen3.5-35b-a3b"]
# How many tokens an expert gets decides their shapes: the recorded cells assume equal shares and are not made anew.
BALANCED = ["granite-3-1b-a400m", "granite-4.0-tiny-preview"]
# Short convolutions in some layers.
CONVOLVED = ["lfm2.5-1.2b"]
# State spaces beside attention.
PARALLEL = ["falcon-h1-0.5b", "falcon-h1-1.5b"]
# A state for each channel and token, with experts in each second layer: slow to simulate.
SCANNED = ["jamba-v0.1"]
# Lightning attention in seven layers of eight, experts in all.
FADING = ["minimax-text-01"]
# Recorded by moe_cells.py: the class of transformers 5 fails.
OLDER = ["dbrx-132b"]
# LoRA has to name the matrices of these.
NAMED_MODELS = ["gpt2", "gpt2-xl"]
MODELS = [
    *SHAPES_OF, *FAMILIES, *DECODERS, "deepseek-v3-small", *MIXED, *ALTERNATING, *CONVOLVED, *PARALLEL, *SCANNED,
    *FADING, *OLDER, *BALANCED, *NAMED_MODELS,
]  # fmt: skip
MOMENTS = ("fwd_pre", "fwd_layers", "fwd_head", "bwd_head", "bwd_layers", "bwd_emb", "opt")
DEFAULTS = {
    "method": "lora", "precision_mode": "bf16", "lora_rank": 8, "lora_targets": "all", "freeze_layers": 2,
    "optimizer": "adamw", "grad_accum": 1, "grad_ckpt": True, "attn": "sdpa",
    "stage": "sft", "padded": False, "liger": False, "additional_target": "",
}  # fmt: skip
LORA = [
    {}, {"lora_rank": 64, "attn": "fa2"}, {"lora_rank": 16, "lora_targets": "qv"}, {"lora_rank": 256},
    {"grad_ckpt": False}, {"grad_ckpt": False, "attn": "eager"}, {"attn": "eager"}, {"grad_accum": 2},
    {"precision_mode": "pure_bf16"}, {"lora_rank": 32, "grad_ckpt": False, "attn": "fa2", "lora_targets": "qv"},
]  # fmt: skip
QLORA = [{}, {"lora_rank": 64, "lora_targets": "qv"}, {"grad_ckpt": False}]
AMP = [
    {}, {"grad_accum": 2}, {"grad_ckpt": False}, {"optimizer": "adamw_8bit"}, {"optimizer": "adafactor"},
    {"optimizer": "adamw_foreach"}, {"attn": "fa2"},
]  # fmt: skip
PURE = [{**setting, "precision_mode": "pure_bf16"} for setting in [*AMP[:-1], {"optimizer": "sgd", "attn": "eager"}]]
FREEZE = [{}, {"freeze_layers": 4, "grad_accum": 2}, {"grad_ckpt": False}]
UNMIXED = [{"precision_mode": "engine", "optimizer": "sgd", "grad_ckpt": ckpt} for ckpt in (True, False)]
RARE_MODELS = ["qwen3-8b", "llama-3.1-8b", "mistral-7b", "gemma-2-9b"]
RARE = [
    {**DEFAULTS, **setting, "method": method}
    for method, settings in {
        "dora": [{}, {"grad_ckpt": False}],
        "oft": [{}, {"grad_ckpt": False}],
        "lora": [*UNMIXED, {"precision_mode": "fp32", "grad_ckpt": False}],
        "full": [{"precision_mode": "fp32"}],
    }.items()
    for setting in settings
]
SETTINGS = [
    {**DEFAULTS, **setting, "method": method}
    for method, settings in {"lora": LORA, "qlora4": QLORA, "full": AMP + PURE, "freeze": FREEZE}.items()
    for setting in settings
]
OFF = {"grad_ckpt": False}
BF16 = {"precision_mode": "pure_bf16"}
FAMILY = [
    {**DEFAULTS, **setting, "method": method}
    for method, settings in {
        "lora": [{}, OFF, {"attn": "eager"}, {**OFF, "attn": "eager"}, {**BF16, "lora_rank": 64, "attn": "fa2"}],
        "qlora4": [{}, OFF],
        "full": [{}, {**OFF, "attn": "fa2"}, BF16, {**BF16, **OFF, "optimizer": "adafactor"}],
        "freeze": [{**BF16, "grad_accum": 2}, OFF],
        "dora": [{}, OFF],
        "oft": [{}],
    }.items()
    for setting in settings
]
FEW = [FAMILY[0], FAMILY[1], FAMILY[4], FAMILY[6], FAMILY[9]]
DECODER = [FAMILY[number] for number in (0, 1, 3, 5, 6, 8, 9, 11, 12)]
LINEAR = [
    {**DEFAULTS, **setting, "method": method}
    for method, setting in [
        ("lora", {}), ("lora", OFF), ("lora", {**BF16, **OFF}), ("qlora4", {}), ("full", BF16), ("full", {}),
        ("freeze", BF16),
    ]
]  # fmt: skip
MATRICES = {"lora_targets": "c_attn,c_fc,c_proj"}
NAMED = [
    {**DEFAULTS, **setting, "method": method}
    for method, setting in [
        ("full", {}), ("full", OFF), ("full", {**BF16, **OFF}), ("full", {**OFF, "attn": "eager"}), ("freeze", OFF),
        ("lora", MATRICES), ("lora", {**MATRICES, **OFF}),
    ]
]  # fmt: skip
SCAN = [LINEAR[number] for number in (0, 1, 3, 4)]
STAGED_MODELS = ["qwen3-4b", "qwen2.5-7b", "mistral-7b", "gemma-2-9b", "llama-3.1-70b"]
STAGED = [
    {**DEFAULTS, **setting, "method": method, "stage": stage}
    for stage, method, setting in [
        ("dpo", "lora", {}), ("dpo", "full", {}), ("dpo", "full", BF16), ("dpo", "freeze", OFF), ("orpo", "lora", OFF),
        ("simpo", "full", BF16), ("kto", "lora", {}), ("kto", "full", BF16), ("rm", "lora", {}), ("rm", "full", {}),
        ("rm", "freeze", BF16),
    ]
]  # fmt: skip
PAIRED = ("rm", "dpo", "orpo", "simpo")
BOTH = "embed_tokens,lm_head"
FURTHER = [
    {**DEFAULTS, **setting, "method": method}
    for method, setting in [
        ("lora", {"padded": True}), ("lora", {"padded": True, **OFF}), ("full", {"padded": True, "attn": "eager"}),
        ("qlora8", {}), ("qlora8", OFF), ("qlora8", {**OFF, **BF16}), ("qlora8", {"lora_targets": "qv", **OFF}),
        ("lora", {"additional_target": BOTH}), ("lora", {"additional_target": BOTH, **BF16}),
        ("qlora4", {"additional_target": "lm_head", "grad_accum": 2}),
    ]
]  # fmt: skip
FUSED = [
    {**DEFAULTS, **setting, "method": method, "liger": True}
    for method, setting in [
        ("lora", {}), ("lora", {**OFF, "attn": "fa2"}), ("qlora4", {}), ("full", {}), ("full", BF16), ("full", OFF),
    ]
]  # fmt: skip
SHAPES = [
    (256, 1), (512, 1), (1024, 1), (2048, 1), (4096, 1), (8192, 1), (16384, 1), (512, 4),
    (1024, 2), (2048, 4), (256, 16), (1024, 8), (4096, 2),
]  # fmt: skip


def refused(model: str, setting: dict[str, Any]) -> bool:
    """Autocast does not reach grouped_mm, which takes no fp32 experts, and DeepSeek's routers read their weights past a
    quantized module: transformers 5.6 cannot train these. It quantizes no layer of Falcon. Fake tensors cannot be
    copied where tables are tied."""
    mixed = setting["method"] in ("full", "freeze") and setting["precision_mode"] == "bf16"
    quantized = setting["method"].startswith("qlora")
    tied = bool(setting["additional_target"]) and architecture(model).tied
    spared = model.startswith("deepseek") or architecture(model).recasts_weights
    return (model in MIXTURES and mixed) or (spared and quantized) or tied


def cells() -> list[dict[str, Any]]:
    """Every model with every setting; lengths and batches take turns. Shuffled: a partial record is a fair sample."""
    chosen = []
    for models, settings, shapes in (
        (list(SHAPES_OF), SETTINGS, SHAPES), (RARE_MODELS, RARE, []),
        ([*FAMILIES, "deepseek-v3-small"], FAMILY, SHAPES[:5]), (DECODERS, DECODER, SHAPES[1:5]),
        (STAGED_MODELS, STAGED, SHAPES[:4]), (STAGED_MODELS, FURTHER, SHAPES[:5]), (STAGED_MODELS, FUSED, SHAPES[1:6]),
        (MIXED, FEW, SHAPES[2:4]), (ALTERNATING, LINEAR, SHAPES[1:3]),
        (CONVOLVED, FAMILY, SHAPES[1:4]), (PARALLEL, LINEAR, SHAPES[1:3]),
        (NAMED_MODELS, NAMED, SHAPES[1:3]),
        (SCANNED, SCAN, [(64, 1)]), (FADING, SCAN, SHAPES[1:3]),
    ):  # fmt: skip
        for m, model in enumerate(models):
            for s, setting in enumerate(settings):
                if refused(model, setting):
                    continue
                length, batch = shapes[(5 * m + s) % len(shapes)] if shapes else SHAPES[1:5][(m + s) % 4]
                chosen.append({"model": model, **_possible(model, setting), "seq_len": length, "micro_batch": batch})
    chosen = [{**cell, "micro_batch": 1} if cell["stage"] == "kto" else cell for cell in chosen]
    random.Random(0).shuffle(chosen)
    return chosen


def _possible(model: str, setting: dict[str, Any]) -> dict[str, Any]:
    """gpt-oss cannot use sdpa, peft takes no adapters on a matrix of Falcon-H1, and Falcon's classes do not take the
    simulator's flash attention."""
    if architecture(model).recasts_weights and setting["attn"] == "fa2":
        return {**setting, "attn": "sdpa"}
    if model in PARALLEL:
        setting = {**setting, "lora_targets": adaptable(model)}
    return {**setting, "attn": "fa2"} if model == "gpt-oss-20b" and setting["attn"] == "sdpa" else setting


def key(row: dict[str, Any]) -> tuple[str, ...]:
    return records.key(row, ("model", *DEFAULTS, "seq_len", "micro_batch"))


def recorded() -> list[dict[str, str]]:
    return records.read(RECORD)


def simulated(cell: dict[str, Any]) -> dict[str, Any]:
    """The simulator's answer; fused kernels stay in the process that asked for them, so these cells get their own."""
    from simulation.simulate import BUILTIN, by_depth

    from validator.simulation.simulation_request import SimulationRequest

    model = BUILTIN[cell["model"]] if cell["model"] in SHAPES_OF else config(cell["model"])
    asked = SimulationRequest(**{**cell, "model": model}, steps=1, warm=True)
    if not cell["liger"]:
        return by_depth(asked)
    with get_context("fork").Pool(1) as pool:
        return pool.apply(by_depth, (asked,))


def simulate_missing() -> None:
    done = {key(row) for row in recorded() if not separate(row)}
    fused = find_spec("liger_kernel") is not None
    for cell in cells():
        if key(cell) not in done and (fused or not cell["liger"]):
            record(cell, simulated(cell))


def record(cell: dict[str, Any], result: dict[str, Any]) -> None:
    """Append a cell and the simulator's answer."""
    moments = result.pop("moments")
    row = {
        **cell,
        "peak_bytes": result["peak_bytes"],
        "peak_at": f"{result['peak_phase'].split('.')[1]} {result['peak_seg']}".strip(),
        "parameters": result["n_params"],
        "trainable": result["n_trainable"],
        **{name: moments.get(name, 0) for name in MOMENTS},
        "weights_gib": result["params_gib"],
        "gradients_total_gib": result["grads_total_gib"],
        "optimizer_total_gib": result["optim_total_gib"],
    }
    records.append({name: row[name] for name in recorded()[0] if name != "versions"}, RECORD)


def separate(row: dict[str, str]) -> bool:
    """Whether the experts of the cell's model are linear modules, as they were before transformers 5."""
    return "transformers==4." in row["versions"]


PRECISIONS: dict[str, Precision] = {"bf16": "amp", "pure_bf16": "pure", "engine": "engine", "fp32": "fp32"}


@cache
def config(model: str) -> dict[str, Any]:
    """config.json of a family's model; of a model that sees, the part that describes its decoder."""
    if model == "deepseek-v3-small":
        return DEEPSEEK_V3
    published = tables.yaml_table("models")[model]["config"]
    if "text_config" not in published:
        return published
    return {name: value for name, value in composites.decoder_config(published).items() if not name.endswith("_config")}


def architecture(model: str) -> Architecture:
    if model not in SHAPES_OF:
        return families.read_architecture(config(model))
    hidden, width, layers, heads, kv_heads, head_dim, vocab, tied, more = SHAPES_OF[model]
    ffn = FeedForwardShape(width)
    if model == "qwen3-30b-a3b":
        ffn = FeedForwardShape(width, experts=128, experts_per_token=8, expert_width=768)
    gemma = model.startswith("gemma")
    return Architecture(
        hidden, layers, vocab, AttentionShape(heads, kv_heads, head_dim, **more), ffn, tied,
        norms_per_layer=4 if gemma else 2, norm="rms_fp32" if gemma else "rms", logit_softcap=gemma,
    )  # fmt: skip


def adaptable(model: str) -> str:
    """What LoRA should name in this model."""
    return family_of_type(config(model)["model_type"]).targets


def _targets(row: dict[str, str], fused: bool) -> tuple[str, ...]:
    """Roles of the adapted modules: all, queries and values, or those that the cell names."""
    if row["lora_targets"] == "all":
        return linear_roles(architecture(row["model"]), fused)
    if row["lora_targets"] == "qv":
        return ("q", "v")
    roles = family_of_type(config(row["model"])["model_type"]).roles
    return tuple(role for name in row["lora_targets"].split(",") for role in roles[name])


def _always_fused(model: str) -> bool:
    """Whether the experts were one tensor with each release."""
    kind = None if model in SHAPES_OF else family_of_type(config(model)["model_type"])
    return kind is not None and kind.fused_experts is not None and not kind.separate


def workload(row: dict[str, str]) -> Workload:
    """The recorded cell as the formulas see it: one device, no evaluation."""
    fused = not separate(row) or _always_fused(row["model"])
    targets = _targets(row, fused)
    stage, adapted = row["stage"], row["method"] in ("qlora4", "qlora8", "dora", "lora", "oft")
    saved = row["additional_target"]
    return Workload(
        method="lora" if row["method"] in ("qlora4", "qlora8", "dora") else row["method"],  # type: ignore[arg-type]
        precision=PRECISIONS[row["precision_mode"]],
        base_bytes=4.0 if row["precision_mode"] == "fp32" else 2.0,
        experts="grouped" if fused else "separate",
        quant_bits={"qlora4": 4, "qlora8": 8}.get(row["method"], 0),
        adapter=Adapter(
            int(row["lora_rank"]),
            targets,
            dora=row["method"] == "dora",
            full_embedding="embed" in saved,
            full_head="head" in saved,
        ),
        trainable_layers=int(row["freeze_layers"]),
        optimizer=row["optimizer"],
        micro_batch=int(row["micro_batch"]),
        length=int(row["seq_len"]),
        accumulation=int(row["grad_accum"]),
        checkpointing="layer" if row["grad_ckpt"] == "True" else "off",
        attention={"fa2": "flash", "sdpa": "sdpa", "eager": "eager"}[row["attn"]],  # type: ignore[arg-type]
        pads_batches=row["padded"] == "True",
        fused_kernels=row["liger"] == "True",
        loss="fused" if row["liger"] == "True" and stage == "sft" else "upcast",
        sequences_per_sample=2 if stage in PAIRED else 1,
        needs_full_logits=stage not in ("sft", "rm"),
        value_head=stage == "rm",
        reference_logits=stage in ("dpo", "kto"),
        reference_copies=int(stage in ("dpo", "kto") and not adapted),
        estimates_kl=stage == "kto",
    )


def group(row: dict[str, str]) -> str:
    more = [row["stage"].replace("sft", ""), "padded" if row["padded"] == "True" else ""]
    more += ["liger" if row["liger"] == "True" else "", "whole modules" if row["additional_target"] else ""]
    words = [row["method"], row["precision_mode"], *more, "" if row["grad_ckpt"] == "True" else "no checkpoints"]
    return " ".join(word for word in words if word)


def errors() -> dict[str, list[tuple[float, dict[str, str]]]]:
    """Signed relative error of the predicted peak, by method."""
    found: dict[str, list[tuple[float, dict[str, str]]]] = {}
    for row in recorded():
        model, work = architecture(row["model"]), workload(row)
        predicted = estimate_device_memory(model, work).allocated
        if work.precision == "engine":  # the simulator has no engine, so none of its fp32 master weights
            predicted -= 4 * trainable_parameter_count(model, work)
        found.setdefault(group(row), []).append((predicted / float(row["peak_bytes"]) - 1, row))
    return found


def compare() -> None:
    print(f"{'':34}{'cells':>6}{'median':>9}{'p90':>9}{'worst':>9}")
    groups = errors()
    for name, found in [*sorted(groups.items()), ("all", [pair for pairs in groups.values() for pair in pairs])]:
        median, p90, worst = records.spread(error for error, _ in found)
        print(f"{name:34}{len(found):6}{median:9.2%}{p90:9.2%}{worst:9.2%}")


def recorded_figures() -> dict[str, float]:
    """Cells, and the error of the predicted peaks in per cent."""
    found = [error for pairs in errors().values() for error, _ in pairs]
    median, _, worst = records.spread(found)
    return {
        "grid_cells": len(found), "grid_median": round(100 * median, 2), "grid_worst": round(100 * abs(worst), 1)
    }  # fmt: skip


def main() -> None:
    records.simulate(__doc__, simulate_missing, compare)
