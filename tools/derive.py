"""Rewrite what is derived: the `predicted` line of each recipe, the tables and outputs in both READMEs and docs/, and
the JSON Schemas of docs/reference/json/.

python tools/derive.py            rewrite in place
python tools/derive.py --check    write nothing; exit 1 and name what is stale
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path

from pages import answers, commands, coverage, doctor, models, picture, rules

from validator.catalogue import bundled_recipes
from validator.run.recipe_labels import method_name, prediction_line, stated_prediction
from validator.run.settings import RunSettings

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md", "README.zh.md", "docs/reference/recipes.md", "docs/reference/coverage.md", "docs/reference/models.md",
    "docs/reference/commands.md", "docs/reference/json.md", "docs/reference/doctor.md",
    "docs/reference/rules/README.md",
    *(f"docs/reference/rules/{family}.md" for family in rules.FAMILIES),
    "docs/explanation/accuracy.md", "docs/explanation/robustness.md",
)  # fmt: skip
# Files that are generated as a whole.
FILES: dict[str, Callable[[], str]] = {
    f"docs/reference/json/{name}.schema.json": partial(answers.schema_file, name) for name in answers.ANSWERS
} | {"docs/pictures/finding.svg": picture.finding}
BLOCK = re.compile(r"(<!-- (?P<what>[a-z]+)(?:: (?P<of>.+?))? -->\n).*?(<!-- end -->)", re.S)
LINE = re.compile(r"(?m)^# predicted:.*\n|(?=^# ///\n)")
COLUMNS = ("recipe", "model", "machine", "method", "GiB per device", "GiB of host memory", "samples", "hours")
METHODS = ("qlora", "lora", "full")
SEVERAL = 7


def recipe_text(job: RunSettings) -> str:
    """The recipe's text with the `predicted` line as computed now; unchanged where nothing can be predicted."""
    text = Path(job.workspace.recipe).read_text("utf-8")
    now = stated_prediction(job)
    if now is None:
        return text
    return LINE.sub(f"# predicted: {prediction_line(now)}\n", text, count=1)


def lines(cells: Iterable[Sequence[object]]) -> str:
    """A table, its first row the titles."""
    titles, *rows = (" | ".join(map(str, row)) for row in cells)
    rule = " | ".join("---" for _ in titles.split(" | "))
    return "".join(f"| {line} |\n" for line in (titles, rule, *rows))


def recipe_table() -> str:
    """Every recipe, for docs/reference/recipes.md."""
    rows = (
        (
            f"[{row.name}](../../recipes/{row.name}.yaml)",
            row.model,
            row.machine,
            row.method,
            row.device_gib,
            row.host_gib,
            row.samples,
            lasting(row),
        )
        for row in bundled_recipes.catalogue_rows()
    )
    return lines([COLUMNS, *rows])


def lasting(row: bundled_recipes.CatalogueRow) -> str:
    """From low to high, as the header block has them."""
    return " to ".join(f"{each:g}" for each in row.hours) if row.hours else ""


def largest_table() -> str:
    """The largest model for each method on machines with several recipes, for the READMEs."""
    found: dict[str, list[RunSettings]] = {}
    for job in bundled_recipes.resolved_recipes():
        if job.model and job.model.id and job.machine:
            found.setdefault(str(job.machine), []).append(job)
    machines = sorted((name for name in found if len(found[name]) >= SEVERAL), key=lambda name: _size(found[name][0]))
    rows = ((name, *(_largest(found[name], method) for method in METHODS), len(found[name])) for name in machines)
    return lines([("machine", *METHODS, "recipes"), *rows])


def _size(job: RunSettings) -> tuple[bool, float, int]:
    """Order of machines: by all their memory, Ascend last."""
    assert job.machine
    device = job.machine.device
    return device.vendor == "ascend", job.machine.world * (device.usable_gib or 0.0), job.machine.world


def _largest(jobs: Iterable[RunSettings], method: str) -> str:
    fitting = [job for job in jobs if method_name(job) == method]
    job = max(fitting, key=lambda job: job.model.parameters if job.model else 0, default=None)
    return f"[{job.model.short}](recipes/{Path(job.workspace.recipe).name})" if job and job.model else ""


def output(command: str) -> str:
    """A command as the reader would type it, and what it prints."""
    return f"```console\n$ {command}\n{printed('-m', 'validator', *command.split()[1:])}```\n"


@cache
def benchmark(*words: str) -> list[str]:
    """The tables of an area of the benchmarks."""
    return printed("-m", "benchmarks", *words).split("\n\n")


def printed(*words: str) -> str:
    """What Python prints with these words; ends here where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # which breaks lines
    line = [sys.executable, *words]
    found = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if found.returncode not in (0, 1) or found.stderr:  # 1: findings, or a bar is missed, which are shown
        sys.exit(f"`{' '.join(words)}` ended with {found.returncode}: {found.stderr}")
    return found.stdout


def benchmarked(title: str, *words: str) -> str:
    """One of them."""
    shown = next(text for text in benchmark(*words) if text.lstrip().startswith(title))
    return "```text\n" + shown.strip("\n") + "\n```\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "recipes": largest_table,
    "catalogue": recipe_table,
    "coverage": coverage.page,
    "registry": models.page,
    "index": rules.index,
    "commands": commands.page,
    "answers": answers.page,
    "doctor": doctor.page,
    "reliability": lambda: printed("-m", "benchmarks", "reliability"),
    "rivals": lambda: benchmarked("rivals", "memory"),
    "bars": lambda: benchmarked("bars", "memory"),
    "strangers": lambda: benchmarked("by collection", "files"),
    "releases": lambda: benchmarked("peaks by releases", "simulator", "releases", "--compare"),
    "timebars": lambda: benchmarked("bars", "time"),
    "timerivals": lambda: benchmarked("what else", "time"),
    "timerows": lambda: benchmarked("packed", "time"),
    "claims": lambda: benchmarked("what field reports", "time"),
}

# Blocks of one thing that the mark names: `<!-- rules: PTH -->`.
BLOCKS_OF: dict[str, Callable[[str], str]] = {"output": output, "rules": rules.page}


def page_text(path: Path) -> str:
    """A page with its generated blocks as they are now."""

    def fill(match: re.Match[str]) -> str:
        what, of = match["what"], match["of"]
        made = BLOCKS_OF[what](of) if of else BLOCKS[what]()
        return match[1] + made + match[4]

    return BLOCK.sub(fill, path.read_text("utf-8"))


def derived_text(name: str) -> str:
    """A page or file as it should be now."""
    return FILES[name]() if name in FILES else page_text(ROOT / name)


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    stale = []
    derived = [(Path(job.workspace.recipe), recipe_text(job)) for job in bundled_recipes.resolved_recipes()]
    for path, text in derived:
        stale += _settle(path, text, check)
    for name in (*PAGES, *FILES):
        stale += _settle(ROOT / name, derived_text(name), check)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'is stale; run `make tables`' if check else 'rewritten'}")
    sys.exit(1 if check and stale else 0)


def _settle(path: Path, text: str, check: bool) -> list[Path]:
    if path.exists() and path.read_text("utf-8") == text:
        return []
    if not check:
        fresh = path.with_suffix(".new")
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    return [path]


if __name__ == "__main__":
    main()
