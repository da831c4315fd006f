"""The `data` command on large files of made-up rows: wall time, processor time and memory, beside the datasets library;
what it finds of the faults planted there; and how both take broken files.

    python -m benchmarks data data [PART …]     all parts, or some of: million tokenizer faults broken

The files (up to 4 GB) go to build/benchmark-data and are deleted at the end. `datasets` comes with the [train] extra.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "benchmark-data"
CORES = 2
OURS = [sys.executable, "-m", "validator", "data"]
MILLION = 1_000_000
THEIRS = "import datasets, sys; datasets.disable_progress_bars(); " \
    "print(len(datasets.load_dataset('json', data_files=sys.argv[1], cache_dir=sys.argv[2])['train']))"  # fmt: skip
GIB = 2**30
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
_BEGINS = [*"bcdfghklmnprstvw", "st", "tr", "pl", "ch", "sh"]
_ENDS = [*"aeiou", "ai", "ou", "ee"]


class Run(NamedTuple):
    """One measured process tree: seconds, seconds of processor time, the most memory at once in GiB, and its output."""

    wall: float
    cpu: float
    peak: float
    output: str


class Corpus:
    """Made-up rows: words of random syllables with the frequencies of a language, some rows in Chinese signs."""

    def __init__(self) -> None:
        self._draw = random.Random(7)
        syllables = [begin + end for begin in _BEGINS for end in _ENDS]
        self._words = ["".join(self._draw.choices(syllables, k=self._draw.randrange(1, 5))) for _ in range(60_000)]
        self._weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(60_000)))
        self._latin = [self._sentence() for _ in range(150_000)]
        self._chinese = ["".join(chr(0x4E00 + self._draw.randrange(3000)) for _ in range(30)) + "。"
                         for _ in range(50_000)]  # fmt: skip

    def _sentence(self) -> str:
        return " ".join(self._draw.choices(self._words, cum_weights=self._weights, k=14)).capitalize() + "."

    def rows(self, count: int, seed: int = 1) -> Iterator[dict[str, str]]:
        """Rows of about a kilobyte; no two have more than a sentence or two in common."""
        draw = random.Random(seed)
        for index in range(count):
            latin = draw.random() < 0.85
            chosen = draw.choices(self._latin if latin else self._chinese, k=draw.randrange(7, 14))
            given = chosen[1] if index % 3 == 0 else ""
            asked, answered = f"{chosen[0]} {chosen[2]}", (" " if latin else "").join(chosen[3:])
            yield {"instruction": asked, "input": given, "output": answered}


def with_faults(rows: Iterator[dict[str, str]]) -> Iterator[dict[str, str]]:
    """The rows, and behind every thousandth one the same again, with one word put in, without answer, with a control
    character, and with signs that were read in a wrong encoding."""
    for index, row in enumerate(rows):
        yield row
        if index % 1000 == 0:
            middle, backwards = len(row["output"]) // 2, row["output"][::-1]
            yield row
            yield {**row, "output": f"{row['output'][:middle]} another {row['output'][middle:]}"}
            yield {**row, "input": str(index), "output": ""}
            yield {**row, "output": backwards + "\x07"}
            yield {**row, "output": "锟斤拷 " + backwards[::2]}


FAULTS = ("exact duplicates", "near duplicates", "empty answers", "control characters", "garbled text")


def written(name: str, rows: Iterator[dict[str, str]]) -> Path:
    """A file of JSON lines."""
    path = FOLDER / name
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


def measured(command: list[str], **more: str) -> Run:
    """Run a command on two cores."""
    pin = (lambda: os.sched_setaffinity(0, range(CORES))) if hasattr(os, "sched_setaffinity") else None
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT | more,
                               cwd=FOLDER, preexec_fn=pin)  # fmt: skip
    peaks = [0]
    watch = threading.Thread(target=_watch, args=(process, peaks))
    watch.start()
    output, _ = process.communicate()
    wall, after = time.perf_counter() - start, os.times()
    watch.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{output}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(wall, used, max(peaks) / GIB, output)


def _watch(process: subprocess.Popen[str], peaks: list[int]) -> None:
    while process.poll() is None:
        peaks.append(sum(map(_resident, _tree(process.pid))))
        time.sleep(0.05)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _resident(pid: int) -> int:
    """Memory of a process that is its own: pages of files and what it shares with others are not counted twice."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def line(name: str, run: Run, bar: str) -> None:
    """One row of the table of times."""
    print(f"{name:<58}{run.wall:>8.1f}{run.cpu:>8.1f}{run.peak:>8.2f}  {bar}", flush=True)


