"""What LLaMA-Factory does with a value of the wrong type: for every key and every kind of value, by running it.

    python -m benchmarks conformity values demo/tiny-qwen3 --train

writes validator/data/values.json. Each case is a fork of one process that has imported LLaMA-Factory, so that no case
can see the state another left behind. Without --train only the parser runs (a few minutes); with it, every case the
parser lets through trains two steps of a tiny model on the CPU, evaluates and saves. Recorded outcomes are kept,
so an interrupted run goes on where it stopped; delete the file to measure anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import forks

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = ROOT / "validator" / "data" / "arguments.json"
RESULT = ROOT / "validator" / "data" / "values.json"
PAIR = "0.9.5/5.6.0"
SECONDS = 300  # DeepSpeed compiles its operators in the first run that needs them

# quoted: the right value as text. whole: an integer written as float. int for a bool is 1.
# Letters: "-" fits the type; "." runs; p d m t s e v h fails at parse, in the data, while the model loads, while the
# trainer is built, at a step, at an evaluation, at a save, or does not end; n ends, with weights that are not finite or
# without a step; r parses, no run was made; "?" the right value fails here too.
# nan, inf, -inf and huge (1e308) are asked of numbers alone, which they fit by type.
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": 1e308}
KINDS = ("text", "quoted", "int", "float", "whole", "true", "list", "dict", "null", "false", *NUMBERS)
FITS = {
    "bool": {"true", "false"},
    "int": {"int"},
    "float": {"int", "float", "whole"},
    "str": {"text", "quoted"},
    "list": {"list"},
    "dict": {"dict"},
    "object": set(),
}

BASE: dict[str, Any] = {
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "dataset": "rows",
    "dataset_dir": "data",
    "template": "qwen",
    "cutoff_len": 128,
    "output_dir": "out",
    "overwrite_output_dir": True,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "max_steps": 2,
    "logging_steps": 1,
    "save_steps": 2,
    "eval_steps": 2,
    "eval_strategy": "steps",
    "val_size": 0.25,
    "report_to": "none",
    "use_cpu": True,
    "bf16": True,
}
DPO = {"stage": "dpo", "dataset": "pairs"}
KTO = {"stage": "kto", "dataset": "judged"}
GENERATE = {"predict_with_generate": True}
# a local file cannot be streamed by no workers: it is split into that many shards
STREAM = {"val_size": 0.0, "eval_strategy": "no", "dataloader_num_workers": 1}
# key or beginning of keys -> settings under which LLaMA-Factory reads it
CONTEXT: dict[str, dict[str, Any]] = {
    "freeze_trainable_": {"finetuning_type": "freeze"},
    "freeze_extra_": {"finetuning_type": "freeze"},
    "pref_": DPO,
    "dpo_": DPO,
    "ld_alpha": DPO,
    "simpo_": {**DPO, "pref_loss": "simpo"},
    "kto_": KTO,
    "oft_": {"finetuning_type": "oft"},
    "module_dropout": {"finetuning_type": "oft"},
    "buffer_size": {"streaming": True, **STREAM},
    "streaming": STREAM,
    "interleave_probs": {"mix_strategy": "interleave_under", "dataset": "rows,more"},
    "mix_strategy": {"dataset": "rows,more"},
    "pissa_iter": {"pissa_init": True},
    "loraplus_lr_embedding": {"loraplus_lr_ratio": 16.0, "additional_target": "embed_tokens"},
    "asft_alpha": {"use_asft_loss": True, "finetuning_type": "full", "eval_strategy": "no"},
    "use_asft_loss": {"finetuning_type": "full", "eval_strategy": "no"},
    "eaft_alpha": {"use_eaft_loss": True},
    "profiler_": {"enable_torch_profiler": True},
    "early_stopping_steps": {"load_best_model_at_end": True},
    "metric_for_best_model": {"load_best_model_at_end": True},
    "greater_is_better": {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"},
    "dataloader_prefetch_factor": {"dataloader_num_workers": 1},
    "dataloader_persistent_workers": {"dataloader_num_workers": 1},
    "preprocessing_batch_size": {"overwrite_cache": True},
    "max_samples": {"val_size": 0.0, "eval_strategy": "no"},
    "eval_dataset": {"val_size": 0.0},
    "fp16": {"bf16": False},
    "use_galore": {"finetuning_type": "full"},
    "use_apollo": {"finetuning_type": "full"},
    "use_badam": {"finetuning_type": "full"},
    "export_quantization_bit": {"export_quantization_dataset": "rows"},
    "quantization_type": {"quantization_bit": 4},
    "double_quantization": {"quantization_bit": 4},
    "lr_scheduler_kwargs": {"lr_scheduler_type": "cosine_with_restarts"},
    "galore_": {"finetuning_type": "full", "use_galore": True, "optim": "adamw_torch"},
    "apollo_": {"finetuning_type": "full", "use_apollo": True, "optim": "adamw_torch"},
    "badam_update_ratio": {"finetuning_type": "full", "use_badam": True, "badam_mode": "ratio", "optim": "adamw_torch"},
    "badam_": {"finetuning_type": "full", "use_badam": True},
    "num_train_epochs": {"max_steps": -1},
    "ddp_timeout": {"use_cpu": False, "bf16": False},
    **dict.fromkeys(("eval_num_beams", "generation_", "temperature", "top_", "num_beams", "max_length"), GENERATE),
    **dict.fromkeys(("max_new_tokens", "repetition_penalty", "length_penalty"), GENERATE),
}
# right values where the default is null or would not be read
SAMPLES: dict[str, Any] = {
    "model_name_or_path": None,
    "additional_target": "embed_tokens",
    "lora_alpha": 16,
    "lora_dropout": 0.1,
    "module_dropout": 0.1,
    "loraplus_lr_ratio": 16.0,
    "max_samples": 8,
    "preprocessing_num_workers": 1,
    "preprocessing_batch_size": 8,
    "interleave_probs": "0.5,0.5",
    "mix_strategy": "interleave_under",
    "max_steps": 2,
    "warmup_steps": 1.0,
    "warmup_ratio": 0.1,
    "weight_decay": 0.1,
    "neftune_noise_alpha": 5.0,
    "label_smoothing_factor": 0.1,
    "torch_empty_cache_steps": 1,
    "eval_accumulation_steps": 1,
    "save_total_limit": 1,
    "data_seed": 1,
    "dataloader_prefetch_factor": 2,
    "dataloader_num_workers": 1,
    "early_stopping_steps": 2,
    "metric_for_best_model": "eval_loss",
    "num_train_epochs": 1.0,
    "eval_num_beams": 1,
    "generation_max_length": 64,
    "generation_num_beams": 1,
    "freeze_trainable_layers": 1,
    "oft_block_size": 8,
    "moe_aux_loss_coef": 0.1,
    "ld_alpha": 0.5,
    "dpo_label_smoothing": 0.1,
    "pref_ftx": 0.1,
    "simpo_gamma": 0.5,
    "lr_scheduler_kwargs": {"num_cycles": 1},
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "include_for_metrics": ["loss"],
    "label_names": ["labels"],
    "ddp_bucket_cap_mb": 25,
    "quantization_bit": 4,
    "ref_model_quantization_bit": 4,
    "reward_model_quantization_bit": 4,
    "badam_start_block": 1,
    "hub_strategy": "every_save",
    "run_name": "run",
    "default_system": "You answer.",
    "tool_format": "qwen",
    "optim_args": "",
    "ddp_backend": "gloo",
    "mixture_of_depths": "convert",
    "eval_dataset": "rows",
    "export_quantization_bit": 4,
    "freeze_extra_modules": "norm",
    "adam_epsilon": 1e-8,
}
# never read by a run of one process on a CPU without further packages; the parser's answer is all there is
UNREAD = (
    *("export_", "vllm_", "sglang_", "infer_", "kt_", "swanlab_", "ppo_", "reward_"),
    *("quantization_method", "quantization_device_map", "hyper_parallel_", "fp8_", "ray_", "master_", "image_"),
    *("video_", "audio_", "hub_", "trackio_"),
    *(
        "fsdp",
        "deepspeed",
        "ddp_b",
        "ddp_f",
        "ddp_s",
        "local_rank",
        "push_to_hub",
        "parallelism_config",
        "accelerator_config",
    ),
    *("use_audio_in_video", "crop_to_patches", "mixture_of_depths", "resume_from_checkpoint", "tokenized_path"),
    *("do_sample", "skip_special_tokens", "generation_config", "offload_folder", "adapter_", "torch_compile"),
    *("torchdynamo", "use_unsloth", "enable_liger", "liger_", "use_liger", "ref_model"),
)
# function on the stack -> phase in which the run failed, last one first
PHASES = (
    ("v", {"_save_checkpoint", "save_model"}),
    ("e", {"evaluate", "_evaluate"}),
    ("s", {"training_step"}),
    ("m", {"load_model"}),
    ("d", {"get_dataset", "load_tokenizer", "get_template_and_fix_tokenizer"}),
    ("p", {"get_train_args", "read_args", "get_ray_args"}),
)


def sample(name: str, entry: dict[str, Any]) -> Any:
    """A right value of a key that lets the run pass."""
    if name in SAMPLES:
        return SAMPLES[name]
    if entry["type"] == "bool":
        return True
    return BASE.get(name, entry.get("default"))


def value(kind: str, right: Any, entry: dict[str, Any]) -> Any:
    """A value of one kind, as near to the right one as its kind allows."""
    number = right if isinstance(right, (int, float)) and not isinstance(right, bool) else 3
    return {
        "text": "banana",
        "quoted": "false" if entry["type"] == "bool" else str(right),
        "int": 1 if entry["type"] == "bool" else int(number),
        "float": 0.5 if entry["type"] == "bool" else int(number) + 0.5,
        "whole": float(int(number)),
        "true": True,
        "list": right.split(",") if isinstance(right, str) else ["banana" if right is None else right],
        "dict": {"banana": right},
        "null": None,
        "false": False,
        **NUMBERS,
    }[kind]


def wrong(entry: dict[str, Any]) -> list[str]:
    """Kinds that do not fit the declared type, and text where only certain texts are right."""
    fits = set().union(*(FITS[name] for name in entry["type"].split("|")))
    fits |= {"null"} if entry["optional"] else set()
    fits -= {"text"} if entry["choices"] else set()
    fits |= set() if {"int", "float"} & set(entry["type"].split("|")) else NUMBERS.keys()
    return [kind for kind in KINDS if kind not in fits]


def context(name: str) -> dict[str, Any]:
    """Settings under which a key is read."""
    matches = [settings for start, settings in CONTEXT.items() if name.startswith(start)]
    return {**BASE, **(matches[0] if matches else {})}


def attempt(recipe: dict[str, Any] | str, train: bool) -> tuple[str, str]:
    """Run one recipe, its settings or a file, in a fork: "." when it passes, else the phase it failed in, and why."""
    shutil.rmtree("out", ignore_errors=True)  # a model card of LoRA left here would fail a full run
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, json.dumps(_outcome(recipe, train)).encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], SECONDS)
    answer = os.read(reader, 65536) if ready else b""
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    outcome, message = json.loads(answer) if answer else ("h", "did not end")
    return outcome, message


def _outcome(recipe: dict[str, Any] | str, train: bool) -> tuple[str, str]:
    sys.argv = ["llamafactory-cli", *([recipe] if isinstance(recipe, str) else [])]
    settings = None if isinstance(recipe, str) else recipe
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        if train:
            import_module("llamafactory.train.tuner").run_exp(settings)
            if message := _untrained(Path("out")):
                return "n", message
        else:
            import_module("llamafactory.hparams").get_train_args(settings)
    except BaseException as error:  # any end of the run is an outcome
        names = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
        phase = next((letter for letter, functions in PHASES if functions & names), "t")
        return phase, f"{type(error).__name__}: {error}"[:200]
    return ".", ""


def _untrained(output: Path) -> str:
    """Why what a run has saved is not trained: it made no step, or its weights are not finite. Empty where it is."""
    state, torch = output / "trainer_state.json", import_module("torch")
    if state.is_file() and json.loads(state.read_text())["global_step"] == 0:
        return "no step was made"
    for path in output.glob("*.safetensors"):
        for name, tensor in import_module("safetensors.torch").load_file(path).items():
            if not torch.isfinite(tensor).all():
                return f"weights that are not finite: {name}"
    return ""


def write_data(folder: Path) -> None:
    """Data of each stage, and their registry."""
    rows = [{"instruction": f"Say {n}.", "input": "", "output": f"It is {n}."} for n in range(16)]
    pairs = [{**row, "chosen": row["output"], "rejected": "No."} for row in rows]
    judged = [{**row, "kto_tag": n % 2 == 0} for n, row in enumerate(rows)]
    ranked = {"ranking": True, "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}}
    told = {"columns": {"prompt": "instruction", "response": "output", "kto_tag": "kto_tag"}}
    prose = [{"text": " ".join(f"This is sentence {n} of {m}." for n in range(40))} for m in range(16)]
    (folder / "data").mkdir()
    info = {"rows": {}, "more": {}, "pairs": ranked, "judged": told, "prose": {"columns": {"prompt": "text"}}}
    contents = {"rows": rows, "more": rows, "pairs": pairs, "judged": judged, "prose": prose}
    for name, content in contents.items():
        (folder / "data" / f"{name}.json").write_text(json.dumps(content))
        info[name] = {"file_name": f"{name}.json", **info[name]}
    (folder / "data" / "dataset_info.json").write_text(json.dumps(info))


def prepare(folder: Path) -> None:
    """The data, the working directory, and the modules that every run needs."""
    write_data(folder)
    os.chdir(folder)
    import_module("llamafactory.train.tuner")
    import_module("torch").set_num_threads(1)


def warm() -> None:
    """Import what a run imports late (found by one run in a fork), so that the forks need not."""
    if os.fork() == 0:
        _outcome(BASE, train=True)
        forks.leave(Path("modules"))
        os._exit(0)
    os.wait()
    forks.take(Path("modules"))


def control(name: str, right: Any) -> dict[str, Any]:
    """The recipe that must pass before the wrong values of a key can say anything."""
    recipe = context(name)
    return recipe if right is None else {**recipe, name: right}


def study(model: str, train: bool, result: Path, only: list[str]) -> None:
    """Find the outcome of every key and kind, one letter each, in the order of KINDS, and write them as they come."""
    known = json.loads(result.read_text())["outcomes"] if result.is_file() else {}
    BASE["model_name_or_path"] = SAMPLES["model_name_or_path"] = model
    if train:
        warm()
    table = json.loads(ARGUMENTS.read_text())["arguments"]
    names = only or [name for name, entry in table.items() if PAIR in entry.get("in", [PAIR])]
    order = ("int", "float", "str", "bool")
    for name in sorted(names, key=lambda each: order.index(table[each]["type"]) if table[each]["type"] in order else 2):
        before = known.get(name, "").ljust(len(KINDS), "?")
        known[name] = "".join(judge(name, table[name], train, before))
        if known[name] != before:
            write(known, result)


def judge(name: str, entry: dict[str, Any], train: bool, before: str) -> Iterator[str]:
    """Letters of one key; what an earlier run found is kept."""
    right = sample(name, entry)
    reference: tuple[str, str] | None = None
    for kind, letter in zip(KINDS, before, strict=True):
        deep = train and not name.startswith(UNREAD)
        if kind not in wrong(entry):
            yield "-"
        elif letter not in ("?", "r") or (letter == "r" and not deep):
            yield letter
        else:
            outcome = attempt({**context(name), name: value(kind, right, entry)}, deep)
            print(f"{name} {kind}: {' '.join(outcome)}", flush=True)
            if outcome[0] != "." and reference is None:
                reference = attempt(control(name, right), deep)
            same = outcome[0] != "." and outcome == reference
            yield "?" if same else "r" if outcome[0] == "." and not deep else outcome[0]


def write(outcomes: dict[str, str], result: Path) -> None:
    """Store the outcomes with the versions they hold for."""
    packages = ("llamafactory", "transformers", "torch", "peft", "trl", "accelerate", "datasets")
    source = {name: version(name) for name in packages}
    lines = ",\n".join(f'"{name}":"{letters}"' for name, letters in sorted(outcomes.items()))
    head = f'"source": {json.dumps(source)},\n"kinds": {json.dumps(KINDS)},\n'
    result.write_text(f'{{\n{head}"outcomes": {{\n{lines}\n}}\n}}\n')


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the tiny model")
    parser.add_argument("--train", action="store_true", help="train, not only parse")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the outcomes are kept")
    parser.add_argument("keys", nargs="*", help="keys to run; default: all")
    options = parser.parse_intermixed_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    model, result = str(options.model.resolve()), options.result.resolve()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        study(model, options.train, result, options.keys)
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
