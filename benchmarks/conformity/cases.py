"""The recipes of report.py: settings for the tiny model and data of values.py.

A case is a name and the settings that LLaMA-Factory gets. Nothing here imports LLaMA-Factory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from conformity.entries import names
from conformity.texts import texts
from conformity.values import (
    ARGUMENTS,
    BASE,
    DPO,
    GENERATE,
    KINDS,
    KTO,
    PAIR,
    RESULT,
    ROOT,
    STREAM,
    context,
    sample,
    value,
)
from support import cases as rules

from validator.errors import RecipeError
from validator.recipe.recipe_file import parse_recipe
from validator.recipe.safe_read import decode_text

EXAMPLES = ROOT / "benchmarks" / "evidence" / "conformity" / "examples.json"
REFUSED = ROOT / "tests" / "fixtures" / "refused"
OF_TRAINING = {"stage", "do_train", "dataset"}
SEED = 20260
PAIRS = 260
DRAWN = 200
Settings = dict[str, Any]
Case = tuple[str, Settings]

# The rest of BASE, which these cases share.
TINY: Settings = {**BASE, "model_name_or_path": "model"}
PLAIN: Settings = {key: TINY[key] for key in TINY if key not in ("val_size", "eval_strategy", "eval_steps")}
FULL: Settings = {"finetuning_type": "full"}
FREEZE: Settings = {"finetuning_type": "freeze"}
OFT: Settings = {"finetuning_type": "oft"}
Z2: Settings = {"deepspeed": "deepspeed/ds_z2.json"}
Z3: Settings = {"deepspeed": "deepspeed/ds_z3.json"}
PPO: Settings = {"stage": "ppo", "reward_model": "model", "reward_model_type": "full"}

# Combinations judged at parse, some violating, some just not. Added to PLAIN.
PARSED: tuple[Settings, ...] = (
    {"val_size": 0.1, "eval_dataset": "rows"},
    {"val_size": 0.1, "dataset": None},
    {"eval_dataset": "rows", "eval_strategy": "epoch"},
    {"interleave_probs": "0.5,0.5", "dataset": "rows,more"},
    {"interleave_probs": "0.5,0.5", "mix_strategy": "interleave_under", "dataset": "rows"},
    {"interleave_probs": "0.5,0.5", "mix_strategy": "interleave_over", "dataset": "rows,more"},
    {"interleave_probs": "0.5,0.4", "mix_strategy": "interleave_over", "dataset": "rows,more"},
    {"streaming": True, "val_size": 0.5, **{"dataloader_num_workers": 1}},
    {**STREAM, "streaming": True, "max_samples": 4},
    {**STREAM, "streaming": True},
    {**STREAM, "streaming": True, "max_steps": -1},
    {"streaming": True, "dataloader_num_workers": 0},
    {"mask_history": True, "train_on_prompt": True},
    {"mask_history": True},
    {"train_on_prompt": True},
    {"finetuning_type": "qlora"},
    {"stage": "rl"},
    {"ref_model_quantization_bit": 5},
    {"reward_model_quantization_bit": 3},
    {"stage": "ppo"},
    {**PPO, "do_train": False},
    {**PPO, "report_to": "mlflow"},
    {**PPO, "reward_model_type": "lora", **FULL},
    {**DPO, "dpo_label_smoothing": 0.1, "pref_loss": "orpo"},
    {**DPO, "dpo_label_smoothing": 0.1},
    {**DPO, "pref_loss": "ipo"},
    {**DPO, "pref_loss": "simpo", "pissa_init": True},
    {**DPO, "pissa_init": True},
    {**KTO, "pissa_init": True},
    {**FULL, "use_llama_pro": True},
    {**FREEZE, "use_llama_pro": True},
    {"use_galore": True},
    {"use_apollo": True},
    {"use_badam": True},
    {**FULL, "use_galore": True, "use_badam": True},
    {**FULL, "use_galore": True, "use_apollo": True},
    {**FULL, "use_rslora": True},
    {**FULL, "use_dora": True},
    {**FULL, "pissa_init": True},
    {**FULL, "loraplus_lr_ratio": 16.0},
    {**OFT, "use_dora": True},
    {"use_rslora": True},
    {"use_dora": True},
    {"loraplus_lr_ratio": 16.0},
    {**DPO, **GENERATE},
    {**DPO, "neat_packing": True},
    {**KTO, "train_on_prompt": True},
    {**DPO, "mask_history": True},
    {"do_train": False, "do_predict": True, "eval_dataset": "rows"},
    {"do_train": False, "do_eval": True, "eval_dataset": "rows"},
    {"stage": "rm", "dataset": "pairs", "load_best_model_at_end": True, "val_size": 0.25, "eval_strategy": "steps"},
    {"stage": "rm", "dataset": "pairs"},
    {"dataset": None},
    {"do_eval": True},
    {"eval_strategy": "steps", "eval_steps": 2},
    {**GENERATE},
    {**GENERATE, "compute_accuracy": True, "val_size": 0.25},
    {**Z3, **GENERATE, "val_size": 0.25},
    {"quantization_bit": 4, "quantization_device_map": "auto"},
    {**Z3, "pissa_init": True},
    {**Z2, "pissa_init": True},
    {**Z3, "pure_bf16": True},
    {**Z2, "pure_bf16": True},
    {**Z3, "use_unsloth": True},
    {**Z2, **FULL, "use_galore": True},
    {**Z2, **FULL, "use_apollo": True},
    {**Z2, **FULL, "use_badam": True},
    {**Z2, **FULL, "use_badam": True, "badam_mode": "ratio"},
    {"fp8": True, "quantization_bit": 4},
    {"infer_backend": "vllm"},
    {**FULL, "adapter_name_or_path": "saves/none"},
    {**OFT, "adapter_name_or_path": "saves/none"},
    {**FULL, "quantization_bit": 4},
    {**FREEZE, "quantization_bit": 4},
    {"quantization_bit": 4, "pissa_init": True},
    {"quantization_bit": 4, "resize_vocab": True},
    {"quantization_bit": 4, "create_new_adapter": True},
    {"quantization_bit": 4, "create_new_adapter": True, "adapter_name_or_path": "saves/none"},
    {"quantization_bit": 4, "adapter_name_or_path": "saves/none,saves/other"},
    {"fp16": True},
    {"fp16": True, "bf16": False},
    {"load_best_model_at_end": True},
    {"load_best_model_at_end": True, "val_size": 0.25, "eval_strategy": "epoch"},
    {"load_best_model_at_end": True, "val_size": 0.25, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4},
    {"load_best_model_at_end": True, "val_size": 0.25, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 2},
    {"lr_scheduler_type": "reduce_lr_on_plateau"},
    {"logging_steps": 0},
    {"logging_steps": 1.5},
    {"save_steps": 1.5},
    {"warmup_steps": -1},
    {"warmup_steps": 0.5},
    {"warmup_ratio": 0.1},
    {"dataloader_prefetch_factor": 2},
    {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 1},
    {"fsdp": "full_sharding"},
    {"fsdp": "offload"},
    {"lr_scheduler_type": "cosin"},
    {"optim": "adamw"},
    {"save_strategy": "step"},
    {"report_to": "trackio", "project": ""},
    {"deepspeed": "deepspeed/none.json"},
    {"deepspeed": "{broken"},
    {"fsdp_config": "none.json"},
    {"accelerator_config": "none.json"},
    {"export_quantization_bit": 4},
    {"image_max_pixels": 16},
    {"video_max_pixels": 16},
    {"no_such_key": 1},
    {"leraning_rate": 1e-4},
    {"per_device_train_batch_size": "2"},
    {"template": "qwen9"},
    {"tool_format": "none"},
    {"dataset": "absent"},
    {"dataset": "pairs"},
    {"dataset": "judged"},
    {"stage": "dpo"},
    {"stage": "kto"},
    {"cutoff_len": 100, "packing": True},
    {"cutoff_len": 104, "packing": True},
    {"cutoff_len": 100, "neat_packing": True},
    {"flash_attn": "fa3"},
    {"flash_attn": "sdpa"},
    {"flash_attn": "disabled"},
    {"lora_rank": 0},
    {"lora_target": "c_attn"},
    {"lora_target": "all,c_attn"},
    {"lora_target": "q_proj,c_attn"},
    {"lora_dropout": 1.5},
    {**FREEZE, "freeze_trainable_layers": 0},
    {**FREEZE, "freeze_trainable_layers": 99},
    {**FREEZE, "freeze_trainable_modules": "attention"},
    {**FREEZE, "freeze_trainable_layers": 3, "use_llama_pro": True},
    {"early_stopping_steps": 2},
    {"early_stopping_steps": 2, "load_best_model_at_end": True, "val_size": 0.25, "eval_strategy": "epoch",
     "save_strategy": "epoch"},
    {"val_size": 16},
    {"val_size": 100},
    {"val_size": 1.0},
    {"max_samples": 0},
    {"preprocessing_num_workers": 0},
    {"report_to": "nothing"},
    {"report_to": "none,wandb"},
    {"lr_scheduler_type": "cosine_with_min_lr"},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
    {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 1.0}},
    {"per_device_train_batch_size": 0},
    {"gradient_accumulation_steps": 0},
    {"learning_rate": -1.0},
    {"learning_rate": 0.0},
    {"metric_for_best_model": "eval_accuracy", "load_best_model_at_end": True, "val_size": 0.25,
     "eval_strategy": "epoch", "save_strategy": "epoch"},
    {"use_asft_loss": True},
    {"use_dft_loss": True},
    {"use_eaft_loss": True},
    {**FULL, "stage": "rm", "dataset": "pairs"},
    {"shift_attn": True},
    {"mixture_of_depths": "convert", **FULL},
    {**OFT, "oft_rank": 4},
    {**OFT, "oft_rank": 4, "oft_block_size": 0},
    {"optim": "adafactor"},
    {"optim": "lion_8bit"},
    {**FULL, "use_muon": True},
    {"resize_vocab": True, "add_tokens": "<a>,<b>"},
    {"rope_scaling": "linear", "cutoff_len": 4096},
    {"dataloader_pin_memory": False, "group_by_length": True},
    {"eval_strategy": "steps", "val_size": 0.25, "eval_steps": 1000},
    {"resume_from_checkpoint": "out/checkpoint-1"},
    {"resume_from_checkpoint": True},
    {"model_name_or_path": "saves/none"},
    {"adapter_name_or_path": "saves/none"},
    {"preprocessing_batch_size": 0},
    {"neftune_noise_alpha": 5.0},
    {"warmup_steps": 100},
    {"max_grad_norm": 0.0},
    {"num_train_epochs": 0.0, "max_steps": -1},
    {"max_steps": 0},
    {"tokenized_path": "tokens"},
    {"tokenized_path": "tokens", "streaming": True, **STREAM},
)  # fmt: skip

# What runs by itself, under DeepSpeed. Added to PLAIN.
SHARDED: tuple[Settings, ...] = (
    {**Z2, **FULL, "use_muon": True},
    {**Z3, **FULL, "use_muon": True},
    {**Z3, "use_muon": True},
    {**Z3, **FULL, "use_badam": True},
    {**Z2, **FULL, "optim": "adafactor"},
    {**Z3, **FULL, "optim": "adafactor"},
    {**Z2, **FULL, "use_adam_mini": True},
    {**Z3, **FULL},
    {**Z3, **FREEZE},
    {**Z3, **OFT},
    {**Z3, "use_dora": True},
    {**Z3, "loraplus_lr_ratio": 16.0},
    {**Z3, "use_llama_pro": True, "freeze_trainable_layers": 2},
    {**Z3, "quantization_bit": 4},
    {**Z3, "additional_target": "embed_tokens"},
    {**Z3, "resize_vocab": True, "add_tokens": "<a>,<b>"},
    {**Z3, **FULL, **DPO},
    {**Z3, **DPO},
    {**Z3, **KTO},
    {**Z3, "stage": "rm", "dataset": "pairs"},
    {**Z3, **FULL, "use_asft_loss": True},
    {**Z3, "neftune_noise_alpha": 5.0},
    {**Z3, "neat_packing": True},
    {**Z3, "bf16": False},
    {**Z3, "load_best_model_at_end": True, "val_size": 0.25, "eval_strategy": "epoch", "save_strategy": "epoch"},
)  # fmt: skip

# Beginnings of keys that are not drawn: they need a network, another machine, a package or minutes of compiling, or
# are how these runs are kept small and apart.
UNDRAWN = (
    *("push_to_hub", "hub_", "trackio", "swanlab", "use_swanlab", "ray_", "use_ray", "use_mca", "use_kt", "kt_"),
    *("use_hyper_parallel", "use_unsloth", "use_liger", "enable_liger", "torch_compile", "torchdynamo", "local_rank"),
    *("ddp_", "use_cpu", "overwrite_output_dir", "max_steps", "num_train_epochs", "export_", "infer_", "vllm_"),
    *("sglang_", "hf_hub", "ms_hub", "om_hub", "mixture_of_depths", "full_determinism", "tf32"),
)

# Settings of which each runs by itself beside TINY; pairs of them are drawn at random.
SINGLES: tuple[Settings, ...] = (
    FULL, FREEZE, OFT, DPO, KTO, {"stage": "rm", "dataset": "pairs"}, {"stage": "pt", "dataset": "prose"},
    {"packing": True}, {"neat_packing": True}, {"cutoff_len": 100}, {"mask_history": True}, {"train_on_prompt": True},
    {"streaming": True, **STREAM}, {"max_samples": 4}, {"val_size": 0.0, "eval_strategy": "no"}, {"max_steps": -1},
    {"dataset": "rows,more"}, {"mix_strategy": "interleave_under", "dataset": "rows,more"}, {"eval_dataset": "rows"},
    {"use_dora": True}, {"use_rslora": True}, {"pissa_init": True}, {"loraplus_lr_ratio": 16.0},
    {"use_llama_pro": True}, {"pure_bf16": True}, {"bf16": False}, {"upcast_layernorm": True}, {"quantization_bit": 4},
    {"load_best_model_at_end": True}, {"early_stopping_steps": 2}, {"save_strategy": "epoch"}, {"save_steps": 3},
    {"eval_strategy": "epoch"}, {"eval_steps": 1}, {"metric_for_best_model": "eval_loss"}, {"compute_accuracy": True},
    {"predict_with_generate": True}, {"eval_on_each_dataset": True}, {"do_train": False, "do_eval": True},
    {"resize_vocab": True}, {"add_tokens": "<a>,<b>"}, {"shift_attn": True}, {"flash_attn": "sdpa"},
    {"use_galore": True}, {"use_badam": True}, {"use_muon": True}, {"optim": "adafactor"}, {"neftune_noise_alpha": 5.0},
    {"use_dft_loss": True}, {"use_eaft_loss": True}, {"use_asft_loss": True}, {"disable_gradient_checkpointing": True},
    {"pref_loss": "orpo"}, {"pref_loss": "simpo"}, {"dpo_label_smoothing": 0.1}, {"pref_ftx": 0.1},
    {"fp8": True}, {"enable_thinking": False}, {"lr_scheduler_type": "reduce_lr_on_plateau"}, {"fp16": True},
    {"dataloader_num_workers": 1}, {"dataloader_prefetch_factor": 2}, {"gradient_accumulation_steps": 2},
    {"group_by_length": True}, {"save_only_model": True}, {"additional_target": "embed_tokens"}, Z2, Z3,
)  # fmt: skip


def combinations() -> Iterator[Case]:
    """The table of what is judged at parse, named by what is set."""
    yield from _named(PARSED)


def sharded() -> Iterator[Case]:
    """The table of what runs under DeepSpeed, named by what is set."""
    yield from _named(SHARDED)


def _named(table: tuple[Settings, ...]) -> Iterator[Case]:
    for settings in table:
        merged = {key: setting for key, setting in {**PLAIN, **settings}.items() if setting is not None}
        yield json.dumps(settings), merged


def pairs() -> Iterator[Case]:
    """Pairs of settings drawn with a fixed seed."""
    draw, seen = random.Random(SEED), set()
    while len(seen) < PAIRS:
        one, two = sorted(draw.sample(range(len(SINGLES)), 2))
        if (one, two) not in seen and not SINGLES[one].keys() & SINGLES[two].keys():
            settings = {**SINGLES[one], **SINGLES[two]}
            yield json.dumps(settings), {**TINY, **settings}
        seen.add((one, two))


def drawn() -> Iterator[Case]:
    """Two arguments at a time, each with a value of its type, both drawn with a fixed seed: settings nobody chose."""
    table = json.loads(ARGUMENTS.read_text())["arguments"]
    able = {
        name: values
        for name, entry in table.items()
        if PAIR in entry.get("in", [PAIR]) and not name.startswith(UNDRAWN) and (values := drawable(entry))
    }
    draw, seen = random.Random(SEED), set()
    while len(seen) < DRAWN:
        names = tuple(sorted(draw.sample(sorted(able), 2)))
        settings = {name: draw.choice(able[name]) for name in names}
        if names not in seen:
            yield json.dumps(settings), {**TINY, **settings}
        seen.add(names)


def drawable(entry: dict[str, Any]) -> tuple[Any, ...]:
    """Values of the declared type; none for text that is free, and for lists and mappings."""
    if entry["choices"]:
        return tuple(entry["choices"])
    values = {"bool": (True, False), "int": (0, 1, 2, 5, 16, 100), "float": (0.0, 0.1, 0.5, 1.0, 5.0)}
    return next((values[kind] for kind in entry["type"].split("|") if kind in values), ())


def ranges() -> Iterator[Case]:
    """Every argument that is a number: below zero, at zero and, for a float, above one, in a recipe that reads it."""
    for name, entry in json.loads(ARGUMENTS.read_text())["arguments"].items():
        kinds = set(entry["type"].split("|")) if PAIR in entry.get("in", [PAIR]) else set()
        for limit in (-1.0, 0.0, 1.5) if "float" in kinds else (-1, 0) if "int" in kinds else ():
            yield f"{name}: {limit}", {**context(name), "model_name_or_path": "model", name: limit}


def written() -> Iterator[Case]:
    """Recipes as people write and mistype them, each byte as a character."""
    for name, text in texts().items():
        yield name, {"bytes": text.decode("latin-1")}


def entries() -> Iterator[Case]:
    """One entry of the registry each."""
    for name in names():
        yield name, {**PLAIN, "dataset": name}


def rule_cases() -> Iterator[Case]:
    """The recipes of the rules' tests, on the tiny model and data where the rule lets them, and the refused ones."""
    for case in rules.read():
        if case.code[:3] not in ("DAT", "PTH", "DEV") and case.path.endswith(".yaml"):
            yield from readable(str(case), case.files[case.path], tuple(case.files))
    for path in sorted(REFUSED.glob("*.yaml")):
        yield from readable(f"refused/{path.stem}", path.read_bytes(), ())


