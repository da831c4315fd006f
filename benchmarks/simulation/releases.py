"""Peaks with older releases of the packages: cells of the simulator run with several sets of them, recorded in
evidence/simulator/releases.csv; and the formulas, told the releases, against that record.

python -m benchmarks simulator releases              run what the record lacks of the installed releases (as grid.py)
python -m benchmarks simulator releases --compare    error of the formulas by set of releases, and each cell

    PYTHONPATH=FOLDER_OF_OLDER_PACKAGES python -m benchmarks simulator releases
"""

from __future__ import annotations

from typing import Any

import records
import score
from simulation import grid

from validator.knowledge import releases
from validator.knowledge.releases import ReleaseRange
from validator.physics import Workload, estimate_device_memory
from validator.physics.workload import SdpaInputs
from validator.run.physics_inputs import with_older_effects

RECORD = records.EVIDENCE / "simulator" / "releases.csv"
PACKAGES = ("llamafactory", "transformers", "peft", "trl", "accelerate")
OFF, BF16, PADDED = grid.OFF, grid.BF16, {"padded": True}
FULL, QLORA = {"method": "full"}, {"method": "qlora4"}
SETTINGS: dict[str, list[tuple[int, int, dict[str, Any]]]] = {
    "llama-3.1-8b": [
        (4096, 1, {}), (2048, 1, OFF), (2048, 4, {**OFF, **PADDED}), (4096, 1, {**FULL, **BF16}),
        (2048, 1, {**FULL, **OFF}), (2048, 1, {"stage": "kto"}), (2048, 1, {"stage": "rm"}),
        (2048, 1, {"method": "dora", **OFF}), (2048, 1, {"method": "qlora8", **OFF}),
        (2048, 4, {"method": "freeze", **OFF}), (2048, 1, {"method": "oft", **OFF}),
        (2048, 1, {"additional_target": grid.BOTH}), (16384, 1, {}),
    ],
    "qwen2.5-7b": [(2048, 4, {}), (2048, 1, {**QLORA, **OFF}), (2048, 1, {"stage": "dpo"}),
                   (2048, 1, {"stage": "dpo", **OFF})],
    "qwen3-8b": [(4096, 1, QLORA), (2048, 1, {**FULL, **BF16, "stage": "dpo"}), (2048, 1, OFF), (4096, 4, PADDED)],
    "gemma-2-9b": [(4096, 1, {}), (2048, 1, OFF), (2048, 1, {**QLORA, **OFF, **PADDED})],
    "gemma-3-4b": [(2048, 1, OFF), (2048, 4, QLORA)],
    "phi-4": [(2048, 1, OFF), (4096, 1, QLORA)],
    "mistral-7b": [(4096, 1, OFF), (2048, 4, {**FULL, **BF16}), (2048, 1, {**OFF, "attn": "eager"})],
    "qwen2.5-0.5b": [(2048, 4, {**FULL, **BF16}), (2048, 2, {**FULL, **OFF}), (2048, 1, {**FULL, "stage": "dpo"}),
                     (2048, 1, {**FULL, **OFF, "stage": "orpo"})],
    "mixtral-8x7b": [(2048, 1, {})],
    "qwen3-30b-a3b": [(2048, 1, OFF)],
}  # fmt: skip
NAMES = ("model", "method", "precision_mode", "grad_ckpt", "attn", "stage", "padded", "additional_target", "seq_len",
         "micro_batch")  # fmt: skip


def cells() -> list[dict[str, Any]]:
    """Every model with its settings."""
    return [
        {**grid.DEFAULTS, "model": model, **setting, "seq_len": length, "micro_batch": batch}
        for model, settings in SETTINGS.items()
        for length, batch, setting in settings
    ]


def recorded() -> list[dict[str, str]]:
    """The rows of the record."""
    return records.read(RECORD)


def simulate_missing() -> None:
    """Adds the cells that are not recorded with the installed releases, but those of types that these lack."""
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    own = records.versions(PACKAGES)
    done = {records.key(row, NAMES) for row in recorded() if row["versions"] == own}
    for cell in (cell for cell in cells() if records.key(cell, NAMES) not in done):
        if _type(cell["model"]) not in CONFIG_MAPPING or (cell["method"] == "oft" and not _takes_oft()):
            continue
        if cell["model"] in grid.MIXTURES and __version__.startswith("4."):
            from simulation.moe_cells import balance

            balance(cell["model"])
        result = grid.simulated(cell)
        place = f"{result['peak_phase'].split('.')[1]} {result['peak_seg']}".strip()
        row = {name: cell[name] for name in NAMES} | {"peak_bytes": result["peak_bytes"], "peak_at": place}
        records.append(row, RECORD, PACKAGES)


