"""Where LLaMA-Factory comes from on a node that does not have it: an image, or pip."""

from __future__ import annotations

from validator.quoting import join
from validator.submit.work import Work

_IMAGE = "hiyouga/llamafactory"
# What the names of release images for Ascend end with (LLaMA-Factory at v0.9.5, .github/workflows/docker.yml).
_ENDS = {"ascend-910b-32g": "-npu-a2", "ascend-910b-64g": "-npu-a2", "ascend-910c-64g": "-npu-a3"}
# Of PyTorch 2.6 for CUDA 12.4 (docker/docker-cuda/Dockerfile), which has no kernels for Blackwell.
_NEWEST = 9.0


def image(work: Work) -> str | None:
    """The image that LLaMA-Factory publishes for its release and this device; None where there is none."""
    release = next(word.partition("==")[2] for word in work.install if word.startswith("llamafactory=="))
    device = work.device
    if device.vendor in ("nvidia", "cpu"):
        return f"{_IMAGE}:{release}" if (device.capability or _NEWEST) <= _NEWEST else None
    return f"{_IMAGE}:{release}{_ENDS[device.id]}" if device.id in _ENDS else None


def pip(work: Work) -> str:
    """The command for the releases that the recipe was judged for, and for what its keys need."""
    return join(["python3", "-m", "pip", "install", "--quiet", *work.install])
