"""Checks of what stops a run before it starts: the recipe itself, its data, the model's folder, Ray, llamafactory-cli.

`train` and `calibrate` run the checks in PREFLIGHT, some of which stand in other modules. `doctor RECIPE` runs all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator import __version__, dataset
from validator.check import checking
from validator.check.suppression import IGNORED_AT_LAUNCH, Selection
from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.doctor.device_checks import check_device_memory
from validator.doctor.host_checks import check_disk_space
from validator.doctor.hub_checks import check_downloads
from validator.doctor.package_checks import check_required_packages
from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.finding import Report, Severity
from validator.knowledge import node_environment
from validator.launch import local_launch
from validator.machine import host
from validator.machine.installed_packages import find_installed
from validator.recipe import safe_read
from validator.recipe.recipe_file import Document
from validator.run import launch_command, model_files, trained_model
from validator.run.settings import RunSettings
from validator.wording import plural


def check_model_folder(run: RunSettings | None, _context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line if the folder of the model or of an adapter is incomplete. Without weights LLaMA-Factory stops;
    without a tokenizer transformers makes up an empty one, and the run ends well with nothing learned."""
    if run is None:
        return
    for path in run.args.words("adapter_name_or_path"):
        if not run.workspace.find(path) and (before := trained_model.find_earlier_adapter(run.workspace.recipe, path)):
            yield error(f"`{path}` does not exist yet; train `{before}` first", what="model")
    name = run.args.get("model_name_or_path")
    place = run.workspace.find(name) if isinstance(name, str) and name else None
    if place and safe_read.path_kind(place[0] / "config.json") == "file":
        scratch = run.args.flag("train_from_scratch")
        cut_off = () if scratch else model_files.incomplete_downloads(place[0])
        if parts := [*model_files.missing_files(place[0], scratch=scratch), *cut_off]:
            remedy = "get them from where the model comes from"
            yield error(f"`{name}` holds no {' and no '.join(parts)}; {remedy}", what="model")


