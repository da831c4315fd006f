"""A model and its workload together: the sizes from which the formulas of this room start, each computed once.

Also lists the tensors that train, and how often a micro batch passes each kind of layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from validator.physics import parameters
from validator.physics.architecture import Architecture, Linear, Tower
from validator.physics.decoder_layers import DecoderLayer, build_layers, last_layers
from validator.physics.workload import (
    OPTIMIZERS,
    Checkpointing,
    ElementSizes,
    Optimizer,
    TowerWorkload,
    Workload,
    element_sizes,
)

AttentionKernel = Literal["eager", "math", "efficient", "flash"]
_MAX_FLASH_HEAD_DIM = 256  # elements of a head that FlashAttention takes at most
# (how many, layer) for each kind of layer, first layers first
LayerCounts = tuple[tuple[int, DecoderLayer], ...]


class LayerPosition(NamedTuple):
    """A layer, with the number of layers, and of their elements, between it and one end of the decoder."""

    layer: DecoderLayer
    layers_between: int
    elements: int


class TrainingStep:
    """An architecture and its workload, which every formula of this room takes.

    Equal only to itself: `training_step` returns the same object for the same architecture and workload, so that
    formulas with a cache are computed once."""

    def __init__(self, arch: Architecture, work: Workload, residual: float = 0.0) -> None:
        """`residual`: bytes per element of hidden states between layers; 0: as the precision gives."""
        self.arch, self.work, self.sharding, self._residual = arch, work, work.sharding, residual
        self.strategy = work.sharding.strategy

    @cached_property
    def optimizer(self) -> Optimizer:
        return OPTIMIZERS[self.work.optimizer.removeprefix("paged_")]

    @cached_property
    def sizes(self) -> ElementSizes:
        """Bytes per element of every kind of tensor."""
        sizes = element_sizes(self.work)
        lifted = self.norm_output_fp32 or (self.arch.embedding_norm and self.work.precision == "amp")
        residual = self._residual or (4.0 if lifted else sizes.residual)
        return sizes._replace(residual=residual)

    @cached_property
    def norm_output_fp32(self) -> bool:
        """True if modules that read a norm return fp32, and so the residual stream is fp32: autocast gives LayerNorm
        fp32."""
        return self.arch.norm == "layer" and self.linear_returns_input_dtype and self.work.precision == "amp"

    @cached_property
    def linear_returns_input_dtype(self) -> bool:
        """True if linear modules return the dtype of their input: those of bitsandbytes (nn/modules.py,
        Linear4bit.forward), and with orthogonal adapters (peft, tuners/oft/layer.py)."""
        return self.work.quant_bits > 0 or self.work.method == "oft"

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro batch."""
        return self.work.micro_batch * self.work.sequences_per_sample * self.work.length

    @cached_property
    def layers(self) -> LayerCounts:
        return build_layers(self.arch, self.work.experts_fused)

    @cached_property
    def backward_layers(self) -> LayerCounts:
        """The layers that the backward pass visits. Below the first trained layer nothing is saved."""
        if self.work.method != "freeze":
            return self.layers
        return last_layers(self.layers, self.work.trainable_layers)

    @cached_property
    def first_in_backward(self) -> tuple[LayerPosition, ...]:
        """The position of each kind of layer that the backward pass reaches first, counted from the last layer."""
        return _first_position_of_each_kind(
            reversed(self.backward_layers) if self._mixed else self.backward_layers[-1:]
        )

    @cached_property
    def last_in_backward(self) -> tuple[LayerPosition, ...]:
        """The position of each kind of layer that the backward pass reaches last, counted from the first layer."""
        return _first_position_of_each_kind(self.backward_layers if self._mixed else self.backward_layers[:1])

    @cached_property
    def _mixed(self) -> bool:
        """True if layers of several kinds follow each other."""
        return bool(self.arch.kinds or self.arch.layer_groups)

    @cached_property
    def _inner(self) -> dict[DecoderLayer, TrainingStep]:
        if not self.arch.layer_groups:
            return {}
        decoders = [decoder for _, decoder in self.arch.layer_groups]
        runs = {each: TrainingStep(each, self.work, self._residual) for each in dict.fromkeys(decoders)}
        return {layer: runs[each] for (_, layer), each in zip(self.layers, decoders, strict=True)}

    def for_layer(self, layer: DecoderLayer) -> TrainingStep:
        """Return the step of a decoder that has only such layers if the model's layers differ in shape; else this
        step."""
        return self._inner.get(layer, self)

    @cached_property
    def largest_layer(self) -> int:
        """Elements of the largest layer."""
        return max(layer.elements for _, layer in self.layers)

    @cached_property
    def parameters(self) -> int:
        return parameters.parameter_count(self.arch)

    @cached_property
    def trained_elements(self) -> int:
        """Parameters that receive gradients."""
        return parameters.trainable_parameter_count(self.arch, self.work)

    @cached_property
    def trained_tower_elements(self) -> int:
        """Parameters of towers and projectors that receive gradients."""
        return parameters.trained_elements_in_towers(self.arch, self.work)

    @cached_property
    def towers(self) -> tuple[tuple[Tower, TowerWorkload], ...]:
        """Each tower with its workload."""
        return parameters.towers_with_workloads(self.arch, self.work)

    @cached_property
    def modules_to_save(self) -> int:
        """Elements of embedding and output layer that train whole beside an adapter."""
        return parameters.modules_to_save_elements(self.arch, self.work)

    @cached_property
    def embedding_elements(self) -> int:
        return parameters.embedding_elements(self.arch)

    @cached_property
    def lm_head_elements(self) -> int:
        """Elements of the output layer's matrix, whether or not it is the embedding's."""
        return self.embedding_elements if self.arch.tied else parameters.untied_lm_head_elements(self.arch)

    @cached_property
    def vocabulary_elements(self) -> int:
        """Elements of embedding and output layer; tied ones count once."""
        return self.embedding_elements + parameters.untied_lm_head_elements(self.arch)

    @cached_property
    def trains_adapter(self) -> bool:
        """True if adapters train beside frozen base weights."""
        return self.work.method in ("lora", "oft")

    def is_adapted(self, linear: Linear) -> bool:
        """True if an adapter trains beside this module."""
        return self.trains_adapter and linear.role in self.work.adapter.targets

    @cached_property
    def checkpointing(self) -> Checkpointing:
        """Activation checkpointing of the decoder's layers. Layers without a trained parameter save everything that
        gradients on their way to a tower need (LLaMA-Factory, model_utils/checkpointing.py)."""
        frozen = self.trains_adapter and not self.work.adapter.targets
        return "off" if frozen else self.work.checkpointing

    @cached_property
    def trains_head(self) -> bool:
        return self.work.method == "full" or self.work.adapter.full_head

    @cached_property
    def trains_embedding(self) -> bool:
        return self.work.method == "full" or self.work.adapter.full_embedding

    @cached_property
    def dense_mask_share(self) -> float:
        """Share of layers in which scaled_dot_product_attention gets a dense mask: with padding all layers, else those
        with a sliding window that samples exceed."""
        attn = self.arch.attn
        if self.work.attention != "sdpa":
            return 0.0
        if self.work.pads_batches or attn.always_masked:
            return 1.0
        return attn.window_share if attn.window and self.work.length >= attn.window else 0.0

    @cached_property
    def attention_kernel(self) -> AttentionKernel:
        """The kernel that computes attention, as memory counts it.

        eager materializes the scores of all pairs of tokens. So do biases by distance, and scaled_dot_product_attention
        of models with sinks, which its kernels do not support. math materializes them in fp32: no other kernel accepts
        keys that heads share by broadcasting, or shared keys in heads wider than FlashAttention's. With a mask these
        keys are repeated, and the efficient kernel accepts them (transformers pull request 46960)."""
        attn, implementation = self.arch.attn, self.work.attention
        if attn.alibi or implementation == "eager" or (attn.sinks and implementation == "sdpa"):
            return "eager"
        wide = attn.head_dim > _MAX_FLASH_HEAD_DIM and attn.kv_heads != attn.heads and not self.dense_mask_share
        if implementation == "sdpa" and (wide or attn.broadcasts_kv):
            return "math"
        return "efficient" if self.dense_mask_share else "flash"

    @cached_property
    def timed_attention_kernel(self) -> AttentionKernel:
        """The kernel whose seconds are counted. It differs from `attention_kernel`: it is never math, ignores the dense
        mask of a window that samples exceed, and counts cross-attention as masked. Benchmarks have to decide which is
        right."""
        if self.attention_kernel == "eager":
            return "eager"
        attn = self.arch.attn
        masked = self.work.pads_batches or attn.always_masked or attn.cross_attention
        return "efficient" if self.work.attention == "sdpa" and masked else "flash"


