"""Model families: facts about each model_type of config.json, from data/families.yaml and the generated
data/families.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import composites, releases
from validator.knowledge.config_fields import Config
from validator.knowledge.releases import ReleasePair, ReleaseRange
from validator.knowledge.tables import json_table, yaml_table
from validator.physics.architecture import NormKind
from validator.physics.workload import ExpertsForm

_SIMULATE_HINT = (
    "where torch and LLaMA-Factory are installed, plan or explain RECIPE --simulate may judge it by its class"
)
# Grouped matmuls need torch 2.9 (transformers, modeling_utils.py, _grouped_mm_can_dispatch), until transformers 5.6
# brought one of its own for earlier releases of torch (integrations/moe.py, _grouped_mm_fallback).
_GROUPING_TORCH, _ANY_TORCH_GROUPS = "torch 2.9", "5.6"
# What the classes of transformers call the matrices of a layer -> their role in the memory formulas.
_ROLE_OF_MATRIX = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "qkv_proj": "qkv", "q_a_proj": "q_a",
    "q_b_proj": "q_b", "kv_a_proj_with_mqa": "kv_a", "kv_b_proj": "kv_b", "gate_proj": "gate", "up_proj": "up",
    "gate_up_proj": "gate_up", "down_proj": "down", "gate": "router", "wg": "router",
    "shared_expert_gate": "shared_gate", "in_proj_qkv": "in_qkv", "in_proj_z": "in_z", "in_proj_b": "in_b",
    "in_proj_a": "in_a", "in_proj_qkvz": "in_qkvz", "in_proj_ba": "in_ba", "out_proj": "out",
}  # fmt: skip


class Family(NamedTuple):
    """Facts about one model type: how the model differs from the usual decoder, and what LLaMA-Factory and transformers
    do for it. The facts hold for the releases in data/families.json, unless a field names another release."""

    kind: str
    # Number of norms over the hidden width in a layer, and their kind, as physics names it.
    norms: int = 2
    norm: NormKind = "rms"
    # A norm over each head of queries and of keys; the same, but only if `use_qk_norm` is set; one norm over all heads
    # instead; norms of heads without weights, in the layers that rotate; norms without weights over heads of values.
    qk_norm: bool = False
    optional_qk_norm: bool = False
    full_width_qk_norm: bool = False
    weightless_qk_norm: bool = False
    v_norm: bool = False
    # A norm over the embedding, whose result the first layer reads; the name of the norm after the last layer.
    embedding_norm: bool = False
    last_norm: str = "norm"
    # How layers differ in shape. heads: full-attention layers have another head_dim; cross_attention: some layers
    # attend to the towers' output.
    layer_shapes: Literal["", "heads", "cross_attention"] = ""
    # Rows that the embedding has beyond the vocabulary.
    extra_embedding_rows: int = 0
    # Multi-token-prediction layers are loaded, though they never run.
    mtp_layers_loaded: bool = False
    # Attention and feed-forward block read the same hidden state.
    parallel: bool = False
    # Dropout on the results that both halves of a layer add to the hidden state.
    residual_dropout: bool = False
    # Biases of q, k and v; whether attention_bias of config.json includes the output matrix; biases of all matrices of
    # a layer; sinks of attention.
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
    # q, k and v are copied out of the result of one matrix (else they are views of it); that result is clipped.
    contiguous_copies: bool = False
    clip_qkv: bool = False
    # A part of each head is rotated, and joined with the rest.
    concatenated: bool = False
    # Positions are an embedding. The activation is NewGELU, written out step by step.
    position_embedding: bool = False
    new_gelu: bool = False
    # Linear modules are of a class of their own, which bitsandbytes does not replace (transformers since 5.6), and
    # which multiplies by a view of the weight, so that autocast keeps no copy of the weight.
    own_linear_class: bool = False
    # Matrices are no nn.Linear, though peft and bitsandbytes treat them so if they are named.
    no_nn_linear: bool = False
    # The replacement of attention in some layers: a gated delta net (then attention is gated, too), a gated short
    # convolution, Mamba-2, Mamba, or lightning attention; whether every layer has it beside attention instead.
    mixer: Literal["delta", "convolution", "statespace", "scan", "lightning"] | None = None
    mixer_beside_attention: bool = False
    # The feed-forward width. halved: intermediate_size counts the gate and the up matrix together; adjusted: it is two
    # thirds of intermediate_size, rounded up, unless config.json says otherwise; fourfold: four times the hidden size
    # if config.json does not give it.
    halved_width: bool = False
    adjusted_width: bool = False
    fourfold_width: bool = False
    # Embedding and output layer share their weight if config.json does not say.
    tied: bool = False
    # The transformers release since which experts are one tensor and no linear layers (None: they are not); for types
    # that no earlier release had, whether that tensor is made while loading.
    fused_experts: str | None = None
    experts_merged: bool = False
    # The transformers release since which these experts run in grouped matmuls (None: a Python loop runs them). The
    # matmuls take the tensor as it is stored, not a transposed view of it.
    grouped_experts: str | None = None
    experts_as_stored: bool = False
    # The router, which chooses experts: a parameter; one with a bias; one whose bias never trains, or is a buffer; a
    # linear module; or a linear module whose weight is used directly.
    router: Literal["parameter", "bias", "fixed", "buffer", "module", "linear"] = "parameter"
    # Leading layers without experts, if config.json does not say.
    dense_layers: int = 0
    expert_bias: bool = False
    clamped_swiglu: bool = False
    # Results of experts are added up by index_add.
    index_add: bool = False
    # Each expert computes all tokens; results of experts that a token did not choose are scaled by zero.
    every_expert_computes: bool = False
    # As many experts of another width, for the tokens of pictures.
    vision_experts: bool = False
    # A dense block stands beside the experts.
    dense_mlp_beside_experts: bool = False
    # Names in the model's code; empty if they are not known. `layer`: the class that FSDP wraps; `parts`: modules of a
    # layer, among which freeze tuning chooses; `linear`: linear modules, also those that some configs lack; `separate`:
    # the same before the experts were one tensor.
    layer: str | None = None
    parts: frozenset[str] = frozenset()
    linear: frozenset[str] = frozenset()
    separate: frozenset[str] = frozenset()
    # Paths below a layer, with N for the number of an expert: of linear modules, of these before the experts were one
    # tensor, and of all other modules.
    linear_paths: tuple[str, ...] = ()
    separate_paths: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    # Where the model keeps its layers, its embedding and its output layer.
    layers_at: str = "model.layers"
    embedding: str = "embed_tokens"
    head: str = "lm_head"
    # Linear layer -> roles in the memory formulas.
    roles: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # The usual name of a field of config.json -> the type's own.
    fields: Mapping[str, str] = MappingProxyType({})
    # LLaMA-Factory's templates for chat-tuned models of the type, the usual one first.
    templates: tuple[str, ...] = ()
    # Linear modules on which peft accepts no adapter; of a type with experts, only if the model has any.
    peft_refuses: frozenset[str] = frozenset()
    # The value that `lora_target` should have, and why.
    targets: str = "all"
    lora_remark: str = ""
    # Words of a written recipe on answers without thoughts, if the template puts an empty thought into their prompts.
    without_thoughts: str = "prompt without thinking"
    # With FlashAttention-2 LLaMA-Factory replaces the mixers by those of flash-linear-attention.
    mixers_patched: bool = False
    # Data settings of recipes for the type's chat models.
    settings: Mapping[str, Any] = MappingProxyType({})
    # Repositories of the type on the hub also hold code of their own, which `trust_remote_code` makes transformers use.
    code_on_hub: bool = False
    # (start of a name, its replacement) if the models' own code fails with transformers 5.
    successor: tuple[str, str] | None = None
    # How transformers 5 computes the model differently from how its weights were trained.
    wrong_in_transformers_5: str = ""
    # The first release (its package, then its number) with which ZeRO-3 gathers the experts of a mixture together: the
    # release of LLaMA-Factory that tells DeepSpeed to, or of transformers that makes them one tensor.
    no_leaf_before: str = ""
    # The class that LLaMA-Factory looks for under ZeRO-3 by a name that transformers has since changed.
    lost_leaf: str | None = None
    # LLaMA-Factory has Liger kernels, passes on the coefficient of the router loss, loads an attention kernel of its
    # own, converts to mixture-of-depths, and shifts attention (S^2).
    liger: bool = False
    aux_loss: bool = False
    own_kernel: bool = False
    mixture_of_depths: bool = False
    shift_attention: bool = False

    @property
    def fused_qkv(self) -> bool:
        """True if one linear module computes q, k and v."""
        return any("qkv" in self.roles.get(name, ()) for name in self.linear)

    @property
    def gated(self) -> bool:
        """True if the feed-forward block multiplies by a gate."""
        return any({"gate", "gate_up"} & set(self.roles.get(name, ())) for name in self.linear)

    @property
    def fused_gate_up(self) -> bool:
        """True if one linear module computes the gate and the up projection of the feed-forward block."""
        return any("gate_up" in self.roles.get(name, ()) for name in self.linear)

    @property
    def merges(self) -> bool:
        """True if checkpoints hold each expert's matrices separately, and transformers merges the experts of a layer
        into one tensor while it loads them (transformers/conversion_mapping.py)."""
        return self.fused_experts is not None and (bool(self.separate) or self.experts_merged)

    def fuses(self, admitted: ReleaseRange) -> bool:
        """True if the experts of a layer are one tensor in a transformers release that the recipe must run with.
        `admitted`: the releases that the recipe's header block allows. If earlier releases have no class for the model
        type, the experts are one tensor in every release."""
        first = self.fused_experts
        return first is not None and (not self.separate or admitted.requires(f"transformers {first}"))

    def forms(self, admitted: ReleaseRange) -> dict[ExpertsForm, str]:
        """Return the newest transformers release for each form in which the experts of a layer run, newest first.
        `admitted`: the releases that the recipe's header block allows. Other releases do not count, so a form may be
        missing."""
        forms: dict[ExpertsForm, str] = {}
        for pair in admitted.possible_pairs:
            forms.setdefault(self._experts_form(pair, admitted), pair[1])
        return forms

    def _experts_form(self, pair: ReleasePair, admitted: ReleaseRange) -> ExpertsForm:
        """Return the form in which the experts run with a pair of releases. A release without a class for the type is
        judged like the first one with a class."""

        def reaches(version: str) -> bool:
            return releases.is_at_least(pair, f"transformers {version}")

        first, grouped = self.fused_experts, self.grouped_experts
        if self.separate and not (first and reaches(first)):
            return "separate"
        if first is None or self.every_expert_computes:
            return "grouped"
        if grouped is None or not (reaches(grouped) if reaches(first) else grouped == first):
            return "sliced"
        return "grouped" if reaches(_ANY_TORCH_GROUPS) or admitted.requires(_GROUPING_TORCH) else "sliced"

    def names(self, roles: Iterable[str], fused: bool = True) -> frozenset[str]:
        """Return the names of the model's linear modules that have one of `roles` in the memory formulas. A module
        without a role is always included. `fused`: the experts of a layer are one tensor."""
        present = set(roles)
        linear = self.linear if fused or not self.separate else self.separate
        return frozenset(name for name in linear if present.intersection(self.roles.get(name, present)))


# Parts of the config.json of a model that sees or hears
COMPOSITE_PARTS = ("vision_config", "audio_config", "thinker_config")


def is_composite(config: Mapping[str, Any]) -> bool:
    """True if a config.json describes a decoder behind vision or audio towers, and data/composites.yaml lists its model
    type."""
    parts = any(part in config for part in COMPOSITE_PARTS)
    return parts and str(config.get("model_type")) in yaml_table("composites")


def has_known_shapes(config: Mapping[str, Any]) -> bool:
    """True if the shapes of a model can be read from its config.json, because data/families.yaml has the type of the
    model or of its decoder."""
    if not is_composite(config):
        return _is_known_type(config)
    return _is_known_type(composites.decoder_config(composites.trained_config(config)))


def _is_known_type(decoder: Mapping[str, Any]) -> bool:
    return str(decoder.get("model_type")) in yaml_table("families")


@cache
def composite_family(kind: str, decoder: str) -> Family:
    """Return the family of a model with towers: the family of its decoder, with what LLaMA-Factory does for the model's
    own type. `kind`: model_type of the model; `decoder`: model_type of its decoder. Raises RecipeError if
    data/families.yaml lacks the decoder's type."""
    entry = yaml_table("composites")[kind]
    base = family_of_type(decoder)
    if entry.get("separate_experts"):
        base = base._replace(fused_experts=None)
    if "fused_experts" in entry:
        base = base._replace(
            fused_experts=entry["fused_experts"], separate=frozenset(), separate_paths=(), experts_merged=True
        )
    return base._replace(
        kind=kind,
        layer=entry.get("layer", base.layer),
        layers_at=entry.get("decoder", "model.language_model.layers"),
        templates=tuple(entry["templates"]),
        **_llamafactory_facts(kind),
    )


