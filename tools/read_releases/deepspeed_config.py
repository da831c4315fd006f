"""deepspeed.json: what DeepSpeed reads of its JSON configuration, from the package source."""

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from .packages import ModuleTrees, classes, name_of
from .static_eval import Kind, Scope, keys_read, parse_annotation

_CONFIG = "deepspeed.runtime.config"
_MODEL = "DeepSpeedConfigModel"
# key -> module and pydantic class of its block; blocks inside these are found through their annotations
_BLOCKS = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "bfloat16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "comms_logger": ("deepspeed.comm.config", "CommsLoggerConfig"),
    "tensorboard": ("deepspeed.monitor.config", "TensorBoardConfig"),
    "wandb": ("deepspeed.monitor.config", "WandbConfig"),
    "csv_monitor": ("deepspeed.monitor.config", "CSVConfig"),
    "comet": ("deepspeed.monitor.config", "CometConfig"),
    "hybrid_engine": (_CONFIG, "HybridEngineConfig"),
    "compile": ("deepspeed.compile.config", "CompileConfig"),
    "tensor_parallel": ("deepspeed.runtime.tensor_parallel.config", "TPTrainingConfig"),
}
# key -> module, function or method, and the variable that holds the block: read key by key, the rest is ignored
_LOOSE = {
    "activation_checkpointing": (
        "deepspeed.runtime.activation_checkpointing.config",
        "_initialize",
        "act_chkpt_config_dict",
    ),
    "flops_profiler": ("deepspeed.profiling.config", "_initialize", "flops_profiler_dict"),
    "aio": ("deepspeed.runtime.swap_tensor.aio_config", "get_aio_config", "aio_dict"),
}
# top-level keys whose default says nothing about their type
_TYPES = {
    "train_batch_size": "int",
    "train_micro_batch_size_per_gpu": "int",
    "gradient_accumulation_steps": "int",
    "steps_per_print": "int",
    "vocabulary_size": "int",
    "communication_data_type": "str",
    "optimizer": "dict",
    "scheduler": "dict",
    "zero_optimization": "bool|dict",
}
# words of pydantic's Field -> words of the table
_LIMITS = {"ge": "minimum", "le": "maximum", "alias": "alias"}


def table(release: str, deepspeed: ModuleTrees, older: Mapping[str, ModuleTrees] | None = None) -> dict[str, Any]:
    """The whole of deepspeed.json from one opened release, and from older ones, newest first, when its keys came."""
    scope = Scope(deepspeed, "deepspeed")
    blocks = {path: block for key in _BLOCKS for path, block in _blocks(scope, key, *_BLOCKS[key])}
    since = _since(release, blocks, older or {})
    blocks |= {key: _loose(scope, *place) for key, place in _LOOSE.items()}
    types = dict.fromkeys(blocks, "dict") | _TYPES
    schedulers = [*_schedulers(scope)]
    top = {key: _plain(default) for key, default in _top(scope)}
    return {
        "source": {"deepspeed": release},
        "keys": {key: top[key] | ({"type": types[key]} if key in types else {}) for key in sorted(top)},
        "blocks": blocks,
        "schedulers": {name: taken for name, taken, _ in schedulers},
        "needed": {name: needed for name, _, needed in schedulers if needed},
        "names": {"optimizers": scope.value(_CONFIG, ast.Name("DEEPSPEED_OPTIMIZERS"))},
        "since": since,
    }


def _since(newest: str, blocks: dict[str, Any], older: Mapping[str, ModuleTrees]) -> dict[str, str]:
    """Dotted path of each key that an older release refuses, and the first release that takes it."""
    since: dict[str, str] = {}
    later = newest
    for release, trees in older.items():
        before: dict[str, Any] = {}
        for key, place in _BLOCKS.items():
            with suppress(KeyError):  # a class that came later: the release ignores the block
                before |= dict(_blocks(Scope(trees, "deepspeed"), key, *place))
        for path in blocks.keys() & before.keys():
            lacking = (name for name in blocks[path]["fields"] if name not in before[path]["fields"])
            for key in (f"{path}.{name}" for name in lacking):
                since.setdefault(key, later)
        later = release
    return dict(sorted(since.items()))


