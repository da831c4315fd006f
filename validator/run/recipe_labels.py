"""Labels of a recipe that follow from its contents: its file name in the catalogue, and the `predicted` line of its
header block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from validator.knowledge import devices
from validator.knowledge.chat_templates import model_name_of_path
from validator.knowledge.models import Model
from validator.physics.estimate import GIB
from validator.recipe import safe_read
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.training_time import predict_training_time

# What stands behind `rows` in the header block of a recipe for the user's own data.
ROWS_REMARK = "  # of the data set; the hours are for these"
SAMPLES_REMARK = "  # recommended; yours are the rows below"
# From this length on it is part of the name.
LONG_CONTEXT = 8192


def catalogue_name(run: RunSettings) -> str | None:
    """Return the file name that a recipe with this model, machine and method has in the catalogue, without variant and
    suffix. None if model or machine is not known."""
    if not run.machine or not run.model:
        return None
    machine = run.machine
    count = "" if (machine.nodes, machine.devices) == (1, 8) or machine.device.vendor == "cpu" else f"x{machine.world}"
    title = re.sub(r"[^\w.]+", "-", model_title(run.model)).strip("-.").lower() or "model"
    return f"{run.model.short or title}-{device_label(machine.device.id)}{count}-{method_name(run)}"


def model_title(model: Model) -> str:
    """Return the name of a model without its hub organization, or without the folders above it."""
    folder = Path(model.name)
    if model.id is not None or safe_read.path_kind(folder) != "folder":
        return folder.name
    return model_name_of_path(folder.absolute())


def catalogue_name_with_variant(run: RunSettings) -> str | None:
    """Return the file name that the recipe has in the catalogue, without suffix but with the variant, such as
    qwen7b-a100-full-offload. None if model or machine is not known."""
    base = catalogue_name(run)
    return "-".join([base, *_variant_words(run)]) if base else None


def _variant_words(run: RunSettings) -> Iterator[str]:
    if run.fsdp:
        yield "fsdp"
    if run.deepspeed and run.deepspeed.offloads:
        yield "offload"
    saver = next((name for name in ("galore", "apollo", "badam") if run.args.flag(f"use_{name}")), None)
    if saver or run.args.flag("pure_bf16"):
        yield saver or ("8bit" if str(run.args.get("optim")).endswith("8bit") else "bf16")
    if run.args.number("cutoff_len") >= LONG_CONTEXT:
        yield f"{int(run.args.number('cutoff_len')) // 1024}k"


def method_name(run: RunSettings) -> str:
    """Return the method as file names and lists write it, such as qlora for LoRA on a quantized base model, or
    lora-dpo. The stage is added unless it is sft."""
    quantized = "q" if run.quantization.is_requested else ""
    stage = "" if run.task.stage == "sft" else f"-{run.task.stage}"
    return f"{quantized}{run.task.method}{stage}"


def device_label(device: str) -> str:
    """Return the device's name for file names: its first alias that is shorter than its id and stands for this device,
    else the id."""
    shorter = (alias for alias in devices.device_aliases(device) if len(alias) < len(device))
    return next((alias for alias in shorter if devices.find_device(alias)[0].id == device), device)


def stated_prediction(run: RunSettings) -> dict[str, Any] | None:
    """Return the prediction that the header block states: memory, and the band of hours rounded to two digits.
    Hours are left out if they are not known; None if memory is not known."""
    memory, time = predicted_memory(run), predict_training_time(run)
    if memory is None or time is None or time.hours is None:
        return memory
    return {**memory, "hours": [float(f"{each:.2g}") for each in (time.hours.low, time.hours.high)]}


def prediction_line(prediction: Mapping[str, Any]) -> str:
    """Return a prediction as the text that the header block contains, such as {device_gib: 12.3, host_gib: 45.6}."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in prediction.items()) + "}"


def predicted_memory(run: RunSettings) -> dict[str, Any] | None:
    """Return the predicted memory that `check` compares with the header block: GiB per device, per node and of one
    checkpoint, rounded to one decimal. None if the memory or the machine is not known."""
    prediction = predict(run)
    device, host = prediction.device_memory, prediction.host_memory
    if device is None or host is None or run.machine is None:
        return None
    return {
        "device_gib": round(device.expected / GIB, 1),
        "host_gib": round(host.expected / GIB, 1),
        "checkpoint_gib": round(prediction.checkpoint_bytes / GIB, 1),
    }
