"""SLURM: a batch script for one run, or for an array job of several runs. Computes the time limit, makes the job queue
itself again before the limit, and runs `sbatch` with hints for its errors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from validator.errors import RecipeError
from validator.escaping import escape_line, shell_join, shell_quote
from validator.knowledge.node_environment import node_needs
from validator.knowledge.tables import yaml_table
from validator.launch import resume
from validator.physics import Band
from validator.recipe import safe_read
from validator.submit import cluster_job, node_script, scheduler_client
from validator.submit.cluster_job import ClusterJob, RunToSubmit, Submission
from validator.submit.site_file import Site, Slurm
from validator.wording import format_duration_band, plural

_SECONDS_PER_HOUR = 3600
# The least that is asked for, hours: downloads and a busy file system are in no prediction.
_MIN_HOURS = 0.5
# The limit that is asked for, as a multiple of the expected time. The high end of the 90 % band may be six times as
# much where little is known of a device, and a job of many days waits for them in the queue.
_EXPECTED_TIMES = 2


def limit_hours(work: ClusterJob, site_limit: float = 0.0) -> float:
    """Return the time limit to request, in hours: the user's limit, or else twice the expected time, because a job of
    few hours starts sooner and one that needs more is queued again. A run that loses what it did when it is stopped
    asks for the high end of the predicted time, if that is more. The result is at least half an hour and at most
    `site_limit`, the longest job that the site allows (0: no limit). If no time is predicted, `site_limit` itself is
    the limit. Raises RecipeError if the user's limit, the prediction and the site's limit are all unknown."""
    if work.time_limit_h:
        return work.time_limit_h
    if work.hours is None:
        if not site_limit:
            raise RecipeError(f"how long {work.name} takes is not known; say `--hours H`, the longest that it may take")
        return site_limit
    hours = max(_EXPECTED_TIMES * work.hours.expected, _MIN_HOURS)
    interval = work.checkpoint_interval_s
    goes_on = work.can_resume and (interval is None or interval <= hours * _SECONDS_PER_HOUR)
    hours = hours if goes_on else max(hours, work.hours.high)
    return min(hours, site_limit) if site_limit else hours


def limit_notes(work: ClusterJob, limit: float) -> Iterator[str]:
    """Yield a note if the run may take longer than `limit` hours. The note says that the run cannot continue from a
    checkpoint, that checkpoints are too far apart, or how often the job is queued again."""
    if work.hours is None or work.hours.high <= limit:
        return
    what = f"{work.name} takes {_format_hours(work.hours)} and the limit is {limit:.1f} h"
    if not work.can_resume:
        yield f"{what}: it cannot go on from a checkpoint; ask for more by `--hours`"
    elif work.checkpoint_interval_s is not None and work.checkpoint_interval_s > limit * _SECONDS_PER_HOUR:
        apart = f"checkpoints lie up to {work.checkpoint_interval_s / _SECONDS_PER_HOUR:.1f} h apart"
        if math.isinf(work.checkpoint_interval_s):
            apart = "the first checkpoint is written at the end"
        yield f"{what}: {apart}, so that it may start anew each time; set a smaller `save_steps`, or `--hours`"
    else:
        expected_restarts, max_restarts = (
            max(math.ceil(each / limit) - 1, 0) for each in (work.hours.expected, work.hours.high)
        )
        times = (
            f"{expected_restarts} to {max_restarts} times"
            if expected_restarts < max_restarts
            else f"{max_restarts} {plural(max_restarts, 'time')}"
        )
        yield f"{what}: it is queued again {times} and goes on from its last checkpoint"


def _format_hours(hours: Band) -> str:
    return format_duration_band(*(each * _SECONDS_PER_HOUR for each in hours))


_NO_SBATCH_REMEDY = "run this where jobs are submitted, or take the script there: `--write FILE`"


def queue_job(job: str) -> str:
    """Submit a batch script (`job` is its text) with sbatch, and return the job number. Raises RecipeError with
    sbatch's message and a hint if sbatch refuses the script."""
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
        hint = next(
            (hint for words, hint in yaml_table("scheduler_errors")["slurm"].items() if words in str(err).lower()), ""
        )
        raise RecipeError(f"{err}{hint and f'; {hint}'}") from None


