"""Jobs of Kubernetes: what they ask for and run. That Kubeflow's models and schemas take them: test_engines.py."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import engine_jobs
from support.engine_jobs import ROOT, TINY, cluster, job, lmf, run, written

from validator.errors import RecipeError
from validator.submit import kubernetes, node_script
from validator.submit.cluster_job import ClusterJob
from validator.submit.site_file import Slurm
from validator.submit.uploads import collect_uploads

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/submit/*"])

Tree = dict[str, Any]
KINDS = ("TrainJob", "PyTorchJob")


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Made:
    """A job, taken apart."""

    def __init__(self, path: str, *overrides: str, limit: float | None = None, **site: Any) -> None:
        settings = cluster(**site)
        one = run(path, settings, *overrides, limit=limit)
        self.work: ClusterJob = one.work
        self.order = kubernetes.prepare([one], settings)
        self.text = " ".join(line.strip(" #") for line in self.order.text.splitlines())
        self.job, self.files = yaml.safe_load_all(self.order.text)
        spec = self.job["spec"]
        if self.job["kind"] == "TrainJob":
            (patch,) = spec["runtimePatches"]
            (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            self.template: Tree = replicated["template"]["spec"]["template"]
            self.pod: Tree = self.template["spec"]
            self.container: Tree = {**self.pod["containers"][0], **spec["trainer"]}
            self.resources: Tree = spec["trainer"]["resourcesPerNode"]
        else:
            self.template = spec["pytorchReplicaSpecs"]["Master"]["template"]
            self.pod = self.template["spec"]
            (self.container,) = self.pod["containers"]
            self.resources = self.container["resources"]

    @property
    def mounts(self) -> Tree:
        return {each["mountPath"]: each for each in self.container["volumeMounts"]}


@pytest.mark.parametrize("kind", KINDS)
def test_asks_for_what_each_node_is_predicted_to_need(there: Path, kind: str) -> None:
    made = Made(written(there), kind=kind)
    assert made.work.memory_gib
    memory = f"{made.work.memory_gib + made.work.shm_gib}Gi"  # what lies in /dev/shm counts
    assert made.resources["limits"] == {"memory": memory, "nvidia.com/gpu": 8}
    assert made.resources["requests"] == {"cpu": made.work.cpus, "memory": memory, "nvidia.com/gpu": 8}
    (shm,) = (each for each in made.pod["volumes"] if each["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{made.work.shm_gib}Gi"}
    assert made.mounts["/dev/shm"]["name"] == "shm"


def test_a_save_may_end_where_a_pod_is_told_to(there: Path) -> None:
    """The patch of a TrainJob has no such field before Trainer 2.3."""
    path, field = written(there), "terminationGracePeriodSeconds"
    made = Made(path, kind="PyTorchJob")
    needed = round(made.work.checkpoint_write_s + 60)
    assert made.pod[field] == needed
    assert Made(path, kind="PyTorchJob", pod={field: 900}).pod[field] == 900
    asked, told = Made(path), Made(path, pod={field: needed})
    assert (field in asked.pod, told.pod[field]) == (False, needed)
    assert "needs Kubeflow Trainer 2.2 or later (`runtimePatches`); with 2.3, " in asked.text
    assert f"`pod: {{{field}: {needed}}}` of the site file" in asked.order.notes[0]
    assert f"needs Kubeflow Trainer 2.3 or later, the first with `{field}`" in told.text
    assert "Kubeflow Trainer" not in made.text


def test_a_pod_finds_the_script_and_the_program_that_it_starts(there: Path) -> None:
    for kind in KINDS:
        made = Made(written(there), kind=kind)
        name = made.mounts["/etc/lmf-recipes"]["name"]
        (volume,) = (each["configMap"] for each in made.pod["volumes"] if each["name"] == name)
        held = {each["path"]: made.files["data"][each["key"]] for each in volume["items"]}
        assert made.container["command"] == ["bash", "/etc/lmf-recipes/run.sh"]
        start = 'exec python3 /etc/lmf-recipes/job node "${job[@]}" -- "${command[@]}"\n'
        assert held.pop("run.sh").endswith(start)
        assert held == {f"job/{name}": text for name, text in node_script.program_files().items()}


def test_both_kinds_have_all_nodes(there: Path) -> None:
    path = written(there, machine="4x8xa100-80g")
    assert Made(path).job["spec"]["trainer"]["numNodes"] == 4
    replicas = Made(path, kind="PyTorchJob").job["spec"]["pytorchReplicaSpecs"]
    assert {kind: each["replicas"] for kind, each in replicas.items()} == {"Master": 1, "Worker": 3}
    alone = Made(written(there, machine="8xa100-80g"), kind="PyTorchJob").job["spec"]["pytorchReplicaSpecs"]
    assert {*alone} == {"Master"}


@pytest.mark.parametrize(
    ("more", "ram", "relief"),
    [
        ("preprocessing_num_workers: 16\n", 1024, "fewer `preprocessing_num_workers` than 16"),
        ("deepspeed: deepspeed/ds_z3_offload.json\n", 1024, "offloads nothing to main memory"),
        ("", 1024, "what does: nodes with more main memory."),
        ("", 40, "Main memory has no limit: the run is predicted to take nearly all of a node."),
    ],
)
def test_says_what_cures_exit_code_9(there: Path, more: str, ram: int, relief: str) -> None:
    shutil.copytree(ROOT / "deepspeed", there / "deepspeed")
    made = Made(written(there, more, ram=ram))
    assert "Exit code -9" in made.text
    assert "A larger /dev/shm does not help" in made.text
    assert relief in made.text
    assert ("memory" in made.resources["limits"]) is ("has no limit" not in made.text)


@pytest.mark.parametrize(
    ("machine", "resource", "image", "drivers"),
    [
        ("2x8xh100-80g", "nvidia.com/gpu", "hiyouga/llamafactory:0.9.5", False),
        ("2x8xascend-910b-64g", "huawei.com/Ascend910", "hiyouga/llamafactory:0.9.5-npu-a2", True),
        ("2x16xascend-910c-64g", "huawei.com/Ascend910", "hiyouga/llamafactory:0.9.5-npu-a3", True),
        ("8xmi300x-192g", "amd.com/gpu", "rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.7.1", False),
        ("8xb200-180g", "nvidia.com/gpu", "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel", False),
        ("8xascend-910a-32g", "huawei.com/Ascend910", None, True),
    ],
)
def test_devices_have_names_images_and_drivers(
    there: Path, machine: str, resource: str, image: str | None, drivers: bool
) -> None:
    path = written(there, machine=machine)
    if image is None:
        with pytest.raises(RecipeError, match="no image is known that runs on"):
            Made(path)
    asked: dict[str, Any] = {} if image else {"image": "mine:1"}
    made = Made(path, **asked)
    assert resource in made.resources["limits"]
    assert made.container["image"] == (image or "mine:1")
    published = (image or "").startswith("hiyouga/")  # has LLaMA-Factory, of whatever release
    assert ("if ! command -v llamafactory-cli" in made.files["data"]["run.sh"]) is not published
    assert "pip install" in made.files["data"]["run.sh"]
    assert ("/usr/local/Ascend/driver" in made.mounts) is drivers
    assert [each["key"] for each in made.pod["tolerations"]] == [resource]


def test_runs_on_no_node_that_says_it_has_other_devices(there: Path) -> None:
    path = written(there)
    wanted = Made(path).pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    named, unnamed = (term["matchExpressions"][0] for term in wanted["nodeSelectorTerms"])
    assert "NVIDIA-A100-SXM4-80GB" in named["values"]
    assert unnamed == {"key": "nvidia.com/gpu.product", "operator": "DoesNotExist"}
    selected = Made(path, node_selector={"pool": "a100"}).pod
    assert (selected["nodeSelector"], "affinity" in selected) == ({"pool": "a100"}, False)
    assert "affinity" not in Made(written(there, machine="8xascend-910b-64g")).pod


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_decides_what_it_names(there: Path, kind: str) -> None:
    toleration = {"key": "team", "operator": "Equal", "value": "nlp"}
    named = {
        "kind": kind, "namespace": "nlp", "resource": "nvidia.com/mig-7g.80gb", "limits": {"rdma/hca": 1},
        "secret": "hub", "mount": "/data", "tolerations": (toleration,),
    }  # fmt: skip
    made = Made(written(there), limit=12, **named)
    assert made.job["metadata"]["namespace"] == made.files["metadata"]["namespace"] == "nlp"
    assert {"nvidia.com/mig-7g.80gb": 8, "rdma/hca": 1}.items() <= made.resources["limits"].items()
    assert made.pod["tolerations"][1:] == [toleration]
    token = {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
    assert {"name": "HF_TOKEN", "valueFrom": token} in made.container["env"]
    assert {"/data", "/data/mine.yaml"} <= {*made.mounts}
    assert "cd /data\n" in made.files["data"]["run.sh"]
    policy = made.job["spec"] if kind == "TrainJob" else made.job["spec"]["runPolicy"]
    assert policy["activeDeadlineSeconds"] == 12 * 3600
    other = Made(written(there), runtime="mine") if kind == "TrainJob" else None
    assert other is None or other.job["spec"]["runtimeRef"] == {"name": "mine"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_adds_to_pods_what_it_names(there: Path, kind: str) -> None:
    affinity: Tree = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    scratch = {"name": "scratch", "emptyDir": {}}
    named: Tree = {
        "kind": kind, "secret": "hub", "secrets": {"WANDB_API_KEY": "wandb"},
        "labels": {"kueue.x-k8s.io/queue-name": "nlp"}, "annotations": {"sidecar.istio.io/inject": "false"},
        "pod": {"serviceAccountName": "trainer", "imagePullSecrets": [{"name": "registry"}], "volumes": [scratch],
                "securityContext": {"fsGroup": 1000}, "affinity": affinity},
        "container": {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                      "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                      "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]},
    }  # fmt: skip
    made = Made(written(there), **named)
    metadata = {"labels": named["labels"], "annotations": named["annotations"]}
    assert (made.template["metadata"], made.job["metadata"] | metadata) == (metadata, made.job["metadata"])
    alike = ("serviceAccountName", "imagePullSecrets", "securityContext")
    assert [made.pod[key] for key in alike] == [named["pod"][key] for key in alike]
    assert {*made.pod["affinity"]} == {"nodeAffinity", "podAntiAffinity"}  # ours stays
    assert (made.pod["volumes"][-1], made.mounts["/scratch"]["name"]) == (scratch, "scratch")
    assert {"/workspace", "/dev/shm"} <= {*made.mounts}
    assert made.container["securityContext"] == named["container"]["securityContext"]
    assert [each["name"] for each in made.container["env"]] == ["JOB", "HF_TOKEN", "WANDB_API_KEY", "NODE"]
    assert made.container["env"][2]["valueFrom"] == {"secretKeyRef": {"name": "wandb", "key": "WANDB_API_KEY"}}


def test_lines_of_the_site_for_all_and_for_this_engine(there: Path) -> None:
    site = replace(cluster(setup=("export C=1",)), setup=("export A=1",), slurm=Slurm(setup=("module load cuda",)))
    text = job(run(written(there), site), site)
    script = [*yaml.safe_load_all(text)][1]["data"]["run.sh"]
    assert script.startswith("set -eo pipefail\nexport A=1\nexport C=1\nset -u\n")


def test_relative_paths_of_the_recipe_hold(there: Path) -> None:
    for folder in ("deepspeed", "data"):
        shutil.copytree(ROOT / folder, there / folder)
    recipe = written(there, "deepspeed: deepspeed/ds_z3.json\n").replace(f"{there}/", "")
    registry = {"own": {"file_name": "own.json"}}
    (there / "data/dataset_info.json").write_text(json.dumps(registry))
    (there / "data/own.json").write_text("[]")
    made = Made(recipe)
    held = {path: made.files["data"][each["subPath"]] for path, each in made.mounts.items() if "subPath" in each}
    for name in ("mine.yaml", "deepspeed/ds_z3.json", "data/dataset_info.json"):
        assert held[f"/workspace/{name}"] == (there / name).read_text()
    release, claimed, lost = made.order.notes
    assert release.startswith("the job needs Kubeflow Trainer 2.2 or later")
    assert claimed == "`data/own.json` has to be on the claim `data`; pods see it as /workspace/data/own.json"
    assert lost.startswith("mine loses all where it is preempted or a node fails: ")
    command = re.search(r"command=\((.*?)\)", made.files["data"]["run.sh"], re.DOTALL)
    assert command
    assert command[1].split() == ["llamafactory-cli", "train", "mine.yaml"]


def test_the_files_have_a_name_of_their_content(there: Path) -> None:
    path = written(there)
    names = {Made(path, *words).files["metadata"]["name"] for words in ((), (), ("learning_rate=1e-5",))}
    assert len(names) == 2
    assert Made(path).files["immutable"] is True
    held = [each["configMap"]["name"] for each in Made(path).pod["volumes"] if "configMap" in each]
    assert len(held) > 1  # the script, the recipe
    assert {*held} < names


@pytest.mark.parametrize(
    ("site", "overrides", "problem"),
    [
        ({"claim": ""}, [], "name a PersistentVolumeClaim under `kubernetes: claim:`"),
        ({"kind": "MPIJob"}, [], "`MPIJob`; it is TrainJob or PyTorchJob"),
        ({}, ["output_dir=/scratch/mine"], "pods do not see `/scratch/mine`"),
        (
            {"pod": {"priorityClassName": "high"}},
            [],
            "cannot set `priorityClassName` of its pod, only affinity",
        ),
        ({"container": {"imagePullPolicy": "Always"}}, [], "of its container, .* or take `kind: PyTorchJob`"),
        (
            {"kind": "PyTorchJob", "pod": {"containers": []}},
            [],
            "`kubernetes.pod.containers` .* is set by the job",
        ),
    ],
)
def test_says_what_a_job_cannot_be(there: Path, site: Tree, overrides: list[str], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        Made(written(there), *overrides, **site)


def test_a_folder_of_the_claim_is_named_as_pods_see_it(there: Path) -> None:
    made = Made(written(there), "output_dir=/workspace/mine")
    assert "--output=/workspace/mine\n" in made.files["data"]["run.sh"]


def test_files_that_no_config_map_holds(there: Path) -> None:
    (there / "data").mkdir()
    (there / "data/dataset_info.json").write_text(json.dumps({"own": {"file_name": "x.json"}, "more": "x" * 1_047_000}))
    with pytest.raises(RecipeError, match="a ConfigMap holds 1,024; leave only"):
        Made(written(there))


def test_an_array_is_for_slurm(there: Path) -> None:
    one = run(written(there), cluster())
    with pytest.raises(RecipeError, match="2 recipes are an array job"):
        kubernetes.prepare([one, one], cluster())


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("qwen2.5-vl-72b-910b-lora", "qwen2-5-vl-72b-910b-lora-"),
        ("7b_mine", "run-7b-mine-"),
        ("A" * 60, "a" * 40 + "-"),
    ],
)
def test_names_are_such_as_kubernetes_takes(there: Path, name: str, label: str) -> None:
    path = Path(written(there)).rename(there / f"{name}.yaml")
    assert Made(str(path)).job["metadata"]["generateName"] == label


# What the controllers set of a node, at v2.2 and v1.9.
CONTROLLERS = {
    "TrainJob": {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "127.0.0.1",
                 "PET_MASTER_PORT": "29500", "PET_NODE_RANK": "{rank}"},
    "PyTorchJob": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456", "RANK": "{rank}", "WORLD_SIZE": "2",
                   "PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "23456",
                   "PET_NODE_RANK": "{rank}"},
}  # fmt: skip


def node(kind: str, rank: int) -> dict[str, str]:
    return {"JOB": "tiny-1", **{name: value.format(rank=rank) for name, value in CONTROLLERS[kind].items()}}


def tiny(folder: Path, kind: str) -> tuple[str, Path]:
    """The script for two nodes, and a folder as the claim with what has to be on it and what the ConfigMap brings."""
    home = folder / "workspace"
    site = cluster(kind=kind, mount=str(home), image="mine:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        one = run(TINY, site, *engine_jobs.SHORT, machine="2x1xcpu")
        engine_jobs.sent(collect_uploads(one)[1], home)
        script = [*yaml.safe_load_all(job(one, site))][1]["data"]["run.sh"]
        return script.replace("/etc/lmf-recipes/job", f"{home}/.lmf-recipes/job"), home


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_knows_its_place_by_what_the_controller_sets(there: Path, kind: str) -> None:
    """A program in place of llamafactory-cli prints what it would read."""
    script, home = tiny(there, kind)
    path = engine_jobs.stand_in(there, "llamafactory-cli", "env; printf '%s\\n' \"$@\"")
    assert path.startswith(f"{there}/bin")
    both = [engine_jobs.started(script, home, f"{there}/bin:/usr/bin:/bin", node(kind, rank)) for rank in range(2)]
    _, said = (process.communicate(timeout=600)[0] for process in both)
    lines = said.splitlines()
    wanted = {"NODE_RANK=1", "NNODES=2", "NPROC_PER_NODE=1", "FORCE_TORCHRUN=1", "RDZV_ID=tiny-1",
              "MASTER_ADDR=127.0.0.1", "PET_RDZV_CONF=is_host=0", f"HF_HOME={home}/.cache/huggingface"}  # fmt: skip
    assert wanted <= {*lines}, said
    assert [line for line in lines if line.startswith("PET_")] == ["PET_RDZV_CONF=is_host=0"]
    assert lines[-6:] == ["train", TINY, *engine_jobs.SHORT]


@pytest.mark.sample(one_in=6, whole_for=["release/constraints.txt", "validator/submit/*"])
@pytest.mark.training
def test_two_nodes_train_with_what_was_sent(there: Path) -> None:
    """The script as a TrainJob's pods run it."""
    script, home = tiny(there, "TrainJob")
    output = home / "saves/tiny-cpu-lora"
    engine_jobs.interrupted(output, "tiny-1")
    engine_jobs.trained(output, engine_jobs.together(script, home, [node("TrainJob", rank) for rank in range(2)]))


