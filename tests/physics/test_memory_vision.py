"""Models that see: the closed form against the simulator's record, and against what LLaMA-Factory really trains."""

from __future__ import annotations

from typing import Any

import pytest
from simulation import vision, vision_public
from support.every import every

from validator.knowledge import models
from validator.physics import (
    ZERO_3,
    Adapter,
    Sharding,
    TowerWorkload,
    Workload,
    estimate_device_memory,
    linear_roles,
    parameter_count,
    towers,
    trainable_parameter_count,
)
from validator.physics.estimate import DeviceTerm
from validator.physics.peaks import PHASES
from validator.physics.training_step import TrainingStep
from validator.run import model_parts, multimodal
from validator.run.settings import run_of_values

ROWS = vision.recorded()


def test_the_record_covers_families_methods_and_what_is_frozen() -> None:
    assert len({row["model"] for row in ROWS}) >= 4
    assert {row["method"] for row in ROWS} == {"lora", "qlora4", "full", "freeze"}
    for key in ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"):
        assert {row[key] for row in ROWS} == {"True", "False"}


def test_predicted_peaks_are_the_simulated_ones() -> None:
    errors = sorted(abs(error) for error, _ in vision.errors())
    assert errors[len(errors) // 2] < 0.002
    assert errors[-1] < 0.01


def test_half_of_the_public_runs_are_within_a_tenth() -> None:
    errors = sorted(abs(vision_public.error(*found)) for found in vision_public.rows())
    assert len(errors) > 25
    assert errors[len(errors) // 2] < 0.1


@every(ROWS)
def test_recorded_counts_of_trained_parameters_are_the_derived_ones(row: dict[str, str]) -> None:
    arch = models.find_model(row["model"]).arch
    assert int(row["trainable"]) == trainable_parameter_count(arch, vision.workload(row))


TEXT = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 131}  # fmt: skip
GRID = {"depth": 4, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 40, "num_heads": 4}
PLAIN = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4,
         "image_size": 56, "patch_size": 14}  # fmt: skip
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4}  # fmt: skip
TILED = {"num_global_layers": 1, "max_num_tiles": 4, "vision_output_dim": 64, "intermediate_layers_indices": [1],
         "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]}  # fmt: skip
POOLED = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
          "patch_size": 16, "position_embedding_size": 16}  # fmt: skip
