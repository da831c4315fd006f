"""TRA9xx: models that LLaMA-Factory cannot load or train with the transformers release it installs."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.tables import releases
from validator.tables.machines import Machine


@rule("TRA901", Severity.ERROR)
def remote_code_not_trusted(job: Job) -> Iterator[Finding]:
    """The model comes with its own code, and the recipe does not allow it.

    Why: transformers has no class for the model; the tokenizer fails to load, on every rank.
    Source: transformers/dynamic_module_utils.py:resolve_trust_remote_code
    Fix: `trust_remote_code: true`, after reading the code in the model's repository.
    """
    if job.model and job.model.remote_code and not job.flag("trust_remote_code"):
        yield "model_name_or_path", f"{job.model.name} needs its own code; add `trust_remote_code: true`"


@rule("TRA902", Severity.ERROR, since="transformers 5.0.0")
def remote_code_outdated(job: Job) -> Iterator[Finding]:
    """The model's own code does not train with transformers 5.

    Why: the code of the first Qwen calls a method that transformers 5 has removed from its models (`get_head_mask`); it
    also imports transformers_stream_generator. That of MiniMax-Text-01 computes lightning attention for inference alone
    and returns nothing in training. The first step fails, after the weights are loaded on every rank.
    Source: transformers/modeling_utils.py:ModuleUtilsMixin
    Fix: a Qwen1.5 model, or MiniMax-Text-01-hf, which have the same shapes and need no code of their own.
    """
    if job.model and job.model.remote_code and job.model.family.successor:
        newer = job.model.name.replace(*job.model.family.successor)
        yield "model_name_or_path", f"the code of {job.model.name} does not train with transformers 5; take {newer}"


@rule("TRA903", Severity.ERROR, since="transformers 5.0.0")
def gpt_oss_kernel_missing(job: Job) -> Iterator[Finding]:
    """gpt-oss is trained with a transformers release that lacks what LLaMA-Factory calls for it.

    Why: LLaMA-Factory sets up a FlashAttention-3 kernel for gpt-oss through `load_and_register_kernel`, which
    transformers 5 has under another name: an import error after the whole data set is tokenized (LLaMA-Factory issue
    10256).
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: the older transformers release that the message names, in the header block and installed, with the package
    kernels, which fetches the kernel from the Hugging Face hub.
    """
    if job.model and job.model.family.own_kernel and not _kernel_unfit(job.machine):
        older, remedy = _with_older(" kernels")
        factory, library = releases.newest()
        lacking = f"which transformers {releases.series(library)} lacks and {older} has"
        yield (
            "model_name_or_path",
            f"LLaMA-Factory {factory} calls `load_and_register_kernel` for gpt-oss, {lacking}; {remedy}",
        )


@rule("TRA904", Severity.ERROR)
def gpt_oss_kernel_unfit(job: Job) -> Iterator[Finding]:
    """gpt-oss is trained on a device on which the kernel that LLaMA-Factory loads for it does not work.

    Why: kernels-community/vllm-flash-attn3 has attention sinks, which each layer of gpt-oss needs, on Hopper alone. On
    Ampere and Ada the first step ends with "S aux is currently only supported for Hopper GPUs"; its builds before
    February 2026 left the sinks out there without a word. On Blackwell "no kernel image is available" (LLaMA-Factory
    issue 10132, RTX 5090), and for other vendors there is no build.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: an NVIDIA GPU of the Hopper generation (H100, H200, H20, GH200), or another model.
    """
    if job.model and job.model.family.own_kernel and job.machine and _kernel_unfit(job.machine):
        works = "whose attention sinks work only on Hopper GPUs (compute capability 9.0)"
        there = job.machine.device.name
        yield (
            "model_name_or_path",
            f"LLaMA-Factory loads a FlashAttention-3 kernel for gpt-oss, {works}, not on {there}; take another model",
        )


@rule("TRA906", Severity.ERROR, since="transformers 5.0.0")
def class_fails(job: Job) -> Iterator[Finding]:
    """transformers 5 computes the model differently from the code that its weights were trained with.

    Why: the router of DBRX reads the hidden state, and is as wide; transformers 5 makes it as wide as the experts are
    inside. The published one does not fit, and a step multiplies matrices of unlike widths (seen under fake tensors).
    OLMo 3 scales its rotation (YaRN) only in the layers that attend to all tokens; transformers 5 scales it in all of
    them (transformers pull request 46911 mends it). That run ends well, but has trained another model than is served.
    Source: transformers/models/dbrx/modeling_dbrx.py:DbrxRouter.__init__,
        transformers/models/olmo3/modeling_olmo3.py:Olmo3Model.forward
    Fix: the older transformers release that the message names, in the header block and installed.
    """
    if job.model and (wrong := job.model.family.wrong):
        older, remedy = _with_older()
        made = f"transformers 5 makes {wrong}, unlike the weights of {job.model.name} and {older}"
        yield "model_name_or_path", f"{made}; {remedy}"


def _with_older(beside: str = "") -> tuple[str, str]:
    """The last transformers before the newest major release, and how to use it; `beside`: what is installed with it."""
    older = releases.previous()[1]
    return older, f'write `# transformers: {older}` into the header block, pip install "transformers=={older}"{beside}'


@rule("TRA905", Severity.NOTE, until="transformers 5.0.0")
def gpt_oss_sinks_untrained(job: Job) -> Iterator[Finding]:
    """A run on all parameters of gpt-oss leaves its attention sinks untrained.

    Why: the kernel that LLaMA-Factory loads has no gradient of the sinks (vllm_flash_attn3/flash_attn_interface.py,
    FlashAttnVarlenFunc.backward), for which Unsloth advises against it: they stay as published, one number a head. All
    other gradients are right, as the backward pass reads a normalizer in which the sinks are (flash-attn/softmax.h,
    finalize_aux). Adapters leave the sinks as they are in any case.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: none in LLaMA-Factory, which uses no other attention for gpt-oss; adapters lose nothing.
    """
    trained = job.method in ("full", "freeze")
    if trained and job.model and job.model.family.own_kernel and not _kernel_unfit(job.machine):
        text = "the attention sinks of gpt-oss, one number a head, stay as they are"
        yield "model_name_or_path", f"{text}: LLaMA-Factory's kernel for it has no gradient of them"


def _kernel_unfit(machine: Machine | None) -> bool:
    """Whether the kernel of gpt-oss does not work there; a capability that is not known counts as fit."""
    if machine is None:
        return False
    return machine.device.vendor != "nvidia" or machine.device.capability not in (None, 9.0)
