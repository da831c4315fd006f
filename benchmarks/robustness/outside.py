"""Files outside of a repository, of every kind that a recipe can name, with a word in each that nobody may be shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from validator.check.checking import check_files
from validator.knowledge import tables
from validator.output.findings import REPORT_FORMATS

WORD = "S3CRET"
# In a recipe and in the files: the folder outside.
OUT = "$OUT"
_RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "template": "qwen", "dataset": "mine", "dataset_dir": "data", "output_dir": "saves/x", "bf16": True,
}  # fmt: skip
_CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
_ENGINE = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
_SHARDED = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": {"fsdp_version": 2}}
_ENTRY = ("file_name", "formatting", "ranking", "subset", "split", "folder", "num_samples", "columns", "tags",
          "hf_hub_url", "script_url", "cloud_file_name")  # fmt: skip
_ROW = {"instruction": "a", "input": "", "output": "b"}
_PARTS = ("messages", "conversations", "images", "chosen", "kto_tag", "tools")
_SHAPES = ("torch_dtype", "architectures", "quantization_config", "auto_map", "rope_scaling", "vision_config",
           "text_config", "sliding_window", "tie_word_embeddings", "num_experts", "layer_types")  # fmt: skip
_TOKENS = ("chat_template", "tokenizer_class", "eos_token", "added_tokens_decoder")
_ADAPTER = ("base_model_name_or_path", "modules_to_save", "task_type")
_STATE = ("epoch", "train_batch_size", "num_train_epochs", "save_steps", "log_history")
_BROKEN = (f"{WORD}: [", f'{{"a": "{WORD}",}}', f"&{WORD} [*{WORD}2]", f"!!{WORD} x", f"a: !{WORD} b", WORD)


class Case(NamedTuple):
    """Files that lie outside, and the keys of the recipe that name them. `kind` is what they are."""

    kind: str
    files: dict[str, str]
    keys: dict[str, Any]


def cases() -> Iterator[Case]:
    """Every file with each of its keys at values of each type."""
    for kind in (_engines, _registries, _rows, _models, _checkpoints, _broken):
        yield from kind()


def _spoilt(base: dict[str, Any], *keys: str) -> Iterator[str]:
    """JSON of the object with each key of its own, each of those given and one that nobody knows, at values that hold
    the word wherever text can stand."""
    for key in (*base, *keys, WORD):
        for value in (WORD, [WORD], {WORD: WORD}, [{WORD: [WORD]}], 3, -1.5, True, None):
            yield json.dumps({**base, key: value})


def _engines() -> Iterator[Case]:
    known = tables.json_table("deepspeed")
    for content in _spoilt(_ENGINE, *known["keys"]):
        yield Case("DeepSpeed file", {"ds.json": content}, {"deepspeed": f"{OUT}/ds.json"})
    for path, facts in known["blocks"].items():
        for key in (*facts["fields"], WORD):
            block: Any = {key: WORD}
            for part in reversed(path.split(".")):
                block = {part: block}
            yield Case("DeepSpeed file", {"ds.json": json.dumps({**_ENGINE, **block})}, {"deepspeed": f"{OUT}/ds.json"})
    for content in _spoilt({"min_num_params": 0}, "transformer_layer_cls_to_wrap", "xla", "fsdp_version"):
        named = {"fsdp": "full_shard auto_wrap", "fsdp_config": f"{OUT}/f.json"}
        yield Case("FSDP file", {"f.json": content}, named)
    for content in _spoilt(_SHARDED, *tables.yaml_table("accelerate")["keys"]):
        yield Case("accelerate file", {"a.yaml": yaml.safe_dump(json.loads(content))}, {"accelerate": f"{OUT}/a.yaml"})


def _registries() -> Iterator[Case]:
    rows = json.dumps([_ROW] * 3)
    for entry in _spoilt({"file_name": "rows.json"}, *_ENTRY):
        files = {"d/dataset_info.json": f'{{"mine": {entry}, "{WORD}": {{}}}}', "d/rows.json": rows}
        yield Case("registry", files, {"dataset_dir": f"{OUT}/d"})
        yield Case("registry", files, {"dataset_dir": f"{OUT}/d", "dataset": f"{WORD[:-1]}"})


def _rows() -> Iterator[Case]:
    for row in _spoilt(_ROW, *_PARTS):
        for form in ({}, {"formatting": "sharegpt"}, {"columns": {"prompt": "missing"}}):
            entry = {"mine": {"file_name": f"{OUT}/rows.json", **form}}
            yield Case("rows", {"rows.json": f"[{row}, {row}]"}, {"dataset_dir": entry})


def _models() -> Iterator[Case]:
    for content in _spoilt(_CONFIG, *_SHAPES):
        for method in ("lora", "full"):
            named = {"model_name_or_path": f"{OUT}/m", "finetuning_type": method}
            yield Case("model folder", {"m/config.json": content}, named)
    for content in _spoilt({}, *_TOKENS):
        files = {"m/config.json": json.dumps(_CONFIG), "m/tokenizer_config.json": content}
        yield Case("model folder", files, {"model_name_or_path": f"{OUT}/m"})
    for content in _spoilt({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}, *_ADAPTER):
        for key in ("adapter_name_or_path", "model_name_or_path"):
            yield Case("adapter", {"a/adapter_config.json": content}, {key: f"{OUT}/a"})


def _checkpoints() -> Iterator[Case]:
    state = json.dumps({"global_step": 3, "max_steps": 9})
    adapter = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "Qwen/Qwen3-8B"}
    for content in _spoilt(adapter, *_ADAPTER):
        yield from _saved({"adapter_config.json": content, "adapter_model.safetensors": _EMPTY, _STATES: state})
    for content in _spoilt({"global_step": 3, "max_steps": 9}, *_STATE):
        yield from _saved({"config.json": json.dumps(_CONFIG), "model.safetensors": _EMPTY, _STATES: content})
    index = json.dumps({"weight_map": {WORD: f"{WORD}.safetensors"}})
    yield from _saved({"model.safetensors.index.json": index, "model.safetensors": _EMPTY, _STATES: state})


_STATES = "trainer_state.json"
_EMPTY = "\x02\0\0\0\0\0\0\0{}"


def _saved(files: dict[str, str]) -> Iterator[Case]:
    there = {f"o/checkpoint-3/{name}": text for name, text in files.items()}
    for asked in (True, f"{OUT}/o/checkpoint-3"):
        named = {"output_dir": f"{OUT}/o", "lora_target": "v_proj", "resume_from_checkpoint": asked}
        yield Case("checkpoint", there, named)
    yield Case("checkpoint", there, {"output_dir": f"{OUT}/o"})


def _broken() -> Iterator[Case]:
    for text in _BROKEN:
        for key, name in (("deepspeed", "x.json"), ("fsdp_config", "x.json"), ("accelerate", "x.yaml")):
            yield Case("broken file", {name: text}, {key: f"{OUT}/{name}"})
        for name in ("config.json", "adapter_config.json", "tokenizer_config.json"):
            files = {"m/config.json": json.dumps(_CONFIG), f"m/{name}": text}
            yield Case("broken file", files, {"model_name_or_path": f"{OUT}/m"})
        yield Case("broken file", {"d/dataset_info.json": text}, {"dataset_dir": f"{OUT}/d"})
        for name in ("rows.json", "rows.jsonl", "rows.csv"):
            yield Case("broken file", {name: text}, {"dataset_dir": {"mine": {"file_name": f"{OUT}/{name}"}}})


def laid_out(case: Case, out: Path) -> str:
    """Write the files into a folder; the text of a recipe that names them."""
    for name, text in case.files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(OUT, str(out)), "utf-8")
    keys = dict(case.keys)
    named = f"# accelerate: {keys.pop('accelerate')}\n" if "accelerate" in keys else ""
    body = yaml.safe_dump({**_RECIPE, **keys})
    return f"# /// recipe\n# machine: 8xa100-80g\n{named}# ///\n{body}".replace(OUT, str(out))


def shown(recipe: Path) -> str:
    """All that `check` prints of a recipe, in each format."""
    report = check_files([str(recipe)])
    return "".join(form(report) for form in REPORT_FORMATS.values())
