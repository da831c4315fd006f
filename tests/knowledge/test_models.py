"""Look-up of models: lenient where it is unambiguous, with a suggestion where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.every import every

from validator.errors import RecipeError
from validator.knowledge import models, unknown_models
from validator.physics import parameter_count


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
    assert models.find_model(name).name == expected


def test_a_base_model_has_no_template() -> None:
    assert models.find_model("Qwen/Qwen2.5-7B").template is None
    assert models.find_model("Qwen/Qwen2.5-7B").base
    assert models.find_model("Qwen/Qwen2.5-7B-Instruct").template == "qwen"


@pytest.mark.sample(one_in=3, whole_for=["validator/data/models.yaml", "validator/physics/*"])
@every(models.model_ids())
def test_the_shapes_count_as_many_parameters_as_the_entry_says(key: str) -> None:
    assert parameter_count(models.find_model(key).arch) == models.find_model(key).parameters


@pytest.mark.sample(one_in=3, whole_for=["validator/data/models.yaml", "validator/knowledge/models.py"])
@every(models.model_ids())
def test_every_model_by_every_name(key: str) -> None:
    one = models.find_model(key)
    assert one.id == key
    assert all(models.find_model(hub).arch for hub in one.hub)
    assert one.short is None or models.find_model(one.short).id == key


@pytest.mark.parametrize("name", ["gwen7b", "", " ", "Qwen/Qwen2.5-8B-Instruct", "x" * 5000, "/", "..", "\0", "中文"])
def test_unknown_model(name: str) -> None:
    with pytest.raises(RecipeError, match="is not known"):
        models.find_model(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gwen7b", "did you mean `qwen7b`"), ("qwen8b", "did you mean `qwen3-8b`"),
        ("Qwen/Qwen3-8C", "did you mean `Qwen/Qwen3-8B`"), ("Qwen/Qwen4-8B", "no local hub cache holds it"),
        ("Qwen/Qwen2.5-7B-Instrct", "did you mean `Qwen/Qwen2.5-7B-Instruct`"),
        ("meta-llama/Llama-3.1-8B-Instuct", "did you mean `meta-llama/Llama-3.1-8B-Instruct`"),
        ("./nope", "no folder with a config.json"), ("a/b/c", "no folder with a config.json"),
        # another size or generation is another model
        ("meta-llama/Llama-4-Behemoth-288B-16E-Instruct", "config.json in a folder"),
        ("Qwen/Whatever-9B", "config.json in a folder"), ("qwen3-9b", "config.json in a folder"),
        ("Qwen/Qwen2.5-8B-Instruct", "config.json in a folder"), ("Qwen/Foo-7B", "config.json in a folder"),
        # so is one of another kind
        ("Qwen/Qwen2.5-Vision-7B-Instruct", "holds it; its config.json"),
        ("qwen2.5-xl-7b", "not known; its config.json"),
        ("Qwen/Qwen2.5-Prover-7B-Instruct", "holds it; its config.json"),
        ("Qwen/Qwen2.5-7B-Instrct", "else its config.json in a folder"),
        ("unsloth/Qwen3-8B-GGUF", "llama.cpp's format"), ("./q4.gguf", "llama.cpp's format"),
    ],
)  # fmt: skip
def test_suggestion(name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        models.find_model(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("Qwen/Qwen3-8C", "Qwen/Qwen3-8B"), ("Qwen/Qwne3-8B", "Qwen/Qwen3-8B"), ("Qwen/Qwen3-9B", "Qwen/Qwen3-8B")),
        *(("qwen/qwen3-8b-basee", "Qwen/Qwen3-8B-Base"), ("Qwen/Qwen4-32B", "Qwen/Qwen3-32B")),
        ("mistralai/Mistral-7B-Instruct-v0.4", "mistralai/Mistral-7B-Instruct-v0.3"),
        *(("google/gemma-2-2b-pt", "google/gemma-2-2b-it"), ("Qwen/Qwen38B", "Qwen/Qwen3-8B")),
        ("meta-llama/Llama-3.1-8B-Instrt", "meta-llama/Llama-3.1-8B-Instruct"),
        *((name, None) for name in ("qwen/qwen3-8b", "unsloth/Qwen3-8B", "someone/Qwen3-8B-mine", "Qwem/Qwen3-8B")),
        *(
            (name, None)
            for name in ("Qwen/Qwen3-8B-Search", "microsoft/phi-2", "THUDM/chatglm-6b", "Qwen/Qwen3-4B-FP8")
        ),
        *((name, None) for name in ("qwen3-8c", "Qwen/", "/", "", "x" * 5000)),
    ],
)
def test_a_hub_name_a_letter_or_two_off_a_known_one_is_a_slip(name: str, meant: str | None) -> None:
    assert unknown_models.likely_meant_name(name) == meant


CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128,
}  # fmt: skip


def test_a_local_folder_is_read_from_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "dtype": "float16"}))
    model = models.find_model(str(tmp_path))
    assert (model.id, model.arch.hidden, model.dtype_bytes) == (None, 64, 2.0)
    # 2 embeddings of 100 x 64, and per layer q, k, v (with bias), o, three of 64 x 128, two norms; the last norm
    layer = 64 * 64 + 64 + 2 * (64 * 32 + 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert model.parameters == 2 * 100 * 64 + 2 * layer + 64


WRONG: list[Any] = [None, "x", -1, 0, [], {}, 1.5, True]


@every([(field, value) for field in CONFIG for value in WRONG])
def test_a_config_with_a_wrong_field_is_an_error_with_its_name(field: str, value: object, tmp_path: Path) -> None:
    place = tmp_path / f"{field}-{value}"  # one each: what was read of a folder is kept
    place.mkdir()
    (place / "config.json").write_text(json.dumps({**CONFIG, field: value}))
    if field == "num_key_value_heads" and value in (None, 0, [], {}):
        assert models.find_model(str(place)).arch.attn.kv_heads == 4
        return
    with pytest.raises(RecipeError, match=field if field != "model_type" else "model.type"):
        models.find_model(str(place))


def test_more_heads_than_the_model_is_wide(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_attention_heads": 1_000_000}))
    with pytest.raises(RecipeError, match="`num_attention_heads` is 1,000,000, more than the hidden size of"):
        models.find_model(str(tmp_path))


@pytest.mark.parametrize("chosen", [4, 5])
def test_more_experts_for_a_token_than_there_are(chosen: int, tmp_path: Path) -> None:
    mixture = {**CONFIG, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({**mixture, "num_experts_per_tok": chosen}))
    if chosen == 4:
        assert models.find_model(str(tmp_path)).arch.ffn.experts_per_token == 4
        return
    with pytest.raises(RecipeError, match=r"config\.json: a token is sent to 5 experts, and there are 4"):
        models.find_model(str(tmp_path))


@pytest.mark.parametrize("field", ["sliding_window", "head_dim", "num_experts", "kv_lora_rank"])
@pytest.mark.parametrize("value", ["x", -1, [1], 1.5, 10**9 + 1, pytest.param(10**300, id="huge")])
def test_a_config_with_a_wrong_further_field(field: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, field: value}))
    with pytest.raises(RecipeError, match=rf"config\.json: `{field}`"):
        models.find_model(str(tmp_path))


@pytest.mark.parametrize("extra", [{"quantization_config": []}, {"quantization_config": "x"}, {"dtype": []},
                                   {"quantization_config": {"quant_method": [4]}}])  # fmt: skip
def test_what_decides_no_shape_may_be_strange(extra: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **extra}))
    assert models.find_model(str(tmp_path)).quantized is None


@pytest.mark.parametrize("value", ["4", [4], float("inf"), 4.5, True, -4, 0, pytest.param(10**300, id="huge"), {}])
def test_what_is_no_number_is_not_told(value: object, tmp_path: Path) -> None:
    described = {"quant_method": "gptq", "bits": value}
    told = {**CONFIG, "max_position_embeddings": value, "quantization_config": described}
    (tmp_path / "config.json").write_text(json.dumps(told))
    model = models.find_model(str(tmp_path))
    assert (model.positions, model.quantized, model.quantized_bits) == (None, "gptq", 0)


@pytest.mark.parametrize(
    ("more", "positions"),
    [({"n_positions": 512}, 512), ({"max_seq_len": 64, "seq_length": 128}, 128), ({"max_length": 20}, None),
     ({"n_positions": 512, "max_position_embeddings": 4096}, 4096)],
)  # fmt: skip
def test_positions_by_any_of_their_names(more: dict[str, object], positions: int | None, tmp_path: Path) -> None:
    own = {key: value for key, value in CONFIG.items() if key != "max_position_embeddings"}
    (tmp_path / "config.json").write_text(json.dumps({**own, **more}))
    assert models.find_model(str(tmp_path)).positions == positions


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_config_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RecipeError, match=r"config\.json"):
        models.find_model(str(tmp_path))


def test_a_folder_that_holds_no_model_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "some.gguf").touch()
    with pytest.raises(RecipeError, match="LLaMA-Factory needs the original weights"):
        models.find_model(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-8B"}')
    with pytest.raises(
        RecipeError, match="is an adapter; its base model is Qwen/Qwen3-8B: use that, with adapter_name"
    ):
        models.find_model_by_any_name(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(RecipeError, match="is no folder with a config"):
        models.find_model(str(tmp_path))


@pytest.mark.parametrize(("name", "size"), [("qwen7b", "7.62B"), ("qwen3-0.6b", "0.596B"), ("demo/tiny-qwen3", "M")])
def test_size(name: str, size: str) -> None:
    assert models.find_model(name).size.endswith(size)