def _plain(default: Any) -> dict[str, Any]:
    """Entry of a key of which only the default is known; null says nothing."""
    return {} if default is None else {"type": type(default).__name__, "default": default}


def _top(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Keys that DeepSpeedConfig looks up in the whole configuration, directly or in the functions it hands it to."""
    config = classes(scope.tree(_CONFIG))["DeepSpeedConfig"]
    for method in config.body:
        for variable in ("config", "param_dict", "_param_dict"):
            yield from keys_read(scope, _CONFIG, method, variable)


def _loose(scope: Scope, module: str, name: str, variable: str) -> dict[str, Any]:
    functions = (node for node in ast.walk(scope.tree(module)) if isinstance(node, ast.FunctionDef))
    function = next(node for node in functions if node.name == name)
    fields = {field: _plain(default) for field, default in keys_read(scope, module, function, variable)}
    return {"unknown": "ignored", "fields": fields}


def _blocks(scope: Scope, path: str, module: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A pydantic block and the blocks inside it, by dotted path. Every one refuses unknown keys."""
    node = classes(scope.tree(module))[name]
    fields: dict[str, dict[str, Any]] = {}
    inner: list[tuple[str, str, str]] = []
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign):
            continue
        field = name_of(statement.target)
        block = _model_of(scope, module, statement.annotation)
        fields[field] = _field(scope, module, statement) | ({"type": "dict"} if block else {})
        if block:
            inner.append((f"{path}.{field}", *block))
    yield path, {"unknown": "error", "fields": fields}
    for block_path, home, block_name in inner:
        yield from _blocks(scope, block_path, home, block_name)


def _model_of(scope: Scope, module: str, annotation: ast.expr) -> tuple[str, str] | None:
    """Module and name of the configuration class an annotation names, if it names one."""
    for part in ast.walk(annotation):
        home, node = (isinstance(part, ast.Name) and scope.find(module, part.id)) or ("", None)
        if isinstance(node, ast.ClassDef) and _MODEL in [name_of(base) for base in node.bases]:
            return home, node.name
    return None


def _field(scope: Scope, module: str, statement: ast.AnnAssign) -> dict[str, Any]:
    kind, choices = _kind(scope, module, statement.annotation)
    call = statement.value if isinstance(statement.value, ast.Call) else None
    default = call.args[0] if call and call.args else statement.value
    given = {keyword.arg: keyword.value for keyword in call.keywords} if call else {}
    extra = ast.unparse(given["json_schema_extra"]) if "json_schema_extra" in given else ""
    entry = {
        "type": kind.union,
        "optional": "None" in kind.types or None,
        "default": None if default is None else scope.value(module, default),
        "choices": choices,
        **{field: scope.value(module, given[word]) for word, field in _LIMITS.items() if word in given},
        "deprecated": "'deprecated': True" in extra or None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _kind(scope: Scope, module: str, annotation: ast.expr) -> tuple[Kind, list[Any] | None]:
    """Type of a field, and its values where it is an enumeration."""
    _, node = scope.find(module, name_of(annotation)) or ("", None)
    if not isinstance(node, ast.ClassDef) or "Enum" not in [name_of(base) for base in node.bases]:
        return parse_annotation(annotation, {}), None
    values = [statement.value for statement in node.body if isinstance(statement, ast.Assign)]
    return Kind(frozenset({name_of(node.bases[0])})), list(dict.fromkeys(ast.literal_eval(value) for value in values))


def _schedulers(scope: Scope) -> Iterator[tuple[str, list[str], list[str]]]:
    """Scheduler classes, the parameters each takes besides the optimizer, and those of them without a default."""
    module = "deepspeed.runtime.lr_schedules"
    nodes = classes(scope.tree(module))
    for name in scope.value(module, ast.Name("VALID_LR_SCHEDULES")):
        start = next(part for part in nodes[name].body if isinstance(part, ast.FunctionDef) and part.name == "__init__")
        names = [argument.arg for argument in start.args.args]
        yield name, names[2:], names[2 : len(names) - len(start.args.defaults)]
