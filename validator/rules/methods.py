"""TRA2xx: the method: LoRA and its variants, freeze, adapters. What a method names is in targets.py."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule

_LORA_ONLY = ("loraplus_lr_ratio", "use_rslora", "use_dora", "pissa_init")


def _set(job: Job, key: str) -> bool:
    """A ratio counts when it is not null, a switch when it is true."""
    return job.has(key) if key == "loraplus_lr_ratio" else job.flag(key)


@rule("TRA201", Severity.ERROR)
def lora_setting_elsewhere(job: Job) -> Iterator[Finding]:
    """A LoRA setting is used with another method.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: remove it, or set `finetuning_type: lora`.
    """
    for key in _LORA_ONLY:
        if job.method != "lora" and _set(job, key):
            yield key, f"`{key}` needs `finetuning_type: lora`, not {job.method}"


@rule("TRA202", Severity.ERROR)
def adapter_elsewhere(job: Job) -> Iterator[Finding]:
    """An adapter is to be loaded with a method other than LoRA.

    Why: refused at parse, on every rank; OFT adapters as well.
    Source: llamafactory/hparams/parser.py:_verify_model_args
    Fix: merge the adapter into the model first and name the merged model.
    """
    if job.method != "lora" and job.has("adapter_name_or_path"):
        yield "adapter_name_or_path", f"an adapter needs `finetuning_type: lora`, not {job.method}; merge it first"


@rule("TRA203", Severity.ERROR)
def blocks_with_full(job: Job) -> Iterator[Finding]:
    """Expanded blocks (LLaMA Pro) are combined with full fine-tuning.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: `finetuning_type: freeze` or `lora`.
    """
    if job.method == "full" and job.flag("use_llama_pro"):
        yield "use_llama_pro", "`use_llama_pro` needs `finetuning_type: freeze` or lora, not full"


@rule("TRA204", Severity.ERROR)
def pissa_refused(job: Job) -> Iterator[Finding]:
    """PiSSA is initialized where it cannot be.

    Why: refused at parse, on every rank: a reference model needs the original weights, and ZeRO-3 shards them before
    the decomposition.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__,
    llamafactory/hparams/parser.py:get_train_args
    Fix: remove `pissa_init`, or make the initial adapter once with LLaMA-Factory's scripts/pissa_init.py.
    """
    if not job.flag("pissa_init") or job.method != "lora":
        return
    if job.compares and not job.anchors:
        yield "pissa_init", f"PiSSA is refused in stage {job.stage} with a reference model; remove `pissa_init`"
    elif job.zero_stage == 3:
        yield "pissa_init", "PiSSA cannot be initialized under ZeRO-3; initialize it once with scripts/pissa_init.py"


@rule("TRA205", Severity.ERROR)
def adapter_shape_refused(job: Job) -> Iterator[Finding]:
    """A LoRA rank, dropout or target is outside its range.

    Why: fails when the adapter is made, after the data is tokenized and the model loaded on every rank.
    Source: peft/tuners/lora/layer.py:LoraLayer.update_layer
    Fix: a rank of at least 1, a dropout from 0 to 1, `lora_target: all`.
    """
    if not job.adapts:
        return
    if job.method == "lora" and job.get("lora_rank") is not None and job.number("lora_rank") < 1:
        yield "lora_rank", f"`lora_rank` is {job.get('lora_rank')}, it must be at least 1; 8 is usual"
    if job.method == "lora" and job.number("lora_dropout") > 1:  # below zero peft leaves it out
        yield "lora_dropout", f"`lora_dropout` is {job.get('lora_dropout')}, it must lie between 0 and 1"
    if job.get("lora_target") is None or job.words("lora_target") == ("",):
        yield "lora_target", "`lora_target` names no layer; write `lora_target: all`"


@rule("TRA210", Severity.ERROR)
def several_adapters(job: Job) -> Iterator[Finding]:
    """Several adapters are named where only one can be loaded.

    Why: an assertion when the adapter is loaded, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: merge them into the model first.
    """
    adapters = job.words("adapter_name_or_path")
    reasons = {"ZeRO-3": job.zero_stage == 3, "unsloth": job.flag("use_unsloth"), "KTransformers": job.flag("use_kt")}
    for name, active in reasons.items():
        if job.method == "lora" and active and len(adapters) > 1:
            yield "adapter_name_or_path", f"{name} loads one adapter, {len(adapters)} are named; merge them first"


@rule("TRA211", Severity.ERROR)
def engine_refused(job: Job) -> Iterator[Finding]:
    """unsloth or KTransformers is combined with a method or a ZeRO stage it cannot do.

    Why: with ZeRO-3 refused at parse on every rank; with the method after the model is loaded.
    Source: llamafactory/hparams/parser.py:get_train_args, llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: LoRA without ZeRO-3, or leave the engine out.
    """
    for key in ("use_unsloth", "use_kt"):
        if job.flag(key) and job.zero_stage == 3:
            yield key, f"`{key}` is refused with DeepSpeed ZeRO-3; remove one"
        elif job.flag(key) and job.method == "oft":
            yield key, f"`{key}` cannot do OFT; use `finetuning_type: lora`"


@rule("TRA212", Severity.ERROR)
def two_block_sizes(job: Job) -> Iterator[Finding]:
    """OFT is given both a rank and a block size, or neither.

    Why: peft refuses it when the adapter is made, after the data is tokenized and the model loaded on every rank. The
    block size has a default, 32.
    Source: peft/tuners/oft/config.py:OFTConfig.__post_init__
    Fix: `oft_block_size: 0` beside `oft_rank`, or no `oft_rank`.
    """
    if job.method == "oft" and not job.number("oft_rank") and not job.number("oft_block_size"):
        yield "oft_block_size", "OFT needs `oft_rank` or `oft_block_size`, and both are 0; 32 is the usual block size"
    if job.method == "oft" and job.number("oft_rank") and job.number("oft_block_size"):
        yield (
            "oft_rank",
            (
                f"`oft_rank: {job.get('oft_rank')}` and `oft_block_size: {job.get('oft_block_size')}` exclude "
                "each other; set `oft_block_size: 0`"
            ),
        )


@rule("TRA214", Severity.NOTE)
def chat_format_untrained(job: Job) -> Iterator[Finding]:
    """A base model learns a chat format while its embeddings stay frozen.

    Why: the marks of a chat template are tokens that a base model may never have seen; LoRA does not train embeddings,
    so it may not learn to end its answers.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: start from the chat-tuned model, or `additional_target: embed_tokens,lm_head` (more memory; ZeRO-2), or
    `template: default`, which uses plain words.
    """
    plain = ("empty", "default", "alpaca", "fewshot", "vanilla")
    trained = job.has("additional_target") or job.flag("resize_vocab")
    chat = job.has("template") and job.get("template") not in plain and job.stage != "pt"
    if chat and job.model and job.model.base and job.method == "lora" and not trained:
        yield (
            "template",
            (
                f"{job.model.name} is a base model and LoRA leaves its embeddings frozen: it may not learn the "
                f"marks of `{job.get('template')}`; start from the chat-tuned model"
            ),
        )


@rule("TRA215", Severity.NOTE)
def new_tokens(job: Job) -> Iterator[Finding]:
    """Tokens are added to the vocabulary.

    Why: LLaMA-Factory then trains full fp32 copies of the embedding and the head beside LoRA: two more matrices of
    vocabulary x hidden size, at 16 bytes a weight.
    Source: llamafactory/model/patcher.py:patch_tokenizer, llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: none needed; `lmf-recipes explain` shows the memory.
    """
    for key in ("add_tokens", "add_special_tokens", "new_special_tokens_config"):
        if job.method == "lora" and job.has(key) and not job.quantization.asked:
            yield key, "new tokens make embedding and head trainable in fp32, both even where they are tied"
