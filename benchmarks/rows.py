"""Published measurements -> workloads of the memory model, each as it really ran.

A row of evidence/published.csv becomes a `Row` or is skipped with a reason. What a source's software did and its rows
do not say (loss path, precision of the states, optimizer kernel) is stated once, in `STACKS`.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from validator.knowledge import families
from validator.knowledge.architectures import read_architecture
from validator.physics import (
    DDP,
    FSDP_FULL_SHARD,
    ZERO_3,
    ZERO_STAGES,
    Adapter,
    Architecture,
    Sharding,
    ShardingStrategy,
    Workload,
)
from validator.physics.workload import AttentionImplementation, LossKind, Method, Precision

EVIDENCE = Path(__file__).parent / "evidence"
DATA = Path(__file__).parents[1] / "validator" / "data"
GIB = 2**30
Kind = Literal["exact", "bound", "oom", "host"]


@dataclass(frozen=True)
class Stack:
    """The software of one source, by the prefix of its row ids."""

    title: str
    loss: LossKind = "upcast"
    full: Precision = "pure"  # how full fine-tuning keeps its states; bf16 weights loaded as such stay bf16
    adapter: Precision = "amp"  # "pure": no autocast, adapters in fp32; "engine": adapters in half precision too
    gigabyte: int = GIB  # what the source's "GB" means, or what its unstated unit is taken for
    full_length: bool = False  # batches reach the cutoff although the rows say that they are not packed
    bins: bool = False  # packs are filled up to the cutoff, not to it: their lengths differ
    untied: bool = False  # the head is a parameter of its own even where the model ties it
    dropout: bool = False  # adapters train with dropout
    fused_kernels: bool = False  # what its rows call liger is more than the loss: norms and activations, too
    peer: bool = True  # transformers, peft, accelerate, DeepSpeed: the software LLaMA-Factory trains with


STACKS: Mapping[str, Stack] = {
    "fms": Stack("fms packed (transformers 4.45/4.48)", loss="shifted", adapter="pure", dropout=True),
    "fmsorca": Stack("fms short samples (transformers 4.44)", loss="shifted", dropout=True),
    "swifttuner": Stack("ms-swift 1.x tuners", loss="shifted", dropout=True, full_length=True, bins=True),
    "swiftex": Stack("ms-swift examples", dropout=True, bins=True, fused_kernels=True),
    "peftmm": Stack("peft method comparison (transformers 5.13)"),
    "peftreadme": Stack("peft README", loss="shifted"),
    "peftdocs": Stack("peft docs, Llama-2-70B", loss="shifted", dropout=True),
    "philsch": Stack("fsdp-qlora blog, Llama-3-70B", loss="shifted"),
    "badam": Stack("BAdam paper, 24 GB card", loss="shifted", gigabyte=10**9),
    "axo": Stack("axolotl READMEs", loss="fused"),
    "lithub": Stack(
        "litgpt config hub", adapter="engine", gigabyte=10**9, full_length=True, untied=True, dropout=True, peer=False
    ),
}
WHOLE_SOURCES = {
    "titan": "torchtitan: selective checkpointing, float8 or context parallelism",
    "minicpmv": "vision tower",
    "glm4": "length and batch not published",
    "chatglmet": "length not published",
    "lomo": "sum of profiled components over tensor parallel devices, not a peak",
    "torchao": "length and batch not published",
    "dsex": "synthetic model, shapes not published",
    "unsloth": "length and batch not published",
    "llmem": "batch not published",
    "ktrans": "batch not published",
    "peftissue": "ZeRO-3 did not take effect",
}
ROLES = {
    "q": "q", "q_proj": "q", "query": "q", "k": "k", "k_proj": "k", "key": "k", "v": "v", "v_proj": "v", "value": "v",
    "o": "o", "o_proj": "o", "projection": "o", "gate": "gate", "gate_proj": "gate", "up": "up", "up_proj": "up",
    "down": "down", "down_proj": "down",
}  # fmt: skip
ALL = ("q", "k", "v", "o", "gate", "up", "down")
FUSED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}
OPTIMIZERS = {
    "adamw_torch": "adamw_foreach", "adamw": "adamw_foreach", "unknown": "adamw_foreach", "adamw_torch_fused": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "adamw_torch_8bit": "adamw_8bit",
    "lora-fa": "adamw_foreach", "muon": "muon", "sgd": "sgd",
}  # fmt: skip
CARDS = {
    "A100-80GB": "a100-80g", "A100-40GB": "a100-40g", "A10G-24GB": "a10-24g", "L40S-48GB": "l40s-48g",
    "H100-80GB": "h100-80g", "RTX3090-24GB": "rtx-3090", "RTX4090-24GB": "rtx-4090", "T4-16GB": "t4-16g",
    "V100-32GB": "v100-32g", "V100-16GB": "v100-16g", "H200-141GB": "h200-141g", "H20": "h20-96g",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement beside the workload that produced it. `measured` is bytes; None: it ran out of memory."""

    id: str
    source: str
    method: str
    kind: Kind
    metric: str
    measured: float | None
    model: Architecture
    workload: Workload
    limit: float | None = None  # bytes that the device of the row can give, where it is known
    peer: bool = True
    expandable: bool = False  # the caching allocator ran with expandable segments
    facts: Mapping[str, str] = field(default_factory=dict, compare=False)


