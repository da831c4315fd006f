"""Rewrite what is derived: the `predicted` line of each recipe, and the tables and outputs in both READMEs.

python scripts/tables.py            rewrite in place
python scripts/tables.py --check    write nothing; exit 1 and name what is stale
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from validator import catalogue
from validator.rules.curated import predicted

ROOT = Path(__file__).resolve().parent.parent
READMES = ("README.md", "README.zh.md")
BLOCK = re.compile(r"(<!-- (?P<what>recipes|accuracy|output: (?P<command>.+?)) -->\n).*?(<!-- end -->)", re.S)
LINE = re.compile(r"(?m)^# predicted:.*\n|(?=^# ///\n)")
COLUMNS = ("recipe", "model", "machine", "method", "GiB per device", "GiB of host memory", "samples")


def recipe_text(job: catalogue.Job) -> str:
    """The recipe's text with the `predicted` line as computed now; unchanged where nothing can be predicted."""
    text = Path(job.path).read_text("utf-8")
    now = predicted(job)
    if now is None:
        return text
    line = "# predicted: {" + ", ".join(f"{key}: {value}" for key, value in now.items()) + "}\n"
    return LINE.sub(line, text, count=1)


def recipe_table() -> str:
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for row in catalogue.rows():
        name = f"[{row['name']}](recipes/{row['name']}.yaml)"
        cells = (name, row["model"], row["machine"], row["method"], row["device_gib"], row["host_gib"], row["samples"])
        lines.append(" | ".join(str(cell) for cell in cells))
    return "".join(f"| {line} |\n" for line in lines)


def output(command: str) -> str:
    """A command as the reader would type it, and what it prints."""
    words = command.split()[1:]
    found = subprocess.run(
        [sys.executable, "-m", "validator", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode not in (0, 1) or found.stderr:
        sys.exit(f"`{command}` ended with {found.returncode}: {found.stderr}")
    return f"```console\n$ {command}\n{found.stdout}```\n"


def accuracy() -> str:
    """The closing table of the accuracy benchmark."""
    found = subprocess.run(
        [sys.executable, "benchmarks/memory.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bars = found.stdout.partition("bars, %")[2].split("\n\n")[0]
    return f"```text\n{bars.strip(chr(10)).partition(chr(10))[2]}\n```\n"


def readme_text(path: Path) -> str:
    def fill(match: re.Match[str]) -> str:
        what = match["what"]
        made = recipe_table() if what == "recipes" else accuracy() if what == "accuracy" else output(match["command"])
        return match[1] + made + match[4]

    return BLOCK.sub(fill, path.read_text("utf-8"))


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    stale = []
    derived = [(Path(job.path), recipe_text(job)) for job in catalogue.jobs()]
    for path, text in derived:
        stale += _settle(path, text, check)
    for name in READMES:
        stale += _settle(ROOT / name, readme_text(ROOT / name), check)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'is stale; run `make tables`' if check else 'rewritten'}")
    sys.exit(1 if check and stale else 0)


def _settle(path: Path, text: str, check: bool) -> list[Path]:
    if path.read_text("utf-8") == text:
        return []
    if not check:
        fresh = path.with_suffix(".new")
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    return [path]


if __name__ == "__main__":
    main()
