"""The two jobs of Kubeflow: what their controllers tell a pod, and what they are told.

github.com/kubeflow/trainer at v2.2, pkg/runtime/framework/plugins/torch/torch.go, manifests/base/runtimes/
torch_distributed.yaml; github.com/kubeflow/training-operator at v1.9, pkg/controller.v1/pytorch/envvar.go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from validator.submit import pod
from validator.submit.manifest import Said, Value
from validator.submit.parcel import Parcel
from validator.submit.site import Kubernetes
from validator.submit.work import Work
from validator.train import start

# How often a PyTorchJob whose pods fail is tried again; each time it goes on from the last checkpoint.
_RETRIES = 3
# A domain and a name (pkg/runtime/framework/plugins/jobset/jobset.go, Validate).
_GRACE = "A checkpoint that is being written when the pod is moved or deleted is written to its end."
_MANAGER = "lmf-recipes/submit"
_JOB_SET, _OPERATOR = "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"


class Inner(NamedTuple):
    """What a job is made of. `files` is the name of the ConfigMap."""

    work: Work
    own: Kubernetes
    parcel: Parcel
    image: str
    files: str

    @property
    def resources(self) -> Value:
        return pod.resources(self.work, self.own)

    @property
    def command(self) -> list[Value]:
        return ["bash", f"{pod.SCRIPTS}/{pod.SCRIPT}"]

    @property
    def deadline(self) -> Mapping[str, Value]:
        return {"activeDeadlineSeconds": round(self.work.limit * 3600)} if self.work.limit else {}

    def env(self, label: str) -> list[Value]:
        """The job's own name, which a label of the pod tells, and the token of the hub."""
        job: Value = {"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
        if not self.own.secret:
            return [job]
        token = {"secretKeyRef": {"name": self.own.secret, "key": "HF_TOKEN"}}
        return [job, {"name": "HF_TOKEN", "valueFrom": token}]

    @property
    def pod(self) -> Mapping[str, Value]:
        """What is said of a pod beside its container."""
        volumes = pod.volumes(self.work, self.own, self.parcel, self.files)
        return {**pod.nodes(self.work, self.own), "volumes": volumes}

    @property
    def grace(self) -> Mapping[str, Value]:
        """Seconds from SIGTERM to SIGKILL. A TrainJob has those of its runtime, which it may not patch (PodSpecPatch in
        trainjob_types.go): 30 where that says nothing."""
        return {"terminationGracePeriodSeconds": Said(round(self.work.saving + start.ENDING), _GRACE)}

    @property
    def mounts(self) -> list[Value]:
        return pod.mounts(self.work, self.own, self.parcel)


class Form(NamedTuple):
    """A kind of job. `label` of a pod holds the job's name. `place` are lines of bash that set what the controller does
    not of NODE_RANK, MASTER_ADDR and MASTER_PORT."""

    head: Mapping[str, Value]
    label: str
    place: tuple[str, ...]
    spec: Callable[[Inner], Value]


def _train_job(run: Inner) -> Value:
    """Image, resources and environment of the trainer have fields of their own; the rest of the pod is patched into
    that of the runtime."""
    inner: Value = {"name": "node", "volumeMounts": run.mounts}
    patched: Value = {"name": "node", "template": {"spec": {"template": {"spec": {**run.pod, "containers": [inner]}}}}}
    return {
        **run.deadline,
        "runtimeRef": {"name": run.own.runtime},
        "trainer": {
            "numNodes": run.work.nodes,
            "image": run.image,
            "command": run.command,
            "env": run.env(_JOB_SET),
            "resourcesPerNode": run.resources,
        },
        "runtimePatches": [
            {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patched]}}}}
        ],
    }


def _pytorch_job(run: Inner) -> Value:
    inner: Value = {
        "name": "pytorch",
        "image": run.image,
        "command": run.command,
        "env": run.env(_OPERATOR),
        "resources": run.resources,
        "volumeMounts": run.mounts,
    }
    template: Value = {"spec": {**run.pod, **run.grace, "containers": [inner]}}
    replicas = {"Master": 1, **({"Worker": run.work.nodes - 1} if run.work.nodes > 1 else {})}
    return {
        "runPolicy": {**run.deadline, "backoffLimit": _RETRIES, "cleanPodPolicy": "Running"},
        "pytorchReplicaSpecs": {
            kind: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
            for kind, count in replicas.items()
        },
    }


FORMS: Mapping[str, Form] = {
    "TrainJob": Form(
        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"},
        _JOB_SET,
        ('export NODE_RANK="$PET_NODE_RANK" MASTER_ADDR="$PET_MASTER_ADDR" MASTER_PORT="$PET_MASTER_PORT"',),
        _train_job,
    ),
    "PyTorchJob": Form(
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"},
        _OPERATOR,
        ("# The operator's RANK counts nodes, as LLaMA-Factory's NODE_RANK does", 'export NODE_RANK="$RANK"'),
        _pytorch_job,
    ),
}
