"""Who may import whom: the table of the design. A module or an import that is not listed here is an error."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "validator"

# module: what it may import of ours; what from outside the standard library. Lazy imports count like the others.
LEAVES = "diagnostic memory"
ALLOWED: dict[str, tuple[str, str]] = {
    "__init__": ("", ""),
    "__main__": ("cli", ""),
    "diagnostic": ("", ""),
    "memory/*": ("memory/*", ""),
    "chart": ("", ""),
    "launch": ("diagnostic", ""),
    "upstream/*": ("upstream/*", "llamafactory transformers torch deepspeed yaml packaging huggingface_hub omegaconf"),
    "loader": ("diagnostic", "yaml"),
    "report": ("diagnostic", ""),
    "architecture": (LEAVES, ""),
    "catalog": (f"loader architecture {LEAVES}", ""),
    "release": ("catalog diagnostic", ""),
    "schema": ("diagnostic loader catalog release", "cerberus"),
    "zero": (f"loader {LEAVES}", ""),
    "datasets": ("catalog loader diagnostic", ""),
    "workload": ("catalog zero memory job", ""),
    "job": (f"catalog datasets loader workload zero {LEAVES}", ""),
    "changes": ("job catalog check diagnostic", ""),
    "rules/rule": ("job diagnostic", ""),
    "rules/fit": (f"rules/rule job changes {LEAVES}", ""),
    "rules/*": (f"rules/rule job datasets catalog loader release workload zero {LEAVES}", ""),
    "rules/parallel": (f"rules/rule rules/zerofile job catalog loader zero {LEAVES}", ""),
    "rules/evaluation": (f"rules/rule rules/precision job {LEAVES}", ""),
    "rules/training": (f"rules/rule rules/paths job catalog {LEAVES}", ""),
    "rules/data": (f"rules/rule rules/paths job datasets catalog {LEAVES}", ""),
    "rules/entries": (f"rules/rule rules/registry job datasets catalog {LEAVES}", ""),
    "rules/registry": (f"rules/rule rules/paths job datasets catalog loader {LEAVES}", ""),
    # the data command; its engines are the [data] extra
    "corpus/*": (f"corpus/* catalog datasets job loader rules/data rules/paths {LEAVES}", ""),
    "corpus/reading": ("corpus/*", "orjson"),
    "corpus/estimate": ("", "numpy"),
    "corpus/fingerprint": ("", "xxhash"),
    "corpus/columnar": ("diagnostic", "pyarrow"),
    "corpus/order": ("diagnostic", "numpy"),
    "corpus/near": ("corpus/*", "numpy rensa"),
    "corpus/tokens": ("corpus/* catalog job", "tokenizers"),
    "handoff": ("job launch diagnostic", ""),
    "explain": ("job changes launch memory", ""),
    "catalogue": ("catalog job loader diagnostic rules/curated", ""),
    "placing": ("catalog loader diagnostic", ""),
    "copying": ("__init__ catalog loader diagnostic placing", ""),
    "comparison": ("catalog copying job loader diagnostic", ""),
    "draft": ("catalog job diagnostic rules/curated rules/data", ""),
    "writing": ("__init__ catalog draft rules/curated", ""),
    "plan": ("check draft writing loader catalog job diagnostic", ""),
    "choice": ("catalog draft plan", ""),
    "upgrade": ("catalog draft job plan", ""),
    "planned": ("catalog choice copying draft plan rules/curated upgrade", ""),
    "answer": ("catalog choice diagnostic draft placing plan planned upgrade writing", ""),
    "check": ("__init__ diagnostic catalog loader release schema job rules/*", ""),
    "cli": ("*", "click"),
}


def modules() -> list[str]:
    """Every module as a path without .py; a package stands for its folder."""
    found = (path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))
    return sorted(found)


def rooms(module: str) -> str:
    """The row of the table that a module belongs to: its own, else its folder's."""
    return module if module in ALLOWED else f"{module.rpartition('/')[0]}/*"


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


def allows(words: str, target: str) -> bool:
    room = target.rpartition("/")[0]
    return any(
        word
        in {
            "*",
            target,
            f"{room}/*" if room else target,
        }
        or word == room
        for word in words.split()
    )


@pytest.mark.parametrize("module", modules())
def test_imports_only_what_its_row_lists(module: str) -> None:
    row = rooms(module)
    assert row in ALLOWED, f"{module} is not in the table; add it, and to the design, in the same change"
    mine, outside = ALLOWED[row]
    for name in imports(module):
        top = name.split(".")[0]
        if top == "validator":
            assert allows(mine, ours(name)), f"{module} imports {name}"
        elif top not in sys.stdlib_module_names:
            assert top in outside.split(), f"{module} imports {name}"


def test_every_row_is_about_a_module_there_is() -> None:
    assert set(ALLOWED) == {rooms(module) for module in modules()}


@pytest.mark.parametrize(("library", "only"), [("yaml", "loader"), ("cerberus", "schema"), ("click", "cli")])
def test_one_importer(library: str, only: str) -> None:
    found = {m for m in modules() if library in {name.split(".")[0] for name in imports(m)}}
    assert {module for module in found if not module.startswith("upstream/")} == {only}


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


@pytest.mark.parametrize("module", ["loader", "report", "chart", "launch", *inside("memory/")])
def test_knows_no_key_of_a_recipe(module: str) -> None:
    assert not words(module) & KEYS


@pytest.mark.parametrize("module", inside("memory/"))
def test_physics_knows_no_product(module: str) -> None:
    assert not [word for word in words(module) if re.search(r"(?i)nvidia|ascend|a100|h100|v100|910b|qwen|llama", word)]


@pytest.mark.parametrize("module", inside("rules/"))
def test_rules_know_no_line_and_do_not_print(module: str) -> None:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    reached = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not reached & {"marks", "header_marks", "line", "column"}
    assert "print" not in words(module)


def test_report_knows_no_rule() -> None:
    assert not [word for word in words("report") if re.fullmatch(r"(LOA|SCH|PTH|FIT|DEV|PAR|TRA|DAT|CUR)\d*", word)]


def test_data_holds_no_formula() -> None:
    suffixes = {path.suffix for path in (PACKAGE / "data").iterdir()}
    assert suffixes == {".yaml", ".json"}


def test_the_folder_named_like_deepspeed_is_no_package() -> None:
    assert not list((PACKAGE.parent / "deepspeed").rglob("*.py"))


def test_modules_are_small() -> None:
    """The median that the design asks for; a large module is a room with two jobs."""
    sizes = sorted(len((PACKAGE / f"{m}.py").read_text("utf-8").splitlines()) for m in modules())
    assert sizes[len(sizes) // 2] < 130
