"""TRA4xx up to TRA417: the optimizer, the learning rate and its schedule, warm-up."""

from __future__ import annotations

from collections.abc import Mapping

from validator.finding import Place
from validator.knowledge import releases
from validator.knowledge.optimizers import OWN_OPTIMIZERS, optimizer_choice
from validator.recipe.suggestions import unknown_name
from validator.rules.rule import ERROR, WARNING, Findings, rename_key, rule
from validator.run.recipe_arguments import is_unusable_number
from validator.run.sample_counts import training_steps
from validator.run.schedule import WARMUP_SHARES_SINCE, warmup_steps
from validator.run.settings import RunSettings

_ATTENTION_TARGETS = {"all", "q_proj", "k_proj"}
# GaLore, APOLLO and BAdam; the first two can update layer by layer
OPTIMIZER_NAMES = {key: own.title for key, own in OWN_OPTIMIZERS.items() if own.whole_weights}
_LAYERWISE_KEYS = {key: own.layerwise_key for key, own in OWN_OPTIMIZERS.items() if own.layerwise_key}


def _active_optimizers(run: RunSettings) -> list[str]:
    return [key for key in OPTIMIZER_NAMES if run.args.flag(key)]


@rule("TRA401", ERROR)
def optimizer_with_lora(run: RunSettings) -> Findings:
    """GaLore, APOLLO or BAdam is combined with LoRA.

    Why: refused at parse, on every rank: they save memory of full fine-tuning.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: `finetuning_type: full`, or leave them out.
    """
    for key in _active_optimizers(run):
        if run.task.method == "lora":
            yield key, f"{OPTIMIZER_NAMES[key]} is refused with LoRA; set `finetuning_type: full`, or remove `{key}`"


@rule("TRA402", ERROR)
def two_optimizers(run: RunSettings) -> Findings:
    """Two of GaLore, APOLLO and BAdam are set.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: keep one.
    """
    active = _active_optimizers(run)
    if len(active) > 1 and run.task.method != "lora":
        found = f"{' and '.join(OPTIMIZER_NAMES[key] for key in active)} exclude each other"
        yield active[1], f"{found}; remove {' or '.join(f'`{key}`' for key in active)}"


@rule("TRA403", ERROR)
def optimizer_with_deepspeed(run: RunSettings) -> Findings:
    """GaLore or APOLLO is combined with DeepSpeed.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `deepspeed`, or use BAdam with ZeRO-3.
    """
    for key in ("use_galore", "use_apollo"):
        if run.task.method != "lora" and run.args.flag(key) and run.args.is_set("deepspeed"):
            yield key, f"{OPTIMIZER_NAMES[key]} does not work with DeepSpeed; remove `{key}` or `deepspeed`"


@rule("TRA404", ERROR)
def optimizer_not_distributed(run: RunSettings) -> Findings:
    """A layer-wise or partial optimizer is used on several devices.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: one device; GaLore and APOLLO without layer-wise updates; BAdam by layer with DeepSpeed ZeRO-3.
    """
    if run.task.method == "lora" or not (run.batch.world_size > 1 or run.uses_deepspeed):
        return
    for key, layerwise in _LAYERWISE_KEYS.items():
        if run.args.flag(key) and run.args.flag(layerwise) and not run.uses_deepspeed:
            found = f"layer-wise {OPTIMIZER_NAMES[key]} runs on one device, not {run.batch.world_size}"
            yield layerwise, f"{found}; set `{layerwise}: false`"
    if run.args.flag("use_badam") and run.args.get("badam_mode") == "ratio":
        remedy = "set `badam_mode: layer` and ZeRO-3, such as `deepspeed: deepspeed/ds_z3.json`"
        yield "badam_mode", f"`badam_mode: ratio` runs on one device only; {remedy}"
    elif run.args.flag("use_badam") and run.zero_stage != 3:
        yield "use_badam", "BAdam on several devices needs DeepSpeed ZeRO-3; set `deepspeed: deepspeed/ds_z3.json`"


