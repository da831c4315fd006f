"""Finds rules by words of their manual pages, best first."""

from __future__ import annotations

import re
from math import log
from typing import NamedTuple

from validator.finding import ManualPage
from validator.rules import all_rules

_CODE = re.compile(r"[A-Za-z]{3}\d{1,4}")
# What a word counts in each part of a page, and how many times as much a whole word counts as the beginning of one.
_IN_TITLE, _IN_REASON, _IN_REMEDY, _ELSEWHERE, _WHOLE_WORD = 8, 3, 2, 1, 2
# What pages also say for a word that people type; it counts as much as the beginning of a word.
_ALSO = {"oom": "out of memory", "oomkilled": "exit code -9", "hang": "wait", "hangs": "wait", "stuck": "wait",
         "deadlock": "wait", "nccl": "ddp_timeout", "hccl": "ddp_timeout", "diverges": "nan",
         "preempt": "kill", "preempted": "kill", "preemption": "kill", "requeue": "kill", "requeued": "kill",
         "volta": "v100"}  # fmt: skip
_SHORTEST_WORD = 3  # letters; shorter ones, such as `is`, stand on most pages


class FoundRule(NamedTuple):
    """A rule whose manual page has the words: its code and its page."""

    code: str
    page: ManualPage


def is_rule_code(words: str) -> bool:
    """True if the words have the form of a rule code, such as `FIT001`, known or not."""
    return bool(_CODE.fullmatch(words.strip()))


def find_rules(words: str) -> list[FoundRule]:
    """Return the rules whose manual pages have some of the words, best first: pages with more of them, with rare ones,
    and with words that stand together as in the question. Upper and lower case are the same, and a word also stands for
    longer ones that begin with it."""
    pages = {code: all_rules.rule_page(code) for code in all_rules.all_codes()}
    totals, hits = dict.fromkeys(pages, 0.0), dict.fromkeys(pages, 0)
    for phrase in _phrases(words.lower().split()):
        scores = {code: _score(code, page, phrase) for code, page in pages.items()}
        if also := _ALSO.get(phrase):
            scores = {code: scores[code] or _score(code, page, also) // 2 for code, page in pages.items()}
        rarity = log(1 + len(pages) / max(sum(map(bool, scores.values())), 1))
        for code, score in scores.items():
            totals[code] += rarity**2 * score
            hits[code] += bool(score)
    best = sorted((code for code in pages if hits[code]), key=lambda code: (-totals[code] * hits[code], code))
    return [FoundRule(code, pages[code]) for code in best]


def _phrases(words: list[str]) -> list[str]:
    """Return the words, and all phrases of words that follow one another. A phrase begins and ends with a long word."""
    spans = ((start, end) for start in range(len(words)) for end in range(start + 1, len(words) + 1))
    several = [words[start:end] for start, end in spans]
    telling = [each for each in several if min(len(each[0]), len(each[-1])) >= _SHORTEST_WORD]
    return [" ".join(each) for each in telling or several]


def _score(code: str, page: ManualPage, phrase: str) -> int:
    """Return how well the page answers to the phrase; 0 if it does not have it."""
    parts = ((_IN_TITLE, f"{code} {page.name} {page.violation}"), (_IN_REASON, page.why), (_IN_REMEDY, page.fix),
             (_ELSEWHERE, page.text))  # fmt: skip
    begins = re.compile(rf"(?<![^\W_]){re.escape(phrase)}(?P<more>[^\W_]?)", re.IGNORECASE)
    total = 0
    for weight, text in parts:
        found = [match["more"] == "" for match in begins.finditer(" ".join(text.split()))]
        total += weight * (_WHOLE_WORD if any(found) else 1) if found else 0
    said = sum(len(word) >= _SHORTEST_WORD for word in phrase.split())
    return total * max(said, 1) ** 2  # a phrase says more than its words