def _first_position_of_each_kind(layers: Iterable[tuple[int, DecoderLayer]]) -> tuple[LayerPosition, ...]:
    """Return the first position of each kind of layer."""
    first: dict[DecoderLayer, LayerPosition] = {}
    passed = elements = 0
    for number, layer in layers:
        first.setdefault(layer, LayerPosition(layer, passed, elements))
        passed, elements = passed + number, elements + number * layer.elements
    return tuple(first.values())


@lru_cache(maxsize=64)
def training_step(arch: Architecture, workload: Workload) -> TrainingStep:
    """Return the step of an architecture and a workload, the same object each time: device, host and disk memory of a
    recipe ask for the same one."""
    return TrainingStep(arch, workload)


class TrainedMatrix(NamedTuple):
    """`number` trained two-dimensional tensors of one shape."""

    outputs: int
    inputs: int
    number: int

    @property
    def elements(self) -> int:
        """Elements of one of these tensors."""
        return self.outputs * self.inputs


@lru_cache(maxsize=64)
def trained_matrices(step: TrainingStep) -> tuple[TrainedMatrix, ...]:
    """Return every trained two-dimensional tensor; all other trained parameters are vectors."""
    if step.trains_adapter:
        return tuple(_adapter_matrices(step))
    inside = [
        TrainedMatrix(linear.outputs, linear.inputs, linear.number * count)
        for count, layer in step.backward_layers
        for linear in layer.linears
    ]
    if step.arch.towers:
        inside += _tower_matrices(step)
    if step.work.method == "freeze":
        return tuple(inside)
    tables = TrainedMatrix(step.arch.vocab, step.arch.hidden, 1 if step.arch.tied else 2)
    return (
        *inside,
        *(_expert_matrices(step.arch) if step.work.experts_fused else ()),
        tables,
        *_per_layer_input_matrices(step.arch),
    )


