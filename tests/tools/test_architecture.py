"""Who may import whom: the map of ARCHITECTURE.md. A module or an import that is not on it is an error."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter

import pytest
import yaml
from support.every import every
from support.source import PACKAGE, modules, nodes, text

MAP = (PACKAGE.parent / "ARCHITECTURE.md").read_text("utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """The table of the map below this line: first column -> words of the last, without their marks."""
    rows = MAP.partition(heading)[2].partition("\n| ")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]
    return {first.strip("`"): re.findall(r"`([^`]+)`", last) for first, *_, last in cells}


# Rooms in the order of the way of a recipe: each may import those that its row names, all of which stand above it, and
# the package's own version. Lazy imports count like the others. `python -m validator` is a door to the program.
ROOMS = {"__init__": [], **table("## The rooms"), "__main__": ["cli", "commands", "entry"]}
ANSWERS = {name.strip("| `"): answers for name, answers, _ in (line.split(" | ") for line in MAP.splitlines()
           if line.startswith("| `") and line.count(" | ") == 2)}  # fmt: skip
# What is imported from outside the standard library, and where alone; and the stubs that mypy alone reads.
OUTSIDE = {**table("Outside the standard library"), "_typeshed": ["output/json_output"]}
# The training packages, which these rooms work with.
TRAINING = {
    "simulation": {
        "llamafactory", "transformers", "torch", "accelerate", "bitsandbytes", "liger_kernel", "triton",
        "trl",
    },
}  # fmt: skip


def room(module: str) -> str:
    return module.partition("/")[0]


@cache
def imports(module: str) -> tuple[str, ...]:
    """Dotted names of what the module imports, wherever the statement stands."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ["validator", *module.split("/")][: -node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


@cache
def ours(name: str) -> str:
    """`validator.physics.workload.Precision` -> `physics/workload`; a name of the package itself -> `__init__`."""
    parts = name.split(".")[1:]
    while parts:
        path = PACKAGE.joinpath(*parts)
        if path.with_suffix(".py").is_file():
            return "/".join(parts)
        if path.is_dir():
            return "/".join([*parts, "__init__"])
        parts.pop()
    return "__init__"


@every(modules())
def test_imports_only_rooms_that_its_row_names(module: str) -> None:
    assert room(module) in ROOMS, f"{room(module)} is no room of the map; add it to ARCHITECTURE.md"
    for name in imports(module):
        top = name.split(".")[0]
        if top == "validator":
            wanted = room(ours(name))
            assert wanted in {room(module), "__init__", *ROOMS[room(module)]}, f"{module} imports {name}"
        elif top not in sys.stdlib_module_names and room(module) in TRAINING:
            assert top in TRAINING[room(module)], f"{module} imports {name}"
        elif top not in sys.stdlib_module_names:
            assert {module, room(module)} & set(OUTSIDE.get(top, [])), f"{module} imports {name}"


def test_the_map_says_what_the_front_doors_say() -> None:
    for name, answers in ANSWERS.items():
        door = f"{name}/__init__" if f"{name}/__init__" in modules() else name
        said = " ".join((ast.get_docstring(ast.parse(text(door))) or "").split())
        assert re.match(r".+?[.?](?=\s|$)", said)[0] == answers, name  # type: ignore[index]


def test_no_room_imports_one_below_it() -> None:
    order = list(ROOMS)
    for number, name in enumerate(order):
        below = {*order[number:]} & {*ROOMS[name]}
        assert not below, f"{name} may import {below}, which stand below it"