@rule("TRA405", ERROR)
def optimizer_name_refused(run: RunSettings) -> Findings:
    """GaLore or APOLLO cannot take the place of the optimizer that `optim` names.

    Why: "unknown optim" when the trainer is built, after the data is tokenized and the model loaded on every rank; the
    default since torch 2.8, adamw_torch_fused, is refused too.
    Source: llamafactory/train/trainer_utils.py:_create_galore_optimizer,
    llamafactory/train/trainer_utils.py:_create_apollo_optimizer
    Fix: `optim: adamw_torch`; or `torch: "2.7"` in the header block, where that is what runs it.
    """
    written = "optim" in run.args.values
    names = {run.args.get("optim")} if written else run.possible_default_optimizers
    for key in _LAYERWISE_KEYS:
        refused = sorted(name for name in names if key not in optimizer_choice(name).replaced_by)
        if run.task.method != "lora" and run.args.flag(key) and refused and not run.uses_deepspeed:
            how = "" if written else ", the default since torch 2.8"
            text = f"{OPTIMIZER_NAMES[key]} does not support `optim: {refused[0]}`{how}; set `optim: adamw_torch`"
            yield "optim" if written else key, text


@rule("TRA406", ERROR)
def layerwise_accumulation(run: RunSettings) -> Findings:
    """Layer-wise updates are combined with gradient accumulation.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded.
    Source: llamafactory/train/trainer_utils.py:_create_galore_optimizer,
    llamafactory/train/trainer_utils.py:_create_apollo_optimizer
    Fix: `gradient_accumulation_steps: 1`.
    """
    for key, layerwise in _LAYERWISE_KEYS.items():
        steps = run.batch.accumulation
        if run.task.method != "lora" and run.args.flag(key) and run.args.flag(layerwise) and steps > 1:
            found = f"layer-wise {OPTIMIZER_NAMES[key]} updates at every backward pass"
            yield (
                "gradient_accumulation_steps",
                f"{found}, not after {steps} of them; set `gradient_accumulation_steps: 1`",
            )


@rule("TRA414", ERROR)
def ratio_refused(run: RunSettings) -> Findings:
    """BAdam by ratio does not work with this optimizer or this model.

    Why: it takes the numbers that plain Adam takes and no others, so adamw_torch_fused, the default since torch 2.8,
    ends in "unexpected keyword argument"; and it looks for a head of its own, which a model with tied embeddings has
    not. Both when the trainer is built, after the data is tokenized and the model loaded.
    Source: llamafactory/train/trainer_utils.py:_create_badam_optimizer
    Fix: `optim: adamw_torch`; for a model with tied embeddings `badam_mode: layer`.
    """
    if run.task.method == "lora" or not run.args.flag("use_badam") or run.args.get("badam_mode") != "ratio":
        return
    if run.model and run.model.arch.tied:
        found = f"`badam_mode: ratio` needs a separate output layer, and {run.model.name} ties it to the embedding"
        yield "badam_mode", f"{found}; set `badam_mode: layer`"
    elif not optimizer_choice(run.args.get("optim")).plain_arguments:
        at = "optim" if "optim" in run.args.values else "badam_mode"
        yield at, f"`badam_mode: ratio` does not support `optim: {run.args.get('optim')}`; set `optim: adamw_torch`"


@rule("TRA415", ERROR)
def target_layers_missing(run: RunSettings) -> Findings:
    """GaLore or APOLLO is chosen by transformers' name for it, without the layers that it is for.

    Why: "you need to define optim_target_modules" when the trainer is built, after the data is tokenized and the model
    loaded on every rank.
    Source: transformers/trainer_optimizer.py:_setup_low_rank_optimizer
    Fix: `use_galore: true` or `use_apollo: true` with `optim: adamw_torch`; or `optim_target_modules: all-linear`.
    """
    name = str(run.args.get("optim"))
    if name.startswith(("galore_", "apollo_")) and not run.args.is_set("optim_target_modules"):
        instead = f"write `use_{name.partition('_')[0]}: true` in place of `optim`"
        yield "optim", f"`optim: {name}` needs `optim_target_modules`; set `optim_target_modules`, or {instead}"


