"""Bytes per element of every kind of tensor, by how mixed precision is done."""

from __future__ import annotations

from typing import NamedTuple

from .workload import Workload


class Bytes(NamedTuple):
    """Bytes per element; `master` is the optimizer's own full-precision copy of a trained parameter."""

    base: float  # base weights that do not train
    trained: float  # base weights that train
    adapter: float
    saved: float  # modules that train whole beside an adapter: weights, gradients and moments; at most the adapter's
    gradient: float
    master: float
    moment: float
    compute: float  # results of matrix products
    residual: float  # hidden states between layers
    casts: bool  # autocast: every trained linear keeps its own half-precision copy of weight and input


def frozen(workload: Workload) -> float:
    """Bytes per element of weights that do not train, once the run stands: those of the checkpoint, which FSDP2 raises
    to fp32 where precision is mixed (accelerate, utils/fsdp_utils.py, fsdp2_prepare_model)."""
    return 4.0 if workload.sharding.raised and workload.precision == "amp" else workload.base_bytes


def _full(workload: Workload) -> Bytes:
    """Trained weights: autocast keeps them, their gradients and moments in fp32; a ZeRO engine keeps half-precision
    weights and gradients beside fp32 master weights and moments; pure half precision has half-precision moments."""
    base = frozen(workload)
    if workload.sharding.fsdp and workload.precision == "amp":  # gathers half-precision weights from fp32 shards
        return Bytes(base, 4, 4, 4, 4, 0, 4, 2, 2, casts=False)
    residual = base if workload.method == "freeze" else 4.0
    match workload.precision:
        case "amp":
            return Bytes(base, 4, 4, 4, 4, 0, 4, 2, residual, casts=True)
        case "pure":
            return Bytes(base, 2, 4, 2, 2, 0, 2, 2, 2, casts=False)
        case "engine":
            return Bytes(2, 2, 2, 2, 2, 4, 4, 2, 2, casts=False)
        case "fp32":
            return Bytes(base, 4, 4, 4, 4, 4 if workload.sharding.engine else 0, 4, 4, residual, casts=False)


def _adapter(workload: Workload) -> Bytes:
    """Adapters are fp32 and train in fp32, except that a half-precision ZeRO engine casts them like everything else.
    Modules that train whole beside them do so too, unless pure half precision leaves them as they were loaded
    (LLaMA-Factory, model/adapter.py; peft casts adapters only).

    An embedding that trains in fp32 hands fp32 hidden states from layer to layer."""
    base = workload.base_bytes
    if workload.precision == "engine":
        return Bytes(2, 2, 2, 2, 2, 4, 4, 2, 2, casts=False)
    master = 4 if workload.sharding.engine else 0
    compute = 2.0 if workload.precision == "amp" else base
    residual = 4.0 if workload.precision == "amp" and workload.adapter.full_embedding else base
    saved = base if workload.precision == "pure" else 4.0
    stored = frozen(workload)
    return Bytes(stored, stored, 4, saved, 4, master, 4, compute, residual, casts=False)


def element_bytes(workload: Workload) -> Bytes:
    return _full(workload) if workload.method in ("full", "freeze") else _adapter(workload)
