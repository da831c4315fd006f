"""The template of a model folder: every way that it is told, against the catalogue and LLaMA-Factory's own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.every import every

from validator.knowledge import families, models, tables
from validator.knowledge.chat_templates import folder_template, model_name_of_path

FORMATS: dict[str, dict[str, Any]] = tables.json_table("formats")["formats"]
FACTS: dict[str, dict[str, Any]] = tables.json_table("templates")["templates"]
ENTRIES = tables.yaml_table("models")
PUBLISHED = [(key, hub) for key in models.model_ids() for hub in ENTRIES[key]["hub"]]


def folder(where: Path, name: str, config: dict[str, Any], files: dict[str, str]) -> Path:
    place = where / name
    place.mkdir(parents=True)
    for file, text in {"config.json": json.dumps(config), **files}.items():
        (place / file).write_text(text, "utf-8")
    return place


def written(name: str) -> str:
    """A chat template as models publish it: turns of LLaMA-Factory's template, most roles put in from the messages."""
    user, answer = (
        "".join(s for s in FORMATS[name].get(part, ()) if isinstance(s, str)) for part in ("user", "assistant")
    )
    tokens = "".join(slot[0] for slot in FORMATS[name]["user"] if isinstance(slot, list) and "<" in slot[0])
    for role in ("user\n", "user<|"):
        user = user.replace(f">{role}", f">' + message['role'] + '{role[4:]}")
    thought = "{{ '<think>' }}" if FACTS[name].get("reasoning") else ""
    turn = f"{tokens}{user}{answer}".replace("\n", "\\n").replace("{{content}}", "' + content + '")
    return f"{{% for message in messages %}}{{{{ '{turn}' }}}}{thought}{{% endfor %}}"


def speakers(name: str) -> set[str]:
    """Templates that write what this one writes around a turn."""
    return {
        other for other in FORMATS if all(FORMATS[other].get(p) == FORMATS[name].get(p) for p in ("user", "assistant"))
    }


def copies(name: str) -> set[str]:
    """Templates that LLaMA-Factory registers with the same contents as this one, under another name."""
    return {other for other in FORMATS if (FORMATS[other], FACTS[other]) == (FORMATS[name], FACTS[name])}


def told_by_its_name(key: str, hub: str, tmp_path: Path) -> None:
    place = folder(tmp_path / hub, hub.rpartition("/")[2], dict(ENTRIES[key]["config"]), {})
    local, known = models.find_model(str(place)), models.find_model(hub)
    assert (local.template, local.base) == (known.template, known.base)
    assert local.identified_from.startswith("that of ")


@pytest.mark.sample(one_in=3, whole_for=["validator/data/*"])
@every([(key, ENTRIES[key]["hub"][0]) for key in models.model_ids()])
def test_a_copy_of_a_published_model_is_told_by_its_name(key: str, hub: str, tmp_path: Path) -> None:
    told_by_its_name(key, hub, tmp_path)


@pytest.mark.nightly
@every(PUBLISHED)
def test_a_copy_is_told_by_each_name_of_a_published_model(key: str, hub: str, tmp_path: Path) -> None:
    told_by_its_name(key, hub, tmp_path)


# Templates whose turns have no marks but the tokenizer's own; None: of base models.
UNTOLD = (None, "seed_coder", "seed_oss", "paligemma", "exaone")


@pytest.mark.sample(one_in=3, whole_for=["validator/data/*"])
@every([key for key in models.model_ids() if models.find_model(key).template not in UNTOLD])
def test_the_chat_template_tells_what_the_catalogue_says(key: str, tmp_path: Path) -> None:
    expected = models.find_model(key).template
    assert expected
    place = folder(tmp_path / key, "mine", dict(ENTRIES[key]["config"]), {"chat_template.jinja": written(expected)})
    local = models.find_model(str(place))
    assert local.template in copies(expected)
    assert local.identified_from == "by the chat template in chat_template.jinja"
    assert speakers(expected) <= local.speaks


@every(models.model_ids())
def test_a_family_lists_the_templates_of_its_models(key: str) -> None:
    one = models.find_model(key)
    assert one.template is None or speakers(one.template) & {*one.family.templates, "chatml"}


@every(families.known_types())
def test_the_templates_of_a_family_exist(kind: str) -> None:
    assert families.family_of_type(kind).templates
    assert set(families.family_of_type(kind).templates) <= FORMATS.keys()


SMALL = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4,
    "intermediate_size": 128,
}  # fmt: skip
CHATML = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
LLAMA3 = "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + content + '<|eot_id|>' }}"