def known_types() -> list[str]:
    """Return the model types of data/families.yaml, sorted."""
    return sorted(yaml_table("families"))


@cache
def family_of_type(kind: str) -> Family:
    """Return the family of a model type. Raises RecipeError if data/families.yaml lacks the type."""
    if kind not in yaml_table("families"):
        raise RecipeError(f"model type `{kind}` is not among the supported ones; {_SIMULATE_HINT}")
    table, entry = json_table("families"), yaml_table("families")[kind]
    roles = entry.get("roles", {})
    facts: dict[str, Any] = {**table["transformers"].get(kind, {}), **entry}
    del facts["source"]
    for name in ("linear", "separate"):
        facts[f"{name}_paths"] = tuple(facts.get(name, ()))
        facts[name] = {path.rpartition(".")[2] for path in facts[f"{name}_paths"]}
    facts["blocks"] = tuple(facts.get("blocks", ()))
    facts |= _llamafactory_facts(kind)
    facts["roles"] = {name: tuple(role.split()) for name, role in {**_ROLE_OF_MATRIX, **roles}.items()}
    facts |= {name: frozenset(facts.get(name, ())) for name in ("linear", "separate", "parts", "peft_refuses")}
    facts["templates"] = tuple(facts.get("templates", ()))
    facts["successor"] = tuple(facts["successor"]) if "successor" in facts else None
    return Family(kind, **facts)


