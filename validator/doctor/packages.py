"""Releases of packages that go together, by what they ask of each other and by what is known to fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from validator.diagnostic import RecipeError
from validator.doctor import ranges
from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.here.installed import Installed, installed, normal
from validator.job.job import Job
from validator.tables import releases, switch
from validator.tables.data import listing

_WHAT = "packages"
# What LLaMA-Factory compares on start, and stops for (extras/misc.py, check_dependencies).
_COMPARED = re.compile(r"def check_dependencies.*?(?=\ndef |\Z)", re.DOTALL)
_CHECK = re.compile(r'check_version\("([^"]+)"\)')
# What is named where all is well.
_TOLD = ("llamafactory", "transformers", "torch", "torch-npu", "deepspeed", "peft", "trl", "accelerate")


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What does not go together, and what is there."""
    there = installed(node.folders)
    if "llamafactory" not in there.releases:
        wanted = f"llamafactory {releases.pairs(job.header)[0][0] if job else releases.newest()[0]}"
        remedy = f"pip install {wanted.replace(' ', '==')}"
        yield Line("error" if job else "warning", _WHAT, "llamafactory is not installed", wanted, remedy)
        return
    if not ranges.readable():
        yield Line("warning", _WHAT, "releases are not compared", "packaging", "pip install packaging")
        return
    faults = [*_of_recipe(job, there), *_faults(there)]
    yield from faults
    if not any(line.state == "error" for line in faults):
        yield Line("ok", _WHAT, ", ".join(f"{name} {there.releases[name]}" for name in _TOLD if name in there.releases))


def _of_recipe(job: Job | None, there: Installed) -> Iterator[Line]:
    with suppress(RecipeError):  # a release of somebody's own, which no range means
        for problem in releases.outside(job.header, there.releases) if job else ():
            yield Line("error", _WHAT, problem)


def _faults(there: Installed) -> Iterator[Line]:
    """Each package that is out of place is told once: by who stops for it, else by who asks."""
    told: set[str] = set()
    for name, line in (*_stops(there), *_fails(there), *_asked(there)):
        if name not in told:
            told.add(name)
            yield line


def _stops(there: Installed) -> Iterator[tuple[str, Line]]:
    compared = _COMPARED.search(there.text("llamafactory/extras/misc.py"))
    if compared and not switch.on("DISABLE_VERSION_CHECK"):
        for name, wanted in ranges.read(_CHECK.findall(compared[0])):
            yield from _unmet(there, "llamafactory", "error", name, wanted)


def _asked(there: Installed) -> Iterator[tuple[str, Line]]:
    asked = listing("together")["asked"]
    for package in (*asked["stops"], *asked["warns"]):
        # LLaMA-Factory's metadata are narrower than what it stops for.
        state: State = "error" if package in asked["stops"] and package != "llamafactory" else "warning"
        for name, wanted in ranges.read(there.requirements(package)):
            yield from _unmet(there, package, state, name, wanted)


def _unmet(there: Installed, package: str, state: State, name: str, wanted: str) -> Iterator[tuple[str, Line]]:
    release = there.releases.get(normal(name))
    asks = f"{package} {there.releases[package]} wants {name}{wanted}"
    remedy = f'pip install "{name}{wanted}"'
    if release is None and not there.has_module(name.replace("-", "_")) and package == "llamafactory":
        missing: State = "error" if normal(name) in listing("together")["asked"]["imported"] else state
        yield normal(name), Line(missing, _WHAT, f"{name} is not installed", asks, remedy)
    elif release is not None and not ranges.admits(wanted, release):
        yield normal(name), Line(state, _WHAT, f"{name} {release}", asks, remedy)


def _fails(there: Installed) -> Iterator[tuple[str, Line]]:
    for pair in listing("together")["fails"]["pairs"]:
        release, other = there.releases.get(pair["what"]), there.releases.get(pair["beside"])
        if release and other and ranges.admits(pair["at"], release) and ranges.admits(pair["of"], other):
            together = f"{pair['what']} {release} beside {pair['beside']} {other}"
            yield pair["what"], Line("error", _WHAT, f"{together}: {pair['why']}", f"not {pair['what']}{pair['at']}")
