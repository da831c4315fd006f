"""What each node does at the end of every engine's job. It need not have lmf-recipes. Variables that are read:
`NODE_RANK`, `MASTER_ADDR`, `MASTER_PORT` and `arguments`, the recipe and its overrides."""

from __future__ import annotations

from validator.quoting import quote
from validator.submit.work import Work
from validator.train import environment

_PLACE = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def setup(work: Work) -> list[str]:
    """What devices and network want. torchrun compares addresses to see which node keeps the store where all meet, and
    none does where the first has several (torch, elastic/rendezvous/utils.py)."""
    host = [
        "# The first node is where they meet, by whatever address",
        'export PET_RDZV_CONF="is_host=$((NODE_RANK == 0))"',
    ]
    lines = environment.setup_lines(work.device, work.devices, work.nodes)
    return [*lines, *(host if work.torchrun and work.nodes > 1 else ())]


def examine(work: Work) -> list[str]:
    """Is this node fit for the run? Where lmf-recipes is installed."""
    return [
        "# Is this node fit for the run? The doctor ends with 1 where it is not; any other end is its own",
        "if command -v lmf-recipes >/dev/null; then",
        f'  if lmf-recipes doctor --machine {work.machine} "${{arguments[@]}}"; then code=0; else code=$?; fi',
        '  if [ "$code" -eq 1 ]; then',
        '    echo "lmf-recipes: not started for the errors above; if they are wrong, take doctor out of the job" >&2',
        "    exit 1",
        "  fi",
        "fi",
    ]


def start(work: Work) -> str:
    """What starts the run."""
    words = [f'"${word}"' if word in _PLACE else quote(word) for word in work.starter]
    return " ".join([*words, '"${arguments[@]}"'])
