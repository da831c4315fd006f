"""Result types of the predictions: the tables of memory terms and of time terms, and the band around their sum.

Every term must have a row in one of these tables. A row holds the words that the command `explain` shows. The row of a
memory term also says what the term grows with, such as the batch; the band of the prediction depends on that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self, TypeVar

# "batch" is the tokens of a micro batch: sequences and their length.
Growth = Literal["model", "trained", "batch", "processes", "samples"]


class MemoryTerm(StrEnum):
    """One memory term, such as `weights`: its name, what it grows with, and the explanation that is shown after the
    name. The classes below are the tables of terms."""

    grows_with: Growth
    meaning: str

    def __new__(cls, name: str, grows_with: Growth, meaning: str) -> Self:
        term = str.__new__(cls, name)
        term._value_ = name
        term.grows_with, term.meaning = grows_with, meaning
        return term


class DeviceTerm(MemoryTerm):
    """Terms of one device's memory."""

    WEIGHTS = "weights", "model", "grow with the model and the bits of a weight"
    ADAPTER = "adapter", "trained", "weights of the adapter, which grow with its rank and targets"
    OPTIMIZER = "optimizer", "trained", "optimizer states, which grow with what is trained"
    REFERENCE = "reference", "model", "the frozen reference model of a preference loss"
    GATHERED_WEIGHTS = "gathered_weights", "model", "weights of other devices, all-gathered for the layer at work"
    BUCKETS = "buckets", "trained", "gradients that wait for their reduction over the devices"
    TOWER_INPUTS = "tower_inputs", "batch", "pixel values and audio features of all micro batches of a step"
    TOWERS = "towers", "batch", "activations that vision and audio towers and their projectors save for backward"
    LAYER_INPUTS = "per_layer_inputs", "batch", "the embedding that each layer has of its own"
    MASK = "attention_mask", "batch", "grows with the square of the length and with the batch"
    CHECKPOINTS = "activation_checkpoints", "batch", "the input of every layer, which grows with length and batch"
    ACTIVATIONS = "activations", "batch", "grow with length and batch where layers are not checkpointed"
    GRADIENTS = "gradients", "trained", "grow with what is trained"
    WEIGHT_CASTS = "weight_casts", "trained", "half-precision copies of fp32 weights"
    LAST_MLP_OUTPUT = "last_mlp_output", "batch", "output of the last feed-forward block; grows with length and batch"
    DEQUANTIZED = "dequantized_weights", "model", "matrices that quantization or DoRA rebuilds for each matmul"
    KV_CACHE = "kv_cache", "batch", "keys and values of the answers that PPO generates"
    HIDDEN_STATES = "hidden_states", "batch", "outputs of all layers, which a value head asks for"
    HEAD = "head", "batch", "inputs of the final norm and the output layer, which grow with length and batch"
    LOGITS = "logits", "batch", "logits and loss over the whole vocabulary, which grow with length and batch"
    NEW_GRADIENT = "new_gradient", "trained", "the gradient of one matrix while it is computed, beside earlier ones"
    OPTIMIZER_WORKSPACE = "optimizer_workspace", "trained", "temporary tensors of the optimizer's step"


class SharedTerm(MemoryTerm):
    """The term that a device gets if it shares its memory with the host: the run's host memory."""

    HOST = "host", "processes", "the run's host memory, which comes out of the device's"


class HostTerm(MemoryTerm):
    """Terms of one node's main memory."""

    PROCESSES = "processes", "processes", "interpreter, libraries and data-loader workers of every device"
    PARAMETERS = "offloaded_weights", "model", "weights that offload keeps in main memory"
    LOADING = "loading", "model", "every process reads the whole checkpoint"
    FULL_MODEL_AT_LOAD = "full_model_at_load", "model", "whole models wait in main memory until FSDP has sharded them"
    EXPERTS = "experts", "model", "all experts, which every process merges into one tensor a layer while it loads"
    MOMENTS = "optimizer_states", "trained", "states of the offloaded optimizer, which grow with what is trained"
    MASTER = "master_weights", "trained", "fp32 weights of the offloaded optimizer, which grow with what is trained"
    GRADIENTS = "gradients", "trained", "grow with what is trained"
    HALF_PRECISION_COPIES = (
        "half_precision_copies",
        "trained",
        "gradients and weights in half precision, on their way to and from devices",
    )
    REFERENCE = "reference", "model", "the frozen reference model of a preference loss"
    CHECKPOINTS = "activation_checkpoints", "batch", "the input of every layer, which grows with length and batch"
    LARGEST_GRADIENT = "largest_gradient", "model", "the embedding's gradient, on its way to the offloaded optimizer"
    DATA = "data", "samples", "tokenized samples, which grow with their number and length"
    SAVING = "saving", "model", "weights gathered for a checkpoint"


