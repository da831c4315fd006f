"""A model and its workload together: the sizes from which the memory and time formulas start, each computed once.

Also lists the tensors that train, and counts how many layers of each kind a micro batch passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from validator.physics import parameters
from validator.physics.architecture import Architecture, Linear, Tower
from validator.physics.decoder_layers import (
    DecoderLayer,
    LayerCounts,
    build_layers,
    last_layers,
    split_layers,
    trained_layers,
)
from validator.physics.workload import (
    OPTIMIZERS,
    Adapter,
    Checkpointing,
    ElementSizes,
    Optimizer,
    TowerWorkload,
    Workload,
    element_sizes,
)

AttentionKernel = Literal["eager", "math", "efficient", "flash"]
_MAX_FLASH_HEAD_DIM = 256  # elements of a head that FlashAttention takes at most


class LayerPosition(NamedTuple):
    """A layer of the decoder and its distance from one end of the decoder: the number of layers between the layer and
    the end, and the number of elements of these layers."""

    layer: DecoderLayer
    layers_between: int
    elements: int


class TrainingStep:
    """An architecture together with its workload, the argument of every memory and time formula.

    A step is equal only to itself. `training_step` returns the same object for the same architecture and workload, so
    that cached formulas are computed once."""

    def __init__(self, arch: Architecture, work: Workload, residual: float = 0.0) -> None:
        """Keep architecture and workload. `residual`: bytes per element of hidden states between layers; 0: the bytes
        that the training precision gives."""
        self.arch, self.work, self.sharding, self._residual = arch, work, work.sharding, residual
        self.strategy = work.sharding.strategy

    @cached_property
    def optimizer(self) -> Optimizer:
        return OPTIMIZERS[self.work.optimizer.removeprefix("paged_")]

    @cached_property
    def sizes(self) -> ElementSizes:
        """Bytes per element of every kind of tensor."""
        sizes = element_sizes(self.work)
        is_fp32 = self.norm_output_fp32 or (self.arch.embedding_norm and self.work.precision == "amp")
        residual = self._residual or (4.0 if is_fp32 else sizes.residual)
        return sizes._replace(residual=residual)

    @cached_property
    def norm_output_fp32(self) -> bool:
        """True if modules that read a norm's output return fp32, which makes the residual stream fp32. The reason is
        that LayerNorm returns fp32 under autocast, and these modules keep the dtype of their input."""
        return self.arch.norm == "layer" and self.linear_returns_input_dtype and self.work.precision == "amp"

    @cached_property
    def linear_returns_input_dtype(self) -> bool:
        """True if linear modules return the dtype of their input. Linear modules of bitsandbytes do (nn/modules.py,
        Linear4bit.forward), and so do modules with orthogonal adapters (peft, tuners/oft/layer.py)."""
        return self.work.quant_bits > 0 or self.work.method == "oft"

    @cached_property
    def tokens(self) -> int:
        """Number of tokens of a micro batch on one device."""
        return self.work.micro_batch * self.work.sequences_per_sample * self.work.length

    @cached_property
    def layers(self) -> LayerCounts:
        """Return the decoder's layers as pairs (number of identical layers, layer). Layers with different adapters are
        different layers."""
        layers = build_layers(self.arch, self.work.experts_fused)
        if not self.has_mixed_adapters:
            return layers
        kinds: dict[tuple[DecoderLayer, tuple[str, ...]], DecoderLayer] = {}
        split = split_layers(layers, self.work.adapter.layers)
        return tuple((number, kinds.setdefault((layer, roles), replace(layer))) for number, layer, roles in split)

    @cached_property
    def has_mixed_adapters(self) -> bool:
        """True if adapters stand in some layers and not in others, or on other modules of them."""
        return self.trains_adapter and bool(self.work.adapter.layers)

    @cached_property
    def backward_layers(self) -> LayerCounts:
        """Return the layers that the backward pass visits, as pairs (number of identical layers, layer). Layers below
        the first trained layer save nothing for backward, unless gradients of the decoder's input are asked for."""
        if self.work.method == "freeze":
            return trained_layers(self.layers, self.work)
        if not self.has_mixed_adapters or self._has_gradients_of_inputs:
            return self.layers
        first = next((at for at, (_, layer) in enumerate(self.layers) if self.trains_in(layer)), None)
        return last_layers(self.layers, 1) if first is None else self.layers[first:]

    @cached_property
    def _has_gradients_of_inputs(self) -> bool:
        """True if the backward pass of an adapter run goes through the whole decoder: gradients of the embedding's
        output are asked for, or something before the layers trains."""
        adapter = self.work.adapter
        is_first = adapter.full_embedding or {"embedding", "inputs"}.intersection(adapter.targets)
        return self.work.input_requires_grad or bool(is_first) or any(each.targets for each in self.work.towers)

    def trains_in(self, layer: DecoderLayer) -> bool:
        """True if some parameter of this layer trains. The layer must be one that the backward pass visits, unless
        adapters train."""
        return not self.trains_adapter or bool(self.for_layer(layer).work.adapter.targets)

    def is_recomputed(self, layer: DecoderLayer) -> bool:
        """True if a layer of the backward pass is computed again for it. Layers without a trained parameter are not, so
        they save everything that gradients on their way need (LLaMA-Factory, model_utils/checkpointing.py)."""
        return self.checkpointing != "off" and self.trains_in(layer)

    @cached_property
    def first_in_backward(self) -> tuple[LayerPosition, ...]:
        """Candidates for the layer in which the backward pass begins: of each kind of layer, the layer that is nearest
        to the end of the decoder, with its distance from the end."""
        return _first_position_of_each_kind(
            reversed(self.backward_layers) if self._mixed else self.backward_layers[-1:]
        )

    @cached_property
    def last_in_backward(self) -> tuple[LayerPosition, ...]:
        """Candidates for the layer in which the backward pass ends: of each kind of layer, the layer that is nearest to
        the beginning of the decoder, with its distance from the beginning."""
        return _first_position_of_each_kind(self.backward_layers if self._mixed else self.backward_layers[:1])

    @cached_property
    def _mixed(self) -> bool:
        """True if the architecture states the kind of each layer, or adapters differ, so that layers of several kinds
        can alternate."""
        return bool(self.arch.kinds or self.arch.layer_groups or self.has_mixed_adapters)

    @cached_property
    def _inner(self) -> dict[DecoderLayer, TrainingStep]:
        if not self.arch.layer_groups and not self.has_mixed_adapters:
            return {}
        layers, adapter = build_layers(self.arch, self.work.experts_fused), self.work.adapter
        decoders = {layer: decoder for (_, layer), (_, decoder) in zip(layers, self.arch.layer_groups, strict=False)}
        adapted = adapter.layers if self.has_mixed_adapters else ((self.arch.layers, adapter.targets),)
        works = {roles: self.work._replace(adapter=adapter._replace(targets=roles, layers=())) for _, roles in adapted}
        kinds = [(decoders.get(layer, self.arch), roles) for _, layer, roles in split_layers(layers, adapted)]
        steps = {kind: TrainingStep(kind[0], works[kind[1]], self._residual) for kind in dict.fromkeys(kinds)}
        return {layer: steps[kind] for (_, layer), kind in zip(self.layers, kinds, strict=True)}

    def for_layer(self, layer: DecoderLayer) -> TrainingStep:
        """Return the TrainingStep of a decoder that consists only of layers like `layer`, if the shapes of the model's
        layers or their adapters differ; else this TrainingStep."""
        return self._inner.get(layer, self)

    @cached_property
    def frozen(self) -> TrainingStep:
        """The TrainingStep of the same decoder without any trained parameter, for layers that gradients only pass."""
        work = self.work._replace(method="lora", adapter=Adapter(targets=()), checkpointing="off", passed_layers=0)
        return TrainingStep(self.arch, work, self._residual)

    @cached_property
    def largest_layer(self) -> int:
        """Number of elements of the largest layer."""
        return max(layer.elements for _, layer in self.layers)

    @cached_property
    def parameters(self) -> int:
        return parameters.parameter_count(self.arch)

    @cached_property
    def trained_elements(self) -> int:
        """Number of parameters that receive gradients."""
        return parameters.trainable_parameter_count(self.arch, self.work)

    @cached_property
    def trained_tower_elements(self) -> int:
        """Number of parameters of towers and projectors that receive gradients."""
        return parameters.trained_elements_in_towers(self.arch, self.work)

    @cached_property
    def towers(self) -> tuple[tuple[Tower, TowerWorkload], ...]:
        """Return each tower of the model with its workload."""
        return parameters.towers_with_workloads(self.arch, self.work)

    @cached_property
    def modules_to_save(self) -> int:
        """Number of elements of embedding and output layer that train in full beside an adapter (PEFT's
        modules_to_save)."""
        return parameters.modules_to_save_elements(self.arch, self.work)

    @cached_property
    def embedding_elements(self) -> int:
        return parameters.embedding_elements(self.arch)

    @cached_property
    def lm_head_elements(self) -> int:
        """Number of elements of the matrix that makes the logits, even if it is the embedding's matrix (tied)."""
        return self.embedding_elements if self.arch.tied else parameters.untied_lm_head_elements(self.arch)

    @cached_property
    def vocabulary_elements(self) -> int:
        """Number of elements of the embedding and the output layer. A tied matrix counts once."""
        return self.embedding_elements + parameters.untied_lm_head_elements(self.arch)

    @cached_property
    def trains_adapter(self) -> bool:
        """True if adapters train beside frozen base weights."""
        return self.work.method in ("lora", "oft")

    def is_adapted(self, linear: Linear) -> bool:
        """True if an adapter trains beside this module. If layers differ in their adapters, ask the TrainingStep that
        `for_layer` returns."""
        return self.trains_adapter and linear.has_role(self.work.adapter.targets)

    @cached_property
    def checkpointing(self) -> Checkpointing:
        """Kind of activation checkpointing of the decoder's layers. The value is "off" if no decoder layer has a
        trained parameter. These layers save everything that gradients on their way to a tower need (LLaMA-Factory,
        model_utils/checkpointing.py)."""
        is_frozen = self.trains_adapter and not self.work.adapter.targets
        return "off" if is_frozen else self.work.checkpointing

    @cached_property
    def trains_head(self) -> bool:
        return self.work.method == "full" or self.work.adapter.full_head

    @cached_property
    def trains_embedding(self) -> bool:
        return self.work.method == "full" or self.work.adapter.full_embedding

    @cached_property
    def dense_mask_share(self) -> float:
        """Share of layers in which scaled_dot_product_attention gets a dense mask. With padding these are all layers,
        without padding the layers with a sliding window that the length reaches. Zero for other attention
        implementations."""
        attn = self.arch.attn
        if self.work.attention != "sdpa":
            return 0.0
        if self.work.pads_batches or attn.always_masked:
            return 1.0
        return attn.window_share if attn.window and self.work.length >= attn.window else 0.0

    @cached_property
    def attention_kernel(self) -> AttentionKernel:
        """Attention kernel that the memory formulas assume.

        `eager` materializes the scores of all pairs of tokens. The formulas assume it also for ALiBi (biases by
        distance), and for scaled_dot_product_attention in models with attention sinks, which the kernels of PyTorch do
        not support.

        `math` materializes the scores in fp32. PyTorch takes it if heads share keys by broadcasting, if there is no
        batch dimension, or if heads that share keys are wider than FlashAttention allows, because no other kernel takes
        these inputs. With a mask such
        wide heads get repeated keys, which the `efficient` kernel takes (transformers pull request 46960)."""
        attn, implementation = self.arch.attn, self.work.attention
        if attn.alibi or implementation == "eager" or (attn.sinks and implementation == "sdpa"):
            return "eager"
        is_wide = attn.head_dim > _MAX_FLASH_HEAD_DIM and attn.kv_heads != attn.heads and not self.dense_mask_share
        if implementation == "sdpa" and (is_wide or attn.broadcasts_kv or attn.unbatched):
            return "math"
        return "efficient" if self.dense_mask_share else "flash"

    @cached_property
    def timed_attention_kernel(self) -> AttentionKernel:
        """Attention kernel that the time formulas assume. It differs from `attention_kernel`: the time formulas do not
        know the `math` kernel or the dense mask of a sliding window, and count cross-attention as masked. Benchmarks
        must decide which is right."""
        if self.attention_kernel == "eager":
            return "eager"
        attn = self.arch.attn
        is_masked = self.work.pads_batches or attn.always_masked or attn.cross_attention
        return "efficient" if self.work.attention == "sdpa" and is_masked else "flash"


