"""Runs training steps with fake tensors while the tracker follows their memory: forward and backward pass of each micro
batch, with the loss of LLaMA-Factory's own trainer, then the optimizer step."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from llamafactory.train.dpo.trainer import CustomDPOTrainer
from llamafactory.train.kto.trainer import CustomKTOTrainer
from llamafactory.train.rm.trainer import PairwiseTrainer
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel, Trainer
from transformers.optimization import Adafactor

from validator.simulation import fake_tensors, media_inputs
from validator.simulation.model_layers import follow_layers
from validator.simulation.model_loading import load_model
from validator.simulation.simulation_request import PAIRED_STAGES, REFERENCE_STAGES, SimulationRequest
from validator.simulation.tracker import Tracker, allocated_size

# Fake tensors have no values that transformers could check (torch_compilable_check).
_ENVIRONMENT = {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1", "DISABLE_VERSION_CHECK": "1"}


class FollowedSteps(NamedTuple):
    """What the tracker has logged while training steps ran. `gradients` and `states` are the bytes of all gradients and
    of all optimizer states. `parameters` and `trainable` count parameters."""

    tracker: Tracker
    gradients: int
    states: int
    parameters: int
    trainable: int


def follow_steps(request: SimulationRequest, real: bool = False) -> FollowedSteps:
    """Run the training steps of a request with fake tensors, and return the log of their memory. With `real`, the steps
    are computed on the CPU with real tensors."""
    gc.collect()
    enabled = torch.is_autocast_enabled

    def is_autocast_enabled(_device_type: str | None = None) -> bool:
        """True if autocast is on for the CPU, whatever device is asked for. PEFT, bitsandbytes and checkpointing ask
        for CUDA's autocast, in whose place the simulation uses the CPU's."""
        return bool(enabled("cpu"))

    with (
        mock.patch.dict(os.environ, _ENVIRONMENT),
        mock.patch.object(torch, "is_autocast_enabled", is_autocast_enabled),
        contextlib.nullcontext() if real else _fake_tensors(),
    ):
        torch.manual_seed(0)
        return _TrainingRun(request, real).steps()


@contextlib.contextmanager
def _fake_tensors() -> Iterator[None]:
    """Within the `with` block, create tensors without values that use CUDA's kernels. Weights are not initialized,
    because some distributions read values back (torch, trunc_normal_)."""
    FakeTensorMode.__deepcopy__ = lambda mode, _memo: mode  # PEFT copies whole modules

    def leave_uninitialized(*_: Any, **__: Any) -> None:
        pass

    with (
        FakeTensorMode(),
        fake_tensors.as_on_cuda(),
        mock.patch.object(PreTrainedModel, "_initialize_weights", leave_uninitialized),
    ):
        yield


class _TrainingRun:
    """The model of a simulation request with its optimizer, and the tracker that follows their memory. If `real` is
    true, tensors have values and the steps are computed on the CPU."""

    def __init__(self, request: SimulationRequest, real: bool) -> None:
        self.request, self.real = request, real
        loaded = load_model(request, real)
        self.model, self.config, self.reference = loaded.model, loaded.config, loaded.reference
        self.vocab = loaded.config.get_text_config().vocab_size
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if request.precision_mode == "bf16":
            for model in filter(None, (self.model, self.reference)):
                _wrap_in_autocast(model)
        self.tracker = Tracker(self.vocab, request.padded)
        references = [] if self.reference is None else self.reference.parameters()
        for tensor in (*self.model.parameters(), *self.model.buffers(), *loaded.extra, *references):
            self.tracker.track(tensor, "param", "param")
        self.optimizer = _make_optimizer(request.optimizer, self.model, self.trained)
        follow_layers(self.model, self.tracker)

    def steps(self) -> FollowedSteps:
        """Run all training steps of the request, and return the log of their memory."""
        hooks = [parameter.register_post_accumulate_grad_hook(self._mark_gradient) for parameter in self.trained]
        with self.tracker:
            if self.request.warm:
                self.tracker.phase = "warm.opt"
                for parameter in self.trained:
                    parameter.grad = torch.zeros_like(parameter)
                self._optimizer_step()
            for step in range(self.request.steps):
                self.tracker.phase, self.tracker.segment = f"s{step}.fwd", "pre"
                # transformers' Trainer fetches all micro batches of a step together.
                for media in self._media_of_micro_batches():
                    self._micro_step(step, media)
                self.tracker.phase, self.tracker.segment = f"s{step}.opt", ""
                gradients = self._optimizer_step()
        for hook in hooks:
            hook.remove()
        sizes = {id(parameter): parameter.numel() for parameter in self.model.parameters()}
        trained = sum(parameter.numel() for parameter in self.trained)
        states = sum(_allocated_bytes(state) for state in self._optimizer_states())
        return FollowedSteps(self.tracker, gradients, states, sum(sizes.values()), trained)

    def _mark_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.tracker.set_category(parameter.grad, "grad")

    def _optimizer_states(self) -> list[torch.Tensor]:
        values = (value for state in self.optimizer.state.values() for value in state.values())
        return [value for value in values if isinstance(value, torch.Tensor)]

    def _optimizer_step(self) -> int:
        """Clip the gradients, run the optimizer's step, and free the gradients. Return the bytes of all gradients."""
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        for state in self._optimizer_states():
            self.tracker.track(state, "optim", "state")
            self.tracker.set_category(state, "optim")
        gradients = sum(_allocated_bytes(parameter.grad) for parameter in self.trained if parameter.grad is not None)
        self.model.zero_grad(set_to_none=True)
        return gradients

    @property
    def _sequences(self) -> int:
        """Number of sequences in a micro batch. In a preference stage each sample is a pair of sequences."""
        return self.request.micro_batch * (2 if self.request.stage in PAIRED_STAGES else 1)

    def _media_of_micro_batches(self) -> list[dict[str, torch.Tensor]]:
        """Return the tensors of images and sounds for each micro batch of a step. The mappings are empty for a text
        model."""
        if not hasattr(self.config, "vision_config"):
            return [{}] * self.request.grad_accum
        return [
            media_inputs.image_inputs(self.config, self.request.pixels, self._sequences, self.request.seq_len)
            | media_inputs.audio_inputs(self.config, self.request.seconds, self._sequences)
            for _ in range(self.request.grad_accum)
        ]

    def _micro_step(self, step: int, media: dict[str, torch.Tensor]) -> None:
        """Run the forward and backward pass of one micro batch. `step` is the number of the step, `media` the tensors
        of images and sounds."""
        readable: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if not self.real:
            readable = (
                fake_tensors.keep_small_int_values(media_inputs.image_tokens(self.config, media))
                if media
                else fake_tensors.read_scalars_as_zero()
            )
        with readable:
            self.tracker.phase, self.tracker.segment = f"s{step}.fwd", "pre"
            # transformers' num_items_in_batch, which lives until the end of the step
            tokens = float(self.request.micro_batch * self.request.seq_len)
            supervised = self.request.stage == "sft"
            items = (torch.tensor(tokens) if self.real else torch.empty(())) if supervised else None
            loss = self._loss(items, media)
            self.tracker.phase, self.tracker.segment = f"s{step}.bwd", "head"
            loss.backward()

    def _loss(self, items: torch.Tensor | None, media: dict[str, torch.Tensor]) -> torch.Tensor:
        shape = (self._sequences, self.request.seq_len)
        ids = torch.randint(0, self.vocab, shape) if self.real else torch.empty(shape, dtype=torch.int64)
        batch = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.int64), "labels": ids, **media}
        if items is not None:
            return _supervised_loss(self.model, {**batch, "labels": ids.clone()}, items)
        return _stage_loss(self.request.stage, self.model, self.reference, batch)


