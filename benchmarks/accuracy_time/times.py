"""Published seconds of a training step -> workloads of the time model, each as it really ran.

    python -m benchmarks time times  # how many rows there are of each source and kind, and why others are left out

Timed rows of evidence/published.csv, all of evidence/time/times.csv, and what gpu/measure.py measured here, if it
ran. What a source counts and its software does is stated once, in sources.py; what was counted beside it (tokens of
a sample, a step without its evaluations), in evidence/time/lengths.csv.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Literal

import rows
from accuracy_memory import own_rows
from accuracy_time.cards import rates
from accuracy_time.sources import GBIT, SOURCES
from rows import EVIDENCE, Skip

from validator.knowledge.architectures import read_architecture
from validator.physics import FSDP_SHARD_GRAD_OP, Architecture, Workload
from validator.physics.rates import DeviceRates
from validator.run.sample_lengths import expected_longest, log_normal_lengths

# exact: packed or of fixed length. mean: of varied length, whose mean is known (`workload.length`). short: shorter than
# `workload.length` by an unknown amount. offload, nodes, ascend: such runs, whatever their lengths. foreign: no run of
# LLaMA-Factory (tensor, pipeline, context or expert parallel, fp8, compiled, recomputed in part), kept for the device's
# rate alone: `workload` then is that of all devices without parallelism, and `tokens` are right.
Kind = Literal["exact", "mean", "short", "offload", "nodes", "ascend", "foreign"]


# What rows say of parallelism that LLaMA-Factory has not: tp=2, sequence_parallel_size 4, sequence parallel (Ulysses) 8
PARALLEL = re.compile(r"\b(?:tp|pp|cp|ep|tp\*pp\*cp)=(\d+)|sequence[_ ]parallel\w*(?: \(Ulysses\))?[ =](\d+)")
UNKNOWN_PARALLEL = re.compile(r"tp/pp/cp unknown|Megatron-LM|pre-training with Pai-Megatron")
# 2x 400Gbe Ethernet: what joins the nodes of an MLPerf submission
ETHERNET = re.compile(r"(\d+) ?x (\d+)Gbe")
# cores=96 host_gb_s=614: of the node, where a row states them
HOST = re.compile(r"cores=(\d+) host_gb_s=(\d+)")
# peft's variants whose products are not those of the method that their rows name
VARIANTS = ("bdlora", "mica", "lorafa")
# Families that the validator does not read, with the shapes of one that it does; of the second kind attention and
# feed-forward part read the same hidden state.
UNGATED = ("mpt", "gpt2", "gpt_bigcode")
UNGATED_PARALLEL = ("falcon", "phi", "gpt_neox")
USUAL = {"n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers",
         "n_head": "num_attention_heads"}  # fmt: skip


@dataclass(frozen=True)
class TimedRow:
    """One published step time beside the workload that took it. `seconds` are of one optimizer step, `tokens` those of
    the step over all devices, padding included where the source tells."""

    id: str
    source: str
    architecture: Architecture
    workload: Workload
    device: DeviceRates
    seconds: float
    kind: Kind
    tokens: float
    name: str  # of the device, in data/devices.yaml
    short: bool = False  # samples are shorter than `workload.length` by an unknown amount, whatever the kind
    held: bool = False  # kept apart: scored, and never used for calibration
    peer: bool = True  # the software that LLaMA-Factory trains with
    guessed: bool = False  # the network between nodes is that of the usual server, as the source tells none
    whole: bool = False  # start-up and validation are in `seconds`
    doubt: str = ""
    facts: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def world(self) -> int:
        return self.workload.sharding.world_size

    @property
    def known(self) -> bool:
        """Whether its tokens are, and all that it ran with; of one node."""
        return self.kind in ("exact", "mean") and not self.doubt


def prefix(facts: Mapping[str, str]) -> str:
    return facts["id"].rsplit("-", 1)[0]


@cache
def lengths() -> dict[str, Mapping[str, str]]:
    """Row id -> tokens of its samples, seconds of its step, where a source tells more than its row."""
    return {line["id"]: line for line in rows.read(EVIDENCE / "time" / "lengths.csv")}


def parallel(facts: Mapping[str, str]) -> int:
    """Over how many devices a model is split in ways that LLaMA-Factory has not; 0 where the row does not say."""
    degrees = [int(first or second) for first, second in PARALLEL.findall(facts["notes"])]
    if not degrees and UNKNOWN_PARALLEL.search(facts["notes"]) and facts["zero_stage"] != "3":
        return 0
    return max(degrees, default=1)


def foreign(facts: Mapping[str, str]) -> bool:
    """Whether LLaMA-Factory has no such run."""
    return (
        parallel(facts) != 1
        or "fp8" in facts["precision"]
        or "fp4" in facts["precision"]
        or "float8" in facts["notes"]
        or "torch.compile" in facts["notes"].replace("no torch.compile", "")
        or facts["grad_checkpointing"] not in ("yes", "no")
    )


def shapes(name: str, facts: Mapping[str, str]) -> Architecture:
    """The model of a row."""
    config = rows.configs().get(facts["hf_id"])
    if config is None:
        raise Skip("shapes not published, or of no decoder that is known")
    kind = str(config["model_type"])
    if kind in UNGATED + UNGATED_PARALLEL:
        named = {USUAL.get(key, key): value for key, value in config.items()}
        heads = 1 if config.get("multi_query") else named["num_attention_heads"]
        width = {"intermediate_size": 4 * int(str(named["hidden_size"])), "num_key_value_heads": heads}
        like = read_architecture({**width, **named, "model_type": "starcoder2"})
        return like._replace(parallel=kind in UNGATED_PARALLEL, dropout=False)
    found = rows.model_of({**facts, "notes": ""}, SOURCES[name].stack)
    if found.mixer and "with flash-linear-attention" in facts["notes"]:
        return found._replace(mixer=found.mixer.with_kernels())
    return found


def plain(facts: Mapping[str, str], stranger: bool) -> dict[str, str]:
    """The facts in the words of published.csv. Of a foreign run, what it leaves open is taken for the plainest."""
    stated = dict(facts)
    zero = facts["zero_stage"]
    stated["zero_stage"] = {"0": "none", "unknown": "none"}.get(zero, "fsdp" if zero.startswith("fsdp") else zero)
    stated["optimizer"] = {"adam": "adamw_torch_fused", "adamw": "adamw_torch_fused"}.get(
        facts["optimizer"], facts["optimizer"]
    )
    stated["offload"] = "none"
    if stranger:
        stated["grad_checkpointing"] = "yes" if facts["grad_checkpointing"] == "yes" else "no"
        stated["method"] = facts["method"].removesuffix("-dpo")
        stated["notes"] = ""
    return stated


def workload(name: str, facts: Mapping[str, str], model: Architecture, stranger: bool) -> Workload:
    """The run of a row, its length the mean where that is known."""
    source = SOURCES[name]
    stack = source.stack
    if name in rows.STACKS and not stranger:
        stack = rows.stack_of(facts)
    elif "; liger;" in facts["notes"]:  # all of its kernels, as transformers' use_liger_kernel applies them
        stack = replace(stack, loss="fused", fused_kernels=True)
    work = rows.workload_of(plain(facts, stranger), stack, model)
    shard, offload = work.sharding, facts["offload"]
    shard = shard._replace(
        # Figures are recorded with one gather of the weights for every FSDP run; recipes with FULL_SHARD get two.
        strategy=FSDP_SHARD_GRAD_OP if shard.strategy.fsdp else shard.strategy,
        offload_optimizer="optimizer" in offload,
        offload_parameters="param" in offload,
    )
    fused = source.kernels or work.fused_kernels or "foak" in facts["notes"]
    attention = "eager" if facts["attn"] == "eager" else "flash" if source.flash else work.attention
    return work._replace(
        sharding=shard,
        fused_kernels=fused,
        attention=attention,
        reentrant=source.reentrant,
        length=round(length(facts) * waited(facts, work)),
        experts="separate" if "Python loop" in facts["notes"] else "grouped",
        checkpointing="offloaded" if "param+activations" in offload else work.checkpointing,
    )


def waited(facts: Mapping[str, str], work: Workload) -> float:
    """How much longer the longest batch of all devices, for which they wait, is than the mean one."""
    scatter, devices, batch = SOURCES[prefix(facts)].scatter, work.sharding.world_size, work.micro_batch
    if not scatter or devices == 1 or "multipack" in facts["notes"]:  # which gives each device as many tokens
        return 1.0
    if "padding-free" in facts["notes"]:
        return expected_longest(log_normal_lengths(1.0, scatter / sqrt(batch)), devices)
    lengths = log_normal_lengths(1.0, scatter)
    return expected_longest(lengths, batch * devices) / expected_longest(lengths, batch)


def network(facts: Mapping[str, str]) -> float:
    """Bytes/s between nodes, one node and direction, as the row or its source states it; 0 where neither does."""
    stated = ETHERNET.search(facts["notes"])
    unstated = "section 'H100" in facts["notes"]  # llm-foundry tells that of its A100 alone
    return int(stated[1]) * int(stated[2]) * GBIT if stated else 0.0 if unstated else SOURCES[prefix(facts)].network


def kind(facts: Mapping[str, str], device: str, stranger: bool) -> Kind:
    """What a row is good for."""
    if stranger:
        return "foreign"
    if facts["offload"] not in ("none", "unknown"):
        return "offload"
    if device.startswith("ascend"):
        return "ascend"
    if facts["nodes"] != "1":
        return "nodes"
    if facts["packing_or_full_length"] == "yes":
        return "exact"
    return "short" if short(facts) else "mean"


def short(facts: Mapping[str, str]) -> bool:
    """Whether samples are shorter than the row's length by an unknown amount."""
    return facts["packing_or_full_length"] != "yes" and not (lengths().get(facts["id"]) or facts.get("tokens"))


