"""Shrunk twins of the recipes, trained for two steps by LLaMA-Factory itself.

    python -m benchmarks training                 # the recorded table
    python -m benchmarks training report --record  # train every combination again (needs LLaMA-Factory and DeepSpeed)
    python -m benchmarks training report --record NAME…  # only those that these recipes stand for

TWINS_FILE names another file than the evidence.

A twin keeps what decides whether a recipe trains: the model's class, template, stage, method, optimizer, quantization,
ZeRO file, and whether it is distributed (two processes then). It shrinks the rest: a random model of four layers, 24
samples of the demo data, samples of 64 tokens; a model that sees or hears has two layers in each tower and a made
picture or sound in each sample. Recipes that agree in all this are one combination.

Each process is a fork of one that has imported LLaMA-Factory, and enters where `llamafactory-cli train` does: its
launcher for one process, and for two the function that torchrun would start, in torchrun's environment. What the CPU
lacks is replaced and named in the table: fp16 becomes bf16, FlashAttention and Liger kernels are left out. What it
cannot run at all is named too; the real parser takes every recipe (tests/catalogue/test_recipes.py).
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import forks
import yaml

from validator.catalogue import bundled_recipes
from validator.knowledge import tables
from validator.run.recipe_labels import method_name
from validator.run.settings import RunSettings

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "benchmarks" / "evidence" / "training" / "twins.csv"
PACKAGES = ("llamafactory", "transformers", "torch", "peft", "trl", "deepspeed", "bitsandbytes")
SAVERS = ("galore", "apollo", "badam")
BITS8 = "adamw_8bit"
LIMIT = 900  # seconds for one twin; the first with an offloaded optimizer compiles it
KEPT = (
    *("stage", "do_train", "finetuning_type", "lora_rank", "lora_alpha", "lora_target", "freeze_trainable_layers"),
    *("freeze_trainable_modules", "pref_beta", "pref_loss", "quantization_bit", "quantization_method", "deepspeed"),
    *("use_galore", "galore_layerwise", "galore_target", "galore_scale", "use_apollo", "apollo_layerwise"),
    *("apollo_target", "apollo_scale", "apollo_scale_type", "use_badam", "badam_mode", "badam_switch_mode"),
    *("badam_switch_interval", "optim", "template", "enable_thinking", "learning_rate", "lr_scheduler_type"),
    *("warmup_ratio", "max_grad_norm", "pure_bf16", "bf16", "report_to", "disable_gradient_checkpointing"),
    *("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"),
    *("packing", "neat_packing", "simpo_gamma"),
)
MEDIA = {"images": "image", "audios": "audio"}  # column of the data -> what a template reads
SHRUNK: Mapping[str, Any] = {
    "max_steps": 2, "logging_steps": 1, "save_steps": 500, "per_device_train_batch_size": 2,
    "overwrite_output_dir": True, "preprocessing_num_workers": 1,
}  # fmt: skip
FLASH = {"gpt_oss"}  # types that LLaMA-Factory trains with FlashAttention-3 whatever a recipe says
CANNOT = {
    "fsdp": "FSDP needs an accelerator",
}


class Combination(NamedTuple):
    """What decides whether a recipe trains."""

    model_type: str
    template: str
    method: str
    optimizer: str
    engine: str
    processes: int


@dataclass(frozen=True)
class Row:
    """One combination, a recipe that stands for it, and what became of its twin."""

    recipe: str
    model_type: str
    template: str
    method: str
    optimizer: str
    engine: str
    processes: str
    replaced: str
    result: str
    seconds: str
    versions: str

    @property
    def combination(self) -> Combination:
        named = (self.model_type, self.template, self.method, self.optimizer, self.engine)
        return Combination(*named, int(self.processes))


def combination(job: RunSettings) -> Combination:
    """The combination a recipe belongs to."""
    assert job.model
    saver = next(
        (name for name in SAVERS if job.args.flag(f"use_{name}")), BITS8 if job.args.get("optim") == BITS8 else "adamw"
    )
    words = [
        method_name(job),
        *([str(job.args.get("pref_loss"))] if job.args.get("pref_loss") not in (None, "sigmoid") else []),
    ]
    words += ["packed"] if job.task.stage == "sft" and job.batch.packing else []
    engine = "fsdp" if job.fsdp else Path(str(job.args.get("deepspeed") or "")).stem
    return Combination(
        job.model.kind,
        str(job.args.get("template") or ""),
        "-".join(words),
        f"{saver}, bf16" if job.args.flag("pure_bf16") else saver,
        engine,
        2 if job.batch.world_size > 1 else 1,
    )


def combinations() -> dict[Combination, list[RunSettings]]:
    """Every combination of the catalogue with its recipes."""
    found: dict[Combination, list[RunSettings]] = {}
    for job in bundled_recipes.resolved_recipes():
        if job.model and job.model.id:
            found.setdefault(combination(job), []).append(job)
    return found


def cross_section(found: Iterable[Combination]) -> list[Combination]:
    """Few combinations in which each model type, template, method, optimizer and engine occurs that the CPU can run:
    one by one that with most of what is missing yet, of equals the one with fewer processes."""
    able = {each: _parts(each) for each in sorted(found, key=lambda one: (one.processes, one)) if reason(each) is None}
    missing = set().union(*able.values())
    chosen = []
    while missing:
        chosen.append(max(able, key=lambda each: len(able[each] & missing)))
        missing -= able[chosen[-1]]
    return chosen


def _parts(each: Combination) -> set[tuple[str, Any]]:
    return {(name, part) for name, part in each._asdict().items() if name != "processes"}


def reason(each: Combination) -> str | None:
    """Why the CPU cannot run it; None where it can."""
    return next((CANNOT[part] for part in each if part in CANNOT), None)


def replaced(job: RunSettings) -> str:
    """What the twin leaves out or exchanges because a CPU lacks it."""
    swaps = [("fp16", "bf16 for fp16"), ("enable_liger_kernel", "no Liger kernels"), ("flash_attn", "no flash-attn"),
             ("adapter_name_or_path", "no SFT adapter"), ("streaming", "no streaming")]  # fmt: skip
    always = ["no flash-attn"] if job.model and job.model.kind in FLASH else []
    return "; ".join([*always, *(text for key, text in swaps if job.args.is_set(key))])


def twin(job: RunSettings, folder: Path) -> dict[str, Any]:
    """The settings of a recipe's twin; model and data are in the folder."""
    kept = {key: job.args.values[key] for key in KEPT if key in job.args.values}
    if "deepspeed" in kept:
        kept["deepspeed"] = str(ROOT / kept["deepspeed"])
    ranks = {f"{name}_rank": 8 for name in ("galore", "apollo") if job.args.flag(f"use_{name}")}
    precision = {} if job.args.flag("pure_bf16") else {"bf16": True}
    media = next((part for part in MEDIA if MEDIA[part] in (job.template or {}).get("media", ())), "")
    own = {
        "model_name_or_path": str(folder / job.model.kind) if job.model else None,
        "dataset_dir": str(folder / "data"),
        "dataset": f"{job.task.stage}_{media}" if media else job.task.stage,
        "cutoff_len": 1024 if media else 64,  # a sample that is cut within its picture ends the run
        "output_dir": str(folder / "out"),
        "gradient_accumulation_steps": min(int(job.args.number("gradient_accumulation_steps")), 2),
        "use_cpu": job.deepspeed is None,
    }
    return {**kept, **SHRUNK, **ranks, **precision, **own}


