"""`make compare`: each difference between two answers is told as what it is, and a change of the inside as nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "compare"))

import corpus  # noqa: E402
import differences  # noqa: E402
import report  # noqa: E402
import trees  # noqa: E402
from asking import Desk  # noqa: E402

A, B = {"name": "a", "n": 1}, {"name": "b", "n": 2}
FOUND = {"code": "TRA001", "severity": "error", "message": "names no model", "path": "a.yaml", "line": 1}
OTHER = {"code": "DAT001", "severity": "warning", "message": "no data", "path": "a.yaml", "line": 2}
LINE = "a.yaml:1:2: error: names no model [TRA001]"


def answer(out: object = "", code: int = 0, err: str = "", **files: str) -> dict[str, Any]:
    return {"code": code, "out": out if isinstance(out, str) else json.dumps(out), "err": err, "files": files}


def compare(old: dict[str, Any], new: dict[str, Any], *renamed: str) -> list[differences.Difference]:
    return differences.compare("explain", old, new, differences.Names(renamed))


def causes(old: object, new: object, *renamed: str) -> list[tuple[str, str]]:
    """Kind and cause of each difference between two outputs."""
    return sorted({(each.kind, each.cause) for each in compare(answer(old), answer(new), *renamed)})


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"a": {"b": 1.0}}, {"a": {"b": 1.1}}, [("numbers", "a.b")]),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, [("numbers", "a[].b")]),
        ({"verdict": "fits"}, {"verdict": "tight"}, [("verdicts", "fits -> tight")]),
        ({"method": "lora"}, {"method": "full"}, [("fields", "method: lora -> full")]),
        ({"a": None}, {"a": 2.5}, [("fields", "a: null -> a number")]),
        ({"a": 1}, {"a": 1, "b": 2}, [("fields", "b is new")]),
        ({"a": 1, "b": 2}, {"a": 1}, [("fields", "b is gone")]),
        ({"a": [1, 2, 3]}, {"a": [3, 2, 1]}, [("order", "a[]")]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [("order", "keys of the answer")]),
        ({"a": ["x"]}, {"a": ["x", "y"]}, [("fields", "a[]: entries new")]),
        ([A, B], [B], [("fields", "[]: entries gone")]),
        ([A, B], [B, A], [("order", "[]")]),
        ({"note": "samples are long"}, {"note": "samples are short"}, [("words", "“long” -> “short”")]),
        ({"note": "of 12 samples"}, {"note": "of 13 samples"}, [("numbers", "note")]),
    ],
)  # fmt: skip
def test_a_difference_in_json_is_told_as_what_it_is(old: object, new: object, told: list[tuple[str, str]]) -> None:
    assert causes(old, new) == told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("weights  7.79  ███", "weights  8.10  ████", [("numbers", "text of explain")]),
        ("a  ███", "a  ████", []),
        ("a\nb\nc", "c\nb\na", [("order", "lines in text of explain")]),
        ("needs 7 GiB of memory", "takes 7 GiB of memory", [("words", "“needs” -> “takes”")]),
        ("set `a: 1` here", "put `a: 1` here", [("words", "“set” -> “put”")]),
        ("verdict  fits", "verdict  exceeds", [("verdicts", "fits -> exceeds")]),
        ("one\ntwo words", "one\ntwo words\nthree", [("words", "“” -> “three”")]),
        # A paragraph that is broken elsewhere, as one word is longer.
        ("we say a few\nlong words", "we say some\nfew long words", [("words", "“a” -> “some”")]),
    ],
)
def test_a_difference_in_a_text_is_told_as_what_it_is(old: str, new: str, told: list[tuple[str, str]]) -> None:
    assert causes(old, new) == told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ([], [FOUND], [("findings", "TRA001 is new (error)")]),
        ([FOUND], [], [("findings", "TRA001 is gone (error)")]),
        ([FOUND], [{**FOUND, "line": 7}], [("findings", "TRA001 moved")]),
        ([FOUND], [{**FOUND, "severity": "warning"}], [("findings", "TRA001: error -> warning")]),
        ([FOUND], [{**FOUND, "message": "names a model"}], [("words", "“no” -> “a”")]),
        ([FOUND, OTHER], [OTHER, FOUND], [("order", "findings in found")]),
        ([FOUND], [OTHER], [("findings", "DAT001 is new (warning)"), ("findings", "TRA001 is gone (error)")]),
    ],
)
def test_findings_are_known_by_their_code_and_place(
    old: list[object], new: list[object], told: list[tuple[str, str]]
) -> None:
    """How many there are is told by them alone."""
    assert causes({"found": old, "errors": len(old)}, {"found": new, "errors": len(new)}) == told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("0 errors", f"{LINE}\n    stage: sft\n           ^\n1 error", [("findings", "TRA001 is new (error)")]),
        ("", "::error file=a.yaml,line=1,title=TRA001::names no model", [("findings", "TRA001 is new (error)")]),
        (LINE, LINE.replace(":1:2:", ":3:2:"), [("findings", "TRA001 moved")]),
        (LINE, LINE.replace("names", "has"), [("words", "“names” -> “has”")]),
    ],
)  # fmt: skip
def test_findings_in_a_text_are_known_too(old: str, new: str, told: list[tuple[str, str]]) -> None:
    assert causes(old, new) == told


def test_an_exit_code_comes_first_and_without_an_answer_alone() -> None:
    assert [each.kind for each in compare(answer("a b"), answer(code=2, err="usage"))] == ["codes"]
    assert [each.kind for each in compare(answer("a b"), answer("a c", code=1))] == ["codes", "words"]


def test_what_is_written_is_a_part_of_the_answer() -> None:
    assert [each.kind for each in compare(answer(a="x: 1"), answer(a="x: 2"))] == ["numbers"]
    assert [each.cause for each in compare(answer(), answer(a="x: 2"))] == ["explain writes a file"]


def test_a_renamed_term_is_no_difference_in_keys_values_tables_and_sentences() -> None:
    old = answer({"terms": {"products": 2.0}, "most": "products", "note": "most of products"})
    new = answer({"terms": {"matmul": 2.0}, "most": "matmul", "note": "most of matmul"})
    assert compare(old, new, "products=matmul") == []
    assert (
        causes("products  2.11  ██\n(matrix products)", "matmul  2.11  ██\n(matrix products)", "products=matmul") == []
    )
    assert "with --renamed products=matmul?" in compare(old, new)[0].cause


def test_a_number_is_told_with_its_change() -> None:
    assert [each.change for each in compare(answer({"a": 2.0}), answer({"a": 3.0}))] == [0.5]


def seen(count: int, kind: str = "words", cause: str = "“a” -> “b”") -> list[report.Seen]:
    return [report.Seen(f"explain/json/{at}", differences.Difference(kind, cause, "x a", "x b")) for at in range(count)]


def test_the_same_change_of_words_is_one_line() -> None:
    assert list(report.lines(seen(400), report.Allowed([]))) == [
        "words only: 400 answers",
        "  “a” -> “b”  (400 answers; explain/json/0: x a -> x b)",
    ]


def test_the_report_is_short_whatever_differs() -> None:
    many = [each for kind in differences.KINDS for at in range(50) for each in seen(3, kind, f"cause {at}")]
    assert len(list(report.lines(many, report.Allowed([])))) < 30


@pytest.mark.parametrize(
    ("allowed", "passes"),
    [
        (["words"], True),
        (["words:explain/*"], True),
        (["words:*“b”"], True),
        (["words:check/*"], False),
        (["numbers", "order"], False),
    ],
)
def test_what_is_allowed_is_only_counted(allowed: list[str], passes: bool) -> None:
    told = list(report.lines(seen(2), report.Allowed(allowed)))
    assert (told == ["allowed: words only in 2 answers"]) is passes


def test_an_unknown_kind_is_not_allowed() -> None:
    with pytest.raises(ValueError, match="not sentences"):
        report.Allowed(["sentences"])


# Commits to a copy of this repository.

COMPARED_BY = ["tools/compare/*"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository, as it is, in one commit."""
    folder = tmp_path_factory.mktemp("clone")
    for name in git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", "all")
    return folder


