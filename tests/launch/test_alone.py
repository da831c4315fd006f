"""One run at a time in an output folder."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.launch.local_launch import lock_output_dir


def test_a_second_run_is_refused_as_long_as_the_first_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "saves" / "mine"
    with (
        lock_output_dir(output),
        pytest.raises(RecipeError, match=r"another run writes to `.*mine`; wait for its end, or .* output_dir=DIR"),
        lock_output_dir(output),
    ):
        pass
    with lock_output_dir(output), lock_output_dir(tmp_path):
        assert list(output.iterdir()) == []


def test_a_folder_that_cannot_be_locked_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with lock_output_dir(tmp_path / "file" / "mine"):
        pass

    def lockless(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("fcntl.flock", lockless)
    with lock_output_dir(tmp_path), lock_output_dir(tmp_path):
        pass
