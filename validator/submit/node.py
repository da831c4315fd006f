"""What every node runs where an engine starts one script on each: SkyPilot, Kubernetes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from validator.submit import shell
from validator.submit.site import Site
from validator.submit.work import Work
from validator.train import environment

PORT = "29500"
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
_ASIDE = "# A checkpoint that was being written when the run was interrupted: it goes on from the one before"
_AGAIN = "overwrite_output_dir=false"


def script(work: Work, site: Site, place: Iterable[str]) -> str:
    """From the site's lines to LLaMA-Factory. `place` sets `NODE_RANK` and what `shell.meeting` says."""
    anew = work.overwrites and work.resumes
    lines = [
        *shell.set_up(site),
        "",
        *place,
        *(_HOST.splitlines() if work.torchrun and work.nodes > 1 else ()),
        *environment.setup_lines(work.device, work.devices, work.nodes),
        *shell.exports(work.environment),
        "",
        f"output={shlex.quote(str(work.output))}",
        *shell.array("arguments", [str(work.recipe), *work.overrides, *([_AGAIN] if anew else [])]),
        *shell.prologue(work),
        "",
        'if [ "$NODE_RANK" -eq 0 ]; then',
        *(_ANEW.splitlines() if anew else ()),
        _ASIDE,
        *shell.aside(),
        "fi",
        *_resuming(work),
        f"exec {shell.start(work)}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _resuming(work: Work) -> list[str]:
    """Overrides with which the run goes on from a checkpoint of its own."""
    words = [word for word in work.resuming if word != _AGAIN] if work.resumes else []
    own = 'compgen -G "$output/checkpoint-*/trainer_state.json" >/dev/null'
    return [f"if {own}; then arguments+=({shlex.join(words)}); fi"] if words else []
