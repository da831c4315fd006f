"""Reads from a model's published config.json the shapes that the memory formulas need."""

from __future__ import annotations

from itertools import groupby

from validator.errors import RecipeError
from validator.knowledge import composites, families, layer_kinds
from validator.knowledge.config_fields import (
    Config,
    checked_size,
    default_head_dim,
    optional_factor,
    optional_size,
    required_size,
)
from validator.knowledge.families import Family, with_usual_fields
from validator.physics import Architecture, AttentionShape, FeedForwardShape, LayerKind
from validator.physics.architecture import Mixer

# What names layers with experts between others.
_INTERLEAVED_EXPERTS = ("moe_layers", "interleave_moe_layer_step")


def read_architecture(config: Config) -> Architecture:
    """Return the shapes of the model that a config.json describes, with its towers. Raises RecipeError if the model
    type is not known, or if a field is missing or has a value that cannot be used."""
    if families.is_composite(config):
        fields = composites.trained_config(config)
        arch = read_architecture(composites.decoder_config(fields))
        return arch._replace(towers=composites.read_towers(fields, arch.hidden))
    family = families.family_of_type(str(config.get("model_type")))
    config = with_usual_fields(config, family)
    try:
        decoder = _uniform_architecture(config, family)
        return decoder._replace(layer_groups=_layer_runs(config, family)) if family.layer_shapes else decoder
    except KeyError as err:
        raise RecipeError(f"config.json of a `{family.kind}` model lacks {err}") from None


def _uniform_architecture(config: Config, family: Family) -> Architecture:
    """Return the architecture of a decoder whose layers have the same shapes. Raises KeyError if config.json lacks a
    field, and RecipeError if a field has a value that cannot be used."""
    ffn = _feed_forward(config, family)
    mixer, kinds = _mixer_and_kinds(config, family, ffn)
    return Architecture(
        hidden=required_size(config, "hidden_size"),
        layers=required_size(config, "num_hidden_layers"),
        vocab=required_size(config, "vocab_size"),
        attn=_latent_attention(config) if optional_size(config, "kv_lora_rank") else _attention(config, family),
        ffn=ffn,
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        norms_per_layer=_norms_per_layer(config, family),
        norm=family.norm,
        head_bias=bool(config.get("lm_head_bias")),
        embedding_norm=family.embedding_norm,
        position_rows=(optional_size(config, "max_position_embeddings") or 1024) if family.position_embedding else 0,
        recasts_weights=family.own_linear_class,
        parallel=family.parallel,
        dropout=family.residual_dropout and config.get("residual_dropout") != 0,
        logit_softcap=bool(config.get("final_logit_softcapping")),
        mixer=mixer,
        kinds=kinds,
        per_layer_input_width=optional_size(config, "hidden_size_per_layer_input"),
        extra_embedding_rows=family.extra_embedding_rows,
        mtp_layers=optional_size(config, "num_nextn_predict_layers") if family.mtp_layers_loaded else 0,
        per_layer_vocab=optional_size(config, "vocab_size_per_layer_input"),
    )


def _image_expert_width(config: Config) -> int:
    """Return the width of the experts for image tokens, the second number of `moe_intermediate_size` in config.json.
    Raises RecipeError if the field does not hold two widths."""
    widths = config.get("moe_intermediate_size")
    if not isinstance(widths, list) or len(widths) != 2:
        raise RecipeError(f"config.json: `moe_intermediate_size` is {widths!r}, not two widths")
    return checked_size("moe_intermediate_size", widths[1])


def _norms_per_layer(config: Config, family: Family) -> int:
    """Return the number of norms over the hidden state in a layer. Some norms exist only in models with experts or with
    per-layer embeddings. A layer whose attention and feed-forward block run in parallel has one or two norms."""
    if "new_decoder_architecture" in config:
        return optional_size(config, "num_ln_in_parallel_attn") or (2 if config["new_decoder_architecture"] else 1)
    if not family.dense_mlp_beside_experts:
        return family.norms
    missing = (0 if optional_size(config, "num_experts") else 3) + (
        0 if optional_size(config, "hidden_size_per_layer_input") else 1
    )
    return family.norms - missing


