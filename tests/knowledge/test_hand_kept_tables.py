"""The hand-kept tables: whole, sourced, free of contradictions, and exact against the real model classes."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from support.every import every

import validator
from validator.knowledge import composites, models
from validator.knowledge.families import family_of_type, is_composite, with_usual_fields
from validator.knowledge.tables import REQUIRED_KEYS
from validator.physics import decoder_layers

DATA = Path(validator.__file__).parent / "data"


def read(name: str) -> dict[str, Any]:
    table: dict[str, Any] = yaml.load((DATA / name).read_text(encoding="utf-8"), yaml.CSafeLoader)
    return table


COUNTED_BY = ["release/constraints.txt", "validator/data/models.yaml"]
MODELS = read("models.yaml")
DEVICES = read("devices.yaml")
SERVERS = read("servers.yaml")
NETWORKS = read("networks.yaml")
SAMPLES = read("samples.yaml")
RATES = read("rates.yaml")

MODEL_KEYS = {*REQUIRED_KEYS["models"]}
MODEL_EXTRAS = {"replaces", "overrides", "remote_code", "counted", "confidence", "note"}
DEVICE_KEYS = {*REQUIRED_KEYS["devices"]}
DEVICE_EXTRAS = {
    *("default_for", "notes", "common", "usable_share", "attained", "attained_attention", "shared_memory"),
}
# The names that recipes, file names and --machine use.
DEVICE_IDS = {
    *("v100-16g", "v100-32g", "t4-16g", "rtx-3090", "rtx-4090", "rtx-5090", "a10-24g", "l4-24g", "a6000-48g"),
    *("l40s-48g", "a100-40g", "a100-80g", "h100-80g", "h20-96g", "h200-141g", "b200-180g", "mi300x-192g"),
    *("ascend-910a-32g", "ascend-910b-32g", "ascend-910b-64g", "ascend-910c-64g", "cpu"),
}


def addresses(entry: dict[str, Any]) -> list[str]:
    source = entry["source"]
    return [source] if isinstance(source, str) else list(source)


def figures() -> Iterator[dict[str, Any]]:
    """The figures of samples.yaml that somebody published."""
    for stage, entry in SAMPLES.items():
        if stage != "sources":
            stated = [entry[name] for name in ("form", "effect", "usual", "saturating", "recommended")]
            yield from (each for each in stated if each)


def ladders() -> Iterator[tuple[tuple[str, ...], list[dict[str, Any]]]]:
    """((stage, method[, optimizer]), rules by size) of rates.yaml."""
    kinds = [tuple(rule[name] for name in ("stage", "method", "optimizer") if name in rule) for rule in RATES["rates"]]
    for key in dict.fromkeys(kinds):
        yield key, [rule for rule, kind in zip(RATES["rates"], kinds, strict=True) if kind == key]


@every(MODELS)
def test_a_successor_is_newer_and_about_as_large(name: str) -> None:
    """No line of successors leads back, therefore."""
    entry = MODELS[name]
    assert re.fullmatch(r"20(19|2\d)-(0[1-9]|1[0-2])", entry["released"])
    for older in (MODELS[key] for key in entry.get("replaces", [])):
        assert entry["released"] > older["released"]
        assert 0.6 <= entry["parameters"] / older["parameters"] < 1.52


def test_dates_and_successors_are_read_without_parsing() -> None:
    assert models.release_months() == {name: entry["released"] for name, entry in MODELS.items()}
    replaced = [(older, name) for name, entry in MODELS.items() for older in entry.get("replaces", [])]
    assert models.successor_ids() == dict(replaced)
    assert len(dict(replaced)) == len(replaced), "a model has one successor"


@every(MODELS)
def test_model_entry_is_whole(name: str) -> None:
    entry = MODELS[name]
    assert set(entry) >= MODEL_KEYS
    assert set(entry) <= MODEL_KEYS | MODEL_EXTRAS
    assert set(entry["base"]) <= {*entry["hub"], *entry["modelscope"]}
    assert set(entry.get("overrides", {})) <= {*entry["hub"], *entry["modelscope"]}
    assert entry["hub"][0] not in entry.get("overrides", {}), "the entry itself describes the default name"
    assert "model_type" in entry["config"]
    assert entry.get("confidence") is None or entry["note"]
    assert all(address.startswith("https://") for address in addresses(entry))


def test_each_name_means_one_model() -> None:
    for field in ("hub", "modelscope"):
        counts = Counter(name.lower() for entry in MODELS.values() for name in entry[field])
        assert [name for name, count in counts.items() if count > 1] == []
    shorts = Counter(entry["short"] for entry in MODELS.values() if entry["short"])
    assert [name for name, count in shorts.items() if count > 1] == []
    others = {name: other for name, entry in MODELS.items() if (other := entry["short"]) in MODELS and other != name}
    assert others == {}, "a short form that is another entry's id"


def test_the_short_forms_that_recipe_names_promise() -> None:
    by_short = {entry["short"]: name for name, entry in MODELS.items()}
    for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b"):
        assert by_short[f"qwen{size}"] == f"qwen2.5-{size}"
    assert by_short["qwen3-8b"] == "qwen3-8b"
    assert MODELS["qwen2.5-7b"]["hub"][0] == "Qwen/Qwen2.5-7B-Instruct"


@every(MODELS)
def test_template_is_the_one_the_release_registers(name: str) -> None:
    """Or another, where that one reads images and the model sees none."""
    table = json.loads((DATA / "templates.json").read_text(encoding="utf-8"))
    registered, templates = table["models"], table["templates"]
    entry = MODELS[name]
    nested = "hidden_size" not in entry["config"] or "vision_config" in entry["config"]
    blind = {each for each in templates if not nested and templates[each].get("media")}
    assert entry["template"] not in blind
    for hub in entry["hub"]:
        ours = entry.get("overrides", {}).get(hub, {}).get("template", entry["template"])
        theirs = {template for template, kinds in registered.items() for names in kinds.values() if hub in names}
        assert theirs - blind <= {ours, ""}, hub


def test_no_promised_device_is_gone() -> None:
    assert set(DEVICES) >= DEVICE_IDS


@every(DEVICES)
def test_device_entry_is_whole(name: str) -> None:
    entry = DEVICES[name]
    assert set(entry) >= DEVICE_KEYS
    assert set(entry) <= DEVICE_KEYS | DEVICE_EXTRAS
    assert ("usable_share" in entry) == (name == "by-memory")
    assert set(entry.get("notes", {})) <= set(entry)
    assert set(entry["bitsandbytes"]) <= {4, 8}
    assert entry["vendor"] in {"nvidia", "amd", "ascend", "cpu"} | ({"unknown"} if name == "by-memory" else set())
    assert entry["evidence"] in {"good", "thin"}
    assert set(entry["link"]) == set(entry["host_link"]) == {"type", "gb_s"}
    assert set(entry["server"]) == {"devices", "host_ram_gib", "kind"}
    assert entry["server"]["kind"] in {None, *SERVERS}
    assert entry["link"]["type"] in {name for name, each in NETWORKS.items() if each["kind"] == "link"} | {"none"}
    assert entry["host_link"]["type"] in NETWORKS.keys() | {"none"}
    assert entry["timed"] in {"good", "few", "none"}
    assert addresses(entry)
    assert all(address.startswith("https://") for address in addresses(entry))


@every([name for name, entry in DEVICES.items() if entry["server"]["kind"]])
def test_rates_of_a_device_are_plausible(name: str) -> None:
    """Products of fp32 numbers are never faster than those of half as many bits; no link is faster than the memory."""
    entry = DEVICES[name]
    half = entry["tflops_bf16"] or entry["tflops_fp16"]
    assert entry["tflops_fp32"] < half
    assert 0.5 < entry.get("attained", 1.0) < 1.5
    assert 0.4 < entry.get("attained_attention", 1.0) <= 1.0
    assert 0.03 < half / entry["bandwidth_gb_s"] < 0.5
    assert (entry["link"]["gb_s"] or 0) < entry["bandwidth_gb_s"]
    assert entry["host_link"]["gb_s"] <= (entry["link"]["gb_s"] or entry["host_link"]["gb_s"])


@every(SERVERS)
def test_server_entry_is_whole(name: str) -> None:
    entry = SERVERS[name]
    assert set(entry) - {"part"} == {
        *("name", "cores", "memory_gb_s", "disk_gb_s", "network", "ports", "notes", "source"),
    }
    assert set(entry["notes"]) <= set(entry)
    assert all(address.startswith("https://") for address in addresses(entry))
    assert name in {each["server"]["kind"] for each in DEVICES.values()}
    assert {NETWORKS[entry[key]]["kind"] for key in ("network", "part") if key in entry} == {"network"}


@every([name for name, entry in DEVICES.items() if entry["memory_gib"]])
def test_device_memory_is_plausible(name: str) -> None:
    entry = DEVICES[name]
    assert 0.9 * entry["memory_gib"] < entry["usable_gib"] <= entry["memory_gib"]
    assert entry["context_gib"] is None or 0.1 <= entry["context_gib"] <= 1.0
    size = name.rpartition("-")[2]
    if size.endswith("g"):
        # Error correction takes up to a sixteenth of what is sold; vendors sell 10^9 bytes or 2^30.
        assert 0.93 * float(size[:-1]) <= entry["memory_gib"] <= float(size[:-1])


@every([name for name, entry in DEVICES.items() if entry.get("shared_memory")])
def test_shared_memory_has_one_size(name: str) -> None:
    """The driver's tool shows none, and the host has none of its own."""
    entry = DEVICES[name]
    assert entry["memory_gib"] is entry["server"]["host_ram_gib"] is None
    assert 0.9 * float(name.rpartition("-")[2].removesuffix("g")) < entry["usable_gib"]


