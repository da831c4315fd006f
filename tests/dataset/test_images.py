"""Images in `data`: what makes two samples the same, and the tokens, memory and time that images add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator import cli

pytest.importorskip("orjson")
KEYS = {"model_name_or_path": "Qwen/Qwen2-VL-2B-Instruct", "template": "qwen2_vl", "stage": "sft", "do_train": True,
        "finetuning_type": "lora", "dataset": "seen", "output_dir": "out", "bf16": True}  # fmt: skip
TEXTS = ("What is this?", "How many?", "Where?")


def picture(number: int, width: int = 640, height: int = 480) -> bytes:
    return b"P5 %d %d 255\n" % (width, height) + bytes([number % 256, number // 256]) * 50


def row(number: int, path: str, **more: Any) -> dict[str, Any]:
    question = f"<image>{TEXTS[number % len(TEXTS)]}"
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "A board of squares."}]
    return {"messages": turns, "images": [path], **more}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()


def report(rows: list[dict[str, Any]], pictures: dict[str, bytes], **keys: Any) -> dict[str, Any]:
    """The answer of `data` for rows and the files beside them."""
    for name, content in pictures.items():
        Path("data", name).write_bytes(content)
    Path("data/seen.json").write_text(json.dumps(rows), "utf-8")
    names = {"messages": "messages", "images": "images", **({"videos": "videos"} if "videos" in rows[0] else {})}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    entry = {"file_name": "seen.json", "formatting": "sharegpt", "columns": names, "tags": tags}
    Path("data/dataset_info.json").write_text(json.dumps({"seen": entry}), "utf-8")
    Path("recipe.yaml").write_text(
        "# /// recipe\n# machine: 1xa100-80g\n# ///\n" + "".join(f"{k}: {v}\n" for k, v in {**KEYS, **keys}.items())
    )
    found: dict[str, Any] = json.loads(
        CliRunner().invoke(cli.group, ["data", "recipe.yaml", "--format", "json"]).stdout
    )
    return found


def duplicates(found: dict[str, Any]) -> dict[str, int]:
    return {one["kind"]: one["rows"] for one in found["quality"]}


def test_different_images_under_the_same_texts_are_different_samples() -> None:
    found = report([row(i, f"{i}.pgm") for i in range(60)], {f"{i}.pgm": picture(i) for i in range(60)})
    assert duplicates(found) == {}
    assert found["amount"]["rows"] == 60


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (row(0, "a.pgm"), True),  # the same file
        (row(0, "copy.pgm"), True),  # a file of equal content
        (row(0, "b.pgm"), False),
        (row(1, "a.pgm"), False),
        (row(0, "longer.pgm"), False),
    ],
)
def test_a_duplicate_has_the_same_text_and_the_same_images(second: dict[str, Any], same: bool) -> None:
    pictures = {"a.pgm": picture(1), "copy.pgm": picture(1), "b.pgm": picture(2), "longer.pgm": picture(1) + b"\0"}
    found = report([row(0, "a.pgm"), second], pictures)
    assert duplicates(found).get("exact duplicates", 0) == same


def test_large_files_differ_by_their_size_beginning_and_end() -> None:
    middle = bytes(200_000)
    pictures = {"a.pgm": picture(1) + middle + b"1", "b.pgm": picture(1) + middle + b"2"}
    assert duplicates(report([row(0, "a.pgm"), row(0, "b.pgm")], pictures)) == {}


def test_images_count_in_tokens_memory_and_time() -> None:
    rows = [row(i, f"{i % 4}.pgm") for i in range(40)]
    small = report(rows, {f"{i}.pgm": picture(i, 56, 56) for i in range(4)})
    large = report(rows, {f"{i}.pgm": picture(i) for i in range(4)})
    assert small["images"] == {"images": 40, "rows": 40, "per_epoch": 240, "mean": 6, "longest": 6, "rows_over": 0}
    assert large["images"]["mean"] == 393
    assert large["tokens"]["per_epoch"] - small["tokens"]["per_epoch"] == 40 * (393 - 6)
    assert large["memory"]["longest_gib"] > small["memory"]["longest_gib"]
    assert large["time"]["hours"]["expected"] > small["time"]["hours"]["expected"]
    assert not any("not counted" in note for note in large["notes"])


def test_image_max_pixels_bounds_the_tokens() -> None:
    rows, pictures = [row(0, "a.pgm")], {"a.pgm": picture(1, 4000, 3000)}
    whole = report(rows, pictures)["images"]["mean"]
    assert report(rows, pictures, image_max_pixels=100_000)["images"]["mean"] < whole / 5


def test_images_that_cutoff_len_cuts_end_the_run_and_the_remedy_suffices() -> None:
    rows, pictures = [row(0, "a.pgm"), row(1, "b.pgm")], {"a.pgm": picture(1), "b.pgm": picture(1, 56, 56)}
    found = report(rows, pictures, cutoff_len=100)
    assert found["images"]["rows_over"] == 1
    assert duplicates(found)["images cut"] == 1
    (problem,) = found["problems"]
    assert problem["message"] == "`cutoff_len: 100` cuts images of up to 393 tokens in 1 of 2 rows"
    assert problem["remedy"] == "set `cutoff_len: 512`, or a smaller `image_max_pixels`"
    assert report(rows, pictures, cutoff_len=512)["problems"] == []


def test_rows_that_end_the_run_beyond_those_shown_are_counted() -> None:
    bad = [{**row(n, "a.pgm"), "images": ["a.pgm", "a.pgm"]} for n in range(5)]
    problems = report([*bad, row(5, "a.pgm")], {"a.pgm": picture(1)})["problems"]
    assert [problem["message"].endswith("(and 2 more rows are wrong)") for problem in problems] == [False, False, True]


def test_images_of_unknown_size_stop_nothing_for_sure() -> None:
    assert report([row(0, "a.pgm")], {"a.pgm": b"\0\0\0 ftypheic"}, cutoff_len=100)["problems"] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "`a.pgm` is a Git LFS pointer"),
        (b"", "`a.pgm` is empty"),
        (b"<!DOCTYPE html><html></html>", "`a.pgm` is a web page"),
        (picture(1, 1, 9_000_000), "an image of 1 x 9,000,000 pixels is refused"),
        (picture(1, 20_000, 20_000), "an image of 20,000 x 20,000 pixels is refused"),
    ],
)
def test_files_that_end_the_run(content: bytes, said: str) -> None:
    (problem,) = report([row(0, "a.pgm")], {"a.pgm": content})["problems"]
    assert said in problem["message"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (7, "image 1 is neither a path nor an image"),
        ({"bytes": None, "path": None}, "image 1 has neither bytes nor a path"),
        ({"bytes": None, "path": "gone.png"}, "image 1 does not exist"),
    ],
)
def test_values_that_are_no_image_end_the_run(value: Any, said: str) -> None:
    (problem,) = report([{**row(0, "a.pgm"), "images": [value]}], {})["problems"]
    assert said in problem["message"]


def test_an_image_of_an_unknown_kind_counts_as_the_largest() -> None:
    found = report([row(0, "a.pgm"), row(1, "b.pgm")], {"a.pgm": b"\0\0\0 ftypheic", "b.pgm": picture(1)})
    assert found["images"]["longest"] == 786
    assert any("the size of 1 image is not known (" in note and "seen.json)" in note for note in found["notes"])


def test_media_that_are_not_counted_are_named() -> None:
    film = {"messages": row(0, "")["messages"], "images": ["a.pgm"], "videos": ["f.mp4"]}
    film["messages"] = [{"role": "user", "content": "<image><video>What?"}, *film["messages"][1:]]
    found = report([film], {"a.pgm": picture(1), "f.mp4": b"1"})
    assert found["notes"][1].startswith("tokens of videos are not counted")
    assert found["time"] is None
    other = report(
        [row(0, "a.pgm")], {"a.pgm": picture(1)}, model_name_or_path="Kwai-Keye/Keye-VL-8B-Preview", template="keye_vl"
    )
    assert other["notes"][1] == (
        "tokens of images are not counted: how the processor of Keye resizes images is not known; with them samples are"
        " longer"
    )
    assert other["images"] is None


def save_tiny_model(folder: Path) -> None:
    """Write a model of Qwen2-VL's type with a tokenizer of single bytes, for which LLaMA-Factory can be asked, too."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: at for at, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 1, "mlp_ratio": 4, "in_chans": 3,
              "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}  # fmt: skip
    config = {"model_type": "qwen2_vl", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 500,
              "vision_config": vision}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def real_tokens(folder: Path, rows: list[dict[str, Any]]) -> int:
    """The tokens that LLaMA-Factory's template and plugin make of all rows."""
    from types import SimpleNamespace

    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments
    from transformers import PreTrainedTokenizerFast
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    file = str(folder / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": 12845056})
    processor = SimpleNamespace(image_processor=images, video_processor=images, feature_extractor=None,
                                image_max_pixels=768 * 768, image_min_pixels=32 * 32)  # fmt: skip
    template = get_template_and_fix_tokenizer(tokenizer, DataArguments(template="qwen2_vl"))
    total = 0
    for one in rows:
        paths = [f"data/{name}" for name in one["images"]]
        turns = template.mm_plugin.process_messages(one["messages"], paths, [], [], processor)
        total += sum(len(ids) for pair in template.encode_multiturn(tokenizer, turns) for ids in pair)
    return total


@pytest.mark.real
@pytest.mark.slow
def test_conversations_with_several_images_have_the_tokens_of_llamafactory() -> None:
    images = pytest.importorskip("PIL.Image")
    sizes = {"a.png": (640, 480), "b.png": (30, 30), "c.png": (1, 700), "d.png": (333, 777)}
    for name, size in sizes.items():
        images.new("RGB", size).save(f"data/{name}")
    Path("model").mkdir()
    save_tiny_model(Path("model"))
    rows = []
    for count in range(4):
        marks = ["<image>"] * count
        texts = ["".join(marks[:2]) + " What is this?", "Two.", f"How many{''.join(marks[2:])} are black?\n", "A board"]
        turns = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(texts)]
        rows.append({"messages": turns, "images": [*sizes][:count]})
    found = report(rows, {}, model_name_or_path="model", cutoff_len=100_000)
    assert found["tokens"]["exact"]
    assert found["tokens"]["per_epoch"] == real_tokens(Path("model"), rows)
