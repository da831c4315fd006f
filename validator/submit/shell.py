"""Lines of bash that the jobs of all engines share. They run on a node, which need not have lmf-recipes.

Variables that they read: `recipe`, `output` (paths), `RDZV_ID` (the job), `MASTER_ADDR` and `MASTER_PORT` (where nodes
meet) and, where `accelerate` starts the processes, `NODE_RANK`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from validator.submit.site import Site
from validator.submit.work import Work

# The Trainer writes trainer_state.json last; transformers' own mark says that a save on a signal was cut off; where the
# node itself died, files can be shorter than they were written. tables/saved.py says the same, which a node need not
# have. A name that begins with `checkpoint-` would still be counted by `save_total_limit` (trainer_utils.py,
# sort_checkpoints).
_ASIDE = """\
python3 - "$output" <<'PYTHON'
import json, pathlib, sys, zipfile

def whole(folder):
    try:
        json.loads((folder / "trainer_state.json").read_text())
        states = (*folder.glob("optimizer.pt"), *folder.glob("global_step*/*.pt"))
        marked = (folder / "checkpoint-is-incomplete.txt").exists()
        return not marked and all(map(full, folder.rglob("*.safetensors"))) and all(map(zipfile.is_zipfile, states))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False

def full(file):
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        head = json.loads(stream.read(min(size, file.stat().st_size)))
    ends = [entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"]
    return file.stat().st_size == 8 + size + max(ends, default=0)

for folder in pathlib.Path(sys.argv[1]).glob("checkpoint-*"):
    if folder.name.removeprefix("checkpoint-").isdecimal() and not whole(folder):
        aside, number = folder.with_name("incomplete-" + folder.name), 1
        while aside.exists():
            aside, number = folder.with_name(f"incomplete-{folder.name}-{number}"), number + 1
        try:
            folder.rename(aside)
        except FileNotFoundError:  # another node was faster
            continue
        print(f"lmf-recipes: {folder} was not written to its end; it is now {aside.name}", file=sys.stderr)
PYTHON"""

_EARLIER = """\
for folder in "$output"/checkpoint-*; do
  if [ -d "$folder" ]; then
    mkdir -p "$output/earlier-$RDZV_ID"
    mv "$folder" "$output/earlier-$RDZV_ID/" || [ ! -d "$folder" ]
  fi
done"""


def set_up(site: Site, modules: Iterable[str] = ()) -> list[str]:
    """The site's lines. Those of others seldom bear `set -u`, so that comes after them."""
    loads = [f"module load {shlex.quote(name)}" for name in modules]
    return ["set -eo pipefail", *loads, *site.setup, "set -u"]


def exports(variables: Mapping[str, str]) -> list[str]:
    """Variables for all that is started."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def array(name: str, words: Iterable[str]) -> list[str]:
    """A variable of several words, one in a line."""
    return [f"{name}=(", *(f"  {shlex.quote(word)}" for word in words), ")"]


def meeting(work: Work, job: str, address: str, port: str) -> list[str]:
    """What LLaMA-Factory's launcher reads to start torchrun elastically, where nodes meet and take their ranks
    (launcher.py). The values are words of bash."""
    place = [f"export RDZV_ID={job} MASTER_ADDR={address} MASTER_PORT={port}"]
    if not work.torchrun:
        return place
    return [f"export FORCE_TORCHRUN=1 NNODES={work.nodes} NPROC_PER_NODE={work.devices}", *place]


def aside() -> list[str]:
    """A checkpoint that was being written when the job was stopped gets another name: the run goes on from the one
    before. Once, on the first node."""
    return _ASIDE.splitlines()


def earlier() -> list[str]:
    """Checkpoints of an earlier run, which `overwrite_output_dir` passes over, are set aside, else this run would go on
    from them once it is started again. At the first start, on the first node."""
    return _EARLIER.splitlines()


def prologue(work: Work, arguments: str = "${arguments[@]}") -> list[str]:
    """Is this node fit for the run? Where lmf-recipes is installed; it ends with 1 if not, and any other end is its
    own. `arguments` are words of bash: the recipe and its overrides."""
    examine = f'lmf-recipes doctor --machine {work.machine} "{arguments}"'
    return ["# Is this node fit for the run?",
            f"if command -v lmf-recipes >/dev/null; then {examine} || [ $? -ne 1 ]; fi"]  # fmt: skip


def start(work: Work, rank: str = '"$NODE_RANK"', arguments: str = "${arguments[@]}") -> str:
    """What each node starts with the recipe and its overrides. `rank` and `arguments` are words of bash."""
    place = {"NODE_RANK": rank, "MASTER_ADDR": '"$MASTER_ADDR"', "MASTER_PORT": '"$MASTER_PORT"'}
    return " ".join([*(place.get(word) or shlex.quote(word) for word in work.starter), f'"{arguments}"'])
