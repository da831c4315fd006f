"""The network as doctor reads it: interfaces, InfiniBand, the address where nodes meet, proxies."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.installed_packages import site
from support.network_roots import adapters, interfaces

from validator.doctor import hub_checks, network_checks, start_checks
from validator.doctor import network_checks as cards
from validator.doctor.check_result import CheckContext, CheckResult
from validator.machine import host, network
from validator.machine.installed_packages import InstalledPackages
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import RunSettings, resolve

RECIPE = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: lora\n"
ETH = {"eth0": {"networks": ["0.0.0.0/0", "10.0.0.0/24"], "speed": 25000}}
BRIDGE = {"br-1a2b": {"networks": ["172.18.0.0/16"]}}
DOCKER = {"docker0": {"networks": ["172.17.0.0/16"]}}
TUNNEL = {"tailscale0": {"networks": ["100.64.0.0/10"], "state": "unknown"}}
VARIABLE = "NCCL_SOCKET_IFNAME"
TO = f"which leads to MASTER_ADDR; export {VARIABLE}="
REWARD = "reward_model_type: api\nreward_model: http://reward:8000\n"
PROXY, MIRROR = "http://proxy:3128", "http://10.1.2.3:8090"
CAUGHT = "(local network) would go through"
FAST = {"ens9": {"networks": ["192.168.7.0/24"], "speed": 100000}}


def job(machine: str = "2x8xa100-80g", settings: str = "") -> RunSettings:
    return resolve(parse_recipe("recipe.yaml", RECIPE + settings), machine)


def told(lines: Iterable[CheckResult]) -> str:
    return "\n".join(f"{line.state}: {line.found}; {line.wanted}; {line.remedy}" for line in lines)


@pytest.mark.parametrize(
    ("there", "environment", "expected"),
    [
        (ETH, {}, "ok: NCCL meets over eth0 (25 Gbit/s)"),
        ({**DOCKER, **ETH}, {}, "ok: NCCL meets over eth0"),
        ({**BRIDGE, **ETH}, {}, "warning: NCCL meets over br-1a2b; a card that joins the nodes"),
        ({**BRIDGE, **ETH}, {"MASTER_ADDR": "10.0.0.9"}, f"warning: NCCL meets over br-1a2b; eth0, {TO}=eth0"),
        ({**ETH, **FAST}, {"MASTER_ADDR": "192.168.7.3"}, "warning: NCCL meets over eth0 (25 Gbit/s); ens9"),
        ({**ETH, **FAST}, {"MASTER_ADDR": "8.8.8.8"}, "ok: NCCL meets over eth0"),
        ({**ETH, **FAST}, {VARIABLE: "ens"}, f"ok: NCCL meets over ens9 (100 Gbit/s), as {VARIABLE}=ens says"),
        ({**ETH, **FAST}, {VARIABLE: "^eth"}, "ok: NCCL meets over ens9"),
        ({**ETH, **FAST}, {VARIABLE: "=ens"}, f"error: {VARIABLE}==ens matches none of the interfaces here; eth0"),
        (ETH, {"NCCL_SOCKET_IFNAME": "bond0"}, "error: NCCL_SOCKET_IFNAME=bond0 matches none"),
        ({"eth0": {**ETH["eth0"], "state": "down"}}, {}, "error: no interface is up but the loop"),
        (TUNNEL, {VARIABLE: "tail"}, f"warning: NCCL meets over tailscale0, as {VARIABLE}=tail says"),
        ({**ETH, "ib0": {"networks": ["10.9.0.0/16"]}}, {}, "ok: NCCL meets over ib0"),
    ],
)  # fmt: skip
def test_interface(there: dict[str, Any], environment: dict[str, str], expected: str, tmp_path: Path) -> None:
    interfaces(tmp_path, there)
    assert told(cards.check_interfaces(job(), CheckContext(tmp_path, environment))).startswith(expected)


def test_interface_of_hccl_is_the_first_of_the_alphabet(tmp_path: Path) -> None:
    interfaces(tmp_path, {**ETH, **BRIDGE, **DOCKER})
    two = job("2x8xascend-910b-64g")
    assert told(cards.check_interfaces(two, CheckContext(tmp_path, {}))).startswith("warning: HCCL meets over br-1a2b")
    assert told(cards.check_interfaces(two, CheckContext(tmp_path, {"HCCL_SOCKET_IFNAME": "eth"}))).startswith(
        "ok: HCCL meets over eth0"
    )
    assert told(cards.check_interfaces(two, CheckContext(tmp_path, {"HCCL_IF_IP": "127.0.0.1"}))).startswith(
        "ok: HCCL meets at HCCL_IF_IP"
    )
    there = {"HCCL_IF_IP": "192.0.2.1", "HCCL_SOCKET_IFNAME": "eth"}
    assert told(cards.check_interfaces(two, CheckContext(tmp_path, there))).startswith(
        "error: HCCL_IF_IP=192.0.2.1 is no address of this"
    )


def test_one_node_needs_no_interface_but_the_one_that_is_named(tmp_path: Path) -> None:
    interfaces(tmp_path, {})
    one = job("1x8xa100-80g")
    assert told(cards.check_interfaces(one, CheckContext(tmp_path, {}))) == ""
    assert (
        told(cards.check_interfaces(job("1x1xa100-80g"), CheckContext(tmp_path, {"NCCL_SOCKET_IFNAME": "eth0"}))) == ""
    )
    assert told(cards.check_interfaces(one, CheckContext(tmp_path, {"NCCL_SOCKET_IFNAME": "eth0"}))).startswith(
        "error: "
    )
    assert told(cards.check_interfaces(None, CheckContext(tmp_path, {"NNODES": "2"}))).startswith("error: no interface")


def test_interface_of_gloo(tmp_path: Path) -> None:
    interfaces(tmp_path, ETH)
    node = CheckContext(tmp_path, {"GLOO_SOCKET_IFNAME": "eth0,eth9"})
    found = "GLOO_SOCKET_IFNAME=eth0,eth9, and eth9 is none of the interfaces here; eth0, lo"
    assert told(cards.check_interfaces(job("1x8xa100-80g"), node)).startswith(f"warning: {found}")
    assert told(cards.check_interfaces(job("1x8xa100-80g", "use_cpu: true\n"), node)).startswith(f"error: {found}")
    assert told(cards.check_interfaces(None, CheckContext(tmp_path, {"GLOO_SOCKET_IFNAME": "eth0"}))) == ""


def test_interfaces_of_this_machine() -> None:
    names = {name for _, name in socket.if_nameindex()}
    assert {one.name for one in network.list_interfaces(Path("/"))} <= names - {"lo"}


@pytest.mark.parametrize(
    ("ports", "environment", "expected"),
    [
        ({"mlx5_0": "4: ACTIVE", "mlx5_1": "4: ACTIVE"}, {}, "ok: 2 active (400 Gb/sec)"),
        ({"mlx5_0": "1: DOWN", "mlx5_1": "2: INIT"}, {}, "warning: no port of mlx5_0, mlx5_1 is active"),
        ({"mlx5_0": "1: DOWN", "mlx5_1": "4: ACTIVE"}, {}, "ok: 1 active"),
        ({"mlx5_0": "4: ACTIVE"}, {"NCCL_IB_DISABLE": "1"}, "warning: NCCL_IB_DISABLE=1, and 1 active (400 Gb/sec)"),
        ({}, {"NCCL_IB_DISABLE": "1"}, ""),
        ({"mlx5_0": "4: ACTIVE"}, {"NCCL_IB_HCA": "mlx5_bond_1,mlx5_bond_2"}, "warning: NCCL_IB_HCA=mlx5_bond_1"),
        ({"mlx5_0": "1: DOWN", "mlx5_1": "4: ACTIVE"}, {"NCCL_IB_HCA": "=mlx5_0:1"}, "warning: no port of mlx5_0 is"),
        ({"mlx5_0": "1: DOWN", "mlx5_1": "4: ACTIVE"}, {"NCCL_IB_HCA": "^mlx5_0"}, "ok: 1 active"),
        ({}, {}, ""),
    ],
)  # fmt: skip
def test_infiniband(ports: dict[str, str], environment: dict[str, str], expected: str, tmp_path: Path) -> None:
    adapters(tmp_path, ports)
    node = CheckContext(tmp_path, environment)
    lines = told(network_checks.check_infiniband(job(), node))
    assert lines.startswith(expected) if expected else not lines
    assert told(network_checks.check_infiniband(job("1x8xa100-80g"), node)) == ""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes can reach this machine by its name."""
    resolve = socket.gethostbyname
    here = socket.gethostname()
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.7" if name == here else resolve(name))


