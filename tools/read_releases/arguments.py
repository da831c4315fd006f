"""arguments.json: every key `llamafactory-cli train` accepts, from the dataclasses of a LLaMA-Factory release."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .packages import ModuleTrees, classes, members, name_of
from .releases import OLDEST, TRANSFORMERS, pair
from .static_eval import Enums, Kind, parse_annotation

Entry = dict[str, Any]

_GROUPS = {
    "model": "ModelArguments",
    "data": "DataArguments",
    "training": "TrainingArguments",
    "finetuning": "FinetuningArguments",
    "generating": "GeneratingArguments",
}
# The modules whose classes define the keys of train.
READ = {
    "transformers": ("training_args", "training_args_seq2seq", "trainer_utils", "debug_utils"),
    "llamafactory": ("extras.constants", *(f"hparams.{group}_args" for group in _GROUPS)),
}
# (class, base as written) -> base meant. LLaMA-Factory chooses its base at import: without USE_MCA=1 it is this one.
# Both packages have a class called TrainingArguments.
_BASES = {
    ("TrainingArguments", "BaseTrainingArguments"): "Seq2SeqTrainingArguments",
    ("Seq2SeqTrainingArguments", "TrainingArguments"): "transformers.TrainingArguments",
}
_MISSING = object()


@dataclass(frozen=True)
class Dataclasses:
    """Dataclasses and enumerations of one pair of releases, by class name."""

    nodes: dict[str, ast.ClassDef]
    enums: Enums
    log_levels: tuple[str, ...]


def collect(llamafactory: ModuleTrees, transformers: ModuleTrees) -> Dataclasses:
    """Gather the classes that define the keys of train."""
    nodes: dict[str, ast.ClassDef] = {}
    for module in READ["transformers"]:
        nodes |= classes(transformers(f"transformers.{module}"))
    nodes["transformers.TrainingArguments"] = nodes.pop("TrainingArguments")
    for module in READ["llamafactory"]:
        nodes |= classes(llamafactory(f"llamafactory.{module}"))
    enums = {name: members(node) for name, node in nodes.items() if any("Enum" in name_of(base) for base in node.bases)}
    return Dataclasses(nodes, enums, _log_levels(transformers))


def entries(sources: Dataclasses) -> dict[str, Entry]:
    """Return every key of train with its entry, in alphabetical order."""
    every = {
        name: _entry(field, owner, group, sources)
        for group, root in _GROUPS.items()
        for name, (field, owner) in _fields(root, sources).items()
        if _keyword(field, "init") is None
    }
    return dict(sorted(every.items()))


def merge(by_pair: dict[str, dict[str, Entry]]) -> dict[str, Any]:
    """Fold the entries of all pairs, newest first, into one table and its older differences."""
    newest: dict[str, Entry] = {}
    for table in by_pair.values():
        newest = table | newest
    changes = {
        name: {key: _difference(newest[key], entry) for key, entry in table.items() if entry != newest[key]}
        for name, table in by_pair.items()
    }
    return {
        "releases": {
            release: {"transformers": list(versions), "oldest": OLDEST[release]}
            for release, versions in TRANSFORMERS.items()
        },
        "arguments": {key: entry | _presence(key, by_pair) for key, entry in sorted(newest.items())},
        "changes": {name: change for name, change in changes.items() if change},
    }


def _difference(newest: Entry, older: Entry) -> Entry:
    return {field: older.get(field) for field in sorted(newest | older) if newest.get(field) != older.get(field)}


def _presence(key: str, by_pair: dict[str, dict[str, Entry]]) -> Entry:
    having = [name for name, table in by_pair.items() if key in table]
    return {} if len(having) == len(by_pair) else {"in": having}


def elsewhere(llamafactory: ModuleTrees, accepted: set[str]) -> dict[str, str]:
    """Keys train refuses although another command of the same release takes them."""
    keys: dict[str, str] = {}
    for command, module in (
        *(("v1", f"v1.config.{name}_args") for name in ("data", "model", "sample", "training")),
        ("eval", "hparams.evaluation_args"),
    ):
        for node in classes(llamafactory(f"llamafactory.{module}")).values():
            keys |= {name: command for name, _ in _own_fields(node)}
    return {name: command for name, command in sorted(keys.items()) if name not in accepted}


def _own_fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement


def _fields(root: str, sources: Dataclasses) -> dict[str, tuple[ast.AnnAssign, ast.ClassDef]]:
    """Fields of a dataclass with those it inherits: as in `dataclasses`, the nearest definition wins."""
    node = sources.nodes[root]
    fields: dict[str, tuple[ast.AnnAssign, ast.ClassDef]] = {}
    for base in reversed(node.bases):
        name = _BASES.get((root, name_of(base)), name_of(base))
        fields |= _fields(name, sources) if name in sources.nodes else {}
    return fields | {name: (statement, node) for name, statement in _own_fields(node)}


def _entry(field: ast.AnnAssign, owner: ast.ClassDef, group: str, sources: Dataclasses) -> Entry:
    name = name_of(field.target)
    kind = parse_annotation(field.annotation, sources.enums)
    default = _default(field, owner, sources)
    entry: Entry = {
        "type": kind.union,
        "optional": "None" in kind.types or default is None,
        "default": default,
        "choices": _choices(field, kind, sources),
        "items": list(kind.items) or None,
        "group": group,
        "command": _command(name),
    }
    if default is _MISSING:
        del entry["default"]
    return {key: value for key, value in entry.items() if value is not None or key in ("default", "choices")}


def _command(name: str) -> str | None:
    if name.startswith("export_"):
        return "export"
    return "chat" if name.startswith(("infer_", "vllm_", "sglang_")) else None


def _keyword(field: ast.AnnAssign, name: str) -> ast.expr | None:
    """Argument `name` of the `field(...)` call that defines a dataclass field."""
    if not isinstance(field.value, ast.Call):
        return None
    return next((keyword.value for keyword in field.value.keywords if keyword.arg == name), None)


def _default(field: ast.AnnAssign, owner: ast.ClassDef, sources: Dataclasses) -> Any:
    if not isinstance(field.value, ast.Call):
        return _MISSING if field.value is None else _value(field.value, owner, sources)
    if (default := _keyword(field, "default")) is not None:
        return _value(default, owner, sources)
    factory = _keyword(field, "default_factory")
    if isinstance(factory, ast.Lambda):
        return _value(factory.body, owner, sources)
    return _MISSING if factory is None else {"list": [], "dict": {}}[name_of(factory)]


def _value(node: ast.expr, owner: ast.ClassDef, sources: Dataclasses) -> Any:
    """Value of a default: a constant, a product, a member of an enumeration or a name of the class body."""
    if isinstance(node, ast.Attribute):
        return sources.enums[name_of(node.value)][node.attr]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _value(node.left, owner, sources) * _value(node.right, owner, sources)
    if isinstance(node, ast.Name):
        # several assignments depend on the installed torch; the last one is that of the newest
        return [
            _value(statement.value, owner, sources)
            for statement in ast.walk(owner)
            if isinstance(statement, ast.Assign) and name_of(statement.targets[0]) == node.id
        ][-1]
    return ast.literal_eval(node)


def _choices(field: ast.AnnAssign, kind: Kind, sources: Dataclasses) -> list[str] | None:
    metadata = _keyword(field, "metadata")
    if isinstance(metadata, ast.Dict):
        for key, value in zip(metadata.keys, metadata.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "choices":
                return list(sources.log_levels) if isinstance(value, ast.Call) else ast.literal_eval(value)
    return list(kind.choices) or None


def _log_levels(transformers: ModuleTrees) -> tuple[str, ...]:
    """`log_level` lists its choices by a call in training_args: the names of the logging levels and `passive`."""
    for statement in transformers("transformers.utils.logging").body:
        if isinstance(statement, ast.Assign) and name_of(statement.targets[0]) == "log_levels":
            assert isinstance(statement.value, ast.Dict)
            return (*(str(key.value) for key in statement.value.keys if isinstance(key, ast.Constant)), "passive")
    raise LookupError("transformers.utils.logging.log_levels")


def table(llamafactory: dict[str, ModuleTrees], transformers: dict[str, ModuleTrees]) -> dict[str, Any]:
    """The whole of arguments.json from opened packages by release."""
    by_pair = {
        pair(release, version): entries(collect(llamafactory[release], transformers[version]))
        for release, versions in TRANSFORMERS.items()
        for version in versions
    }
    newest = next(iter(llamafactory))
    accepted = {key for keys in by_pair.values() for key in keys}
    return merge(by_pair) | {"elsewhere": elsewhere(llamafactory[newest], accepted)}
