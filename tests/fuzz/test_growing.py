"""Large files, whatever is in them, are answered in seconds of a processor, and time per byte does not grow.
`benchmarks/robustness/stress_sizes.py` times each kind by itself."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.growing import GROUPS, KINDS

from validator.commands import check

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/recipe/*"])

PROGRAM = Path(sys.executable).with_name("lmf-recipes")
TOGETHER = 8  # kinds that one process checks, which spares starting
LIMIT = 10  # seconds of a processor for a Mebibyte of each, of which a slow one takes a third
LONG = 2  # seconds, from which on growth is looked for
GROWTH = 8  # from a quarter of a Mebibyte to a whole: four for what is as long, sixteen for a square
QUICK = 3  # seconds of a processor for 64 KiB, of which no kind takes a sixth
# One of each way in which time can grow with the square of the size: a quarter of a Mebibyte took a minute or more.
QUICKLY = (
    "interpolations in each other",
    "spaces in an interpolation",
    "data sets that nobody knows",
    "data sets without a name",
    "keys like others",
    "keys written twice",
    "a number of base 60",
    "a list in brackets",
    "brackets in each other",
    "aliases of aliases",
    "directives of tags",
    "comments that suppress nothing known",
    "a comment of many codes",
    "findings, each with a comment",
    "header fields like others",
    "a release of digits",
    "DeepSpeed keys",
    "DeepSpeed keys to fill in",
    "a DeepSpeed file alone, with keys",
    "keys of an entry",
    "columns of an entry",
    "keys of an entry without a source",
    "data sets named and in a registry",
    "accelerate keys like others",
)


def seconds(*paths: Path) -> float:
    """What a check takes of a processor, start-up included; fails where that is more than the limit."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))

    process = subprocess.Popen([PROGRAM, "check", *paths], stdout=subprocess.DEVNULL, preexec_fn=limited)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", QUICKLY)
def test_no_kind_of_file_takes_a_square_of_its_size(name: str, tmp_path: Path) -> None:
    path = KINDS[name].write(tmp_path, 1 << 16)
    start = time.process_time()
    assert CliRunner().invoke(check.command, [str(path)]).exit_code in (0, 1)
    assert time.process_time() - start < QUICK


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.sample(one_in=4, whole_for=["tests/support/growing.py", "validator/recipe/*"])
@pytest.mark.parametrize("group", GROUPS)
def test_a_mebibyte_takes_seconds_and_no_square_of_what_a_quarter_takes(group: str, tmp_path: Path) -> None:
    def written(size: int) -> list[Path]:
        return [kind.write(tmp_path / f"{size}-{number}", size) for number, kind in enumerate(GROUPS[group].values())]

    whole, quarter = written(1 << 20), written(1 << 18)
    for first in range(0, len(whole), TOGETHER):
        some = slice(first, first + TOGETHER)
        long = seconds(*whole[some])
        if long > LONG:
            assert long < GROWTH * seconds(*quarter[some])
