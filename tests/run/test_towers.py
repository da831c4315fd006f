"""Models that see or hear: their config.json as it is published, and what of them a recipe trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator.errors import RecipeError
from validator.knowledge.architectures import read_architecture
from validator.knowledge.models import find_model
from validator.physics import TowerWorkload, estimate_device_memory, parameter_count
from validator.run import model_parts, multimodal
from validator.run.prediction import predict
from validator.run.settings import run_of_values
from validator.run.workspace import Workspace

QWEN2 = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
         "num_key_value_heads": 4, "vocab_size": 152064}  # fmt: skip
QWEN3 = {"model_type": "qwen3_vl_text", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}  # fmt: skip
# As the hub keeps them: Qwen2-VL's fields of the decoder lie beside the others', LLaVA leaves out those of its class.
CONFIGS: dict[str, Any] = {
    "qwen2_vl": {"model_type": "qwen2_vl", **QWEN2, "tie_word_embeddings": False,
                 "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "mlp_ratio": 4,
                                   "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}},
    "qwen2_5_vl": {"model_type": "qwen2_5_vl", **QWEN2, "tie_word_embeddings": False,
                   "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
                                     "out_hidden_size": 3584, "patch_size": 14, "temporal_patch_size": 2}},
    "qwen3_vl": {"model_type": "qwen3_vl", "text_config": QWEN3, "tie_word_embeddings": False,
                 "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
                                   "num_heads": 16, "out_hidden_size": 4096, "patch_size": 16,
                                   "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]}},
    "llava": {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064},
              "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
                                "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336,
                                "patch_size": 14}},
    "gemma3": {"model_type": "gemma3",
               "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                               "num_hidden_layers": 34},
               "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                                 "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896,
                                 "patch_size": 14, "vision_use_head": False}},
}  # fmt: skip
# As the repositories on the hub say it: the sum of their safetensors' headers.
PUBLISHED = {"qwen2_vl": 8_291_375_616, "qwen2_5_vl": 8_292_166_656, "qwen3_vl": 8_767_123_696,
             "llava": 7_063_427_072, "gemma3": 4_300_079_472}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_as_published(kind: str) -> None:
    assert parameter_count(read_architecture(CONFIGS[kind])) == PUBLISHED[kind]


def test_an_omni_model_is_its_thinker() -> None:
    whole = {
        "model_type": "qwen2_5_omni",
        "talker_config": {},
        "thinker_config": {"vision_config": {"hidden_size": 1280}},
    }
    arch = read_architecture(whole)
    assert (arch.hidden, [tower.layers for tower in arch.towers]) == (3584, [32, 32])


def test_a_quantized_omni_model_says_so_beside_its_parts(tmp_path: Path) -> None:
    whole = {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {"hidden_size": 1280}}}
    quantized = {"dtype": "float16", "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(whole | quantized))
    known = find_model(str(tmp_path))
    assert (known.quantized, known.quantized_bits, known.dtype_bytes) == ("awq", 4, 2.0)


@pytest.mark.parametrize(
    ("kind", "fields", "like"),
    [
        ("llava", {"image_size": [336, 336], "patch_size": [14]}, {}),
        ("llava", {"image_size": [168, 672]}, {}),
        ("llava", {"image_size": [672, 336]}, {"image_size": [336, 672]}),
        ("qwen3_vl", {"deepstack_visual_indexes": [16, 24]}, {"deepstack_visual_indexes": [24, 25]}),
        ("qwen3_vl", {"deepstack_visual_indexes": [16]}, {"deepstack_visual_indexes": [24]}),
    ],
)  # fmt: skip
def test_lists_count_by_what_they_say(kind: str, fields: dict[str, Any], like: dict[str, Any]) -> None:
    one, other = (
        read_architecture({**CONFIGS[kind], "vision_config": {**CONFIGS[kind]["vision_config"], **more}})
        for more in (fields, like)
    )
    assert one == other


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [("vision_config", {"depth": 0}, "`depth` is 0"), ("text_config", {"model_type": "new"}, "type `new` is not"),
     ("text_config", {"num_hidden_layers": None}, "`num_hidden_layers` is None"),
     ("vision_config", {"depth": 10**300}, "`depth` is more than 10,000"),
     ("vision_config", {"num_heads": 10**6}, "1,000,000, more than the hidden size of")],
)  # fmt: skip
def test_what_cannot_be_read_is_no_model(part: str, value: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        read_architecture({**CONFIGS["qwen2_5_vl"], part: value})


def test_grids_of_a_config_tell_how_many_pieces_a_picture_has() -> None:
    next_ = CONFIGS["llava"] | {"model_type": "llava_next", "image_grid_pinpoints": [[336, 672], [1008, 1008]]}
    assert [tower.max_tiles for tower in read_architecture(next_).towers] == [10]
    assert [tower.max_tiles for tower in read_architecture(CONFIGS["llava"]).towers] == [0]


def test_a_projector_of_several_layers_of_the_tower_reads_them_side_by_side() -> None:
    one = read_architecture(CONFIGS["llava"] | {"model_type": "llava_next"})
    four = read_architecture(
        CONFIGS["llava"] | {"model_type": "llava_next", "vision_feature_layer": [-24, -20, -12, -1]}
    )
    assert [arch.towers[0].projector[0].inputs for arch in (one, four)] == [1024, 4096]


def test_llamafactory_does_not_freeze_a_decoder_that_has_another_name() -> None:
    settings = run_of_values({"finetuning_type": "full", "freeze_language_model": True})
    assert model_parts.is_decoder_trained(settings, find_model("qwen3-omni-30b-a3b"))
    assert not model_parts.is_decoder_trained(settings, find_model("qwen2.5-omni-7b"))


def test_llamafactory_does_not_freeze_towers_that_have_another_name() -> None:
    seen = find_model("video-llava-7b")
    encodings = multimodal.tower_encodings(run_of_values({"finetuning_type": "full"}), seen, ())
    assert [(each.trains, each.projector) for each in encodings] == [(True, False)] * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen2_5_vl"] | {"dtype": "bfloat16"}))
    return tmp_path


def test_a_folder_with_such_a_config_is_known(folder: Path) -> None:
    known = find_model(str(folder))
    assert (known.kind, known.decoder, known.family.templates) == ("qwen2_5_vl", "qwen2", ("qwen2_vl",))
    assert known.family.layer == "Qwen2_5_VLDecoderLayer"


ALL = ("qkv", "o", "gate", "up", "down")
FREE = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}


@pytest.mark.parametrize(
    ("recipe", "encoding"),
    [
        ({}, TowerWorkload(input_requires_grad=True)),
        ({"quantization_bit": 4}, TowerWorkload()),
        ({"disable_gradient_checkpointing": True}, TowerWorkload()),
        ({"freeze_vision_tower": False}, TowerWorkload(input_requires_grad=True, targets=ALL)),
        ({"freeze_vision_tower": False, "lora_target": "q_proj,v_proj"}, TowerWorkload(input_requires_grad=True)),
        (
            {"freeze_vision_tower": False, "lora_target": "attn.proj"},
            TowerWorkload(input_requires_grad=True, targets=("o",)),
        ),
        ({"finetuning_type": "full"}, TowerWorkload(never_frozen=True)),
        ({"finetuning_type": "full", **FREE}, TowerWorkload(trains=True, projector=True, never_frozen=True)),
        ({"finetuning_type": "freeze"}, TowerWorkload()),
        ({"finetuning_type": "freeze", **FREE}, TowerWorkload(projector=True, trainable_layers=2)),
    ],
)
def test_what_trains_of_a_tower(recipe: dict[str, Any], encoding: TowerWorkload, folder: Path) -> None:
    values = {
        "model_name_or_path": str(folder),
        "stage": "sft",
        "finetuning_type": "lora",
        "cutoff_len": 4096,
        **recipe,
    }
    work = predict(run_of_values(values, workspace=Workspace(folders=(folder,)))).workload
    assert work
    assert work.towers[0]._replace(tokens=0) == encoding


def test_before_transformers_5_a_frozen_tower_is_passed_by(folder: Path) -> None:
    values = {"model_name_or_path": str(folder), "stage": "sft", "finetuning_type": "lora"}
    work = predict(
        run_of_values(values, header={"transformers": "4.57.1"}, workspace=Workspace(folders=(folder,)))
    ).workload
    assert work
    assert not work.towers[0].input_requires_grad


def test_a_frozen_decoder_trains_no_layer(folder: Path) -> None:
    values = {"model_name_or_path": str(folder), "finetuning_type": "full", "freeze_language_model": True, **FREE}
    work = predict(run_of_values(values, workspace=Workspace(folders=(folder,)))).workload
    assert work
    assert (work.method, work.trainable_layers) == ("freeze", 0)


@pytest.mark.parametrize(
    ("recipe", "rows", "tokens"),
    [
        ({}, None, 3010), ({"image_max_pixels": 196 * 1000}, None, 1000), ({"cutoff_len": 512}, None, 2048),
        ({"per_device_train_batch_size": 1}, [{"text": "a"}], 334),
        ({}, [{"text": "a", "pictures": ["1.png", "2.png"]}], 6019),
        ({"cutoff_len": 8192}, [{"text": "a", "films": "1.mp4"}], 21400),
        ({"stage": "sft", "packing": True, "cutoff_len": 2048}, None, 8192),
        ({"stage": "sft", "packing": True, "cutoff_len": 2048}, [{"text": "a"}], 42),  # one picture for a batch of 8
    ],
)  # fmt: skip
def test_how_much_a_tower_reads(recipe: dict[str, Any], rows: Any, tokens: int, folder: Path) -> None:
    columns = {"prompt": "text", "images": "pictures", "videos": "films"}
    if rows:
        (folder / "seen.json").write_text(json.dumps(rows))
        (folder / "dataset_info.json").write_text(json.dumps({"seen": {"file_name": "seen.json", "columns": columns}}))
    values = {"model_name_or_path": str(folder), "dataset": "seen", "dataset_dir": str(folder), "cutoff_len": 4096}
    work = predict(run_of_values({**values, **recipe}, workspace=Workspace(folders=(folder,)))).workload
    assert work
    assert work.towers[0].tokens == tokens


@pytest.mark.parametrize(
    ("column", "tokens"),
    [({}, 42), ({"images": "seen"}, 3010), ({"videos": "seen"}, 3010), ({"audios": "heard"}, 3010)],
)
def test_rows_that_are_not_at_hand_have_what_their_columns_name(
    column: dict[str, str], tokens: int, folder: Path
) -> None:
    registry = {"far": {"hf_hub_url": "someone/far", "columns": {"prompt": "text", **column}}}
    (folder / "dataset_info.json").write_text(json.dumps(registry))
    values = {"model_name_or_path": str(folder), "dataset": "far", "dataset_dir": str(folder), "cutoff_len": 4096}
    work = predict(run_of_values(values, workspace=Workspace(folders=(folder,)))).workload
    assert work
    assert work.towers[0].tokens == tokens


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"image_size": 10}, "`patches` is 0"), ({"image_size": [336, "x"]}, "`image_size` is 'x'"),
     ({"hidden_size": [1024, 512]}, r"`hidden_size` is \[1024, 512\]"), ({"image_size": [1, 2, 3]}, "`image_size` is")],
)  # fmt: skip
def test_a_tower_that_cannot_be_is_no_model(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        read_architecture({**CONFIGS["llava"], "vision_config": {**CONFIGS["llava"]["vision_config"], **fields}})


@pytest.mark.parametrize("value", ["x", [1, 2], 0, False, ""])
@pytest.mark.parametrize(
    ("kind", "part"),
    [("qwen2_5_vl", "vision_config"), ("llava", "text_config"), ("qwen2_5_omni", "thinker_config"),
     ("qwen2_audio", "audio_config")],
)  # fmt: skip
def test_a_part_that_is_no_mapping_is_not_taken_for_its_default(kind: str, part: str, value: object) -> None:
    with pytest.raises(RecipeError, match=f"`{part}` is .*, not a mapping"):
        read_architecture({**CONFIGS.get(kind, {"model_type": kind}), part: value})


def test_a_part_that_is_null_is_its_default() -> None:
    parts: tuple[dict[str, Any], ...] = ({"text_config": None, "audio_config": None}, {"audio_config": {}})
    null, absent = ({"model_type": "qwen2_audio", **part} for part in parts)
    assert read_architecture(null) == read_architecture(absent)


ROWS = [{"text": "a", "pictures": ["1.png"]}]


@pytest.mark.parametrize(
    ("recipe", "rows", "wider"),
    [
        ({}, None, True),
        ({"dataset": "seen"}, ROWS, False),
        ({"dataset": "llava_1k_en,llava_1k_zh"}, None, False),  # of which is known that they have one
        ({"dataset": "llava_1k_en,own"}, None, True),
        ({"image_max_pixels": 4096 * 784, "dataset": "own"}, None, False),  # one picture fills all of it
    ],
)
def test_the_band_ends_where_pictures_of_unknown_number_fill_the_length(
    recipe: dict[str, Any], rows: Any, wider: bool, folder: Path
) -> None:
    if rows:
        columns = {"prompt": "text", "images": "pictures"}
        (folder / "seen.json").write_text(json.dumps(rows))
        (folder / "dataset_info.json").write_text(json.dumps({"seen": {"file_name": "seen.json", "columns": columns}}))
    values = {"model_name_or_path": str(folder), "dataset_dir": str(folder), "stage": "sft", "bf16": True,
              "finetuning_type": "lora", "cutoff_len": 4096, **recipe}  # fmt: skip
    job = run_of_values(values, workspace=Workspace(folders=(folder,)))
    memory = predict(job).device_memory
    assert memory
    workload = predict(job).workload
    assert workload
    assert job.model
    one = estimate_device_memory(job.model.arch, workload)
    assert memory.expected == one.expected
    assert (memory.high > one.high) == wider
    if wider:  # and `lengths` of the header block tell how long samples are with their pictures
        short = predict(
            run_of_values(values, header={"lengths": [800, 2000]}, workspace=Workspace(folders=(folder,)))
        ).device_memory
        assert short
        assert short.high < memory.high
        full = workload.towers[0]._replace(tokens=4 * 4096)
        assert memory.high == estimate_device_memory(job.model.arch, workload._replace(towers=(full,))).high


def test_layers_of_each_tower_are_counted_by_its_own() -> None:
    known = find_model("Qwen/Qwen2.5-Omni-7B")
    short = known._replace(arch=known.arch._replace(towers=tuple(
        tower._replace(layers=layers) for tower, layers in zip(known.arch.towers, (8, 4), strict=True)
    )))  # fmt: skip
    task = run_of_values({"finetuning_type": "freeze", "freeze_trainable_layers": -6, **FREE})
    layers = [multimodal.trained_parts(task, short, number).trainable_layers for number in (0, 1)]
    assert layers == [6, 4]


@pytest.mark.parametrize(("length", "tokens"), [(128, 2048), (256, 4096), (2048, 4096)])
def test_tokens_that_a_projector_pools_fill_a_sample_by_what_they_become(length: int, tokens: int) -> None:
    """A picture of Gemma 3 is 4,096 tokens of its tower, and 256 of the decoder."""
    values = {"model_name_or_path": "google/gemma-3-4b-it", "finetuning_type": "lora", "cutoff_len": length}
    work = predict(run_of_values(values, workspace=Workspace())).workload
    assert work
    assert work.towers[0].tokens == tokens


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"image_grid_pinpoints": [["a", 672]]}, "`image_grid_pinpoints` is 'a'"),
     ({"image_grid_pinpoints": [[336]]}, r"`image_grid_pinpoints` holds \[336\]"),
     ({"vision_config": {**CONFIGS["llava"]["vision_config"], "image_size": -1},
       "image_grid_pinpoints": [[336, 672]]}, "`image_size` is -1")],
)  # fmt: skip
def test_grids_that_cannot_be_are_no_model(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        read_architecture({**CONFIGS["llava"], **fields})
