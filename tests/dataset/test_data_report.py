"""What is planted in a clean data set is found, all of it and nothing else; counts, lengths and amount are judged."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from validator.dataset import data_text, quality, row_selection, sample_guidance, sequence_lengths
from validator.dataset.data_report import DataReport, DroppedRows, RowCounts
from validator.dataset.token_counting import CharacterCounter
from validator.dataset.user_input import report_on_source
from validator.recipe.recipe_file import load_recipe
from validator.rows.token_estimate import TextEstimator
from validator.run.sample_lengths import first_row_lengths
from validator.run.settings import resolve, run_of_values
from validator.run.training_time import predict_training_time

WORDS = ["".join(random.Random(seed).choices("etaoinshrdlu", k=2 + seed % 8)) for seed in range(4000)]


def clean(count: int) -> list[dict[str, Any]]:
    """Rows of random words: no two are alike."""
    draw = random.Random(1)
    return [{"instruction": " ".join(draw.choices(WORDS, k=20)), "input": "",
             "output": " ".join(draw.choices(WORDS, k=60))} for _ in range(count)]  # fmt: skip


def report_on(folder: Path, rows: list[dict[str, Any]], *, model: str = "qwen3-8b", **keys: Any) -> DataReport:
    """The report on a recipe on these rows."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    info = {"rows": {"file_name": "rows.jsonl"}, "other": {"file_name": "other.jsonl"}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    values = {"model_name_or_path": model, "template": "qwen3", "dataset": "rows", "dataset_dir": str(folder),
              "stage": "sft", "do_train": True, "finetuning_type": "lora", **keys}  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(values))
    return report_on_source(str(folder / "recipe.yaml"), None, None)


def kinds(result: DataReport) -> dict[str, int]:
    return {finding.kind: finding.rows for finding in result.quality}


def test_nothing_is_found_in_a_clean_set(tmp_path: Path) -> None:
    assert kinds(report_on(tmp_path, clean(2000))) == {}


def test_all_that_is_planted_is_found(tmp_path: Path) -> None:
    rows = clean(600)
    draw = random.Random(2)
    for at in range(10):  # the same again
        rows.append(dict(rows[at]))
    for at in range(20, 50):  # one word in sixty is another one
        words = rows[at]["output"].split()
        words[draw.randrange(60)] = "changed"
        rows.append({**rows[at], "output": " ".join(words)})
    rows[60]["output"], rows[61]["output"], rows[62]["output"] = "", "  ", "yes"
    rows[70]["output"] += "\x07"
    rows[71]["output"] += " \ufffd"
    rows[72]["output"] = "Ã¤rger"
    for at in range(80, 95):
        rows[at]["instruction"] = "Write something."
    rows[100]["output"] = "word " * 5000
    result = report_on(tmp_path, rows)
    assert kinds(result) == {
        "exact duplicates": 10,
        "near duplicates": 30,
        "empty answers": 2,
        "very short answers": 1,
        "control characters": 1,
        "garbled text": 2,
        "repeated prompt": 15,
        "answers cut": 1,
    }
    places = {finding.kind: finding.examples for finding in result.quality}
    assert places["exact duplicates"][0] == f"{tmp_path}/rows.jsonl:601 like {tmp_path}/rows.jsonl:1"
    assert places["near duplicates"][0] == f"{tmp_path}/rows.jsonl:611 like {tmp_path}/rows.jsonl:21"
    assert places["answers cut"] == [f"{tmp_path}/rows.jsonl:101"]


def test_evaluation_rows_in_training_are_found(tmp_path: Path) -> None:
    rows = clean(50)
    other = [*clean(60)[50:], rows[3], rows[4]]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    result = report_on(tmp_path, rows, eval_dataset="other")
    assert kinds(result) == {"evaluation rows in training": 2}
    assert result.quality[0].examples[0] == f"{tmp_path}/other.jsonl:11 like {tmp_path}/rows.jsonl:4"