def prepare(runs: Sequence[RunToSubmit], site: Site) -> Submission:
    """Return the batch script for one run, or an array job for several runs. Runs that are finished already are left
    out. Raises RecipeError if the runs cannot form one array, or if no time limit is known."""
    site = replace(site, slurm=site.slurm.for_device(runs[0].work.device.id))
    # The nodes see the output folder that this machine does.
    resumable = [each for each in runs if each.work.can_resume]
    resumed = [f"{each.work.name} {line}" for each in resumable for line in resume.resume_messages(each.run, dry=True)]
    works = [each.work for each in runs if not (each.work.can_resume and resume.finished_message(each.run))]
    if not works:
        return Submission(batch_script([each.work for each in runs], site), resumed, lambda: ["nothing is submitted"])
    job = batch_script(works, site)
    notes = [*resumed, *submission_notes(works, site)]
    program, start = program_path(works[0], site.slurm), _start_command(works[0], site.slurm)
    return Submission(job, notes, lambda: _submit_script(job, works, site), start, program)


def _start_command(work: ClusterJob, slurm: Slurm) -> str:
    """Return the shell command that submits a batch script, without the script. SLURM makes no folder for the log, and
    without one a job fails and says nothing."""
    return f"mkdir -p {shell_quote(str(log_path(work, slurm).parent))} && sbatch"


