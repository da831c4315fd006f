"""Trees as text of each language, raw text among them as it is."""

from __future__ import annotations

from json.encoder import encode_basestring as _string
from typing import Any

from fuzz.odd import Raw

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./")


def text_json(value: Any) -> str:
    """JSON, with raw text where the tree has it, and NaN and Infinity as Python writes them."""
    if isinstance(value, str):
        return str(value) if isinstance(value, Raw) else _string(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_string(str(key))}: {text_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text_json, value)) + "]"
    return _NAMES.get(str(value)) or (str(value) if isinstance(value, (int, float)) else _string(str(value)))


_NAMES = {"None": "null", "True": "true", "False": "false", "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def text_lines(value: Any) -> str:
    """JSON with one value of a list on each line."""
    return "".join(f"{text_json(each)}\n" for each in (value if isinstance(value, list) else [value]))


def text_yaml(value: Any) -> str:
    """YAML: each key of a mapping on a line of its own, what it holds on the same line, a mapping at times below."""
    if not isinstance(value, dict):
        return f"{_flow(value)}\n"
    return "".join(_entry(key, each) for key, each in value.items())


def _entry(key: object, value: Any) -> str:
    if isinstance(value, dict) and value and len(str(key)) % 2:
        return f"{_flow(key)}:\n" + "".join(f"  {_flow(k)}: {_flow(v)}\n" for k, v in value.items())
    return f"{_flow(key)}: {_flow(value)}\n"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(str(value), str(value))
    if isinstance(value, str) and (isinstance(value, Raw) or (value and _PLAIN.issuperset(value))):
        return str(value)
    return text_json(value) if isinstance(value, (str, int, type(None))) else str(value)


def text_csv(value: Any) -> str:
    """Comma-separated values of a list of mappings, with the columns of all."""
    rows = [row for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name, "")) for name in names] for row in rows)]
    return "".join(",".join(map(_quoted, line)) + "\n" for line in lines)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else text_json(value)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n\r') else cell


def encoded(text: str) -> bytes:
    """UTF-8, half a surrogate pair included."""
    return text.encode("utf-8", "surrogatepass")
