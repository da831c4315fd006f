"""Checks for what would stop a run before it starts: errors in the recipe or its data, an incomplete model folder, Ray,
a missing llamafactory-cli. `train` and `calibrate` run some of these checks, together with those of packages,
downloads, device memory and disk space (`PREFLIGHT`). `doctor RECIPE` runs all checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from validator import __version__, dataset
from validator.check import checking
from validator.check.suppression import IGNORED_AT_LAUNCH
from validator.doctor import ascend_software, torch_build
from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.doctor.device_checks import check_device_memory
from validator.doctor.host_checks import check_disk_space
from validator.doctor.hub_checks import check_downloads
from validator.doctor.package_checks import check_model_support, check_npu_quantization, check_required_packages
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
    """Yield an error if the local folder of the model is incomplete, or if an adapter's folder does not exist yet
    because another recipe must train the adapter first. Without weights LLaMA-Factory stops. Without a tokenizer
    transformers creates an empty tokenizer, and the run ends without an error but learns nothing."""
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
    """Ray, if USE_RAY is set: its packages, and the CPUs that this node can reserve.

    Yield an error or a warning for each problem, or the number of CPUs if there is none. Nothing is yielded if USE_RAY
    is not set."""
    if run is None or not launch_command.uses_ray():
        return
    cpus = host.usable_cpus(context.root)  # as Ray counts them
    problems = [*_missing_ray_packages(run, context)]
    second = "torchrun" if node_environment.is_env_enabled("FORCE_TORCHRUN") else run.accelerate and "accelerate"
    if second:
        found = f"USE_RAY is set, and {second} starts the processes, each of which would start Ray"
        problems.append(error(found))
    problems += _missing_ray_cpus(run, cpus)
    yield from problems
    if not problems:
        reserved = f"of which {launch_command.RAY_CPUS} are reserved for each device"
        yield ok(f"{launch_command.declared_ray_cpus(run) or cpus} CPUs, {reserved}")


def _missing_ray_packages(run: RunSettings, context: CheckContext) -> Iterator[CheckResult]:
    """Yield an error if Ray or its dashboard is not installed. Without `master_addr` LLaMA-Factory asks Ray's dashboard
    for the head node (train/trainer_utils.py, get_ray_head_node_ip), and stops with ServerUnavailable if only `ray` is
    installed (seen with 2.60)."""
    versions = find_installed(context.site_packages).versions(["ray", "aiohttp-cors"])
    if "ray" not in versions:
        found = "USE_RAY is set and the package is not installed"
        yield error(f'{found}: pip install "ray[default]"')
    elif "aiohttp-cors" not in versions and not run.args.is_set("master_addr"):
        found = "ray is installed without its dashboard, which is asked for the head node"
        yield error(f'{found}: pip install "ray[default]", or set `master_addr`')


def _missing_ray_cpus(run: RunSettings, cpus: int) -> Iterator[CheckResult]:
    """Yield a result if this node has fewer CPUs (`cpus`) than Ray reserves for the run, ten for each device. The
    result is only a warning if the node joins a Ray cluster, where it may have declared more CPUs than it has. A run on
    CPUs is an error: LLaMA-Factory counts each CPU as a device and reserves ten CPUs for each (tried: it waited)."""
    if run.on_cpu:
        reserved = "each counts as a device, for which Ray reserves 10"
        yield error(f"on CPUs alone {reserved}: it would wait for ever; unset USE_RAY")
    devices = run.machine.devices if run.machine and not run.on_cpu else 0
    needed_cpus = launch_command.RAY_CPUS * devices
    if (
        cpus >= needed_cpus or launch_command.declared_ray_cpus(run) is not None
    ):  # a promise that is too small is PAR206
        return
    reserved = f"{launch_command.RAY_CPUS} are reserved for each of {devices} {plural(devices, 'device')}"
    found = f"this node has {cpus} CPUs, and {reserved}"
    if launch_command.joins_ray_cluster(run):
        yield warning(f"{found}: it has to join with `ray start --num-cpus {needed_cpus}`")
    else:
        remedy = f"set `ray_init_kwargs: {{num_cpus: {needed_cpus}}}`, or unset USE_RAY"
        yield error(f"{found}: Ray would wait for ever; {remedy}")


def check_devices_software(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield an error if torch, torch_npu or CANN would not use the devices of this machine: LLaMA-Factory would train
    on the processors, or stop. Nothing is yielded if the run gets no device of this machine."""
    machine = context.allocation.this_machine if context.allocation else None
    if run and machine and not run.on_cpu:
        checks = (torch_build.check_torch, ascend_software.check_torch_npu, ascend_software.check_cann)
        lines = (line for check in checks for line in check(run, context._replace(machine=machine)))
        yield from (line for line in lines if line.state == "error")