def header(size: int) -> None:
    """The head of that table."""
    print(f"{size / 1e9:.2f} GB in {MILLION:,} rows and more, {CORES} cores of {os.cpu_count()}")
    print(f"{'':<58}{'wall s':>8}{'cpu s':>8}{'GiB':>8}  bar")


def million() -> None:
    """A million rows: counted and judged, beside the same file loaded by datasets."""
    path = written("million.jsonl", with_faults(Corpus().rows(MILLION)))
    header(path.stat().st_size)
    line("counts, columns, empties, exact duplicates, lengths", measured([*OURS, path.name, "--no-near"]),
         "15 s, 1.5 GiB")  # fmt: skip
    line("datasets, load_dataset", measured([sys.executable, "-c", THEIRS, path.name, "cache"]), "")
    shutil.rmtree(FOLDER / "cache")
    near = measured([*OURS, path.name, "--near", "--format", "json"])
    line("the same with near duplicates", near, "120 s")
    found = {one["kind"]: one["rows"] for one in json.loads(near.output)["quality"]}
    print(", ".join(f"{kind}: {found.pop(kind, 0):,} of {MILLION // 1000:,}" for kind in FAULTS), found or "")
    triple = FOLDER / "triple.jsonl"
    with triple.open("wb") as stream:
        for _ in range(3):
            with path.open("rb") as part:
                shutil.copyfileobj(part, stream, 1 << 20)
    line("three times the file, without near duplicates", measured([*OURS, triple.name, "--no-near"]), "")
    triple.unlink()


