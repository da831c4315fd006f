"""A pod that trains (resources, volumes, nodes, as Kubernetes writes them), and the two Kubeflow jobs that start it.

Sources: github.com/kubeflow/trainer at v2.2, pkg/runtime/framework/plugins/torch/torch.go, manifests/base/runtimes/
torch_distributed.yaml; github.com/kubeflow/training-operator at v1.9, pkg/controller.v1/pytorch/envvar.go."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from validator.knowledge.node_environment import node_needs
from validator.knowledge.tables import yaml_table
from validator.launch import supervisor
from validator.recipe.yaml_writer import Commented, YamlValue
from validator.submit import node_script
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


def pod_resources(work: ClusterJob, site: Kubernetes) -> YamlValue:
    """Resources of each node. The memory request equals the limit: where a node runs out of memory, other pods are
    evicted first."""
    resource = device_resource(work, site)
    devices: dict[str, YamlValue] = {resource: work.devices} if resource else {}
    memory: dict[str, YamlValue] = {"memory": f"{work.memory_gib + work.shm_gib}Gi"} if work.memory_gib else {}
    asked: dict[str, YamlValue] = {
        "requests": {"cpu": work.cpus, **memory, **devices, **site.limits},
        "limits": {**memory, **devices, **site.limits},
    }
    return Commented(asked, f"{_MEMORY_COMMENT if memory else _NO_LIMIT_COMMENT} {work.out_of_memory_hint}")


def device_resource(work: ClusterJob, site: Kubernetes) -> str | None:
    """Return the cluster's name for the devices; None if the run wants none."""
    usual = node_needs(work.device).kubernetes
    return usual and (site.resource or usual)


