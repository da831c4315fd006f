"""A task of SkyPilot: `sky jobs launch` runs it on any cloud that it knows, on Kubernetes or on machines over SSH.

Keys and variables: docs.skypilot.co, "Task YAML" and "Environment variables"; sky/utils/schemas.py of 0.14.1."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from validator.diagnostic import RecipeError
from validator.submit import client, container, entry, instance, shell
from validator.submit.manifest import Said, Value, comment, document
from validator.submit.order import Order, Run, alone
from validator.submit.parcel import Parcel, from_here, pack
from validator.submit.site import Site, SkyPilot
from validator.submit.work import Work
from validator.write import file
from validator.write.scratch import scratch

# Vendors whose PyTorch is the one that pip installs.
_WHEELS = ("nvidia", "cpu")
# Beginnings of `infra` for machines of one's own.
_OWN = ("k8s", "kubernetes", "ssh", "slurm")


def order(runs: Sequence[Run], site: Site) -> Order:
    """The task of one run. Raises RecipeError as `text` does."""
    work, parcel = pack(alone(runs), instance.lasting(site.skypilot))
    task = text(work, site, parcel)
    return Order(task, [*notes(work, site)], lambda: submit(task, work, site))


def text(work: Work, site: Site, parcel: Parcel) -> str:
    """The task file. Raises RecipeError where SkyPilot knows no such device."""
    own = site.skypilot
    resources = instance.resources(work, own)
    brings: dict[str, Value] = {} if "image_id" in own.resources else {"setup": _setup(work, site)}
    volumes: dict[str, Value] = {"volumes": own.volumes} if own.volumes else {}
    task: dict[str, Value] = {
        "name": _name(work),
        "num_nodes": work.nodes,
        "resources": resources,
        "file_mounts": Said(
            _mounts(parcel, own), f"What the run reads of this machine, by its place in {instance.FOLDER}."
        ),
        **volumes,
        **brings,
        "run": _run(work, site),
    }
    return "".join(f"{line}\n" for line in _head(work, site)) + document(task)


def notes(work: Work, site: Site) -> Iterator[str]:
    """What to say where the results are on disks that go with the nodes, where the nodes stay, and where files may not
    come to them (sky/utils/controller_utils.py, maybe_translate_local_file_mounts_and_sync_up)."""
    own = site.skypilot
    if not own.managed and "autostop" not in own.resources:
        yield "the nodes stay, and cost, after the run: `sky down` them, or set `skypilot: resources: autostop:`"
    if own.managed and str(own.resources.get("infra")).lower().startswith(_OWN):
        yield "managed jobs send files through a cloud's bucket: where there is none, set `skypilot: managed: false`"
    if instance.lasts(work, own):
        return
    shared = ", and several nodes cannot go on from checkpoints that each has parts of" if work.nodes > 1 else ""
    yield (
        f"`{work.output}` is on disks of the nodes: what was trained is lost where they are taken away{shared}; name a "
        "bucket under `skypilot: mounts:`, or a volume under `skypilot: volumes:`, of the site file"
    )


def submit(text: str, work: Work, site: Site) -> Iterator[str]:
    """Hand the task to `sky`, which says what it costs and asks before it starts. Raises RecipeError where it is not
    installed or refuses."""
    name = _name(work)
    words = ["sky", "jobs", "launch"] if site.skypilot.managed else ["sky", "launch", "--cluster", name]
    secret = ["--secret", "HF_TOKEN"] if "HF_TOKEN" in os.environ else []
    with scratch() as folder:
        task = folder / "task.yaml"
        file.create(task, text)
        client.shown([*words, "--detach-run", *secret, str(task)], "pip install skypilot, then `sky check`")
    yield f"log: sky jobs logs --name {name}" if site.skypilot.managed else f"log: sky logs {name}"
    yield f"cancel: sky jobs cancel --name {name}" if site.skypilot.managed else f"cancel: sky down {name}"


def _name(work: Work) -> str:
    """What SkyPilot takes for a name (sky/task.py)."""
    return re.sub(r"[^A-Za-z0-9]+", "-", work.name).strip("-") or "run"


def _head(work: Work, site: Site) -> Iterator[str]:
    yield from comment(f"{work.name} on {work.machine}, by `lmf-recipes submit --to skypilot`.")
    if site.skypilot.managed:
        yield from comment("`sky jobs launch FILE` runs it, and starts it again where an instance is taken away.")
    for each in notes(work, site):
        yield from comment(each)
    yield ""


def _mounts(parcel: Parcel, own: SkyPilot) -> Mapping[str, Value]:
    """Paths here count from the folder that `sky` is started in."""
    here = {place: from_here(path) for place, path in {**parcel.files, **parcel.data}.items()}
    return {**here, **own.mounts}


def _setup(work: Work, site: Site) -> str:
    if work.device.vendor not in _WHEELS:
        raise RecipeError(
            f"pip brings no PyTorch for {work.device.name}; name an image under `skypilot: resources: image_id:` of "
            "the site file"
        )
    brought = ["# The releases that the recipe was judged for", container.pip(work)]
    lines = [*shell.set_up(site, site.skypilot.setup), *brought]
    return "".join(f"{line}\n" for line in lines)


def _run(work: Work, site: Site) -> str:
    return entry.script(work, site, site.skypilot.setup, shell.script("skypilot"), work.limit)
