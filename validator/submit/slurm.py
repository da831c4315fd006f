"""SLURM: a batch script for one run or an array job for several, the time limit that it asks for, and `sbatch` with
hints for its errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from validator.errors import RecipeError
from validator.escaping import escape_line, shell_join, shell_quote
from validator.launch import resume
from validator.physics import Band
from validator.recipe import atomic_write
from validator.submit import cluster_job, node_script, node_setup, scheduler_client, slurm_script
from validator.submit.cluster_job import ClusterJob, RunToSubmit, Submission
from validator.submit.site_file import Site
from validator.submit.slurm_script import SECONDS_PER_HOUR
from validator.wording import format_duration_band, plural

# The least that is asked for, hours: downloads and a busy file system are in no prediction.
_MIN_HOURS = 0.5


def limit_hours(work: ClusterJob, most: float = 0.0) -> float:
    """Hours to ask for: the user's limit, else the high end of the predicted hours, but no more than the site admits
    (`most`; 0: any). Raises RecipeError where none of them is known."""
    if work.time_limit_h:
        return work.time_limit_h
    if work.hours is None:
        if not most:
            raise RecipeError(f"how long {work.name} takes is not known; say `--hours H`, the longest that it may take")
        return most
    wanted = max(work.hours.high, _MIN_HOURS)
    return min(wanted, most) if most else wanted


def limit_notes(work: ClusterJob, limit: float) -> Iterator[str]:
    """Yield what a limit of so many hours means for a run that may take longer."""
    if work.hours is None or work.hours.high <= limit:
        return
    what = f"{work.name} takes {_format_hours(work.hours)} and the limit is {limit:.1f} h"
    if not work.can_resume:
        yield f"{what}: it cannot go on from a checkpoint; ask for more by `--hours`"
    elif work.checkpoint_interval_s is not None and work.checkpoint_interval_s > limit * SECONDS_PER_HOUR:
        apart = (
            "the first checkpoint is written at the end"
            if math.isinf(work.checkpoint_interval_s)
            else (f"checkpoints lie up to {work.checkpoint_interval_s / SECONDS_PER_HOUR:.1f} h apart")
        )
        yield f"{what}: {apart}, so that it may start anew each time; set a smaller `save_steps`, or `--hours`"
    else:
        fewest, most = (max(math.ceil(each / limit) - 1, 0) for each in (work.hours.expected, work.hours.high))
        times = f"{fewest} to {most} times" if fewest < most else f"{most} {plural(most, 'time')}"
        yield f"{what}: it is queued again {times} and goes on from its last checkpoint"


def _format_hours(hours: Band) -> str:
    low, expected, high = (each * SECONDS_PER_HOUR for each in hours)
    return format_duration_band(low, expected, high)


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
    """Submit a job and return the number that sbatch gives it. Raises RecipeError with sbatch's own words, and what
    helps."""
    try:
        # A site with EnforcePartLimits=NO, SLURM's default, queues a job that no node can ever run. What else a trial
        # refuses may pass.
        try:
            scheduler_client.run_client(("sbatch", "--test-only"), job, _NO_SBATCH_REMEDY)
        except RecipeError as err:
            if "configuration" in str(err):
                raise
        return scheduler_client.run_client(("sbatch", "--parsable"), job, _NO_SBATCH_REMEDY).partition(";")[0]
    except RecipeError as err:
        hint = next((hint for words, hint in _ERROR_HINTS.items() if words in str(err).lower()), "")
        raise RecipeError(f"{err}{hint and f'; {hint}'}") from None


def prepare(runs: Sequence[RunToSubmit], site: Site) -> Submission:
    """Return a batch script for one run, or an array job for several, without runs that are finished already. Raises
    RecipeError as `batch_script` does."""
    # The nodes see the output folder that this machine does.
    resumed = [
        f"{run.work.name} {line}"
        for run in runs
        if run.work.can_resume
        for line in resume.resume_messages(run.job, dry=True)
    ]
    works = [run.work for run in runs if not (run.work.can_resume and resume.finished_message(run.job))]
    if not works:
        return Submission(batch_script([run.work for run in runs], site), resumed, lambda: ["nothing is submitted"])
    job = batch_script(works, site)
    return Submission(job, [*resumed, *submission_notes(works, site)], lambda: _submit_script(job, works, site))


def batch_script(works: Sequence[ClusterJob], site: Site) -> str:
    """The batch script; of several runs an array job, with the resources of the largest. Raises RecipeError where the
    runs are not alike, or nobody knows how long one takes."""
    most = cluster_job.merge_into_array(works)
    hours = limit_hours(most, site.slurm.hours)
    several = len(works) if len(works) > 1 else 0
    run_lines = _run_lines(most, most)
    if several:
        cases = [
            line
            for number, work in enumerate(works)
            for line in (f"{number})", *node_setup.indent_lines([*_run_lines(work, most), ";;"]))
        ]
        run_lines = ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"]
    login = " -l" if site.slurm.modules else ""  # which defines `module`
    parts = [
        [
            f"#!/bin/bash{login}",
            *slurm_script.directive_lines(most, site.slurm, hours, several),
            *_header_lines(works, hours),
        ],
        ["# What the site asks for", *node_script.site_setup_lines(site, site.slurm.setup, site.slurm.modules)],
        ["# The run", *run_lines],
        slurm_script.rendezvous_lines(most),
        slurm_script.requeue_lines(most, slurm_script.requeue_notice_s(most, hours)),
        slurm_script.resume_lines(most),
        slurm_script.node_lines(most),
        slurm_script.srun_lines(most, site.slurm),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def submission_notes(works: Sequence[ClusterJob], site: Site) -> Iterator[str]:
    """Yield what the time limit means for each run, and which paths a container does not see."""
    hours = limit_hours(cluster_job.merge_into_array(works), site.slurm.hours)
    for work in works:
        yield from limit_notes(work, hours)
        if site.slurm.container:
            mounted = [Path([*mount.split(":"), mount][1]) for mount in site.slurm.mounts]
            for path in (work.recipe, work.output):
                if not any(path.is_relative_to(folder) for folder in mounted):
                    yield f"`{path}` is in no mount of the container; add its folder to `slurm.mounts` of the site file"


def _submit_script(job: str, works: Sequence[ClusterJob], site: Site) -> Iterator[str]:
    most = cluster_job.merge_into_array(works)
    log = slurm_script.log_path(most, site.slurm, len(works) if len(works) > 1 else 0)
    atomic_write.make_folder(log.parent)  # SLURM makes none, and without one a job fails and says nothing
    number = queue_job(job)
    file = str(log).replace("%x", most.name).replace("%j", number).replace("%A", number).replace("%a", "0")
    yield f"job {number} is queued: {shell_join(('squeue', '--job', number))}"
    yield f"log: tail -F {shell_quote(file)}"
    yield f"cancel: scancel {number}"


def _header_lines(works: Sequence[ClusterJob], hours: float) -> list[str]:
    """Return comments that say what the script is."""
    lines = ["", "# Written by `lmf-recipes submit`. Change what you like; `sbatch FILE` takes it as well."]
    for work in works:
        time = _format_hours(work.hours) if work.hours else "not known"
        lines.append(f"# {escape_line(work.name)} on {work.machine}: predicted time {time}, limit {hours:.1f} h")
    if works[0].memory_gib is None:
        lines.append("# --mem=0 requests all memory of the node, because the prediction is unknown or close to it")
    return lines


def _run_lines(work: ClusterJob, most: ClusterJob) -> list[str]:
    """Return lines that set what is run. If one run of an array (`most` stands for all of them) sets a variable, each
    does."""
    resuming = [
        *([f"export overwrites={str(work.discards_old_checkpoints).lower()}"] if most.discards_old_checkpoints else []),
        *([f"resuming=({shell_join(work.resume_overrides)})"] if most.resume_overrides else []),
    ]
    return [
        f"export recipe={shell_quote(str(work.recipe))} output={shell_quote(str(work.output))}",
        *node_script.array_lines("arguments", [str(work.recipe), *work.overrides]),
        *(resuming if work.can_resume else ()),
        *node_script.export_lines(work.environment),
    ]
