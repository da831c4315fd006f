"""What free memory would buy: changes with which a run that fits is faster, or trains on more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from validator.advise import changes, levers
from validator.advise.changes import Change, evaluate_change
from validator.advise.levers import Option
from validator.rules import all_rules
from validator.run import deepspeed
from validator.run.prediction import Job
from validator.run.variants import ArgumentValue, with_arguments

# More at once no longer fills a device better: as many samples as `plan` takes, of its usual length.
_MAX_MICRO_BATCH = 8
_MAX_BATCH_TOKENS = _MAX_MICRO_BATCH * 2048
_BATCH_ALONE = frozenset({levers.BATCH})


def uses_of_free_memory(job: Job, limit: int = 4) -> list[Change]:
    """Return changes that use more memory, for a job that fits, and with which it still fits by the same margin. No
    change brings an error or a warning that the job does not have."""
    if job.verdict != "fits":
        return []
    fitting = (next((option for option in lever(job) if with_arguments(job, option.set).verdict == "fits"), None)
               for lever in _LEVERS)  # fmt: skip
    useful = (option for option in fitting if option and _saves_time(job, option))
    known = all_rules.find_errors_and_warnings(job)
    return [evaluate_change(job, option.set, option.note) for option in islice(useful, limit)
            if all_rules.find_errors_and_warnings(with_arguments(job, option.set)) <= known]  # fmt: skip


def _saves_time(job: Job, option: Option) -> bool:
    """True unless the option only enlarges the micro batch and padding makes the run no faster."""
    ratio = changes.time_ratio_of(job, with_arguments(job, option.set)) if option.decides == _BATCH_ALONE else None
    return ratio is None or ratio < 1


def _less_sharding(job: Job) -> Iterator[Option]:
    """Yield files that shard less than the job's, the least first, if need be with a smaller micro batch. On one device
    nothing is sharded, so only offload is worth leaving. Stages 1 and 2 keep the weights whole and send as much as
    plain data parallelism (ZeRO, arXiv 1910.02054, section 7), so leaving them gains nothing."""
    degree = _sharding_degree(job)
    offloads = degree > _LAST_WITHOUT_OFFLOAD
    for name in _FILES_BY_SHARDING[:degree] if degree > 1 else ():
        if name == "ds_z2_offload.json" and job.batch.accumulation > deepspeed.MICRO_BATCHES_KEPT_OFFLOADED:
            continue
        if job.batch.world_size > 1 or (offloads and name != "ds_z3.json"):
            file = Option({"deepspeed": f"deepspeed/{name}" if name else None}, _sharding_gain(name, offloads))
            yield file
            yield from filter(None, (levers.combine((file, batch)) for batch in levers.smaller_micro_batch(job)))


# The files from the least sharding to the most; none of them is data parallelism alone.
_FILES_BY_SHARDING = ("", "ds_z2.json", "ds_z3.json", "ds_z2_offload.json", "ds_z3_offload.json")
_LAST_WITHOUT_OFFLOAD = _FILES_BY_SHARDING.index("ds_z3.json")


def _sharding_degree(job: Job) -> int:
    """Return the index of the job's sharding in `_FILES_BY_SHARDING`, or its length if weights are in host memory,
    too."""
    if not job.zero_stage or job.deepspeed is None:
        return 0
    if job.deepspeed.stage == 3 and job.deepspeed.offload("offload_param"):
        return len(_FILES_BY_SHARDING)
    return (3 if job.deepspeed.offloads else 1) + int(job.deepspeed.stage == 3)


def _sharding_gain(name: str, offloads: bool) -> str:
    if "offload" in name:
        return "only the optimizer state in host memory; faster steps"
    return (
        "nothing in host memory; much faster steps" if offloads else "weights whole on every device; less communication"
    )


def _no_recomputation(job: Job) -> Iterator[Option]:
    off: dict[str, ArgumentValue] = {"disable_gradient_checkpointing": True}
    if with_arguments(job, off).activation_checkpointing.mode != "off":  # the Trainer's own key turns it on again
        off["gradient_checkpointing"] = False
    if job.activation_checkpointing.mode != "off":
        yield Option(off, "activations computed once: a quarter to a third less time for a step")


def _unquantized_weights(job: Job) -> Iterator[Option]:
    if job.task.method == "lora" and job.quantization.works:
        yield Option({"quantization_bit": None}, "base weights in half precision: faster and more accurate")


def _larger_micro_batch(job: Job) -> Iterator[Option]:
    """Yield larger micro batches with less accumulation, the largest first."""
    each = job.batch.kept_tokens * (2 if job.task.uses_preference_pairs else 1)
    for by in (8, 4, 2):
        micro = job.batch.micro_batch * by
        if job.batch.accumulation % by == 0 and micro <= _MAX_MICRO_BATCH and micro * each <= _MAX_BATCH_TOKENS:
            settings = {
                "per_device_train_batch_size": micro,
                "gradient_accumulation_steps": job.batch.accumulation // by,
            }
            yield Option(settings, "same effective batch in fewer, fuller passes", _BATCH_ALONE)


def _longer_samples(job: Job) -> Iterator[Option]:
    """Yield longer `cutoff_len`, up to the model's positions, the longest first."""
    most = job.model.positions if job.model else None
    lengths = [int(job.args.number("cutoff_len")) << by for by in (3, 2, 1)]
    yield from (Option({"cutoff_len": length}, "fewer samples are cut") for length in lengths if length <= (most or 0))


# What makes steps fastest comes first.
_LEVERS = (_less_sharding, _no_recomputation, _unquantized_weights, _larger_micro_batch, _longer_samples)