def prepare(folder: Path, jobs: Iterable[RunSettings]) -> None:
    """Models and data of the twins."""
    from training_twins import pictured, shrunk

    published = yaml.load((tables.DATA_FOLDER / "models.yaml").read_text("utf-8"), yaml.CSafeLoader)
    shrunk.data(folder / "data")
    pictured.data(folder / "data")
    for job in jobs:
        assert job.model
        if not (folder / job.model.kind).exists() and reason(combination(job)) is None:
            config = published[job.model.id or ""]["config"]
            make = pictured.model if pictured.sight(config) else shrunk.model
            make(config, folder / job.model.kind)


def train(job: RunSettings, folder: Path) -> str:
    """Train a recipe's twin and say `trained`, or what went wrong."""
    recipe, log, output = folder / "twin.yaml", folder / "log.txt", folder / "out"
    recipe.write_text(yaml.safe_dump(twin(job, folder), sort_keys=False), "utf-8")
    size = combination(job).processes
    alone = size == 1 and job.deepspeed is None
    environments: list[dict[str, str]] = [{}] if alone else forks.torchrun(size)
    codes = forks.wait(
        forks.start(partial(_enter, recipe, launched=not alone), log, each, LIMIT) for each in environments
    )
    if any(codes):
        return f"exit codes {codes}: {_last_error(log)}"
    return _judge(output)


