"""Data files that are broken, odd, packed or huge: the verdict of the datasets library, within the memory allowed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from robustness import stress_data
from support.clean_recipe import RECIPE

from validator import cli
from validator.errors import RecipeError
from validator.rows import reading_limits

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/dataset/*"])

LINE = b'{"instruction": "Say hi", "output": "hi there"}\n'
TABLE = b"instruction,output\na,b\n"
READ = ""  # in place of a message: the rows are read


class Answer(NamedTuple):
    code: int
    said: str


def data(path: Path) -> Answer:
    done = CliRunner().invoke(cli.group, ["data", str(path)])
    if isinstance(done.exception, RecipeError):
        return Answer(1, str(done.exception))
    assert isinstance(done.exception, SystemExit | None), done.exception
    return Answer(done.exit_code, done.stdout)


def zipped(*members: bytes) -> bytes:
    held = BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for index, member in enumerate(members):
            archive.writestr(f"{index}.jsonl", member)
    return held.getvalue()


def cell(value: bytes) -> bytes:
    return b'{"instruction": "a", "output": "b", "x": ' + value + b"}"


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings that small files reach."""
    monkeypatch.setattr(reading_limits, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(reading_limits, "MAX_ARROW_BATCH_BYTES", 16 << 20)


# What datasets 4.0 (with pyarrow 26 and pandas 2.3) says of each was tried; it reads those that are READ, and no other.
CASES: dict[str, tuple[str, bytes, str]] = {
    "gzip": ("jsonl", gzip.compress(LINE), READ),
    "bzip2": ("csv", bz2.compress(TABLE), READ),
    "xz": ("jsonl", lzma.compress(LINE), READ),
    "zip": ("jsonl", zipped(LINE), READ),
    "zip of several": ("jsonl", zipped(LINE, LINE), "is an archive of 2 files"),
    "zip cut short": ("jsonl", zipped(LINE)[:-9], "damaged zip file"),
    "zstandard": ("jsonl", b"\x28\xb5\x2f\xfd" + bytes(20), "is packed with zstandard"),
    "gzip cut short": ("jsonl", gzip.compress(LINE)[:-12], "is a damaged gzip file"),
    "gzip of rubbish": ("csv", gzip.compress(TABLE)[:10] + b"\xff" * 40, "is a damaged gzip file"),
    "bzip2 cut short": ("txt", bz2.compress(TABLE)[:-9], "is a damaged bzip2 file"),
    "xz cut short": ("jsonl", lzma.compress(LINE)[:-9], "is a damaged xz file"),
    "long field": ("csv", b"instruction,output\na," + b"x" * 200_000 + b"\n", READ),
    "old Macintosh": ("csv", b"instruction,output\ra,b\rc,d\r", READ),
    "all ends of lines": ("csv", b'instruction,output\ra,"b\rc"\r\nd,e\n', READ),
    "open quotation": ("csv", b'instruction,output\n"a,b\nc,d\n', "a quotation mark is not closed"),
    "same column twice": ("csv", b"instruction,output,output,\na,b,1,2\n", READ),
    "NaN": ("jsonl", cell(b"NaN"), READ),
    "infinity": ("jsonl", cell(b"-Infinity"), READ),
    "400 digits": ("jsonl", cell(b"1" + b"0" * 400), READ),
    "5,000 digits": ("jsonl", cell(b"1" + b"0" * 5000), READ),
    "5,000 digits in a list": ("json", b"[" + cell(b"1" + b"0" * 5000) + b"]", "holds the number 1000"),
    "64 bits in a list": ("json", b"[" + cell(b"18446744073709551615") + b"]", READ),
    "65 bits in a list": ("json", b"[" + cell(b"18446744073709551616") + b"]", "holds the number 1844"),
    "huge exponent": ("jsonl", cell(b"1e400"), "holds the number 1e400"),
    "huge exponent in a list": ("json", b"[" + cell(b"1e400") + b"]", READ),
    "half a pair": ("jsonl", cell(b'"\\ud800"'), "half of a surrogate pair"),
    "half a pair, spread": ("json", cell(b'"\\ud800"').replace(b",", b",\n"), "half of a surrogate pair"),
    "half a pair in a list": ("json", b"[" + cell(b'"\\ud800"') + b"]", READ),
    "62 levels": ("jsonl", cell(nested(62)), READ),
    "63 levels": ("jsonl", cell(nested(63)), "is nested deeper than 63 levels"),
    "63 levels in a list": ("json", b"[" + cell(nested(63)) + b"]", "is nested deeper than 63 levels"),
    "100,000 levels": ("jsonl", cell(nested(100_000)), "is nested deeper than 63 levels"),
    "null first": ("jsonl", b"null\n" + LINE, "line 1 is null"),
    "null behind": ("jsonl", LINE + b"null\n", READ),
    "key twice": ("jsonl", b'{"instruction": "a", "output": "b", "output": "c"}', "has the key `output` twice"),
    "NUL in text": ("jsonl", b'{"instruction": "a\0", "output": "b"}', "is not valid JSON"),
    "nothing": ("jsonl", b"", "holds no row"),
    "UTF-16": ("txt", "hello".encode("utf-16"), "is not UTF-8 text"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_read_or_said_to_be_broken(name: str, tmp_path: Path) -> None:
    kind, content, message = CASES[name]
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(content)
    done = data(path)
    assert message in done.said
    assert done.code == (1 if message else 0)


def table(path: Path, **columns: object) -> None:
    """A parquet or arrow file."""
    pa = pytest.importorskip("pyarrow")
    held = pa.table(columns)
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(held, path)
        return
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, held.schema) as writer:
        writer.write_table(held)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_times_that_python_has_not_are_no_matter(kind: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / f"rows.{kind}"
    table(path, instruction=["a"], output=["b"], day=pa.array([2**30], pa.int32()).view(pa.date32()),
          time=pa.array([2**50]).view(pa.timestamp("s")))  # fmt: skip
    assert data(path).code == 0


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_text_that_is_none_is_told(kind: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, pa.array(["ab"]).buffers()[1], pa.py_buffer(b"\xff\xfe")])
    path = tmp_path / f"rows.{kind}"
    table(path, instruction=["a"], output=wrong)
    done = data(path)
    assert done.code == 1
    assert "utf8" in done.said


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.usefixtures("low")
def test_columns_that_take_more_than_they_look_are_read_in_parts(kind: str, tmp_path: Path) -> None:
    """A hundred rows share one text: as Arrow holds them a megabyte, as Python does more than is allowed."""
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / f"rows.{kind}"
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["x" * (1 << 20)]))
    table(path, instruction=["a"] * 100, output=shared)
    assert "100 read" in data(path).said


