"""Proxies of the environment that a run's own requests would go through."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from validator.doctor.installed import installed
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.job import ray
from validator.job.job import Job

_NAMES = ("http_proxy", "https_proxy", "all_proxy")


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Nothing where no proxy is set."""
    proxies = {name: value for name in _NAMES if (value := _value(node.environment, name))}
    if not proxies:
        return
    caught = [host for host in _near(job, node) if not _spared(host, _value(node.environment, "no_proxy"))]
    if caught:
        found = f"{', '.join(proxies)} would take requests to {', '.join(dict.fromkeys(caught))}, near as they are"
        yield Line(
            "warning", "proxy", found, "no_proxy with them", f"export no_proxy={','.join(dict.fromkeys(caught))}"
        )
    socks = [name for name, value in proxies.items() if value.startswith("socks")]
    there = installed(node.folders)
    if socks and "httpx" in there.releases and "socksio" not in there.releases:
        found = f"{socks[0]} is of SOCKS, which httpx cannot use without socksio: the hub cannot be reached"
        yield Line("error", "proxy", found, "socksio", 'pip install "httpx[socks]", or a proxy of HTTP')


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
