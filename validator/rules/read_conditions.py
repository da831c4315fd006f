"""When LLaMA-Factory reads a recipe's key: tables of keys, with the stage, the method or the other setting without
which nothing reads them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from functools import cache

from validator.knowledge import tables
from validator.run import launch_command
from validator.run.recipe_arguments import default_value
from validator.run.settings import RunSettings

Condition = Callable[[RunSettings], bool]
ConditionTable = tuple[tuple[str, Condition, str], ...]


def _method_is(*names: str) -> Condition:
    return lambda run: run.task.method in names


def _stage_is(*names: str) -> Condition:
    return lambda run: run.task.stage in names


def _is_given(key: str) -> Condition:
    return lambda run: run.args.is_set(key)


def _is_any_on(*keys: str) -> Condition:
    return lambda run: any(run.args.flag(key) for key in keys)


def _template_has(part: str) -> Condition:
    return lambda run: run.template is None or bool(run.template.get(part))


def _reads_media(run: RunSettings) -> bool:
    """True if the template takes media. Also true if the model does and the data hold some: then the template is wrong,
    which PTH121 and TRA605 report, and not the keys."""
    sees = run.model is not None and bool(run.model.arch.towers)
    return _template_has("media")(run) or (sees and any(each.attr.has_media for each in run.data.datasets))


def _has_towers(run: RunSettings) -> bool:
    return run.model is None or bool(run.model.arch.towers)


def _quantizes(run: RunSettings) -> bool:
    """True if the trained model, the reference model or the reward model is quantized. The two others take the recipe's
    other settings of quantization over (train/trainer_utils.py, create_ref_model, create_reward_model)."""
    others = ("ref_model_quantization_bit", "reward_model_quantization_bit")
    return run.quantization.is_quantized or any(run.args.is_set(key) for key in others)


def _quantizes_to_4_bits(run: RunSettings) -> bool:
    """True if bitsandbytes quantizes to 4 bits, or if nothing is quantized, which another table's row reports."""
    asked = run.quantization
    return not asked.is_requested or (asked.method, asked.bits) == ("bnb", 4)


def _evaluates(run: RunSettings) -> bool:
    return run.evaluation.runs or run.evaluation.predicts or run.args.flag("eval_on_start")


def _generates(run: RunSettings) -> bool:
    return run.evaluation.generates_text or run.task.stage == "ppo" or run.task.is_for_other_command


def _reports_to(run: RunSettings, tracker: str = "") -> bool:
    """True if the run reports to `tracker`, or to any tracker if none is named. Before transformers 5, a recipe that
    does not say reports to all trackers that are installed (transformers, training_args.py, report_to)."""
    if not run.args.is_set("report_to") and run.releases.requires(until="transformers 5.0.0"):
        return True
    names = set(run.args.words("report_to")) - {"", "none"}
    return bool(names & {tracker, "all"} if tracker else names) or (not tracker and run.args.flag("use_swanlab"))


def _sets_badam_mode(mode: str) -> Condition:
    return lambda run: not run.args.flag("use_badam") or run.args.get("badam_mode") == mode


def _reads_pref_loss(run: RunSettings) -> bool:
    """True for stage dpo. LLaMA Board writes the default beside stage kto, too (webui/runner.py)."""
    is_default = run.args.get("pref_loss") == default_value("pref_loss")
    return run.task.stage == "dpo" or (run.task.stage == "kto" and is_default)


def _knows_method(run: RunSettings) -> bool:
    """True if weights are quantized by any method. LLaMA Board writes the method into every evaluation, with or without
    bits (webui/runner.py), so there the method says nothing."""
    return _quantizes(run) or not run.task.trains


def _names_reference_model(run: RunSettings) -> bool:
    """True if `ref_model` is set. Without a reference, another table's row reports these keys."""
    return run.args.is_set("ref_model") or not run.task.needs_reference_logprobs


