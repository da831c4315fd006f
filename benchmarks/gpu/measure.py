"""Peak memory of real LLaMA-Factory runs on the GPU of this machine, one row of a CSV file per cell of the grid.

    python -m benchmarks gpu measure --out benchmarks/evidence/gpu/h200.csv                 # the whole grid, resumable
    python -m benchmarks gpu measure --out x.csv --only method=full model=qwen3-4b      # a part of it
    python -m benchmarks gpu measure --tiny --out x.csv  # dry run: tiny models on the CPU

Needs an otherwise idle NVIDIA GPU with bf16, this package, torch, llamafactory 0.9.5 and, for the cells that use them,
bitsandbytes, liger-kernel, deepspeed, galore-torch. Nothing is downloaded: weights and data are random. Cells already
in the file are skipped; a cell that runs out of memory or fails is a row too. Cells run one after the other, each in a
process of its own, forked from one that has imported everything but has not touched the GPU.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import records
from gpu.cells import DEFAULTS, Cell, cells

FIGURES = [
    "status", "stored_parameters", "trainable_parameters", "loaded_gib", "load_peak_gib", "train_peak_gib",
    "peak_allocated_gib", "peak_reserved_gib", "context_mib", "device_idle_mib", "device_used_mib", "host_rss_peak_gib",
    "host_used_peak_gib", "pinned_peak_gib", "seconds_per_step", "device", "driver", "versions", "taken", "error",
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
    for number, cell in enumerate(todo, 1):
        if time.monotonic() - began > chosen.seconds:
            break
        row = {**cell, **machine, **run(cell, chosen)}
        append(chosen.out, row)
        peaks = row.get("peak_allocated_gib"), row.get("peak_reserved_gib"), row.get("error", "")
        print(f"{number}/{len(todo)} {time.monotonic() - began:.0f} s", label(cell), row["status"], *peaks, flush=True)


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


def run(cell: Cell, chosen: argparse.Namespace) -> dict[str, Any]:
    """One cell in a fresh process; its figures, or how it ended."""
    folder = Path(tempfile.mkdtemp(prefix="cell-"))
    process = multiprocessing.get_context(chosen.start).Process(
        target=child, args=(cell, folder, chosen.tiny, chosen.log.absolute())
    )
    process.start()
    process.join(chosen.limit)
    if process.is_alive():
        process.kill()
        process.join()
    report = folder / "figures.json"
    figures = json.loads(report.read_text()) if report.exists() else {"status": f"ended {process.exitcode}"}
    shutil.rmtree(folder)
    return {**figures, "taken": time.strftime("%Y-%m-%d")}


def child(cell: Cell, folder: Path, tiny: bool, log: Path) -> None:
    with log.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    print("=====", label(cell), flush=True)
    try:
        from gpu import train as gpu_train

        figures = gpu_train.measure(cell, folder, tiny)
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