def check_ray(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Ray, if USE_RAY is set: packages, and CPUs that this node can reserve."""
    if run is None or not launch_command.uses_ray():
        return
    cpus = host.usable_cpus(context.root)  # as Ray counts them
    lacking = [*_missing_ray_packages(run, context)]
    second = "torchrun" if node_environment.is_env_enabled("FORCE_TORCHRUN") else run.accelerate and "accelerate"
    if second:
        found = f"USE_RAY is set, and {second} starts the processes, each of which would start Ray"
        lacking.append(error(found))
    lacking += _missing_ray_cpus(run, cpus)
    yield from lacking
    if not lacking:
        reserved = f"of which {launch_command.RAY_CPUS} are reserved for each device"
        yield ok(f"{launch_command.declared_ray_cpus(run) or cpus} CPUs, {reserved}")


def _missing_ray_packages(run: RunSettings, context: CheckContext) -> Iterator[CheckResult]:
    """Yield the missing packages of Ray. Without `master_addr` LLaMA-Factory asks Ray's dashboard for the head node
    (train/trainer_utils.py, get_ray_head_node_ip), and stops with ServerUnavailable if only `ray` is installed (seen
    with 2.60)."""
    there = find_installed(context.site_packages).versions(["ray", "aiohttp-cors"])
    if "ray" not in there:
        found = "USE_RAY is set and the package is not installed"
        yield error(f'{found}: pip install "ray[default]"')
    elif "aiohttp-cors" not in there and not run.args.is_set("master_addr"):
        found = "ray is installed without its dashboard, which is asked for the head node"
        yield error(f'{found}: pip install "ray[default]", or set `master_addr`')


def _missing_ray_cpus(run: RunSettings, cpus: int) -> Iterator[CheckResult]:
    """Yield a line if this node has fewer CPUs than Ray reserves on it. A node that has joined a cluster may have
    promised more. Without a device LLaMA-Factory counts CPUs as devices and reserves ten each (tried: it waited)."""
    if run.on_cpu:
        reserved = "each counts as a device, for which Ray reserves 10"
        yield error(f"on CPUs alone {reserved}: it would wait for ever; unset USE_RAY")
    devices = run.machine.devices if run.machine and not run.on_cpu else 0
    wanted = launch_command.RAY_CPUS * devices
    if cpus >= wanted or launch_command.declared_ray_cpus(run) is not None:  # a promise that is too small is PAR206
        return
    reserved = f"{launch_command.RAY_CPUS} are reserved for each of {devices} {plural(devices, 'device')}"
    found = f"this node has {cpus} CPUs, and {reserved}"
    if launch_command.joins_ray_cluster(run):
        yield warning(f"{found}: it has to join with `ray start --num-cpus {wanted}`")
    else:
        remedy = f"set `ray_init_kwargs: {{num_cpus: {wanted}}}`, or unset USE_RAY"
        yield error(f"{found}: Ray would wait for ever; {remedy}")


def check_start(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """What stops a run before its start: missing packages, the model's folder, llamafactory-cli."""
    if run is None:
        return
    yield from check_required_packages(run, context)
    yield from _check_model(run, context)
    if "llamafactory" not in find_installed(context.site_packages).all_versions:
        return  # check_packages tells of it
    try:
        prepared = local_launch.build_launch(run, (), context.allocation.device_env if context.allocation else {})
        # Before a run is queued nothing tells of this node's place among several, and it is not asked for; nor is it
        # if the job's script writes the rank into the command.
        elastic = "RDZV_ID" in context.environment and prepared.launch.launcher != "accelerate"
        known = "NODE_RANK" in context.environment or elastic
        local_launch.check_launchable(prepared.launch, prepared.launch.nodes if known else 1)
    except RecipeError as err:
        yield error(str(err), what="start")


def _check_model(run: RunSettings, context: CheckContext) -> Iterator[CheckResult]:
    """Yield what the model's folder or download lacks, or else where it is. check_hub asks for missing downloads."""
    lacking = [*check_model_folder(run, context), *check_downloads(run, context)]
    yield from lacking
    name = str(run.args.get("model_name_or_path"))
    place = run.workspace.find(name)
    there = place[0] if place else next(iter(model_files.cached_folders(run, name)), None)
    if there and not lacking:
        yield ok(f"`{name}` lies in {there}" if str(there) != name else f"`{name}` is there", what="model")


def judge_recipe(
    document: Document, machine: str | None, host_ram_gib: float | None, ignore: Sequence[str] = ()
) -> Report:
    """Return what `check` finds in the recipe for a run here, without the rules to `ignore` and those that other checks
    before a start take the place of."""
    report = Report(__version__, [checking.check_document(document, machine, host_ram_gib, guarded=False)])
    Selection(ignore=(*IGNORED_AT_LAUNCH.ignore, *ignore)).apply(report)
    return report


def check_recipe(document: Document, machine: str | None, host_ram_gib: float | None) -> Iterator[CheckResult]:
    """Yield each error, and the number of warnings."""
    # check_main_memory (host_checks.py) asks for the main memory of this machine, and what is free of it.
    report = judge_recipe(document, machine, host_ram_gib, ("FIT003", "FIT004"))
    errors = [each for each in report.files[0].diagnostics if each.severity is Severity.ERROR]
    yield from (error(f"{each.message} [{each.code}]", what="recipe") for each in errors)
    warnings = report.count(Severity.WARNING)
    if warnings:
        told = f"`lmf-recipes check {shell_quote(document.path)}` shows them" if document.path != "-" else ""
        yield ok(f"`check` has {warnings} {plural(warnings, 'warning')}", "", told, what="recipe")
    elif not errors:
        yield ok("nothing is wrong with it", what="recipe")


def check_data(run: RunSettings) -> Iterator[CheckResult]:
    """Yield what `data` says of the data sets in short, as `train` does. This starts processes for some data sets, so
    that it cannot be one of the checks that run in threads."""
    told, stops = dataset.summarize_data(run)
    state: State = "error" if stops else "ok"
    yield from (result(state, words.removeprefix("data: "), what="data") for words in told)


# What `train` and `calibrate` ask before a start, in their order; an error stops the run. The first are asked only if
# the run is for this machine.
PREFLIGHT_OF_MACHINE = (check_device_memory, check_disk_space)
PREFLIGHT = (check_model_folder, check_required_packages, check_ray, check_downloads)
