"""Conversion of a data set row into turns, as LLaMA-Factory does it (data/converter.py): prompt, answers, system prompt
and tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from validator.rows.dataset_attr import DatasetAttr

Row = Mapping[Any, Any]  # a value for each column
Turn = tuple[str, Any]  # role (user, assistant, observation, function, system) and content


class Sample(NamedTuple):
    """A data set row after LLaMA-Factory's conversion. `prompt`: the turns before the answer. `answers`: one answer, or
    two for preference data; empty if the row has no usable answer. `broken`: True if LLaMA-Factory drops the row,
    because its turns are out of order."""

    prompt: list[Turn]
    answers: list[Turn]
    system: Any = ""
    tools: Any = ""
    broken: bool = False


class FatalRowError(Exception):
    """A row at which LLaMA-Factory stops with a Python error. The message says why."""


def row_converter(attr: DatasetAttr) -> Callable[[Row], Sample]:
    """Return the function that converts one row of a data set into a sample. `attr`: the columns and tags of the data
    set. The function raises FatalRowError for a row at which LLaMA-Factory stops."""
    if attr.formatting == "alpaca":
        return _alpaca_converter(attr)
    return _conversation_converter(attr)


def _alpaca_converter(attr: DatasetAttr) -> Callable[[Row], Sample]:
    names = ("prompt", "query", "response", "history", "system", "tools")
    prompt, query, response, history, system, tools = (attr.columns.get(part) for part in names)

    def convert(row: Row) -> Sample:
        get = row.get
        try:
            question = "\n".join([text for text in (get(prompt), get(query)) if text])
        except TypeError:
            raise FatalRowError("the prompt is not text") from None
        turns = [*(_history_turns(get(history)) if history else ()), ("user", question)]
        return Sample(turns, _alpaca_answers(row, attr, get(response)), get(system), get(tools))

    return convert


def _history_turns(turns: Any) -> list[Turn]:
    if not isinstance(turns, list):
        return []
    if any(not isinstance(turn, list) or len(turn) != 2 for turn in turns):
        raise FatalRowError("a turn of the history is not a pair of prompt and answer")
    return [side for question, answer in turns for side in (("user", question), ("assistant", answer))]


def _alpaca_answers(row: Row, attr: DatasetAttr, response: Any) -> list[Turn]:
    """Return the answers of an alpaca row as turns: two for preference pairs and KTO data, otherwise one; none if an
    answer is not a string. In KTO data one of the two is an empty answer. `response`: the value of the answer's
    column."""
    if not attr.has_two_answers:
        return [("assistant", response)] if isinstance(response, str) else []
    label = _kto_label(row, attr)
    if label is not None:
        empty, answer = ("assistant", ""), ("assistant", response)
        return [answer, empty] if label else [empty, answer]
    if attr.ranking:
        pair = _chosen_and_rejected(row, attr)
        if all(isinstance(text, str) for text in pair):
            return [("assistant", text) for text in pair]
    return [("assistant", response)] if isinstance(response, str) else []


def _chosen_and_rejected(row: Row, attr: DatasetAttr) -> list[Any]:
    return [row.get(attr.columns.get(side) or "") for side in ("chosen", "rejected")]


def _kto_label(row: Row, attr: DatasetAttr) -> bool | None:
    column = attr.columns.get("kto_tag")
    value = row.get(column) if column else None
    return value if isinstance(value, bool) else None


def _conversation_converter(attr: DatasetAttr) -> Callable[[Row], Sample]:
    column, tags = attr.columns.get("messages") or "", attr.tags
    read = _openai_turns if attr.formatting == "openai" else _sharegpt_turns
    system_column, tools_column = attr.columns.get("system"), attr.columns.get("tools")

    def convert(row: Row) -> Sample:
        messages = row.get(column)
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise FatalRowError(f"`{column}` is not a list of turns")
        system = row.get(system_column) if system_column else ""
        if messages and tags["system_tag"] and messages[0].get(tags["role_tag"]) == tags["system_tag"]:
            system, messages = messages[0].get(tags["content_tag"]), messages[1:]
        turns, broken = read(messages, attr)
        tools = row.get(tools_column) if tools_column else ""
        if attr.formatting == "openai":
            system, tools = _openai_system_and_tools(system, tools)
        return _conversation_sample(row, attr, turns, broken)._replace(system=system, tools=tools)

    return convert


def _sharegpt_turns(messages: list[Row], attr: DatasetAttr) -> tuple[list[Turn], bool]:
    tags = attr.tags
    accepted = ((tags["user_tag"], tags["observation_tag"]), (tags["assistant_tag"], tags["function_tag"]))
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        role = message.get(tags["role_tag"])
        if role not in accepted[index % 2]:
            return turns, True
        turns.append((attr.roles[role], message.get(tags["content_tag"])))
    return turns, _is_incomplete(turns, attr)


def _openai_turns(messages: list[Row], attr: DatasetAttr) -> tuple[list[Turn], bool]:
    """Return the turns of a conversation, and True if LLaMA-Factory drops the conversation because turns are missing or
    out of order. Tool calls become function turns. Consecutive answers of tools become one observation turn."""
    tags = attr.tags
    turns: list[Turn] = []
    waiting: list[Any] = []
    for message in messages:
        role, content = message.get(tags["role_tag"]), message.get(tags["content_tag"])
        if role in (tags["assistant_tag"], tags["function_tag"]) and (called := message.get("tool_calls")):
            try:
                content = json.dumps([call["function"] for call in called], ensure_ascii=False)
            except (KeyError, TypeError):
                raise FatalRowError("`tool_calls` is not a list of objects that have a `function`") from None
            role = tags["function_tag"]
        if role == tags["observation_tag"]:
            waiting.append(content)
            continue
        if waiting:
            try:
                turns.append(("observation", "\n</tool_response>\n<tool_response>\n".join(waiting)))
            except TypeError:
                raise FatalRowError("the answer of a tool is not text") from None
            waiting = []
        turns.append((_role_of_tag(role, attr), content))
    accepted = (("user", "observation"), ("assistant", "function"))
    ordered = all(role in accepted[i % 2] for i, (role, _) in enumerate(turns))
    return turns, not ordered or _is_incomplete(turns, attr)


def _role_of_tag(role: Any, attr: DatasetAttr, where: str = "") -> str:
    """Return LLaMA-Factory's own name (such as user or assistant) for a role in the data. `where`: words that the error
    message appends to the role. Raises FatalRowError if the role is not a string, or if the data set's `tags` do not
    name it."""
    role_name = attr.roles.get(role) if isinstance(role, str | None) else None
    if role_name is None:
        raise FatalRowError(f"the role `{role}`{where} is not named by `tags`")
    return role_name


def _is_incomplete(turns: list[Turn], attr: DatasetAttr) -> bool:
    """True if a conversation lacks its last turn. That is an answer, or a question if the data set has chosen and
    rejected answers in columns of their own."""
    return len(turns) % 2 != int(attr.ranking)


def _conversation_sample(row: Row, attr: DatasetAttr, turns: list[Turn], broken: bool) -> Sample:
    if broken:
        return Sample([], [], broken=True)
    label = _kto_label(row, attr)
    if label is not None:
        answers = [*turns[-1:], ("assistant", "")] if label else [("assistant", ""), *turns[-1:]]
        return Sample(turns[:-1], answers)
    if attr.ranking:
        pair = _chosen_and_rejected(row, attr)
        if all(isinstance(message, dict) for message in pair):
            role, content, where = attr.tags["role_tag"], attr.tags["content_tag"], " of `chosen` or `rejected`"
            return Sample(turns, [(_role_of_tag(one.get(role), attr, where), one.get(content)) for one in pair])
    return Sample(turns[:-1], turns[-1:])


def _openai_system_and_tools(system: Any, tools: Any) -> tuple[Any, Any]:
    """Return the system prompt and the tools as LLaMA-Factory changes them under formatting `openai`: it writes tools
    as JSON text, and adds "detailed thinking off" to the system prompt of rows without tools."""
    if isinstance(tools, (dict, list)):
        tools = json.dumps(tools, ensure_ascii=False)
    words = "detailed thinking off"
    if system and not isinstance(system, str):
        raise FatalRowError("the system prompt is not text")
    if not system:
        return ("" if tools else words), tools
    if tools:
        return system + "\n", tools
    has_switch = "detailed thinking on" in system or words in system
    return (system if has_switch else f"{system}\n{words}"), tools
