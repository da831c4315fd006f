"""The nearest changes to a job and what each brings, all judged by the same formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from validator.diagnostic import Verdict
from validator.job.job import GIB, Job
from validator.rules import engine
from validator.tables.checkout import home

_BADNESS: Mapping[Verdict, int] = {"fits": 0, "tight": 1, "exceeds": 2, "unknown": 3}

# A value that a change writes; None takes the key away.
Setting = bool | int | str | None
Settings = Mapping[str, Setting]
Proposal = tuple[Settings, str]  # and what it brings


@dataclass(frozen=True)
class Change:
    """Settings to write, what the run then needs (GiB, expected), and what it costs."""

    set: Settings
    device_gib: float
    host_gib: float
    verdict: Verdict
    note: str

    def saves_no_more(self, than: Change) -> bool:
        return self.device_gib > 0.98 * than.device_gib and self.host_gib > 0.98 * than.host_gib

    def settings(self) -> list[str]:
        """Each setting as YAML writes it."""
        return [f"{key}: {_text(value)}" for key, value in self.set.items()]

    def __str__(self) -> str:
        written = ", ".join(f"`{setting}`" for setting in self.settings())
        return f"{written} ({self.device_gib:.1f} GiB per device, {self.host_gib:.0f} of host memory per node)"


def nearest(job: Job, limit: int = 5) -> list[Change]:
    """Changes that lower device or host memory, those that fit first and in the order of what they cost; where nothing
    fits, those that come nearest. None of them brings an error that the job does not have already, and each saves more
    than a cheaper one."""
    near: list[Change] = []
    for change in sorted(_helpful(job), key=lambda change: (_BADNESS[change.verdict], _excess(job, change))):
        if len(near) == limit:
            break
        if not any(change.saves_no_more(than) for than in near) and _accepted(job, change):
            near.append(change)
    return near


def _excess(job: Job, change: Change) -> float:
    """How many times over the machine a change that does not fit still is."""
    machine = job.machine
    if machine is None or change.verdict != "exceeds":
        return 0.0
    device = change.device_gib / (machine.device.usable_gib or change.device_gib or 1.0)
    return max(device, change.host_gib / machine.host_ram_gib if machine.host_ram_gib else 0.0)


def fitting(job: Job) -> Change | None:
    """The nearest change with which the job fits; None where no single one does."""
    return next((change for change in nearest(job, 1) if change.verdict == "fits"), None)


def _helpful(job: Job) -> Iterator[Change]:
    if job.device_memory is None or job.host_memory is None:
        return
    now = (job.device_memory.expected, job.host_memory.expected)
    for settings, note in _candidates(job):
        change = _try(job, settings, note)
        helps = change.device_gib * GIB < 0.98 * now[0] or change.host_gib * GIB < 0.98 * now[1]
        if helps and (_BADNESS[change.verdict] <= _BADNESS[job.verdict]):
            yield change


def _changed(job: Job, settings: Settings) -> Job:
    return replace(job, values={**job.values, **settings}, folders=(*job.folders, home()))


def _accepted(job: Job, change: Change) -> bool:
    return engine.errors(_changed(job, change.set)) <= engine.errors(job)


def _try(job: Job, settings: Settings, note: str) -> Change:
    changed = _changed(job, settings)
    device, host = changed.device_memory, changed.host_memory
    return Change(settings, device.expected / GIB if device else 0.0, host.expected / GIB if host else 0.0,
                  changed.verdict, note)  # fmt: skip


def _candidates(job: Job) -> Iterator[Proposal]:
    """From cheap to costly in speed; combinations last."""
    yield from [*_free(job), *_batch(job), *_sharding(job), *_method(job)]
    yield from _unquantized(job) if job.zero_stage == 3 else ()
    for settings, note in [*_sharding(job), *_method(job)]:
        for more, extra in [*_free(job), *_batch(job)]:
            yield {**settings, **more}, f"{note}; {extra}"
    yield from _length(job)
    for settings, note in _sharding(job):
        for other, extra in [*_method(job), *_unquantized(job)]:
            yield {**other, **settings}, f"{note}; {extra}"


def _free(job: Job) -> Iterator[Proposal]:
    npu = job.machine is not None and job.machine.device.vendor == "ascend"
    if job.stage in ("sft", "pt") and not job.flag("enable_liger_kernel") and not npu:
        yield {"enable_liger_kernel": True}, "fuses the loss; needs the liger-kernel package"
    if job.checkpointing == "off":
        yield {"disable_gradient_checkpointing": False}, "about a third slower"
    if job.host_verdict in ("tight", "exceeds") and job.number("dataloader_num_workers") > 1:
        yield {"dataloader_num_workers": 1}, "fewer processes on the host; samples may come slower"


def _batch(job: Job) -> Iterator[Proposal]:
    if job.micro_batch > 1:
        same = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": job.accumulation * job.micro_batch}
        yield same, "same effective batch, smaller steps"


def _length(job: Job) -> Iterator[Proposal]:
    length = int(job.number("cutoff_len"))
    if length >= 1024:
        yield {"cutoff_len": length // 2}, "longer samples are cut"


def _sharding(job: Job) -> Iterator[Proposal]:
    """Other ZeRO files: more sharding, and offload; less offload where host memory is short."""
    for name, (offloads, note) in _FILES.items():
        alone = job.world == 1 and offloads == 0
        same = job.zero and job.zero.path and job.zero.path.endswith("/" + name)
        if not alone and not same:
            yield {**_without_engine(job), "deepspeed": f"deepspeed/{name}"}, note


def _without_optimizer(job: Job) -> dict[str, Setting]:
    """The optimizers of full fine-tuning that LLaMA-Factory refuses beside adapters, and mostly beside DeepSpeed."""
    return {key: False for key in ("use_galore", "use_apollo", "use_badam") if job.flag(key)}


def _without_engine(job: Job) -> dict[str, Setting]:
    """What has to go before a ZeRO engine can come: other engines, and optimizers and precisions that exclude it."""
    gone = _without_optimizer(job) | {key: None for key in ("fsdp", "fsdp_config") if job.has(key)}
    if job.flag("pure_bf16"):
        gone |= {"pure_bf16": False, "bf16": True}
    return gone


_FILES = {
    "ds_z2.json": (0, "shards optimizer state and gradients"),
    "ds_z3.json": (0, "shards the weights too; more communication"),
    "ds_z2_offload.json": (1, "optimizer state in host memory; slower steps"),
    "ds_z2_offload_nopin.json": (1, "optimizer state in unlocked host memory; slower still"),
    "ds_z3_offload.json": (1, "weights sharded, optimizer state in host memory; slower steps"),
    "ds_z3_offload_nopin.json": (1, "weights sharded, optimizer state in unlocked host memory; slower still"),
    "ds_z3_offload_all.json": (2, "weights and optimizer state in host memory; very slow steps"),
    "ds_z3_offload_all_nopin.json": (2, "the same in unlocked host memory, of which it needs least; the slowest"),
}


def _method(job: Job) -> Iterator[Proposal]:
    bits = job.machine.device.bitsandbytes if job.machine else (4, 8)
    if job.method in ("full", "freeze"):
        gone = _without_optimizer(job)
        note = "trains adapters instead of all weights, at about ten times the learning rate"
        adapted = {**gone, "finetuning_type": "lora", "lora_target": "all"}
        yield adapted, note
        if 4 in bits and not job.quantized:
            yield {**adapted, "quantization_bit": 4}, f"{note}; base weights in 4 bit"
    if job.method == "lora" and not job.quantized and 4 in bits and not job.flag("use_dora"):
        yield {"quantization_bit": 4}, "base weights in 4 bit; slower, slightly less accurate"


def _unquantized(job: Job) -> Iterator[Proposal]:
    """Where ZeRO-3 is or comes: it spreads ordinary weights while they are read, but quantized ones afterwards."""
    if job.method == "lora" and job.quantization.asked:
        yield {"quantization_bit": None}, "base weights in half precision"


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