@pytest.mark.parametrize(
    ("name", "kind", "files", "expected", "base", "how"),
    [
        ("mine", "qwen3", {"chat_template.jinja": CHATML}, "qwen3_nothink", False, "chat_template.jinja"),
        ("mine", "qwen3", {"chat_template.jinja": CHATML + "<think>"}, "qwen3", False, "chat_template.jinja"),
        ("mine", "qwen2", {"tokenizer_config.json": json.dumps({"chat_template": CHATML})}, "qwen", False,
         "tokenizer_config.json"),
        ("mine", "qwen2",
         {"tokenizer_config.json": json.dumps({"chat_template": CHATML}), "chat_template.jinja": LLAMA3},
         "llama3", False, "chat_template.jinja"),
        ("mine", "llama", {"tokenizer_config.json": json.dumps({"chat_template": [
            {"name": "tool_use", "template": LLAMA3}, {"name": "default", "template": CHATML}]})}, "chatml", False,
         "tokenizer_config.json"),
        ("mine", "llama", {"chat_template.json": json.dumps({"chat_template": LLAMA3})}, "llama3", False,
         "chat_template.json"),
        ("mine", "mistral", {"chat_template.jinja": "{{ '[INST] ' + content + '[/INST]' }}"}, "mistral", False, "by"),
        ("mine", "mistral", {"chat_template.jinja": "{{ '[INST]' + content + '[/INST]' }}"}, "ministral", False, "by"),
        ("mine-base", "qwen3", {"chat_template.jinja": CHATML}, "qwen3_nothink", True, "chat_template.jinja"),
        ("mine", "llama", {"chat_template.jinja": "{{ 'Q: ' + content }}"}, None, False, "none of LLaMA-Factory's"),
        ("mine", "qwen3", {"tokenizer.json": "{}"}, None, True, "no chat template"),
        ("mine", "qwen3", {"tokenizer_config.json": "[]"}, None, True, "no chat template"),
        ("mine", "qwen3", {"tokenizer_config.json": "{", "chat_template.jinja": " "}, None, True, "no chat template"),
        ("mine-Instruct", "qwen3", {"tokenizer.json": "{}"}, "qwen3", False, "model type qwen3"),
        ("gemma-it", "gemma2", {"tokenizer.json": "{}"}, "gemma2", False, "model type gemma2"),
        ("mine", "llama", {}, "llama3", False, "model type llama"),
    ],
)  # fmt: skip
def test_how_a_folder_tells_its_template(
    name: str, kind: str, files: dict[str, str], expected: str | None, base: bool, how: str, tmp_path: Path
) -> None:
    told = folder_template(
        folder(tmp_path, name, SMALL, files), {**SMALL, "model_type": kind}, families.family_of_type(kind)
    )
    assert (told.name, told.base) == (expected, base)
    assert how in told.how


def test_a_chat_template_of_its_own_wins_over_the_name(tmp_path: Path) -> None:
    config = dict(ENTRIES["qwen3-8b"]["config"])
    place = folder(tmp_path, "Qwen3-8B", config, {"chat_template.jinja": LLAMA3})
    assert models.find_model(str(place)).template == "llama3"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("my-model", "my-model"), ("saves/x/checkpoint-500", "x-checkpoint-500"), ("x/merged", "x-merged"),
        ("hub/models--Qwen--Qwen3-8B/snapshots/0123abcd", "Qwen3-8B"), ("models/Qwen/Qwen2___5-7B", "Qwen2.5-7B"),
    ],
)  # fmt: skip
def test_what_a_folder_is_called(path: str, name: str, tmp_path: Path) -> None:
    assert model_name_of_path(tmp_path / path) == name


# LLaMA-Factory writes no Jinja text for what is no list of texts.
UNWRITTEN = {"chatglm3", "yuan"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - UNWRITTEN))
def test_what_llamafactory_writes_into_a_tokenizer_is_read_back(name: str, tmp_path: Path) -> None:
    known = pytest.importorskip("llamafactory.data.template").TEMPLATES
    tokenizer = SimpleNamespace(bos_token="<s>", bos_token_id=1, eos_token="</s>", eos_token_id=2)
    text = known[name]._get_jinja_template(tokenizer)
    told = folder_template(
        folder(tmp_path, "mine", SMALL, {"chat_template.jinja": text}), SMALL, families.family_of_type("llama")
    )
    assert name in told.speaks or not any(mark in text for mark in ("<|", "[INST]", "_turn>"))