def test_chinese_near_duplicates_are_found(tmp_path: Path) -> None:
    draw = random.Random(3)
    signs = [chr(0x4E00 + n) for n in range(3000)]
    texts = ["".join(draw.choices(signs, k=90)) for _ in range(50)]
    rows = [{"instruction": text[:30], "input": "", "output": text} for text in texts]
    rows.append({**rows[7], "output": rows[7]["output"][:-1] + "好"})
    assert kinds(report_on(tmp_path, rows)) == {"near duplicates": 1}


def test_a_sign_beyond_ascii_hides_no_near_duplicate(tmp_path: Path) -> None:
    rows = [{**row, "output": row["output"].replace(" ", ", ")} for row in clean(50)]
    rows.append({**rows[7], "output": rows[7]["output"] + " “café”"})
    assert kinds(report_on(tmp_path, rows)) == {"near duplicates": 1}


def test_drops_name_reason_and_rows(tmp_path: Path) -> None:
    rows = clean(20)
    rows[4]["output"] = None
    result = report_on(tmp_path, rows)
    assert result.drops == [DroppedRows("no answer: null, missing, or not text", 1, [f"{tmp_path}/rows.jsonl:5"])]
    assert result.rows == RowCounts(
        read=20, selected=20, dropped=1, trained=19, evaluated=0, evaluation_dropped=0, sequences=19, exact=True
    )


def test_the_longest_batch_needs_less_than_cutoff_len(tmp_path: Path) -> None:
    result = report_on(tmp_path, clean(50), cutoff_len=8192)
    assert result.memory
    assert result.memory.longest < 512
    assert result.memory.longest_gib < result.memory.cutoff_gib


@pytest.mark.parametrize(
    ("model", "rows", "epochs", "verdict", "better"),
    [
        ("qwen7b", 30, 3, "too few", None),
        ("qwen7b", 300, 3, "few", None),
        ("qwen7b", 817, 3, "useful", None),
        ("qwen7b", 1_500, 3, "good", None),
        ("qwen7b", 300_000, 1, "saturated", 72),
        ("qwen14b", 40_000, 3, "good", None),
        ("qwen72b", 300, 3, "few", None),
        ("qwen72b", 300_000, 3, "good", None),
    ],
)
def test_amount(model: str, rows: int, epochs: float, verdict: str, better: int | None) -> None:
    job = run_of_values({"model_name_or_path": model, "stage": "sft", "finetuning_type": "lora"})
    judged = sample_guidance.judge_sample_count(job, rows, epochs)
    assert judged.verdict == verdict
    assert (judged.better_size.billions if judged.better_size else None) == better


def test_ten_epochs_of_300_rows_are_learned_by_heart() -> None:
    job = run_of_values({"model_name_or_path": "qwen7b", "stage": "sft", "finetuning_type": "lora"})
    assert "10 epochs of 300 samples" in sample_guidance.judge_sample_count(job, 300, 10).epochs.message
    assert not sample_guidance.judge_sample_count(job, 817, 15).epochs.message, "LIMO's own run"
    assert not sample_guidance.judge_sample_count(job, 5_000, 3).epochs.message


def test_no_guidance_is_said() -> None:
    job = run_of_values({"model_name_or_path": "qwen7b", "stage": "ppo", "finetuning_type": "lora"})
    assert sample_guidance.judge_sample_count(job, 500, 3).verdict == "unknown"
    assert "no public guidance for stage ppo" in sample_guidance.judge_sample_count(job, 500, 3).message


@pytest.mark.parametrize(
    ("stage", "rows", "verdict", "marks"),
    [
        ("dpo", 900, "few", ["useful", "good"]),
        ("dpo", 2_000, "useful", ["useful", "good"]),
        ("kto", 500, "few", ["good"]),
        ("rm", 9_000, "few", ["good"]),
        ("rm", 10_000, "good", ["good"]),
        ("pt", 200_000, "useful", ["useful", "good"]),
    ],
)
def test_each_stage_has_a_verdict_that_its_marks_show(stage: str, rows: int, verdict: str, marks: list[str]) -> None:
    judged = sample_guidance.judge_sample_count(
        run_of_values({"model_name_or_path": "qwen7b", "stage": stage, "finetuning_type": "full"}), rows, 1
    )
    assert (judged.verdict, list(judged.figures())) == (verdict, marks)
    assert set(judged.sure) == set(marks)


