"""A job of Kubernetes: a TrainJob of Kubeflow Trainer 2.2 or later, or a PyTorchJob of its predecessor, and a ConfigMap
with the files that it reads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from validator.diagnostic import RecipeError
from validator.quoting import join, quote
from validator.read.text import read_text
from validator.submit import client, container, entry, kubeflow, pod, shell
from validator.submit.manifest import Value, comment, document
from validator.submit.order import Order, Run, alone
from validator.submit.parcel import Parcel, pack
from validator.submit.site import Kubernetes, Site
from validator.submit.work import Work

# Of a ConfigMap, all keys together (kubernetes.io/docs/concepts/configuration/configmap).
_MOST = 1 << 20
# Names of pods and services are made of a job's name, and have at most 63 letters.
_LETTERS = 40
_APART = "---\n"


def order(runs: Sequence[Run], site: Site) -> Order:
    """The job of one run. Raises RecipeError as `text` does."""
    work, parcel = pack(alone(runs), [site.kubernetes.mount])
    job = text(work, site, parcel)
    return Order(job, [*notes(site, parcel)], lambda: submit(job, site))


def text(work: Work, site: Site, parcel: Parcel) -> str:
    """Both documents. Raises RecipeError where the site names no volume, or pods could not see what the run reads."""
    own = site.kubernetes
    _admit(work, own, parcel)
    form, name = _form(own), _label(work.name)
    files = _files(work, site, parcel, form)
    held = f"{name}-{hashlib.sha256(repr(files).encode()).hexdigest()[:8]}"
    space: dict[str, Value] = {"namespace": own.namespace} if own.namespace else {}
    inner = kubeflow.Inner(work, own, parcel, _image(work, own), held)
    job: dict[str, Value] = {**form.head, "metadata": {"generateName": f"{name}-", **space}, "spec": form.spec(inner)}
    kept: dict[str, Value] = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": held, **space}, "immutable": True, "data": files,
    }  # fmt: skip
    return "".join(f"{line}\n" for line in _head(work, site, parcel)) + document(job) + _APART + document(kept)


def notes(site: Site, parcel: Parcel) -> Iterator[str]:
    """What has to be on the volume before."""
    own = site.kubernetes
    for place in parcel.data:
        seen = PurePosixPath(own.mount, place)
        yield f"`{seen.relative_to(own.mount)}` has to be on the claim `{own.claim}`; pods see it as {seen}"


def submit(text: str, site: Site) -> Iterator[str]:
    """Hand both to `kubectl`, the files first. Raises RecipeError where it is not installed or refuses."""
    job, files = text.split(f"\n{_APART}")  # in files the line is indented
    remedy = "kubernetes.io/docs/tasks/tools says how"
    client.run(["kubectl", "apply", "--filename=-"], files, remedy)
    said = client.run(["kubectl", "create", "--filename=-"], job, remedy)
    kind, _, name = said.partition(" ")[0].partition("/")
    words = ["--namespace", site.kubernetes.namespace] if site.kubernetes.namespace else []
    label = _form(site.kubernetes).label
    yield said
    yield f"log: {join(['kubectl', 'logs', '--follow', '--prefix', f'--selector={label}={name}', *words])}"
    yield f"cancel: {join(['kubectl', 'delete', kind, name, *words])}"


def _admit(work: Work, own: Kubernetes, parcel: Parcel) -> None:
    if not own.claim:
        raise RecipeError(
            "what a pod writes is lost with it, and data set files would not be there: name a PersistentVolumeClaim "
            "under `kubernetes: claim:` of the site file"
        )
    for place in (str(work.output), *parcel.data, *parcel.files):
        if not PurePosixPath(own.mount, place).is_relative_to(own.mount):
            raise RecipeError(
                f"pods do not see `{place}`: they see the claim `{own.claim}` at {own.mount}; have it there, and name "
                "it by its path from there"
            )


def _form(own: Kubernetes) -> kubeflow.Form:
    if own.kind not in kubeflow.FORMS:
        raise RecipeError(f"`kubernetes.kind` of the site file is `{own.kind}`; it is {' or '.join(kubeflow.FORMS)}")
    return kubeflow.FORMS[own.kind]


def _label(name: str) -> str:
    """A name that Kubernetes takes for a service, too (RFC 1035)."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"run-{plain}")[:_LETTERS].strip("-")


def _image(work: Work, own: Kubernetes) -> str:
    image = own.image or container.image(work)
    if image is None:
        raise RecipeError(
            f"LLaMA-Factory publishes no image that runs on {work.device.name}; name one under `kubernetes: image:` of "
            "the site file"
        )
    return image


def _head(work: Work, site: Site, parcel: Parcel) -> Iterator[str]:
    yield from comment(f"{work.name} on {work.machine}, by `lmf-recipes submit --to kubernetes`.")
    yield from comment("`kubectl create -f FILE` starts it; pods that fail or move go on from the last checkpoint.")
    for each in notes(site, parcel):
        yield from comment(each)
    yield ""


def _files(work: Work, site: Site, parcel: Parcel, form: kubeflow.Form) -> Mapping[str, Value]:
    """The script that every node runs, and small files of the recipe. Raises RecipeError where they are too large."""
    read = {pod.key(place): read_text(str(path)) for place, path in parcel.files.items()}
    files = {pod.SCRIPT: _script(work, site, form), **read}
    if (size := sum(len(each.encode()) for each in files.values())) > _MOST:
        raise RecipeError(
            f"recipe, DeepSpeed configuration and data set registry are {size >> 10:,} KiB together, a ConfigMap holds "
            f"{_MOST >> 10:,}; leave only the recipe's data sets in the registry"
        )
    return files


def _script(work: Work, site: Site, form: kubeflow.Form) -> str:
    own = site.kubernetes
    brought = ["# The releases that the recipe was judged for, where the image has others", container.pip(work)]
    place = [
        f"cd {quote(own.mount)}",
        *form.place,
        *shell.script("kubernetes"),
        *([] if own.image else brought),
    ]
    return entry.script(work, site, own.setup, place, first=True)
