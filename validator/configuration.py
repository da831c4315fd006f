"""Settings that hold for all recipes of a team, from `.lmf-recipes.yaml` or `[tool.lmf-recipes]` of pyproject.toml: its
machine, releases, ignored codes and the paths of its training machine.

The file is looked for in the folder of the recipe and in the folders above it, up to the root of the repository; the
first one counts alone. Its settings stand in for fields that the header block of a recipe lacks. The command line wins
over both. A pull request may bring the file: it is read as data, up to a limit, and nothing in it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from validator.errors import ConfigurationError, RecipeError
from validator.finding import FindingOptions, PathSeverity, Severity
from validator.knowledge import devices, releases
from validator.knowledge.file_kinds import CONFIGURATION_FILES, TOML_NAME, YAML_NAME
from validator.recipe import known_folders, safe_read
from validator.recipe.recipe_file import Document, load_recipe, with_header_fields, with_missing_header_fields
from validator.recipe.suggestions import suggest, unknown_name
from validator.rules import all_rules
from validator.run.recipe_arguments import finite_number, parse_price
from validator.wording import clip, relative_to_cwd, shown_value

_TABLE = "lmf-recipes"  # below [tool]
_PER_FOLDER = "per-folder"
_RELEASES = "releases"
_MAX_CHARACTERS = 1 << 16
_MAX_ENTRIES, _MAX_WORD = 200, 300  # of a list or a table; characters of a word
# A header or a key of the table; most files with the name have neither, such as the one that defines the command.
_MENTIONS_TABLE = re.compile(rb"""tool\s*\.\s*["']?lmf[-_]recipes|lmf[-_]recipes["']?\s*(=\s*\{|\.)""")
# tomllib takes minutes for a key of thousands of parts
_MANY_PARTS = re.compile(r"(?:[\w\"' \t-]{1,60}\.){24}")
_ADDED_BY_SECTIONS = ("ignore", "path-prefixes", "packages")
_MAX_HOST_RAM_GIB = 1 << 20
_HEADER_FIELDS = {
    "machine": "machine",
    "host-ram": "host_ram_gib",
    "network": "network",
    "price": "price",
    "packages": "packages",
}


class CommandLine(NamedTuple):
    """Options of the command line that concern findings. Empty values leave it to the configuration file.

    `hook`: the files are those of a commit, so that paths of the training machine are notes unless something else is
    said. `isolated`: no configuration file counts. `strict`: every warning fails the check."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    pedantic: bool = False
    paths: PathSeverity | None = None
    hook: bool = False
    isolated: bool = False
    strict: bool = False


NOTHING_ASKED = CommandLine()


@dataclass(frozen=True)
class Configuration:
    """The settings for one file. `path`: the configuration file; None if there is none. `sections`: the names of its
    per-folder sections that hold for the file. `settings`: values by key, checked."""

    path: str | None
    sections: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def header_fields(self) -> dict[str, Any]:
        """The settings that a recipe's header block can say, too, by the names that they have there."""
        named = {field: self.settings[key] for key, field in _HEADER_FIELDS.items() if key in self.settings}
        return {**named, **self.settings.get(_RELEASES, {})}

    def finding_options(self, asked: CommandLine) -> FindingOptions:
        """Return which findings to show. Codes on the command line replace those of the file."""
        chosen = self.settings if not (asked.select or asked.ignore) else asked._asdict()
        usual: PathSeverity = "note" if asked.hook else "error"
        return FindingOptions(
            tuple(chosen.get("select", ())),
            tuple(chosen.get("ignore", ())),
            asked.pedantic or bool(self.settings.get("pedantic")),
            asked.paths or self.settings.get("paths", usual),
            tuple(
                os.path.normpath(Path(self.path or "").parent / each) for each in self.settings.get("path-prefixes", ())
            ),
            asked.strict or self.settings.get("strict", False),
        )


def find_configuration(path: str, asked: CommandLine = NOTHING_ASKED) -> Configuration:
    """Return the settings for a file; `-`, standard input, and recipes of the catalogue count as lying in the working
    directory. `asked`: what the command line says. Raises ConfigurationError if the configuration file cannot be
    used."""
    file = Path(os.path.normpath(Path.cwd() / path))
    if path == "-" or (file.is_relative_to(known_folders.catalogue_root()) and not file.is_relative_to(Path.cwd())):
        file = Path.cwd() / "-"
    for folder in () if asked.isolated else file.parents:
        if found := _read_folder(folder):
            place, settings = found
            return _for_file(place, settings, file.relative_to(folder))
        if safe_read.path_kind(folder / ".git"):
            break
    return Configuration(None, (), {})


def configured(document: Document, asked: CommandLine | None = NOTHING_ASKED) -> Document:
    """Return the document with the settings for its file: its header block gets the fields that it lacks. `asked`: what
    the command line says; None to read no configuration file. Raises ConfigurationError."""
    if asked is None:
        return document
    found = find_configuration(document.path, asked)
    document = with_missing_header_fields(document, found.header_fields)
    return replace(document, options=found.finding_options(asked))


@dataclass(frozen=True)
class EffectiveSettings:
    """The settings that hold for a file, or for the files in a folder. `configuration`: the path of the configuration
    file; None if there is none. `sections`: its per-folder sections that count. `settings`: values by the keys of a
    configuration file, also of those that the command line or the header block of a recipe gives."""

    path: str
    configuration: str | None
    sections: tuple[str, ...]
    settings: Mapping[str, Any]


def effective_settings(path: str, asked: CommandLine, **given: Any) -> EffectiveSettings:
    """Return the settings for a file, or for the files in a folder. `given`: fields of a header block that the command
    line gives; None leaves a field to the recipe's header block, and then to the configuration file."""
    is_folder = safe_read.path_kind(path) == "folder"
    found = find_configuration(str(Path(path) / "-") if is_folder else path, asked)
    document = Document(path) if is_folder or path == "-" else load_recipe(path)
    header = with_header_fields(with_missing_header_fields(document, found.header_fields), **given).header
    from_header = {key: header.get(field) for key, field in _HEADER_FIELDS.items()}
    named_releases = {name: header[name] for name in releases.ALL_FIELDS if header.get(name)}
    shown = found.finding_options(asked)._asdict()
    from_options = {name.replace("_", "-"): value for name, value in shown.items()}
    return EffectiveSettings(
        path, found.path, found.sections, {**from_header, _RELEASES: named_releases, **from_options}
    )


def parse_codes(words: Iterable[str]) -> tuple[str, ...]:
    """Return the rule codes in comma-separated words, in upper case. A word may be only the beginning of a code, such
    as TRA. Raises RecipeError for a word with which no rule code begins."""
    codes = tuple(code.strip().upper() for word in words for code in word.split(",") if code.strip())
    rule_codes = all_rules.all_codes() if codes else []
    for code in codes:
        if not any(each.startswith(code) for each in rule_codes):
            near = suggest(code, [*rule_codes, *sorted({each[:3] for each in rule_codes})])
            raise RecipeError(f"no rule begins with `{code}`{near}")
    return codes


def _for_file(place: str, settings: Mapping[str, Any], file: Path) -> Configuration:
    """Return the settings for a file. `file`: its path from the folder of the configuration file `place`. Sections
    later in the configuration file win over earlier ones, and over the settings outside of sections."""
    merged = {key: value for key, value in settings.items() if key != _PER_FOLDER}
    names = []
    paths = [str(each.as_posix()) for each in (file, *file.parents)]
    for pattern, section in settings.get(_PER_FOLDER, {}).items():
        if any(fnmatchcase(path, pattern.rstrip("/")) for path in paths):
            names.append(pattern)
            for key, value in section.items():
                if key in _ADDED_BY_SECTIONS:
                    value = type(value)((*merged.get(key, ()), *value))
                merged[key] = {**merged.get(key, {}), **value} if key == _RELEASES else value
    return Configuration(place, tuple(names), merged)


@cache
def _read_folder(folder: Path) -> tuple[str, Mapping[str, Any]] | None:
    """Return the path and the settings of the configuration file in a folder; None if it has none. A pyproject.toml
    without our table is passed by."""
    for name in CONFIGURATION_FILES:
        if not safe_read.path_kind(folder / name):
            continue
        shown = str(relative_to_cwd(folder / name))
        try:
            found = _read_toml(folder / name) if name == TOML_NAME else _read_yaml(folder / name)
            if found is not None:
                return shown, _parse_table(found, "", sections=True)
        except RecipeError as err:
            raise ConfigurationError(f"{shown}: {err}") from None
    return None


def _read_text(file: Path) -> str:
    """Return the text of a configuration file. Raises RecipeError if it cannot be read, is too long, or is a link that
    leads out of the repository, because messages quote it."""
    if not known_folders.is_in_repository(file, str(file)):
        raise RecipeError("is a link that leads out of the repository; put the file itself there")
    text = safe_read.read_text(str(file))
    if len(text) > _MAX_CHARACTERS:
        raise RecipeError(f"is longer than {_MAX_CHARACTERS:,} characters; write the settings into {YAML_NAME}")
    return text


def _read_yaml(file: Path) -> Any:
    _read_text(file)
    return safe_read.read_yaml(str(file)) or {}


def _read_toml(file: Path) -> Any:
    """Return the table [tool.lmf-recipes] of a pyproject.toml; None if it has none."""
    try:
        data = safe_read.read_bytes(file)
    except RecipeError:
        return None
    if not _MENTIONS_TABLE.search(data):
        return None
    text = _read_text(file)
    if _MANY_PARTS.search(text):
        raise RecipeError(f"has a key of too many parts to be read; write the settings into {YAML_NAME}")
    import tomllib  # 6 ms, and only where a file has such a table

    try:
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError) as err:
        why = str(err).lower() if isinstance(err, tomllib.TOMLDecodeError) else "it cannot be read"
        raise RecipeError(f"is not valid TOML: {clip(why)}") from None
    if isinstance(tool, dict) and (other := _TABLE.replace("-", "_")) in tool:
        raise RecipeError(f"[tool.{other}] is read by nothing; write [tool.{_TABLE}]")
    return tool.get(_TABLE) if isinstance(tool, dict) else None