class DiskTerm(MemoryTerm):
    """Terms of disk space: files that a run reads and files that it leaves."""

    BASE = "base", "model", "weights of the base model"
    WEIGHTS = "weights", "trained", "trained weights, of every checkpoint and of the end"
    OPTIMIZER = "optimizer", "trained", "states of the optimizer, of every checkpoint"
    DATA = "data", "samples", "tokenized samples, which grow with their number and length"


GIB = float(1 << 30)
_Terms = TypeVar("_Terms", bound=Mapping[Any, float])


def largest(candidates: Iterable[_Terms]) -> _Terms:
    """Return the candidate whose values have the largest sum; among equal sums, the first. Each candidate maps terms to
    bytes."""
    return max(candidates, key=lambda terms: sum(terms.values()))


def largest_phase(phases: Mapping[str, Mapping[Any, float]]) -> tuple[str, dict[MemoryTerm, float]]:
    """Return the phase that needs most, the first of equal ones, and its terms without zeros."""
    name = max(phases, key=lambda name: sum(phases[name].values()))
    return name, {term: size for term, size in phases[name].items() if size}


class Estimate(NamedTuple):
    """A predicted peak of memory, in bytes. `terms` sum to `allocated`. `low` to `high` is the 90 % band of the figure
    that the system's own tool shows. `phase` names the point in time of the peak. `gaps` name what makes the band wide,
    in words that follow "few measurements of"."""

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
    """A named value with an explanation that is shown after the name."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member


class TimeTerm(Described):
    """One kind of work that takes time in a step, such as matmuls or communication."""

    MATMUL = "matmul", "matrix multiplications of linear layers, forward and backward"
    RECOMPUTATION = "recomputation", "layers computed again, because their checkpoints hold the inputs only"
    ATTENTION = "attention", "scores of pairs of tokens, which grow with the square of the length"
    EXPERTS = "experts", "routed experts, on the tokens that reach them"
    TOWERS = "towers", "vision and audio towers with their projectors"
    HEAD = "head", "output layer and loss over the whole vocabulary"
    ELEMENTWISE = "elementwise", "norms, activation functions and casts, limited by memory bandwidth"
    QUANTIZATION = "dequantization", "weights unpacked from 4 or 8 bits in each pass"
    KERNEL_LAUNCHES = "kernel_launches", "the CPU launches kernels more slowly than the device runs them"
    ROLLOUT = "rollout", "answers that PPO generates token by token, and the passes that score them"
    OPTIMIZER = "optimizer", "the update of the trained weights"
    COMMUNICATION = "communication", "waiting for devices of the node, and traffic that no computation hides"
    NETWORK = "network", "traffic between nodes that no computation hides"
    OFFLOAD_COPIES = "offload", "traffic between device and main memory that no computation hides"
    CPU_OPTIMIZER = "cpu_optimizer", "the update of the trained weights, on the CPU"
    DATA_LOADING = "data_loading", "batches that the data loader has not ready in time"


class Band(NamedTuple):
    """An expected value with the low and high end of its band."""

    low: float
    expected: float
    high: float

    def times(self, factor: float) -> Band:
        """Return the band multiplied by `factor`."""
        return Band(*(factor * each for each in self))


class EvidenceGap(NamedTuple):
    """A property of a run for which few step times are published. `words` follow "few measurements of". `faster` and
    `slower`: the shares by which a step may therefore be faster or slower than predicted. `slower` is often larger,
    because networks and hosts fall behind their rates in many ways, and never surpass them."""

    words: str
    faster: float
    slower: float