def _first_position_of_each_kind(layers: Iterable[tuple[int, DecoderLayer]]) -> tuple[LayerPosition, ...]:
    """Return the first position of each kind of layer. `layers`: pairs (number of identical layers, layer); positions
    count from the start of `layers`."""
    first: dict[DecoderLayer, LayerPosition] = {}
    count = elements = 0
    for number, layer in layers:
        first.setdefault(layer, LayerPosition(layer, count, elements))
        count, elements = count + number, elements + number * layer.elements
    return tuple(first.values())


@lru_cache(maxsize=64)
def training_step(arch: Architecture, workload: Workload) -> TrainingStep:
    """Return the step of this architecture and workload. The step is cached, so device, host and disk memory of a
    recipe use the same object."""
    return TrainingStep(arch, workload)


class TrainedMatrix(NamedTuple):
    """`number` trained two-dimensional tensors of the same shape."""

    outputs: int
    inputs: int
    number: int

    @property
    def elements(self) -> int:
        """Number of elements of one of these tensors."""
        return self.outputs * self.inputs


@lru_cache(maxsize=64)
def trained_matrices(step: TrainingStep) -> tuple[TrainedMatrix, ...]:
    """Return every trained two-dimensional tensor. All other trained parameters are vectors."""
    if step.trains_adapter:
        return tuple(_adapter_matrices(step))
    matrices = [
        TrainedMatrix(linear.outputs, linear.inputs, linear.number * count)
        for count, layer in step.backward_layers
        for linear in layer.linears
        if not step.work.trainable_roles or linear.has_role(step.work.trainable_roles)
    ]
    if step.arch.towers:
        matrices += _tower_matrices(step)
    if step.work.method == "freeze":
        return tuple(matrices)
    tables = TrainedMatrix(step.arch.vocab, step.arch.hidden, 1 if step.arch.tied else 2)
    return (
        *matrices,
        *(_expert_matrices(step.arch) if step.work.experts_fused else ()),
        tables,
        *_per_layer_input_matrices(step.arch),
    )


