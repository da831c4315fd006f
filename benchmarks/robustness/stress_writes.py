"""What is written, on a disk that fails or is full, by a program that is killed, and by several at once."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from robustness.faults import KILLED, REMOVED, Case, Fault, Files, Program, files, home, kept, laid, program, walk
from robustness.report import Answer, Row, answer

_RECIPE = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
dataset: mine
template: qwen
cutoff_len: 2048
output_dir: saves/case
evaluation_strategy: 'no'
bf16: true
"""
_ROWS = '{"instruction": "a", "output": "b"}\n'
_OTHER = '{\n  "other": {"file_name": "other.jsonl"}\n}\n'
_LOG = "".join(
    json.dumps({"current_steps": step, "elapsed_time": f"0:{step:02}:00", "loss": 1.0, "total_tokens": step * 32768,
                "throughput": 546.13}) + "\n"
    for step in range(1, 11)
)  # fmt: skip
_TAKEN = "exists and is not overwritten"
_MEASURED = ("qwen3-8b-4090x1-qlora", "--log", "log.jsonl")
_KEPT = {"log.jsonl": _LOG, "home/lmf-recipes/measured.json": "[]"}
_PLAN = ("plan", "--machine", "2xrtx-4090", "--model", "qwen3-8b", "--method", "qlora", "--write", "mine.yaml")
# Each command that writes; those of one registry once where there is none, and once where there is one.
CASES = (
    Case("copy", ("copy", "qwen3-8b-a100-full", "own"), {}, _TAKEN),
    Case("copy beside data", ("copy", "qwen3-8b-a100-full", "own"), {"own/data/dataset_info.json": _OTHER}, _TAKEN),
    Case("copy of a DeepSpeed file", ("copy", "ds_z2.json", "own"), {}),
    Case("plan --write", _PLAN, {}, _TAKEN),
    Case("check --fix", ("check", "--fix", "--select", "SCH", "r.yaml"), {"r.yaml": _RECIPE}),
    Case("data --register", ("data", "mine.jsonl", "--register", "mine"), {"mine.jsonl": _ROWS}),
    Case(
        "data --register beside another",
        ("data", "mine.jsonl", "--register", "mine"),
        {"mine.jsonl": _ROWS, "data/dataset_info.json": _OTHER},
    ),
    Case("data --html", ("data", "mine.jsonl", "--html", "page.html"), {"mine.jsonl": _ROWS, "page.html": ""}),
    Case("submit --write", ("submit", "qwen3-8b-a100-full", "--to", "slurm", "--dry-run", "--write", "job.sh"), {}),
    Case("calibrate", ("calibrate", *_MEASURED), _KEPT),
)
FULL, FAILING = Fault(errno.ENOSPC), Fault(errno.EIO, stays=True)
_FAULTS = {
    "killed with SIGKILL": KILLED,
    "killed in the middle of a file": Fault(0, bytes=True),
    "disk full for one call": FULL,
    "disk full after n bytes": Fault(errno.ENOSPC, bytes=True),
    "disk quota used up": Fault(errno.EDQUOT, stays=True),
    "disk fails for one call": Fault(errno.EIO),
    "disk fails for good": FAILING,
    "disk turns read-only": Fault(errno.EROFS, stays=True),
    "no such folder any more": Fault(errno.ENOENT, stays=True),
    "all folders are removed": REMOVED,
    "not permitted": Fault(errno.EPERM, stays=True),
    "no access": Fault(errno.EACCES),
    "no more files may be open": Fault(errno.EMFILE),
    "no locks, as on some network file systems": Fault(errno.ENOLCK, only="lock"),
    "no hard links, as on FAT": Fault(errno.EPERM, only="link"),
}
_PROMISE = "each file is the old or the new one, whole; a second run goes through"
# Tried at each byte of what these write; of what others write at one in so many.
_EACH_BYTE = ("check --fix", "data --register")
_STRIDE = 61
# Mounts a file system of so many KiB over a folder, runs a command in a copy of another, and copies what it leaves.
_MOUNTED = """
mount -t tmpfs -o "size=$1k" none "$2" && cp -rp "$3/." "$2" || exit 99
left=$4 place=$2; shift 4
(cd "$place" && exec "$@"); code=$?
cp -rp "$place/." "$left"; exit $code
"""
_NO_ROOM = 99
_AT_ONCE = 8


def rows() -> Iterator[Row]:
    """Faults of all kinds at each step of all commands; real disks that are full; several processes at once."""
    with program() as there:
        for what, fault in _FAULTS.items():
            yield _walked(there, what, fault)
    yield from _disks()
    yield from _races()


