"""What is wrong with an answer. Each fault names its place in the program, so that alike ones are counted as one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NoReturn

from fuzz.given import Input
from fuzz.run import Answer

# Characters for a terminal's own use, and those that turn the order of others around or end a line.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_OURS = re.compile(r'File ".*?/(validator/[^"]*)", line \d+, in (\S+)')
_TRACEBACK = "Traceback (most recent call last)"


def faults(given: Input, said: Answer) -> Iterator[str]:
    """Faults of an answer, if any."""
    if said.code not in (0, 1, 2):
        yield f"exit code {said.code}: {_place(said)}"
        return
    if said.log or _TRACEBACK in said.out + said.err:
        yield f"traceback: {_place(said)}"
    if match := _CONTROL.search(said.out) or _CONTROL.search(said.err):
        yield f"`{given.words[0]}` prints {match[0]!a}"
    if said.reached:
        yield f"`{given.words[0]}` reaches for {said.reached[0]}"
    if said.left:
        yield f"`{given.words[0]}` leaves {said.left[0][:8]}… behind"
    yield from _no_json(given, said)


def _place(said: Answer) -> str:
    """The exception, and the innermost function of ours."""
    text = (said.log or said.err).strip()
    frames = _OURS.findall(text)
    last = text.splitlines()[-1] if text else "nothing is said"
    return f"{last.partition(':')[0][:60]} in {' '.join(frames[-1]) if frames else 'no module of ours'}"


def _no_json(given: Input, said: Answer) -> Iterator[str]:
    """JSON that a strict reader refuses; NaN and Infinity are none."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    forms = [form for word, form in zip(given.words, given.words[1:], strict=False) if word == "--format"]
    if forms[-1:] not in (["json"], ["sarif"]) or said.code == 2 or not said.out or "Usage:" in said.out:
        return
    try:
        json.loads(said.out, parse_constant=refuse)
    except ValueError as err:
        yield f"`{given.words[0]}` answers no JSON: {str(err)[:40]}"
