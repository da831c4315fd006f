"""An encoder of images, video or sound that stands before the decoder, by its shapes, and how large it is."""

# Annotations are not postponed, as workload.py says: each start would pay for it.

from functools import lru_cache
from typing import Literal, NamedTuple

from .linear import Linear
from .shapes import Block


class Tower(NamedTuple):
    """A tower and its projector, which makes of its results what the decoder reads. All counts are elements.

    A tower token is a patch of an image or a step of sound; `merge` of them become one token of the decoder."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    width: int  # of the feed-forward block
    linears: tuple[Linear, ...]  # of one layer
    vectors: int  # of one layer: norms, biases, scales
    gated: bool = False
    quick: bool = False  # its activation is quick GELU
    rms: bool = False  # norms are RMSNorm, else LayerNorm
    fp32: Literal["never", "trained", "always"] = "never"  # when hidden states between layers are under autocast
    outside: tuple[Linear, ...] = ()  # further linear modules, which train with the layers
    others: int = 0  # what else trains with the layers: embeddings of patches and positions, norms, biases
    loose: int = 0  # what is never frozen where whole weights train
    loose_first: bool = False  # some of that stands before the layers
    projector: tuple[Linear, ...] = ()
    projector_others: int = 0
    merge: int = 1
    exposed: bool = True  # its class tells what makes the layers' input, so that gradients can be asked of it
    inputs: int = 0  # numbers that the processor hands over for one tower token
    side: int = 0  # pixels along a patch
    smallest: int = 0  # pixels of the smallest picture that its processor hands over
    frames: int = 1  # pictures of a film in a patch
    whole: int = 0  # tokens of one picture or sound, where each is brought to one size
    tiles: int = 0  # pieces of a picture at most, with the whole of it, where the model's configuration lists them
    collects: bool = False  # the results of all layers stay until the last has run
    head_norms: bool = False  # heads of queries and keys have norms
    angles: bool = False  # each layer makes cosines and sines of its own, for queries and again for keys


def linear_elements(linears: tuple[Linear, ...]) -> int:
    return sum(linear.elements for linear in linears)


def tower_elements(tower: Tower) -> int:
    """Everything but the projector."""
    inside = tower.layers * (linear_elements(tower.linears) + tower.vectors)
    return inside + linear_elements(tower.outside) + tower.others + tower.loose


def projector_elements(tower: Tower) -> int:
    return linear_elements(tower.projector) + tower.projector_others


def all_linears(tower: Tower) -> int:
    """Elements of every linear module, which quantization reaches."""
    return tower.layers * linear_elements(tower.linears) + linear_elements((*tower.outside, *tower.projector))


def elements(tower: Tower) -> int:
    return tower_elements(tower) + projector_elements(tower)


@lru_cache(maxsize=64)
def block(tower: Tower) -> Block:
    """A layer of the tower."""
    return Block(tower.linears, 0, tower.vectors)
