"""What each node of a job does before the training and at its end, with programs that stand in for the vendors' and for
the trainer."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from validator.on_node import node
from validator.run.checkpoints import TrainerCheckpoint
from validator.submit import node_script

HELPER = str(node_script.program_folder())


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Changes of the environment end with the test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def program(folder: Path, name: str, text: str) -> None:
    """A program that is found first."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def test_the_paths_of_cann_are_set_where_nothing_has_set_them(tmp_path: Path) -> None:
    folder = tmp_path / "ascend-toolkit"
    folder.mkdir()
    # As the real one: it appends to a variable that may not be set, and its last test may fail.
    (folder / "set_env.sh").write_text("export ASCEND_TOOLKIT_HOME=/cann\nexport A=/cann:$LD_UNSET_PATH\nfalse\n")
    files, unless = ("~/nowhere.sh", "~/ascend-toolkit/set_env.sh"), "ASCEND_TOOLKIT_HOME"
    os.environ |= {"HOME": str(tmp_path), unless: "/image"}
    node.read_vendor_files(files, unless)
    assert "A" not in os.environ
    del os.environ[unless]
    node.read_vendor_files(files, unless)
    assert (os.environ["A"], os.environ[unless]) == ("/cann:", "/cann")


@pytest.mark.parametrize(
    ("driver", "off"),
    [("545.23.08", True), ("550.40.06", True), ("550.40.07", False), ("550.120", False), ("570.86.15", False)],
)
def test_cards_that_accelerate_refuses_with_old_drivers(tmp_path: Path, driver: str, off: bool) -> None:
    program(tmp_path, "nvidia-smi", f"echo {driver}")
    node.switch_peers_off("550.40.07", ["NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"])
    assert [os.environ.get(name) for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")] == ["1" if off else None] * 2


def test_nodes_meet_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is no address for others. Addresses that sbatch has brought along are of the node where the job was
    submitted; names are the user's."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}
    node.set_addresses(hccl=True)
    assert "HCCL_IF_IP" not in os.environ
    program(tmp_path, "ip", "echo '2: bond0    inet 10.1.2.3/24 scope global bond0'")
    monkeypatch.setattr(node, "local_address", lambda address: {"node1": "10.1.2.3"}[address])
    os.environ |= {"MASTER_ADDR": "node1", "PET_LOCAL_ADDR": "10.9.9.9", "HCCL_IF_IP": "10.9.9.9"}
    node.set_addresses(hccl=True)
    assert os.environ["PET_LOCAL_ADDR"] == os.environ["HCCL_IF_IP"] == "10.1.2.3"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "bond0"
    os.environ |= {"HCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}
    node.set_addresses(hccl=True)
    assert "HCCL_IF_IP" not in os.environ
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth1"


def test_limits_are_raised_as_far_as_is_allowed() -> None:
    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)
    before = [resource.getrlimit(kind) for kind in kinds]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[0][1]))
        node.raise_limits(512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
        assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == before[1][1]
    finally:
        for kind, limits in zip(kinds, before, strict=True):
            resource.setrlimit(kind, limits)


def safetensors(size: int = 16) -> bytes:
    head = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(size)


def checkpoint(
    folder: Path,
    *,
    state: str | None = '{"global_step": 200}',
    tensors: bytes | None = None,
    optimizer: bytes | None = None,
    mark: bool = False,
) -> None:
    folder.mkdir(parents=True)
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    if optimizer is not None:
        (folder / "optimizer.pt").write_bytes(optimizer)
    (folder / "model.safetensors").write_bytes(safetensors() if tensors is None else tensors)
    if mark:
        (folder / "checkpoint-is-incomplete.txt").write_text("Checkpoint started")


@pytest.mark.parametrize(
    ("how", "stays"),
    [
        ({}, True),
        ({"state": None}, False),
        ({"mark": True}, False),
        ({"tensors": safetensors(8)}, False),
        ({"tensors": safetensors()[:20]}, False),
        ({"tensors": safetensors(24)}, False),
        ({"tensors": b""}, False),
        ({"tensors": bytes(64)}, False),
        ({"tensors": (16).to_bytes(8, "little") + bytes(64)}, False),
        ({"state": ""}, False),
        ({"optimizer": b"PK\x05\x06" + bytes(18)}, True),
        ({"optimizer": b"PK\x03\x04" + bytes(18)}, False),
    ],
)
def test_a_half_written_checkpoint_gets_another_name(
    tmp_path: Path, how: dict[str, bool], stays: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "checkpoint-100")
    checkpoint(tmp_path / "checkpoint-200", **how)  # type: ignore[arg-type]
    assert (TrainerCheckpoint(tmp_path / "checkpoint-200").problem is None) is stays, "the node judges as `train` does"
    node.clean_output(tmp_path, "")
    assert (tmp_path / "checkpoint-100").is_dir()
    assert (tmp_path / "checkpoint-200").is_dir() is stays
    assert (tmp_path / "incomplete-checkpoint-200").is_dir() is not stays
    assert ("checkpoint-200 was not written to its end" in capfd.readouterr().err) is not stays


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    for _ in range(2):
        checkpoint(tmp_path / "checkpoint-200", state=None)
        node.clean_output(tmp_path, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "incomplete-checkpoint-200", "incomplete-checkpoint-200-1",
    ]  # fmt: skip


def test_checkpoints_of_an_earlier_run_are_set_aside(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoint-900")
    (tmp_path / "_running.json").touch()
    node.clean_output(tmp_path, "7")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_running.json", "earlier-7"]
    assert (tmp_path / "earlier-7" / "checkpoint-900" / "trainer_state.json").is_file()


def test_a_start_that_was_killed_while_it_set_aside_is_made_up_for(tmp_path: Path) -> None:
    """Else the next start would go on from what another job has left."""
    for name in ("checkpoint-2", "earlier-7.part/checkpoint-1", "earlier-6/checkpoint-9"):
        (tmp_path / name).mkdir(parents=True)
    for _ in range(2):
        node.clean_output(tmp_path, "7")
        assert sorted(path.name for path in (tmp_path / "earlier-7").iterdir()) == ["checkpoint-1", "checkpoint-2"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier-6", "earlier-7"]


def test_what_cannot_be_moved_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "checkpoint-200", state=None)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "checkpoint-200"))

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(node.NodeError, match=r"checkpoint-200 cannot be put in order .*: permission denied; rename or"):
        node.clean_output(tmp_path, "")