def tokenizer() -> None:
    """A hundred thousand rows with a tokenizer of 30,000 entries, trained on other made-up rows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=30_000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)  # fmt: skip
    made.train_from_iterator((row["output"] for row in Corpus().rows(20_000, seed=2)), trainer)
    snapshot = FOLDER / "hub" / "models--Qwen--Qwen3-8B" / "snapshots" / "made-up"
    snapshot.mkdir(parents=True)
    made.save(str(snapshot / "tokenizer.json"))
    path = written("tokens.jsonl", Corpus().rows(100_000))
    run = measured([*OURS, path.name, "--model", "qwen3-8b", "--no-near", "--format", "json"],
                   HF_HUB_CACHE=str(FOLDER / "hub"))  # fmt: skip
    tokens = json.loads(run.output)["tokens"]
    line(f"100,000 rows, {tokens['per_epoch']:,} tokens of {made.get_vocab_size():,} kinds counted", run, "30 s")
    assert tokens["exact"]


def study(rows: list[dict[str, Any]], evaluation: list[dict[str, Any]]) -> dict[str, Any]:
    """What the command says of a recipe on these rows."""
    written("rows.jsonl", iter(rows))
    written("held.jsonl", iter(evaluation))
    names = {"rows": {"file_name": "rows.jsonl"}, "held": {"file_name": "held.jsonl"}}
    (FOLDER / "dataset_info.json").write_text(json.dumps(names))
    recipe = {"model_name_or_path": "qwen3-8b", "template": "qwen3", "stage": "sft", "do_train": True,
              "dataset": "rows", "eval_dataset": "held", "dataset_dir": ".", "cutoff_len": 1024}  # fmt: skip
    (FOLDER / "recipe.yaml").write_text(json.dumps(recipe))
    found: dict[str, Any] = json.loads(measured([*OURS, "recipe.yaml", "--format", "json"]).output)
    return found


def faults() -> None:
    """Ten thousand clean rows, then the same with two hundred of each fault."""
    rows = list(Corpus().rows(11_000))
    rows, held = rows[:10_000], rows[10_000:]
    print(f"clean rows: {len(study(rows, held)['quality'])} findings")
    ways: dict[str, Callable[[int], None]] = {
        "exact duplicates": lambda at: rows.append(rows[at]),
        "near duplicates": lambda at: rows.append({**rows[at], "output": rows[at]["output"] + " more"}),
        "empty answers": lambda at: rows[at].update(output=" \n"),
        "very short answers": lambda at: rows[at].update(output="yes"),
        "control characters": lambda at: rows[at].update(output=rows[at]["output"] + "\x07"),
        "garbled text": lambda at: rows[at].update(output=rows[at]["output"] + "Ã¤"),
        "repeated prompt": lambda at: rows[at].update(instruction="Go on.", input=""),
        "answers cut": lambda at: rows[at].update(output=rows[at]["output"] * 20),
        "evaluation rows in training": lambda at: held.append(rows[at]),
        "no answer": lambda at: rows[at].update(output=None),
    }
    for number, plant in enumerate(ways.values()):
        for at in range(number * 400, number * 400 + 400, 2):
            plant(at)
    found = study(rows, held)
    counts = {one["kind"]: one["rows"] for one in found["quality"]}
    counts |= {drop["reason"].partition(":")[0]: drop["rows"] for drop in found["drops"]}
    print(f"{'planted, 200 of each':<58}{'found':>8}")
    for kind in [*ways, *(counts.keys() - ways.keys())]:
        print(f"{kind:<58}{counts.get(kind, 0):>8}")


ROW = b'{"instruction": "Say hi.", "input": "", "output": "hi there"}\n'
BROKEN = {
    "half a line at the end": ("half.jsonl", ROW * 9 + ROW[:30]),
    "a byte that is not UTF-8": ("latin.jsonl", ROW * 9 + ROW.replace(b"hi there", b"\xe9")),
    "a list behind a byte order mark": ("mark.json", b"\xef\xbb\xbf[" + ROW + b"]"),
    "a line of 100 MB": ("line.jsonl", ROW * 9 + ROW.replace(b"there", b"x" * 100_000_000)),
    "nulls in nested lists": ("null.jsonl", b'{"conversations": [null, {"from": null}]}\n'),
    "an empty file": ("empty.jsonl", b""),
    "an object instead of a list": ("object.json", b'{"data": [' + ROW + b"]}"),
    "gzip": ("packed.json", gzip.compress(ROW * 10)),
    "half of a gzip file": ("torn.json", gzip.compress(ROW * 9000)[:300]),
    "UTF-16": ("wide.json", ("[" + ROW.decode() + "]").encode("utf-16")),
    "numbers for text in one row": ("number.jsonl", ROW * 9 + ROW.replace(b'"hi there"', b"7")),
    "a list that ends too soon": ("list.json", b"[" + ROW),
}
LOAD = """
import datasets, sys
datasets.disable_progress_bars()
for name in sys.argv[2:]:
    try:
        print(len(datasets.load_dataset("json", data_files=name, cache_dir=sys.argv[1])["train"]), "rows")
    except Exception as err:
        while err.__cause__:
            err = err.__cause__
        print(type(err).__name__, ":", str(err).splitlines()[0][:60] if str(err) else "")
"""


def broken() -> None:
    """Files that are not what they should be: what is said of each, and what the datasets library says."""
    for name, data in BROKEN.values():
        (FOLDER / name).write_bytes(data)
    names = [name for name, _ in BROKEN.values()]
    theirs = measured([sys.executable, "-c", LOAD, "cache", *names]).output.splitlines()
    for kind, name, said in zip(BROKEN, names, theirs, strict=True):
        command = [*OURS, name, "--format", "json"]
        done = subprocess.run(command, cwd=FOLDER, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        found = json.loads(done.stdout) if done.stdout else {"problems": [], "quality": []}
        ours = [f"{one['place']}: {one['message']}" for one in found["problems"]] or done.stderr.splitlines()
        ours += [f"{one['kind']}: {one['rows']}" for one in found["quality"]]
        print(f"{kind} (exit code {done.returncode})\n    {'; '.join(ours)}\n    datasets: {said}")


PARTS = {"million": million, "tokenizer": tokenizer, "faults": faults, "broken": broken}


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        for part in sys.argv[1:] or PARTS:
            PARTS[part]()
    finally:
        shutil.rmtree(FOLDER)
