"""Two nodes on one host, each with a network of its own, and torchrun on them as a job starts it. Neither knows the
other's name, and its own leads to loopback, as on Debian."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from validator.submit import node_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.network,
    pytest.mark.real,
    pytest.mark.sample(one_in=6, whole_for=["release/constraints.txt", "validator/on_node/*"], together=True),
]

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PROGRAM = """
import datetime, os, torch
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(minutes=9))
one = torch.ones(1)
torch.distributed.all_reduce(one)
print("sum", int(one), flush=True)
torch.distributed.destroy_process_group()  # without it gloo's threads may end the process by SIGABRT
"""
# A network and a name of its own. It says so, and is told that the wire is there.
NODE = """
hostname node{number}
mount --make-rprivate /
printf '127.0.0.1 localhost\\n127.0.1.1 node{number}\\n' >hosts{number}
mount --bind hosts{number} /etc/hosts
ip link set lo up
echo ready
read -r _
ip addr add {address}/24 dev wire{number}
ip link set wire{number} up
set -euo pipefail
export MASTER_ADDR={first} MASTER_PORT=29511 RDZV_ID=7 NODE_RANK={number}
exec {python} {helper} node --engine=Kubernetes --recipe=program.py --output=out --nodes=2 -- {python} \\
  -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-id 7 --rdzv-backend c10d \\
  --rdzv-endpoint {first}:29511 program.py
"""


def apart() -> bool:
    """Whether networks can be made here: by root, and not in every container."""
    tools = all(map(shutil.which, ("unshare", "nsenter", "ip", "hostname")))
    return (
        tools
        and not subprocess.run(
            ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, check=False
        ).returncode
    )


def node(number: int, folder: Path) -> subprocess.Popen[str]:
    script = NODE.format(
        number=number,
        address=ADDRESSES[number],
        first=ADDRESSES[0],
        helper=node_script.program_folder(),
        python=sys.executable,
    )
    words = ["unshare", "--net", "--uts", "--mount", "bash", "-c", script]
    return subprocess.Popen(
        words, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def run(folder: Path) -> tuple[list[int], str]:
    """Exit codes of both nodes, and what they print."""
    (folder / "program.py").write_text(PROGRAM)
    nodes = [node(number, folder) for number in range(2)]
    try:
        for process in nodes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        first, second = (str(process.pid) for process in nodes)
        wire = ["ip", "link", "add", "wire0", "type", "veth", "peer", "name", "wire1", "netns", second]
        subprocess.run(["nsenter", "--net", "--target", first, *wire], check=True)
        for process in nodes:
            assert process.stdin
            print(file=process.stdin, flush=True)
        texts = [process.communicate(timeout=600)[0] for process in nodes]
    finally:
        for process in nodes:
            process.kill()
    return [process.returncode for process in nodes], "".join(texts)


def test_nodes_meet_where_names_lead_nowhere(tmp_path: Path) -> None:
    """Without addresses they were seen to wait for each other until torchrun's timeout."""
    pytest.importorskip("torch")
    if not apart():
        pytest.skip("networks of their own cannot be made on this machine")
    codes, text = run(tmp_path)
    assert codes == [0, 0], text
    assert text.count("sum 2") == 2