@pytest.fixture
def unchanged(clone: Path) -> Path:
    git(clone, "reset", "--quiet", "--hard")
    git(clone, "clean", "-fdq")
    return clone


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def compared(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "tools" / "compare"), *words]
    return subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)


def replace(folder: Path, old: str, new: str) -> None:
    """Put `new` in the place of `old`, wherever that stands in the program: once."""
    [path] = [path for path in (folder / "validator").rglob("*.py") if old in path.read_text("utf-8")]
    path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")


def move(folder: Path, old: str, new: str) -> None:
    """Give a module another name."""
    git(folder, "mv", f"validator/{old}.py", f"validator/{new}.py")
    for path in (folder / "validator").rglob("*.py"):
        text = path.read_text("utf-8")
        path.write_text(text.replace(f"validator.{old}", f"validator.{new}"), "utf-8")


RULE = '''@rule("TRA999", WARNING)
def any_recipe(run: RunSettings) -> Findings:
    """There is a recipe.

    Why: to see it.
    Source: own
    Fix: none
    """
    yield "model_name_or_path", "is a recipe"


'''
BEFORE_RULES = '@rule("TRA922", WARNING, about=subjects.machine)'
MADE: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "a constant": (lambda at: replace(at, "PROCESS_GIB = 3.0", "PROCESS_GIB = 3.1"), ["numbers"]),
    "a word": (lambda at: replace(at, "GiB expected, {", "GiB predicted, {"), ["words only"]),
    "a sort order": (lambda at: replace(at, 'line, column, "", line', '-line, column, "", line'), ["order only"]),
    "an exit code": (lambda at: replace(at, "(str(err), err.exit_code)", "(str(err), 4)"), ["exit codes"]),
    "a finding": (lambda at: replace(at, BEFORE_RULES, RULE + BEFORE_RULES), ["findings"]),
    "a move": (lambda at: move(at, "wording", "phrases"), []),
}  # fmt: skip


