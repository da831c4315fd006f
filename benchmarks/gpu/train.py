"""One cell of measure.py: a real LLaMA-Factory run of three optimizer steps on random weights, with its peaks.

Only two things differ from a user's run: the checkpoint on disk is replaced by random numbers of its shapes, and the
tokenized data set is random numbers of exactly the wanted length. Everything else is the real code: LLaMA-Factory's
argument parsing, loading, quantization, adapters, patches, collator and trainer.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu.cells import MODELS, TINY, Cell

GIB = 1 << 30
STEPS = 3
ZERO_CONFIGS = Path(__file__).parents[2] / "deepspeed"


class Finished(Exception):  # noqa: N818
    """Raised after the last step: nothing is gained by saving a random model."""


def measure(cell: Cell, folder: Path, turn: Path, alone: bool, tiny: bool) -> dict[str, Any]:
    """Run one cell in this process and return its figures (GiB = 2^30 bytes, seconds).

    It trains when it has the lock of the file `turn`. What the whole machine and the whole device use is told of a cell
    that runs `alone`."""
    if cell["alloc"]:
        torch._C._accelerator_setAllocatorSettings(cell["alloc"])
    if cell["cap_gib"] and not tiny:
        torch.cuda.set_per_process_memory_fraction(cell["cap_gib"] * GIB / torch.cuda.mem_get_info()[1])
    if cell["through"] == "context":
        return _touch_device(tiny)
    arguments = prepare(cell, folder, tiny)
    if cell["through"] == "cli":
        return _through_cli(arguments, folder, turn)
    figures = _through_call(cell, arguments, turn)
    return figures if alone else {**figures, "host_used_peak_gib": "", "device_used_mib": ""}


def _touch_device(tiny: bool) -> dict[str, Any]:
    device = "cpu" if tiny else "cuda"
    square = torch.zeros(1, device=device)
    bare = process_used_mib()
    square = torch.ones(1024, 1024, device=device, dtype=torch.bfloat16)
    (square @ square).sum().item()
    return {"status": "ok", "context_mib": bare, **device_figures()}


def _through_call(cell: Cell, arguments: dict[str, Any], turn: Path) -> dict[str, Any]:
    from llamafactory.train.tuner import run_exp

    if cell["deepspeed"]:  # what torchrun would set for one process
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", FORCE_TORCHRUN="1")
        os.environ["MASTER_PORT"] = str(random.randint(20000, 60000))
    transformers.AutoModelForCausalLM.from_pretrained = load_random
    meter = Meter(turn)
    try:
        run_exp(arguments, [meter])
    except Finished:
        meter.figures["status"] = "ok"
    except torch.OutOfMemoryError as error:
        meter.figures.update(status="oom", error=str(error)[:300])
    return {**meter.figures, **device_figures(), "host_used_peak_gib": meter.host.stop()}


def load_random(pretrained_model_name_or_path: str, config: Any, **options: Any) -> Any:
    """The model class's own loading (device map, quantization, ZeRO-3), from random numbers instead of files.

    All weights are views of one block on the host, so that only the copies on the device cost memory."""
    model_class = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    state = random_state(model_class, config)
    model = model_class.from_pretrained(None, config=config, state_dict=state, **options)
    model.config.name_or_path = pretrained_model_name_or_path
    return model


def random_state(model_class: Any, config: Any) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in model_class(config).state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    largest = max(shape.numel() for shape in shapes.values())
    seed = (torch.randn(1_000_003) * 0.02).to(torch.bfloat16)
    block = seed.repeat(-(-largest // seed.numel()))
    return {name: block[: shape.numel()].view(shape) for name, shape in shapes.items()}


class Meter(transformers.TrainerCallback):
    """Notes what LLaMA-Factory's run holds after loading, at its peaks and how long the last step took."""

    def __init__(self, turn: Path) -> None:
        self.turn = turn
        self.figures: dict[str, Any] = {"status": "failed"}
        self.host = HostPeak()
        self.started = 0.0
        self.evaluated = False

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
        self.figures.update(
            stored_parameters=sum(size for size, _ in sizes),  # 4-bit weights count their packed bytes
            trainable_parameters=sum(size for size, trained in sizes if trained),
            loaded_gib=gib(torch.cuda.memory_allocated()),
            load_peak_gib=gib(torch.cuda.max_memory_allocated()),
        )
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        wait_for(self.turn)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        synchronize()
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        synchronize()
        self.figures["seconds_per_step"] = round(time.perf_counter() - self.started, 3)
        if not self.evaluated:
            self.figures["train_peak_gib"] = gib(torch.cuda.max_memory_allocated())

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.evaluated = True

    def on_train_end(self, *_: Any, **__: Any) -> None:
        raise Finished


def wait_for(turn: Path) -> None:
    """Take the lock that lets one cell train at a time; the end of this process gives it back."""
    fcntl.flock(os.open(turn, os.O_RDWR), fcntl.LOCK_EX)