def _walked(there: Program, what: str, fault: Fault) -> Row:
    tried = failed = 0
    for case in CASES:
        for _, broken in walk(there, case, fault, _STRIDE if fault.bytes and case.name not in _EACH_BYTE else 1):
            tried, failed = tried + 1, failed + bool(broken)
            print(*broken, sep="\n", end="\n" * bool(broken), file=sys.stderr)
    promise = "it ends well, or with one line and exit code 1" if fault == REMOVED else _PROMISE
    return Row(f"{what}, at each step of {len(CASES)} commands", promise, tried, failed)


def mounts() -> bool:
    """Whether this machine lets us mount a file system that nobody else sees."""
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"]
    return bool(shutil.which("unshare")) and not subprocess.run(words, capture_output=True, check=False).returncode


def on_disk(case: Case, kibibytes: int, place: Path) -> tuple[int, str, Files, Files]:
    """Run a command on a real file system of this size, in a folder that we may use: its exit code, what it said, and
    the files before and after."""
    given, mounted, left = laid(place / "given", case.files), laid(place / "mounted", {}), laid(place / "left", {})
    words = ["sh", "-c", _MOUNTED, "sh", kibibytes, mounted, given, left]
    variables = [f"{name}={value}" for name, value in home(mounted).items()]
    lmf = Path(sys.executable).with_name("lmf-recipes")
    ended = subprocess.run(
        ["unshare", "--mount", *map(str, words), "env", *variables, lmf, *case.words],
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stderr, files(given), files(left)


def _disks() -> Iterator[Row]:
    if mounts():
        with tempfile.TemporaryDirectory() as place:
            held = [each for case in CASES for each in _filled(case, Path(place))]
        yield Row(
            "a real disk of 4, 8, 12 ... KiB", "each file is the old or the new one", len(held), held.count(False)
        )


def _filled(case: Case, place: Path) -> Iterator[bool]:
    """Whether the promise held on a disk that is too small, on a larger one, and so on until it suffices."""
    *_, after = on_disk(case, 1024, place)
    for kibibytes in range(4, 128, 4):
        code, said, before, now = on_disk(case, kibibytes, place)
        if code != _NO_ROOM:
            yield code in (0, 1) and "internal error" not in said and not any(kept(code, before, after, now))
        if code == 0:
            return


def _races() -> Iterator[Row]:
    for what, promise, race, times in (
        ("data --register", "all entries land", registering, 10),
        ("copy into one folder", "all recipes land, with all that they read", copying, 5),
        ("check --fix of one file", "it is fixed once", fixing, 5),
        ("calibrate", "all records land", calibrating, 5),
    ):
        held = [race(_AT_ONCE) for _ in range(times)]
        yield Row(f"{_AT_ONCE} x `{what}` at once", promise, times, held.count(False))


def registering(number: int) -> bool:
    """Whether so many entries all land in one registry, which is not there at first."""
    names = [f"set{each}" for each in range(number)]
    with tempfile.TemporaryDirectory() as place:
        folder = laid(Path(place, "case"), {f"{name}.jsonl": _ROWS for name in names})
        ended = _together([("data", f"{name}.jsonl", "--register", name) for name in names], folder)
        return _right(ended) and {*json.loads((folder / "data/dataset_info.json").read_text())} == {*names}


def copying(number: int) -> bool:
    """Whether so many copies of recipes land in one folder, with what they read."""
    with tempfile.TemporaryDirectory() as place:
        folder = laid(Path(place, "case"), {})
        ended = _together([("copy", "qwen3-8b-a100-full", f"own/{each}.yaml") for each in range(number)], folder)
        return _right(ended) and len(files(folder)) == number + 2


def fixing(number: int) -> bool:
    """Whether one file is fixed by so many, each of which says so or that it was changed meanwhile."""
    with tempfile.TemporaryDirectory() as place:
        folder = laid(Path(place, "case"), {"r.yaml": _RECIPE})
        ended = _together([("check", "--fix", "--select", "SCH", "r.yaml")] * number, folder)
        said = all(each.code == 0 or b"was changed while it was fixed" in each.err for each in ended)
        return said and (folder / "r.yaml").read_text() == _RECIPE.replace("evaluation_strategy", "eval_strategy")


def calibrating(number: int) -> bool:
    """Whether so many measurements are all kept."""
    with tempfile.TemporaryDirectory() as place:
        folder = laid(Path(place, "case"), _KEPT)
        ended = _together([("calibrate", *_MEASURED, "--machine", f"1x{24 + each}g") for each in range(number)], folder)
        return _right(ended) and len(json.loads((folder / "home/lmf-recipes/measured.json").read_text())) == number


def _together(commands: Sequence[Sequence[str]], folder: Path) -> list[Answer]:
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda words: answer(words, folder, {**os.environ, **home(folder)}), commands))


def _right(ended: Sequence[Answer]) -> bool:
    return all(each.code == 0 for each in ended)
