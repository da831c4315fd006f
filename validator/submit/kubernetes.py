"""A Kubernetes job: a TrainJob of Kubeflow Trainer 2.2 or later, or a PyTorchJob of its predecessor. A ConfigMap holds
the small files that the pods read. `kubectl` creates the job and the ConfigMap.

Sources: github.com/kubeflow/trainer at v2.2, pkg/apis/trainer/v1alpha1/trainjob_types.go (`runtimePatches` and
`activeDeadlineSeconds`, which v2.1 has not), pkg/runtime/framework/plugins/torch/torch.go,
manifests/base/runtimes/torch_distributed.yaml; github.com/kubeflow/training-operator at v1.9,
pkg/controller.v1/pytorch/envvar.go."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.escaping import shell_join, shell_quote
from validator.knowledge.node_environment import node_needs
from validator.knowledge.tables import yaml_table
from validator.launch import local_launch
from validator.recipe.safe_read import read_text
from validator.recipe.yaml_writer import Commented, YamlValue, yaml_document
from validator.submit import cluster_job, node_script, scheduler_client
from validator.submit.cluster_job import ClusterJob, RunToSubmit, Submission, require_single
from validator.submit.site_file import Kubernetes, Site
from validator.submit.uploads import Uploads, collect_uploads

# Of a ConfigMap, all keys together (kubernetes.io/docs/concepts/configuration/configmap).
_MAX_CONFIGMAP_BYTES = 1 << 20
# Names of pods and services are made of a job's name, and have at most 63 letters.
_MAX_NAME_LETTERS = 40
_DOCUMENT_SEPARATOR = "---\n"
_RETRIES = 3  # of a PyTorchJob whose pods fail; each time it goes on from the last checkpoint
_JOB_SET_LABEL, _OPERATOR_LABEL = "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"
_PRODUCT_LABEL = "nvidia.com/gpu.product"
_PATCH_MANAGER = "lmf-recipes/submit"  # a domain and a name (pkg/runtime/framework/plugins/jobset/jobset.go, Validate)
# Where a pod finds the script that it runs, and the program of the job.
_SCRIPT_FOLDER, _SCRIPT_NAME, _PROGRAM_NAME = "/etc/lmf-recipes", "run.sh", "job"
_SCRIPT_VOLUME, _CLAIM_VOLUME, _SHM_VOLUME = "scripts", "workspace", "shm"
_COMMAND: YamlValue = ["bash", f"{_SCRIPT_FOLDER}/{_SCRIPT_NAME}"]
_MEMORY_COMMENT = (
    "Main memory: the high end of the prediction, with headroom, and /dev/shm, which counts against the limit."
)
_NO_LIMIT_COMMENT = "Main memory has no limit: the run is predicted to take nearly all of a node."
_SHARED_CLAIM_COMMENT = "Model, data and results; for several nodes its access mode is ReadWriteMany."
_SHM_COMMENT = "Processes of a node and loaders exchange data in /dev/shm, which has 64 MiB where nobody asks for more."
_GRACE = "terminationGracePeriodSeconds"
# What a TrainJob can set of its pods: PodSpecPatch (v2.3 added the grace period) and ContainerPatch, and the
# environment through `trainer`.
_PATCHABLE = {
    "pod": ("affinity", "imagePullSecrets", "nodeSelector", "schedulingGates", "securityContext", "serviceAccountName",
            _GRACE, "tolerations", "volumes"),
    "container": ("env", "securityContext", "volumeMounts"),
}  # fmt: skip
# What the site file sets by other keys, or the job itself.
_OWN_FIELDS = {"pod": ("containers",), "container": ("name", "image", "command", "args", "resources")}
_GRACE_COMMENT = "A checkpoint that is being written when the pod is moved or deleted is written to its end."


def prepare(runs: Sequence[RunToSubmit], site: Site) -> Submission:
    """Return the Kubernetes job of one run. Raises RecipeError if there are several runs, if the site file names no
    volume or no valid kind of job, if pods could not see a file of the run, if the small files exceed a ConfigMap, or
    if no image is known for the device."""
    work, uploads = collect_uploads(require_single(runs), [site.kubernetes.mount])
    job = _job_documents(work, site, uploads)
    notes = [*_notes(work, site, uploads), *cluster_job.loss_notes(work)]
    return Submission(job, notes, lambda: _create_job(job, site))


def _job_documents(work: ClusterJob, site: Site, uploads: Uploads) -> str:
    """Return the job and the ConfigMap as one YAML text. Raises RecipeError if the site file names no volume or no
    valid kind of job, if pods could not see a file of the run, if the small files exceed a ConfigMap, or if no image is
    known for the device."""
    section, name = site.kubernetes, _job_name(work.name)
    _check_paths_visible(work, section, uploads)
    kind = _JOB_KINDS.get(section.kind)
    if kind is None:
        raise RecipeError(f"`kubernetes.kind` of the site file is `{section.kind}`; it is {' or '.join(_JOB_KINDS)}")
    _check_fields(section)
    files = _configmap_files(work, site, uploads, kind)
    configmap = f"{name}-{hashlib.sha256(repr(files).encode()).hexdigest()[:8]}"
    space: dict[str, YamlValue] = {"namespace": section.namespace} if section.namespace else {}
    image = section.image or cluster_job.published_image(work) or cluster_job.torch_image(work)
    if image is None:
        found = f"no image is known that runs on {work.device.name}"
        raise RecipeError(f"{found}; name one under `kubernetes: image:` of the site file")
    inputs = _PodInputs(work, section, uploads, image, configmap)
    metadata: YamlValue = {"generateName": f"{name}-", **space, **inputs.metadata}
    job: dict[str, YamlValue] = {**kind.head, "metadata": metadata, "spec": kind.spec(inputs)}
    configmap_document: dict[str, YamlValue] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": configmap, **space},
        "immutable": True,
        "data": files,
    }
    head = [
        f"{work.name} on {work.machine}, by `lmf-recipes submit --to kubernetes`.",
        "`kubectl create -f FILE` starts it; pods that fail or move go on from the last checkpoint.",
        *_notes(work, site, uploads),
    ]
    return f"{yaml_document(job, head)}{_DOCUMENT_SEPARATOR}{yaml_document(configmap_document)}"


def _check_fields(section: Kubernetes) -> None:
    """Raise RecipeError if the site file names a field of the pods or their container that the job sets itself, or that
    a TrainJob cannot set."""
    for part, fields in (("pod", section.pod), ("container", section.container)):
        for field in fields:
            if field in _OWN_FIELDS[part]:
                raise RecipeError(f"`kubernetes.{part}.{field}` of the site file is set by the job; leave it out")
            if section.kind == "TrainJob" and field not in _PATCHABLE[part]:
                found = f"a TrainJob cannot set `{field}` of its {part}, only {', '.join(_PATCHABLE[part])}"
                remedy = f"set it in the ClusterTrainingRuntime `{section.runtime}`, or take `kind: PyTorchJob`"
                raise RecipeError(f"`kubernetes.{part}` of the site file: {found}; {remedy}")


def _grace_seconds(work: ClusterJob) -> int:
    """Return the seconds that a pod needs to end, so that a checkpoint that is being written is written to its end."""
    return round(work.checkpoint_write_s + local_launch.SHUTDOWN_SECONDS)


def _notes(work: ClusterJob, site: Site, uploads: Uploads) -> Iterator[str]:
    """Yield the release of Trainer that a TrainJob needs, and a note for each data set or model that must be on the
    volume before the job starts, with the path that pods see."""
    section = site.kubernetes
    if section.kind == "TrainJob" and _GRACE in section.pod:
        yield f"the job needs Kubeflow Trainer 2.3 or later, the first with `{_GRACE}`"
    elif section.kind == "TrainJob":
        later = f"with 2.3, `pod: {{{_GRACE}: {_grace_seconds(work)}}}` of the site file"
        saved = "lets a pod that is moved write its checkpoint to the end"
        yield f"the job needs Kubeflow Trainer 2.2 or later (`runtimePatches`); {later} {saved}"
    for place in uploads.data:
        pod_path = PurePosixPath(section.mount, place)
        found = f"`{pod_path.relative_to(section.mount)}` has to be on the claim `{section.claim}`"
        yield f"{found}; pods see it as {pod_path}"


def _create_job(text: str, site: Site) -> Iterator[str]:
    """Create the ConfigMap and then the job with `kubectl`, and yield lines that say how to follow and cancel the job.
    Raises RecipeError if `kubectl` is not installed or fails."""
    job, files = text.split(f"\n{_DOCUMENT_SEPARATOR}")  # in files the line is indented
    remedy = "kubernetes.io/docs/tasks/tools says how"
    scheduler_client.run_client(["kubectl", "apply", "--filename=-"], files, remedy)
    output = scheduler_client.run_client(["kubectl", "create", "--filename=-"], job, remedy)
    kind, _, name = output.partition(" ")[0].partition("/")
    words = ["--namespace", site.kubernetes.namespace] if site.kubernetes.namespace else []
    label = _JOB_KINDS[site.kubernetes.kind].label
    yield output
    yield f"log: {shell_join(['kubectl', 'logs', '--follow', '--prefix', f'--selector={label}={name}', *words])}"
    yield f"cancel: {shell_join(['kubectl', 'delete', kind, name, *words])}"


def _check_paths_visible(work: ClusterJob, section: Kubernetes, uploads: Uploads) -> None:
    if not section.claim:
        found = "what a pod writes is lost with it, and data set files would not be there"
        raise RecipeError(f"{found}: name a PersistentVolumeClaim under `kubernetes: claim:` of the site file")
    for place in (str(work.output), *uploads.data, *uploads.files):
        if not PurePosixPath(section.mount, place).is_relative_to(section.mount):
            found = f"pods do not see `{place}`: they see the claim `{section.claim}` at {section.mount}"
            raise RecipeError(f"{found}; have it there, and name it by its path from there")


def _job_name(name: str) -> str:
    """Return the run's name in a form that Kubernetes accepts for jobs and services (RFC 1035): small letters, digits
    and dashes, a letter first, at most 40 characters."""
    plain = _plain_name(name)
    return (plain if plain[:1].isalpha() else f"run-{plain}")[:_MAX_NAME_LETTERS].strip("-")


def _configmap_files(work: ClusterJob, site: Site, uploads: Uploads, kind: _JobKind) -> Mapping[str, YamlValue]:
    """Return the content of the ConfigMap by key: the script that every node runs, and the small files that the run
    reads (recipe, DeepSpeed configuration, data set registry). Raises RecipeError if the files exceed the size limit of
    a ConfigMap, 1 MiB."""
    read = {_configmap_key(place): read_text(str(path)) for place, path in uploads.files.items()}
    lines = [
        f"cd {shell_quote(site.kubernetes.mount)}",
        *kind.rendezvous_lines,
        *node_script.script_lines("kubernetes"),
    ]
    if site.kubernetes.image or not cluster_job.published_image(work):
        lines += cluster_job.image_install_lines(work)
    else:
        brought = "# The releases that the recipe was judged for, where the image has others"
        lines += [brought, cluster_job.pip_line(work.pip_requirements)]
    setup, program = site.kubernetes.setup, f"{_SCRIPT_FOLDER}/{_PROGRAM_NAME}"
    script = node_script.build_node_script(work, site, "Kubernetes", program, setup, lines)
    files = {_SCRIPT_NAME: script, **node_script.program_files(), **read}
    if (size := sum(len(each.encode()) for each in files.values())) > _MAX_CONFIGMAP_BYTES:
        raise RecipeError(
            f"recipe, DeepSpeed configuration and data set registry are {size >> 10:,} KiB together, a ConfigMap holds "
            f"{_MAX_CONFIGMAP_BYTES >> 10:,}; leave only the recipe's data sets in the registry"
        )
    return files


def _pod_resources(work: ClusterJob, site: Kubernetes) -> YamlValue:
    """Return the resource requests and limits of each pod. The memory request equals the memory limit, so that
    Kubernetes evicts other pods first if a node runs out of memory."""
    resource = _device_resource(work, site)
    devices: dict[str, YamlValue] = {resource: work.devices} if resource else {}
    memory: dict[str, YamlValue] = {"memory": f"{work.memory_gib + work.shm_gib}Gi"} if work.memory_gib else {}
    limits = {**memory, **devices, **site.limits}
    resources: dict[str, YamlValue] = {"requests": {"cpu": work.cpus, **limits}, "limits": limits}
    return Commented(resources, f"{_MEMORY_COMMENT if memory else _NO_LIMIT_COMMENT} {work.out_of_memory_hint}")


def _device_resource(work: ClusterJob, site: Kubernetes) -> str | None:
    """Return the name under which the cluster offers the device, such as `nvidia.com/gpu`. The site file may name
    another. Return None if the run uses no accelerator."""
    usual = node_needs(work.device).kubernetes
    return usual and (site.resource or usual)


def _configmap_key(place: str) -> str:
    """Convert a file's path into a key of the ConfigMap. A ConfigMap has no folders, so slashes and other signs become
    underscores."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", place.strip("/"))


