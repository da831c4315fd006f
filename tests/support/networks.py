"""A network of its own for programs that meet at ports: there only they bind any, so that none is ever taken."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

# Where root may not, a user may within a name space of users, as the user they are.
_UNSHARE = (["unshare", "--net"], ["unshare", "--user", "--map-current-user", "--keep-caps", "--net"])
# It holds the network until its standard input ends. 127.0.0.1 is up there (SIOCSIFFLAGS: IFF_UP and IFF_RUNNING), and
# beside it another address (SIOCSIFADDR), without which glibc finds none by name, and by which nodes are not this host.
ADDRESS = "10.0.0.1"
_HOLDER = f"""
import fcntl, socket, struct, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(own, 0x8914, struct.pack("16sh22x", b"lo", 0x41))
fcntl.ioctl(own, 0x8916, struct.pack("16shH4s16x", b"lo:0", socket.AF_INET, 0, socket.inet_aton("{ADDRESS}")))
print("up", flush=True)
sys.stdin.read()
"""


@functools.cache
def _unshare() -> list[str] | None:
    """How to start a program in a network of its own; None where this machine lets no process have one."""
    for words in _UNSHARE:
        with contextlib.suppress(OSError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                return words
    return None


def missing() -> str:
    """Why a test that needs one is skipped; empty where processes may have one."""
    return "" if _unshare() else "no network of one's own on this machine"


@dataclass(frozen=True)
class Network:
    """A network that a process holds. `words` before a command start it there."""

    words: tuple[str, ...]

    def command(self, *words: str) -> list[str]:
        """How to start a program in it."""
        return [*self.words, *words]


@contextlib.contextmanager
def own() -> Iterator[Network]:
    """A network that is there until the end, and as long as processes are in it."""
    words = _unshare() or []
    with subprocess.Popen(
        [*words, sys.executable, "-S", "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "up\n", "no network"
        users = ["--user", "--preserve-credentials"] if "--user" in words else []
        yield Network(("nsenter", "--target", str(holder.pid), *users, "--net", "--"))
