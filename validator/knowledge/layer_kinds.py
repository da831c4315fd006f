"""Reads from config.json the kind of every layer: attention or its replacement (Mamba, delta net, convolution), experts
or none, and layers whose attention shapes differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge.config_fields import Config, checked_size, default_head_dim, optional_size, required_size
from validator.knowledge.families import Family
from validator.physics import FeedForwardShape, LayerKind
from validator.physics.architecture import Mixer
from validator.physics.gated_delta_net import GatedDeltaNet
from validator.physics.lightning_attention import LightningAttention
from validator.physics.mamba import Mamba, Mamba2
from validator.physics.short_convolution import ShortConvolution

# What config.json calls layers that attend, where it names them all.
_ATTENTION_TYPES = ("full_attention", "attention")


def read_mixer(config: Config, family: Family) -> Mixer:
    """Return the mixer, such as Mamba, that some layers have in place of attention or beside it. Raises KeyError if
    config.json lacks a field, and RecipeError if a field has a value that cannot be used."""
    return _MIXERS[family.mixer or "convolution"].read(config, family)


def read_layer_kinds(config: Config, family: Family, ffn: FeedForwardShape) -> tuple[LayerKind, ...]:
    """Return the kind of each layer, first layers first: whether the layer has attention, a mixer (such as Mamba) and
    experts. Raises RecipeError if `layer_types` of config.json does not name all layers."""
    layers = required_size(config, "num_hidden_layers")
    if family.mixer_beside_attention:
        return (LayerKind(mixes=True, experts=ffn.experts > 0),) * layers
    attention = _layers_that_attend(config, family, layers) if family.mixer else (True,) * layers
    experts = (False,) * layers
    if ffn.experts:
        every = optional_size(config, "interleave_moe_layer_step") or 1
        experts = _chosen_layers(config, layers, "moe_layers", "expert_layer", every)
    return tuple(LayerKind(attends, not attends, mixes) for attends, mixes in zip(attention, experts, strict=True))


def _layers_that_attend(config: Config, family: Family, layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has attention. config.json lists the kinds of all layers, or the layers with
    attention. Otherwise layers with attention come at an interval, which config.json or the model's class gives. Raises
    RecipeError if `layer_types` does not name all layers."""
    if isinstance(listed := config.get("layer_types"), list):
        if len(listed) != layers:
            raise RecipeError(f"config.json: `layer_types` names {len(listed)} layers, `num_hidden_layers` is {layers}")
        return tuple(kind in _ATTENTION_TYPES for kind in listed)
    if isinstance(listed := config.get("attn_type_list"), list) and len(listed) == layers:
        return tuple(map(bool, listed))
    every = optional_size(config, "full_attention_interval") or _MIXERS[family.mixer or "delta"].attention_every
    return _chosen_layers(config, layers, "full_attn_idxs", "attn_layer", every)


def _chosen_layers(config: Config, layers: int, listed: str, repeated: str, every: int) -> tuple[bool, ...]:
    """Return for each layer whether it is chosen. `listed`: the config.json field that lists the chosen layers. Without
    this list, the fields `repeated` + `_period` and `repeated` + `_offset` choose one layer in each period. Without
    these fields, the last of each `every` layers is chosen (0: no layer)."""
    if isinstance(chosen := config.get(listed), list):
        return tuple(number in chosen for number in range(layers))
    if period := optional_size(config, f"{repeated}_period"):
        return tuple(number % period == config.get(f"{repeated}_offset", 0) for number in range(layers))
    return tuple(every > 0 and number % every == 0 for number in range(1, layers + 1))


def _read_state_space(config: Config, family: Family) -> Mamba2:
    heads, head_dim = required_size(config, "mamba_n_heads"), config.get("mamba_d_head")
    width = optional_size(config, "mamba_d_ssm") or (optional_size(config, "mamba_expand") or 2) * required_size(
        config, "hidden_size"
    )
    return Mamba2(
        heads=heads,
        head_dim=width // heads if head_dim in (None, "auto") else required_size(config, "mamba_d_head"),
        state=optional_size(config, "mamba_d_state") or 256,
        groups=optional_size(config, "mamba_n_groups") or 1,
        kernel=optional_size(config, "mamba_d_conv") or 4,
        chunk=optional_size(config, "mamba_chunk_size") or 256,
        bias=bool(config.get("mamba_proj_bias")),
        convolution_bias=bool(config.get("mamba_conv_bias", True)),
        normed=bool(config.get("mamba_rms_norm", not family.mixer_beside_attention)),
    )