def _per_layer_input_matrices(arch: Architecture) -> Iterator[TrainedMatrix]:
    """Yield the matrices that give each layer an input of its own: an embedding, and the linear module that reads the
    usual embedding."""
    if width := arch.layers * arch.per_layer_input_width:
        yield TrainedMatrix(arch.per_layer_vocab, width, 1)
        yield TrainedMatrix(width, arch.hidden, 1)


def _tower_matrices(step: TrainingStep) -> Iterator[TrainedMatrix]:
    for tower, encoding in step.towers:
        layers = tower.layers if encoding.trains else encoding.trainable_layers
        yield from (TrainedMatrix(linear.outputs, linear.inputs, layers) for linear in tower.linears if layers)
        beside = (*(tower.outside if encoding.trains else ()), *(tower.projector if encoding.projector else ()))
        yield from (TrainedMatrix(linear.outputs, linear.inputs, linear.number) for linear in beside)


def _expert_matrices(arch: Architecture) -> Iterator[TrainedMatrix]:
    ffn, layers = arch.ffn, arch.moe_layers
    widths = (ffn.expert_width, ffn.vision_expert_width) if ffn.experts else ()
    for width in filter(None, widths):
        yield TrainedMatrix((2 if ffn.gated else 1) * width, arch.hidden, ffn.experts * layers)
        yield TrainedMatrix(arch.hidden, width, ffn.experts * layers)


def _adapter_matrices(step: TrainingStep) -> Iterator[TrainedMatrix]:
    adapter = step.work.adapter
    for count, layer in step.layers:
        for linear in layer.by_role(*adapter.targets) if step.work.method == "lora" else ():
            yield TrainedMatrix(adapter.rank, linear.inputs, linear.number * count)
            yield TrainedMatrix(linear.outputs, adapter.rank, linear.number * count)
    if "inputs" in adapter.targets and step.work.method == "lora":
        yield TrainedMatrix(adapter.rank, step.arch.hidden, 1)
        yield TrainedMatrix(step.arch.layers * step.arch.per_layer_input_width, adapter.rank, 1)
    if copies := int(adapter.full_embedding) + int(adapter.full_head):
        yield TrainedMatrix(step.arch.vocab, step.arch.hidden, copies)


def largest_trained_tensor(step: TrainingStep) -> int:
    """Elements of the largest trained tensor; fused experts are one tensor."""
    arch, work = step.arch, step.work
    fused = arch.ffn.experts if work.experts_fused and work.method == "full" else 0
    experts = fused * max((matrix.elements for matrix in _expert_matrices(arch)), default=0)
    return max([experts, *(matrix.elements for matrix in trained_matrices(step))])


def trained_bytes(step: TrainingStep, each: float) -> float:
    """Bytes of all trained elements at `each` bytes, or less for modules that train whole in half precision."""
    return (
        each * (step.trained_elements - step.modules_to_save)
        + min(each, step.sizes.modules_to_save) * step.modules_to_save
    )


class LayerPasses(NamedTuple):
    """Layers of one kind: their number, and how many of them gradients visit."""

    layer: DecoderLayer
    forward: int
    backward: int


def layer_passes(step: TrainingStep) -> Iterator[LayerPasses]:
    """Yield every kind of layer with its numbers of passes."""
    every, visited = Counter[DecoderLayer](), Counter[DecoderLayer]()
    for number, layer in step.layers:
        every[layer] += number
    for number, layer in step.backward_layers:
        visited[layer] += number
    yield from (LayerPasses(layer, number, visited[layer]) for layer, number in every.items())


def forward_passes(step: TrainingStep) -> int:
    """Number of forward passes of a micro batch: one, and those without gradients for a reference and for mismatched
    answers (KTO)."""
    return (1 + int(step.work.reference_logits)) * (2 if step.work.estimates_kl else 1)


def recomputations(step: TrainingStep) -> int:
    """Number of times that the layers which gradients visit are recomputed."""
    return 0 if step.checkpointing == "off" else 1