def _loads_reward_model(run: RunSettings) -> bool:
    """True if PPO loads a reward model of its own. Outside of PPO, another table's row reports these keys."""
    return run.task.stage != "ppo" or run.args.get("reward_model_type") == "full"


def _offloads_activations(run: RunSettings) -> bool:
    return run.activation_checkpointing.llamafactory_mode == "offloaded"


def _saves_on_the_way(run: RunSettings) -> bool:
    return run.args.get("save_strategy") not in ("no", False)


def _uses_ray(_run: RunSettings) -> bool:
    return launch_command.uses_ray()


def _trains_some_layers(run: RunSettings) -> bool:
    return run.task.method == "freeze" or run.args.flag("use_llama_pro")


def _uses_simpo(run: RunSettings) -> bool:
    return run.task.stage == "dpo" and run.args.get("pref_loss") == "simpo"


def _mixes_datasets(run: RunSettings) -> bool:
    """True if the recipe names several data sets, which LLaMA-Factory mixes (data/data_utils.py, merge_dataset)."""
    return any(len(run.args.words(key)) > 1 for key in ("dataset", "eval_dataset"))


def _trains(run: RunSettings) -> bool:
    """True also for a recipe that forgot `do_train`."""
    return not run.task.is_inference_only


def _counts_epochs(run: RunSettings) -> bool:
    return _trains(run) and run.args.number("max_steps") <= 0


def _samples_text(run: RunSettings) -> bool:
    return run.evaluation.generates_text and run.args.flag("do_sample")


def _uses_adam(run: RunSettings) -> bool:
    named = "adam" in str(run.args.get("optim")) and not {"use_galore", "use_apollo"} & set(run.requested_optimizers)
    return named and _trains(run)


def _smooths_labels(run: RunSettings) -> bool:
    """True if the loss is the Trainer's own; the other stages compute another (train/*/trainer.py)."""
    return _trains(run) and run.task.stage in ("pt", "sft")


def _smooths_preferences(run: RunSettings) -> bool:
    return run.task.stage == "dpo" and run.args.get("pref_loss") not in ("orpo", "simpo")


def _evaluates_on_the_way(run: RunSettings) -> bool:
    needs_evaluations = run.args.get("save_strategy") == "best" or run.args.is_set("early_stopping_steps")
    return needs_evaluations or run.evaluation.while_training