def _parse_table(table: Any, route: str, sections: bool) -> Mapping[str, Any]:
    """Return the checked settings of a table. `route`: the keys that lead to it, for messages. `sections`: True if it
    may hold per-folder sections. Raises RecipeError for an unknown key or a value that cannot be used."""
    known = [*_PARSERS, *([_PER_FOLDER] if sections else [])]
    if not isinstance(table, Mapping) or len(table) > _MAX_ENTRIES:
        raise RecipeError(f"{route or 'the file'} is no table of settings; known are {', '.join(known)}")
    parsed: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise RecipeError(unknown_name(f"setting of `{route}`" if route else "setting", str(key), known))
        where = f"{route}.{key}" if route else str(key)
        if key == _PER_FOLDER:
            parsed[key] = {name: _parse_table(each, f"{where}.{name}", False) for name, each in _folders(value)}
        else:
            try:
                parsed[key] = _PARSERS[key](value)
            except RecipeError as err:
                raise RecipeError(f"`{where}`: {err}") from None
    return parsed


def _folders(value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or len(value) > _MAX_ENTRIES:
        raise RecipeError(f'`{_PER_FOLDER}` takes sections by folder, such as [tool.lmf-recipes.per-folder."ascend"]')
    for name, each in value.items():
        if not isinstance(name, str) or len(name) > _MAX_WORD:
            raise RecipeError(f"`{_PER_FOLDER}`: {shown_value(name)} is no folder")
        yield name, each


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_WORD:
        raise RecipeError(f"{shown_value(value)} is no text; write it in quotes")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_ENTRIES:
        raise RecipeError(f'{shown_value(value)} is no list of texts, such as ["…"]')
    return tuple(map(_text, value))


def _machine(value: Any) -> str:
    devices.parse_machine(_text(value))
    return str(value)


def _network(value: Any) -> str:
    devices.parse_network(_text(value))
    return str(value)


def _host_ram(value: Any) -> float:
    gib = finite_number(value)
    if gib is None or not 1 <= gib <= _MAX_HOST_RAM_GIB:
        raise RecipeError(f"{shown_value(value)} is no main memory of a node in GiB; write a number, such as 1024")
    return gib


def _price(value: Any) -> str:
    if parse_price(_text(value)) is None:
        raise RecipeError(f'{shown_value(value)} is no amount and currency, such as "1.99 USD"')
    return str(value)


def _releases(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise RecipeError(f'{shown_value(value)} is no table, such as {{torch = "2.7"}}')
    for name, release in value.items():
        if name not in releases.ALL_FIELDS:
            raise RecipeError(unknown_name("package", str(name), releases.ALL_FIELDS))
        try:
            releases.range_admits(_text(release), "1.0")
        except RecipeError as err:
            raise RecipeError(f"`{name}`: {err}") from None
    return dict(value)


def _prefixes(value: Any) -> tuple[str, ...]:
    for each in _texts(value):
        if each.startswith(("~", "$")) or not os.path.normpath(each).strip("/."):
            need = "write it in full, or relative to the configuration file"
            raise RecipeError(f"{shown_value(each)} is no folder of the training machine; {need}")
    return tuple(value)


def _codes(value: Any) -> tuple[str, ...]:
    return parse_codes(_texts(value))


def _strict_codes(value: Any) -> bool | tuple[str, ...]:
    """Return true, false, or the codes of warnings that fail a check. Raises RecipeError for a code of notes alone,
    because notes never change the exit code."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, list):
        raise RecipeError(f'{shown_value(value)} is neither true nor a list of codes, such as ["TRA605", "FIT011"]')
    begun = _codes(value)
    for beginning in begun:
        matched = [code for code in all_rules.all_codes() if code.startswith(beginning)]
        if all(all_rules.rule_page(code).severity is Severity.NOTE for code in matched):
            raise RecipeError(f"`{beginning}` is a note, and notes fail no check; name codes of warnings")
    return begun


def _path_severity(value: Any) -> str:
    if value not in ("error", "note"):
        raise RecipeError(f'{shown_value(value)} is neither "error" nor "note"')
    return str(value)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RecipeError(f"{shown_value(value)} is neither true nor false")
    return value


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "machine": _machine,
    "host-ram": _host_ram,
    "network": _network,
    "price": _price,
    _RELEASES: _releases,
    "packages": lambda value: [*_texts(value)],  # a list, as in a header block
    "select": _codes,
    "ignore": _codes,
    "pedantic": _switch,
    "strict": _strict_codes,
    "paths": _path_severity,
    "path-prefixes": _prefixes,
}
