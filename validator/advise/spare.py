"""What memory to spare would buy: a faster run, or a better one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from validator.advise import ladder, timing
from validator.advise.change import Change, change
from validator.advise.ladder import Way
from validator.job import zero
from validator.job.changed import Setting, changed
from validator.job.job import Job
from validator.rules import engine

# More at once no longer fills a device better: as many samples as `plan` takes, of its usual length.
_MICRO = 8
_TOKENS = _MICRO * 2048
_BATCH = frozenset({ladder.BATCH})


def spare(job: Job, limit: int = 4) -> list[Change]:
    """For a job that fits: changes that use more memory, and with which it fits by the same margin. None brings an
    error or a warning that the job does not have."""
    if job.verdict != "fits":
        return []
    bought = (way for ways in _WAYS if (way := next((way for way in ways(job) if _fits(job, way)), None)))
    bought = (way for way in bought if _pays(job, way))
    known = engine.problems(job)
    return [change(job, way.set, way.note) for way in islice(bought, limit)
            if engine.problems(changed(job, way.set)) <= known]  # fmt: skip


def _fits(job: Job, way: Way) -> bool:
    return changed(job, way.set).verdict == "fits"


def _pays(job: Job, way: Way) -> bool:
    """A fuller batch saves no time where its samples are padded to the longest of more."""
    ratio = timing.ratio(job, changed(job, way.set)) if way.decides == _BATCH else None
    return ratio is None or ratio < 1


def _less_sharding(job: Job) -> Iterator[Way]:
    """Less than now, the least first, if need be with a smaller micro batch. On one device nothing is sharded: there
    only offload is worth leaving. Stages 1 and 2 hold the weights whole, too, and send as much as data parallelism
    alone (ZeRO, arXiv 1910.02054, section 7): nothing is won by leaving them."""
    degree = _degree(job)
    offloads = degree > _OFFLOADED
    for name in _SHARDING[:degree] if degree > 1 else ():
        if name == "ds_z2_offload.json" and job.accumulation > zero.KEPT_OFFLOADED:
            continue
        if job.world > 1 or (offloads and name != "ds_z3.json"):
            file = Way({"deepspeed": f"deepspeed/{name}" if name else None}, _gain(name, offloads))
            yield file
            yield from (way for batch in ladder.micro_batch(job) if (way := ladder.joined((file, batch))))


# The files from the least sharding to the most; none of them is data parallelism alone.
_SHARDING = ("", "ds_z2.json", "ds_z3.json", "ds_z2_offload.json", "ds_z3_offload.json")
_OFFLOADED = _SHARDING.index("ds_z3.json")


def _degree(job: Job) -> int:
    """The place of a job's sharding among the files; behind them with the weights in host memory, too."""
    if not job.zero_stage or job.zero is None:
        return 0
    if job.zero.stage == 3 and job.zero.offload("offload_param"):
        return len(_SHARDING)
    return (3 if job.zero.offloads else 1) + int(job.zero.stage == 3)


def _gain(name: str, offloads: bool) -> str:
    if "offload" in name:
        return "only the optimizer state in host memory; faster steps"
    return (
        "nothing in host memory; much faster steps" if offloads else "weights whole on every device; less communication"
    )


def _no_recomputation(job: Job) -> Iterator[Way]:
    off: dict[str, Setting] = {"disable_gradient_checkpointing": True}
    if changed(job, off).checkpointing != "off":  # the Trainer's own key turns it on again
        off["gradient_checkpointing"] = False
    if job.checkpointing != "off":
        yield Way(off, "activations computed once: a quarter to a third less time for a step")


def _unquantized(job: Job) -> Iterator[Way]:
    if job.method == "lora" and job.quantization.works:
        yield Way({"quantization_bit": None}, "base weights in half precision: faster and more accurate")


def _larger_micro_batch(job: Job) -> Iterator[Way]:
    """With less accumulation, the largest first."""
    each = job.length * (2 if job.pairs else 1)
    for by in (8, 4, 2):
        micro = job.micro_batch * by
        if job.accumulation % by == 0 and micro <= _MICRO and micro * each <= _TOKENS:
            settings = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": job.accumulation // by}
            yield Way(settings, "same effective batch in fewer, fuller passes", _BATCH)


def _longer_samples(job: Job) -> Iterator[Way]:
    """Up to what the model was made for, the longest first."""
    most = job.model.positions if job.model else None
    lengths = [int(job.number("cutoff_len")) << by for by in (3, 2, 1)]
    yield from (Way({"cutoff_len": length}, "fewer samples are cut") for length in lengths if length <= (most or 0))


# What makes steps fastest comes first.
_WAYS = (_less_sharding, _no_recomputation, _unquantized, _larger_micro_batch, _longer_samples)
