"""The texts that LLaMA-Factory hands to the tokenizer for one sample (data/template.py), which are the turns of the
conversation with the chat template around them, and the sample's length in tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from validator.knowledge.chat_templates import template_slots, thought_words
from validator.rows import truncation
from validator.rows.converter import FatalRowError, Sample, Turn
from validator.rows.media_columns import PLACEHOLDERS
from validator.rows.outcomes import tools_fault
from validator.rows.token_estimate import TextCounter
from validator.rows.truncation import SampleLengths
from validator.run.image_tokens import ImageTokens
from validator.run.settings import RunSettings

_CONTENT = "{{content}}"
_CONTENT_THEN_EOS: list[Any] = [_CONTENT, ["eos_token"]]
# What one turn becomes: texts, each of which is tokenized by itself, and how many tokens are added that are the same in
# every row. Plain tuples, for speed: there are two for each row.
TurnTexts = tuple[list[str], int]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template with the recipe's settings for it (data/template.py). `slots` is the template's entry in
    formats.json. `thinking` is the setting `enable_thinking`, `preserve` is `preserve_thinking`, `system` is
    `default_system`. `counter` counts the tokens of the template's own texts."""

    slots: Mapping[str, Any]
    counter: TextCounter
    efficient_eos: bool = False
    thinking: bool | None = True
    preserve: bool = False
    mask_history: bool = False
    system: str | None = None

    def encode(self, turns: Sequence[Turn], system: Any, tools: Any, every_turn: bool) -> list[TurnTexts]:
        """Return for each turn of a sample a pair: the texts to tokenize, and the number of further tokens that the
        template adds to the turn. `system` and `tools` are the row's own system prompt and description of tools, if
        any. `every_turn` is true if all answers are trained, as in sft, and false if only the last answer is trained.
        Raises FatalRowError if a function call or the description of tools is not valid JSON."""
        if len(turns) == 2 and self._single_turn and not (system or tools):  # as most rows are
            (question_role, question), (answer_role, answer) = turns
            if question_role == "user" and answer_role == "assistant":
                before, after, question_tokens, opens, closes, answer_tokens = self._single_turn
                return [([before + question + after], question_tokens), ([opens + answer + closes], answer_tokens)]
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
        """The template around a row of one question and one answer: text before the question, text after, number of
        added tokens, and the same three values for the answer. None if these values depend on the row."""
        (question, question_tokens), (answer, answer_tokens) = self._formats["user"], self._formats["assistant"]
        if self._system_in_first_turn or self._has_thoughts or len(question) != 1 or len(answer) != 1:
            return None
        return *question[0], question_tokens + self._opening, *answer[0], answer_tokens

    @cached_property
    def _system_in_first_turn(self) -> bool:
        """True if the template writes the system prompt into the first question, so that the two are tokenized as one
        text."""
        return bool(self.slots.get("class") == "Llama2Template")

    @cached_property
    def _has_thoughts(self) -> bool:
        """True if the template has thoughts (reasoning between two marks), which it removes from answers or adds to
        them."""
        return "Reasoning" in self.slots.get("class", "")

    @cached_property
    def _formats(self) -> dict[str, tuple[list[tuple[str, str]], int]]:
        """For each kind of turn (user, assistant …), the texts before and after the content, and the number of tokens
        that the template adds."""
        assistant = self.slots.get("assistant") or ([_CONTENT] if self.efficient_eos else _CONTENT_THEN_EOS)
        user = self.slots.get("user") or [_CONTENT]
        usual = {"user": user, "assistant": assistant, "system": [_CONTENT], "function": assistant,
                 "observation": user, "prefix": []}  # fmt: skip
        return {turn: self._split(self.slots.get(turn) or slots) for turn, slots in usual.items()}

    def _split(self, slots: Sequence[Any]) -> tuple[list[tuple[str, str]], int]:
        """Return the texts before and after the placeholder for the content, for each of the template's slots with this
        placeholder. Also return the number of tokens that all other slots add."""
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
        texts, tokens = self._formats[role]
        return ([before + content + after for before, after in texts], tokens)

    @cached_property
    def _opening(self) -> int:
        """Number of tokens before the first turn, for a row that has no system prompt of its own: the template's prefix
        and its default system prompt."""
        system = self._default
        texts, tokens = self._piece("system", system) if system else ([], 0)
        return self._formats["prefix"][1] + self._tokens(texts) + tokens

    @property
    def _default(self) -> str:
        return self.system if self.system is not None else str(self.slots.get("default_system", ""))

    def _open(self, pieces: list[TurnTexts], first: str, system: Any, tools: Any) -> None:
        """Put the prefix and the system prompt before the first turn, by changing the first entry of `pieces`. `first`
        is the content of the first turn. Raises FatalRowError if the description of tools is not valid JSON."""
        texts, tokens = pieces[0]
        if not (system or tools or self._system_in_first_turn):
            pieces[0] = (texts, tokens + self._opening)
            return
        system = str(system or self._default)
        if tools:
            if why := tools_fault(tools):
                raise FatalRowError(why)
            system += str(tools)
        system_texts, system_tokens = self._piece("system", system) if system else ([], 0)
        if self._system_in_first_turn:
            (texts, tokens), system_texts = self._piece("user", "".join(system_texts[:1]) + first), []
        pieces[0] = (system_texts + texts, tokens + system_tokens + self._formats["prefix"][1])

    @cached_property
    def _thought(self) -> tuple[str, str]:
        return thought_words(self.slots)

    @cached_property
    def _empty_thought(self) -> tuple[str, str, int]:
        opens, closes = self._thought
        empty = closes if self.slots.get("class") == "Glm47ReasoningTemplate" else opens + closes
        return opens.strip(), closes.strip(), self._tokens([empty])

    def _think(self, pieces: list[TurnTexts], i: int, answer: str) -> None:
        """Add an empty thought before an answer that has no thought. If thinking is enabled, the empty thought is part
        of the answer and trained; otherwise it is part of the prompt. `i` is the index of the prompt in `pieces`."""
        opens, closes, tokens = self._empty_thought
        if opens not in answer and closes not in answer:
            at = i + 1 if self.thinking else i
            pieces[at] = (pieces[at][0], pieces[at][1] + tokens)