def _layer_runs(config: Config, family: Family) -> tuple[tuple[int, Architecture], ...]:
    """Return the layers of a decoder whose layers differ in shape, as pairs (number of identical layers in a row,
    decoder that has only this kind of layer). Raises KeyError if config.json lacks a field, and RecipeError if a field
    has a value that cannot be used."""
    layers = [_uniform_architecture(each, family) for each in layer_kinds.configs_by_layer(config, family.layer_shapes)]
    return tuple((len(list(group)), decoder) for decoder, group in groupby(layers))


def _mixer_and_kinds(
    config: Config, family: Family, ffn: FeedForwardShape
) -> tuple[Mixer | None, tuple[LayerKind, ...]]:
    """Return the mixer (such as Mamba) that some layers have, or None, and the kind of each layer. Returns (None, ())
    if the family has no mixer and config.json does not alternate layers with and without experts."""
    if not family.mixer and not any(name in config for name in _INTERLEAVED_EXPERTS):
        return None, ()

    return layer_kinds.read_mixer(config, family) if family.mixer else None, layer_kinds.read_layer_kinds(
        config, family, ffn
    )


def _shares_keys(config: Config) -> bool:
    """True if all query heads share one head of keys and values (multi-query attention)."""
    return bool(config.get("multi_query")) and not config.get("new_decoder_architecture")


def _kv_heads(config: Config, heads: int) -> int:
    if _shares_keys(config):
        return 1
    return optional_size(config, "num_key_value_heads") or heads


def _attention(config: Config, family: Family) -> AttentionShape:
    heads = required_size(config, "num_attention_heads")
    has_biases = bool(config.get("use_bias", family.linear_bias))
    has_qkv_bias = bool(has_biases or config.get("attention_bias") or config.get("qkv_bias") or family.qkv_bias)
    window = optional_size(config, "sliding_window") if config.get("use_sliding_window", True) else 0
    return AttentionShape(
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_dim=optional_size(config, "head_dim")
        or optional_size(config, "kv_channels")
        or default_head_dim(required_size(config, "hidden_size"), heads),
        qkv_bias=has_qkv_bias,
        out_bias=has_biases
        or bool(config.get("attention_out_bias", config.get("attention_bias") and family.output_bias)),
        qk_norm=family.qk_norm and bool(config.get("use_qk_norm", not family.optional_qk_norm)),
        full_width_qk_norm=family.full_width_qk_norm and bool(config.get("use_qk_norm", True)),
        weightless_qk_norm_share=_rotating_share(config)
        if family.weightless_qk_norm and config.get("use_qk_norm", True)
        else 0.0,
        softmax_in_half=family.softmax_in_half,
        sinks=family.sinks,
        alibi=family.alibi,
        window=window,
        fused_qkv=family.fused_qkv,
        contiguous_copies=family.contiguous_copies,
        always_masked=family.always_masked,
        clip_qkv=family.clip_qkv,
        kv_repeated=bool(config.get("new_decoder_architecture")),
        broadcasts_kv=family.contiguous_copies and _shares_keys(config),
        concatenated=family.concatenated,
        output_gate=family.mixer == "delta",
        v_norm=family.v_norm,
        k_eq_v=bool(config.get(layer_kinds.KV_TIED)),
        shares_kv=bool(config.get(layer_kinds.KV_SHARED)),
        cross_attention=bool(config.get(layer_kinds.CROSS_ATTENTION)),
        window_share=_windowed_share(config, family),
    )


def _windowed_share(config: Config, family: Family) -> float:
    """Return the share of layers with sliding-window attention: the share of `sliding_attention` in `layer_types` of
    config.json, or 0.5 without this list. The share is 1 for a family whose layers differ in shape, because each kind
    of layer is then read as a decoder of its own."""
    if family.layer_shapes:
        return 1.0
    kinds = config.get("layer_types")
    return kinds.count("sliding_attention") / len(kinds) if isinstance(kinds, list) and kinds else 0.5


def _rotating_share(config: Config) -> float:
    """Return the share of layers that apply rotary embeddings to queries and keys, as `no_rope_layers` in config.json
    lists them. Without the list, three of four layers do so by default."""
    layers = required_size(config, "num_hidden_layers")
    rotating = config.get("no_rope_layers")
    if isinstance(rotating, list) and rotating:
        return sum(map(bool, rotating)) / len(rotating)
    return 1 - layers // (optional_size(config, "no_rope_layer_interval") or 4) / layers


