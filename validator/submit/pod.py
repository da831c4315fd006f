"""What a pod that trains is given: resources, volumes and nodes, as Kubernetes writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from validator.submit.manifest import Said, Value
from validator.submit.parcel import Parcel
from validator.submit.site import Kubernetes
from validator.submit.work import Work
from validator.tables.data import listing
from validator.tables.nodes import node
from validator.train import environment

# Where a pod finds the script that it runs.
SCRIPTS, SCRIPT = "/etc/lmf-recipes", "run.sh"
_SCRIPTS, _VOLUME, _SHM = "scripts", "workspace", "shm"
_PRODUCT = "nvidia.com/gpu.product"
_MEMORY = "Main memory: the high end of the prediction, with headroom, and /dev/shm, which counts against the limit."
_WHOLE = "Main memory has no limit: the run is predicted to take nearly all of a node."
_SEVERAL = "Model, data and results; for several nodes its access mode is ReadWriteMany."
_SHARED = "Processes of a node and loaders exchange data in /dev/shm, which has 64 MiB where nobody asks for more."


def resources(work: Work, own: Kubernetes) -> Value:
    """What each node has to have. Memory is asked for as it is limited: where a node runs out of it, other pods are
    evicted before."""
    devices: dict[str, Value] = {resource(work, own): work.devices} if work.device.vendor != "cpu" else {}
    memory: dict[str, Value] = {"memory": f"{work.memory_gib + work.shm_gib}Gi"} if work.memory_gib else {}
    asked: dict[str, Value] = {
        "requests": {"cpu": work.cpus, **memory, **devices, **own.limits},
        "limits": {**memory, **devices, **own.limits},
    }
    return Said(asked, f"{_MEMORY if memory else _WHOLE} {work.relief}")


def resource(work: Work, own: Kubernetes) -> str:
    """What the cluster calls the devices."""
    return own.resource or node(work.device).kubernetes or "nvidia.com/gpu"


def key(place: str) -> str:
    """The key of a file in a ConfigMap, which has no folders."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", place.strip("/"))


def volumes(work: Work, own: Kubernetes, parcel: Parcel, files: str) -> list[Value]:
    """The site's claim, the ConfigMap with the files, /dev/shm, and what only the vendor's driver on the node has. A
    TrainJob mounts no volume twice (listMapKey of ContainerPatch in trainjob_types.go): each file is one."""
    drivers: list[Value] = [{"name": _name(path), "hostPath": {"path": path}} for path in _drivers(work)]
    claim: Value = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": own.claim}}
    shm: Value = {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": f"{work.shm_gib}Gi"}}
    held: list[Value] = [{"name": name, "configMap": {"name": files}} for name in (_SCRIPTS, *_files(parcel))]
    return [Said(claim, _SEVERAL) if work.nodes > 1 else claim, Said(shm, _SHARED), *held, *drivers]


def mounts(work: Work, own: Kubernetes, parcel: Parcel) -> list[Value]:
    """Each small file stands over the claim where the recipe looks for it; what the claim holds there is untouched."""
    drivers: list[Value] = [{"name": _name(path), "mountPath": path, "readOnly": True} for path in _drivers(work)]
    files: list[Value] = [
        {"name": name, "mountPath": str(PurePosixPath(own.mount, place)), "subPath": key(place)}
        for name, place in _files(parcel).items()
    ]
    return [
        {"name": _VOLUME, "mountPath": own.mount},
        {"name": _SCRIPTS, "mountPath": SCRIPTS},
        *files,
        {"name": _SHM, "mountPath": "/dev/shm"},
        *drivers,
    ]


def _files(parcel: Parcel) -> Mapping[str, str]:
    """The volume of each small file, with its place."""
    return {f"file-{number}": place for number, place in enumerate(parcel.files)}


def _drivers(work: Work) -> Sequence[str]:
    return environment.mounts(work.device, work.devices, work.nodes).files


def _name(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def nodes(work: Work, own: Kubernetes) -> Mapping[str, Value]:
    """Where a pod may run: on nodes that the site selects, else on none that says that it has other devices. Those
    with devices are often tainted by the name of the resource."""
    taint: Value = {"key": resource(work, own), "operator": "Exists", "effect": "NoSchedule"}
    tolerations = [*([taint] if work.device.vendor != "cpu" else []), *own.tolerations]
    tolerated: dict[str, Value] = {"tolerations": tolerations} if tolerations else {}
    if own.node_selector:
        return {"nodeSelector": own.node_selector, **tolerated}
    if work.device.vendor != "nvidia":
        return tolerated
    wanted: Value = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _of_product(work)}}
    return {"affinity": {"nodeAffinity": wanted}, **tolerated}


def _of_product(work: Work) -> list[Value]:
    """Terms of which one has to hold. The label is that of NVIDIA's GPU feature discovery: the name that the driver
    prints, with dashes (github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery)."""
    names = [name.replace(" ", "-") for name in listing("devices")[work.device.id]["products"]]
    full = [*names, *(f"NVIDIA-{name}" for name in names if not name.startswith("NVIDIA"))]
    return [
        {"matchExpressions": [{"key": _PRODUCT, "operator": "In", "values": full}]},
        {"matchExpressions": [{"key": _PRODUCT, "operator": "DoesNotExist"}]},
    ]
