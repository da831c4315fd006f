"""TRA206, TRA207, TRA213, TRA216, TRA219, TRA220, TRA912 and TRA913: what `lora_target` and `additional_target` name,
and what PEFT makes of it."""

from __future__ import annotations

import re

from validator.knowledge.models import Model
from validator.physics import linear_roles
from validator.rules import subjects
from validator.rules.rule import ERROR, WARNING, Findings, rule, set_value
from validator.run import model_parts
from validator.run.adapted_modules import AdaptedModules, adapted_modules, expanded_blocks
from validator.run.settings import RunSettings
from validator.run.unfrozen_modules import saved_modules

_TARGET_ALL = set_value("lora_target", "all", safe=False)
_LAYER_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
# Characters that no name of a module has
_PATTERN = re.compile(r"[\\*+?|^$()\[\]{}]")
_FREEZE_KEYS = ("freeze_vision_tower", "freeze_multi_modal_projector")


def _named_targets(run: RunSettings) -> tuple[str, ...]:
    """Return the targets that the recipe names for a new adapter. Empty for `all`, and for a run that goes on with an
    adapter, which keeps its own targets."""
    goes_on = run.args.is_set("adapter_name_or_path") and not run.args.flag("create_new_adapter")
    if not run.task.uses_adapter or run.task.targets_all_linear or goes_on:
        return ()
    return tuple(filter(None, run.args.words("lora_target")))


def _adapted(run: RunSettings, model: Model) -> AdaptedModules:
    """Return the modules that get an adapter under the releases of transformers that the run is judged by."""
    return adapted_modules(run, model, _is_fused(run, model))


def _is_fused(run: RunSettings, model: Model) -> bool:
    """True unless the experts of a layer are modules of their own under the releases that the run is judged by."""
    return not model.family.separate or model.family.fuses(run.releases)


@rule("TRA206", WARNING)
def all_beside_names(run: RunSettings) -> Findings:
    """`all` stands beside other targets of LoRA.

    Why: `all` is expanded only when it stands alone; here only the named layers are adapted, and where none of them
    exists the run fails after the model is loaded.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: `lora_target: all`, or the names without `all`.
    """
    targets = run.args.words("lora_target")
    if run.task.uses_adapter and "all" in targets and len(targets) > 1:
        others = ", ".join(name for name in targets if name != "all")
        verb = "is" if len(targets) == 2 else "are"
        found = f"`lora_target` names `all` beside others, so `all` is not expanded and only {others} {verb} adapted"
        yield "lora_target", f"{found}; write `lora_target: all`", _TARGET_ALL


@rule("TRA207", ERROR, about=subjects.model)
def targets_missing(run: RunSettings, model: Model) -> Findings:
    """None of LoRA's targets is a linear layer of the model.

    Why: "target modules not found" when the adapter is made, after the data is tokenized and the model loaded on every
    rank. A target is the end of a module's name, such as q_proj or layers.0.self_attn.q_proj, and no regular
    expression. In transformers 5 the experts of a mixture-of-experts model are fused tensors, no linear layers. The
    linear layers of GPT-2 are of a class that `all` does not look for: "No `target_modules` passed", unless
    bitsandbytes replaces them.
    Source: peft/tuners/tuners_utils.py:BaseTuner.inject_adapter,
    peft/tuners/tuners_utils.py:check_target_module_exists,
    llamafactory/model/model_utils/misc.py:find_all_linear_modules
    Fix: `lora_target: all`; for GPT-2 the names.
    """
    family, write = model.family, f"write `lora_target: {model.family.targets}`"
    if run.task.uses_adapter and run.task.targets_all_linear and run.args.words("lora_target"):
        if family.no_nn_linear and not run.quantization.weights:
            found = (
                f"`lora_target: all` finds no linear layer in a {family.kind} model, which has another class for them"
            )
            yield "lora_target", f"{found}; {write}"
        return
    targets = () if model.modules else _named_targets(run)
    if targets and _adapted(run, model).none:
        found = f"a {family.kind} model has no linear layer {', '.join(sorted(targets))}"
        yield "lora_target", f"{found}{_reason(run, model, targets)}; {write}"


def _reason(run: RunSettings, model: Model, targets: tuple[str, ...]) -> str:
    """Return a clause for a message: why the model has no module of these names, and which modules it has."""
    family, last_layer = model.family, model.arch.layers - 1
    linear = family.names(linear_roles(model.arch))
    names = {target.rpartition(".")[2] for target in targets}
    numbers = [int(number) for target in targets for number in _LAYER_NUMBER.findall(target)]
    if names.intersection(run.args.words("additional_target")):
        return " beside those that `additional_target` trains whole"
    if blocks := expanded_blocks(run, model):
        return f" in the layers {', '.join(map(str, blocks))}, which alone `use_llama_pro` trains"
    if any(map(_PATTERN.search, targets)):
        return ", because LLaMA-Factory passes on names, not regular expressions"
    if names & family.separate and not names & linear:
        return f", because transformers {family.fused_experts} fuses the experts"
    if numbers and max(numbers) > last_layer:
        return f"; its layers are {family.layers_at}.0 to {family.layers_at}.{last_layer}"
    if names <= linear:
        paths = sorted(path for path in family.linear_paths if path.rpartition(".")[2] in names)
        return f"; names like these are {', '.join(f'{family.layers_at}.0.{path}' for path in paths)}"
    return f"; its linear layers are {', '.join(sorted(linear))}"


