"""How `data`, and `train --dry-run`, bear data files: bombs, damage, what is no file, and a file of 20 GB.

python -m benchmarks reliability report --record data      all; writes 20 GB to a temporary folder, and takes minutes
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from robustness.report import Answer, Row, answer, heeding, runs

from validator.processes import child_pids

MEBIBYTE = 1 << 20
CEILING = 1024  # MiB
BOMB_CEILING, BOMB_SECONDS = 300, 10  # MiB; seconds of a processor
LARGE = 20_000_000_000  # bytes
PROMISE = f"one message or an answer, in less than {CEILING:,} MiB"
BOMB_PROMISE = f"one message or an answer, in less than {BOMB_CEILING} MiB and {BOMB_SECONDS} s"
LINE = b'{"instruction": "Say hi to all people.", "output": "hi there"}\n'
DENSE = b'{"instruction": "a", "output": "b", "x": [{}' + b",{}" * 2_600_000 + b"]}"
Write = Callable[[Path], object]


def repeated(begins: bytes, part: bytes, count: int) -> Iterator[bytes]:
    """Contents of a file: its beginning, and a part again and again."""
    yield begins
    yield from (part for _ in range(count))


def written(opened: Callable[[Path, str], Any], parts: Callable[[], Iterator[bytes]], path: Path) -> None:
    """A file, packed as `opened` does."""
    with opened(path, "wb") as stream:
        for part in parts():
            stream.write(part)


def plain(path: Path, mode: str) -> IO[Any]:
    """A file that is not packed."""
    return path.open(mode)


def table(path: Path, **columns: Any) -> None:
    """A parquet file, or an arrow file with packed buffers."""
    held = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(held, path, compression="zstd")
        return
    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, held.schema, options=packed) as writer:
        writer.write_table(held)


def shared(size: int, rows: int) -> pa.Array:
    """Rows that share one text."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))


def lists(rows: int, numbers: int) -> pa.Array:
    """Rows that are lists of zeros."""
    starts = pa.array(range(0, rows * numbers + 1, numbers), pa.int32())
    return pa.ListArray.from_arrays(starts, pa.array(np.zeros(rows * numbers, np.int64)))


