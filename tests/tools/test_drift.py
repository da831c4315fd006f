"""Sources of rules: each is in the package it names; what another release does to it is seen."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from read_releases import arguments, drift
from read_releases.drift import definition
from read_releases.packages import files
from support.every import every

from validator.finding import ManualPage, Severity
from validator.knowledge import releases
from validator.rules import all_rules

ROOT = Path(__file__).parents[2]
_SOURCE = r"own \([^()]+\)|[\w/]+\.py:[\w.]+"
SOURCES = {code: all_rules.named_sources(all_rules.rule_page(code).text) for code in all_rules.all_codes()}
PLACES = sorted({source for sources in SOURCES.values() for source in sources if not source.startswith("own")})


@every(all_rules.all_codes())
def test_every_code_names_its_sources(code: str) -> None:
    assert SOURCES[code]
    assert all(re.fullmatch(_SOURCE, source) for source in SOURCES[code])


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("source", PLACES)
def test_every_source_is_in_the_release_that_was_seen(source: str) -> None:
    path, _, name = source.partition(":")
    package = path.partition("/")[0]
    try:
        installed = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if installed.version.partition("+")[0] != releases.verified_release(package):
        pytest.skip(f"{package} {installed.version} is installed, {releases.verified_release(package)} was read")
    assert definition(_tree(Path(str(installed.locate_file(path)))), name) is not None


def test_a_manual_page_names_the_releases_of_its_sources() -> None:
    text = all_rules.rule_page("TRA504").text
    assert text.endswith(
        f"\n\nSeen with: llamafactory {releases.verified_release('llamafactory')}, "
        f"trl {releases.verified_release('trl')}"
    )
    assert "Seen with" not in all_rules.rule_page("CUR001").text


PARSER = "llamafactory/hparams/parser.py"
OLD = '''
import os
from typing import Optional

KNOWN = ("lora", "full")

if os.name == "posix":
    class Reader:
        """Reads."""

        size: int = 1
        step: int = field(default=1, metadata={"help": "How far."})

        def read(self, path: Optional[str]) -> bool:
            """Whether."""
            return path in KNOWN
'''
CLASS = "    class Reader:"
METHOD = "return path in KNOWN"


@pytest.mark.parametrize(
    ("name", "change", "state"),
    [
        ("Reader.read", ("", ""), "same"),
        ("Reader.read", (METHOD, "return path not in KNOWN"), "changed"),
        ("Reader.read", ('"""Whether."""', '"""Whether it is\n\n            known."""'), "same"),
        ("Reader.read", ('"""Whether."""', "# whether"), "same"),
        ("Reader.read", ("Optional[str]", "str | None"), "same"),
        ("Reader.read", (METHOD, "return (\n                path in KNOWN\n            )"), "same"),
        ("Reader.read", ("def read", "def load"), "gone"),
        ("Reader.read", ("posix", "nt"), "same"),
        ("Reader.size", ("size: int = 1", "size: int = 2"), "changed"),
        ("Reader.size", ("size: int = 1", "size: float = 1"), "changed"),
        ("Reader.step", ("How far.", "How much further."), "same"),
        ("Reader.step", ("default=1", "default=2"), "changed"),
        ("Reader", (METHOD, "return True"), "changed"),
        ("Reader", ('"""Reads."""', '"""Writes."""'), "same"),
        ("KNOWN", ('("lora", "full")', "('lora', 'full')"), "same"),
        ("KNOWN", ('"full")', '"full", "oft")'), "changed"),
        ("KNOWN", ("KNOWN =", "TAKEN ="), "gone"),
        ("TAKEN", ("KNOWN =", "TAKEN ="), "new"),
        ("NOWHERE", ("", ""), "unknown"),
    ],
)
def test_what_became_of_a_source(
    monkeypatch: pytest.MonkeyPatch, name: str, change: tuple[str, str], state: str
) -> None:
    new = OLD.replace(*change)
    assert [row.state for row in _drift(monkeypatch, name, {PARSER: OLD}, {PARSER: new})] == [state]


def _page(text: str) -> ManualPage:
    return ManualPage("made_up", Severity.ERROR, "It fails.", "", "", text)


def test_a_source_that_moved_says_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    new = {PARSER: "KNOWN = ()\n", "llamafactory/hparams/reader.py": OLD}
    assert [row.state for row in _drift(monkeypatch, "Reader.read", {PARSER: OLD}, new)] == [
        "moved to llamafactory/hparams/reader.py"
    ]


def test_drifted_sources_come_first_with_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"A1": f"Source: {PARSER}:KNOWN\nFix:", "B2": f"Source: {PARSER}:Reader.read, {PARSER}:KNOWN\nFix:"}
    monkeypatch.setattr(all_rules, "all_codes", lambda: [*pages, "C3"])
    other = "Source: own (us), trl/a.py:f\nFix:"
    monkeypatch.setattr(all_rules, "rule_page", lambda code: _page(pages.get(code, other)))
    rows = drift.drift("llamafactory", _files({PARSER: OLD}), _files({PARSER: OLD.replace(METHOD, "return True")}))
    assert rows == [
        drift.Drift(f"{PARSER}:Reader.read", "changed", ["B2"]),
        drift.Drift(f"{PARSER}:KNOWN", "same", ["A1", "B2"]),
    ]


def _drift(
    monkeypatch: pytest.MonkeyPatch, name: str, old: Mapping[str, str], new: Mapping[str, str]
) -> list[drift.Drift]:
    monkeypatch.setattr(all_rules, "all_codes", lambda: ["A1"])
    monkeypatch.setattr(all_rules, "rule_page", lambda _code: _page(f"Why: it is.\nSource: {PARSER}:{name}\nFix: it."))
    return drift.drift("llamafactory", _files(old), _files(new))


def _files(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in texts.items()}


SCHEDULES = "trl/trainer/dpo_trainer.py"
LOSS = "class DPOTrainer:\n    def dpo_loss(self, margin):\n        return -margin\n"


def _place(folder: Path, kind: str, text: str) -> Path:
    """The package trl, with this one module, as a release comes."""
    module = folder / "trl-1" / SCHEDULES
    module.parent.mkdir(parents=True)
    module.write_text(text)
    (folder / "trl-1" / "setup.py").write_text("")
    if kind == "wheel":
        with zipfile.ZipFile(folder / "trl.whl", "w") as wheel:
            wheel.write(module, SCHEDULES)
            wheel.writestr("other/a.py", "")
        return folder / "trl.whl"
    if kind in ("sdist", "sdist with src"):
        inner = "trl-1/src" if kind.endswith("src") else "trl-1"
        with tarfile.open(folder / "trl.tar.gz", "w:gz") as tar:
            tar.add(module, f"{inner}/{SCHEDULES}")
            tar.add(folder / "trl-1" / "setup.py", "trl-1/setup.py")
        return folder / "trl.tar.gz"
    return folder / "trl-1"


@pytest.mark.parametrize("kind", ["folder", "wheel", "sdist", "sdist with src"])
def test_a_release_is_read_as_it_comes(tmp_path: Path, kind: str) -> None:
    assert files(_place(tmp_path, kind, LOSS), "trl") == {SCHEDULES: LOSS.encode()}


DRIFTED = """\
changed  trl/trainer/dpo_trainer.py:DPOTrainer.dpo_loss
         TRA504 TRA506
