"""Recipes and DeepSpeed files of strangers: our answers beside the real parser, and beside what their owners say.

    python -m benchmarks files recipes                   # the tables, from the recorded outcomes
    python -m benchmarks files recipes --record FOLDER   # judge the files of FOLDER anew (needs LLaMA-Factory)

FOLDER holds a folder for each collection: index.csv (file, repository, path, commit, kind, machine, says), the files,
and tree/ with those of a repository in place (OWNER+NAME/PATH), which are not ours to publish:
evidence/files/real.csv keeps where each stands and its outcome. evidence/files/unseen.csv holds the later
collections as they were first judged, before anything was changed for them, and is not made anew. A recipe is
checked with the recipes beside it alone, as one may train what another starts from. What it names is not there, so
our errors on missing data and folders (PTH) are not compared. The parser gets the DeepSpeed file of that stage in
its place, takes every package as installed and the device to have bf16 and tf32. A recipe without a stated machine
is judged on 8 x A100-80G.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from statistics import median
from unittest.mock import patch

import records
from conformity import report as conformity
from conformity import values as harness
from score import table

from validator.check.autofix import apply_fixes
from validator.check.checking import check_document
from validator.finding import FileReport, Severity
from validator.recipe.recipe_file import Document, load_recipe
from validator.run import deepspeed

RECORD = records.EVIDENCE / "files" / "real.csv"
UNSEEN = records.EVIDENCE / "files" / "unseen.csv"
MACHINE = "8xa100-80g"
HOST_RAM = 2048.0
MOST = 3  # recipes of a repository
WORKERS = 4
_ELSEWHERE = ("PTH", "FIT")  # of files that are not here, and of the machine
# Errors after parsing that the tiny model of conformity/report.py cannot show.
_LATE = {
    "SCH004": "a choice that is asked for late (conformity/values.py has run every key)",
    "TRA501": "the release of trl, which the parser here takes as installed",
    "TRA901": "transformers asks at the terminal whether the code of the model's repository may run",
    "TRA918": "layers of Llama 3.2 that read pictures (its own class, tried with a few numbers, stops so)",
    "TRA902": "code of a model's repository that calls what transformers 5 has not",
    "TRA903": "an import error where the model is loaded (LLaMA-Factory issue 10256)",
}
# Why a verdict is not what the repository says.
MISSES = {
    "masadi-99/MARCUS": "whole weights on each device take 75 GiB at the least by ours; does the launch add DeepSpeed?",
    "SachinKonan/LLaMA-Factory-AutoReviewer": "FSDP by accelerate launch, which the recipe does not say: judged as DDP",
}
_PLAIN = "ds_z2.json"  # for a DeepSpeed file whose name tells no stage
_IDLE = "nothing is trained"
# Why no verdict can be: the file names no model.
_REFUSED, _UNNAMED, _PLACEHOLDER = "no YAML to LLaMA-Factory", "no model is written", "a placeholder for a model"
_HOLDS_PLACE = re.compile(r"(?i)path.?to|your.*(?:model|path)|model.?path|<.*>|[{}]")


@dataclass
class Row:
    """One recipe of a collection and its outcomes: `parser` holds the real parser's refusal, "ok" where it accepts;
    `errors` our codes; `findings` how many errors and warnings, `fixed` how many of them are left after --fix."""

    collection: str
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
    def trains(self) -> bool:
        return _IDLE not in self.reason

    @property
    def names_model(self) -> bool:
        return self.reason not in (_REFUSED, _UNNAMED, _PLACEHOLDER)

    @property
    def judged(self) -> bool:
        return self.verdict != "unknown"


def read(path: Path = RECORD) -> list[Row]:
    """The recorded rows."""
    numbers = ("findings", "fixed")
    return [Row(**row | {name: int(row[name]) for name in numbers}) for row in records.read(path)]  # type: ignore[arg-type]


def record(folder: Path) -> list[Row]:
    """Judge the recipes that the folder's index says are for training: by us and, where that is not recorded yet, by
    the real parser."""
    rows = listed(folder)
    known = {(row.repository, row.path, row.commit): row.parser for row in (*read(), *read(UNSEEN))}
    with ProcessPoolExecutor(WORKERS) as pool:
        judged = list(pool.map(answer, rows))
        for row in judged:
            row.parser = known.get((row.repository, row.path, row.commit), "")
        waiting = [(file, row) for (file, _), row in zip(rows, judged, strict=True) if not row.parser]
        shares = [waiting[each::WORKERS] for each in range(WORKERS)]
        for share, said in zip(shares, pool.map(parse, [[file for file, _ in share] for share in shares]), strict=True):
            for (_, row), parser in zip(share, said, strict=True):
                row.parser = parser
    return judged


def listed(folder: Path) -> list[tuple[Path, Row]]:
    """Recipes of all collections."""
    return [each for index in sorted(folder.resolve().glob("*/index.csv")) for each in collected(index.parent)]


def collected(folder: Path) -> Iterator[tuple[Path, Row]]:
    """Recipes for training of one collection, at most MOST of a repository, whose files are alike."""
    with (folder / "index.csv").open(newline="", encoding="utf-8") as lines:
        index = [row for row in csv.DictReader(lines) if row["kind"] == "train"]
    index.sort(key=lambda row: not row["machine"])  # those of a stated machine first
    names, taken = ("repository", "path", "commit", "machine", "says"), Counter[str]()
    for row in index:
        taken[row["repository"]] += 1
        if row["machine"] or taken[row["repository"]] <= MOST:
            yield folder / row["file"], Row(folder.name, **{name: row[name] for name in names})


def answer(listed: tuple[Path, Row]) -> Row:
    """The row with our answer to its file."""
    file, row = listed
    unadvised = patch(
        "validator.check.checking._advice_on_memory", lambda _job: ""
    )  # takes seconds, and changes no count
    alone = patch("validator.run.settings.search_folders", lambda _path: [Path.cwd()])  # whatever lies above
    with tempfile.TemporaryDirectory() as name, unadvised, alone, chdir(_deep(name)):
        place = file.parents[1] / "tree" / row.repository.replace("/", "+") / row.path
        for other in place.parents[1].glob("*/*.y*ml"):
            Path(other.parent.name).mkdir(exist_ok=True)
            shutil.copyfile(other, Path(other.parent.name, other.name))
        recipe = Path(place.parent.name, place.name)
        recipe.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, recipe)
        ours(row, recipe)
    return row


def _deep(folder: str) -> Path:
    """A folder in it, from which ../.. does not lead out."""
    inside = Path(folder, "some", "where", "here")
    inside.mkdir(parents=True)
    return inside


def parse(files: list[Path]) -> list[str]:
    """What the real parser says of each file."""
    if not files:
        return []
    with conformity.workplace(None):
        return [parsed(file) for file in files]


def ours(row: Row, recipe: Path) -> None:
    """Our answer to the recipe."""
    document = load_recipe(str(recipe))
    report = check_document(document, row.machine or MACHINE, HOST_RAM)
    row.verdict = report.verdict
    row.reason = "" if row.judged else why(document, "; ".join(gap.summary for gap in report.unjudged))
    errors = {each.code for each in report.diagnostics if each.severity is Severity.ERROR}
    row.errors = " ".join(sorted(code for code in errors if not code.startswith(_ELSEWHERE)))

    def judge(fixed: Document) -> FileReport:
        return report if fixed is document else check_document(fixed, row.machine or MACHINE, HOST_RAM)

    row.findings, row.fixed = grave(report), grave(apply_fixes(document, judge, lambda _: True, unsafe=False).report)


def why(document: Document, gaps: str) -> str:
    """Why a recipe has no verdict: it names no model, where it would train one, else our gaps."""
    if not document.judgeable:
        return _REFUSED
    name = str(document.values.get("model_name_or_path") or "")
    if _IDLE in gaps:
        return gaps
    return _UNNAMED if not name else _PLACEHOLDER if _HOLDS_PLACE.search(name) else gaps


def grave(report: FileReport) -> int:
    """Number of errors and warnings."""
    return report.count(Severity.ERROR) + report.count(Severity.WARNING)


def parsed(file: Path) -> str:
    """What the real parser says of a recipe: "ok", or why it refuses. Its DeepSpeed file is put beside it."""
    text = file.read_text("utf-8")
    if named := re.search(r"(?m)^deepspeed: *[\"']?(?!(?:null|~)\b)([^\s\"'#{]+)", text):
        Path("named.json").write_text(assumed_file(named[1]), "utf-8")
        text = text.replace(named[1], "named.json")
    Path("recipe.yaml").write_text(text, "utf-8")
    port = str(20000 + os.getpid() % 20000)
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    for module in ("llamafactory.hparams.parser", "transformers.training_args"):
        sys.modules[module].__dict__["is_torch_bf16_gpu_available"] = lambda: True
    sys.modules["transformers.training_args"].__dict__["is_torch_tf32_available"] = lambda: True
    letter, message = harness.attempt("recipe.yaml", train=False)
    return "ok" if letter == "." else message.splitlines()[0]


def assumed_file(name: str) -> str:
    """The JSON that the product takes a DeepSpeed file of this name to hold; of stage 2 where it says no stage."""
    zero = deepspeed.deepspeed_by_file_name(name) or deepspeed.deepspeed_by_file_name(_PLAIN)
    return json.dumps(zero.config if zero else {})


@cache
def late() -> frozenset[str]:
    """Codes of errors of which LLaMA-Factory was seen to fail after parsing (evidence/conformity/conformity.csv), or
    must."""
    seen = (row.name[:6] for row in conformity.read() if row.late and "-fail-" in row.name)
    return frozenset((*seen, *_LATE))


def false_errors(rows: Iterable[Row]) -> list[Row]:
    """Recipes that the parser accepts, of which an error of ours was never seen to come true."""
    return [row for row in rows if row.accepted and set(row.errors.split()) - late()]


def missed(rows: Iterable[Row]) -> list[Row]:
    """Recipes that the parser refuses and we do not."""
    return [row for row in rows if not row.accepted and not row.errors]


def scores(rows: list[Row]) -> dict[str, tuple[float, float | None, bool]]:
    """Each figure with its bar, where it has one, and whether it is met."""
    trained = [row for row in rows if row.trains]
    named = [row for row in trained if row.names_model]
    verdicts, known = (100 * sum(row.judged for row in those) / len(those) for those in (trained, named))
    wrong, unseen, left = len(false_errors(rows)) / len(rows), len(missed(rows)), median(row.fixed for row in rows)
    return {
        "memory verdicts of files that train, %": (verdicts, 90.0, verdicts >= 90),
        "of those that name a model, %": (known, None, True),
        "false errors, %": (100 * wrong, 1.0, wrong < 0.01),
        "refusals of the parser missed": (unseen, 0.0, unseen == 0),
        "findings a file after --fix, median": (left, 2.0, left <= 2.0),
    }


def scored(rows: list[Row]) -> str:
    """The figures of a collection beside their bars."""
    bars = (
        (name, f"{value:.1f}", *(("", "") if bar is None else (f"{bar:.1f}", "met" if met else "MISSED")))
        for name, (value, bar, met) in scores(rows).items()
    )
    owners = len({row.repository for row in rows})
    return table(f"{len(rows)} recipes of {owners} repositories", ("", "value", "bar", ""), bars)


def by_collection(rows: list[Row], before: list[Row]) -> str:
    """Each collection as it is judged now, and `before` anything was changed for it."""
    heads = ("", "recipes", "repositories", "verdicts, %", "of those with a model", "at first", "of those",
             "false, missed", "--fix")  # fmt: skip
    return table("by collection, in which order they came", heads, map(partial(_line, rows, before), collections(rows)))


def collections(rows: Iterable[Row]) -> list[str]:
    """Their names."""
    return sorted({row.collection for row in rows})


def of(name: str, rows: Iterable[Row]) -> list[Row]:
    """The rows of a collection."""
    return [row for row in rows if row.collection == name]


def _line(rows: list[Row], before: list[Row], name: str) -> tuple[str, ...]:
    own = of(name, rows)
    verdicts, known, _, _, left = (f"{value:.1f}" for value, _, _ in scores(own).values())
    at_first = of(name, before)
    first = [f"{value:.1f}" for value, _, _ in [*scores(at_first).values()][:2]] if at_first else ["", ""]
    wrong = f"{len(false_errors(own))}, {len(missed(own))}"
    return name, str(len(own)), str(len({row.repository for row in own})), verdicts, known, *first, wrong, left


def lines(rows: list[Row]) -> Iterator[str]:
    """What the rows come to, beside another way, beside their owners' words, and what is wrong."""
    refused, judged = sum(not row.accepted for row in rows), sum(row.judged for row in rows)
    told, trained = refused - len(missed(rows)), sum(row.trains for row in rows)
    named = sum(row.trains and row.names_model for row in rows)
    yield table(
        "beside what a user would pick instead",
        ("", "memory verdicts", "refusals told", "seconds a file"),
        [
            ("lmf-recipes check", f"{judged}/{trained} ({named} name a model)", f"{told}/{refused}", "0.1"),
            ("LLaMA-Factory's parser", f"0/{trained}", f"{refused}/{refused}", "8"),
        ],
    )
    reasons = Counter(row.reason for row in rows if not row.judged)
    yield table("no verdict, why", ("reason", "files"), reasons.most_common())
    stated = (
        (_name(row), row.machine, row.verdict, _miss(row), row.says) for row in rows if row.machine and row.trains
    )
    heads = ("file", "machine", "verdict", "miss", "says")
    yield table("beside what the repository says of its machine", heads, stated)
    for title, wrong in (("false errors", false_errors(rows)), ("missed", missed(rows))):
        yield table(title, ("file", "errors", "parser"), ((_name(row), row.errors, row.parser[:90]) for row in wrong))


