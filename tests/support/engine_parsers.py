"""What engines' own parsers say of jobs: a program of the environment in which they are installed (`.venv/engines`).

Reads a JSON list of [engine, text]; prints a JSON list of what is wrong with each, an empty text where nothing is."""

from __future__ import annotations

import json
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import kubernetes_validate
import sky
import yaml
from kubeflow.training import models as operator
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob as TrainJob
from kubernetes_validate import utils as schemas

# The oldest that knows all that is used, and the newest that the package has.
RELEASES = ("1.29", "1.37")


def main() -> None:
    socket.socket.connect = refuse  # type: ignore[method-assign]  # a parser that asked a server would judge by its answer
    schemas.schema_contents = cache(schemas.schema_contents)
    print(json.dumps([problem(engine, text) for engine, text in json.load(sys.stdin)]))  # noqa: T201


def refuse(*_: object) -> None:
    raise OSError("the parsers are asked offline")


def problem(engine: str, text: str) -> str:
    """What is wrong with a job; empty where nothing is."""
    try:
        PARSERS[engine](text)
    except Exception as err:
        return f"{type(err).__name__}: {err}"[:2000]
    return ""


def skypilot(text: str) -> None:
    """SkyPilot's task, with the files that it mounts, from the working directory. Which cloud has the devices is not
    asked: that catalogue is downloaded."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        task = sky.Task.from_yaml(file.name)
    task.validate_name()
    task.validate_run()
    task.expand_and_validate_file_mounts()


def kubernetes(text: str) -> None:
    """Every document by the models of its kind. They pass over keys that they do not know, so what comes back has to be
    what went in; what the core of Kubernetes knows goes through its schemas, which refuse other keys."""
    documents = [*yaml.load_all(text, yaml.CSafeLoader)]
    assert [each["kind"] for each in documents] in (["TrainJob", "ConfigMap"], ["PyTorchJob", "ConfigMap"])
    for each in documents:
        KINDS[each["kind"]](each)


def config_map(document: Mapping[str, Any]) -> None:
    strictly(document)


def train_job(document: dict[str, Any]) -> None:
    again = TrainJob.from_dict(document).to_dict()
    assert again == document, f"lost: {[*lost(document, again)]}"
    spec = document["spec"]
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = job["template"]["spec"]["template"]
    inner = template["spec"]
    (container,) = inner["containers"]
    trainer = spec["trainer"]
    # What the server and the webhook refuse beside (trainjob_types.go, listMapKey; plugins/jobset/jobset.go, Validate).
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/\S+", patch["manager"]), "the manager has no domain"
    for names in (container["volumeMounts"], inner["volumes"], trainer["env"]):
        assert len({each["name"] for each in names}) == len(names), "two of one name"
    assert "env" not in container, "the container `node` gets its environment from the trainer"
    assert job["name"] == container["name"] == "node", "the runtime has no other"
    # As the controller puts it together.
    given = {key: trainer[key] for key in ("image", "command", "env")}
    containers = [{**container, **given, "resources": trainer["resourcesPerNode"]}]
    a_pod({**template, "spec": {**inner, "containers": containers}})


def pytorch_job(document: Mapping[str, Any]) -> None:
    known(document, "KubeflowOrgV1PyTorchJob", "")
    for replica in document["spec"]["pytorchReplicaSpecs"].values():
        a_pod(replica["template"])


def known(value: Any, kind: str, route: str) -> None:
    """Every key and type by the generated models of the training operator."""
    if each := re.fullmatch(r"dict\(str, (\w+)\)", kind):
        for key, one in value.items():
            known(one, each[1], f"{route}.{key}")
    elif each := re.fullmatch(r"list\[(\w+)\]", kind):
        for number, one in enumerate(value):
            known(one, each[1], f"{route}[{number}]")
    elif kind in SIMPLE:
        assert type(value) is SIMPLE[kind], f"{route} is {value!r}, not {kind}"
    elif kind.startswith("Kubeflow"):
        model = getattr(operator, kind)
        names = {written: name for name, written in model.attribute_map.items()}
        assert {*value} <= {*names}, f"{route}: { ({*value} - {*names}) } unknown"
        for key, one in value.items():
            known(one, model.openapi_types[names[key]], f"{route}.{key}")


SIMPLE = {"str": str, "int": int, "bool": bool}


def a_pod(template: Mapping[str, Any]) -> None:
    spec, metadata = template["spec"], {"name": "a", **template.get("metadata", {})}
    strictly({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    volumes = {each["name"] for each in spec["volumes"]}
    for container in spec["containers"]:
        mounts = container["volumeMounts"]
        assert {each["name"] for each in mounts} == volumes, "a volume that is not mounted, or the other way round"
        assert len({each["mountPath"] for each in mounts}) == len(mounts), "two volumes in one place"


def strictly(document: Mapping[str, Any]) -> None:
    for release in RELEASES:
        kubernetes_validate.validate(document, release, strict=True)


def lost(before: Any, after: Any, route: str = "") -> Iterator[str]:
    """Where the two differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {*before, *after}:
            yield from lost(before.get(key), after.get(key), f"{route}.{key}")
    elif before != after:
        yield f"{route}: {before!r} and {after!r}"


KINDS = {"ConfigMap": config_map, "TrainJob": train_job, "PyTorchJob": pytorch_job}
PARSERS = {"skypilot": skypilot, "kubernetes": kubernetes}


if __name__ == "__main__":
    main()
