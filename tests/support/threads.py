"""The machines of tests/fixtures/threads.yaml: laid out, and asked by `check` and `doctor`."""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Mapping
from contextlib import chdir
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml

from support import installed_packages, network_roots
from support.recordings import HIDING, RECORDED
from validator.check.checking import check_files
from validator.commands import doctor
from validator.doctor import diagnosis, host_checks
from validator.doctor.check_result import CheckContext
from validator.doctor.diagnosis import Diagnosis
from validator.machine import driver, host
from validator.machine.installed_packages import InstalledPackages
from validator.output import findings
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import RunSettings, resolve

ROOT = Path(__file__).parents[2]
MODEL = "Qwen/Qwen2.5-7B-Instruct"
USUAL = {
    "stage": "sft", "do_train": True, "finetuning_type": "lora", "lora_target": "all", "dataset": "alpaca_gpt4_en",
    "template": "qwen", "cutoff_len": 1024, "output_dir": "saves/case", "save_total_limit": 2, "bf16": True,
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "learning_rate": 1.0e-4,
}  # fmt: skip
_UNSET = (
    *HIDING, "NPROC_PER_NODE", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "CUDA_HOME", "CUDA_PATH", "CXX",
    "NNODES", "NODE_RANK", "RANK", "MASTER_ADDR", "RDZV_ID", "USE_RAY", "FORCE_TORCHRUN", "RAY_ADDRESS",
    "DISABLE_VERSION_CHECK", "NCCL_SHM_DISABLE", "HF_ENDPOINT",
)  # fmt: skip
_MIB = 1 << 20
# What threads tell of; of folders and hubs they tell nothing.
_ASKED = (
    "devices", "health", "main memory", "/dev/shm", "limits", "output folder", "packages", "torch", "compiled packages",
    "CANN", "operators", "stale lock", "hub lock", "Ray", "meeting", "interfaces", "InfiniBand", "proxy",
)  # fmt: skip
_statvfs = os.statvfs


def read() -> list[dict[str, Any]]:
    """The threads, in their order."""
    threads: list[dict[str, Any]] = yaml.load(
        (ROOT / "tests" / "fixtures" / "threads.yaml").read_text("utf-8"), yaml.CSafeLoader
    )
    return threads


def said(machine: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """What each command prints on a machine, which is laid out in the folder; blanks are one."""
    path = [folder / "bin", *([RECORDED / machine["recording"]] if "recording" in machine else [])]
    environment = {"PATH": ":".join(map(str, path)), "HOME": str(folder), **machine.get("environment", {})}
    work = folder / "work"
    work.mkdir(parents=True)
    for shared in ("data", "deepspeed"):
        (work / shared).symlink_to(ROOT / shared)
    with (
        chdir(work),
        patch.dict(os.environ, environment),
        patch.object(driver, "_EXTRA_FOLDERS", ()),
        patch.object(os, "statvfs", partial(_shared, machine.get("shm_mib", 16384))),
        patch.object(resource, "getrlimit", lambda _kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
        patch.object(diagnosis, "CHECKS", {name: diagnosis.CHECKS[name] for name in _ASKED}),
        patch.object(host_checks, "_measure_write_rate", lambda _folder: 5e9),
        patch.object(host, "free_disk_gib", lambda _folder: machine.get("free_gib", 4000.0)),
        patch.object(host, "usable_cpus", lambda _root=None: machine.get("cpus", 256)),
        patch.object(InstalledPackages, "versions", lambda _self, names: dict.fromkeys(names, "1")),
        patch.object(socket, "gethostbyname", lambda _name: "10.0.0.7"),
    ):
        for name in _UNSET:
            if name not in environment:
                os.environ.pop(name, None)
        text = recipe(machine["recipe"]) if "recipe" in machine else None
        checked = {"check": findings.format_findings(check_files([parse_recipe("recipe.yaml", text)]))} if text else {}
        lines = tuple(diagnosis.run_checks(*_run(machine, text, _node(machine, folder))))
        shown = {**checked, "doctor": doctor.format_diagnosis(Diagnosis("node", None, None, lines, 0, 0))}
        return {command: re.sub(" +", " ", words) for command, words in shown.items()}


def _run(machine: Mapping[str, Any], text: str | None, node: CheckContext) -> tuple[RunSettings | None, CheckContext]:
    """The run, and the node with the devices that are recorded; where none are, none are asked about."""
    if text is None:
        return None, node
    document = parse_recipe("recipe.yaml", text)
    if "recording" not in machine:
        return resolve(document), node
    job, there = diagnosis.run_and_context(document, machine["recipe"]["machine"])
    return job, there._replace(root=node.root, environment=node.environment, site_packages=node.site_packages)


def recipe(facts: Mapping[str, Any]) -> str:
    """The recipe that a thread tells of, with usual settings beside."""
    header = {"machine": facts["machine"], "host_ram_gib": facts.get("host_ram_gib", 1024)}
    if "samples" in facts:
        header |= {"samples": facts["samples"], "lengths": 1000}
    block = "".join(f"# {key}: {value}\n" for key, value in header.items())
    keys = {"model_name_or_path": facts.get("model", MODEL), **USUAL, **facts.get("settings", {})}
    return f"# /// recipe\n{block}# ///\n{yaml.safe_dump(keys, sort_keys=False)}"


def _node(machine: Mapping[str, Any], folder: Path) -> CheckContext:
    """The files that checks read. What a thread does not tell of is there and sound."""
    root = folder / "root"
    available = machine.get("available_gib", 2000)
    installed_packages.write(
        root / "proc/meminfo", f"MemTotal: {available << 20} kB\nMemAvailable: {available << 20} kB\n"
    )
    network_roots.interfaces(root, machine.get("interfaces", {"eth0": {"networks": ["0.0.0.0/0"]}}))
    network_roots.adapters(root, machine.get("adapters", {}))
    for tool in ("c++", "ninja", *(["nvcc"] if machine.get("nvcc", True) else [])):
        installed_packages.write(folder / "bin" / tool, "")
        (folder / "bin" / tool).chmod(0o755)
    if "lock" in machine:
        lock = folder / ".cache/torch_extensions/py310_cu118" / machine["lock"] / "lock"
        installed_packages.write(lock, "")
        os.utime(lock, (0, 0))
    if "driver" in machine:
        installed_packages.gpu(folder / "bin", machine["driver"], [machine["capability"]])
    compared = "".join(f'    check_version("{one}")\n' for one in machine.get("compared", ()))
    files = {"llamafactory/extras/misc.py": f"def check_dependencies() -> None:\n{compared or '    pass'}\n"}
    packages = {"llamafactory": "0.9.5", **machine.get("packages", {})}
    return CheckContext(
        root,
        os.environ,
        site_packages=installed_packages.site(folder / "site", packages, machine.get("requires"), files),
    )


def _shared(mib: int, path: str | Path) -> Any:
    """Of /dev/shm what the thread tells, of other folders the truth."""
    if not str(path).endswith("dev/shm"):
        return _statvfs(path)
    return SimpleNamespace(f_frsize=_MIB, f_bavail=mib, f_blocks=mib)
