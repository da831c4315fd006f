"""What a user would reach for instead, on the same rows.

The answers of installed programs are recorded in evidence/memory/rivals.csv with their versions, so that the report
needs none of them: `python -m benchmarks memory rivals` with deepspeed, accelerate or soup-cli installed refreshes
what it can run. Every rival gets the benefit of the doubt: exact parameter counts, and for the README rule its
per-model number divided by the devices wherever the states are sharded, which its table does not mention.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version

from rows import EVIDENCE, GIB, Row, published, read

from validator.physics import ZERO_2, parameter_count

RECORD = EVIDENCE / "memory" / "rivals.csv"


def readme(row: Row) -> float | None:
    """Bytes by the hardware table of LLaMA-Factory's README (@ff6d4d1): so many GB for each 1e9 parameters."""
    work = row.workload
    if work.method == "full":
        factor = 8.0 if work.precision == "pure" else 18.0
    else:
        factor = {0: 2.0, 8: 1.0, 4: 0.5}[work.quant_bits]
    shards = work.sharding.world_size if work.sharding.strategy.shards_weights else 1
    return factor * parameter_count(row.model) / shards


def deepspeed(row: Row) -> float | None:
    """Device bytes by DeepSpeed's own estimators; nothing for runs that shard nothing."""
    work, shard = row.workload, row.workload.sharding
    where = {"num_gpus_per_node": shard.devices_per_node, "num_nodes": shard.nodes}
    where["cpu_offload"] = shard.offload_optimizer
    total = int(parameter_count(row.model))
    if shard.strategy == ZERO_2:
        function = import_module("deepspeed.runtime.zero.stage_1_and_2").estimate_zero2_model_states_mem_needs
        return float(function(total, **where)[1])
    if shard.strategy.shards_weights:
        function = import_module("deepspeed.runtime.zero.stage3").estimate_zero3_model_states_mem_needs
        largest = max(row.model.vocab, work.sharding.persistence_threshold // row.model.hidden) * row.model.hidden
        return float(function(total, largest, cpu_offload_params=shard.offload_parameters, **where)[1])
    return None


def accelerate(row: Row) -> float | None:
    """Bytes of `accelerate estimate-memory`, column "Training using Adam"; full fine-tuning on one device only."""
    work = row.workload
    if work.method != "full" or work.sharding.world_size > 1:
        return None
    usage = import_module("accelerate.commands.estimate").estimate_training_usage
    fp32 = 4 * int(parameter_count(row.model))
    return float(max(usage(fp32, "bfloat16" if work.precision == "pure" else "float32").values()))


def soup(row: Row) -> float | None:
    """Bytes of `soup profile`, for one device: it has no input for the number of devices."""
    work = row.workload
    if work.sharding.world_size > 1:
        return None
    answer = import_module("soup_cli.utils.profiler").estimate_total(
        model_name=row.facts["hf_id"],
        model_params_b=parameter_count(row.model) / 1e9,
        quantization={0: "none", 8: "8bit", 4: "4bit"}[work.quant_bits],
        lora_r=work.adapter.rank,
        lora_alpha=2 * work.adapter.rank,
        batch_size=work.micro_batch,
        seq_len=work.length,
        optimizer=work.optimizer,
        gradient_checkpointing=work.checkpointing != "off",
        peft="full" if work.method == "full" else "lora",
    )
    return float(answer["total_memory_gb"]) * GIB


Rival = Callable[[Row], float | None]
RUNNABLE: dict[str, Rival] = {"deepspeed": deepspeed, "accelerate": accelerate, "soup-cli": soup}


def recorded() -> dict[str, dict[str, float]]:
    """Rival -> row id -> bytes, as recorded."""
    answers: dict[str, dict[str, float]] = {}
    for line in read(RECORD) if RECORD.exists() else ():
        answers.setdefault(f"{line['rival']} {line['version']}", {})[line["id"]] = float(line["gib"]) * GIB
    return answers


def answers(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Rival -> row id -> bytes: the README rule computed, programs as recorded."""
    rule = {row.id: guess for row in rows if (guess := readme(row)) is not None}
    return {"LLaMA-Factory README": rule} | recorded()


def record() -> None:
    """Run every rival that is installed on every usable row and rewrite its part of the record."""
    rows, _ = published()
    kept = list(read(RECORD)) if RECORD.exists() else []
    for name, estimate in RUNNABLE.items():
        try:
            fresh = [(row.id, estimate(row)) for row in rows if row.kind != "host"]
        except ImportError:
            continue
        kept = [line for line in kept if line["rival"] != name]
        label = {"rival": name, "version": version(name)}
        kept += [{"id": row, **label, "gib": f"{size / GIB:.2f}"} for row, size in fresh if size]
    with RECORD.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["id", "rival", "version", "gib"])
        writer.writeheader()
        writer.writerows(kept)


def main() -> None:
    record()
