"""TRA9xx: models that LLaMA-Factory cannot load or train with the transformers release it installs."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.tables import releases


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
    """The model's own code does not run with transformers 5.

    Why: the code of the first Qwen calls a method that transformers 5 has removed from its models (`get_head_mask`); it
    also imports transformers_stream_generator. The first step fails, after the weights are loaded on every rank.
    Source: transformers/modeling_utils.py:ModuleUtilsMixin
    Fix: a Qwen1.5 model, which has the same shapes and needs no code of its own.
    """
    if job.model and job.model.remote_code and job.model.family.successor:
        newer = job.model.name.replace(*job.model.family.successor)
        yield "model_name_or_path", f"the code of {job.model.name} does not run with transformers 5; take {newer}"


@rule("TRA903", Severity.ERROR, since="transformers 5.0.0")
def gpt_oss_kernel_missing(job: Job) -> Iterator[Finding]:
    """gpt-oss is trained with a transformers release that lacks what LLaMA-Factory calls for it.

    Why: LLaMA-Factory sets up a FlashAttention-3 kernel for gpt-oss through `load_and_register_kernel`, which
    transformers does not have: an import error after the whole data set is tokenized. The kernel is NVIDIA's.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: another model; or, on an NVIDIA GPU, an older transformers that LLaMA-Factory accepts and that has it.
    """
    if job.model and job.model.family.own_kernel:
        factory, library = releases.newest()
        lacking = f"which transformers {releases.series(library)} lacks"
        missing = f"LLaMA-Factory {factory} calls `load_and_register_kernel` for gpt-oss, {lacking}"
        npu = job.machine is not None and job.machine.device.vendor == "ascend"
        yield "model_name_or_path", f"{missing}{'; its kernel is for NVIDIA GPUs' if npu else ''}; take another model"