@every([name for name, entry in DEVICES.items() if entry["vendor"] == "nvidia"])
def test_nvidia_abilities_follow_the_compute_capability(name: str) -> None:
    entry = DEVICES[name]
    capability = entry["compute_capability"]
    assert entry["bf16"] == entry["flash_attention"] == (capability >= 8.0)
    assert entry["fp8"] == (capability >= 8.9)
    assert (8 in entry["bitsandbytes"]) == (capability >= 7.5)


@every(DEVICES)
def test_no_bf16_rate_without_bf16(name: str) -> None:
    assert DEVICES[name]["tflops_bf16"] is None or DEVICES[name]["bf16"]


def test_a_device_by_its_memory_has_the_least_of_all_usable() -> None:
    sold = {name: float(match[1]) for name in DEVICES if (match := re.search(r"-(\d+)g$", name))}
    share = min(DEVICES[name]["usable_gib"] / size for name, size in sold.items())
    assert DEVICES["by-memory"]["usable_share"] == pytest.approx(share, abs=0.001)
    assert DEVICES["by-memory"]["context_gib"] == max(entry["context_gib"] or 0 for entry in DEVICES.values())


def test_a_product_and_its_memory_mean_one_device() -> None:
    claims = sorted((product, entry["memory_gib"]) for entry in DEVICES.values() for product in entry["products"])
    for (product, memory), (other, larger) in pairwise(claims):
        assert product != other or larger > 1.06 * memory


