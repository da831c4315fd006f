#!/usr/bin/env python3
"""Models that see against the simulator: cells of families, methods and what is frozen, recorded in
evidence/simulator/vision.csv.

python -m benchmarks simulator vision            # simulates the cells that are missing, a minute each
python -m benchmarks simulator vision --compare  # prints the error of the formulas, and beside public runs
"""

from __future__ import annotations

from typing import Any

import records
from simulation import vision_public
from simulation.grid import PRECISIONS

from validator.knowledge import models
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.physics import Adapter, TowerWorkload, Workload, estimate_device_memory, linear_roles
from validator.run import model_parts, multimodal
from validator.run.settings import RunSettings, run_of_values

RECORD = records.EVIDENCE / "simulator" / "vision.csv"
DEFAULTS: dict[str, Any] = {
    "method": "lora", "precision_mode": "bf16", "grad_ckpt": True, "freeze_layers": 2, "seq_len": 2048,
    "micro_batch": 1, "pixels": 768 * 768, "freeze_vision_tower": True, "freeze_multi_modal_projector": True,
    "freeze_language_model": False, "seconds": 0,
}  # fmt: skip
FREE = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}
TOWER, PROJECTOR = {"freeze_vision_tower": False}, {"freeze_multi_modal_projector": False}
USUAL: list[dict[str, Any]] = [{}, TOWER, {"method": "qlora4"}, {"method": "full"}, {"method": "full", **FREE}]
RARE: list[dict[str, Any]] = [
    {"method": "full", "precision_mode": "pure_bf16", **FREE}, {"method": "full", **PROJECTOR},
    {"method": "full", **PROJECTOR, "freeze_language_model": True}, {"grad_ckpt": False, **TOWER},
    {"method": "freeze", **PROJECTOR}, {"method": "qlora4", **TOWER}, {"method": "full", "grad_ckpt": False, **FREE},
]  # fmt: skip
# LoRA stops with the layers of Llama 3.2 checkpointed, and beside a thawed tower of Gemma 4.
CROSSING: list[dict[str, Any]] = [
    {"method": "qlora4"}, {"method": "full"}, {"method": "freeze"}, {"grad_ckpt": False}, {"grad_ckpt": False, **TOWER},
]  # fmt: skip
POOLING: list[dict[str, Any]] = [{}, {"method": "qlora4"}, {"method": "full"}, {"grad_ckpt": False}, {"seq_len": 8192}]
# A model that hears, too, without a sound and with one of 30 seconds; LoRA in its towers stops in PEFT.
HEARING: list[dict[str, Any]] = [
    {"seconds": seconds, **setting}
    for setting in ({}, {"method": "qlora4"}, {"method": "full"}, {"method": "full", **FREE}, {"grad_ckpt": False})
    for seconds in (0, 30)
]
# LoRA on all linear layers of ERNIE 4.5 VL stops in PEFT, too.
WHOLE: list[dict[str, Any]] = [{"method": "full"}, {"method": "full", "precision_mode": "pure_bf16"}]
MODELS = {"qwen2.5-vl-7b": [*USUAL, *RARE], "qwen2-vl-2b": USUAL, "internvl3-8b": USUAL, "llava-1.5-7b": USUAL,
          "qwen3-vl-8b": USUAL, "lfm2.5-vl-1.6b": USUAL,
          "llama-4-scout": [{**setting, "seq_len": 4096} for setting in USUAL],
          "yi-vl-6b": [{}, TOWER, {"method": "qlora4"}], "llama-3.2-vision-11b": CROSSING,
          "gemma-4-31b": POOLING, "gemma-4-26b-a4b": POOLING, "gemma-4-e2b": POOLING,
          "gemma-4-e4b": [{}, {"method": "qlora4"}], "ernie-4.5-vl-28b-a3b": WHOLE,
          "qwen2.5-omni-7b": HEARING, "qwen2.5-omni-3b": HEARING[:2]}  # fmt: skip


def cells() -> list[dict[str, Any]]:
    """Every model with its settings."""
    return [{"model": model, **DEFAULTS, **setting} for model, settings in MODELS.items() for setting in settings]


def recorded() -> list[dict[str, str]]:
    """The rows of the record."""
    return records.read(RECORD)


