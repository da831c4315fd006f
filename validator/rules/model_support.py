"""TRA901 to TRA906, TRA909, TRA707 to TRA710 and TRA712 to TRA715: what LLaMA-Factory, transformers or torch cannot do
with this model."""

from __future__ import annotations

from validator.knowledge import releases
from validator.knowledge.devices import Machine
from validator.knowledge.models import Model
from validator.knowledge.tables import json_table
from validator.rules import subjects
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.run.settings import RunSettings


@rule("TRA901", ERROR, about=subjects.model)
def remote_code_not_trusted(run: RunSettings, model: Model) -> Findings:
    """The model comes with its own code, and the recipe does not allow it.

    Why: transformers has no class for the model; the tokenizer fails to load, on every rank. Chat and export, which run
    at a terminal, ask there.
    Source: transformers/dynamic_module_utils.py:resolve_trust_remote_code
    Fix: `trust_remote_code: true`, after reading the code in the model's repository.
    """
    if model.remote_code and not run.args.flag("trust_remote_code") and not run.task.is_for_other_command:
        yield "model_name_or_path", f"{model.name} needs its own model code; set `trust_remote_code: true`"


@rule("TRA902", ERROR, about=subjects.model, since="transformers 5.0.0")
def remote_code_outdated(run: RunSettings, model: Model) -> Findings:
    """The model's own code does not train with transformers 5.

    Why: the code of the first Qwen calls a method that transformers 5 has removed from its models (`get_head_mask`); it
    also imports transformers_stream_generator. That of MiniMax-Text-01 computes lightning attention for inference alone
    and returns nothing in training. The first step fails, after the weights are loaded on every rank.
    Source: transformers/modeling_utils.py:ModuleUtilsMixin
    Fix: a Qwen1.5 model, or MiniMax-Text-01-hf, which have the same shapes and need no code of their own.
    """
    if model.remote_code and model.family.successor and not run.task.is_for_other_command:
        newer = model.name.replace(*model.family.successor)
        found = f"the code of {model.name} does not train with transformers 5"
        yield "model_name_or_path", f"{found}; write `model_name_or_path: {newer}`"


@rule("TRA903", ERROR, about=subjects.model, since="transformers 5.0.0")
def gpt_oss_kernel_missing(run: RunSettings, model: Model) -> Findings:
    """gpt-oss is trained with a transformers release that lacks what LLaMA-Factory calls for it.

    Why: LLaMA-Factory sets up a FlashAttention-3 kernel for gpt-oss through `load_and_register_kernel`, which
    transformers 5 has under another name: an import error after the whole data set is tokenized (LLaMA-Factory issue
    10256).
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: the older transformers release that the message names, in the header block and installed, with the package
    kernels, which fetches the kernel from the Hugging Face hub.
    """
    if model.family.own_kernel and not _lacks_gpt_oss_kernel(run.machine):
        older, remedy = _older_release_advice(" kernels")
        factory, library = releases.newest_pair()
        lacking = f"which transformers {releases.release_series(library)} lacks and {older} has"
        text = f"LLaMA-Factory {factory} calls `load_and_register_kernel` for gpt-oss, {lacking}; {remedy}"
        yield "model_name_or_path", text


@rule("TRA904", ERROR, about=subjects.model)
def gpt_oss_kernel_unfit(run: RunSettings, model: Model) -> Findings:
    """gpt-oss is trained on a device on which the kernel that LLaMA-Factory loads for it does not work.

    Why: kernels-community/vllm-flash-attn3 has attention sinks, which each layer of gpt-oss needs, on Hopper alone. On
    Ampere and Ada the first step ends with "S aux is currently only supported for Hopper GPUs"; its builds before
    February 2026 left the sinks out there without a word. On Blackwell "no kernel image is available" (LLaMA-Factory
    issue 10132, RTX 5090), and for other vendors there is no build.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: an NVIDIA GPU of the Hopper generation (H100, H200, H20, GH200), or another model.
    """
    if model.family.own_kernel and run.machine and _lacks_gpt_oss_kernel(run.machine):
        works = "whose attention sinks work only on Hopper GPUs (compute capability 9.0)"
        found = f"LLaMA-Factory loads a FlashAttention-3 kernel for gpt-oss, {works}"
        yield "model_name_or_path", f"{found}, not on {run.machine.device.name}; choose another model or device"


@rule("TRA906", ERROR, about=subjects.model, since="transformers 5.0.0")
def class_fails(_run: RunSettings, model: Model) -> Findings:
    """transformers 5 computes the model differently from the code that its weights were trained with.

    Why: the router of DBRX reads the hidden state, and is as wide; transformers 5 makes it as wide as the experts are
    inside. The published one does not fit, and a step multiplies matrices of unlike widths (seen under fake tensors).
    OLMo 3 scales its rotation (YaRN) only in the layers that attend to all tokens; transformers 5 scales it in all of
    them (transformers pull request 46911 mends it). That run ends well, but has trained another model than is served.
    Source: transformers/models/dbrx/modeling_dbrx.py:DbrxRouter.__init__,
        transformers/models/olmo3/modeling_olmo3.py:Olmo3Model.forward
    Fix: the older transformers release that the message names, in the header block and installed.
    """
    if wrong := model.family.wrong_in_transformers_5:
        older, remedy = _older_release_advice()
        made = f"transformers 5, unlike {older}, makes {wrong}, which does not suit the weights of {model.name}"
        yield "model_name_or_path", f"{made}; {remedy}"


