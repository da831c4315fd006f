"""The address and port at which the nodes of a run meet."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.job.job import Job
from validator.train import launch

_WHAT = "meeting"
# Of torchrun's settings of a rendezvous (torch, elastic/rendezvous/api.py, RendezvousParameters.get_as_bool).
_ELSEWHERE = re.compile(r"\bis_host\s*=\s*(0|false|f|no|n)\b", re.IGNORECASE)
_LIMIT = 5.0  # seconds to another node
_OPEN = "open the port in the firewall, or set another MASTER_ADDR"


def nodes(job: Job | None, node: Node) -> int:
    """How many nodes run: those of the machine, or what the environment says."""
    told = node.environment.get("NNODES", "")
    return int(told) if told.isdecimal() else job.machine.nodes if job and job.machine else 1


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Nothing for a run on one node."""
    if nodes(job, node) == 1:
        return
    if _by_name(job, node):
        yield from _own_name()
    address, port = node.environment.get("MASTER_ADDR"), node.environment.get("MASTER_PORT", launch.PORT)
    if address is None:
        return  # the launcher is asked for it
    if not port.isdecimal() or not 0 < int(port) < 65536:
        yield Line("error", _WHAT, f"MASTER_PORT={port}", "a number from 1 to 65535")
        return
    yield _met(address, int(port), node)


def _met(address: str, port: int, node: Node) -> Line:
    """Whether this node can be met, or can reach the one that is."""
    where = f"MASTER_ADDR={address}"
    try:
        place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as err:
        return Line("error", _WHAT, f"{where} does not resolve here: {err}", "an address or a name that all nodes know")
    family, end = place[0], place[4]
    first = node.environment.get("NODE_RANK") == "0" and "RDZV_ID" not in node.environment
    if ipaddress.ip_address(str(end[0]).partition("%")[0]).is_loopback and not first:
        return Line("error", _WHAT, f"{where} is {end[0]}, which every node takes for itself", "an address of node 0")
    if _ours(family, end) and not _beside(node):
        return _free(family, end, where)
    if first:
        wanted = "an address of this machine, or of a service that leads to it"
        return Line("warning", _WHAT, f"this is node 0, and {where} is not of this machine", wanted)
    return _reached(family, end, where)


def _beside(node: Node) -> bool:
    """Whether another node of the run, which shares this address, is where they meet: it may have begun."""
    if "RDZV_ID" in node.environment:
        return _ELSEWHERE.search(node.environment.get("PET_RDZV_CONF", "")) is not None
    return node.environment.get("NODE_RANK", "0") != "0"


def _ours(family: int, end: tuple[Any, ...]) -> bool:
    """Whether the address is of this machine."""
    return bound(family, (end[0], 0, *end[2:])) == 0


def _free(family: int, end: tuple[Any, ...], where: str) -> Line:
    if (fault := bound(family, end)) == 0:
        return Line("ok", _WHAT, f"{where} is this node, and port {end[1]} is free")
    what = "is taken, such as by a run before" if fault == errno.EADDRINUSE else f"cannot be had: {os.strerror(fault)}"
    return Line("error", _WHAT, f"port {end[1]} of this node {what}", "a free port", "set another MASTER_PORT")


def bound(family: int, end: tuple[Any, ...]) -> int:
    """0 where this process can listen at the address, else the number of the error."""
    with closing(socket.socket(family)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: ports of ended runs are free
        try:
            one.bind(end)
        except OSError as err:
            return err.errno or errno.EADDRNOTAVAIL
    return 0


def _reached(family: int, end: tuple[Any, ...], where: str) -> Line:
    """A refusal is an answer: the run of node 0 may not have begun."""
    with closing(socket.socket(family)) as one:
        one.settimeout(_LIMIT)
        try:
            one.connect(end)
        except ConnectionRefusedError:
            return Line("ok", _WHAT, f"{where} answers; nothing listens at port {end[1]} yet")
        except OSError as err:
            found = f"{where} does not answer at port {end[1]}: {err.strerror or err}"
            return Line("error", _WHAT, found, "node 0 within reach", _OPEN)
    return Line("ok", _WHAT, f"{where} answers at port {end[1]}")


def _by_name(job: Job | None, node: Node) -> bool:
    """Whether the others are led to this node by its name. torchrun tells them that of rank 0's machine where it starts
    elastically and no address of the node is set (torch, distributed/elastic/rendezvous/api.py, RendezvousStoreInfo);
    Gloo, for CPUs, listens at the address that the name stands for."""
    elastic = "RDZV_ID" in node.environment and "PET_LOCAL_ADDR" not in node.environment
    return elastic or bool(job and job.on_cpu and "GLOO_SOCKET_IFNAME" not in node.environment)


def _own_name() -> Iterator[Line]:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = ""
    if not address or address.startswith("127."):
        found = f"the name of this machine, {name}, {f'is {address}' if address else 'does not resolve'} here"
        wanted = "the address by which the other nodes reach it; they are told that name"
        remedy = f"export PET_LOCAL_ADDR=ADDRESS here, or a line `ADDRESS {name}` in /etc/hosts of every node"
        yield Line("warning", _WHAT, found, wanted, remedy)
