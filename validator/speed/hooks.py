"""What a ZeRO-3 engine does between modules, and FSDP between layers. Seconds of the processor for a layer in a micro
batch."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .terms import Term

# Seconds of the processor in each pass through a module, whose parameters are fetched and released one by one
# (deepspeed, zero/partitioned_param_coordinator.py, fetch_sub_module). What runs of few tokens take longer
# under ZeRO-3: 0.18 to 0.3 ms for Qwen's README on 1, 2 and 4 A100, 0.25 for DeepSpeedExamples on 4 H100. FSDP
# takes as long for a parameter: short samples of fms-acceleration on 2 A100 with LoRA on 4-bit weights.
_SECONDS = 250e-6
# Modules of a layer beside its linear ones; those that an adapter adds to one. Experts of a layer count as one
# (LLaMA-Factory, model_utils/moe.py, add_z3_leaf_module).
_BESIDE, _ADAPTER = 6, 4


def hooks(run: Run, block: Block) -> Cost:
    """One pass forward, one backward through a layer."""
    number = _modules(run, block) if run.sharding.zero == 3 else _tensors(run, block) if run.sharding.fsdp else 0.0
    return Cost(Term.LAUNCHES, _SECONDS * number, _SECONDS * number)


def _modules(run: Run, block: Block) -> float:
    outside = (each for each in block.linears if not each.routed)
    return _BESIDE + sum(each.number * (1 + _ADAPTER * run.adapted(each)) for each in outside)


def _tensors(run: Run, block: Block) -> float:
    """FSDP gathers a layer at once, and makes each of its parameters anew (torch, distributed/fsdp/_flat_param.py)."""
    linears = sum(each.number * (1 + 2 * run.adapted(each)) for each in block.linears)
    return run.arch.norms_per_layer + linears + (2 if block.experts else 0)