def tokens(facts: Mapping[str, str], work: Workload) -> float:
    """Tokens of a step over all devices: by the global batch where the row names it."""
    stated = re.search(r"\bgbs=(\d+)", facts["notes"])
    batch = int(stated[1]) if stated else work.micro_batch * work.accumulation * work.sharding.world_size
    return batch * length(facts)


def length(facts: Mapping[str, str]) -> float:
    """Tokens of a sample, in the mean where a source tells it."""
    return float(lengths().get(facts["id"], {}).get("tokens") or facts.get("tokens") or facts["seq_len"])


def parse(facts: Mapping[str, str]) -> TimedRow:
    """One row as it ran.

    Raises:
        Skip: the row cannot be expressed as a workload, with the reason.
    """
    name = prefix(facts)
    source = SOURCES.get(name)
    if source is None:
        raise Skip("not a source of times")
    if facts["source"].endswith(VARIANTS):
        raise Skip("an adapter or optimizer method that is not modelled")
    if facts["gpu_model"] == "unknown":
        raise Skip("device not stated")
    if source.whole and "max_steps" in facts["notes"]:
        raise Skip("a few steps, timed with start-up and validation")
    stranger = foreign(facts)
    model = shapes(name, facts)
    work = workload(name, facts, model, stranger)
    device, measured = rates(facts["gpu_model"], work, network(facts))
    measured = measured._replace(attention_efficiency=source.attention * measured.attention_efficiency)
    if host := HOST.search(facts["notes"]):
        measured = measured._replace(cores=int(host[1]), host_bandwidth=int(host[2]) * 1e9)
    seconds = float(lengths().get(facts["id"], {}).get("seconds") or facts["sec_per_iter"])
    return TimedRow(
        id=facts["id"],
        source=source.stack.title,
        architecture=model,
        workload=work,
        device=measured,
        seconds=seconds * (work.accumulation if source.counts == "micro" else 1),
        kind=kind(facts, device, stranger),
        tokens=tokens(facts, work),
        name=device,
        short=short(facts),
        held=facts.get("held") == "yes",
        peer=source.stack.peer,
        guessed=work.sharding.nodes > 1 and not network(facts),
        whole=source.whole,
        doubt=source.doubt or doubt(facts),
        facts=facts,
    )