def kept() -> socket.socket:
    """A port that nobody listens at. Until this is closed, nobody else is given it either."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    return one


def met(environment: Mapping[str, str]) -> str:
    return told(network_checks.check_meeting(job(), CheckContext(environment=environment)))


@pytest.mark.usefixtures("known")
def test_the_port_of_node_0() -> None:
    with closing(kept()) as server:
        port = str(server.getsockname()[1])
        first = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        assert met(first) == f"ok: MASTER_ADDR=127.0.0.1 is this node, and port {port} is free; ; "
        server.listen()
        assert met(first).startswith(f"error: port {port} of this node is taken")
    assert met({**first, "NODE_RANK": "1"}).startswith("error: MASTER_ADDR=127.0.0.1 is 127.0.0.1, which every node")
    assert met({**first, "RDZV_ID": "7"}).startswith("error: MASTER_ADDR=127.0.0.1 is 127.0.0.1, which every node")
    assert met({**first, "MASTER_PORT": "http"}) == "error: MASTER_PORT=http; a number from 1 to 65535; "


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("environment", "taken"),
    [
        ({}, True),
        ({"NODE_RANK": "0"}, True),
        ({"NODE_RANK": "1"}, False),
        ({"RDZV_ID": "7"}, True),
        ({"RDZV_ID": "7", "PET_RDZV_CONF": "is_host=1,timeout=900"}, True),
        ({"RDZV_ID": "7", "PET_RDZV_CONF": "timeout=900,is_host=0"}, False),
        ({"RDZV_ID": "7", "PET_RDZV_CONF": "is_host=False"}, False),
    ],
)
def test_a_node_beside_the_one_where_they_meet(environment: dict[str, str], taken: bool) -> None:
    """Both have this address; the other one may have begun."""
    with closing(socket.create_server(("0.0.0.0", 0))) as server:
        port = str(server.getsockname()[1])
        line = met({"MASTER_ADDR": "0.0.0.0", "MASTER_PORT": port, **environment})
    expected = (
        f"error: port {port} of this node is taken" if taken else f"ok: MASTER_ADDR=0.0.0.0 answers at port {port}"
    )
    assert line.startswith(expected)


@pytest.mark.usefixtures("known")
def test_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that answers, one that refuses, and one that does not answer, behind an address that is not ours."""
    there = {"NODE_RANK": "1", "MASTER_ADDR": "192.0.2.1"}
    assert met({**there, "NODE_RANK": "0"}).startswith("warning: this is node 0, and MASTER_ADDR=192.0.2.1 is not of")
    connect = socket.socket.connect
    with closing(kept()) as server:
        end = server.getsockname()
        monkeypatch.setattr(socket.socket, "connect", lambda one, _end: connect(one, end))
        assert met(there) == "ok: MASTER_ADDR=192.0.2.1 answers; nothing listens at port 29500 yet; ; "
        server.listen()
        assert met(there) == "ok: MASTER_ADDR=192.0.2.1 answers at port 29500; ; "

    def silent(_one: socket.socket, _end: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket.socket, "connect", silent)
    assert met(there).startswith("error: MASTER_ADDR=192.0.2.1 does not answer at port 29500: timed out")


