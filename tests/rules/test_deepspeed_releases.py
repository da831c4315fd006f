"""What differs between releases of DeepSpeed, beside what its own engine says where it is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from validator.knowledge import tables
from validator.knowledge.releases import ReleaseRange, verified_release
from validator.physics import BF16_OPTIMIZER, ZERO_0
from validator.physics.estimate import DeviceTerm
from validator.physics.workload import Workload, element_sizes
from validator.rules.deepspeed_releases import accumulation_format_refused
from validator.rules.deepspeed_schema import key_refused
from validator.rules.deepspeed_unjudged import prediction_leaves_out, section_unread
from validator.rules.rule import DECLARED
from validator.run.deepspeed import sharding_strategy
from validator.run.needed_packages import NeededPackage, pip_requirement
from validator.run.prediction import predict
from validator.run.settings import run_of_values

# What the engine of stage 0 makes of a model's number format and that in which gradients are summed (None: not stated),
# by release: `all` states on every device, `spread` over all of them, `plain` without copies, or it `refuses`. Asked of
# DeepSpeedEngine._do_optimizer_sanity_check and _configure_optimizer of each release.
STAGE_0 = {
    "0.14.5": "spread spread refuses refuses / all refuses refuses all / plain plain refuses refuses",
    "0.16.2": "spread spread refuses refuses / all refuses refuses all / plain plain refuses refuses",
    "0.17.5": "spread spread refuses refuses / all refuses refuses all / plain plain refuses refuses",
    "0.17.6": "all all all refuses / all refuses refuses all / plain plain refuses refuses",
    "0.18.4": "all all all refuses / all refuses refuses all / plain plain refuses refuses",
    "0.18.5": "all spread all refuses / all refuses refuses all / plain plain refuses refuses",
    "0.19.8": "all spread all refuses / all refuses refuses all / plain plain refuses refuses",
}
MODELS, SUMMED = ("bf16", "fp16", "fp32"), (None, "fp32", "bf16", "fp16")
RECIPE: dict[str, Any] = {
    **{"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": True, "template": "qwen"},
    **{"finetuning_type": "full", "dataset": "identity", "output_dir": "out", "cutoff_len": 16},
}


def run_with(model: str, summed: str | None, release: str | None, stage: int = 0) -> Any:
    configuration = {
        "zero_optimization": {"stage": stage},
        "data_types": {"grad_accum_dtype": summed} if summed else {},
    }
    values = {**RECIPE, "bf16": model == "bf16", "fp16": model == "fp16", "deepspeed": configuration}
    return run_of_values(values, {"deepspeed": release} if release else {}, machine=None)


def stage_0(model: str, summed: str | None, release: str) -> str:
    run = run_with(model, summed, release)
    if list(accumulation_format_refused.check(run, lambda *_: None, run.deepspeed)):
        return "refuses"
    if sharding_strategy(run.deepspeed, run.precision.compute_dtype, run.releases) == BF16_OPTIMIZER:
        return "spread"
    work = predict(run).workload
    assert work is not None
    assert work.sharding.strategy == ZERO_0
    return "all" if element_sizes(work).master else "plain"


@pytest.mark.parametrize("release", STAGE_0)
def test_the_optimizer_of_stage_0_is_that_of_the_release(release: str) -> None:
    said = [[stage_0(model, summed, release) for summed in SUMMED] for model in MODELS]
    assert " / ".join(" ".join(words) for words in said) == STAGE_0[release]


@pytest.mark.slow
@pytest.mark.real
def test_the_installed_engine_takes_the_optimizer_that_we_say() -> None:
    engine = pytest.importorskip("deepspeed.runtime.engine")
    release = pytest.importorskip("deepspeed").__version__.partition("+")[0]
    kinds = {None: "plain", "fp16": "all", engine.DDP_BFLOAT16: "all"}  # in the order of _configure_optimizer

    def asked(model: str, summed: str | None) -> str:
        stub: Any = SimpleNamespace(
            fp16_enabled=lambda: model == "fp16",
            bfloat16_enabled=lambda: model == "bf16",
            zero_optimization=lambda: False,
            amp_enabled=lambda: False,
            pipeline_parallelism=False,
            _config=SimpleNamespace(grad_accum_dtype=summed),
            get_data_types=lambda: engine.DeepSpeedEngine.get_data_types(stub),
        )
        try:
            return kinds.get(engine.DeepSpeedEngine._do_optimizer_sanity_check(stub, None), "spread")
        except NotImplementedError:
            return "refuses"

    said = [[asked(model, summed) for summed in SUMMED] for model in MODELS]
    assert " / ".join(" ".join(words) for words in said) == STAGE_0[release]


@pytest.mark.parametrize(
    ("header", "spread"),
    [
        ({}, False),
        ({"deepspeed": "0.17.5"}, True),
        ({"deepspeed": "<0.17.6"}, True),
        ({"deepspeed": ">=0.16"}, False),  # with some, each device needs all
        ({"deepspeed": "0.16"}, True),
        ({"llamafactory": "0.9.4"}, True),  # which takes none since 0.17
        ({"llamafactory": ">=0.9.4"}, False),
        ({"deepspeed": "0.20.1"}, False),
        ({"deepspeed": "newest"}, False),
    ],
)
def test_stage_0_is_judged_by_the_releases_of_the_header(header: dict[str, str], spread: bool) -> None:
    run = run_of_values({**RECIPE, "bf16": True, "deepspeed": {"zero_optimization": {"stage": 0}}}, header, None)
    assert (predict(run).workload.sharding.strategy == BF16_OPTIMIZER) is spread  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("code", "release", "held"),
    [
        ("PAR117", "0.18.9", True),
        ("PAR117", "0.19.0", False),
        ("PAR023", "0.15.1", False),
        ("PAR023", "0.15.2", True),
        ("PAR023", "0.18.9", True),
        ("PAR023", "0.19", False),
        ("PAR018", "0.16.4", False),
        ("PAR018", "0.16.5", True),
        ("PTH023", "0.17.6", False),
        ("PTH023", "0.18.0", True),
    ],
)
def test_a_rule_holds_for_releases_of_deepspeed(code: str, release: str, held: bool) -> None:
    (rule,) = [rule for rule in DECLARED if rule.code == code]
    assert ReleaseRange({"deepspeed": release}).requires(rule.since, rule.until) is held
    assert ReleaseRange().requires(rule.since, rule.until)


SCHEMA = tables.json_table("deepspeed")
CLASSES = {"judged", "no_effect", "unread", "not_judged"}


def schema_keys() -> list[str]:
    """All keys of the schema: those of the top, and those of each block."""
    return [*SCHEMA["keys"], *(f"{path}.{key}" for path, block in SCHEMA["blocks"].items() for key in block["fields"])]


def test_every_key_of_the_schema_is_of_one_class() -> None:
    table = tables.yaml_table("deepspeed_keys")

    def entries(key: str) -> list[str]:
        """The entry of the key, and those above it that hold for it, too."""
        parts = key.split(".")
        above = [".".join(parts[:number]) for number in range(1, len(parts))]
        return [*([key] if key in table else []), *(each for each in above if each in table and table[each].get("all"))]

    assert {key: entries(key) for key in schema_keys() if len(entries(key)) != 1} == {}
    assert {key: list(table[key]) for key in table if len(CLASSES & set(table[key])) != 1} == {}


def test_the_classes_name_keys_of_the_schema_and_modules_that_there_are() -> None:
    table, loose = tables.yaml_table("deepspeed_keys"), ("optimizer.", "data_types.")
    assert [key for key in table if key not in schema_keys() and not key.startswith(loose)] == []
    homes = {entry["judged"] for entry in table.values() if "judged" in entry}
    assert [home for home in homes if not (tables.DATA_FOLDER.parent / home).is_file()] == []


def found(configuration: dict[str, Any], **values: object) -> tuple[list[str], list[str]]:
    """The keys that the prediction leaves out, and those that nothing reads."""
    config = {"zero_optimization": {"stage": 3}, **configuration}
    run = run_of_values({**RECIPE, "bf16": True, "deepspeed": config, **values}, {}, None)
    places: list[list[str]] = []
    for rule in (prediction_leaves_out, section_unread):
        messages = [each[1] for each in rule.check(run, lambda *_, **__: None, run.deepspeed)]
        places.append([word for message in messages for word in message.split("`")[1::2][:-1] if " " not in word])
    return places[0], sorted(set(places[1]))


@pytest.mark.parametrize(
    ("configuration", "left_out", "unread"),
    [
        ({}, [], []),
        (
            {"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 8}},
            ["tensor_parallel.autotp_size"],
            [],
        ),
        ({"tensor_parallel": {"autotp_size": 8}}, [], []),  # refused
        ({"tensor_parallel": {"autotp_size": 1}}, [], []),
        ({"tensor_parallel": {"tp": {"tp_size": 8}}}, [], []),
        ({"progressive_layer_drop": {"enabled": True, "theta": 0.5}}, ["progressive_layer_drop.enabled"], []),
        ({"progressive_layer_drop": {"enabled": False}}, [], []),
        ({"pipeline": {"stages": 2}}, [], ["pipeline"]),
        ({"data_efficiency": {"enabled": True}}, [], ["data_efficiency.enabled"]),
        ({"data_efficiency": {"enabled": False}}, [], []),
        ({"communication_data_type": "bf16"}, [], []),
        ({"communication_data_type": "bfloat16"}, [], []),
        ({"communication_data_type": "fp32"}, ["communication_data_type"], []),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, ["data_types.grad_accum_dtype"], []),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, [], []),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, [], []),
        ({"optimizer": {"type": "OneBitAdam"}}, ["optimizer.type"], []),
        ({"compile": {"deepcompile": True}}, [], []),
        ({"compression_training": {}}, [], []),
        ({"wandb": {"enabled": True}, "steps_per_print": 10, "aio": {"queue_depth": 8}}, [], []),
    ],
)
def test_what_is_not_judged_is_named(configuration: dict[str, Any], left_out: list[str], unread: list[str]) -> None:
    assert found(configuration) == (left_out, unread)


@pytest.mark.parametrize(
    ("block", "left_out"),
    [
        ({"zero_hpz_partition_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": True}, []),
        ({"zero_quantized_nontrainable_weights": True}, ["zero_quantized_nontrainable_weights"]),
        ({"stage": 2, "zero_quantized_nontrainable_weights": True}, []),
        ({"offload_optimizer": {"device": "cpu", "ratio": 0.5}}, ["offload_optimizer.ratio"]),
        ({"offload_optimizer": {"device": "cpu", "ratio": 1.0}}, []),
        ({"leaf_module": {"classes": ["Block"]}}, ["leaf_module"]),
        ({"reduce_scatter": False, "round_robin_gradients": True, "allgather_partitions": False}, []),
    ],
)
def test_what_is_not_judged_of_zero_is_named(block: dict[str, Any], left_out: list[str]) -> None:
    assert found({"zero_optimization": {"stage": 3, **block}})[0] == [f"zero_optimization.{key}" for key in left_out]


def test_deepcompile_counts_where_the_recipe_compiles() -> None:
    assert found({"compile": {"deepcompile": True}}, torch_compile=True)[0] == ["compile.deepcompile"]


def test_the_verified_release_is_among_the_releases() -> None:
    for package in ("deepspeed", "torch"):
        assert verified_release(package) in tables.yaml_table("releases")[package]["releases"]
        assert ReleaseRange().engine_releases(package) == (verified_release(package),)


def test_states_of_stage_0_are_spread_and_its_gradients_are_not() -> None:
    """By DeepSpeed 0.17.5, runtime/bf16_optimizer.py: 2 bytes of weights and of gradients and 4 of their fp32 sum a
    parameter on each device, 12 of fp32 weights and moments over all. Tensors counted on the CPU with that
    release: 10 when the engine is built, 12 behind a backward pass, 20 behind a step."""
    run = run_with("bf16", None, "0.17.5")
    work = predict(run).workload
    assert isinstance(work, Workload)
    sizes = element_sizes(work)
    assert (sizes.trained, sizes.gradient, sizes.master, sizes.moment) == (2, 2, 4, 4)
    memory = predict(run).device_memory
    assert memory is not None
    assert memory.terms[DeviceTerm.GRADIENTS] == pytest.approx(6 * run.model.parameters)


@pytest.mark.parametrize(
    ("key", "value", "release", "refused"),
    [
        ("leaf_module", {"classes": ["Block"]}, "0.17.6", True),
        ("leaf_module", {"classes": ["Block"]}, "0.18.0", False),
        ("zenflow", {"topk_ratio": 0.1}, "0.16.2", True),
        ("zenflow", {"topk_ratio": 0.1}, "0.17.5", False),
        ("stage3_module_granularity_threshold", 100, "0.15.4", True),
        ("stage3_module_granularity_threshold", 100, "0.16.0", False),
        ("module_granularity_threshold", 100, ">=0.15", True),
        ("stage3_use_all_reduce_for_fetch_params", True, "0.14.2", True),
        ("log_trace_cache_warnings", True, None, False),
        ("allgather_sequential", True, None, True),
        ("allgather_sequential", True, "0.18.9", False),  # which knows more than the table
        ("overlap_comm", False, "0.12.6", False),
    ],
)
def test_a_key_is_refused_by_releases_before_it(key: str, value: object, release: str | None, refused: bool) -> None:
    """As DeepSpeedZeroConfig of each release takes it."""
    config = {"zero_optimization": {"stage": 3, key: value}}
    run = run_of_values({**RECIPE, "deepspeed": config}, {"deepspeed": release} if release else {}, None)
    found = list(key_refused.check(run, lambda *_, **__: None, run.deepspeed))
    assert bool(found) is refused


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ({}, "deepspeed<=0.18.4"),
        ({"deepspeed": "0.16.2"}, "deepspeed==0.16.2"),
        ({"deepspeed": "0.16"}, "deepspeed>=0.16,<0.17"),
        ({"deepspeed": ">=0.16.4, <0.18"}, "deepspeed>=0.16.4,<0.18"),
        ({"deepspeed": "newest"}, "deepspeed<=0.18.4"),
        ({"llamafactory": "0.9.4"}, "deepspeed>=0.10.0,<=0.16.9"),
    ],
)
def test_jobs_install_the_releases_of_the_header(header: dict[str, str], wanted: str) -> None:
    deepspeed = NeededPackage("deepspeed", "`deepspeed`", "deepspeed", "at parsing")
    assert pip_requirement(deepspeed, run_of_values(RECIPE, header, None)) == wanted