@pytest.mark.usefixtures("low")
def test_one_value_beyond_the_ceiling_is_not_unpacked(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"instruction": ["a"], "output": ["x" * (6 * reading_limits.MAX_ARROW_BATCH_BYTES)]}),
        path,
        compression="zstd",
    )
    done = data(path)
    assert done.code == 1
    assert (
        f"rows from 1 on take more than {reading_limits.in_mebibytes(reading_limits.MAX_ARROW_BATCH_BYTES)}"
        in done.said
    )


# Beginnings of files that go on without end, and the part that is repeated.
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "jsonl": (b"", bytes(1 << 20)),
    "json": (b'[{"instruction": "', b"x" * (1 << 20)),
    "csv": (b'instruction,output\na,"', b"x\n" * (1 << 19)),
    "txt": (b"", b"x" * (1 << 20)),
}


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("pack", [gzip.open, lzma.open])
def test_a_row_without_end_is_not_unpacked(kind: str, pack: Callable[[Path, str], BytesIO], tmp_path: Path) -> None:
    path, (begins, goes_on) = tmp_path / f"rows.{kind}", ENDLESS[kind]
    with pack(path, "wb") as stream:
        stream.write(begins)
        for _ in range((reading_limits.MAX_ROW_BYTES >> 20) + 4):
            stream.write(goes_on)
    done = data(path)
    assert done.code == 1
    assert (
        f"is larger than {reading_limits.in_mebibytes(reading_limits.MAX_ROW_BYTES)}, the most that is read"
        in done.said
    )


def write_table(
    rows: int, columns: Callable[[int], dict[str, object]], kind: str = "parquet"
) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        table(folder / f"rows.{kind}", **columns(rows))
        return folder / f"rows.{kind}"

    return write


def write_packed(kind: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / f"rows.{kind}").write_bytes(bz2.compress(content))
        return folder / f"rows.{kind}"

    return write


def alike(rows: int) -> dict[str, object]:
    return {"instruction": ["a"] * rows, "output": ["b"] * rows}


