"""Every recipe of the catalogue for several devices, as a job of SkyPilot and of both operators of Kubeflow: their own
parsers take it, and bash takes its scripts."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import engine_jobs
from support.engine_jobs import ROOT, Job, needs_parsers

from validator.catalogue import bundled_recipes
from validator.errors import RecipeError
from validator.submit import cluster_job
from validator.submit.cluster_job import RunToSubmit
from validator.submit.site_file import Site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sample(one_in=3, whole_for=["tests/fixtures/engines.txt", "validator/submit/*"], together=True),
]

KINDS = ("TrainJob", "PyTorchJob")
# A value, or with None nothing, at a place of a job that is right without: its parser has to find it.
PLANTED: list[tuple[str, list[Any], Any]] = [
    ("skypilot", [0, "num_node"], 2),
    ("skypilot", [0, "num_nodes"], "two"),
    ("skypilot", [0, "name"], "a b"),
    ("skypilot", [0, "resources", "accelerator"], "A100:8"),
    ("skypilot", [0, "resources", "cpus"], [48]),
    ("skypilot", [0, "resources", "memory"], "much"),
    ("skypilot", [0, "resources", "disk_size"], "large"),
    ("skypilot", [0, "resources", "network_tier"], "fast"),
    ("skypilot", [0, "file_mounts", "data/none.json"], "data/none.json"),
    ("skypilot", [0, "file_mounts", "saves"], {"source": "s3://mine", "mode": "MOUNTED"}),
    ("skypilot", [0, "envs"], {"A B": "1"}),
    ("skypilot", [0, "run"], ["llamafactory-cli"]),
    ("TrainJob", [0, "spec", "trainer", "numNode"], 2),
    ("TrainJob", [0, "spec", "trainer", "numNodes"], "2"),
    ("TrainJob", [0, "spec", "trainer", "command"], "bash"),
    ("TrainJob", [0, "spec", "trainer", "env", 0, "valuesFrom"], {}),
    ("TrainJob", [0, "spec", "trainer", "env", 0, "value"], 1),
    ("TrainJob", [0, "spec", "trainer", "resourcesPerNode", "limit"], {}),
    ("TrainJob", [0, "spec", "runtimeRef", "name"], None),
    ("TrainJob", [0, "spec", "podTemplateOverrides"], []),
    ("TrainJob", [0, "spec", "activeDeadlineSeconds"], "3600"),
    ("TrainJob", [0, "spec", "runtimePatches", 0, "manager"], None),
    ("TrainJob", [0, "spec", "runtimePatches", 0, "manager"], "lmf-recipes"),
    ("TrainJob", [0, "metadata", "generatedName"], "mine-"),
    ("PyTorchJob", [0, "spec", "elastic"], {}),
    ("PyTorchJob", [0, "spec", "nprocPerNode"], 8),
    ("PyTorchJob", [0, "spec", "runPolicy", "cleanPod"], "Running"),
    ("PyTorchJob", [0, "spec", "runPolicy", "backoffLimit"], "3"),
    ("PyTorchJob", [0, "spec", "pytorchReplicaSpecs", "Worker", "replica"], 1),
    ("PyTorchJob", [0, "spec", "pytorchReplicaSpecs", "Worker", "replicas"], "1"),
    *((kind, [1, "datas"], {}) for kind in KINDS),
    *((kind, [1, "data", "run.sh"], ["set -e"]) for kind in KINDS),
    *((kind, [1, "immutable"], "true") for kind in KINDS),
]
PODS: dict[str, list[str | int]] = {
    "TrainJob": [0, "spec", "runtimePatches", 0, "trainingRuntimeSpec", "template", "spec", "replicatedJobs", 0,
                 "template", "spec", "template", "spec"],
    "PyTorchJob": [0, "spec", "pytorchReplicaSpecs", "Master", "template", "spec"],
}  # fmt: skip
# What one kind alone refuses.
ALONE: list[tuple[list[str | int], Any]] = [
    (["containers", 0, "volumeMounts", 2, "name"], "scripts"),
    (["containers", 0, "env"], [{"name": "A", "value": "1"}]),
    (["containers", 0, "name"], "trainer"),
    (["priorityClassName"], "high"),
]
INSIDE: list[tuple[list[str | int], Any]] = [
    (["volumes", 0, "persistentVolumeClaim", "claim"], "data"),
    (["volumes", 0, "persistentVolumeClaim", "claimName"], None),
    (["volumes", 1, "emptyDir", "size"], "8Gi"),
    (["volumes", 2, "configMap", "names"], "mine"),
    (["volumes", 2, "name"], "other"),
    (["tolerations", 0, "operators"], "Exists"),
    (["serviceAccount"], {}),
    (["imagePullSecrets"], "registry"),
    (["affinity", "nodeAffinities"], {}),
    (["containers", 0, "volumeMounts", 0, "mountpath"], "/workspace"),
    (["containers", 0, "volumeMounts", 2, "subpath"], "recipe"),
    (["containers", 0, "volumeMounts", 1, "mountPath"], "/workspace"),
    (["containers", 0, "shm"], "8Gi"),
]


def runs(site: Site) -> Iterator[RunToSubmit]:
    """Of all recipes for more than one device."""
    for name in bundled_recipes.recipe_names():
        one = engine_jobs.run(f"recipes/{name}.yaml", site)
        if one.work.nodes * one.work.devices > 1:
            yield one


def jobs(one: RunToSubmit) -> Iterator[Job]:
    """A recipe as a job of each engine; of those that have its devices."""
    name = one.work.name
    with suppress(RecipeError):  # devices that it does not know
        yield Job(name, "skypilot", engine_jobs.task(one, engine_jobs.cloud()))
    image = "" if cluster_job.published_image(one.work) else "mine/llamafactory:1"
    for kind in KINDS:
        site = engine_jobs.cluster(kind=kind, image=image)
        yield Job(f"{name} {kind}", "kubernetes", engine_jobs.job(one, site))


def settled() -> Iterator[Job]:
    """Jobs with all that a site can say."""
    clouds = {
        "resources": {"infra": "kubernetes", "use_spot": True, "image_id": "docker:mine/llamafactory:1"},
        "mounts": {"data": {"name": "mine", "store": "s3", "mode": "MOUNT"}},
        "volumes": {"/saves": "mine"},
    }
    recipe, output = "recipes/qwen72b-a100x16-full-offload.yaml", "output_dir=/saves/mine"
    site = engine_jobs.cloud(**clouds)
    text = engine_jobs.task(engine_jobs.run(recipe, site, output), site)
    assert "max_restarts_on_errors" in text
    yield Job("site", "skypilot", text)
    clusters = {
        "namespace": "nlp", "runtime": "mine", "image": "mine/llamafactory:1", "resource": "nvidia.com/mig-7g.80gb",
        "limits": {"rdma/hca": 1}, "secret": "hub", "mount": "/saves", "node_selector": {"pool": "a100"},
        "tolerations": ({"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"},),
        "secrets": {"WANDB_API_KEY": "wandb"}, "labels": {"kueue.x-k8s.io/queue-name": "nlp"},
        "annotations": {"sidecar.istio.io/inject": "false"},
        "container": {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
    }  # fmt: skip
    expression = {"key": "pool", "operator": "In", "values": ["a100"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    pod = {
        "serviceAccountName": "trainer", "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000}, "terminationGracePeriodSeconds": 300,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    }  # fmt: skip
    for kind in KINDS:
        more = {"priorityClassName": "high"} if kind == "PyTorchJob" else {}
        site = engine_jobs.cluster(kind=kind, pod={**pod, **more}, **clusters)
        one = engine_jobs.run(recipe, site, output, limit=12)
        yield Job(f"site {kind}", "kubernetes", engine_jobs.job(one, site))


@pytest.fixture(scope="module")
def written() -> list[Job]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return [*(job for one in runs(Site()) for job in jobs(one)), *settled()]


@pytest.fixture(scope="module")
def planted() -> list[tuple[str, Job]]:
    """Jobs with one mistake each, and where it stands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        one = engine_jobs.run("recipes/qwen72b-a100x16-full-offload.yaml", Site())
        sound = {"skypilot": engine_jobs.task(one, engine_jobs.cloud())} | {
            kind: engine_jobs.job(one, engine_jobs.cluster(kind=kind)) for kind in KINDS
        }
    inside = [(kind, [*PODS[kind], *route], value) for kind in KINDS for route, value in INSIDE]
    inside += [("TrainJob", [*PODS["TrainJob"], *route], value) for route, value in ALONE]
    return [
        (f"{kind} {'.'.join(map(str, route))}", Job(kind, "skypilot" if kind == "skypilot" else "kubernetes", text))
        for kind, route, value in [*PLANTED, *inside]
        for text in [changed(sound[kind], route, value)]
    ]


