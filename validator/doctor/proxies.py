"""Proxies of the environment that a run's own requests would go through."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here.installed import installed
from validator.job import ray
from validator.job.job import Job
from validator.quoting import quote
from validator.train import hub

_WHAT = "proxy"
_NAMES = ("http_proxy", "https_proxy", "all_proxy")


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Nothing where no proxy is set."""
    proxies = {name: value for name in _NAMES if (value := _value(node.environment, name))}
    if not proxies:
        return
    without = _value(node.environment, "no_proxy")
    caught = [*dict.fromkeys(host for host in _near(job, node) if not _spared(host, without))]
    if caught:
        found = f"{', '.join(proxies)} would take requests to {', '.join(caught)}, near as they are"
        spared = ",".join(filter(None, (without, *caught)))
        yield Line("warning", _WHAT, found, "no_proxy with them", f"export no_proxy={quote(spared)}")
    if socks := [name for name, value in proxies.items() if value.startswith("socks")]:
        yield from _socks(socks[0], job, installed(node.folders).releases)


def _socks(name: str, job: Job | None, there: Mapping[str, str]) -> Iterator[Line]:
    """huggingface_hub asks by httpx from release 1 on, by requests before. What lies here is not asked for."""
    old = there.get("huggingface-hub", "1").startswith("0.")
    client, support = ("requests", "pysocks") if old else ("httpx", "socksio")
    if client in there and support not in there:
        asked = job is None or (not hub.offline() and any((*hub.names(job), *hub.data_sets(job))))
        found = f"{name} is of SOCKS, which {client} cannot use without {support}: the hub cannot be reached"
        remedy = f'pip install "{client}[socks]", or set a proxy of HTTP'
        yield Line("error" if asked else "warning", _WHAT, found, support, remedy)


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""


def _near(job: Job | None, node: Node) -> Iterator[str]:
    """Hosts of this machine or its network that the run sends requests to: a mirror of the hub, a reward model behind
    an address, the dashboard of Ray."""
    addresses = [node.environment.get("HF_ENDPOINT", "")]
    if job and job.get("reward_model_type") == "api":
        addresses.append(str(job.get("reward_model")))
    if ray.on():
        addresses.append("http://127.0.0.1:8265")
    for address in addresses:
        host = urlsplit(address).hostname if "://" in address else None
        if host and _local(host):
            yield host


def _local(host: str) -> bool:
    """By its address, or a name without a domain."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def _spared(host: str, words: str) -> bool:
    """As requests reads no_proxy: ends of names, addresses, networks; a star is all."""
    for word in (one.strip().lstrip(".") for one in words.split(",")):
        if word == "*" or (word and (host == word or host.endswith(f".{word}"))):
            return True
        if "/" in word and _within(host, word):
            return True
    return False


def _within(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