@pytest.mark.sample(one_in=3, whole_for=COMPARED_BY)
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("made", MADE)
def test_a_commit_is_told_as_what_it_is(unchanged: Path, made: str) -> None:
    """By a small part of the questions."""
    change, kinds = MADE[made]
    change(unchanged)
    asked = ("explain/*/qwen3-8b-a100*", "check/*/refused", "copy/refused/*")
    told = compared(unchanged, *(word for pattern in asked for word in ("--only", pattern)))
    assert told.returncode == bool(kinds), told.stdout + told.stderr
    lines = told.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:-1] if not line.startswith(" ")] == kinds, told.stdout
    assert len(lines) < 30


def test_each_question_has_its_own_name() -> None:
    """Else the answer to one would be compared with that to another."""
    names = Counter(question.id for question in corpus.Corpus(ROOT, drawn=2).questions())
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.sample(one_in=3, whole_for=COMPARED_BY)
@pytest.mark.slow
@pytest.mark.process
def test_workers_answer_as_the_program_does(tmp_path: Path) -> None:
    """A worker has imported the program before, and answers many questions: none sees anything of another."""
    asked = corpus.Corpus(ROOT)
    patterns = ("explain/*/qwen3-8b-a*", "check/case*/*", "plan/asked/*", "copy/*/*", "damaged/[cdjr]*", "submit/*")
    questions = asked.questions(patterns, one_in=90)
    desk = Desk(asked, tmp_path)
    [answers] = desk.answers([trees.working(ROOT, tmp_path)], questions)
    assert len(questions) > 15
    for question in questions:
        with tempfile.TemporaryDirectory(dir=desk.asked) as place:
            assert _shown(answers[question.id]) == _shown(_by_itself(desk.laid_out(question, Path(place)))), question.id


def _by_itself(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the installed program."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lmf-recipes"), *asked["words"]],
        cwd=asked["folder"], env=asked["environment"], input=asked["input"], capture_output=True, text=True,
    )  # fmt: skip
    places = {asked["folder"]: "<here>", asked["environment"]["HOME"]: "<home>", str(ROOT): "<tree>"}
    out, err = done.stdout, done.stderr
    for place, name in places.items():
        out, err = out.replace(place, name), err.replace(place, name)
    return answer(re.sub(r"\bjob_[0-9a-f]{8}\b", "job_…", out), done.returncode, err)


def _shown(told: Mapping[str, Any]) -> list[object]:
    return [told["code"], told["out"].split(), told["err"].split()]


def test_without_history_there_is_one_clear_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tools" / "compare", tmp_path / "tools" / "compare")
    for words, code in ((), 2), (("--if-history",), 0):
        told = compared(tmp_path, *words)
        assert (told.returncode, told.stdout, len(told.stderr.splitlines())) == (code, "", 1), told.stderr
    told = compared(tmp_path, PATH="/nowhere")
    assert (told.returncode, told.stderr) == (
        2,
        "compare: git is not installed, so there is no commit to compare with\n",
    )
