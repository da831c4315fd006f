"""Inference of the dataset_info.json entry that rows need, from their columns and turns, and of the stage that such
rows are for. If no entry fits, the reason; if one fits, notes for a recipe for these rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from validator.rows.converter import Row
from validator.rows.dataset_attr import DatasetAttr, Entry, entry_as_json
from validator.rows.media_columns import PLACEHOLDERS, first_media_fault
from validator.rows.outcomes import conversation_turns, count_trained

PROMPT_NAMES = ("instruction", "prompt", "question", "query", "problem", "input")
QUERY_NAMES = ("input", "context", "输入")
RESPONSE_NAMES = ("output", "response", "answer", "completion", "solution")
# Names of question and answer that mean nothing each without the other.
PROMPT_RESPONSE_NAMES = (
    *(("human", "gpt"), ("human", "assistant"), ("user", "assistant"), ("inputs", "targets"), ("source", "target")),
    *(("问题", "答案"), ("问题", "回答"), ("指令", "输出")),
)
TEXT_NAMES = ("text", "content", "raw_content")
SYSTEM_NAMES = ("system", "system_prompt")
CHOSEN_REJECTED_NAMES = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("response_chosen", "response_rejected"),
)
LABEL_NAMES = ("label", "kto_tag", "kto_label", "desirable")
MEDIA_NAMES = {"images": ("images", "image"), "videos": ("videos", "video"), "audios": ("audios", "audio")}


def columns_named(row: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Return the columns with these names, in upper or lower case."""
    columns = {str(column).lower(): column for column in row}
    return (columns[name] for name in names if name in columns)


# Stages that rows of a form can be trained in; the first is the usual one.
TRAINABLE_STAGES = {"sft": ("sft", "ppo", "pt"), "dpo": ("dpo", "rm"), "kto": ("kto",), "pt": ("pt",)}
# Names of these forms in messages.
ROW_KINDS = {
    "sft": "prompts with one answer",
    "dpo": "preference pairs",
    "kto": "answers with a label",
    "pt": "plain text",
}
ROWS_FOR_INFERENCE = 1000  # first rows of a file, which tell its form
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from", "speaker"), ("content", "value", "text")
# What data sets call the five roles, in lower case.
_ROLE_NAMES = {
    "user": ("human", "user", "prompter"),
    "assistant": ("gpt", "assistant", "bot", "model", "chatgpt", "ai"),
    "observation": ("observation", "tool", "ipython", "function_response", "tool_response"),
    "function": ("function_call", "tool_call", "function"),
    "system": ("system", "developer"),
}
_SHAREGPT_ROLES = ("human", "gpt", "observation", "function_call", "system")
_OPENAI_ROLES = ("user", "assistant", "tool", "function", "system")
_DEFAULT_ALPACA_COLUMNS = {"prompt": "instruction", "query": "input", "response": "output"}


class InferredEntry(NamedTuple):
    """An entry without its source, and the stage that its rows are for: sft, dpo, kto or pt."""

    entry: dict[str, Any]
    stage: str

    @property
    def attr(self) -> DatasetAttr:
        """The entry with LLaMA-Factory's defaults."""
        return DatasetAttr.from_entry(self.entry)


