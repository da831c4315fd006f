"""The site file: settings that a site (a cluster and its users) needs in every job, such as partition, account and
set-up lines. Each key is checked when the file is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from validator.errors import RecipeError
from validator.knowledge.devices import find_device
from validator.recipe import known_folders, safe_read
from validator.recipe.safe_read import read_yaml
from validator.recipe.suggestions import unknown_name
from validator.recipe.yaml_writer import YamlValue, yaml_document

_FILE_HEADER = """\
# What this site asks of every job of `lmf-recipes submit`. There are also, as a site needs them,
#   in `slurm`: qos, constraint, reservation, devices (gpu:a100:{devices}), exclusive (true), hours (the longest job),
#   modules and options (lists; options are any #SBATCH lines), container and mounts (of pyxis), logs (a folder),
#   array_limit (jobs of an array at once), by_device (a100-80g: any of these, for that device);
#   in `slurm`, `skypilot` and `kubernetes`: setup (lines for that engine alone);
#   beside them: environment (variables for every node; $NAME is the node's), start_wait_minutes (for each other).
"""
_VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
Words = tuple[str, ...]
Variables = Mapping[str, str]
Labels = Mapping[str, str]
Tree = Mapping[str, Any]
Trees = tuple[Tree, ...]
ByDevice = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Slurm:
    """Settings for sbatch and srun. `devices` is the site's request for the devices of a node: `gpu:a100:{devices}` for
    --gres, or a whole option such as `--gpus-per-node={devices}`. `hours` is the longest job that the site allows (0:
    no limit). `container` and `mounts` are options of pyxis. `options` are further options of sbatch. `logs` is a
    folder that all nodes see. `array_limit` is the number of jobs of an array that run at once (0: no limit).
    `by_device` holds settings that replace these for a device, by the device's name, such as `a100-80g`."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    devices: str = ""
    exclusive: bool = False
    hours: float = 0.0
    modules: Words = ()
    container: str = ""
    mounts: Words = ()
    options: Words = ()
    setup: Words = ()
    logs: str = ""
    array_limit: int = 0
    by_device: ByDevice = field(default_factory=dict)

    def for_device(self, device: str) -> Slurm:
        """Return the settings for jobs on a device, such as `a100-80g`."""
        return replace(self, **self.by_device.get(device, {}))


@dataclass(frozen=True)
class SkyPilot:
    """Settings for a SkyPilot task. `accelerator` is the name of the device in the site's own pool. `resources`,
    `mounts` and `volumes` are further keys of the task's `resources`, `file_mounts` and `volumes`, in SkyPilot's
    format. If `managed` is true, `sky jobs launch` starts the task and restarts it after an interruption; otherwise
    `sky launch` starts it."""

    accelerator: str = ""
    resources: Tree = field(default_factory=dict)
    mounts: Tree = field(default_factory=dict)
    volumes: Tree = field(default_factory=dict)
    setup: Words = ()
    managed: bool = True


@dataclass(frozen=True)
class Kubernetes:
    """Settings for a Kubernetes job. `kind` is TrainJob or PyTorchJob; `runtime` is the ClusterTrainingRuntime of a
    TrainJob. `claim` is the PersistentVolumeClaim that holds model, data and results, and `mount` is its path in
    the pods. `resource` is the name under which the cluster offers the device; `limits` are further resources of a
    node, such as network adapters. `secret` is the Kubernetes secret that holds HF_TOKEN, `secrets` names the
    secret of each other variable. `labels` and `annotations` are those of the job and of its pods. `node_selector`
    and `tolerations`, further fields of the pods' specification (`pod`) and further fields of their container
    (`container`) are in Kubernetes' format."""

    kind: str = "TrainJob"
    namespace: str = ""
    runtime: str = "torch-distributed"
    image: str = ""
    setup: Words = ()
    claim: str = ""
    mount: str = "/workspace"
    resource: str = ""
    limits: Tree = field(default_factory=dict)
    secret: str = ""
    secrets: Variables = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    annotations: Labels = field(default_factory=dict)
    node_selector: Labels = field(default_factory=dict)
    tolerations: Trees = ()
    pod: Tree = field(default_factory=dict)
    container: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """All settings of a site. `environment` and `setup` (shell lines) apply to every node and scheduler. Each
    scheduler's section has further `setup` lines, which run after these. `start_wait_minutes` is how long the nodes of
    a job wait for each other."""

    environment: Variables = field(default_factory=dict)
    setup: Words = ()
    start_wait_minutes: float = 10.0
    slurm: Slurm = field(default_factory=Slurm)
    skypilot: SkyPilot = field(default_factory=SkyPilot)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)


Part = TypeVar("Part", Site, Slurm, SkyPilot, Kubernetes)


def site_file_path() -> Path | None:
    """Return the default path of the site file, such as ~/.config/lmf-recipes/site.yaml. Return None if the user has no
    home folder."""
    base = known_folders.user_folder("XDG_CONFIG_HOME", ".config")
    return base and base / "lmf-recipes" / "site.yaml"


