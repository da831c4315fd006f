"""What `plan` found, as a JSON structure and as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.job import naming
from validator.plan.choice import Choice
from validator.plan.draft import Draft
from validator.plan.search import LENGTHS, Plan
from validator.plan.upgrade import Upgrade
from validator.recipes import catalogue
from validator.tables import guidance
from validator.tables.machines import Machine
from validator.tables.models import Model

_COLUMNS = ("method", "speed", "device_gib", "headroom_gib", "host_gib", "zero", "micro_batch", "accumulation",
            "cutoff_len", "nearest", "gives_up")  # fmt: skip
_CHOICES = ("model", "recommended", "method", "speed", "device_gib", "headroom_gib", "host_gib", "cost")
_TITLES = {"device_gib": "GiB/device", "headroom_gib": "to spare", "host_gib": "GiB/host", "micro_batch": "micro",
           "accumulation": "accum.", "cutoff_len": "length", "gives_up": "gives up", "nearest": "nearest recipe",
           "zero": "ZeRO file"}  # fmt: skip
_SAVERS = {
    "bf16": "weights and AdamW states in 16 bits",
    "galore": "gradients projected to rank 128, one sample a step",
    "apollo": "gradients projected to rank 128, one sample a step",
    "badam": "one layer trained at a time",
}
_COST = "cost: doublings between your samples and the recommended number, and one for each class slower than fast"
_SLOWER = {
    "medium": "weights gathered from the other devices",
    "slow": "optimizer updated in host memory",
    "slowest": "weights fetched from host memory",
}


def result(
    model: Model | None,
    machine: Machine,
    samples: int | None,
    plans: Sequence[Plan],
    upgrades: Sequence[Upgrade] = (),
    choices: Sequence[Choice] = (),
    reasons: Sequence[str] = (),
) -> dict[str, Any]:
    """The structure that `plan --format json` prints. GiB are 2^30 bytes."""
    return {
        "model": model.name if model else None,
        "machine": {
            "name": str(machine),
            "host_ram_gib": machine.host_ram_gib,
            "usable_gib": machine.device.usable_gib,
        },
        "samples": samples,
        "plans": [_plan(each) for each in plans],
        "choices": [_choice(each) for each in choices],
        "reasons": [*reasons],
        "upgrades": [_upgrade(each) for each in upgrades],
        "notes": [*_notes(model, machine, samples)],
    }


def _plan(found: Plan) -> dict[str, Any]:
    made = found.draft
    return {
        "method": made.method,
        "speed": found.speed,
        "device_gib": round(found.device_gib, 1),
        "headroom_gib": round(found.headroom_gib, 1),
        "host_gib": round(found.host_gib, 1),
        "zero": made.engine,
        "micro_batch": made.micro,
        "accumulation": made.accumulation,
        "effective_batch": made.job.effective_batch,
        "learning_rate": made.rates["learning_rate"]["default"],
        "epochs": made.rates["epochs"],
        "cutoff_len": made.length,
        "samples": made.amount,
        "set": {**made.job.values, "output_dir": made.output},
        "gives_up": ", ".join(_losses(found)) or "nothing",
        "nearest": nearest(made),
    }


def _losses(found: Plan) -> Iterator[str]:
    made = found.draft
    if made.method == "qlora":
        yield "base weights in 4 bit"
    if made.saver:
        yield _SAVERS[made.saver]
    if made.recompute:
        yield "activations computed twice"
    if found.speed in _SLOWER:
        yield _SLOWER[found.speed]
    if made.liger:
        yield "needs liger-kernel"
    if made.length < LENGTHS[0]:
        yield f"samples cut at {made.length} tokens"


def nearest(made: Draft) -> str | None:
    """The recipe of the catalogue for the same model that shares most with the draft's name; None: none for it."""
    short, method = f"{made.model.short}-", naming.method_name(made.job)
    device = re.compile(re.escape(short + naming.label(made.machine.device.id)) + r"(x\d+)?-(?!\d)")

    def likeness(name: str) -> tuple[bool, bool, bool]:
        return name.startswith(made.name), bool(device.match(name)), method in name.split("-")

    return max((name for name in catalogue.names() if name.startswith(short)), key=likeness, default=None)


def _choice(found: Choice) -> dict[str, Any]:
    return {"model": found.plan.draft.model.name, "recommended": found.recommended, "cost": found.cost,
            **_plan(found.plan)}  # fmt: skip


def _upgrade(found: Upgrade) -> dict[str, Any]:
    made = found.draft
    return {"machine": str(made.machine), "host_ram_gib": made.machine.host_ram_gib, "method": made.method,
            "zero": made.engine, "note": found.note}  # fmt: skip


def _notes(model: Model | None, machine: Machine, samples: int | None) -> Iterator[str]:
    if machine.note:
        yield machine.note
    if machine.host_ram_gib is None:
        yield "offload is left out, because the host's memory is not known; give --host-ram"
    if model is None and samples:
        least = min(entry["minimum"] for entry in guidance.sizes("sft", "lora"))
        if samples < least:
            yield f"{samples:,} samples are too few for any size: public work with LoRA starts at {least:,}"
    elif model and samples:
        good, least = guidance.recommended(model, "lora"), guidance.recommended(model, "lora", "minimum")
        most = guidance.recommended(model, "lora", "saturating")
        if least and samples < least:
            yield f"{samples:,} samples are too few: public work with LoRA on this size starts at {least:,}"
        elif most and samples > most:
            yield f"{samples:,} samples are more than this size uses with LoRA ({most:,}); choose the best ones"
        elif good and samples < good:
            yield f"{samples:,} samples; {good:,} good ones are recommended for LoRA on this size"


def text(found: Mapping[str, Any]) -> str:
    """The structure as tables and sentences."""
    machine = found["machine"]
    ram = f"{machine['host_ram_gib']:g} GiB of host memory" if machine["host_ram_gib"] else "host memory not known"
    lines = [f"{found['model'] or 'base models'} on {machine['name']}, {ram}"]
    if found["plans"]:
        lines += _table(found["plans"], _COLUMNS)
    elif found["choices"]:
        lines += [*_table(found["choices"], _CHOICES), _COST]
    elif found["reasons"]:
        lines += ["no such run passes `check`, whatever its memory:", *(f"  {each}" for each in found["reasons"])]
    else:
        lines += ["nothing fits, even with every saving that is tried", *_remedies(found["upgrades"])]
    return "\n".join([*lines, *(f"note: {note}" for note in found["notes"])]) + "\n"


def _remedies(upgrades: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in upgrades:
        ram = f" with {each['host_ram_gib']:g} GiB of host memory" if each["host_ram_gib"] else ""
        yield f"it would on {each['machine']}{ram}: {each['method']}; {each['note']}"


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    cells = [tuple(_TITLES.get(c, c) for c in columns)]
    cells += [tuple("-" if row[c] is None else str(row[c]) for c in columns) for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
