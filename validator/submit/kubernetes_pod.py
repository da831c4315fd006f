"""A pod that trains (resources, volumes, nodes, as Kubernetes writes them), and the two Kubeflow jobs that start it.

Sources: github.com/kubeflow/trainer at v2.2, pkg/runtime/framework/plugins/torch/torch.go, manifests/base/runtimes/
torch_distributed.yaml; github.com/kubeflow/training-operator at v1.9, pkg/controller.v1/pytorch/envvar.go."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from validator.knowledge.node_environment import node_needs
from validator.knowledge.tables import yaml_table
from validator.launch import supervisor
from validator.recipe.yaml_writer import Commented, YamlValue
from validator.submit import node_setup
from validator.submit.cluster_job import ClusterJob
from validator.submit.site_file import Kubernetes
from validator.submit.uploads import Uploads

# Where a pod finds the script that it runs.
SCRIPT_FOLDER, SCRIPT_NAME = "/etc/lmf-recipes", "run.sh"
_SCRIPT_VOLUME, _CLAIM_VOLUME, _SHM_VOLUME = "scripts", "workspace", "shm"
_PRODUCT_LABEL = "nvidia.com/gpu.product"
_MEMORY_COMMENT = (
    "Main memory: the high end of the prediction, with headroom, and /dev/shm, which counts against the limit."
)
_NO_LIMIT_COMMENT = "Main memory has no limit: the run is predicted to take nearly all of a node."
_SHARED_CLAIM_COMMENT = "Model, data and results; for several nodes its access mode is ReadWriteMany."
_SHM_COMMENT = "Processes of a node and loaders exchange data in /dev/shm, which has 64 MiB where nobody asks for more."


def pod_resources(work: ClusterJob, own: Kubernetes) -> YamlValue:
    """What each node has to have. Memory is asked for as it is limited: where a node runs out of it, other pods are
    evicted before."""
    devices: dict[str, YamlValue] = {device_resource(work, own): work.devices} if work.device.vendor != "cpu" else {}
    memory: dict[str, YamlValue] = {"memory": f"{work.memory_gib + work.shm_gib}Gi"} if work.memory_gib else {}
    asked: dict[str, YamlValue] = {
        "requests": {"cpu": work.cpus, **memory, **devices, **own.limits},
        "limits": {**memory, **devices, **own.limits},
    }
    return Commented(asked, f"{_MEMORY_COMMENT if memory else _NO_LIMIT_COMMENT} {work.relief}")


def device_resource(work: ClusterJob, own: Kubernetes) -> str:
    """What the cluster calls the devices."""
    return own.resource or node_needs(work.device).kubernetes or "nvidia.com/gpu"


def configmap_key(place: str) -> str:
    """The key of a file in a ConfigMap, which has no folders."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", place.strip("/"))


def pod_volumes(work: ClusterJob, own: Kubernetes, parcel: Uploads, files: str) -> list[YamlValue]:
    """The site's claim, the ConfigMap with the files, /dev/shm, and what only the vendor's driver on the node has. A
    TrainJob mounts no volume twice (listMapKey of ContainerPatch in trainjob_types.go): each file is one."""
    drivers: list[YamlValue] = [
        {"name": _volume_name(path), "hostPath": {"path": path}} for path in _driver_files(work)
    ]
    claim: YamlValue = {"name": _CLAIM_VOLUME, "persistentVolumeClaim": {"claimName": own.claim}}
    shm: YamlValue = {"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": f"{work.shm_gib}Gi"}}
    held: list[YamlValue] = [
        {"name": name, "configMap": {"name": files}} for name in (_SCRIPT_VOLUME, *_file_volumes(parcel))
    ]
    return [
        Commented(claim, _SHARED_CLAIM_COMMENT) if work.nodes > 1 else claim,
        Commented(shm, _SHM_COMMENT),
        *held,
        *drivers,
    ]


def volume_mounts(work: ClusterJob, own: Kubernetes, parcel: Uploads) -> list[YamlValue]:
    """Each small file stands over the claim where the recipe looks for it; what the claim holds there is untouched."""
    drivers: list[YamlValue] = [
        {"name": _volume_name(path), "mountPath": path, "readOnly": True} for path in _driver_files(work)
    ]
    files: list[YamlValue] = [
        {"name": name, "mountPath": str(PurePosixPath(own.mount, place)), "subPath": configmap_key(place)}
        for name, place in _file_volumes(parcel).items()
    ]
    return [
        {"name": _CLAIM_VOLUME, "mountPath": own.mount},
        {"name": _SCRIPT_VOLUME, "mountPath": SCRIPT_FOLDER},
        *files,
        {"name": _SHM_VOLUME, "mountPath": "/dev/shm"},
        *drivers,
    ]


def _file_volumes(parcel: Uploads) -> Mapping[str, str]:
    """The volume of each small file, with its place."""
    return {f"file-{number}": place for number, place in enumerate(parcel.files)}


def _driver_files(work: ClusterJob) -> Sequence[str]:
    return node_setup.container_mounts(work.device, work.devices, work.nodes).files


def _volume_name(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def node_selection(work: ClusterJob, own: Kubernetes) -> Mapping[str, YamlValue]:
    """Where a pod may run: on nodes that the site selects, else on none that says that it has other devices. Those
    with devices are often tainted by the name of the resource."""
    taint: YamlValue = {"key": device_resource(work, own), "operator": "Exists", "effect": "NoSchedule"}
    tolerations = [*([taint] if work.device.vendor != "cpu" else []), *own.tolerations]
    tolerated: dict[str, YamlValue] = {"tolerations": tolerations} if tolerations else {}
    if own.node_selector:
        return {"nodeSelector": own.node_selector, **tolerated}
    if work.device.vendor != "nvidia":
        return tolerated
    wanted: YamlValue = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _product_terms(work)}}
    return {"affinity": {"nodeAffinity": wanted}, **tolerated}