class HostPeak(threading.Thread):
    """The most memory in use on the machine, above what was in use at the start, sampled every 50 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_kib = self.peak_kib = _host_used_kib()
        self.running = True
        self.start()

    def run(self) -> None:
        while self.running:
            self.peak_kib = max(self.peak_kib, _host_used_kib())
            time.sleep(0.05)

    def stop(self) -> float:
        self.running = False
        return gib((self.peak_kib - self.start_kib) * 1024)


def _host_used_kib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kib["MemTotal"] - kib["MemAvailable"]


def _through_cli(arguments: dict[str, Any], folder: Path, turn: Path) -> dict[str, Any]:
    """`llamafactory-cli train` as a user runs it, from a checkpoint on disk; the peaks are LLaMA-Factory's own."""
    from safetensors.torch import save_file

    config = transformers.AutoConfig.from_pretrained(folder / "model")
    state = random_state(transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config)
    save_file({name: tensor.clone() for name, tensor in state.items()}, folder / "model" / "model.safetensors")
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps(arguments))  # JSON is YAML
    command = [sys.executable, "-m", "llamafactory.cli", "train", str(recipe)]
    wait_for(turn)
    subprocess.run(command, check=True, env={**os.environ, "RECORD_VRAM": "1"})
    log = [json.loads(line) for line in (folder / "output" / "trainer_log.jsonl").read_text().splitlines()]
    steps = [row for row in log if "vram_allocated" in row]
    return {
        "status": "ok",
        "peak_allocated_gib": max(row["vram_allocated"] for row in steps),
        "peak_reserved_gib": max(row["vram_reserved"] for row in steps),
    }


def device_figures() -> dict[str, Any]:
    """Peaks of this process; the device's figure is nvidia-smi's at the end, when the cache is still held."""
    return {
        "peak_allocated_gib": gib(torch.cuda.max_memory_allocated()),
        "peak_reserved_gib": gib(torch.cuda.max_memory_reserved()),
        "device_used_mib": device_used_mib(),
        "process_used_mib": process_used_mib(),
        "pinned_peak_gib": gib(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)),
        "host_rss_peak_gib": gib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
    }


def device_used_mib() -> int:
    if not torch.cuda.is_available():
        return 0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(query, capture_output=True, check=True, text=True).stdout)


def process_used_mib() -> int | str:
    """What nvidia-smi says that this process uses, CUDA context included; "" where it does not know the process."""
    if not torch.cuda.is_available():
        return ""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits", "--id=0"]
    lines = subprocess.run(query, capture_output=True, check=True, text=True).stdout.splitlines()
    own = [line.split(", ")[1] for line in lines if line.startswith(f"{os.getpid()}, ")]
    return int(own[0]) if own and own[0].isdigit() else ""


def gib(size: float) -> float:
    return round(size / GIB, 4)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def prepare(cell: Cell, folder: Path, tiny: bool) -> dict[str, Any]:
    """Write configuration, tokenizer and data; return the recipe as LLaMA-Factory's arguments."""
    config = {**MODELS[cell["model"]], **(TINY if tiny else {})}
    length = min(cell["seq_len"], 64) if tiny else cell["seq_len"]
    write_model(config, folder / "model")
    write_data(cell, config["vocab_size"], length, folder / "data")
    return arguments_of(cell, folder, length, tiny)


def write_model(config: Cell, folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    names = ["<unk>", "<eos>", "<pad>"]
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    kind = config["model_type"]
    transformers.AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"}).save_pretrained(
        folder
    )


def write_data(cell: Cell, vocabulary: int, length: int, folder: Path) -> None:
    """Rows of random tokens. A padded row is 4 short: LLaMA-Factory pads to a multiple of 8, which brings in a mask."""
    from datasets import Dataset, DatasetDict

    draw = random.Random(0)
    width = length - 4 * cell["padded"]
    rows = max(cell["micro_batch"] * cell["grad_accum"] * STEPS, cell["eval_batch"])
    prefixes = ["chosen_", "rejected_"] if cell["stage"] == "dpo" else [""]
    table: dict[str, list[Any]] = {name: [None] * rows for name in ("images", "videos", "audios")}
    for prefix in prefixes:
        ids = [[draw.randrange(3, vocabulary) for _ in range(width)] for _ in range(rows)]
        table |= {f"{prefix}input_ids": ids, f"{prefix}labels": ids, f"{prefix}attention_mask": [[1] * width] * rows}
    data = Dataset.from_dict(table)
    DatasetDict({"train": data, "validation": data} if cell["eval_batch"] else {"train": data}).save_to_disk(folder)


def arguments_of(cell: Cell, folder: Path, length: int, tiny: bool) -> dict[str, Any]:
    return {
        "model_name_or_path": str(folder / "model"),
        "tokenized_path": str(folder / "data"),
        "output_dir": str(folder / "output"),
        "dataset": "tokenized",  # asked for, never read: tokenized_path comes first
        "template": "empty",
        "stage": cell["stage"],
        "do_train": True,
        "finetuning_type": cell["method"],
        "cutoff_len": length,
        "per_device_train_batch_size": cell["micro_batch"],
        "gradient_accumulation_steps": cell["grad_accum"],
        "max_steps": STEPS,
        "optim": cell["optimizer"],
        "flash_attn": cell["attention"],
        "disable_gradient_checkpointing": not cell["checkpointing"],
        "enable_liger_kernel": cell["liger"],
        "disable_shuffling": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        cell["precision"]: True,
        **_optional(cell),
        **({"use_cpu": True} if tiny else {}),
    }


def _optional(cell: Cell) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if cell["method"] == "lora":
        chosen |= {"lora_rank": cell["lora_rank"], "lora_target": cell["lora_target"]}
    if cell["quantization_bit"]:
        chosen |= {"quantization_bit": cell["quantization_bit"], "quantization_method": "bnb"}
    if cell["deepspeed"]:
        chosen["deepspeed"] = str(ZERO_CONFIGS / cell["deepspeed"])
    if cell["galore"]:
        chosen |= {"use_galore": True, "galore_target": "all"}
    if cell["eval_batch"]:
        evaluation = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": cell["eval_batch"]}
        chosen |= {"eval_dataset": "tokenized", **evaluation}
    return chosen
