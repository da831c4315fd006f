"""`--machine auto`: the same as naming the machine that is here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support import program
from support.recordings import RECORDED, show_all

from validator.cli import group
from validator.machine import host
from validator.machine.installed_packages import InstalledPackages

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/commands/*"])

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "qwen3-8b-a100-lora.yaml")
THIS = "this machine: 8 x NVIDIA A100-SXM4-80GB (a100-80g), 1000 GiB of RAM\n"
JUDGED = "judged for 8 devices; `train` takes no more than the recipe names, or NPROC_PER_NODE\n"


def run(monkeypatch: pytest.MonkeyPatch, folder: str, *words: str) -> Result:
    """The command on a recorded machine with 1,000 GiB of main memory."""
    show_all(monkeypatch)
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    monkeypatch.setattr(host, "memory_gib", lambda: 1000.0)
    return program.run(*words)


@pytest.mark.parametrize("command", ["check", "explain", "plan", "list"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_auto_is_the_machine_that_is_here(command: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {"plan": ["--model", "qwen7b"], "list": []}.get(command, [RECIPE])
    words = [command, *rest, "--format", form, "--machine"]
    auto = run(monkeypatch, "nvidia-smi-8xa100", *words, "auto")
    plain = run(monkeypatch, "nvidia-smi-8xa100", *words, "8xa100-80g", "--host-ram", "1000")
    named = " --machine 8xa100-80g --host-ram 1000\n"  # which `train` would not find out by itself
    assert (auto.exit_code, auto.stdout) == (plain.exit_code, plain.stdout.replace(named, "\n"))
    assert auto.stderr == THIS + (JUDGED if command in ("check", "explain") else "")
    assert auto.stdout


def test_of_one_device_there_are_not_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "judged for" not in run(monkeypatch, "nvidia-smi-1xt4", "check", RECIPE, "--machine", "auto").stderr


@pytest.mark.parametrize(
    "order", [["--machine", "auto", "--host-ram", "96"], ["--host-ram", "96", "--machine", "auto"]]
)
def test_main_memory_on_the_command_line_wins(order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run(monkeypatch, "nvidia-smi-8xa100", "explain", RECIPE, "--format", "json", *" ".join(order).split())
    assert json.loads(shown.stdout)["machine"]["host_ram_gib"] == 96


def test_the_driver_is_asked_only_for_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run(monkeypatch, "nvidia-smi-no-driver", "check", RECIPE, "--machine", "8xa100-80g")
    assert (shown.exit_code, shown.stderr) == (0, "")


@pytest.mark.parametrize("command", ["check", "explain", "plan", "list"])
@pytest.mark.parametrize(
    ("folder", "says"), [("none", "no accelerator is known here"), ("nvidia-smi-no-driver", "couldn't communicate")]
)
def test_a_machine_that_shows_none_is_wrong_usage(
    command: str, folder: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = {"plan": ["--model", "qwen7b"], "list": []}.get(command, [RECIPE])
    shown = run(monkeypatch, folder, command, *rest, "--machine", "auto")
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert says in shown.stderr
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["check", "explain"])
def test_which_device_was_taken_is_told_where_several_share_a_short_form(command: str) -> None:
    said = CliRunner().invoke(group, [command, RECIPE, "--machine", "8x910b"])
    assert said.stderr == "`910b` is taken as ascend-910b-64g, not ascend-910b-32g\n"
    assert CliRunner().invoke(group, [command, RECIPE, "--machine", "8x910b2"]).stderr == ""


@pytest.mark.parametrize(("words", "usable"), [(["--machine", "auto"], 14.56), (["--machine", "1xa100-80g"], 79.25)])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_data_tells_the_memory_of_the_machine(
    suffix: str, words: list[str], usable: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "x.yaml" if suffix == ".yaml" else ROOT / "data" / "tiny_demo.json"
    if suffix == ".yaml":
        block = "# /// recipe\n# machine: 8xh100-80g\n# ///\n"
        source.write_text(f"{block}do_train: true\ndataset: tiny_demo\ndataset_dir: {ROOT}/data\ntemplate: qwen\n")
    shown = run(monkeypatch, "nvidia-smi-1xt4", "data", str(source), "--model", "qwen0.5b", "--format", "json", *words)
    assert json.loads(shown.stdout)["memory"]["usable_gib"] == usable


@pytest.mark.parametrize(("command", "option"), [("check", "--host-ram"), ("list", "--host-ram"), ("train", "--grace")])
def test_what_is_no_number_is_wrong_usage(command: str, option: str) -> None:
    done = CliRunner().invoke(group, [command, option, "nan", *(["r.yaml"] if command != "list" else [])])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': 'nan' is no number." in done.output


STAGE_0 = """model_name_or_path: Qwen/Qwen3-VL-4B-Instruct
stage: sft
do_train: true
finetuning_type: full
dataset: identity
template: qwen3_vl_nothink
cutoff_len: 1024
output_dir: out
bf16: true
deepspeed: {train_micro_batch_size_per_gpu: auto, bf16: {enabled: auto}, zero_optimization: {stage: 0}}
"""


@pytest.mark.parametrize(
    ("header", "installed", "codes"),
    [
        ("", {}, {"FIT001"}),
        ("", {"deepspeed": "0.18.4", "torch": "2.13.0+cu130"}, {"FIT001"}),
        ("", {"deepspeed": "0.16.2"}, set()),
        ("", {"deepspeed": "0.17.5+b1a2c3.dirty", "torch": "2.9.1+cu128"}, {"TRA714"}),
        ("# /// recipe\n# deepspeed: 0.18.4\n# ///\n", {"deepspeed": "0.16.2"}, {"FIT001"}),
        ("# /// recipe\n# torch: 2.9.1\n# ///\n", {"deepspeed": "0.16.2", "torch": "2.13.0"}, {"TRA714"}),
    ],
)
@pytest.mark.parametrize("words", [["check", "--format", "json", "--machine", "auto"], ["train", "--dry-run"]])
def test_releases_that_are_here_count_where_the_recipe_names_none(
    header: str, installed: dict[str, str], codes: set[str], words: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        InstalledPackages,
        "versions",
        lambda _self, names: {name: installed[name] for name in names if name in installed},
    )
    (tmp_path / "recipe.yaml").write_text(header + STAGE_0)
    done = run(monkeypatch, "nvidia-smi-8xa100", words[0], str(tmp_path / "recipe.yaml"), *words[1:])
    assert set(re.findall("FIT001|TRA714", done.output)) == codes, done.output


@pytest.mark.parametrize(("torch", "refused"), [("2.9.1+cu128", True), ("2.10.0", False)])
def test_a_plan_for_this_machine_is_for_the_releases_that_are_here(
    torch: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaMA-Factory refuses torch 2.9 for models with a Conv3d (TRA714)."""
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: {"torch": torch, "bitsandbytes": "0.48.2"})
    for words in (["--machine", "auto"], []):
        done = run(monkeypatch, "nvidia-smi-8xa100", "plan", "--model", "qwen3-vl-4b", "--method", "lora", *words)
        assert ("no such run passes" in done.output) is refused, done.output
        assert ("install torch 2.10 or later" in done.output) is refused