def _takes_oft() -> bool:
    """Whether this LLaMA-Factory does."""
    from llamafactory.hparams import FinetuningArguments

    return hasattr(FinetuningArguments(), "oft_rank")


def _type(model: str) -> str:
    from simulation.simulate import BUILTIN

    return str((BUILTIN[model] if model in grid.SHAPES_OF else grid.config(model))["model_type"])


def header(row: dict[str, str]) -> dict[str, str]:
    """What a recipe's header says of the releases that a row was recorded with."""
    there = dict(each.split("==") for each in row["versions"].split())
    return {field: there[field] for field in releases.RELEASE_FIELDS}


def workload(row: dict[str, str]) -> Workload:
    """The recorded cell as the formulas see it when they are told the releases."""
    whole = {name: str(value) for name, value in grid.DEFAULTS.items()} | row
    stage = "dpo" if row["stage"] in grid.PAIRED[1:] else row["stage"]
    return with_older_effects(grid.workload(whole), ReleaseRange(header(row)).older_effects, stage)


def error(row: dict[str, str], told: bool = True) -> float:
    """Signed relative error of the predicted peak; `told`: what the row's releases do otherwise than the newest."""
    made = workload(row)
    made = (
        made
        if told
        else made._replace(sdpa_inputs=SdpaInputs(), adds_supervised_loss=False, logits_upcast=False, loss="upcast")
    )
    return estimate_device_memory(grid.architecture(row["model"]), made).allocated / float(row["peak_bytes"]) - 1


def sets() -> dict[str, list[dict[str, str]]]:
    """The rows by set of releases, the newest first."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in recorded():
        found.setdefault(row["versions"], []).append(row)
    return dict(sorted(found.items(), key=lambda pair: _numbers(pair[0]), reverse=True))


def _numbers(versions: str) -> list[int]:
    return [int(part) for each in versions.split() for part in each.partition("==")[2].split(".")]


def apart(row: dict[str, str], newest: list[dict[str, str]]) -> float:
    """How far a peak is from that with the newest releases."""
    same = next(each for each in newest if records.key(each, NAMES) == records.key(row, NAMES))
    return float(row["peak_bytes"]) / float(same["peak_bytes"]) - 1


def compare() -> None:
    """Prints a line for each set of releases, the newest first, then one for each cell."""
    found = sets()
    newest = next(iter(found.values()))
    print(score.table(
        "peaks by releases, %", (*PACKAGES, "cells", "apart", "median error", "worst", "untold"),
        [_scores(rows, newest) for rows in found.values()],
    ))  # fmt: skip
    print(score.table(
        "each cell, % from the newest and in brackets the error",
        ("", "GiB", *(header(rows[0])["transformers"] for rows in found.values())),
        [_line(row, found) for row in newest],
    ))  # fmt: skip


def _scores(rows: list[dict[str, str]], newest: list[dict[str, str]]) -> list[object]:
    """`apart`: the most from the newest; `untold`: the worst error of formulas that are told of the newest alone."""
    median, _, worst = records.spread(error(row) for row in rows)
    most = max((apart(row, newest) for row in rows), key=abs)
    untold = max((error(row, told=False) for row in rows), key=abs)
    named = [each.partition("==")[2] for each in rows[0]["versions"].split()]
    return [*named, len(rows), *(f"{100 * value:.2f}" for value in (most, median, worst, untold))]


def _line(cell: dict[str, str], found: dict[str, list[dict[str, str]]]) -> list[str]:
    newest = next(iter(found.values()))
    shown = [f"{name}={cell[name]}" for name in NAMES[1:] if cell[name] != str(grid.DEFAULTS.get(name))]
    line = [" ".join([cell["model"], *shown]), f"{float(cell['peak_bytes']) / (1 << 30):.3f}"]
    for rows in found.values():
        same = [row for row in rows if records.key(row, NAMES) == records.key(cell, NAMES)]
        line.append("".join(f"{100 * apart(row, newest):+.2f} ({100 * error(row):+.2f})" for row in same) or "-")
    return line


def main() -> None:
    records.simulate(__doc__, simulate_missing, compare)
