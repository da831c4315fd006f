"""Checks whether the nodes of a run can reach each other: MASTER_ADDR and its port, the network interface that NCCL,
HCCL or Gloo uses, and InfiniBand adapters."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from validator.doctor.check_result import CheckContext, CheckResult, error, ok, result, warning
from validator.errors import os_reason
from validator.knowledge.node_environment import node_needs
from validator.machine.network import (
    Interface,
    infiniband_ports,
    is_infiniband_disabled,
    list_interfaces,
    matches_interface_filter,
    route_to,
)
from validator.run import launch_command
from validator.run.settings import RunSettings

# Of torchrun's settings of a rendezvous (torch, elastic/rendezvous/api.py, RendezvousParameters.get_as_bool).
_IS_NO_HOST = re.compile(r"\bis_host\s*=\s*(0|false|f|no|n)\b", re.IGNORECASE)
_TIMEOUT_SECONDS = 5.0  # seconds to another node
_FIREWALL_REMEDY = "open the port in the firewall, or set another MASTER_ADDR"


def node_count(run: RunSettings | None, context: CheckContext) -> int:
    """Return the number of nodes of the run: NNODES from the environment, or else the nodes of the recipe's machine; 1
    without a recipe."""
    nnodes = context.environment.get("NNODES", "")
    return int(nnodes) if nnodes.isdecimal() else run.machine.nodes if run and run.machine else 1


def check_meeting(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The address and port at which the nodes of a run meet.

    Yield a result on MASTER_ADDR and MASTER_PORT; an error if the nodes cannot meet there. Yield a warning if the host
    name of this node would mislead the other nodes. Nothing is yielded for a run on one node."""
    if node_count(run, context) == 1:
        return
    # torchrun tells the others the name of rank 0's machine if it starts elastically and no address of the node is set
    # (torch, distributed/elastic/rendezvous/api.py, RendezvousStoreInfo); Gloo, for CPUs, listens at the address that
    # the name stands for.
    elastic = "RDZV_ID" in context.environment and "PET_LOCAL_ADDR" not in context.environment
    if elastic or (run and run.on_cpu and "GLOO_SOCKET_IFNAME" not in context.environment):
        yield from _check_host_name()
    address = context.environment.get("MASTER_ADDR")
    port = context.environment.get("MASTER_PORT", launch_command.DEFAULT_MASTER_PORT)
    if address is None:
        return  # the launcher is asked for it
    if not port.isdecimal() or not 0 < int(port) < 65536:
        yield error(f"MASTER_PORT={port}", "a number from 1 to 65535")
        return
    yield _check_address(address, int(port), context)


def _check_address(address: str, port: int, context: CheckContext) -> CheckResult:
    """Return the result on MASTER_ADDR. On the node that has the address, the port must be free. On another node, the
    address must answer."""
    where = f"MASTER_ADDR={address}"
    try:
        place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as err:
        return error(f"{where} does not resolve here: {err}", "an address or a name that all nodes know")
    family, end = place[0], place[4]
    is_first = context.environment.get("NODE_RANK") == "0" and "RDZV_ID" not in context.environment
    if ipaddress.ip_address(str(end[0]).partition("%")[0]).is_loopback and not is_first:
        return error(f"{where} is {end[0]}, which every node takes for itself", "an address of node 0")
    # Another node of the run, which shares this address, may be where they meet, and it may have begun.
    elsewhere = context.environment.get("NODE_RANK", "0") != "0"
    if "RDZV_ID" in context.environment:
        elsewhere = _IS_NO_HOST.search(context.environment.get("PET_RDZV_CONF", "")) is not None
    is_own_address = bind_error(family, (end[0], 0, *end[2:])) == 0
    if is_own_address and not elsewhere:
        return _check_port(family, end, where)
    if is_first:
        need = "an address of this machine, or of a service that leads to it"
        return warning(f"this is node 0, and {where} is not of this machine", need)
    return _check_connection(family, end, where)


def _check_port(family: int, end: tuple[Any, ...], where: str) -> CheckResult:
    if (fault := bind_error(family, end)) == 0:
        return ok(f"{where} is this node, and port {end[1]} is free")
    refused = f"cannot be had: {os.strerror(fault).lower()}"
    what = "is taken, such as by a run before" if fault == errno.EADDRINUSE else refused
    return error(f"port {end[1]} of this node {what}", "a free port", "set another MASTER_PORT")


