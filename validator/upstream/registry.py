"""registry.json: the groups of models that a LLaMA-Factory release registers."""

import ast
from typing import Any

from validator.upstream.source import Modules
from validator.upstream.templates import calls


def table(release: str, llamafactory: Modules) -> dict[str, Any]:
    """The whole of registry.json from one opened release."""
    given = calls(llamafactory("llamafactory.extras.constants"), "register_model_group")
    return {"source": {"llamafactory": release}, "groups": dict(_group(each) for each in given)}


def _group(given: dict[str, ast.expr]) -> tuple[str, list[str]]:
    """The group's first registered name, and all places its models are published at, each once."""
    assert isinstance(given["models"], ast.Dict)
    first, *_ = (ast.literal_eval(key) for key in given["models"].keys if key)
    places = (place for hubs in given["models"].values if isinstance(hubs, ast.Dict) for place in hubs.values)
    return first, list(dict.fromkeys(ast.literal_eval(place) for place in places))