@pytest.mark.usefixtures("known")
def test_an_address_that_does_not_resolve() -> None:
    assert met({"MASTER_ADDR": "node-0.invalid"}).startswith("error: MASTER_ADDR=node-0.invalid does not resolve here")
    assert met({}) == ""


@pytest.mark.parametrize("address", ["127.0.1.1", ""])
def test_a_name_that_only_this_machine_knows(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(_name: str) -> str:
        if not address:
            raise socket.gaierror(-2, "Name or service not known")
        return address

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    assert met({"NODE_RANK": "1"}) == met({"RDZV_ID": "1", "PET_LOCAL_ADDR": "10.0.0.7"}) == ""
    line = met({"RDZV_ID": "1"})
    assert line.startswith(
        f"warning: the name of this machine, {socket.gethostname()}, {'is' if address else 'does not'}"
    )
    assert "the other nodes reach it; they are told that name" in line


def test_a_run_on_one_node_meets_nobody() -> None:
    assert (
        told(
            network_checks.check_meeting(
                job("1x8xa100-80g"), CheckContext(environment={"MASTER_ADDR": "nowhere.invalid"})
            )
        )
        == ""
    )


@pytest.mark.parametrize(
    ("environment", "settings", "expected"),
    [
        ({"http_proxy": "http://proxy:3128"}, "", ""),
        ({"http_proxy": "http://proxy:3128", "HF_ENDPOINT": "https://hf-mirror.com"}, "", ""),
        ({"https_proxy": PROXY, "HF_ENDPOINT": MIRROR}, "", f"warning: requests to 10.1.2.3 {CAUGHT} https_proxy"),
        ({"HTTPS_PROXY": PROXY, "HF_ENDPOINT": MIRROR, "NO_PROXY": "10.0.0.0/8"}, "", ""),
        ({"HTTP_PROXY": PROXY}, REWARD, f"warning: requests to reward {CAUGHT} http_proxy"),
        ({"HTTP_PROXY": PROXY, "no_proxy": "localhost,.cluster,reward"}, REWARD, ""),
        ({"all_proxy": "socks5://127.0.0.1:7890"}, "", "error: all_proxy is a SOCKS proxy"),
    ],
)  # fmt: skip
def test_proxies(environment: dict[str, str], settings: str, expected: str, tmp_path: Path) -> None:
    node = CheckContext(environment=environment, site_packages=site(tmp_path, {"httpx": "0.28.1"}))
    lines = told(hub_checks.check_proxy(job(settings=settings), node))
    assert lines.startswith(expected) if expected else not lines


def test_socks_with_its_package(tmp_path: Path) -> None:
    folders = site(tmp_path, {"httpx": "0.28.1", "socksio": "1.0"})
    assert (
        told(
            hub_checks.check_proxy(None, CheckContext(environment={"all_proxy": "socks5://x:1"}, site_packages=folders))
        )
        == ""
    )


def test_what_has_no_proxy_already_stays_so() -> None:
    environment = {"HTTP_PROXY": PROXY, "NO_PROXY": "localhost"}
    (line,) = hub_checks.check_proxy(
        job(settings=REWARD), CheckContext(environment=environment, site_packages=("/none",))
    )
    assert line.remedy == "export no_proxy=localhost,reward"


OLD = {"httpx": "0.28.1", "requests": "2.32", "huggingface-hub": "0.36"}


@pytest.mark.parametrize(
    ("packages", "settings", "expected"),
    [
        (
            {"httpx": "0.28.1", "huggingface-hub": "1.9"},
            RECIPE,
            "error: all_proxy is a SOCKS proxy, which httpx cannot",
        ),
        (OLD, RECIPE, "error: all_proxy is a SOCKS proxy, which requests cannot"),
        ({**OLD, "pysocks": "1.7"}, RECIPE, ""),
        ({"httpx": "0.28.1"}, "model_name_or_path: demo/tiny-qwen3\n", "warning: all_proxy"),
    ],
)
def test_socks(packages: dict[str, str], settings: str, expected: str, tmp_path: Path) -> None:
    node = CheckContext(environment={"all_proxy": "socks5://x:1"}, site_packages=site(tmp_path, packages))
    lines = told(hub_checks.check_proxy(resolve(parse_recipe("recipe.yaml", settings)), node))
    assert lines.startswith(expected) if expected else not lines


def test_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, names: dict.fromkeys(names, "1"))
    monkeypatch.setattr(host, "usable_cpus", lambda _root: 64)
    for name in ("FORCE_TORCHRUN", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    node = CheckContext(tmp_path, {})
    assert told(start_checks.check_ray(job(), node)) == ""
    monkeypatch.setenv("USE_RAY", "1")
    assert told(start_checks.check_ray(job(), node)) == (
        "error: this node has 64 CPUs, and 10 are reserved for each of 8 devices: Ray would wait for ever; "
        "set `ray_init_kwargs: {num_cpus: 80}`, or unset USE_RAY; ; "
    )
    promised = job(settings="ray_init_kwargs: {num_cpus: 80}\n")
    assert told(start_checks.check_ray(promised, node)).startswith(
        "ok: 80 CPUs, of which 10 are reserved for each device"
    )