def doubt(facts: Mapping[str, str]) -> str:
    """What the row itself leaves open, in its own words; empty where that changes little."""
    words = (
        "is a doubt",
        "batch assumed",
        "where its table has",
        "lanes are not",
        "network is not",
        "network not stated",
    )
    return next((part for part in facts["notes"].split("; ") if any(word in part for word in words)), "")


def timed() -> Iterator[Mapping[str, str]]:
    """All rows with a time, each run once: two of published.csv differ in what they say of memory alone."""
    seen: set[tuple[str, ...]] = set()
    for facts in rows.read(EVIDENCE / "published.csv"):
        memory = ("id", "source", "metric", "per_gpu_or_total", "memory_gb", "unit", "notes")
        key = (*(value for name, value in facts.items() if name not in memory), facts["notes"].split(";")[0])
        if facts["sec_per_iter"] and key not in seen:
            seen.add(key)
            yield facts
    yield from rows.read(EVIDENCE / "time" / "times.csv")


def measured_here(path: Path = EVIDENCE / "gpu" / "h200.csv") -> Iterator[TimedRow]:
    """Third steps of this project's own runs on a GPU, when gpu/measure.py has left some; nothing between devices
    there."""
    for row in own_rows.measured_here(path):
        if row.metric == "peak_allocated" and row.facts["seconds_per_step"]:
            work = row.workload
            key, device = rates("H200-141GB", work, 0.0)
            yield TimedRow(
                id=row.id,
                source=row.source,
                architecture=row.model,
                workload=work,
                device=device,
                seconds=float(row.facts["seconds_per_step"]),
                kind="offload" if work.sharding.offload_optimizer else "exact",
                tokens=float(work.micro_batch * work.sequences_per_sample * work.accumulation * work.length),
                name=key,
                facts=row.facts,
            )


def published(every: Iterable[Mapping[str, str]] | None = None) -> tuple[list[TimedRow], Counter[str]]:
    """All usable rows, and for the others how many were skipped for which reason."""
    known: list[TimedRow] = []
    skipped: Counter[str] = Counter()
    for facts in timed() if every is None else every:
        try:
            known.append(parse(facts))
        except Skip as reason:
            skipped[f"{prefix(facts)}: {reason}"] += 1
    return [*known, *(measured_here() if every is None else ())], skipped


def main() -> None:
    known, skipped = published()
    for (source, name, what), number in sorted(Counter((row.source, row.name, row.kind) for row in known).items()):
        print(f"{number:4}  {what:8}  {name:17}  {source}")
    print(*(f"{number:4}  left out  {reason}" for reason, number in skipped.most_common()), sep="\n")
