"""The generated tables equal what the released packages really accept."""

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import subprocess
import sys
import typing
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from read_releases import arguments, model_classes, packages, static_eval, templates
from read_releases.releases import DEEPSPEED, MODEL_CLASSES, NEWEST, TRANSFORMERS, pair

import validator
from validator.rules.deepspeed_file import ADAM_PARAMETERS

DATA = Path(validator.__file__).parent / "data"
OF_RELEASES = ["release/constraints.txt", "validator/data/*", "tools/read_releases/*", "benchmarks/conformity/*"]
NEWEST_PAIR = pair(NEWEST, TRANSFORMERS[NEWEST][0])


def read(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return table


def accepted(release: str) -> dict[str, Any]:
    """Entries of arguments.json as one pair of releases has them."""
    table = read("arguments.json")
    changes = table["changes"].get(release, {})
    return {
        name: entry | changes.get(name, {})
        for name, entry in table["arguments"].items()
        if release in entry.get("in", [release])
    }


def needs(package: str, wanted: str) -> None:
    try:
        installed = version(package)
    except PackageNotFoundError:
        pytest.skip(f"needs {package} {wanted}")
    if installed != wanted:
        pytest.skip(f"needs {package} {wanted}, {installed} is installed")


@pytest.mark.parametrize(
    ("text", "union", "optional", "choices", "items"),
    [
        ("int", "int", False, (), ()),
        ("str | None", "str", True, (), ()),
        ("Optional[float]", "float", True, (), ()),
        ("Union[dict, str]", "str|dict", False, (), ()),
        ("dict[str, Any] | str | None", "str|dict", True, (), ()),
        ("Literal['a', 'b'] | None", "str", True, ("a", "b"), ()),
        ("str | None | Literal[False]", "bool|str", True, (), ()),
        ("Color | str", "str", False, ("red", "blue"), ()),
        ("list[Color] | str", "str|list", False, (), ("red", "blue")),
        ("'Config | None'", "object", True, (), ()),
        ("str | Path | Config | None", "str", True, (), ()),
    ],
)
def test_annotation(text: str, union: str, optional: bool, choices: tuple[str, ...], items: tuple[str, ...]) -> None:
    kind = static_eval.parse_annotation(ast.parse(text, mode="eval").body, {"Color": {"RED": "red", "BLUE": "blue"}})
    assert (kind.union, "None" in kind.types, kind.choices, kind.items) == (union, optional, choices, items)


CLASSES = """
class Mode(StrEnum):
    FAST = "fast"
    SLOW = "slow"

class Base:
    pixels: int = field(default=768 * 768)
    kept: str = "base"
    hidden: bool = field(default=False, init=False)
    chosen = "old"
    if new_torch():
        chosen = "new"
    optim: str = field(default=chosen)

class Other:
    kept: str = "other"
    words: list[str] = field(default_factory=list)
    share: dict | str = field(default_factory=lambda: {"GPU": 1})

class Arguments(Base, Other):
    mode: Mode = field(default=Mode.SLOW)
    name: str = field(metadata={"choices": ["x", "y"]})
    export_size: int = 5
"""


def test_entries_follow_dataclass_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_GROUPS", {"model": "Arguments"})
    tree = ast.parse(CLASSES)
    nodes = packages.classes(tree)
    sources = arguments.Dataclasses(nodes, {"Mode": packages.members(nodes["Mode"])}, ())
    entries = arguments.entries(sources)
    assert {name: entry.get("default", "none") for name, entry in entries.items()} == {
        "export_size": 5,
        "kept": "base",  # the first base wins, as in Python
        "mode": "slow",
        "name": "none",
        "optim": "new",
        "pixels": 589824,
        "share": {"GPU": 1},
        "words": [],
    }
    assert entries["mode"]["choices"] == ["fast", "slow"]
    assert entries["name"]["choices"] == ["x", "y"]
    assert entries["export_size"]["command"] == "export"


def test_merge_keeps_the_newest_and_the_differences() -> None:
    old: dict[str, dict[str, Any]] = {"gone": {"type": "str"}, "steps": {"type": "int", "default": 0}}
    new: dict[str, dict[str, Any]] = {"steps": {"type": "float", "default": 0}, "fresh": {"type": "bool"}}
    table = arguments.merge({"2": new, "1": old})
    assert table["arguments"] == {
        "fresh": {"type": "bool", "in": ["2"]},
        "gone": {"type": "str", "in": ["1"]},
        "steps": {"type": "float", "default": 0},
    }
    assert table["changes"] == {"1": {"steps": {"type": "int"}}}


READER = """
TOP = "top"
TOP_DEFAULT = 3
NAMED = "named"

def read(config):
    inner = {key: config.get(key, {}) for key in ("one", "two")}
    if "present" in config.keys():
        config["written"] = get_scalar_param(config, TOP, TOP_DEFAULT)
    return named(config, NAMED), other["unrelated"], Block(config), inner

def named(whole, word, default=True):
    return get_scalar_param(whole, word, default)

class Block:
    def __init__(self, whole):
        self.deep = whole["deep"]["unseen"]
"""


def test_lookups_follow_the_dictionary() -> None:
    names = static_eval.Scope({"package.module": ast.parse(READER)}.__getitem__, "package")
    function = names.find("package.module", "read")
    assert function is not None
    looked_up = dict(static_eval.keys_read(names, "package.module", function[1], "config"))
    assert looked_up == {
        "one": {},
        "two": {},
        "present": None,
        "written": None,
        "top": 3,
        "named": True,
        "deep": None,
    }


# Counted in the real dataclasses, LLaMA-Factory imported with each transformers.
@pytest.mark.parametrize(
    ("release", "keys"),
    [
        ("0.9.5/5.6.0", 346),
        ("0.9.5/5.2.0", 343),
        ("0.9.5/5.0.0", 343),
        ("0.9.5/4.57.1", 365),
        ("0.9.4/4.57.1", 354),
        ("0.9.4/4.52.4", 350),
        ("0.9.3/4.52.4", 328),
    ],
)
def test_number_of_keys(release: str, keys: int) -> None:
    assert len(accepted(release)) == keys


def test_groups_of_the_newest() -> None:
    groups = Counter(entry["group"] for entry in accepted(NEWEST_PAIR).values())
    assert groups == {"model": 76, "data": 28, "training": 135, "finetuning": 97, "generating": 10}


@pytest.mark.parametrize(
    ("key", "since", "until"),
    [
        ("use_kv_cache", "0.9.4/4.52.4", None),
        ("use_asft_loss", "0.9.5/4.57.1", None),
        ("ray_storage_path", "0.9.3/4.52.4", "0.9.4/4.57.1"),
        ("save_safetensors", "0.9.3/4.52.4", "0.9.5/4.57.1"),
        ("group_by_length", "0.9.3/4.52.4", "0.9.5/5.0.0"),
        ("train_sampling_strategy", "0.9.5/5.2.0", None),
        ("learning_rate", "0.9.3/4.52.4", None),
        ("compute_dtype", None, None),
    ],
)
def test_presence(key: str, since: str | None, until: str | None) -> None:
    pairs = [pair(release, each) for release, versions in TRANSFORMERS.items() for each in versions]
    having = [each for each in pairs if key in accepted(each)]
    assert (having[-1] if having else None) == since
    assert (having[0] if having else None) == (until or (NEWEST_PAIR if since else None))


def test_warmup_steps_was_an_integer_before_transformers_5() -> None:
    assert accepted("0.9.5/5.6.0")["warmup_steps"]["type"] == "float"
    assert accepted("0.9.5/4.57.1")["warmup_steps"]["type"] == "int"


def test_renamed_keys_lead_to_accepted_ones() -> None:
    yaml = pytest.importorskip("yaml")
    renamed = yaml.safe_load((DATA / "renamed.yaml").read_text(encoding="utf-8"))
    newest = accepted(NEWEST_PAIR)
    assert {entry["now"] for entry in renamed.values() if "now" in entry} <= newest.keys()
    assert all("now" in entry or "how" in entry for entry in renamed.values())
    removed = {key for key, entry in renamed.items() if "removed" in entry}
    assert removed & newest.keys() == {"use_cache"}
    assert read("arguments.json")["arguments"].keys() - newest.keys() <= removed


def test_models_of_templates_are_listed_once() -> None:
    table = read("templates.json")
    names = [name for kinds in table["models"].values() for group in kinds.values() for name in group]
    assert len(names) == len(set(names))
    assert table["models"].keys() - {""} <= table["templates"].keys()


@pytest.mark.slow
@pytest.mark.real
def test_arguments_equal_the_dataclasses() -> None:
    needs("llamafactory", NEWEST)
    release = pair(NEWEST, version("transformers"))
    if version("transformers") not in TRANSFORMERS[NEWEST]:
        pytest.skip(f"no table for {release}")
    train = importlib.import_module("llamafactory.hparams.parser")._TRAIN_ARGS
    parser = importlib.import_module("transformers").HfArgumentParser(train)
    listed = {action.dest: list(action.choices) if action.choices else None for action in parser._actions}
    real = {}
    for each in train:
        hints = typing.get_type_hints(each)
        for item in (item for item in dataclasses.fields(each) if item.init):
            kinds = set(typing.get_args(hints[item.name])) or {hints[item.name]}
            real[item.name] = (_default(item), listed[item.name], type(None) in kinds or _default(item) is None)
    table = {
        name: (entry.get("default", dataclasses.MISSING), entry["choices"], entry["optional"])
        for name, entry in accepted(release).items()
    }
    assert table == real
    assert {name: type(value[0]) for name, value in table.items()} == {
        name: type(value[0]) for name, value in real.items()
    }


def _default(item: dataclasses.Field[Any]) -> Any:
    value = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
    return value.value if isinstance(value, enum.Enum) else value


@pytest.mark.slow
@pytest.mark.real
def test_types_equal_the_annotations() -> None:
    needs("llamafactory", NEWEST)
    needs("transformers", TRANSFORMERS[NEWEST][0])
    train = importlib.import_module("llamafactory.hparams.parser")._TRAIN_ARGS
    hints = {name: hint for each in train for name, hint in typing.get_type_hints(each).items()}
    table = {name: set(entry["type"].split("|")) for name, entry in accepted(NEWEST_PAIR).items()}
    assert table == {name: _plain(hints[name]) for name in table}


def _plain(hint: Any) -> set[str]:
    """Names of the plain types in a real annotation; a class that YAML cannot write counts only when alone."""
    if typing.get_origin(hint) is typing.Literal:
        return {type(value).__name__ for value in typing.get_args(hint)}
    if typing.get_origin(hint) in (list, dict):
        return {typing.get_origin(hint).__name__}
    if typing.get_args(hint):
        kinds = set().union(*(_plain(part) for part in typing.get_args(hint))) - {"NoneType"}
        return kinds - {"object"} or {"object"}
    if issubclass(hint, (enum.Enum, Path)):
        return {"str"}
    return {hint.__name__ if hint in (bool, int, float, str, list, dict, type(None)) else "object"}


@pytest.mark.slow
@pytest.mark.real
def test_templates_equal_the_registry() -> None:
    needs("llamafactory", NEWEST)
    real = importlib.import_module("llamafactory.data.template")
    constants = importlib.import_module("llamafactory.extras.constants")
    table = read("templates.json")
    assert table["templates"].keys() == real.TEMPLATES.keys()
    for name, template in real.TEMPLATES.items():
        facts = table["templates"][name]
        assert facts.get("reasoning", False) == isinstance(template, real.ReasoningTemplate)
        assert facts.get("efficient_eos", False) == template.efficient_eos
        assert facts.get("replace_eos", False) == template.replace_eos
        media = [kind for kind in templates._MEDIA if getattr(template.mm_plugin, f"{kind}_token")]
        assert facts.get("media", []) == media
    expected = {
        hub: constants.DEFAULT_TEMPLATE.get(name, "")
        for name, hubs in constants.SUPPORTED_MODELS.items()
        for hub in hubs.values()
    }
    assert expected == {
        hub: "" if kind == "base" else template
        for template, kinds in table["models"].items()
        for kind, hubs in kinds.items()
        for hub in hubs
    }


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    ("block", "module", "name"),
    [
        ("zero_optimization", "deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
        ("zero_optimization.offload_param", "deepspeed.runtime.zero.config", "DeepSpeedZeroOffloadParamConfig"),
        ("zero_optimization.offload_optimizer", "deepspeed.runtime.zero.config", "DeepSpeedZeroOffloadOptimizerConfig"),
        ("fp16", "deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
        ("bf16", "deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
        ("compile", "deepspeed.compile.config", "CompileConfig"),
    ],
)
def test_deepspeed_blocks_equal_the_models(block: str, module: str, name: str) -> None:
    needs("deepspeed", DEEPSPEED)
    real = getattr(importlib.import_module(module), name).model_fields
    table = read("deepspeed.json")["blocks"][block]["fields"]
    assert table.keys() == real.keys()
    for field, info in real.items():
        assert table[field].get("alias") == info.alias
        if "default" in table[field]:
            assert table[field]["default"] == info.default
        assert table[field].get("deprecated", False) == bool((info.json_schema_extra or {}).get("deprecated"))


@pytest.mark.slow
@pytest.mark.real
def test_deepspeed_schedulers_and_adam_take_what_is_said() -> None:
    needs("deepspeed", DEEPSPEED)
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.runtime import lr_schedules
    from torch.optim import AdamW

    table = read("deepspeed.json")
    for name, taken in table["schedulers"].items():
        real = list(inspect.signature(getattr(lr_schedules, name)).parameters.values())[1:]
        assert [each.name for each in real] == taken
        assert [each.name for each in real if each.default is each.empty] == table["needed"].get(name, [])
    adams = {name for adam in (FusedAdam, DeepSpeedCPUAdam, AdamW) for name in inspect.signature(adam).parameters}
    # The models' parameters, and what the engine gives the CPU Adam itself; it takes `torch_adam` for its own use.
    assert adams - {"params", "model_params", "adamw_mode"} | {"torch_adam"} == ADAM_PARAMETERS


AUTO = """
CONFIG_MAPPING_NAMES = OrderedDict([("llama", "LlamaConfig"), ("code_llama", "LlamaConfig"), ("vit", "ViTConfig")])
CONFIG_MAPPING_NAMES.update({"late": "LateConfig"})
CONFIG_MAPPING_NAMES = OrderedDict(**{"old": "OldConfig"}, **CONFIG_MAPPING_NAMES)
OTHER.update({"unrelated": "UnrelatedConfig"})
"""
MODELS = """
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict([("llama", "LlamaForCausalLM"), ("old", ("One", "Other"))])
MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES = OrderedDict({"late": "LateForConditionalGeneration"})
"""
LOADER = """
def load_model():
    if image:
        load_class = AutoModelForImageTextToText
    else:
        load_class = AutoModelForCausalLM
"""


def _transformers(config: str, models: str = MODELS) -> packages.ModuleTrees:
    folder = "transformers/models/auto"
    return packages.module_trees({f"{folder}/configuration_auto.py": config.encode(),
                                  f"{folder}/modeling_auto.py": models.encode()})  # fmt: skip


def test_model_types_of_a_release() -> None:
    types = model_classes.types(_transformers(AUTO))
    assert types["AutoConfig"] == {"llama", "code_llama", "vit", "late", "old"}
    assert types["AutoModelForCausalLM"] == {"llama", "code_llama", "old"}  # one configuration, one class
    assert types["AutoModelForImageTextToText"] == {"late"}
    assert types["AutoModelForVision2Seq"] == frozenset()


def test_only_new_releases_are_read() -> None:
    releases = {
        "1.0.0": _transformers(AUTO),
        "1.1.0": _transformers(AUTO.replace('"vit": "ViTConfig"', "").replace('("vit", "ViTConfig")', '("new", "N")')),
        "1.2.0": _transformers(AUTO.replace("late", "later")),
    }
    opened: list[str] = []

    def transformers(version: str) -> packages.ModuleTrees:
        opened.append(version)
        return releases[version]

    llamafactory = {"0.9": packages.module_trees({"llamafactory/model/loader.py": LOADER.encode()})}
    wanted = list(releases)
    whole = model_classes.table({}, wanted, llamafactory, transformers, releases["1.0.0"])
    assert whole["AutoConfig"] == {
        "1.0.0": ["code_llama", "late", "llama", "old", "vit"], "1.1.0": ["new"], "1.2.0": ["later", "vit"],
    }  # fmt: skip
    assert whole["removed"] == {
        "1.1.0": {"AutoConfig": ["vit"]},
        "1.2.0": {"AutoConfig": ["late", "new"], "AutoModelForImageTextToText": ["late"]},
    }
    assert whole["loaders"] == {"0.9": ["AutoModelForImageTextToText", "AutoModelForCausalLM"]}
    kept = model_classes.table({}, wanted[:2], llamafactory, transformers, releases["1.0.0"])
    opened.clear()
    assert model_classes.table(kept, wanted, llamafactory, transformers, releases["1.0.0"]) == whole
    assert opened == ["1.2.0"]
    model_classes.table(whole, wanted[1:], llamafactory, transformers, releases["1.0.0"])
    assert opened == ["1.2.0", "1.1.0", "1.2.0"]  # another first release: all are read


@pytest.mark.slow
@pytest.mark.real
def test_model_classes_equal_the_real_mappings() -> None:
    needs("transformers", TRANSFORMERS[NEWEST][0])
    transformers = importlib.import_module("transformers")
    table = read("model_classes.json")
    until = MODEL_CLASSES[: MODEL_CLASSES.index(TRANSFORMERS[NEWEST][0]) + 1]
    for name in (word for word in table if word.startswith("Auto") and hasattr(transformers, word)):
        present: set[str] = set()
        for each in until:
            present |= set(table[name].get(each, ()))
            present -= set(table["removed"].get(each, {}).get(name, ()))
        mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
        classes = getattr(transformers, name)._model_mapping.keys() if name != "AutoConfig" else mapping.values()
        assert present == {kind for kind, config in mapping.items() if config in classes}, name


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.real
def test_rows_of_all_releases_are_what_the_packages_give() -> None:
    """All releases of MODEL_CLASSES are downloaded, half a gigabyte."""
    command = [sys.executable, "-m", "tools.read_releases", "--check", "--anew"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=DATA.parent.parent)
    if "No matching distribution" in run.stderr or "Could not fetch" in run.stderr:
        pytest.skip("no package registry")
    assert run.returncode == 0, run.stderr


@pytest.mark.sample(one_in=6, whole_for=OF_RELEASES)
@pytest.mark.slow
@pytest.mark.real
def test_tables_are_what_the_released_packages_give() -> None:
    command = [sys.executable, "-m", "tools.read_releases", "--check"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=DATA.parent.parent)
    if "No matching distribution" in run.stderr or "Could not fetch" in run.stderr:
        pytest.skip("no package registry")
    assert run.returncode == 0, run.stderr


def fits(entry: dict[str, Any]) -> set[str]:
    """Kinds of value that suit a declared type, as benchmarks/conformity/values.py names them."""
    kinds = {"bool": {"true", "false"}, "int": {"int"}, "float": {"int", "float", "whole"}, "str": {"text", "quoted"}}
    suited = {kind for name in entry["type"].split("|") for kind in kinds.get(name, {name} - {"object"})}
    suited |= set() if {"int", "float"} & {*entry["type"].split("|")} else {"nan", "inf", "-inf", "huge"}
    return (suited | ({"null"} if entry["optional"] else set())) - ({"text"} if entry["choices"] else set())


def test_values_say_something_of_every_wrong_kind() -> None:
    table = read("values.json")
    entries = accepted(NEWEST_PAIR)
    assert table["outcomes"].keys() == entries.keys()
    for name, letters in table["outcomes"].items():
        given = dict(zip(table["kinds"], letters, strict=True))
        assert {kind for kind, letter in given.items() if letter == "-"} == fits(entries[name]), name
        assert set(given.values()) <= set("-.pdmtsevhnr?")


@pytest.mark.parametrize(
    ("name", "kind", "letter"),
    [
        ("learning_rate", "quoted", "t"),  # the optimizer compares it with 0.0
        ("cutoff_len", "quoted", "d"),
        ("seed", "quoted", "p"),
        ("max_steps", "whole", "t"),
        ("lora_rank", "quoted", "m"),
        ("pref_beta", "quoted", "s"),
        ("save_total_limit", "quoted", "v"),
        ("do_train", "quoted", "."),  # any text is true
        ("lora_target", "list", "."),
        ("add_tokens", "list", "p"),
        ("flash_attn", "text", "m"),
        ("eval_strategy", "text", "p"),
    ],
)
def test_values(name: str, kind: str, letter: str) -> None:
    table = read("values.json")
    assert table["outcomes"][name][table["kinds"].index(kind)] == letter


@pytest.mark.sample(one_in=6, whole_for=OF_RELEASES)
@pytest.mark.slow
@pytest.mark.real
def test_the_parser_still_refuses_the_same_values(tmp_path: Path) -> None:
    needs("llamafactory", NEWEST)
    needs("transformers", TRANSFORMERS[NEWEST][0])
    names = ["seed", "learning_rate", "val_size", "logging_steps", "add_tokens", "eval_strategy", "lora_target"]
    program = [sys.executable, "-m", "benchmarks", "conformity", "values"]
    command = [*program, str(tmp_path), "--result", str(tmp_path / "values.json"), *names]
    subprocess.run(command, cwd=DATA.parent.parent, check=True, capture_output=True)
    measured = json.loads((tmp_path / "values.json").read_text(encoding="utf-8"))["outcomes"]
    recorded = read("values.json")["outcomes"]
    for name in names:
        assert [letter == "p" for letter in measured[name]] == [letter == "p" for letter in recorded[name]], name
