"""The losses of LLaMA-Factory's stages, by LLaMA-Factory's own trainers.

The trainers are made without transformers' Trainer around them: `get_batch_loss_metrics` and `compute_loss` need no
more than what is set here.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch

PREFERENCES = ("dpo", "orpo", "simpo", "kto")
STAGES = ("sft", "rm", *PREFERENCES)


def sequences(stage: str) -> int:
    """Sequences that one sample of the stage puts into a batch."""
    return 2 if stage in ("rm", "dpo", "orpo", "simpo") else 1


def compares(stage: str) -> bool:
    """Whether the stage asks a reference model."""
    return stage in ("dpo", "kto")


def with_value_head(model: Any) -> Any:
    """LLaMA-Factory's load_model(add_valuehead=True)."""
    from llamafactory.model.patcher import patch_valuehead_model
    from trl import AutoModelForCausalLMWithValueHead

    wrapped = AutoModelForCausalLMWithValueHead.from_pretrained(model)
    patch_valuehead_model(wrapped)
    return wrapped


@contextlib.contextmanager
def numbers_unread() -> Iterator[None]:
    """Fake tensors have no values: metrics are read as zero, and a gradient is never known to be one. Conditions and
    whole numbers are the tracker's to answer or refuse."""
    read, equal = torch.Tensor.item, torch.equal

    def unread(tensor: torch.Tensor) -> Any:
        return 0.0 if tensor.dtype.is_floating_point else read(tensor)

    torch.Tensor.item, torch.equal = unread, lambda *_: False
    try:
        yield
    finally:
        torch.Tensor.item, torch.equal = read, equal


def loss(stage: str, model: Any, reference: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """One forward pass and the loss, everything else being dropped as the trainer drops it."""
    if stage == "rm":
        return _reward_loss(model, batch)
    if stage == "kto":  # one sample of each batch: which answers are good decides shapes, and fake tensors have none
        batch |= {f"kl_{name}": tensor.clone() for name, tensor in batch.items()}
        batch["kto_tags"] = torch.tensor([True])
    return _trainer(stage, reference).get_batch_loss_metrics(model, batch)[0]


class _Accelerator(types.SimpleNamespace):
    def unwrap_model(self, model: Any) -> Any:
        return model

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    gather_for_metrics = gather


def _trainer(stage: str, reference: Any) -> Any:
    trainer = _single() if stage == "kto" else _pairs(stage)
    trainer.finetuning_args = types.SimpleNamespace(use_ref_model=compares(stage))
    trainer.accelerator = _Accelerator(device=torch.device("cpu"))
    trainer.beta, trainer.ftx_gamma, trainer.reference_free, trainer.ref_model = 0.1, 0.0, False, reference
    return trainer


def _pairs(stage: str) -> Any:
    from llamafactory.train.dpo.trainer import CustomDPOTrainer

    trainer = CustomDPOTrainer.__new__(CustomDPOTrainer)
    trainer.loss_type = "sigmoid" if stage == "dpo" else stage
    trainer.f_divergence_type, trainer.label_smoothing, trainer.simpo_gamma = "reverse_kl", 0.0, 0.5
    trainer.bco_gemma, trainer.ld_alpha = 0.0, None
    return trainer


def _single() -> Any:
    from llamafactory.train.kto.trainer import CustomKTOTrainer

    trainer = CustomKTOTrainer.__new__(CustomKTOTrainer)
    trainer.loss_type, trainer.calculate_KL = "kto", True
    trainer.desirable_weight = trainer.undesirable_weight = 1.0
    return trainer


def _reward_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    from llamafactory.train.rm.trainer import PairwiseTrainer

    del batch["labels"]
    return PairwiseTrainer.compute_loss(PairwiseTrainer.__new__(PairwiseTrainer), model, batch)
