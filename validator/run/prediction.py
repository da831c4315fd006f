"""Memory and disk that a run needs, and the verdicts whether its machine has enough of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from validator.finding import Verdict
from validator.physics import (
    Estimate,
    TowerWorkload,
    Workload,
    disk_usage,
    estimate_device_memory,
    estimate_host_memory,
    layers_kept_whole,
    resident_bytes,
)
from validator.physics.estimate import GIB, DiskTerm, SharedTerm
from validator.physics.workload import ExpertsForm
from validator.run import deepspeed, multimodal, physics_inputs
from validator.run.deepspeed import DeepSpeedAlternatives, DeepSpeedConfig
from validator.run.first_rows import certain_tokens
from validator.run.schedule import CheckpointCounts, count_checkpoints
from validator.run.settings import RunSettings


class Prediction:
    """Memory and disk that a run needs, and the verdicts on its machine. Each value is computed when it is first
    used."""

    def __init__(self, run: RunSettings) -> None:
        self.run = run

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """The training step as input of the memory formulas, by release of transformers, newest first. There are
        several only if the recipe's header block allows releases that store the experts of a mixture-of-experts model
        in different ways. Empty if nothing is trained, if the model is not known, or if the DeepSpeed or accelerate
        file does not tell how states are sharded."""
        engine = self.judged_deepspeed
        unknown = (engine and engine.problem) or (self.run.accelerate and not self.run.accelerate.is_judged)
        if self.run.model is None or unknown or self.run.task.is_inference_only or self.run.other_engine:
            return {}
        forms: Mapping[ExpertsForm, str] = {"grouped": ""}
        if self.run.model.arch.ffn.experts:
            forms = self.run.model.family.forms(self.run.releases)
        return {
            release: physics_inputs.make_workload(self.run, self.run.model, engine, form)
            for form, release in forms.items()
        }

    @property
    def workload(self) -> Workload | None:
        """The workload for the memory formulas with the newest release of transformers; None if `workloads` is
        empty."""
        return next(iter(self.workloads.values()), None)

    @cached_property
    def outcomes_of_missing_file(self) -> DeepSpeedAlternatives | None:
        """The run's verdicts under each of LLaMA-Factory's own DeepSpeed files, if the recipe's DeepSpeed file does not
        exist and its name gives no ZeRO stage. None in all other cases, and if memory cannot be predicted."""
        can_be_judged = self.run.machine and self.run.model and not self.run.task.is_inference_only
        if not (can_be_judged and self.run.deepspeed and self.run.deepspeed.is_missing):
            return None
        outcomes = []
        for zero in deepspeed.stock_deepspeed():
            with_file = predict(self.run.updated({"deepspeed": dict(zero.config)}))
            if with_file.device_memory:
                high = with_file.device_memory.high
                outcomes.append(deepspeed.DeepSpeedOutcome(zero, with_file.verdict, high))
        return deepspeed.DeepSpeedAlternatives(tuple(outcomes)) if outcomes else None

    @property
    def judged_deepspeed(self) -> DeepSpeedConfig | None:
        """The DeepSpeed configuration to judge: the recipe's own. If its file does not exist and its name gives no ZeRO
        stage, one of LLaMA-Factory's own files, provided that all of them lead to the same conclusion. None without
        DeepSpeed."""
        return (self.outcomes_of_missing_file and self.outcomes_of_missing_file.agreed) or self.run.deepspeed

    @cached_property
    def device_memories(self) -> Mapping[str, Estimate]:
        """Predicted peak in bytes on the device that needs most, by release of transformers (the keys of `workloads`).
        All sequences have the longest possible length; for the lower end, the typical length that the recipe's header
        block declares. If the number of images per sample is not known, the expected value assumes one image, and the
        upper end as many as fit in `cutoff_len`."""
        with_more_images = self._with_more_images
        return {name: one._replace(high=max(one.high, with_more_images[name].high)) if with_more_images else one
                for name, one in self._with_one_picture.items()}  # fmt: skip

    @cached_property
    def _with_one_picture(self) -> Mapping[str, Estimate]:
        """Predicted peaks like `device_memories`, but with one image per sample if the number of images is not
        known."""
        longest = self._device_memories(self.run.batch.max_tokens)
        if not self.run.declared.lengths.typical or certain_tokens(self.run) == self.run.batch.max_tokens:
            return longest
        typical = self._device_memories(certain_tokens(self.run))
        if not typical:  # a second simulation may fail
            return longest
        return {name: one._replace(low=min(one.low, typical[name].low)) for name, one in longest.items()}

    @property
    def _with_more_images(self) -> Mapping[str, Estimate]:
        """Predicted peaks like `device_memories`, but with as many images per sample as fit in `cutoff_len`; empty if
        the number of images is known."""
        if not (encodings := self._images_up_to_cutoff):
            return {}
        return self._estimates({name: work._replace(towers=encodings) for name, work in self.workloads.items()})

    @property
    def _images_up_to_cutoff(self) -> tuple[TowerWorkload, ...]:
        """The workloads of the towers with as many images per sample as fit in `cutoff_len`; empty if the number of
        images is known."""
        if self.run.model is None or self.workload is None or not self.workload.towers:
            return ()
        encodings = multimodal.with_images_up_to_cutoff(
            self.run, self.run.model, self.run.data.datasets, self.workload.towers
        )
        return () if encodings == self.workload.towers else encodings

    def _device_memories(self, length: int) -> Mapping[str, Estimate]:
        if self.run.memory_source and self.is_simulated:
            simulated = self.run.memory_source.device_memories(self.run, length)
            return {name: self._with_shared_host_memory(estimate) for name, estimate in simulated.items()}
        works = self.workloads.items()
        return self._estimates({name: work._replace(length=length, eval_length=length) for name, work in works})

    def _estimates(self, works: Mapping[str, Workload]) -> Mapping[str, Estimate]:
        if self.run.model is None or not works:
            return {}
        runtime = (
            self.run.machine.device.runtime(physics_inputs.uses_expandable_segments(self.run))
            if self.run.machine
            else None
        )
        return {
            name: self._with_shared_host_memory(estimate_device_memory(self.run.model.arch, work, runtime))
            for name, work in works.items()
        }

    def _with_shared_host_memory(self, estimate: Estimate) -> Estimate:
        """Return the estimate of a device's memory. If devices and host share one memory, the device's part of the
        host's peak is added. The upper end then includes the host's page cache, because CUDA counts page cache as used
        memory (github.com/vllm-project/vllm/issues/35313)."""
        host = self.host_memory
        if self.run.machine is None or host is None or not self.run.machine.device.shared_memory:
            return estimate
        low, expected, high = (each / self.run.machine.devices for each in (host.low, host.expected, host.high))
        return estimate._replace(
            terms={**estimate.terms, SharedTerm.HOST: expected},
            low=estimate.low + low,
            expected=estimate.expected + expected,
            high=estimate.high + high,
        )

    @property
    def device_memory(self) -> Estimate | None:
        """Predicted peak in bytes on the device that needs most, with the newest release of transformers; None if it
        cannot be predicted. If the device shares the host's memory, the host's need is included."""
        return next(iter(self.device_memories.values()), None)

    @property
    def peak(self) -> str:
        """The phase in which device memory peaks, as text for a message; for loading, with the reason. Empty if device
        memory cannot be predicted."""
        phase = self.device_memory.phase if self.device_memory else ""
        if phase != "loading" or self.workload is None:
            return phase
        bits, stage = self.workload.quant_bits, self.run.zero_stage
        if stage in (1, 2):
            return "loading, as each device first holds the whole model in 32 bits"
        weights = f"all {bits:g}-bit weights" if bits else "the whole model"
        return (
            f"loading, as each device first holds {weights}, which {'ZeRO-3' if stage else 'FSDP'} does not spread then"
        )

    @property
    def depends_on_length(self) -> bool:
        """True if device memory peaks in a phase that needs more if samples are longer."""
        return self.device_memory is not None and self.device_memory.phase not in ("loading", "optimizer step")

    def memory_of_batch(self, length: int, tower_tokens: int) -> Estimate | None:
        """Return the predicted peak in bytes for samples of `length` tokens whose images have `tower_tokens` tokens of
        the vision tower, with the newest release of transformers; None if it cannot be predicted."""
        if self.run.model is None or self.is_simulated or not self.workloads:
            return None
        release, work = next(iter(self.workloads.items()))
        towers = multimodal.with_tower_tokens(self.run, self.run.model, tower_tokens, work.towers)
        return self._estimates({release: work._replace(length=length, eval_length=length, towers=towers)})[release]

    @property
    def layers_kept_whole(self) -> int:
        """Number of decoder layers that keep all their activations because no adapter reaches them, although activation
        checkpointing is on."""
        return layers_kept_whole(self.run.model.arch, self.workload) if self.run.model and self.workload else 0

    @property
    def is_simulated(self) -> bool:
        """True if device memory comes from a simulation, because no formula knows the model type and the simulation has
        counted the model's layers."""
        return self.run.model is not None and bool(self.run.model.arch.counted_layers)

    @cached_property
    def host_memories(self) -> Mapping[str, Estimate]:
        """Predicted peak in bytes of one node's main memory, by release of transformers (the keys of `workloads`)."""
        if self.run.model is None:
            return {}
        return {name: estimate_host_memory(self.run.model.arch, work) for name, work in self.workloads.items()}

    @property
    def host_memory(self) -> Estimate | None:
        """Predicted peak in bytes of one node's main memory, with the newest release of transformers; None if it cannot
        be predicted."""
        return next(iter(self.host_memories.values()), None)

    @cached_property
    def disk(self) -> Mapping[DiskTerm, float] | None:
        """The most bytes that are on disk at the same time, by term; None if they cannot be predicted."""
        if self.run.model is None or self.workload is None:
            return None
        return disk_usage(
            self.run.model.arch,
            self.workload,
            *self.checkpoint_counts,
            save_optimizer=not self.run.args.flag("save_only_model"),
        )

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of one checkpoint; 0 if they cannot be predicted."""
        if self.run.model is None or self.workload is None:
            return 0.0
        one = disk_usage(
            self.run.model.arch, self.workload, 1, 1, save_optimizer=not self.run.args.flag("save_only_model")
        )
        return one[DiskTerm.WEIGHTS] / 2 + one[DiskTerm.OPTIMIZER]

    @property
    def output_bytes(self) -> float:
        """The most bytes that checkpoints and the final model take in the output folder at the same time; 0 if they
        cannot be predicted."""
        return self.disk[DiskTerm.WEIGHTS] + self.disk[DiskTerm.OPTIMIZER] if self.disk else 0.0

    @cached_property
    def checkpoint_counts(self) -> CheckpointCounts:
        """How many checkpoints the run keeps in its output folder, and how many are on disk at most while a checkpoint
        is written."""
        return count_checkpoints(self.run)

    @property
    def verdict(self) -> Verdict:
        """The worse of the verdicts on device memory and on main memory; `unknown` without a model or machine. The
        device counts as `tight` if its memory suffices for the sample lengths that are known, but not for the longest
        possible sample."""
        return max(
            "tight" if self.fitting_length else self.device_verdict, self.host_verdict, key=_VERDICTS_BY_BADNESS.index
        )

    @property
    def verdict_at_longest(self) -> Verdict:
        """The worse of the verdicts on device memory and on main memory, if samples have the longest possible
        length."""
        return max(self.device_verdict, self.host_verdict, key=_VERDICTS_BY_BADNESS.index)

    @property
    def device_verdict(self) -> Verdict:
        """Verdict (fits, tight, exceeds) on device memory with samples of the longest possible length; `tight` if the
        verdicts differ between the releases that the recipe's header block allows."""
        return _common_verdict(self.device_verdicts)

    @property
    def device_verdicts(self) -> Mapping[str, Verdict]:
        """Verdict on device memory with samples of the longest possible length, by release of transformers (the keys of
        `workloads`)."""
        return self._verdicts(self.device_memories)

    @cached_property
    def exceeds_at_rest(self) -> bool:
        """True if weights and optimizer states alone exceed the device's memory with every release of transformers, so
        that a search need neither estimate nor simulate the step."""
        usable, model = self.run.machine.device.usable_gib if self.run.machine else None, self.run.model
        if usable is None or model is None or not self.workloads:
            return False
        return all(resident_bytes(model.arch, work) > usable * GIB for work in self.workloads.values())

    @property
    def fits_with_one_image(self) -> bool:
        """True if the number of images per sample is not known, and device memory suffices for one image, but perhaps
        not for as many as fit in `cutoff_len`."""
        return self.device_verdict == "tight" and _common_verdict(self._verdicts(self._with_one_picture)) == "fits"

    @cached_property
    def fitting_length(self) -> int | None:
        """The longest samples, in tokens, for which device memory is expected to suffice. None if it suffices for the
        longest possible sample, or if it does not suffice for the lengths that samples are known to have. With a
        simulation only the known length is tried, and no length in between."""
        certain = certain_tokens(self.run)
        if self.device_verdict != "exceeds" or not self._reaches("tight", certain):
            return None
        if self.is_simulated:
            return certain if self._device_memories(certain) else None
        return self.longest_samples("tight", certain, self.run.batch.max_tokens)

    def longest_samples(self, wanted: Verdict, least: int, most: int) -> int | None:
        """Return the longest samples, from `least` to `most` tokens, with which the verdict on device memory is
        `wanted` or better, to about 2 %. None if it is worse with the shortest of them."""
        if not self._reaches(wanted, least):
            return None
        if self._reaches(wanted, most):
            return most
        while most - least > max(8, least // 50):
            middle = (least + most) // 2
            least, most = (middle, most) if self._reaches(wanted, middle) else (least, middle)
        return least

    def device_memory_at(self, length: int) -> Estimate | None:
        """Return the predicted peak like `device_memory`, with samples of `length` tokens."""
        return next(iter(self._device_memories(length).values()), None)

    def _reaches(self, wanted: Verdict, length: int) -> bool:
        verdict = _common_verdict(self._verdicts(self._device_memories(length)))
        return _VERDICTS_BY_BADNESS.index(verdict) <= _VERDICTS_BY_BADNESS.index(wanted)

    @property
    def most_fitting_images(self) -> int | None:
        """The most images of one sample with which device memory suffices; None if the number of images is known, or if
        it suffices for as many as `cutoff_len` holds."""
        one, full = (self.workload.towers if self.workload else ()), self._images_up_to_cutoff
        if not full:
            return None
        most = max((-(-all_of_it.tokens // each.tokens) for each, all_of_it in zip(one, full, strict=True)
                    if each.tokens), default=1)  # fmt: skip

        def fits(number: int) -> bool:
            towers = tuple(each._replace(tokens=min(number * each.tokens, max(all_of_it.tokens, each.tokens)))
                           for each, all_of_it in zip(one, full, strict=True))  # fmt: skip
            works = {name: work._replace(towers=towers) for name, work in self.workloads.items()}
            return _common_verdict(self._verdicts(self._estimates(works))) == "fits"

        return next((number for number in range(most, 0, -1) if fits(number)), None)

    def _verdicts(self, memories: Mapping[str, Estimate]) -> Mapping[str, Verdict]:
        usable = self.run.machine.device.usable_gib if self.run.machine else None
        return {name: judge_estimate(estimate, usable) for name, estimate in memories.items()}

    @property
    def host_verdict(self) -> Verdict:
        """Verdict on the node's main memory; `tight` if the verdicts differ between the releases that the recipe's
        header block allows. `unknown` if the device shares the main memory, because the device's verdict then includes
        it."""
        return _common_verdict(self.host_verdicts)

    @property
    def host_verdicts(self) -> Mapping[str, Verdict]:
        """Verdict on the node's main memory, by release of transformers (the keys of `workloads`); empty if the device
        shares the main memory."""
        if self.run.machine is None or self.run.machine.device.shared_memory:
            return {}
        limit = self.run.machine.host_ram_gib
        return {name: judge_estimate(estimate, limit) for name, estimate in self.host_memories.items()}


def predict(run: RunSettings) -> Prediction:
    """Return the prediction of a run. Later calls with the same run return the same object, so that each value is
    computed once."""
    if Prediction not in run.derived:
        run.derived[Prediction] = Prediction(run)
    found: Prediction = run.derived[Prediction]
    return found


def _common_verdict(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the verdict that is the same for all transformers releases; `tight` if the releases have different
    verdicts, `unknown` if `verdicts` is empty. `verdicts`: a verdict by release."""
    several = set(verdicts.values())
    return "tight" if len(several) > 1 else next(iter(several), "unknown")


_VERDICTS_BY_BADNESS: list[Verdict] = ["unknown", "fits", "tight", "exceeds"]


def judge_estimate(estimate: Estimate | None, limit_gib: float | None) -> Verdict:
    """Return the verdict on an estimate of memory: `fits` if its upper end is below the limit, `tight` if only its
    expected value is below the limit, else `exceeds`. `unknown` if the estimate or the limit is None."""
    if estimate is None or limit_gib is None:
        return "unknown"
    if estimate.high < limit_gib * GIB:
        return "fits"
    return "tight" if estimate.expected < limit_gib * GIB else "exceeds"