def configmap_key(place: str) -> str:
    """Return the key of a file in a ConfigMap, which has no folders."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", place.strip("/"))


def pod_volumes(work: ClusterJob, site: Kubernetes, uploads: Uploads, configmap: str) -> list[YamlValue]:
    """Volumes: the site's claim, the ConfigMap with the files, /dev/shm, and files of the vendor's driver on the node.
    A TrainJob mounts no volume twice (listMapKey of ContainerPatch in trainjob_types.go), so each file has its own."""
    drivers: list[YamlValue] = [
        {"name": _volume_name(path), "hostPath": {"path": path}}
        for path in node_script.container_mounts(work.device, work.devices, work.nodes).files
    ]
    claim: YamlValue = {"name": _CLAIM_VOLUME, "persistentVolumeClaim": {"claimName": site.claim}}
    shm: YamlValue = {"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": f"{work.shm_gib}Gi"}}
    held: list[YamlValue] = [
        {"name": name, "configMap": {"name": configmap}} for name in (_SCRIPT_VOLUME, *_file_volumes(uploads))
    ]
    return [
        Commented(claim, _SHARED_CLAIM_COMMENT) if work.nodes > 1 else claim,
        Commented(shm, _SHM_COMMENT),
        *held,
        *drivers,
    ]


def volume_mounts(work: ClusterJob, site: Kubernetes, uploads: Uploads) -> list[YamlValue]:
    """Mounts of the volumes. Each small file hides what the claim holds at the place where the recipe looks for it."""
    drivers: list[YamlValue] = [
        {"name": _volume_name(path), "mountPath": path, "readOnly": True}
        for path in node_script.container_mounts(work.device, work.devices, work.nodes).files
    ]
    files: list[YamlValue] = [
        {"name": name, "mountPath": str(PurePosixPath(site.mount, place)), "subPath": configmap_key(place)}
        for name, place in _file_volumes(uploads).items()
    ]
    return [
        {"name": _CLAIM_VOLUME, "mountPath": site.mount},
        {"name": _SCRIPT_VOLUME, "mountPath": SCRIPT_FOLDER},
        *files,
        {"name": _SHM_VOLUME, "mountPath": "/dev/shm"},
        *drivers,
    ]


def _file_volumes(uploads: Uploads) -> Mapping[str, str]:
    """The volume of each small file, with its place."""
    return {f"file-{number}": place for number, place in enumerate(uploads.files)}


def _volume_name(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def node_selection(work: ClusterJob, site: Kubernetes) -> Mapping[str, YamlValue]:
    """Fields that say where a pod may run: on nodes that the site selects, else on none whose label names another
    device. Nodes with devices are often tainted by the name of the resource."""
    resource = device_resource(work, site)
    taint: YamlValue = {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
    tolerations = [*([taint] if resource else []), *site.tolerations]
    tolerated: dict[str, YamlValue] = {"tolerations": tolerations} if tolerations else {}
    if site.node_selector:
        return {"nodeSelector": site.node_selector, **tolerated}
    if work.device.vendor != "nvidia":
        return tolerated
    # One of the terms has to hold. The label is that of NVIDIA's GPU feature discovery: the name that the driver
    # prints, with dashes (github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery).
    names = [name.replace(" ", "-") for name in yaml_table("devices")[work.device.id]["products"]]
    products = [*names, *(f"NVIDIA-{name}" for name in names if not name.startswith("NVIDIA"))]
    terms: YamlValue = [
        {"matchExpressions": [{"key": _PRODUCT_LABEL, "operator": "In", "values": products}]},
        {"matchExpressions": [{"key": _PRODUCT_LABEL, "operator": "DoesNotExist"}]},
    ]
    wanted: YamlValue = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": wanted}, **tolerated}


# How often a PyTorchJob whose pods fail is tried again; each time it goes on from the last checkpoint.
_RETRIES = 3
# A domain and a name (pkg/runtime/framework/plugins/jobset/jobset.go, Validate).
_GRACE_COMMENT = "A checkpoint that is being written when the pod is moved or deleted is written to its end."
_PATCH_MANAGER = "lmf-recipes/submit"
_JOB_SET_LABEL, _OPERATOR_LABEL = "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"


class PodInputs(NamedTuple):
    """The inputs of a job. `configmap` is the name of the ConfigMap."""

    work: ClusterJob
    site: Kubernetes
    uploads: Uploads
    image: str
    configmap: str

    def env(self, label: str) -> list[YamlValue]:
        """The job's own name, which a label of the pod tells, and the token of the hub."""
        job: YamlValue = {"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
        if not self.site.secret:
            return [job]
        token = {"secretKeyRef": {"name": self.site.secret, "key": "HF_TOKEN"}}
        return [job, {"name": "HF_TOKEN", "valueFrom": token}]

    def pod_fields(self) -> Mapping[str, YamlValue]:
        """Fields of the pod beside its container: where it may run, and its volumes."""
        volumes = pod_volumes(self.work, self.site, self.uploads, self.configmap)
        return {**node_selection(self.work, self.site), "volumes": volumes}


_COMMAND: YamlValue = ["bash", f"{SCRIPT_FOLDER}/{SCRIPT_NAME}"]


def _deadline(work: ClusterJob) -> Mapping[str, YamlValue]:
    return {"activeDeadlineSeconds": round(work.time_limit_h * 3600)} if work.time_limit_h else {}


class JobKind(NamedTuple):
    """A kind of Kubeflow job. `label` is the pod's label that holds the job's name. `rendezvous_lines`, in bash, set
    those of NODE_RANK, MASTER_ADDR and MASTER_PORT that the controller does not set."""

    head: Mapping[str, YamlValue]
    label: str
    rendezvous_lines: tuple[str, ...]
    spec: Callable[[PodInputs], YamlValue]


def _train_job(inputs: PodInputs) -> YamlValue:
    """A TrainJob has fields for the trainer's image, resources and environment; the rest of the pod is patched into
    that of its runtime. It may not patch the pod's grace period (PodSpecPatch in trainjob_types.go)."""
    mounts = volume_mounts(inputs.work, inputs.site, inputs.uploads)
    pod: YamlValue = {**inputs.pod_fields(), "containers": [{"name": "node", "volumeMounts": mounts}]}
    patched: YamlValue = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        **_deadline(inputs.work),
        "runtimeRef": {"name": inputs.site.runtime},
        "trainer": {
            "numNodes": inputs.work.nodes,
            "image": inputs.image,
            "command": _COMMAND,
            "env": inputs.env(_JOB_SET_LABEL),
            "resourcesPerNode": pod_resources(inputs.work, inputs.site),
        },
        "runtimePatches": [
            {"manager": _PATCH_MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patched]}}}}
        ],
    }


def _pytorch_job(inputs: PodInputs) -> YamlValue:
    work = inputs.work
    grace_s = round(work.checkpoint_write_s + supervisor.SHUTDOWN_SECONDS)
    container: YamlValue = {
        "name": "pytorch",
        "image": inputs.image,
        "command": _COMMAND,
        "env": inputs.env(_OPERATOR_LABEL),
        "resources": pod_resources(work, inputs.site),
        "volumeMounts": volume_mounts(work, inputs.site, inputs.uploads),
    }
    pod: YamlValue = {
        **inputs.pod_fields(),
        "terminationGracePeriodSeconds": Commented(grace_s, _GRACE_COMMENT),
        "containers": [container],
    }
    replicas = {"Master": 1, **({"Worker": work.nodes - 1} if work.nodes > 1 else {})}
    return {
        "runPolicy": {**_deadline(work), "backoffLimit": _RETRIES, "cleanPodPolicy": "Running"},
        "pytorchReplicaSpecs": {
            kind: {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}
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
