"""Each write of the program on a disk that fails, in a process that is killed, and beside others: the old file or the
new one, whole, and nothing of anybody's lost. All faults at all steps: benchmarks/robustness/stress_writes.py."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from robustness import stress_writes as stress
from robustness.faults import KILLED, REMOVED, Case, Fault, Program, compiler, kept, program, walk

WRITTEN_BY = ["validator/recipe/*", "benchmarks/robustness/*"]

pytestmark = [pytest.mark.process, pytest.mark.sample(one_in=3, whole_for=WRITTEN_BY)]

CASES = {case.name: case for case in stress.CASES}
FULL, FAILING = Fault(errno.ENOSPC), Fault(errno.EIO, stays=True)
FILLING = Fault(errno.ENOSPC, bytes=True)


@pytest.fixture(scope="module")
def there() -> Iterator[Program]:
    if not compiler():
        pytest.skip("there is no C compiler on this machine")
    with program() as running:
        yield running


def broken(there: Program, case: Case, fault: Fault, stride: int = 1) -> tuple[set[str], list[str]]:
    """The calls that were struck, and what was broken."""
    steps = [*walk(there, case, fault, stride)]
    return {call for call, _ in steps}, [each for _, said in steps for each in said]


@pytest.mark.parametrize("fault", [KILLED, FULL])
@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("data --register", {"mkdir", "open", "lock", "write", "fsync", "link", "unlink"}),
        ("check --fix", {"open", "lock", "chmod", "write", "fsync", "rename"}),
    ],
)
def test_each_step_of_a_write(there: Program, name: str, calls: set[str], fault: Fault) -> None:
    assert broken(there, CASES[name], fault) == (calls, [])


def test_the_working_folder_is_removed_meanwhile(there: Program) -> None:
    assert broken(there, CASES["copy of a DeepSpeed file"], REMOVED)[1] == []


def test_a_disk_that_takes_some_bytes(there: Program) -> None:
    assert broken(there, CASES["check --fix"], FILLING, 61) == ({"write"}, [])


@pytest.mark.sample(one_in=4, whole_for=WRITTEN_BY)
@pytest.mark.slow
@pytest.mark.parametrize("fault", [KILLED, FAILING])
@pytest.mark.parametrize("case", stress.CASES, ids=lambda case: case.name)
def test_each_step_of_all_that_writes(there: Program, case: Case, fault: Fault) -> None:
    calls, wrong = broken(there, case, fault)
    assert wrong == []
    assert {"open", "lock", "write", "fsync"} <= calls


@pytest.mark.parametrize("kibibytes", [4, 8])
def test_a_real_disk_that_is_full(tmp_path: Path, kibibytes: int) -> None:
    if not stress.mounts():
        pytest.skip("no file system can be mounted on this machine")
    case = CASES["copy"]
    *_, after = stress.on_disk(case, 64, tmp_path)
    code, said, before, now = stress.on_disk(case, kibibytes, tmp_path)
    assert code == 1
    assert said.startswith("lmf-recipes: ")
    assert "no space left on device" in said
    assert [*kept(code, before, after, now)] == []


@pytest.mark.slow
@pytest.mark.sample(one_in=4, whole_for=WRITTEN_BY)
@pytest.mark.parametrize("race", [stress.registering, stress.copying, stress.fixing, stress.calibrating])
def test_several_at_once(race: Callable[[int], bool]) -> None:
    assert race(3)
