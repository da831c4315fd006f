"""Who may import whom: the map of ARCHITECTURE.md. A module or an import that is not on it is an error."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.every import every

PACKAGE = Path(__file__).parent.parent / "validator"

MAP = (PACKAGE.parent / "ARCHITECTURE.md").read_text("utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """The table of the map below this line: first column -> words of the last, without their marks."""
    rows = MAP.partition(heading)[2].partition("\n| ")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]
    return {first.strip("`"): re.findall(r"`([^`]+)`", last) for first, *_, last in cells}


# Rooms in the order of the way of a recipe: each may import those that its row names, all of which stand above it, and
# the package's own version. Lazy imports count like the others. `python -m validator` is a door to the program.
ROOMS = {"__init__": [], **table("## The rooms"), "__main__": ["cli", "commands", "edge"]}
# What is imported from outside the standard library, and where alone; and the stubs that mypy alone reads.
OUTSIDE = {**table("Outside the standard library"), "_typeshed": ["show/structure"]}
# The training packages, which these rooms work with.
TRAINING = {
    "upstream": {
        "llamafactory", "transformers", "torch", "deepspeed", "yaml", "packaging", "huggingface_hub", "omegaconf",
    },
    "simulate": {
        "llamafactory", "transformers", "torch", "torchvision", "accelerate", "bitsandbytes", "liger_kernel", "triton",
        "trl",
    },
}  # fmt: skip


def modules() -> list[str]:
    """Every module as a path without .py; a package stands for its folder."""
    found = (path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))
    return sorted(found)


def room(module: str) -> str:
    return module.partition("/")[0]


def imports(module: str) -> Iterator[str]:
    """Dotted names of what the module imports, wherever the statement stands."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ["validator", *module.split("/")][: -node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def ours(name: str) -> str:
    """`validator.memory.workload.Precision` -> `memory/workload`; a name of the package itself -> `__init__`."""
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


def words(module: str) -> set[str]:
    """Names and texts of the code; docstrings do not count."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(n.body[0].value) for n in ast.walk(tree)
            if isinstance(n, documented) and n.body and isinstance(n.body[0], ast.Expr)}  # fmt: skip
    found = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
             and id(n) not in docs}  # fmt: skip
    return found | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def inside(folder: str) -> list[str]:
    return [module for module in modules() if module.startswith(folder)]


KEYS = {"per_device_train_batch_size", "cutoff_len", "finetuning_type", "deepspeed", "quantization_bit", "lora_rank"}


@every(["train/launch", *inside("read/"), *inside("show/"), *inside("memory/")])
def test_knows_no_key_of_a_recipe(module: str) -> None:
    assert not words(module) & KEYS


@every(inside("memory/"))
def test_physics_knows_no_product(module: str) -> None:
    assert not [word for word in words(module) if re.search(r"(?i)nvidia|ascend|a100|h100|v100|910b|qwen|llama", word)]


@every(inside("rules/"))
def test_rules_know_no_line_and_do_not_print(module: str) -> None:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    reached = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not reached & {"position", "line", "column"}
    assert "print" not in words(module)


@pytest.mark.parametrize("module", inside("show/"))
def test_output_knows_no_rule(module: str) -> None:
    assert not [word for word in words(module) if re.fullmatch(r"(LOA|SCH|PTH|FIT|DEV|PAR|TRA|DAT|CUR)\d*", word)]


# Of pathlib: for some paths they raise, or did before Python 3.14.
LOOKS = {"exists", "is_file", "is_dir", "iterdir", "glob", "rglob", "expanduser"}
SOMEBODY = ("tables/", "job/", "rules/", "train/", "submit/")
# Written for nodes without this package; our own files.
ALONE = {"tables/whole", "tables/checkout"}


@every(sorted({name for room in SOMEBODY for name in inside(room)} - ALONE))
def test_what_lies_at_a_path_is_asked_in_one_place(module: str) -> None:
    """read/disk, which has an answer for every path that a recipe may hold."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    assert not LOOKS & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_data_holds_no_formula() -> None:
    suffixes = {path.suffix for path in (PACKAGE / "data").iterdir()}
    assert suffixes == {".yaml", ".json"}


def test_the_folder_named_like_deepspeed_is_no_package() -> None:
    assert not list((PACKAGE.parent / "deepspeed").rglob("*.py"))


def test_modules_are_small() -> None:
    """The median that the design asks for; a large module is a room with two jobs."""
    sizes = sorted(len((PACKAGE / f"{m}.py").read_text("utf-8").splitlines()) for m in modules())
    assert sizes[len(sizes) // 2] < 130
