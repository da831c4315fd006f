"""The losses of LLaMA-Factory's stages, by LLaMA-Factory's own trainers.

The trainers are made without transformers' Trainer around them: `get_batch_loss_metrics` and `compute_loss` need
no more than what is set here."""

from __future__ import annotations

import types
from typing import Any

import torch


def sequences_per_sample(stage: str) -> int:
    """Sequences that one sample of the stage puts into a batch."""
    return 2 if stage in ("rm", "dpo", "orpo", "simpo") else 1


def needs_reference(stage: str) -> bool:
    """True if the stage asks a reference model."""
    return stage in ("dpo", "kto")


def add_value_head(model: Any) -> Any:
    """LLaMA-Factory's load_model(add_valuehead=True)."""
    from llamafactory.model.patcher import patch_valuehead_model
    from trl import AutoModelForCausalLMWithValueHead

    wrapped = AutoModelForCausalLMWithValueHead.from_pretrained(model)
    patch_valuehead_model(wrapped)
    return wrapped


def stage_loss(stage: str, model: Any, reference: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """One forward pass and the loss, everything else being dropped as the trainer drops it."""
    if stage == "rm":
        return _reward_loss(model, batch)
    if stage == "kto":  # one sample of each batch: which answers are good decides shapes, and fake tensors have none
        batch |= {f"kl_{name}": tensor.clone() for name, tensor in batch.items()}
        batch["kto_tags"] = torch.tensor([True])
    return _preference_trainer(stage, reference).get_batch_loss_metrics(model, batch)[0]


class _StubAccelerator(types.SimpleNamespace):
    def unwrap_model(self, model: Any) -> Any:
        return model

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    gather_for_metrics = gather


def _preference_trainer(stage: str, reference: Any) -> Any:
    trainer = _kto_trainer() if stage == "kto" else _dpo_trainer(stage)
    trainer.finetuning_args = types.SimpleNamespace(use_ref_model=needs_reference(stage))
    trainer.accelerator = _StubAccelerator(device=torch.device("cpu"))
    trainer.beta, trainer.ftx_gamma, trainer.reference_free, trainer.ref_model = 0.1, 0.0, False, reference
    return trainer


def _dpo_trainer(stage: str) -> Any:
    from llamafactory.train.dpo.trainer import CustomDPOTrainer

    trainer = CustomDPOTrainer.__new__(CustomDPOTrainer)
    trainer.loss_type = "sigmoid" if stage == "dpo" else stage
    trainer.f_divergence_type, trainer.label_smoothing, trainer.simpo_gamma = "reverse_kl", 0.0, 0.5
    trainer.bco_gemma, trainer.ld_alpha = 0.0, None
    return trainer


def _kto_trainer() -> Any:
    from llamafactory.train.kto.trainer import CustomKTOTrainer

    trainer = CustomKTOTrainer.__new__(CustomKTOTrainer)
    trainer.loss_type, trainer.calculate_KL = "kto", True
    trainer.desirable_weight = trainer.undesirable_weight = 1.0
    return trainer


def _reward_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    from llamafactory.train.rm.trainer import PairwiseTrainer

    del batch["labels"]
    return PairwiseTrainer.compute_loss(PairwiseTrainer.__new__(PairwiseTrainer), model, batch)