def handed(folder: Path, body: str) -> Any:
    """TINY, with a line that parts documents in it, handed to a program in place of kubectl."""
    recipe = folder / "tiny-cpu-lora.yaml"
    recipe.write_text((ROOT / TINY).read_text().replace("### model", "---\n### model"))
    (folder / "site.yaml").write_text("kubernetes: {claim: data, namespace: nlp}")
    path = engine_jobs.stand_in(folder, "kubectl", body)
    return lmf("submit", str(recipe), "--to", "kubernetes", "--site", str(folder / "site.yaml"), path=path)


def test_hands_the_files_and_then_the_job_to_kubectl(there: Path) -> None:
    made = "echo trainjob.trainer.kubeflow.org/tiny-cpu-lora-x7k2p created"
    ended = handed(there, f'echo "$@" >>{there}/words; cat >{there}/$1; {made}')
    assert ended.returncode == 0, ended.stderr
    assert (there / "words").read_text().splitlines() == ["apply --filename=-", "create --filename=-"]
    assert yaml.safe_load((there / "apply").read_text())["kind"] == "ConfigMap"
    assert yaml.safe_load((there / "create").read_text())["kind"] == "TrainJob"
    created, log, cancel = ended.stdout.splitlines()
    assert created.endswith("tiny-cpu-lora-x7k2p created")
    selector = "--selector=jobset.sigs.k8s.io/jobset-name=tiny-cpu-lora-x7k2p"
    assert log == f"log: kubectl logs --follow --prefix {selector} --namespace nlp"
    assert cancel == "cancel: kubectl delete trainjob.trainer.kubeflow.org tiny-cpu-lora-x7k2p --namespace nlp"


def test_says_what_kubectl_says_where_it_refuses(there: Path) -> None:
    ended = handed(there, 'echo "error: no matches for kind TrainJob" >&2; exit 1')
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith("kubectl refuses the job: error: no matches for kind TrainJob")


def test_says_where_kubectl_is_not_installed(there: Path) -> None:
    (there / "site.yaml").write_text("kubernetes: {claim: data}")
    words = ["submit", TINY, "--to", "kubernetes", "--site", str(there / "site.yaml")]
    ended = lmf(*words, path=str(there))
    assert ended.returncode == 1
    assert "kubectl is not installed here; kubernetes.io/docs/tasks/tools" in ended.stderr.splitlines()[-1]
    assert lmf(*words, "--dry-run", path=str(there)).returncode == 0
