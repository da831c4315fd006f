"""LLaMA-Factory's templates of reasoning models: where they put empty thoughts, which TRA618 and TRA621 rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from validator.knowledge.chat_templates import known_templates, template_slots, thought_words

THINKING = [name for name, facts in known_templates().items() if facts.get("reasoning")]
TALK = [{"role": role, "content": text} for role, text in [("user", "2 + 2?"), ("assistant", "4"), ("user", "3 + 3?"),
                                                           ("assistant", "6")]]  # fmt: skip


class Letters:
    """A stand-in for a tokenizer that is read from no file: one id for each letter."""

    bos_token_id = eos_token_id = 0
    bos_token, eos_token = "<s>", "</s>"

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]

    def convert_tokens_to_ids(self, token: str) -> int:
        return sum(map(ord, token))


def encoded(
    name: str, enable_thinking: bool | None, answer: str = "4"
) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Ids of prompt and answer for each turn, with the loss on the answers, and the ids of an empty thought."""
    from copy import deepcopy

    from llamafactory.data.template import TEMPLATES

    template: Any = deepcopy(TEMPLATES[name])
    template.enable_thinking = enable_thinking
    talk = [*TALK[:1], {"role": "assistant", "content": answer}, *TALK[2:]]
    return template.encode_multiturn(Letters(), talk), template.get_thought_word_ids(Letters())


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", THINKING)
def test_an_empty_thought_is_in_the_loss_only_where_thinking_is_enabled(name: str) -> None:
    pytest.importorskip("llamafactory.data.template")
    turns, empty = encoded(name, True)
    assert empty
    assert all(answer[: len(empty)] == empty for _, answer in turns)
    for off in (False, None):
        turns, _ = encoded(name, off)
        assert all(prompt[-len(empty) :] == empty and answer[: len(empty)] != empty for prompt, answer in turns)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", THINKING)
def test_null_trains_the_thoughts_that_are_there_and_false_removes_them(name: str) -> None:
    pytest.importorskip("llamafactory.data.template")
    opens, closes = thought_words(template_slots()[name])
    thought = f"{opens}hm{closes}"
    for enable_thinking, kept in ((None, True), (True, True), (False, False)):
        (_, answer), _ = encoded(name, enable_thinking, f"{thought}4")[0]
        assert (thought in "".join(map(chr, answer))) is kept


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", THINKING)
def test_thoughts_in_other_words_are_trained_as_the_answer_after_an_empty_thought(name: str) -> None:
    """What TRA621 warns of, whatever `enable_thinking` says."""
    pytest.importorskip("llamafactory.data.template")
    opens, _ = thought_words(template_slots()[name])
    other = "<think>hm</think>4" if "<think>" not in opens else "<seed:think>hm</seed:think>4"
    for enable_thinking in (True, False, None):
        ((prompt, answer), *_), empty = encoded(name, enable_thinking, other)
        assert (answer if enable_thinking else prompt[-len(empty) :] + answer)[: len(empty)] == empty
        assert other in "".join(map(chr, answer))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("qwen3-8b-a100-lora", "; if yours have none, prompt without thinking\n"),
        # LLaMA-Factory's empty thought is not that of GLM-4.5's own template, as long as the next test passes.
        ("glm4.5-air-a100-lora", "; if yours have none, prompt through `llamafactory-cli`"),
        ("gpt-oss-20b-h100x1-lora", "; if yours have none, only what follows the thinking is trained\n"),
        ("qwen3-8b-a100-full-rm", "an empty one is never trained\n"),  # nobody prompts a reward model
    ],
)
def test_a_recipe_says_how_to_prompt_a_model_whose_answers_had_no_thoughts(name: str, says: str) -> None:
    assert says in Path("recipes", f"{name}.yaml").read_text()


def test_the_empty_thought_of_glm_4_5_is_not_the_one_of_its_own_template() -> None:
    assert thought_words(template_slots()["glm4_moe"]) != ("<think>", "</think>")
