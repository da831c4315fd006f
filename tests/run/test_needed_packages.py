"""Packages that settings ask for (data/packages.yaml), held to LLaMA-Factory's own source and to transformers'."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest

from validator.knowledge.tables import json_table, yaml_table
from validator.recipe.recipe_file import parse_recipe
from validator.run.needed_packages import asking_settings, needed_packages, pip_requirement
from validator.run.recipe_arguments import default_value
from validator.run.settings import resolve

ROWS = [{"setting": setting, **row} for setting in asking_settings() for row in yaml_table("packages")[setting]]
ELSEWHERE = yaml_table("packages")["elsewhere"]["gates"]
OTHER_PROGRAMS = ("v1", "webui", "third_party")  # the new trainer, the web page, the code of others
BASE = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
ASKED_OUTSIDE_THE_PARSER = ("use_hyper_parallel", "USE_MCA")  # train/tuner.py and hparams/training_args.py
# A row whose setting is no key of the recipe, as a recipe that asks for it.
RESOLVED = {
    "fp8": "fp8: true\nfp8_backend: {}",
    "deepspeed": "deepspeed: deepspeed/ds_z2.json",
    "model_type": "model_name_or_path: openai/gpt-oss-20b",
    "quantization_bit": "quantization_bit: 8\nquantization_method: {}",
}
CHECKPOINT = """{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
"num_attention_heads": 4, "intermediate_size": 128, "quantization_config": {"quant_method": "METHOD", "bits": 4}}"""


def source(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(found.submodule_search_locations[0])


def gates() -> Iterator[str]:
    """Requirements that LLaMA-Factory's source compares, and the questions whether a package is available."""
    root = source("llamafactory")
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in OTHER_PROGRAMS:
            yield from gates_of(ast.parse(path.read_text("utf-8")))


def gates_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "check_dependencies":
            node.body = []  # what every run asks for; `doctor` reads it where it is installed
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and re.fullmatch(r"is_\w+_available", node.name):
            yield node.name
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            first = node.args[0] if node.args else None
            if name in ("check_version", "require_version") and isinstance(first, ast.Constant):
                yield str(first.value)
            elif re.fullmatch(r"is_\w+_available", name):
                yield name


def canonical(requirement: str) -> str:
    return requirement.replace("_", "-")


def test_every_gate_of_llamafactory_has_a_row_or_a_reason() -> None:
    named = {canonical(each) for row in ROWS for each in row["packages"]} | {canonical(each) for each in ELSEWHERE}
    asked = {canonical(each) for each in gates()}
    assert asked - named == set()
    assert {canonical(each) for each in ELSEWHERE} - asked == set(), "a gate that is no more"


def test_what_is_said_to_be_required_by_metadata_is() -> None:
    source("llamafactory")
    own = {canonical(re.split(r"[\s<>=!;\[]", each)[0].lower()) for each in requires("llamafactory") or ()}
    aliases = {"pyav": "av", "starlette": "sse-starlette"}
    said = [name for name, why in ELSEWHERE.items() if "LLaMA-Factory's own metadata" in why]
    packages = [name.removeprefix("is_").removesuffix("_available") for name in said]
    assert [name for name in packages if aliases.get(name, name) not in own] == []


def test_each_optimizer_and_tracker_of_transformers_that_asks_for_a_package_has_a_row() -> None:
    text = (source("transformers") / "integrations/integration_utils.py").read_text("utf-8")
    table = text[text.index("INTEGRATION_TO_CALLBACK = {") :]
    trackers = set(re.findall(r'^    "(\w+)": \w+Callback,$', table[: table.index("}")], re.MULTILINE))
    rows = {value for row in ROWS if row["setting"] == "report_to" for value in row["values"]}
    assert trackers - rows == {"kubeflow"}  # which reports where Kubeflow's variables are set
    plain = {"adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"}
    devices = {"adamw_torch_xla", "adamw_torch_npu_fused"}  # DEV and doctor's line of torch_npu
    rows = {value for row in ROWS if row["setting"] == "optim" for value in row["values"]}
    assert {*json_table("arguments")["arguments"]["optim"]["choices"]} - rows == plain | devices


def recipe_of(row: dict[str, object], value: str, folder: Path) -> str:
    """A recipe that asks for a row's packages."""
    setting = str(row["setting"])
    if setting == "checkpoint":
        (folder / "config.json").write_text(CHECKPOINT.replace("METHOD", value))
        return f"{BASE.replace('Qwen/Qwen3-0.6B', str(folder))}"
    if setting.isupper():
        return BASE
    text = RESOLVED.get(setting, f"{setting}: {value}").format(value)
    return BASE.replace("model_name_or_path: Qwen/Qwen3-0.6B\n", "") + text if "model" in text[:5] else BASE + text


