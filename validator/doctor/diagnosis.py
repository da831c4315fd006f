"""Lists all checks of doctor, runs them at the same time with a time limit, and builds the diagnosis of this machine,
with or without a recipe."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from validator.doctor import (
    ascend_software,
    deepspeed_ops,
    device_checks,
    host_checks,
    hub_checks,
    network_checks,
    package_checks,
    start_checks,
    torch_build,
)
from validator.doctor.check_result import Check, CheckContext, CheckResult
from validator.errors import RecipeError
from validator.knowledge import devices, releases
from validator.launch.device_allocation import DeviceAllocation, allocate_devices, allocate_for_machine
from validator.machine.driver import DriverError
from validator.machine.installed_packages import find_installed
from validator.machine.this_machine import detect_machine
from validator.recipe.recipe_file import Document, with_missing_header_fields
from validator.run.settings import RunSettings, resolve

CHECKS: dict[str, Check] = {
    "devices": device_checks.check_devices,
    "driver": device_checks.check_driver,
    "device files": device_checks.check_device_files,
    "health": device_checks.check_health,
    "processes": device_checks.check_processes,
    "processors": host_checks.check_processors,
    "main memory": host_checks.check_main_memory,
    "/dev/shm": host_checks.check_shared_memory,
    "limits": host_checks.check_limits,
    "output folder": host_checks.check_disk,
    "packages": package_checks.check_packages,
    "torch": torch_build.check_torch,
    "compiled packages": torch_build.check_compiled_packages,
    "torch_npu": ascend_software.check_torch_npu,
    "CANN": ascend_software.check_cann,
    "operators": deepspeed_ops.check_operators,
    "stale lock": deepspeed_ops.check_build_locks,
    "hub lock": hub_checks.check_download_locks,
    "start": start_checks.check_start,
    "hub": hub_checks.check_hub,
    "Ray": start_checks.check_ray,
    "meeting": network_checks.check_meeting,
    "interfaces": network_checks.check_interfaces,
    "InfiniBand": network_checks.check_infiniband,
    "proxy": hub_checks.check_proxy,
}
# What these say holds for the machine that doctor runs on, and nothing of another one that the run is for.
_OF_THIS_MACHINE = (
    *("driver", "device files", "health", "processes"),
    *("processors", "main memory", "/dev/shm", "limits", "output folder", "meeting", "interfaces", "InfiniBand"),
)
# Seconds for all checks, which run at once: nvidia-smi alone may take 30, and a dead network file system answers never.
_TIMEOUT_SECONDS = 40.0


def run_checks(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Run all checks at the same time, and yield their results in the order of `CHECKS`. A check that raises an error
    or exceeds the time limit yields a warning instead. The thread of a check that exceeds the limit keeps running in
    the background. `run` is None if doctor has no recipe. What is only of this machine is left out if the run is for
    another one."""
    pool = ThreadPoolExecutor(len(CHECKS))
    left_out = _not_looked_at(context)
    running = {
        name: pool.submit(lambda check: [*check(run, context)], check)
        for name, check in CHECKS.items()
        if name not in left_out
    }
    wait(running.values(), _TIMEOUT_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    for name, future in running.items():
        if not future.done():
            yield CheckResult("warning", name, f"no answer within {_TIMEOUT_SECONDS:.0f} seconds")
            continue
        try:
            yield from (line._replace(what=line.what or name) for line in future.result())
        except (RecipeError, OSError, ValueError) as err:
            yield CheckResult("warning", name, f"could not be looked at: {err}")


def _not_looked_at(context: CheckContext) -> tuple[str, ...]:
    """Return the names of the checks that say nothing here, because the recipe, or `--machine`, names devices and this
    machine shows no sign of any."""
    is_elsewhere = context.recipe_machine is not None and device_checks.shows_no_device(context)
    return _OF_THIS_MACHINE if is_elsewhere else ()


@dataclass(frozen=True)
class Diagnosis:
    """The results of all checks on the node `host`. `recipe` is the path of the recipe and `machine` the machine of its
    run; both are None if doctor has no recipe. `errors` and `warnings` count the lines of these states.
    `not_looked_at`: what cannot be seen from here, as the devices are of another machine."""

    host: str
    recipe: str | None
    machine: str | None
    lines: tuple[CheckResult, ...]
    errors: int
    warnings: int
    not_looked_at: tuple[str, ...] = ()


def examine(document: Document | None, machine: str | None = None) -> Diagnosis:
    """Run all checks on this machine and return the diagnosis. With a recipe, the checks assume the devices that
    `train` would give the run. `machine` is the value of `--machine`: the machine that the run is meant for, or,
    without a recipe, the machine that this one should be."""
    lines: list[CheckResult] = []
    if document is None:
        assumed = devices.parse_machine(machine) if machine else None
        run, context = None, with_devices(CheckContext(recipe_machine=assumed))
    else:
        if machine is None:
            document = with_missing_header_fields(document, find_installed().versions(releases.ENGINE_FIELDS))
        run, context = run_and_context(document, machine)
        allocation = context.allocation or DeviceAllocation()
        target = allocation.machine or machine
        if context.allocation and context.machine and run.machine and not run.on_cpu:
            # As many of the devices here as the run takes, of whatever kind.
            target = f"{run.machine.nodes}x{run.machine.devices}x{context.machine.device}"
        lines += start_checks.check_recipe(document, target, allocation.host_ram_gib)
        lines += start_checks.check_data(run)
    lines += run_checks(run, context)
    states = [line.state for line in lines]
    path = document.path if document else None
    name = str(run.machine) if run and run.machine else None
    errors, warnings = states.count("error"), states.count("warning")
    return Diagnosis(platform.node(), path, name, tuple(lines), errors, warnings, _not_looked_at(context))


def run_and_context(document: Document, machine: str | None) -> tuple[RunSettings, CheckContext]:
    """Return the run as it would run on this machine, and the context for the checks. The context holds the devices
    that the run gets, or the reason why the run gets none. `machine` is the machine that the user names (None: the
    recipe's own)."""
    run = resolve(document, machine)
    context = CheckContext(recipe_machine=None if run.on_cpu else run.machine)
    try:
        allocation = allocate_for_machine(machine, run) if machine else allocate_devices(run, dry=False)
    except RecipeError as err:
        return run, with_devices(context._replace(allocation_error=str(err)))
    local_run = resolve(document, allocation.machine, allocation.host_ram_gib)
    context = context._replace(allocation=allocation, machine=allocation.this_machine)
    return local_run, context if allocation.this_machine else with_devices(context)


def with_devices(context: CheckContext) -> CheckContext:
    """Return the context with the devices of this machine added. If the driver's tool fails, `driver_error` is its
    message instead."""
    try:
        return context._replace(machine=detect_machine())
    except DriverError as err:
        return context._replace(driver_error=err.finding)
