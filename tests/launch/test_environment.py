"""What a run wants of its nodes: variables, lines of bash run by bash, mounts; the table behind them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from validator.knowledge import devices
from validator.knowledge.devices import Device
from validator.knowledge.node_environment import NodeNeeds, node_needs, vendor_drivers
from validator.knowledge.tables import yaml_table
from validator.recipe.recipe_file import parse_recipe
from validator.run import launch_command
from validator.run.settings import resolve
from validator.submit import node_script

EXPANDABLE = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
MEETING = {**EXPANDABLE, "HCCL_CONNECT_TIMEOUT": "1800"}


def device(name: str) -> Device:
    return devices.find_device(name)[0]


@pytest.mark.parametrize("vendor", list(yaml_table("nodes")))
def test_an_entry_is_whole(vendor: str) -> None:
    entry = yaml_table("nodes")[vendor]
    needed = {"slurm", "kubernetes", "collectives", "source"}
    assert (
        needed
        <= set(entry)
        <= {*needed, "driver", "image", "pip_torch", "python_ops", "variables", "waiting", "container", "setup"}
    )
    parts = [entry, *entry.get("variables", {}).values(), *(entry[part] for part in entry if part in PARTS)]
    assert all(address.startswith("https://") for part in parts for address in part["source"])


PARTS = ("waiting", "container", "setup")


def test_every_vendor_of_accelerators_has_an_entry() -> None:
    vendors = {device(name).vendor for name in devices.device_ids()}
    assert vendors == set(yaml_table("nodes"))
    assert vendors - {"cpu"} == set(vendor_drivers())
    assert node_needs(device("48g")) == NodeNeeds()


def test_only_known_devices_are_named() -> None:
    for part in (yaml_table("nodes")["ascend"]["waiting"]["most"], yaml_table("nodes")["ascend"]["image"]):
        assert set(part) <= set(devices.device_ids())


@pytest.mark.parametrize(
    ("name", "nodes", "wait", "expected"),
    [
        ("a100-80g", 2, 7200, {}),
        ("ascend-910b-64g", 1, 1800, EXPANDABLE),
        ("ascend-910b-64g", 2, 1800, MEETING),
        # What `ddp_timeout` allows HCCL must allow, too; of a 910A no more than 17,340 s.
        ("ascend-910c-64g", 2, 7200, {**MEETING, "HCCL_EXEC_TIMEOUT": "7200"}),
        ("ascend-910a-32g", 1, 180000000, {**EXPANDABLE, "HCCL_EXEC_TIMEOUT": "17340"}),
    ],
)
def test_variables(name: str, nodes: int, wait: float, expected: dict[str, str]) -> None:
    assert launch_command.vendor_env(device(name), nodes, wait) == expected


def test_mounts_of_a_container() -> None:
    assert node_script.container_mounts(device("a100"), 8) == ((), ())
    paths, files = node_script.container_mounts(device("910b"), 2)
    assert paths == ("/dev/davinci0", "/dev/davinci1", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
    assert "/usr/local/Ascend/driver" in files
    # Between nodes the devices have a network of their own, whose addresses are in a file.
    assert node_script.container_mounts(device("910b"), 2, nodes=2).files == (*files, "/etc/hccn.conf")


@pytest.mark.parametrize(
    ("driver", "off"), [("545.23.08", True), ("550.40.06", True), ("550.40.07", False), ("570.86.15", False)]
)
def test_cards_that_accelerate_refuses_with_old_drivers(driver: str, off: bool) -> None:
    switched = {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}
    assert set(launch_command.p2p_disable_env(driver)) == (switched if off else set())


@pytest.mark.parametrize(
    ("name", "count", "nodes", "asked"),
    [
        ("rtx-4090", 2, 2, True), ("rtx-4090-d", 1, 1, True), ("rtx-4090", 1, 2, False), ("rtx-3090", 2, 1, False),
        ("48g", 2, 1, False),  # a device known by its memory alone
    ],
)  # fmt: skip
def test_which_cards_are_asked_for_their_driver(name: str, count: int, nodes: int, asked: bool) -> None:
    assert launch_command.lacks_p2p(device(name), count, nodes) == asked


@pytest.mark.parametrize(
    ("keys", "machine", "cores", "expected"),
    [
        ("deepspeed: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}", "8xa100", 96, "12"),
        ("deepspeed: {zero_optimization: {stage: 3, offload_optimizer: {device: nvme}}}", "8xa100", 4, "1"),
        ("deepspeed: {zero_optimization: {stage: 3, offload_param: {device: cpu}}}", "8xa100", 96, None),
        ("fsdp: full_shard auto_wrap offload", "2x8xa100", None, "$(($(nproc) / 8))"),
        ("fsdp: full_shard auto_wrap", "8xa100", 96, None),
        # One process has all cores already.
        ("deepspeed: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}", "1xa100", 96, None),
    ],
)
def test_threads_of_an_optimizer_in_main_memory(
    keys: str, machine: str, cores: int | None, expected: str | None
) -> None:
    found = launch_command.omp_threads(resolve(parse_recipe("x.yaml", f"{keys}\n"), machine), cores)
    assert found == ({"OMP_NUM_THREADS": expected} if expected else {})


# In one piece, as two processes write to one pipe.
TOLD = 'import os; os.write(1, f\'told {os.environ["OMP_NUM_THREADS"]} {os.environ["MASTER_ADDR"]}\\n\'.encode())'


@pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "validator/submit/*"])
@pytest.mark.slow
def test_torchrun_hands_threads_and_address_on(tmp_path: Path) -> None:
    """Started as LLaMA-Factory's launcher starts it for a job: one thread for each process unless the environment says
    otherwise, and the processes meet at the name of a node unless it is given an address."""
    pytest.importorskip("torch")
    (tmp_path / "told.py").write_text(TOLD)

    def told(**known: str) -> set[tuple[str, ...]]:
        elastic = ("--rdzv-id", "7", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *elastic, "told.py"]
        env = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "PET_LOCAL_ADDR")}
        ran = subprocess.run(words, env={**env, **known}, cwd=tmp_path, capture_output=True, text=True, check=True)
        return {tuple(line.split()[1:]) for line in ran.stdout.splitlines() if line.startswith("told")}

    assert told() == {("1", socket.getfqdn())}
    assert told(OMP_NUM_THREADS="12", PET_LOCAL_ADDR="127.0.0.2") == {("12", "127.0.0.2")}