@pytest.mark.parametrize(
    ("row", "value"),
    [
        pytest.param(row, str(value), id=f"{row['setting']}-{value}")
        for row in ROWS
        for value in row.get("values", ["true"])
    ],
)
def test_a_setting_asks_for_its_packages(
    row: dict[str, object], value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if str(row["setting"]).isupper():
        monkeypatch.setenv(str(row["setting"]), "1")
    run = resolve(parse_recipe("recipe.yaml", recipe_of(row, value, tmp_path)), "1xa100-80g")
    packages = row["packages"]
    assert isinstance(packages, list)
    found = {pip_requirement(each, run): each.dies for each in needed_packages(run)}
    wanted = [each if each != "deepspeed" else "deepspeed<=0.18.4" for each in packages]
    assert {name: found.get(name) for name in wanted} == dict.fromkeys(wanted, row["dies"])


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("", "1xa100-80g"), ("optim: adamw_torch", "1xa100-80g"), ("flash_attn: fa2", "8xascend-910b-64g"),
        ("flash_attn: fa2", "8xv100-32g"), ("flash_attn: fa2", "1xt4-16g"),
        ("fp8_backend: te", "1xh100-80g"), ("report_to: none", "1xa100-80g"), ("report_to: all", "1xa100-80g"),
        ("predict_with_generate: false", "1xa100-80g"), ("quantization_method: hqq", "1xa100-80g"),
        ("plot_loss: true", "1xa100-80g"), ("flash_attn: fa2\nuse_cpu: true", None),
    ],
)  # fmt: skip
def test_what_is_off_asks_for_nothing(text: str, machine: str | None) -> None:
    assert [*needed_packages(resolve(parse_recipe("recipe.yaml", f"{BASE}{text}\n"), machine))] == []


def test_no_default_asks_for_a_package() -> None:
    """Settings that the recipe leaves out are not looked at."""
    defaults = {row["setting"]: default_value(row["setting"]) for row in ROWS if row["setting"] not in RESOLVED}
    assert [name for name, value in defaults.items() if isinstance(value, bool) and value] == []
    asking = [row["setting"] for row in ROWS if defaults.get(row["setting"]) in row.get("values", [])]
    assert asking == []


def test_a_hub_is_not_asked_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_OPENMIND_HUB", "1")
    (tmp_path / "config.json").write_text(CHECKPOINT.replace("METHOD", "fp8"))
    run = resolve(parse_recipe("recipe.yaml", BASE.replace("Qwen/Qwen3-0.6B", str(tmp_path))))
    assert [*needed_packages(run)] == []


@pytest.mark.parametrize(
    ("entry", "package"),
    [
        ('{"cloud_file_name": "s3://bucket/rows.json"}', "s3fs"), ('{"om_hub_url": "someone/rows"}', "openmind"),
        ('{"ms_hub_url": "someone/rows"}', "modelscope"), ('{"hf_hub_url": "a/b", "ms_hub_url": "a/b"}', None),
        ('{"file_name": "rows.json"}', None),
    ],
)  # fmt: skip
def test_a_data_set_asks_for_what_reads_it(entry: str, package: str | None, tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(f'{{"mine": {entry}}}')
    run = resolve(parse_recipe("recipe.yaml", f"{BASE}dataset: mine\ndataset_dir: {tmp_path}\n"), "1xa100-80g")
    assert [each.package for each in needed_packages(run)] == ([package] if package else [])


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    "row",
    [each for each in ROWS if each["dies"] == "at parsing" and each["setting"] not in ASKED_OUTSIDE_THE_PARSER],
    ids=lambda row: row["setting"],
)
def test_llamafactory_stops_for_each_of_a_row_s_packages(
    row: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own function, asked with the one setting and told that the one package is missing."""
    parser = pytest.importorskip("llamafactory.hparams.parser")
    setting, value = str(row["setting"]), row.get("values", [True])[0]
    asked: list[str] = []
    monkeypatch.setattr(parser, "check_version", lambda requirement, **_kind: asked.append(requirement))

    class Arguments:
        """Every setting off, but for the one."""

        mixture_of_depths = None

        def __getattr__(self, name: str) -> object:
            return value if name == setting else False

    one = Arguments()
    if setting in vars(Arguments):
        setattr(one, setting, value)
    parser._check_extra_dependencies(one, one, one)
    names = {re.split(r"[<>=]", each)[0] for each in asked}
    assert {canonical(name) for name in names} == {canonical(re.split(r"[<>=]", each)[0]) for each in row["packages"]}


LATE = [(row, value) for row in ROWS if row["setting"] in ("optim", "report_to") for value in row["values"]]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.filterwarnings("ignore")  # what is half made complains when it goes
@pytest.mark.parametrize(("row", "value"), [pytest.param(*each, id=each[1]) for each in LATE])
def test_transformers_stops_without_the_package(row: dict[str, list[str]], value: str, tmp_path: Path) -> None:
    """Its own functions, asked for what the tests' environment lacks."""
    transformers = pytest.importorskip("transformers")
    modules = [re.split(r"[<>=]", each)[0].replace("-", "_") for each in row["packages"]]
    aliases = {"torch_optimi": "optimi", "azureml_sdk": "azureml"}
    if all(importlib.util.find_spec(aliases.get(name, name)) for name in modules):
        return  # what is there does not stop a run
    arguments = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    if str(row["setting"]) == "optim":
        arguments.optim = transformers.training_args.OptimizerNames(value)
        with pytest.raises((ImportError, ValueError)):
            transformers.Trainer.get_optimizer_cls_and_kwargs(arguments, model=object())
    else:
        (callback,) = transformers.integrations.get_reporting_integration_callbacks([value])
        with pytest.raises((ImportError, RuntimeError, ValueError)):
            callback()
