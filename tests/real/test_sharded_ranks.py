"""Bytes of weights and of communication of hierarchical sharding, beside four real processes of DeepSpeed and FSDP that
count them (tests/support/sharded_ranks.py)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping

import pytest
from support import sharded_ranks

from validator.knowledge.architectures import read_architecture
from validator.physics import FSDP_FULL_SHARD, ZERO_3, Adapter, Sharding, Workload
from validator.physics.communication import communication_windows
from validator.physics.micro_batch import MicroBatchCosts
from validator.physics.training_step import training_step
from validator.physics.weights import adapter_weights_on_device, base_weights_on_device
from validator.physics.workload import Method

pytestmark = [pytest.mark.training, pytest.mark.network]
SHARDINGS = {
    "hpz": Sharding(2, 2, ZERO_3, second_copy_devices=2, persistence_threshold=0, prefetch_bucket=1),
    "hsdp": Sharding(2, 2, FSDP_FULL_SHARD, replicated_across_nodes=True),
}


# Processes of each ring: of four processes, two are a node.
RINGS = {"all": 4, "node": 2, "second copy": 2, "across": 2}


def counted(kind: str, method: str) -> tuple[float, Mapping[int, float]]:
    """The bytes of weights that one of four processes holds, and the bytes that its collectives carry in a step, by the
    number of their processes. An all-reduce goes round twice, and the other process of a node has one of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "4", "--master_port", str(port)]
    command = [*program, sharded_ranks.__file__, kind, method]
    run = subprocess.run(command, env={**os.environ, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("found ")]
    assert lines, run.stderr[-2000:]
    found = json.loads(lines[0].removeprefix("found "))
    carried: defaultdict[int, float] = defaultdict(float)
    for name, size in found["carried"].items():
        what, processes = name.split()
        carried[int(processes)] += 4 * size if what == "reduced" else size
    return found["weights"], carried


def predicted(kind: str, method: Method) -> tuple[float, Mapping[int, float]]:
    """The same by the formulas."""
    shape = read_architecture({"model_type": "llama", "torch_dtype": "bfloat16", **sharded_ranks.SHAPES})
    work = Workload(
        method=method,
        precision="engine" if kind == "hpz" else "amp",
        base_bytes=2.0 if kind == "hpz" else 4.0,
        adapter=Adapter(rank=8),
        accumulation=sharded_ranks.ACCUMULATION,
        length=sharded_ranks.LENGTH,
        checkpointing="off",
        sharding=SHARDINGS[kind],
    )
    step = training_step(shape, work)
    carried: defaultdict[int, float] = defaultdict(float)
    for window in communication_windows(step, MicroBatchCosts(())):
        for each in window.collectives:
            carried[RINGS[each.ring]] += window.times * each.rounds * each.size
    return base_weights_on_device(step) + adapter_weights_on_device(step), carried


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("kind", SHARDINGS)
def test_weights_and_traffic_are_those_that_real_processes_count(kind: str, method: Method) -> None:
    weights, carried = counted(kind, method)
    expected_weights, expected = predicted(kind, method)
    assert expected_weights == pytest.approx(weights, rel=0.01)
    assert set(carried) == set(expected)
    for processes, size in carried.items():
        # A backward pass leaves out a frozen embedding, and under ZeRO-3 an output layer that the forward pass still
        # holds; each is 8 % of this model. The formulas count them.
        is_exact = processes == 4 or (kind, method) == ("hsdp", "full")
        assert expected[processes] == pytest.approx(size, rel=0.02 if is_exact else 0.08), processes