def test_no_module_imports_itself_by_a_circle() -> None:
    """Imports for type checkers alone count too: two modules that know each other's types are one."""
    graph = {module: {ours(name) for name in imports(module) if name.startswith("validator.")} for module in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_map_holds_nothing_that_is_not_there() -> None:
    assert {*ROOMS} == {room(module) for module in modules()}
    used = {(room(m), room(ours(n))) for m in modules() for n in imports(m) if n.split(".")[0] == "validator"}
    assert {(name, word) for name, words in ROOMS.items() for word in words} <= used
    assert {module for words in OUTSIDE.values() for module in words} <= {*modules(), *ROOMS}


@cache
def words(module: str) -> set[str]:
    """Names and texts of the code; docstrings do not count."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(n.body[0].value) for n in nodes(module)
            if isinstance(n, documented) and n.body and isinstance(n.body[0], ast.Expr)}  # fmt: skip
    found = {n.value for n in nodes(module) if isinstance(n, ast.Constant) and isinstance(n.value, str)
             and id(n) not in docs}  # fmt: skip
    return found | {n.id for n in nodes(module) if isinstance(n, ast.Name)}


def inside(folder: str) -> list[str]:
    return [module for module in modules() if module.startswith(folder)]


KEYS = {"per_device_train_batch_size", "cutoff_len", "finetuning_type", "deepspeed", "quantization_bit", "lora_rank"}


@every([*inside("recipe/"), *inside("output/"), *inside("physics/")])
def test_knows_no_key_of_a_recipe(module: str) -> None:
    # Who shards is a fact of physics: DeepSpeed and FSDP do it differently.
    assert not words(module) & (KEYS - {"deepspeed"} if module.startswith("physics/") else KEYS)


@every(sorted({*inside("physics/")} - {"physics/uncertainty"}))  # which tells users what was measured on which device
def test_physics_knows_no_product(module: str) -> None:
    assert not [word for word in words(module) if re.search(r"(?i)nvidia|ascend|a100|h100|v100|910b|qwen|llama", word)]


@every(inside("rules/"))
def test_rules_know_no_line_and_do_not_print(module: str) -> None:
    reached = {node.attr for node in nodes(module) if isinstance(node, ast.Attribute)}
    assert not reached & {"position", "line", "column"}
    assert "print" not in words(module)


@every(inside("output/"))
def test_output_knows_no_rule(module: str) -> None:
    assert not [word for word in words(module) if re.fullmatch(r"(LOA|SCH|PTH|FIT|DEV|PAR|TRA|DAT|CUR)\d*", word)]


# Of pathlib: for some paths they raise, or did before Python 3.14.
LOOKS = {"exists", "is_file", "is_dir", "iterdir", "glob", "rglob", "expanduser"}
SOMEBODY = ("knowledge/", "run/", "rules/", "launch/", "submit/")
# Written for nodes without this package; the kernel's files and logs that runs write.
ALONE = {"launch/trainer_log"}


@every(sorted({name for room in SOMEBODY for name in inside(room)} - ALONE))
def test_what_lies_at_a_path_is_asked_in_one_place(module: str) -> None:
    """recipe/safe_read, which has an answer for every path that a recipe may hold."""
    assert not LOOKS & {node.attr for node in nodes(module) if isinstance(node, ast.Attribute)}


OPENS = {"open", "read_text", "read_bytes", "resolve"}  # which raises an error for links in a circle
# What they open is no file that a user names: the kernel's files, those of drivers and packages, this package's own, a
# folder to lock, a member of an archive. Modules for nodes, where this package is not, look for themselves.
OPENERS = {
    "recipe/safe_read", "recipe/atomic_write", "run/data_streams", "rows/reading_limits",
    "launch/local_launch", "simulation/session", "knowledge/tables", "submit/node_script", "catalogue/recipe_copy",
    "entry", "processes",
}  # fmt: skip


@every(sorted({name for name in modules() if room(name) not in ("machine", "doctor", "on_node")} - OPENERS))
def test_files_that_users_name_are_opened_in_one_place(module: str) -> None:
    """recipe/safe_read, which waits for no pipe, reads no device, and has a limit."""
    called = [node.func for node in nodes(module) if isinstance(node, ast.Call)]
    assert not [
        ast.unparse(name)
        for name in called
        if (isinstance(name, ast.Name) and name.id == "open")
        or (isinstance(name, ast.Attribute) and name.attr in OPENS and ast.unparse(name.value) != "safe_read")
    ]


def is_formula(value: str) -> bool:
    """Whether a text computes something: a product, a sum or a power of names and numbers."""
    try:
        tree = ast.parse(value, mode="eval")
    except (SyntaxError, ValueError):
        return False
    computes = ast.Mult | ast.Add | ast.Pow
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, computes) for node in ast.walk(tree))


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2 * hidden", True), ("layers*2+1", True), ("8xa100-80g", False), ("q_proj", False), ("a/b-c", False)],
)
def test_a_formula_is_told_from_a_name(value: str, expected: bool) -> None:
    assert is_formula(value) is expected


def texts(value: object) -> Iterator[str]:
    """Yield every text in a table, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for each in pair for text in texts(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in texts(each))


@every(sorted(path.name for path in (PACKAGE / "data").iterdir()))
def test_data_holds_no_formula(name: str) -> None:
    content = (PACKAGE / "data" / name).read_text("utf-8")
    assert name.endswith((".yaml", ".json"))
    table = json.loads(content) if name.endswith(".json") else yaml.load(content, yaml.CSafeLoader)
    assert [value for value in texts(table) if is_formula(value)] == []


def test_the_folder_named_like_deepspeed_is_no_package() -> None:
    assert not list((PACKAGE.parent / "deepspeed").rglob("*.py"))


def test_modules_are_of_a_size_to_read() -> None:
    """A module is a topic; one of more lines holds two."""
    assert {module: size for module in modules() if (size := len(text(module).splitlines())) > 450} == {}
