"""A job of Kubernetes: a TrainJob of Kubeflow Trainer 2.2 or later, or a PyTorchJob of its predecessor, and a
ConfigMap with the files that it reads; `kubectl`, which creates both."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from validator.errors import RecipeError
from validator.escaping import shell_join, shell_quote
from validator.recipe.safe_read import read_text
from validator.recipe.yaml_writer import YamlValue, comment_lines, yaml_document
from validator.submit import cluster_job, kubernetes_pod, node_script, scheduler_client
from validator.submit.cluster_job import ClusterJob, RunToSubmit, Submission, require_single
from validator.submit.site_file import Kubernetes, Site
from validator.submit.uploads import Uploads, collect_uploads

# Of a ConfigMap, all keys together (kubernetes.io/docs/concepts/configuration/configmap).
_MAX_CONFIGMAP_BYTES = 1 << 20
# Names of pods and services are made of a job's name, and have at most 63 letters.
_MAX_NAME_LETTERS = 40
_DOCUMENT_SEPARATOR = "---\n"


def prepare(runs: Sequence[RunToSubmit], site: Site) -> Submission:
    """Return the job of one run. Raises RecipeError as `job_documents` does."""
    work, uploads = collect_uploads(require_single(runs), [site.kubernetes.mount])
    job = job_documents(work, site, uploads)
    return Submission(job, [*volume_notes(site, uploads)], lambda: create_job(job, site))


def job_documents(work: ClusterJob, site: Site, uploads: Uploads) -> str:
    """Return job and ConfigMap. Raises RecipeError where the site names no volume, or pods could not see what the run
    reads."""
    section = site.kubernetes
    _check_paths_visible(work, section, uploads)
    kind, name = _job_kind(section), _job_name(work.name)
    files = _configmap_files(work, site, uploads, kind)
    held = f"{name}-{hashlib.sha256(repr(files).encode()).hexdigest()[:8]}"
    space: dict[str, YamlValue] = {"namespace": section.namespace} if section.namespace else {}
    image = section.image or cluster_job.published_image(work)
    if image is None:
        raise RecipeError(
            f"LLaMA-Factory publishes no image that runs on {work.device.name}; name one under `kubernetes: image:` of "
            "the site file"
        )
    inputs = kubernetes_pod.PodInputs(work, section, uploads, image, held)
    job: dict[str, YamlValue] = {
        **kind.head,
        "metadata": {"generateName": f"{name}-", **space},
        "spec": kind.spec(inputs),
    }
    kept: dict[str, YamlValue] = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": held, **space}, "immutable": True, "data": files,
    }  # fmt: skip
    return (
        "".join(f"{line}\n" for line in _header_lines(work, site, uploads))
        + yaml_document(job)
        + _DOCUMENT_SEPARATOR
        + yaml_document(kept)
    )


def volume_notes(site: Site, uploads: Uploads) -> Iterator[str]:
    """Yield what has to be on the volume before the job starts."""
    section = site.kubernetes
    for place in uploads.data:
        seen = PurePosixPath(section.mount, place)
        yield f"`{seen.relative_to(section.mount)}` has to be on the claim `{section.claim}`; pods see it as {seen}"


def create_job(text: str, site: Site) -> Iterator[str]:
    """Hand ConfigMap and job to `kubectl`, the files first. Raises RecipeError where it is not installed or refuses."""
    job, files = text.split(f"\n{_DOCUMENT_SEPARATOR}")  # in files the line is indented
    remedy = "kubernetes.io/docs/tasks/tools says how"
    scheduler_client.run_client(["kubectl", "apply", "--filename=-"], files, remedy)
    said = scheduler_client.run_client(["kubectl", "create", "--filename=-"], job, remedy)
    kind, _, name = said.partition(" ")[0].partition("/")
    words = ["--namespace", site.kubernetes.namespace] if site.kubernetes.namespace else []
    label = _job_kind(site.kubernetes).label
    yield said
    yield f"log: {shell_join(['kubectl', 'logs', '--follow', '--prefix', f'--selector={label}={name}', *words])}"
    yield f"cancel: {shell_join(['kubectl', 'delete', kind, name, *words])}"


def _check_paths_visible(work: ClusterJob, section: Kubernetes, uploads: Uploads) -> None:
    if not section.claim:
        raise RecipeError(
            "what a pod writes is lost with it, and data set files would not be there: name a PersistentVolumeClaim "
            "under `kubernetes: claim:` of the site file"
        )
    for place in (str(work.output), *uploads.data, *uploads.files):
        if not PurePosixPath(section.mount, place).is_relative_to(section.mount):
            raise RecipeError(
                f"pods do not see `{place}`: they see the claim `{section.claim}` at {section.mount}; have it there, "
                "and name it by its path from there"
            )


def _job_kind(section: Kubernetes) -> kubernetes_pod.JobKind:
    if section.kind not in kubernetes_pod.JOB_KINDS:
        raise RecipeError(
            f"`kubernetes.kind` of the site file is `{section.kind}`; it is {' or '.join(kubernetes_pod.JOB_KINDS)}"
        )
    return kubernetes_pod.JOB_KINDS[section.kind]


def _job_name(name: str) -> str:
    """Return a name that Kubernetes accepts for a service, too (RFC 1035)."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"run-{plain}")[:_MAX_NAME_LETTERS].strip("-")


def _header_lines(work: ClusterJob, site: Site, uploads: Uploads) -> Iterator[str]:
    yield from comment_lines(f"{work.name} on {work.machine}, by `lmf-recipes submit --to kubernetes`.")
    yield from comment_lines(
        "`kubectl create -f FILE` starts it; pods that fail or move go on from the last checkpoint."
    )
    for each in volume_notes(site, uploads):
        yield from comment_lines(each)
    yield ""


def _configmap_files(
    work: ClusterJob, site: Site, uploads: Uploads, kind: kubernetes_pod.JobKind
) -> Mapping[str, YamlValue]:
    """Return the script that every node runs, and small files of the recipe, by key. Raises RecipeError where they are
    too large."""
    read = {kubernetes_pod.configmap_key(place): read_text(str(path)) for place, path in uploads.files.items()}
    brought = [
        "# The releases that the recipe was judged for, where the image has others",
        cluster_job.pip_command(work),
    ]
    rendezvous_lines = [
        f"cd {shell_quote(site.kubernetes.mount)}",
        *kind.rendezvous_lines,
        *node_script.script_lines("kubernetes"),
        *([] if site.kubernetes.image else brought),
    ]
    script = node_script.build_node_script(work, site, site.kubernetes.setup, rendezvous_lines, is_pid_1=True)
    files = {kubernetes_pod.SCRIPT_NAME: script, **read}
    if (size := sum(len(each.encode()) for each in files.values())) > _MAX_CONFIGMAP_BYTES:
        raise RecipeError(
            f"recipe, DeepSpeed configuration and data set registry are {size >> 10:,} KiB together, a ConfigMap holds "
            f"{_MAX_CONFIGMAP_BYTES >> 10:,}; leave only the recipe's data sets in the registry"
        )
    return files
