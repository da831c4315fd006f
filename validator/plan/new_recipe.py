"""A new recipe made from a few decisions (model, machine, method, sharding, length): its settings, in LLaMA-Factory's
order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from validator.knowledge import guidance, models
from validator.knowledge.chat_templates import known_templates
from validator.knowledge.devices import Machine
from validator.knowledge.guidance import SampleAmounts, memory_savers
from validator.knowledge.models import Model
from validator.levers.options import can_fuse_loss
from validator.recipe.known_folders import catalogue_root
from validator.run import dataset_registry, multimodal, recipe_labels
from validator.run.dataset_registry import Registry
from validator.run.prediction import predict
from validator.run.sample_counts import sequence_count
from validator.run.sample_lengths import estimate_sample_lengths, published_tokens
from validator.run.settings import RunSettings, run_of_values
from validator.run.simulated import PlanSimulations
from validator.run.workspace import Workspace

_TEXT_DATASETS = {"sft": "alpaca_gpt4_en,alpaca_gpt4_zh", "dpo": "dpo_mix_en,dpo_mix_zh", "rm": "dpo_mix_en,dpo_mix_zh",
         "kto": "kto_mix_en", "pt": "wikipedia_en"}  # fmt: skip
# For models that see, by stage; the others are trained on text.
_IMAGE_DATASETS = {"sft": "llava_1k_en,llava_1k_zh", "dpo": "rlhf_v", "rm": "rlhf_v"}
# As in LLaMA-Factory's own examples: half a megapixel and more, the default, is as many tokens as a long answer.
_MAX_IMAGE_PIXELS = 512 * 512
PLANNED_STAGES = tuple(_TEXT_DATASETS)
# Above this, the mask that sdpa builds for padded samples outgrows everything else.
_MAX_LENGTH_WITH_SDPA = 16384
# Shares of the data held back for evaluation, by the number of samples below which they hold; and of a stream how many.
_HELD_SHARES = {5_000: 0.05, 20_000: 0.02}
_HELD_SHARE_OF_MANY = 0.01
_HELD_SAMPLES_OF_STREAM = 200
# With fewer samples none is held back. It is the least at which a guide sees any change (`form` in data/samples.yaml).
_FEWEST_SAMPLES = 50
# Checkpoints of adapters that are kept at most where none is known to be the best.
_MAX_CHECKPOINTS_KEPT = 20
# The share of a run that lies between checkpoints and evaluations at most.
MAX_SHARE_BETWEEN_SAVES = 0.5
# Why nothing is held back for evaluation.
EVALUATION_TOO_LARGE = "an evaluation holds the logits of whole samples, which may not fit beside it"
EVALUATION_TOO_LONG = "evaluations would take a tenth of the run"
_TOO_FEW_SAMPLES = f"that takes {_FEWEST_SAMPLES} samples or more"
# Optimizer steps that a run has where the batch can be chosen: twice the fewest, so that evaluation data and the last,
# smaller batch of an epoch leave enough.
_MIN_STEPS = 2 * guidance.FEWEST_STEPS


@dataclass(frozen=True)
class NewRecipe:
    """The decisions about a run from which its recipe follows.

    `sharding`: a DeepSpeed file of deepspeed/, or `fsdp`. `samples`: number of samples; None means the recommended
    number. `optimizer`: a memory-saving optimizer for full fine-tuning on one device; `bf16` means AdamW in 16 bits.
    `transformers`: the release for which the recipe is made; None means the newest. `own_datasets`: the user's own
    data. `workers`: loader processes for each device. `stem`: name of the recipe's file without suffix. `planned`:
    simulations of a model type that the formulas do not know.

    `save_steps`: the share of the run between two checkpoints, or the number of all steps if there is only a checkpoint
    at the end. `held`: the share of the data held back for evaluation; None means the usual share. `no_evaluation`: why
    the run cannot evaluate at each checkpoint; None if it can. `public`: the run trains on the public data that it
    names, and the header block states their rows and lengths.

    `extra`: additional settings by the heading under which they are written (model, method, dataset or train); they
    replace settings of the same name. `drop`: settings to leave out. `use`: a word for the purpose of the run, with
    which the file's name ends."""

    model: Model
    machine: Machine
    method: str
    sharding: str | None = None
    micro_batch: int = 1
    length: int = 2048
    liger: bool = False
    recompute: bool = True
    samples: int | None = None
    stage: str = "sft"
    optimizer: str | None = None
    transformers: str | None = None
    own_datasets: Registry | None = None
    workers: int = 4
    stem: str | None = None
    planned: PlanSimulations | None = None
    save_steps: float = 0.1
    held: float | None = None
    no_evaluation: str | None = None
    public: bool = False
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    use: str = ""

    @property
    def liger_helps(self) -> bool:
        """True if Liger's fused loss can be used. For a simulated model, the simulation must support it, too."""
        return can_fuse_loss(self.machine.device, self.stage) and (self.planned is None or self.planned.fuses)

    @cached_property
    def run(self) -> RunSettings:
        """The run that the recipe describes. It is predicted by the same formulas as any other run."""
        here = dict(self.machine.installed)
        packages = [*self.packages, *([here["packages"]] if "packages" in here else [])]
        header = {**here, "samples": self.planned_samples, "transformers": self.transformers, "packages": packages}
        settings = {key: value for key, value in self._settings() if key not in self.drop}
        workspace = Workspace("plan", (catalogue_root(),), registry=self.own_datasets or _catalogue_datasets())
        run = run_of_values(settings, header, self.machine, workspace)
        run = self.planned.with_simulations(run) if self.planned else run
        return run.with_header({**run.header, **self._stated(run)}) if self.public else run

    def _stated(self, run: RunSettings) -> dict[str, int]:
        """Return the header fields `rows` (rows of the public data) and `lengths` (tokens of a typical sample). The
        longest sample is not stated: memory is then judged for `cutoff_len`, so the verdict holds for other data,
        too."""
        lengths = published_tokens(run)
        image_tokens = (
            multimodal.usual_media_tokens(run, self.model, run.data.datasets, run.data.published)
            if self.has_images
            else 0
        )
        fields = {
            "rows": run.data.published_rows,
            "lengths": min(lengths[0] + image_tokens, self.length) if lengths else None,
        }
        return {name: value for name, value in fields.items() if value}

    @property
    def fits(self) -> bool:
        """True if the upper ends of the predicted device memory and host memory are below the machine's limits. The
        tests that need least work come first, because device memory may have to be simulated. Device memory that was
        not simulated counts as not fitting."""
        prediction = predict(self.run)
        if prediction.exceeds_at_rest:
            return False
        return prediction.host_verdict in ("fits", "unknown") and prediction.device_verdict == "fits"

    @cached_property
    def lengths(self) -> Sequence[float]:
        """Expected lengths of the samples in tokens: estimated from the data if these can be read, otherwise from
        published figures."""
        return estimate_sample_lengths(self.run).lengths[1]

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that the recipe asks for: the Triton kernels of linear attention, if the model has linear attention
        and the device runs the kernels in bf16. Without them a step took 1.7 times as long on B200
        (huggingface/transformers issue 48718)."""
        runs = self.machine.device.vendor in ("nvidia", "amd") and self.machine.device.bf16
        mixer = self.model.arch.mixer if self.model.family.mixer == "delta" else None
        return mixer.facts.packages if mixer and runs else ()

    @property
    def planned_samples(self) -> int | None:
        """Number of samples for which the recipe is made: the user's own number, or else the recommended one."""
        return self.samples or self.recommended

    @cached_property
    def guidance(self) -> SampleAmounts | None:
        """Numbers of samples that public work used for this stage, method and model size; None if nothing is
        published."""
        return guidance.sample_amounts(self.stage, self.method, self.model.billions, self.has_images)

    @property
    def recommended(self) -> int | None:
        """Number of samples that data/samples.yaml recommends for the stage and the model's size; None if it recommends
        none."""
        return self.guidance.recommended.samples if self.guidance else None

    @property
    def rates(self) -> Mapping[str, Any]:
        """Published learning rate, batch size and epochs (data/rates.yaml) for the stage, the method and the model's
        size."""
        return guidance.published_rates(self.model, self.method, self.stage, self.optimizer)

    @property
    def accumulation(self) -> int:
        """Gradient accumulation steps, at least one: the most with which the effective batch does not exceed
        `batch`."""
        return max(1, self.batch // (self.micro_batch * self.machine.world))

    @property
    def batch(self) -> int:
        """Number of sequences in one optimizer step: the usual batch size. If packing puts several samples into a
        sequence, the number of sequences that hold a usual batch of samples. If weights are gathered from other
        devices, each device gets up to four sequences, so that each transfer serves more tokens. If the run would have
        fewer than a hundred steps, a smaller power of two."""
        usual = self.rates["batch"]
        batch, (rows, samples) = int(usual["default"]), self._packed
        if self.gathers:
            batch = max(batch, min(4 * self.machine.world, int(usual["high"] or 0)))
        max_batch = int(rows * float(self.rates["epochs"]["default"])) // _MIN_STEPS if rows else batch
        max_batch = min(max_batch, int(batch / samples))
        return batch if max_batch >= batch else _power_of_two(max_batch)

    @cached_property
    def most_devices(self) -> float:
        """The largest number of devices that does not harm the model. Every device takes at least one sample of each
        step; with more devices the batch would exceed those of published runs, or leave fewer than FEWEST_STEPS steps.
        At least SMALL_BATCH; infinite if neither is known."""
        sequences, high = sequence_count(self.run, self.lengths), self.rates["batch"]["high"] or math.inf
        passes = sequences * float(self.rates["epochs"]["default"]) if sequences else math.inf
        return max(guidance.SMALL_BATCH, min(high, passes // guidance.FEWEST_STEPS))

    @property
    def why_no_more_devices(self) -> str:
        """Why more than `most_devices` would harm the model, as a clause for a message."""
        too_much = f"leave fewer than {guidance.FEWEST_STEPS} steps of the samples, too few to learn much"
        if self.most_devices == self.rates["batch"]["high"]:
            too_much = "are a larger batch than published runs used"
        return f"a step takes a sample of every device, and more than {self.most_devices:,.0f} {too_much}"

    def machines_to_try(self) -> Iterator[Machine]:
        """Yield the machine or, if it has more than `most_devices`, the largest part of it that has not. If the run
        needs the memory of more devices, parts with twice as many and at last the whole machine follow."""
        whole, most = self.machine, self.most_devices
        while most < whole.world:
            nodes, devices = int(most) // whole.devices, min(int(most), whole.devices)
            yield whole._replace(nodes=_power_of_two(nodes or 1), devices=devices if nodes else _power_of_two(devices))
            most *= 2
        yield whole

    @property
    def gathers(self) -> bool:
        """True if each device gathers the weights of each layer from the other devices (ZeRO-3, FSDP)."""
        return self.sharding is not None and ("z3" in self.sharding or self.sharding == "fsdp")

    @property
    def _packed(self) -> tuple[int | None, float]:
        """The number of sequences that the samples make (None if not known), and the mean number of samples in a
        sequence."""
        if not self.public:
            return self.planned_samples, 1.0
        values = {"stage": self.stage, "cutoff_len": self.length, **dict(self._data())}
        run = run_of_values(values, workspace=Workspace(registry=_catalogue_datasets()))
        rows, length = run.data.published_rows or self.planned_samples, published_tokens(run)
        each = max(1.0, run.batch.max_tokens / length[0]) if length and run.batch.packing else 1.0
        return int(rows / each) if rows else None, each

    @cached_property
    def _rows(self) -> int | None:
        """Number of samples in the data; None if not known. If texts are packed, the smaller of the number of texts and
        the number of packed sequences, because LLaMA-Factory splits off the evaluation data before packing."""
        if self.own_datasets is None:
            return self._packed[0]
        values = {"stage": self.stage, "cutoff_len": self.length, **dict(self._data())}
        run = run_of_values(values, workspace=Workspace(registry=self.own_datasets))
        if run.data.local_rows is None or not run.batch.packing:
            return run.data.local_rows
        lengths = estimate_sample_lengths(run).lengths[1]
        return min(run.data.local_rows, int(run.data.local_rows * sum(lengths) / len(lengths) / self.length))

    @property
    def why_not_evaluated(self) -> str | None:
        """Reason why no data are held back for evaluation; None if a part of the data is held back."""
        has_few_rows = self._rows is not None and self._rows < _FEWEST_SAMPLES
        return _TOO_FEW_SAMPLES if has_few_rows else self.no_evaluation

    @property
    def evaluates(self) -> bool:
        """True if a part of the data is held back and evaluated at each checkpoint."""
        return self.why_not_evaluated is None

    @property
    def held_share(self) -> float:
        """The share of the data that is held back for evaluation; smaller for larger data."""
        rows = self._rows or 0
        return self.held or next((share for limit, share in _HELD_SHARES.items() if rows < limit), _HELD_SHARE_OF_MANY)

    @property
    def name(self) -> str:
        """File name that this recipe would have in the catalogue, without suffix; `plan` if model or machine has no
        such name."""
        name = recipe_labels.catalogue_name_with_variant(self.run) or "plan"
        return f"{name}-{self.use}" if self.use else name

    @property
    def template(self) -> str | None:
        """Name of the model's chat template. For a base model, the template of the chat-tuned model of the same family,
        or else `default`. None if it is not known."""
        sister = models.find_model(self.model.hub[0]).template if self.model.hub else None
        return self.model.template or sister or ("default" if self.model.base else None)

    @property
    def output(self) -> str:
        """Output folder, relative to the working directory. It is named after the recipe's file, because different
        plans may have the same catalogue name."""
        return f"saves/{self.stem or self.name}"

    @property
    def has_images(self) -> bool:
        """True if the model reads images and the samples contain images."""
        if not self.model.reads_images or self.stage == "pt":
            return False
        if self.own_datasets:
            return self.own_datasets.has_images
        names = str(dict(self._data())["dataset"]).split(",")
        return any(one.attr.has_images for name in names if (one := _catalogue_datasets().get(name)))

    @property
    def image_tokens(self) -> int:
        """Image and video tokens of the sample that has most of them; the tokens of one image if the data cannot be
        read. 0 if the samples contain no images."""
        return multimodal.max_media_tokens(self.run, self.model, self.run.data.datasets) if self.has_images else 0

    @property
    def length_with_images(self) -> int:
        """Maximum sample length in tokens: `length`, or a greater length if the images of a sample and some text need
        it."""
        return self.length if self.image_tokens <= self.length else multimodal.cutoff_for_media(self.image_tokens)

    def _settings(self) -> Iterator[tuple[str, Any]]:
        yield "model_name_or_path", self.model.name
        if self.has_images:
            yield "image_max_pixels", _MAX_IMAGE_PIXELS
        if self.model.remote_code:
            yield "trust_remote_code", True
        if self.length > _MAX_LENGTH_WITH_SDPA and self.machine.device.flash_attention:
            yield "flash_attn", "fa2"
        if self.method == "qlora":
            yield from {"quantization_bit": 4, "quantization_method": "bnb"}.items()
        if self.liger:
            yield "enable_liger_kernel", True
        if not self.recompute:
            yield "disable_gradient_checkpointing", True
        elif (
            self.model.arch.has_cross_attention or self.model.arch.shares_kv
        ):  # gradients of several layers meet (TRA918, TRA929)
            yield "use_reentrant_gc", False
        yield from self.extra.get("model", {}).items()
        yield from self._method()
        yield from self._data()
        kept = 2
        if not self.evaluates and self.method != "full":  # adapters are small, and none is known to be the best
            kept = min(max(2, round(1 / self.save_steps)), _MAX_CHECKPOINTS_KEPT)
        yield from {"logging_steps": 10, "save_steps": self.save_steps, "save_total_limit": kept, "plot_loss": True,
                    "report_to": "none"}.items()  # fmt: skip
        yield from self._schedule()
        yield from self._evaluation()

    def _method(self) -> Iterator[tuple[str, Any]]:
        yield "stage", self.stage
        yield "do_train", True
        yield "finetuning_type", "lora" if self.method == "qlora" else self.method
        if self.method in ("lora", "qlora"):
            rank, alpha = (guidance.usual_setting(key) for key in ("lora_rank", "lora_alpha"))
            yield from {"lora_rank": int(rank), "lora_alpha": int(alpha * rank),
                        "lora_target": self.model.family.targets}.items()  # fmt: skip
        if self.model.arch.towers:
            yield "freeze_vision_tower", True
        if self.method == "freeze":
            yield from {"freeze_trainable_layers": 2, "freeze_trainable_modules": "all"}.items()
        if self.stage in ("dpo", "kto"):
            yield "pref_beta", 0.1
        if self.stage == "dpo":
            yield "pref_loss", "sigmoid"
        if self.optimizer:
            yield from memory_savers()[self.optimizer].settings.items()
        if self.sharding == "fsdp":
            yield "fsdp", "full_shard auto_wrap"
            yield "fsdp_config", {"transformer_layer_cls_to_wrap": [self.model.family.layer]}
        elif self.sharding:
            yield "deepspeed", f"deepspeed/{self.sharding}"
        yield from self.extra.get("method", {}).items()

    def _data(self) -> Iterator[tuple[str, Any]]:
        public = (_IMAGE_DATASETS if self.model.reads_images else {}).get(self.stage, _TEXT_DATASETS[self.stage])
        yield "dataset", ",".join(self.own_datasets.entries) if self.own_datasets else public
        template = self.template
        if template and self.stage != "pt":
            yield "template", template
            yield from self.model.family.settings.items()
            if known_templates().get(template, {}).get("reasoning"):
                yield "enable_thinking", None  # right for answers with and without thoughts (rules TRA618 and TRA619)
        yield "cutoff_len", self.length
        yield "preprocessing_num_workers", 16
        yield "dataloader_num_workers", self.workers
        yield from self.extra.get("dataset", {}).items()

    def _schedule(self) -> Iterator[tuple[str, Any]]:
        yield "per_device_train_batch_size", self.micro_batch
        yield "gradient_accumulation_steps", self.accumulation
        yield "learning_rate", self.rates["learning_rate"]["default"]
        yield "num_train_epochs", float(self.rates["epochs"]["default"])
        yield "lr_scheduler_type", "cosine"
        yield "warmup_ratio", 0.03
        yield "max_grad_norm", 1.0
        yield ("pure_bf16" if self.optimizer else "bf16" if self.machine.device.bf16 else "fp16"), True
        if self.machine.nodes > 1:
            yield "ddp_timeout", 7200
        yield from self.extra.get("train", {}).items()

    def _evaluation(self) -> Iterator[tuple[str, Any]]:
        """Yield the settings that hold back a part of the data, evaluate it at each checkpoint and keep the best
        checkpoint. An adapter loads quickly, so its run loads the best checkpoint at the end. If data are streamed, the
        first samples are held back."""
        if not self.evaluates:
            return
        streams = self.extra.get("dataset", {}).get("streaming")
        yield "val_size", _HELD_SAMPLES_OF_STREAM if streams else self.held_share
        yield from {"per_device_eval_batch_size": 1, "eval_strategy": "steps",
                    "eval_steps": min(self.save_steps, MAX_SHARE_BETWEEN_SAVES)}.items()  # fmt: skip
        adapter = self.method in ("lora", "qlora") and self.save_steps < 1
        if adapter and not self.sharding and self.stage != "rm":  # rule TRA106
            yield "load_best_model_at_end", True
        yield "metric_for_best_model", "eval_loss"


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is no larger than the number; 1 for less than 1."""
    return 1 << max(0, number.bit_length() - 1)


def can_wrap_layers(model: Model) -> bool:
    """True if the name of the model's layer class, by which FSDP shards the model, is known."""
    return model.family.layer is not None


@cache
def _catalogue_datasets() -> Registry:
    """Return the data sets that the catalogue's dataset_info.json defines."""
    return dataset_registry.read_registry(catalogue_root() / "data" / dataset_registry.REGISTRY_FILE)