def _without_spans(text: str, opens: str, closes: str, limit: int = -1) -> str:
    """Return the text without the spans from the word `opens` to the word `closes`. Only the first `limit` spans are
    removed; -1 removes all spans. A regular expression would be slow, because it searches the rest of the text again
    for each opening word."""
    pieces, position = [], 0
    while limit and (begin := text.find(opens, position)) >= 0 and (end := text.find(closes, begin + len(opens))) >= 0:
        pieces.append(text[position:begin])
        position, limit = end + len(closes), limit - 1
    return "".join([*pieces, text[position:]])


def _check_function_call(content: str, thought: tuple[str, str]) -> None:
    """Raise FatalRowError if a turn's function calls are not JSON with a name and arguments, because LLaMA-Factory
    cannot read them (data/formatter.py, FunctionFormatter). A thought (reasoning) in the turn is skipped; `thought`
    holds the words that open and close the thought."""
    _, opens, behind = content.partition("<tool_call>")
    wrapped, closes, _ = behind.partition("</tool_call>")
    calls = _parse_row_json(wrapped if opens and closes else _without_spans(content, *thought, 1))
    try:
        for call in calls if isinstance(calls, list) else [calls]:
            _ = call["name"], call["arguments"]
    except (KeyError, TypeError):
        raise FatalRowError("a function call is not JSON with name and arguments") from None


def _parse_row_json(text: Any) -> Any:
    """Parse a function call in the text of a row. Raises FatalRowError if the text is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise FatalRowError("a function call is not JSON with name and arguments") from None


def recipe_template(run: RunSettings, counter: TextCounter) -> ChatTemplate:
    """Return the chat template of a run with the recipe's settings for it. `counter`: counts the tokens of texts."""
    system = run.args.get("default_system")
    return ChatTemplate(
        template_slots().get(str(run.args.get("template")), {}),
        counter,
        efficient_eos=bool((run.template or {}).get("efficient_eos")),
        thinking=run.args.get("enable_thinking"),
        preserve=run.args.flag("preserve_thinking"),
        mask_history=run.args.flag("mask_history"),
        system=system if isinstance(system, str) else None,
    )


def sample_texts(
    template: ChatTemplate, sample: Sample, stage: str, images: Sequence[ImageTokens], front: bool
) -> list[TurnTexts]:
    """Return for each turn of a sample the texts to tokenize, with the chat template around them and the tokens of
    `images` added. A preference pair ends in two turns, its two answers. `front`: all images stand before the first
    turn. Raises FatalRowError if the template cannot encode the sample."""
    if stage == "pt":
        return [([sample.prompt[0][1]], 1)]
    answers = [answer for answer in sample.answers if answer[1]] if stage == "kto" else sample.answers
    turns = [*sample.prompt, *(answers[:1] or sample.answers[:1] or [("assistant", "")])]
    texts = template.encode(turns, sample.system, sample.tools, stage == "sft")
    texts = _with_images(texts, turns, images, front)
    if stage in ("dpo", "rm"):
        second = [*sample.prompt, sample.answers[1]]
        other = template.encode(second, sample.system, sample.tools, False)
        texts += _with_images(other, second, images, front)[-1:]
    return texts


def _with_images(
    texts: list[TurnTexts], turns: Sequence[Turn], images: Sequence[ImageTokens], front: bool
) -> list[TurnTexts]:
    """Return the texts of the turns with <image> replaced by the tokens of the images, in their order. What stands
    before and behind an image is tokenized by itself, because the marks around an image are tokens of their own."""
    if not images:
        return texts
    mark, left, placed = PLACEHOLDERS["images"], iter(images), list[TurnTexts]()
    for (pieces, added), (_, content) in zip(texts, turns, strict=True):
        number = len(images) if front else content.count(mark)
        parts = [part for piece in pieces for part in piece.split(mark)]
        placed.append((parts, added + sum(each.sequence for each in islice(left, number))))
    return placed


def sample_lengths(
    template: ChatTemplate, sample: Sample, sizes: Sequence[int], stage: str, packing: bool, limit: int
) -> SampleLengths:
    """Return the lengths of a sample in tokens: all tokens, tokens left by `cutoff_len` (`limit`), answer tokens, and
    answer tokens cut off. `sizes`: tokens of the turns that `sample_texts` returns."""
    extra = int(template.efficient_eos)
    if stage == "pt":  # packed texts are cut into blocks later and lose nothing here
        kept = sizes[0] if packing else min(sizes[0], limit)
        return sizes[0], kept, sizes[0], sizes[0] - kept
    if stage == "sft":
        pairs = [(sizes[0], sizes[1])] if len(sizes) == 2 else list(zip(sizes[::2], sizes[1::2], strict=True))
        return truncation.turn_lengths(pairs, limit, extra, template.mask_history)
    prompt_turns = len(sample.prompt)
    answers = [size + extra for size in sizes[prompt_turns:]]
    return truncation.answer_lengths(sum(sizes[:prompt_turns]), answers, limit)
