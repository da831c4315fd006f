"""PAR025 and PAR030 to PAR032: settings of a DeepSpeed file with which DeepSpeed stops, some of them by its release,
and releases of it that LLaMA-Factory refuses."""

from __future__ import annotations

from validator.rules import subjects
from validator.rules.rule import ERROR, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.run.deepspeed import DTYPE_OF_WORD, STAGE_0_UNSHARDED_SINCE, DeepSpeedConfig, accumulation_dtype
from validator.run.settings import RunSettings


@rule("PAR025", ERROR, about=subjects.deepspeed)
def deepspeed_release_refused(run: RunSettings, _zero: DeepSpeedConfig) -> Findings:
    """The header block names a release of DeepSpeed that the release of LLaMA-Factory refuses.

    Why: LLaMA-Factory up to 0.9.4 compares the release on start, and every process stops: "deepspeed>=0.10.0,<=0.16.9
    is required".
    Source: llamafactory/hparams/parser.py:_check_extra_dependencies
    Fix: a release that it accepts, or LLaMA-Factory 0.9.5, which accepts all.
    """
    for factory, accepted in run.releases.refused("deepspeed"):
        newest = run.releases.engine_releases("deepspeed")[0]
        remedy = f'write `# deepspeed: "{accepted}"`, or `# llamafactory: 0.9.5`'
        yield subjects.header_field("deepspeed"), f"{factory} asks for deepspeed {accepted}, not {newest}; {remedy}"


@rule("PAR030", ERROR, about=subjects.deepspeed_file)
def accumulation_format_refused(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """Gradients shall be summed in a number format that DeepSpeed does not combine with the run's.

    Why: the engine stops when it is built, after the model is loaded on every rank: "unsupported mix" or, before
    DeepSpeed 0.17.6, "Bfloat16 wrapper must use a gradient accumulation type of fp32"; for a word that is no number
    format "is not a valid DtypeEnum".
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._do_optimizer_sanity_check,
    deepspeed/runtime/engine.py:DeepSpeedEngine.get_data_types
    Fix: remove `grad_accum_dtype`.
    """
    key, model = "data_types.grad_accum_dtype", run.precision.compute_dtype or "fp32"
    stated = zero.value(key)
    if stated is None or stated == "auto":
        return
    summed = accumulation_dtype(zero, run.precision.compute_dtype, run.releases)
    if stated not in DTYPE_OF_WORD:
        yield at(key), f"`{key}` is {stated}, no number format of DeepSpeed; write fp32, or remove `grad_accum_dtype`"
    elif zero.stage == 0:
        unsharded = run.releases.requires(since=STAGE_0_UNSHARDED_SINCE)
        alike = model == summed and (model != "bf16" or unsharded)
        if not alike and (model, summed) != ("bf16", "fp32"):
            found = f"DeepSpeed does not sum gradients of a {model} model in {summed} without ZeRO"
            yield at(key), f"{found}; remove `grad_accum_dtype`, or set a ZeRO stage"


@rule("PAR031", ERROR, about=subjects.deepspeed_file)
def tensor_parallelism_refused(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON splits weights over devices (`autotp_size`) where that does not work.

    Why: after the model is loaded on every rank Accelerate asks for DeepSpeed 0.16.4 ("Deepspeed TP requires"), torch
    for as many devices as the mesh has ("Mesh should not be bigger than default world size"), and DeepSpeed for another
    stage than 3 ("has not been validated").
    Source: accelerate/accelerator.py:Accelerator._prepare_deepspeed,
    deepspeed/runtime/engine.py:DeepSpeedEngine._configure_tensor_parallel_states
    Fix: remove the block `tensor_parallel`.
    """
    key = "tensor_parallel.autotp_size"
    size = zero.value(key)
    if not isinstance(size, int) or size <= 1:
        return
    if run.releases.requires(until="deepspeed 0.16.4"):
        yield at(key), f"`autotp_size` needs DeepSpeed 0.16.4; {_REMEDY}"
    elif zero.stage == 3:
        yield at(key), f"`autotp_size` does not work in ZeRO-3; set a lower stage, or {_REMEDY}"
    elif run.machine and size > run.batch.world_size:
        yield at(key), f"`autotp_size` is {size}, more than the {run.batch.world_size} devices of the run; {_REMEDY}"


_REMEDY = "remove the block `tensor_parallel`"


@rule("PAR032", ERROR, about=subjects.deepspeed_file)
def shard_groups_refused(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON shards weights in groups of devices that cannot be made.

    Why: MiCS (`mics_shard_size`) asks for parameters made under `deepspeed.zero.MiCS_Init`, and transformers makes them
    under `deepspeed.zero.Init`: after loading every rank stops with "Sharded parameters don't have the MiCS_CommGroups
    attached". hpZ stops before loading with "is not divisible by" where its groups do not divide the devices.
    Source: deepspeed/runtime/zero/mics.py:MiCS_Optimizer,
    transformers/modeling_utils.py:PreTrainedModel.get_init_context,
    deepspeed/utils/groups.py:_create_zero_param_parallel_group
    Fix: `zero_hpz_partition_size` with the devices of a node, or FSDP with HYBRID_SHARD.
    """
    if zero.stage != 3:
        return
    shard, copy = (zero.value(f"zero_optimization.{key}") for key in ("mics_shard_size", "zero_hpz_partition_size"))
    if run.task.trains and isinstance(shard, int) and shard > 0:
        found = "`mics_shard_size` cannot be used with models of transformers"
        remedy = "remove it; `zero_hpz_partition_size` set to the devices of a node keeps gathers within a node"
        yield at("zero_optimization.mics_shard_size"), f"{found}; {remedy}"
    devices = run.batch.world_size
    if run.machine and isinstance(copy, int) and 1 < copy < devices and devices % copy:
        found = f"`zero_hpz_partition_size` is {copy}, which does not divide the {devices} devices of the run"
        yield (
            at("zero_optimization.zero_hpz_partition_size"),
            f"{found}; set {run.machine.devices}, the devices of a node",
        )