def _latent_attention(config: Config) -> AttentionShape:
    rope = required_size(config, "qk_rope_head_dim")
    heads, value = required_size(config, "num_attention_heads"), required_size(config, "v_head_dim")
    head = required_size(config, "qk_nope_head_dim") + rope
    return AttentionShape(
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        value_dim=value,
        q_rank=optional_size(config, "q_lora_rank"),
        kv_rank=required_size(config, "kv_lora_rank"),
        rope_dim=rope,
        out_bias=bool(config.get("attention_bias")),
        concatenated=head == value,  # else another kernel writes the output in the order that it is read in
    )


# May have a number for each layer.
_LISTED_BY_LAYER = ("moe_topk", "moe_intermediate_size", "num_shared_expert")


def _first_field(config: Config, *names: str) -> int:
    """Return the size in the first of the fields `names` that config.json sets; 0 if none of the fields is set. If the
    field has a number for each layer, the largest number counts."""
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and name in _LISTED_BY_LAYER:
            value = max(optional_size({name: number}, name) for number in value)
        if number := optional_size({name: value}, name):
            return number
    return 0


def _feed_forward_width(config: Config, family: Family) -> int:
    if family.fourfold_width and config.get("intermediate_size") is None:
        return 4 * required_size(config, "hidden_size")
    width = required_size(config, "intermediate_size")
    if not family.adjusted_width or config.get("block_auto_adjust_ff_dim") is False:
        return width
    step, times = optional_size(config, "block_multiple_of") or 256, optional_factor(config, "block_ffn_dim_multiplier")
    return -(-int(times * (2 * width // 3)) // step) * step


def _experts_per_token(config: Config, experts: int) -> int:
    """Return the number of experts that a token is routed to. Raises RecipeError if the model has fewer experts than
    this number, because torch.topk would fail."""
    number = _first_field(config, "num_experts_per_tok", "moe_k", "moe_topk") or required_size(config, "moe_topk")
    if number > experts:
        raise RecipeError(f"config.json: a token is sent to {number} experts, and there are {experts}")
    return number


def _feed_forward(config: Config, family: Family) -> FeedForwardShape:
    width = _feed_forward_width(config, family)
    experts = _first_field(config, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if not experts or config.get("moe_layers") == []:
        return FeedForwardShape(
            width // 2 if family.halved_width else width,
            gated=family.gated,
            fused_gate_up=family.fused_gate_up,
            bias=bool(config.get("mlp_bias") or config.get("use_bias", family.linear_bias)),
            new_gelu=family.new_gelu,
        )
    expert_width = _first_field(config, "moe_intermediate_size") or width
    shared = _first_field(
        config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"
    )
    return FeedForwardShape(
        width,
        fused_gate_up=family.fused_gate_up,
        experts=experts,
        experts_per_token=experts if family.every_expert_computes else _experts_per_token(config, experts),
        expert_width=expert_width,
        shared_width=optional_size(config, "shared_expert_intermediate_size")
        or shared * expert_width
        or width * family.dense_mlp_beside_experts,
        router_scaled=family.dense_mlp_beside_experts,
        vision_expert_width=_image_expert_width(config) if family.vision_experts else 0,
        shared_gate="shared_expert_gate" in family.linear,
        router_bias=family.router in ("bias", "fixed"),
        router_bias_fixed=family.router == "fixed",
        router_linear=family.router in ("linear", "module"),
        separate_router_linear=bool(family.separate & {"gate", "wg"}),
        expert_bias=family.expert_bias,
        clamped_swiglu=family.clamped_swiglu,
        index_add=family.index_add,
        experts_as_stored=family.experts_as_stored or family.every_expert_computes,
        dense_layers=_dense_layers(config, family),
    )


def _dense_layers(config: Config, family: Family) -> int:
    """Return the number of leading layers without experts. config.json gives it as a number or in a list of all layers;
    otherwise the family's default counts."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and "sparse" in kinds:
        return kinds.index("sparse")
    number = _first_field(config, "first_k_dense_replace", "moe_layer_start_index") or family.dense_layers
    return min(number, required_size(config, "num_hidden_layers"))
