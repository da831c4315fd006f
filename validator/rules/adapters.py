"""TRA2xx: settings of LoRA and its variants, OFT and freeze tuning. What `lora_target` names is in
`rules/adapter_targets.py`."""

from __future__ import annotations

from validator.knowledge.models import Model
from validator.knowledge.module_names import module_names
from validator.rules import subjects
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.run.settings import RunSettings

_LORA_ONLY = ("loraplus_lr_ratio", "use_rslora", "use_dora", "pissa_init")


@rule("TRA201", ERROR)
def lora_setting_elsewhere(run: RunSettings) -> Findings:
    """A LoRA setting is used with another method.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: remove it, or set `finetuning_type: lora`.
    """
    for key in _LORA_ONLY if run.task.method != "lora" else ():
        if run.args.is_set(key) if key == "loraplus_lr_ratio" else run.args.flag(key):
            found = f"`{key}` works only with `finetuning_type: lora`, not {run.task.method}"
            yield key, f"{found}; remove `{key}`, or set `finetuning_type: lora`"


@rule("TRA202", ERROR)
def adapter_elsewhere(run: RunSettings) -> Findings:
    """An adapter is loaded with a method other than LoRA.

    Why: refused at parse, on every rank; OFT adapters as well.
    Source: llamafactory/hparams/parser.py:_verify_model_args
    Fix: merge the adapter into the model first and name the merged model.
    """
    if run.task.method != "lora" and run.args.is_set("adapter_name_or_path"):
        found = f"`adapter_name_or_path` works only with `finetuning_type: lora`, not {run.task.method}"
        yield "adapter_name_or_path", f"{found}; merge the adapter first, and name the merged model"


@rule("TRA203", ERROR)
def blocks_with_full(run: RunSettings) -> Findings:
    """Expanded blocks (LLaMA Pro) are combined with full fine-tuning.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: `finetuning_type: freeze` or `lora`.
    """
    if run.task.method == "full" and run.args.flag("use_llama_pro"):
        text = "`use_llama_pro` is refused with `finetuning_type: full`; set `finetuning_type: freeze` or `lora`"
        yield "use_llama_pro", text


@rule("TRA204", ERROR)
def pissa_refused(run: RunSettings) -> Findings:
    """PiSSA is initialized where that is not possible.

    Why: refused at parse, on every rank: a reference model needs the original weights, and ZeRO-3 shards them before
    the decomposition.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__,
    llamafactory/hparams/parser.py:get_train_args
    Fix: remove `pissa_init`, or make the initial adapter once with LLaMA-Factory's scripts/pissa_init.py.
    """
    if not run.args.flag("pissa_init") or run.task.method != "lora":
        return
    if run.task.needs_reference_logprobs and not run.task.uses_asft_loss:
        found = f"PiSSA changes the weights that the reference model of stage {run.task.stage} needs"
        yield "pissa_init", f"{found}; remove `pissa_init`"
    elif run.zero_stage == 3:
        found = "`pissa_init` is refused under ZeRO-3"
        remedy = "remove `pissa_init`, and make the adapter with LLaMA-Factory's scripts/pissa_init.py"
        yield "pissa_init", f"{found}; {remedy}"


@rule("TRA205", ERROR)
def adapter_shape_refused(run: RunSettings) -> Findings:
    """A LoRA rank, dropout or target is outside its range.

    Why: fails when the adapter is made, after the data is tokenized and the model loaded on every rank.
    Source: peft/tuners/lora/layer.py:LoraLayer.update_layer
    Fix: a rank of at least 1, a dropout from 0 to 1, `lora_target: all`.
    """
    if not run.task.uses_adapter:
        return
    if run.task.method == "lora" and run.args.get("lora_rank") is not None and run.args.number("lora_rank") < 1:
        yield "lora_rank", f"`lora_rank` is {run.args.get('lora_rank')}; it must be at least 1; write 8, the default"
    if run.task.method == "lora" and run.args.number("lora_dropout") > 1:  # below zero peft leaves it out
        found = f"`lora_dropout` is {run.args.get('lora_dropout')}; it must be between 0 and 1"
        yield "lora_dropout", f"{found}; write 0, the default"
    if run.args.get("lora_target") is None or run.args.words("lora_target") == ("",):
        yield "lora_target", "`lora_target` names no layer; write `lora_target: all`"


