"""What `train --dry-run` says of a run before its command: the verdict on memory, time, downloads, where the result
will lie, what was verified, and whether the start would be refused here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator.knowledge import hub_caches, models, node_environment
from validator.launch.device_allocation import DeviceAllocation
from validator.launch.local_launch import LocalLaunch
from validator.physics.estimate import GIB, DiskTerm
from validator.run import calibration
from validator.run.model_files import cached_folders, hub_datasets, hub_models, is_dataset_cached, offline_variable
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.training_time import predict_training_time
from validator.wording import distinguishing_decimals, format_duration, format_duration_range, plural

_NAME_WIDTH = 12  # of the longest name of a line
_SMALLEST_GIB = 0.05  # that is shown


def start_summary(
    run: RunSettings, prepared: LocalLaunch, target: DeviceAllocation, refusals: Sequence[str], elsewhere: bool
) -> list[str]:
    """Return the lines of the summary. `refusals`: why the start would be refused on this machine. `elsewhere`: True if
    the user named another machine to judge for, so that what is missing here does not count."""
    rows = {
        "memory": _memory(run),
        "time": _time(run),
        "download": "; ".join(_downloads(run)) or "nothing",
        "result": _result(run, prepared),
        "verified": ", ".join(_verified(run, target, elsewhere)),
        "not verified": ", ".join(_not_verified(run, target, elsewhere)),
        "environment": _environment(run, prepared),
        "start": _start(refusals, elsewhere),
    }
    return [f"{name:<{_NAME_WIDTH}}  {text}" for name, text in rows.items() if text]


def _memory(run: RunSettings) -> str:
    """Return the verdict, and what a device and a node need and have."""
    prediction, machine = predict(run), run.machine
    device, host = prediction.device_memory, prediction.host_memory
    if machine is None or device is None:
        return "not judged: model or machine is not known"
    usable = machine.device.usable_gib
    digits = distinguishing_decimals(usable, device.expected / GIB, device.high / GIB)
    has = f", {usable:.{digits}f} usable" if usable else ""
    band = f"{device.low / GIB:.{digits}f} to {device.high / GIB:.{digits}f}"
    text = f"{prediction.verdict}: {device.expected / GIB:.{digits}f} GiB per device ({band}{has})"
    return f"{text}, {host.expected / GIB:,.1f} of host memory per node" if host else text


def _time(run: RunSettings) -> str:
    time = predict_training_time(run, correction=calibration.time_correction(str(run.machine)))
    if time is None:
        return "not predicted: model, machine or its rates are not known" if run.task.trains else ""
    if time.run is None:
        return f"{format_duration(time.step.expected)} a step; the number of samples is not known"
    steps = f", {time.steps:,} {plural(time.steps, 'step')}" if time.steps else ""
    band = format_duration_range(time.run.low, time.run.high)
    predicted = f"{format_duration(time.run.expected)} expected ({band}){steps}"
    return "; ".join([predicted, *(f"assumed: {each}" for each in time.assumed)])


def _downloads(run: RunSettings) -> Iterator[str]:
    """Yield each model and data set that is not in the cache, the base model with its size, and where it goes."""
    if offline_variable():
        return
    hub = "ModelScope" if node_environment.is_env_enabled("USE_MODELSCOPE_HUB") else "Hugging Face"
    disk = predict(run).disk
    for name in hub_models(run):
        if not any(cached_folders(run, name)):
            is_base = name == run.args.get("model_name_or_path")
            size = f", {disk[DiskTerm.BASE] / GIB:.1f} GiB" if disk and is_base and disk[DiskTerm.BASE] else ""
            folder = f" into {hub_caches.hub_cache(run.hub_source[1])}" if hub == "Hugging Face" else ""
            licence = models.gated_licence(name) if hub == "Hugging Face" else ""
            gate = f", gated: accept its licence ({licence}) on its page and `hf auth login`" if licence else ""
            yield f"`{name}`{size} from {hub}{folder}{gate}"
    for name in hub_datasets(run):
        if not is_dataset_cached(name, run.hub_source[1]):
            yield f"data set `{name}`"


def _result(run: RunSettings, prepared: LocalLaunch) -> str:
    """Return where the result will lie, and how large the folder grows."""
    disk = predict(run).disk
    written = (disk[DiskTerm.WEIGHTS] + disk[DiskTerm.OPTIMIZER]) / GIB if disk else 0.0
    return f"{prepared.output}, up to {written:,.1f} GiB" if written >= _SMALLEST_GIB else str(prepared.output)


def _verified(run: RunSettings, target: DeviceAllocation, elsewhere: bool) -> Iterator[str]:
    yield "keys and values"
    yield "paths"
    if any(dataset.files for dataset in run.data.datasets):
        yield "rows of local data"
    if not elsewhere:
        yield "packages of this Python"
    if target.accelerators:
        yield from ("devices and their free memory", "free disk")


def _not_verified(run: RunSettings, target: DeviceAllocation, elsewhere: bool) -> Iterator[str]:
    if elsewhere:
        yield f"packages of {run.machine}"
    if not target.accelerators and not run.on_cpu:
        yield f"devices and free disk{f' of {run.machine}' if run.machine else ''}"
    if any(_downloads(run)):
        yield "whether the hub answers (`lmf-recipes doctor` asks it)"


def _environment(run: RunSettings, prepared: LocalLaunch) -> str:
    """Return why the command of this recipe, and not of each, sets how long processes wait for each other."""
    waiting = node_environment.node_needs(run.machine.device).waiting if run.machine else None
    is_set = waiting and waiting.name in prepared.launch.env
    return f"{waiting.name} follows the recipe's `ddp_timeout`" if waiting and is_set else ""


def _start(refusals: Sequence[str], elsewhere: bool) -> str:
    if not refusals:
        return "nothing that was verified stands in its way"
    return f"{'here it would be refused' if elsewhere else 'would be refused'}: {'; '.join(refusals)}"
