"""TRA4xx: optimizers. Learning rates and their schedules are in schedule.py."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule

# Optimizers that get a rate at most, or what Adam gets and no more (transformers/trainer_optimizer.py)
_PLAIN = ("adamw_torch", "adamw_torch_npu_fused", "adamw_torch_xla", "adamw_apex_fused", "sgd", "adagrad", "rmsprop")
_QUERIES = {"all", "q_proj", "k_proj"}
_NAMES = {"use_galore": "GaLore", "use_apollo": "APOLLO", "use_badam": "BAdam"}
# The optimizers each can take the place of (train/trainer_utils.py)
_PLACES = {
    "use_galore": ("adamw_torch", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adafactor"),
    "use_apollo": ("adamw_torch",),
}
_LAYERWISE = {"use_galore": "galore_layerwise", "use_apollo": "apollo_layerwise"}


def _active(job: Job) -> list[str]:
    return [key for key in _NAMES if job.flag(key)]


def _distributed(job: Job) -> bool:
    return job.world > 1 or job.engine


@rule("TRA401", Severity.ERROR)
def optimizer_with_lora(job: Job) -> Iterator[Finding]:
    """GaLore, APOLLO or BAdam is combined with LoRA.

    Why: refused at parse, on every rank: they save memory of full fine-tuning.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: `finetuning_type: full`, or leave them out.
    """
    for key in _active(job):
        if job.method == "lora":
            yield key, f"{_NAMES[key]} is refused with LoRA; set `finetuning_type: full` or remove `{key}`"


@rule("TRA402", Severity.ERROR)
def two_optimizers(job: Job) -> Iterator[Finding]:
    """Two of GaLore, APOLLO and BAdam are set.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: keep one.
    """
    active = _active(job)
    if len(active) > 1 and job.method != "lora":
        yield active[1], f"{' and '.join(_NAMES[key] for key in active)} exclude each other; keep one"


@rule("TRA403", Severity.ERROR)
def optimizer_with_deepspeed(job: Job) -> Iterator[Finding]:
    """GaLore or APOLLO is combined with DeepSpeed.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `deepspeed`, or use BAdam with ZeRO-3.
    """
    for key in ("use_galore", "use_apollo"):
        if job.method != "lora" and job.flag(key) and job.has("deepspeed"):
            yield key, f"{_NAMES[key]} does not work with DeepSpeed; remove one"


@rule("TRA404", Severity.ERROR)
def optimizer_not_distributed(job: Job) -> Iterator[Finding]:
    """A layer-wise or partial optimizer is used on several devices.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: one device; GaLore and APOLLO without layer-wise updates; BAdam by layer with DeepSpeed ZeRO-3.
    """
    if job.method == "lora" or not _distributed(job):
        return
    for key, layerwise in _LAYERWISE.items():
        if job.flag(key) and job.flag(layerwise) and not job.engine:
            yield layerwise, f"layer-wise {_NAMES[key]} runs on one device, not {job.world}; set `{layerwise}: false`"
    if job.flag("use_badam") and job.get("badam_mode") == "ratio":
        yield "badam_mode", "BAdam by ratio runs on one device; use `badam_mode: layer` with ZeRO-3"
    elif job.flag("use_badam") and job.zero_stage != 3:
        yield "use_badam", "BAdam on several devices needs DeepSpeed ZeRO-3"


@rule("TRA405", Severity.ERROR)
def optimizer_name_refused(job: Job) -> Iterator[Finding]:
    """GaLore or APOLLO cannot take the place of the optimizer that `optim` names.

    Why: "unknown optim" when the trainer is built, after the data is tokenized and the model loaded on every rank; the
    default since torch 2.8, adamw_torch_fused, is refused too.
    Source: llamafactory/train/trainer_utils.py:_create_galore_optimizer,
    llamafactory/train/trainer_utils.py:_create_apollo_optimizer
    Fix: `optim: adamw_torch`; or `torch: "2.7"` in the header block, where that is what runs it.
    """
    written = "optim" in job.values
    names = {job.get("optim")} if written else job.default_optimizers
    for key, places in _PLACES.items():
        refused = sorted(names - {*places})
        if job.method != "lora" and job.flag(key) and refused and not job.engine:
            how = "" if written else ", the default since torch 2.8"
            text = f"{_NAMES[key]} does not know `optim: {refused[0]}`{how}; set `optim: adamw_torch`"
            yield "optim" if written else key, text


@rule("TRA406", Severity.ERROR)
def layerwise_accumulation(job: Job) -> Iterator[Finding]:
    """Layer-wise updates are combined with gradient accumulation.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded.
    Source: llamafactory/train/trainer_utils.py:_create_galore_optimizer,
    llamafactory/train/trainer_utils.py:_create_apollo_optimizer
    Fix: `gradient_accumulation_steps: 1`.
    """
    for key, layerwise in _LAYERWISE.items():
        steps = job.accumulation
        if job.method != "lora" and job.flag(key) and job.flag(layerwise) and steps > 1:
            yield (
                "gradient_accumulation_steps",
                (f"layer-wise {_NAMES[key]} updates at every backward pass, accumulation is {steps}; set 1"),
            )


@rule("TRA407", Severity.WARNING)
def optimizer_unread(job: Job) -> Iterator[Finding]:
    """Several optimizers are asked for and only one is made.

    Why: LLaMA-Factory takes the first of GaLore, APOLLO, LoRA+, BAdam, Adam-mini, Muon; the others, silently, not.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer
    Fix: keep one.
    """
    active = job.optimizers
    for key in active[1:]:
        if not (active[0] in _NAMES and key in _NAMES):
            yield key, f"`{key}` has no effect beside `{active[0]}`; keep one"


@rule("TRA414", Severity.ERROR)
def ratio_refused(job: Job) -> Iterator[Finding]:
    """BAdam by ratio cannot be made.

    Why: it takes the numbers that plain Adam takes and no others, so adamw_torch_fused, the default since torch 2.8,
    ends in "unexpected keyword argument"; and it looks for a head of its own, which a model with tied embeddings has
    not. Both when the trainer is built, after the data is tokenized and the model loaded.
    Source: llamafactory/train/trainer_utils.py:_create_badam_optimizer
    Fix: `optim: adamw_torch`; for a model with tied embeddings `badam_mode: layer`.
    """
    if job.method == "lora" or not job.flag("use_badam") or job.get("badam_mode") != "ratio":
        return
    if job.model and job.model.arch.tied:
        yield (
            "badam_mode",
            f"BAdam by ratio needs a head of its own, {job.model.name} ties it to the embedding; use layer",
        )
    elif job.get("optim") not in _PLAIN:
        at = "optim" if "optim" in job.values else "badam_mode"
        yield at, f"BAdam by ratio does not know `optim: {job.get('optim')}`; set `optim: adamw_torch`"


@rule("TRA415", Severity.ERROR)
def target_layers_missing(job: Job) -> Iterator[Finding]:
    """GaLore or APOLLO is asked for by the name that transformers has for it, without the layers it is for.

    Why: "you need to define optim_target_modules" when the trainer is built, after the data is tokenized and the model
    loaded on every rank.
    Source: transformers/trainer_optimizer.py:_setup_low_rank_optimizer
    Fix: `use_galore: true` or `use_apollo: true` with `optim: adamw_torch`; or `optim_target_modules: all-linear`.
    """
    name = str(job.get("optim"))
    if name.startswith(("galore_", "apollo_")) and not job.has("optim_target_modules"):
        yield "optim", f"`optim: {name}` needs `optim_target_modules`; or write `use_{name.partition('_')[0]}: true`"


@rule("TRA416", Severity.ERROR)
def adam_mini_with_adapter(job: Job) -> Iterator[Finding]:
    """Adam-mini trains an adapter of attention.

    Why: it cuts every tensor of queries and keys by the model's heads, and an adapter's are too small for that: "shape
    is invalid for input of size" at the first step, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/train/trainer_utils.py:_create_adam_mini_optimizer
    Fix: `finetuning_type: full`, or remove `use_adam_mini`: an adapter's states are small anyway.
    """
    meets = job.method == "oft" or (job.method == "lora" and job.number("lora_rank") < 64)
    made = job.optimizers[:1] == ["use_adam_mini"]
    if made and meets and _QUERIES & {target.rpartition(".")[2] for target in job.words("lora_target")}:
        yield "use_adam_mini", f"Adam-mini fails on the adapter of {job.method}; remove it, or use full"