def _per_layer_input_matrices(arch: Architecture) -> Iterator[TrainedMatrix]:
    """Yield the trained matrices that give each layer its own input: the per-layer embedding, and the linear module
    that projects the usual embedding."""
    if width := arch.layers * arch.per_layer_input_width:
        yield TrainedMatrix(arch.per_layer_vocab, width, 1)
        yield TrainedMatrix(width, arch.hidden, 1)


def _tower_matrices(step: TrainingStep) -> Iterator[TrainedMatrix]:
    for tower, encoding in step.towers:
        layers = tower.layers if encoding.trains else encoding.trainable_layers
        yield from (TrainedMatrix(linear.outputs, linear.inputs, layers) for linear in tower.linears if layers)
        linears = (*(tower.outside if encoding.trains else ()), *(tower.projector if encoding.projector else ()))
        yield from (TrainedMatrix(linear.outputs, linear.inputs, linear.number) for linear in linears)


def _expert_matrices(arch: Architecture) -> Iterator[TrainedMatrix]:
    ffn, layers = arch.ffn, arch.moe_layers
    widths = (ffn.expert_width, ffn.vision_expert_width) if ffn.experts else ()
    for width in filter(None, widths):
        yield TrainedMatrix((2 if ffn.gated else 1) * width, arch.hidden, ffn.experts * layers)
        yield TrainedMatrix(arch.hidden, width, ffn.experts * layers)