def test_short_form_of_several_devices_has_one_default() -> None:
    claims = Counter(alias for entry in DEVICES.values() for alias in entry["aliases"])
    defaults = Counter(alias for entry in DEVICES.values() for alias in entry.get("default_for", []))
    assert defaults == Counter({alias: 1 for alias, count in claims.items() if count > 1})
    assert not set(claims) & set(DEVICES)
    assert all(set(entry.get("default_for", [])) <= set(entry["aliases"]) for entry in DEVICES.values())
    assert all(isinstance(alias, str) and alias == alias.lower() for alias in claims)


def test_the_field_reports_counts_rise_with_size() -> None:
    counts = SAMPLES["sft"]["recommended"]["field_report"]
    assert counts == {7: 20_000, 14: 40_000, 32: 80_000, 72: 150_000}
    assert list(counts) == sorted(counts)


@every(RATES["rates"])
def test_rate_lies_in_its_range(rule: dict[str, Any]) -> None:
    for field, kinds in (("learning_rate", (float,)), ("batch", (int,)), ("epochs", (int, float))):
        known = [value for bound in ("low", "default", "high") if (value := rule[field][bound]) is not None]
        assert known == sorted(known)
        assert rule[field]["default"] is not None
        assert all(type(value) in kinds for value in known), "YAML reads 1e-4 without a point as text"


