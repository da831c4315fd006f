"""What every node runs where an engine starts one script on each: SkyPilot, Kubernetes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from validator.submit import shell
from validator.submit.site import Site
from validator.submit.work import Work
from validator.train import environment

_HOST = """\
# torchrun would guess from host names whether nodes meet at this one (torch, c10d_rendezvous_backend.py)
export PET_RDZV_CONF="is_host=$((NODE_RANK == 0))\""""
# The folder that is made tells a later start of this job, which goes on, from its first.
_ANEW = """\
# The recipe starts anew (overwrite_output_dir): what another job has left is set aside, once
earlier="$output/earlier-$RDZV_ID"
if [ ! -e "$earlier" ]; then
  mkdir -p "$earlier"
  find "$output" -mindepth 1 -maxdepth 1 ! -name 'earlier-*' -exec mv {} "$earlier" \\;
fi"""
# Switches that keep the hub's libraries to what was downloaded before, which was here and not on a node.
_HERE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_ASIDE = "# A checkpoint that was being written when the run was interrupted: it goes on from the one before"
_AGAIN = "overwrite_output_dir=false"


def script(work: Work, site: Site, place: Iterable[str], limit: float | None = None) -> str:
    """From the site's lines to LLaMA-Factory. `place` sets `NODE_RANK` and what `shell.meeting` says. `limit`: hours
    after which the node ends the run, where its engine would not."""
    anew = work.overwrites and work.resumes
    within = f"timeout {round(limit * 3600)} " if limit else ""
    lines = [
        *shell.set_up(site),
        "",
        *place,
        *(_HOST.splitlines() if work.torchrun and work.nodes > 1 else ()),
        *environment.setup_lines(work.device, work.devices, work.nodes),
        *shell.exports(_variables(work, site)),
        "",
        f"output={shlex.quote(str(work.output))}",
        *shell.array("arguments", [str(work.recipe), *work.overrides, *([_AGAIN] if anew else [])]),
        *shell.prologue(work),
        "",
        *_left(work, anew),
        *_resuming(work),
        f"exec {within}{shell.start(work)}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _variables(work: Work, site: Site) -> dict[str, str]:
    """Those of the run, but for switches of this machine."""
    return {name: value for name, value in work.environment.items() if name in site.environment or name not in _HERE}


def _left(work: Work, anew: bool) -> list[str]:
    """What earlier starts have left is put in order: by the first node, or by each where each has a folder of its
    own."""
    lines = [*(_ANEW.splitlines() if anew else ()), _ASIDE, *shell.aside()]
    return lines if work.local else ['if [ "$NODE_RANK" -eq 0 ]; then', *lines, "fi"]


def _resuming(work: Work) -> list[str]:
    """Overrides with which the run goes on from a checkpoint of its own."""
    words = [word for word in work.resuming if word != _AGAIN] if work.resumes else []
    own = 'compgen -G "$output/checkpoint-*/trainer_state.json" >/dev/null'
    return [f"if {own}; then arguments+=({shlex.join(words)}); fi"] if words else []
