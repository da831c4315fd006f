"""Models whose layers are of several kinds: their published config.json -> what each layer is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.diagnostic import RecipeError
from validator.memory import Ffn, LayerKind
from validator.memory.mixers import Convolution, Delta, Lightning, Mixer, Scan, StateSpace
from validator.tables.families import Family
from validator.tables.sizes import head_dim, optional, size

Config = Mapping[str, Any]
# What config.json calls layers that attend, where it names them all.
_ATTENTION = ("full_attention", "attention")
# Of how many layers one attends by default, the last of them: of those with state spaces none.
_EACH = {"delta": 4, "convolution": 1, "statespace": 0, "scan": 8, "lightning": 2}


def mixer(config: Config, family: Family) -> Mixer:
    """What the type's layers have in place of attention. Raises KeyError, RecipeError."""
    match family.mixer:
        case "delta":
            return _delta(config, family)
        case "statespace":
            return _space(config, family)
        case "scan":
            return _scan(config)
        case "lightning":
            return _lightning(config)
        case _:
            return Convolution(optional(config, "conv_L_cache") or 3, bias=bool(config.get("conv_bias")))


def kinds(config: Config, family: Family, ffn: Ffn) -> tuple[LayerKind, ...]:
    """Of each layer, first layers first. Raises RecipeError for a list that is not one of all layers."""
    layers = size(config, "num_hidden_layers")
    if family.side_by_side:
        return (LayerKind(mixes=True, experts=ffn.experts > 0),) * layers
    attending = _attending(config, family, layers) if family.mixer else (True,) * layers
    experts = _experts(config, layers) if ffn.experts else (False,) * layers
    return tuple(LayerKind(attends, not attends, mixes) for attends, mixes in zip(attending, experts, strict=True))


def _experts(config: Config, layers: int) -> tuple[bool, ...]:
    """Whether each layer has experts: those that config.json lists, or the last of every few."""
    every = optional(config, "interleave_moe_layer_step") or 1
    return _chosen(config, layers, "moe_layers", "expert_layer", every)


def _attending(config: Config, family: Family, layers: int) -> tuple[bool, ...]:
    """Whether each layer attends: as config.json lists them all, or those that do; else each of so many, or what the
    class does."""
    if isinstance(told := config.get("layer_types"), list):
        if len(told) != layers:
            raise RecipeError(f"config.json: `layer_types` names {len(told)} layers, `num_hidden_layers` is {layers}")
        return tuple(kind in _ATTENTION for kind in told)
    if isinstance(told := config.get("attn_type_list"), list) and len(told) == layers:
        return tuple(map(bool, told))
    every = optional(config, "full_attention_interval") or _EACH[family.mixer or "delta"]
    return _chosen(config, layers, "full_attn_idxs", "attn_layer", every)


def _chosen(config: Config, layers: int, listed: str, repeated: str, every: int) -> tuple[bool, ...]:
    """Of each layer: those in the list of that name, else each of `repeated`'s period from its offset, else the last of
    `every` few, with 0 none."""
    if isinstance(chosen := config.get(listed), list):
        return tuple(number in chosen for number in range(layers))
    if period := optional(config, f"{repeated}_period"):
        return tuple(number % period == config.get(f"{repeated}_offset", 0) for number in range(layers))
    return tuple(every > 0 and number % every == 0 for number in range(1, layers + 1))


def _space(config: Config, family: Family) -> StateSpace:
    heads, told = size(config, "mamba_n_heads"), config.get("mamba_d_head")
    width = optional(config, "mamba_d_ssm") or (optional(config, "mamba_expand") or 2) * size(config, "hidden_size")
    return StateSpace(
        heads=heads,
        head_dim=width // heads if told in (None, "auto") else size(config, "mamba_d_head"),
        state=optional(config, "mamba_d_state") or 256,
        groups=optional(config, "mamba_n_groups") or 1,
        kernel=optional(config, "mamba_d_conv") or 4,
        chunk=optional(config, "mamba_chunk_size") or 256,
        bias=bool(config.get("mamba_proj_bias")),
        convolution_bias=bool(config.get("mamba_conv_bias", True)),
        normed=bool(config.get("mamba_rms_norm", not family.side_by_side)),
    )


def _scan(config: Config) -> Scan:
    hidden, rank = size(config, "hidden_size"), config.get("mamba_dt_rank", "auto")
    return Scan(
        width=(optional(config, "mamba_expand") or 2) * hidden,
        state=optional(config, "mamba_d_state") or 16,
        rank=-(-hidden // 16) if rank == "auto" else size(config, "mamba_dt_rank"),
        kernel=optional(config, "mamba_d_conv") or 4,
        bias=bool(config.get("mamba_proj_bias")),
        convolution_bias=bool(config.get("mamba_conv_bias", True)),
    )


def _lightning(config: Config) -> Lightning:
    heads = size(config, "num_attention_heads")
    return Lightning(
        heads=heads,
        head_dim=optional(config, "head_dim") or head_dim(size(config, "hidden_size"), heads),
        chunk=optional(config, "block_size") or 256,
    )


def _delta(config: Config, family: Family) -> Delta:
    return Delta(
        key_heads=size(config, "linear_num_key_heads"),
        value_heads=size(config, "linear_num_value_heads"),
        key_dim=size(config, "linear_key_head_dim"),
        value_dim=size(config, "linear_value_head_dim"),
        kernel=size(config, "linear_conv_kernel_dim"),
        paired="in_proj_ba" in family.linear,
    )
