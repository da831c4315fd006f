"""Room for the rows as datasets keeps them: read, and tokenized."""

from __future__ import annotations

from collections.abc import Iterator

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import host
from validator.job.job import GIB, Job
from validator.memory.terms import Disk
from validator.tables import cache

_COPIES = 2.0  # of the tokenized rows: as they were read, and as they are trained on
_LEAST = 1.0  # GiB


def lines(job: Job | None, _node: Node) -> Iterator[Line]:
    """`No space left on device` with much room in the output folder (hiyouga/LLaMA-Factory issue 275)."""
    if job is None or job.disk is None or job.tokenized or not job.datasets:
        return
    folder, wanted = cache.data_sets(job.origin[1]), max(_COPIES * job.disk[Disk.DATA] / GIB, _LEAST)
    free = host.free_disk_gib(folder)
    if free is not None and free < wanted:
        remedy = "free some, or set HF_DATASETS_CACHE to another disk"
        yield Line("warning", "data cache", f"{free:.1f} GiB free at {folder}", f"about {wanted:.1f} GiB", remedy)
