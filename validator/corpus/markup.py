"""A sample as the texts that LLaMA-Factory hands to the tokenizer: its turns with the chat template around them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from validator.corpus.conversion import StopsRunError, Turn

_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_CONTENT = "{{content}}"
_END: list[Any] = [_CONTENT, ["eos_token"]]


class Piece(NamedTuple):
    """What one turn becomes: texts, each of which is tokenized by itself, and single tokens."""

    texts: list[str]
    single: int


@dataclass(frozen=True)
class Markup:
    """A chat template (data/template.py, v0.9.5). `slots` is its entry of formats.json, `thinking` and `preserve` are
    `enable_thinking` and `preserve_thinking`; `begins`: the tokenizer has a token for the beginning of a text."""

    slots: Mapping[str, Any]
    efficient_eos: bool = False
    thinking: bool | None = True
    preserve: bool = False
    mask_history: bool = False
    begins: bool = False
    system: str | None = None

    @cached_property
    def _formats(self) -> dict[str, list[Any]]:
        assistant = self.slots.get("assistant") or ([_CONTENT] if self.efficient_eos else _END)
        user = self.slots.get("user") or [_CONTENT]
        usual = {"user": user, "assistant": assistant, "system": [_CONTENT], "function": assistant,
                 "observation": user, "prefix": []}  # fmt: skip
        return {turn: self.slots.get(turn) or slots for turn, slots in usual.items()}

    @cached_property
    def _thought(self) -> tuple[str, str]:
        words = self.slots.get("thought_words") or ["<think>\n", "\n</think>\n\n"]
        return words[0], words[1]

    @property
    def _reasons(self) -> bool:
        return "Reasoning" in self.slots.get("class", "")

    def pieces(self, turns: Sequence[Turn], system: Any, tools: Any, every_turn: bool) -> list[Piece]:
        """One piece for each turn. `every_turn`: all answers are trained (sft). Raises StopsRunError."""
        contents = [content for _, content in turns]
        if not all(isinstance(content, str) for content in contents):
            raise StopsRunError("a turn holds something other than text")
        last = len(turns) - 2
        history = range(1, last, 2)
        if self._reasons:
            discards = self.mask_history and not self.preserve if every_turn else not self.preserve
            cleared = range(1, len(turns), 2) if self.thinking is False else history if discards else ()
            contents = [self._thoughtless(text) if i in cleared else text for i, text in enumerate(contents)]
        found = [self._piece(role, content) for (role, _), content in zip(turns, contents, strict=True)]
        self._open(found, contents, str(system or self._default), tools)
        if self._reasons:
            discards = self.mask_history and not self.preserve
            for i in range(0, len(turns), 2) if every_turn and not discards else [last]:
                self._think(found, i, contents[i + 1])
        return found

    @property
    def _default(self) -> str:
        return self.system if self.system is not None else self.slots.get("default_system", "")

    def _piece(self, role: str, content: str) -> Piece:
        if role == "function":
            _check_call(content, self._thought)
        return self._filled(role, content)

    def _filled(self, name: str, content: str) -> Piece:
        slots = self._formats[name]
        texts = [slot.replace(_CONTENT, content, 1) for slot in slots if isinstance(slot, str)]
        return Piece(texts, sum(self._token(slot[0]) for slot in slots if not isinstance(slot, str)))

    def _token(self, name: str) -> int:
        return int(self.begins) if name == "bos_token" else 1

    def _open(self, found: list[Piece], contents: list[str], system: str, tools: Any) -> None:
        """Prefix and system prompt before the first turn."""
        prefix = self._filled("prefix", "")
        if system or tools:
            described = self._filled("system", system + _described(tools))
            if self.slots.get("class") == "Llama2Template":  # one text with the first question
                found[0] = self._filled("user", (described.texts or [""])[0] + contents[0])
            else:
                prefix = Piece(prefix.texts + described.texts, prefix.single + described.single)
        found[0] = Piece(prefix.texts + found[0].texts, prefix.single + found[0].single)

    def _think(self, found: list[Piece], i: int, answer: str) -> None:
        """An empty thought before an answer without one: trained on where thinking is enabled."""
        opens, closes = self._thought
        if opens.strip() in answer or closes.strip() in answer:
            return
        empty = closes if self.slots.get("class") == "Glm47ReasoningTemplate" else opens + closes
        at = i + 1 if self.thinking else i
        found[at] = Piece([*found[at].texts, empty], found[at].single)

    def _thoughtless(self, text: str) -> str:
        opens, closes = (re.escape(word) for word in self._thought)
        return re.sub(f"{opens}(.*?){closes}", "", text, flags=re.DOTALL).lstrip("\n")


def _check_call(content: str, thought: tuple[str, str]) -> None:
    opens, closes = (re.escape(word) for word in thought)
    wrapped = _TOOL_CALL.search(content)
    written = wrapped[1] if wrapped else re.sub(f"{opens}.*?{closes}", "", content, count=1, flags=re.DOTALL)
    try:
        calls = json.loads(written)
        for call in calls if isinstance(calls, list) else [calls]:
            _ = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError):
        raise StopsRunError("a function call is not JSON with name and arguments") from None


def _described(tools: Any) -> str:
    if not tools:
        return ""
    try:
        json.loads(tools)
    except (ValueError, TypeError):
        raise StopsRunError("the description of tools is not JSON text") from None
    return str(tools)