def _allocated_bytes(tensor: torch.Tensor) -> int:
    return allocated_size(tensor.numel() * tensor.element_size())


def _wrap_in_autocast(model: Any) -> None:
    """Wrap the model's forward pass in bf16 autocast, as accelerate.Accelerator.prepare_model does with
    mixed_precision="bf16". The CPU's autocast is used, whose operator lists agree with CUDA's for these models."""
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    model.forward = types.MethodType(convert_outputs_to_fp32(autocast(model.forward.__func__)), model)


def _make_optimizer(name: str, model: Any, trained: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer as transformers' Trainer creates it. `name` is a name of SIMULATED_OPTIMIZERS."""
    if name == "adafactor":
        return Adafactor(trained, lr=1e-5, scale_parameter=False, relative_step=False)
    if name == "adamw_8bit":
        precise = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        return _AdamW8bit(trained, precise)
    if name == "sgd":
        return torch.optim.SGD(trained, lr=1e-5, foreach=False)
    return torch.optim.AdamW(trained, lr=1e-5, foreach=name == "adamw_foreach", fused=name != "adamw_foreach")


# bitsandbytes quantizes the moments of tensors that have so many elements or more, in blocks.
_MIN_QUANTIZED_ELEMENTS, _MOMENT_BLOCK = 4096, 256


class _AdamW8bit(torch.optim.Optimizer):
    """An optimizer with the states of bitsandbytes' 8-bit AdamW: two uint8 moments, with an fp32 scale for each block.
    Moments are fp32 for small tensors and for embeddings, which transformers' Trainer excludes from quantization
    (`precise` holds their ids). The step only creates the states, because the real update needs no further memory."""

    def __init__(self, trained: Iterable[torch.Tensor], precise: set[int]) -> None:
        self.precise = precise
        super().__init__(trained, {})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.grad is not None and not self.state[parameter]:
                for name in ("state1", "state2"):
                    self.state[parameter] |= self._moment(parameter, name)

    def _moment(self, parameter: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        size = parameter.numel()
        if size < _MIN_QUANTIZED_ELEMENTS or id(parameter) in self.precise:
            return {name: torch.zeros(parameter.shape, dtype=torch.float32)}
        scales = torch.zeros(-(-size // _MOMENT_BLOCK))
        return {name: torch.zeros(parameter.shape, dtype=torch.uint8), f"{name}_absmax": scales}


def _supervised_loss(model: Any, batch: dict[str, torch.Tensor], items: torch.Tensor) -> Any:
    """Return the loss as transformers.Trainer.compute_loss does. The model's outputs, and with them the logits, are
    freed on return."""
    counted = "num_items_in_batch" in inspect.signature(Trainer.compute_loss).parameters  # the oldest do not
    return model(**batch, **({"num_items_in_batch": items} if counted else {}))["loss"]


def _stage_loss(stage: str, model: Any, reference: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a preference stage from LLaMA-Factory's own trainer. The trainer is created without running
    its constructor: `get_batch_loss_metrics` and `compute_loss` need only the attributes that are set here."""
    if stage == "rm":
        del batch["labels"]
        return PairwiseTrainer.compute_loss(PairwiseTrainer.__new__(PairwiseTrainer), model, batch)
    if stage == "kto":  # one sample of each batch: which answers are good decides shapes, and fake tensors have none
        batch |= {f"kl_{name}": tensor.clone() for name, tensor in batch.items()}
        batch["kto_tags"] = torch.tensor([True])
        trainer = CustomKTOTrainer.__new__(CustomKTOTrainer)
        trainer.loss_type, trainer.calculate_KL = "kto", True
        trainer.desirable_weight = trainer.undesirable_weight = 1.0
    else:
        trainer = CustomDPOTrainer.__new__(CustomDPOTrainer)
        trainer.loss_type = "sigmoid" if stage == "dpo" else stage
        trainer.f_divergence_type, trainer.label_smoothing, trainer.simpo_gamma = "reverse_kl", 0.0, 0.5
        trainer.bco_gemma, trainer.ld_alpha = 0.0, None
    trainer.finetuning_args = types.SimpleNamespace(use_ref_model=stage in REFERENCE_STAGES)
    trainer.accelerator = _StubAccelerator(device=torch.device("cpu"))
    trainer.beta, trainer.ftx_gamma, trainer.reference_free, trainer.ref_model = 0.1, 0.0, False, reference
    return trainer.get_batch_loss_metrics(model, batch)[0]


class _StubAccelerator(types.SimpleNamespace):
    def unwrap_model(self, model: Any) -> Any:
        return model

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    gather_for_metrics = gather
