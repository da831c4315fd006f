"""The script that every node runs where an engine starts one on each: SkyPilot, Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable

from validator.quoting import join, quote
from validator.submit import node, shell
from validator.submit.site import Site
from validator.submit.work import Work
from validator.train import bash

# Switches that keep the hub's libraries to what was downloaded before, which was here and not on a node.
_HERE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_AGAIN = "overwrite_output_dir=false"


def script(
    work: Work, site: Site, own: Iterable[str], place: Iterable[str], limit: float | None = None, *, first: bool = False
) -> str:
    """From the site's lines, and the engine's `own` of them, to LLaMA-Factory. `place` sets RDZV_ID and what `node`
    reads. `limit`: hours after which the node ends the run, where its engine would not. `first`: the script is the
    first process of a container, and the one that is told to end."""
    anew = work.overwrites and work.resumes
    start = f"{f'timeout {round(limit * 3600)} ' if limit else ''}{node.start(work)}"
    lines = [
        *shell.set_up(site, own),
        "",
        *place,
        *shell.launcher(work),
        *node.setup(work),
        *shell.exports(_variables(work, site)),
        "",
        f"output={quote(str(work.output))}",
        *shell.array("arguments", [str(work.recipe), *work.overrides, *([_AGAIN] if anew else [])]),
        *node.examine(work),
        "",
        *_left(work, anew),
        *_resuming(work, anew),
        *([*shell.script("ending"), f"{start} &", "wait $!"] if first else [f"exec {start}"]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _variables(work: Work, site: Site) -> dict[str, str]:
    """Those of the run, but for switches of this machine."""
    return {name: value for name, value in work.environment.items() if name in site.environment or name not in _HERE}


def _left(work: Work, anew: bool) -> list[str]:
    """What earlier starts have left is put in order: by the first node, or by each where each has a folder of its
    own."""
    order = [*(shell.script("anew") if anew else ()), "set_aside"]
    alone = ['if [ "$NODE_RANK" -eq 0 ]; then', *bash.inside(order), "fi"]
    return [*shell.set_aside(), *(order if work.local else alone)]


def _resuming(work: Work, anew: bool) -> list[str]:
    """Overrides with which the run goes on from a checkpoint of its own, beside those that it always has."""
    words = [word for word in work.resuming if not (anew and word == _AGAIN)] if work.resumes else []
    own = 'compgen -G "$output/checkpoint-*/trainer_state.json" >/dev/null'
    return [f"if {own}; then arguments+=({join(words)}); fi"] if words else []
