"""An elastic launch of two nodes, both on this host: one dies, the other goes on alone from the last checkpoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import PATIENCE, carrying, free_ports, kill, wait

pytestmark = pytest.mark.training

ROOT = Path(__file__).parent.parent
STEPS = 200


def node(folder: Path, name: str, port: int) -> subprocess.Popen[bytes]:
    """A node that trains the demo recipe. The first one keeps the store where both meet."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NODE": f"{folder}/{name}",
        "FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "1", "NNODES": "2", "MIN_NNODES": "1", "MAX_NNODES": "2",
        "MAX_RESTARTS": "1", "RDZV_ID": "demo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "PET_RDZV_CONF": f"is_host={int(name == 'first')}", "PET_LOCAL_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
        "ACCELERATE_TORCH_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    words = (
        "recipes/tiny-cpu-lora.yaml", f"output_dir={folder / 'out'}", "overwrite_output_dir=false",
        f"max_steps={STEPS}", "save_steps=10", "logging_steps=1", "per_device_train_batch_size=4", "plot_loss=false",
    )  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["llamafactory-cli", "train", *words],
            cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def first(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The first of two nodes that train together."""
    (port,) = free_ports(1)
    node(tmp_path, "second", port)
    yield node(tmp_path, "first", port)
    kill(carrying("NODE", f"{tmp_path}/first") | carrying("NODE", f"{tmp_path}/second"))


def test_one_of_two_nodes_dies_and_the_other_goes_on(first: subprocess.Popen[bytes], tmp_path: Path) -> None:
    output = tmp_path / "out"
    wait(lambda: [*output.glob("checkpoint-*/trainer_state.json")] or first.poll() is not None, "no checkpoint")
    kill(carrying("NODE", f"{tmp_path}/second"))
    assert first.wait(PATIENCE) == 0, (tmp_path / "first.log").read_text(errors="replace")[-5000:]
    text = (tmp_path / "first.log").read_text(errors="replace")
    resumed = re.search(rf"Resuming training from {output}/checkpoint-(\d+)\.", text)
    assert resumed, text[-5000:]
    assert 10 <= int(resumed[1]) < STEPS
    assert re.findall(r"world size: (\d)", text) == ["2", "1"]
    lines = map(json.loads, (output / "trainer_log.jsonl").read_text().splitlines())
    losses = {line["current_steps"]: line["loss"] for line in lines if "loss" in line}
    assert list(losses) == [*range(1, STEPS + 1)]
