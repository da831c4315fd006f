"""Counts of parameters: of the whole model, of its embeddings and output layer, of adapters, and of all parameters that
train."""

from __future__ import annotations

from functools import lru_cache

from validator.physics import decoder_layers
from validator.physics.architecture import Architecture, Linear, Tower, element_count
from validator.physics.decoder_layers import DecoderLayer, build_layers, split_layers, trained_layers
from validator.physics.workload import TowerWorkload, Workload


@lru_cache(maxsize=512)
def parameter_count(arch: Architecture) -> int:
    """Exact number of parameters, derived from the shapes; a tied embedding counts once."""
    return decoder_parameter_count(arch) + sum(tower.all_elements for tower in arch.towers)


def decoder_parameter_count(arch: Architecture) -> int:
    """Number of parameters of the decoder, without towers and projectors."""
    layers = sum(count * layer.elements for count, layer in decoder_layers.loaded_layers(arch))
    norms = (2 if arch.embedding_norm else 1) * arch.norm_elements
    tables = (
        embedding_elements(arch)
        + untied_lm_head_elements(arch)
        + per_layer_embedding_elements(arch)
        + arch.position_rows * arch.hidden
    )
    return layers + norms + tables + per_layer_projection_elements(arch)


def embedding_elements(arch: Architecture) -> int:
    return (arch.vocab + arch.extra_embedding_rows) * arch.hidden


def untied_lm_head_elements(arch: Architecture) -> int:
    """Number of the output layer's parameters that are not shared with the embedding."""
    return (0 if arch.tied else arch.vocab * arch.hidden) + (arch.vocab if arch.head_bias else 0)


def per_layer_embedding_elements(arch: Architecture) -> int:
    """Number of parameters of the per-layer embedding, which holds a part for each layer, and of the norm over these
    parts. Zero for models without per-layer embeddings."""
    return arch.per_layer_vocab * arch.layers * arch.per_layer_input_width + arch.per_layer_input_width


def per_layer_projection_elements(arch: Architecture) -> int:
    """Number of parameters of the linear module that projects the usual embedding, to be added to the per-layer
    embedding. Zero for models without per-layer embeddings."""
    return arch.hidden * arch.layers * arch.per_layer_input_width


def linear_roles(arch: Architecture, fused: bool = True) -> tuple[str, ...]:
    """Return the roles of the linear modules that "all linear layers" means for an adapter: the modules of all layers
    that are loaded, even layers that never run, and the module that projects the embedding for per-layer inputs.
    `fused`: experts are 3-D parameters instead of linear modules."""
    roles = (linear.role for _, layer in decoder_layers.loaded_layers(arch, fused) for linear in layer.linears)
    return tuple(dict.fromkeys([*roles, *(["inputs"] if arch.per_layer_input_width else [])]))


def adapter_elements(linear: Linear, workload: Workload, targets: tuple[str, ...] | None = None) -> int:
    """Number of trained elements that the adapter adds to one kind of linear module; 0 if the module's role is no
    target. `targets`: adapted roles; None: the roles of the workload's adapter.

    LoRA (arXiv 2106.09685): rank x (inputs + outputs). DoRA (2402.09353) adds a magnitude for each output. Orthogonal
    fine-tuning (2306.07280) trains block (block - 1) / 2 elements for each block of the inputs."""
    adapter = workload.adapter
    if not linear.has_role(adapter.targets if targets is None else targets):
        return 0
    number = min(adapter.experts or linear.number, linear.number) if linear.routed else linear.number
    if workload.method == "oft":
        return number * linear.inputs * (adapter.block_size - 1) // 2
    magnitude = linear.outputs if adapter.dora else 0
    return number * (adapter.rank * (linear.inputs + linear.outputs) + magnitude)


def trainable_parameter_count(arch: Architecture, workload: Workload) -> int:
    """Number of parameters that receive gradients."""
    return _trained_elements_in_decoder(arch, workload) + trained_elements_in_towers(arch, workload)


def towers_with_workloads(arch: Architecture, workload: Workload) -> tuple[tuple[Tower, TowerWorkload], ...]:
    """Return each tower of the architecture with its workload. Raises ValueError if the architecture and the workload
    do not list the same number of towers, so that no tower is silently left out."""
    return tuple(zip(arch.towers, workload.towers, strict=True))


