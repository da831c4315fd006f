"""One row as the turns that LLaMA-Factory makes of it (data/converter.py): prompt, answers, system prompt and tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from validator.rows.dataset_attr import DatasetAttr

Row = Mapping[str | None, Any]
Turn = tuple[str, Any]  # role (user, assistant, observation, function, system) and content


class Sample(NamedTuple):
    """Turns up to the answer, the answers (two for preference data); broken: LLaMA-Factory skips the row."""

    prompt: list[Turn]
    answers: list[Turn]
    system: Any = ""
    tools: Any = ""
    broken: bool = False


class FatalRowError(Exception):
    """LLaMA-Factory does not skip such a row: the run ends with a Python error."""


def row_converter(form: DatasetAttr) -> Callable[[Row], Sample]:
    """The function from a row to its sample for one data set."""
    if form.formatting == "alpaca":
        return _alpaca_converter(form)
    return _conversation_converter(form)


def _alpaca_converter(form: DatasetAttr) -> Callable[[Row], Sample]:
    names = ("prompt", "query", "response", "history", "system", "tools")
    prompt, query, response, history, system, tools = (form.columns.get(part) for part in names)

    def convert(row: Row) -> Sample:
        get = row.get
        try:
            question = "\n".join([text for text in (get(prompt), get(query)) if text])
        except TypeError:
            raise FatalRowError("the prompt is not text") from None
        turns = [*(_history_turns(get(history)) if history else ()), ("user", question)]
        return Sample(turns, _alpaca_answers(row, form, get(response)), get(system), get(tools))

    return convert


def _history_turns(turns: Any) -> list[Turn]:
    if not isinstance(turns, list):
        return []
    if any(not isinstance(turn, list) or len(turn) != 2 for turn in turns):
        raise FatalRowError("a turn of the history is not a pair of prompt and answer")
    return [side for asked, answered in turns for side in (("user", asked), ("assistant", answered))]


def _alpaca_answers(row: Row, form: DatasetAttr, response: Any) -> list[Turn]:
    """The answers of an alpaca row: none where there is no text."""
    if not form.has_two_answers:
        return [("assistant", response)] if isinstance(response, str) else []
    label = _kto_label(row, form)
    if label is not None:
        empty, given = ("assistant", ""), ("assistant", response)
        return [given, empty] if label else [empty, given]
    if form.ranking:
        pair = _chosen_and_rejected(row, form)
        if all(isinstance(text, str) for text in pair):
            return [("assistant", text) for text in pair]
    return [("assistant", response)] if isinstance(response, str) else []


def _chosen_and_rejected(row: Row, form: DatasetAttr) -> list[Any]:
    return [row.get(form.columns.get(side) or "") for side in ("chosen", "rejected")]


def _kto_label(row: Row, form: DatasetAttr) -> bool | None:
    column = form.columns.get("kto_tag")
    value = row.get(column) if column else None
    return value if isinstance(value, bool) else None


def _conversation_converter(form: DatasetAttr) -> Callable[[Row], Sample]:
    column, tags = form.columns.get("messages") or "", form.tags
    read = _openai_turns if form.formatting == "openai" else _sharegpt_turns
    system_column, tools_column = form.columns.get("system"), form.columns.get("tools")

    def convert(row: Row) -> Sample:
        messages = row.get(column)
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise FatalRowError(f"`{column}` is not a list of turns")
        system = row.get(system_column) if system_column else ""
        if messages and tags["system_tag"] and messages[0].get(tags["role_tag"]) == tags["system_tag"]:
            system, messages = messages[0].get(tags["content_tag"]), messages[1:]
        turns, broken = read(messages, form)
        tools = row.get(tools_column) if tools_column else ""
        if form.formatting == "openai":
            system, tools = _openai_system_and_tools(system, tools)
        return _conversation_sample(row, form, turns, broken)._replace(system=system, tools=tools)

    return convert


def _sharegpt_turns(messages: list[Row], form: DatasetAttr) -> tuple[list[Turn], bool]:
    tags, roles = form.tags, _roles_by_tag(form)
    accepted = ((tags["user_tag"], tags["observation_tag"]), (tags["assistant_tag"], tags["function_tag"]))
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        role = message.get(tags["role_tag"])
        if role not in accepted[index % 2]:
            return turns, True
        turns.append((roles[role], message.get(tags["content_tag"])))
    return turns, _is_incomplete(turns, form)


def _openai_turns(messages: list[Row], form: DatasetAttr) -> tuple[list[Turn], bool]:
    """Tool calls become function turns; answers of tools that follow each other become one turn."""
    tags, roles = form.tags, _roles_by_tag(form)
    turns: list[Turn] = []
    waiting: list[Any] = []
    for message in messages:
        role, content = message.get(tags["role_tag"]), message.get(tags["content_tag"])
        if role in (tags["assistant_tag"], tags["function_tag"]) and (called := message.get("tool_calls")):
            role, content = tags["function_tag"], _tool_calls_text(called)
        if role == tags["observation_tag"]:
            waiting.append(content)
            continue
        if waiting:
            turns.append(("observation", _tool_responses_text(waiting)))
            waiting = []
        turns.append((_role_of_tag(role, roles), content))
    accepted = (("user", "observation"), ("assistant", "function"))
    ordered = all(role in accepted[i % 2] for i, (role, _) in enumerate(turns))
    return turns, not ordered or _is_incomplete(turns, form)


def _tool_calls_text(called: Any) -> str:
    """Calls of tools as the text that is trained on."""
    try:
        return json.dumps([call["function"] for call in called], ensure_ascii=False)
    except (KeyError, TypeError):
        raise FatalRowError("`tool_calls` is not a list of objects that have a `function`") from None


def _tool_responses_text(contents: list[Any]) -> str:
    """Answers of tools, one behind the other."""
    try:
        return "\n</tool_response>\n<tool_response>\n".join(contents)
    except TypeError:
        raise FatalRowError("the answer of a tool is not text") from None


def _role_of_tag(role: Any, roles: Mapping[str | None, str], where: str = "") -> str:
    """LLaMA-Factory's own name of a role. Raises StopsRunError for one that is no text, or not named."""
    known = roles.get(role) if isinstance(role, str | None) else None
    if known is None:
        raise FatalRowError(f"the role `{role}`{where} is none that `tags` names")
    return known


