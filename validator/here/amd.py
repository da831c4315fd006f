"""What rocm-smi shows, or amd-smi, which takes its place from ROCm 6 on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from validator.diagnostic import RecipeError
from validator.here import program
from validator.here.accelerator import Accelerator, Shown, number
from validator.here.holder import Holder
from validator.here.visible import visible

_MIB = 1024  # in a GiB
_BYTES = 1 << 30  # in a GiB
_LOWER = "ROCR_VISIBLE_DEVICES"  # below HIP, which counts what this one leaves; batch systems set it


def accelerators() -> Shown | None:
    """The devices in the programs' order, as HIP counts them; None where neither is installed. Raises RecipeError where
    they show none."""
    shown = _shown()
    # Its words may be UUIDs, which these programs do not show unasked.
    if shown is None:
        return None
    if not os.environ.get(_LOWER, "").replace(",", "").isdecimal():
        return Shown(shown)
    left = visible(shown, [_LOWER])
    if not left:
        raise RecipeError(f"{_LOWER} hides all devices of this machine")
    return Shown([device._replace(names=(str(index),)) for index, device in enumerate(left)])


def holders() -> list[Holder]:
    """The processes that rocm-smi lists, which names how many devices each holds and not which."""
    rows = (line.split() for line in (program.output("rocm-smi", "--showpids") or "").splitlines())
    listed = (row for row in rows if len(row) == 6 and row[0].isdecimal() and row[2] != "0")
    return [Holder(int(pid), name, _gib(number(size)), None) for pid, name, _, size, *_ in listed]


def _shown() -> list[Accelerator] | None:
    text = program.output("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    if text is not None and (cards := list(_cards(_read(text)))):
        return cards
    static = program.output("amd-smi", "static", "--asic", "--vram", "--json")
    if static is None:
        if text is None:
            return None
        raise program.fault("rocm-smi", text)
    usage = program.output("amd-smi", "metric", "--mem-usage", "--json") or ""
    if gpus := list(_gpus(_read(static), _read(usage))):
        return gpus
    raise program.fault("amd-smi", static)


def _read(text: str) -> Any:
    """The JSON after the warnings that may stand before it, such as `[WARN] …`; None where there is none."""
    for start in re.finditer(r"^[\[{]", text, re.MULTILINE):
        with suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text[start.start() :])[0]
    return None


def _cards(shown: Any) -> Iterator[Accelerator]:
    """rocm-smi: `card0`, `card1` …; the words of the keys are written in small letters up to ROCm 6.0."""
    cards = shown.items() if isinstance(shown, Mapping) else ()
    for name, card in cards:
        if name.startswith("card") and isinstance(card, Mapping):
            facts = {str(key).lower(): str(value) for key, value in card.items()}
            total, used = (number(facts.get(f"vram total {word} (b)", "")) for word in ("memory", "used memory"))
            yield Accelerator(_product(facts), _gib(total), _gib(used), (name.removeprefix("card"),))


def _product(facts: Mapping[str, str]) -> str:
    """Its name; a number (`0x74a1`) stands in its place where the list of PCI devices does not know it."""
    for key in ("card series", "device name", "card model"):
        if facts.get(key, "N/A") != "N/A" and not facts[key].startswith("0x"):
            return facts[key]
    return facts.get("card series", "an AMD device")


def _gib(size: float | None) -> float | None:
    return None if size is None else size / _BYTES


def _gpus(static: Any, usage: Any) -> Iterator[Accelerator]:
    """amd-smi: a list, from release 26 on under `gpu_data`."""
    used = {str(gpu.get("gpu")): _mib(_part(gpu, "mem_usage"), "used_vram") for gpu in _list(usage)}
    for gpu in _list(static):
        name, index = str(_part(gpu, "asic").get("market_name", "an AMD device")), str(gpu.get("gpu"))
        yield Accelerator(name, _mib(_part(gpu, "vram"), "size"), used.get(index), (index,))


def _list(shown: Any) -> list[Mapping[str, Any]]:
    rows = shown.get("gpu_data") if isinstance(shown, Mapping) else shown
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _part(gpu: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = gpu.get(name)
    return part if isinstance(part, Mapping) else {}


def _mib(part: Mapping[str, Any], name: str) -> float | None:
    """GiB of a size in MB of 2^20 bytes: `{"value": 196592, "unit": "MB"}`."""
    size = part.get(name)
    value = number(str(size.get("value") if isinstance(size, Mapping) else size))
    return None if value is None else value / _MIB