def _older_release_advice(beside: str = "") -> tuple[str, str]:
    """Return the newest transformers release before the current major version, and how to use it, as text for a
    message. `beside`: text with further packages for the pip command."""
    older = releases.previous_major_pair()[1]
    command = f'pip install "transformers=={older}"{beside}'
    return older, f"write `# transformers: {older}` into the header block, and run `{command}`"


@rule("TRA905", NOTE, about=subjects.model, until="transformers 5.0.0")
def gpt_oss_sinks_untrained(run: RunSettings, model: Model) -> Findings:
    """A run on all parameters of gpt-oss leaves its attention sinks untrained.

    Why: the kernel that LLaMA-Factory loads has no gradient of the sinks (vllm_flash_attn3/flash_attn_interface.py,
    FlashAttnVarlenFunc.backward), for which Unsloth advises against it: they stay as published, one number a head. All
    other gradients are right, as the backward pass reads a normalizer in which the sinks are (flash-attn/softmax.h,
    finalize_aux). Adapters leave the sinks as they are in any case.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: none in LLaMA-Factory, which uses no other attention for gpt-oss; adapters lose nothing.
    """
    if run.task.method in ("full", "freeze") and model.family.own_kernel and not _lacks_gpt_oss_kernel(run.machine):
        found = "the attention sinks of gpt-oss (one number per head) are not trained"
        yield (
            "model_name_or_path",
            f"{found}, because LLaMA-Factory's kernel computes no gradient for them; no setting changes that",
        )


@rule("TRA909", WARNING, about=subjects.model, until="llamafactory 0.9.5")
def convolution_slow(run: RunSettings, model: Model) -> Findings:
    """A model with a convolution over time is trained with torch 2.9, which computes it without cuDNN.

    Why: it takes many times as long, so that most of a step goes into the first layer of the tower (PyTorch issues
    166122 and 174051, LLaMA-Factory issue 9282), and needs more memory (PyTorch issue 166643). Later releases of
    LLaMA-Factory refuse such a run.
    Source: own (the issues)
    Fix: torch 2.10 or later, or 2.8.
    """
    on_nvidia = run.machine is None or run.machine.device.vendor == "nvidia"
    if on_nvidia and _convolves_with_torch_2_9(run, model):
        found = f"torch 2.9 computes the Conv3d of {model.name} without cuDNN, so steps take many times as long"
        yield "torch", f"{found}; {_NEWER_TORCH}"


_NEWER_TORCH = 'install torch 2.10 or later, and write `# torch: ">=2.10"`'


def _convolves_with_torch_2_9(run: RunSettings, model: Model) -> bool:
    """True if the model's class has a Conv3d, which pictures and films pass, and the run may use torch 2.9."""
    has_convolution = model.kind in json_table("families")["modules"]["Conv3d"]
    return has_convolution and run.releases.requires("torch 2.9.0", "torch 2.10.0")


def _lacks_gpt_oss_kernel(machine: Machine | None) -> bool:
    """True if the FlashAttention-3 kernel that LLaMA-Factory loads for gpt-oss does not work on the machine's devices.
    A device of unknown compute capability counts as suitable."""
    if machine is None:
        return False
    return machine.device.vendor != "nvidia" or machine.device.capability not in (None, 9.0)


@rule("TRA707", WARNING, about=subjects.model)
def no_liger_kernel(run: RunSettings, model: Model) -> Findings:
    """The recipe asks for Liger kernels, and there are none for the model.

    Why: LLaMA-Factory only warns and goes on: neither speed nor memory is gained, and long samples may run out of
    memory.
    Source: llamafactory/model/model_utils/liger_kernel.py:apply_liger_kernel
    Fix: remove `enable_liger_kernel`, and check memory without it.
    """
    if run.args.flag("enable_liger_kernel") and not model.family.liger:
        found = f"LLaMA-Factory has no liger kernels for {model.kind}, so it saves no memory"
        yield "enable_liger_kernel", f"{found}; remove `enable_liger_kernel`"


@rule("TRA708", ERROR, about=subjects.model)
def shifted_attention_refused(run: RunSettings, model: Model) -> Findings:
    """The recipe asks for S^2 attention with transformers 5.

    Why: its patch of llama needs transformers below 4.48: fails when the model is configured, after the whole data
    set is tokenized on every rank.
    Source: llamafactory/model/model_utils/longlora.py:_apply_llama_patch
    Fix: remove `shift_attn`.
    """
    if run.args.flag("shift_attn") and run.task.trains and run.task.stage != "ppo" and model.family.shift_attention:
        yield "shift_attn", "`shift_attn` needs transformers below 4.48; remove `shift_attn`"


