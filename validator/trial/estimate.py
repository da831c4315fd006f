"""Simulated live memory -> what the system's own tool would show, as the formulas make it.

On one device every byte is the simulation's. Over several, or where an engine runs the step, what comes and goes with
the batch is the simulation's, and weights, gradients and states are divided by the formulas of the room `memory`."""

from __future__ import annotations

from validator.memory import Architecture, Estimate, Runtime, Workload
from validator.memory import moments as formulas
from validator.memory.allocator import Live, band
from validator.memory.evidence import gaps
from validator.memory.forward import Terms, evaluation, resident
from validator.memory.gradients import earlier, gradients
from validator.memory.optimizer import optimizer
from validator.memory.run import Run, run_of
from validator.memory.step import step_bytes
from validator.memory.terms import Device, Term
from validator.memory.traffic import Where, buckets, gathered
from validator.simulate.answer import STATES, Answer, Moment

_NAMES = {
    "fwd_pre": "start of the forward pass", "fwd_layers": "layers forward", "fwd_head": "loss forward",
    "bwd_head": "loss backward", "bwd_layers": "layers backward", "bwd_emb": "embedding gradient",
    "opt": "optimizer step",
}  # fmt: skip
_WHERE: dict[str, Where] = {"fwd_head": "loss", "bwd_head": "loss", "bwd_emb": "embedding"}
_STATES = {"param": Device.WEIGHTS, "grad": Device.GRADIENTS, "optim": Device.OPTIMIZER}
_RESIDENT = (Device.WEIGHTS, Device.ADAPTER, Device.OPTIMIZER, Device.REFERENCE)
_PASSING = {"logits": Device.LOGITS, "wcast": Device.WEIGHT_CASTS}


def estimate(arch: Architecture, work: Workload, answer: Answer, stepped: bool, runtime: Runtime | None) -> Estimate:
    """The band around the simulated moments, bytes. `stepped`: the simulation holds the optimizer's states, too."""
    run, runtime = run_of(arch, work), runtime or Runtime()
    alone = work.sharding.world == 1 and not work.sharding.engine
    moments = {_NAMES[name]: _alone(run, moment, stepped, name) if alone else _spread(run, moment, name, answer)
               for name, moment in answer.moments.items()}  # fmt: skip
    moments |= {"loading": formulas.loading(run), "evaluation": evaluation(run)}
    lives = {name: Live(sum(terms.values()), _batch(terms)) for name, terms in moments.items()}
    name = max(lives, key=lambda name: lives[name].all)
    terms: dict[Term, float] = {term: size for term, size in moments[name].items() if size}
    fixed = min(_fixed(terms) for terms in moments.values() if terms)
    return Estimate(terms, *band(run, lives.values(), fixed, runtime), name, gaps(run, runtime.evidence == "good"))


def least(arch: Architecture, work: Workload) -> float:
    """Bytes that are there all the time, which need no simulation: no peak is lower."""
    return sum(resident(run_of(arch, work)).values())


def _alone(run: Run, moment: Moment, stepped: bool, name: str) -> Terms:
    terms = {term: float(moment.categories.get(category, 0)) for category, term in _STATES.items()}
    if not stepped:
        terms[Device.OPTIMIZER] = optimizer(run)
        terms[Device.STEP] = step_bytes(run) if name == "opt" else 0.0
    return {**terms, **_passing(moment.categories, sum(moment.categories.values()) - _states(moment))}


def _spread(run: Run, moment: Moment, name: str, answer: Answer) -> Terms:
    """Of what comes and goes the most at any time of the moment counts, since states of another size may move the
    peak. Gradients are all there while they are made, but for plain data parallelism's share of them."""
    if name == "opt":
        return {**formulas.step(run), **_passing(moment.categories, moment.passing)}
    return {
        **resident(run),
        Device.GATHER: gathered(run, _WHERE.get(name, "last layer")),
        Device.BUCKETS: buckets(run),
        Device.GRADIENTS: _gradients(run, moment, name, answer),
        **_passing(moment.categories, moment.passing),
    }


def _gradients(run: Run, moment: Moment, name: str, answer: Answer) -> float:
    if name.startswith("fwd"):
        return earlier(run)
    if run.sharding.zero >= 2:
        return gradients(run)
    most = max(one.categories.get("grad", 0) for one in answer.moments.values())
    return gradients(run) * (moment.categories.get("grad", 0) / most if most else 1.0)


def _passing(categories: dict[str, int], size: int) -> Terms:
    terms = {term: float(categories.get(category, 0)) for category, term in _PASSING.items()}
    return {**terms, Device.ACTIVATIONS: max(size - sum(terms.values()), 0.0)}


def _states(moment: Moment) -> int:
    return sum(moment.categories.get(name, 0) for name in STATES)


def _batch(terms: Terms) -> float:
    return sum(size for term, size in terms.items() if term.grows_with == "batch")


def _fixed(terms: Terms) -> float:
    return sum(terms.get(term, 0.0) for term in _RESIDENT)
