"""Packages that LLaMA-Factory would stop for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.installed_packages import site

from validator.doctor import package_checks
from validator.doctor.check_result import CheckContext
from validator.machine.installed_packages import InstalledPackages
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import resolve

MODEL = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: lora\n"
CHECKPOINT = """{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
"num_attention_heads": 4, "intermediate_size": 128, "quantization_config": {"quant_method": "METHOD", "bits": 4}}"""


def told(text: str) -> list[str]:
    job = resolve(parse_recipe("recipe.yaml", text))
    lines = package_checks.check_required_packages(job, CheckContext())
    return [line.found for line in lines if line.state != "ok"]


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
        ("deepspeed: deepspeed/ds_z2.json", "'deepspeed<=0.18.4'"), ("use_badam: true", "'badam>=1.2.1'"),
    ],
)  # fmt: skip
def test_what_a_key_needs_is_named(settings: str, package: str) -> None:
    assert told(MODEL) == []
    [message] = told(f"{MODEL}{settings}\n")
    assert message.endswith(f"is not installed: pip install {package}")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("method", "package"), [("gptq", "'gptqmodel>=2.0.0'"), ("awq", "autoawq"), ("fp8", None)])
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
    assert [line for line in told(text) if "linear-attention" in line] == ([wanted] if why else [])


def test_nothing_is_said_where_llamafactory_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: {})
    assert told(f"{MODEL}enable_liger_kernel: true\n") == []


@pytest.mark.parametrize(
    ("settings", "installed", "command"),
    [
        ("", {}, "pip install llamafactory==0.9.5"),
        ("enable_liger_kernel: true", {}, "pip install llamafactory==0.9.5 liger-kernel"),
        ("enable_liger_kernel: true", {"liger_kernel": "0.6"}, "pip install llamafactory==0.9.5"),
        (
            "enable_liger_kernel: true\nquantization_bit: 4",
            {},
            "pip install llamafactory==0.9.5 bitsandbytes liger-kernel",
        ),
        ("deepspeed: deepspeed/ds_z2.json", {}, "pip install llamafactory==0.9.5 'deepspeed<=0.18.4'"),
        ("flash_attn: fa2", {}, "pip install llamafactory==0.9.5"),  # without which the run goes on
        ("optim: adamw_apex_fused", {}, "pip install llamafactory==0.9.5"),  # which is built from its source
    ],
)
def test_without_llamafactory_one_command_installs_all(
    settings: str, installed: dict[str, str], command: str, tmp_path: Path
) -> None:
    run = resolve(parse_recipe("recipe.yaml", f"{MODEL}{settings}\n"))
    there = site(tmp_path, {"torch": "2.8.0", **installed})
    [line] = package_checks.check_packages(run, CheckContext(site_packages=there))
    assert line.state == "error"
    assert line.found.startswith("not installed: llamafactory")
    assert sorted(line.remedy.split()) == sorted(command.split())


CU128 = (
    "pip install torch==2.8.0 torchvision==0.23.0 torchaudio==2.8.0 --index-url https://download.pytorch.org/whl/cu128"
)


@pytest.mark.parametrize(
    ("machine", "settings", "missing", "command"),
    [
        (None, None, "torch, llamafactory, deepspeed",
         f"{CU128} && pip install llamafactory==0.9.5 'deepspeed<=0.18.4', as docs/howto/install.md says"),
        ("1xrtx-4090", "quantization_bit: 4", "torch, llamafactory, bitsandbytes",
         f"{CU128} && pip install llamafactory==0.9.5 bitsandbytes, as docs/howto/install.md#nvidia says"),
        ("8xascend-910b-64g", "deepspeed: deepspeed/ds_z2.json", "torch, llamafactory, deepspeed",
         "https://download.pytorch.org/whl/cpu && pip install \".[ascend]\" in a copy of this repository, as "
         "docs/howto/install.md#ascend says"),
        ("8xmi300x-192g", "", "torch, llamafactory",
         "https://download.pytorch.org/whl/rocm6.4 && pip install \".[amd]\""),
        ("1xrtx-4090", "use_cpu: true", "torch, llamafactory",
         "https://download.pytorch.org/whl/cpu && pip install llamafactory==0.9.5, as docs/howto/install.md#cpu says"),
    ],
)  # fmt: skip
def test_without_torch_the_command_begins_with_the_build_for_the_device(
    machine: str | None, settings: str | None, missing: str, command: str, tmp_path: Path
) -> None:
    run = None if settings is None else resolve(parse_recipe("recipe.yaml", f"{MODEL}{settings}\n"), machine)
    node = CheckContext(site_packages=site(tmp_path, {}), recipe_machine=run.machine if run else None)
    [line] = package_checks.check_packages(run, node)
    assert line.found == f"not installed: {missing}"
    assert command in line.remedy


@pytest.mark.parametrize(
    ("settings", "installed", "state", "says"),
    [
        ("predict_with_generate: true", {}, "error", "that are not installed: pip install jieba nltk rouge-chinese"),
        ("predict_with_generate: true", {"jieba": "0.42.1", "nltk": "3.10.4"}, "error",
         "a package that is not installed: pip install rouge-chinese"),
        ("use_badam: true", {"badam": "1.2.0"}, "error", "another release than badam 1.2.0: pip install"),
        ("use_badam: true", {"badam": "1.4"}, "ok", "badam 1.4, for `use_badam`"),
        ("flash_attn: fa2", {}, "warning", "pip install flash-attn; without it the run goes on"),
        ("optim: adamw_apex_fused", {}, "error", "is not installed: build NVIDIA's apex"),
        ("optim: lomo", {"lomo-optim": "0.1.1"}, "ok", "lomo-optim 0.1.1, for `optim: lomo`"),
        ("report_to: wandb", {}, "error", "`report_to: wandb` needs a package that is not"),
        ("deepspeed: deepspeed/ds_z2.json", {"deepspeed": "0.18.4"}, "ok", "deepspeed 0.18.4, for `deepspeed`"),
        ("deepspeed: deepspeed/ds_z2.json", {"deepspeed": "0.19.2"}, "warning", "deepspeed 0.19.2"),
    ],
)  # fmt: skip
def test_what_is_installed_is_compared(
    settings: str, installed: dict[str, str], state: str, says: str, tmp_path: Path
) -> None:
    run = resolve(parse_recipe("recipe.yaml", f"{MODEL}{settings}\n"))
    there = site(tmp_path, {"llamafactory": "0.9.5", **installed})
    lines = [*package_checks.check_required_packages(run, CheckContext(site_packages=there))]
    assert lines[-1].state == state
    assert says in lines[-1].found


def test_a_module_of_another_name_will_do(tmp_path: Path) -> None:
    run = resolve(parse_recipe("recipe.yaml", f"{MODEL}report_to: tensorboard\n"))
    there = site(tmp_path, {"llamafactory": "0.9.5"}, files={"tensorboardX/__init__.py": ""})
    assert [*package_checks.check_required_packages(run, CheckContext(site_packages=there))] == []


def test_modelscope_has_to_be_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("USE_MODELSCOPE_HUB", "1")
    run = resolve(parse_recipe("recipe.yaml", MODEL))
    for packages, lines in (({}, ["error"]), ({"modelscope": "1.10.0"}, ["error"]), ({"modelscope": "1.40.2"}, [])):
        there = site(
            tmp_path / str(len(packages)) / str(packages.get("modelscope")), {"llamafactory": "0.9.5", **packages}
        )
        found = [*package_checks.check_required_packages(run, CheckContext(site_packages=there))]
        assert [line.state for line in found if line.state != "ok"] == lines
