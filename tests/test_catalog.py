"""Look-up of models, devices and machines: lenient where it is unambiguous, with a suggestion where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validator.diagnostic import RecipeError
from validator.tables import catalog


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen/qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"), ("QWEN7B", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen3-8b", "Qwen/Qwen3-8B"), ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        (" qwen72b ", "Qwen/Qwen2.5-72B-Instruct"),
    ],
)  # fmt: skip
def test_model(name: str, expected: str) -> None:
    assert catalog.model(name).name == expected


def test_a_base_model_has_no_template() -> None:
    assert catalog.model("Qwen/Qwen2.5-7B").template is None
    assert catalog.model("Qwen/Qwen2.5-7B").base
    assert catalog.model("Qwen/Qwen2.5-7B-Instruct").template == "qwen"


@pytest.mark.parametrize("key", catalog.model_ids())
def test_every_model_by_every_name(key: str) -> None:
    one = catalog.model(key)
    assert one.id == key
    assert all(catalog.model(hub).arch for hub in one.hub)
    assert one.short is None or catalog.model(one.short).id == key


@pytest.mark.parametrize("name", ["gwen7b", "", " ", "Qwen/Qwen2.5-8B-Instruct", "x" * 5000, "/", "..", "\0", "中文"])
def test_unknown_model(name: str) -> None:
    with pytest.raises(RecipeError, match="is not known"):
        catalog.model(name)


def test_suggestion() -> None:
    with pytest.raises(RecipeError, match="did you mean `qwen7b`"):
        catalog.model("gwen7b")


@pytest.mark.parametrize("key", catalog.device_ids())
def test_every_device_by_its_id_and_its_own_short_form(key: str) -> None:
    assert catalog.device(key)[0].id == key
    assert catalog.device(key.upper())[0].id == key
    assert all(catalog.device(alias)[0].vendor == catalog.device(key)[0].vendor for alias in catalog.aliases(key))


@pytest.mark.parametrize(
    ("name", "expected", "noted"),
    [
        ("910b", "ascend-910b-64g", True),
        ("4090", "rtx-4090", False),
        ("a100", "a100-80g", True),
        ("RTX 4090", "rtx-4090", False),
    ],
)
def test_short_forms_say_which_was_taken(name: str, expected: str, noted: bool) -> None:
    device, note = catalog.device(name)
    assert device.id == expected
    assert (note is not None) == noted


@pytest.mark.parametrize(
    ("text", "nodes", "devices", "device"),
    [
        ("8xascend-910b-64g", 1, 8, "ascend-910b-64g"), ("2x8xa100-80g", 2, 8, "a100-80g"), ("1xcpu", 1, 1, "cpu"),
        ("8X4090", 1, 8, "rtx-4090"), (" 2xrtx-3090 ", 1, 2, "rtx-3090"),
    ],
)  # fmt: skip
def test_machine(text: str, nodes: int, devices: int, device: str) -> None:
    found = catalog.machine(text)
    assert (found.nodes, found.devices, found.device.id) == (nodes, devices, device)
    assert found.world == nodes * devices
    assert catalog.machine(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "a100", "8", "8x", "0xa100", "65xa100", "5000x8xa100", "x8xa100", "8xa1000", "-1xa100",
     "9" * 5000 + "xa100", "8x" + "a" * 5000],
)  # fmt: skip
def test_malformed_machine(text: str) -> None:
    with pytest.raises(RecipeError):
        catalog.machine(text)


CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128,
}  # fmt: skip


def test_a_local_folder_is_read_from_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "dtype": "float16"}))
    found = catalog.model(str(tmp_path))
    assert (found.id, found.arch.hidden, found.dtype_bytes) == (None, 64, 2.0)
    # 2 embeddings of 100 x 64, and per layer q, k, v (with bias), o, three of 64 x 128, two norms; the last norm
    layer = 64 * 64 + 64 + 2 * (64 * 32 + 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert found.parameters == 2 * 100 * 64 + 2 * layer + 64


@pytest.mark.parametrize("field", CONFIG)
@pytest.mark.parametrize("value", [None, "x", -1, 0, [], {}, 1.5, True])
def test_a_config_with_a_wrong_field_is_an_error_with_its_name(field: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, field: value}))
    if field == "num_key_value_heads" and value in (None, 0, [], {}):
        assert catalog.model(str(tmp_path)).arch.attn.kv_heads == 4
        return
    with pytest.raises(RecipeError, match=field if field != "model_type" else "model type"):
        catalog.model(str(tmp_path))


@pytest.mark.parametrize("field", ["sliding_window", "head_dim", "num_experts", "kv_lora_rank"])
@pytest.mark.parametrize("value", ["x", -1, [1], 1.5])
def test_a_config_with_a_wrong_further_field(field: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, field: value}))
    with pytest.raises(RecipeError, match=rf"config\.json: `{field}`"):
        catalog.model(str(tmp_path))


@pytest.mark.parametrize("extra", [{"quantization_config": []}, {"quantization_config": "x"}, {"dtype": []}])
def test_what_decides_no_shape_may_be_strange(extra: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **extra}))
    assert catalog.model(str(tmp_path)).quantized is None


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_config_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RecipeError, match=r"config\.json"):
        catalog.model(str(tmp_path))