def test_texts_of_pretraining_are_counted_in_blocks(tmp_path: Path) -> None:
    result = report_on(tmp_path, clean(500), stage="pt", packing=False)
    assert 0 <= result.amount.rows - result.tokens.per_epoch / 2048 < 1
    assert result.amount.counted == f"{result.amount.rows} blocks of 2,048 tokens"


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The quick brown fox jumps over the lazy dog.", 9, 12),
        ("今天天气很好，我们一起去公园散步吧。", 10, 16),
        ("def add(a, b):\n    return a + b\n", 6, 15),
        ("", 0, 0),
    ],
)
def test_estimated_tokens(text: str, low: int, high: int) -> None:
    assert low <= CharacterCounter().count([text])[0] <= high


def test_histogram_holds_every_sample_once() -> None:
    lengths = sorted([random.Random(seed).randrange(5, 900) for seed in range(500)] + [40_000])
    bars = sequence_lengths.length_histogram(lengths)
    assert sum(bar.rows for bar in bars) == len(lengths)
    assert bars[-1].to == 40_000
    assert sequence_lengths.recommend_cutoff_len(lengths, None) == 1024
    assert sequence_lengths.recommend_cutoff_len(lengths, 512) == 512


def test_packing_fills_sequences() -> None:
    assert sequence_lengths.count_packed_sequences([5, 5, 5, 11], 10) == 2
    run = run_of_values({"preprocessing_batch_size": 2, "preprocessing_num_workers": 2})
    assert [list(batch) for batch in row_selection.packing_batches(run, np.arange(5))] == [[0, 1], [2], [3, 4]]


def test_short_texts_are_not_compared() -> None:
    assert len(quality.word_bigrams("one two three")) == 2 < quality.MIN_SHINGLES


