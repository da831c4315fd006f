"""docs/howto/install.md: its releases are those of the tables, and doctor says of a machine that followed it what the
page shows. `--golden` writes the lines of doctor anew."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.installed_packages import site, version_file, write
from support.recordings import RECORDED, show_all

from validator.catalogue.bundled_recipes import locate_recipe
from validator.commands.doctor import format_diagnosis
from validator.doctor import diagnosis
from validator.knowledge.releases import release_series
from validator.knowledge.tables import yaml_table
from validator.machine import driver
from validator.recipe.recipe_file import load_with_overrides

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "install.md"
SETS = yaml_table("together")["sets"]
# The lines that the page shows.
SHOWN = ("driver", "packages", "torch", "torch_npu", "CANN", "package")
BASE = {"llamafactory": "0.9.5", "transformers": "5.6.0", "deepspeed": "0.18.4"}


# The recorded program, which answers the question for the driver as well.
ASKED = """#!/bin/sh
case "$1" in *driver_version*) printf "570.124.06, 8.9\\n570.124.06, 8.9\\n" ;; *) exec {tool} "$@" ;; esac
"""


class Scene(NamedTuple):
    """A machine that followed the page: what its driver's tool prints, the recipe, its packages, its CANN."""

    folder: str
    recipe: str
    packages: Mapping[str, str]
    cann: str = ""


def of_set(vendor: str, tag: str) -> dict[str, str]:
    packages = {name: str(release) for name, release in SETS[vendor]["packages"].items()}
    return {**BASE, **packages, "torch": f"{packages['torch']}{tag}"}


SCENES = {
    "nvidia": Scene(
        "nvidia-smi-2x4090", "qwen3-8b-4090x2-lora",
        {"liger-kernel": "0.8.5", **of_set("nvidia", "+cu128")},
    ),
    "ascend": Scene("npu-smi-2x910b3", "qwen32b-910b-lora", of_set("ascend", "+cpu"), SETS["ascend"]["cann"]),
    "ascend-without": Scene("none", "qwen32b-910b-lora", {**BASE, "torch": "2.13.0+cpu"}),
    "amd": Scene(
        "rocm-smi-8xmi300x", "qwen3.5-27b-mi300x-lora",
        {"flash-linear-attention": "0.5.0", **of_set("amd", "+rocm6.4")},
    ),
}  # fmt: skip


def lines_of(scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lines that doctor prints of the scene."""
    show_all(monkeypatch)
    monkeypatch.setattr(driver, "_EXTRA_FOLDERS", ())
    monkeypatch.setenv("PATH", str(folder / "bin"))
    for tool in (RECORDED / scene.folder).glob("*-smi"):
        write(folder / "bin" / tool.name, ASKED.format(tool=tool))
        (folder / "bin" / tool.name).chmod(0o755)
    files = {"torch/version.py": version_file(scene.packages["torch"])}
    places = site(folder / "site", scene.packages, files=files)
    home = folder / "cann"
    home.mkdir()
    for part in ("toolkit", "ops"):
        (home / f"ascend_{part}_install.info").write_text(f"version={scene.cann}\n")
    environment = {"ASCEND_HOME_PATH": str(home)} if scene.cann else {}
    document = load_with_overrides(*locate_recipe(scene.recipe, ()))
    run, context = diagnosis.run_and_context(document, None)
    context = context._replace(root=folder, environment=environment, site_packages=places)
    asked = ("start" if name == "package" else name for name in SHOWN)
    monkeypatch.setattr(diagnosis, "CHECKS", {name: diagnosis.CHECKS[name] for name in asked})
    shown = [line for line in diagnosis.run_checks(run, context) if line.what in SHOWN]
    text = format_diagnosis(diagnosis.Diagnosis("here", None, None, tuple(shown), 0, 0))
    return text.replace(str(home), "/usr/local/Ascend/cann").rpartition("\nhere:")[0] + "\n"


@pytest.mark.parametrize("name", SCENES)
def test_doctor_says_what_the_page_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    page, block = PAGE.read_text("utf-8"), re.compile(rf"(<!-- doctor {name} -->\n```text\n)(.*?)(```\n)", re.DOTALL)
    lines = lines_of(SCENES[name], tmp_path, monkeypatch)
    if request.config.getoption("--golden"):
        PAGE.write_text(block.sub(lambda match: match[1] + lines + match[3], page), "utf-8")
    else:
        shown = block.search(page)
        assert shown
        assert shown[2] == lines
    assert ("error" in lines) == (name == "ascend-without")


def section(title: str) -> str:
    return PAGE.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("vendor", "title"), [("nvidia", "NVIDIA"), ("ascend", "Ascend"), ("amd", "AMD"), ("cpu", "CPU")]
)
def test_the_page_installs_the_sets_of_the_table(vendor: str, title: str) -> None:
    one = SETS[vendor]
    pairs = [f"{name}=={release}" for name, release in one["packages"].items() if name != "torch-npu"]
    assert f"pip install {' '.join(pairs)} --index-url {one['index']}\n" in section(title)
    overview = section("What goes together")
    assert all(str(release) in overview for release in (*one["packages"].values(), one.get("cann", "")))
    if cann := one.get("cann"):
        assert f"ascend-cann-toolkit=={cann} ascend-cann-910b-ops=={cann} " in section(title)
        driver = yaml_table("together")["cann"]["driver"][release_series(str(cann))]
        assert f"CANN {cann} wants HDK {driver} or later" in section(title)


def test_the_extras_are_those_of_the_page() -> None:
    """What the page says that each brings, and the bounds that doctor compares with."""
    extras: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    bounds = yaml_table("packages")["bounds"]["releases"]
    for name in ("amd", "ascend"):
        (deepspeed,) = (each for each in extras[name] if each.startswith("deepspeed"))
        assert deepspeed.endswith(f",{bounds['deepspeed']}")
    pinned = {f"{name}=={release}" for name, release in SETS["ascend"]["packages"].items()}
    assert pinned <= {*extras["ascend"]}
    (row,) = yaml_table("packages")["predict_with_generate"]
    assert extras["metrics"] == row["packages"]
    assert not any("bitsandbytes" in each or "liger" in each for each in extras["ascend"])