1 of 1 sources drifted; look at 2 rules
"""


@pytest.mark.parametrize(
    ("new", "code", "said"),
    [(LOSS, 0, "0 of 1 sources drifted; look at 0 rules\n"), (LOSS.replace("-margin", "margin"), 1, DRIFTED)],
    ids=["same", "changed"],
)
def test_the_command_names_the_rules_and_fails_where_there_are_some(
    tmp_path: Path, new: str, code: int, said: str
) -> None:
    places = _place(tmp_path / "old", "wheel", LOSS), _place(tmp_path / "new", "sdist", new)
    command = [sys.executable, "-m", "tools.read_releases", "drift", "trl", *map(str, places)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (said, code), done.stderr


def test_a_place_without_the_package_is_no_release(tmp_path: Path) -> None:
    old = _place(tmp_path / "old", "wheel", LOSS)
    command = [sys.executable, "-m", "tools.read_releases", "drift", "trl", str(old), str(tmp_path / "old")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.endswith(f"error: {tmp_path / 'old'} holds no trl/*.py\n")


def test_a_table_that_reads_something_else_is_to_be_regenerated() -> None:
    def release(default: str) -> dict[str, bytes]:
        names = (name.replace(".", "/") for name in arguments.READ["transformers"])
        field = (
            f"class TrainingArguments:\n    optim: str = {default!r}\n\n    def __post_init__(self):\n        pass\n"
        )
        return _files({f"transformers/{name}.py": field for name in names})

    assert drift.tables("transformers", release("adamw"), release("adamw")) == []
    assert drift.tables("transformers", release("adamw"), release("sgd")) == ["arguments.json"]
    assert drift.tables("transformers", release("adamw"), {}) == ["arguments.json"]
    assert drift.tables("peft", {}, {}) == []