def _on_pairs(folder: Path, machine: str | None = None) -> DataReport:
    rows = [
        {"instruction": f"question {at}", "chosen": "a long answer " * 20, "rejected": "bad " * 50} for at in range(60)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return report_on_source(str(folder / "pairs.jsonl"), "qwen3-32b", None, machine=machine)


def test_a_data_file_without_recipe_says_what_is_taken_and_judges_no_memory(tmp_path: Path) -> None:
    alone = _on_pairs(tmp_path)
    assert alone.memory is None
    assert any(note.startswith("no recipe: lora, batch 8 a device, 3 epochs, cutoff_len 2048") for note in alone.notes)
    assert _on_pairs(tmp_path, "1xh100-80g").memory is not None


@pytest.mark.parametrize(("stage", "said"), [
    ("dpo", "with the prompt and the longer answer of each pair; both answers without the prompt are"),
    ("rm", "both answers without the prompt are"), ("sft", "of them answers"),
    ("kto", "of them answers"), ("pt", "of them answers"),
])  # fmt: skip
def test_no_part_of_the_tokens_is_said_to_be_more_than_all(stage: str, said: str, tmp_path: Path) -> None:
    pairs = _on_pairs(tmp_path)
    assert pairs.tokens.answers_per_epoch > pairs.tokens.per_epoch
    assert said in data_text.tokens_sentence(replace(pairs, stage=stage))


@pytest.mark.parametrize(
    ("more", "keys", "told"),
    [
        (0, {}, ""),
        (0, {"val_size": 0.1}, "45 of the 50 rows that were read; 5 for evaluation"),
        (3, {}, "50 of the 53 rows that were read; 3 repeated"),
        (0, {"max_samples": 20}, "20 of the 50 rows that were read; 30 left out by the recipe"),
        (0, {"max_samples": 20, "val_size": 4}, "16 of the 50 rows that were read; "
         "4 for evaluation, 30 left out by the recipe"),
    ],
)  # fmt: skip
def test_rows_that_are_not_counted_are_told(tmp_path: Path, more: int, keys: dict[str, Any], told: str) -> None:
    rows = clean(50)
    report = report_on(tmp_path, [*rows, *rows[:more]], **keys)
    assert [*data_text.rows_not_counted(report)] == ([f"here: {told}"] if told else [])


def test_a_dropped_row_is_not_counted(tmp_path: Path) -> None:
    report = report_on(tmp_path, [*clean(50), {"instruction": "a", "input": "", "output": None}])
    assert [*data_text.rows_not_counted(report)] == ["here: 50 of the 51 rows that were read; 1 dropped"]


def test_a_dropped_row_of_the_evaluation_is_not_left_out_by_the_recipe(tmp_path: Path) -> None:
    bad = [{"instruction": f"a {n}", "input": "", "output": None} for n in range(20)]
    report = report_on(tmp_path, [*clean(50), *bad], val_size=0.5)
    (told,) = data_text.rows_not_counted(report)
    assert report.rows.evaluation_dropped
    assert told.endswith(f"20 dropped, {report.rows.evaluation_dropped} of them of the evaluation")


PAIR_ENTRY = {"ranking": True, "columns": {"prompt": "instruction", "chosen": "output", "rejected": "worse"}}


@pytest.mark.parametrize(
    ("stage", "entry", "template"),
    [
        ("sft", {}, "qwen3"),
        ("sft", {}, "llama2"),
        ("dpo", PAIR_ENTRY, "qwen"),
        ("pt", {"columns": {"prompt": "output"}}, None),
    ],
)
def test_data_and_the_other_commands_estimate_the_same_tokens_and_hours(
    stage: str, entry: dict[str, Any], template: str | None, tmp_path: Path
) -> None:
    rows = [{**row, "worse": row["output"][:40], "not trained on": "word " * 90} for row in clean(400)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json", **entry}}))
    values = {"model_name_or_path": "Qwen/Qwen3-8B", "template": template, "dataset": "rows", "finetuning_type": "lora",
              "dataset_dir": str(tmp_path), "stage": stage, "do_train": True, "packing": False}  # fmt: skip
    path = tmp_path / "recipe.yaml"
    path.write_text(f"# /// recipe\n# machine: 8xa100-80g\n# ///\n{json.dumps(values)}")
    report, run = report_on_source(str(path), None, None), resolve(load_recipe(str(path)))
    lengths, time = first_row_lengths(run), predict_training_time(run)
    assert report.time
    assert time
    assert time.hours
    assert report.tokens.mean == round(sum(lengths) / len(lengths))
    assert report.time.hours == pytest.approx(time.hours, rel=0.01)
    assert "estimated from all 400 rows" in time.assumed[0]


def test_with_the_lengths_that_data_counts_the_other_commands_predict_the_same_hours(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "demo" / "tiny-qwen3"
    rows = [{**row, "output": "word " * (20 + number % 300)} for number, row in enumerate(clean(1500))]
    report_on(tmp_path, rows, model=str(model), template="qwen3_nothink", cutoff_len=4096)
    path, head = tmp_path / "recipe.yaml", "# /// recipe\n# machine: 1xa100-80g\n"
    body = f"# ///\n{path.read_text()}"
    path.write_text(f"{head}{body}")
    report = report_on_source(str(path), None, None)
    (line,) = (line for line in data_text.format_report(report).splitlines() if "# lengths: [" in line)
    path.write_text(f"{head}{line.split('`')[1]}\n{body}")
    time = predict_training_time(resolve(load_recipe(str(path))))
    assert report.time
    assert time
    assert time.hours == pytest.approx(report.time.hours, rel=0.05)


def test_numpy_and_python_estimate_alike() -> None:
    texts = ["", "Is it 12.5 %?\n\tYes.", "模型的长度", "e\u0301\ud800", *(str(row) for row in clean(50))]
    assert CharacterCounter().count(texts) == TextEstimator().count(texts)
