"""Memory of one node: while loading, training and saving. Bytes."""

from __future__ import annotations

from collections.abc import Mapping

from . import idle
from .estimate import GIB, Estimate
from .layer import checkpoint
from .offload import offloaded_reference, offloaded_states, offloaded_weights, waiting_weights
from .run import Run, run_of
from .terms import Host, Term
from .weights import loaded_weights, whole_reference
from .workload import Architecture, Workload

PROCESS_GIB = 3.0  # interpreter, libraries and the device runtime of one training process
HEAVIER_PROCESSES = 0.5  # how much more of that a process may take
WORKER_GIB = 0.7  # a data-loader worker: interpreter and libraries, no device runtime
TOKEN_BYTES = 16.0  # a tokenized sample keeps ids and labels, 8 bytes each where the loader builds a batch

Terms = Mapping[Host, float]


def _processes(run: Run) -> float:
    each = PROCESS_GIB + run.work.loader_workers * WORKER_GIB
    return run.sharding.devices_per_node * each * GIB


def _checkpoint_file(run: Run) -> float:
    """The checkpoint while loading: mapped once for all processes of a node, or materialized by each of them."""
    whole = run.work.base_bytes * run.parameters
    return whole if run.work.low_memory_load else whole * run.sharding.devices_per_node


def _whole_model(run: Run) -> float:
    """FSDP that spreads the weights as they are read: the first process, or each, holds the whole model and its frozen
    copies, quantized if so asked, until the shards are handed out. A checkpoint that is unpacked while it loads is held
    whole by each process under ZeRO-3, too."""
    if run.sharding.zero == 3 and run.work.unpacked:
        return run.sharding.devices_per_node * run.work.base_bytes * run.parameters
    spreads = run.sharding.fsdp and run.sharding.sharded_load
    return run.sharding.loaders * (loaded_weights(run) + whole_reference(run)) if spreads else 0.0


def _merged_experts(run: Run) -> float:
    """Under ZeRO-3 transformers 5 reads the whole checkpoint in every process, and makes one tensor of each layer's
    experts, before the first of them is spread (integrations/deepspeed.py, _apply_weight_conversions_to_state_dict;
    github.com/huggingface/transformers/issues/47514). Two processes that loaded 768 MiB of experts each held as much
    beside their shards."""
    if run.sharding.zero != 3 or not run.work.experts_merged or run.work.quant_bits:
        return 0.0
    experts = sum(count * block.experts for count, block in idle.loaded(run.arch))
    return run.sharding.devices_per_node * run.work.base_bytes * experts


def _saving(run: Run) -> float:
    """Weights gathered on the first process for a save."""
    gathers = run.sharding.gather_on_save and run.spreads_weights and not run.adapts
    each = run.sizes.trained if run.sharding.fsdp else run.sizes.compute
    return each * run.parameters if gathers else 0.0


def _checkpoints(run: Run) -> float:
    """Activation checkpoints moved to the host, of every device."""
    if run.checkpointing != "offloaded":
        return 0.0
    return run.sharding.devices_per_node * checkpoint(run) * run.arch.layers


def _training(run: Run) -> Terms:
    return {
        **offloaded_states(run),
        Host.PARAMETERS: offloaded_weights(run),
        Host.REFERENCE: offloaded_reference(run),
        Host.CHECKPOINTS: _checkpoints(run),
        Host.LARGEST_GRADIENT: 2.0 * run.embedding if run.sharding.offload_optimizer else 0.0,
        Host.DATA: TOKEN_BYTES * run.work.dataset_tokens,
    }


def moments(run: Run) -> dict[str, Terms]:
    """The moments at which host memory can peak. Each gives bytes by term."""
    processes, training = {Host.PROCESSES: _processes(run)}, _training(run)
    loading = {
        Host.PARAMETERS: waiting_weights(run),
        Host.LOADING: 0.0 if run.work.low_memory_load else _checkpoint_file(run),
        Host.WHOLE_MODEL: _whole_model(run),
        Host.EXPERTS: _merged_experts(run),
    }
    return {
        "loading": {**processes, **loading},
        "training": {**processes, **training},
        "saving": {**processes, **training, Host.SAVING: _saving(run)},
    }


def host_memory(arch: Architecture, workload: Workload) -> Estimate:
    """Peak memory of one node: while loading, training or saving. Bytes by term.

    A mapped checkpoint file is page cache, which the kernel takes back when it must: it counts in `high` only, which
    also allows for the buffers' temporary second copies and for heavier processes."""
    run = run_of(arch, workload)
    moment, peak = max(moments(run).items(), key=lambda pair: sum(pair[1].values()))
    terms: dict[Term, float] = {term: size for term, size in peak.items() if size}
    total = sum(terms.values())
    processes = _processes(run)
    cached = _checkpoint_file(run) + offloaded_weights(run) + processes
    return Estimate(terms, 0.93 * total, total, max(1.12 * total, cached) + processes * HEAVIER_PROCESSES, moment)
