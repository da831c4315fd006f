"""Runs in forks of one process that has imported LLaMA-Factory: an import alone takes 5 to 8 s, a run then 1 to 4 s."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

_STORES: list[object] = []  # where the ranks of the last run meet


def torchrun(size: int) -> list[dict[str, str]]:
    """What torchrun sets for each rank of one node. As there, this process keeps the store where they meet, at a port
    that the kernel gives to it."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES[:] = [store]
    every = {
        **{"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"},
        **{"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"},
    }
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **every} for rank in range(size)]


def start(run: Callable[[], int], log: Path, environment: Mapping[str, str], seconds: int) -> int:
    """A fork that runs, prints to the end of the log and exits with what `run` returns, with 1 where it raises. It ends
    after the seconds at the latest."""
    if child := os.fork():
        return child
    code = 1
    signal.alarm(seconds)
    with suppress(BaseException):
        os.environ.update(environment)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(target, 1)
        os.dup2(target, 2)
        try:
            code = run()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(code)


def wait(children: Iterable[int]) -> list[int]:
    """Exit codes of the processes. One that fails takes the others with it: they would wait for it for ever."""
    waiting, codes = set(children), []
    while waiting:
        done, status = os.wait()
        if done not in waiting:  # of a library, which has started and left it
            continue
        waiting.discard(done)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1]:
            for other in waiting:
                os.kill(other, signal.SIGKILL)
    return codes


def leave(place: Path) -> None:
    """Write down what a fork has imported in the end."""
    place.write_text("\n".join(sys.modules))


def take(place: Path) -> None:
    """Import what a fork imported late, so that the next need not, nor look for cycles in any of it."""
    for name in place.read_text().split():
        if name not in sys.modules:
            with suppress(Exception):
                import_module(name)
    gc.freeze()
