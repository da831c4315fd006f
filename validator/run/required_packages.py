"""Python packages that a run needs beside LLaMA-Factory's own, with the version bounds of LLaMA-Factory."""

from __future__ import annotations

from collections.abc import Iterator

from validator.knowledge.optimizers import OWN_OPTIMIZERS
from validator.run.prediction import Job

# Keys that switch a package on (hparams/parser.py, _check_extra_dependencies).
_PACKAGE_OF_KEY = {
    "use_unsloth": "unsloth", "enable_liger_kernel": "liger-kernel",
    **{key: optimizer.package for key, optimizer in OWN_OPTIMIZERS.items() if optimizer.package},
    "use_swanlab": "swanlab",
}  # fmt: skip
# What reads a quantized checkpoint, and what quantizes while loading (model/model_utils/quantization.py).
_PACKAGE_OF_CHECKPOINT = {"gptq": "gptqmodel", "awq": "autoawq", "aqlm": "aqlm"}
# Words in the names of optimizers that bitsandbytes has (transformers, trainer_optimizer.py or trainer.py).
_BITSANDBYTES_OPTIMIZERS = ("8bit", "bnb", "paged")
_PACKAGE_OF_LOADING = {"bnb": "bitsandbytes", "hqq": "hqq", "eetq": "eetq"}
# Releases that LLaMA-Factory refuses (requirements/deepspeed.txt at v0.9.5), or that bring a transformers which it
# refuses (metadata of flash-linear-attention 0.6).
_VERSION_BOUNDS = {"deepspeed": "deepspeed<=0.18.4", "flash-linear-attention": "flash-linear-attention<0.6"}


def pip_requirement(package: str) -> str:
    """Return the package with its version bound, as pip takes it."""
    return _VERSION_BOUNDS.get(package, package)


def packages_for_run(job: Job) -> Iterator[tuple[str, str]]:
    """Packages beside LLaMA-Factory's own that a run needs, and what needs them."""
    yield from ((package, f"`{key}`") for key, package in _PACKAGE_OF_KEY.items() if job.args.flag(key))
    if job.deepspeed:
        yield "deepspeed", "`deepspeed`"
    if any(word in str(job.args.get("optim")) for word in _BITSANDBYTES_OPTIMIZERS):
        yield "bitsandbytes", "`optim`"
    unused = () if job.on_gpu or not (job.model and job.model.arch.mixer) else job.model.arch.mixer.packages
    yield from (
        (package, "`packages` of the header block") for package in sorted(job.declared.packages.difference(unused))
    )
    if job.model and job.model.family.mixers_patched and job.args.get("flash_attn") == "fa2":
        yield "flash-linear-attention", f"`flash_attn: fa2` of {job.model.name}"
    quantization = job.quantization
    if package := _PACKAGE_OF_CHECKPOINT.get(quantization.checkpoint or ""):
        yield package, f"a checkpoint quantized with {(quantization.checkpoint or '').upper()}"
    if quantization.works:
        yield _PACKAGE_OF_LOADING[quantization.method], "`quantization_bit`"
