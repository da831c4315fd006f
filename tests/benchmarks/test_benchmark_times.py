"""Published step times become the workloads that really ran, each run once, and none is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rows
from accuracy_time import times
from gpu import cells as gpu_cells
from gpu import measure as gpu

from validator.physics import DDP, FSDP_SHARD_GRAD_OP, ZERO_3, parameter_count

ROWS, SKIPPED = times.published()
BY_ID = {row.id: row for row in ROWS}
FACTS = {facts["id"]: facts for facts in times.timed()}


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("fms-017", "exact", {"method": "full", "length": 4096, "micro_batch": 4, "fused_kernels": False}),
        ("fms-001", "exact", {"method": "full", "length": 2048}),
        ("fms-130", "exact", {"quant_bits": 4, "fused_kernels": True}),
        ("fmsorca-001", "mean", {"length": 445, "micro_batch": 4, "accumulation": 2}),
        ("fmsorca-015", "mean", {"length": 326}),  # 287 tokens in the mean, more on the slower of two devices
        ("peftmm-033", "mean", {"length": 210, "checkpointing": "off", "attention": "sdpa"}),
        ("lithubt-012", "short", {"length": 512, "checkpointing": "off"}),
        ("foundry-096", "exact", {"precision": "amp", "attention": "flash", "reentrant": False}),
        ("foundry-010", "nodes", {"method": "full", "checkpointing": "off"}),
        ("foundry-072", "foreign", {}),
        ("bigsci-071", "offload", {"precision": "engine", "attention": "eager"}),
        ("bigsci-076", "nodes", {"precision": "engine", "checkpointing": "layer"}),
        ("mindspeed-030", "ascend", {"precision": "engine", "checkpointing": "off"}),
        ("mindspeed-031", "foreign", {}),
        ("swift-026", "ascend", {"method": "lora"}),
        ("swift-027", "offload", {"method": "lora"}),
        ("mlperf-007", "exact", {"method": "lora", "length": 8192}),
        ("mlperf-018", "foreign", {}),
        ("xtuner-023", "foreign", {"length": 131072}),
        ("titan-001", "foreign", {}),
        ("fsdpqlora-001", "exact", {"quant_bits": 4, "length": 512, "precision": "engine"}),
        ("fsdpqlora-025", "offload", {"checkpointing": "offloaded", "quant_bits": 4}),
        ("qwenreadme-013", "exact", {"quant_bits": 4, "quant_grouped": True}),
        ("torchtune-002", "foreign", {}),
        ("phill4-001", "short", {"loss": "upcast", "fused_kernels": False}),
        ("phill4-005", "exact", {"loss": "fused", "fused_kernels": True, "reentrant": False}),
        ("swift-015", "nodes", {"experts": "separate"}),
        ("internlm-001", "exact", {"precision": "engine", "fused_kernels": True}),
        ("internlm-003", "nodes", {"checkpointing": "off"}),
        ("hfblog-002", "exact", {"precision": "amp", "length": 4096}),
        ("rocm-001", "mean", {"precision": "fp32", "base_bytes": 4.0, "length": 430}),
        ("phil24-002", "offload", {"quant_bits": 4, "length": 3072}),
        ("dsex-001", "exact", {"precision": "engine", "length": 512}),
    ],
)
def test_kind_and_workload_of_a_row(name: str, kind: str, expected: dict[str, Any]) -> None:
    row = BY_ID[name]
    assert row.kind == kind
    assert {key: getattr(row.workload, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("foundry-096", {"devices_per_node": 8, "strategy": FSDP_SHARD_GRAD_OP}),
        ("foundry-014", {"nodes": 32, "strategy": FSDP_SHARD_GRAD_OP}),
        ("bigsci-071", {"strategy": ZERO_3, "offload_optimizer": True, "offload_parameters": True, "nodes": 4}),
        ("bigsci-080", {"strategy": ZERO_3, "offload_optimizer": True, "offload_parameters": False}),
        ("fsdpqlora-009", {"devices_per_node": 2, "strategy": DDP}),
        ("mlperf-007", {"strategy": ZERO_3, "devices_per_node": 8}),
    ],
)
def test_sharding_of_a_row(name: str, expected: dict[str, Any]) -> None:
    sharding = BY_ID[name].workload.sharding
    assert {key: getattr(sharding, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("fms-017", "a100-80g", {"half_flops": 312e12, "link": 234e9, "network": 0.0}),
        ("swift-025", "a100-80g", {"link": 156e9, "network": 0.0}),
        ("foundry-079", "a100-80g", {"network": 170e9}),
        ("mlperf-008", "h100-80g", {"network": 85e9}),
        ("bigsci-076", "v100-32g", {"network": 51e9 / 8}),  # as its authors measured it
        ("mindspeed-030", "ascend-910b-64g", {"half_flops": 313e12}),
        ("lithubt-012", "a10-24g", {"nvlink_switch": False, "matmul_efficiency": 0.64}),
        ("foundry-096", "a100-80g", {"attention_efficiency": 0.5}),
        ("ktfull-001", "rtx-4090", {"cores": 96, "host_bandwidth": 614e9}),
    ],
)
def test_device_of_a_row(name: str, device: str, expected: dict[str, float]) -> None:
    row = BY_ID[name]
    assert row.name == device
    assert {key: getattr(row.device, key) for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "seconds", "tokens"),
    [
        ("fms-017", 5.3495, 4 * 4096),
        ("peftmm-033", 0.117, 4 * 209.9),  # the row's own figure holds evaluations
        ("fmsorca-015", 1.4245, 2 * 4 * 2 * 286.8),
        ("foundry-096", 5.2951, 8 * 6 * 2 * 2048),
        ("automodel-005", 8.18, 512 * 4096),  # by the global batch: the model is split over four devices
    ],
)
def test_seconds_and_tokens_of_a_step(name: str, seconds: float, tokens: float) -> None:
    assert (BY_ID[name].seconds, BY_ID[name].tokens) == pytest.approx((seconds, tokens))


def test_each_row_is_used_or_counted() -> None:
    assert len(ROWS) + SKIPPED.total() == len(FACTS)
    assert len(BY_ID) == len(ROWS)


def test_a_third_of_what_was_collected_here_is_kept_apart() -> None:
    later = ("fsdpqlora", "phill4", "thunder", "tinyllama", "colossal", "ktfull", "torchtune")  # not the Qwen README
    collected = [row for row in ROWS if row.id.startswith(later) and row.kind != "foreign"]
    assert sum(row.held for row in collected) >= len(collected) / 3
    last = [
        row for row in ROWS if row.id.startswith(("internlm", "hfblog", "hfwhole", "rocm", "phil24", "woniu", "hfperf"))
    ]
    assert len(last) == 24
    assert all(row.held for row in last)
    assert not any(row.held for row in ROWS if row not in (*collected, *last))


@pytest.mark.parametrize(
    ("name", "doubt"),
    [
        ("foundry-096", ""),
        ("swift-024", "micro/global batch 1/16 assumed"),
        ("fsdpqlora-001", "two cards of 280 W"),
        ("fsdpqlora-014", ""),
        ("colossal-001", "batch and recomputation assumed"),
    ],
)
def test_doubt_about_a_row(name: str, doubt: str) -> None:
    assert BY_ID[name].doubt.startswith(doubt)
    assert bool(BY_ID[name].doubt) == bool(doubt)


def test_a_run_that_is_published_twice_is_used_once() -> None:
    twice = [facts for facts in rows.read(rows.EVIDENCE / "published.csv") if facts["id"].startswith("fmsorca-")]
    assert len(twice) == 2 * sum(name.startswith("fmsorca-") for name in FACTS)


@pytest.mark.parametrize(("deepspeed", "kind"), [("", "exact"), ("ds_z2_offload.json", "offload")])
def test_own_runs_on_a_gpu_are_rows_too(tmp_path: Path, deepspeed: str, kind: str) -> None:
    cell = {**gpu_cells.DEFAULTS, "deepspeed": deepspeed, "status": "ok", "peak_allocated_gib": 10}
    cell |= {"process_used_mib": 12000, "seconds_per_step": 0.8}
    path = tmp_path / "h200.csv"
    gpu.append(path, cell)
    [row] = times.measured_here(path)
    assert (row.kind, row.name, row.seconds) == (kind, "h200-141g", 0.8)
    assert row.tokens == row.workload.micro_batch * row.workload.accumulation * row.workload.length


def test_every_length_belongs_to_a_published_row() -> None:
    assert set(times.lengths()) <= {facts["id"] for facts in rows.read(rows.EVIDENCE / "published.csv")}


@pytest.mark.parametrize("size", ["760m", "1b", "3b", "7b", "13b", "30b", "70b"])
def test_shapes_agree_with_the_count_that_the_source_prints(size: str) -> None:
    row = next(row for row in ROWS if row.facts["hf_id"] == f"llm-foundry/mpt-{size}")
    published = int(row.facts["notes"].split("NumParams ")[1].split(";")[0])
    positions = row.workload.length * row.architecture.hidden  # which are learned there
    assert parameter_count(row.architecture) + positions == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(
    ("notes", "degree"),
    [
        ("gbs=8, tp=4, pp=1, cp=1", 4),
        ("tp=1, pp=1, cp=1, ep=-", 1),
        ("tp*pp*cp=2 (from gbs)", 2),
        ("sequence parallel (Ulysses) 8", 8),
        ("sequence_parallel_size 4", 4),
        ("tp/pp/cp unknown", 0),
        ("packed to 4096", 1),
    ],
)
def test_parallelism_in_the_notes_of_a_row(notes: str, degree: int) -> None:
    assert times.parallel({"notes": notes, "zero_stage": "unknown"}) == degree
