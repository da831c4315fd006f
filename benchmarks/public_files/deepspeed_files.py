"""DeepSpeed files of strangers through the real Trainer and DeepSpeed, and through ours.

    python -m benchmarks files deepspeed_files                   # the table, from the recorded outcomes
    python -m benchmarks files deepspeed_files --record FOLDER   # run the files of FOLDER anew (needs DeepSpeed)

FOLDER is that of recipes.py. Each file is tried with a recipe that has every value which the file fixes, so that
what is wrong in the file itself shows and not that it differs from some recipe; one that fixes nothing with a plain
recipe. The run is two steps of a tiny model on the CPU, which is taken to compute in fp16 and bf16.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import records
from conformity import report as conformity
from conformity import values as harness
from score import table

from validator.check.checking import check_file
from validator.finding import Severity
from validator.run.deepspeed import DeepSpeedConfig

RECORD = records.EVIDENCE / "files" / "zerofiles.csv"
MODEL = harness.ROOT / "build" / "tiny-qwen3"
SECONDS = 600
PLAIN = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_steps": 2, "learning_rate": 1.0e-4,
         "bf16": True}  # fmt: skip
RECIPE = {"model_name_or_path": "Qwen/Qwen3-0.6B", "stage": "sft", "do_train": True, "finetuning_type": "full",
          "dataset": "identity", "template": "qwen3_nothink", "cutoff_len": 128, "output_dir": "out",
          "deepspeed": "ds.json"}  # fmt: skip
# Place in the JSON, key in the recipe.
FIXED = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "scheduler.params.total_num_steps": "max_steps",
}
LACKING = "had not been implemented on CPU backend"  # an operator that needs a GPU


@dataclass
class Row:
    """One file: the real outcome, "ok" or the error, and the codes of our errors."""

    repository: str
    path: str
    commit: str
    real: str = ""
    ours: str = ""

    @property
    def agreed(self) -> bool:
        return LACKING in self.real or (self.real == "ok") == (not self.ours)


def read() -> list[Row]:
    """The recorded rows."""
    return [Row(**row) for row in records.read(RECORD)]


def agreeing(text: str) -> dict[str, Any]:
    """Keys of a recipe with the values that the file fixes."""
    try:
        config = json.loads(text)
    except ValueError:
        return PLAIN
    zero = DeepSpeedConfig(config if isinstance(config, dict) else {})
    made = {key: value for path, key in FIXED.items() if _number(value := zero.value(path))}
    if _number(total := zero.value("train_batch_size")):
        made.setdefault("per_device_train_batch_size", max(1, total // made.get("gradient_accumulation_steps", 1)))
        made.setdefault("gradient_accumulation_steps", max(1, total // made["per_device_train_batch_size"]))
    if isinstance(betas := zero.value("optimizer.params.betas"), list) and len(betas) == 2:
        made["adam_beta1"], made["adam_beta2"] = betas
    if zero.value("fp16.enabled") is True:
        made |= {"fp16": True, "bf16": False}
    elif zero.value("bf16.enabled") is False:
        made["bf16"] = False
    return {**PLAIN, **made}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def ours(text: str) -> str:
    """Codes of our errors that concern the file."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        Path("ds.json").write_text(text, "utf-8")
        Path("recipe.yaml").write_text(json.dumps({**RECIPE, **agreeing(text)}), "utf-8")
        found = check_file("recipe.yaml", "1xa100-80g", 64.0).diagnostics
    codes = {each.code for each in found if each.severity is Severity.ERROR}
    return " ".join(sorted(code for code in codes if code.startswith("PAR") or code == "PTH003"))


def record(folder: Path) -> list[Row]:
    """Run every DeepSpeed file of the folder's index."""
    with (folder / "index.csv").open(newline="", encoding="utf-8") as lines:
        index = [row for row in csv.DictReader(lines) if row["kind"] == "deepspeed"]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(conformity.OPERATORS))
    model = tiny()
    rows = []
    for row in index:
        text = (folder / row["file"]).read_text("utf-8")
        rows.append(Row(row["repository"], row["path"], row["commit"], in_fork(model, text), ours(text)))
        print(f"{row['file']}: {rows[-1].real[:100]} | {rows[-1].ours}", file=sys.stderr, flush=True)
    return rows


def tiny() -> Any:
    """The tiny model, and an accelerator that computes in fp16."""
    import torch
    from deepspeed.accelerator import get_accelerator
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    get_accelerator().is_fp16_supported = lambda: True
    return AutoModelForCausalLM.from_pretrained(MODEL)


def in_fork(model: Any, text: str) -> str:
    """The outcome of a child process, so that no file sees the state another left behind."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(SECONDS)
        os.environ["MASTER_PORT"] = str(20000 + os.getpid() % 20000)
        with contextlib.suppress(BaseException):
            os.write(writer, real(model, text).encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read().decode(errors="replace")
    os.waitpid(child, 0)
    return answer or "did not end"


def real(model: Any, text: str) -> str:
    """What the Trainer does with the file in two steps: "ok", or its error."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stop(TrainerCallback):
        def on_step_end(self, _args: Any, state: Any, control: Any, **_others: Any) -> Any:
            control.should_training_stop = state.global_step >= 2
            return control

    samples = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
    bf16 = patch("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    with tempfile.TemporaryDirectory() as name, chdir(name), bf16:
        Path("ds.json").write_text(text, "utf-8")
        try:
            quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
            arguments = TrainingArguments("out", deepspeed="ds.json", **quiet, **agreeing(text))
            Trainer(model, arguments, train_dataset=samples, callbacks=[Stop()]).train()
        except BaseException as error:  # any end of the run is an outcome
            return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    return "ok"


def lines(rows: list[Row]) -> Iterator[str]:
    """The counts, then every file on which the two differ."""
    kinds = Counter("runs" if row.real == "ok" else "lacking" if LACKING in row.real else "stops" for row in rows)
    agreed = Counter("runs" if row.real == "ok" else "stops" for row in rows if row.agreed and LACKING not in row.real)
    owners = len({row.repository for row in rows})
    counts = [(kind, kinds[kind], agreed[kind] if kind != "lacking" else "") for kind in ("runs", "stops", "lacking")]
    yield table(f"{len(rows)} DeepSpeed files of {owners} repositories", ("the real one", "files", "we agree"), counts)
    wrong = ((f"{row.repository}: {row.path}", row.ours, row.real[:100]) for row in rows if not row.agreed)
    yield table("differing", ("file", "our errors", "the real one"), wrong)


def shown() -> tuple[Iterator[str], bool]:
    """The tables of what is recorded, and whether all agree."""
    rows = read()
    return lines(rows), all(row.agreed for row in rows)


def recorded_figures() -> dict[str, float]:
    """DeepSpeed files, and those on which the real one and we agree."""
    rows = read()
    tried = [row for row in rows if LACKING not in row.real]
    return {
        "deepspeed_files": len(rows),
        "deepspeed_tried": len(tried),
        "deepspeed_agreed": sum(row.agreed for row in tried),
        "deepspeed_lacking": len(rows) - len(tried),
    }


def main() -> None:
    records.judge(__doc__, RECORD, conformity.PACKAGES, record, shown)
