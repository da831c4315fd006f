"""Tables of everything that a LLaMA-Factory release registers: chat templates with their models (templates.json), the
text that the templates put around every turn (formats.json), and the groups of models (registry.json)."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .packages import ModuleTrees, classes, name_of
from .static_eval import calls, constant, dict_keys

_CHAT_MARKS = ("-Chat", "-Distill", "-Instruct", "-Thinking")
_MEDIA = ("image", "video", "audio")
_TURNS = ("user", "assistant", "system", "function", "observation", "prefix")
_WORDS = ("thought_words", "default_system", "stop_words")


def templates_table(release: str, llamafactory: ModuleTrees) -> dict[str, Any]:
    """The whole of templates.json from one opened release."""
    template = llamafactory("llamafactory.data.template")
    constants = llamafactory("llamafactory.extras.constants")
    return {
        "source": {"llamafactory": release},
        "templates": dict(sorted(_templates(template))),
        "models": _models(constants),
        "names": {
            "tool_formats": dict_keys(llamafactory("llamafactory.data.tool_utils"), "TOOLS"),
            "file_types": constant(constants, "FILEEXT2TYPE"),
        },
    }


def presence(llamafactory: Mapping[str, ModuleTrees], earlier: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """LLaMA-Factory releases, newest first, that register a template, for the templates that not all of them have; and
    which of the releases are `earlier` than those of the other tables."""
    names = {release: _names(package("llamafactory.data.template")) for release, package in llamafactory.items()}
    having = {name: [release for release in names if name in names[release]] for name in set().union(*names.values())}
    return {
        "earlier": {"llamafactory": list(earlier)},
        "in": {name: releases for name, releases in sorted(having.items()) if len(releases) < len(names)},
    }


def _names(tree: ast.Module) -> set[str]:
    """The templates that a module registers. Before LLaMA-Factory 0.9.2 the function had an underscore."""
    functions = ("register_template", "_register_template")
    return {ast.literal_eval(given["name"]) for function in functions for given in calls(tree, function)}


def _templates(tree: ast.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    reasoning = _descendants(tree, "ReasoningTemplate")
    for given in calls(tree, "register_template"):
        facts: dict[str, Any] = {
            "reasoning": name_of(given["template_class"]) in reasoning if "template_class" in given else False,
            "plugin": _argument(given.get("mm_plugin"), "name"),
            "media": [kind for kind in _MEDIA if _argument(given.get("mm_plugin"), f"{kind}_token")],
            "tool_format": _argument(given.get("format_tools"), "tool_format"),
            "efficient_eos": ast.literal_eval(given["efficient_eos"]) if "efficient_eos" in given else False,
            "replace_eos": ast.literal_eval(given["replace_eos"]) if "replace_eos" in given else False,
        }
        yield ast.literal_eval(given["name"]), {key: value for key, value in facts.items() if value}


def _models(tree: ast.Module) -> dict[str, dict[str, list[str]]]:
    """Hub and ModelScope names by the template of their group ("" without one) and kind of model."""
    families: dict[str, dict[str, list[str]]] = {}
    # a name registered twice keeps the later template, as in LLaMA-Factory
    registered = {hub: place for given in calls(tree, "register_model_group") for hub, place in _hubs_of_group(given)}
    for hub, (template, kind) in sorted(registered.items()):
        families.setdefault(template, {}).setdefault(kind, []).append(hub)
    return dict(sorted(families.items()))


def _hubs_of_group(given: dict[str, ast.expr]) -> Iterator[tuple[str, tuple[str, str]]]:
    template = ast.literal_eval(given["template"]) if "template" in given else ""
    multimodal = "multimodal" in given and ast.literal_eval(given["multimodal"])
    assert isinstance(given["models"], ast.Dict)
    for key, hubs in zip(given["models"].keys, given["models"].values, strict=True):
        assert isinstance(hubs, ast.Dict)
        chat = key is not None and any(mark in ast.literal_eval(key) for mark in _CHAT_MARKS)
        kind = "multimodal" if multimodal else "chat" if chat else "base"
        for hub in hubs.values:
            yield ast.literal_eval(hub), (template, kind)


def _argument(call: ast.expr | None, name: str) -> str | None:
    """Text given to a call as keyword `name`; `name` itself may also be the first positional argument."""
    if not isinstance(call, ast.Call):
        return None
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name == "name" and call.args:
        return str(ast.literal_eval(call.args[0]))
    return str(ast.literal_eval(given[name])) if name in given else None


def _descendants(tree: ast.Module, ancestor: str) -> set[str]:
    names = {ancestor}
    for name, node in classes(tree).items():
        if any(name_of(base) in names for base in node.bases):
            names.add(name)
    return names


def formats_table(release: str, llamafactory: ModuleTrees) -> dict[str, Any]:
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


def registry_table(release: str, llamafactory: ModuleTrees) -> dict[str, Any]:
    """The whole of registry.json from one opened release."""
    given = calls(llamafactory("llamafactory.extras.constants"), "register_model_group")
    return {"source": {"llamafactory": release}, "groups": dict(_places_of_group(each) for each in given)}


def _places_of_group(given: dict[str, ast.expr]) -> tuple[str, list[str]]:
    """The group's first registered name, and all places its models are published at, each once."""
    assert isinstance(given["models"], ast.Dict)
    first, *_ = (ast.literal_eval(key) for key in given["models"].keys if key)
    places = (place for hubs in given["models"].values if isinstance(hubs, ast.Dict) for place in hubs.values)
    return first, list(dict.fromkeys(ast.literal_eval(place) for place in places))