def test_doctor_judges_by_the_releases_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: {"torch": "2.9.0"})
    (tmp_path / "recipe.yaml").write_text(STAGE_0)
    assert "[TRA714]" in program.run("doctor", str(tmp_path / "recipe.yaml")).output


QLORA = """\
model_name_or_path: Qwen/Qwen3-8B
quantization_bit: 4
stage: sft
do_train: true
finetuning_type: lora
dataset: identity
template: qwen3
output_dir: out
bf16: true
"""


@pytest.mark.parametrize(
    ("header", "installed", "code"),
    [
        ("", "0.48.2", "DEV018"),
        ("", "0.46.0.dev0", "DEV005"),  # built from source
        ("# /// recipe\n# packages: [bitsandbytes==0.46.0.dev0]\n# ///\n", "0.48.2", "DEV005"),
    ],
)
def test_the_bitsandbytes_that_is_here_counts_on_ascend(
    header: str, installed: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        InstalledPackages,
        "versions",
        lambda _self, names: {"bitsandbytes": installed} if "bitsandbytes" in names else {},
    )
    (tmp_path / "recipe.yaml").write_text(header + QLORA)
    done = run(monkeypatch, "npu-smi-8x910b2", "check", str(tmp_path / "recipe.yaml"), "--machine", "auto")
    assert set(re.findall("DEV005|DEV006|DEV018", done.output)) == {code}, done.output
