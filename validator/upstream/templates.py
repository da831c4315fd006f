"""templates.json: chat templates of a LLaMA-Factory release and the models registered with them."""

import ast
from collections.abc import Iterator
from typing import Any

from validator.upstream.source import Modules, classes, name_of

_CHAT_MARKS = ("-Chat", "-Distill", "-Instruct", "-Thinking")
_MEDIA = ("image", "video", "audio")


def table(release: str, llamafactory: Modules) -> dict[str, Any]:
    """The whole of templates.json from one opened release."""
    template = llamafactory("llamafactory.data.template")
    constants = llamafactory("llamafactory.extras.constants")
    return {
        "source": {"llamafactory": release},
        "templates": dict(sorted(_templates(template))),
        "models": _models(constants),
        "names": {
            "tool_formats": _keys(llamafactory("llamafactory.data.tool_utils"), "TOOLS"),
            "file_types": constant(constants, "FILEEXT2TYPE"),
        },
    }


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
    registered = {hub: place for given in calls(tree, "register_model_group") for hub, place in _group(given)}
    for hub, (template, kind) in sorted(registered.items()):
        families.setdefault(template, {}).setdefault(kind, []).append(hub)
    return dict(sorted(families.items()))


def _group(given: dict[str, ast.expr]) -> Iterator[tuple[str, tuple[str, str]]]:
    template = ast.literal_eval(given["template"]) if "template" in given else ""
    multimodal = "multimodal" in given and ast.literal_eval(given["multimodal"])
    assert isinstance(given["models"], ast.Dict)
    for key, hubs in zip(given["models"].keys, given["models"].values, strict=True):
        assert isinstance(hubs, ast.Dict)
        chat = key is not None and any(mark in ast.literal_eval(key) for mark in _CHAT_MARKS)
        kind = "multimodal" if multimodal else "chat" if chat else "base"
        for hub in hubs.values:
            yield ast.literal_eval(hub), (template, kind)


def calls(tree: ast.Module, function: str) -> Iterator[dict[str, ast.expr]]:
    """Keyword arguments of each call of `function` at the top level of a module."""
    calls = (statement.value for statement in tree.body if isinstance(statement, ast.Expr))
    for call in calls:
        if isinstance(call, ast.Call) and name_of(call.func) == function:
            yield {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


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


def _assigned(tree: ast.Module, name: str) -> ast.expr:
    return next(
        statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and name_of(statement.targets[0]) == name
    )


def constant(tree: ast.Module, name: str) -> Any:
    """Value of a literal assigned at the top level of a module."""
    return ast.literal_eval(_assigned(tree, name))


def _keys(tree: ast.Module, name: str) -> list[str]:
    value = _assigned(tree, name)
    assert isinstance(value, ast.Dict)
    return [ast.literal_eval(key) for key in value.keys if key]
