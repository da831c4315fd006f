"""The texts that LLaMA-Factory hands to the tokenizer for one sample (data/template.py): its turns with the chat
template around them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from validator.dataset.token_counting import TokenCounter
from validator.knowledge.chat_templates import thought_words
from validator.rows.converter import FatalRowError, Turn

_CONTENT = "{{content}}"
_CONTENT_THEN_EOS: list[Any] = [_CONTENT, ["eos_token"]]
# What one turn becomes: texts, each of which is tokenized by itself, and how many tokens are added that are the same in
# every row. Plain tuples, for speed: there are two for each row.
TurnTexts = tuple[list[str], int]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template with a recipe's settings for it (data/template.py). `slots` is its entry of formats.json.
    `thinking` is the setting `enable_thinking`, `preserve` is `preserve_thinking`, `system` is `default_system`."""

    slots: Mapping[str, Any]
    counter: TokenCounter
    efficient_eos: bool = False
    thinking: bool | None = True
    preserve: bool = False
    mask_history: bool = False
    system: str | None = None

    def encode(self, turns: Sequence[Turn], system: Any, tools: Any, every_turn: bool) -> list[TurnTexts]:
        """Return what each turn of a sample becomes. `every_turn`: all answers are trained, as in sft. Raises
        FatalRowError."""
        if len(turns) == 2 and self._single_turn and not (system or tools):  # as most rows are
            (asks, question), (answers, answer) = turns
            if asks == "user" and answers == "assistant":
                before, after, more, opens, closes, end = self._single_turn
                return [([before + question + after], more), ([opens + answer + closes], end)]
        contents = [content for _, content in turns]
        last = len(turns) - 2
        discards = not self.preserve and (self.mask_history or not every_turn)
        if self._has_thoughts and (self.thinking is False or (discards and last > 1)):
            cleared = range(1, len(turns) if self.thinking is False else last, 2)
            contents = [
                _without_spans(text, *self._thought).lstrip("\n") if i in cleared else text
                for i, text in enumerate(contents)
            ]
        pieces = [self._piece(role, content) for (role, _), content in zip(turns, contents, strict=True)]
        self._open(pieces, contents[0], system, tools)
        if self._has_thoughts:
            for i in range(0, len(turns), 2) if every_turn and not discards else (last,):
                self._think(pieces, i, contents[i + 1])
        return pieces

    @cached_property
    def _single_turn(self) -> tuple[str, str, int, str, str, int] | None:
        """Texts before and after the question and number of tokens around it, then the same of the answer, for a row of
        one question and one answer; None if they depend on the row."""
        (asked, more), (answered, end) = self._formats["user"], self._formats["assistant"]
        if self._system_in_first_turn or self._has_thoughts or len(asked) != 1 or len(answered) != 1:
            return None
        return *asked[0], more + self._opening, *answered[0], end

    @cached_property
    def _system_in_first_turn(self) -> bool:
        """True if system prompt and question are one text."""
        return bool(self.slots.get("class") == "Llama2Template")

    @cached_property
    def _has_thoughts(self) -> bool:
        """True if the template knows thoughts, which it removes or adds."""
        return "Reasoning" in self.slots.get("class", "")

    @cached_property
    def _formats(self) -> dict[str, tuple[list[tuple[str, str]], int]]:
        """For each kind of turn, the texts before and after the content, and the number of tokens around them."""
        assistant = self.slots.get("assistant") or ([_CONTENT] if self.efficient_eos else _CONTENT_THEN_EOS)
        user = self.slots.get("user") or [_CONTENT]
        usual = {"user": user, "assistant": assistant, "system": [_CONTENT], "function": assistant,
                 "observation": user, "prefix": []}  # fmt: skip
        return {turn: self._split(self.slots.get(turn) or slots) for turn, slots in usual.items()}

    def _split(self, slots: Sequence[Any]) -> tuple[list[tuple[str, str]], int]:
        """Return the texts before and after each content of a turn's slots, and the number of its other tokens."""
        texts = [slot.partition(_CONTENT) for slot in slots if isinstance(slot, str)]
        tokens = [slot[0] for slot in slots if not isinstance(slot, str)]
        single = sum(name != "bos_token" or self.counter.begins for name in tokens)
        fixed = [before for before, content, _ in texts if not content]
        return [(before, after) for before, content, after in texts if content], single + self._tokens(fixed)

    def _tokens(self, texts: list[str]) -> int:
        return sum(self.counter.count([text for text in texts if text]))

    def _piece(self, role: str, content: str) -> TurnTexts:
        if role == "function":
            _check_function_call(content, self._thought)
        texts, more = self._formats[role]
        return ([before + content + after for before, after in texts], more)

    @cached_property
    def _opening(self) -> int:
        """Number of tokens before the first turn of a row without a system prompt of its own."""
        system = self._default
        described, more = self._piece("system", system) if system else ([], 0)
        return self._formats["prefix"][1] + self._tokens(described) + more

    @property
    def _default(self) -> str:
        return self.system if self.system is not None else str(self.slots.get("default_system", ""))

    def _open(self, pieces: list[TurnTexts], first: str, system: Any, tools: Any) -> None:
        """Put prefix and system prompt before the first turn."""
        texts, more = pieces[0]
        if not (system or tools or self._system_in_first_turn):
            pieces[0] = (texts, more + self._opening)
            return
        system = str(system or self._default)
        if tools:
            _parse_row_json(tools, "the description of tools is not JSON text")
            system += str(tools)
        described, extra = self._piece("system", system) if system else ([], 0)
        if self._system_in_first_turn:
            (texts, more), described = self._piece("user", "".join(described[:1]) + first), []
        pieces[0] = (described + texts, more + extra + self._formats["prefix"][1])

    @cached_property
    def _thought(self) -> tuple[str, str]:
        return thought_words(self.slots)

    @cached_property
    def _empty_thought(self) -> tuple[str, str, int]:
        opens, closes = self._thought
        empty = closes if self.slots.get("class") == "Glm47ReasoningTemplate" else opens + closes
        return opens.strip(), closes.strip(), self._tokens([empty])

    def _think(self, pieces: list[TurnTexts], i: int, answer: str) -> None:
        """Add an empty thought before an answer without one. It is part of the answer, and trained, if thinking is
        enabled."""
        opens, closes, tokens = self._empty_thought
        if opens not in answer and closes not in answer:
            at = i + 1 if self.thinking else i
            pieces[at] = (pieces[at][0], pieces[at][1] + tokens)