def readable(name: str, content: bytes, files: tuple[str, ...]) -> Iterator[Case]:
    """The case where the recipe can be read and is no file of another command, such as chat, with the paths that
    rule_files gives the files beside it."""
    with suppress(RecipeError):
        document = parse_recipe(name, decode_text(content))
        if document.readable and document.values.keys() & OF_TRAINING:
            settings = {str(key): each for key, each in document.values.items()}
            beside = {
                key: f"rules/{name}/{each}"
                for key, each in settings.items()
                if isinstance(each, str) and any(f"{file}/".startswith(f"{each}/") for file in files)
            }
            yield name, adapted(settings | beside)


def rule_files() -> Iterator[tuple[str, bytes]]:
    """Path and content of all that lies beside the recipes of the rules' tests."""
    for case in rules.read():
        for path, content in case.files.items():
            yield f"rules/{case}/{path}", content


def adapted(settings: Settings) -> Settings:
    """The recipe on the CPU, with the tiny model in place of an ordinary Qwen, and the tiny data."""
    stage = settings.get("stage", "sft")
    rows = {"dpo": "pairs", "rm": "pairs", "kto": "judged", "pt": "prose"}.get(str(stage), "rows")
    found = {"use_cpu": True, "report_to": "none", "overwrite_output_dir": True, **settings}
    found |= {"dataset_dir": "data", "output_dir": "out"}
    model = str(settings.get("model_name_or_path", ""))
    if model.startswith(("Qwen/Qwen2.5-", "Qwen/Qwen3-")) and not model.endswith(("-AWQ", "-Int4", "A3B")):
        found["model_name_or_path"] = "model"
    for other in ("ref_model", "reward_model"):
        if str(settings.get(other)).startswith("Qwen/"):
            found[other] = "model"
    if isinstance(settings.get("dataset"), str):
        found["dataset"] = "rows,more" if rows == "rows" and "," in settings["dataset"] else rows
    if isinstance(settings.get("eval_dataset"), str):
        found["eval_dataset"] = rows
        metric = str(settings.get("metric_for_best_model", ""))
        found |= {"metric_for_best_model": f"eval_{rows}_loss"} if metric.count("_") > 1 else {}
    if found.get("num_train_epochs") == 1.0:
        found["num_train_epochs"] = 2.0
    steps = found.get("max_steps")
    if isinstance(steps, int) and steps > 2:
        found["max_steps"] = 2
    return found


