"""Device files beside those of the devices, which a container may lack while the driver's program works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.job.job import Job
from validator.tables.data import listing

_WHAT = "device files"


class _Driver(NamedTuple):
    """`shown` by a file that matches this, it needs `files` beside it; what cannot start without, and what to do. The
    program `maker` makes them where they are asked for."""

    shown: str
    files: tuple[str, ...]
    who: str
    remedy: str
    maker: str = ""


_DRIVERS = (
    _Driver("dev/nvidiactl", ("dev/nvidia-uvm",), "CUDA", "`sudo nvidia-modprobe -u -c=0` on the host",
            "usr/bin/nvidia-modprobe"),
    _Driver("dev/kfd", ("dev/dri",), "ROCm", "`docker run --device /{file} …`"),
)  # fmt: skip


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What is missing: nvidia-smi does without the file for memory, with which CUDA begins ("CUDA unknown error");
    Ascend's containers are given each by name."""
    for driver in () if job and job.on_cpu else (*_DRIVERS, _ascend()):
        made = driver.maker and (node.root / driver.maker).exists()
        for file in driver.files if any(node.root.glob(driver.shown)) and not made else ():
            if not (node.root / file).exists():
                remedy = driver.remedy.format(file=file)
                yield Line("error", _WHAT, f"no /{file}, and {driver.who} cannot start", "", remedy)


def _ascend() -> _Driver:
    first, *others = (file.removeprefix("/") for file in listing("nodes")["ascend"]["container"]["devices"])
    return _Driver(first.format("[0-9]*"), tuple(others), "CANN", "`docker run --device /{file} …`")
