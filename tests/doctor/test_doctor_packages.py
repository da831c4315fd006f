"""Releases that go together, as doctor reads them where they are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.installed_packages import site, write

from validator.doctor import package_checks
from validator.doctor.check_result import CheckContext
from validator.knowledge.tables import yaml_table
from validator.machine import installed_packages
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import resolve

# As LLaMA-Factory 0.9.5 writes it.
MISC = '''
def check_dependencies() -> None:
    r"""Check the version of the required packages."""
    check_version("transformers>=4.55.0,<=5.6.0")
    check_version("trl>=0.18.0,<=0.24.0")


def other() -> None:
    check_version("unsloth>=9", mandatory=True)
'''
SOUND = {"llamafactory": "0.9.5", "transformers": "5.6.0", "trl": "0.24.0", "torch": "2.8.0+cu128"}
FILES = {"llamafactory/extras/misc.py": MISC}


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISABLE_VERSION_CHECK", raising=False)


def told(folders: tuple[str, ...]) -> list[str]:
    return [
        f"{line.state}: {line.found}; {line.wanted}; {line.remedy}"
        for line in package_checks.check_packages(None, CheckContext(site_packages=folders))
    ]


def test_sound(tmp_path: Path) -> None:
    [line] = told(site(tmp_path, SOUND, files=FILES))
    assert line.startswith("ok: llamafactory 0.9.5, transformers 5.6.0, torch 2.8.0+cu128, trl 0.24.0")


def test_here() -> None:
    """The real packages that the tests run with: nothing that stops them."""
    assert [line.found for line in package_checks.check_packages(None, CheckContext()) if line.state == "error"] == []


def test_what_llamafactory_stops_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = site(tmp_path, {**SOUND, "transformers": "5.9.0", "unsloth": "1"}, files=FILES)
    assert told(folders) == [
        "error: transformers 5.9.0; llamafactory 0.9.5 wants transformers<=5.6.0,>=4.55.0; "
        'pip install "transformers<=5.6.0,>=4.55.0"'
    ]
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    assert told(folders)[0].startswith("ok: ")


@pytest.mark.parametrize(
    ("extra", "requires", "expected"),
    [
        ({"torchvision": "0.22.0"}, {"torchvision": ["torch==2.7.0"]}, "error: torch 2.8.0+cu128; torchvision"),
        ({"torchvision": "0.23.0"}, {"torchvision": ["torch==2.8.0"]}, "ok: "),
        ({"vllm": "0.10.0"}, {"vllm": ["torch==2.7.1", "ray; extra == 'ray'"]}, "warning: torch 2.8.0+cu128; vllm"),
        ({"huggingface-hub": "1.9"}, {"transformers": ["huggingface_hub<1.0"]}, "error: huggingface_hub 1.9; tr"),
        ({}, {"llamafactory": ["av<=16.0.0,>=10.0.0"]}, "warning: av is not installed; llamafactory"),
        ({}, {"llamafactory": ["torchaudio>=2.4.0"]}, "error: torchaudio is not installed"),
        ({}, {"llamafactory": ["av; python_version < '3'"]}, "ok: "),
        ({"nvidia-nccl-cu12": "2.28.9"}, {"torch": ["nvidia-nccl-cu12==2.27.3"]}, "warning: nvidia-nccl-cu12 2.28.9"),
        ({"triton": "3.2.0", "bitsandbytes": "0.44.1"}, {}, "error: bitsandbytes 0.44.1 beside triton 3.2.0"),
        ({"triton": "3.2.0", "bitsandbytes": "0.45.1"}, {}, "ok: "),
        ({"deepspeed": "0.14.0"}, {}, "error: deepspeed 0.14.0 beside torch 2.8.0+cu128"),
    ],
)  # fmt: skip
def test_what_packages_ask_of_each_other(
    extra: dict[str, str], requires: dict[str, list[str]], expected: str, tmp_path: Path
) -> None:
    assert told(site(tmp_path, {**SOUND, **extra}, requires, FILES))[0].startswith(expected)


def test_llamafactory_is_used_where_its_source_lies(tmp_path: Path) -> None:
    folders = site(tmp_path / "site", {**SOUND, "transformers": "5.9.0"})
    assert told(folders)[0].startswith("ok: ")
    write(tmp_path / "source/src/llamafactory/extras/misc.py", MISC)
    url = f'{{"url": "file://{tmp_path}/source", "dir_info": {{"editable": true}}}}'
    write(tmp_path / "site/llamafactory-0.9.5.dist-info/direct_url.json", url)
    find_installed.cache_clear()
    assert told(folders)[0].startswith("error: transformers 5.9.0")


def test_the_recipe_names_other_releases(tmp_path: Path) -> None:
    text = "# /// recipe\n# transformers: '<5'\n# ///\nmodel_name_or_path: Qwen/Qwen3-0.6B\n"
    job = resolve(parse_recipe("x.yaml", text))
    found = [
        line.found
        for line in package_checks.check_packages(job, CheckContext(site_packages=site(tmp_path, SOUND, files=FILES)))
    ]
    assert found == ["the recipe is for transformers <5, and 5.6.0 is installed here"]


def _unknown(version: str, kind: str, first: str, admitted: str) -> str:
    install = f'pip install "transformers{admitted}"'
    return f"transformers {version} does not know model type `{kind}`, which came with {first}: {install}"


ZERO_3 = "deepspeed: deepspeed/ds_z3.json"
RUN = "stage: sft\ndo_train: true\nfinetuning_type: lora\ndataset: mine\noutput_dir: saves/x\n"


@pytest.mark.parametrize(
    ("model", "template", "installed", "expected"),
    [
        ("Qwen/Qwen3.5-9B", "qwen3_5", "0.9.5 4.57.1",
         _unknown("4.57.1", "qwen3_5", "5.2.0", ">=5.2.0,<=5.6.0")),
        ("mistralai/Ministral-3-8B-Instruct-2512", "ministral3", "0.9.5 4.57.6",
         _unknown("4.57.6", "ministral3", "5.0.0", ">=5.0.0,<=5.6.0")),
        ("google/gemma-4-31B-it", "gemma4", "0.9.5 5.4.0",
         _unknown("5.4.0", "gemma4", "5.5.0", ">=5.5.0,<=5.6.0")),
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl", "0.9.4 4.56.2",
         _unknown("4.56.2", "qwen3_vl", "4.57.0", ">=4.57.0,<=4.57.1")),
        ("Qwen/Qwen3.5-9B", "qwen3_5", "0.9.4 4.57.1",
         "transformers 4.57.1 does not know model type `qwen3_5`, which came with 5.2.0: "
         'pip install llamafactory==0.9.5 "transformers>=5.2.0,<=5.6.0"\n'
         "LLaMA-Factory 0.9.4 has no template `qwen3_5`, which 0.9.5 has: pip install llamafactory==0.9.5"),
        ("LanguageBind/Video-LLaVA-7B-hf", "video_llava", "0.9.5 4.57.1",
         "LLaMA-Factory 0.9.5 finds no class for model type `video_llava` in transformers 4.57.1: "
         'pip install "transformers>=5.0.0,<=5.6.0"'),
        ("google/gemma-2-9b-it", "gemma2", "0.9.3 4.52.4",
         "LLaMA-Factory 0.9.3 has no template `gemma2`, which 0.9.5 has: pip install llamafactory==0.9.5"),
        ("Qwen/Qwen3.5-9B", "qwen3_5", "0.9.5 5.2.0", ""),
        ("Qwen/Qwen3.5-9B", "qwen3_5", "0.9.6.dev0 5.30.0", ""),  # later than the tables
        ("LanguageBind/Video-LLaVA-7B-hf", "video_llava", "0.9.4 4.57.1", ""),
        ("MiniMaxAI/MiniMax-M2", "minimax2", "0.9.5 4.57.1", ""),  # its repository holds code, which is trusted
        ("zai-org/GLM-4-9B-0414", "glm4", "0.9.3 4.51.3", ""),
        ("Qwen/Qwen3.5-9B", "qwen3_5", "0.9.5", ""),  # told of by itself
    ],
)  # fmt: skip
def test_installed_releases_without_the_model(
    model: str, template: str, installed: str, expected: str, tmp_path: Path
) -> None:
    trusted = f"model_name_or_path: {model}\ntemplate: {template}\ntrust_remote_code: true\n"
    run = resolve(parse_recipe("x.yaml", RUN + trusted))
    versions = dict(zip(("llamafactory", "transformers"), installed.split(), strict=False))
    lines = package_checks.check_model_support(run, CheckContext(site_packages=site(tmp_path, versions)))
    assert "\n".join(f"{line.found}" for line in lines) == expected


NPU_LIBRARY = "bitsandbytes/libbitsandbytes_npu.so"
WITHOUT_LIBRARY = "bitsandbytes 0.48.2 has no library for NPUs"


@pytest.mark.parametrize(
    ("settings", "machine", "installed", "files", "expected"),
    [
        ("quantization_bit: 4", "8xascend-910b-64g", {"bitsandbytes": "0.48.2"}, (), WITHOUT_LIBRARY),
        ("quantization_bit: 8", "1xascend-910c-64g", {"bitsandbytes": "0.48.2"}, (), WITHOUT_LIBRARY),
        ("model_name_or_path: unsloth/Qwen3-1.7B-unsloth-bnb-4bit", "1xascend-910b-32g", {"bitsandbytes": "0.48.2"},
         ("bitsandbytes/libbitsandbytes_cpu.so",), WITHOUT_LIBRARY),
        ("quantization_bit: 4", "8xascend-910b-64g", {}, (), "no bitsandbytes"),
        ("quantization_bit: 4", "8xascend-910b-64g", {"bitsandbytes-npu-beta": "0.45.3"}, (NPU_LIBRARY,),
         "bitsandbytes-npu-beta is installed, and LLaMA-Factory asks for bitsandbytes"),
        ("quantization_bit: 4", "8xascend-910b-64g", {"bitsandbytes": "0.45.4.dev0"}, (NPU_LIBRARY,), ""),
        ("quantization_bit: 4", "8xascend-910b-64g", {"bitsandbytes": "0.43", "bitsandbytes-npu-beta": "0.45.3"},
         (NPU_LIBRARY,), ""),
        ("quantization_bit: 4", "8xa100-80g", {"bitsandbytes": "0.48.2"}, (), ""),
        ("quantization_bit: 8\nquantization_method: hqq", "8xascend-910b-64g", {"bitsandbytes": "0.48.2"}, (), ""),
        ("lora_rank: 8", "8xascend-910b-64g", {}, (), ""),
    ],
)  # fmt: skip
def test_bitsandbytes_on_ascend(
    settings: str, machine: str, installed: dict[str, str], files: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    model = "" if "model" in settings else "model_name_or_path: Qwen/Qwen3-0.6B\n"
    run = resolve(parse_recipe("x.yaml", f"{RUN}{model}{settings}\n"), machine)
    there = site(tmp_path, {"llamafactory": "0.9.5", **installed}, files=dict.fromkeys(files, ""))
    context = CheckContext(site_packages=there)
    assert [line.found for line in package_checks.check_npu_quantization(run, context)] == [expected] * bool(expected)
    lines = package_checks.check_required_packages(run, context)
    missing = [line.found for line in lines if line.state != "ok"]
    assert not any("bitsandbytes" in line for line in missing)  # what pip would install there has no such library


def test_a_checkpoint_of_bitsandbytes_needs_it(tmp_path: Path) -> None:
    run = resolve(
        parse_recipe("x.yaml", f"{RUN}model_name_or_path: unsloth/Qwen3-1.7B-unsloth-bnb-4bit\n"), "1xa100-80g"
    )
    context = CheckContext(site_packages=site(tmp_path, {"llamafactory": "0.9.5"}))
    (line,) = package_checks.check_required_packages(run, context)
    assert line.found == (
        "a checkpoint quantized with BITSANDBYTES needs a package that is not installed: pip install bitsandbytes"
    )


@pytest.mark.parametrize(
    ("model", "keys", "installed", "expected"),
    [
        ("google/gemma-3-4b-it", ZERO_3, "0.9.5 4.57.1", "error: transformers 4.57.1 ends while"),
        ("google/gemma-3-4b-it", ZERO_3, "0.9.5 4.56.2", ""),
        ("google/gemma-3-4b-it", "deepspeed: deepspeed/ds_z2.json", "0.9.5 4.57.1", ""),
        ("google/gemma-3-4b-it", f"{ZERO_3}\ntrain_from_scratch: true", "0.9.5 4.57.1", ""),
        ("Qwen/Qwen3-30B-A3B", ZERO_3, "0.9.5 5.0.0", "error: transformers 5.0.0 loads only the"),
        ("Qwen/Qwen3-30B-A3B", ZERO_3, "0.9.5 5.1.0", "error: transformers 5.1.0 ends while it"),
        ("Qwen/Qwen3-30B-A3B", ZERO_3, "0.9.5 5.2.0", ""),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "bf16: true", "0.9.5 5.1.0", "error: transformers 5.1.0 ends while it"),
        ("Qwen/Qwen3.5-9B", ZERO_3, "0.9.5 5.5.4", "error: transformers 5.5.4 loads only the vi"),
        ("Qwen/Qwen3.5-9B", ZERO_3, "0.9.5 5.6.0", ""),
        ("google/gemma-4-E4B-it", ZERO_3, "0.9.5 5.5.0", "warning: transformers 5.5.0 does not load"),
        ("Qwen/Qwen3.5-9B", "bf16: true", "0.9.5 5.6.0 2.9.1+cu128", "error: torch 2.9.1+cu128 is refused by"),
        ("Qwen/Qwen3.5-9B", "bf16: true", "0.9.5 5.6.0 2.10.0", ""),
        ("Qwen/Qwen3-VL-8B-Instruct", "bf16: true", "0.9.4 4.57.1 2.9.1", ""),  # only the next release refuses it
    ],
)  # fmt: skip
def test_installed_releases_that_fail_with_the_model(
    model: str, keys: str, installed: str, expected: str, tmp_path: Path
) -> None:
    run = resolve(parse_recipe("x.yaml", f"{RUN}model_name_or_path: {model}\n{keys}\n"))
    versions = dict(zip(("llamafactory", "transformers", "torch"), installed.split(), strict=False))
    lines = package_checks.check_model_support(run, CheckContext(site_packages=site(tmp_path, versions)))
    found = "\n".join(f"{line.state}: {line.found}" for line in lines)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_nothing_installed(tmp_path: Path) -> None:
    [line] = package_checks.check_packages(None, CheckContext(site_packages=site(tmp_path, {"torch": "2.8.0"})))
    assert (line.state, line.remedy) == ("warning", "pip install llamafactory==0.9.5 'deepspeed<=0.18.4'")


def test_without_packaging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_packages, "find_spec", lambda _name: None)
    assert told(site(tmp_path, SOUND, files=FILES)) == [
        "warning: releases are not compared; packaging; pip install packaging"
    ]


def test_the_python_of_llamafactory_is_the_one_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(tmp_path / "venv/lib/python3.11/site-packages", {"llamafactory": "0.9.3"})
    program = tmp_path / "bin/llamafactory-cli"
    write(program, f"#!{tmp_path}/venv/bin/python\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    find_installed.cache_clear()
    assert find_installed().all_versions == {"llamafactory": "0.9.3"}
    site(tmp_path / "shared", {"torch": "2.8.0"})
    write(tmp_path / "venv/lib/python3.11/site-packages/shared.pth", f"import nothing\n{tmp_path / 'shared'}\n")
    (tmp_path / "venv/lib/python3.11/site-packages/gone.pth").symlink_to("nowhere")
    find_installed.cache_clear()
    assert find_installed().all_versions == {"llamafactory": "0.9.3", "torch": "2.8.0"}
    for own in (sys.executable, "/usr/bin/env python3", "/bin/sh"):
        program.write_text(f"#!{own}\n")
        find_installed.cache_clear()
        assert "pytest" in find_installed().all_versions
    find_installed.cache_clear()


def test_an_import_of_nothing_is_needed() -> None:
    """doctor reads packages without importing any of them."""
    code = "import sys; from validator.doctor.diagnosis import examine; examine(None); print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "validator.doctor.package_checks" in modules
    assert not {"torch", "transformers", "llamafactory", "numpy"} & {*modules}


def test_every_fact_has_a_public_source() -> None:
    for name, entry in yaml_table("together").items():
        sources = [pair["source"] for pair in entry["pairs"]] if name == "fails" else entry["source"]
        assert sources, name
        assert all(source.startswith("https://") for source in sources), name


def test_first_folder_wins(tmp_path: Path) -> None:
    folders = site(tmp_path / "a", {"Torch_Npu": "2.7.1"}) + site(tmp_path / "b", {"torch-npu": "2.6.0"})
    assert InstalledPackages(folders).all_versions == {"torch-npu": "2.7.1"}
    assert InstalledPackages(folders).versions(["torch_npu", "torch-npu", "torch"]) == {
        "torch_npu": "2.7.1",
        "torch-npu": "2.7.1",
    }