def examples() -> Iterator[Case]:
    """LLaMA-Factory's own training examples, parsed with the tiny data and without a GPU."""
    for name, settings in json.loads(EXAMPLES.read_text())["examples"].items():
        found = adapted(settings)
        found["model_name_or_path"] = settings["model_name_or_path"]
        if "deepspeed" in found:
            found["deepspeed"] = found["deepspeed"].replace("examples/", "").replace("_config", "").replace("_fp8", "")
        yield name, found


def tiny_examples() -> Iterator[Case]:
    """The same examples on the tiny model: two steps of what they set, without images and DeepSpeed."""
    for name, settings in json.loads(EXAMPLES.read_text())["examples"].items():
        found = {**adapted(settings), "model_name_or_path": "model", "template": "qwen", "max_steps": 2}
        for key in ("preprocessing_num_workers", "dataloader_num_workers"):
            if key in found:
                found[key] = 1
        if "VL" not in settings["model_name_or_path"] and not {"use_ray", "use_kt"} & found.keys():
            yield name, {key: value for key, value in found.items() if key != "deepspeed"}


def values() -> Iterator[tuple[str, Settings, str]]:
    """Name, settings and outcome of every wrong value that values.py has run."""
    table = json.loads(ARGUMENTS.read_text())["arguments"]
    for name, letters in json.loads(RESULT.read_text())["outcomes"].items():
        for kind, letter in zip(KINDS, letters, strict=True):
            if letter not in "-?":
                right = "model" if name == "model_name_or_path" else sample(name, table[name])
                settings = {**context(name), "model_name_or_path": "model", name: value(kind, right, table[name])}
                yield f"{name} {kind}", settings, letter


GROUPS = {
    "rule": rule_cases,
    "combination": combinations,
    "sharded": sharded,
    "pair": pairs,
    "drawn": drawn,
    "range": ranges,
    "text": written,
    "entry": entries,
    "example": examples,
    "tiny example": tiny_examples,
}
