"""The form that rows have: the entry of dataset_info.json that LLaMA-Factory needs for them, and the stage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from validator.samples.names import ANSWERS, COUPLES, LABELS, MEDIA, MORE, PAIRS, QUESTIONS, SYSTEM, TEXTS, called
from validator.samples.outcome import Row, trained
from validator.samples.turns import fault

# So many rows tell the form of a file.
ENOUGH = 1000
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from", "speaker"), ("content", "value", "text")
# What data sets call the five roles, in lower case.
_ROLES = {
    "user": ("human", "user", "prompter"),
    "assistant": ("gpt", "assistant", "bot", "model", "chatgpt", "ai"),
    "observation": ("observation", "tool", "ipython", "function_response", "tool_response"),
    "function": ("function_call", "tool_call", "function"),
    "system": ("system", "developer"),
}
_SHAREGPT = ("human", "gpt", "observation", "function_call", "system")
_OPENAI = ("user", "assistant", "tool", "function", "system")
_USUAL = {"prompt": "instruction", "query": "input", "response": "output"}


class Guess(NamedTuple):
    """An entry without its source, and the stage that such rows are for: sft, dpo, kto or pt."""

    entry: dict[str, Any]
    stage: str


class UnknownFormError(Exception):
    """Rows that no entry describes: `columns` are what they have; the message says what they would need."""

    def __init__(self, columns: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.columns = columns


def guess(rows: Sequence[Row]) -> Guess:
    """The entry under which LLaMA-Factory trains on most of the rows. Raises UnknownFormError."""
    example = _example(rows)
    known = [*_conversations(example, rows), *_questions(example)] or [*_texts(example)]
    best = max(known, key=lambda one: trained(one.entry, one.stage, rows), default=None)
    if best is None or not trained(best.entry, best.stage, rows):
        raise UnknownFormError([*example], _unknown(example, len(rows) == 1))
    if best.stage == "sft" and (label := next(_spelt(example, rows), None)):
        why = f"`{label}` holds labels that are neither true nor false: write true in place of 1, false in place of 0"
        raise UnknownFormError([*example], f"{why}, for stage kto; to train all answers leave the column out")
    return best


def _example(rows: Sequence[Row]) -> dict[str, Any]:
    """All columns, each with the first value that says something."""
    example: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if example.get(name) in (None, "", []):
                example[name] = value
    return example


def _conversations(example: Row, rows: Sequence[Row]) -> Iterator[Guess]:
    """A column of turns. With `openai`, LLaMA-Factory adds a system prompt, so it is only for calls of tools."""
    sides = {side for pair in PAIRS for side in called(example, pair)}
    column = next((name for name, value in example.items() if name not in sides and any(_keys(value))), None)
    if column is None:
        return
    role, content = _keys(example[column])
    said = [turn for row in rows for turn in _turns(row.get(column))]
    tags = _tags(role, content, Counter(turn[role] for turn in said if isinstance(turn.get(role), str)))
    columns = {"messages": column, **_shared(example, ("tools", ("tools",)))}
    entry: dict[str, Any] = {"formatting": "sharegpt", "columns": columns, "tags": tags}
    pair = _pair(example, dict)
    if any(_pair(example)) and not any(pair):
        return
    calls = any(turn.get("tool_calls") for turn in said) or isinstance(example.get("tools"), (list, dict))
    for formatting in ("openai",) if calls else ("sharegpt", "openai"):
        yield _preference({**entry, "formatting": formatting}, example, pair)


def _questions(example: Row) -> Iterator[Guess]:
    """A prompt and an answer, or two, in columns of their own."""
    (asked, answered), pair = _asked(example), _pair(example, str)
    if not asked or not (answered or any(pair)) or (any(_pair(example)) and not any(pair)):
        return
    more = _named(example, [name for name in MORE if name != asked], str)
    given = {"prompt": asked, "query": more, "response": None if any(pair) else answered}
    columns = {part: name for part, name in given.items() if name}
    columns |= _shared(example, ("history", ("history",)), ("tools", ("tools",)))
    yield _preference({"columns": columns}, example, pair)


def _asked(example: Row) -> tuple[str | None, str | None]:
    """The columns of question and answer; None for one that is none of the names for it."""
    asked, answered = _named(example, QUESTIONS, str), _named(example, ANSWERS, str)
    couples = ((_named(example, one[:1], str), _named(example, one[1:], str)) for one in COUPLES)
    return (asked, answered) if answered else next(filter(all, couples), (asked, answered))


def _texts(example: Row) -> Iterator[Guess]:
    """Text alone, which pre-training reads; whatever stands beside it tells of it."""
    if column := _named(example, TEXTS, str):
        yield Guess({"columns": {"prompt": column}}, "pt")


def _preference(entry: dict[str, Any], example: Row, pair: tuple[str, str]) -> Guess:
    """The entry with what pairs and labels add to it, and without what LLaMA-Factory takes for granted."""
    columns, stage = entry["columns"], "sft"
    label = _named(example, LABELS, bool)
    if any(pair):
        columns |= {"chosen": pair[0], "rejected": pair[1]}
        entry, stage = {**entry, "ranking": True}, "dpo"
    elif label:
        columns["kto_tag"] = label
        stage = "kto"
    default = _USUAL if "formatting" not in entry else {"messages": "conversations"}
    usual = _tags("from", "value", Counter())
    return Guess({key: value for key, value in entry.items()
                  if (key, value) not in (("columns", default), ("tags", usual))}, stage)  # fmt: skip


def _spelt(example: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Columns of labels that hold 0 and 1, or true and false as text."""
    for name in called(example, LABELS):
        if {str(row.get(name)).lower().removesuffix(".0") for row in rows} <= {"0", "1", "true", "false"}:
            yield name


