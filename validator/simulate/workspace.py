"""Memory that a CUDA kernel takes for itself, which its fake twin does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def workspace(name: str, args: Sequence[Any]) -> int:
    """Bytes: flash attention's fp32 query gradient, softmax sums and expanded key and value gradients; the dequantized
    weight of a 4-bit product."""
    if name == "_scaled_dot_product_flash_attention_backward":
        q, k = args[1], args[2]
        batch, heads, length, width = q.shape
        rows, columns = -(-length // 128) * 128, -(-width // 32) * 32
        expanded = 2 * q.element_size() * batch * k.shape[2] * heads * width if k.shape[1] != heads else 0
        return int(4 * batch * heads * rows * (columns + 1) + expanded)
    if name == "gemm_4bit":
        outputs, inputs = args[2]
        return int(2 * outputs * inputs + 4 * (outputs * inputs // 64))
    return 0
