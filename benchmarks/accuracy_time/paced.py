"""What a user would reach for instead to know a step's time, on the same rows.

The answers of installed programs are recorded in evidence/time/paced.csv with their versions: `python -m benchmarks
time paced` with soup-cli or ftuneai installed refreshes its part. Each gets exact shapes, parameter counts and
tokens, and the published rates of the device.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from accuracy_time.times import TimedRow, published
from rows import EVIDENCE, read

from validator.physics import parameter_count

RECORD = EVIDENCE / "time" / "paced.csv"
SHARE = 0.4  # of the published rate, as such estimates take it
STEPS = 100_000  # asked for at once, as one program rounds to hundredths of an hour


def active(row: TimedRow) -> float:
    """Parameters that one token meets: of routed experts those that are chosen for it."""
    ffn, arch = row.architecture.ffn, row.architecture
    idle = (ffn.experts - ffn.experts_per_token) * 3 * arch.hidden * ffn.expert_width
    return parameter_count(arch) - max(0, idle) * (arch.layers - ffn.dense_layers)


def flops(row: TimedRow) -> float | None:
    """6 operations for each parameter and token (4 where the weights are frozen) at a fixed share of the rate."""
    each = 6 if row.workload.method == "full" else 4
    return each * active(row) * row.tokens / (SHARE * row.device.half_flops * row.world)


def ftuneai(row: TimedRow) -> float | None:
    """`Estimator.estimate_time` of ftuneai, whose models and devices are given the row's own figures."""
    models, engine = import_module("ftuneai.core.models"), import_module("ftuneai.core.time")
    arch, work = row.architecture, row.workload
    shard = work.sharding
    sharded = shard.strategy.shards_optimizer_states
    strategy = "fsdp" if shard.strategy.fsdp else shard.strategy.name if sharded else "none"
    spec = models.ModelSpec(
        name=row.facts["hf_id"],
        parameters=round(parameter_count(arch)),
        hidden_size=arch.hidden,
        num_layers=arch.layers,
        num_attention_heads=arch.attn.heads,
        num_kv_heads=arch.attn.kv_heads,
        intermediate_size=arch.ffn.width,
        vocab_size=arch.vocab,
        max_seq_length=work.length,
        is_moe=arch.ffn.experts > 0,
        num_experts=arch.ffn.experts or None,
        num_active_experts=arch.ffn.experts_per_token or None,
    )
    config = models.TrainingConfig(
        method=models.FineTuneMethod("full" if work.method == "full" else "qlora" if work.quant_bits else "lora"),
        batch_size=work.micro_batch, seq_length=work.length, gradient_checkpointing=work.checkpointing != "off",
        sharding=models.ShardingStrategy(strategy), num_gpus=row.world,
    )  # fmt: skip
    rate = row.device.half_flops / 1e12
    card = models.GPUSpec(row.name, 80, rate, rate, row.device.fp32_flops / 1e12, row.device.bandwidth / 1e9)
    samples = round(row.tokens / work.length * STEPS)
    hours = engine.TimeEstimator(spec, config).estimate(card, samples, epochs=1, num_gpus=row.world).total_hours
    return float(hours) * 3600 / STEPS


def soup(row: TimedRow) -> float | None:
    """Tokens/s of `soup profile`, which knows the A100 alone, times the devices, which it does not ask for."""
    if not row.name.startswith("a100"):
        return None
    speed = import_module("soup_cli.utils.profiler").estimate_speed(
        parameter_count(row.architecture) / 1e9,
        {0: "none", 8: "8bit", 4: "4bit"}[row.workload.quant_bits],
        row.workload.micro_batch,
    )
    return float(row.tokens / (speed * row.world))


Rival = Callable[[TimedRow], float | None]
RUNNABLE: dict[str, Rival] = {"soup-cli": soup, "ftuneai": ftuneai}


def recorded() -> dict[str, dict[str, float]]:
    """Rival -> row id -> seconds, as recorded."""
    answers: dict[str, dict[str, float]] = {}
    for line in read(RECORD) if RECORD.exists() else ():
        answers.setdefault(f"{line['rival']} {line['version']}", {})[line["id"]] = float(line["seconds"])
    return answers


def answers(rows: Iterable[TimedRow]) -> dict[str, dict[str, float]]:
    """Rival -> row id -> seconds: the fixed share computed, programs as recorded."""
    rule = {row.id: guess for row in rows if (guess := flops(row)) is not None}
    return {f"FLOPs at {SHARE:.0%} of the rate": rule} | recorded()


def record() -> None:
    """Run every rival that is installed on every usable row and rewrite its part of the record."""
    known = [row for row in published()[0] if row.kind != "foreign"]
    lines = {(line["rival"], line["id"]): line for line in read(RECORD)} if RECORD.exists() else {}
    for rival, ask in RUNNABLE.items():
        try:
            found = version(rival)
        except PackageNotFoundError:
            continue
        lines = {key: line for key, line in lines.items() if key[0] != rival}
        for row in known:
            if (seconds := ask(row)) is not None:
                lines[rival, row.id] = {"rival": rival, "version": found, "id": row.id, "seconds": f"{seconds:.5g}"}
    with RECORD.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["rival", "version", "id", "seconds"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines.values())


def main() -> None:
    record()
