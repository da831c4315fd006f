"""Vision and audio towers. Seconds of a micro batch: a layer of a tower is that of a decoder without a vocabulary."""

from __future__ import annotations

from validator.memory.encoder import Encoder, encoders
from validator.memory.run import Run

from .cost import Cost
from .layer import layer_costs
from .rates import Rates
from .terms import Term
from .weights import weights


def towers(run: Run, rates: Rates) -> Cost:
    """All towers with what stands beside their layers; nothing goes back where nothing trains."""
    costs = [_tower(encoder, rates) for encoder in encoders(run) if encoder.encoding.tokens]
    return Cost(Term.TOWERS, sum(cost.forward for cost in costs), sum(cost.backward for cost in costs))


def _tower(encoder: Encoder, rates: Rates) -> Cost:
    run, tower = encoder.run, encoder.tower
    costs = (*layer_costs(run, rates, encoder.block), weights(run, rates, encoder.block))
    forward = tower.layers * sum(cost.forward for cost in costs)
    backward = tower.layers * sum(cost.backward for cost in costs)
    beside = sum(
        rates.product(run.tokens / tower.merge, each.inputs, each.outputs, run.sizes.compute, each.number)
        for each in (*tower.outside, *tower.projector)
    )
    back = 2 * beside if encoder.reached else 0.0
    if not encoder.inside:
        return Cost(Term.TOWERS, forward + beside, back)
    again = forward if run.work.checkpointing != "off" and encoder.encoding.trains else 0.0
    return Cost(Term.TOWERS, forward + beside, backward + back + again)
