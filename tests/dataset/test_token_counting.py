"""Counting tokens: with the model's own tokenizer where it is here and whole, else by an estimate, with the reason."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator import cli
from validator.dataset import file_parts, token_counting
from validator.dataset.token_counting import TokenizerCounter
from validator.rows import reading_limits
from validator.run.settings import run_of_values
from validator.run.workspace import Workspace

pytest.importorskip("tokenizers")

WORDS: dict[str, Any] = {
    "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
}  # fmt: skip
# The library cuts the prefix off each second half: here within a letter of two bytes, on which it panics.
PANICS = {"type": "BPE", "vocab": {"a": 0, "\u00e9": 1, "a\u00e9": 2}, "merges": [["a", "\u00e9"]],
          "continuing_subword_prefix": "x"}  # fmt: skip


def counter(folder: Path, text: str | None) -> token_counting.TokenCounter:
    """Of a model whose tokenizer.json has this text; None: it has none."""
    model = folder / "model"
    model.mkdir()
    if text is not None:
        (model / "tokenizer.json").write_text(text, "utf-8")
    return counter_again(folder)


def counter_again(folder: Path) -> token_counting.TokenCounter:
    return token_counting.best_counter(
        run_of_values({"model_name_or_path": str(folder / "model")}, workspace=Workspace("recipe.yaml", (folder,)))
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "the model's tokenizer.json is not on this machine"),
        ("", "cannot be used: EOF while parsing"),
        ("{}", "cannot be used: "),
        (json.dumps({**WORDS, "model": {**PANICS, "merges": [7]}}), "cannot be used: "),
    ],
)
def test_no_tokenizer(text: str | None, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    by = counter(tmp_path, text)
    assert reason in by.reason
    assert not by.exact
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_counts(tmp_path: Path) -> None:
    by = counter(tmp_path, json.dumps(WORDS))
    assert by.count(["a b a", "", "c\ud800"]) == [3, 0, 1]
    assert by.count(["a " * 600_000])[0] > 100_000
    assert by.count(["a " * 20_000, *["b"] * 9]) == [20_000, *[1] * 9]
    assert by.count([]) == []
    assert (by.exact, by.reason) == (True, "")
    by.close()


def test_a_tokenizer_counts_in_a_process_that_is_spawned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_parts, "START_METHOD", multiprocessing.get_context("spawn"))  # as on macOS
    monkeypatch.setattr(reading_limits, "used_memory", lambda: None)
    by = counter(tmp_path, json.dumps(WORDS))
    assert by.count(["a b a"]) == [3]
    by.close()


def replace(word: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": word}, "content": by}


def several(*normalizers: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": normalizers}}


def added(number: int) -> dict[str, Any]:
    return {"id": 9 + number, "content": "a" * number, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": True, "special": False}  # fmt: skip


# A busy machine may come to the limit of time first.
TOO_MUCH = r"needs more than (\d+ MiB of memory|5 s) for 1,600 bytes of text, the most that it may take"
# What differs from WORDS, and what is said of the file; nothing of one that does no harm. A panic of tokenizers 0.23
# aborts, or never ends.
STRANGERS: dict[str, tuple[dict[str, Any], str]] = {
    "harmless": ({}, ""),
    "a letter becomes two": (several(replace("a", "ab")), ""),
    "a prefix that can be cut off": (
        {"model": {**PANICS, "vocab": {"a": 0, "##b": 1, "ab": 2}, "merges": [["a", "##b"]],
                   "continuing_subword_prefix": "##"}}, "",
    ),
    "a letter becomes a million": ({"normalizer": replace("a", "a" * 1_000_000)}, TOO_MUCH),
    "a hundred letters of each, six times": (several(*[replace("a", "a" * 100)] * 6), TOO_MUCH),
    "a thousand words of each": (several(*[replace("a", "a " * 100)] * 2), TOO_MUCH),
    "text before text": (
        several(*[{"type": "Prepend", "prepend": "a" * 1000}, replace("a", "a" * 1000)] * 3), TOO_MUCH,
    ),
    "every place of a text": (
        several(*[{"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 100}] * 6), TOO_MUCH,
    ),
    "added tokens that grow": (
        {**several(*[replace("a", "a" * 100)] * 4), "added_tokens": [added(number) for number in range(1, 9)]},
        r"needs more than (\d+ MiB of memory|5 s) to be loaded, the most that it may take",
    ),
    "a panic while loading": ({"model": PANICS}, "cannot be used: byte index 1 is|library with SIGABRT"),
    "a panic of a longer prefix": (
        {"model": {**PANICS, "continuing_subword_prefix": "long"}}, "cannot be used: |library with SIGABRT",
    ),
    "a panic while counting": ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}},
                               "cannot be used: Onig: Regex search error|needs more than 5 s"),
    "words that nothing stands for": ({"model": {**WORDS["model"], "unk_token": "none"}},
                                      "cannot be used: WordLevel error: Missing .UNK. token from the vocabulary"),
}  # fmt: skip


CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 1000, "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 16, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}  # fmt: skip


def write_recipe(folder: Path, tokenizer: dict[str, Any]) -> Path:
    """A recipe of a model with this tokenizer, and its data: 16 rows."""
    (folder / "model").mkdir()
    (folder / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    row = {"instruction": "a" * 40, "input": "", "output": "a b " * 15}
    (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 16)
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"}}))
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"model_name_or_path: {folder}/model\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
                      f"dataset: rows\ndataset_dir: {folder}\ntemplate: empty\noutput_dir: {folder}/out\n")  # fmt: skip
    return recipe


@pytest.mark.parametrize("name", STRANGERS)
def test_a_tokenizer_of_a_stranger_costs_no_more_than_its_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    changes, message = STRANGERS[name]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.group, ["data", str(write_recipe(tmp_path, {**WORDS, **changes}))])
    told = [line for line in done.output.splitlines() if "tokenizer.json" in line]
    assert done.exit_code == 0, done.output
    assert "rows: 16 read, 16 selected for training, 0 dropped, 16 trained" in done.output
    assert capfd.readouterr() == ("", "")
    if not message:
        assert [line.partition(": ")[0] for line in told] == ["tokens by model/tokenizer.json"]
        return
    assert "tokens estimated from the script of the text: " in done.output
    assert len(told) == 1
    assert told[0].startswith("note: token counts are estimates: `model/tokenizer.json` ")
    assert re.search(message, told[0])
    assert told[0].endswith("; fetch it again from where the model comes from")


def test_a_tokenizer_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of 30,000 letters is looked for in all words that begin there.
    pieces = {"type": "WordPiece", "vocab": {"?": 0, "a": 1, "##a": 2}, "unk_token": "?",
              "continuing_subword_prefix": "##", "max_input_chars_per_word": 1_000_000}  # fmt: skip
    by = counter(tmp_path, json.dumps({**WORDS, "model": pieces}))
    assert isinstance(by, TokenizerCounter)
    monkeypatch.setattr(token_counting, "_SECONDS", 0)
    texts = ["a" * 30_000, "b"]
    assert by.count(texts) == token_counting.CharacterCounter().count(texts)
    assert "needs more than 0 s for 30,001 bytes of text, the most that it may take; fetch it again" in by.reason
    assert by._process.exitcode == -signal.SIGKILL
    assert counter_again(tmp_path).reason == by.reason  # without a second wait


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_estimates_follow_the_end_of_the_process_that_counts(number: signal.Signals, tmp_path: Path) -> None:
    by = counter(tmp_path, json.dumps(WORDS))
    assert isinstance(by, TokenizerCounter)
    assert by.count(["a b"]) == [2]
    os.kill(by._process.pid or 0, number)
    by._process.join()
    assert by.count(["a b"]) == token_counting.CharacterCounter().count(["a b"])
    assert (by.exact, by.name) == (False, token_counting.CharacterCounter.name)
    assert f"ends the tokenizers library with {number.name}; fetch it again" in by.reason


def test_train_says_why_its_tokens_are_estimates(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, {**WORDS, **STRANGERS["a letter becomes a million"][0]})
    done = CliRunner().invoke(cli.group, ["train", str(recipe), "--dry-run", "--machine", "a100-80g"])
    assert "\ndata: 16 of 16 rows trained in " in done.stderr
    assert len([line for line in done.stderr.splitlines() if re.search(TOO_MUCH, line)]) == 1
    assert "\ndata: token counts are estimates: `" in done.stderr


@pytest.mark.process
def test_the_memory_of_a_stranger_is_little_more_than_that_of_another(tmp_path: Path) -> None:
    peaks = {}
    for name in ("harmless", "a letter becomes a million", "added tokens that grow"):
        folder = tmp_path / name
        folder.mkdir()
        recipe = write_recipe(folder, {**WORDS, **STRANGERS[name][0]})
        program = Path(sys.executable).with_name("lmf-recipes")
        process = subprocess.Popen([program, "data", recipe], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks[name] = used.ru_maxrss >> 10  # of the program and the process that counts, the larger one
    assert max(peaks.values()) - peaks["harmless"] < 300, f"MiB: {peaks}"