@every(list(ladders()))
def test_rate_falls_with_size(key: tuple[str, ...], rules: list[dict[str, Any]]) -> None:
    sizes = [rule["from_billions"] for rule in rules]
    assert sizes == sorted({0, *sizes}), key
    rates = [rule["learning_rate"]["default"] for rule in rules]
    assert rates == sorted(rates, reverse=True), key


def test_rates_keep_their_published_order() -> None:
    first = {key: rules[0]["learning_rate"]["default"] for key, rules in ladders()}
    for stage in ("sft", "dpo"):
        assert first[stage, "lora"] / first[stage, "full"] == pytest.approx(10), "LoRA Without Regret"
    for method in ("lora", "full"):
        assert first["dpo", method] < first["sft", method]


@pytest.mark.parametrize(
    ("table", "used"),
    [
        (SAMPLES, [key for figure in figures() for key in figure["source"]]),
        (RATES, [key for rule in (*RATES["rates"], *RATES["shape"]) for key in rule["source"]]),
    ],
    ids=["samples", "rates"],
)
def test_every_source_is_listed_and_used(table: dict[str, Any], used: list[str]) -> None:
    assert set(used) == set(table["sources"])
    for source in table["sources"].values():
        assert source["found"]
        assert "cite" in source or source["url"].startswith("https://")