@rule("TRA416", ERROR)
def adam_mini_with_adapter(run: RunSettings) -> Findings:
    """Adam-mini trains an adapter of attention layers.

    Why: it cuts every tensor of queries and keys by the model's heads, and an adapter's are too small for that: "shape
    is invalid for input of size" at the first step, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/train/trainer_utils.py:_create_adam_mini_optimizer
    Fix: `finetuning_type: full`, or remove `use_adam_mini`: an adapter's states are small anyway.
    """
    meets = run.task.method == "oft" or (run.task.method == "lora" and run.args.number("lora_rank") < 64)
    made = run.requested_optimizers[:1] == ["use_adam_mini"]
    if made and meets and _ATTENTION_TARGETS & {target.rpartition(".")[2] for target in run.args.words("lora_target")}:
        found = f"Adam-mini fails on {run.task.method} adapters of queries and keys"
        yield "use_adam_mini", f"{found}; remove `use_adam_mini`, or set `finetuning_type: full`"


# Keyword arguments of transformers' schedules (optimization.py); None: anything is passed on or nothing read
_ARGUMENTS_WITH_MIN_RATE = {"num_cycles", "min_lr", "min_lr_rate"}
_SCHEDULE_ARGUMENTS: Mapping[str, set[str] | None] = {
    "linear": set(),
    "cosine": {"num_cycles"},
    "cosine_with_restarts": {"num_cycles"},
    "polynomial": {"lr_end", "power"},
    "constant": None,
    "constant_with_warmup": None,
    "inverse_sqrt": {"timescale"},
    "cosine_with_min_lr": _ARGUMENTS_WITH_MIN_RATE,
    "cosine_warmup_with_min_lr": {*_ARGUMENTS_WITH_MIN_RATE, "warmup_lr_rate"},
    "warmup_stable_decay": {
        "num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"
    },
}  # fmt: skip


@rule("TRA408", ERROR)
def schedule_arguments_refused(run: RunSettings) -> Findings:
    """The learning-rate schedule lacks an argument, or gets one it does not know.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank.
    Source: transformers/optimization.py:get_scheduler, transformers/optimization.py:TYPE_TO_SCHEDULER_FUNCTION,
    transformers/optimization.py:get_cosine_with_min_lr_schedule_with_warmup
    Fix: `lr_scheduler_kwargs: {min_lr_rate: 0.1}` for schedules with a floor; no argument for linear.
    """
    name, given = str(run.args.get("lr_scheduler_type")), run.args.mapping("lr_scheduler_kwargs")
    known = _SCHEDULE_ARGUMENTS.get(name)
    if known is None or given is None:
        return
    unknown = sorted(set(given) - known)
    if unknown:
        place = Place(("lr_scheduler_kwargs", unknown[0]), at_key=True)
        yield place, unknown_name(f"{name} schedule argument", unknown[0], sorted(known))
    elif known >= _ARGUMENTS_WITH_MIN_RATE:
        floors = [key for key in ("min_lr", "min_lr_rate") if given.get(key) is not None]
        if len(floors) != 1:
            what = "takes `min_lr` or `min_lr_rate`, not both" if floors else "needs a lowest rate"
            at = "lr_scheduler_kwargs" if run.args.is_set("lr_scheduler_kwargs") else "lr_scheduler_type"
            yield at, f"`lr_scheduler_type: {name}` {what}; set `lr_scheduler_kwargs: {{min_lr_rate: 0.1}}`"


@rule("TRA409", ERROR)
def schedule_ends_above(run: RunSettings) -> Findings:
    """The polynomial schedule ends above the learning rate it starts from.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank. The default
    end is 1e-7.
    Source: transformers/optimization.py:get_polynomial_decay_schedule_with_warmup
    Fix: an `lr_end` below `learning_rate`.
    """
    given = run.args.mapping("lr_scheduler_kwargs") or {}
    end, rate = given.get("lr_end", 1e-7), run.args.number("learning_rate")
    if run.args.get("lr_scheduler_type") == "polynomial" and isinstance(end, (int, float)) and rate > 0 and end >= rate:
        found = f"the polynomial schedule ends at {end:g} (`lr_end`), not below `learning_rate`, {rate:g}"
        yield "learning_rate", f"{found}; set `lr_end` in `lr_scheduler_kwargs` below {rate:g}"


_USUAL_RATES = "usual are `learning_rate: 1.0e-4` for LoRA and 1.0e-5 for full tuning"


