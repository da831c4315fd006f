"""Optimizers by the names that a recipe gives them: values of `optim`, and LLaMA-Factory's own keys, such as
`use_galore`."""

from __future__ import annotations

from typing import Literal, NamedTuple


class OptimizerChoice(NamedTuple):
    """Facts about one value of `optim` (transformers, trainer_optimizer.py). `states`: name of the optimizer in
    `physics.OPTIMIZERS`."""

    states: str = "adamw"
    vendors: tuple[str, ...] | None = None  # of the devices that it runs on; None: all
    plain_arguments: bool = False  # gets a learning rate at most, or what Adam gets and no more
    # What accelerate makes of it if its states are offloaded (utils/deepspeed.py, map_pytorch_optim_to_deepspeed): the
    # CPU optimizer of the same kind, plain CPU Adam, or a CPU optimizer that refuses its arguments
    on_cpu: Literal["same", "plain adam", "refused"] = "plain adam"
    cpu_operator: str = "cpu_adam"  # that DeepSpeed compiles for it
    replaced_by: tuple[str, ...] = ()  # keys of LLaMA-Factory's own optimizers that take its place (trainer_utils.py)
    updates_by_layer: bool = False  # each gradient is used and dropped in the backward pass


# PyTorch's own steps go over all tensors at once; apex and anyprecision keep fp32 moments, as bitsandbytes' 32-bit ones
# are.
_CHOICES = {
    "adamw_torch": OptimizerChoice(
        "adamw_foreach", plain_arguments=True, on_cpu="same", replaced_by=("use_galore", "use_apollo")
    ),
    "adamw_torch_fused": OptimizerChoice("adamw", on_cpu="same"),
    "adamw_torch_npu_fused": OptimizerChoice("adamw_foreach", ("ascend",), plain_arguments=True),
    "adamw_torch_xla": OptimizerChoice("adamw", (), plain_arguments=True),
    "adamw_apex_fused": OptimizerChoice("adamw_32bit", ("nvidia", "amd"), plain_arguments=True),
    "adamw_anyprecision": OptimizerChoice("adamw_32bit"),
    "adamw_torch_8bit": OptimizerChoice("adamw_8bit"),
    "adamw_torch_4bit": OptimizerChoice("adamw_4bit"),
    "adamw_bnb_8bit": OptimizerChoice("adamw_8bit", replaced_by=("use_galore",)),
    "adamw_8bit": OptimizerChoice("adamw_8bit", replaced_by=("use_galore",)),
    "paged_adamw_32bit": OptimizerChoice("paged_adamw_32bit", on_cpu="same"),
    "paged_adamw": OptimizerChoice("paged_adamw_32bit"),
    "paged_adamw_8bit": OptimizerChoice("paged_adamw_8bit", replaced_by=("use_galore",)),
    "ademamix": OptimizerChoice("ademamix"),
    "ademamix_8bit": OptimizerChoice("ademamix_8bit"),
    "paged_ademamix_32bit": OptimizerChoice("paged_ademamix"),
    "paged_ademamix_8bit": OptimizerChoice("paged_ademamix_8bit"),
    "grokadamw": OptimizerChoice("ademamix"),
    "lion_32bit": OptimizerChoice("lion", on_cpu="refused", cpu_operator="cpu_lion"),
    "lion_8bit": OptimizerChoice("lion_8bit"),
    "paged_lion_32bit": OptimizerChoice("paged_lion", on_cpu="refused", cpu_operator="cpu_lion"),
    "paged_lion_8bit": OptimizerChoice("paged_lion_8bit"),
    "rmsprop": OptimizerChoice("rmsprop", plain_arguments=True),
    "rmsprop_bnb": OptimizerChoice("rmsprop_32bit"),
    "rmsprop_bnb_32bit": OptimizerChoice("rmsprop_32bit"),
    "rmsprop_bnb_8bit": OptimizerChoice("rmsprop_8bit"),
    "adagrad": OptimizerChoice("adagrad", plain_arguments=True, on_cpu="refused", cpu_operator="cpu_adagrad"),
    "adafactor": OptimizerChoice("adafactor", on_cpu="refused", replaced_by=("use_galore",)),
    "sgd": OptimizerChoice("sgd", plain_arguments=True),
    "schedule_free_adamw": OptimizerChoice("adamw_foreach"),
    "schedule_free_radam": OptimizerChoice("adamw_foreach"),
    "schedule_free_sgd": OptimizerChoice("momentum"),
    "stable_adamw": OptimizerChoice("adamw_foreach"),
    "lomo": OptimizerChoice("sgd", updates_by_layer=True),
    "adalomo": OptimizerChoice("adafactor", updates_by_layer=True),
}
_UNLISTED = OptimizerChoice()


def optimizer_choice(name: object) -> OptimizerChoice:
    """Return the facts about a value of `optim`. A value that is not listed counts as AdamW."""
    return _CHOICES.get(str(name), _UNLISTED)


class OwnOptimizer(NamedTuple):
    """One of LLaMA-Factory's own optimizers. `states`: name of the optimizer in `physics.OPTIMIZERS`; empty: the
    optimizer of `optim` counts."""

    title: str
    states: str = ""
    whole_weights: bool = False  # refused with LoRA, and without effect on other adapters
    layerwise_key: str = ""  # updates each layer in the backward pass


# By the key that asks for it. create_custom_optimizer takes the first that is set (train/trainer_utils.py).
OWN_OPTIMIZERS = {
    "use_galore": OwnOptimizer("GaLore", "galore", True, "galore_layerwise"),
    "use_apollo": OwnOptimizer("APOLLO", "apollo", True, "apollo_layerwise"),
    "loraplus_lr_ratio": OwnOptimizer("LoRA+"),
    "use_badam": OwnOptimizer("BAdam", "badam", True),
    "use_adam_mini": OwnOptimizer("Adam-mini", "adam_mini"),
    "use_muon": OwnOptimizer("Muon", "muon"),
}