def _product_terms(work: ClusterJob) -> list[YamlValue]:
    """Terms of which one has to hold. The label is that of NVIDIA's GPU feature discovery: the name that the driver
    prints, with dashes (github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery)."""
    names = [name.replace(" ", "-") for name in yaml_table("devices")[work.device.id]["products"]]
    full = [*names, *(f"NVIDIA-{name}" for name in names if not name.startswith("NVIDIA"))]
    return [
        {"matchExpressions": [{"key": _PRODUCT_LABEL, "operator": "In", "values": full}]},
        {"matchExpressions": [{"key": _PRODUCT_LABEL, "operator": "DoesNotExist"}]},
    ]


# How often a PyTorchJob whose pods fail is tried again; each time it goes on from the last checkpoint.
_RETRIES = 3
# A domain and a name (pkg/runtime/framework/plugins/jobset/jobset.go, Validate).
_GRACE_COMMENT = "A checkpoint that is being written when the pod is moved or deleted is written to its end."
_PATCH_MANAGER = "lmf-recipes/submit"
_JOB_SET_LABEL, _OPERATOR_LABEL = "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"


class PodInputs(NamedTuple):
    """What a job is made of. `files` is the name of the ConfigMap."""

    work: ClusterJob
    own: Kubernetes
    parcel: Uploads
    image: str
    files: str

    @property
    def resources(self) -> YamlValue:
        return pod_resources(self.work, self.own)

    @property
    def command(self) -> list[YamlValue]:
        return ["bash", f"{SCRIPT_FOLDER}/{SCRIPT_NAME}"]

    @property
    def deadline(self) -> Mapping[str, YamlValue]:
        return {"activeDeadlineSeconds": round(self.work.limit * 3600)} if self.work.limit else {}

    def env(self, label: str) -> list[YamlValue]:
        """The job's own name, which a label of the pod tells, and the token of the hub."""
        job: YamlValue = {"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
        if not self.own.secret:
            return [job]
        token = {"secretKeyRef": {"name": self.own.secret, "key": "HF_TOKEN"}}
        return [job, {"name": "HF_TOKEN", "valueFrom": token}]

    @property
    def pod(self) -> Mapping[str, YamlValue]:
        """What is said of a pod beside its container."""
        volumes = pod_volumes(self.work, self.own, self.parcel, self.files)
        return {**node_selection(self.work, self.own), "volumes": volumes}

    @property
    def grace(self) -> Mapping[str, YamlValue]:
        """Seconds from SIGTERM to SIGKILL. A TrainJob has those of its runtime, which it may not patch (PodSpecPatch in
        trainjob_types.go): 30 where that says nothing."""
        return {
            "terminationGracePeriodSeconds": Commented(
                round(self.work.saving + supervisor.SHUTDOWN_SECONDS), _GRACE_COMMENT
            )
        }

    @property
    def mounts(self) -> list[YamlValue]:
        return volume_mounts(self.work, self.own, self.parcel)


class JobKind(NamedTuple):
    """A kind of job. `label` of a pod holds the job's name. `place` are lines of bash that set what the controller does
    not of NODE_RANK, MASTER_ADDR and MASTER_PORT."""

    head: Mapping[str, YamlValue]
    label: str
    place: tuple[str, ...]
    spec: Callable[[PodInputs], YamlValue]


def _train_job(run: PodInputs) -> YamlValue:
    """Image, resources and environment of the trainer have fields of their own; the rest of the pod is patched into
    that of the runtime."""
    inner: YamlValue = {"name": "node", "volumeMounts": run.mounts}
    patched: YamlValue = {
        "name": "node",
        "template": {"spec": {"template": {"spec": {**run.pod, "containers": [inner]}}}},
    }
    return {
        **run.deadline,
        "runtimeRef": {"name": run.own.runtime},
        "trainer": {
            "numNodes": run.work.nodes,
            "image": run.image,
            "command": run.command,
            "env": run.env(_JOB_SET_LABEL),
            "resourcesPerNode": run.resources,
        },
        "runtimePatches": [
            {"manager": _PATCH_MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patched]}}}}
        ],
    }


def _pytorch_job(run: PodInputs) -> YamlValue:
    inner: YamlValue = {
        "name": "pytorch",
        "image": run.image,
        "command": run.command,
        "env": run.env(_OPERATOR_LABEL),
        "resources": run.resources,
        "volumeMounts": run.mounts,
    }
    template: YamlValue = {"spec": {**run.pod, **run.grace, "containers": [inner]}}
    replicas = {"Master": 1, **({"Worker": run.work.nodes - 1} if run.work.nodes > 1 else {})}
    return {
        "runPolicy": {**run.deadline, "backoffLimit": _RETRIES, "cleanPodPolicy": "Running"},
        "pytorchReplicaSpecs": {
            kind: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
            for kind, count in replicas.items()
        },
    }


JOB_KINDS: Mapping[str, JobKind] = {
    "TrainJob": JobKind(
        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"},
        _JOB_SET_LABEL,
        ('export NODE_RANK="$PET_NODE_RANK" MASTER_ADDR="$PET_MASTER_ADDR" MASTER_PORT="$PET_MASTER_PORT"',),
        _train_job,
    ),
    "PyTorchJob": JobKind(
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"},
        _OPERATOR_LABEL,
        ("# The operator's RANK counts nodes, as LLaMA-Factory's NODE_RANK does", 'export NODE_RANK="$RANK"'),
        _pytorch_job,
    ),
}