@rule("TRA410", ERROR)
def learning_rate_refused(run: RunSettings) -> Findings:
    """The learning rate or the warm-up is below zero.

    Why: a negative warm-up is refused at parse, and the learning rate when the optimizer is made, after loading.
    Source: transformers/training_args.py:TrainingArguments._validate_args, torch/optim/adam.py:Adam.__init__
    Fix: rates around 1e-4 for LoRA and 1e-5 for full fine-tuning.
    """
    if run.args.number("learning_rate") < 0:
        found = f"`learning_rate` is {run.args.get('learning_rate')}, not a positive number"
        yield "learning_rate", f"{found}; {_USUAL_RATES}"
    for key in ("warmup_steps", "warmup_ratio"):
        if run.args.number(key) < 0:
            yield key, f"`{key}` is {run.args.get(key)}, not 0 or more; write 0 or more, or remove `{key}`"


@rule("TRA411", WARNING)
def learning_rate_useless(run: RunSettings) -> Findings:
    """The learning rate trains nothing, or destroys the model.

    Why: at 0 the run ends normally with the weights it began with; near 1 the loss turns into NaN within a few steps.
    An argument of the schedule that is not finite makes the rate 0 or NaN.
    Source: own (experience)
    Fix: rates around 1e-4 for LoRA and 1e-5 for full fine-tuning.
    """
    rate = run.args.get("learning_rate")
    if rate == 0 and not isinstance(rate, bool):
        yield "learning_rate", f"`learning_rate: 0` trains nothing; {_USUAL_RATES}"
    elif isinstance(rate, (int, float)) and rate >= 0.1:
        found = f"`learning_rate` is {float(rate):g}, at which the loss becomes NaN"
        yield "learning_rate", f"{found}; {_USUAL_RATES}"
    for key, value in (run.args.mapping("lr_scheduler_kwargs") or {}).items():
        if is_unusable_number(value):
            place, found = Place(("lr_scheduler_kwargs", key)), f"`{key}` in `lr_scheduler_kwargs` is {value}"
            yield place, f"{found}, which makes the learning rate 0 or NaN; write a number, or remove `{key}`"


@rule("TRA412", WARNING)
def warmup_never_ends(run: RunSettings) -> Findings:
    """The warm-up is as long as the run, or longer.

    Why: the learning rate never reaches the value that the recipe states. `warmup_ratio` and `warmup_steps` below 1 are
    shares of the run; from 1 on both are steps.
    Source: transformers/training_args.py:TrainingArguments.get_warmup_steps
    Fix: 3 to 10 % of the steps, such as `warmup_ratio: 0.05`.
    """
    total = training_steps(run)
    steps = warmup_steps(run, total.total) or 0 if total and run.task.trains else 0
    if total and steps >= total.total and (steps > 1 or total.total > 1):
        by_ratio = steps != int(run.args.number("warmup_steps"))
        key = "warmup_ratio" if by_ratio and run.args.is_set("warmup_ratio") else "warmup_steps"
        alone = ", and remove `warmup_steps`" if run.args.is_set("warmup_steps") else ""
        yield key, f"warm-up takes {steps:,} steps, but the run has only {total}; write `warmup_ratio: 0.05`{alone}"


@rule("TRA417", WARNING)
def warmup_by_release(run: RunSettings) -> Findings:
    """Releases of transformers that may run the recipe read its warm-up differently.

    Why: `warmup_steps: 0.03` is 3 % of the run in transformers 5, and in 4 less than one step: no warm-up at all. Where
    both keys are set, 5 takes `warmup_ratio` and 4 takes `warmup_steps`. LLaMA-Factory admits both releases.
    Source: transformers/training_args.py:TrainingArguments.get_warmup_steps
    Fix: `warmup_ratio: 0.03` alone, a share of the run in every release.
    """
    steps, ratio = run.args.get("warmup_steps"), run.args.get("warmup_ratio")
    if not isinstance(steps, (int, float)) or steps <= 0:
        return
    shares = {releases.is_at_least(pair, WARMUP_SHARES_SINCE) for pair in run.releases.possible_pairs}
    if ratio is not None:
        found = f"transformers 5 uses `warmup_ratio: {ratio}`, and 4 uses `warmup_steps: {steps:g}`"
        yield "warmup_steps", f"{found}; remove `warmup_ratio`, or `warmup_steps`"
    elif steps < 1 and len(shares) > 1:
        text = f"`warmup_steps: {steps:g}` gives no warm-up in transformers 4; write `warmup_ratio: {steps:g}` instead"
        yield "warmup_steps", text, rename_key("warmup_steps", "warmup_ratio")
