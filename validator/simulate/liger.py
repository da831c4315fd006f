"""Liger's fused kernels, without a device to run them on."""

from __future__ import annotations

import functools
import inspect
from typing import Any


@functools.cache
def _kernels_as_on_cuda() -> None:
    """Kernels compute nothing: what they allocate, their callers allocate, on the path that CUDA tensors take."""
    from liger_kernel.ops import fused_linear_cross_entropy as fused
    from triton.runtime.jit import KernelInterface

    KernelInterface.__getitem__ = lambda _kernel, _grid: lambda *_, **__: None
    fused._can_use_mm_out = lambda *_: True
    source = inspect.getsource(fused.fused_linear_cross_entropy_forward).replace("out_dtype=torch.float32,", "")
    for asked in ('grad_weight.device.type == "cuda"', "torch.cuda.get_device_capability(grad_weight.device)[0] >= 8"):
        source = source.replace(asked, "True")
    exec(source, vars(fused))


def fuse(config: Any, stage: str) -> None:
    """LLaMA-Factory's enable_liger_kernel, for the rest of the process."""
    from llamafactory.hparams import ModelArguments
    from llamafactory.model.model_utils.liger_kernel import apply_liger_kernel

    _kernels_as_on_cuda()
    arguments = ModelArguments(model_name_or_path="none", enable_liger_kernel=True)
    apply_liger_kernel(config, arguments, is_trainable=True, require_logits=stage != "sft")
