"""Model families by the model_type of their config.json: data/families.yaml beside the generated data/families.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import composites, releases
from validator.knowledge.config_fields import Config
from validator.knowledge.releases import ReleaseRange
from validator.knowledge.tables import json_table, yaml_table
from validator.physics.architecture import NormKind

_SIMULATE_HINT = (
    "where torch and LLaMA-Factory are installed, plan or explain RECIPE --simulate may judge it by its class"
)
# What the classes of transformers call the matrices of a layer -> their role in the memory formulas.
_ROLE_OF_MATRIX = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "qkv_proj": "qkv", "q_a_proj": "q_a",
    "q_b_proj": "q_b", "kv_a_proj_with_mqa": "kv_a", "kv_b_proj": "kv_b", "gate_proj": "gate", "up_proj": "up",
    "gate_up_proj": "gate_up", "down_proj": "down", "gate": "router", "wg": "router",
    "shared_expert_gate": "shared_gate", "in_proj_qkv": "in_qkv", "in_proj_z": "in_z", "in_proj_b": "in_b",
    "in_proj_a": "in_a", "in_proj_qkvz": "in_qkvz", "in_proj_ba": "in_ba", "out_proj": "out",
}  # fmt: skip


class Family(NamedTuple):
    """The peculiarities of a model type, and what LLaMA-Factory and transformers do for it, at the releases of
    data/families.json unless a field names another."""

    kind: str
    # Norms. Number of norms over the hidden width in a layer; their kind, as physics names it.
    norms: int = 2
    norm: NormKind = "rms"
    # A norm over each head of queries and of keys; only where `use_qk_norm` is set; one over all heads instead; norms
    # of heads without weights, in the layers that rotate; norms without weights over the heads of values.
    qk_norm: bool = False
    optional_qk_norm: bool = False
    full_width_qk_norm: bool = False
    weightless_qk_norm: bool = False
    v_norm: bool = False
    # The first layer reads the result of a norm over the embedding. The name of the norm after the layers.
    embedding_norm: bool = False
    last_norm: str = "norm"
    # In what the layers differ. heads: full-attention layers have another head_dim; cross_attention: some layers attend
    # to what the towers give.
    layer_shapes: Literal["", "heads", "cross_attention"] = ""
    # Rows that the embedding has beyond the vocabulary.
    extra_embedding_rows: int = 0
    # Multi-token-prediction layers are loaded, though they never run.
    mtp_layers_loaded: bool = False
    # Attention and feed-forward block read the same hidden state.
    parallel: bool = False
    # Dropout on what both halves of a layer add.
    residual_dropout: bool = False
    # Attention. Biases of q, k and v; whether attention_bias of config.json means the output matrix, too; biases of all
    # matrices of a layer.
    qkv_bias: bool = False
    output_bias: bool = True
    linear_bias: bool = False
    sinks: bool = False
    # Biases by distance (ALiBi): no attention kernel is used, the scores of all pairs of tokens are materialized.
    alibi: bool = False
    # Eager attention computes its softmax in half precision.
    softmax_in_half: bool = False
    # Attention gets a mask even without padding.
    always_masked: bool = False
    # q, k and v are copied out of the result of one matrix, or read there as they are; that result is clipped.
    contiguous_copies: bool = False
    clip_qkv: bool = False
    # A part of each head is rotated, and joined with the rest.
    concatenated: bool = False
    # Positions are an embedding. The activation is NewGELU, written out step by step.
    position_embedding: bool = False
    new_gelu: bool = False
    # Linear modules are of a class of their own, which bitsandbytes leaves as they are (transformers since 5.6), and
    # which multiplies by a view of the weight, so that autocast keeps no copy of that.
    own_linear_class: bool = False
    # Matrices are no nn.Linear, though peft and bitsandbytes take them for such where they are named.
    no_nn_linear: bool = False
    # What some layers have in place of attention: a gated delta net, beside which attention is gated, too, a gated
    # short convolution, Mamba-2, Mamba, or lightning attention; whether every layer has it beside attention instead.
    mixer: Literal["delta", "convolution", "statespace", "scan", "lightning"] | None = None
    mixer_beside_attention: bool = False
    # The feed-forward width. intermediate_size counts the gate and the up matrix together; two thirds of it, rounded
    # up, unless config.json says that all of it; four times the hidden size where config.json does not say.
    halved_width: bool = False
    adjusted_width: bool = False
    fourfold_width: bool = False
    # Embedding and output layer are one where config.json does not say.
    tied: bool = False
    # Experts. The transformers release since which they are one tensor and no linear layers (None: they are not);
    # whether that tensor is made while loading, of types that no earlier release had.
    fused_experts: str | None = None
    experts_merged: bool = False
    # What chooses experts: a parameter, one with a bias, with one that never trains, beside one that is a buffer, a
    # linear module, or one whose weight is read past it.
    router: Literal["parameter", "bias", "fixed", "buffer", "module", "linear"] = "parameter"
    # Leading layers without experts, where config.json does not say.
    dense_layers: int = 0
    expert_bias: bool = False
    clamped_swiglu: bool = False
    # Results of experts are added up by index_add.
    index_add: bool = False
    # Each expert computes all tokens, scaled by zero where the token did not choose it.
    every_expert_computes: bool = False
    # As many experts of another width, for the tokens of pictures.
    vision_experts: bool = False
    # A dense block stands beside the experts.
    dense_mlp_beside_experts: bool = False
    # Names in the model's code; empty where they are not known. `layer` is the class that FSDP wraps, `parts` what a
    # layer holds, by which freeze tuning chooses; `linear` may name some that a config does without. `separate` is what
    # `linear` was before the experts were one tensor.
    layer: str | None = None
    parts: frozenset[str] = frozenset()
    linear: frozenset[str] = frozenset()
    separate: frozenset[str] = frozenset()
    # Linear layer -> roles in the memory formulas.
    roles: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # The usual name of a field of config.json -> the type's own.
    fields: Mapping[str, str] = MappingProxyType({})
    # LLaMA-Factory's templates for chat-tuned models of the type, the usual one first.
    templates: tuple[str, ...] = ()
    # Linear modules that peft takes no adapters on, in a type with experts where it has any.
    peft_refuses: frozenset[str] = frozenset()
    # What LoRA should name, and why.
    targets: str = "all"
    lora_remark: str = ""
    # What a written recipe says of answers without thoughts, where the template puts an empty one into their prompts.
    without_thoughts: str = "prompt without thinking"
    # Beside FlashAttention-2 LLaMA-Factory replaces the mixers by ones of flash-linear-attention.
    mixers_patched: bool = False
    # Settings of data that recipes for its chat models take.
    settings: Mapping[str, Any] = MappingProxyType({})
    # (start of a name, what replaces it) where the models' own code fails with transformers 5.
    successor: tuple[str, str] | None = None
    # What transformers 5 makes of the model, other than its weights were trained.
    wrong_in_transformers_5: str = ""
    # What LLaMA-Factory looks for under ZeRO-3 by the name of a class that transformers has since named otherwise.
    lost_leaf: str | None = None
    # LLaMA-Factory has liger kernels, hands on the coefficient of the routers' loss, loads an attention kernel of its
    # own, converts to mixture-of-depths, and shifts attention (S^2).
    liger: bool = False
    aux_loss: bool = False
    own_kernel: bool = False
    mixture_of_depths: bool = False
    shift_attention: bool = False

    @property
    def fused_qkv(self) -> bool:
        """True if one matrix makes q, k and v."""
        return any("qkv" in self.roles.get(name, ()) for name in self.linear)

    @property
    def gated(self) -> bool:
        """True if the feed-forward part multiplies by a gate."""
        return any({"gate", "gate_up"} & set(self.roles.get(name, ())) for name in self.linear)

    @property
    def fused_gate_up(self) -> bool:
        """True if one matrix makes the gate and the up half of the feed-forward part."""
        return any("gate_up" in self.roles.get(name, ()) for name in self.linear)

    @property
    def merges(self) -> bool:
        """True if checkpoints hold each expert's matrices apart, and transformers merges those of a layer into one
        tensor while it loads them (transformers/conversion_mapping.py)."""
        return self.fused_experts is not None and (bool(self.separate) or self.experts_merged)

    def fuses(self, admitted: ReleaseRange) -> bool:
        """True if the experts are one tensor with a transformers release that a recipe admits; with every release if
        earlier ones have no class for the type."""
        first = self.fused_experts
        return first is not None and (not self.separate or admitted.requires(f"transformers {first}"))

    def forms(self, admitted: ReleaseRange) -> dict[bool, str]:
        """Return for experts in one tensor (True) and apart (False) the newest transformers release among those that a
        recipe admits, newest first. A release that has no class for the type counts as the newest."""
        forms: dict[bool, str] = {}
        for pair in admitted.possible_pairs:
            first = self.fused_experts
            reached = not self.separate or (first is not None and releases.is_at_least(pair, f"transformers {first}"))
            forms.setdefault(reached, pair[1])
        return forms

    def names(self, roles: Iterable[str], fused: bool = True) -> frozenset[str]:
        """Linear layers of a model whose matrices have these roles; a layer of no role counts as there. `fused`: the
        experts are one tensor."""
        there = set(roles)
        linear = self.linear if fused or not self.separate else self.separate
        return frozenset(name for name in linear if there.intersection(self.roles.get(name, there)))


# Parts of the config.json of a model that sees or hears
COMPOSITE_PARTS = ("vision_config", "audio_config", "thinker_config")


def is_composite(config: Mapping[str, Any]) -> bool:
    """True if this is the config.json of a decoder behind towers, as data/composites.yaml lists them."""
    parts = any(part in config for part in COMPOSITE_PARTS)
    return parts and str(config.get("model_type")) in yaml_table("composites")


def has_known_shapes(config: Mapping[str, Any]) -> bool:
    """True if the shapes that this config.json gives are known."""
    if not is_composite(config):
        return _is_known_type(config)
    return _is_known_type(composites.decoder_config(composites.trained_config(config)))


def _is_known_type(decoder: Mapping[str, Any]) -> bool:
    return str(decoder.get("model_type")) in yaml_table("families")


@cache
def composite_family(kind: str, decoder: str) -> Family:
    """The family of a decoder behind towers: its decoder's, but for what LLaMA-Factory does by the model's own type.
    Raises RecipeError where the table has no such decoder."""
    own, columns = yaml_table("composites")[kind], json_table("families")["llamafactory"]
    told: dict[str, Any] = {
        column: kind in llamafactory_types(column) for column in columns if column in Family._fields
    }
    inner = family_of_type(decoder)
    if own.get("separate_experts"):
        inner = inner._replace(fused_experts=None)
    return inner._replace(kind=kind, layer=own.get("layer", inner.layer), templates=tuple(own["templates"]), **told)


def known_types() -> list[str]:
    """The model types of the table, sorted."""
    return sorted(yaml_table("families"))


@cache
def family_of_type(kind: str) -> Family:
    """The family of a model type. Raises RecipeError where the table has none."""
    if kind not in yaml_table("families"):
        raise RecipeError(f"model type `{kind}` is not among the supported ones; {_SIMULATE_HINT}")
    generated, own = json_table("families"), yaml_table("families")[kind]
    roles = own.get("roles", {})
    # Without a class in transformers, the linear layers are those that have a role.
    facts: dict[str, Any] = {**generated["transformers"].get(kind, {"linear": roles}), **own}
    del facts["source"]
    facts |= {
        column: kind in llamafactory_types(column) for column in generated["llamafactory"] if column in Family._fields
    }
    facts["roles"] = {name: tuple(role.split()) for name, role in {**_ROLE_OF_MATRIX, **roles}.items()}
    facts |= {name: frozenset(facts.get(name, ())) for name in ("linear", "separate", "parts", "peft_refuses")}
    facts["templates"] = tuple(facts.get("templates", ()))
    facts["successor"] = tuple(facts["successor"]) if "successor" in facts else None
    return Family(kind, **facts)


def unlisted_family(kind: str, linear: Iterable[str]) -> Family:
    """The family of a model type that the table lacks, by the linear modules that its class holds: each is a role."""
    names = frozenset(linear)
    columns = json_table("families")["llamafactory"]
    told: dict[str, Any] = {
        column: kind in llamafactory_types(column) for column in columns if column in Family._fields
    }
    return Family(kind, linear=names, roles={name: (name,) for name in names}, **told)


def llamafactory_types(column: str) -> list[str]:
    """All model types of a column that is LLaMA-Factory's own, also those of no known family."""
    kinds: list[str] = json_table("families")["llamafactory"][column]
    return kinds


def with_usual_fields(config: Config, family: Family) -> Config:
    """The config.json with the names that most types give its fields."""
    told = ((name, _nested_field(config, own.split("."))) for name, own in family.fields.items())
    return {**config, **{name: value for name, value in told if value is not None}}


def _nested_field(config: Config, names: list[str]) -> Any:
    """A field, or one of a part of the config.json; None where there is none."""
    first, *rest = names
    value = config.get(first)
    if not rest:
        return value
    return _nested_field(value, rest) if isinstance(value, Mapping) else None