def stand_in(config: dict[str, Any], known: Any) -> tuple[str, dict[str, Any]]:
    """Model type and settings of a class in transformers that has the same matrices."""
    settings = {key: value for key, value in config.items() if key not in {"model_type", "quantization_config"}}
    kind = config["model_type"]
    if kind in known:
        return kind, settings
    settings = dict(with_usual_fields(settings, family_of_type(kind)))
    if kind == "chatglm":
        return "glm", settings | {
            "attention_bias": settings["add_qkv_bias"],
            "head_dim": settings["kv_channels"],
            "pad_token_id": None,
        }
    if kind == "deepseek":
        return "glm4_moe", settings | {"head_dim": settings["hidden_size"] // settings["num_attention_heads"]}
    if kind == "minimax_text_01":
        attending = settings.pop("attn_type_list")
        kinds = ["full_attention" if each else "linear_attention" for each in attending]
        return "minimax", settings | {"layer_types": kinds}
    if kind == "mimo":
        return "qwen2", settings
    if kind == "qwen":
        # Its intermediate_size is that of both halves of the gated layer together.
        settings["intermediate_size"] //= 2
        return "qwen2", settings | {"num_key_value_heads": settings["num_attention_heads"]}
    return "llama", settings


def text(config: dict[str, Any]) -> dict[str, Any]:
    """The decoder's part of a config.json."""
    return {name: value for name, value in composites.decoder_config(config).items() if not name.endswith("_config")}


def special(entry: dict[str, Any], hub: str) -> dict[str, Any]:
    """What differs for one of the names."""
    differing: dict[str, Any] = entry.get("overrides", {}).get(hub, {})
    return differing


def loaded(transformers: Any, config: Any) -> Any:
    """The model that LLaMA-Factory trains, as its model/loader.py chooses the class: of an omni model the thinker."""
    order = ("AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForTextToWaveform")
    sound = hasattr(config, "thinker_config")
    if sound:
        config.enable_audio_output = False
    classes = [getattr(transformers, name) for name in order]
    chosen = next((each for each in classes if type(config) in each._model_mapping), transformers.AutoModelForCausalLM)
    if getattr(config, "is_yi_vl_derived_model", False):
        visual = pytest.importorskip("llamafactory.model.model_utils.visual")
        with patch(
            "transformers.models.llava.modeling_llava.LlavaMultiModalProjector", visual.LlavaMultiModalProjectorForYiVL
        ):
            return chosen.from_config(config)
    model = chosen.from_config(config)
    for router in (module for module in model.modules() if type(module).__name__ == "DbrxRouter"):
        # Since transformers 5 it is as wide as the experts are inside; before, and as published, as the hidden state.
        router.layer = type(router.layer)(config.d_model, router.layer.out_features, bias=False)
    return model.thinker if sound else model


@pytest.mark.sample(one_in=8, whole_for=COUNTED_BY)
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_parameter_count_is_exact(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    entry = MODELS[name]
    known = transformers.CONFIG_MAPPING
    assert entry.get("remote_code", False) == (entry["config"]["model_type"] not in known)
    seen = is_composite(entry["config"]) and entry.get("remote_code", False)
    kind, settings = stand_in(text(entry["config"]) if seen else entry["config"], known)
    with torch.device("meta"):
        model = loaded(transformers, known[kind](**settings))
    # Of a model that sees by its repository's own code, the towers are counted by their tables alone.
    towers = sum(tower.all_elements for tower in models.find_model(name).arch.towers) if seen else 0
    # Layers for further tokens, too.
    beside = towers + decoder_layers.mtp_elements(models.find_model(name).arch)
    assert sum(weight.numel() for weight in model.parameters()) + beside == entry["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hub"),
    [(name, hub) for name, entry in MODELS.items() for hub in entry["hub"] if "parameters" in special(entry, hub)],
)
def test_another_count_of_one_name_is_exact(name: str, hub: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    entry = MODELS[name]
    config = {**entry["config"], **{key: value for key, value in special(entry, hub).items() if key not in entry}}
    kind, settings = stand_in(config, transformers.CONFIG_MAPPING)
    with torch.device("meta"):
        model = loaded(transformers, transformers.CONFIG_MAPPING[kind](**settings))
    assert sum(weight.numel() for weight in model.parameters()) == special(entry, hub)["parameters"]


@pytest.mark.sample(one_in=8, whole_for=COUNTED_BY)
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if "remote_code" not in entry])
def test_every_config_field_is_one_its_class_knows(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = MODELS[name]["config"]
    assert unknown(config, transformers.CONFIG_MAPPING[config["model_type"]](**config)) == []


def unknown(config: dict[str, Any], made: Any) -> list[str]:
    """Fields that the configuration made of them, or one within it, does not know."""
    # Read by the modelling code alone (head_dim of Qwen3 MoE, the head of SigLIP), turned into layer_types (the
    # pattern, the interval), open to any checkpoint (quantization), read by LLaMA-Factory (Yi-VL).
    elsewhere = {
        *("head_dim", "vision_use_head", "sliding_window_pattern", "full_attention_interval", "quantization_config"),
        "is_yi_vl_derived_model",
        "rope_theta",  # of DBRX's attention, read by the modelling code alone
        "num_shared_expert",  # of the models' own code; transformers' class has one shared expert always
    }
    empty = type(made)()
    nested = {field for field, value in config.items() if isinstance(value, dict) and field not in elsewhere}
    below = [wrong for field in nested for wrong in unknown(config[field], getattr(made, field))]
    return below + [field for field in config if field not in elsewhere | nested and not hasattr(empty, field)]