def check_start(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """What stops a run before its start: missing packages, releases without the model, its folder, llamafactory-cli.

    Yield an error for each problem, and a result that says where the model is. Without a recipe nothing is yielded."""
    if run is None:
        return
    yield from check_required_packages(run, context)
    yield from check_npu_quantization(run, context)
    yield from check_model_support(run, context)
    yield from _check_model(run, context)
    if "llamafactory" not in find_installed(context.site_packages).all_versions:
        return  # check_packages tells of it
    try:
        prepared = local_launch.build_launch(run, (), context.allocation.device_env if context.allocation else {})
        # Before a run is queued nothing tells of this node's place among several, and it is not asked for; nor is it
        # if the job's script writes the rank into the command.
        elastic = "RDZV_ID" in context.environment and prepared.launch.launcher != "accelerate"
        has_rank = "NODE_RANK" in context.environment or elastic
        local_launch.check_launchable(prepared.launch, prepared.launch.nodes if has_rank else 1)
    except RecipeError as err:
        yield error(str(err), what="start")


def _check_model(run: RunSettings, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a result for each fault of the model's folder or download, or, if there is no fault, the folder that holds
    the model. Models that are not downloaded yet are left to check_hub."""
    problems = [*check_model_folder(run, context), *check_downloads(run, context)]
    yield from problems
    name = str(run.args.get("model_name_or_path"))
    place = run.workspace.find(name)
    folder = place[0] if place else next(iter(model_files.cached_folders(run, name)), None)
    if folder and not problems:
        yield ok(f"`{name}` lies in {folder}" if str(folder) != name else f"`{name}` is there", what="model")


def judge_recipe(
    document: Document, machine: str | None, host_ram_gib: float | None, ignore: Sequence[str] = ()
) -> Report:
    """Return the report of `check` on the recipe for a run on this machine. `machine` and `host_ram_gib` replace the
    recipe's own machine; None keeps it. The report leaves out the rules in `ignore`, and the rules that other checks
    before a start replace (IGNORED_AT_LAUNCH)."""
    passed = (*document.options.ignore, *IGNORED_AT_LAUNCH, *ignore)
    document = replace(document, options=document.options._replace(ignore=passed))
    return Report(__version__, [checking.check_document(document, machine, host_ram_gib, guarded=False)])


def check_recipe(document: Document, machine: str | None, host_ram_gib: float | None) -> Iterator[CheckResult]:
    """Yield an error for each error that `check` finds in the recipe, and one result with the number of warnings.
    `machine` and `host_ram_gib` replace the recipe's own machine; None keeps it."""
    # check_main_memory (host_checks.py) asks for the main memory of this machine, and what is free of it.
    report = judge_recipe(document, machine, host_ram_gib, ("FIT003", "FIT004"))
    errors = [each for each in report.files[0].diagnostics if each.severity is Severity.ERROR]
    yield from (error(f"{each.message} [{each.code}]", what="recipe") for each in errors)
    warnings = report.count(Severity.WARNING)
    if warnings:
        command = f"`lmf-recipes check {shell_quote(document.path)}` shows them" if document.path != "-" else ""
        yield result("note", f"`check` has {warnings} {plural(warnings, 'warning')}", "", command, what="recipe")
    elif not errors:
        yield ok("nothing is wrong with it", what="recipe")


def check_data(run: RunSettings) -> Iterator[CheckResult]:
    """Yield the summary of the recipe's data sets in a few lines, as `train` prints it; an error if the run would stop
    because of its data. Reading some data sets starts processes, so this check cannot run in a thread like the
    others."""
    sentences, stops = dataset.summarize_data(run)
    state: State = "error" if stops else "ok"
    yield from (result(state, words.removeprefix("data: "), what="data") for words in sentences)


# What `train` and `calibrate` ask before a start, in their order; an error stops the run. The first are asked only if
# the run is for this machine.
PREFLIGHT_OF_MACHINE = (check_device_memory, check_disk_space)
PREFLIGHT = (
    *(check_model_folder, check_devices_software, check_required_packages, check_npu_quantization, check_model_support),
    *(check_ray, check_downloads),
)
