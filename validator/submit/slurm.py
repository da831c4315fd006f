"""SLURM: a batch script for one run or an array job for several, the time limit that it asks for, and `sbatch` with
hints for its errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from validator.errors import RecipeError, os_reason
from validator.escaping import escape_line, shell_join, shell_quote
from validator.launch import resume
from validator.physics import Band
from validator.submit import cluster_job, node_script, node_setup, scheduler_client, slurm_script
from validator.submit.cluster_job import ClusterJob, RunToSubmit, Submission
from validator.submit.site_file import Site
from validator.submit.slurm_script import SECONDS_PER_HOUR
from validator.wording import plural

# The least that is asked for, hours: downloads and a busy file system are in no prediction.
_MIN_HOURS = 0.5


def limit_hours(work: ClusterJob, most: float = 0.0) -> float:
    """The limit to ask for: that of the user, else the end of the band of the run's hours, which counts its start, but
    no more than a site admits (`most`; 0: any). Raises RecipeError where none of them is known."""
    if work.limit:
        return work.limit
    if work.hours is None:
        if not most:
            raise RecipeError(f"how long {work.name} takes is not known; say `--hours H`, the longest that it may take")
        return most
    wanted = max(work.hours.high, _MIN_HOURS)
    return min(wanted, most) if most else wanted


def limit_notes(work: ClusterJob, limit: float) -> Iterator[str]:
    """What a limit of so many hours means for the run."""
    if work.hours is None or work.hours.high <= limit:
        return
    what = f"{work.name} takes {format_hours(work.hours)} and the limit is {limit:.1f} h"
    if not work.resumes:
        yield f"{what}: it cannot go on from a checkpoint; ask for more by `--hours`"
    elif work.every is not None and work.every > limit * SECONDS_PER_HOUR:
        apart = (
            "the first checkpoint is written at the end"
            if math.isinf(work.every)
            else (f"checkpoints lie up to {work.every / SECONDS_PER_HOUR:.1f} h apart")
        )
        yield f"{what}: {apart}, so that it may start anew each time; set a smaller `save_steps`, or `--hours`"
    else:
        yield f"{what}: it is queued again {_requeue_count(work.hours, limit)} and goes on from its last checkpoint"


def format_hours(hours: Band) -> str:
    """What is expected, and the band, in minutes where that is short."""
    factor, unit = (60, "min") if hours.high < 1 else (1, "h")
    low, expected, high = (f"{each * factor:.{int(unit == 'h')}f}" for each in hours)
    return f"{expected} {unit} ({low} to {high})"


def _requeue_count(hours: Band, limit: float) -> str:
    fewest, most = (max(math.ceil(each / limit) - 1, 0) for each in (hours.expected, hours.high))
    return f"{fewest} to {most} times" if fewest < most else f"{most} {plural(most, 'time')}"


_NO_SBATCH_REMEDY = "run this where jobs are submitted, or take the script there: `--write FILE`"
# What sbatch says (slurm, slurm_errno.c), and what helps.
_ERROR_HINTS = {
    "partition configuration": "`--hours H` asks for less time, if its nodes are not down (`sinfo`)",
    "account": "`slurm.account` of the site file names one that `sacctmgr show associations user=$USER` shows",
    "partition": "`slurm.partition` of the site file names one that `sinfo` shows",
    "qos": "`slurm.qos` of the site file names one that is admitted",
    "generic resource": "`slurm.devices` of the site file names devices as `sinfo -o '%P %G'` does: gpu:a100:{devices}",
    "node configuration": "no node that is up has as many devices, CPUs and GiB (`sinfo -o '%G %c %m'`)",
    "time limit": "`--hours H` asks for less, `slurm.hours` of the site file is the most that is admitted",
}


def queue_job(job: str) -> str:
    """The number that sbatch gives the job. Raises RecipeError with its own words, and what helps."""
    try:
        _check_possible(job)
        return scheduler_client.run_client(("sbatch", "--parsable"), job, _NO_SBATCH_REMEDY).partition(";")[0]
    except RecipeError as err:
        hint = next((hint for words, hint in _ERROR_HINTS.items() if words in str(err).lower()), "")
        raise RecipeError(f"{err}{hint and f'; {hint}'}") from None


def _check_possible(job: str) -> None:
    """Raises RecipeError for what no node can ever run: where a site has EnforcePartLimits=NO, SLURM's default, sbatch
    queues it to wait for ever. What else a trial tells may pass."""
    try:
        scheduler_client.run_client(("sbatch", "--test-only"), job, _NO_SBATCH_REMEDY)
    except RecipeError as err:
        if "configuration" in str(err):
            raise


def make_log_folder(place: Path) -> None:
    """Make the folder for logs: SLURM makes none, and without one a job fails and says nothing. Raises RecipeError."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise RecipeError(f"`{place}`, the folder for logs, cannot be made: {os_reason(err)}") from None


