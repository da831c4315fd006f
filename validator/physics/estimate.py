"""The form of a result: the tables of terms of memory and of time, and the band around the sum of them.

A term that has no row does not exist. A memory term's row has its growth, from which the band is made; every row has
the words that `explain` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self, TypeVar

# "batch" is the tokens of a micro batch: sequences and their length.
Growth = Literal["model", "trained", "batch", "processes", "samples"]


class MemoryTerm(StrEnum):
    """A row of the table: its name, what it grows with, and words that explain it after its name."""

    grows_with: Growth
    meaning: str

    def __new__(cls, name: str, grows_with: Growth, meaning: str) -> Self:
        term = str.__new__(cls, name)
        term._value_ = name
        term.grows_with, term.meaning = grows_with, meaning
        return term


class DeviceTerm(MemoryTerm):
    """Terms of one device's memory."""

    WEIGHTS = "weights", "model", "grow with the model, shrink with quantization and ZeRO-3"
    ADAPTER = "adapter", "trained", "weights of the adapter, which grow with its rank and targets"
    OPTIMIZER = "optimizer", "trained", "states of the optimizer, which grow with what is trained"
    REFERENCE = "reference", "model", "a second copy of the model to compare with"
    GATHERED_WEIGHTS = "gather", "model", "parameters of other devices, gathered for the layer at work"
    BUCKETS = "buckets", "trained", "gradients on their way to other devices"
    TOWER_INPUTS = "pixels", "batch", "pictures and sound as numbers, of all micro batches of a step"
    TOWERS = "towers", "batch", "what is kept for gradients of vision and audio towers and their projectors"
    LAYER_INPUTS = "layer_inputs", "batch", "what each layer reads of an embedding of its own"
    MASK = "mask", "batch", "attention masks, which grow with the square of the length and with the batch"
    CHECKPOINTS = "checkpoints", "batch", "the input of every layer, which grows with length and batch"
    ACTIVATIONS = "activations", "batch", "grow with length and batch where layers are not checkpointed"
    GRADIENTS = "gradients", "trained", "grow with what is trained"
    WEIGHT_CASTS = "weight_casts", "trained", "half-precision copies of fp32 weights"
    LAST_MLP_OUTPUT = "results", "batch", "what the last feed-forward block makes, which grows with length and batch"
    DEQUANTIZED = "rebuilt", "model", "matrices that quantization or DoRA makes anew for each product"
    HIDDEN_STATES = "hidden_states", "batch", "results of all layers, which a value head asks for"
    HEAD = "head", "batch", "inputs of the final norm and the output layer, which grow with length and batch"
    LOGITS = "logits", "batch", "the loss over the whole vocabulary, which grows with length and batch"
    NEW_GRADIENT = "new_gradient", "trained", "the gradient of one matrix, in the making beside earlier ones"
    OPTIMIZER_WORKSPACE = "step", "trained", "what the optimizer's step allocates for a moment"


class SharedTerm(MemoryTerm):
    """A device's term where its memory is the host's, too."""

    HOST = "host", "processes", "the run's host memory, which comes out of the device's"


class HostTerm(MemoryTerm):
    """Terms of one node's main memory."""

    PROCESSES = "processes", "processes", "interpreter, libraries and data-loader workers of every device"
    PARAMETERS = "parameters", "model", "offloaded weights"
    LOADING = "loading", "model", "every process reads the whole checkpoint"
    FULL_MODEL_AT_LOAD = "whole_model", "model", "whole models wait in main memory until FSDP has spread them"
    EXPERTS = "experts", "model", "all experts, which every process merges into one tensor a layer while it loads"
    MOMENTS = "moments", "trained", "states of the offloaded optimizer, which grow with what is trained"
    MASTER = "master", "trained", "fp32 weights of the offloaded optimizer, which grow with what is trained"
    GRADIENTS = "gradients", "trained", "grow with what is trained"
    HALF_PRECISION_COPIES = (
        "half_copies",
        "trained",
        "gradients and weights in half precision, on their way to and from devices",
    )
    REFERENCE = "reference", "model", "a second copy of the model to compare with"
    CHECKPOINTS = "checkpoints", "batch", "the input of every layer, which grows with length and batch"
    LARGEST_GRADIENT = "largest_gradient", "model", "the embedding's gradient, on its way to the offloaded optimizer"
    DATA = "data", "samples", "tokenized samples, which grow with their number and length"
    SAVING = "saving", "model", "weights gathered for a checkpoint"


class DiskTerm(MemoryTerm):
    """Terms of what a run reads and leaves on disk."""

    BASE = "base", "model", "weights of the base model"
    WEIGHTS = "weights", "trained", "trained weights, of every checkpoint and of the end"
    OPTIMIZER = "optimizer", "trained", "states of the optimizer, of every checkpoint"
    DATA = "data", "samples", "tokenized samples, which grow with their number and length"


GIB = float(1 << 30)
_Terms = TypeVar("_Terms", bound=Mapping[Any, float])


def largest(candidates: Iterable[_Terms]) -> _Terms:
    """The terms with the largest sum, the first of equal ones."""
    return max(candidates, key=lambda terms: sum(terms.values()))


class Estimate(NamedTuple):
    """A prediction in bytes. `terms` sum to `allocated`; `low` to `high` is the 90 % band of what the system's own tool
    shows; `phase` is the point in time of the peak; `gaps` name what makes the band wide: "few measurements of ..."."""

    terms: Mapping[MemoryTerm, float]
    low: float
    expected: float
    high: float
    phase: str = ""
    gaps: tuple[str, ...] = ()

    @property
    def allocated(self) -> float:
        return sum(self.terms.values())


class Described(StrEnum):
    """A name, with words that explain it after it."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        named = str.__new__(cls, name)
        named._value_ = name
        named.meaning = meaning
        return named


class TimeTerm(Described):
    """A kind of work of a step."""

    MATMUL = "products", "matrix products of linear layers, forward and backward"
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
    KERNEL_LAUNCHES = (
        "launches",
        "the processor, which starts kernels slower than the device ends them",
    )
    OPTIMIZER = "optimizer", "the update of what is trained"
    COMMUNICATION = "links", "waiting for other devices of the node, and for traffic that no computation hides"
    NETWORK = "network", "traffic between nodes that no computation hides"
    OFFLOAD_COPIES = "offload", "traffic between device and main memory that no computation hides"
    CPU_OPTIMIZER = "host_optimizer", "the update of what is trained, by the processor"
    DATA_LOADING = "loading", "batches that the data loader has not ready in time"


class Band(NamedTuple):
    """Around what is expected, the 90 % band."""

    low: float
    expected: float
    high: float

    def times(self, factor: float) -> Band:
        """The band of `factor` times as much."""
        return Band(*(factor * each for each in self))


class EvidenceGap(NamedTuple):
    """A property of a run that few published step times have, in words that follow "few measurements of", and how far a
    step may be faster and slower for that. Networks and hosts fall behind their rates in many ways, and never surpass
    them."""

    words: str
    faster: float
    slower: float