def _read_scan(config: Config, _family: Family) -> Mamba:
    hidden, rank = required_size(config, "hidden_size"), config.get("mamba_dt_rank", "auto")
    return Mamba(
        width=(optional_size(config, "mamba_expand") or 2) * hidden,
        state=optional_size(config, "mamba_d_state") or 16,
        rank=-(-hidden // 16) if rank == "auto" else required_size(config, "mamba_dt_rank"),
        kernel=optional_size(config, "mamba_d_conv") or 4,
        bias=bool(config.get("mamba_proj_bias")),
        convolution_bias=bool(config.get("mamba_conv_bias", True)),
    )


def _read_lightning(config: Config, _family: Family) -> LightningAttention:
    heads = required_size(config, "num_attention_heads")
    return LightningAttention(
        heads=heads,
        head_dim=optional_size(config, "head_dim") or default_head_dim(required_size(config, "hidden_size"), heads),
        chunk=optional_size(config, "block_size") or 256,
    )


def _read_delta(config: Config, family: Family) -> GatedDeltaNet:
    return GatedDeltaNet(
        key_heads=required_size(config, "linear_num_key_heads"),
        value_heads=required_size(config, "linear_num_value_heads"),
        key_dim=required_size(config, "linear_key_head_dim"),
        value_dim=required_size(config, "linear_value_head_dim"),
        kernel=required_size(config, "linear_conv_kernel_dim"),
        paired="in_proj_ba" in family.linear,
    )


def _read_convolution(config: Config, _family: Family) -> ShortConvolution:
    return ShortConvolution(optional_size(config, "conv_L_cache") or 3, bias=bool(config.get("conv_bias")))


class _MixerRow(NamedTuple):
    """How one kind of mixer, such as Mamba, is read. `read`: the function that reads it from config.json.
    `attention_every`: by default, the last of this many layers has attention instead (0: no layer)."""

    read: Callable[[Config, Family], Mixer]
    attention_every: int


_MIXERS = {
    "delta": _MixerRow(_read_delta, 4),
    "convolution": _MixerRow(_read_convolution, 1),
    "statespace": _MixerRow(_read_state_space, 0),
    "scan": _MixerRow(_read_scan, 8),
    "lightning": _MixerRow(_read_lightning, 2),
}


# What no config.json says: one matrix makes keys and values; they are an earlier layer's, or made of what towers give.
KV_TIED, KV_SHARED, CROSS_ATTENTION = "kv_tied", "kv_shared", "cross_attention"


def configs_by_layer(config: Config, layer_shapes: str) -> Iterator[Config]:
    """Yield for each layer, first layers first, the config.json of a decoder that has only this kind of layer.
    `layer_shapes` says in what the layers differ (data/families.yaml).

    Raises KeyError if config.json lacks a field, and RecipeError if a field has a value that cannot be used."""
    layers = checked_size("num_hidden_layers", config["num_hidden_layers"])
    split = _by_cross_attention if layer_shapes == "cross_attention" else _by_full_attention
    return split(config, layers)


def _by_cross_attention(config: Config, layers: int) -> Iterator[Config]:
    """Yield each layer's config.json for a model in which some layers read the towers' output by cross-attention. Only
    these layers have norms over heads. `cross_attention_layers` lists these layers; without the list they are every
    fifth layer, as in the model's class."""
    readers = config.get("cross_attention_layers") or range(3, layers, 5)
    if not isinstance(readers, list | range):
        raise RecipeError(f"config.json: `cross_attention_layers` is {readers!r}, not a list")
    for number in range(layers):
        yield {**config, CROSS_ATTENTION: number in readers, "use_qk_norm": number in readers}


def _by_full_attention(config: Config, layers: int) -> Iterator[Config]:
    """Yield each layer's config.json for a model in which only some layers attend to all tokens. `layer_types` names
    these layers; without it they are every sixth layer and the last layer."""
    kinds = config.get("layer_types") or [*(number % 6 == 5 for number in range(layers - 1)), True]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise RecipeError(f"config.json: `layer_types` does not name each of {layers} layers")
    shared_layers = config.get("num_kv_shared_layers")
    first_shared_layer = layers - (checked_size("num_kv_shared_layers", shared_layers) if shared_layers else 0)
    for number, kind in enumerate(kinds):
        layer = {**config, **_kv_shared_fields(config)} if number >= first_shared_layer > 0 else config
        yield {**layer, **_full_attention_fields(config)} if kind in ("full_attention", True) else layer


def _kv_shared_fields(config: Config) -> Config:
    factor = 2 if config.get("use_double_wide_mlp") else 1
    return {
        KV_SHARED: True,
        "intermediate_size": factor * checked_size("intermediate_size", config["intermediate_size"]),
    }


def _full_attention_fields(config: Config) -> Config:
    """Return config.json fields as they hold for layers with full attention in a model that also has sliding-window
    layers: width of a head, no window, and shared keys and values if config.json says so."""
    is_shared = bool(config.get("attention_k_eq_v"))
    fields = {"num_key_value_heads": config.get("num_global_key_value_heads"), KV_TIED: True} if is_shared else {}
    return {"head_dim": config.get("global_head_dim") or config.get("head_dim"), "sliding_window": 0, **fields}