def _enter(recipe: Path, *, launched: bool) -> int:
    """What `llamafactory-cli train` runs in this process, or what torchrun runs in each of its own."""
    from llamafactory.launcher import launch
    from llamafactory.train.tuner import run_exp
    from training_twins.pictured import senses

    sys.argv = ["llamafactory-cli", *([] if launched else ["train"]), str(recipe)]
    with (
        patch("transformers.training_args.is_torch_bf16_gpu_available", lambda: True),
        patch("llamafactory.hparams.parser.is_torch_bf16_gpu_available", lambda: True),
        patch("llamafactory.model.patcher.configure_attn_implementation", _attention),
        senses(),
    ):
        (run_exp if launched else launch)()
    return 0


def _attention(config: Any, arguments: Any) -> None:
    """What LLaMA-Factory chooses, but for the types that it would train with a kernel for GPUs only."""
    from llamafactory.model.model_utils.attention import configure_attn_implementation

    if config.model_type not in FLASH:
        configure_attn_implementation(config, arguments)


def _last_error(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no output")[
        :160
    ]


def _judge(output: Path) -> str:
    state = json.loads((output / "trainer_state.json").read_text("utf-8"))
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    saved = [*output.glob("*.safetensors")]
    if state["global_step"] != 2 or not losses or not all(math.isfinite(loss) for loss in losses):
        return f"step {state['global_step']}, losses {losses}"
    return "trained" if saved else "no weights saved"


def run(wanted: Iterable[Combination], found: Mapping[Combination, list[RunSettings]]) -> Iterator[Row]:
    """Train the twin of the first recipe of each combination."""
    versions = " ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", LLAMAFACTORY_VERBOSITY="ERROR")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(ROOT / ".cache" / "torch_extensions"))
    for module in ("llamafactory.launcher", "llamafactory.train.tuner", "deepspeed"):
        import_module(module)
    for each in wanted:
        job, why = found[each][0], reason(each)
        started = time.monotonic()
        if why is None:
            with tempfile.TemporaryDirectory() as made:
                prepare(Path(made), [job])
                result = train(job, Path(made))
        else:
            result = f"parsed only: {why}"
        seconds = f"{time.monotonic() - started:.0f}" if why is None else ""
        parts = [str(part) for part in each]
        yield Row(Path(job.workspace.recipe).stem, *parts, replaced(job), result, seconds, versions)


def recorded(path: Path = EVIDENCE) -> list[Row]:
    """The rows of the evidence."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [Row(**row) for row in csv.DictReader(stream)]


def record(rows: Iterable[Row], path: Path) -> None:
    """Write rows over those of the same combinations; combinations that no recipe has any more go."""
    known = {row.combination: row for row in recorded(path)} if path.exists() else {}
    found = combinations()
    for row in rows:
        print(f"{row.seconds:>4}  {row.recipe:<45} {row.result}", flush=True)
        known[row.combination] = row
        kept = [asdict(known[each]) for each in sorted(known) if each in found]
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)


def recorded_figures() -> dict[str, float]:
    """Combinations that recipes have, and those whose twin trained."""
    rows = recorded()
    return {"combinations": len(rows), "trained": sum(row.result == "trained" for row in rows)}


def main() -> None:
    path = Path(os.environ.get("TWINS_FILE", EVIDENCE))
    if sys.argv[1:2] == ["--record"]:
        found, names = combinations(), set(sys.argv[2:])
        wanted = [
            each
            for each, jobs in found.items()
            if not names or {Path(job.workspace.recipe).stem for job in jobs} & names
        ]
        record(run(sorted(wanted), found), path)
    for row in recorded(path):
        print(f"{row.recipe:<45} {' '.join(map(str, row.combination)):<60} {row.result}")
