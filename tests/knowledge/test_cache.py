"""Models in the caches of the hubs, by every layout that their releases have had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validator.check import checking
from validator.errors import RecipeError
from validator.knowledge import hub_caches, models
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import resolve

CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4,
    "intermediate_size": 128,
}  # fmt: skip
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SNAPSHOT = f"models--Org--New-9.5B/snapshots/{COMMIT}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "MODELSCOPE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def put(folder: Path, hidden: int = 64) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": hidden}))
    return folder


def refer(cached: Path, branch: str = "main") -> None:
    """As huggingface_hub notes which commit a branch was."""
    (cached / "refs").mkdir(parents=True, exist_ok=True)
    (cached / "refs" / branch).write_text(COMMIT)


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({}, ".cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{}/x"}, "x/huggingface/hub"),
        ({"HF_HOME": "{}/hf"}, "hf/hub"),
        ({"HF_HOME": "~/hf"}, "hf/hub"),
        ({"HF_HOME": "{}/hf", "HUGGINGFACE_HUB_CACHE": "{}/old"}, "old"),
        ({"HF_HOME": "{}/hf", "HF_HUB_CACHE": "{}/new"}, "new"),
    ],
)
def test_the_cache_of_hugging_face(
    variables: dict[str, str], root: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home))
    folder = put(home / root / SNAPSHOT)
    assert hub_caches.cached_model("Org/New-9.5B") is None  # no branch main is noted
    assert hub_caches.cached_model("Org/New-9.5B", revision=COMMIT) == (folder, "Hugging Face")
    refer(home / root / "models--Org--New-9.5B")
    assert hub_caches.cached_model("Org/New-9.5B") == (folder, "Hugging Face")
    assert hub_caches.cached_model("Org/New-9.5B", revision="other") is None
    assert hub_caches.cached_model("Org/New-9.5B", file="model.safetensors") is None


def test_the_cache_is_where_huggingface_hub_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(home))
    folder = put(home / SNAPSHOT)
    refer(home / "models--Org--New-9.5B")
    assert hub.try_to_load_from_cache("Org/New-9.5B", "config.json", cache_dir=home) == str(folder / "config.json")
    there = hub_caches.cached_model("Org/New-9.5B")
    assert there is not None
    assert there.folder == folder


@pytest.mark.parametrize(
    "place",
    [
        "models/Org--New-9.5B/snapshots/master", "models/Org/New-9___5B", "Org/New-9.5B", "Org/New-9___5B",
        "hub/models/Org/New-9___5B", "hub/Org/New-9.5B", "hub/Org/New-9___5B", "models/Org/New-9.5B",
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [True, False])
def test_the_caches_of_modelscope(place: str, own: bool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        monkeypatch.setenv("MODELSCOPE_CACHE", str(home / "ms"))
    folder = put(home / ("ms" if own else ".cache/modelscope") / place)
    assert hub_caches.cached_model("Org/New-9.5B") == (folder, "ModelScope")


def test_the_hub_in_use_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / ".cache/huggingface/hub" / SNAPSHOT)
    refer(home / ".cache/huggingface/hub/models--Org--New-9.5B")
    put(home / ".cache/modelscope/models/Org/New-9___5B")
    assert hub_caches.cached_model("Org/New-9.5B").hub == "Hugging Face"  # type: ignore[union-attr]
    monkeypatch.setenv("USE_MODELSCOPE_HUB", "1")
    assert hub_caches.cached_model("Org/New-9.5B").hub == "ModelScope"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["", "New-9.5B", "../x", "a/../b", "Org/..", "a/b/c", "x/" + "y" * 300, "a\0/b"])
def test_what_is_no_hub_name_is_in_no_cache(name: str, home: Path) -> None:
    put(home / ".cache/modelscope/hub/x")
    assert hub_caches.cached_model(name) is None


def test_a_model_in_the_cache_is_known_by_its_own_name(home: Path) -> None:
    with pytest.raises(RecipeError, match="no local hub cache holds it"):
        models.find_model("Org/New-9.5B")
    put(home / ".cache/huggingface/hub" / SNAPSHOT)
    refer(home / ".cache/huggingface/hub/models--Org--New-9.5B")
    known = models.find_model("Org/New-9.5B")
    assert (known.id, known.name, known.arch.hidden, known.cached) == (None, "Org/New-9.5B", 64, "Hugging Face")


@pytest.mark.parametrize("keys", ["model_revision: v2", "cache_dir: {}/own"])
def test_a_recipe_asks_for_its_revision_in_its_cache(keys: str, home: Path) -> None:
    place = home / ("own" if "own" in keys else ".cache/huggingface/hub")
    put(place / SNAPSHOT)
    refer(place / "models--Org--New-9.5B", "main" if "own" in keys else "v2")
    assert resolve(parse_recipe("r.yaml", "model_name_or_path: Org/New-9.5B\n")).model is None
    one = resolve(parse_recipe("r.yaml", f"model_name_or_path: Org/New-9.5B\n{keys.format(home)}\n"))
    assert one.model is not None
    assert one.model_name == "Org/New-9.5B"


def test_a_name_that_a_cache_holds_is_no_slip_of_a_known_one(home: Path) -> None:
    recipe = parse_recipe("x.yaml", "model_name_or_path: Qwen/Qwen3-8C\nstage: sft\ndo_train: true\n")
    assert "PTH028" in {each.code for each in checking.check_document(recipe).diagnostics}
    root = home / ".cache/huggingface/hub/models--Qwen--Qwen3-8C"
    put(root / "snapshots" / COMMIT)
    refer(root)
    assert "PTH028" not in {each.code for each in checking.check_document(recipe).diagnostics}