TINY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ({}, {"depth": 4, "embed_dim": 32, "hidden_size": 64, "num_heads": 4}),
    "qwen2_5_vl": ({}, GRID),
    "qwen3_vl": ({"head_dim": 16}, {**GRID, "num_position_embeddings": 16, "deepstack_visual_indexes": [1, 2]}),
    "qwen3_5": ({"head_dim": 16, "num_hidden_layers": 4, **DELTA}, {**GRID, "num_position_embeddings": 16}),
    "glm4v": ({}, {**GRID, "image_size": 56}),
    "glm_ocr": ({"head_dim": 16}, GRID),
    "internvl": ({"model_type": "qwen2"}, {**PLAIN, "image_size": [56, 56], "patch_size": [14, 14]}),
    "llava": ({"model_type": "llama"}, {**PLAIN, "model_type": "clip_vision_model"}),
    "video_llava": ({"model_type": "llama"}, {**PLAIN, "model_type": "clip_vision_model"}),
    "llava_next": ({"model_type": "mistral"}, {**PLAIN, "model_type": "clip_vision_model"}),
    "gemma3": ({"head_dim": 16}, {**PLAIN, "model_type": "siglip_vision_model", "vision_use_head": False}),
    "lfm2_vl": ({"block_auto_adjust_ff_dim": False, "full_attn_idxs": [1]},
                {**PLAIN, "model_type": "siglip2_vision_model", "num_patches": 16, "vision_use_head": False}),
    "mistral3": ({"model_type": "mistral", "head_dim": 16}, {**PLAIN, "model_type": "pixtral", "head_dim": 8}),
    "mllama": ({"pad_token_id": 0, "cross_attention_layers": [1]},
               {**TILED, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 40, "attention_heads": 4,
                "image_size": 56, "patch_size": 14}),
    "gemma4": ({"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1,
                "vocab_size_per_layer_input": 131, "use_double_wide_mlp": True,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
               {**POOLED, "num_hidden_layers": 2}),
    "ernie4_5_vl_moe": ({"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [24, 16]},
                        {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 4}),
}  # fmt: skip
# What no targets but named ones can train: a tower's modules are wrapped, or blocks have the name of a linear module.
REFUSED: dict[str, list[dict[str, Any]]] = {
    "gemma4": [vision.TOWER, vision.FREE], "ernie4_5_vl_moe": [{}],
    **{kind: [vision.FREE] for kind in ("glm4v", "glm_ocr")},
}  # fmt: skip
FREEZES: list[dict[str, Any]] = [
    {}, vision.TOWER, vision.PROJECTOR, vision.FREE, {"freeze_language_model": True, **vision.FREE},
]  # fmt: skip


def tiny(kind: str) -> dict[str, Any]:
    text, seen = TINY[kind]
    return {"model_type": kind, "text_config": {**TEXT, **text}, "vision_config": seen, "tie_word_embeddings": False}


@pytest.mark.sample(one_in=8, whole_for=["release/constraints.txt", "validator/physics/*"])
@pytest.mark.slow  # it imports torch and LLaMA-Factory
@pytest.mark.parametrize("freezes", FREEZES, ids=lambda freezes: "-".join(freezes) or "as usual")
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("kind", TINY)
def test_what_trains_is_what_llamafactory_trains(kind: str, method: str, freezes: dict[str, Any]) -> None:
    pytest.importorskip("llamafactory")
    from validator.simulation.model_loading import load_model
    from validator.simulation.simulation_request import SimulationRequest

    cell = SimulationRequest(model=tiny(kind), method=method, **freezes)
    if method == "lora" and any(freezes.items() >= refused.items() for refused in REFUSED.get(kind, ())):
        with pytest.raises(ValueError, match=r"Target module \w+"):
            load_model(cell, real=True)
        return
    loaded = load_model(cell, real=True).model
    model = models._model_of_config(kind, tiny(kind))
    settings = run_of_values({"finetuning_type": method, **freezes})
    decoder = model_parts.is_decoder_trained(settings, model)
    work = Workload(
        method="full" if method == "full" and decoder else "freeze" if method == "full" else "lora",
        adapter=Adapter(8, linear_roles(model.arch) if decoder else ()),
        trainable_layers=0,
        towers=multimodal.tower_encodings(settings, model, ()),
    )
    assert sum(p.numel() for p in loaded.parameters() if p.requires_grad) == trainable_parameter_count(model.arch, work)
    if method == "full":
        assert sum({id(p): p.numel() for p in loaded.parameters()}.values()) == parameter_count(model.arch)


@pytest.mark.parametrize("name", ["qwen2.5-vl-7b", "qwen3-vl-8b", "internvl3-8b", "llava-1.5-7b", "gemma-3-4b"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_freezing_never_needs_more_nor_more_pixels_less(name: str, method: str) -> None:
    def needed(**recipe: Any) -> float:
        settings = run_of_values({"finetuning_type": method, "cutoff_len": 4096, **recipe})
        work = Workload(method=method, towers=multimodal.tower_encodings(settings, model, ()))  # type: ignore[arg-type]
        return estimate_device_memory(model.arch, work).allocated

    model = models.find_model(name)
    sizes = [needed(image_max_pixels=side * side, **vision.FREE) for side in (128, 256, 512, 768, 1024)]
    assert sizes == sorted(sizes)
    if method == "full":
        assert needed() <= needed(**vision.PROJECTOR) <= needed(**vision.FREE)


@pytest.mark.parametrize("trains", [False, True])
def test_a_tower_can_be_recomputed_by_itself(trains: bool) -> None:
    """As ms-swift's vit_gradient_checkpointing asks."""
    arch = models.find_model("qwen2.5-vl-7b").arch
    asked = TowerWorkload(4096, trains=trains, input_requires_grad=True)

    def kept(recomputed: bool | None) -> float:
        work = Workload(method="full", towers=(asked._replace(recomputed=recomputed),))
        return towers.tower_saved_bytes(TrainingStep(arch, work))

    assert kept(recomputed=True) < 0.1 * kept(recomputed=False)
    assert kept(recomputed=None) == kept(recomputed=trains)


def test_a_checkpoint_that_is_quantized_already_has_its_tower_whole() -> None:
    """Its decoder alone is quantized (vLLM pull request 10169); bitsandbytes reaches all linear layers."""
    arch = models.find_model("Qwen/Qwen2-VL-7B-Instruct-AWQ").arch
    work = Workload(method="lora", quant_bits=4, quant_grouped=True)
    sizes = [estimate_device_memory(arch, work._replace(towers=(TowerWorkload(),))).terms[DeviceTerm.WEIGHTS],
             estimate_device_memory(arch._replace(towers=()), work).terms[DeviceTerm.WEIGHTS]]  # fmt: skip
    assert sizes[0] - sizes[1] == 2 * arch.towers[0].all_elements


def test_while_a_tower_reads_a_sharded_run_holds_what_it_does_in_the_decoder() -> None:
    """ZeRO-3 gathers layers and fetches ahead there, too, and its buckets stand."""
    model = models.find_model("qwen2.5-vl-72b")
    settings = run_of_values({"finetuning_type": "full", "cutoff_len": 2048})
    run = TrainingStep(
        model.arch,
        Workload(
            method="full",
            precision="engine",
            towers=multimodal.tower_encodings(settings, model, ()),
            sharding=Sharding(1, 8, ZERO_3),
        ),
    )
    tower, decoder = PHASES["tower forward"](run), PHASES["last layer forward"](run)
    for term in (DeviceTerm.GATHERED_WEIGHTS, DeviceTerm.BUCKETS):
        assert tower.get(term) == decoder[term] > 0


@pytest.mark.parametrize(
    ("model", "release", "attention", "makes_scores"),
    [
        ("qwen2.5-vl-3b", "4.50.3", "sdpa", True), ("qwen2-vl-7b", "4.49.0", "auto", True),
        ("qwen2.5-omni-7b", "4.52.4", "auto", True), ("qwen2.5-vl-3b", "4.51.3", "auto", False),
        ("qwen2.5-vl-3b", "4.50.3", "fa2", False), ("gemma3-4b", "4.50.3", "auto", False),
    ],
)  # fmt: skip
def test_towers_of_older_releases_make_the_scores_of_all_pictures(
    model: str, release: str, attention: str, makes_scores: bool
) -> None:
    """Ten pictures of 1,792 patches: one allocation of 19.1 GiB in modelscope/ms-swift issue 3327."""
    known = models.find_model(model)
    run = run_of_values({"flash_attn": attention}, {"transformers": release})
    tower = multimodal.tower_encodings(run, known, ())[0]
    work = Workload(micro_batch=10, towers=tuple(tower._replace(tokens=1792) for _ in known.arch.towers))
    needed, _ = next(towers.tower_peaks(TrainingStep(known.arch, work)))
    assert (needed > 16 * 17_920**2 * 4) == makes_scores


def test_a_workload_that_says_nothing_of_a_tower_is_refused() -> None:
    """It would be judged as if there were none."""
    with pytest.raises(ValueError, match="shorter"):
        estimate_device_memory(models.find_model("qwen2.5-vl-7b").arch, Workload())
