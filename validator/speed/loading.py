"""Pictures and sound that the data loader has not made numbers of in time. Seconds of a step."""

from __future__ import annotations

from validator.memory.encoder import pixels
from validator.memory.run import Run

from .device import Device
from .passes import Passes

# Bytes of numbers that one process makes in a second: Qwen2-VL's processor of transformers 5.6 opens, scales and cuts a
# JPEG of 768 x 768 pixels in 30 ms on one core of a server, which is 4.6e8; LLaMA-Factory opens and scales it once more
# before (data/mm_plugin.py, _regularize_images).
_RATE = 3.0e8


def loading(run: Run, device: Device, passes: Passes) -> float:
    """Without workers the process that trains makes them itself; workers work beside the device, as many as there are
    cores for."""
    work = run.work
    made = pixels(run) / _RATE
    if not work.loader_workers:
        return made
    workers = max(1.0, min(work.loader_workers, device.cores / run.sharding.devices_per_node))
    return max(0.0, made / workers - work.accumulation * (passes.forward + passes.backward))
