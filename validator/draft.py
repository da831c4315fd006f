"""A recipe from a few decisions: its settings in LLaMA-Factory's order, and its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from validator import __version__, catalog
from validator.catalog import Machine, Model
from validator.job import Job
from validator.rules import curated
from validator.rules.data import interpolate

_WORDS = {"lora": "LoRA", "qlora": "4-bit LoRA", "full": "full"}
_THINKING = "  # true for answers with <think> traces"
_HEADINGS = {"model_name_or_path": "model", "stage": "method", "dataset": "dataset", "output_dir": "output",
             "per_device_train_batch_size": "train"}  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """What is decided about a run. `engine` is a file of deepspeed/; `samples` None: as many as the guidance says."""

    model: Model
    machine: Machine
    method: str
    engine: str | None = None
    micro: int = 1
    length: int = 2048
    liger: bool = False
    recompute: bool = True
    samples: int | None = None

    @cached_property
    def job(self) -> Job:
        """The job it would be, judged by the same formulas as any other."""
        folders = (catalog.home(),)
        return Job("plan", dict(self._settings()), {"samples": self.amount}, self.machine, folders=folders)

    @property
    def amount(self) -> int | None:
        """Samples the recipe is made for: those there are, else the recommended number."""
        return self.samples or recommended(self.model, self.method)

    @property
    def rates(self) -> Mapping[str, Any]:
        """Learning rate, effective batch and epochs of data/rates.yaml for the method and the model's size."""
        return rates(self.model, self.method)

    @property
    def accumulation(self) -> int:
        """So many steps that the effective batch comes closest to the usual one from below; at least one."""
        return max(1, int(self.rates["batch"]["default"]) // (self.micro * self.machine.world))

    @property
    def name(self) -> str:
        """The name a recipe of the catalogue with these contents would have."""
        return curated.name(self.job) or "plan"

    @property
    def output(self) -> str:
        """Where the run saves, from the working directory."""
        return f"saves/{self.name}"

    def _settings(self) -> Iterator[tuple[str, Any]]:
        yield "model_name_or_path", self.model.name
        if self.model.remote_code:
            yield "trust_remote_code", True
        if self.method == "qlora":
            yield from {"quantization_bit": 4, "quantization_method": "bnb"}.items()
        if self.liger:
            yield "enable_liger_kernel", True
        if not self.recompute:
            yield "disable_gradient_checkpointing", True
        yield from self._method()
        yield from self._data()
        yield from {"logging_steps": 10, "save_steps": 500, "save_total_limit": 2, "plot_loss": True,
                    "report_to": "none"}.items()  # fmt: skip
        yield from self._schedule()

    def _method(self) -> Iterator[tuple[str, Any]]:
        yield "stage", "sft"
        yield "do_train", True
        yield "finetuning_type", "full" if self.method == "full" else "lora"
        if self.method != "full":
            # LLaMA-Factory's own defaults: rank 8, alpha twice the rank.
            yield from {"lora_rank": 8, "lora_alpha": 16, "lora_target": "all"}.items()
        if self.engine:
            yield "deepspeed", f"deepspeed/{self.engine}"

    def _data(self) -> Iterator[tuple[str, Any]]:
        yield "dataset", "alpaca_gpt4_en,alpaca_gpt4_zh"
        template = self.model.template or (catalog.model(self.model.hub[0]).template if self.model.hub else None)
        if template:
            yield "template", template
        if template == "qwen3":
            yield "enable_thinking", False
        yield "cutoff_len", self.length
        yield "preprocessing_num_workers", 16
        yield "dataloader_num_workers", 4

    def _schedule(self) -> Iterator[tuple[str, Any]]:
        yield "per_device_train_batch_size", self.micro
        yield "gradient_accumulation_steps", self.accumulation
        yield "learning_rate", self.rates["learning_rate"]["default"]
        yield "num_train_epochs", float(self.rates["epochs"])
        yield "lr_scheduler_type", "cosine"
        yield "warmup_steps", 0.03
        yield "max_grad_norm", 1.0
        yield ("bf16" if self.machine.device.bf16 else "fp16"), True


def rates(model: Model, method: str) -> Mapping[str, Any]:
    """The entry of data/rates.yaml for supervised fine-tuning of a model of this size; qlora is lora there."""
    wanted = "full" if method == "full" else "lora"
    entries = [e for e in catalog.listing("rates")["rates"] if (e["stage"], e["method"]) == ("sft", wanted)]
    found: Mapping[str, Any] = [e for e in entries if e["from_billions"] <= model.billions][-1]
    return found


def recommended(model: Model, method: str, figure: str = "good") -> int | None:
    """A figure of data/samples.yaml for the model's size and method, to two digits, as between two sizes it is
    interpolated; None where nobody has published one."""
    found = interpolate(guidance(method), model.billions, figure)
    return int(float(f"{found:.1e}")) if found else None


def guidance(method: str) -> Sequence[Mapping[str, Any]]:
    """The sizes of data/samples.yaml for supervised fine-tuning with the method."""
    found: Sequence[Mapping[str, Any]] = catalog.listing("samples")["sft"]["full" if method == "full" else "lora"]
    return found


def text(draft: Draft) -> str:
    """The recipe as a file: header block, then LLaMA-Factory's headings."""
    lines = ["# /// recipe", *(f"# {key}: {value}" for key, value in _header(draft)), "# ///"]
    for key, value in draft.job.values.items():
        if key == "logging_steps":
            lines += ["", "### output", f"output_dir: {draft.output}"]
        if key in _HEADINGS:
            lines += ["", f"### {_HEADINGS[key]}"]
        lines.append(f"{key}: {_written(value)}{_THINKING if key == 'enable_thinking' else ''}")
    return "\n".join(lines) + "\n"


def _header(draft: Draft) -> Iterator[tuple[str, Any]]:
    machine = draft.machine
    nodes = f"{machine.nodes} x " if machine.nodes > 1 else ""
    yield (
        "summary",
        (
            f"{_WORDS[draft.method]} fine-tuning of {draft.model.name.rpartition('/')[2]} on "
            f"{nodes}{machine.devices} x {machine.device.name}"
        ),
    )
    yield "machine", machine
    if machine.host_ram_gib:
        yield "host_ram_gib", f"{machine.host_ram_gib:g}"
    if draft.amount:
        yield "samples", draft.amount
    if found := curated.predicted(draft.job):
        yield "predicted", "{" + ", ".join(f"{key}: {value}" for key, value in found.items()) + "}"
    yield "origin", f"plan of llamafactory-recipes {__version__}"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and 0 < value < 1e-2:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return str(value)
