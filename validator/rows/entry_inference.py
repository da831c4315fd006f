"""Inference of the dataset_info.json entry that a user's rows need, and of the training stage that they suit, from
their columns and turns. If no entry fits, the reason; if an entry fits, notes for a recipe that trains on these
rows."""

from __future__ import annotations

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
    """Return the columns of a row whose names are in `names`, in the order of `names`. `names` are in lower case; the
    columns may be written in any case."""
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
    """A dataset_info.json entry inferred from rows, without the key that names the file. `stage`: the usual training
    stage for such rows: sft, dpo, kto or pt."""

    entry: dict[str, Any]
    stage: str

    @property
    def attr(self) -> DatasetAttr:
        """The entry's columns and tags, with LLaMA-Factory's defaults."""
        return DatasetAttr.from_entry(self.entry)


class UnknownFormError(Exception):
    """Raised for rows of which no dataset_info.json entry is known. `columns`: the columns of the rows. `proposed`: the
    columns that may hold the parts of a sample, by part, if only their names are not known. The message says what the
    rows would need."""

    def __init__(self, columns: Sequence[str], message: str, proposed: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.columns = columns
        self.proposed = proposed or {}


def infer_entry(rows: Sequence[Row]) -> InferredEntry:
    """Return the dataset_info.json entry with which LLaMA-Factory trains on most of the rows. Raises UnknownFormError
    if no possible entry lets LLaMA-Factory train on any row, or if a label column holds numbers or text instead of true
    and false."""
    example = _first_values(rows)
    candidates = [*_conversation_entries(example, rows), *_alpaca_entries(example)]
    if not candidates and (column := _first_column(example, TEXT_NAMES, str)):
        candidates = [
            InferredEntry({"columns": {"prompt": column}}, "pt")
        ]  # other columns are taken to describe the text
    best = max(candidates, key=lambda one: count_trained(one.attr, one.stage, rows), default=None)
    if best is None or not count_trained(best.attr, best.stage, rows):
        proposed = {} if candidates else _proposed_columns(example)
        raise UnknownFormError([*example], _unknown_form_message(example, len(rows) == 1), proposed)
    for label in columns_named(example, LABEL_NAMES) if best.stage == "sft" else ():
        if {str(row.get(label)).lower().removesuffix(".0") for row in rows} <= {"0", "1", "true", "false"}:
            why = (
                f"`{label}` holds labels that are neither true nor false: write true in place of 1, false in place of 0"
            )
            raise UnknownFormError([*example], f"{why}, for stage kto; to train all answers leave the column out")
    return best


def _first_values(rows: Sequence[Row]) -> dict[str, Any]:
    """Return one example row with the columns of all rows. Each column has the first of its values that is not
    empty."""
    example: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if example.get(name) in (None, "", []):
                example[name] = value
    return example


def _conversation_entries(example: Row, rows: Sequence[Row]) -> Iterator[InferredEntry]:
    """Yield the possible dataset_info.json entries for rows of which a column holds a list of turns. `example`: a row
    with all columns. Formatting `sharegpt` comes before `openai`, because `openai` adds a system prompt; if tools are
    called, only `openai` is possible."""
    sides = {side for pair in CHOSEN_REJECTED_NAMES for side in columns_named(example, pair)}
    column = next(
        (name for name, value in example.items() if name not in sides and any(_role_and_content_keys(value))), None
    )
    if column is None:
        return
    form = conversation_form(rows, column)
    columns = {"messages": column, **_shared_columns(example, ("tools", ("tools",)))}
    entry = {"formatting": form["formatting"], "columns": columns, "tags": form["tags"]}
    pair = _chosen_rejected_columns(example, dict)
    if any(_chosen_rejected_columns(example)) and not any(pair):
        return
    for formatting in dict.fromkeys((form["formatting"], "openai")):
        yield _with_preference({**entry, "formatting": formatting}, example, pair)


def conversation_form(rows: Sequence[Row], column: str) -> dict[str, Any]:
    """Return `formatting` and `tags` of an entry for rows whose `column` holds a list of turns. If tools are called,
    or described as a list, the formatting is `openai`, else `sharegpt`."""
    turns = [turn for row in rows for turn in _turns_in(row.get(column))]
    role, content = _role_and_content_keys(turns)
    calls = any(turn.get("tool_calls") for turn in turns)
    calls = calls or isinstance(_first_values(rows).get("tools"), (list, dict))
    counts = Counter(turn[role] for turn in turns if isinstance(turn.get(role), str))
    return {"formatting": "openai" if calls else "sharegpt", "tags": _infer_tags(role, content, counts)}


def _alpaca_entries(example: Row) -> Iterator[InferredEntry]:
    """Yield the dataset_info.json entry of formatting alpaca if the rows have a column for the prompt and columns for
    one answer or two. `example`: a row with all columns."""
    (prompt_column, response_column), pair = _prompt_and_response(example), _chosen_rejected_columns(example, str)
    if (
        not prompt_column
        or not (response_column or any(pair))
        or (any(_chosen_rejected_columns(example)) and not any(pair))
    ):
        return
    query_column = _first_column(example, [name for name in QUERY_NAMES if name != prompt_column], str)
    column_of_part = {
        "prompt": prompt_column,
        "query": query_column,
        "response": None if any(pair) else response_column,
    }
    columns = {part: name for part, name in column_of_part.items() if name}
    columns |= _shared_columns(example, ("history", ("history",)), ("tools", ("tools",)))
    yield _with_preference({"columns": columns}, example, pair)


def _prompt_and_response(example: Row) -> tuple[str | None, str | None]:
    """Return the names of two columns, that of the question and that of the answer, recognized by their names. None for
    a part for which no column is found. `example`: a row with all columns."""
    prompt_column, response_column = (
        _first_column(example, PROMPT_NAMES, str),
        _first_column(example, RESPONSE_NAMES, str),
    )
    couples = (
        (_first_column(example, one[:1], str), _first_column(example, one[1:], str)) for one in PROMPT_RESPONSE_NAMES
    )
    return (
        (prompt_column, response_column)
        if response_column
        else next(filter(all, couples), (prompt_column, response_column))
    )


def _with_preference(entry: dict[str, Any], example: Row, pair: tuple[str, str]) -> InferredEntry:
    """Return the entry with the columns of preference pairs or KTO labels added, and with the stage that suits them.
    Values that equal LLaMA-Factory's defaults are left out. `pair`: the columns of the chosen and the rejected answer,
    or two empty strings."""
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


def _shared_columns(example: Row, *extra_parts: tuple[str, Sequence[str]]) -> dict[str, str]:
    """Return the columns of a row for parts that any formatting may have: system prompt, images, videos, audios. The
    result is by part, without parts that the row lacks. `extra_parts`: further parts, each with its possible column
    names."""
    parts = (("system", SYSTEM_NAMES), *extra_parts, *MEDIA_NAMES.items())
    return {
        part: name
        for part, names in parts
        if (name := next((n for n in columns_named(example, names) if example[n]), None))
    }


def _first_column(example: Row, names: Sequence[str], kind: type) -> str | None:
    return next((name for name in columns_named(example, names) if isinstance(example[name], kind)), None)


def _chosen_rejected_columns(example: Row, kind: type = object) -> tuple[str, str]:
    """Return the names of the columns of the chosen and the rejected answer; two empty strings if the row has no such
    pair of columns. `kind`: the type that both values must have."""
    column_pairs = ([*columns_named(example, pair)] for pair in CHOSEN_REJECTED_NAMES)
    usable_pairs = (
        (sides[0], sides[1])
        for sides in column_pairs
        if sides[1:] and all(isinstance(example[side], kind) for side in sides)
    )
    return next(usable_pairs, ("", ""))


def _role_and_content_keys(value: object) -> tuple[str, str]:
    """Return the keys under which the turns of a conversation hold role and content; two empty strings if the value is
    not a list of turns."""
    first = next(iter(_turns_in(value)), {})
    role, content = (next((key for key in keys if key in first), "") for keys in (_ROLE_KEYS, _CONTENT_KEYS))
    return (role, content) if role and content else ("", "")


def _turns_in(value: object) -> list[Mapping[str, Any]]:
    return [turn for turn in value if isinstance(turn, Mapping)] if isinstance(value, list) else []


def _infer_tags(role: str, content: str, role_counts: Counter[str]) -> dict[str, str]:
    """Return the tags for a dataset_info.json entry: the keys of a turn, and the name of each role. The name is the
    most frequent one that the turns use for the role, or else the usual name in sharegpt or openai data. `role` and
    `content`: the keys of a turn."""
    tags = {"role_tag": role, "content_tag": content}
    for (kind, names), usual in zip(
        _ROLE_NAMES.items(), _SHAREGPT_ROLES if role == "from" else _OPENAI_ROLES, strict=True
    ):
        tags[f"{kind}_tag"] = next((name for name, _ in role_counts.most_common() if name.lower() in names), usual)
    return tags


def _unknown_form_message(example: Row, single: bool) -> str:
    """Return what is wrong with rows that no entry describes, as text for a message. `single`: True if the file has one
    row only."""
    if not example:
        return "no row has a column"
    talks = [name for name, value in example.items() if any(_role_and_content_keys(value))]
    list_column = next((name for name, value in example.items() if _turns_in(value)), None)
    if single and list_column and not talks:
        return f"the file is one object; its rows are in `{list_column}`: save that list alone"
    turns = "no turns (objects with role and content)"
    if list_column and not talks:
        keys = ", ".join(_turns_in(example[list_column])[0])
        turns = f"the turns of `{list_column}` are not objects with role and content (they have {keys})"
    return next(_conversation_faults(example, talks), None) or f"{turns}, nor {_missing_parts_message(example)}"


def _conversation_faults(example: Row, talks: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why LLaMA-Factory cannot use the conversations, as texts for a message. `example`: a row with
    all columns. `talks`: the columns that hold conversations."""
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
    """Return what is wrong with the first turn that is out of order, and what to do; an empty string if all turns are
    in order. `role` and `content`: the keys of a turn."""
    words = {"system": "a system prompt", "user": "a question", "observation": "a question"}
    kinds = [
        next((kind for kind, names in _ROLE_NAMES.items() if str(turn.get(role)).lower() in names), "")
        for turn in turns
    ]
    begin = 1 if kinds[:1] == ["system"] else 0
    for number, (turn, kind) in enumerate(zip(turns[begin:], kinds[begin:], strict=True), begin + 1):
        found_turn, expected_turn = words.get(kind, "an answer"), "a question" if (number - begin) % 2 else "an answer"
        if not kind:
            return f"turn {number} is of no known role"
        if found_turn != expected_turn:
            return f"turn {number} is {found_turn}, where {expected_turn} must stand"
        if not isinstance(turn.get(content), str):
            return f"turn {number} holds no text"
    return "" if (len(turns) - begin) % 2 == 0 else "it ends with a question: drop its last turn"


def _missing_parts_message(example: Row) -> str:
    """Return, as text for a message, which of prompt and answer no column provides, and which columns of text are
    left."""
    prompt_column, response_column = _prompt_and_response(example)
    lacks = [] if prompt_column else [f"a prompt as text ({', '.join(PROMPT_NAMES[:4])})"]
    if not response_column and not any(_chosen_rejected_columns(example, str)):
        lacks.append(f"an answer as text ({', '.join(RESPONSE_NAMES[:4])})")
    other_columns = _other_text_columns(example)
    found = f"the other columns of text are {', '.join(other_columns)}" if other_columns else "no other column is text"
    return f"{' and '.join(lacks)}; {found}"


def _columns_by_part(example: Row) -> dict[str, str]:
    """Return the columns whose names say that they are prompt, query or answer, by part."""
    prompt_column, response_column = _prompt_and_response(example)
    query_column = _first_column(example, [name for name in QUERY_NAMES if name != prompt_column], str)
    parts = (("prompt", prompt_column), ("query", query_column), ("response", response_column))
    return {part: name for part, name in parts if name}


def _other_text_columns(example: Row) -> list[str]:
    """Return the columns of text of which no name tells what they are."""
    known = {*_columns_by_part(example).values(), *_shared_columns(example).values()}
    return [str(name) for name, value in example.items() if isinstance(value, str) and name not in known]


def _proposed_columns(example: Row) -> dict[str, str]:
    """Return the columns that may hold the parts of a sample, by part: the other columns of text in their order, for
    what is missing of prompt and answer. Empty if there are too few of them, or if a column holds turns."""
    known = _columns_by_part(example)
    if any(_turns_in(value) for value in example.values()) or any(_chosen_rejected_columns(example)):
        return {}
    missing = [part for part in ("prompt", "response") if part not in known]
    guessed = dict(zip(missing, _other_text_columns(example), strict=False))
    if len(guessed) < len(missing):
        return {}
    parts = {**known, **guessed}
    return {part: parts[part] for part in ("prompt", "query", "response") if part in parts} | _shared_columns(example)


# What to do for another stage with rows that look like those of sft.
_OTHER_STAGE_REMEDIES = {
    "dpo": "map the two answers as `chosen` and `rejected`",
    "kto": "map the column of true and false as `kto_tag`",
}
_FORM_KEYS = ("formatting", "ranking", "columns", "tags")


def suggest_entry(name: str, entry: Entry, stage: str, rows: Sequence[Row]) -> str:
    """Return how to change the dataset_info.json entry or the recipe's stage so that they suit these rows, as text for
    a message. An empty string if both suit the rows already, or if no entry describes the rows. `name`: the data set's
    name. `entry`: its present entry."""
    try:
        form, suits = infer_entry(rows)
    except UnknownFormError:
        return ""
    new_entry = {**{key: value for key, value in entry.items() if key not in _FORM_KEYS}, **form}
    steps = [] if stage in TRAINABLE_STAGES[suits] else [f"set `stage: {suits}`"]
    steps += [] if new_entry == dict(entry) else [f"write {entry_as_json(name, new_entry)} in dataset_info.json"]
    other_remedy = _OTHER_STAGE_REMEDIES.get("dpo" if stage == "rm" else stage, "") if suits == "sft" else ""
    return " and ".join(steps) + (f", or {other_remedy}" if other_remedy else "")


_SENTENCE_WORDS = 4  # text of so many words is more than a name or an address


def recipe_notes(inferred: InferredEntry, rows: Sequence[Row]) -> Iterator[str]:
    """Yield advice for a recipe that trains on these rows: about the template, tool calls, media, and columns that are
    not used."""
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
    """Yield, as texts for a message, that the recipe's template must take images, videos or audios, for each of these
    that the rows hold."""
    columns = inferred.attr.columns
    yield from (f"`template` must be one that takes {part}" for part in PLACEHOLDERS if columns.get(part))


def _unused_columns(inferred: InferredEntry, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the columns that the entry leaves out although they hold lists, sentences or labels. If the entry is for
    plain text (pre-training), only `reasoning_content` is reported, because the other columns usually describe the
    text."""
    attr = inferred.attr
    if any(turn.get("reasoning_content") for turn in conversation_turns(attr, rows)):
        yield "reasoning_content"
    labels = {*LABEL_NAMES, *(side for pair in CHOSEN_REJECTED_NAMES for side in pair)}
    for name in dict.fromkeys(name for row in rows for name in row) if inferred.stage != "pt" else ():
        values = (row[name] for row in rows if row.get(name) not in (None, "", []))
        if name not in attr.columns.values() and any(
            str(name).lower() in labels
            or isinstance(value, list)
            or (isinstance(value, str) and len(value.split()) >= _SENTENCE_WORDS)
            for value in values
        ):
            yield name