@rule("TRA213", WARNING)
def oft_target_unread(run: RunSettings) -> Findings:
    """OFT's targets are given under a key that nothing reads.

    Why: LLaMA-Factory takes the layers of OFT from `lora_target`.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: write `lora_target`.
    """
    if "oft_target" in run.args.values and run.args.words("oft_target") != run.args.words("lora_target"):
        remedy = "write `lora_target` in place of `oft_target`"
        yield "oft_target", f"`oft_target` is never read, because OFT takes its layers from `lora_target`; {remedy}"


@rule("TRA216", WARNING, about=subjects.model)
def some_targets_missing(run: RunSettings, model: Model) -> Findings:
    """Some of LoRA's targets are no linear layers of the model.

    Why: peft leaves them out with no message, and less is trained than the recipe says.
    Source: peft/tuners/tuners_utils.py:BaseTuner.inject_adapter
    Fix: `lora_target: all`, or names that the model has.
    """
    adapted = _adapted(run, model)
    lost = sorted({*adapted.lost} - {"all"})
    if _named_targets(run) and lost and not adapted.none and not adapted.refused:
        found = f"a {model.kind} model has no linear layer {', '.join(lost)}, and PEFT skips it without a message"
        yield "lora_target", f"{found}; write `lora_target: {model.family.targets}`"


@rule("TRA219", ERROR, about=subjects.model)
def targets_refused(run: RunSettings, model: Model) -> Findings:
    """LoRA targets modules that PEFT cannot adapt.

    Why: "Target module ... is not supported" or "... is incompatible with Mamba-based models" when the adapter is made,
    after the data is tokenized and the model loaded on every rank. Experts in one tensor have the names of linear
    layers, or the kernels of mamba-ssm read a layer's weight past its adapter.
    Source: peft/tuners/lora/model.py:LoraModel._create_new_module,
    peft/tuners/tuners_utils.py:_check_lora_target_modules_mamba
    Fix: name the other layers.
    """
    targets = {target.rpartition(".")[2] for target in run.args.words("lora_target")}
    asked = model.refused if run.task.targets_all_linear else model.refused & targets
    if asked and run.task.method == "lora":
        all_others = model.family.targets
        found = f"PEFT cannot put an adapter on {', '.join(sorted(asked))} of a {model.kind} model"
        fix = set_value("lora_target", all_others, safe=False)
        yield "lora_target", f"{found}; write `lora_target: {all_others}`", fix


@rule("TRA912", ERROR, about=subjects.model)
def targets_frozen(run: RunSettings, model: Model) -> Findings:
    """All of LoRA's targets lie in a frozen part of a model that sees or hears, or in no part of it.

    Why: "No `target_modules` passed" when the adapter is made, after the data is tokenized and the model loaded on
    every rank. For these models a target is any part of a module's name.
    Source: llamafactory/model/model_utils/visual.py:patch_target_modules
    Fix: `lora_target: all`, or the part's own key: `freeze_vision_tower: false`, `freeze_multi_modal_projector: false`.
    """
    targets = _named_targets(run) if model.modules and model_parts.is_decoder_trained(run, model) else ()
    if not targets or not _adapted(run, model).none:
        return
    thawed = (key for key in _FREEZE_KEYS if run.args.flag(key) and _adapts_with(run, model, key))
    key = next(thawed, None)
    where, remedy = ("only a frozen part", f"{key}: false") if key else ("no part", "lora_target: all")
    found = f"`lora_target: {','.join(targets)}` names {where} of {model.kind}, so nothing would train"
    yield "lora_target", f"{found}{'' if key else _reason(run, model, targets)}; write `{remedy}`"


def _adapts_with(run: RunSettings, model: Model, key: str) -> bool:
    """True if something would get an adapter with this `freeze_…` key off."""
    return not adapted_modules(run.updated({key: False}), model, fused=True).none


@rule("TRA913", ERROR, about=subjects.model)
def target_is_a_block(run: RunSettings, model: Model) -> Findings:
    """LoRA's target names a whole block of the model, or a layer without a matrix.

    Why: "Target module … is not supported" when the adapter is made, after the data is tokenized and the model loaded
    on every rank. For models that see or hear LLaMA-Factory takes every module whose name holds the word, so a short
    word reaches blocks and norms, too.
    Source: llamafactory/model/model_utils/visual.py:patch_target_modules, peft/tuners/lora/model.py:LoraModel
    Fix: names of linear layers, such as q_proj, or `lora_target: all`.
    """
    targets = _named_targets(run)
    refused = _adapted(run, model).refused if targets else ""
    if refused and not model.refused & {target.rpartition(".")[2] for target in targets}:
        found = f"`lora_target` reaches {refused}, which is no linear layer, and PEFT cannot adapt it"
        linear = sorted(model.family.names(linear_roles(model.arch)))
        usual = [name for name in ("q_proj", "v_proj") if name in linear] or linear[:1]
        yield "lora_target", f"{found}; name linear layers instead, such as `lora_target: {','.join(usual)}`"


@rule("TRA220", WARNING, about=subjects.model)
def saved_modules_missing(run: RunSettings, model: Model) -> Findings:
    """`additional_target` names no module of the model.

    Why: peft leaves the name out with no message, and the embedding or the output layer stays frozen.
    Source: peft/utils/other.py:_set_trainable
    Fix: the end of a module's name, such as embed_tokens or lm_head.
    """
    family = model.family
    lost = saved_modules(run, model, _is_fused(run, model)).lost
    if run.task.uses_adapter and lost and not model.modules:
        found = f"a {model.kind} model has no module {', '.join(lost)}, and PEFT skips it without a message"
        yield "additional_target", f"{found}; write `additional_target: {family.embedding},{family.head}`"
