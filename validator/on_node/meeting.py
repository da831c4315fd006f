"""Nodes of a job meet before they start the run: the first node waits until all others have said that they are ready.

Nodes may start minutes apart: images are pulled, prologs are slow, parts of a job are queued again. torchrun waits a
minute for the first node (torch, distributed/elastic/rendezvous/c10d_rendezvous_backend.py, read_timeout). The first
node listens on the port that torchrun will use, checks that the others see its output folder, and tells all with which
words to start."""

import json
import os
import socket
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from .messages import say
from .output_lock import FILE_PREFIX

_REPORT_SECONDS = 30.0
# Seconds that a network file system may take to show a node what another has written.
_VISIBLE_SECONDS = 60.0
_MAX_LINE_BYTES = 1 << 16


class MeetingError(Exception):
    """The nodes cannot start together. The message says why; it is empty on a node if the first node says it."""


class MeetingPlace(NamedTuple):
    """The meeting point of a job: address and port of its first node. `job`: the name of the job; nodes of other jobs
    are turned away. `patience`: the seconds that nodes wait for each other."""

    address: str
    port: int
    job: str
    patience: float


class _Connection:
    """A connection on which both sides send JSON objects, one a line. Its methods raise OSError if the connection ends,
    and ValueError if the other side sends something else."""

    def __init__(self, opened: socket.socket, timeout: float) -> None:
        opened.settimeout(timeout)
        self._opened, self._lines = opened, opened.makefile("rb")

    def send(self, **content: Any) -> None:
        self._opened.sendall(json.dumps(content).encode() + b"\n")

    def close(self) -> None:
        self._lines.close()  # which would hold the connection open
        self._opened.close()

    def receive(self) -> Dict[str, Any]:
        content = json.loads(self._lines.readline(_MAX_LINE_BYTES).decode())
        if not isinstance(content, dict):
            raise ValueError("not a mapping")
        return content


def host_meeting(
    place: MeetingPlace, names: Sequence[str], words: Sequence[str], shared: Optional[Path], beat: Callable[[], None]
) -> None:
    """Wait on the first node until all nodes are ready, and tell them the words to start with. `names`: the nodes, in
    the order of their ranks. `shared`: the output folder, if it is one for all nodes. `beat` is called every second.
    Raises MeetingError if a node does not come in time, or does not see the output folder."""
    arrived: Dict[int, _Connection] = {}
    with ExitStack() as stack:
        probe = None
        if shared:
            probe = shared / f"{FILE_PREFIX}seen-{os.getpid()}-{time.time()}"
            probe.write_text("")
            stack.callback(probe.unlink)
        server = stack.enter_context(closing(_listen(place)))
        begun = reported = time.monotonic()
        try:
            while len(arrived) < len(names) - 1:
                beat()
                waited = time.monotonic() - begun
                missing = ", ".join(name for rank, name in enumerate(names) if rank and rank not in arrived)
                if waited > place.patience:
                    remedy = "`start_wait_minutes` in the site file allows for more"
                    raise MeetingError(f"{missing} did not come within {place.patience:.0f} s; {remedy}")
                if time.monotonic() > reported + _REPORT_SECONDS:
                    reported = time.monotonic()
                    say(f"waiting for {missing}, {waited:.0f} s of {place.patience:.0f} s")
                with suppress(OSError, ValueError), ExitStack() as arriving:  # nobody came for a second, or a stranger
                    connection = arriving.enter_context(closing(_Connection(server.accept()[0], 2 * _VISIBLE_SECONDS)))
                    greeting = connection.receive()
                    if greeting.get("job") == place.job and greeting.get("rank") in range(1, len(names)):
                        connection.send(job=place.job, probe=str(probe or ""))
                        arrived[greeting["rank"]] = connection
                        stack.push(arriving.pop_all())
            unready = [names[rank] for rank, connection in sorted(arrived.items()) if not _is_ready(connection)]
            if unready:
                seen = f"{len(names) - len(unready)} of {len(names)} nodes share {shared}"
                remedy = "name a folder that all see, or set save_on_each_node: true"
                raise MeetingError(f"{seen}, without {', '.join(unready)}; {remedy}")
        except BaseException:
            for connection in arrived.values():  # who still waits need not
                with suppress(OSError):
                    connection.send(words=None)
            raise
        for connection in arrived.values():
            connection.send(words=list(words))


def join_meeting(place: MeetingPlace, rank: int) -> List[str]:
    """Tell the first node that this one is ready, and return the words that the first node says to start with. Raises
    MeetingError if the first node does not answer in time, or says that the run does not start."""
    end = time.monotonic() + place.patience
    while True:
        try:
            opened = socket.create_connection((place.address, place.port), timeout=10)
            with closing(_Connection(opened, place.patience + 2 * _VISIBLE_SECONDS)) as connection:
                connection.send(job=place.job, rank=rank)
                answer = connection.receive()
                if answer.get("job") == place.job:
                    connection.send(ready=not answer["probe"] or _becomes_visible(Path(answer["probe"])))
                    words = connection.receive()["words"]
                    if words is None:
                        raise MeetingError("")
                    return [str(word) for word in words]
        except (OSError, ValueError, LookupError):
            pass
        if time.monotonic() > end:
            first = f"the first node, {place.address}, did not answer within {place.patience:.0f} s"
            raise MeetingError(f"{first}; `start_wait_minutes` in the site file allows for more")
        time.sleep(1)


def _listen(place: MeetingPlace) -> socket.socket:
    """Return a socket that listens on all addresses of this node, and waits one second at a time."""
    family = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0][0]
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("", place.port))
    except OSError as err:
        server.close()
        found = f"port {place.port} of the first node cannot be used: {err.strerror or err}"
        raise MeetingError(f"{found}; does another run have it?") from None
    server.listen(128)
    server.settimeout(1)
    return server


def _is_ready(connection: _Connection) -> bool:
    with suppress(OSError, ValueError):
        return connection.receive().get("ready") is True
    return False


def _becomes_visible(file: Path) -> bool:
    end = time.monotonic() + _VISIBLE_SECONDS
    while not file.exists():
        if time.monotonic() > end:
            return False
        with suppress(OSError):
            os.listdir(str(file.parent))  # which makes a network file system look again
        time.sleep(1)
    return True


def local_address(address: str, seconds: float = 60.0) -> str:
    """Return the address that this node uses to reach the node at `address`. Nothing is sent. Tries again for `seconds`
    seconds, because a container may start before the cluster can resolve the name. Raises MeetingError after that."""
    end = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            family, kind, protocol, _, target = socket.getaddrinfo(address, 29500, type=socket.SOCK_DGRAM)[0]
            with closing(socket.socket(family, kind, protocol)) as opened:
                opened.connect(target)
                return str(opened.getsockname()[0])
        if time.monotonic() > end:
            raise MeetingError(f"the first node, {address}, is not known here")
        time.sleep(1)
