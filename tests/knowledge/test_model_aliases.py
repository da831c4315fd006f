"""Names that stand for a model of the catalogue, and those that do not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.every import every

from validator.knowledge import model_names, models, tables
from validator.knowledge.tables import yaml_table
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import RunSettings, resolve


@every(
    [
        # the last part of a path
        ("/data/models/Qwen2.5-32B-Instruct/", "Qwen/Qwen2.5-32B-Instruct"),
        ("../Meta-Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("C:\\models\\Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"), ("Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        # folders of the hubs' caches
        ("models--Qwen--Qwen3-8B", "Qwen/Qwen3-8B"), ("/x/models--Qwen--Qwen3-8B/snapshots/0123abc", "Qwen/Qwen3-8B"),
        ("~/.cache/modelscope/hub/Qwen/Qwen2___5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("models/Qwen--Qwen3-8B/snapshots/master", "Qwen/Qwen3-8B"),
        # other owners, other marks between the words
        ("unsloth/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"), ("x/llama3_8b", "meta-llama/Meta-Llama-3-8B"),
        ("meta-llama/Llama-3-8B", "meta-llama/Meta-Llama-3-8B"), ("/m/qwen2_5-7b", "Qwen/Qwen2.5-7B"),
        ("/m/DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        # a variant's word left out
        ("/m/Llama-2-7b", "meta-llama/Llama-2-7b-hf"), ("/m/gemma-3-4b", "google/gemma-3-4b-it"),
        # a version left out: the largest of those
        ("/m/mistral-7b", "mistralai/Mistral-7B-v0.3"), ("Mistral-7B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3"),
        ("/m/mistral-7b-sft", "mistralai/Mistral-7B-v0.3"), ("/m/vicuna-13b", "lmsys/vicuna-13b-v1.5"),
        # a point as a letter or left out, the size behind the variant
        ("/m/Qwen25-1p5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"), ("Qwen2p5-7B", "Qwen/Qwen2.5-7B"),
        ("/m/qwen2_05b_sft_merge", "Qwen/Qwen2-0.5B"), ("x/Llama-3-Base-8B-SFT", "meta-llama/Meta-Llama-3-8B"),
        ("x/Llama-3-Instruct-8B-SimPO", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("/m/qwen2.5-vl-instruct-7b", "Qwen/Qwen2.5-VL-7B-Instruct"),
        # as Kaggle keeps models
        ("/kaggle/input/llama-3.2/transformers/3b-instruct/1", "meta-llama/Llama-3.2-3B-Instruct"),
        ("/kaggle/input/gemma-2/transformers/gemma-2-9b-it/2", "google/gemma-2-9b-it"),
        # fine-tunes
        ("/x/Qwen2.5-7B-Instruct-medical", "Qwen/Qwen2.5-7B-Instruct"), ("x/Qwen3-8B-sft_merge", "Qwen/Qwen3-8B"),
        ("x/Qwen3-8B-lora-merged", "Qwen/Qwen3-8B"),
        ("saves/Qwen2.5-7B-Instruct/full/sft/checkpoint-100", "Qwen/Qwen2.5-7B-Instruct"),
        ("x/qwen25-7b-instruct-rft-20k_bz8", "Qwen/Qwen2.5-7B-Instruct"), ("llama31-8b", "meta-llama/Llama-3.1-8B"),
        ("/m/Qwen2-VL-7B-mine", "Qwen/Qwen2-VL-7B"),
        ("/m/Phi4-14B", "microsoft/phi-4"), ("qwen3_30b_dpo_merged", "Qwen/Qwen3-30B-A3B"),
        ("/x/gemma-3-4b-mine", "google/gemma-3-4b-it"), ("/m/Llama-3.1-8B/run1/hf_1834", "meta-llama/Llama-3.1-8B"),
        ("saves/Qwen2.5-7B-Instruct-Braille/7B_qwen2.5i_train->sft/checkpoint-10000", "Qwen/Qwen2.5-7B-Instruct"),
        # words behind that for a training are about its data
        ("../saves/qwen2vl_7b_full_sft_text_only/full/sft_epoch2", "Qwen/Qwen2-VL-7B"),
        ("saves/qwen2_vl-2b/merged/sft_coco6k_small", "Qwen/Qwen2-VL-2B"),
        ("x/Qwen3-8B-dpo-with-hints", "Qwen/Qwen3-8B"),
        ("/m/qwen2.5-vl-7b-with-reasoning-tokens", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("/m/Qwen3-8B_with_cot", "Qwen/Qwen3-8B"), ("/m/Qwen3-8B-3epochs", "Qwen/Qwen3-8B"),
        # LLaMA-Factory's folders, whatever the run in them is called
        ("/w/saves/Qwen2-VL-7B-Instruct/full/train_stage1_warmup_only", "Qwen/Qwen2-VL-7B-Instruct"),
        ("saves/llama2-7b/full/align/sft_use_32B_data/checkpoint-5", "meta-llama/Llama-2-7b-hf"),
        ("/m/Llama-3.2-Vision-11B", "meta-llama/Llama-3.2-11B-Vision"),
        # a part of the same generation, and weights in 16 bits
        ("/m/Qwen2-VL-7B-Instruct-with-Qwen2-Language-Backbone", "Qwen/Qwen2-VL-7B-Instruct"),
        ("/m/Qwen3-8B-fp16", "Qwen/Qwen3-8B"), ("saves/qwen2.5_7b_0.2_ratio", "Qwen/Qwen2.5-7B"),
        ("/m/Qwen3-8B-20250901", "Qwen/Qwen3-8B"),
    ],
)  # fmt: skip
def test_a_name_that_stands_for_a_model(name: str, stands_for: str) -> None:
    one = model_names.guess_model(name)
    assert one is not None
    assert (one.name, one.identified_by) == (stands_for, "name")
    assert one.arch == models.find_model(stands_for).arch


@every(
    [
        "Aquarelle-32B", "/models/my-run", "models", "/", "", "..", "中文", "\0",
        # another size, generation or kind
        "/m/Qwen2.5-33B", "/m/Qwen-257B", "/m/Phi4-4B", "/m/Phi-4-multimodal", "/m/Qwen2.5-7B-Instruct-VL",
        "/m/Qwen3-8B-8x7B",
        "/m/Llama-3.1-8B-Instruct-Minitron-4B", "/m/Qwen3-8B-reranker", "/m/Qwen3-8B-PRM", "/m/Qwen3-8B.1",
        "/m/Qwen3-8B-2508", "/m/Qwen3-8B-2x", "/m/Qwen3-8B-1M",
        # adapters, parts of a model, and what a model wrote
        "x/Qwen2.5-7B-Instruct-lora-adapter", "x/Qwen2.5-7B-Instruct-LoRA", "saves/Qwen2.5-7B-Instruct/lora/sft",
        "x/gemma-3-4b-it-text-only", "x/Qwen2.5-VL-7B-Instruct-llm-only", "/m/Qwen3-8B-data", "/m/Qwen3-8B-generated",
        # layers may be added, and bits are not told how
        "/m/Qwen2.5-7B-Instruct-mymerge", "/m/Qwen2.5-7B-Instruct-Int4", "x/Qwen3-8B-W4A16",
        "/m/Qwen2_5_VL-3B-WithMemory", "/m/Qwen2-VL-7B-with-Qwen2.5-Backbone", "/m/Qwen3-8B-small-sft",
        "/m/Llama-3-8B-V", "/m/Qwen25-1p5B-Memory",
        "/m/Qwen3-8B/draft-1B/checkpoint-5", "/m/gemma-3-4b-with-depth", "/a/b/Qwen3-8B/c/d/e/f/g",
        # a known name within another
        "llava-llama-3-8b", "Aurora-Llama-3.1-8B",
        # recipes call Qwen2.5-7B so, and words say Qwen-7B
        "/models/qwen7b", "/m/qwen_7b_full_pretrain_4klen",
        # a letter within a word, and no size behind it
        "/m/Qwen2.5-7p7B", "/kaggle/input/llama-3.2/transformers/mine/1",
        # a slip of the finger, as nobody else makes models of that owner
        "Qwen/Qwen2.5-7B-Instrct",
        "unsloth/Qwen3-8B-GGUF",
        # a folder that is no model's name
        "saves/mine/full/sft", "saves/Qwen3-8B/lora/sft_only", "Qwen3-8B-vision/full/sft",
    ],
)  # fmt: skip
def test_a_name_that_is_not_sure(name: str) -> None:
    assert model_names.guess_model(name) is None


@pytest.mark.parametrize(
    ("name", "template", "stands_for"),
    [
        ("saves/trajectory_llama2-7b/pretrain", "llama2", "meta-llama/Llama-2-7b-hf"),
        ("saves/assistrag-ChatGLM3-6B", "chatglm3", "zai-org/chatglm3-6b"),
        ("runs/split1_qwen3_1_7b_mixed_noise", "qwen3_nothink", "Qwen/Qwen3-1.7B"),
        ("/m/merged_qwen2.5-vl-7b-sft", "qwen2_vl", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("/m/ckpt_Qwen2.5-7B-Instruct_v2", "qwen", "Qwen/Qwen2.5-7B-Instruct"),
        ("Aurora-Llama-3.1-8B", "llama3", "meta-llama/Llama-3.1-8B"),
        # not with the template of another, nor without one
        ("Aurora-Llama-3.1-8B", "chatml", None), ("Aurora-Llama-3.1-8B", None, None), ("Aurora-Llama-3.1-8B", 3, None),
        ("/m/merged_qwen2.5-vl-7b-sft", "qwen", None),
        # a part of another, and what came from another
        ("llava-llama-3-8b", "llama3", None), ("/m/Bunny-Llama-3-8B-V", "llama3", None),
        ("/m/2x-Qwen3-8B", "qwen3", None),
        ("/m/7B-from-Qwen2.5-14B", "qwen", None), ("/m/student_of_Qwen2.5-72B", "qwen", None),
        ("/m/Korean-Llama-2-7b", "llama2", None), ("/m/reranker-Qwen3-8B", "qwen3", None),
        # no size, and a name of two models
        ("/m/my-qwen3", "qwen3", None), ("/m/my-qwen7b", "qwen", None),
        ("/m/" + "-".join(f"word{each}" for each in range(99)), "qwen", None),
    ],
)  # fmt: skip
def test_words_before_a_known_name(name: str, template: object, stands_for: str | None) -> None:
    one = model_names.guess_model(name, template)
    assert (one and one.name) == stands_for
    assert one is None or (one.identified_by, one.template) == ("name", None)


@pytest.mark.parametrize(
    ("text", "template", "stands_for"),
    [
        # names of public recipes and runs
        ("dpo_qwen3_8b", "qwen3_nothink", "Qwen/Qwen3-8B"), ("qwen2.5_3b_full_dpo", "qwen", "Qwen/Qwen2.5-3B"),
        ("qwen3_vl_sft_4b_full_finetune", "qwen3_vl", "Qwen/Qwen3-VL-4B-Instruct"),
        ("llama3.2-vision-11b-sherlock-online", "mllama", "meta-llama/Llama-3.2-11B-Vision"),
        ("lora_sft_medical_qwen2.5_7b_z3", "qwen", "Qwen/Qwen2.5-7B"),
        # no size, another template, none, and a model that nothing knows
        ("qwen3_lora_sft", "qwen3", None), ("qwen35_4b_lora_sft", "empty", None), ("qwen3_8b", None, None),
        ("sft_aurora_8b", "qwen3", None), ("sft", "qwen", None), ("", "qwen", None),
    ],
)  # fmt: skip
def test_what_a_run_is_called(text: str, template: object, stands_for: str | None) -> None:
    one = model_names.guess_model_of_run(text, template)
    assert (one and one.name) == stands_for
    assert one is None or (one.template, one.hub) == (None, ())


@pytest.mark.parametrize(
    ("name", "stands_for"),
    [
        ("path/to/your/model", "Qwen/Qwen3-8B"), ("${MODEL}", "Qwen/Qwen3-8B"), ("/mine/best", "Qwen/Qwen3-8B"),
        ("/m/Qwen3-4B", "Qwen/Qwen3-4B"),  # a name tells more
        ("/m/ours-with-memory", None), ("saves/x/lora-adapter", None), ("/m/x.gguf", None),
    ],
)  # fmt: skip
def test_a_recipes_name_tells_where_the_models_does_not(name: str, stands_for: str | None) -> None:
    body = f"model_name_or_path: {name}\ntemplate: qwen3\n"
    for path, more in (("/r/dpo_qwen3_8b.yaml", ""), ("/r/mine.yaml", "run_name: qwen3-8b-dpo\n"), ("-", "")):
        one = resolve(parse_recipe(path, body + more)).model
        assert (one and one.name) == (stands_for if path != "-" or stands_for == "Qwen/Qwen3-4B" else None)
        assert one is None or one.identified_by == ("name" if "4B" in name else "recipe")


@pytest.mark.sample(one_in=3, whole_for=["validator/data/*", "validator/knowledge/model_names.py"])
def test_no_model_of_the_registry_is_taken_for_another() -> None:
    registered = tables.json_table("templates")["models"].items()
    names = [(name, template) for template, kinds in registered for each in kinds.values() for name in each]
    unknown = [(name, template) for name, template in names if models.find_known_model(name) is None]
    assert unknown
    models_taken = {name: one.name for name, template in unknown if (one := model_names.guess_model(name, template))}
    # LLaMA-Factory itself misspells an owner: tiuae
    own = {name: other for name, other in models_taken.items() if name.partition("/")[2] == other.partition("/")[2]}
    assert models_taken == own


def test_weights_that_were_made_whole_again() -> None:
    there, plain = models.find_model("openai/gpt-oss-20b"), model_names.guess_model("/m/gpt-oss-20b-BF16")
    assert there.quantized
    assert plain is not None
    assert (plain.quantized, plain.dtype_bytes) == (None, 2.0)


@pytest.mark.parametrize(
    ("ending", "method", "bits"),
    [
        ("bnb-4bit", "bitsandbytes", 4), ("unsloth-bnb-4bit", "bitsandbytes", 4), ("bnb-8bit", "bitsandbytes", 8),
        ("GPTQ-Int4", "gptq", 4), ("GPTQ-Int8", "gptq", 8), ("GPTQ", "gptq", 4), ("AWQ", "awq", 4), ("FP8", "fp8", 8),
    ],
)  # fmt: skip
def test_how_a_checkpoint_is_quantized(ending: str, method: str, bits: int) -> None:
    one = model_names.guess_model(f"someone/Qwen2.5-7B-Instruct-{ending}")
    assert one is not None
    assert (one.quantized, one.quantized_bits, one.template) == (method, bits, "qwen")


def test_further_words_tell_no_template() -> None:
    told = model_names.guess_model("/m/Qwen2.5-7B-Instruct-medical")
    assert told is not None
    assert (told.template, told.base, told.positions) == (None, False, None)


def test_the_words_of_a_name_are_those_of_one_model() -> None:
    """Else a path would stand for whichever comes first."""
    words = Counter(
        (key, tuple(re.findall(r"\d+|[a-z]+", hub.rpartition("/")[2].lower().removeprefix("meta-"))))
        for key, entry in yaml_table("models").items()
        for hub in entry["hub"]
    )
    owners = Counter(name for _, name in words)
    assert {name for name, count in owners.items() if count > 1} == set()


@pytest.mark.sample(one_in=4, whole_for=["validator/data/models.yaml", "validator/knowledge/model_names.py"])
@every(models.model_ids())
def test_every_model_by_the_last_part_of_its_names(key: str) -> None:
    for hub in models.find_model(key).hub:
        one = model_names.guess_model(f"/models/{hub.rpartition('/')[2]}")
        assert one is not None
        assert (one.id, one.arch) == (key, models.find_model(hub).arch)


def _job(text: str) -> RunSettings:
    return resolve(parse_recipe("-", text))


BASE = "# /// recipe\n# base: {}\n# ///\nmodel_name_or_path: {}\n"


def test_the_header_says_where_a_checkpoint_comes_from(tmp_path: Path) -> None:
    one = _job(BASE.format("Qwen/Qwen3-8B", "/models/my-run"))
    assert one.model is not None
    assert (one.model.name, one.model.identified_by, one.model_name) == ("Qwen/Qwen3-8B", "base", "/models/my-run")
    # a name that is known needs none
    one = _job(BASE.format("Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B"))
    assert one.model is not None
    assert (one.model.name, one.model.identified_by) == ("Qwen/Qwen2.5-7B", "")
    # nor does a folder that can be read
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, '
        '"num_attention_heads": 4, "intermediate_size": 128}'
    )
    one = _job(BASE.format("Qwen/Qwen3-8B", tmp_path))
    assert one.model is not None
    assert one.model.arch.hidden == 64


def test_a_base_that_is_not_known() -> None:
    problem = _job(BASE.format("someone/new-1b", "/models/Qwen3-8B")).model_problem
    assert (
        problem
        == "`base: someone/new-1b` is not known; name one of docs/reference/models.md, or a folder with its config.json"
    )