def unlisted_family(kind: str, linear: Iterable[str]) -> Family:
    """Return a family for a model type that data/families.yaml lacks. `linear`: names of the linear modules in the
    model's class; each name becomes a role of its own."""
    names = frozenset(linear)
    return Family(kind, linear=names, roles={name: (name,) for name in names}, **_llamafactory_facts(kind))


def _llamafactory_facts(kind: str) -> dict[str, Any]:
    """Return, by field name, the fields of Family that say what LLaMA-Factory itself does for a model type, such as
    `liger`."""
    columns = json_table("families")["llamafactory"]
    return {column: kind in columns[column] for column in columns if column in Family._fields}


def llamafactory_types(column: str) -> list[str]:
    """Return all model types that LLaMA-Factory itself lists in a column of data/families.json, such as `liger` (types
    with Liger kernels). Types without a family are included."""
    kinds: list[str] = json_table("families")["llamafactory"][column]
    return kinds


def with_usual_fields(config: Config, family: Family) -> Config:
    """Return a config.json in which the fields also have the names that most model types use, such as `hidden_size`."""
    renamed = ((name, _nested_field(config, path.split("."))) for name, path in family.fields.items())
    return {**config, **{name: value for name, value in renamed if value is not None}}


def _nested_field(config: Config, names: list[str]) -> Any:
    """Return the field of a config.json at the path `names`; None if the field is missing."""
    first, *rest = names
    value = config.get(first)
    if not rest:
        return value
    return _nested_field(value, rest) if isinstance(value, Mapping) else None