def trained_elements_in_towers(arch: Architecture, workload: Workload) -> int:
    """Number of parameters of all towers and projectors that receive gradients."""
    return sum(trained_elements_in_tower(*pair, workload) for pair in towers_with_workloads(arch, workload))


def trained_elements_in_tower(tower: Tower, encoding: TowerWorkload, workload: Workload) -> int:
    """Number of parameters of one tower and its projector that receive gradients. `encoding`: the tower's part of the
    workload, which says what trains."""
    if workload.method in ("lora", "oft"):
        in_layers = [linear._replace(number=tower.layers) for linear in tower.linears]
        numbers = dict(encoding.adapted_modules)
        linears = [
            linear._replace(number=numbers.get(linear.role, linear.number))
            for linear in (*in_layers, *tower.outside, *tower.projector)
        ]
        return sum(adapter_elements(linear, workload, encoding.targets) for linear in linears)
    layers = min(encoding.trainable_layers, tower.layers) * (element_count(tower.linears) + tower.vectors)
    elements = tower.elements - tower.never_frozen if encoding.trains else layers
    projector = tower.projector_elements if encoding.projector else 0
    return elements + projector + (tower.never_frozen if encoding.never_frozen else 0)


def _trained_elements_in_decoder(arch: Architecture, workload: Workload) -> int:
    routers = 2 if arch.ffn.vision_expert_width else 1
    bias = routers * arch.ffn.experts if arch.ffn.router_bias_fixed else 0  # elements of each mixture
    if workload.method == "full":
        return (
            decoder_parameter_count(arch)
            - bias * arch.moe_layers
            - decoder_layers.elements_without_states(arch, workload)
        )
    if workload.method == "freeze":
        layers = trained_layers(build_layers(arch, workload.experts_fused), workload)
        embedding = embedding_elements(arch) if workload.adapter.full_embedding else 0
        head = untied_lm_head_elements(arch) if workload.adapter.full_head else 0
        in_layers = sum(number * _trained_elements_in_layer(layer, workload, bias) for number, layer in layers)
        return in_layers + embedding + head
    layers = decoder_layers.loaded_layers(arch, workload.experts_fused)
    adapted = workload.adapter.layers or ((sum(count for count, _ in layers), workload.adapter.targets),)
    adapters = sum(
        count * adapter_elements(linear, workload, roles)
        for count, layer, roles in split_layers(layers, adapted)
        for linear in layer.linears
    )
    outside = sum(adapter_elements(linear, workload) for linear in linears_outside_layers(arch))
    return adapters + outside + modules_to_save_elements(arch, workload)


def _trained_elements_in_layer(layer: DecoderLayer, workload: Workload, bias: int) -> int:
    """Number of elements of a layer that freeze tuning trains. If it trains some modules of the layer, norms are not
    counted. `bias`: elements of a mixture's bias that never trains."""
    if not workload.trainable_roles:
        return layer.elements - bias
    linears = layer.by_role(*workload.trainable_roles)
    experts = layer.experts if "experts" in workload.trainable_roles else 0
    return sum(linear.elements + linear.bias_elements for linear in linears) + experts


def linears_outside_layers(arch: Architecture) -> tuple[Linear, ...]:
    """Return what an adapter can stand on outside the decoder's layers: the embedding, whose adapter has a column for
    each word, the output layer, and the module that projects the embedding for per-layer inputs."""
    rows = arch.vocab + arch.extra_embedding_rows
    width = arch.layers * arch.per_layer_input_width
    inputs = (Linear("inputs", arch.hidden, width),) if width else ()
    return Linear("embedding", rows, arch.hidden), Linear("head", arch.hidden, arch.vocab), *inputs


def modules_to_save_elements(arch: Architecture, workload: Workload) -> int:
    """Number of elements of modules that train in full beside an adapter (PEFT's modules_to_save).
    Zero for methods without adapters."""
    has_adapter = workload.method in ("lora", "oft")
    tables = int(workload.adapter.full_embedding) + int(workload.adapter.full_head)
    return embedding_elements(arch) * tables + workload.adapter.full_elements if has_adapter else 0
