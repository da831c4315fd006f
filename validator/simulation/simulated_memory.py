"""The result of a simulation (live bytes in each phase of a training step), and the prediction of device memory that
follows from the result.

On one device all bytes are simulated. With several devices, or under DeepSpeed, only transient bytes (activations,
logits, casts of weights) are simulated. Weights, gradients and optimizer states then come from the formulas of
`physics`, which shard them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.physics import Architecture, DeviceRuntime, Estimate, Workload
from validator.physics import peaks as formulas
from validator.physics.device_memory import device_memory_band, live_bytes
from validator.physics.estimate import DeviceTerm, largest_phase
from validator.physics.optimizer import (
    communication_bucket_bytes,
    gradient_bytes,
    gradients_before_backward,
    optimizer_states_on_device,
    optimizer_workspace,
)
from validator.physics.peaks import DeviceTerms, evaluation_phase, resident_terms
from validator.physics.training_step import TrainingStep, training_step
from validator.physics.uncertainty import memory_gaps
from validator.physics.weights import GatherPoint, gathered_weight_bytes

# Categories that stay from one micro batch to the next; all others are transient.
STATE_CATEGORIES = ("param", "grad", "optim")
# Packages whose releases decide an answer.
DECISIVE_PACKAGES = ("torch", "transformers", "peft", "trl", "llamafactory", "bitsandbytes", "liger-kernel")


class LinearModules(NamedTuple):
    """Linear modules of the same name and shape in one layer. `number` counts the modules."""

    role: str
    inputs: int
    outputs: int
    number: int
    bias: bool


class LayerGroup(NamedTuple):
    """`number` consecutive layers that are equal. Each layer has `linears`, its linear modules. `experts` counts the
    elements of a layer's expert weights that are stacked in one tensor, `vectors` the elements of all its other
    parameters."""

    number: int
    linears: list[LinearModules]
    experts: int
    vectors: int


class PhasePeak(NamedTuple):
    """Live memory of one phase of a training step, in bytes. `size` is the largest total, and `categories` divides that
    total by category. `transient` is the most memory at any time of the phase that is not weights, gradients or
    optimizer states."""

    size: int
    categories: dict[str, int]
    transient: int


class SimulatedStep(NamedTuple):
    """The result of a simulation. `moments` holds the peak of live memory in each phase of the training step (parts of
    the forward and the backward pass, optimizer step). `parameters` and `trainable` count all elements of the model and
    the trained ones, `embedding` and `head` those of the embedding and the output layer. `hidden` is the hidden size,
    and `layers` describes the layers. `whole` is true if all layers were simulated, and false if two shallow copies
    were extrapolated."""

    moments: dict[str, PhasePeak]
    parameters: int
    trainable: int
    layers: list[LayerGroup]
    embedding: int
    head: int
    hidden: int
    whole: bool

    @property
    def peak(self) -> int:
        """Bytes of live tensors in the largest phase."""
        return max(moment.size for moment in self.moments.values())


def step_from_json(values: Mapping[str, Any]) -> SimulatedStep:
    """Return the simulation result from its JSON form, the inverse of `SimulatedStep._asdict`. Raises KeyError,
    TypeError or ValueError if the JSON has another form."""
    moments = {name: PhasePeak(*moment) for name, moment in values["moments"].items()}
    layers = [
        LayerGroup(count, [LinearModules(*each) for each in linears], *elements)
        for count, linears, *elements in values["layers"]
    ]
    return SimulatedStep(**{**values, "moments": moments, "layers": layers})


_PHASE_NAMES = {
    "fwd_pre": "start of the forward pass", "fwd_layers": "layers forward", "fwd_head": "loss forward",
    "bwd_head": "loss backward", "bwd_layers": "layers backward", "bwd_emb": "embedding gradient",
    "opt": "optimizer step",
}  # fmt: skip
_GATHERED_AT: dict[str, GatherPoint] = {"fwd_head": "loss", "bwd_head": "loss", "bwd_emb": "embedding"}
_STATE_TERMS = {"param": DeviceTerm.WEIGHTS, "grad": DeviceTerm.GRADIENTS, "optim": DeviceTerm.OPTIMIZER}
_RESIDENT_TERMS = (DeviceTerm.WEIGHTS, DeviceTerm.ADAPTER, DeviceTerm.OPTIMIZER, DeviceTerm.REFERENCE)
_TRANSIENT_TERMS = {"logits": DeviceTerm.LOGITS, "weight_cast": DeviceTerm.WEIGHT_CASTS}


def estimate_from_step(
    arch: Architecture, work: Workload, answer: SimulatedStep, stepped: bool, runtime: DeviceRuntime | None
) -> Estimate:
    """Return the predicted device memory in bytes, from the simulated phases of a step (`answer`). `stepped` is true if
    the simulation includes the states of the run's optimizer; otherwise formulas add them. `runtime` is the memory that
    the device needs besides tensors (None: default values)."""
    run, runtime = training_step(arch, work), runtime or DeviceRuntime()
    single_device = work.sharding.world_size == 1 and not work.sharding.strategy.deepspeed
    moments = {
        _PHASE_NAMES[name]: _single_device_terms(run, moment, stepped, name)
        if single_device
        else _sharded_terms(run, moment, name, answer)
        for name, moment in answer.moments.items()
    }
    moments |= {"loading": formulas.loading_phase(run), "evaluation": evaluation_phase(run)}
    name, terms = largest_phase(moments)
    fixed = min(sum(terms.get(term, 0.0) for term in _RESIDENT_TERMS) for terms in moments.values() if terms)
    return Estimate(
        terms,
        *device_memory_band(run, map(live_bytes, moments.values()), fixed, runtime),
        name,
        memory_gaps(run, runtime.evidence == "good"),
    )


def _single_device_terms(run: TrainingStep, moment: PhasePeak, stepped: bool, name: str) -> DeviceTerms:
    terms = {term: float(moment.categories.get(category, 0)) for category, term in _STATE_TERMS.items()}
    if not stepped:
        terms[DeviceTerm.OPTIMIZER] = optimizer_states_on_device(run)
        terms[DeviceTerm.OPTIMIZER_WORKSPACE] = optimizer_workspace(run) if name == "opt" else 0.0
    batch = sum(size for category, size in moment.categories.items() if category not in STATE_CATEGORIES)
    return {**terms, **_transient_terms(moment.categories, batch)}


def _sharded_terms(run: TrainingStep, moment: PhasePeak, name: str, answer: SimulatedStep) -> DeviceTerms:
    """Memory terms, in bytes, of one phase of the step (`name`, such as `opt`) with several devices or DeepSpeed.
    Weights and optimizer states come from formulas. Transient bytes are the most that the simulation has at any time of
    the phase, because sharding may move the peak. If the run has a gradient buffer, all gradients count; otherwise, the
    share of the gradients that the simulation has in this phase counts."""
    if name == "opt":
        return {**formulas.optimizer_step(run), **_transient_terms(moment.categories, moment.transient)}
    return {
        **resident_terms(run),
        DeviceTerm.GATHERED_WEIGHTS: gathered_weight_bytes(run, _GATHERED_AT.get(name, "last layer")),
        DeviceTerm.BUCKETS: communication_bucket_bytes(run),
        DeviceTerm.GRADIENTS: _gradient_bytes(run, moment, name, answer),
        **_transient_terms(moment.categories, moment.transient),
    }


def _gradient_bytes(run: TrainingStep, moment: PhasePeak, name: str, answer: SimulatedStep) -> float:
    if name.startswith("fwd"):
        return gradients_before_backward(run)
    if run.strategy.has_gradient_buffer:
        return gradient_bytes(run)
    peak = max(one.categories.get("grad", 0) for one in answer.moments.values())
    return gradient_bytes(run) * (moment.categories.get("grad", 0) / peak if peak else 1.0)


def _transient_terms(categories: dict[str, int], size: int) -> DeviceTerms:
    terms = {term: float(categories.get(category, 0)) for category, term in _TRANSIENT_TERMS.items()}
    return {**terms, DeviceTerm.ACTIVATIONS: max(size - sum(terms.values()), 0.0)}
