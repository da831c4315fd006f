"""A SkyPilot task with its resources. `sky jobs launch` runs the task on any cloud that SkyPilot supports, on
Kubernetes, or on machines over SSH.

Sources: docs.skypilot.co, "Task YAML" and "Environment variables"; sky/utils/schemas.py of 0.14.1. `network_tier` and
`--secret` (sky/client/cli/flags.py) came with 0.10.0; 0.9.3 has neither."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from validator.errors import RecipeError
from validator.knowledge.node_environment import node_needs
from validator.knowledge.tables import yaml_table
from validator.recipe import atomic_write
from validator.recipe.atomic_write import scratch_folder
from validator.recipe.yaml_writer import Commented, YamlValue, yaml_document
from validator.submit import cluster_job, node_script, scheduler_client
from validator.submit.cluster_job import ClusterJob, RunToSubmit, Submission, require_single
from validator.submit.site_file import Site, SkyPilot
from validator.submit.uploads import Uploads, collect_uploads
from validator.wording import relative_to_cwd

# Where a run starts, and where relative mounts lead to (sky/skylet/constants.py, SKY_REMOTE_WORKDIR).
WORK_FOLDER = "~/sky_workdir"
_PROGRAM_PLACE = ".lmf-recipes/job"  # of the program of the job
# GiB: what a task gets that asks for nothing (sky/resources.py), and what system and packages take of it.
_DEFAULT_DISK_GIB, _SYSTEM_DISK_GIB = 256, 60
_MEMORY_COMMENT = "GiB: the high end of the prediction, with headroom. SkyPilot makes /dev/shm a share of main memory."
_MOUNTS_COMMENT = f"What the run reads of this machine, by its place in {WORK_FOLDER}."
_NETWORK_COMMENT = (
    "EFA of AWS, GPUDirect of GCP, InfiniBand of Nebius. Clouds where SkyPilot cannot set such a network up are left "
    "out; `skypilot: {resources: {network_tier: standard}}` of the site file admits them."
)
# Clouds that SkyPilot can give a fast network (CUSTOM_NETWORK_TIER in sky/clouds/*.py); empty: SkyPilot chooses.
_FAST_CLOUDS = ("", "aws", "gcp", "nebius")
# Variables of this shell that a job gets as secrets, by name.
_SECRETS = ("HF_TOKEN", "WANDB_API_KEY")
_RECOVERY_COMMENT = "A run that ends with an error is started once more, and goes on from its last checkpoint."


def persistent_mounts(section: SkyPilot) -> list[str]:
    """Return the paths on a node where the buckets and volumes of the site file are mounted. Files at these paths
    outlive the node."""
    return [*section.mounts, *section.volumes]


def output_persists(work: ClusterJob, section: SkyPilot) -> bool:
    """True if the output folder is in a bucket or volume, so that the results outlive the nodes."""
    output = PurePosixPath(work.output)
    return any(output.is_relative_to(mount.removeprefix(f"{WORK_FOLDER}/")) for mount in persistent_mounts(section))


def task_resources(work: ClusterJob, section: SkyPilot) -> Mapping[str, YamlValue]:
    """Return the `resources` of the SkyPilot task, for each node. Keys in the site file override the computed ones.
    Raises RecipeError if SkyPilot has no name for the device."""
    disk = _SYSTEM_DISK_GIB + (work.disk_gib or 0)
    ours: dict[str, YamlValue] = {} if "accelerators" in section.resources else _task_accelerators(work, section)
    ours["cpus"] = f"{work.cpus}+"
    if work.memory_gib:
        ours["memory"] = Commented(f"{work.memory_gib}+", f"{_MEMORY_COMMENT} {work.out_of_memory_hint}")
    if disk > _DEFAULT_DISK_GIB:
        ours["disk_size"] = Commented(disk, "GiB: the model, the checkpoints that lie there at once, and packages.")
    if work.nodes > 1 and _can_ask_for_network(section):
        ours["network_tier"] = Commented("best", _NETWORK_COMMENT)
    if section.managed and output_persists(work, section):
        recovery: YamlValue = {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 1}
        ours["job_recovery"] = Commented(recovery, _RECOVERY_COMMENT)
    return {**ours, **section.resources}


def _can_ask_for_network(section: SkyPilot) -> bool:
    """True if SkyPilot may be asked for the fastest network between nodes: it refuses that for other clouds, and for an
    image that is no Docker image (sky/resources.py, _try_validate_image_id). A Kubernetes cluster may lack one."""
    cloud = str(section.resources.get("infra", section.resources.get("cloud", ""))).partition("/")[0].lower()
    return cloud in _FAST_CLOUDS and str(section.resources.get("image_id", "docker:")).startswith("docker:")


def _task_accelerators(work: ClusterJob, section: SkyPilot) -> dict[str, YamlValue]:
    """Return the `accelerators` entry of the task: SkyPilot's names for the device, each with the number of devices.
    SkyPilot may choose any of the names. The entry is empty for a run on CPUs. Raises RecipeError if SkyPilot has no
    name for the device."""
    if work.device.vendor == "cpu":
        return {}
    skypilot_names = yaml_table("engines").get(work.device.id, {}).get("skypilot")
    names = [section.accelerator] if section.accelerator else skypilot_names
    if not names:
        raise RecipeError(
            f"SkyPilot knows no {work.device.name}; submit it `--to slurm` or `--to kubernetes`, or name under "
            "`skypilot: accelerator:` of the site file what your own pool calls it"
        )
    return {"accelerators": dict.fromkeys(names, work.devices)}


# Beginnings of `infra` for machines of one's own.
_OWN_INFRA = ("k8s", "kubernetes", "ssh", "slurm")


def prepare(runs: Sequence[RunToSubmit], site: Site) -> Submission:
    """Return the SkyPilot task of one run. Raises RecipeError if there are several runs, if SkyPilot has no name for
    the device, or if pip alone cannot make the device run and the site file names no image."""
    work, uploads = collect_uploads(require_single(runs), persistent_mounts(site.skypilot))
    task = task_file(work, site, uploads)
    lost = cluster_job.loss_notes(work) if output_persists(work, site.skypilot) else ()
    return Submission(task, [*task_notes(work, site), *lost], lambda: launch_task(task, work, site))


def task_file(work: ClusterJob, site: Site, uploads: Uploads) -> str:
    """Return the text of the task file. Raises RecipeError if SkyPilot has no name for the device, or if pip alone
    cannot make the device run and the site file names no image."""
    section, resources = site.skypilot, task_resources(work, site.skypilot)
    # Paths on this machine count from the folder that `sky` is started in.
    brought = {_PROGRAM_PLACE: node_script.program_folder(), **uploads.files, **uploads.data}
    sent = {place: str(relative_to_cwd(path)) for place, path in brought.items()}
    volumes: dict[str, YamlValue] = {"volumes": section.volumes} if section.volumes else {}
    rendezvous = node_script.script_lines("skypilot")
    task: dict[str, YamlValue] = {
        "name": _task_name(work),
        "num_nodes": work.nodes,
        "resources": resources,
        "file_mounts": Commented({**sent, **section.mounts}, _MOUNTS_COMMENT),
        **volumes,
        "setup": _setup_script(work, site),
        "run": node_script.build_node_script(
            work, site, "SkyPilot", _PROGRAM_PLACE, section.setup, rendezvous, work.time_limit_h
        ),
    }
    head = [f"{work.name} on {work.machine}, by `lmf-recipes submit --to skypilot`."]
    if section.managed:
        head.append("`sky jobs launch FILE` runs it, and starts it again where an instance is taken away.")
    tokens = " ".join(f"--secret {name}" for name in _SECRETS)
    head.append(f"`{tokens}` hands over the tokens of your shell. Needs SkyPilot 0.10 or later.")
    return yaml_document(task, [*head, *task_notes(work, site)])


def task_notes(work: ClusterJob, site: Site) -> Iterator[str]:
    """Yield notes for the user: the results are on disks that are deleted with the nodes, the nodes stay after the run,
    or uploaded files may not reach the nodes (sky/utils/controller_utils.py,
    maybe_translate_local_file_mounts_and_sync_up)."""
    section = site.skypilot
    if not section.managed and "autostop" not in section.resources:
        yield "the nodes stay, and cost, after the run: `sky down` them, or set `skypilot: resources: autostop:`"
    if section.managed and str(section.resources.get("infra")).lower().startswith(_OWN_INFRA):
        yield "managed jobs send files through a cloud's bucket: where there is none, set `skypilot: managed: false`"
    if output_persists(work, section):
        return
    shared = ", and several nodes cannot go on from checkpoints that each has parts of" if work.nodes > 1 else ""
    found = f"`{work.output}` is on disks of the nodes: what was trained is lost where they are taken away{shared}"
    remedy = "name a bucket under `skypilot: mounts:`, or a volume under `skypilot: volumes:`, of the site file"
    yield f"{found}; {remedy}"


def launch_task(text: str, work: ClusterJob, site: Site) -> Iterator[str]:
    """Hand the task to `sky`, which shows the cost and asks before the task starts. Yield lines that say how to follow
    and cancel the task. Raises RecipeError if `sky` is not installed or fails."""
    name = _task_name(work)
    words = ["sky", "jobs", "launch"] if site.skypilot.managed else ["sky", "launch", "--cluster", name]
    secrets = [word for name in _SECRETS if name in os.environ for word in ("--secret", name)]
    with scratch_folder() as folder:
        task = folder / "task.yaml"
        atomic_write.create_file(task, text)
        command = [*words, "--detach-run", *secrets, str(task)]
        scheduler_client.run_interactive(command, "pip install skypilot, then `sky check`")
    yield f"log: sky jobs logs --name {name}" if site.skypilot.managed else f"log: sky logs {name}"
    yield f"cancel: sky jobs cancel --name {name}" if site.skypilot.managed else f"cancel: sky down {name}"


def _task_name(work: ClusterJob) -> str:
    """Return the run's name in a form that SkyPilot accepts: letters, digits and dashes (sky/task.py)."""
    return re.sub(r"[^A-Za-z0-9]+", "-", work.name).strip("-") or "run"


def _setup_script(work: ClusterJob, site: Site) -> str:
    """Return the bash script that installs the run's packages on a new node, or in the image that the site file names.
    Raises RecipeError if there is no image and pip alone cannot make the device run."""
    if "image_id" in site.skypilot.resources:
        brought = cluster_job.image_install_lines(work)
    elif not node_needs(work.device).pip_torch:
        image = cluster_job.published_image(work)
        such = f", such as docker:{image}" if image else ""
        found = f"pip alone cannot make {work.device.name} run"
        raise RecipeError(f"{found}; name an image under `skypilot: resources: image_id:` of the site file{such}")
    else:
        pip_lines = map(cluster_job.pip_line, (work.torch_words, work.pip_requirements))
        brought = ["# PyTorch for the devices, then the releases that the recipe was judged for", *pip_lines]
    lines = [*node_script.site_setup_lines(site, site.skypilot.setup), *brought]
    return "".join(f"{line}\n" for line in lines)
