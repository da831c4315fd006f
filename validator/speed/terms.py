"""The table of terms: every kind of work that a step's seconds are counted by, and what it is in words."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from enum import StrEnum
from typing import Self


class Named(StrEnum):
    """A name, with words that explain it after it."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        named = str.__new__(cls, name)
        named._value_ = name
        named.meaning = meaning
        return named


class Term(Named):
    """A kind of work of a step."""

    PRODUCTS = "products", "matrix products of linear layers, forward and backward"
    RECOMPUTATION = (
        "recomputation",
        "layers computed again, since checkpoints keep their inputs only",
    )
    ATTENTION = "attention", "scores of pairs of tokens, which grow with the square of the length"
    EXPERTS = "experts", "routed experts, on the tokens that reach them"
    TOWERS = "towers", "vision and audio towers with their projectors"
    HEAD = "head", "the loss over the whole vocabulary"
    ELEMENTWISE = "elementwise", "norms, activations and casts, bound by the device's memory"
    QUANTIZATION = "quantization", "weights made whole from 4 or 8 bits, in each pass"
    LAUNCHES = (
        "launches",
        "the processor, which starts kernels slower than the device ends them",
    )
    OPTIMIZER = "optimizer", "the update of what is trained"
    LINKS = "links", "waiting for other devices of the node, and for traffic that no computation hides"
    NETWORK = "network", "traffic between nodes that no computation hides"
    OFFLOAD = "offload", "traffic between device and main memory that no computation hides"
    HOST_OPTIMIZER = "host_optimizer", "the update of what is trained, by the processor"
    LOADING = "loading", "batches that the data loader has not ready in time"
