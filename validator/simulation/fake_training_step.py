"""Training steps under fake tensors, followed by the tracker: forward and backward pass of each micro batch,
optimizer step."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from validator.simulation import cuda_behaviour, fake_values, losses, media_inputs
from validator.simulation.bnb_modules import AdamW8bit
from validator.simulation.model_layers import follow_layers
from validator.simulation.model_loading import load_model
from validator.simulation.simulation_request import SimulationRequest
from validator.simulation.tracker import Tracker, allocated_size


def make_optimizer(name: str, model: Any) -> torch.optim.Optimizer:
    """Return the optimizer of the model's trained parameters, as transformers' Trainer makes it."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-5, scale_parameter=False, relative_step=False)
    if name == "adamw_8bit":
        precise = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        return AdamW8bit(trained, precise)
    if name == "sgd":
        return torch.optim.SGD(trained, lr=1e-5, foreach=False)
    return torch.optim.AdamW(trained, lr=1e-5, foreach=name == "adamw_foreach", fused=name != "adamw_foreach")


def optimizer_states(made: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all tensors that the optimizer keeps."""
    return [value for state in made.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


class FollowedSteps(NamedTuple):
    """The log of a run, bytes of all gradients and optimizer states, and counts of parameters."""

    tracker: Tracker
    gradients: int
    states: int
    parameters: int
    trainable: int


def follow_steps(request: SimulationRequest, real: bool = False) -> FollowedSteps:
    """Run the steps of a request under fake tensors; `real` computes them on the CPU."""
    cuda_behaviour.prepare_libraries()
    gc.collect()
    with contextlib.nullcontext() if real else _fake_tensors():
        torch.manual_seed(0)
        return _TrainingRun(request, real).steps()


def _leave_uninitialized(*_: Any, **__: Any) -> None:
    pass


@contextlib.contextmanager
def _fake_tensors() -> Iterator[None]:
    """Make tensors without values, on CUDA's kernels. Initial weights, which some distributions read back (torch,
    trunc_normal_), are not made."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import PreTrainedModel

    FakeTensorMode.__deepcopy__ = lambda mode, _memo: mode  # PEFT copies whole modules
    uninitialized = mock.patch.object(PreTrainedModel, "_initialize_weights", _leave_uninitialized)
    with FakeTensorMode(), cuda_behaviour.as_on_cuda(), uninitialized:
        yield


class _TrainingRun:
    """A loaded model, its optimizer and what follows them."""

    def __init__(self, request: SimulationRequest, real: bool) -> None:
        self.request, self.real = request, real
        loaded = load_model(request, real)
        self.model, self.config, self.reference = loaded.model, loaded.config, loaded.reference
        self.vocab = loaded.vocab
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if request.precision_mode == "bf16":
            for model in filter(None, (self.model, self.reference)):
                cuda_behaviour.wrap_in_autocast(model)
        self.tracker = Tracker(self.vocab, request.padded)
        references = [] if self.reference is None else self.reference.parameters()
        for tensor in (*self.model.parameters(), *self.model.buffers(), *loaded.extra, *references):
            self.tracker.track(tensor, "param", "param")
        self.optimizer = make_optimizer(request.optimizer, self.model)
        follow_layers(self.model, self.tracker)

    def steps(self) -> FollowedSteps:
        """Run all steps of the request."""
        hooks = [parameter.register_post_accumulate_grad_hook(self._mark_gradient) for parameter in self.trained]
        with self.tracker:
            if self.request.warm:
                self._make_states()
            for step in range(self.request.steps):
                self.tracker.phase, self.tracker.segment = f"s{step}.fwd", "pre"
                for media in (
                    self._media_of_micro_batches()
                ):  # transformers' Trainer fetches all micro batches of a step together
                    self._micro_step(step, media)
                self.tracker.phase, self.tracker.segment = f"s{step}.opt", ""
                gradients = self._optimizer_step()
        for hook in hooks:
            hook.remove()
        sizes = {id(parameter): parameter.numel() for parameter in self.model.parameters()}
        trained = sum(parameter.numel() for parameter in self.trained)
        states = sum(_allocated_bytes(state) for state in optimizer_states(self.optimizer))
        return FollowedSteps(self.tracker, gradients, states, sum(sizes.values()), trained)

    def _mark_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.tracker.set_category(parameter.grad, "grad")

    def _make_states(self) -> None:
        self.tracker.phase = "warm.opt"
        for parameter in self.trained:
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer_step()

    def _optimizer_step(self) -> int:
        """Make the optimizer's step, and return the bytes of all gradients."""
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        for state in optimizer_states(self.optimizer):
            self.tracker.track(state, "optim", "state")
            self.tracker.set_category(state, "optim")
        gradients = sum(_allocated_bytes(parameter.grad) for parameter in self.trained if parameter.grad is not None)
        self.model.zero_grad(set_to_none=True)
        return gradients

    def _media_of_micro_batches(self) -> list[dict[str, torch.Tensor]]:
        """Return images and sounds of each micro batch of a step."""
        if not hasattr(self.config, "vision_config"):
            return [{}] * self.request.grad_accum
        sequences = self.request.micro_batch * losses.sequences_per_sample(self.request.stage)
        return [
            media_inputs.image_inputs(self.config, self.request.pixels, sequences, self.request.seq_len)
            | media_inputs.audio_inputs(self.config, self.request.seconds, sequences)
            for _ in range(self.request.grad_accum)
        ]

    def _readable_values(self, media: dict[str, torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        if self.real:
            return contextlib.nullcontext()
        return (
            fake_values.keep_small_int_values(media_inputs.image_tokens(self.config, media))
            if media
            else fake_values.read_scalars_as_zero()
        )

    def _micro_step(self, step: int, media: dict[str, torch.Tensor]) -> None:
        """Forward and backward pass of one micro batch."""
        with self._readable_values(media):
            self.tracker.phase, self.tracker.segment = f"s{step}.fwd", "pre"
            items = None
            if (
                self.request.stage == "sft"
            ):  # transformers.Trainer's num_items_in_batch; lives until the end of the step
                tokens = float(self.request.micro_batch * self.request.seq_len)
                items = torch.tensor(tokens) if self.real else torch.empty(())
            loss = self._loss(items, media)
            self.tracker.phase, self.tracker.segment = f"s{step}.bwd", "head"
            loss.backward()

    def _loss(self, items: torch.Tensor | None, media: dict[str, torch.Tensor]) -> torch.Tensor:
        shape = (self.request.micro_batch * losses.sequences_per_sample(self.request.stage), self.request.seq_len)
        ids = torch.randint(0, self.vocab, shape) if self.real else torch.empty(shape, dtype=torch.int64)
        mask = torch.ones(shape, dtype=torch.int64)
        if items is not None:
            return _supervised_loss(
                self.model, {"input_ids": ids, "attention_mask": mask, "labels": ids.clone(), **media}, items
            )
        batch = {"input_ids": ids, "attention_mask": mask, "labels": ids, **media}
        return losses.stage_loss(self.request.stage, self.model, self.reference, batch)


def _allocated_bytes(tensor: torch.Tensor) -> int:
    return allocated_size(tensor.numel() * tensor.element_size())


def _supervised_loss(model: Any, batch: dict[str, torch.Tensor], items: torch.Tensor) -> Any:
    """transformers.Trainer.compute_loss: the outputs object (and its logits) dies on return."""
    from transformers import Trainer

    counted = "num_items_in_batch" in inspect.signature(Trainer.compute_loss).parameters  # the oldest do not
    return model(**batch, **({"num_items_in_batch": items} if counted else {}))["loss"]