@rule("TRA709", WARNING, about=subjects.model)
def shifted_attention_unread(run: RunSettings, model: Model) -> Findings:
    """The recipe asks for S^2 attention, and there is none for the model.

    Why: LLaMA-Factory only warns and goes on with full attention, which needs far more memory on long samples.
    Source: llamafactory/model/model_utils/longlora.py:configure_longlora
    Fix: remove `shift_attn`.
    """
    if run.args.flag("shift_attn") and not model.family.shift_attention and run.task.stage != "ppo":
        found = f"`shift_attn` is for llama models, and has no effect on {model.kind}"
        yield "shift_attn", f"{found}; remove `shift_attn`"


@rule("TRA710", ERROR, about=subjects.model)
def mixture_of_depths_unsupported(run: RunSettings, model: Model) -> Findings:
    """The recipe asks for mixture-of-depths, to which the model cannot be converted.

    Why: fails while the model loads, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/mod.py:convert_pretrained_model_to_mod,
    llamafactory/extras/constants.py:MOD_SUPPORTED_MODELS
    Fix: remove `mixture_of_depths`.
    """
    if run.args.get("mixture_of_depths") == "convert" and not model.family.mixture_of_depths:
        yield "mixture_of_depths", f"{model.kind} cannot be converted to mixture-of-depths; remove `mixture_of_depths`"


@rule("TRA712", WARNING, about=subjects.model)
def routers_without_loss(run: RunSettings, model: Model) -> Findings:
    """A coefficient of the routers' loss is set for a model that gets none.

    Why: LLaMA-Factory hands it on to some mixtures; elsewhere it has no effect, and experts are not balanced.
    Source: llamafactory/model/model_utils/moe.py:configure_moe
    Fix: remove `moe_aux_loss_coef`.
    """
    if run.args.flag("moe_aux_loss_coef") and run.task.trains and not model.family.aux_loss:
        found = f"`moe_aux_loss_coef` has no effect, because {model.kind} has no auxiliary loss in LLaMA-Factory"
        yield "moe_aux_loss_coef", f"{found}; remove `moe_aux_loss_coef`"


@rule("TRA713", ERROR, about=subjects.model, since="transformers 5.6.0")
def flash_attention_without_sinks(run: RunSettings, model: Model) -> Findings:
    """The recipe asks for FlashAttention-2 with the newest transformers, for a model without attention sinks.

    Why: that release converts the sinks even where a model has none: "'NoneType' object has no attribute 'to'" at the
    first step, after the data is tokenized and the model loaded on every rank (transformers issue 45588). It is the
    newest release that LLaMA-Factory admits, and so the one that pip installs.
    Source: transformers/integrations/flash_attention.py:flash_attention_forward
    Fix: the earlier transformers in the message, also in the header block; or `flash_attn: auto`.
    """
    if run.uses_flash_attention and not (model.family.sinks or model.remote_code):
        newest, earlier = (version for _, version in releases.known_pairs()[:2])
        text = f"with transformers {newest} a run with `flash_attn: fa2` stops at the first step"
        older = f"install transformers {earlier} and write `# transformers: {earlier}` into the header block"
        yield "flash_attn", f"{text}; write `flash_attn: auto`, or {older}"


@rule("TRA714", ERROR, about=subjects.model, since="llamafactory 0.9.5")
def convolution_refused(run: RunSettings, model: Model) -> Findings:
    """A model with a convolution over time is trained with torch 2.9.

    Why: LLaMA-Factory stops once the model is loaded on every rank: "Unsupported torch version detected: torch 2.9.x
    with Conv3D". torch 2.9 computes them many times slower (github.com/pytorch/pytorch/issues/166122).
    Source: llamafactory/model/loader.py:load_model
    Fix: torch 2.10 or later, or 2.8.
    """
    if _convolves_with_torch_2_9(run, model):
        found = f"LLaMA-Factory refuses torch 2.9 for {model.name}, which has a Conv3d"
        yield "torch", f"{found}; {_NEWER_TORCH}"


@rule("TRA715", ERROR)
def torch_refused(run: RunSettings) -> Findings:
    """The header block names a release of torch that transformers does not take.

    Why: transformers turns an older torch off ("Disabling PyTorch because PyTorch >= 2.4 is required"), and
    LLaMA-Factory stops while it is imported.
    Source: transformers/utils/import_utils.py:is_torch_available
    Fix: a release that it takes.
    """
    for library, accepted in run.releases.refused("torch"):
        newest = run.releases.engine_releases("torch")[0]
        yield "torch", f'{library} asks for torch {accepted}, not {newest}; write `# torch: "{accepted}"`'