def order(runs: Sequence[RunToSubmit], site: Site) -> Submission:
    """A batch script for one run, or an array job, without runs that are finished already: nothing is left to submit
    where all are. Raises RecipeError as `text` does."""
    # The nodes see the output folder that this machine does.
    going = [
        f"{run.work.name} {line}"
        for run in runs
        if run.work.resumes
        for line in resume.resume_messages(run.job, dry=True)
    ]
    works = [run.work for run in runs if not (run.work.resumes and resume.finished_message(run.job))]
    if not works:
        return Submission(batch_script([run.work for run in runs], site), going, lambda: ["nothing is submitted"])
    job = batch_script(works, site)
    return Submission(job, [*going, *submission_notes(works, site)], lambda: _submit_script(job, works, site))


def batch_script(works: Sequence[ClusterJob], site: Site) -> str:
    """The batch script; of several runs an array job, with the resources of the largest. Raises RecipeError where the
    runs are not alike, or nobody knows how long one takes."""
    most = cluster_job.merge_into_array(works)
    hours = limit_hours(most, site.slurm.hours)
    several = len(works) if len(works) > 1 else 0
    login = " -l" if site.slurm.modules else ""  # which defines `module`
    parts = [
        [
            f"#!/bin/bash{login}",
            *slurm_script.directive_lines(most, site.slurm, hours, several),
            *_header_lines(works, hours),
        ],
        ["# What the site asks for", *node_script.site_setup_lines(site, site.slurm.setup, site.slurm.modules)],
        ["# The run", *(_array_case_lines(works, most) if several else _run_lines(most, most))],
        slurm_script.rendezvous_lines(most),
        slurm_script.requeue_lines(most, slurm_script.requeue_notice_s(most, hours)),
        slurm_script.prepare_output_lines(most),
        slurm_script.node_lines(most),
        slurm_script.srun_lines(most, site.slurm),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def submission_notes(works: Sequence[ClusterJob], site: Site) -> Iterator[str]:
    """What the limit means for each run, and what a container does not see."""
    hours = limit_hours(cluster_job.merge_into_array(works), site.slurm.hours)
    for work in works:
        yield from limit_notes(work, hours)
        if site.slurm.container:
            yield from _unmounted_paths(work, site.slurm.mounts)


def _submit_script(job: str, works: Sequence[ClusterJob], site: Site) -> Iterator[str]:
    most = cluster_job.merge_into_array(works)
    log = slurm_script.log_path(most, site.slurm, len(works) if len(works) > 1 else 0)
    make_log_folder(log.parent)
    number = queue_job(job)
    file = str(log).replace("%x", most.name).replace("%j", number).replace("%A", number).replace("%a", "0")
    yield f"job {number} is queued: {shell_join(('squeue', '--job', number))}"
    yield f"log: tail -F {shell_quote(file)}"
    yield f"cancel: scancel {number}"


def _header_lines(works: Sequence[ClusterJob], hours: float) -> list[str]:
    """What the script is, for whoever reads it."""
    lines = ["", "# Written by `lmf-recipes submit`. Change what you like; `sbatch FILE` takes it as well."]
    for work in works:
        time = format_hours(work.hours) if work.hours else "not known"
        lines.append(f"# {escape_line(work.name)} on {work.machine}: predicted time {time}, limit {hours:.1f} h")
    if works[0].memory_gib is None:
        lines.append("# --mem=0 is all memory of a node: how much the run takes is not known, or it is nearly that")
    return lines


def _array_case_lines(works: Sequence[ClusterJob], most: ClusterJob) -> list[str]:
    """The run that a job of the array makes."""
    cases = (
        (f"{number})", *node_setup.indent_lines([*_run_lines(work, most), ";;"])) for number, work in enumerate(works)
    )
    return ['case "$SLURM_ARRAY_TASK_ID" in', *(line for case in cases for line in case), "esac"]


def _run_lines(work: ClusterJob, most: ClusterJob) -> list[str]:
    """Variables that say what is run; of an array's runs each has those that one needs."""
    again = [
        *([f"export overwrites={str(work.overwrites).lower()}"] if most.overwrites else []),
        *([f"resuming=({shell_join(work.resuming)})"] if most.resuming else []),
    ]
    return [
        f"export recipe={shell_quote(str(work.recipe))} output={shell_quote(str(work.output))}",
        *node_script.array_lines("arguments", [str(work.recipe), *work.overrides]),
        *(again if work.resumes else ()),
        *node_script.export_lines(work.environment),
    ]


def _unmounted_paths(work: ClusterJob, mounts: Sequence[str]) -> Iterator[str]:
    seen = [Path([*mount.split(":"), mount][1]) for mount in mounts]
    for path in (work.recipe, work.output):
        if not any(path.is_relative_to(folder) for folder in seen):
            yield f"`{path}` is in no mount of the container; add its folder to `slurm.mounts` of the site file"