def claiming(path: Path) -> None:
    """A Parquet file of one row, whose footer claims 5 billion."""
    table(path, instruction=["a"], output=["b"])
    held = path.read_bytes()
    start = len(held) - 8 - int.from_bytes(held[-8:-4], "little")
    rows = held.index(b"\x16\x02", start)  # field 3, the number 1 as zigzag varint
    footer = held[start:rows] + b"\x16\x80\xc8\xaf\xa0\x25" + held[rows + 2 : -8]
    path.write_bytes(held[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def zeros(count: int, begins: bytes = b"", part: bytes = bytes(MEBIBYTE)) -> Callable[[], Iterator[bytes]]:
    return partial(repeated, begins, part, count)


BOMBS: dict[str, tuple[str, Write]] = {
    "jsonl, gzip: 3 GB of zeros": ("a.jsonl", partial(written, gzip.open, zeros(3000))),
    "jsonl, bzip2: 1 GB of zeros": ("a.jsonl", partial(written, bz2.open, zeros(1000))),
    "jsonl, xz: 1 GB of zeros": ("a.jsonl", partial(written, lzma.open, zeros(1000))),
    "json, gzip: 1 GB of blanks in a list": ("a.json", partial(written, gzip.open, zeros(1000, b"[", b" " * MEBIBYTE))),
    "json, gzip: 1 GB of text in one row of a list":
        ("a.json", partial(written, gzip.open, zeros(1000, b'[{"instruction": "', b"x" * MEBIBYTE))),
    "csv, gzip: 1 GB in one field":
        ("a.csv", partial(written, gzip.open, zeros(1000, b'instruction,output\na,"', b"x\n" * (MEBIBYTE // 2)))),
    "csv: 7 million columns": ("a.csv", partial(written, plain, zeros(7, b"a", b"," * MEBIBYTE))),
    "txt, gzip: 1 GB in one line": ("a.txt", partial(written, gzip.open, zeros(1000, b"", b"x" * MEBIBYTE))),
    "jsonl: rows of 2.6 million objects": ("a.jsonl", partial(written, plain, zeros(3, b"", DENSE + b"\n"))),
    "json: a list of rows of 2.6 million objects":
        ("a.json", partial(written, plain, zeros(2, b"[" + DENSE, b"," + DENSE))),
    "jsonl: 100,000 levels": ("a.jsonl", lambda path: path.write_bytes(b"[" * 100_000 + b"]" * 100_000)),
    "parquet: 500 rows share 8 MiB":
        ("a.parquet", lambda path: table(path, instruction=["a"] * 500, output=shared(8 * MEBIBYTE, 500))),
    "jsonl, gzip: 1 GB of rows":
        ("a.jsonl", partial(written, gzip.open, zeros(1000, b"", LINE * (MEBIBYTE // len(LINE))))),
    "jsonl, bzip2: 100 MB of rows":
        ("a.jsonl", partial(written, bz2.open, zeros(100, b"", LINE * (MEBIBYTE // len(LINE))))),
    "jsonl, gzip: 1 billion blank lines": ("a.jsonl", partial(written, gzip.open, zeros(1000, b"", b"\n" * MEBIBYTE))),
    "csv, gzip: 262 million rows":
        ("a.csv", partial(written, gzip.open, zeros(1000, b"instruction,output\n", b"a,b\n" * (MEBIBYTE // 4)))),
    "json: 1 GB in one line":
        ("a.json", partial(written, plain, zeros(1000, b'[{"instruction": "', b"x" * MEBIBYTE))),
    "csv: 1 GB in one field":
        ("a.csv", partial(written, plain, zeros(1000, b'instruction,output\na,"', b"x\n" * (MEBIBYTE // 2)))),
    "parquet: 2 million rows alike":
        ("a.parquet", lambda path: table(path, instruction=["a"] * 2_000_000, output=["b"] * 2_000_000)),
    "parquet: 2 million rows share 4 kB":
        ("a.parquet", lambda path: table(path, instruction=["a"] * 2_000_000, output=shared(4000, 2_000_000))),
    "parquet: a list of 100 million numbers in one row":
        ("a.parquet", lambda path: table(path, instruction=["a"], output=["b"], x=lists(1, 100_000_000))),
    "parquet: 9,999 lists of 9,999 numbers":
        ("a.parquet", lambda path: table(path, instruction=["a"] * 9999, output=["b"] * 9999, x=lists(9999, 9999))),
    "parquet: 9,999 columns of 2,000 rows":
        ("a.parquet", lambda path: table(path, **{f"c{n}": pa.nulls(2000, pa.string()) for n in range(9999)})),
    "parquet: a footer that claims 5 billion rows": ("a.parquet", claiming),
    "parquet: 600 MiB of text in one row":
        ("a.parquet", lambda path: table(path, instruction=["a"], output=["x" * (600 * MEBIBYTE)])),
    "arrow: 600 MiB of text in one row, packed":
        ("a.arrow", lambda path: table(path, instruction=["a"], output=["x" * (600 * MEBIBYTE)])),
}  # fmt: skip


def rows() -> Iterator[Row]:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        for what, (name, write) in BOMBS.items():
            yield bomb(what, Path(folder, name), write)
        yield dry_run(Path(folder))
        yield from damaged(Path(folder))
        yield from others(Path(folder))
        yield from large(Path(folder, "large.jsonl"))


def bomb(what: str, path: Path, write: Write) -> Row:
    """What `data` says of one file. It is written by another process, whose memory would count as the program's."""
    child = os.fork()
    if not child:
        write(path)
        os._exit(0)
    os.waitpid(child, 0)
    done = answer(["data", str(path)])
    size = path.stat().st_size / 1e6
    path.unlink()
    failed = fails(done, BOMB_CEILING) or done.seconds > BOMB_SECONDS
    return Row(f"{what} ({size:,.1f} MB)", BOMB_PROMISE, 1, int(failed), done.seconds, done.mebibytes)


def fails(done: Answer, ceiling: int = CEILING) -> bool:
    return done.code not in (0, 1) or done.mebibytes > ceiling or b"Traceback" in done.err


def dry_run(folder: Path) -> Row:
    """A bomb before a training."""
    with gzip.open(folder / "rows.jsonl", "wb") as stream:
        for _ in range(3000):
            stream.write(bytes(MEBIBYTE))
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"}}))
    recipe = {"model_name_or_path": "Qwen/Qwen3-8B", "template": "qwen3", "stage": "sft", "do_train": True,
              "finetuning_type": "lora", "dataset": "rows", "dataset_dir": ".", "output_dir": "out"}  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    done = answer(["train", str(folder / "recipe.yaml"), "--dry-run"], folder)
    what = "`train --dry-run` on 3 GB of zeros in 3 MB of gzip"
    return Row(what, PROMISE, 1, int(fails(done)), done.seconds, done.mebibytes)


def sound(folder: Path) -> Iterator[Path]:
    """One sound file of each kind."""
    lines, listed = LINE * 20, b"[" + b",".join([LINE.strip()] * 20) + b"]"
    held = BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.jsonl", lines)
    contents = {"plain.jsonl": lines, "list.json": listed, "table.csv": b"instruction,output\n" + b'a,"b, c"\n' * 20,
                "text.txt": b"hello\n" * 20, "gzip.jsonl": gzip.compress(lines), "bzip2.jsonl": bz2.compress(lines),
                "xz.jsonl": lzma.compress(lines), "zip.jsonl": held.getvalue()}  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        yield folder / name
    for name in ("table.parquet", "table.arrow"):
        table(folder / name, instruction=["Say hi."] * 20, output=["hi"] * 20)
        yield folder / name


def damaged(folder: Path) -> Iterator[Row]:
    """Each kind of file with a byte changed, and cut short."""
    draw = random.Random(14)
    for path in sound(folder):
        whole, failed, seconds, most = path.read_bytes(), 0, 0.0, 0.0
        for number in range(20):
            at, broken = draw.randrange(len(whole)), bytearray(whole)
            broken[at] ^= 1 << draw.randrange(8)
            path.write_bytes(bytes(broken) if number % 2 else whole[:at])
            done = answer(["data", str(path)])
            failed, seconds, most = failed + fails(done), max(seconds, done.seconds), max(most, done.mebibytes)
        yield Row(f"{path.name}, a bit changed or cut short", PROMISE, 20, failed, seconds, most)


def others(folder: Path) -> Iterator[Row]:
    """What is no file."""
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "device.jsonl").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        done = answer(["data", str(folder / f"{name}.jsonl")])
        failed = int(done.code != 1)
        yield Row(f"a {name} in a file's place", "one message, at once", 1, failed, done.seconds, done.mebibytes)


def large(path: Path) -> Iterator[Row]:
    """A tenth of the file, the whole of it, and Ctrl-C in the middle."""
    draw = random.Random(7)
    texts = ["".join(draw.choices("abcdefghij     ", k=900)) for _ in range(1000)]
    part = "".join(f'{{"instruction": "{text[:60]}", "output": "{text}"}}\n' for text in texts).encode()
    for size in (LARGE // 10, LARGE):
        with path.open("wb") as stream:
            for _ in range(size // len(part)):
                stream.write(part)
        done = answer(["data", str(path)])
        yield Row(f"{size / 1e9:.0f} GB of jsonl", PROMISE, 1, int(fails(done)), done.seconds, done.mebibytes)
    yield interrupted(path, signal.SIGINT, 130)
    yield interrupted(path, signal.SIGKILL, -signal.SIGKILL)
    path.unlink()


def interrupted(path: Path, number: signal.Signals, code: int) -> Row:
    """A signal while the file is read."""
    program = Path(sys.executable).with_name("lmf-recipes")
    words = [program, "data", path]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heeding)
    while not (workers := child_pids(process.pid)):
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(number)
    before = time.monotonic()
    failed = process.wait() != code or time.monotonic() - before > 1
    time.sleep(1)
    failed |= any(map(runs, workers))
    return Row(
        f"{number.name} while a large file is read", "ends within a second, and leaves no process", 1, int(failed)
    )