def simulate_missing() -> None:
    """Adds the cells that are not recorded, one by one."""
    from validator.simulation.model_layers import shallow_copies
    from validator.simulation.simulation_request import SimulationRequest
    from validator.simulation.worker import extrapolate, model_shape

    names = ("model", *DEFAULTS)
    done = {records.key(row, names) for row in recorded()}
    for cell in (cell for cell in cells() if records.key(cell, names) not in done):
        values = yaml_table("models")[cell["model"]]["config"]
        settings = {name: cell[name] for name in DEFAULTS}
        asked = SimulationRequest(model=values, **settings, steps=1, warm=True)
        to = shallow_copies(model_shape(asked).kinds)
        if to is None:
            raise SystemExit(f"{cell['model']} has too few layers")
        result = extrapolate(asked, to)
        part, peak = result.highest, result.parts[result.highest]
        made = {"peak_bytes": peak.size, "peak_at": " ".join(part), "trainable": result.trainable}
        records.append({**cell, **made}, RECORD)


def workload(row: dict[str, str]) -> Workload:
    """The recorded cell as the formulas see it: one device, no padding."""
    model = models.find_model(row["model"])
    method = "lora" if row["method"] == "qlora4" else row["method"]
    frozen = {key: row[key] == "True" for key in DEFAULTS if key.startswith("freeze_") and key != "freeze_layers"}
    values = {"finetuning_type": method, "cutoff_len": 1 << 20, "image_max_pixels": seen(row, model),
              "disable_gradient_checkpointing": row["grad_ckpt"] == "False", **frozen}  # fmt: skip
    if row["method"] == "qlora4":
        values["quantization_bit"] = 4
    settings = run_of_values(values)
    decoder = model_parts.is_decoder_trained(settings, model)
    return Workload(
        method=method if decoder or method == "lora" else "freeze",  # type: ignore[arg-type]
        precision=PRECISIONS[row["precision_mode"]],
        quant_bits=4 if row["method"] == "qlora4" else 0,
        adapter=Adapter(8, linear_roles(model.arch)),
        trainable_layers=int(row["freeze_layers"]) * decoder,
        length=int(row["seq_len"]),
        checkpointing="layer" if row["grad_ckpt"] == "True" else "off",
        pads_batches=False,
        towers=_encodings(settings, model, int(row["seconds"])),
    )


def _encodings(settings: RunSettings, model: Model, seconds: int) -> tuple[TowerWorkload, ...]:
    """With a sound of so many seconds in place of the longest; a tower makes 50 tokens of each."""
    heard = multimodal.tower_encodings(settings, model, ())
    return tuple(
        each if tower.patch_size else each._replace(tokens=min(each.tokens, 50 * seconds))
        for tower, each in zip(model.arch.towers, heard, strict=True)
    )


def seen(row: dict[str, str], model: Model) -> int:
    """Pixels of the picture once its sides are multiples of what the processor merges."""
    tower = model.arch.towers[0]
    step = int(tower.patch_size * tower.merge**0.5)
    side: int = int(int(row["pixels"]) ** 0.5) // step * step
    return side**2


def errors() -> list[tuple[float, dict[str, str]]]:
    """Signed relative error of the predicted peak of every row."""
    return [(_predicted(row) / float(row["peak_bytes"]) - 1, row) for row in recorded()]


def _predicted(row: dict[str, str]) -> float:
    return estimate_device_memory(models.find_model(row["model"]).arch, workload(row)).allocated


def compare() -> None:
    """Prints each error, their median and the largest; then what public runs showed."""
    found = errors()
    for error, row in found:
        setting = " ".join(f"{name}={row[name]}" for name, usual in DEFAULTS.items() if row[name] != str(usual))
        print(f"{row['model']:16}{float(row['peak_bytes']) / (1 << 30):9.3f} GiB{error:9.2%}  {setting}")
    median, _, worst = records.spread(error for error, _ in found)
    print(f"{len(found)} cells: median {median:.2%}, worst {worst:.2%}")
    print("\n".join(vision_public.lines()))


def recorded_figures() -> dict[str, float]:
    """Cells of models that see, and the error of the predicted peaks in per cent."""
    found = [error for error, _ in errors()]
    median, _, worst = records.spread(found)
    return {
        "vision_cells": len(found), "vision_median": round(100 * median, 2), "vision_worst": round(100 * abs(worst), 1)
    }  # fmt: skip


def main() -> None:
    records.simulate(__doc__, simulate_missing, compare)