# Small files of much, the limit that they exceed, and how many rows were read before; None where rows are converted
# several at once.
PACKED: dict[str, tuple[Callable[[Path], Path], str, int | None]] = {
    "parquet rows": (write_table(9_000, alike), "2,000 rows", 2_000),
    "arrow rows": (write_table(9_000, alike, "arrow"), "2,000 rows", 2_000),
    "parquet text": (write_table(1_500, lambda n: alike(n) | {"output": ["b" * 9_000] * n}), "8 MiB", None),
    "parquet numbers": (write_table(1_500, lambda n: alike(n) | {"x": [[0] * 200] * n}), "8 MiB", None),
    "jsonl rows": (write_packed("jsonl", LINE * 3_000), "2,000 rows", 2_000),
    "json rows": (write_packed("json", b"[" + b",".join([LINE.strip()] * 9_000) + b"]"), "2,000 rows", 2_000),
    "json blanks": (write_packed("json", b"[" + b" " * (9 << 20)), "8 MiB", 0),
    "csv rows": (write_packed("csv", b"instruction,output\n" + b"a,b\n" * 9_000), "4,000 lines", 0),
    "txt rows": (write_packed("txt", b"a\n" * 3_000), "2,000 rows", 2_000),
    "txt lines": (write_packed("txt", b"\n" * 9_000), "4,000 lines", 0),
    "blank lines": (write_packed("jsonl", LINE + b"\n" * 9_000), "4,000 lines", 0),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_small_file_of_much_is_not_read_to_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"rows": (2_000, 0), "lines": (4_000, 0), "bytes": (8 << 20, 0)}
    monkeypatch.setattr(reading_limits, "_PACKED_LIMITS", limits)
    write, limit, rows = PACKED[name]
    path = write(tmp_path)
    done = data(path)
    assert done.code == 1
    found = f"`{path}`: holds more than {limit} in {path.stat().st_size:,} bytes; "
    told = re.search(re.escape(found) + r"([\d,]+) rows were read, and the rest was not", done.said)
    assert told
    assert int(told[1].replace(",", "")) == rows if rows is not None else told[1] != "0"


@pytest.mark.parametrize("name", PACKED)
def test_a_larger_file_of_as_much_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"rows": (2_000, 1e6), "lines": (4_000, 1e6), "bytes": (8 << 20, 1e9)}
    monkeypatch.setattr(reading_limits, "_PACKED_LIMITS", limits)
    assert "the rest was not" not in data(PACKED[name][0](tmp_path)).said


@pytest.mark.parametrize("content", [b"%s\n", b"[%s,\n%s]"], ids=["lines", "a list"])
def test_a_row_of_very_many_values_is_not_read(content: bytes, tmp_path: Path) -> None:
    row = cell(b"[{}" + b",{}" * 600_000 + b"]")
    path = tmp_path / "rows.json"
    path.write_bytes(content.replace(b"%s", row))
    done = data(path)
    assert done.code == 1
    assert "1 has more than 1,000,000 commas and brackets, the most that is read" in done.said


# Prints what a command and its own children took: peak memory in MiB and seconds of a processor. It is small itself,
# as Linux counts what a process held before it became another program.
MEASURE = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_maxrss >> 10, used.ru_utime + used.ru_stime)
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", stress_data.BOMBS)
def test_a_bomb_takes_little_memory_and_time(name: str, tmp_path: Path) -> None:
    file, write = stress_data.BOMBS[name]
    write_in_child(write, tmp_path / file)
    (tmp_path / "dataset_info.json").write_text(json.dumps({"bomb": {"file_name": file}}))
    recipe = f"{RECIPE}dataset: bomb\ndataset_dir: .\n".replace("dataset: alpaca_gpt4_en\n", "")
    (tmp_path / "r.yaml").write_text(recipe)
    for words in (["data", file], ["train", "r.yaml", "--dry-run", "--machine", "8xa100-80g"]):
        line = [sys.executable, "-S", "-c", MEASURE, sys.executable, "-P", "-m", "validator", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        code, mebibytes, seconds = done.stdout.split()
        assert code in ("0", "1")
        assert "Traceback" not in done.stderr
        assert int(mebibytes) < stress_data.BOMB_CEILING
        assert float(seconds) < 2 * stress_data.BOMB_SECONDS  # a processor that others use, too, is slower


def write_in_child(write: Callable[[Path], object], path: Path) -> None:
    """Write a file in a process of its own, which alone takes the memory for that."""
    writer = multiprocessing.get_context("fork").Process(target=write, args=(path,))
    writer.start()
    writer.join()
    assert writer.exitcode == 0


def test_rows_of_more_columns_than_a_table_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"instruction": "a", "output": "b", f"k{n}": n}) + "\n" for n in range(10_001)))
    done = data(path)
    assert done.code == 1
    assert "the rows have 10,001 columns or more, and at most 10,000 are read" in done.said


def test_what_is_no_file_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "device.jsonl").symlink_to("/dev/zero")
    (tmp_path / "folder.jsonl" / "inner.jsonl").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(tmp_path)  # the path of a socket is short
        try:
            bound.bind("socket.jsonl")
        finally:
            os.chdir(here)
        for name, kind in {"pipe": "a pipe", "device": "a device", "socket": "a socket"}.items():
            done = data(tmp_path / f"{name}.jsonl")
            assert done.code == 1
            assert f"is {kind}, and data are read more than once" in done.said
    assert data(tmp_path / "folder.jsonl").code == 1
