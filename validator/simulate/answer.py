"""What a simulation answers. No module of the training packages is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# Kinds of bytes that stay from one micro batch to the next; all others come and go.
STATES = ("param", "grad", "optim")
# Whose releases decide an answer.
PACKAGES = ("torch", "transformers", "peft", "trl", "llamafactory", "bitsandbytes", "liger-kernel")


class Linear(NamedTuple):
    """`number` linear modules of one name and shape in one layer."""

    role: str
    inputs: int
    outputs: int
    number: int
    bias: bool


class Kind(NamedTuple):
    """`number` layers that are alike: their linear modules, elements of experts in one tensor, and of all else."""

    number: int
    linears: list[Linear]
    experts: int
    vectors: int


class Moment(NamedTuple):
    """Bytes of live tensors at the largest moment of a part of a step, by what they are; and the most that comes and
    goes at any time of it."""

    size: int
    categories: dict[str, int]
    passing: int


class Answer(NamedTuple):
    """Live tensors at each moment of a step, counts of elements, the layers. `whole`: all layers were stepped
    through, not two shallow copies."""

    moments: dict[str, Moment]
    parameters: int
    trainable: int
    layers: list[Kind]
    embedding: int
    head: int
    hidden: int
    whole: bool

    @property
    def peak(self) -> int:
        """Bytes of live tensors at the largest moment."""
        return max(moment.size for moment in self.moments.values())


def from_json(values: Mapping[str, Any]) -> Answer:
    """The answer that `Answer._asdict` was written from. Raises KeyError, TypeError or ValueError for anything else."""
    moments = {name: Moment(*moment) for name, moment in values["moments"].items()}
    layers = [Kind(count, [Linear(*each) for each in linears], *more) for count, linears, *more in values["layers"]]
    return Answer(**{**values, "moments": moments, "layers": layers})
