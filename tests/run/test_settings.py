"""What LLaMA-Factory resolves from a recipe, question by question; and that nothing else in the package answers one."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.real_parser import Parser
from support.source import modules, nodes

from validator.knowledge import devices, models
from validator.knowledge.releases import ReleaseRange
from validator.recipe.recipe_file import load_recipe
from validator.run.dataset_registry import Dataset
from validator.run.quantization import Quantization, resolve_quantization
from validator.run.recipe_arguments import Arguments
from validator.run.settings import resolve, run_of_values

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "validator"
DPO = {"stage": "dpo"}
ASFT = {"use_asft_loss": True}
TEXT = {"predict_with_generate": True}
STEPS = {"eval_strategy": "steps", "eval_steps": 5, "val_size": 0.1}

# Values, question, answer. `test_the_real_parser_agrees` asks LLaMA-Factory's parser the same.
PARSED: list[tuple[dict[str, Any], str, Any]] = [
    # Written packing takes one token off everywhere; pt packs by itself and takes none off then.
    ({"stage": "pt"}, "batch.packing", True),
    ({"stage": "pt"}, "batch.kept_tokens", 2048),
    ({"stage": "pt", "packing": True}, "batch.packing", True),
    ({"stage": "pt", "packing": True}, "batch.kept_tokens", 2047),
    ({"stage": "pt", "packing": False}, "batch.packing", False),
    ({"stage": "pt", "packing": False}, "batch.kept_tokens", 2048),
    ({"stage": "pt", "packing": None}, "batch.packing", True),
    ({"stage": "pt", "packing": "false"}, "batch.packing", True),
    ({}, "batch.packing", False),
    ({}, "batch.kept_tokens", 2048),
    ({"packing": True}, "batch.packing", True),
    ({"packing": True}, "batch.kept_tokens", 2047),
    ({"packing": "false"}, "batch.packing", True),
    ({"neat_packing": True}, "batch.packing", True),
    ({"neat_packing": True}, "batch.kept_tokens", 2047),
    ({"neat_packing": True, "packing": False}, "batch.packing", True),
    ({"neat_packing": True}, "batch.neat_packing", True),
    ({"packing": True}, "batch.neat_packing", False),
    ({"stage": "dpo", "packing": True}, "batch.kept_tokens", 2047),
    ({"stage": "rm", "packing": True}, "batch.kept_tokens", 2047),
    ({"stage": "kto", "packing": 1}, "batch.kept_tokens", 2047),
    ({"stage": "kto", "packing": 0}, "batch.kept_tokens", 2048),
    # A strategy turns do_eval on.
    ({}, "evaluation.runs", False),
    (STEPS, "evaluation.runs", True),
    ({**STEPS, "eval_strategy": "epoch"}, "evaluation.runs", True),
    ({**STEPS, "eval_strategy": "no"}, "evaluation.runs", False),
    ({**STEPS, "do_eval": False}, "evaluation.runs", True),
    ({"do_eval": True, "val_size": 0.1}, "evaluation.runs", True),
    (STEPS, "evaluation.strategy", "steps"),
    ({"do_eval": True, "val_size": 0.1}, "evaluation.strategy", "no"),
    # The reference of dpo.
    (DPO, "task.needs_reference_logprobs", True),
    ({**DPO, "pref_loss": "hinge"}, "task.needs_reference_logprobs", True),
    ({**DPO, "pref_loss": "orpo"}, "task.needs_reference_logprobs", False),
    ({**DPO, "pref_loss": "simpo"}, "task.needs_reference_logprobs", False),
    ({"pref_loss": "sigmoid"}, "task.needs_reference_logprobs", False),
    ({"stage": "rm"}, "task.needs_reference_logprobs", False),
    # The words of fsdp.
    ({}, "fsdp_words", []),
    ({"fsdp": ""}, "fsdp_words", []),
    ({"fsdp": False}, "fsdp_words", []),
    ({"fsdp": True}, "fsdp_words", ["full_shard"]),
    ({"fsdp": " full_shard  offload "}, "fsdp_words", ["full_shard", "offload"]),
    ({"fsdp": ["full_shard", "auto_wrap"]}, "fsdp_words", ["full_shard", "auto_wrap"]),
    # An empty value leaves DeepSpeed off.
    ({"deepspeed": ""}, "uses_deepspeed", False),
    ({"deepspeed": {}}, "uses_deepspeed", False),
]

# What the parser does not say: read in the source that each property names, or seen in a run of a tiny model.
READ: list[tuple[dict[str, Any], str, Any]] = [
    # data/loader.py, _get_dataset_processor. A dpo run with cutoff_len 64 gave batches of 4 x 64 with packing true and
    # false, with 63 and 64 tokens of the longest row: nothing is packed, and the tensors stay as they are.
    ({**DPO, "packing": True}, "batch.packing", False),
    ({"stage": "rm", "packing": True}, "batch.packing", False),
    ({"stage": "kto", "packing": True}, "batch.packing", False),
    ({"stage": "ppo", "packing": True}, "batch.packing", False),
    (DPO, "task.uses_preference_pairs", True),
    ({"stage": "rm"}, "task.uses_preference_pairs", True),
    ({"stage": "kto"}, "task.uses_preference_pairs", False),
    ({}, "task.uses_preference_pairs", False),
    ({"val_size": 0.1}, "evaluation.splits_validation_set", True),
    ({"val_size": 1e-7}, "evaluation.splits_validation_set", False),
    ({}, "evaluation.splits_validation_set", False),
    (STEPS, "evaluation.while_training", True),
    ({"do_eval": True}, "evaluation.while_training", False),
    # train/sft/trainer.py: only sft writes text, and only where it evaluates or predicts.
    (TEXT, "evaluation.generates_text", False),
    ({**TEXT, **STEPS}, "evaluation.generates_text", True),
    (STEPS, "evaluation.generates_text", False),
    ({**TEXT, "do_predict": True}, "evaluation.generates_text", True),
    ({**TEXT, **STEPS, **DPO}, "evaluation.generates_text", False),
    # train/sft/workflow.py makes a reference for ASFT alone, train/trainer_utils.py none of LoRA's own.
    (ASFT, "task.needs_reference_logprobs", True),
    ({**ASFT, **DPO, "pref_loss": "orpo"}, "task.needs_reference_logprobs", False),
    ({"stage": "kto", "pref_loss": "orpo"}, "task.needs_reference_logprobs", True),
    ({"stage": "ppo"}, "task.needs_reference_logprobs", True),
    (ASFT, "task.frozen_model_copies", 0),
    ({**ASFT, "finetuning_type": "full"}, "task.frozen_model_copies", 1),
    ({**ASFT, "ref_model": "x"}, "task.frozen_model_copies", 1),
    (DPO, "task.frozen_model_copies", 0),
    ({**DPO, "finetuning_type": "oft"}, "task.frozen_model_copies", 1),
    ({**DPO, "ref_model": "x"}, "task.frozen_model_copies", 1),
    ({**DPO, "ref_model": "x", "pref_loss": "simpo"}, "task.frozen_model_copies", 0),
    ({"stage": "ppo", "reward_model_type": "full", "finetuning_type": "full"}, "task.frozen_model_copies", 2),
    # A run with `fp8: true` alone logged "fp8_enabled=False" and computed in 32 bits.
    ({}, "precision.mode", "fp32"),
    ({"bf16": True}, "precision.mode", "amp"),
    ({"fp16": True}, "precision.mode", "amp"),
    ({"fp8": True}, "precision.mode", "fp32"),
    ({"fp8": True, "fp8_backend": "te"}, "precision.mode", "amp"),
    ({"fp8": True, "fp8_backend": "te", **DPO}, "precision.mode", "fp32"),
    ({"fp8": True, "bf16": True}, "precision.mode", "amp"),
    ({"pure_bf16": True}, "precision.mode", "pure"),
    ({"use_badam": True, "bf16": True}, "precision.mode", "pure"),
    ({"bf16": True, "deepspeed": {"zero_optimization": {}}}, "precision.mode", "engine"),
    ({"bf16": True}, "precision.autocast", True),
    ({"fp16": True}, "precision.autocast", True),
    ({"fp16": True, "use_cpu": True}, "precision.autocast", False),
    ({"fp8": True}, "precision.autocast", False),
    ({"pure_bf16": True}, "precision.autocast", False),
    # model_utils/checkpointing.py: switched off there, the Trainer's own is the plain one.
    ({}, "activation_checkpointing.mode", "layer"),
    ({"use_unsloth_gc": True}, "activation_checkpointing.mode", "offloaded"),
    ({"disable_gradient_checkpointing": True}, "activation_checkpointing.mode", "off"),
    ({"gradient_checkpointing": False}, "activation_checkpointing.mode", "layer"),
    (
        {"disable_gradient_checkpointing": True, "gradient_checkpointing": True},
        "activation_checkpointing.mode",
        "layer",
    ),
    (
        {"disable_gradient_checkpointing": True, "gradient_checkpointing": True, "use_unsloth_gc": True},
        "activation_checkpointing.mode",
        "layer",
    ),
    # train/trainer_utils.py, create_custom_optimizer
    ({"use_muon": True, "loraplus_lr_ratio": 16.0}, "requested_optimizers", ["loraplus_lr_ratio", "use_muon"]),
    ({"use_muon": True, "use_galore": False}, "requested_optimizers", ["use_muon"]),
    ({}, "requested_optimizers", []),
    ({"deepspeed": "x.json"}, "uses_deepspeed", True),
    ({"deepspeed": 3}, "uses_deepspeed", False),
    ({"do_train": True}, "task.trains", True),
    ({}, "task.trains", False),
    ({"infer_backend": "vllm"}, "task.is_inference_only", True),
    ({"export_dir": "merged"}, "task.is_inference_only", True),
    ({"infer_backend": "huggingface", "do_train": True}, "task.is_inference_only", False),
    ({"export_dir": "merged", "stage": "ppo"}, "task.is_inference_only", False),
    ({}, "task.is_inference_only", False),
    ({"do_train": False}, "task.is_inference_only", True),
    ({"do_predict": True}, "task.is_inference_only", True),
    ({"do_eval": True}, "task.is_inference_only", True),
    ({"do_predict": True, "do_train": True}, "task.is_inference_only", False),
    ({"finetuning_type": "oft"}, "task.uses_adapter", True),
    ({"finetuning_type": "full"}, "task.uses_adapter", False),
    ({"per_device_train_batch_size": 0}, "batch.micro_batch", 1),
    ({"gradient_accumulation_steps": 0}, "batch.accumulation", 1),
    ({"template": "none_such"}, "template", None),
]


@every([*PARSED, *READ])
def test_answer(values: dict[str, Any], question: str, answer: object) -> None:
    given = attrgetter(question)(run_of_values(values))
    assert (list(given) if isinstance(given, tuple) else given) == answer


def test_the_template_is_the_entry_of_the_table() -> None:
    template = run_of_values({"template": "qwen3"}).template
    assert template is not None
    assert template["reasoning"]


def test_a_short_form_of_the_command_line_is_no_note_on_the_header_block(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("# /// recipe\n# machine: 8x910b\n# ///\nstage: sft\n")
    in_header, by_option = (resolve(load_recipe(str(path)), machine).machine for machine in (None, "2x8x910b"))
    assert in_header
    assert by_option
    assert (in_header.note is not None, by_option.note) == (True, None)


def test_the_machine_and_the_samples_make_the_steps() -> None:
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    settings = run_of_values(batch, {"samples": 1001}, devices.parse_machine("2x8xa100-80g", None))
    assert (settings.batch.world_size, settings.batch.effective_batch, settings.batch.steps_per_epoch(129)) == (
        16,
        128,
        2,
    )
    assert (settings.steps, settings.on_cpu) == (24, False)


# Where the real parser's answer to a question has another name.
SHOWN = {
    "batch.packing": "packs",
    "batch.neat_packing": "neat",
    "batch.kept_tokens": "cutoff_len",
    "evaluation.runs": "evaluates",
    "evaluation.strategy": "eval_strategy",
    "task.needs_reference_logprobs": "compares",
    "uses_deepspeed": "deepspeed",
    "fsdp_words": "fsdp",
}


@pytest.mark.slow
@pytest.mark.real
def test_the_real_parser_agrees(tmp_path: Path, parser: Parser) -> None:
    least = {"model_name_or_path": "x", "dataset": "x", "do_train": True, "use_cpu": True, "output_dir": "none_such"}
    paths = [tmp_path / f"{number}.yaml" for number in range(len(PARSED))]
    for path, (values, _, _) in zip(paths, PARSED, strict=True):
        path.write_text(json.dumps({**least, **values}))
    for (values, question, answer), real in zip(PARSED, parser(tmp_path, *paths), strict=True):
        assert "error" not in real, (values, real)
        given = real[SHOWN[question]]
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
    answer: Quantization = resolve_quantization(Arguments(values), ReleaseRange(), model)
    assert (answer.quantizes_at_load, answer.works, answer.kept_method, answer.weights) == (loads, works, kept, weights)


# Where the answer to a question about these keys stands. Reading one elsewhere is a second answer.
HOMES = {
    "stage": "task.stage",
    "finetuning_type": "task.method",
    "do_train": "task.trains",
    "packing": "batch.packing",
    "neat_packing": "batch.neat_packing",
    "eval_strategy": "evaluation.strategy",
    "do_eval": "evaluation.runs",
    "do_predict": "evaluation.predicts",
    "predict_with_generate": "evaluation.predict_with_generate",
    "use_asft_loss": "task.uses_asft_loss",
    "quantization_bit": "quantization",
    "quantization_method": "quantization",
    "fsdp": "fsdp",
    "deepspeed": "uses_deepspeed",
    "bf16": "precision.mode",
    "fp16": "precision.mode",
    "fp8_backend": "precision.compute_dtype",
    "disable_gradient_checkpointing": "activation_checkpointing.mode",
    "gradient_checkpointing": "activation_checkpointing.mode",
    "use_unsloth_gc": "activation_checkpointing.mode",
    "loraplus_lr_ratio": "requested_optimizers",
    "per_device_train_batch_size": "batch.micro_batch",
    "gradient_accumulation_steps": "batch.accumulation",
    "hf_hub_url": "source",
    "ms_hub_url": "source",
    "om_hub_url": "source",
    "script_url": "source",
    "cloud_file_name": "source",
}
# (module, function, key) whose very subject is what the recipe writes, and why.
SUBJECTS = {
    ("run/needed_packages", "_values", "fp8_backend"): "the package that the backend is",
    ("advise/changes", "_copy_commands", "deepspeed"): "the file that a change names",
    ("run/trained_model", "_run_that_writes", "do_train"): "of another recipe, as it is written",
    ("run/trained_model", "_saves_adapter", "do_train"): "of another recipe, as it is written",
    ("run/model_files", "hub_datasets", "hf_hub_url"): "the address itself",
    ("run/dataset_registry", "published", "hf_hub_url"): "the address itself",
    ("run/dataset_registry", "why_not_here", "hf_hub_url"): "the address itself",
    ("check/find_files", "_recipes_reading", "deepspeed"): "the file that the value names",
    ("catalogue/recipe_diff", "compare_recipes", "deepspeed"): "compares what two files say",
    ("catalogue/recipe_copy", "find_dependencies", "deepspeed"): "copies the file that the value names",
    ("run/dataset_registry", "package", "cloud_file_name"): "the package that the address needs",
    ("rules/dataset_columns", "cloud_address_refused", "cloud_file_name"): "the address itself",
    ("rules/dataset_columns", "script_refused", "script_url"): "the address itself",
    ("rules/fsdp_and_accelerate", "fsdp_word_unknown", "fsdp"): "the text as it is written",
    ("rules/no_effect", "packing_unread", "packing"): "written where nothing packs",
    (
        "rules/recipe_schema",
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
    (
        "rules/training_arguments",
        "accumulation_below_zero",
        "gradient_accumulation_steps",
    ): "the number as it is written",
    ("rules/training_arguments", "batch_not_positive", "per_device_train_batch_size"): "the number as it is written",
}
# The rooms that see a recipe's values, but for the homes themselves.
ROOMS = ("run", "rules", "launch", "dataset", "advise", "check", "catalogue", "plan", "commands", "cli")
SETTINGS = ("run/recipe_arguments", "run/hyperparameters", "run/quantization", "run/settings")


def reads(module: str) -> Iterator[tuple[str, str, str]]:
    """(module, function, key) of each homed key that the module reads by its name: `job.get("packing")`,
    `values.get("packing")`, `values["packing"]`."""
    for function in (node for node in nodes(module) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Attribute(attr="get" | "is_set" | "flag" | "number" | "words"), args=[key]):
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
    run = run_of_values({})
    for name in HOMES.values():
        assert hasattr(Dataset, name) or attrgetter(name)(run) is not Ellipsis
