"""Peak memory of real LLaMA-Factory runs on the GPU of this machine, one row of a CSV file per cell of the grid.

    python -m benchmarks gpu measure --out benchmarks/evidence/gpu/h200.csv                 # the whole grid, resumable
    python -m benchmarks gpu measure --out x.csv --only method=full model=qwen3-4b      # a part of it
    python -m benchmarks gpu measure --tiny --out x.csv  # dry run: tiny models on the CPU

Needs an otherwise idle NVIDIA GPU with bf16, this package, torch, llamafactory 0.9.5 and, for the cells that use them,
bitsandbytes, liger-kernel, deepspeed, galore-torch. Nothing is downloaded: weights and data are random. Cells already
in the file are skipped; a cell that runs out of memory or fails is a row too. Each cell runs in a process of its own,
forked from one that has imported everything but has not touched the GPU. With `--workers 5` cells load side by side, as
far as their predicted memory goes, and train one at a time, so that the seconds of a step are those of a GPU of its
own; what the whole machine or the whole device uses is then left out, but for cells that offload, which run alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from multiprocessing.context import ForkProcess, SpawnProcess
from pathlib import Path
from typing import Any

import records
from accuracy_memory.own_rows import predicted_gib
from gpu.cells import DEFAULTS, Cell, cells

FIGURES = [
    "status", "stored_parameters", "trainable_parameters", "loaded_gib", "load_peak_gib", "train_peak_gib",
    "peak_allocated_gib", "peak_reserved_gib", "context_mib", "device_idle_mib", "device_used_mib",
    "process_used_mib", "host_rss_peak_gib", "host_used_peak_gib", "pinned_peak_gib", "seconds_per_step", "device",
    "driver", "versions", "taken", "error",
]  # fmt: skip
PACKAGES = [
    "torch", "llamafactory", "transformers", "peft", "trl", "accelerate", "bitsandbytes", "deepspeed", "liger-kernel",
    "galore-torch", "triton",
]  # fmt: skip


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file to append to")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="KEY=VALUE", help="take only the cells with these values"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no cell after this many seconds")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which one cell is ended (default 120)")
    parser.add_argument("--workers", type=int, default=1, help="cells that load side by side (default 1)")
    parser.add_argument("--start", choices=["fork", "spawn"], default="fork", help="spawn imports anew for every cell")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="file for what the cells print")
    parser.add_argument(
        "--tiny", action="store_true", help="4-layer models of 64 tokens on the CPU: tries the harness only"
    )
    parser.add_argument("--list", action="store_true", help="print the cells and stop")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    wanted = dict(pair.split("=", 1) for pair in chosen.only)
    done = recorded(chosen.out)
    todo = [c for c in cells() if key(c) not in done and all(str(c[k]) == v for k, v in wanted.items())]
    if chosen.list:
        print(*(label(cell) for cell in todo), sep="\n")
        return
    began = time.monotonic()
    machine = warm(chosen.start, chosen.tiny)
    free_gib = predicted_room_gib(chosen.tiny)
    with tempfile.NamedTemporaryFile() as turn:  # held by the cell that trains
        waiting, running, number = list(todo), list[Running](), 0
        while running or waiting:
            if time.monotonic() - began > chosen.seconds:
                waiting.clear()
            while waiting and len(running) < chosen.workers:
                need = predicted_gib(waiting[0])
                if running and need + sum(other.need_gib for other in running) > free_gib:
                    break
                running.append(start(waiting.pop(0), need, chosen, Path(turn.name)))
            time.sleep(0.05)
            for cell in [each for each in running if each.ended(chosen.limit)]:
                running.remove(cell)
                row = {**cell.settings, **machine, **cell.figures()}
                append(chosen.out, row)
                number += 1
                peaks = row.get("peak_allocated_gib"), row.get("peak_reserved_gib"), row.get("error", "")
                passed = f"{number}/{len(todo)} {time.monotonic() - began:.0f} s"
                print(passed, label(cell.settings), row["status"], *peaks, flush=True)


@dataclass
class Running:
    """A cell in a process of its own, and the folder in which it leaves its figures."""

    settings: Cell
    process: ForkProcess | SpawnProcess
    folder: Path
    need_gib: float
    began: float

    def ended(self, limit: float) -> bool:
        """Whether the process has ended, by itself or because it took longer than `limit` seconds."""
        if self.process.is_alive() and time.monotonic() - self.began > limit:
            self.process.kill()
            self.process.join()
        return not self.process.is_alive()

    def figures(self) -> dict[str, Any]:
        """Its figures, or how it ended."""
        report = self.folder / "figures.json"
        found = json.loads(report.read_text()) if report.exists() else {"status": f"ended {self.process.exitcode}"}
        shutil.rmtree(self.folder)
        return {**found, "taken": time.strftime("%Y-%m-%d")}


def start(cell: Cell, need_gib: float, chosen: argparse.Namespace, turn: Path) -> Running:
    """Begin a cell in a fresh process."""
    folder = Path(tempfile.mkdtemp(prefix="cell-"))
    alone = chosen.workers == 1 or need_gib == math.inf
    process = multiprocessing.get_context(chosen.start).Process(
        target=child, args=(cell, folder, turn, alone, chosen.tiny, chosen.log.absolute())
    )
    process.start()
    return Running(cell, process, folder, need_gib, time.monotonic())


def predicted_room_gib(tiny: bool) -> float:
    """GiB of the device that cells may fill side by side: a tenth less than is free, as predictions err."""
    if tiny:
        return float("inf")
    return 0.9 * float(nvidia_smi("memory.free")[0].split()[0]) / 1024


def warm(start: str, tiny: bool) -> dict[str, Any]:
    """Import everything without touching the GPU (forks cannot share a CUDA context); return the machine's columns."""
    os.environ.update(DISABLE_VERSION_CHECK="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", RECORD_VRAM="1")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    if start == "fork":
        asks_device, torch.cuda.is_bf16_supported = torch.cuda.is_bf16_supported, lambda *_, **__: True
        import llamafactory.train.tuner  # noqa: F401

        torch.cuda.is_bf16_supported = asks_device
        if torch.cuda.is_initialized():
            sys.exit("importing touched the GPU: use --start spawn")
    from gpu import train as gpu_train

    device, driver = ("cpu", "") if tiny else nvidia_smi("name,driver_version")
    return {
        "versions": records.versions(PACKAGES),
        "device": device,
        "driver": driver,
        "device_idle_mib": gpu_train.device_used_mib(),
    }


def nvidia_smi(fields: str) -> list[str]:
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, check=True, text=True).stdout.strip().split(", ")


def child(cell: Cell, folder: Path, turn: Path, alone: bool, tiny: bool, log: Path) -> None:
    with log.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    print("=====", label(cell), flush=True)
    try:
        from gpu import train as gpu_train

        figures = gpu_train.measure(cell, folder, turn, alone, tiny)
    except BaseException as error:
        traceback.print_exc()
        figures = {"status": "failed", "error": repr(error)[:300]}
    (folder / "figures.json").write_text(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)  # no tear-down: a large model takes seconds to free


def label(cell: Cell) -> str:
    """The model and what differs from the defaults."""
    return " ".join([cell["model"], *(f"{k}={v}" for k, v in cell.items() if k != "model" and v != DEFAULTS[k])])


def key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in DEFAULTS)


def recorded(path: Path) -> set[tuple[str, ...]]:
    if not path.exists():
        return set()
    with path.open(newline="") as stream:
        return {key(row) for row in csv.DictReader(stream)}


def append(path: Path, row: dict[str, Any]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, [*DEFAULTS, *FIGURES], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
