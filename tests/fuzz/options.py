"""The command line: options of all commands, and overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from fuzz import given, odd
from fuzz.given import Input, Words
from fuzz.left import LOG
from fuzz.recipes import override
from fuzz.rows import SET

# None that leads out of the folder that the program runs in: some options name a file to be written.
_WORDS = [word for word in odd.WORDS if not word.startswith(("/", "~")) and ".." not in word]


_RUNS: Sequence[Words] = (
    *(("explain", "r.yaml"),) * 2,
    ("explain", "--format", "json", "--machine", "8xa100-80g", "r.yaml"),
    ("train", "--dry-run", "--machine", "8xa100-80g", "r.yaml"),
    ("submit", "--to", "slurm", "--dry-run", "--machine", "2x8xa100-80g", "r.yaml"),
    ("submit", "--to", "kubernetes", "--dry-run", "--machine", "2x8xa100-80g", "r.yaml"),
    ("submit", "--to", "skypilot", "--dry-run", "--machine", "8xa100-80g", "r.yaml"),
)


def overrides(random: Random) -> Input:
    """A command with one to three overrides."""
    return _asked(random, (*random.choice(_RUNS), *(override(random) for _ in range(random.choice((1, 1, 2, 3))))))


def options(random: Random) -> Input:
    """A command with one to three options more, and at times an odd word."""
    samples = given.samples()
    words = list(random.choice(samples["commands"]))
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(1, len(words) + 1)
        words[place:place] = _option(random, samples["options"], samples["flags"])
    if random.random() < 0.2:
        words[random.randrange(len(words))] = random.choice((*_WORDS, "-"))
    return _asked(random, tuple(words))


def _option(random: Random, valued: Mapping[str, Sequence[str]], flags: Sequence[str]) -> Words:
    if random.random() < 0.35:
        return (random.choice(flags),)
    option = random.choice(list(valued))
    return (option, random.choice(valued[option] if random.random() < 0.7 else _WORDS))


def _asked(random: Random, words: Words) -> Input:
    """The words, as far as a command line can hold them; none that starts a run."""
    passed = tuple(word.replace("\x00", "").encode("utf-8", "replace").decode() for word in words)
    if {"train", "submit"} & {*passed} and "--dry-run" not in passed:
        passed = (*passed[:1], "--dry-run", *passed[1:])
    block = random.choice((b"", b"# /// recipe\n# machine: 8xa100-80g\n# host_ram_gib: 512\n# ///\n"))
    return Input(passed, {**SET, "r.yaml": block + given.recipe(), "log.jsonl": LOG[0].encode()})
