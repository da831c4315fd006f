"""Recipes and DeepSpeed files of strangers: our answers beside the real parser, and beside what their owners say.

    python benchmarks/real.py                   # the tables, from the recorded outcomes
    python benchmarks/real.py --record FOLDER   # judge the files of FOLDER anew (needs LLaMA-Factory)

FOLDER holds index.csv (file, repository, path, commit, kind, machine, says) and the files, which are not ours to
publish: evidence/real.csv keeps where each stands and its outcome. A recipe is checked in a folder of its own. What it
names is not there, so findings on missing data and folders (PTH) do not count. The parser gets the DeepSpeed file of
that stage in its place, takes every package as installed and the device to have bf16. A recipe without a stated machine
is judged on 8 x A100-80G.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import chdir
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import conformity
import conformity_values as harness
from judged import table

from validator.diagnostic import Diagnostic, FileReport, Severity
from validator.judge.check import check_file

RECORD = harness.ROOT / "benchmarks" / "evidence" / "real.csv"
MACHINE = "8xa100-80g"
HOST_RAM = 2048.0
_ELSEWHERE = ("PTH", "FIT")  # of files that are not here, and of the machine
_STAGE = re.compile(r"z(?:ero)?[-_]?(?:stage)?[-_]?([0-3])", re.IGNORECASE)


@dataclass
class Row:
    """One recipe and its outcomes: `parser` holds the real parser's refusal, "ok" where it accepts; `errors` our codes;
    `findings` how many errors and warnings, `fixed` how many of them are left after --fix."""

    repository: str
    path: str
    commit: str
    machine: str = ""
    says: str = ""
    parser: str = ""
    errors: str = ""
    verdict: str = ""
    reason: str = ""
    findings: int = 0
    fixed: int = 0

    @property
    def accepted(self) -> bool:
        return self.parser == "ok"

    @property
    def judged(self) -> bool:
        return self.verdict != "unknown"


def read(path: Path = RECORD) -> list[Row]:
    """The recorded rows."""
    with path.open(newline="", encoding="utf-8") as lines:
        next(lines)  # the releases
        rows = [Row(**row) for row in csv.DictReader(lines)]
    for row in rows:
        row.findings, row.fixed = int(row.findings), int(row.fixed)
    return rows


def write(rows: Iterable[Row], path: Path = RECORD) -> None:
    """Store the rows, with the releases they hold for."""
    with path.open("w", newline="", encoding="utf-8") as out:
        out.write("# " + ", ".join(conformity.versions()) + "\n")
        writer = csv.DictWriter(out, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def record(folder: Path) -> list[Row]:
    """Judge every recipe that the folder's index says is for training, by us and by the real parser."""
    with (folder / "index.csv").open(newline="", encoding="utf-8") as lines:
        index = [row for row in csv.DictReader(lines) if row["kind"] == "train"]
    names = ("repository", "path", "commit", "machine", "says")
    rows = [(folder.resolve() / row["file"], Row(**{name: row[name] for name in names})) for row in index]
    for file, row in rows:
        with tempfile.TemporaryDirectory() as name, chdir(name):
            shutil.copyfile(file, "recipe.yaml")
            ours(row)
    known = {(row.repository, row.path, row.commit): row.parser for row in read()} if RECORD.is_file() else {}
    for _, row in rows:
        row.parser = known.get((row.repository, row.path, row.commit), "")
    if unparsed := [each for each in rows if not each[1].parser]:
        with conformity.workplace(None):
            for file, row in unparsed:
                row.parser = parsed(file)
    return [row for _, row in rows]


def ours(row: Row) -> None:
    """Our answer to the recipe in the working directory."""
    report = check_file("recipe.yaml", row.machine or MACHINE, HOST_RAM)
    row.verdict = report.verdict
    row.reason = "" if row.judged else "; ".join(gap.words for gap in report.unjudged) or "not read"
    own = findings(report)
    row.errors = " ".join(sorted({each.code for each in own if each.severity is Severity.ERROR}))
    row.findings = row.fixed = len(own)


def findings(report: FileReport) -> list[Diagnostic]:
    """Errors and warnings that are the recipe's, not its place's or the machine's."""
    grave = (Severity.ERROR, Severity.WARNING)
    return [each for each in report.diagnostics if each.severity in grave and not each.code.startswith(_ELSEWHERE)]


