"""The table of terms: every kind of work that a step's seconds are counted by, what it grows with, and what it is."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from enum import StrEnum
from typing import Literal, Self

# "batch" is the tokens of a step, "micro batches" their number, "trained" the trained parameters.
Growth = Literal["batch", "micro batches", "trained", "model"]


class Term(StrEnum):
    """A row of the table: its name, what it grows with, and words that explain it after its name."""

    grows_with: Growth
    meaning: str

    def __new__(cls, name: str, grows_with: Growth, meaning: str) -> Self:
        term = str.__new__(cls, name)
        term._value_ = name
        term.grows_with, term.meaning = grows_with, meaning
        return term

    PRODUCTS = "products", "batch", "matrix products of linear layers, forward and backward"
    RECOMPUTATION = (
        "recomputation",
        "batch",
        "layers computed again, since checkpoints keep their inputs only",
    )
    ATTENTION = "attention", "batch", "scores of pairs of tokens, which grow with the square of the length"
    EXPERTS = "experts", "batch", "routed experts, on the tokens that reach them"
    TOWERS = "towers", "batch", "vision and audio towers with their projectors"
    HEAD = "head", "batch", "the loss over the whole vocabulary"
    ELEMENTWISE = "elementwise", "batch", "norms, activations and casts, bound by the device's memory"
    QUANTIZATION = "quantization", "micro batches", "weights made whole from 4 or 8 bits, in each pass"
    LAUNCHES = (
        "launches",
        "micro batches",
        "the processor, which starts kernels slower than the device ends them",
    )
    OPTIMIZER = "optimizer", "trained", "the update of what is trained"
    LINKS = "links", "model", "waiting for other devices of the node, and for traffic that no computation hides"
    NETWORK = "network", "model", "traffic between nodes that no computation hides"
    OFFLOAD = "offload", "model", "traffic between device and main memory that no computation hides"
    HOST_OPTIMIZER = "host_optimizer", "trained", "the update of what is trained, by the processor"
    LOADING = "loading", "batch", "batches that the data loader has not ready in time"