def _without_spans(text: str, opens: str, closes: str, most: int = -1) -> str:
    """Return a text without the first `most` spans from one word to another, or without all of them. A regular
    expression would search the rest of the text again for each opening word, which takes long."""
    kept, position = [], 0
    while most and (begin := text.find(opens, position)) >= 0 and (end := text.find(closes, begin + len(opens))) >= 0:
        kept.append(text[position:begin])
        position, most = end + len(closes), most - 1
    return "".join([*kept, text[position:]])


def _check_function_call(content: str, thought: tuple[str, str]) -> None:
    """Raise FatalRowError where LLaMA-Factory cannot read the calls of tools in a turn (data/formatter.py,
    FunctionFormatter)."""
    _, opens, behind = content.partition("<tool_call>")
    wrapped, closes, _ = behind.partition("</tool_call>")
    calls = _parse_row_json(wrapped if opens and closes else _without_spans(content, *thought, 1))
    try:
        for call in calls if isinstance(calls, list) else [calls]:
            _ = call["name"], call["arguments"]
    except (KeyError, TypeError):
        raise FatalRowError("a function call is not JSON with name and arguments") from None


def _parse_row_json(text: Any, otherwise: str = "a function call is not JSON with name and arguments") -> Any:
    """Return the JSON in a row's text. Raises FatalRowError with `otherwise`."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise FatalRowError(otherwise) from None