@pytest.mark.process
def test_a_pod_that_is_told_to_end_ends_after_a_save(tmp_path: Path) -> None:
    """A checkpoint is being written; the training itself is told nothing until it is."""
    recipe, output, trainer = tmp_path / "mine.yaml", tmp_path / "saves", tmp_path / "train"
    recipe.touch()
    (output / "checkpoint-5").mkdir(parents=True)
    trainer.write_text(
        f"#!{sys.executable}\n"
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print('trains', flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "print('saved:', os.path.exists(sys.argv[2]), flush=True)\n"
    )
    trainer.chmod(0o755)
    state = output / "checkpoint-5" / "trainer_state.json"
    options = ["--engine=Kubernetes", f"--recipe={recipe}", f"--output={output}"]
    with subprocess.Popen(
        [sys.executable, HELPER, "node", *options, "--", str(trainer), str(recipe), str(state)],
        env={**os.environ, "RDZV_ID": "mine", "NODE_RANK": "0"}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as job:  # fmt: skip
        assert job.stdout
        assert job.stderr
        assert job.stdout.readline() == "trains\n"
        assert json.loads((output / "_running.json").read_text())["job"]["number"] == "mine"
        job.terminate()
        assert job.stderr.readline() == "lmf-recipes: told to end: a checkpoint is being saved\n"
        state.write_text("{}")
        assert job.stderr.readline() == "lmf-recipes: told to end: stopping\n"
        assert job.stdout.read() == "saved: True\n"
        assert job.wait(600) == 143
    assert not (output / "_running.json").exists()


@pytest.mark.process
def test_nodes_need_nothing_but_python() -> None:
    """From 3.6 on, without packages."""
    done = subprocess.run(["vermin", "-t=3.6-", "--no-tips", HELPER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    done = subprocess.run(
        [sys.executable, "-I", "-S", HELPER, "--help", "--"], capture_output=True, text=True, check=True
    )
    assert "lmf-recipes job" in done.stdout
