"""What each optimizer keeps for each trained tensor, and what its step needs for a moment. Bytes of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from .precision import element_bytes
from .shapes import Block, blocks, embedding, saved_elements, trainable_parameters
from .workload import Architecture, Workload

# (outputs, inputs, how many)
Matrix = tuple[int, int, int]
# One fp32 maximum for each 256 elements (bitsandbytes, arXiv 2110.02861; torchao with transformers' block size).
_EIGHT, _FOUR = 1 + 4 / 256, 0.5 + 4 / 256
# Moments for each trained element, and their bytes; 0: the precision that mixed precision gives moments. bitsandbytes
# keeps 32-bit moments in fp32 whatever the weights are.
_MOMENTS = {
    "adamw": (2, 0.0), "adamw_foreach": (2, 0.0), "adamw_32bit": (2, 4.0), "adamw_8bit": (2, _EIGHT),
    "adamw_4bit": (2, _FOUR), "ademamix": (3, 4.0), "ademamix_8bit": (3, _EIGHT), "lion": (1, 4.0),
    "lion_8bit": (1, _EIGHT), "momentum": (1, 0.0), "adagrad": (1, 0.0), "rmsprop": (1, 0.0),
    "rmsprop_32bit": (1, 4.0), "rmsprop_8bit": (1, _EIGHT), "adam_mini": (1, 0.0), "sgd": (0, 0.0),
}  # fmt: skip
_FOREACH = ("adamw_foreach", "adagrad", "rmsprop")


@lru_cache(maxsize=2048)
def trained_matrices(arch: Architecture, workload: Workload) -> tuple[Matrix, ...]:
    """Every trained two-dimensional tensor; what remains of the trainable parameters are vectors."""
    if workload.method in ("lora", "oft"):
        return tuple(_adapter_matrices(arch, workload))
    inside = [
        (lin.outputs, lin.inputs, lin.number * count)
        for count, block in _trained_blocks(arch, workload)
        for lin in block.linears
    ]
    if workload.method == "freeze":
        return tuple(inside)
    tables = 1 if arch.tied else 2
    return (*inside, *_expert_matrices(arch), (arch.vocab, arch.hidden, tables))


def _expert_matrices(arch: Architecture) -> Iterator[Matrix]:
    ffn, layers = arch.ffn, arch.layers - arch.ffn.dense_layers
    if ffn.experts:
        yield (2 if ffn.gated else 1) * ffn.expert_width, arch.hidden, ffn.experts * layers
        yield arch.hidden, ffn.expert_width, ffn.experts * layers


def _adapter_matrices(arch: Architecture, workload: Workload) -> Iterator[Matrix]:
    adapter = workload.adapter
    for count, block in blocks(arch, workload.experts_fused):
        for lin in block.linears:
            if lin.role in adapter.targets and workload.method == "lora":
                yield adapter.rank, lin.inputs, lin.number * count
                yield lin.outputs, adapter.rank, lin.number * count
    if copies := int(adapter.full_embedding) + int(adapter.full_head):
        yield arch.vocab, arch.hidden, copies


def _trained_blocks(arch: Architecture, workload: Workload) -> tuple[tuple[int, Block], ...]:
    """(how many, layer) for each kind of layer whose own weights train."""
    kinds = blocks(arch, workload.experts_fused)
    if workload.method == "freeze":
        return ((workload.trainable_layers, kinds[-1][1]),)
    return kinds if workload.method == "full" else ()


def _low_rank(arch: Architecture, workload: Workload, moment: float) -> float:
    """GaLore (arXiv 2403.03507), APOLLO (2412.05270): moments live in a rank-r space of the layers' linear modules,
    beside the projection itself; everything else keeps ordinary moments."""
    rank = workload.optimizer_rank
    projected, inside = 0.0, 0
    for count, block in _trained_blocks(arch, workload):
        for lin in block.linears:
            small, large = sorted((lin.inputs, lin.outputs))
            used = min(rank, small)
            projected += count * lin.number * used * (2 * large * moment + small * moment)
            inside += count * lin.elements
    return projected + 2 * moment * (trainable_parameters(arch, workload) - inside)


def _factored(arch: Architecture, workload: Workload) -> float:
    """Adafactor (arXiv 1804.04235): one fp32 row and one column of second moments for each matrix."""
    matrices = trained_matrices(arch, workload)
    vectors = trainable_parameters(arch, workload) - sum(m * n * count for m, n, count in matrices)
    return 4.0 * (sum((m + n) * count for m, n, count in matrices) + vectors)


def _muon(arch: Architecture, workload: Workload, moment: float) -> float:
    """Muon keeps one moment for hidden matrices; embeddings, output layer and vectors keep AdamW's two."""
    trained = trainable_parameters(arch, workload)
    hidden = sum(m * n * count for m, n, count in trained_matrices(arch, workload) if m != arch.vocab)
    return moment * (2 * trained - hidden)


