"""TRA206 to TRA209, TRA213 and TRA216 to TRA219: the modules and layers that a method names."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.memory import linear_roles
from validator.rules import edits
from validator.rules.rule import Finding, rule

_ALL = edits.put("lora_target", "all", safe=False)
_EVERYWHERE = {"lm_head", "embed_tokens"}


@rule("TRA206", Severity.WARNING)
def all_beside_names(job: Job) -> Iterator[Finding]:
    """`all` stands beside other targets of LoRA.

    Why: `all` is expanded only when it stands alone; here only the named layers are adapted, and where none of them
    exists the run fails after the model is loaded.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: `lora_target: all`, or the names without `all`.
    """
    targets = job.words("lora_target")
    if job.adapts and "all" in targets and len(targets) > 1:
        others = ", ".join(name for name in targets if name != "all")
        yield (
            "lora_target",
            f"`all` beside other names is not expanded: only {others} is adapted; write all alone",
            _ALL,
        )


@rule("TRA207", Severity.ERROR)
def targets_missing(job: Job) -> Iterator[Finding]:
    """None of LoRA's targets is a linear layer of the model.

    Why: "target modules not found" when the adapter is made, after the data is tokenized and the model loaded on every
    rank. In transformers 5 the experts of a mixture-of-experts model are fused tensors, no linear layers. Those of
    GPT-2 are of a class that `all` does not look for: "No `target_modules` passed", unless bitsandbytes replaces them.
    Source: peft/tuners/tuners_utils.py:BaseTuner.inject_adapter,
    llamafactory/model/model_utils/misc.py:find_all_linear_modules
    Fix: `lora_target: all`; for GPT-2 the names.
    """
    known, targets = _linear(job), job.words("lora_target")
    names = {_last(target) for target in targets if target}
    if not (job.adapts and known and names and job.model):
        return
    family, write = job.model.family, f"write `lora_target: {job.model.family.targets}`"
    if targets != ("all",) and not names & known:
        yield "lora_target", f"{family.kind} has no linear layer {', '.join(sorted(names))}; {write}"
    elif targets == ("all",) and family.unnamed and not job.quantization.weights:
        yield "lora_target", f"`all` finds no linear layer in {family.kind}, whose are of another class; {write}"


def _linear(job: Job) -> frozenset[str]:
    """Names that LoRA finds in the model with the transformers releases of the recipe; empty where not all are known:
    of a part that sees images, or of experts that were linear layers in a release that is not read."""
    model = job.model
    if model is None or model.modules or not model.family.linear:
        return frozenset()
    family = model.family
    fused = family.fused_experts is None or family.fuses(job.header)
    if not fused and not family.separate:
        return frozenset()
    return family.names(linear_roles(model.arch, fused), fused) | _EVERYWHERE


def _last(target: str) -> str:
    return target.rpartition(".")[2]


@rule("TRA208", Severity.ERROR)
def nothing_unfrozen(job: Job) -> Iterator[Finding]:
    """Freeze tuning trains no layer, or cannot spread its new blocks.

    Why: with 0 layers it fails at the first step; blocks that do not divide the depth fail after the model is loaded.
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning,
    llamafactory/model/model_utils/misc.py:find_expanded_modules
    Fix: a `freeze_trainable_layers` that is not 0, and with `use_llama_pro` a divisor of the number of layers.
    """
    if job.method != "freeze" and not (job.method == "lora" and job.flag("use_llama_pro")):
        return
    count = int(job.number("freeze_trainable_layers"))
    depth = job.model.arch.layers if job.model else 0
    if count == 0 and "freeze_trainable_layers" in job.values and not job.has("freeze_extra_modules"):
        yield "freeze_trainable_layers", "`freeze_trainable_layers: 0` trains nothing; 2 is the default"
    elif count and depth and job.flag("use_llama_pro") and depth % abs(count):
        yield "freeze_trainable_layers", f"{depth} layers are not divisible by {count}, which `use_llama_pro` needs"


@rule("TRA209", Severity.WARNING)
def more_layers_than_model(job: Job) -> Iterator[Finding]:
    """Freeze tuning asks for more layers than the model has.

    Why: the number is clamped; embeddings and head stay frozen, so this is not full fine-tuning.
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: a smaller number, or `finetuning_type: full`.
    """
    count = abs(job.number("freeze_trainable_layers"))
    if job.method == "freeze" and job.model and count > job.model.arch.layers and not job.flag("use_llama_pro"):
        yield (
            "freeze_trainable_layers",
            (f"`freeze_trainable_layers` is {count:.0f}, the model has {job.model.arch.layers}; use full"),
        )


@rule("TRA213", Severity.WARNING)
def oft_target_unread(job: Job) -> Iterator[Finding]:
    """OFT's targets are given under a key that is never read.

    Why: LLaMA-Factory takes the layers of OFT from `lora_target`.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: write `lora_target`.
    """
    if "oft_target" in job.values and job.words("oft_target") != job.words("lora_target"):
        yield "oft_target", "`oft_target` is never read; OFT takes its layers from `lora_target`"


@rule("TRA216", Severity.WARNING)
def some_targets_missing(job: Job) -> Iterator[Finding]:
    """Some of LoRA's targets are no linear layers of the model.

    Why: peft leaves them out with no message, and less is trained than the recipe says.
    Source: peft/tuners/tuners_utils.py:BaseTuner.inject_adapter
    Fix: `lora_target: all`, or names that the model has.
    """
    known, targets = _linear(job), job.words("lora_target")
    lost = sorted({target for target in targets if target and target != "all" and _last(target) not in known})
    if job.adapts and known and lost and {_last(target) for target in targets} & known:
        kind = job.model.kind if job.model else ""
        yield (
            "lora_target",
            f"{kind} has no linear layer {', '.join(lost)}: left out silently; write `lora_target: all`",
        )


@rule("TRA219", Severity.ERROR)
def targets_refused(job: Job) -> Iterator[Finding]:
    """LoRA is to adapt modules that peft takes no adapters on.

    Why: "Target module ... is not supported" or "... is incompatible with Mamba-based models" when the adapter is made,
    after the data is tokenized and the model loaded on every rank. Experts in one tensor have the names of linear
    layers, or the kernels of mamba-ssm read a layer's weight past its adapter.
    Source: peft/tuners/lora/model.py:LoraModel._create_new_module,
    peft/tuners/tuners_utils.py:_check_lora_target_modules_mamba
    Fix: name the other layers.
    """
    model, targets = job.model, job.words("lora_target")
    if job.method != "lora" or model is None:
        return
    asked = model.refused if job.targets_all else model.refused & {_last(target) for target in targets}
    if asked:
        names = ", ".join(sorted(asked))
        write = edits.put("lora_target", model.family.targets, safe=False)
        found = f"peft takes no adapters on {names} of a {model.kind} model"
        yield "lora_target", f"{found}; write `lora_target: {model.family.targets}`", write


@rule("TRA217", Severity.ERROR)
def parts_missing(job: Job) -> Iterator[Finding]:
    """Freeze tuning selects a part that the model's layers do not have.

    Why: "module is not found" after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: `freeze_trainable_modules: all`, or self_attn, mlp and the like.
    """
    known = job.model.family.parts if job.model and not job.model.modules else None
    for name in job.words("freeze_trainable_modules"):
        if job.method == "freeze" and known and name not in known | {"all"}:
            at = "freeze_trainable_modules"
            yield at, f"a layer has no part `{name}`, only {', '.join(sorted(known))}; or write all"


@rule("TRA218", Severity.ERROR)
def extra_part_missing(job: Job) -> Iterator[Finding]:
    """Freeze tuning is to train a part beside the layers that the model does not have.

    Why: "Module is not found" after the data is tokenized and the model loaded on every rank. A head that is tied to
    the embedding is no parameter of its own.
    Source: llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: embed_tokens, norm, or lm_head where the model has its own; layers are chosen by `freeze_trainable_modules`.
    """
    known = _outer(job)
    for name in job.words("freeze_extra_modules"):
        if job.method == "freeze" and known and name not in known:
            at = "freeze_extra_modules"
            yield at, f"outside its layers the model has no part `{name}`, only {', '.join(sorted(known))}"


def _outer(job: Job) -> frozenset[str]:
    """Parts outside the layers that hold weights, as transformers' text models call them; empty where not all are
    known."""
    if job.model is None or job.model.arch.towers or not job.model.family.parts:
        return frozenset()
    known = {"embed_tokens", job.model.family.last_norm}
    return frozenset(known if job.model.arch.tied else known | {"lm_head"})
