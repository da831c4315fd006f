"""What LLaMA-Factory resolves from a recipe, question by question; and that nothing else in the package answers one."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.real_parser import Parser
from support.source import modules, nodes

from validator.knowledge import devices, models
from validator.run.dataset_registry import Dataset
from validator.run.hyperparameters import Settings
from validator.run.prediction import Job
from validator.run.quantization import Quantization, resolve_quantization

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "validator"
DPO = {"stage": "dpo"}
ASFT = {"use_asft_loss": True}
TEXT = {"predict_with_generate": True}
STEPS = {"eval_strategy": "steps", "eval_steps": 5, "val_size": 0.1}

# Values, question, answer. `test_the_real_parser_agrees` asks LLaMA-Factory's parser the same.
PARSED: list[tuple[dict[str, Any], str, Any]] = [
    # Written packing takes one token off everywhere; pt packs by itself and takes none off then.
    ({"stage": "pt"}, "packs", True), ({"stage": "pt"}, "length", 2048),
    ({"stage": "pt", "packing": True}, "packs", True), ({"stage": "pt", "packing": True}, "length", 2047),
    ({"stage": "pt", "packing": False}, "packs", False), ({"stage": "pt", "packing": False}, "length", 2048),
    ({"stage": "pt", "packing": None}, "packs", True), ({"stage": "pt", "packing": "false"}, "packs", True),
    ({}, "packs", False), ({}, "length", 2048),
    ({"packing": True}, "packs", True), ({"packing": True}, "length", 2047), ({"packing": "false"}, "packs", True),
    ({"neat_packing": True}, "packs", True), ({"neat_packing": True}, "length", 2047),
    ({"neat_packing": True, "packing": False}, "packs", True), ({"neat_packing": True}, "neat", True),
    ({"packing": True}, "neat", False),
    ({"stage": "dpo", "packing": True}, "length", 2047), ({"stage": "rm", "packing": True}, "length", 2047),
    ({"stage": "kto", "packing": 1}, "length", 2047), ({"stage": "kto", "packing": 0}, "length", 2048),
    # A strategy turns do_eval on.
    ({}, "evaluates", False), (STEPS, "evaluates", True), ({**STEPS, "eval_strategy": "epoch"}, "evaluates", True),
    ({**STEPS, "eval_strategy": "no"}, "evaluates", False), ({**STEPS, "do_eval": False}, "evaluates", True),
    ({"do_eval": True, "val_size": 0.1}, "evaluates", True),
    (STEPS, "evaluation", "steps"), ({"do_eval": True, "val_size": 0.1}, "evaluation", "no"),
    # The reference of dpo.
    (DPO, "compares", True), ({**DPO, "pref_loss": "hinge"}, "compares", True),
    ({**DPO, "pref_loss": "orpo"}, "compares", False), ({**DPO, "pref_loss": "simpo"}, "compares", False),
    ({"pref_loss": "sigmoid"}, "compares", False), ({"stage": "rm"}, "compares", False),
    # The words of fsdp.
    ({}, "fsdp_words", []), ({"fsdp": ""}, "fsdp_words", []), ({"fsdp": False}, "fsdp_words", []),
    ({"fsdp": True}, "fsdp_words", ["full_shard"]),
    ({"fsdp": " full_shard  offload "}, "fsdp_words", ["full_shard", "offload"]),
    ({"fsdp": ["full_shard", "auto_wrap"]}, "fsdp_words", ["full_shard", "auto_wrap"]),
    # An empty value leaves DeepSpeed off.
    ({"deepspeed": ""}, "engine", False), ({"deepspeed": {}}, "engine", False),
]  # fmt: skip

# What the parser does not say: read in the source that each property names, or seen in a run of a tiny model.
READ: list[tuple[dict[str, Any], str, Any]] = [
    # data/loader.py, _get_dataset_processor. A dpo run with cutoff_len 64 gave batches of 4 x 64 with packing true and
    # false, with 63 and 64 tokens of the longest row: nothing is packed, and the tensors stay as they are.
    ({**DPO, "packing": True}, "packs", False), ({"stage": "rm", "packing": True}, "packs", False),
    ({"stage": "kto", "packing": True}, "packs", False), ({"stage": "ppo", "packing": True}, "packs", False),
    (DPO, "pairs", True), ({"stage": "rm"}, "pairs", True), ({"stage": "kto"}, "pairs", False), ({}, "pairs", False),
    ({"val_size": 0.1}, "holds_back", True), ({"val_size": 1e-7}, "holds_back", False), ({}, "holds_back", False),
    (STEPS, "evaluates_while_training", True), ({"do_eval": True}, "evaluates_while_training", False),
    # train/sft/trainer.py: only sft writes text, and only where it evaluates or predicts.
    (TEXT, "generates", False), ({**TEXT, **STEPS}, "generates", True), (STEPS, "generates", False),
    ({**TEXT, "do_predict": True}, "generates", True), ({**TEXT, **STEPS, **DPO}, "generates", False),
    # train/sft/workflow.py makes a reference for ASFT alone, train/trainer_utils.py none of LoRA's own.
    (ASFT, "compares", True), ({**ASFT, **DPO, "pref_loss": "orpo"}, "compares", False),
    ({"stage": "kto", "pref_loss": "orpo"}, "compares", True), ({"stage": "ppo"}, "compares", True),
    (ASFT, "copies", 0), ({**ASFT, "finetuning_type": "full"}, "copies", 1), ({**ASFT, "ref_model": "x"}, "copies", 1),
    (DPO, "copies", 0),
    ({**DPO, "finetuning_type": "oft"}, "copies", 1), ({**DPO, "ref_model": "x"}, "copies", 1),
    ({**DPO, "ref_model": "x", "pref_loss": "simpo"}, "copies", 0),
    ({"stage": "ppo", "reward_model_type": "full", "finetuning_type": "full"}, "copies", 2),
    # A run with `fp8: true` alone logged "fp8_enabled=False" and computed in 32 bits.
    ({}, "precision", "fp32"), ({"bf16": True}, "precision", "amp"), ({"fp16": True}, "precision", "amp"),
    ({"fp8": True}, "precision", "fp32"), ({"fp8": True, "fp8_backend": "te"}, "precision", "amp"),
    ({"fp8": True, "fp8_backend": "te", **DPO}, "precision", "fp32"), ({"fp8": True, "bf16": True}, "precision", "amp"),
    ({"pure_bf16": True}, "precision", "pure"), ({"use_badam": True, "bf16": True}, "precision", "pure"),
    ({"bf16": True, "deepspeed": {"zero_optimization": {}}}, "precision", "engine"),
    ({"bf16": True}, "casts", True), ({"fp16": True}, "casts", True), ({"fp16": True, "use_cpu": True}, "casts", False),
    ({"fp8": True}, "casts", False), ({"pure_bf16": True}, "casts", False),
    # model_utils/checkpointing.py: switched off there, the Trainer's own is the plain one.
    ({}, "checkpointing", "layer"), ({"use_unsloth_gc": True}, "checkpointing", "offloaded"),
    ({"disable_gradient_checkpointing": True}, "checkpointing", "off"),
    ({"gradient_checkpointing": False}, "checkpointing", "layer"),
    ({"disable_gradient_checkpointing": True, "gradient_checkpointing": True}, "checkpointing", "layer"),
    ({"disable_gradient_checkpointing": True, "gradient_checkpointing": True, "use_unsloth_gc": True}, "checkpointing",
     "layer"),
    # train/trainer_utils.py, create_custom_optimizer
    ({"use_muon": True, "loraplus_lr_ratio": 16.0}, "optimizers", ["loraplus_lr_ratio", "use_muon"]),
    ({"use_muon": True, "use_galore": False}, "optimizers", ["use_muon"]), ({}, "optimizers", []),
    ({"deepspeed": "x.json"}, "engine", True), ({"deepspeed": 3}, "engine", False),
    ({"do_train": True}, "trains", True), ({}, "trains", False),
    ({"infer_backend": "vllm"}, "trains_nothing", True), ({"export_dir": "merged"}, "trains_nothing", True),
    ({"infer_backend": "huggingface", "do_train": True}, "trains_nothing", False),
    ({"export_dir": "merged", "stage": "ppo"}, "trains_nothing", False),
    ({}, "trains_nothing", False), ({"do_train": False}, "trains_nothing", True),
    ({"do_predict": True}, "trains_nothing", True), ({"do_eval": True}, "trains_nothing", True),
    ({"do_predict": True, "do_train": True}, "trains_nothing", False),
    ({"finetuning_type": "oft"}, "adapts", True), ({"finetuning_type": "full"}, "adapts", False),
    ({"per_device_train_batch_size": 0}, "micro_batch", 1), ({"gradient_accumulation_steps": 0}, "accumulation", 1),
    ({"template": "none_such"}, "template", None),
]  # fmt: skip


@every([*PARSED, *READ])
def test_answer(values: dict[str, Any], question: str, answer: object) -> None:
    given = getattr(Settings(values), question)
    assert (list(given) if isinstance(given, tuple) else given) == answer


def test_the_template_is_the_entry_of_the_table() -> None:
    template = Settings({"template": "qwen3"}).template
    assert template is not None
    assert template["reasoning"]


def test_the_machine_and_the_samples_make_the_steps() -> None:
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    settings = Job(batch, {"samples": 1001}, devices.parse_machine("2x8xa100-80g", None))
    assert (settings.world, settings.effective_batch, settings.steps_per_epoch(129)) == (16, 128, 2)
    assert (settings.steps, settings.on_cpu) == (24, False)


SHOWN = {"length": "cutoff_len", "evaluation": "eval_strategy", "fsdp_words": "fsdp", "engine": "deepspeed"}


@pytest.mark.slow
@pytest.mark.real
def test_the_real_parser_agrees(tmp_path: Path, parser: Parser) -> None:
    least = {"model_name_or_path": "x", "dataset": "x", "do_train": True, "use_cpu": True, "output_dir": "none_such"}
    paths = [tmp_path / f"{number}.yaml" for number in range(len(PARSED))]
    for path, (values, _, _) in zip(paths, PARSED, strict=True):
        path.write_text(json.dumps({**least, **values}))
    for (values, question, answer), real in zip(PARSED, parser(tmp_path, *paths), strict=True):
        assert "error" not in real, (values, real)
        given = real[SHOWN.get(question, question)]
        assert (bool(given) if isinstance(answer, bool) else given) == answer, (values, question)


@pytest.mark.parametrize(
    ("values", "checkpoint", "loads", "works", "kept", "weights"),
    [
        ({}, None, False, False, None, 0),
        ({"quantization_bit": 4}, None, True, True, None, 4),
        ({"quantization_bit": -4}, None, True, True, None, 0),
        ({"quantization_bit": 8, "quantization_method": "hqq"}, None, True, True, None, 8),
        ({"quantization_bit": 4, "quantization_method": "gptq"}, None, True, False, None, 0),
        ({}, "gptq", False, False, "gptq", 4),
        ({"quantization_bit": 8}, "awq", False, False, "awq", 4),
        ({}, "mxfp4", False, False, None, 0),  # both are loaded in 16 bits (model_utils/quantization.py)
        ({}, "fp8", False, False, None, 0),
    ],
)
def test_quantized_weights(
    values: Mapping[str, Any], checkpoint: str | None, loads: bool, works: bool, kept: str | None, weights: int
) -> None:
    model = models.find_model("qwen7b")._replace(quantized=checkpoint, quantized_bits=4 if checkpoint else 0)
    answer: Quantization = resolve_quantization(Settings(values), model)
    assert (answer.loads, answer.works, answer.kept, answer.weights) == (loads, works, kept, weights)


# Where the answer to a question about these keys stands. Reading one elsewhere is a second answer.
HOMES = {
    "stage": "stage", "finetuning_type": "method", "do_train": "trains", "packing": "packs", "neat_packing": "neat",
    "eval_strategy": "evaluation", "do_eval": "evaluates", "do_predict": "predicts",
    "predict_with_generate": "generative", "use_asft_loss": "anchors", "quantization_bit": "quantization",
    "quantization_method": "quantization", "fsdp": "fsdp", "deepspeed": "engine", "bf16": "precision",
    "fp16": "precision", "fp8_backend": "half", "disable_gradient_checkpointing": "checkpointing",
    "gradient_checkpointing": "checkpointing", "use_unsloth_gc": "checkpointing", "loraplus_lr_ratio": "optimizers",
    "per_device_train_batch_size": "micro_batch", "gradient_accumulation_steps": "accumulation",
    "hf_hub_url": "source", "ms_hub_url": "source", "om_hub_url": "source",
    "script_url": "source", "cloud_file_name": "source",
}  # fmt: skip
# (module, function, key) whose very subject is what the recipe writes, and why.
SUBJECTS = {
    ("advise/changes", "_copy_commands", "deepspeed"): "the file that a change names",
    ("run/trained_model", "_run_that_writes", "do_train"): "of another recipe, as it is written",
    ("run/trained_model", "_saves_adapter", "do_train"): "of another recipe, as it is written",
    ("run/hub_downloads", "hub_datasets", "hf_hub_url"): "the address itself",
    ("run/dataset_registry", "published", "hf_hub_url"): "the address itself",
    ("run/settings", "zero", "deepspeed"): "reads the configuration that the value names",
    ("catalogue/recipe_diff", "compare_recipes", "deepspeed"): "compares what two files say",
    ("catalogue/install", "find_dependencies", "deepspeed"): "copies the file that the value names",
    ("rules/dataset_columns", "_needed_package", "cloud_file_name"): "the package that the address needs",
    ("rules/dataset_columns", "cloud_address_refused", "cloud_file_name"): "the address itself",
    ("rules/dataset_columns", "script_refused", "script_url"): "the address itself",
    ("rules/fsdp_and_accelerate", "fsdp_word_unknown", "fsdp"): "the text as it is written",
    ("rules/no_effect", "packing_unread", "packing"): "written where nothing packs",
    (
        "rules/unknown_keys",
        "find_removed_and_foreign_keys",
        "stage",
    ): "whether another command's keys are meant, before values are judged",
    (
        "rules/optimizer_choice",
        "optimizer_with_deepspeed",
        "deepspeed",
    ): "refused where it is not null, even if it is empty",
    ("rules/file_paths", "_deepspeed_file_name", "deepspeed"): "the file name",
    ("rules/file_paths", "deepspeed_unreadable", "deepspeed"): "whether it is a file name or JSON",
    (
        "rules/number_formats",
        "checkpointing_stays_on",
        "disable_gradient_checkpointing",
    ): "against gradient_checkpointing",
    (
        "rules/number_formats",
        "checkpointing_stays_on",
        "gradient_checkpointing",
    ): "against disable_gradient_checkpointing",
    ("rules/numeric_ranges", "accumulation_below_zero", "gradient_accumulation_steps"): "the number as it is written",
    ("rules/training_arguments", "batch_not_positive", "per_device_train_batch_size"): "the number as it is written",
}
# The rooms that see a recipe's values, but for the homes themselves.
ROOMS = ("run", "rules", "launch", "dataset", "advise", "check", "catalogue", "plan", "commands", "cli")
SETTINGS = ("run/recipe_arguments", "run/training_task", "run/hyperparameters", "run/quantization")


def reads(module: str) -> Iterator[tuple[str, str, str]]:
    """(module, function, key) of each homed key that the module reads by its name: `job.get("packing")`,
    `values.get("packing")`, `values["packing"]`."""
    for function in (node for node in nodes(module) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Attribute(attr="get" | "has" | "flag" | "number" | "words"), args=[key]):
                    pass
                case ast.Subscript(value=ast.Name("values") | ast.Attribute(attr="values"), slice=key):
                    pass
                case _:
                    continue
            if isinstance(key, ast.Constant) and key.value in HOMES:
                yield module, function.name, str(key.value)


def test_a_question_that_has_a_home_is_answered_there_alone() -> None:
    seeing = {module for module in modules() if module.partition("/")[0] in ROOMS} - set(SETTINGS)
    elsewhere = {place for module in seeing for place in reads(module)}
    assert elsewhere == set(SUBJECTS), {place: HOMES[place[2]] for place in elsewhere ^ set(SUBJECTS)}


def test_every_home_is_there() -> None:
    assert all(hasattr(Job, name) or hasattr(Dataset, name) for name in HOMES.values())
