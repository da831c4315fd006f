"""Accelerate files: read, or explained, and what they make of a run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from validator.advise import changes
from validator.check import checking
from validator.knowledge.releases import ReleaseRange
from validator.knowledge.tables import yaml_table
from validator.physics.estimate import GIB, DeviceTerm, HostTerm
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import Document
from validator.run import fsdp
from validator.run.fsdp import AccelerateFile, Fsdp, read_accelerate
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve

FILE: dict[str, Any] = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8}
POLICY = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
VALUES = {
    "model_name_or_path": "Qwen/Qwen3-8B", "stage": "sft", "do_train": True, "finetuning_type": "full", "bf16": True,
    "cutoff_len": 2048, "output_dir": "saves/x", "template": "qwen3", "dataset": "alpaca_gpt4_en",
}  # fmt: skip


def job(
    folder: Path, settings: Mapping[str, Any] | None = None, machine: str = "8xa100-80g", **values: Any
) -> RunSettings:
    """A run under an accelerate file with these settings of FSDP; without any by the recipe alone."""
    header = {}
    if settings is not None:
        path = folder / "fsdp.yaml"
        path.write_text(yaml.safe_dump({**FILE, "fsdp_config": {**POLICY, **settings}}))
        header = {"accelerate": str(path)}
    return resolve(Document(str(folder / "r.yaml"), "", {**VALUES, **values}, header=header), machine, 1024)


DEEP = "a: &a [1, 2]\n" + "".join(f"{x}: &{x} [*{y}, *{y}, *{y}, *{y}, *{y}]\n" for y, x in pairwise("abcdefghij"))


@pytest.mark.parametrize("text", ["", "[1]", "a", "a: [", "a: 1: 2", "[" * 100_000, "\0", "a: &a [*a]", DEEP])
def test_what_cannot_be_read_is_a_problem_and_no_exception(text: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    for file in (read_accelerate(str(path)), read_accelerate(str(tmp_path)), read_accelerate(str(tmp_path / "none"))):
        assert file.problem
        assert not file.is_judged
        assert file.fsdp is None


DEFAULTS = Fsdp(resharded=False, lazy=True, gathers=True)
RESOLVED: list[tuple[dict[str, Any], Fsdp]] = [
    ({}, DEFAULTS),
    (POLICY, DEFAULTS._replace(resharded=True)),
    ({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}, DEFAULTS),
    ({**POLICY, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}, DEFAULTS),
    ({**POLICY, "fsdp_sharding_strategy": 2}, DEFAULTS),
    ({**POLICY, "fsdp_sharding_strategy": "hybrid_shard"}, DEFAULTS._replace(resharded=True, hybrid=True)),
    ({"fsdp_sharding_strategy": "NO_SHARD"}, DEFAULTS._replace(shards=False)),
    ({"fsdp_offload_params": True, "fsdp_cpu_ram_efficient_loading": "false"},
     DEFAULTS._replace(offload=True, lazy=False)),
    ({"offload_params": "true"}, DEFAULTS._replace(offload=True)),
    ({"fsdp_version": 2}, DEFAULTS._replace(version=2, gathers=False)),
    ({**POLICY, "fsdp_version": "2", "fsdp_sharding_strategy": "NO_SHARD"},
     Fsdp(version=2, lazy=True)),
    ({**POLICY, "fsdp_version": 2, "fsdp_reshard_after_forward": False, "fsdp_state_dict_type": "FULL_STATE_DICT"},
     Fsdp(version=2, resharded=False, lazy=True, gathers=True)),
    ({"fsdp_activation_checkpointing": True}, DEFAULTS._replace(recomputes=True)),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "fsdp"), RESOLVED)
def test_fsdp_is_resolved_as_accelerate_does(settings: dict[str, Any], fsdp: Fsdp) -> None:
    assert AccelerateFile("f.yaml", {**FILE, "fsdp_config": settings}).fsdp == fsdp


def test_a_file_of_another_kind_is_no_fsdp() -> None:
    assert AccelerateFile("f.yaml", {"distributed_type": "MULTI_GPU"}).fsdp is None
    assert AccelerateFile("f.yaml", {"distributed_type": "MULTI_GPU"}).is_judged
    assert not AccelerateFile("f.yaml", {"distributed_type": "DEEPSPEED"}).is_judged


def term(job: RunSettings, name: DeviceTerm | HostTerm) -> float:
    """GiB of a term of memory."""
    estimate = predict(job).device_memory if isinstance(name, DeviceTerm) else predict(job).host_memory
    assert estimate
    return estimate.terms.get(name, 0.0) / GIB


def test_weights_are_kept_in_the_formats_that_a_run_of_two_processes_has_shown(tmp_path: Path) -> None:
    """FSDP2 keeps frozen weights in fp32, FSDP1 as they were read; trained ones are fp32 in both."""
    whole = 8_190_735_360 / GIB / 8
    for version, frozen in ((1, 2), (2, 4)):
        lora = job(tmp_path, {"fsdp_version": version}, finetuning_type="lora", lora_target="all")
        assert term(lora, DeviceTerm.WEIGHTS) == pytest.approx(frozen * whole, rel=0.01)
        full = job(tmp_path, {"fsdp_version": version})
        assert term(full, DeviceTerm.WEIGHTS) == pytest.approx(4 * whole, rel=0.01)
    unmixed = job(tmp_path, {"fsdp_version": 2}, finetuning_type="lora", lora_target="all", bf16=False, pure_bf16=True)
    assert unmixed.precision.compute_dtype == "bf16"
    assert term(unmixed, DeviceTerm.WEIGHTS) == pytest.approx(4 * whole, rel=0.01)


def test_each_process_keeps_the_whole_model_in_main_memory_until_it_is_spread(tmp_path: Path) -> None:
    """As seen in a run of two processes: zeros of the model's size in all but the first, raised to fp32 to train."""
    whole = 8 * 8_190_735_360 / GIB
    assert term(job(tmp_path, {}), HostTerm.FULL_MODEL_AT_LOAD) == pytest.approx(4 * whole, rel=0.01)
    lora = {"finetuning_type": "lora", "lora_target": "all"}
    assert term(job(tmp_path, {"fsdp_version": 2}, **lora), HostTerm.FULL_MODEL_AT_LOAD) == pytest.approx(
        2 * whole, rel=0.01
    )
    quantized = job(tmp_path, {}, **lora, quantization_bit=4)
    assert term(quantized, HostTerm.FULL_MODEL_AT_LOAD) == 0
    workload = predict(quantized).workload
    assert workload
    assert not workload.sharding.sharded_load
    assert term(job(tmp_path, {"fsdp_cpu_ram_efficient_loading": False}), HostTerm.FULL_MODEL_AT_LOAD) == 0
    assert term(job(tmp_path, None, fsdp="full_shard auto_wrap"), HostTerm.FULL_MODEL_AT_LOAD) == 0


