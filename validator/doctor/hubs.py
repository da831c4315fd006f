"""The hub that a run downloads from: whether it answers, and whether there is room for what it gives."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import host
from validator.job.job import GIB, Job
from validator.memory.terms import Disk
from validator.tables import cache, switch
from validator.train import hub

_WHAT = "hub"
_LIMIT = 3.0  # seconds
_HUGGING_FACE = "https://huggingface.co"
_MODELSCOPE = "https://www.modelscope.cn"


class _Stays(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: that the hub answers is all that is asked."""

    def redirect_request(
        self, _request: urllib.request.Request, _file: IO[bytes], _code: int, _message: str,
        _headers: http.client.HTTPMessage, _address: str,
    ) -> None:  # fmt: skip
        return None


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Asks the hub for what is not here yet; nothing where all is, or where the run goes without network."""
    if job is None or hub.offline() or switch.on("USE_OPENMIND_HUB"):
        return
    names = [name for name in hub.names(job) if not any(hub.downloads(job, name))]
    sets = [name for name in hub.data_sets(job) if not hub.prepared(name, job.origin[1])]
    sets = [] if switch.on("USE_MODELSCOPE_HUB") else sets
    yield from _asked([*((name, name) for name in names), *((name, f"datasets/{name}") for name in sets)], node)
    if job.get("model_name_or_path") in names:
        yield from _room(job)


def _address(path: str, node: Node) -> tuple[str, str]:
    """The hub, and the page of a model or data set on it."""
    if switch.on("USE_MODELSCOPE_HUB"):
        return _MODELSCOPE, f"{_MODELSCOPE}/models/{path}"
    endpoint = (node.environment.get("HF_ENDPOINT") or _HUGGING_FACE).rstrip("/")
    return endpoint, f"{endpoint}/{path}/resolve/main/{'README.md' if path.startswith('datasets/') else 'config.json'}"


def _asked(wanted: list[tuple[str, str]], node: Node) -> Iterator[Line]:
    """One request for each; where there is no answer one line for all that are left."""
    for number, (name, path) in enumerate(wanted):
        there, address = _address(path, node)
        endpoint = hub.bare(there)
        answer = _answer(address)
        if isinstance(answer, str):
            left = ", ".join(f"`{each}`" for each, _ in wanted[number:])
            remedy = "set HF_ENDPOINT to a mirror or https_proxy to a proxy, or name a folder that holds it"
            yield Line("error", _WHAT, f"{endpoint} {answer}", f"{left}, not here yet", remedy)
            return
        yield _told(name, endpoint, answer)


def _told(name: str, endpoint: str, status: int) -> Line:
    wanted = f"`{name}`, not here yet"
    if status in (401, 403):
        remedy = "accept its licence on the hub and `hf auth login`, unless that is done or the name is wrong"
        return Line("warning", _WHAT, f"{endpoint} gives it to known users alone", wanted, remedy)
    if status == 404:
        return Line("warning", _WHAT, f"{endpoint} does not know it", wanted, "correct the name")
    return Line("ok", _WHAT, f"{endpoint} answers", wanted)


def _answer(address: str) -> int | str:
    """The status, or in words why there is none. The thread's limit holds for names that no server resolves, too."""
    pool = ThreadPoolExecutor(1)
    request = pool.submit(_status, address)
    pool.shutdown(wait=False)
    try:
        return request.result(_LIMIT)
    except (OSError, ValueError, http.client.HTTPException) as err:
        reason = getattr(err, "reason", err)
        if isinstance(reason, TimeoutError):  # of the thread, or of the connection
            return f"does not answer within {_LIMIT:.0f} seconds"
        return f"cannot be reached: {getattr(reason, 'strerror', None) or reason}"


def _status(address: str) -> int:
    request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "lmf-recipes"})
    try:
        with urllib.request.build_opener(_Stays).open(request, timeout=_LIMIT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as err:
        return err.code


def _room(job: Job) -> Iterator[Line]:
    """Disk for the weights in the cache of Hugging Face."""
    folder, weights = cache.home(job.origin[1]), job.disk[Disk.BASE] / GIB if job.disk else 0.0
    free = host.free_disk_gib(Path(folder))
    if free is not None and weights and not switch.on("USE_MODELSCOPE_HUB"):
        short = free < weights
        found, wanted = f"{free:.1f} GiB free at {folder}", f"{weights:.1f} GiB of weights"
        remedy = "free some, or set HF_HOME to another disk" if short else ""
        yield Line("error" if short else "ok", "hub cache", found, wanted, remedy)