# Keys (patterns), when LLaMA-Factory reads them, and that in words, which name the keys that decide
READ_BY_METHOD: ConditionTable = (
    ("lora_rank lora_alpha lora_dropout", _method_is("lora"), "`finetuning_type: lora`"),
    ("lora_target additional_target create_new_adapter", _method_is("lora", "oft"), "`finetuning_type: lora` or `oft`"),
    ("oft_rank oft_block_size module_dropout", _method_is("oft"), "`finetuning_type: oft`"),
    ("freeze_trainable_modules freeze_extra_modules", _method_is("freeze"), "`finetuning_type: freeze`"),
    ("freeze_trainable_layers", _trains_some_layers, "`finetuning_type: freeze`"),
)
READ_BY_STAGE: ConditionTable = (
    ("pref_beta pref_ftx", _stage_is("dpo", "kto"), "`stage: dpo` or `kto`"),
    ("pref_bco_weight dpo_label_smoothing ld_alpha", _stage_is("dpo"), "`stage: dpo`"),
    ("pref_loss", _reads_pref_loss, "`stage: dpo`"),
    ("simpo_gamma", _uses_simpo, "`stage: dpo` and `pref_loss: simpo`"),
    ("kto_chosen_weight kto_rejected_weight", _stage_is("kto"), "`stage: kto`"),
    ("ppo_* reward_model*", _stage_is("ppo"), "`stage: ppo`"),
    ("ref_model*", lambda run: run.task.needs_reference_logprobs, "a stage with a reference model"),
    ("use_dft_loss use_eaft_loss use_asft_loss compute_accuracy", _stage_is("sft"), "`stage: sft`"),
)
# Whoever sets these up means to use what is switched off.
SWITCHED_OFF: ConditionTable = (
    ("galore_*", _is_any_on("use_galore"), "`use_galore: true`"),
    ("apollo_*", _is_any_on("use_apollo"), "`use_apollo: true`"),
    ("badam_*", _is_any_on("use_badam"), "`use_badam: true`"),
    ("swanlab_*", _is_any_on("use_swanlab"), "`use_swanlab: true`"),
    ("kt_*", _is_any_on("use_kt"), "`use_kt: true`"),
    # The parser says that the second key turns fp8 on, but sets it where nothing reads it (hparams/parser.py).
    ("fp8_backend fp8_enable_fsdp_float8_all_gather", _is_any_on("fp8"), "`fp8: true`"),
    ("quantization_type double_quantization", _quantizes, "`quantization_bit: 4`"),
    ("quantization_method", _knows_method, "`quantization_bit: 4`"),
    ("hyper_parallel_args", _is_any_on("use_hyper_parallel"), "`use_hyper_parallel: true`"),
    (
        "hub_model_id hub_strategy hub_always_push hub_revision push_to_hub_*",
        _is_any_on("push_to_hub"),
        "`push_to_hub: true`",
    ),
    ("ray_num_workers ray_init_kwargs master_addr master_port", _uses_ray, "`USE_RAY=1` in the environment"),
    ("ref_model_adapters ref_model_quantization_bit", _names_reference_model, "`ref_model`"),
    ("reward_model_adapters reward_model_quantization_bit", _loads_reward_model, "`reward_model_type: full`"),
)
READ_BY_SWITCH: ConditionTable = (
    ("profiler_*", _is_any_on("enable_torch_profiler"), "`enable_torch_profiler: true`"),
    ("pissa_iter", _is_any_on("pissa_init"), "`pissa_init: true`"),
    ("loraplus_lr_embedding", _is_given("loraplus_lr_ratio"), "`loraplus_lr_ratio`"),
    ("asft_alpha", _is_any_on("use_asft_loss"), "`use_asft_loss: true`"),
    ("eaft_alpha", _is_any_on("use_eaft_loss"), "`use_eaft_loss: true`"),
    ("buffer_size", _is_any_on("streaming"), "`streaming: true`"),
    ("adapter_folder", _is_given("adapter_name_or_path"), "`adapter_name_or_path`"),
    ("quantization_type", _quantizes_to_4_bits, "`quantization_bit: 4` with `quantization_method: bnb`"),
    ("liger_kernel_config", _is_any_on("use_liger_kernel"), "`use_liger_kernel: true`"),
    ("gradient_checkpointing_kwargs", _is_any_on("gradient_checkpointing"), "`gradient_checkpointing: true`"),
    ("use_unsloth_gc", _offloads_activations, "gradient checkpointing (`disable_gradient_checkpointing`)"),
    ("metric_for_best_model greater_is_better", _evaluates_on_the_way, "`eval_strategy`"),
    ("eval_steps", lambda run: run.evaluation.strategy == "steps", "`eval_strategy: steps`"),
    ("save_steps", lambda run: run.args.get("save_strategy") in ("steps", "best"), "`save_strategy: steps`"),
    ("save_total_limit", _saves_on_the_way, "`save_strategy: steps`"),
    ("logging_steps", lambda run: run.args.get("logging_strategy") == "steps", "`logging_strategy: steps`"),
    ("run_name", _reports_to, "`report_to`"),
    ("trackio_*", lambda run: _reports_to(run, "trackio"), "`report_to: trackio`"),
)
# Tools such as LLaMA Board, templates and habit write the defaults of these keys into recipes where nothing reads them,
# or what a default says is so anyway.
READ_BY_CONTEXT: ConditionTable = (
    ("image_* video_* audio_* use_audio_in_video crop_to_patches", _reads_media, "a template for images"),
    ("freeze_vision_tower freeze_multi_modal_* freeze_language_model", _has_towers, "a multimodal model"),
    ("enable_thinking preserve_thinking", _template_has("reasoning"), "a template of a reasoning model"),
    ("mix_strategy", _mixes_datasets, "several data sets"),
    ("double_quantization", _quantizes_to_4_bits, "`quantization_bit: 4` with `quantization_method: bnb`"),
    ("init_special_tokens", _is_given("new_special_tokens_config"), "`new_special_tokens_config`"),
    ("badam_switch_mode badam_switch_interval badam_start_block", _sets_badam_mode("layer"), "`badam_mode: layer`"),
    ("badam_update_ratio badam_mask_mode", _sets_badam_mode("ratio"), "`badam_mode: ratio`"),
    ("project", lambda run: _reports_to(run, "trackio"), "`report_to: trackio`"),
    (
        "eval_delay eval_accumulation_steps eval_on_each_dataset eval_use_gather_object batch_eval_metrics "
        "bf16_full_eval fp16_full_eval prediction_loss_only include_for_metrics",
        _evaluates,
        "an evaluation (`eval_strategy`)",
    ),
    (
        "do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty "
        "skip_special_tokens eval_num_beams generation_max_length generation_num_beams",
        _generates,
        "`predict_with_generate` and an evaluation",
    ),
)
# Whether these keys are read depends on what the run does. No rule says that they have no effect: habit writes them.
READ_BY_WORK: ConditionTable = (
    (
        "learning_rate weight_decay max_grad_norm warmup_ratio warmup_steps neftune_noise_alpha max_steps lora_alpha "
        "loraplus_lr_ratio eaft_alpha asft_alpha gradient_accumulation_steps per_device_train_batch_size",
        _trains,
        "`do_train: true`",
    ),
    ("num_train_epochs", _counts_epochs, "`do_train: true` without `max_steps`"),
    (
        "cutoff_len dataloader_prefetch_factor dataloader_num_workers",
        lambda run: not run.task.is_for_other_command,
        "`do_train: true`",
    ),
    ("ddp_timeout", lambda run: run.uses_deepspeed or run.batch.world_size > 1, "several devices"),
    ("adam_beta1 adam_beta2 adam_epsilon", _uses_adam, "an optimizer of the Adam family"),
    ("label_smoothing_factor", _smooths_labels, "`stage: sft` or `pt`"),
    ("dpo_label_smoothing", _smooths_preferences, "`pref_loss: sigmoid`"),
    ("per_device_eval_batch_size", lambda run: run.evaluation.runs, "an evaluation (`eval_strategy`)"),
    (
        "num_beams repetition_penalty eval_num_beams generation_max_length generation_num_beams",
        lambda run: run.evaluation.generates_text,
        "`predict_with_generate` and an evaluation",
    ),
    ("temperature top_p top_k", _samples_text, "`predict_with_generate` and `do_sample: true`"),
)

ALL_TABLES = (READ_BY_METHOD, READ_BY_STAGE, SWITCHED_OFF, READ_BY_SWITCH, READ_BY_CONTEXT, READ_BY_WORK)


@cache
def conditions_by_key(table: ConditionTable) -> Mapping[str, tuple[Condition, str]]:
    """Return the entries of a table by recipe key: the condition under which LLaMA-Factory reads the key, and that
    condition in words. In the table, a name with a star stands for all keys that begin with it."""
    names = tables.json_table("arguments")["arguments"]
    by_key: dict[str, tuple[Condition, str]] = {}
    for patterns, read, words in table:
        for pattern in patterns.split():
            keys = fnmatch.filter(names, pattern) if pattern.endswith("*") else [pattern]
            by_key.update(dict.fromkeys(keys, (read, words)))
    return by_key


def never_read(run: RunSettings, key: str) -> bool:
    """True if LLaMA-Factory does not read the key in this run, whatever its value."""
    return any(key in conditions and not conditions[key][0](run) for conditions in map(conditions_by_key, ALL_TABLES))
