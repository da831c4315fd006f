"""Look-up in data/: models, devices, argument tables, guidance. Names match leniently; a miss gets a suggestion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from validator.diagnostic import RecipeError
from validator.memory import Architecture, Runtime, parameters
from validator.read import loader
from validator.tables.architecture import architecture

DATA = Path(__file__).parent.parent / "data"
_ENTRY = r"(?m)^(?=\w[\w.\-]*:)"
_MACHINE = r"(?i)(?:(\d{1,6}) ?[x×*] ?)?(\d{1,6}) ?[x×*] ?(.+)"
_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}


class Model(NamedTuple):
    """A model by its shapes. `template` is LLaMA-Factory's for this very name; None: none is registered.
    `id` is None for a local folder; `quantized` names the method of a checkpoint that is quantized already."""

    id: str | None
    name: str
    short: str | None
    arch: Architecture
    parameters: int
    kind: str
    dtype_bytes: float = 2.0
    template: str | None = None
    base: bool = False
    positions: int | None = None
    quantized: str | None = None
    quantized_bits: int = 0
    vision_parameters: int = 0
    remote_code: bool = False
    hub: tuple[str, ...] = ()

    @property
    def billions(self) -> float:
        return self.parameters / 1e9


class Device(NamedTuple):
    """An accelerator. GiB are 2^30 bytes; `usable_gib` is what all processes can allocate; None: not known."""

    id: str
    name: str
    vendor: Literal["nvidia", "amd", "ascend", "cpu"]
    memory_gib: float | None
    usable_gib: float | None
    context_gib: float | None
    capability: float | None
    bf16: bool
    fp8: bool
    flash_attention: bool
    bitsandbytes: tuple[int, ...]
    server_devices: int
    server_ram_gib: float | None
    evidence: Literal["good", "thin"]
    notes: Mapping[str, str]

    def runtime(self, expandable: bool) -> Runtime:
        """What this kind of device adds to live tensors, for the memory model."""
        return Runtime(
            context_gib=0.5 if self.context_gib is None else self.context_gib,
            evidence=self.evidence if self.vendor == "nvidia" else "thin",
            expandable_segments=expandable,
            capacity_gib=self.usable_gib,
        )


class Machine(NamedTuple):
    """`nodes` servers with `devices` accelerators each. `note` says which device a short form was taken for."""

    nodes: int
    devices: int
    device: Device
    host_ram_gib: float | None = None
    note: str | None = None

    @property
    def world(self) -> int:
        return self.nodes * self.devices

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.devices}x{self.device.id}"


def home() -> Path:
    """The folder that holds recipes/, deepspeed/ and data/: the checkout, or their copy beside an installed package."""
    root = Path(__file__).parent.parent.parent
    return root if (root / "recipes").is_dir() else root / "llamafactory_recipes"


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for a near miss, else an empty text."""
    import difflib

    written = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(written), n=1, cutoff=0.6)
    return f"; did you mean `{written[near[0]]}`?" if near else ""


@cache
def table(name: str) -> Any:
    """One of the generated JSON tables in data/."""
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