def batch_script(works: Sequence[ClusterJob], site: Site) -> str:
    """Return the batch script. Several runs become an array job, with the resources of the largest run. Raises
    RecipeError if the runs differ in shape or share an output folder, or if no time limit is known."""
    merged = cluster_job.merge_into_array(works)
    hours = limit_hours(merged, site.slurm.hours)
    several = len(works) if len(works) > 1 else 0
    run_lines = _run_lines(merged, merged.name, site, hours)
    if several:
        run_lines = ['case "$SLURM_ARRAY_TASK_ID" in']
        for number, work in enumerate(works):
            run_lines += [f"{number})", *node_script.indent_lines([*_run_lines(work, merged.name, site, hours), ";;"])]
        run_lines.append("esac")
    login = " -l" if site.slurm.modules else ""  # which defines `module`
    parts = [
        [f"#!/bin/bash{login}", *directive_lines(merged, site.slurm, hours, several), *_header_lines(works, hours)],
        ["# What the site asks for", *node_script.site_setup_lines(site, site.slurm.setup, site.slurm.modules)],
        ["# The run", *run_lines, *node_script.torchrun_env_lines(merged)],
        start_lines(merged, site.slurm),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def submission_notes(works: Sequence[ClusterJob], site: Site) -> Iterator[str]:
    """Yield notes for the user: what the time limit and a kill mean for each run, and which paths are outside the
    container's mounts."""
    hours = limit_hours(cluster_job.merge_into_array(works), site.slurm.hours)
    for work in works:
        yield from limit_notes(work, hours)
        yield from cluster_job.loss_notes(work)
        if site.slurm.container:
            mounted = [Path([*mount.split(":"), mount][1]) for mount in site.slurm.mounts]
            for path in (work.recipe, work.output, program_path(work, site.slurm)):
                if not any(path.is_relative_to(folder) for folder in mounted):
                    yield f"`{path}` is in no mount of the container; add its folder to `slurm.mounts` of the site file"


def _submit_script(job: str, works: Sequence[ClusterJob], site: Site) -> Iterator[str]:
    merged, several = cluster_job.merge_into_array(works), len(works) if len(works) > 1 else 0
    log, program = log_path(merged, site.slurm, several), program_path(merged, site.slurm)
    new = [folder for folder in (program.parent, *program.parent.parents) if not safe_read.path_kind(folder)]
    is_new_program = node_script.write_program(program)  # SLURM makes no folder for the log, and this does
    try:
        number = queue_job(job)
    except RecipeError:
        if is_new_program:
            shutil.rmtree(program, ignore_errors=True)
        with suppress(OSError):  # somebody else may have put a file there
            for folder in new:
                folder.rmdir()
        raise
    file = str(log).replace("%x", merged.name).replace("%j", number).replace("%A", number).replace("%a", "0")
    yield f"job {number} is queued: {shell_join(('squeue', '--job', number))}"
    yield f"log: tail -F {shell_quote(file)}"
    if merged.nodes > 1:
        nodes = shell_quote(file.removesuffix(".out"))
        yield f"logs of the nodes: tail -F {nodes}-*; the first failure: grep -A 8 'Root Cause' {nodes}-*"
    yield f"cancel: scancel {number}"


def _header_lines(works: Sequence[ClusterJob], hours: float) -> list[str]:
    """Return the comment lines at the head of the batch script: that `lmf-recipes submit` has written it, and for each
    run its machine, its predicted time and the time limit of the job. `hours` is this time limit."""
    lines = ["", "# Written by `lmf-recipes submit`. Change what you like; `sbatch FILE` takes it as well."]
    for work in works:
        time = _format_hours(work.hours) if work.hours else "not known"
        lines.append(f"# {escape_line(work.name)} on {work.machine}: predicted time {time}, limit {hours:.1f} h")
    if works[0].memory_gib is None:
        lines.append("# --mem=0 requests all memory of the node, because the prediction is unknown or close to it")
    return lines


def _run_lines(work: ClusterJob, name: str, site: Site, hours: float) -> list[str]:
    """Return bash lines that set the variables of one run: its command, the options of the program that runs the job,
    and the environment. `name` is the name of the job, which may be an array. `hours` is the time limit."""
    notice, wait_s = requeue_notice_s(work, hours), 60 * site.start_wait_minutes
    options = node_script.program_options(work, "SLURM", wait_s, notice)
    # Each of several nodes has a log of its own.
    options += [f"--log={_log_folder(work, site.slurm) / name}"] if work.nodes > 1 else []
    return [
        *node_script.array_lines("command", [*work.starter, str(work.recipe), *work.overrides]),
        *node_script.array_lines("job", options),
        *node_script.export_lines(work.environment),
        *node_script.site_export_lines(site),
    ]


def requeue_notice_s(work: ClusterJob, limit: float) -> int:
    """Return how many seconds before the time limit SLURM should warn the job: enough to write one more checkpoint, or
    600 if the time between checkpoints is not known. `limit` is the time limit in hours; the result is at most a third
    of it."""
    interval = work.checkpoint_interval_s
    is_known = interval is not None and not math.isinf(interval)
    notice = (interval or 0.0) + work.checkpoint_write_s + 60 if is_known else 600.0
    return int(min(notice, limit * _SECONDS_PER_HOUR / 3))


# The earliest that SLURM sends a signal, seconds before the limit (sbatch, --signal).
_MAX_NOTICE_SECONDS = 65535
_SITE_OPTIONS = ("partition", "account", "qos", "constraint", "reservation")


def directive_lines(work: ClusterJob, slurm: Slurm, hours: float, several: int = 0) -> list[str]:
    """Return the `#SBATCH` lines of the script: the options that the job needs, then the site's own. `hours` is the
    time limit, `several` the number of jobs in the array (0: no array)."""
    words = [shell_quote(word) for word in _sbatch_options(work, slurm, hours, several)]
    return [f"#SBATCH {word}" for word in (*words, *slurm.options)]


def _sbatch_options(work: ClusterJob, slurm: Slurm, hours: float, several: int) -> Iterator[str]:
    yield f"--job-name={work.name}"
    if several:
        yield f"--array=0-{several - 1}" + (f"%{slurm.array_limit}" if slurm.array_limit else "")
    yield from (f"--nodes={work.nodes}", "--ntasks-per-node=1")
    if resource := node_needs(work.device).slurm:
        # The site's form, else the name that most sites give to the vendor's devices.
        devices = (slurm.devices or f"{resource}:{{devices}}").replace("{devices}", str(work.devices))
        yield devices if devices.startswith("-") else f"--gres={devices}"
    yield "--exclusive" if slurm.exclusive else f"--cpus-per-task={work.cpus}"
    yield f"--mem={work.memory_gib}G" if work.memory_gib and not slurm.exclusive else "--mem=0"
    yield f"--time={slurm_time(hours)}"
    if work.can_resume:
        yield f"--signal=B:USR1@{min(requeue_notice_s(work, hours), _MAX_NOTICE_SECONDS)}"
    yield "--requeue" if work.can_resume else "--no-requeue"
    yield from ("--open-mode=append", f"--output={log_path(work, slurm, several)}")
    yield from (f"--{name}={value}" for name in _SITE_OPTIONS if (value := getattr(slurm, name)))


def slurm_time(hours: float) -> str:
    """Return a time limit in SLURM's format `days-hours:minutes:00`, rounded up to whole minutes."""
    minutes = max(math.ceil(round(hours * 60, 6)), 1)
    days, rest = divmod(minutes, 24 * 60)
    return (f"{days}-" if days else "") + f"{rest // 60:02}:{rest % 60:02}:00"


def log_path(work: ClusterJob, slurm: Slurm, several: int = 0) -> Path:
    """Return the path of the job's log file. The path contains SLURM's placeholders for the name and number of the job
    (`%x`, `%j`). `several` is the number of jobs in the array (0: no array)."""
    return _log_folder(work, slurm) / ("%x-%A_%a.out" if several else "%x-%j.out")


def _log_folder(work: ClusterJob, slurm: Slurm) -> Path:
    return safe_read.expand_home(slurm.logs).absolute() if slurm.logs else work.output.parent


def program_path(work: ClusterJob, slurm: Slurm) -> Path:
    """Return the folder with the program of the job, which all nodes see: beside the logs."""
    return _log_folder(work, slurm) / ".lmf-recipes" / node_script.program_name()


def start_lines(work: ClusterJob, slurm: Slurm) -> list[str]:
    """Return the bash lines that start the program of the job: on this node it calls srun, which starts it on every
    node."""
    options = ["--kill-on-bad-exit=1", *_container_options(work, slurm)]
    return [
        "# The program of the job, in readable Python (main.py lists the options): the lock of the output folder,",
        "# half-written checkpoints, how the nodes meet, and queueing again before the time limit",
        f"program={shell_quote(str(program_path(work, slurm)))}",
        'fail() { echo "lmf-recipes: $*" >&2; exit 1; }',
        '[ -r "$program" ] || fail "$(hostname) does not see $program; lmf-recipes submit --write FILE writes it"',
        'command -v python3 >/dev/null || fail "$(hostname) has no python3 (3.6 or later)"',
        "# On each node, which expands this itself",
        "# shellcheck disable=SC2016",
        'start=\'[ -r "$0" ] || {',
        '  echo "lmf-recipes: $SLURMD_NODENAME does not see $0; name a folder that all see as slurm.logs" >&2',
        "  exit 1",
        "}",
        'exec python3 "$0" node "$@"\'',
        'exec python3 "$program" batch "${job[@]}" -- \\',
        f"  srun {shell_join(options)} \\",
        '  bash -c "$start" "$program" "${job[@]}" -- "${command[@]}"',
    ]


def _container_options(work: ClusterJob, slurm: Slurm) -> list[str]:
    """Return the options of srun for a pyxis container; none if the site file names no container. Device files of some
    vendors are mounted by name. All devices of a server are mounted, because SLURM itself limits the job to its own
    devices."""
    if not slurm.container:
        return []
    vendor = node_script.container_mounts(work.device, work.device.server_devices or work.devices, work.nodes)
    mounts = [*slurm.mounts, *(f"{path}:{path}" for path in (*vendor.devices, *vendor.files))]
    return [f"--container-image={slurm.container}", *([f"--container-mounts={','.join(mounts)}"] if mounts else [])]