def _shared(example: Row, *more: tuple[str, Sequence[str]]) -> dict[str, str]:
    """Columns that rows of every form may have: the system prompt, media."""
    parts = (("system", SYSTEM), *more, *MEDIA.items())
    return {
        part: name for part, names in parts if (name := next((n for n in called(example, names) if example[n]), None))
    }


def _named(example: Row, names: Sequence[str], kind: type) -> str | None:
    return next((name for name in called(example, names) if isinstance(example[name], kind)), None)


def _pair(example: Row, kind: type = object) -> tuple[str, str]:
    """The columns of the better and the worse answer; two empty names where there are none of this kind."""
    named = ([*called(example, pair)] for pair in PAIRS)
    held = (
        (sides[0], sides[1]) for sides in named if sides[1:] and all(isinstance(example[side], kind) for side in sides)
    )
    return next(held, ("", ""))


def _keys(value: object) -> tuple[str, str]:
    """The keys of role and content in a list of turns; two empty names in anything else."""
    first = next(iter(_turns(value)), {})
    role, content = (next((key for key in keys if key in first), "") for keys in (_ROLE_KEYS, _CONTENT_KEYS))
    return (role, content) if role and content else ("", "")


def _turns(value: object) -> list[Mapping[str, Any]]:
    return [turn for turn in value if isinstance(turn, Mapping)] if isinstance(value, list) else []


def _tags(role: str, content: str, seen: Counter[str]) -> dict[str, str]:
    """The tags of all roles: as the turns call them, else as such data usually do."""
    tags = {"role_tag": role, "content_tag": content}
    for (kind, names), usual in zip(_ROLES.items(), _SHAREGPT if role == "from" else _OPENAI, strict=True):
        tags[f"{kind}_tag"] = next((name for name, _ in seen.most_common() if name.lower() in names), usual)
    return tags


def _unknown(example: Row, single: bool) -> str:
    """What rows of no known form would need."""
    if not example:
        return "no row has a column"
    talks = [name for name, value in example.items() if any(_keys(value))]
    held = next((name for name, value in example.items() if _turns(value)), None)
    if single and held and not talks:
        return f"the file is one object; its rows stand in `{held}`: save that list alone"
    turns = "no turns (objects with role and content)"
    if held and not talks:
        keys = ", ".join(_turns(example[held])[0])
        turns = f"the turns of `{held}` are not objects with role and content (they have {keys})"
    return next(_misshapen(example, talks), None) or f"{turns}, nor {_lacking(example)}"


def _misshapen(example: Row, talks: Sequence[str]) -> Iterator[str]:
    """Conversations that LLaMA-Factory has no entry for."""
    for name in talks:
        if isinstance(_turns(example[name])[0][_keys(example[name])[1]], list):
            yield f"a turn of `{name}` holds a list of parts; write text with <image>, and the files as `images`"
        if any(name.lower() in pair for pair in PAIRS):
            yield f"`{name}` holds a whole conversation; write its last turn alone, the ones before it as `messages`"
    if len(talks) > 1:
        yield f"the turns stand in `{'` and `'.join(talks)}`; join them to one list `messages`"
    for name in talks:
        role, content = _keys(example[name])
        said = _turns(example[name])
        kinds = [_kind(turn.get(role)) for turn in said]
        why = fault(said, kinds, content)
        first = f"; in the first conversation {why}" if why else ""
        yield f"the turns of `{name}` are not question and answer in turn, or hold no text{first}"


def _kind(role: object) -> str:
    """LLaMA-Factory's name for a role; empty for one that is not known."""
    return next((kind for kind, names in _ROLES.items() if str(role).lower() in names), "")


def _lacking(example: Row) -> str:
    """The parts that no column is known to be, and how to name them. An answer is proposed where one text is left."""
    (asked, answered), pair = _asked(example), any(_pair(example, str))
    lacks = [] if asked else [f"a prompt as text ({', '.join(QUESTIONS[:4])})"]
    lacks += [] if answered or pair else [f"an answer as text ({', '.join(ANSWERS[:4])})"]
    more = _named(example, [name for name in MORE if name != asked], str)
    known = {part: name for part, name in (("prompt", asked), ("query", more), ("response", answered)) if name}
    left = [name for name, value in example.items() if isinstance(value, str) and name not in known.values()]
    if asked and len(left) == 1 and not (answered or pair):
        entry = json.dumps({"columns": {**known, "response": left[0]}}, ensure_ascii=False)
        return f"{' and '.join(lacks)}; if `{left[0]}` is the answer, write the entry {entry}"
    if not left:
        return f"{' and '.join(lacks)}; no other column is text"
    missing = " and which the ".join(["the answer (`response`)"] if asked else ["the prompt", "`response`"])
    return (
        f"{' and '.join(lacks)}; the other columns of text are {', '.join(left)}: say in `columns` which is {missing}"
    )
