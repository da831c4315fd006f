"""Packages that LLaMA-Factory would stop for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from validator.doctor import package_checks
from validator.doctor.check_result import CheckContext
from validator.machine.installed_packages import InstalledPackages
from validator.recipe.recipe_file import parse_recipe
from validator.run import node_demand
from validator.run.settings import resolve

MODEL = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: lora\n"
CHECKPOINT = """{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
"num_attention_heads": 4, "intermediate_size": 128, "quantization_config": {"quant_method": "METHOD", "bits": 4}}"""


def told(text: str) -> list[str]:
    job = resolve(parse_recipe("recipe.yaml", text))
    return [line.found for line in package_checks.check_required_packages(job, CheckContext())]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only LLaMA-Factory is installed."""

    def installed(_self: InstalledPackages, names: Sequence[str]) -> dict[str, str]:
        return {name: "1" for name in names if name == "llamafactory"}

    monkeypatch.setattr(InstalledPackages, "versions", installed)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("settings", "package"),
    [
        ("enable_liger_kernel: true", "liger-kernel"), ("use_unsloth: true", "unsloth"),
        ("quantization_bit: 4", "bitsandbytes"), ("quantization_bit: 8\nquantization_method: hqq", "hqq"),
        ("deepspeed: deepspeed/ds_z2.json", "'deepspeed<=0.18.4'"), ("use_badam: true", "badam"),
    ],
)  # fmt: skip
def test_what_a_key_needs_is_named(settings: str, package: str) -> None:
    assert told(MODEL) == []
    [message] = told(f"{MODEL}{settings}\n")
    assert message.endswith(f"is not installed: pip install {package}")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("method", "package"), [("gptq", "gptqmodel"), ("awq", "autoawq"), ("fp8", None)])
def test_what_a_quantized_checkpoint_needs_is_named(method: str, package: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CHECKPOINT.replace("METHOD", method))
    messages = told(f"model_name_or_path: {tmp_path}\nquantization_bit: 4\n")
    assert [message.rpartition(" ")[2] for message in messages] == ([package] if package else [])


HYBRID = "model_name_or_path: Qwen/Qwen3.5-4B\n"
BLOCK = "# /// recipe\n# machine: {}\n# packages: flash-linear-attention\n# ///\n" + HYBRID


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BLOCK.format("1xa100-80g"), "`packages` of the header block"),
        (f"{HYBRID}flash_attn: fa2\n", "`flash_attn: fa2` of Qwen/Qwen3.5-4B"),
        (BLOCK.format("1xascend-910b-64g"), None), (HYBRID, None),
    ],
)  # fmt: skip
def test_kernels_that_the_run_counts_on_are_looked_for(text: str, why: str | None) -> None:
    """On Ascend transformers does not take them. The newest release would bring a transformers that is refused."""
    wanted = f"{why} needs a package that is not installed: pip install 'flash-linear-attention<0.6'"
    assert told(text) == ([wanted] if why else [])


def test_nothing_is_said_where_llamafactory_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: {})
    assert told(f"{MODEL}enable_liger_kernel: true\n") == []


@pytest.mark.parametrize(
    "package", [*node_demand._PACKAGE_OF_KEY.values(), *node_demand._PACKAGE_OF_LOADING.values(), "autoawq"]
)
def test_llamafactory_asks_for_that_package(package: str) -> None:
    factory = pytest.importorskip("llamafactory")
    sources = ("hparams/parser.py", "model/model_utils/quantization.py")
    text = "".join((Path(factory.__file__).parent / name).read_text() for name in sources)
    assert f'check_version("{package}' in text
