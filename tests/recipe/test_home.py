"""The folders of who has a home, and of who has none."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from validator.diagnostic import RecipeError
from validator.measure import kept
from validator.measure.kept import Measured
from validator.read import disk, home
from validator.submit import site
from validator.tables import cache


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of a container: a number without an entry in /etc/passwd."""

    def nobody(_user: int) -> None:
        raise KeyError

    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)


# fmt: off
BASES = (
    ("/home/me", None, "/home/me/.cache"),
    ("/home/me", "/big/cache", "/big/cache"),
    ("/home/me", "~/cache", "/home/me/cache"),
    ("/home/me", "relative", "/home/me/.cache"),  # which the specification passes over
    ("/home/me", "", "/home/me/.cache"),
    ("/home/me", "~nobody-here/x", "/home/me/.cache"),
    ("relative", None, None),
    ("", "/big/cache", "/big/cache"),
)
# fmt: on


@pytest.mark.parametrize(("own", "variable", "folder"), BASES)
def test_a_base(own: str, variable: str | None, folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", own)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if variable is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert home.base("XDG_CACHE_HOME", ".cache") == (folder and Path(folder))


def test_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert disk.expanded("~/x") == Path("/home/me/x")
    assert disk.expanded("~nobody-here/x") == Path("~nobody-here/x")


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_kept_and_that_is_told() -> None:
    assert (home.base("XDG_CACHE_HOME", ".cache"), kept.every(), site.read(None)) == (None, [], site.Site())
    assert cache.home(None) == Path("~/.cache/huggingface/hub")
    with pytest.raises(RecipeError, match="there is no home folder"):
        kept.keep(Measured("1xa100-80g", "x", 1.0, 1.0, 10, "2026-01-01"))