@rule("TRA210", ERROR)
def several_adapters(run: RunSettings) -> Findings:
    """Several adapters are named where only one can be loaded.

    Why: an assertion when the adapter is loaded, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: merge them into the model first.
    """
    adapters = run.args.words("adapter_name_or_path")
    engines = ("unsloth", run.args.flag("use_unsloth")), ("KTransformers", run.args.flag("use_kt"))
    for name, active in (("ZeRO-3", run.zero_stage == 3), *engines):
        if run.task.method == "lora" and active and len(adapters) > 1:
            found = f"`adapter_name_or_path` names {len(adapters)} adapters, and {name} can load only one"
            yield "adapter_name_or_path", f"{found}; merge the others into the model first"


@rule("TRA211", ERROR)
def engine_refused(run: RunSettings) -> Findings:
    """unsloth or KTransformers is combined with a method or a ZeRO stage that it does not support.

    Why: with ZeRO-3 refused at parse on every rank; with the method after the model is loaded.
    Source: llamafactory/hparams/parser.py:get_train_args, llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: LoRA without ZeRO-3, or leave the engine out.
    """
    for key in ("use_unsloth", "use_kt"):
        if run.args.flag(key) and run.zero_stage == 3:
            yield key, f"`{key}` is refused with DeepSpeed ZeRO-3; remove `{key}`, or use ZeRO-2"
        elif run.args.flag(key) and run.task.method == "oft":
            yield key, f"`{key}` cannot train OFT; remove `{key}`, or set `finetuning_type: lora`"


@rule("TRA212", ERROR)
def two_block_sizes(run: RunSettings) -> Findings:
    """OFT is given both a rank and a block size, or neither.

    Why: peft refuses it when the adapter is made, after the data is tokenized and the model loaded on every rank. The
    block size has a default, 32.
    Source: peft/tuners/oft/config.py:OFTConfig.__post_init__
    Fix: `oft_block_size: 0` beside `oft_rank`, or no `oft_rank`.
    """
    if run.task.method == "oft" and not run.args.number("oft_rank") and not run.args.number("oft_block_size"):
        found = "OFT needs `oft_rank` or `oft_block_size`, and both are 0"
        yield "oft_block_size", f"{found}; set `oft_block_size: 32`, the default"
    if run.task.method == "oft" and run.args.number("oft_rank") and run.args.number("oft_block_size"):
        found = f"`oft_rank: {run.args.get('oft_rank')}` and `oft_block_size: {run.args.get('oft_block_size')}`"
        yield "oft_rank", f"{found} exclude each other; set `oft_block_size: 0` to use `oft_rank`"


@rule("TRA214", NOTE, about=subjects.model)
def chat_format_untrained(run: RunSettings, model: Model) -> Findings:
    """A base model learns a chat format while its embeddings stay frozen.

    Why: the marks of a chat template are tokens that a base model may never have seen; LoRA does not train embeddings,
    so it may not learn to end its answers.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: start from the chat-tuned model, or `additional_target: embed_tokens,lm_head` (more memory; ZeRO-2), or
    `template: default`, which uses plain words.
    """
    plain = ("empty", "default", "alpaca", "fewshot", "vanilla")
    trained = run.args.is_set("additional_target") or run.args.flag("resize_vocab")
    chat = run.args.is_set("template") and run.args.get("template") not in plain and run.task.stage != "pt"
    if chat and model.base and run.task.method == "lora" and not trained:
        found = f"{model.name} is a base model and LoRA leaves its embeddings frozen"
        unlearned = f"so it may not learn the special tokens of template `{run.args.get('template')}`"
        yield "template", f"{found}, {unlearned}; name the chat-tuned model, or write `template: default`"


@rule("TRA215", NOTE)
def new_tokens(run: RunSettings) -> Findings:
    """Tokens are added to the vocabulary.

    Why: LLaMA-Factory then trains full fp32 copies of the embedding and the head beside LoRA: two more matrices of
    vocabulary x hidden size, at 16 bytes a weight.
    Source: llamafactory/model/patcher.py:patch_tokenizer, llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: none needed; `lmf-recipes explain` shows the memory.
    """
    for key in ("add_tokens", "add_special_tokens", "new_special_tokens_config"):
        if run.task.method == "lora" and run.args.is_set(key) and not run.quantization.is_requested:
            found = f"`{key}` makes embedding and output layer trainable in fp32, as two copies even if they are tied"
            yield key, f"{found}; this takes memory, which `lmf-recipes explain` shows"


