"""Packages that a run needs beside LLaMA-Factory's own."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.here.installed import installed
from validator.job.job import Job
from validator.quoting import join
from validator.train.room import Shortage

# Keys that switch a package on (hparams/parser.py, _check_extra_dependencies).
_SWITCHED = {
    "use_unsloth": "unsloth", "enable_liger_kernel": "liger-kernel", "use_galore": "galore_torch",
    "use_apollo": "apollo_torch", "use_badam": "badam", "use_adam_mini": "adam-mini", "use_swanlab": "swanlab",
}  # fmt: skip
# What reads a quantized checkpoint, and what quantizes while loading (model/model_utils/quantization.py).
_CHECKPOINT = {"gptq": "gptqmodel", "awq": "autoawq", "aqlm": "aqlm"}
# Words in the names of optimizers that bitsandbytes has (transformers, trainer_optimizer.py or trainer.py).
_BITSANDBYTES = ("8bit", "bnb", "paged")
_LOADING = {"bnb": "bitsandbytes", "hqq": "hqq", "eetq": "eetq"}
# Releases that LLaMA-Factory refuses (requirements/deepspeed.txt at v0.9.5), or that bring a transformers which it
# refuses (metadata of flash-linear-attention 0.6).
_BOUNDS = {"deepspeed": "deepspeed<=0.18.4", "flash-linear-attention": "flash-linear-attention<0.6"}


def requirement(package: str) -> str:
    """Return the package with its version bound, as pip takes it."""
    return _BOUNDS.get(package, package)


def lacking(job: Job) -> Iterator[Shortage]:
    """Packages that LLaMA-Factory would stop for; none where it is not installed here itself."""
    wanted = dict(needed(job))
    there = installed().among(["llamafactory", *wanted])
    for package, why in wanted.items() if "llamafactory" in there else ():
        if package not in there:
            install = join(["pip", "install", requirement(package)])
            yield Severity.ERROR, f"{why} needs a package that is not installed: {install}"


def needed(job: Job) -> Iterator[tuple[str, str]]:
    """Packages beside LLaMA-Factory's own that a run needs, and what needs them."""
    yield from ((package, f"`{key}`") for key, package in _SWITCHED.items() if job.flag(key))
    if job.zero:
        yield "deepspeed", "`deepspeed`"
    if any(word in str(job.get("optim")) for word in _BITSANDBYTES):
        yield "bitsandbytes", "`optim`"
    unused = () if job.on_gpu or not (job.model and job.model.arch.mixer) else job.model.arch.mixer.packages
    yield from ((package, "`packages` of the header block") for package in sorted(job.packages.difference(unused)))
    if job.model and job.model.family.patched and job.get("flash_attn") == "fa2":
        yield "flash-linear-attention", f"`flash_attn: fa2` of {job.model.name}"
    quantization = job.quantization
    if package := _CHECKPOINT.get(quantization.checkpoint or ""):
        yield package, f"a checkpoint quantized with {(quantization.checkpoint or '').upper()}"
    if quantization.works:
        yield _LOADING[quantization.method], "`quantization_bit`"
