"""This project's own measurements on a GPU (evidence/gpu/h200.csv, written by gpu/measure.py) as rows of the
accuracy report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu.cells import MODELS
from rows import EVIDENCE, GIB, Kind, Row, automatic, read, usable

from validator.knowledge.architectures import read_architecture
from validator.physics import (
    DDP,
    ZERO_STAGES,
    Adapter,
    Architecture,
    DeviceRuntime,
    Sharding,
    Workload,
    estimate_device_memory,
)

MIB = 2**20
ROLES = {"all": ("q", "k", "v", "o", "gate", "up", "down"), "q_proj,v_proj": ("q", "v")}
OPTIMIZERS = {"adamw_torch_fused": "adamw", "paged_adamw_32bit": "paged_adamw_32bit"}


def _sharding(facts: Mapping[str, str]) -> Sharding:
    name = facts["deepspeed"]
    return Sharding(
        strategy=ZERO_STAGES[int(name[4])] if name else DDP,
        offload_optimizer="offload" in name,
        offload_parameters=name == "ds_z3_offload.json",
    )


def _precision(facts: Mapping[str, str]) -> str:
    return "engine" if facts["deepspeed"] else "pure" if facts["precision"] == "pure_bf16" else "amp"


def workload(facts: Mapping[str, str], model: Architecture) -> Workload:
    """What LLaMA-Factory 0.9.5 runs for a cell of gpu_cells.py."""
    dpo, galore = facts["stage"] == "dpo", facts["galore"] == "True"
    return Workload(
        method=facts["method"],  # type: ignore[arg-type]
        precision=_precision(facts),  # type: ignore[arg-type]
        quant_bits=int(facts["quantization_bit"]),
        adapter=Adapter(rank=int(facts["lora_rank"]), targets=ROLES[facts["lora_target"]]),
        optimizer="galore" if galore else OPTIMIZERS.get(facts["optimizer"], facts["optimizer"]),
        optimizer_rank=16 if galore else 0,
        micro_batch=int(facts["micro_batch"]),
        sequences_per_sample=2 if dpo else 1,
        length=int(facts["seq_len"]),
        accumulation=int(facts["grad_accum"]),
        checkpointing="layer" if facts["checkpointing"] == "True" else "off",
        attention="eager" if facts["attention"] == "disabled" else "sdpa",
        pads_batches=facts["padded"] == "True",
        loss="fused" if facts["liger"] == "True" and not dpo else "upcast",
        needs_full_logits=dpo,
        reference_logits=dpo,
        eval_batch=int(facts["eval_batch"]),
        eval_length=int(facts["seq_len"]) if facts["eval_batch"] != "0" else 0,
        low_memory_load="z3" not in facts["deepspeed"],
        sharding=automatic(_sharding(facts), model.hidden),
    )


def _method(facts: Mapping[str, str]) -> str:
    name = f"{facts['quantization_bit']}-bit" if facts["quantization_bit"] != "0" else ""
    parts = [facts["method"], name, facts["stage"] if facts["stage"] != "sft" else "", facts["deepspeed"]]
    return " ".join(part for part in parts if part)


def _measured(facts: Mapping[str, str]) -> Iterator[tuple[str, Kind, float | None]]:
    if facts["status"] == "oom":
        yield "nvidia-smi", "oom", None
    elif facts["status"] == "ok":
        yield "peak_allocated", "exact", float(facts["peak_allocated_gib"]) * GIB
        if facts["process_used_mib"]:
            yield "nvidia-smi", "exact", float(facts["process_used_mib"]) * MIB


def predicted_gib(cell: Mapping[str, object]) -> float:
    """The top of the band for a cell of gpu/cells.py, GiB; infinite where it needs the machine for itself, as one that
    offloads does."""
    if cell["through"] == "context":
        return 1.0
    if "offload" in str(cell["deepspeed"]):
        return math.inf
    facts = {name: str(value) for name, value in cell.items()}
    model = read_architecture(dict(MODELS[facts["model"]]))
    estimate = estimate_device_memory(model, workload(facts, model), DeviceRuntime())
    return min(estimate.high / GIB, float(facts["cap_gib"]) or estimate.high)


def measured_here(path: Path = EVIDENCE / "gpu" / "h200.csv") -> Iterator[Row]:
    """Rows of real runs of three steps, when the file is there; runs that failed for another reason are left out."""
    for number, facts in enumerate(read(path) if path.exists() else ()):
        if facts["through"] == "context":
            continue
        model = read_architecture(dict(MODELS[facts["model"]]))
        limit = float(facts["cap_gib"]) * GIB or usable()["h200-141g"]
        for metric, kind, size in _measured(facts):
            yield Row(
                id=f"h200-{number:03d}",
                source="own H200 runs",
                method=_method(facts),
                kind=kind,
                metric=metric,
                measured=size,
                model=model,
                workload=workload(facts, model),
                limit=limit,
                expandable="expandable_segments" in facts["alloc"],
                facts=facts,
            )