class Entries(Mapping[str, Any]):
    """A hand-kept YAML table of data/. An entry is parsed when it is asked for: a whole table would take most of a
    check's time."""

    def __init__(self, name: str) -> None:
        parts = re.split(_ENTRY, (DATA / f"{name}.yaml").read_text("utf-8"))[1:]
        self._texts = {part.partition(":")[0]: part for part in parts}
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._parsed:
            self._parsed[key] = loader.parse_data(self._texts[key])[key]
        return self._parsed[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def mention(self, words: str) -> Iterator[str]:
        """Keys of the entries whose text holds these words, in lower case."""
        return (key for key, text in self._texts.items() if words in text.lower())


@cache
def listing(name: str) -> Entries:
    """One of the hand-kept YAML tables in data/."""
    return Entries(name)


def model_ids() -> list[str]:
    """Ids of all known models, in the table's order."""
    return list(listing("models"))


def device_ids() -> list[str]:
    """Ids of all known devices, in the table's order."""
    return list(listing("devices"))


@lru_cache(maxsize=256)
def model(name: str) -> Model:
    """A model by hub name, file-name form (`qwen32b`), id, or local folder. Raises RecipeError when it is not known."""
    if _is_folder(name):
        return _local(Path(name))
    wanted = name.strip().lower()
    models = listing("models")
    if wanted in models:
        return _published(wanted, models[wanted], models[wanted]["hub"][0])
    for key in models.mention(wanted):
        entry = models[key]
        for hub in [*entry["hub"], *entry["modelscope"]]:
            if hub.lower() == wanted:
                return _published(key, entry, hub)
        if entry["short"] == wanted:
            return _published(key, entry, entry["hub"][0])
    raise RecipeError(f"model `{name}` is not known{suggest(wanted, _all_names())}")


def model_by_any_name(name: str) -> Model:
    """As `model`, and by a hub name without its owner, as people type it. Raises RecipeError when it is not known."""
    wanted = name.strip().lower()
    mentioned = (listing("models")[key]["hub"] for key in listing("models").mention(f"/{wanted}"))
    full = (hub for hubs in mentioned for hub in hubs if hub.lower().endswith(f"/{wanted}"))
    return model(next(full, name))


def _is_folder(name: str) -> bool:
    try:
        return (Path(name) / "config.json").is_file()
    except OSError:  # longer than the system allows
        return False


def _all_names() -> Iterable[str]:
    for key, entry in listing("models").items():
        yield from [key, entry["short"], *entry["hub"]]


def _published(key: str, entry: dict[str, Any], hub: str) -> Model:
    special = dict((entry.get("overrides") or {}).get(hub) or {})
    config = {**entry["config"], **{k: v for k, v in special.items() if k not in entry}}
    entry = {**entry, **{k: v for k, v in special.items() if k in entry}}
    return Model(
        id=key,
        name=hub,
        short=entry["short"],
        parameters=entry["parameters"],
        dtype_bytes=_BYTES.get(entry["dtype"], 2.0),
        template=entry["template"] if hub not in entry["base"] else None,
        base=hub in entry["base"],
        vision_parameters=entry.get("vision_parameters") or 0,
        remote_code=bool(entry.get("remote_code")),
        hub=tuple(entry["hub"]),
        **_from_config(config),
    )


def _local(folder: Path) -> Model:
    try:
        config = loader.read_json(str(folder / "config.json"))
    except RecipeError as err:
        raise RecipeError(f"model folder: {err}") from None
    if not isinstance(config, dict):
        raise RecipeError(f"`{folder / 'config.json'}` is not a mapping")
    found = _from_config(config)
    counted = parameters(found["arch"])
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return Model(None, str(folder), None, parameters=counted, dtype_bytes=_BYTES.get(dtype, 2.0), **found)


def _from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    described = config.get("quantization_config")
    quantization = described if isinstance(described, Mapping) else {}
    arch = architecture(config)
    return {
        "arch": arch,
        "kind": str(config.get("model_type")),
        "positions": config.get("max_position_embeddings"),
        "quantized": quantization.get("quant_method"),
        "quantized_bits": quantization.get("bits") or 0,
    }


@lru_cache(maxsize=256)
def device(name: str) -> tuple[Device, str | None]:
    """A device by id or short form, and a note when a short form stands for one of several.

    Raises RecipeError when it is not known."""
    wanted = name.strip().lower().replace(" ", "-")
    devices = listing("devices")
    if wanted in devices:
        return _device(wanted), None
    claims = [key for key in devices.mention(wanted) if wanted in aliases(key)]
    default = [key for key in claims if wanted in (devices[key].get("default_for") or [])]
    if not claims:
        near_miss = suggest(wanted, devices)
        raise RecipeError(f"device `{name}` is not known{near_miss}; known: {' '.join(device_ids())}")
    taken = (default or claims)[0]
    others = [key for key in claims if key != taken]
    note = f"`{name}` is taken as {taken}" + (f", not {', '.join(others)}" if others else "")
    return _device(taken), note if others else None


def aliases(key: str) -> list[str]:
    """Short forms of a device, the usual one first."""
    return [str(alias) for alias in listing("devices")[key]["aliases"]]


def _all_aliases() -> Iterator[str]:
    return (alias for key in device_ids() for alias in aliases(key))


def _device(key: str) -> Device:
    entry = listing("devices")[key]
    server = entry.get("server") or {}
    return Device(
        id=key,
        name=entry["name"],
        vendor=entry["vendor"],
        memory_gib=entry["memory_gib"],
        usable_gib=entry["usable_gib"],
        context_gib=entry["context_gib"],
        capability=entry["compute_capability"],
        bf16=bool(entry["bf16"]),
        fp8=bool(entry["fp8"]),
        flash_attention=bool(entry["flash_attention"]),
        bitsandbytes=tuple(entry["bitsandbytes"] or ()),
        server_devices=server.get("devices") or 1,
        server_ram_gib=server.get("host_ram_gib"),
        evidence=entry["evidence"],
        notes=entry.get("notes") or {},
    )


def machine(text: str, host_ram_gib: float | None = None) -> Machine:
    """`8xascend-910b-64g` or `2x8xa100-80g`: nodes x devices x device. Raises RecipeError when it is malformed."""
    match = re.fullmatch(_MACHINE, text.strip())
    if not match:
        form = "[nodes x] devices x device, such as 8xascend-910b-64g or 2x8xa100-80g"
        hint = f"; one is 1x{text}" if text.strip().lower() in {*device_ids(), *_all_aliases()} else ""
        raise RecipeError(f"machine `{text}` is not of the form {form}{hint}")
    nodes, devices = int(match[1] or 1), int(match[2])
    if not 1 <= nodes <= 4096 or not 1 <= devices <= 64:
        raise RecipeError(f"machine `{text}`: 1 to 4096 nodes of 1 to 64 devices are possible")
    found, note = device(match[3])
    return Machine(nodes, devices, found, host_ram_gib, note)
