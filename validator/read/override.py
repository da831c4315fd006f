"""LLaMA-Factory's own `KEY=VALUE` overrides, merged as OmegaConf merges them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from validator.diagnostic import RecipeError
from validator.read import dialect, limits, refusals
from validator.read.dialect import Node
from validator.read.recipe import Document, readable
from validator.read.text import clip

_OVERRIDE = r"(?s)([^\W\d][\w-]*(?:\.[\w-]+)*)=(.*)"
_MAX_NAMES = 20
_PLAIN = r"[\w./+-]+"


def overridden(path: str, overrides: Sequence[str] = ()) -> Document:
    """The recipe in a file after the overrides. Raises RecipeError where it cannot be read, or holds no key."""
    if path.endswith(".json"):
        raise RecipeError(f"`{path}` is a JSON file; give the recipe (.yaml) that uses it")
    document = readable(path)
    if not document.values:
        raise RecipeError(f"{path}:1:1: holds no key; a recipe needs at least a model [LOA006]")
    return with_overrides(document, overrides)


def with_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document after the overrides. Raises RecipeError on a malformed one."""
    if not overrides:
        return document
    values = dict(document.values)
    for text in overrides:
        match = re.fullmatch(_OVERRIDE, text)
        if not match:
            raise RecipeError(f"override `{clip(text)}` is not of the form KEY=VALUE, such as learning_rate=1e-4")
        names = match[1].split(".")
        if len(names) > _MAX_NAMES:
            raise RecipeError(f"override `{clip(text)}` names {len(names):,} keys, {_MAX_NAMES} at most")
        try:
            limits.extent(match[2])
            _assign(values, names, dialect.compose(match[2], _judge)[1])
        except ValueError:
            raise RecipeError(f"override `{clip(text)}`: the value is not valid YAML; quote it") from None
    keys = {text.partition("=")[0].split(".")[0] for text in overrides}
    return replace(document, values=values, overridden=document.overridden | keys)


def headed(document: Document, **fields: Any) -> Document:
    """The document as if its header block said this; a field that is None stays as it is written."""
    given = {name: value for name, value in fields.items() if value is not None}
    return replace(document, header={**document.header, **given}) if given else document


def assignment(key: str, path: str) -> str:
    """The override that sets a key to a path, which is read as YAML."""
    return f"{key}={path if re.fullmatch(_PLAIN, path) else json.dumps(path, ensure_ascii=False)}"


def _judge(root: Node) -> bool:
    """Always true. Raises ValueError where OmegaConf would refuse the value."""
    limits.expansion(root)
    for refusal in refusals.refusals(root):
        raise ValueError(refusal.message)
    return True


def _assign(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.get(name)
        if isinstance(inner, list):
            raise RecipeError(f"override of `{'.'.join(path)}`: `{name}` is a list; give it whole, as {name}=[…]")
        values[name] = dict(inner) if isinstance(inner, dict) else {}
        values = values[name]
    values[path[-1]] = _merged(values.get(path[-1]), value)


def _merged(old: Any, new: Any) -> Any:
    """Mappings are merged key by key, everything else is replaced; a list and a mapping do not go together."""
    if {type(old), type(new)} == {list, dict}:
        raise RecipeError("an override gives a list for a mapping, or a mapping for a list; give what the recipe has")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