def _volumes_and_mounts(inputs: _PodInputs) -> tuple[list[YamlValue], list[YamlValue]]:
    """Return the volumes of a pod and the mounts of its container: the site's volume, the ConfigMap with the script and
    the small files, /dev/shm, and files of the vendor's driver on the node.

    Each small file is mounted at the path where the run looks for the file, and hides the file of that name on the
    site's volume. A TrainJob cannot mount a volume twice (listMapKey of ContainerPatch in trainjob_types.go), so each
    small file has a volume of its own."""
    work, site, configmap = inputs.work, inputs.site, {"configMap": {"name": inputs.configmap}}
    claim: YamlValue = {"name": _CLAIM_VOLUME, "persistentVolumeClaim": {"claimName": site.claim}}
    shm: YamlValue = {"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": f"{work.shm_gib}Gi"}}
    volumes: list[YamlValue] = [
        Commented(claim, _SHARED_CLAIM_COMMENT) if work.nodes > 1 else claim,
        Commented(shm, _SHM_COMMENT),
        {"name": _SCRIPT_VOLUME, "configMap": {**configmap["configMap"], "items": _script_items()}},
    ]
    mounts: list[YamlValue] = [
        {"name": _CLAIM_VOLUME, "mountPath": site.mount},
        {"name": _SCRIPT_VOLUME, "mountPath": _SCRIPT_FOLDER},
    ]
    for number, place in enumerate(inputs.uploads.files):
        volumes.append({"name": f"file-{number}", **configmap})
        path = str(PurePosixPath(site.mount, place))
        mounts.append({"name": f"file-{number}", "mountPath": path, "subPath": _configmap_key(place)})
    mounts.append({"name": _SHM_VOLUME, "mountPath": "/dev/shm"})
    for path in node_script.container_mounts(work.device, work.devices, work.nodes).files:
        name = _plain_name(path)
        volumes.append({"name": name, "hostPath": {"path": path}})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    return volumes, mounts


