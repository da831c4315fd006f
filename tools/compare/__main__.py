"""Compares what the program answers at two commits.

    python tools/compare [--base COMMIT] [--renamed OLD=NEW] [--allow KIND[:PATTERN]] [--sample N] [--all] [--show ID]

The working tree and the commit before it (the last commit, where the working tree has changes) are asked the same
questions through their console programs, so that nothing of their insides matters. The report names the exit codes,
findings, verdicts, fields, numbers, order and words that differ. Exit code 1 where one of them is not allowed, 2 where
there is nothing to compare with. Trees and answers are kept in build/compare.
"""

from __future__ import annotations

import argparse
import difflib
import resource
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import corpus
import report
import trees
from asking import Desk
from differences import KINDS, Names, compare

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "compare"


def options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("compare", description="Compare what the program answers at two commits.")
    parser.add_argument("--base", help="the older commit; default: the one before, HEAD where there are changes")
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW", help="a name that has changed")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="KIND[:PATTERN]",
        help=f"differences that are intended, of one of {', '.join(KINDS)}; PATTERN: of the question's id or the cause",
    )  # fmt: skip
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="ask one in N questions of each kind")
    parser.add_argument("--drawn", type=int, default=800, metavar="N", help="recipes that are drawn by lot")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="ask only questions with such an id")
    parser.add_argument("--all", action="store_true", help="show every cause")
    parser.add_argument("--show", metavar="ID", help="show both answers to one question as a diff")
    parser.add_argument("--costs", action="store_true", help="show the processor seconds of each kind of question")
    parser.add_argument(
        "--if-history", action="store_true", help="exit code 0 where there is no commit to compare with"
    )
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    asked = options(words)
    try:
        allowed, names = report.Allowed(asked.allow), Names(asked.renamed)
    except ValueError as err:
        print(f"compare: {err}", file=sys.stderr)
        return 2
    try:
        both = [trees.base(ROOT, asked.base, BUILD), trees.working(ROOT, BUILD)]
    except trees.NoHistoryError as err:
        print(f"compare: {err}", file=sys.stderr)
        return 0 if asked.if_history else 2
    if both[0].content == both[1].content:
        print(f"No file that an answer depends on differs between {both[0].name} and {both[1].name}.")
        return 0
    return compared(both, asked, allowed, names)


def compared(both: Sequence[trees.Tree], asked: argparse.Namespace, allowed: report.Allowed, names: Names) -> int:
    """Ask both trees, and print what differs."""
    trees.Finder(ROOT).install()  # what makes the questions may import the program
    sys.path.append(str(ROOT / "tests"))
    questions = corpus.Corpus(ROOT, asked.drawn)
    desk = Desk(questions, BUILD)
    chosen = questions.questions([asked.show] if asked.show else asked.only or ["*"], 1 if asked.show else asked.sample)
    old, new = desk.answers(both, chosen)
    trees.tidy(BUILD)
    if asked.show:
        sys.stdout.writelines(shown(chosen, old, new, desk.folder))
        return 0
    seen = [
        report.Seen(question.id, difference)
        for question in chosen
        for difference in compare(question.words[0], old[question.id], new[question.id], names)
    ]
    differing = len({each.question for each in seen})
    print(f"{len(chosen):,} questions to {both[0].name} and to {both[1].name}: {differing:,} answers differ")
    for line in report.lines(seen, allowed, asked.all):
        print(line)
    if seen:
        print("`make compare SHOW=ID` prints both answers to a question; `python tools/compare --all` every cause.")
    if asked.costs:
        costs(chosen, desk)
    return int(any(each not in allowed for each in seen))


def shown(
    chosen: Sequence[corpus.Question], old: Mapping[str, Any], new: Mapping[str, Any], folder: Path
) -> Iterator[str]:
    """The question, and how its answers differ line by line."""
    for question in chosen:
        place = folder if question.files is None else f"(a folder with {', '.join(question.files) or 'nothing in it'})"
        yield f"$ cd {place}; lmf-recipes {shlex.join(question.words)}\n"
        before, after = (_lines(answer[question.id]) for answer in (old, new))
        yield from (f"{line}\n" for line in difflib.unified_diff(before, after, "before", "after", lineterm=""))


def _lines(answer: Mapping[str, Any]) -> list[str]:
    """All of an answer, line by line."""
    files = [part for name, text in answer["files"].items() for part in (f"file {name}", *text.splitlines())]
    return [f"exit code {answer['code']}", *answer["out"].splitlines(), *answer["err"].splitlines(), *files]


def costs(chosen: Sequence[corpus.Question], desk: Desk) -> None:
    """Print what was spent on each kind of question, and in all."""
    counts = [question.kind for question in chosen]
    for kind, seconds in desk.seconds.most_common():
        print(f"{seconds:8.1f} s  {counts.count(kind):5,} {kind}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{sum(each.ru_utime + each.ru_stime for each in used):8.1f} s of the processor in all")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