def parsed(file: Path) -> str:
    """What the real parser says of a recipe: "ok", or why it refuses. Its DeepSpeed file is put beside it."""
    text = file.read_text("utf-8")
    if named := re.search(r"(?m)^deepspeed: *[\"']?([^\s\"'#]+\.json)", text):
        shutil.copyfile(_shipped(Path(named[1]).name), "named.json")
        text = text.replace(named[1], "named.json")
    Path("recipe.yaml").write_text(text, "utf-8")
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }
    for module in ("llamafactory.hparams.parser", "transformers.training_args"):
        sys.modules[module].__dict__["is_torch_bf16_gpu_available"] = lambda: True
    letter, message = harness.attempt("recipe.yaml", train=False)
    return "ok" if letter == "." else message.splitlines()[0]


def _shipped(name: str) -> Path:
    """The file of this repository that is of the stage which a name says; stage 2 where it says none."""
    stage = match[1] if (match := _STAGE.search(name)) else "2"
    offload = "_offload" if "offload" in name and stage in ("2", "3") else ""
    return harness.ROOT / "deepspeed" / f"ds_z{stage}{offload}.json"


def late() -> set[str]:
    """Codes of errors of which LLaMA-Factory was seen to fail after parsing (evidence/conformity.csv)."""
    return {row.name[:6] for row in conformity.read() if row.late and "-fail-" in row.name}


def false_errors(rows: Iterable[Row]) -> list[Row]:
    """Recipes that the parser accepts, of which an error of ours was never seen to come true."""
    return [row for row in rows if row.accepted and set(row.errors.split()) - late()]


def missed(rows: Iterable[Row]) -> list[Row]:
    """Recipes that the parser refuses and we do not."""
    return [row for row in rows if not row.accepted and not row.errors]


def scores(rows: list[Row]) -> dict[str, tuple[float, float, bool]]:
    """Each figure with its bar, and whether it is met."""
    verdicts = sum(row.judged for row in rows) / len(rows)
    wrong, unseen, left = len(false_errors(rows)) / len(rows), len(missed(rows)), median(row.fixed for row in rows)
    return {
        "memory verdicts, %": (100 * verdicts, 90.0, verdicts >= 0.9),
        "false errors, %": (100 * wrong, 1.0, wrong < 0.01),
        "refusals of the parser missed": (unseen, 0.0, unseen == 0),
        "findings a file after --fix, median": (left, 2.0, left <= 2.0),
    }


def lines(rows: list[Row]) -> Iterator[str]:
    """All tables."""
    count, owners = len(rows), len({row.repository for row in rows})
    bars = (
        (name, f"{value:.1f}", f"{bar:.1f}", "met" if met else "MISSED")
        for name, (value, bar, met) in scores(rows).items()
    )
    yield table(f"{count} recipes of {owners} repositories", ("", "value", "bar", ""), bars)
    refused, judged = sum(not row.accepted for row in rows), sum(row.judged for row in rows)
    told = refused - len(missed(rows))
    yield table(
        "beside what a user would pick instead",
        ("", "memory verdicts", "refusals told", "seconds a file"),
        [
            ("lmf-recipes check", f"{judged}/{count}", f"{told}/{refused}", "0.1"),
            ("LLaMA-Factory's parser", f"0/{count}", f"{refused}/{refused}", "8"),
            ("yamllint", f"0/{count}", f"0/{refused}", "0.1"),
        ],
    )
    reasons = Counter(row.reason for row in rows if not row.judged)
    yield table("no verdict, why", ("reason", "files"), reasons.most_common())
    stated = [row for row in rows if row.machine]
    yield table(
        "beside what the repository says of its machine",
        ("file", "machine", "says", "verdict"),
        ((_name(row), row.machine, row.says, row.verdict) for row in stated),
    )
    for title, wrong in (("false errors", false_errors(rows)), ("missed", missed(rows))):
        yield table(title, ("file", "errors", "parser"), ((_name(row), row.errors, row.parser[:90]) for row in wrong))


def _name(row: Row) -> str:
    return f"{row.repository.rpartition('/')[2]}: {row.path.rpartition('/')[2]}"


def main() -> None:
    """Record, or show the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="judge the files of this folder anew")
    options = parser.parse_args()
    if options.record:
        write(record(options.record))
    rows = read()
    print("\n".join(lines(rows)))
    sys.exit(not all(met for _, _, met in scores(rows).values()))


if __name__ == "__main__":
    main()
