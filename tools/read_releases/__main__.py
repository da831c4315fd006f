"""The commands for another release: `python -m tools.read_releases [--check] [--anew] [--packages FOLDER]` writes the
tables, and `python -m tools.read_releases drift PACKAGE OLD NEW` says what they do not: which rules to look at."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from validator.knowledge.tables import DATA_FOLDER

from . import arguments, deepspeed_config, drift, families, model_classes, templates
from .packages import Files, ModuleTrees, download, files, module_trees
from .releases import DEEPSPEED, EARLIER, MODEL_CLASSES, NEWEST, OLDER_DEEPSPEED, TRANSFORMERS


def tables(folder: Path, anew: bool = False) -> dict[str, str]:
    """Build every table from packages downloaded into `folder`: file name to text. `anew`: read also the releases of
    which model_classes.json has a row."""

    def package(name: str, version: str) -> ModuleTrees:
        return module_trees(files(download(name, version, folder), name))

    llamafactory = {release: package("llamafactory", release) for release in TRANSFORMERS}
    with_earlier = llamafactory | {release: package("llamafactory", release) for release in EARLIER}
    versions = dict.fromkeys(version for admitted in TRANSFORMERS.values() for version in admitted)  # newest first
    transformers = {version: package("transformers", version) for version in versions}
    built = {
        "arguments": arguments.table(llamafactory, transformers),
        "templates": templates.templates_table(NEWEST, llamafactory[NEWEST])
        | templates.presence(with_earlier, EARLIER),
        "registry": templates.registry_table(NEWEST, llamafactory[NEWEST]),
        "formats": templates.formats_table(NEWEST, llamafactory[NEWEST]),
        "families": families.table(families.kinds(), NEWEST, llamafactory[NEWEST], transformers),
        "deepspeed": deepspeed_config.table(
            DEEPSPEED,
            package("deepspeed", DEEPSPEED),
            {version: package("deepspeed", version) for version in OLDER_DEEPSPEED},
        ),
        "model_classes": model_classes.table(
            {} if anew else json.loads(_current(DATA_FOLDER / "model_classes.json") or "{}"),
            MODEL_CLASSES,
            llamafactory,
            lambda version: package("transformers", version),
            transformers[TRANSFORMERS[NEWEST][0]],
        ),
    }
    return {f"{name}.json": dump(table) for name, table in built.items()}


def dump(table: dict[str, Any]) -> str:
    """JSON with one line for each entry of each section, so that a refresh reads as a diff."""
    sections = (f"{json.dumps(name)}: {{\n{_lines(section)}\n}}" for name, section in table.items())
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _lines(section: dict[str, Any]) -> str:
    compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    return ",\n".join(f"{json.dumps(key)}:{compact.encode(value)}" for key, value in section.items())


def main() -> int:
    """Write the tables, or say which are out of date (`--check`) or which rules another release touches (`drift`)."""
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.packages or Path(temporary)
        return _drift(options, folder) if options.command else _refresh(options.check, options.anew, folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.read_releases", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is out of date")
    parser.add_argument("--anew", action="store_true", help="read also the dozens of releases that have a row already")
    parser.add_argument("--packages", type=Path, help="keep the downloaded packages here and use those already there")
    drifting = parser.add_subparsers(dest="command").add_parser("drift", help=drift.__doc__)
    drifting.add_argument("package", help="llamafactory, transformers, deepspeed, peft, trl, accelerate, ...")
    drifting.add_argument("old", help="a release, or a wheel, an sdist or a folder of it")
    drifting.add_argument("new", help="the same; exit with 1 if a rule's source or a table differs")
    return parser


def _drift(options: argparse.Namespace, folder: Path) -> int:
    def unpacked(place: str) -> Files:
        given = Path(place)
        package = files(given if given.exists() else download(options.package, place, folder), options.package)
        return package or _parser().error(f"{place} holds no {options.package}/*.py")

    text, drifted = drift.report(options.package, unpacked(options.old), unpacked(options.new))
    sys.stdout.write(f"{text}\n")
    return int(drifted)


def _refresh(checking: bool, anew: bool, folder: Path) -> int:
    built = tables(folder, anew)
    stale = [name for name, text in built.items() if _current(DATA_FOLDER / name) != text]
    for name in stale:
        sys.stderr.write(f"{name}: {'out of date' if checking else 'written'}\n")
        if not checking:
            # Not by validator/write: in a developer's checkout git keeps what it was, and all is made anew.
            (DATA_FOLDER / name).write_text(built[name], encoding="utf-8")
    return int(checking and bool(stale))


def _current(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
