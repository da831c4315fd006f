"""Every code has a case that reports it and one, close to it, that does not. Cases run from the repository root."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.diagnostic import Severity
from validator.judge import check
from validator.rules import manual

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "cases"
ENDINGS = (".yaml", ".yml")


def recipes(folder: Path) -> list[Path]:
    """The recipes of a folder of cases; what they read (JSON, data, adapters) lies beside them."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix.lower() in ENDINGS)


def surround(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables that lie beside a case: NAME=VALUE lines in a file of its name."""
    file = Path(path).with_suffix(".env")
    for line in file.read_text().splitlines() if file.is_file() else ():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value)


def from_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


TRIGGERING = {folder.name: recipes(folder) for folder in sorted(CASES.iterdir()) if folder.name.isupper()}
PAIRS = [(code, from_root(path)) for code, paths in TRIGGERING.items() for path in paths]
# silent/<code>-….yaml, or silent/<code>/… where the folder matters.
SILENT = {
    from_root(path): path.relative_to(CASES / "silent").parts[0][:6].upper() for path in recipes(CASES / "silent")
}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("code", "path"), PAIRS)
def test_reports_its_code(code: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    surround(path, monkeypatch)
    found = check.check_file(path).diagnostics
    assert code in {diagnostic.code for diagnostic in found}, [f"{d.code} {d.message}" for d in found]


@pytest.mark.parametrize(("path", "code"), SILENT.items())
def test_is_silent(path: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    surround(path, monkeypatch)
    found = check.check_file(path).diagnostics
    loud = [d for d in found if d.code == code or d.severity is Severity.ERROR]
    assert not loud, [f"{d.code} {d.message}" for d in loud]


@pytest.mark.parametrize("code", manual.codes())
def test_each_code_has_both_kinds_of_case(code: str) -> None:
    assert TRIGGERING.get(code), f"no case in tests/cases/{code}/"
    assert code in SILENT.values(), f"no case tests/cases/silent/{code}-*.yaml"


def test_every_case_is_about_a_code_there_is() -> None:
    assert set(TRIGGERING) | set(SILENT.values()) <= set(manual.codes())


@pytest.mark.parametrize("code", manual.codes())
def test_a_manual_page_says_what_why_and_how_to_fix(code: str) -> None:
    _, text = manual.page(code)
    first, *rest = text.split("\n")
    assert first.endswith(".")
    assert "Why:" in "".join(rest)
    assert "Fix:" in "".join(rest)
