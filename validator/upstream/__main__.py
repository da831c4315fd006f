"""The refresh command: `python -m validator.upstream [--check] [--packages FOLDER]`."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from validator.upstream import arguments, deepspeed, families, formats, templates
from validator.upstream.releases import DEEPSPEED, NEWEST, TRANSFORMERS
from validator.upstream.source import Modules, download, modules

DATA = Path(__file__).parent.parent / "data"


def tables(folder: Path) -> dict[str, str]:
    """Build every table from packages downloaded into `folder`: file name to text."""

    def package(name: str, version: str) -> Modules:
        target = folder / f"{name}-{version}"
        archive = next(target.iterdir(), None) if target.is_dir() else None
        return modules(archive or download(f"{name}=={version}", target))

    llamafactory = {release: package("llamafactory", release) for release in TRANSFORMERS}
    versions = dict.fromkeys(version for admitted in TRANSFORMERS.values() for version in admitted)  # newest first
    transformers = {version: package("transformers", version) for version in versions}
    built = {
        "arguments": arguments.table(llamafactory, transformers),
        "templates": templates.table(NEWEST, llamafactory[NEWEST]),
        "formats": formats.table(NEWEST, llamafactory[NEWEST]),
        "families": families.table(kinds(), NEWEST, llamafactory[NEWEST], transformers),
        "deepspeed": deepspeed.table(DEEPSPEED, package("deepspeed", DEEPSPEED)),
    }
    return {f"{name}.json": dump(table) for name, table in built.items()}


def kinds() -> list[str]:
    """The model types of families.yaml."""
    return list(yaml.safe_load((DATA / "families.yaml").read_text(encoding="utf-8")))


def dump(table: dict[str, Any]) -> str:
    """JSON with one line for each entry of each section, so that a refresh reads as a diff."""
    sections = (f"{json.dumps(name)}: {{\n{_lines(section)}\n}}" for name, section in table.items())
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _lines(section: dict[str, Any]) -> str:
    compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    return ",\n".join(f"{json.dumps(key)}:{compact.encode(value)}" for key, value in section.items())


def main() -> int:
    """Write the tables, or with `--check` say which are out of date."""
    parser = argparse.ArgumentParser(prog="python -m validator.upstream", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is out of date")
    parser.add_argument("--packages", type=Path, help="keep the downloaded packages here and use those already there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        built = tables(options.packages or Path(temporary))
    stale = [name for name, text in built.items() if _current(DATA / name) != text]
    for name in stale:
        sys.stderr.write(f"{name}: {'out of date' if options.check else 'written'}\n")
        if not options.check:
            (DATA / name).write_text(built[name], encoding="utf-8")
    return int(options.check and bool(stale))


def _current(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
