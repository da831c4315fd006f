"""TRA927, TRA928: the first process prepares the data, and the others wait for it, but not without end."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules import edits
from validator.rules.rule import Finding, rule

# Tokens for one process, of which no fewer are told: it makes 100,000 a second, and half an hour is the least allowed.
_FEW = 1e8
# Processes that most servers have the processors and the memory for (LLaMA-Factory's own examples).
_WORKERS = 16


@rule("TRA927", Severity.WARNING)
def tokenizing_outlasts_timeout(job: Job) -> Iterator[Finding]:
    """`ddp_timeout` ends before the first process has tokenized the data, for which the others wait.

    Why: they wait in a collective, which ends after half an hour where the recipe allows no longer: "Watchdog caught
    collective operation timeout: … ran for 1800328 milliseconds" (LLaMA-Factory issues 2424, 2656). On several nodes
    the first process of each tokenizes all of it.
    Source: llamafactory/data/loader.py:get_dataset,
    transformers/training_args.py:TrainingArguments.main_process_first, own (the time model)
    Fix: more `preprocessing_num_workers`, a longer `ddp_timeout`, or tokenize once before with `tokenized_path`.
    """
    seconds, limit = _tokenizing(job), job.number("ddp_timeout")
    if seconds > limit > 0:
        suffice = seconds * _tokenizers(job) / _WORKERS < limit
        longer = 3600 * math.ceil(2 * seconds / 3600)
        key, value = ("preprocessing_num_workers", _WORKERS) if suffice else ("ddp_timeout", longer)
        minutes = f"tokenizing takes about {seconds / 60:.0f} minutes, {limit / 60:.0f} are allowed"
        place = "ddp_timeout" if job.has("ddp_timeout") else "dataset"
        yield place, f"{minutes}; set `{key}: {value}`, or tokenize once with `tokenized_path`", edits.put(key, value)


@rule("TRA928", Severity.NOTE)
def hccl_waits_less(job: Job) -> Iterator[Finding]:
    """HCCL ends the wait for the first process before it has tokenized the data, whatever `ddp_timeout` allows.

    Why: on Ascend processes wait on the device, where HCCL_EXEC_TIMEOUT counts: 1,836 s where nothing sets it, and on a
    910A 17,340 s at most. Then "the specified timeout waiting event", error 507046 or 507048 (LLaMA-Factory issue 5551,
    Ascend/pytorch issues 48 and 62).
    Source: llamafactory/data/loader.py:get_dataset, own (the time model; HCCL_EXEC_TIMEOUT as CANN describes it)
    Fix: HCCL_EXEC_TIMEOUT as long as `ddp_timeout`, which `lmf-recipes train` sets; surer is to tokenize once before,
    with `tokenized_path`.
    """
    seconds = _tokenizing(job)
    if seconds == 0 or job.machine is None:
        return
    from validator.tables.nodes import node  # which most checks do not wait for

    waiting = node(job.machine.device).waiting
    if waiting is None:
        return
    given, allowed = os.environ.get(waiting.name, ""), job.number("ddp_timeout")
    limit = int(given) if given.isdecimal() else waiting.usual  # 0 is without end
    if 0 < limit < seconds <= allowed:
        minutes = f"tokenizing takes about {seconds / 60:.0f} minutes, HCCL waits {limit / 60:.0f}"
        longer = f"{waiting.name}={int(min(allowed, waiting.most or allowed))}"
        remedy = f"set {longer}" if given else f"`lmf-recipes train` sets {longer}"
        yield "dataset", f"{minutes}; {remedy}; surer is to tokenize once with `tokenized_path`"


def _tokenizing(job: Job) -> float:
    """Seconds that others wait for, about; 0 where none do, or not for long: then the time model is not asked."""
    if job.world == 1 or job.tokenized or _most(job) < _FEW:
        return 0.0
    from validator.job.pace import pace
    from validator.speed.course import Part

    known = pace(job)
    return known.run.terms.get(Part.TOKENIZING, 0.0) if known and known.run else 0.0


def _most(job: Job) -> float:
    """Tokens that each process which tokenizes makes, if all samples were as long as they may be."""
    return (job.data_rows or 0) * job.longest * (2 if job.pairs else 1) / _tokenizers(job)


def _tokenizers(job: Job) -> float:
    return max(job.number("preprocessing_num_workers"), 1)