def read_site(file: Path | None) -> Site:
    """Read the site file `file`, or the file at the default path if `file` is None. Return empty settings if there is
    no file at the default path. Raises RecipeError if the file cannot be read, a key is unknown, or a value has the
    wrong type."""
    place = file or site_file_path()
    if place is None or (file is None and safe_read.path_kind(place) is None):
        return Site()
    try:
        return _parse_section(Site, read_yaml(str(place)) or {}, "")
    except RecipeError as err:
        raise RecipeError(f"{place}: {err}") from None


def site_file_text(partition: str, account: str, setup: str) -> str:
    """Return the text of a site file with this partition, account and set-up line. Empty settings are left out."""
    slurm = {name: text for name, text in (("partition", partition), ("account", account)) if text}
    parts: dict[str, YamlValue] = {**({"slurm": slurm} if slurm else {}), **({"setup": [setup]} if setup else {})}
    return _FILE_HEADER + yaml_document(parts)


def _parse_section(kind: type[Part], value: Any, route: str) -> Part:
    """Convert a mapping of the site file into a dataclass, as `_section_values` does."""
    return kind(**_section_values(kind, value, route))


def _section_values(kind: type[Part], value: Any, route: str) -> dict[str, Any]:
    """Return the values of a mapping of the site file, as the fields of a dataclass take them: the field types say what
    each key accepts. `route` is the path of keys to the mapping, for messages. Raises RecipeError if the value is not a
    mapping, or a key is unknown or has a value of the wrong type."""
    field_types = {each.name: str(each.type) for each in fields(kind)}
    if not isinstance(value, Mapping):
        place = f"`{route}`" if route else "the file"
        raise RecipeError(f"{place} is {_describe_value(value)}; it holds keys: {', '.join(field_types)}")
    for key in value:
        if key not in field_types:
            raise RecipeError(unknown_name(f"`{route}` setting" if route else "site setting", str(key), field_types))
    return {str(key): _parse_value(field_types[key], value[key], _join_route(route, key)) for key in value}


def _device_id(name: object, route: str) -> str:
    """Return the device that a key of the site file names. Raises RecipeError if it is none, or one of several."""
    device, ambiguity = find_device(str(name))
    if ambiguity:
        raise RecipeError(f"`{route}.{name}`: {ambiguity}")
    return device.id


def _join_route(route: str, key: object) -> str:
    return f"{route}.{key}" if route else str(key)


# What the type of a field admits, and how a message says so.
_ADMITTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str) and "\n" not in value,
            "a text of one line, in quotes where it is a number"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (lambda value: type(value) is int and value > 0, "a whole number above 0"),
    "float": (lambda value: type(value) in (int, float) and 0 < value < math.inf, "a number above 0"),
    "Words": (lambda value: isinstance(value, list), "a list of texts"),
    "Variables": (lambda value: isinstance(value, Mapping), "a mapping"),
    "Labels": (lambda value: isinstance(value, Mapping), "a mapping"),
    "Tree": (lambda value: isinstance(value, Mapping), "a mapping"),
    "ByDevice": (lambda value: isinstance(value, Mapping), "a mapping, such as `{a100-80g: {partition: gpu}}`"),
    "Trees": (lambda value: isinstance(value, list), "a list of mappings"),
}  # fmt: skip
_SECTIONS = {"Slurm": Slurm, "SkyPilot": SkyPilot, "Kubernetes": Kubernetes}


def _parse_value(kind: str, value: Any, route: str) -> Any:
    """Convert a value of the site file into the type `kind` of its field, such as `float` or `Words`. `route` is the
    path of keys to the value, for messages. Raises RecipeError if the value has the wrong type."""
    if kind in _SECTIONS:
        return _parse_section(_SECTIONS[kind], value, route)
    admits, takes = _ADMITTED[kind]
    if not admits(value):
        raise RecipeError(f"`{route}` is {_describe_value(value)}; it takes {takes}")
    if kind in ("Words", "Trees"):
        inner = "str" if kind == "Words" else "Tree"
        return tuple(_parse_value(inner, each, f"{route}[{number}]") for number, each in enumerate(value))
    if kind == "ByDevice":
        return {_device_id(name, route): _section_values(Slurm, value[name], f"{route}.{name}") for name in value}
    if kind in ("Variables", "Labels"):
        for name in value:
            if kind == "Variables" and not re.fullmatch(_VARIABLE_NAME, str(name)):
                raise RecipeError(f"`{route}` names `{name}`, which is no name of a variable")
        # A number is taken as it is written.
        plain = {str(name): str(one) if type(one) in (int, float) else one for name, one in value.items()}
        return {name: _parse_value("str", one, _join_route(route, name)) for name, one in plain.items()}
    return float(value) if kind == "float" else value


def _describe_value(value: Any) -> str:
    """Return a short description of a value for a message: the value itself in backticks, or `a list`, `a mapping`,
    `empty`, `a long text`."""
    names = {list: "a list", dict: "a mapping", type(None): "empty"}
    text = str(value)
    return names.get(type(value)) or (f"`{text}`" if len(text) < 60 and text.isprintable() else "a long text")