class Skip(Exception):  # noqa: N818
    """A row that cannot be a workload; the message is the reason."""


@cache
def configs() -> dict[str, Mapping[str, object]]:
    """Published config.json facts by hub name: the catalogue, then evidence/models.yaml."""
    known: dict[str, Mapping[str, object]] = {}
    for entry in yaml.load((DATA / "models.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader).values():
        for name in entry["hub"]:
            known[name] = entry["config"] | entry.get("overrides", {}).get(name, {})
    for entry in yaml.load((EVIDENCE / "models.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader):
        shape = known[entry["like"]] if "like" in entry else entry["config"]
        known.update(dict.fromkeys(entry["names"], shape))
    return known


@cache
def usable() -> dict[str, float]:
    """Bytes that all processes together can allocate, by device name."""
    devices = yaml.load((DATA / "devices.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {name: entry["usable_gib"] * GIB for name, entry in devices.items() if entry["usable_gib"]}


def stack_of(facts: Mapping[str, str]) -> Stack:
    """The software that made the row."""
    prefix = facts["id"].rsplit("-", 1)[0]
    if prefix in WHOLE_SOURCES:
        raise Skip(WHOLE_SOURCES[prefix])
    stack, notes = STACKS[prefix], facts["notes"]
    if "capacity-rounded" in notes:
        raise Skip("the card's capacity in place of a measurement")
    if "baseline-peft-bnb" in notes:
        raise Skip("embeddings and head upcast to fp32, which LLaMA-Factory never does")
    if "liger" in notes and "liger off" not in notes:
        return replace(stack, loss="fused", title=stack.title + ", liger")
    if "foak" in notes:
        loss: LossKind = (
            "upcast" if "4.48" in notes else "fused"
        )  # 4.48 computes the loss where the kernel does not reach
        return replace(stack, loss=loss, title=stack.title + ", fused kernels", peer=False)
    return stack


def model_of(facts: Mapping[str, str], stack: Stack) -> Architecture:
    """Its shapes, where the validator knows the family."""
    config = configs().get(facts["hf_id"])
    if config is None:
        raise Skip("encoder-decoder, vision, hybrid or unpublished shapes")
    if config["model_type"] not in families.known_types():
        raise Skip(f"model family {config['model_type']}: the validator does not read it")
    shape = read_architecture(config)
    if shape.ffn.experts and ("experts" in facts["notes"] or "8-bit base" in facts["notes"]):
        raise Skip("experts quantized by axolotl itself, which LLaMA-Factory cannot")
    return shape._replace(tied=False) if stack.untied else shape


def _method(facts: Mapping[str, str]) -> Method:
    notes, name = facts["notes"], facts["method"]
    if name not in ("full", "lora", "qlora", "dora"):
        raise Skip("an adapter or optimizer method that is not modelled")
    for other in ("DPO", "PPO", "sequence_parallel", "regression", "device_map", "unsloth", "vision", "reward"):
        if other in notes or other in facts["zero_stage"]:
            raise Skip("DPO, PPO, sequence parallel, regression, device map, unsloth or vision run")
    if name == "full" and facts["id"].startswith("lithub") and facts["gpus"] == "1" and "tiny-llama" not in notes:
        raise Skip("measured below the weights, gradients and states of the optimizer its YAML names")
    return "full" if name == "full" else "lora"


def _precision(facts: Mapping[str, str], stack: Stack, method: Method) -> Precision:
    if facts["zero_stage"] in ("1", "2", "3"):
        return "engine"
    if facts["precision"] == "fp32" or (facts["precision"] == "unknown" and facts["id"].startswith("peftreadme")):
        return "fp32"
    single = facts["zero_stage"] == "none"
    if facts["precision"].endswith("autocast") and not (method == "full" and single):
        return "amp"  # FSDP keeps fp32 shards of what trains; on one device the bf16 weights stay as they were loaded
    if method == "full":
        return stack.full
    return stack.adapter


def _base_bytes(facts: Mapping[str, str]) -> float:
    """Bytes of a weight as it was loaded."""
    plain = facts["id"].startswith("peftreadme") and facts["zero_stage"] == "none"
    return 4.0 if facts["quant_bits"] == "32" or plain else 2.0


def _adapter(facts: Mapping[str, str], model: Architecture, stack: Stack) -> Adapter:
    names = facts["lora_targets"].split() if "all-linear" not in facts["lora_targets"] else list(ALL)
    if names in (["query_key_value"], ["c_attn"]):
        names = ["q", "k", "v"]
    roles = [ROLES[name] for name in names if name in ROLES] + [role for role in ALL[4:] if "mlp" in names]
    if not roles and facts["lora_targets"]:
        roles = list(ALL)
    fused = [FUSED[role] if _is_fused(model, role) else role for role in roles or ALL]
    trains_tokens = "embed_tokens and lm_head fully trained" in facts["notes"]
    return Adapter(
        rank=int(facts["lora_rank"] or 8),
        targets=tuple(dict.fromkeys(fused)),
        dora=facts["method"] == "dora",
        dropout=stack.dropout,
        full_embedding=trains_tokens,
        full_head=trains_tokens,
    )


def _is_fused(model: Architecture, role: str) -> bool:
    return (role in "qkv" and model.attn.fused_qkv) or (role in ("gate", "up") and model.ffn.fused_gate_up)


def _strategy(zero: str) -> ShardingStrategy:
    """The strategy of a row: a ZeRO stage, FSDP, or none."""
    return ZERO_STAGES[int(zero)] if zero.isdigit() else FSDP_FULL_SHARD if zero.startswith("fsdp") else DDP


def _sharding(facts: Mapping[str, str]) -> Sharding:
    zero, offload = facts["zero_stage"], facts["offload"]
    if offload not in ("none", "param", "optimizer+param"):
        raise Skip(f"offload of {offload}")
    nodes, devices = int(facts["nodes"]), facts["gpus"]
    if devices == "unknown":
        raise Skip("number of devices not published")
    return Sharding(
        nodes=nodes,
        devices_per_node=int(devices) // nodes,
        strategy=_strategy(zero),
        offload_optimizer="optimizer" in offload or (offload == "param" and zero.startswith("fsdp")),
        offload_parameters="param" in offload,
        overlap_comm=zero == "3",
    )


def _optimizer(name: str) -> str:
    if name not in OPTIMIZERS:
        raise Skip("an adapter or optimizer method that is not modelled")
    return OPTIMIZERS[name]


def automatic(sharding: Sharding, hidden: int) -> Sharding:
    """The values transformers puts for "auto" in a stage 3 file: LLaMA-Factory's and ms-swift's files say "auto"."""
    if sharding.strategy != ZERO_3:
        return sharding
    square = hidden * hidden
    return sharding._replace(reduce_bucket=square, prefetch_bucket=int(0.9 * square), persistence_threshold=10 * hidden)


def _attention(facts: Mapping[str, str]) -> AttentionImplementation:
    return "flash" if facts["attn"].startswith("flash") else "sdpa"


def workload_of(facts: Mapping[str, str], stack: Stack, model: Architecture) -> Workload:
    """The run as it executed."""
    if not facts["seq_len"] or not facts["micro_batch"]:
        raise Skip("length or batch not published")
    if facts["grad_checkpointing"] not in ("yes", "no"):
        raise Skip("gradient checkpointing not published")
    if facts["quant_bits"] not in ("4", "8", "16", "32"):
        raise Skip("2-bit weights")
    method, bits = _method(facts), int(facts["quant_bits"])
    packed = facts["packing_or_full_length"] == "yes"
    return Workload(
        method=method,
        precision=_precision(facts, stack, method),
        base_bytes=_base_bytes(facts),
        quant_bits=bits if bits < 16 else 0,
        quant_grouped=bool(re.search("GPTQ|AWQ|HQQ", facts["hf_id"] + facts["notes"])),
        adapter=_adapter(facts, model, stack) if method == "lora" else Adapter(),
        optimizer=_optimizer(facts["optimizer"]),
        micro_batch=int(facts["micro_batch"]),
        length=int(facts["seq_len"]),
        accumulation=int(facts["grad_accum"] or 1),
        checkpointing="layer" if facts["grad_checkpointing"] == "yes" else "off",
        attention=_attention(facts),
        pads_batches=not packed or stack.bins,
        loss=stack.loss,
        fused_kernels=stack.fused_kernels and stack.loss == "fused",
        low_memory_load=facts["zero_stage"] != "3",  # whose initialization reads checkpoint files whole
        sharding=automatic(_sharding(facts), model.hidden),
    )


def _kind(facts: Mapping[str, str], stack: Stack) -> Kind:
    if facts["metric"] == "host_ram":
        return "host"
    if not facts["memory_gb"]:
        return "oom"
    return "exact" if facts["packing_or_full_length"] == "yes" or stack.full_length else "bound"


def _measured(facts: Mapping[str, str], stack: Stack) -> float | None:
    if not facts["memory_gb"]:
        return None
    unit = GIB if facts["unit"] == "GiB" else stack.gigabyte
    return float(facts["memory_gb"]) * unit


def parse(facts: Mapping[str, str]) -> Row:
    """One CSV row as it ran.

    Raises:
        Skip: the row cannot be expressed as a workload, with the reason.
    """
    stack = stack_of(facts)
    model = model_of(facts, stack)
    return Row(
        id=facts["id"],
        source=stack.title,
        method=facts["method"],
        kind=_kind(facts, stack),
        metric=facts["metric"],
        measured=_measured(facts, stack),
        model=model,
        workload=workload_of(facts, stack, model),
        limit=usable().get(CARDS.get(facts["gpu_model"], "")),
        peer=stack.peer,
        expandable="expandable_segments" in facts["notes"],
        facts=facts,
    )


def read(path: Path) -> Iterator[Mapping[str, str]]:
    """The rows of a CSV file, as it is written."""
    with path.open(encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def _verdict_sharding(facts: Mapping[str, str]) -> Sharding:
    zero, nodes = facts["zero"], int(facts["nodes"])
    return Sharding(
        nodes=nodes,
        devices_per_node=int(facts["devices"]) // nodes,
        strategy=_strategy(zero if facts["precision"] == "engine" or not zero.isdigit() else "none"),
        offload_optimizer=facts["offload"] in ("all", "param", "optimizer"),
        offload_parameters=facts["offload"] in ("all", "param"),
        pin_memory=facts["pin_memory"] == "yes",
        overlap_comm=facts["overlap"] == "yes",
    )


def verdicts(
    path: Path = EVIDENCE / "memory" / "verdicts.csv",
) -> Iterator[tuple[Mapping[str, str], Architecture, Workload]]:
    """Public outcomes that carry no measurement, or a rough one, as workloads."""
    for facts in read(path):
        model, stage, method = read_architecture(configs()[facts["model"]]), facts["stage"], facts["method"]
        yield (
            facts,
            model,
            Workload(
                method="full" if method == "full" else "lora",
                precision=facts["precision"],  # type: ignore[arg-type]
                quant_bits=int(facts["quant_bits"] or 0),
                adapter=Adapter(rank=int(facts["rank"] or 8)),
                optimizer=OPTIMIZERS.get(facts["optimizer"], facts["optimizer"]),
                micro_batch=int(facts["micro_batch"]),
                length=int(facts["length"]),
                accumulation=int(facts["accumulation"]),
                attention=facts["attention"],  # type: ignore[arg-type]
                loss=facts["loss"],  # type: ignore[arg-type]
                sequences_per_sample=1 if stage == "sft" else 2,
                value_head=stage == "rm",
                needs_full_logits=stage == "dpo",
                reference_logits=stage == "dpo",
                reference_copies=int(stage == "dpo" and method == "full"),
                low_memory_load=facts["zero"] != "3",
                sharding=automatic(_verdict_sharding(facts), model.hidden),
            ),
        )


def published(path: Path = EVIDENCE / "published.csv") -> tuple[list[Row], Counter[str]]:
    """All usable rows, and for the others how many were skipped for which reason."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    for facts in read(path):
        try:
            rows.append(parse(facts))
        except Skip as reason:
            skipped[str(reason)] += 1
    return rows, skipped
