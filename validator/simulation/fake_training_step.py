"""Training steps under fake tensors, followed by the tracker: forward and backward pass of each micro batch,
optimizer step."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from validator.simulation import cuda_behaviour, fake_values, losses, media_inputs
from validator.simulation.bnb_modules import AdamW8bit
from validator.simulation.model_layers import follow_layers
from validator.simulation.model_loading import LoadedModel, load_model, without_initialization
from validator.simulation.simulation_request import SimulationRequest
from validator.simulation.tracker import Tracker, allocated_size


def make_optimizer(name: str, model: Any) -> torch.optim.Optimizer:
    """The optimizer of the model's trained parameters, as transformers' Trainer makes it."""
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
    """All tensors that the optimizer keeps."""
    return [value for state in made.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


class FollowedSteps(NamedTuple):
    """The log of a run, bytes of all gradients and optimizer states, and counts of parameters."""

    tracker: Tracker
    gradients: int
    states: int
    parameters: int
    trainable: int


def follow_steps(cell: SimulationRequest, real: bool = False) -> FollowedSteps:
    """Runs the steps of a cell under fake tensors; `real` computes them on the CPU."""
    cuda_behaviour.prepare_libraries()
    gc.collect()
    with contextlib.nullcontext() if real else _fake_tensors():
        torch.manual_seed(0)
        return _TrainingRun(cell, real).steps()


@contextlib.contextmanager
def _fake_tensors() -> Iterator[None]:
    """Tensors without values on the kernels of CUDA."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode.__deepcopy__ = lambda mode, _memo: mode  # PEFT copies whole modules
    with FakeTensorMode(), cuda_behaviour.as_on_cuda(), without_initialization():
        yield


class _TrainingRun:
    """A loaded model, its optimizer and what follows them."""

    def __init__(self, cell: SimulationRequest, real: bool) -> None:
        self.cell, self.real = cell, real
        loaded = load_model(cell, real)
        self.model, self.config, self.reference = loaded.model, loaded.config, loaded.reference
        self.vocab = loaded.vocab
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if cell.precision_mode == "bf16":
            for model in filter(None, (self.model, self.reference)):
                cuda_behaviour.wrap_in_autocast(model)
        self.tracker = Tracker(self.vocab, cell.padded)
        for tensor in _lasting_tensors(loaded):
            self.tracker.see(tensor, "param", "param")
        self.optimizer = make_optimizer(cell.optimizer, self.model)
        follow_layers(self.model, self.tracker)

    def steps(self) -> FollowedSteps:
        """All steps of the cell."""
        hooks = [parameter.register_post_accumulate_grad_hook(self._mark) for parameter in self.trained]
        with self.tracker:
            if self.cell.warm:
                self._warm()
            for step in range(self.cell.steps):
                self.tracker.phase, self.tracker.segment = f"s{step}.fwd", "pre"
                for seen in self._seen():  # transformers' Trainer fetches all micro batches of a step together
                    self._micro_step(step, seen)
                self.tracker.phase, self.tracker.segment = f"s{step}.opt", ""
                gradients = self._step()
        for hook in hooks:
            hook.remove()
        return self._followed(gradients)

    def _followed(self, gradients: int) -> FollowedSteps:
        sizes = {id(parameter): parameter.numel() for parameter in self.model.parameters()}
        trained = sum(parameter.numel() for parameter in self.trained)
        kept = sum(_allocated_bytes(state) for state in optimizer_states(self.optimizer))
        return FollowedSteps(self.tracker, gradients, kept, sum(sizes.values()), trained)

    def _mark(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.tracker.mark(parameter.grad, "grad")

    def _warm(self) -> None:
        self.tracker.phase = "warm.opt"
        for parameter in self.trained:
            parameter.grad = torch.zeros_like(parameter)
        self._step()

    def _step(self) -> int:
        """The optimizer's step. Returns the bytes of all gradients."""
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        for state in optimizer_states(self.optimizer):
            self.tracker.see(state, "optim", "state")
            self.tracker.mark(state, "optim")
        gradients = sum(_allocated_bytes(parameter.grad) for parameter in self.trained if parameter.grad is not None)
        self.model.zero_grad(set_to_none=True)
        return gradients

    def _seen(self) -> list[dict[str, torch.Tensor]]:
        """What the micro batches of a step hold beside their tokens."""
        if not hasattr(self.config, "vision_config"):
            return [{}] * self.cell.grad_accum
        sequences = self.cell.micro_batch * losses.sequences_per_sample(self.cell.stage)
        return [
            media_inputs.image_inputs(self.config, self.cell.pixels, sequences, self.cell.seq_len)
            | media_inputs.audio_inputs(self.config, self.cell.seconds, sequences)
            for _ in range(self.cell.grad_accum)
        ]

    def _unread(self, seen: dict[str, torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        if self.real:
            return contextlib.nullcontext()
        return (
            fake_values.keep_small_int_values(media_inputs.image_tokens(self.config, seen))
            if seen
            else fake_values.read_scalars_as_zero()
        )

    def _micro_step(self, step: int, seen: dict[str, torch.Tensor]) -> None:
        """Forward and backward pass of one micro batch."""
        with self._unread(seen):
            self.tracker.phase, self.tracker.segment = f"s{step}.fwd", "pre"
            items = self._items() if self.cell.stage == "sft" else None  # lives until the end of the step
            loss = self._loss(items, seen)
            self.tracker.phase, self.tracker.segment = f"s{step}.bwd", "head"
            loss.backward()

    def _items(self) -> torch.Tensor:
        """transformers.Trainer's num_items_in_batch."""
        return torch.tensor(float(self.cell.micro_batch * self.cell.seq_len)) if self.real else torch.empty(())

    def _loss(self, items: torch.Tensor | None, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        shape = (self.cell.micro_batch * losses.sequences_per_sample(self.cell.stage), self.cell.seq_len)
        ids = torch.randint(0, self.vocab, shape) if self.real else torch.empty(shape, dtype=torch.int64)
        mask = torch.ones(shape, dtype=torch.int64)
        if items is not None:
            return _supervised_loss(
                self.model, {"input_ids": ids, "attention_mask": mask, "labels": ids.clone(), **seen}, items
            )
        batch = {"input_ids": ids, "attention_mask": mask, "labels": ids, **seen}
        return losses.stage_loss(self.cell.stage, self.model, self.reference, batch)


def _lasting_tensors(loaded: LoadedModel) -> Iterator[torch.Tensor]:
    """What stays through the whole run."""
    yield from loaded.model.parameters()
    yield from loaded.model.buffers()
    yield from loaded.extra
    if loaded.reference is not None:
        yield from loaded.reference.parameters()


def _allocated_bytes(tensor: torch.Tensor) -> int:
    return allocated_size(tensor.numel() * tensor.element_size())


def _supervised_loss(model: Any, batch: dict[str, torch.Tensor], items: torch.Tensor) -> Any:
    """transformers.Trainer.compute_loss: the outputs object (and its logits) dies on return."""
    from transformers import Trainer

    counted = "num_items_in_batch" in inspect.signature(Trainer.compute_loss).parameters  # the oldest do not
    return model(**batch, **({"num_items_in_batch": items} if counted else {}))["loss"]
