"""Elements per token between the matrices of an attention block."""

from __future__ import annotations

from .workload import Attn


def query_width(attn: Attn) -> int:
    return attn.heads * attn.head_dim


def key_width(attn: Attn) -> int:
    return attn.kv_heads * attn.head_dim


def value_width(attn: Attn) -> int:
    """Elements per token of the values; latent attention expands them to every head."""
    return (attn.heads if attn.kv_rank else attn.kv_heads) * (attn.value_dim or attn.head_dim)


def output_width(attn: Attn) -> int:
    return attn.heads * (attn.value_dim or attn.head_dim)
