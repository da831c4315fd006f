"""What a ZeRO-3 engine does between modules. Seconds of a micro batch in one layer."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .terms import Term

# Seconds in each pass through a module: hooks fetch and release parameters one by one and wait for events of earlier
# ones (deepspeed, zero/partitioned_param_coordinator.py, fetch_sub_module), so that the device runs dry. Of 0.6 s that
# DeepSpeedExamples takes for 512 tokens on each of 4 H100, all else explains a quarter; MLPerf 4.0's 70B with LoRA on 8
# H100 takes 4 s longer than its work.
_SECONDS = 250e-6
# Modules of a layer beside its linear ones; those that an adapter adds to one. Experts of a layer count as one
# (LLaMA-Factory, model_utils/moe.py, add_z3_leaf_module).
_BESIDE, _ADAPTER = 6, 4


def hooks(run: Run, block: Block) -> Cost:
    """One pass forward, one backward through all modules of a layer."""
    if run.sharding.zero < 3:
        return Cost(Term.LAUNCHES, 0.0, 0.0)
    targets = run.work.adapter.targets if run.adapts else ()
    linears = sum(each.number * (1 + _ADAPTER * (each.role in targets)) for each in block.linears if not each.routed)
    seconds = _SECONDS * (_BESIDE + linears)
    return Cost(Term.LAUNCHES, seconds, seconds)