def _roles_by_tag(form: DatasetAttr) -> dict[str | None, str]:
    names = ("user", "assistant", "observation", "function", "system")
    return {form.tags[f"{name}_tag"]: name for name in names}


def _is_incomplete(turns: list[Turn], form: DatasetAttr) -> bool:
    """Turns end with an answer; of pairs, with the question."""
    return len(turns) % 2 != int(form.ranking)


def _conversation_sample(row: Row, form: DatasetAttr, turns: list[Turn], broken: bool) -> Sample:
    if broken:
        return Sample([], [], broken=True)
    label = _kto_label(row, form)
    if label is not None:
        answers = [*turns[-1:], ("assistant", "")] if label else [("assistant", ""), *turns[-1:]]
        return Sample(turns[:-1], answers)
    if form.ranking:
        pair = _chosen_and_rejected(row, form)
        if all(isinstance(message, dict) for message in pair):
            return Sample(turns, [_answer_turn(message, form) for message in pair])
    return Sample(turns[:-1], turns[-1:])


def _answer_turn(message: Row, form: DatasetAttr) -> Turn:
    role = _role_of_tag(message.get(form.tags["role_tag"]), _roles_by_tag(form), " of `chosen` or `rejected`")
    return role, message.get(form.tags["content_tag"])


def _openai_system_and_tools(system: Any, tools: Any) -> tuple[Any, Any]:
    """LLaMA-Factory's own system prompt for this form."""
    if isinstance(tools, (dict, list)):
        tools = json.dumps(tools, ensure_ascii=False)
    words = "detailed thinking off"
    if system and not isinstance(system, str):
        raise FatalRowError("the system prompt is not text")
    if not system:
        return ("" if tools else words), tools
    if tools:
        return system + "\n", tools
    known = "detailed thinking on" in system or words in system
    return (system if known else f"{system}\n{words}"), tools