def bind_error(family: int, end: tuple[Any, ...]) -> int:
    """Return 0 if this process can bind a socket to `end` (address and port), or else the errno of the failure.
    `family` is the address family of the socket."""
    with closing(socket.socket(family)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: ports of ended runs are free
        try:
            one.bind(end)
        except OSError as err:
            return err.errno or errno.EADDRNOTAVAIL
    return 0


def _check_connection(family: int, end: tuple[Any, ...], where: str) -> CheckResult:
    """Return a result that is ok if node 0 answers at `end` (address and port), or else an error. `where` names the
    address in the message. A refused connection counts as an answer, because the run on node 0 may not have started
    yet."""
    with closing(socket.socket(family)) as one:
        one.settimeout(_TIMEOUT_SECONDS)
        try:
            one.connect(end)
        except ConnectionRefusedError:
            return ok(f"{where} answers; nothing listens at port {end[1]} yet")
        except OSError as err:
            found = f"{where} does not answer at port {end[1]}: {os_reason(err)}"
            return error(found, "node 0 within reach", _FIREWALL_REMEDY)
    return ok(f"{where} answers at port {end[1]}")


def _check_host_name() -> Iterator[CheckResult]:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = ""
    if not address or address.startswith("127."):
        found = f"the name of this machine, {name}, {f'is {address}' if address else 'does not resolve'} here"
        remedy = f"export PET_LOCAL_ADDR=ADDRESS here, or a line `ADDRESS {name}` in /etc/hosts of every node"
        yield warning(found, "the address by which the other nodes reach it; they are told that name", remedy)


def check_interfaces(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The network interface over which NCCL, HCCL or Gloo meet.

    Yield an error if the environment names an interface that does not exist. Yield a warning if the chosen interface is
    not the one that leads to MASTER_ADDR. Nothing is yielded for a run of one process."""
    if run and run.batch.world_size == 1 and node_count(run, context) == 1:
        return
    library = "HCCL" if run and run.machine and node_needs(run.machine.device).collectives == "hccl" else "NCCL"
    interfaces, words = list_interfaces(context.root), context.environment.get(f"{library}_SOCKET_IFNAME", "")
    yield from _check_gloo(run, context.environment.get("GLOO_SOCKET_IFNAME", ""), interfaces)
    if run and run.on_cpu:
        return
    if library == "HCCL" and (address := context.environment.get("HCCL_IF_IP")):
        # HCCL heeds this address before any interface (CANN, HCCL_IF_IP).
        if bind_error(socket.AF_INET6 if ":" in address else socket.AF_INET, (address, 0)) == 0:
            yield ok(f"HCCL meets at HCCL_IF_IP={address}", what="HCCL")
        else:
            found = f"HCCL_IF_IP={address} is no address of this machine"
            yield error(found, "an address of this machine", "unset HCCL_IF_IP", what="HCCL")
        return
    chosen = chosen_interfaces(library, interfaces, words)
    if not chosen:
        if words or node_count(run, context) > 1:
            yield _no_interface(library, words, interfaces)
    elif node_count(run, context) > 1:
        yield _judge_interface(
            library, chosen[0], words, route_to(interfaces, context.environment.get("MASTER_ADDR", ""))
        )


def _check_gloo(run: RunSettings | None, words: str, interfaces: Sequence[Interface]) -> Iterator[CheckResult]:
    """Yield a result if GLOO_SOCKET_IFNAME names an interface that does not exist; Gloo needs complete names. The
    result is an error if the run uses Gloo (on CPUs, or FSDP with offload to main memory), otherwise a warning. `words`
    is the value of the variable."""
    names = {"lo", *(one.name for one in interfaces)}
    if missing := [name for name in words.split(",") if name and name not in names]:
        uses_gloo = run is not None and (run.on_cpu or bool(run.fsdp and run.fsdp.offload))
        found = f"GLOO_SOCKET_IFNAME={words}, and {missing[0]} is none of the interfaces here"
        valid_names = ", ".join(sorted(names))
        yield result("error" if uses_gloo else "warning", found, valid_names, "unset GLOO_SOCKET_IFNAME", what="Gloo")


def chosen_interfaces(library: str, interfaces: Sequence[Interface], words: str) -> list[Interface]:
    """Return those of this machine's network interfaces that NCCL or HCCL (`library`) chooses; processes meet over the
    first. `words` is the value of the library's variable, such as NCCL_SOCKET_IFNAME. If the value is empty, NCCL
    prefers InfiniBand interfaces, HCCL takes the interfaces in the order of their names, and docker's interfaces are
    left out unless there are no others."""
    if words:
        return [one for one in interfaces if matches_interface_filter(words, one.name)]
    usual = [one for one in interfaces if not one.name.startswith("docker")] or list(interfaces)
    cards = [one for one in usual if one.name.startswith("ib")] if library == "NCCL" else []
    return cards or (sorted(usual, key=lambda one: one.name) if library == "HCCL" else usual)


def _no_interface(library: str, words: str, interfaces: Sequence[Interface]) -> CheckResult:
    if not words:
        return error("no interface is up but the loop", "one that leads to the other nodes", what=library)
    names = ", ".join(one.name for one in interfaces) or "none"
    card = next((one.name for one in interfaces if not one.virtual), "")
    remedy = f"export {library}_SOCKET_IFNAME=={card}" if card else f"unset {library}_SOCKET_IFNAME"
    return error(f"{library}_SOCKET_IFNAME={words} matches none of the interfaces here", names, remedy, what=library)


def _judge_interface(library: str, interface: Interface, words: str, route: Interface | None) -> CheckResult:
    speed = f" ({interface.mbit_s / 1000:g} Gbit/s)" if interface.mbit_s else ""
    chosen = f", as {library}_SOCKET_IFNAME={words} says" if words else ""
    found = f"{library} meets over {interface.name}{speed}{chosen}"
    if route and route.name != interface.name:
        need = f"{route.name}, which leads to MASTER_ADDR"
        return warning(found, need, f"export {library}_SOCKET_IFNAME=={route.name}", what=library)
    if interface.virtual:
        need = "a card that joins the nodes: this one is a bridge, a tunnel or a container's"
        return warning(found, need, f"export {library}_SOCKET_IFNAME==NAME", what=library)
    return ok(found, what=library)


_ADAPTER_VARIABLE, _DISABLE_VARIABLE = "NCCL_IB_HCA", "NCCL_IB_DISABLE"


def check_infiniband(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """InfiniBand and RoCE adapters, which NCCL prefers to network interfaces.

    Yield a warning if adapters stay unused: switched off, excluded by NCCL_IB_HCA, or without an active port. Nothing
    is yielded without adapters, for a run on one node, or on Ascend, whose devices have a network of their own."""
    own_network = run and run.machine and node_needs(run.machine.device).collectives == "hccl"
    if node_count(run, context) == 1 or own_network:
        return
    ports, words = infiniband_ports(context.root), context.environment.get(_ADAPTER_VARIABLE, "")
    selected_ports = [port for port in ports if not words or matches_interface_filter(words, port.adapter)]
    active_ports = [port for port in selected_ports if port.active]
    rates = f"{len(active_ports)} active ({', '.join(sorted({port.rate for port in active_ports}))})"
    slow = "NCCL falls back to sockets, several times slower"
    if is_infiniband_disabled(context.environment):
        if active_ports:
            remedy = f"unset {_DISABLE_VARIABLE}, unless those adapters do not lead to the other nodes"
            yield warning(f"{_DISABLE_VARIABLE}=1, and {rates} are not used", "NCCL over InfiniBand", remedy)
    elif words and not selected_ports:
        names = ", ".join(sorted({port.adapter for port in ports})) or "none here"
        found = f"{_ADAPTER_VARIABLE}={words} matches no InfiniBand adapter: {slow}"
        yield warning(found, names, f"unset {_ADAPTER_VARIABLE}")
    elif selected_ports and not active_ports:
        found = f"no port of {', '.join(sorted({port.adapter for port in selected_ports}))} is active: {slow}"
        yield warning(found, "an active port", "`ibstat` says more; look after the cable or the subnet manager")
    elif active_ports:
        yield ok(rates)
