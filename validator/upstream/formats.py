"""formats.json: the text that the chat templates of a LLaMA-Factory release put around every turn."""

import ast
from typing import Any

from validator.upstream.source import Modules, name_of
from validator.upstream.templates import calls

_TURNS = ("user", "assistant", "system", "function", "observation", "prefix")
_WORDS = ("thought_words", "default_system", "stop_words")


def table(release: str, llamafactory: Modules) -> dict[str, Any]:
    """The whole of formats.json from one opened release. A slot is a text, or a list with the name of one token."""
    given = calls(llamafactory("llamafactory.data.template"), "register_template")
    return {
        "source": {"llamafactory": release},
        "formats": dict(sorted((ast.literal_eval(call["name"]), _format(call)) for call in given)),
    }


def _format(call: dict[str, ast.expr]) -> dict[str, Any]:
    entry: dict[str, Any] = {word: ast.literal_eval(call[word]) for word in _WORDS if word in call}
    for turn in _TURNS:
        slots = _slots(call.get(f"format_{turn}"))
        if slots is not None:
            entry[turn] = slots
    if "template_class" in call:
        entry["class"] = name_of(call["template_class"])
    return entry


def _slots(formatter: ast.expr | None) -> list[str | list[str]] | None:
    """`StringFormatter(slots=[...])` as plain data; None where the default holds."""
    if not isinstance(formatter, ast.Call):
        return None
    given = (ast.literal_eval(word.value) for word in formatter.keywords if word.arg == "slots")
    slots: list[Any] = next(given, [])
    return [slot if isinstance(slot, str) else list(slot.values() if isinstance(slot, dict) else slot)
            for slot in slots]  # fmt: skip
