"""The folders of who has a home, and of who has none."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.knowledge import hub_caches
from validator.recipe import known_folders, safe_read
from validator.run import calibration
from validator.run.calibration import Calibration
from validator.submit import site_file


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
    assert known_folders.user_folder("XDG_CACHE_HOME", ".cache") == (folder and Path(folder))


def test_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert safe_read.expand_home("~/x") == Path("/home/me/x")
    assert safe_read.expand_home("~nobody-here/x") == Path("~nobody-here/x")


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_kept_and_that_is_told() -> None:
    assert (
        known_folders.user_folder("XDG_CACHE_HOME", ".cache"),
        calibration.load_calibrations(),
        site_file.read_site(None),
    ) == (None, [], site_file.Site())
    assert hub_caches.hub_cache(None) == Path("~/.cache/huggingface/hub")
    with pytest.raises(RecipeError, match="there is no home folder"):
        calibration.save_calibration(Calibration("1xa100-80g", "x", 1.0, 1.0, 10, "2026-01-01"))