def _script_items() -> list[YamlValue]:
    """Return where the files of the ConfigMap that a pod runs lie in its script folder."""
    program: list[YamlValue] = [
        {"key": name, "path": f"{_PROGRAM_NAME}/{name}"} for name in node_script.program_files()
    ]
    return [{"key": _SCRIPT_NAME, "path": _SCRIPT_NAME}, *program]


def _plain_name(text: str) -> str:
    """Convert text into small letters, digits and dashes, the characters that Kubernetes allows in names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _with_site_fields(ours: Mapping[str, YamlValue], site: Mapping[str, Any]) -> dict[str, YamlValue]:
    """Return our fields of a pod or container, merged with those of the site file: its lists are appended, its mappings
    replace ours key by key, and its other values replace ours."""
    merged = dict(ours)
    for name, value in site.items():
        mine = merged.get(name)
        if isinstance(value, list) and isinstance(mine, list):
            value = [*mine, *value]
        elif isinstance(value, dict) and isinstance(mine, dict):
            value = {**mine, **value}
        merged[name] = value
    return merged


def _node_selection(work: ClusterJob, site: Kubernetes) -> Mapping[str, YamlValue]:
    """Return the pod fields that select nodes. The node selector of the site file is used if the file has one.
    Otherwise a pod avoids nodes whose label names another NVIDIA device. Nodes with devices often carry a taint named
    after the device resource, so the pod tolerates that taint."""
    resource = _device_resource(work, site)
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
    affinity: YamlValue = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": affinity}, **tolerated}


class _PodInputs(NamedTuple):
    """Inputs for the specification of a pod: the cluster job, the site's settings for Kubernetes, the files to bring,
    the container image, and the name of the ConfigMap."""

    work: ClusterJob
    site: Kubernetes
    uploads: Uploads
    image: str
    configmap: str

    def env(self, label: str) -> list[YamlValue]:
        """Return the environment variables of the container. JOB is the name of the job, read from the pod's label
        `label`. HF_TOKEN and others are read from the Kubernetes secrets that the site file names; the variable's name
        is the key in its secret."""
        job: YamlValue = {"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
        secrets = {**({"HF_TOKEN": self.site.secret} if self.site.secret else {}), **self.site.secrets}
        return [
            job,
            *({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
              for name, secret in secrets.items()),
            *self.site.container.get("env", ()),
        ]  # fmt: skip

    @property
    def metadata(self) -> Mapping[str, YamlValue]:
        """Labels and annotations of the job and of its pods, as far as the site file names any."""
        named = {"labels": self.site.labels, "annotations": self.site.annotations}
        return {key: value for key, value in named.items() if value}


def _pod_template(inputs: _PodInputs, container: Mapping[str, YamlValue], fields: Mapping[str, YamlValue]) -> YamlValue:
    """Return the template of the pods: their volumes, the nodes on which they may run, further `fields`, the
    `container` with its mounts, and what the site file adds to pod and container."""
    site, (volumes, mounts) = inputs.site, _volumes_and_mounts(inputs)
    pod = _with_site_fields({**_node_selection(inputs.work, site), "volumes": volumes, **fields}, site.pod)
    added = {name: value for name, value in site.container.items() if name != "env"}  # `inputs.env` has those
    whole = _with_site_fields({**container, "volumeMounts": mounts}, added)
    metadata: dict[str, YamlValue] = {"metadata": inputs.metadata} if inputs.metadata else {}
    return {**metadata, "spec": {**pod, "containers": [whole]}}


def _deadline(work: ClusterJob) -> Mapping[str, YamlValue]:
    return {"activeDeadlineSeconds": round(work.time_limit_h * 3600)} if work.time_limit_h else {}


class _JobKind(NamedTuple):
    """A kind of Kubeflow job. `head` holds its apiVersion and kind. `label` is the pod label that holds the job's name.
    `rendezvous_lines` are bash lines that set the variables among NODE_RANK, MASTER_ADDR and MASTER_PORT that the
    controller does not set. `spec` builds the specification of the job."""

    head: Mapping[str, YamlValue]
    label: str
    rendezvous_lines: tuple[str, ...]
    spec: Callable[[_PodInputs], YamlValue]


def _train_job(inputs: _PodInputs) -> YamlValue:
    """Return the specification of a TrainJob. A TrainJob has fields for the trainer's image, resources and environment.
    All other pod fields are patched into the pod template of the runtime. The environment of the container `node`
    cannot be patched (jobset.go, Validate)."""
    template = _pod_template(inputs, {"name": "node"}, {})
    patched: YamlValue = {"name": "node", "template": {"spec": {"template": template}}}
    return {
        **_deadline(inputs.work),
        "runtimeRef": {"name": inputs.site.runtime},
        "trainer": {
            "numNodes": inputs.work.nodes,
            "image": inputs.image,
            "command": _COMMAND,
            "env": inputs.env(_JOB_SET_LABEL),
            "resourcesPerNode": _pod_resources(inputs.work, inputs.site),
        },
        "runtimePatches": [
            {"manager": _PATCH_MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patched]}}}}
        ],
    }


def _pytorch_job(inputs: _PodInputs) -> YamlValue:
    work = inputs.work
    container: dict[str, YamlValue] = {
        "name": "pytorch",
        "image": inputs.image,
        "command": _COMMAND,
        "env": inputs.env(_OPERATOR_LABEL),
        "resources": _pod_resources(work, inputs.site),
    }
    template = _pod_template(inputs, container, {_GRACE: Commented(_grace_seconds(work), _GRACE_COMMENT)})
    replicas = {"Master": 1, **({"Worker": work.nodes - 1} if work.nodes > 1 else {})}
    return {
        "runPolicy": {**_deadline(work), "backoffLimit": _RETRIES, "cleanPodPolicy": "Running"},
        "pytorchReplicaSpecs": {
            kind: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
            for kind, count in replicas.items()
        },
    }


_JOB_KINDS: Mapping[str, _JobKind] = {
    "TrainJob": _JobKind(
        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"},
        _JOB_SET_LABEL,
        ('export NODE_RANK="$PET_NODE_RANK" MASTER_ADDR="$PET_MASTER_ADDR" MASTER_PORT="$PET_MASTER_PORT"',),
        _train_job,
    ),
    "PyTorchJob": _JobKind(
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"},
        _OPERATOR_LABEL,
        ("# The operator's RANK counts nodes, as LLaMA-Factory's NODE_RANK does", 'export NODE_RANK="$RANK"'),
        _pytorch_job,
    ),
}
