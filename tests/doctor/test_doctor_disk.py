"""What `doctor` says of the folder that a run writes to."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from validator.doctor import host_checks
from validator.doctor.check_result import CheckContext, CheckResult
from validator.machine import host
from validator.machine.host import Mount, find_mount
from validator.recipe.recipe_file import load_with_overrides
from validator.run.settings import RunSettings, resolve

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's root, and little to write."""
    monkeypatch.chdir(RECIPES.parent)
    monkeypatch.setattr(host_checks, "_MAX_TRIAL_BYTES", 2 << 20)


def job(output: Path, *overrides: str) -> RunSettings:
    return resolve(load_with_overrides(str(RECIPES / "qwen3-8b-a100-lora.yaml"), (f"output_dir={output}", *overrides)))


def mounted(root: Path, *rows: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("".join(f"{row}\n" for row in rows))
    return root


# As kernels write them.
ROWS = (
    "22 27 0:21 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
    "31 22 0:45 / /home rw,relatime shared:7 - nfs4 store:/export/home rw,vers=4.2",
    "32 22 0:46 / /data\\040one rw - fuse.juicefs JuiceFS:data rw",
)


@pytest.mark.parametrize(
    ("folder", "expected", "network"),
    [
        ("/home/me/saves", Mount("nfs4", "store:/export/home"), True),
        ("/homes", Mount("ext4", "/dev/sda1"), False),
        ("/data one/x", Mount("fuse.juicefs", "JuiceFS:data"), True),
    ],
)
def test_the_file_system_of_a_folder(folder: str, expected: Mount, network: bool, tmp_path: Path) -> None:
    there = find_mount(Path(folder), mounted(tmp_path, *ROWS))
    assert there == expected
    assert there.network == network


def test_no_file_system_is_told(tmp_path: Path) -> None:
    assert find_mount(Path("/home"), tmp_path) is None


def lines(run: RunSettings | None, root: Path) -> list[CheckResult]:
    return list(host_checks.check_disk(run, CheckContext(root)))


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (line,) = lines(job(tmp_path / "saves" / "x"), mounted(tmp_path / "root", *ROWS))
    assert line.state == "ok"
    assert " MB/s" in line.found
    assert "for a checkpoint, about" in line.wanted
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("output", ["/proc/x", __file__])
def test_a_folder_that_cannot_be_written(output: str, tmp_path: Path) -> None:
    (line,) = lines(job(Path(output)), tmp_path)
    assert (line.state, line.remedy) == ("error", "set another `output_dir`")


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: 0.01)
    first, second, _ = lines(job(tmp_path), tmp_path)
    assert (first.state, "MB/s" in first.found) == ("ok", False)
    assert (second.state, second.found[:16]) == ("error", "0.0 GiB are free")


@pytest.mark.parametrize(("rate", "state"), [(1e9, "ok"), (1e5, "warning")])
def test_the_time_of_a_checkpoint(rate: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "_measure_write_rate", lambda _folder: rate)
    first = lines(job(tmp_path), tmp_path)[0]
    assert first.state == state
    assert ("save_only_model" in first.remedy) == (state == "warning")


@pytest.mark.parametrize(
    ("kind", "says"),
    [("overlay", "the container's own layer"), ("tmpfs", "is main memory (tmpfs)"), ("ext4", "")],
)
def test_a_folder_that_does_not_outlast_the_run(kind: str, says: str, tmp_path: Path) -> None:
    root = mounted(tmp_path / "root", f"22 27 0:21 / / rw - {kind} none rw")
    warned = [line.found for line in lines(job(tmp_path), root) if line.state == "warning"]
    assert len(warned) == bool(says)
    assert not says or says in warned[0]


@pytest.mark.parametrize(("files", "free", "warned"), [(10**6, 12, True), (10**6, 10**5, False), (0, 0, False)])
def test_the_number_of_files(
    files: int, free: int, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _folder: SimpleNamespace(f_files=files, f_favail=free))
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: 1000.0)
    assert any("more files" in line.found for line in lines(None, tmp_path)) == warned


def test_a_run_that_writes_nothing(tmp_path: Path) -> None:
    assert not lines(job(tmp_path, "do_train=false", "do_eval=true"), tmp_path)


@pytest.mark.parametrize(("free", "warned"), [(0.5, True), (500.0, False)])
def test_the_cache_of_data(free: float, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", "/system/cache")
    monkeypatch.setattr(host, "free_disk_gib", lambda folder: free if str(folder) == "/system/cache" else 1000.0)
    told = [line for line in lines(job(tmp_path), tmp_path) if line.what == "data cache"]
    assert [(line.state, line.found) for line in told] == [("warning", "0.5 GiB free at /system/cache")] * warned
    assert not [line for line in lines(None, tmp_path) if line.what == "data cache"]


def test_a_slow_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 s for each MiB: two pieces take 0.6 s, and the next would take 0.8."""
    clock = [0.0]
    pieces: list[int] = []

    def fsync(_file: int) -> None:
        pieces.append(2 ** len(pieces))
        clock[0] += 0.2 * pieces[-1]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(host_checks, "monotonic", lambda: clock[0])
    monkeypatch.setattr(host_checks, "_MAX_TRIAL_BYTES", 256 << 20)
    assert host_checks._measure_write_rate(tmp_path) == pytest.approx((1 << 20) / 0.2)
    assert pieces == [1, 2]