def test_transformers_4_takes_quantized_weights_back_from_the_device(tmp_path: Path) -> None:
    """A 70B model in 4 bits on two devices of 24 GB, as LLaMA-Factory's examples/extras/fsdp_qlora has it."""
    values = {
        **VALUES, "model_name_or_path": "meta-llama/Meta-Llama-3-70B-Instruct", "finetuning_type": "lora",
        "lora_target": "q_proj,v_proj", "quantization_bit": 4, "cutoff_len": 1024, "per_device_train_batch_size": 1,
    }  # fmt: skip
    path = tmp_path / "fsdp.yaml"
    path.write_text(yaml.safe_dump({**FILE, "fsdp_config": {**POLICY, "fsdp_offload_params": True}}))
    for release, verdict in (("<5", "fits"), (">=5", "exceeds")):
        header = {"accelerate": str(path), "transformers": release}
        found = resolve(Document("r.yaml", "", values, header=header), "2xrtx-3090", 256)
        assert predict(found).device_verdict == verdict


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("first", [True, False])
def test_the_installed_transformers_loads_4_bit_weights_where_it_is_said(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under FSDP, in the first process of a node and in another: `accelerate launch` sets the variables, and
    LLaMA-Factory names no device."""
    pytest.importorskip("bitsandbytes")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    for name, value in {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "0" if first else "1")
    bits = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            catalogue_root() / "demo" / "tiny-qwen3", quantization_config=bits, dtype=torch.bfloat16
        )
    finally:
        torch.distributed.destroy_process_group()
    held = [each.device.type != "meta" for each in model.parameters() if type(each).__name__ == "Params4bit"]
    installed = ReleaseRange({"transformers": transformers.__version__})
    everywhere = fsdp.host_copies(Fsdp(lazy=True), 2, quantized=True, releases=installed) == 0
    assert held
    assert set(held) == {first or everywhere}


def test_what_is_too_large_while_it_loads_is_told_of_the_release_that_loads_it_in_parts(tmp_path: Path) -> None:
    """Said where the release makes the difference: not for one that does so, and not of what the step needs."""
    large = {
        "model_name_or_path": "meta-llama/Meta-Llama-3-70B-Instruct", "finetuning_type": "lora", "lora_target": "all",
        "quantization_bit": 4, "cutoff_len": 1024, "per_device_train_batch_size": 1,
    }  # fmt: skip
    path = tmp_path / "fsdp.yaml"
    path.write_text(yaml.safe_dump({**FILE, "fsdp_config": {**POLICY, "fsdp_offload_params": True}}))

    def said(release: str, **values: Any) -> list[str]:
        header = {"accelerate": str(path), "transformers": release}
        document = Document("r.yaml", "", {**VALUES, **large, **values}, header=header)
        return [each.message for each in checking.check_document(document, "2xrtx-3090", 256).diagnostics
                if each.code == "FIT001" and "does not load them on every device" in each.message]  # fmt: skip

    assert len(said(">=5")) == 1
    assert said("<5") == said("<5", cutoff_len=32768) == said(">=5", cutoff_len=32768) == []


def test_a_model_that_is_not_loaded_lazily_goes_to_every_device_whole(tmp_path: Path) -> None:
    """A 32B model in half precision does not fit a device of 64 GB, its eighth does."""
    big = {"model_name_or_path": "Qwen/Qwen3-32B", "finetuning_type": "lora", "lora_target": "all"}
    lazy = predict(job(tmp_path, {}, "8xascend-910b-64g", **big)).device_memory
    eager = predict(job(tmp_path, {"fsdp_cpu_ram_efficient_loading": False}, "8xascend-910b-64g", **big)).device_memory
    assert lazy
    assert eager
    assert eager.phase == "loading"
    assert lazy.phase != "loading"


def test_offload_needs_main_memory(tmp_path: Path) -> None:
    eager = {"fsdp_cpu_ram_efficient_loading": False}
    kept, moved = (job(tmp_path, {**eager, "fsdp_offload_params": each}) for each in (False, True))
    assert term(moved, HostTerm.MOMENTS) > term(kept, HostTerm.MOMENTS) == 0


def test_activations_are_checkpointed_by_fsdp_where_nothing_else_does(tmp_path: Path) -> None:
    off: dict[str, Any] = {"disable_gradient_checkpointing": True}
    assert job(tmp_path, {}, **off).activation_checkpointing.mode == "off"
    assert job(tmp_path, {"fsdp_activation_checkpointing": True}, **off).activation_checkpointing.mode == "layer"
    assert (
        job(tmp_path, {"fsdp_activation_checkpointing": True}, use_unsloth_gc=True).activation_checkpointing.mode
        == "offloaded"
    )


def test_plain_processes_are_judged_as_such(tmp_path: Path) -> None:
    path = tmp_path / "ddp.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    values = {**VALUES, "finetuning_type": "lora", "lora_target": "all"}
    plain = resolve(Document("r.yaml", "", values), "8xa100-80g", 1024)
    named = resolve(Document("r.yaml", "", values, header={"accelerate": str(path)}), "8xa100-80g", 1024)
    assert predict(named).workload == predict(plain).workload


def test_no_deepspeed_file_is_advised_beside_an_accelerate_file(tmp_path: Path) -> None:
    """The header block names it, which no key of the recipe takes away."""
    for settings, engines in (({}, False), (None, True)):
        large = job(tmp_path, settings, per_device_train_batch_size=16, cutoff_len=4096)
        assert predict(large).verdict_at_longest == "exceeds"
        assert any("deepspeed" in change.set for change in changes.nearest_changes(large)) == engines


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "accelerate").iterdir()), ids=lambda p: p.name)
def test_the_files_of_this_repository_are_right(path: Path) -> None:
    values = {**VALUES, "per_device_train_batch_size": 1, "save_total_limit": 1}
    document = Document("r.yaml", "", values, header={"accelerate": str(path)})
    found = checking.check_document(document, "8xa100-80g", 1024)
    assert [d for d in found.diagnostics if d.code[:3] in ("PAR", "FIT")] == []
    assert found.verdict == "fits"


def source(path: str) -> str:
    spec = find_spec("accelerate")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("accelerate is not installed")
    return (Path(spec.submodule_search_locations[0]) / path).read_text("utf-8")


def fields(text: str, names: tuple[str, ...]) -> set[str]:
    """Annotated fields of classes."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name in names]
    lines = [line for node in classes for line in node.body if isinstance(line, ast.AnnAssign)]
    return {line.target.id for line in lines if isinstance(line.target, ast.Name)}


def test_the_keys_are_those_of_the_installed_release() -> None:
    text = source("commands/config/config_args.py")
    known = yaml_table("accelerate")
    converted = {"fp16", "dynamo_backend"}
    assert set(known["keys"]) == fields(text, ("BaseConfig", "ClusterConfig")) | converted
    assert all(f'"{key}" in config_dict' in text for key in converted)
    handed = set(re.findall(r"args[.,] ?\"?(fsdp_\w+)", source("utils/launch.py")))
    assert set(known["fsdp"]) == handed
    names = source("utils/dataclasses.py").partition("class DistributedType(")[2].partition("\nclass ")[0]
    kinds = re.findall(r'^    (\w+) = "\1"', names, re.MULTILINE)
    assert known["kinds"] == kinds
    constants = source("utils/constants.py")
    for name in ("sharding_strategy", "auto_wrap_policy", "state_dict_type"):
        (line,) = re.findall(rf"^FSDP_{name.upper()} = (.*)$", constants, re.MULTILINE)
        assert known["choices"][f"fsdp_{name}"] == ast.literal_eval(line)