@rule("TRA208", ERROR)
def nothing_unfrozen(run: RunSettings) -> Findings:
    """Freeze tuning trains no layer, or cannot spread its new blocks.

    Why: with 0 layers it fails at the first step, and so does a negative number with `use_llama_pro`. Blocks that do
    not divide the depth fail after the model is loaded. So does LoRA on the blocks of a model that sees or hears:
    "Model was not supported".
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning,
    llamafactory/model/model_utils/misc.py:find_expanded_modules
    Fix: a `freeze_trainable_layers` that is not 0, and with `use_llama_pro` a divisor of the number of layers.
    """
    if run.task.method != "freeze" and not (run.task.method == "lora" and run.args.flag("use_llama_pro")):
        return
    count = int(run.args.number("freeze_trainable_layers"))
    depth = run.model.arch.layers if run.model else 0
    if count == 0 and "freeze_trainable_layers" in run.args.values and not run.args.is_set("freeze_extra_modules"):
        text = "`freeze_trainable_layers: 0` trains nothing; write `freeze_trainable_layers: 2`, the default"
        yield "freeze_trainable_layers", text
    elif count < 0 and run.args.flag("use_llama_pro"):
        found = f"`use_llama_pro` trains no layer with `freeze_trainable_layers: {count}`"
        yield "freeze_trainable_layers", f"{found}; write `freeze_trainable_layers: {-count}`"
    elif run.task.method == "lora" and run.model and run.model.modules:
        text = f"`use_llama_pro` does not work with LoRA for a {run.model.kind} model; remove `use_llama_pro`"
        yield "use_llama_pro", text
    elif count and depth and run.args.flag("use_llama_pro") and depth % abs(count):
        found = f"`freeze_trainable_layers` is {count}, and `use_llama_pro` needs a divisor of the {depth} layers"
        divisor = max(number for number in range(1, min(abs(count), depth + 1)) if depth % number == 0)
        yield "freeze_trainable_layers", f"{found}; write {divisor}"


@rule("TRA209", WARNING, about=subjects.model)
def more_layers_than_model(run: RunSettings, model: Model) -> Findings:
    """Freeze tuning asks for more layers than the model has.

    Why: the number is clamped; embeddings and head stay frozen, so this is not full fine-tuning.
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: a smaller number, or `finetuning_type: full`.
    """
    count = abs(run.args.number("freeze_trainable_layers"))
    if run.task.method == "freeze" and count > model.arch.layers and not run.args.flag("use_llama_pro"):
        found = f"`freeze_trainable_layers` is {count:.0f}, and the model has {model.arch.layers} layers"
        remedy = f"write {model.arch.layers}, or `finetuning_type: full` to train all weights"
        yield "freeze_trainable_layers", f"{found}; {remedy}"


@rule("TRA217", ERROR, about=subjects.model)
def parts_missing(run: RunSettings, model: Model) -> Findings:
    """Freeze tuning selects a part that the model's layers do not have.

    Why: "module is not found" after the data is tokenized and the model loaded on every rank. LLaMA-Factory looks at
    the first two layers, which in a hybrid model may have no attention.
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: `freeze_trainable_modules: all`, or self_attn, mlp and the like.
    """
    family, key = model.family, "freeze_trainable_modules"
    named = {module.name.removeprefix(f"{family.layers_at}.").split(".")[1] for module in module_names(model, True)
             if module.layer in (0, 1) and module.name.count(".") > family.layers_at.count(".") + 1}  # fmt: skip
    known = frozenset() if model.modules else family.parts & named
    for name in run.args.words(key):
        if run.task.method == "freeze" and known and name not in known | {"all"}:
            found = f"`{key}` names `{name}`, and the model's first layers have only {', '.join(sorted(known))}"
            yield key, f"{found}; write `{key}: all`, or one of these parts"


@rule("TRA218", ERROR, about=subjects.model)
def extra_part_missing(run: RunSettings, model: Model) -> Findings:
    """Freeze tuning selects a part outside the layers that the model does not have.

    Why: "Module is not found" after the data is tokenized and the model loaded on every rank. A head that is tied to
    the embedding is no parameter of its own.
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: embed_tokens, norm, or lm_head where the model has its own; layers are chosen by `freeze_trainable_modules`.
    """
    if run.task.method != "freeze" or model.arch.towers or not model.family.parts:  # not all parts are known
        return
    if model.family.embedding != "embed_tokens":  # nor of types like GPT-2, with an embedding of positions
        return
    known = {"embed_tokens", model.family.last_norm} | (set() if model.arch.tied else {model.family.head})
    for name in run.args.words("freeze_extra_modules"):
        if name not in known:
            tied = " (its output layer is tied)" if name == "lm_head" and model.arch.tied else ""
            there = f"outside its layers the model has only {', '.join(sorted(known))}{tied}"
            remedy = "write one of these, or remove `freeze_extra_modules`"
            yield "freeze_extra_modules", f"`freeze_extra_modules` names `{name}`, and {there}; {remedy}"
