"""A file of 1 MiB, whatever is in it, is answered in two seconds of a processor, and time per byte does not grow."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from growing import GROUPS, KINDS, RECIPE, recipe

PROGRAM = Path(sys.executable).with_name("lmf-recipes")
SHORT = 0.3  # seconds in which no growth can be seen
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


def seconds(*paths: Path, limit: int = 20) -> float:
    """What a check takes of a processor, start-up included; fails where that is more than the limit."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    process = subprocess.Popen([PROGRAM, "check", *paths], stdout=subprocess.DEVNULL, preexec_fn=limited)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1)
    return used.ru_utime + used.ru_stime


def test_no_kind_of_file_takes_a_square_of_its_size(tmp_path: Path) -> None:
    paths = [KINDS[name].write(tmp_path / str(number), 1 << 18) for number, name in enumerate(QUICKLY)]
    assert seconds(*paths) < 20


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_a_mebibyte_takes_two_seconds_and_four_times_what_a_quarter_takes(group: str, tmp_path: Path) -> None:
    (tmp_path / RECIPE).write_text(recipe(), "utf-8")
    start = seconds(tmp_path / RECIPE)
    for number, kind in enumerate(GROUPS[group].values()):
        whole = seconds(kind.write(tmp_path / f"{number}", 1 << 20)) - start
        assert whole < 2 - start
        if whole > SHORT:
            quarter = seconds(kind.write(tmp_path / f"{number}", 1 << 18)) - start
            assert whole < 4 * 1.5 * quarter + SHORT  # of a processor that others use, too
