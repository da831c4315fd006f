"""Every shipped ZeRO file goes through the real classes: the Trainer resolves `auto`, then DeepSpeed parses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real]

FOLDER = Path(__file__).parents[2] / "deepspeed"
FILES = sorted(FOLDER.glob("*.json"))
EXPECTED = {  # name: stage, optimizer device, parameter device, pinned
    "ds_z0": (0, None, None, None),
    "ds_z1": (1, None, None, None),
    "ds_z2": (2, None, None, None),
    "ds_z2_offload": (2, "cpu", None, True),
    "ds_z2_offload_nopin": (2, "cpu", None, False),
    "ds_z3": (3, None, None, None),
    "ds_z3_offload": (3, "cpu", None, True),
    "ds_z3_offload_nopin": (3, "cpu", None, False),
    "ds_z3_offload_all": (3, "cpu", "cpu", True),
    "ds_z3_offload_all_nopin": (3, "cpu", "cpu", False),
}


def resolve(path: Path, tmp_path: Path, precision: str) -> Any:
    """What DeepSpeed gets from the Trainer: micro batch 4, accumulation 2, one process, hidden size 64."""
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        use_cpu=True,
    )
    # TrainingArguments asks the local hardware before it allows fp16; the file does not depend on it.
    arguments.fp16, arguments.bf16 = precision == "fp16", precision == "bf16"
    resolved = HfTrainerDeepSpeedConfig(str(path))
    resolved.trainer_config_process(arguments)
    resolved.trainer_config_finalize(arguments, SimpleNamespace(config=SimpleNamespace(hidden_size=64)), 100)
    return DeepSpeedConfig(resolved.config)


def test_the_table_above_names_every_file() -> None:
    assert {path.stem for path in FILES} == set(EXPECTED)


def test_the_folder_can_never_pass_for_the_package() -> None:
    assert not list(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_deepspeed_accepts(path: Path, precision: str, tmp_path: Path) -> None:
    config = resolve(path, tmp_path, precision)
    zero = config.zero_config
    optimizer, parameters = zero.offload_optimizer, zero.offload_param
    found = (
        int(zero.stage),
        optimizer and optimizer.device,
        parameters and parameters.device,
        optimizer and optimizer.pin_memory,
    )
    assert found == EXPECTED[path.stem]
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu) == (8, 4)
    assert (config.gradient_accumulation_steps, config.gradient_clipping) == (2, 0.5)
    assert config.float16_config.enabled == (precision == "fp16")
    assert config.bfloat16_config.enabled == (precision == "bf16")


@pytest.mark.parametrize("path", [path for path in FILES if "z3" in path.stem], ids=lambda path: path.stem)
def test_stage_3_saves_whole_weights(path: Path, tmp_path: Path) -> None:
    assert resolve(path, tmp_path, "bf16").zero_config.gather_16bit_weights_on_model_save


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_deepspeed_knows_every_key(path: Path) -> None:
    """DeepSpeed ignores unknown keys of the ZeRO block's parents silently, and sizes written as 2e8 are floats."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    zero = json.loads(path.read_text())["zero_optimization"]
    aliases = {field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()}
    assert set(zero) <= aliases | set(DeepSpeedZeroConfig.model_fields)
    assert not [key for key, value in zero.items() if isinstance(value, float)]