def changed(text: str, route: list[str | int], value: Any) -> str:
    """A job with this value at a place; without the place where it is None."""
    documents = [*yaml.safe_load_all(text)]
    before = copy.deepcopy(documents)
    place: Any = documents
    for step in route[:-1]:
        place = place[step]
    if value is None:
        del place[route[-1]]
    else:
        place[route[-1]] = value
    assert documents != before
    return yaml.safe_dump_all(documents, sort_keys=False)


@needs_parsers
def test_engines_take_what_is_written_and_refuse_each_mistake_in_it(
    written: list[Job], planted: list[tuple[str, Job]], tmp_path: Path
) -> None:
    answers = engine_jobs.problems([*written, *(job for _, job in planted)], tmp_path)
    sound = zip(written, answers[: len(written)], strict=True)
    assert [f"{job.name}: {answer}" for job, answer in sound if answer] == []
    mistaken = zip(planted, answers[len(written) :], strict=True)
    assert [name for (name, _), answer in mistaken if not answer] == []


def test_all_engines_are_asked_of_all_their_recipes(written: list[Job]) -> None:
    several = {
        Path(job.workspace.recipe).stem: job.machine.device
        for job in bundled_recipes.resolved_recipes()
        if job.machine and job.batch.world_size > 1
    }
    names = [job.name.partition(" ")[0] for job in written]
    assert {*names} == {"site", *several}
    assert min(map(names.count, names)) == 2  # both of Kubeflow
    known = {name for name, each in several.items() if each.vendor in ("nvidia", "amd") and each.id != "h20-96g"}
    assert {job.name for job in written if job.engine == "skypilot"} == {"site", *known}


def test_bash_takes_the_scripts(written: list[Job], tmp_path: Path) -> None:
    for number, text in enumerate({script for job in written for script in engine_jobs.scripts(job.text)}):
        (tmp_path / f"{number}.sh").write_text(text)
    files = sorted(tmp_path.iterdir())
    assert len(files) >= len({job.name for job in written if job.engine == "kubernetes"}) / len(KINDS)
    loop = 'for file in "$@"; do bash -n "$file" || exit 1; done'
    ended = subprocess.run(["bash", "-c", loop, "bash", *map(str, files)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_same_recipe_makes_the_same_job(written: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    again = [*jobs(engine_jobs.run("recipes/qwen72b-a100x16-full-offload.yaml", Site()))]
    assert {job.text for job in again} <= {job.text for job in written}