def _adapter_matrices(step: TrainingStep) -> Iterator[TrainedMatrix]:
    adapter = step.work.adapter
    in_layers = [(linear, linear.number * count) for count, layer in step.layers
                 for linear in layer.by_role(*step.for_layer(layer).work.adapter.targets)]  # fmt: skip
    outside = [(each, 1) for each in parameters.linears_outside_layers(step.arch) if step.is_adapted(each)]
    for linear, number in (*in_layers, *outside) if step.work.method == "lora" else ():
        yield TrainedMatrix(adapter.rank, linear.inputs, number)
        yield TrainedMatrix(linear.outputs, adapter.rank, number)
    if copies := int(adapter.full_embedding) + int(adapter.full_head):
        yield TrainedMatrix(step.arch.vocab, step.arch.hidden, copies)


def largest_trained_tensor(step: TrainingStep) -> int:
    """Number of elements of the largest trained tensor. The fused experts of a layer count as one tensor."""
    arch, work = step.arch, step.work
    count = arch.ffn.experts if work.experts_fused and work.method == "full" else 0
    experts = count * max((matrix.elements for matrix in _expert_matrices(arch)), default=0)
    return max([experts, *(matrix.elements for matrix in trained_matrices(step))])


def trained_bytes(step: TrainingStep, each: float) -> float:
    """Bytes of all trained elements if each has `each` bytes. Modules that train in full beside an adapter (PEFT's
    modules_to_save) count with their own size if that is smaller."""
    return (
        each * (step.trained_elements - step.modules_to_save)
        + min(each, step.sizes.modules_to_save) * step.modules_to_save
    )


class LayerPasses(NamedTuple):
    """Numbers of layers of one kind: `forward` layers exist, the backward pass visits `backward` of them, and
    `recomputed` of these are computed again for it."""

    layer: DecoderLayer
    forward: int
    backward: int
    recomputed: int


def layer_passes(step: TrainingStep) -> Iterator[LayerPasses]:
    """Yield every kind of layer with the number of layers in each pass."""
    forward, backward = Counter[DecoderLayer](), Counter[DecoderLayer]()
    for number, layer in step.layers:
        forward[layer] += number
    for number, layer in step.backward_layers:
        backward[layer] += number
    for layer, number in forward.items():
        recomputed = backward[layer] if step.is_recomputed(layer) else 0
        yield LayerPasses(layer, number, backward[layer], recomputed)


def forward_passes(step: TrainingStep) -> int:
    """Number of forward passes of a micro batch: one with gradients, one more without gradients if a reference model
    computes logits, and twice as many for KTO, which repeats each pass on mismatched answers."""
    return (1 + int(step.work.reference_logits)) * (2 if step.work.estimates_kl else 1)