def _one_block(arch: Architecture, workload: Workload) -> float:
    """BAdam (arXiv 2404.02827): fp32 copy, gradient and two moments of the one active block of layers."""
    return 16.0 * max(block.elements for _, block in blocks(arch, workload.experts_fused))


def _embedding_kept_precise(arch: Architecture, workload: Workload) -> int:
    """Elements of embeddings, whose moments stay in fp32 beside bitsandbytes' 8-bit ones (transformers' Trainer
    registers the exception; an engine's partitions hide the embedding from it)."""
    sharding = workload.sharding
    trains = workload.method == "full" or workload.adapter.full_embedding
    return embedding(arch) if trains and not (sharding.engine or sharding.fsdp) else 0


def trained_bytes(arch: Architecture, workload: Workload, each: float) -> float:
    """Bytes of all trained elements at `each`, or less for modules that train whole in half precision."""
    saved, trained = saved_elements(arch, workload), trainable_parameters(arch, workload)
    return each * (trained - saved) + min(each, element_bytes(workload).saved) * saved


@lru_cache(maxsize=2048)
def state_bytes(arch: Architecture, workload: Workload) -> float:
    """Bytes of optimizer state for the whole model, without the engine's master weights."""
    moment = element_bytes(workload).moment
    name = workload.optimizer.removeprefix("paged_")
    match name:
        case "galore" | "apollo":
            return _low_rank(arch, workload, moment)
        case "galore_8bit":
            return _low_rank(arch, workload, _EIGHT)
        case "adafactor" | "galore_adafactor":
            return _factored(arch, workload)
        case "muon":
            return _muon(arch, workload, moment)
        case "badam":
            return _one_block(arch, workload)
    count, size = _MOMENTS[name]
    if not size:
        return count * trained_bytes(arch, workload, moment)
    precise = _embedding_kept_precise(arch, workload) if size == _EIGHT else 0
    return count * (size * (trainable_parameters(arch, workload) - precise) + 4.0 * precise)


def largest_tensor(arch: Architecture, workload: Workload) -> int:
    """Elements of the largest trained tensor; fused experts are one tensor."""
    fused = arch.ffn.experts if workload.experts_fused and workload.method == "full" else 0
    experts = fused * max((m * n for m, n, _ in _expert_matrices(arch)), default=0)
    return max([experts, *(m * n for m, n, _ in trained_matrices(arch, workload))])


def step_bytes(arch: Architecture, workload: Workload) -> float:
    """Bytes that the optimizer's step allocates for a moment.

    A foreach step holds the root of every second moment at once; Adafactor holds the update and its square for the
    largest matrix, and fp32 copies of gradient and parameter when these are half precision. Fused steps need none.
    A ZeRO engine flattens this device's gradients, copies them to fp32 and updates; stage 3 one sub-group at a time."""
    sizes, sharding = element_bytes(workload), workload.sharding
    if sharding.offload_optimizer:
        return 0.0
    if sharding.engine:
        share = trainable_parameters(arch, workload) / partitions(workload)
        share = min(share, sharding.sub_group) if sharding.zero == 3 else share
        copying = sizes.gradient + (4.0 if sizes.gradient < 4 else 0.0)
        return share * max(copying, 8.0 if workload.optimizer in _FOREACH else 4.0)
    largest = largest_tensor(arch, workload)
    if workload.optimizer in _FOREACH:
        return trained_bytes(arch, workload, sizes.moment) / partitions(workload)
    match workload.optimizer:
        case "adafactor" | "galore_adafactor":
            return (8.0 if sizes.gradient == 4 else 16.0) * largest
        case "galore" | "apollo" | "galore_8bit" | "muon" | "adam_mini":
            return 8.0 * largest
    return 0.0


def partitions(workload: Workload) -> int:
    """Over how many devices the optimizer state is spread."""
    sharding = workload.sharding
    return sharding.world if sharding.zero >= 1 or sharding.fsdp else 1
