"""The network interface over which NCCL, HCCL or Gloo meet, by what the kernel shows of all."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from validator.doctor.line import Line
from validator.doctor.meeting import bound, nodes
from validator.doctor.node import Node
from validator.here.network import Interface, interfaces, means, towards
from validator.job.job import Job


class Library(NamedTuple):
    """A library of collectives: the variable that names interfaces, and how it orders those that nothing names."""

    name: str
    variable: str
    alphabetic: bool


# NCCL takes them as the kernel counts them, HCCL by the alphabet, both docker's last and the loop after it (NCCL,
# src/misc/socket.cc, ncclFindInterfaces; CANN, HCCL_SOCKET_IFNAME).
_NCCL = Library("NCCL", "NCCL_SOCKET_IFNAME", alphabetic=False)
_HCCL = Library("HCCL", "HCCL_SOCKET_IFNAME", alphabetic=True)


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Whether the words of the environment mean an interface, and whether the one taken leads to the other nodes. One
    process meets nobody."""
    if job and job.world == 1 and nodes(job, node) == 1:
        return
    library = _HCCL if job and job.machine and job.machine.device.vendor == "ascend" else _NCCL
    there, words = interfaces(node.root), node.environment.get(library.variable, "")
    yield from _gloo(job, node.environment.get("GLOO_SOCKET_IFNAME", ""), there)
    if job and job.on_cpu:
        return
    if library is _HCCL and (address := node.environment.get("HCCL_IF_IP")):
        yield _addressed(address)
        return
    meant = taken(library, there, words)
    if not meant:
        if words or nodes(job, node) > 1:
            yield _none(library, words, there)
    elif nodes(job, node) > 1:
        yield _judged(library, meant[0], words, towards(there, node.environment.get("MASTER_ADDR", "")))


def _addressed(address: str) -> Line:
    """HCCL heeds this address before any interface (CANN, HCCL_IF_IP)."""
    if bound(socket.AF_INET6 if ":" in address else socket.AF_INET, (address, 0)) == 0:
        return Line("ok", "HCCL", f"HCCL meets at HCCL_IF_IP={address}")
    return Line("error", "HCCL", f"HCCL_IF_IP={address} is no address of this machine", "one of it", "unset HCCL_IF_IP")


def _gloo(job: Job | None, words: str, there: Sequence[Interface]) -> Iterator[Line]:
    """Gloo takes whole names alone, and is asked where processes on CPUs meet: in a run on them, or where FSDP keeps
    states in main memory."""
    names = {"lo", *(one.name for one in there)}
    if missing := [name for name in words.split(",") if name and name not in names]:
        used = job is not None and (job.on_cpu or bool(job.fsdp and job.fsdp.offload))
        found = f"GLOO_SOCKET_IFNAME={words}, and {missing[0]} is none of the interfaces here"
        yield Line("error" if used else "warning", "Gloo", found, ", ".join(sorted(names)), "unset GLOO_SOCKET_IFNAME")


def taken(library: Library, there: Sequence[Interface], words: str) -> list[Interface]:
    """Those that the library takes, the first of which it meets over."""
    if words:
        return [one for one in there if means(words, one.name)]
    usual = [one for one in there if not one.name.startswith("docker")] or list(there)
    cards = [one for one in usual if one.name.startswith("ib")] if library is _NCCL else []
    return cards or (sorted(usual, key=lambda one: one.name) if library.alphabetic else usual)


def _none(library: Library, words: str, there: Sequence[Interface]) -> Line:
    names = ", ".join(one.name for one in there) or "none"
    if not words:
        return Line("error", library.name, "no interface is up but the loop", "one that leads to the other nodes")
    real = next((one.name for one in there if not one.virtual), "")
    remedy = f"export {library.variable}=={real}" if real else f"unset {library.variable}"
    return Line("error", library.name, f"{library.variable}={words} means none of the interfaces here", names, remedy)


def _judged(library: Library, one: Interface, words: str, leading: Interface | None) -> Line:
    speed = f" ({one.mbit_s / 1000:g} Gbit/s)" if one.mbit_s else ""
    found = f"{library.name} meets over {one.name}{speed}"
    chosen = f", as {library.variable}={words} says" if words else ""
    if leading and leading.name != one.name:
        wanted = f"{leading.name}, which leads to MASTER_ADDR"
        return Line("warning", library.name, found + chosen, wanted, f"export {library.variable}=={leading.name}")
    if one.virtual:
        wanted = "a card that joins the nodes: this one is a bridge, a tunnel or a container's"
        return Line("warning", library.name, found + chosen, wanted, f"export {library.variable}==NAME")
    return Line("ok", library.name, found + chosen)
