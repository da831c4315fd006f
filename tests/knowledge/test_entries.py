"""Entries of a hand-kept table, cut out of its text: the same as parsing all of it."""

from __future__ import annotations

import pytest
import yaml

from validator.knowledge.models import offered_models
from validator.knowledge.tables import DATA_FOLDER, YamlTable, yaml_table

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/data/*"])

TABLES = ["models", "families", "devices", "renamed", "savers"]


@pytest.mark.parametrize("name", TABLES)
def test_every_entry_is_the_one_of_the_whole_file(name: str) -> None:
    whole = yaml.load((DATA_FOLDER / f"{name}.yaml").read_text("utf-8"), yaml.CSafeLoader)
    entries = YamlTable(name)
    assert list(entries) == list(whole)
    assert len(entries) == len(whole)
    assert {key: entries[key] for key in reversed(whole)} == whole


@pytest.mark.parametrize("key", ["", "hub", "  hub", "qwen2.5-0.5b:\n  hub", "qwen2.5-0.5", "\nqwen2.5-0.5b"])
def test_a_key_is_a_whole_one(key: str) -> None:
    assert key not in yaml_table("models")
    with pytest.raises(KeyError):
        yaml_table("models")[key]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("qwen/qwen2.5-7b-instruct", ["qwen2.5-7b"]), ("model_type: phi3,", ["phi-4", "phi-4-mini"]),
        ("kept by hand", []), ("nothing says so", []), ("", list(yaml_table("models"))),
        ("licence:", list(yaml_table("models"))),
    ],
)  # fmt: skip
def test_mention_gives_each_entry_once(words: str, keys: list[str]) -> None:
    mentioned = list(yaml_table("models").mention(words))
    assert mentioned[: len(keys)] == keys if words.startswith("model_type") else mentioned == keys


def test_models_of_text_with_a_short_form_are_offered() -> None:
    models = yaml_table("models")
    deaf = [key for key, entry in models.items() if not {"vision_config", "audio_config"} & {*str(entry).split("'")}]
    assert offered_models() == [key for key in deaf if models[key]["short"]]


def test_the_table_of_models_is_plain() -> None:
    """Lower case keeps the places of a text of one byte a character, and costs little."""
    assert (DATA_FOLDER / "models.yaml").read_bytes().isascii()
