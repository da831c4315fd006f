"""One run at a time in an output folder, on one machine and on several."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from validator.errors import RecipeError
from validator.launch.local_launch import lock_output_dir
from validator.on_node.output_lock import JobId, LockedError, OutputLock, take_lock

SLURM = JobId("SLURM", "7", "", 0)


def quiet(text: str) -> None:
    pytest.fail(text)


def held_elsewhere(folder: Path, age: float = 0.0, **changes: Any) -> Path:
    """The lock of a process on another machine, touched `age` seconds ago."""
    lock = take_lock(folder, quiet)
    assert lock
    content = json.loads(lock.file.read_text()) | {"kernel": "other", "node": "n9"} | changes
    lock.file.write_text(json.dumps(content))
    os.utime(lock.file, (time.time() - age,) * 2)
    return lock.file


def test_a_second_run_is_refused_as_long_as_the_first_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "saves" / "mine"
    says = rf"another run writes to `.*mine`: process {os.getpid()} on .*; wait for its end, or .* output_dir=DIR"
    with lock_output_dir(output, quiet), pytest.raises(RecipeError, match=says), lock_output_dir(output, quiet):
        pass
    with lock_output_dir(output, quiet), lock_output_dir(tmp_path, quiet):
        assert [path.name for path in output.iterdir()] == ["_running.json"]
    assert not [*output.iterdir()]


def test_a_folder_that_cannot_be_written_is_left_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with lock_output_dir(tmp_path / "file" / "mine", quiet) as lock:
        assert lock is None

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with lock_output_dir(tmp_path, quiet) as lock:
        assert lock is None


@pytest.mark.parametrize(
    ("holder", "age", "job", "taken"),
    [
        ({}, 0, None, False),  # a process elsewhere that touched its lock just now
        ({}, 170, None, False),
        ({}, 190, None, True),
        ({"job": SLURM._asdict()}, 10, None, False),  # no squeue here
        ({"job": SLURM._asdict()}, 10, SLURM._replace(restart=1), True),  # SLURM has ended the start before this one
        ({"job": SLURM._asdict()}, 10, SLURM._replace(number="8"), False),
        ({"job": SLURM._asdict()}, 10, SLURM._replace(cluster="b", restart=1), False),
        ({"job": SLURM._asdict()}, 190, SLURM._replace(number="8"), True),
        ({"node": 3, "since": None}, 10, None, False),
        ({"processes": "x"}, 190, None, True),
        ({"processes": []}, 10, None, False),
        ({"job": 3}, 10, None, False),
    ],
)
def test_who_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: dict[str, Any], age: float, job: JobId | None, taken: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    lock = held_elsewhere(tmp_path, age, **holder)
    said: list[str] = []
    if not taken:
        with pytest.raises(LockedError, match="another run writes to"):
            take_lock(tmp_path, quiet, job)
        return
    mine = take_lock(tmp_path, said.append, job)
    assert mine
    assert mine.token == json.loads(lock.read_text())["token"]
    assert [text.partition(":")[0] for text in said] == [f"{tmp_path} was left by a run that is gone"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_running.json"]


@pytest.mark.parametrize(
    ("answer", "code", "taken"),
    [
        ("RUNNING", 0, False), ("PENDING", 0, True), ("", 0, True), ("RUNNING\nPENDING", 0, False),
        ("slurm_load_jobs error: Invalid job id specified", 1, True), ("Unable to contact slurm controller", 1, False),
    ],
)  # fmt: skip
def test_slurm_is_asked_for_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, taken: bool
) -> None:
    asks = tmp_path / "squeue"
    asks.write_text(f"#!/bin/sh\necho '{answer}' >&{1 + code}\nexit {code}\n")
    asks.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    held_elsewhere(tmp_path / "out", 10, job=SLURM._asdict())
    said: list[str] = []
    if taken:
        assert take_lock(tmp_path / "out", said.append)
        assert "SLURM job 7 on n9" in said[0]
    else:
        with pytest.raises(LockedError, match="SLURM job 7 on n9"):
            take_lock(tmp_path / "out", quiet)


@pytest.mark.process
def test_a_process_of_this_machine_that_was_killed_is_gone(tmp_path: Path) -> None:
    code = f"from validator.on_node.output_lock import take_lock; from pathlib import Path; take_lock(Path({str(tmp_path)!r}), print); import os; os.kill(os.getpid(), 9)"  # noqa: E501
    subprocess.run([sys.executable, "-c", code], check=False)
    said: list[str] = []
    assert take_lock(tmp_path, said.append)
    assert len(said) == 1


def test_an_earlier_start_of_the_same_job_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the scheduler does not count starts, its pods may still save."""
    pod = JobId("Kubernetes", "mine")
    held = held_elsewhere(tmp_path, 10, job=pod._asdict())
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            held.unlink()

    monkeypatch.setattr(time, "sleep", sleep)
    said: list[str] = []
    assert take_lock(tmp_path, said.append, pod)
    assert len(said) == 1
    assert said[0].startswith(f"another run is just ending in {tmp_path}: Kubernetes job mine on n9")


def test_of_many_that_take_over_at_once_one_succeeds(tmp_path: Path) -> None:
    held_elsewhere(tmp_path, 1000)
    start, won = threading.Barrier(8), []

    def race() -> None:
        start.wait()
        try:
            won.append(take_lock(tmp_path, lambda _: None))
        except LockedError:
            won.append(None)

    racers = [threading.Thread(target=race) for _ in range(8)]
    for each in racers:
        each.start()
    for each in racers:
        each.join()
    holders = [lock for lock in won if lock]
    assert len(holders) == 1
    assert len(won) == 8


def test_a_run_that_stood_still_learns_that_it_lost_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = take_lock(tmp_path, quiet)
    assert mine
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1000)
    os.utime(mine.file, (0, 0))
    assert mine.beat()
    assert mine.file.stat().st_mtime > 1000, "touched"
    mine.file.write_text(mine.file.read_text().replace(mine.token, "another"))
    monkeypatch.setattr(time, "monotonic", lambda: now + 2000)
    assert not mine.beat()
    mine.release()
    assert mine.file.exists(), "the other's"


def test_a_lock_that_is_held_for_others_is_kept_and_released_by_its_token(tmp_path: Path) -> None:
    mine = take_lock(tmp_path, quiet)
    assert mine
    guard = OutputLock(mine.file, mine.token)
    guard.add_process()
    assert len(json.loads(mine.file.read_text())["processes"]) == 2
    guard.release()
    mine.release()
    assert not [*tmp_path.iterdir()]
