"""A job, explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from validator.advise import changes, release, spare, timing
from validator.advise.explanation import Band, DeviceBand, Disk, Explanation, Released, Samples, Size, Target
from validator.advise.starting import Starting, starting
from validator.diagnostic import Diagnostic, RecipeError, Severity
from validator.job.job import GIB, Job
from validator.memory import Estimate, trainable_parameters
from validator.memory.terms import Term
from validator.trial.figures import Simulation


def explain(
    job: Job,
    overrides: Sequence[str] = (),
    diagnostics: Sequence[Diagnostic] = (),
    simulation: Simulation | None = None,
    energy: bool = False,
) -> Explanation:
    """Where every GiB and every second of the job goes; `diagnostics` are all findings in it, `simulation` what was
    simulated of it. `energy`: with what the boards draw.

    Raises RecipeError where model or machine is not known."""
    _require_known(job)
    stopped = any(each.severity is Severity.ERROR for each in diagnostics)
    settled = job.simulated and job.verdict in ("fits", "unknown")  # each change would take a simulation
    time = timing.time(job, energy)
    started = Starting() if stopped else starting(job, overrides)
    return Explanation(
        path=job.path,
        machine=_target(job),
        model=_size(job),
        verdict=job.verdict,
        enough_for_tokens=job.enough_for,
        device_gib=_device(job.device_memory),
        host_gib=_host(job.host_memory),
        disk_gib=_disk(job),
        time=time,
        cost=timing.cost(job, time),
        samples=Samples(job.samples, job.rows, job.guidance.whose(job.samples) if job.guidance else None),
        changes=[] if settled else timing.timed(job, changes.nearest(job)),
        spare=() if job.simulated else timing.timed(job, spare.spare(job)),
        command=started.commands,
        diagnostics=[each._replace(path=each.path or job.path) for each in diagnostics],
        left_out=_left_out(job, diagnostics),
        command_problem=started.problem,
        releases=list(_releases(job)),
        older=release.older(job),
        simulated=job.simulated,
        simulation=simulation,
    )


def _left_out(job: Job, diagnostics: Sequence[Diagnostic]) -> list[str]:
    """Keys that are not known, or whose value was refused and says nothing that it could stand for."""
    refused = (each.key for each in diagnostics if each.severity is Severity.ERROR and each.code.startswith("SCH"))
    return list(dict.fromkeys(key for key in refused if key and not job.has(key)))


def _require_known(job: Job) -> None:
    missing = None if job.model else "names no model; set `model_name_or_path`"
    problem = job.model_problem or job.machine_problem or missing
    if problem:
        raise RecipeError(f"{job.path}: {problem}")


def _target(job: Job) -> Target | None:
    if job.machine is None:
        return None
    nodes, devices, device = job.machine.nodes, job.machine.devices, job.machine.device
    return Target(nodes, devices, device.id, device.memory_gib, device.usable_gib, job.machine.host_ram_gib)


def _size(job: Job) -> Size | None:
    if job.model is None or job.workload is None:
        return None
    parameters = job.model.parameters
    return Size(job.model_name, parameters, trainable_parameters(job.model.arch, job.workload))


def _device(estimate: Estimate | None) -> DeviceBand | None:
    if estimate is None:
        return None
    low, expected, high = _gib(estimate.low), _gib(estimate.expected), _gib(estimate.high)
    return DeviceBand(_gib(estimate.allocated), low, expected, high, _terms(estimate.terms), list(estimate.gaps))


def _releases(job: Job) -> Iterator[Released]:
    """Nothing where all releases need the same, to a hundredth."""
    needs = [each.expected for each in job.device_memories.values()]
    if not needs or max(needs) < 1.01 * min(needs):
        return
    for version, each in job.device_memories.items():
        yield Released(version, _gib(each.low), _gib(each.expected), _gib(each.high), job.device_verdicts[version])


def _host(estimate: Estimate | None) -> Band | None:
    if estimate is None:
        return None
    return Band(_gib(estimate.low), _gib(estimate.expected), _gib(estimate.high), _terms(estimate.terms))


def _terms(terms: Mapping[Term, float]) -> dict[Term, float]:
    return {term: _gib(size) for term, size in sorted(terms.items(), key=lambda pair: -pair[1])}


def _disk(job: Job) -> Disk | None:
    return (
        None if job.disk is None else Disk(_gib(job.checkpoint), job.checkpoints.at_once, _gib(sum(job.disk.values())))
    )


def _gib(size: float) -> float:
    return size / GIB
