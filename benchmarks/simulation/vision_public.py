"""Public runs of models that see -> workloads of the memory model, each as it really ran.

A row of evidence/simulator/vision_public.csv says what its source says; how long samples are, which no source says,
follows from its data (evidence/README.md). What a source's software does and its rows do not say is stated once, in
`STACKS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import records
from rows import automatic

from validator.knowledge import models
from validator.physics import (
    ZERO_STAGES,
    Adapter,
    DeviceRuntime,
    Estimate,
    Sharding,
    Tower,
    TowerWorkload,
    Workload,
    device_memory,
    linear_roles,
)
from validator.physics.workload import LossKind

PATH = records.EVIDENCE / "simulator" / "vision_public.csv"
GIB = float(1 << 30)


@dataclass(frozen=True)
class Stack:
    """The software of one source, by the first word of `source`."""

    title: str
    loss: LossKind
    overlap: bool  # of its ZeRO-2 file


# Both train adapters in fp32 under autocast, with dropout; their ZeRO files have buckets of 2e8. Both ask for gradients
# of what enters a tower's layers, and recompute these although nothing of them trains (`recomputed`): swift/llm/sft.py
# and swift/trainers/mixin.py, _prepare_gradient_checkpointing.
STACKS: Mapping[str, Stack] = {
    "swift3": Stack("ms-swift 3 and 4, examples", "upcast", overlap=False),
    "swift2": Stack("ms-swift 2.6.1 (transformers 4.45)", "shifted", overlap=True),
}
BUCKET = 200_000_000


def rows() -> list[tuple[dict[str, str], Estimate]]:
    """What each source says its devices showed, beside the prediction."""
    return [(row, estimate(row)) for row in records.read(PATH)]


def estimate(row: Mapping[str, str]) -> Estimate:
    """Of the run of a row, without what its process holds beside the model that trains (`beside_gib`)."""
    arch = models.find_model(row["model"]).arch
    runtime = DeviceRuntime(expandable_segments=row["expandable"] == "yes")
    return device_memory.estimate_device_memory(arch, _workload(row), runtime)


def _workload(row: Mapping[str, str]) -> Workload:
    arch, stack = models.find_model(row["model"]).arch, STACKS[row["source"].split()[0]]
    stage, fused = int(row["zero"]), row["liger"] == "yes"
    return Workload(
        method="full" if row["method"] == "full" else "lora",
        precision="engine" if stage else "amp",
        quant_bits=4 if row["bits"] == "4" else 0,
        quant_grouped=row["bits"] == "4",
        adapter=Adapter(8, linear_roles(arch), dropout=True),
        micro_batch=int(row["micro_batch"]),
        length=int(row["tokens"]),
        accumulation=int(row["accumulation"]),
        checkpointing="layer" if row["checkpointing"] == "layer" else "off",
        attention="flash" if row["attention"] == "flash" else "sdpa",
        pads_batches=row["varying"] == "yes",
        loss="fused" if fused else stack.loss,
        fused_kernels=fused,
        towers=tuple(_encoding(row, tower) for tower in arch.towers),
        low_memory_load=stage != 3,
        sharding=_sharding(row, stack, arch.hidden),
    )


def _encoding(row: Mapping[str, str], tower: Tower) -> TowerWorkload:
    recomputed, thawed = row["tower"] == "recomputed", row["thawed"] == "yes"
    return TowerWorkload(
        int(row["patches"]) if tower.patch_size else 0,
        trains=thawed,
        projector=thawed,
        never_frozen=row["method"] == "full",
        input_requires_grad=recomputed,
        recomputed=recomputed,
    )


def _sharding(row: Mapping[str, str], stack: Stack, hidden: int) -> Sharding:
    stage = int(row["zero"])
    if not stage:
        return Sharding()
    spread = Sharding(1, int(row["devices"]), ZERO_STAGES[stage], reduce_bucket=BUCKET, allgather_bucket=BUCKET,
                      overlap_comm=stack.overlap)  # fmt: skip
    return automatic(spread, hidden)


def error(row: Mapping[str, str], predicted: Estimate) -> float:
    """Signed relative error of what is expected against what was shown."""
    return (predicted.expected / GIB + float(row["beside_gib"])) / float(row["shown_gib"]) - 1


def lines() -> Iterator[str]:
    """What was shown, what is expected and its band; then how far all are."""
    errors = []
    for row, predicted in rows():
        errors.append(error(row, predicted))
        beside = float(row["beside_gib"])
        low, high = predicted.low / GIB + beside, predicted.high / GIB + beside
        inside = "" if low <= float(row["shown_gib"]) <= high else "  outside"
        name = row["source"].split("/")[-1]
        yield (f"{name[:44]:45}{row['model']:22}{row['shown_gib']:>5} GiB{errors[-1]:8.1%}"
               f"  {low:.1f} to {high:.1f}{inside}")  # fmt: skip
    median, most, worst = records.spread(errors)
    yield f"{len(errors)} public runs: median {median:.1%}, nine in ten below {most:.1%}, worst {worst:.1%}"
