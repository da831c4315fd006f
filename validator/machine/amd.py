"""Reads AMD devices and the processes on them from `rocm-smi`, or from `amd-smi`, which replaces `rocm-smi` from ROCm 6
on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from validator.machine import driver
from validator.machine.driver import (
    MIB_PER_GIB,
    Accelerator,
    DeviceProcess,
    DriverReading,
    parse_size,
    visible_accelerators,
)
from validator.physics.estimate import GIB

_ROCR_VARIABLE = "ROCR_VISIBLE_DEVICES"  # below HIP, which counts what this one leaves; batch systems set it


def read_accelerators() -> DriverReading | None:
    """Read the AMD devices in the order in which HIP numbers them, without those that ROCR_VISIBLE_DEVICES hides if its
    value is a list of numbers. Return None if neither rocm-smi nor amd-smi is installed. Raises DriverError if the tool
    shows no device, or if ROCR_VISIBLE_DEVICES hides every device."""
    shown = _read_tools()
    # Its words may be UUIDs, which these programs do not show unasked.
    if shown is None:
        return None
    if not os.environ.get(_ROCR_VARIABLE, "").replace(",", "").isdecimal():
        return DriverReading(shown)
    left = visible_accelerators(shown, [_ROCR_VARIABLE])
    if not left:
        raise driver.DriverError(f"{_ROCR_VARIABLE} hides all devices of this machine")
    return DriverReading([device._replace(visible_ids=(str(index),)) for index, device in enumerate(left)])


def read_processes() -> list[DeviceProcess]:
    """Read the processes that rocm-smi lists as users of a device. Their `device` is None: rocm-smi prints how many
    devices a process uses, but not which."""
    rows = (line.split() for line in (driver.run_tool("rocm-smi", "--showpids") or "").splitlines())
    listed = (row for row in rows if len(row) == 6 and row[0].isdecimal() and row[2] != "0")
    return [DeviceProcess(int(pid), name, parse_size(size, GIB), None) for pid, name, _, size, *_ in listed]


def _read_tools() -> list[Accelerator] | None:
    text = driver.run_tool("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    if text is not None and (cards := list(_parse_cards(_parse_json(text)))):
        return cards
    static = driver.run_tool("amd-smi", "static", "--asic", "--vram", "--json")
    if static is None:
        if text is None:
            return None
        raise driver.no_device_error("rocm-smi", text)
    usage = driver.run_tool("amd-smi", "metric", "--mem-usage", "--json") or ""
    if gpus := list(_parse_gpus(_parse_json(static), _parse_json(usage))):
        return gpus
    raise driver.no_device_error("amd-smi", static)


def _parse_json(text: str) -> Any:
    """Parse the JSON in the output of a tool, which may print warnings such as `[WARN] …` before the JSON. Return None
    if the output holds no JSON."""
    for start in re.finditer(r"^[\[{]", text, re.MULTILINE):
        with suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text[start.start() :])[0]
    return None


def _parse_cards(shown: Any) -> Iterator[Accelerator]:
    """Yield the devices in the JSON of rocm-smi, whose keys are `card0`, `card1` …. The names of a card's values are
    compared in lower case, because rocm-smi up to ROCm 6.0 writes them in lower case."""
    cards = shown.items() if isinstance(shown, Mapping) else ()
    for name, card in cards:
        if name.startswith("card") and isinstance(card, Mapping):
            facts = {str(key).lower(): str(value) for key, value in card.items()}
            words = ("memory", "used memory")
            total, used = (parse_size(facts.get(f"vram total {word} (b)", ""), GIB) for word in words)
            yield Accelerator(_product_name(facts), total, used, (name.removeprefix("card"),))


def _product_name(facts: Mapping[str, str]) -> str:
    """Return the product name of the card. A number such as `0x74a1` is skipped if another field holds a name: rocm-smi
    prints the number if its list of PCI devices lacks the card."""
    for key in ("card series", "device name", "card model"):
        if facts.get(key, "N/A") != "N/A" and not facts[key].startswith("0x"):
            return facts[key]
    return facts.get("card series", "an AMD device")


def _parse_gpus(static: Any, usage: Any) -> Iterator[Accelerator]:
    """Yield the devices in the JSON of amd-smi: names and sizes from `static`, memory in use from `usage`. Each of the
    two is a list of devices; from release 26 on the list is under the key `gpu_data`."""
    used = {str(gpu.get("gpu")): _section_gib(_gpu_section(gpu, "mem_usage"), "used_vram") for gpu in _gpu_rows(usage)}
    for gpu in _gpu_rows(static):
        name, index = str(_gpu_section(gpu, "asic").get("market_name", "an AMD device")), str(gpu.get("gpu"))
        yield Accelerator(name, _section_gib(_gpu_section(gpu, "vram"), "size"), used.get(index), (index,))


def _gpu_rows(shown: Any) -> list[Mapping[str, Any]]:
    rows = shown.get("gpu_data") if isinstance(shown, Mapping) else shown
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _gpu_section(gpu: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = gpu.get(name)
    return part if isinstance(part, Mapping) else {}


def _section_gib(part: Mapping[str, Any], name: str) -> float | None:
    """Return in GiB a size that amd-smi writes as `{"value": 196592, "unit": "MB"}`, where an MB is 2^20 bytes. None if
    the size is missing or not a number."""
    size = part.get(name)
    return parse_size(str(size.get("value") if isinstance(size, Mapping) else size), MIB_PER_GIB)