def _miss(row: Row) -> str:
    """Why a run that was done is called too large."""
    return MISSES.get(row.repository, "not explained") if row.verdict == "exceeds" else ""


def _name(row: Row) -> str:
    return f"{row.repository.rpartition('/')[2]}: {row.path.rpartition('/')[2]}"


def shown() -> tuple[Iterator[str], bool]:
    """The tables of what is recorded, and whether the bars are met: by the first collection, and on false errors and
    refusals by all."""
    rows = read()
    first, right = of(collections(rows)[0], rows), not false_errors(rows) and not missed(rows)
    tables = chain([scored(first), by_collection(rows, read(UNSEEN))], lines(rows))
    return tables, right and all(met for _, _, met in scores(first).values())


def recorded_figures() -> dict[str, float]:
    """Files of all collections, and of the first those that have a memory verdict."""
    rows = read()
    first = of(collections(rows)[0], rows)
    refused = sum(not row.accepted for row in rows)
    stated = [row for row in rows if row.machine and row.trains and row.judged]
    return {
        "first_verdicts": round(next(iter(scores(first).values()))[0], 1),
        "first_that_train": sum(row.trains for row in first),
        "recipes": len(rows),
        "false_errors": len(false_errors(rows)),
        "refused": refused,
        "missed": len(missed(rows)),
        "stated": len(stated),
        "too_large": sum(row.verdict == "exceeds" for row in stated),
    }


def main() -> None:
    records.judge(__doc__, RECORD, conformity.PACKAGES, record, shown)