class UnknownFormError(Exception):
    """Rows that no entry describes. `columns` are the columns of the rows; the message says what the rows would
    need."""

    def __init__(self, columns: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.columns = columns


def infer_entry(rows: Sequence[Row]) -> InferredEntry:
    """Return the entry under which LLaMA-Factory trains on most of the rows. Raises UnknownFormError."""
    example = _first_values(rows)
    known = [*_conversation_entries(example, rows), *_alpaca_entries(example)]
    if not known and (column := _first_column(example, TEXT_NAMES, str)):
        known = [InferredEntry({"columns": {"prompt": column}}, "pt")]  # other columns are taken to describe the text
    best = max(known, key=lambda one: count_trained(one.attr, one.stage, rows), default=None)
    if best is None or not count_trained(best.attr, best.stage, rows):
        raise UnknownFormError([*example], _unknown_form_message(example, len(rows) == 1))
    for label in columns_named(example, LABEL_NAMES) if best.stage == "sft" else ():
        if {str(row.get(label)).lower().removesuffix(".0") for row in rows} <= {"0", "1", "true", "false"}:
            why = (
                f"`{label}` holds labels that are neither true nor false: write true in place of 1, false in place of 0"
            )
            raise UnknownFormError([*example], f"{why}, for stage kto; to train all answers leave the column out")
    return best


def _first_values(rows: Sequence[Row]) -> dict[str, Any]:
    """Return one row that has all columns, each with its first value that is not empty."""
    example: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if example.get(name) in (None, "", []):
                example[name] = value
    return example


def _conversation_entries(example: Row, rows: Sequence[Row]) -> Iterator[InferredEntry]:
    """Yield the entries for a column of turns: `openai` if tools are called, else `sharegpt` first, because `openai`
    adds a system prompt."""
    sides = {side for pair in CHOSEN_REJECTED_NAMES for side in columns_named(example, pair)}
    column = next(
        (name for name, value in example.items() if name not in sides and any(_role_and_content_keys(value))), None
    )
    if column is None:
        return
    role, content = _role_and_content_keys(example[column])
    said = [turn for row in rows for turn in _turns_in(row.get(column))]
    tags = _infer_tags(role, content, Counter(turn[role] for turn in said if isinstance(turn.get(role), str)))
    columns = {"messages": column, **_shared_columns(example, ("tools", ("tools",)))}
    entry: dict[str, Any] = {"formatting": "sharegpt", "columns": columns, "tags": tags}
    pair = _chosen_rejected_columns(example, dict)
    if any(_chosen_rejected_columns(example)) and not any(pair):
        return
    calls = any(turn.get("tool_calls") for turn in said) or isinstance(example.get("tools"), (list, dict))
    for formatting in ("openai",) if calls else ("sharegpt", "openai"):
        yield _with_preference({**entry, "formatting": formatting}, example, pair)


def _alpaca_entries(example: Row) -> Iterator[InferredEntry]:
    """Yield the entry for a prompt with one answer or two, each in a column of its own."""
    (asked, answered), pair = _prompt_and_response(example), _chosen_rejected_columns(example, str)
    if not asked or not (answered or any(pair)) or (any(_chosen_rejected_columns(example)) and not any(pair)):
        return
    more = _first_column(example, [name for name in QUERY_NAMES if name != asked], str)
    given = {"prompt": asked, "query": more, "response": None if any(pair) else answered}
    columns = {part: name for part, name in given.items() if name}
    columns |= _shared_columns(example, ("history", ("history",)), ("tools", ("tools",)))
    yield _with_preference({"columns": columns}, example, pair)


def _prompt_and_response(example: Row) -> tuple[str | None, str | None]:
    """Return the columns of question and answer; None for a part that no column's name suggests."""
    asked, answered = _first_column(example, PROMPT_NAMES, str), _first_column(example, RESPONSE_NAMES, str)
    couples = (
        (_first_column(example, one[:1], str), _first_column(example, one[1:], str)) for one in PROMPT_RESPONSE_NAMES
    )
    return (asked, answered) if answered else next(filter(all, couples), (asked, answered))


def _with_preference(entry: dict[str, Any], example: Row, pair: tuple[str, str]) -> InferredEntry:
    """Return the entry with the columns of preference pairs or labels added, and without values that are
    LLaMA-Factory's defaults."""
    columns, stage = entry["columns"], "sft"
    label = _first_column(example, LABEL_NAMES, bool)
    if any(pair):
        columns |= {"chosen": pair[0], "rejected": pair[1]}
        entry, stage = {**entry, "ranking": True}, "dpo"
    elif label:
        columns["kto_tag"] = label
        stage = "kto"
    default = _DEFAULT_ALPACA_COLUMNS if "formatting" not in entry else {"messages": "conversations"}
    usual = _infer_tags("from", "value", Counter())
    return InferredEntry({key: value for key, value in entry.items()
                  if (key, value) not in (("columns", default), ("tags", usual))}, stage)  # fmt: skip


def _shared_columns(example: Row, *more: tuple[str, Sequence[str]]) -> dict[str, str]:
    """Return the columns that rows of every form may have, the system prompt and media, and those of `more` parts."""
    parts = (("system", SYSTEM_NAMES), *more, *MEDIA_NAMES.items())
    return {
        part: name
        for part, names in parts
        if (name := next((n for n in columns_named(example, names) if example[n]), None))
    }


def _first_column(example: Row, names: Sequence[str], kind: type) -> str | None:
    return next((name for name in columns_named(example, names) if isinstance(example[name], kind)), None)


def _chosen_rejected_columns(example: Row, kind: type = object) -> tuple[str, str]:
    """Return the columns of the better and the worse answer; two empty names if no such columns hold values of this
    kind."""
    named = ([*columns_named(example, pair)] for pair in CHOSEN_REJECTED_NAMES)
    held = (
        (sides[0], sides[1]) for sides in named if sides[1:] and all(isinstance(example[side], kind) for side in sides)
    )
    return next(held, ("", ""))


def _role_and_content_keys(value: object) -> tuple[str, str]:
    """Return the keys of role and content in a list of turns; two empty names for anything else."""
    first = next(iter(_turns_in(value)), {})
    role, content = (next((key for key in keys if key in first), "") for keys in (_ROLE_KEYS, _CONTENT_KEYS))
    return (role, content) if role and content else ("", "")


def _turns_in(value: object) -> list[Mapping[str, Any]]:
    return [turn for turn in value if isinstance(turn, Mapping)] if isinstance(value, list) else []


def _infer_tags(role: str, content: str, seen: Counter[str]) -> dict[str, str]:
    """Return the tags of all roles: the names that the turns use, else the usual names of such data."""
    tags = {"role_tag": role, "content_tag": content}
    for (kind, names), usual in zip(
        _ROLE_NAMES.items(), _SHAREGPT_ROLES if role == "from" else _OPENAI_ROLES, strict=True
    ):
        tags[f"{kind}_tag"] = next((name for name, _ in seen.most_common() if name.lower() in names), usual)
    return tags


def _unknown_form_message(example: Row, single: bool) -> str:
    """Return what rows of no known form would need."""
    if not example:
        return "no row has a column"
    talks = [name for name, value in example.items() if any(_role_and_content_keys(value))]
    held = next((name for name, value in example.items() if _turns_in(value)), None)
    if single and held and not talks:
        return f"the file is one object; its rows are in `{held}`: save that list alone"
    turns = "no turns (objects with role and content)"
    if held and not talks:
        keys = ", ".join(_turns_in(example[held])[0])
        turns = f"the turns of `{held}` are not objects with role and content (they have {keys})"
    return next(_conversation_faults(example, talks), None) or f"{turns}, nor {_missing_parts_message(example)}"


def _conversation_faults(example: Row, talks: Sequence[str]) -> Iterator[str]:
    """Yield why LLaMA-Factory has no entry for the conversations."""
    for name in talks:
        if isinstance(_turns_in(example[name])[0][_role_and_content_keys(example[name])[1]], list):
            yield f"a turn of `{name}` holds a list of parts; write text with <image>, and the files as `images`"
        if any(name.lower() in pair for pair in CHOSEN_REJECTED_NAMES):
            yield f"`{name}` holds a whole conversation; write its last turn alone, the turns before it as `messages`"
    if len(talks) > 1:
        yield f"the turns are spread over `{'` and `'.join(talks)}`; join them to one list `messages`"
    for name in talks:
        why = _turn_order_fault(_turns_in(example[name]), *_role_and_content_keys(example[name]))
        first = f"; in the first conversation {why}" if why else ""
        yield f"the turns of `{name}` are not question and answer in turn, or hold no text{first}"


def _turn_order_fault(turns: Sequence[Mapping[str, Any]], role: str, content: str) -> str:
    """Return what is wrong with the first turn that is out of order, and what to do; empty if all are in order. `role`
    and `content` are the keys of a turn."""
    words = {"system": "a system prompt", "user": "a question", "observation": "a question"}
    kinds = [
        next((kind for kind, names in _ROLE_NAMES.items() if str(turn.get(role)).lower() in names), "")
        for turn in turns
    ]
    begin = 1 if kinds[:1] == ["system"] else 0
    for number, (turn, kind) in enumerate(zip(turns[begin:], kinds[begin:], strict=True), begin + 1):
        said, wanted = words.get(kind, "an answer"), "a question" if (number - begin) % 2 else "an answer"
        if not kind:
            return f"turn {number} is of no known role"
        if said != wanted:
            return f"turn {number} is {said}, where {wanted} must stand"
        if not isinstance(turn.get(content), str):
            return f"turn {number} holds no text"
    return "" if (len(turns) - begin) % 2 == 0 else "it ends with a question: drop its last turn"


def _missing_parts_message(example: Row) -> str:
    """Return which parts no column is known to be, and how to name them; the last column of text is proposed as the
    answer."""
    (asked, answered), pair = _prompt_and_response(example), any(_chosen_rejected_columns(example, str))
    lacks = [] if asked else [f"a prompt as text ({', '.join(PROMPT_NAMES[:4])})"]
    lacks += [] if answered or pair else [f"an answer as text ({', '.join(RESPONSE_NAMES[:4])})"]
    more = _first_column(example, [name for name in QUERY_NAMES if name != asked], str)
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


# What to do for another stage with rows that look like those of sft.
_OTHER_STAGE_REMEDIES = {
    "dpo": "map the two answers as `chosen` and `rejected`",
    "kto": "map the column of true and false as `kto_tag`",
}
_FORM_KEYS = ("formatting", "ranking", "columns", "tags")


def suggest_entry(name: str, entry: Entry, stage: str, rows: Sequence[Row]) -> str:
    """Return the entry to write and the stage to set for these rows, in words; empty if both are as they should be, or
    no entry is known."""
    try:
        form, suits = infer_entry(rows)
    except UnknownFormError:
        return ""
    right = {**{key: value for key, value in entry.items() if key not in _FORM_KEYS}, **form}
    steps = [] if stage in TRAINABLE_STAGES[suits] else [f"set `stage: {suits}`"]
    steps += [] if right == dict(entry) else [f"write {entry_as_json(name, right)} in dataset_info.json"]
    other = _OTHER_STAGE_REMEDIES.get("dpo" if stage == "rm" else stage, "") if suits == "sft" else ""
    return " and ".join(steps) + (f", or {other}" if other else "")


_SENTENCE_WORDS = 4  # text of so many words is more than a name or an address


def recipe_notes(inferred: InferredEntry, rows: Sequence[Row]) -> Iterator[str]:
    """Yield notes for a recipe on these rows: on template, tool calls, media, columns that are not used."""
    attr, text = inferred.attr, "\n".join(map(str, rows))
    if attr.formatting == "openai":
        yield "formatting openai needs LLaMA-Factory 0.9.4 or later; no other formatting reads `tool_calls`"
        yield "with formatting openai, rows without tools get the system prompt 'detailed thinking off'"
    if attr.columns.get("tools"):
        yield "calls of tools are written in the format of `template`: take the model's own template"
    if unused := [*_unused_columns(inferred, rows)]:
        yield f"not used: {', '.join(f'`{name}`' for name in unused)}"
    for part, mark in PLACEHOLDERS.items():
        if column := attr.columns.get(part):
            yield f"files in `{column}` are looked for in `media_dir` (default: `dataset_dir`)"
            if why := first_media_fault(attr, inferred.stage, rows, part):
                yield f"{why}: LLaMA-Factory stops"
        elif mark in text:  # llamafactory/data/mm_plugin.py:_validate_messages
            yield f"rows hold {mark} and no column `{part}`: a template that takes {part} stops the run at such a row"
    if "<think>" in text:
        yield "answers hold <think>: `template` must be one that reasons, such as qwen3 or deepseekr1"


def template_notes(inferred: InferredEntry) -> Iterator[str]:
    """Yield what the template of a recipe for these rows must support."""
    columns = inferred.attr.columns
    yield from (f"`template` must be one that takes {part}" for part in PLACEHOLDERS if columns.get(part))


def _unused_columns(inferred: InferredEntry, rows: Sequence[Row]) -> Iterator[str]:
    """Yield columns with lists, sentences or labels that the entry leaves out; none for plain text, which they
    describe."""
    attr = inferred.attr
    if any(turn.get("reasoning_content") for turn in conversation_turns(attr, rows)):
        yield "reasoning_content"
    labels = {*LABEL_NAMES, *(side for pair in CHOSEN_REJECTED_NAMES for side in pair)}
    for name in dict.fromkeys(name for row in rows for name in row) if inferred.stage != "pt" else ():
        held = (row[name] for row in rows if row.get(name) not in (None, "", []))
        if name not in attr.columns.values() and any(
            str(name).lower() in labels
            or isinstance(value, list)
            or (isinstance(value, str) and len(value.split()) >= _SENTENCE_WORDS)
            for value in held
        ):
            yield name
