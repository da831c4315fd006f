"""An elastic launch of two nodes, both on this host. One dies: the other goes on alone from the last checkpoint, or, as
under the engines of `submit`, ends, and both are started again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import networks
from support.cluster import PATIENCE, carrying, kill, wait
from support.holding import Hold
from support.networks import Network

MADE_OF = ["release/constraints.txt", "validator/submit/*", "tests/support/networks.py"]

pytestmark = [
    pytest.mark.training,
    pytest.mark.network,
    pytest.mark.process,
    pytest.mark.skipif(bool(networks.missing()), reason=networks.missing()),
    pytest.mark.sample(one_in=6, whole_for=MADE_OF, together=True),
]

ROOT = Path(__file__).parents[2]
STEPS = 60
# torchrun orders nodes by their addresses: the first one saves the checkpoints.
ADDRESSES = {"first": "127.0.0.1", "second": "127.0.0.2"}
# torchrun starts again with the node that is left.
ALONE = {"MIN_NNODES": "1", "MAX_NNODES": "2", "MAX_RESTARTS": "1"}


def node(folder: Path, name: str, network: Network, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """A node that trains the demo recipe. The first one keeps the store where both meet."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NODE": f"{folder}/{name}",
        "FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "1", "NNODES": "2", "RDZV_ID": "demo",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "PET_RDZV_CONF": f"is_host={int(name == 'first')}", "PET_LOCAL_ADDR": ADDRESSES[name],
        "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_TORCH_DEVICE": "cpu", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "HOLD": str(folder), "PYTHONPATH": str(ROOT / "tests" / "support" / "ending"),
        **variables,
    }  # fmt: skip
    words = (
        "recipes/tiny-cpu-lora.yaml", f"output_dir={folder / 'out'}", "overwrite_output_dir=false",
        f"max_steps={STEPS}", "save_steps=10", "logging_steps=1", "per_device_train_batch_size=4", "plot_loss=false",
    )  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            network.command("llamafactory-cli", "train", *words),
            cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Where the nodes of a test meet, of which none is left after it."""
    with networks.own() as own:
        yield own
        while left := carrying("NODE", f"{tmp_path}/first") | carrying("NODE", f"{tmp_path}/second"):
            kill(left)


def one_dies(folder: Path, network: Network, variables: dict[str, str]) -> tuple[int, str]:
    """How the first node ends after the second was killed in the middle of the second checkpoint, and what it says."""
    hold = Hold(folder, 20)
    nodes = [node(folder, name, network, variables) for name in ("second", "first")]
    wait(lambda: hold.taken() or any(each.poll() is not None for each in nodes), "no checkpoint")
    assert [each.poll() for each in nodes] == [None, None], text(folder)[-5000:]
    while left := carrying("NODE", f"{folder}/second"):
        kill(left)
    hold.let_go()
    return nodes[-1].wait(PATIENCE), text(folder)


def text(folder: Path) -> str:
    return (folder / "first.log").read_text(errors="replace")


def trained(output: Path, said: str) -> None:
    """All steps were trained, the last ones from a checkpoint."""
    resumed = re.search(rf"Resuming training from {output}/checkpoint-(\d+)\.", said)
    assert resumed, said[-5000:]
    assert 10 <= int(resumed[1]) < STEPS
    lines = map(json.loads, (output / "trainer_log.jsonl").read_text().splitlines())
    losses = {line["current_steps"]: line["loss"] for line in lines if "loss" in line}
    assert list(losses) == [*range(1, STEPS + 1)]


def test_one_of_two_nodes_dies_and_the_other_goes_on(network: Network, tmp_path: Path) -> None:
    code, said = one_dies(tmp_path, network, ALONE)
    assert code == 0, said[-5000:]
    assert re.findall(r"world size: (\d)", said) == ["2", "1"]
    trained(tmp_path / "out", said)


def test_one_of_two_nodes_dies_and_both_are_started_again(network: Network, tmp_path: Path) -> None:
    code, said = one_dies(tmp_path, network, {})
    assert code == 1, said[-5000:]
    again = [node(tmp_path, name, network, {}) for name in ("second", "first")]
    assert [each.wait(PATIENCE) for each in again] == [0, 0], text(tmp_path)[-5000:]
    assert re.findall(r"world size: (\d)", text(tmp_path)) == ["2"]
    trained(tmp_path / "out", text(tmp_path))
