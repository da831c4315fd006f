"""`data FILE --register NAME`: the entry that each form of data needs, which the real converter must agree with."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from validator.check.checking import check_files
from validator.cli import group
from validator.dataset import user_input
from validator.errors import RecipeError
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.entry_inference import infer_entry
from validator.rows.media_columns import first_media_fault

SHAREGPT = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
CALLED = '{"name": "f", "arguments": {}}'
SYSTEM = {"role": "system", "content": "Be brief."}
CALL: list[dict[str, Any]] = [
    TALK[0],
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": "1"},
    {"role": "tool", "content": "2"},
    TALK[1],
]
TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
        "observation_tag": "tool", "function_tag": "function", "system_tag": "system"}  # fmt: skip
FROM = {**TAGS, "role_tag": "from", "content_tag": "value", "observation_tag": "observation",
        "function_tag": "function_call"}  # fmt: skip
CHAT = {"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": TAGS}
PAIR = {"chosen": "chosen", "rejected": "rejected"}


class Form(NamedTuple):
    """Rows of one form, and the entry and stage for them."""

    rows: list[dict[str, Any]]
    entry: dict[str, Any]
    stage: str = "sft"
    name: str = "my.jsonl"


def columns(**parts: str) -> dict[str, Any]:
    return {"columns": parts}


def chat(*turns: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    return [{"messages": each, **more} for each in turns]


FORMS = {
    "alpaca": Form([{"instruction": "q", "input": "", "output": "a"}] * 2, {}),
    "alpaca list": Form([{"instruction": "q", "input": "", "output": "a"}] * 2, {}, name="my.json"),
    "alpaca without input": Form([{"instruction": "q", "output": "a"}],
                                 columns(prompt="instruction", response="output")),
    "input and output": Form([{"input": "q", "output": "a"}], columns(prompt="input", response="output")),
    "question and answer": Form([{"id": 1, "question": "q", "answer": "a"}],
                                columns(prompt="question", response="answer")),
    "prompt and completion": Form(
        [{"prompt": "q", "completion": "a"}], columns(prompt="prompt", response="completion")),
    "with context": Form([{"instruction": "q", "context": "c", "response": "a", "category": "x"}],
                         columns(prompt="instruction", query="context", response="response")),
    "with system": Form([{"system_prompt": "s", "question": "q", "response": "a"}],
                        columns(prompt="question", response="response", system="system_prompt")),
    "with history": Form([{"instruction": "q", "input": "", "output": "a", "history": [["b", "c"]]},
                          {"instruction": "q", "input": "", "output": "a", "history": []}],
                         columns(prompt="instruction", query="input", response="output", history="history")),
    "alpaca in capitals": Form([{"Instruction": "q", "Input": "i", "Output": "a"}],
                               columns(prompt="Instruction", query="Input", response="Output")),
    "human and gpt": Form([{"human": "q", "gpt": "a"}], columns(prompt="human", response="gpt")),
    "inputs and targets": Form([{"inputs": "q", "targets": "a"}], columns(prompt="inputs", response="targets")),
    "question and answer in Chinese": Form([{"问题": "q", "答案": "a"}], columns(prompt="问题", response="答案")),
    "pairs in capitals": Form([{"Prompt": "q", "Chosen": "a", "Rejected": "b"}],
                              {"columns": {"prompt": "Prompt", "chosen": "Chosen", "rejected": "Rejected"},
                               "ranking": True}, "dpo"),
    "csv": Form([{"question": "q, or not", "answer": "a"}], columns(prompt="question", response="answer"),
                name="my.csv"),
    "sharegpt": Form([{"conversations": SHAREGPT}], {"formatting": "sharegpt"}),
    "sharegpt, other column": Form([{"conversation": SHAREGPT}],
                                   {"formatting": "sharegpt", "columns": {"messages": "conversation"}}),
    "sharegpt of user and assistant": Form(
        [{"conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]}],
        {"formatting": "sharegpt", "tags": FROM}),
    "sharegpt with tools": Form(
        [{"conversations": [SHAREGPT[0], {"from": "function_call", "value": CALLED},
                            {"from": "observation", "value": "1"}, SHAREGPT[1]], "tools": "[]", "system": "s"}],
        {"formatting": "sharegpt", "columns": {"messages": "conversations", "system": "system", "tools": "tools"}}),
    "messages": Form(chat(TALK, [SYSTEM, *TALK], [*TALK, *TALK]), CHAT),
    "messages with tool calls": Form(chat(CALL, TALK), {**CHAT, "formatting": "openai"}),
    "messages with parallel answers of tools": Form(
        chat([TALK[0], {"role": "function", "content": CALLED}, *CALL[2:]]), {**CHAT, "formatting": "openai"}),
    "pairs": Form([{"prompt": "q", "chosen": "a", "rejected": "b"}],
                  {"columns": {"prompt": "prompt", **PAIR}, "ranking": True}, "dpo"),
    "pairs, alpaca": Form([{"instruction": "q", "input": "i", "chosen": "a", "rejected": "b"}],
                          {"columns": {"prompt": "instruction", "query": "input", **PAIR}, "ranking": True}, "dpo"),
    "pairs of sharegpt": Form(
        [{"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": SHAREGPT[1]}],
        {"formatting": "sharegpt", "columns": {"messages": "conversations", **PAIR}, "ranking": True}, "dpo"),
    "pairs of messages": Form(
        chat([SYSTEM, TALK[0]], chosen=TALK[1], rejected=TALK[1]),
        {**CHAT, "columns": {"messages": "messages", **PAIR}, "ranking": True}, "dpo"),
    "labels": Form([{"prompt": "q", "completion": "a", "label": True},
                    {"prompt": "q", "completion": "b", "label": False}],
                   columns(prompt="prompt", response="completion", kto_tag="label"), "kto"),
    "labels of conversations": Form(
        chat(TALK, label=False), {**CHAT, "columns": {"messages": "messages", "kto_tag": "label"}}, "kto"),
    "text": Form([{"text": "words"}], columns(prompt="text"), "pt"),
    "text with its address": Form([{"text": "words", "url": "u", "meta": {"x": 1}}], columns(prompt="text"), "pt"),
    "lines of text": Form([{"text": "words"}, {"text": "more"}], columns(prompt="text"), "pt", "my.txt"),
    "images in messages": Form(
        chat([{"role": "user", "content": "<image>q"}, TALK[1]], images=["a.png"]),
        {**CHAT, "columns": {"messages": "messages", "images": "images"}}),
    "videos and audios": Form([{"instruction": "<video>q", "output": "a", "video": "v.mp4", "audios": ["s.wav"]}],
                              columns(prompt="instruction", response="output", videos="video", audios="audios")),
}  # fmt: skip


def write(folder: Path, form: Form) -> Path:
    path = folder / form.name
    if path.suffix == ".json":
        text = json.dumps(form.rows)
    elif path.suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in form.rows)
    elif path.suffix == ".csv":
        text = "\n".join(",".join(f'"{each}"' for each in row) for row in ([*form.rows[0]], form.rows[0].values()))
    else:
        text = "".join(f"{row['text']}\n" for row in form.rows)
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FORMS)
def test_the_entry_of_each_form(name: str) -> None:
    form = FORMS[name]
    done = user_input.register_data(write(Path(), form), "my")
    assert done.entry == {"file_name": f"../{form.name}", **form.entry}
    assert done.settings == {"dataset": "my", "stage": form.stage}
    assert (done.rows, done.drops, done.added) == (len(form.rows), [], True)
    assert json.loads(Path("data/dataset_info.json").read_text()) == {"my": done.entry}


@pytest.mark.parametrize(("label", "kept"), [(1, 0), (0, 0), ("true", 0), (True, 2)])
def test_labels_are_true_or_false(label: object, kept: int) -> None:
    rows = [{"prompt": "q", "completion": "a", "label": label}] * 2
    write(Path(), Form(rows, {}))
    entry = {"file_name": "../my.jsonl", **FORMS["labels"].entry}
    assert [error for error in said(entry, "kto") if "stage: sft" in error] == []
    assert any("write true in place of 1" in error for error in said(entry, "kto")) is not bool(kept)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("label", "kept"), [(1, 0), (0, 0), ("true", 0), (True, 2)])
def test_the_real_converter_knows_no_other_labels(label: object, kept: int, folder: Path) -> None:
    pytest.importorskip("llamafactory")
    form = Form([{"prompt": "q", "completion": "a", "label": label}] * 2, FORMS["labels"].entry, "kto")
    path = write(folder, form)
    said({"file_name": "../my.jsonl", **form.entry}, "kto")
    assert [trained(form, sample) for sample in samples(form, path)].count(True) == kept


def samples(form: Form, path: Path) -> Iterator[dict[str, Any]]:
    """What the real converter makes of the rows with the entry `my` of data/. Raises as it does."""
    from datasets import load_dataset
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import get_dataset_list
    from llamafactory.extras.constants import FILEEXT2TYPE
    from llamafactory.hparams import DataArguments

    (attr,) = get_dataset_list(["my"], "data")
    if bool(attr.ranking) is not (form.stage == "dpo"):
        raise ValueError("The dataset is not applicable in the current training stage.")
    kind, file = FILEEXT2TYPE[path.suffix[1:]], str(Path("data", attr.dataset_name))
    converter = get_dataset_converter(attr.formatting, attr, DataArguments(media_dir="data"))
    return map(converter, load_dataset(kind, data_files=file, split="train", cache_dir=str(path.parent / "cache")))


def trained(form: Form, sample: dict[str, Any]) -> bool:
    """Whether the processors of the stage keep a sample (llamafactory/data/processor)."""
    answers = {0, 1} if form.stage == "pt" else {2} if form.stage in ("dpo", "kto") else {1}
    turns = [*sample["_prompt"], *sample["_response"]]
    asked = len(sample["_prompt"]) % 2 == 1 and len(sample["_response"]) in answers
    return asked and all(isinstance(turn["content"], str) for turn in turns)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", FORMS)
def test_the_real_converter_keeps_all_rows(name: str, folder: Path) -> None:
    pytest.importorskip("llamafactory")
    form = FORMS[name]
    path = write(folder, form)
    user_input.register_data(path, "my")
    kept = [trained(form, sample) for sample in samples(form, path)]
    assert kept == [True] * len(form.rows)


NAIVE: dict[str, dict[str, Any]] = {
    "no settings": {},
    "sharegpt": {"formatting": "sharegpt"},
    "sharegpt, messages": {"formatting": "sharegpt", "columns": {"messages": "messages"}},
    "alpaca, prompt": {"columns": {"prompt": "prompt", "response": "response"}},
    "ranking": {"ranking": True},
}


def said(entry: dict[str, Any], stage: str, template: str = "qwen", media_dir: str = "data") -> list[str]:
    """The errors of a recipe on the data set `my`."""
    Path("data").mkdir(exist_ok=True)
    Path("data/dataset_info.json").write_text(json.dumps({"my": entry}))
    Path("r.yaml").write_text(f"model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: {stage}\ndataset: my\n"
                              f"do_train: true\nfinetuning_type: lora\ntemplate: {template}\noutput_dir: out\n"
                              f"media_dir: {media_dir}\n")  # fmt: skip
    report = check_files(["r.yaml"]).files[0]
    return [d.message for d in report.diagnostics if d.severity == "error" and d.code.startswith(("PTH", "LOA"))]


# A picture that is not there is told of, too, once the entry is right.
LED = [name for name in FORMS if not {"images", "videos"} & {*FORMS[name].entry.get("columns", ())}]


@pytest.mark.sample(one_in=10)
@pytest.mark.parametrize("naive", NAIVE)
@pytest.mark.parametrize("name", LED)
def test_the_first_error_leads_to_the_right_entry(name: str, naive: str) -> None:
    form = FORMS[name]
    write(Path(), form)
    source = {"file_name": f"../{form.name}"}
    right = {**source, **form.entry}
    assert said(right, form.stage) == []
    for stage in ("sft", form.stage):
        errors = said({**source, **NAIVE[naive]}, stage)
        wanted = f'write "my": {json.dumps(right, ensure_ascii=False)} in dataset_info.json'
        suits = stage == form.stage
        assert all((wanted in error or right == {**source, **NAIVE[naive]}) and
                   (suits or f"`stage: {form.stage}`" in error) for error in errors), errors  # fmt: skip


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("naive", NAIVE)
@pytest.mark.parametrize("name", LED)
def test_an_error_is_said_where_the_real_converter_fails(name: str, naive: str, folder: Path) -> None:
    pytest.importorskip("llamafactory")
    form = FORMS[name]
    path = write(folder, form)
    errors = said({"file_name": f"../{form.name}", **NAIVE[naive]}, form.stage)
    try:
        runs = any(trained(form, sample) for sample in samples(form, path))
    except (AttributeError, KeyError, TypeError, ValueError):
        runs = False
    assert runs is not bool(errors), errors


@pytest.mark.parametrize(("data", "option", "name", "settings"), [
    ("my.jsonl", None, "../my.jsonl", {}),
    ("data/my.jsonl", None, "my.jsonl", {}),
    ("sub/my.jsonl", None, "../sub/my.jsonl", {}),
    ("kept/my.jsonl", None, "my.jsonl", {"dataset_dir": "kept"}),
    ("my.jsonl", "else/where", "../../my.jsonl", {"dataset_dir": "else/where"}),
    ("my.jsonl", "data", "../my.jsonl", {}),
    ("linked/my.jsonl", None, "../sub/my.jsonl", {}),
    ("../far/my.jsonl", None, "{far}/my.jsonl", {}),
])  # fmt: skip
def test_the_file_is_found_from_the_folder_of_the_registry(
    data: str, option: str | None, name: str, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    for each in ("here/data", "here/sub", "here/kept", "far"):
        (tmp_path / each).mkdir(parents=True)
    monkeypatch.chdir(here)
    Path("linked").symlink_to("sub")
    Path("kept/dataset_info.json").write_text("{}")
    Path(data).write_text(json.dumps(FORMS["alpaca"].rows[0]))
    done = user_input.register_data(Path(data), "my", Path(option) if option else None)
    assert done.entry["file_name"] == name.format(far=tmp_path / "far")
    assert done.settings == {"dataset": "my", "stage": "sft"} | settings
    folder = Path(done.settings.get("dataset_dir", "data"))
    assert Path(os.path.join(folder, done.entry["file_name"])).is_file()  # noqa: PTH118 as LLaMA-Factory joins them


def test_other_entries_stay_and_none_is_written_twice() -> None:
    path = write(Path(), FORMS["messages"])
    kept = '{\n    "other": {"file_name": "o.json"}\n}\n'
    Path("data").mkdir()
    registry = Path("data/dataset_info.json")
    registry.write_text(kept)
    assert user_input.register_data(path, "my").added
    written = registry.read_text()
    assert written.startswith(kept.rstrip("}\n"))
    assert not user_input.register_data(path, "my").added
    assert registry.read_text() == written
    with pytest.raises(RecipeError, match=r'for other data or columns than "other": .* under another name'):
        user_input.register_data(path, "other")
    assert registry.read_text() == written


OUT_OF_TURN: list[tuple[list[dict[str, Any]], str]] = [
    (TALK[:1], "it ends with a question: drop its last turn"),
    ([SYSTEM, *TALK, TALK[0]], "it ends with a question: drop its last turn"),
    (TALK[1:], "turn 1 is an answer, where a question must stand"),
    ([*TALK, TALK[1], *TALK], "turn 3 is an answer, where a question must stand"),
    ([TALK[0], *TALK], "turn 2 is a question, where an answer must stand"),
    ([*TALK, SYSTEM, TALK[1]], "turn 3 is a system prompt, where a question must stand"),
    ([TALK[0], {"role": "assistant", "content": None}], "turn 2 holds no text"),
    ([{"role": "x", "content": "q"}, TALK[1]], "turn 1 is of no known role"),
]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("turns", [turns for turns, _ in OUT_OF_TURN])
def test_the_real_converter_takes_none_out_of_turn(turns: list[dict[str, Any]], folder: Path) -> None:
    pytest.importorskip("llamafactory")
    form = Form(chat(turns), CHAT)
    path = write(folder, form)
    said({"file_name": "../my.jsonl", **CHAT}, "sft")
    assert not any(trained(form, sample) for sample in samples(form, path))


@pytest.mark.parametrize(("rows", "words"), [
    ([{"x": 1, "y": "2"}], "the columns x, y are of no known form: no turns (objects with role and content), nor a"),
    ([{"q": "a", "a": "b"}], "the other columns of text are q, a; say which is which, such as "
     "`--columns prompt=q,response=a`"),
    ([{"Question": "q", "context": "c", "Reply": "a"}],
     "such as `--columns prompt=Question,query=context,response=Reply`"),
    ([{"问题": "q", "x": "a", "y": "b"}], "the other columns of text are 问题, x, y; say which is which, such as "
     "`--columns 'prompt=问题,response=x'`"),
    ([{"my question": "q", "my answer": "a"}], "such as `--columns 'prompt=my question,response=my answer'`"),
    ([{"x": "a", "y": "b", "image": "a.png"}], "such as `--columns prompt=x,response=y,images=image`"),
    ([{"id": "1", "title": "t", "question": "q", "context": "c", "answers": {"text": ["a"]}}],
     "nor an answer as text (output, response, answer, completion); the other columns of text are id, title; say"),
    ([{"dialog": [{"a": "q", "b": "c"}]}] * 2, "`dialog` are not objects with role and content (they have a, b)"),
    ([{"question": "q", "answer": 3}], "nor an answer as text (output, response, answer, completion)"),
    ([{"chosen": "a", "rejected": "b"}], "nor a prompt as text"),
    ([{"prompt": "q", "chosen": TALK, "rejected": TALK}], "`chosen` holds a whole conversation"),
    ([{"prompt": TALK[:1], "completion": TALK[1:]}], "the turns are spread over `prompt` and `completion`; join them"),
    ([{"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, TALK[1]]}], "holds a list of parts"),
    *[(chat(turns), f"in the first conversation {words}") for turns, words in OUT_OF_TURN],
    ([{"data": [{"instruction": "q"}]}], "its rows are in `data`: save that list alone"),
    ([{"version": "1.1", "data": [{"instruction": "q"}]}], "its rows are in `data`: save that list alone"),
    ([{"prompt": "q", "completion": "a", "label": 1}, {"prompt": "q", "completion": "a", "label": 0}],
     "`label` holds labels that are neither true nor false: write true in place of 1, false in place of 0"),
    ([{"messages": TALK, "kto_tag": "true"}, {"messages": TALK, "kto_tag": "False"}], "`kto_tag` holds labels"),
    ([], "holds no row"),
])  # fmt: skip
def test_what_is_of_no_known_form_says_what_is_missing(rows: list[dict[str, Any]], words: str) -> None:
    path = write(Path(), Form(rows, {}))
    found = CliRunner().invoke(group, ["data", str(path), "--register", "my"])
    assert isinstance(found.exception, RecipeError)
    assert words in str(found.exception)
    assert not Path("data").exists()


@pytest.mark.parametrize("name", ["", " my", "a,b"])
def test_names_that_a_recipe_cannot_hold_are_refused(name: str) -> None:
    path = write(Path(), FORMS["alpaca"])
    with pytest.raises(RecipeError, match="cannot be the name of a data set"):
        user_input.register_data(path, name)


def test_most_rows_decide_and_the_others_are_told() -> None:
    mixed = [*FORMS["alpaca"].rows * 3, *FORMS["messages"].rows, {"instruction": "q", "input": "", "output": None}]
    assert infer_entry(mixed).entry == {}
    path = write(Path(), Form(mixed, {}))
    found = CliRunner().invoke(group, ["data", str(path), "--register", "my"])
    assert "warning: 4 of 10 rows are not trained: no answer: null, missing, or not text (my.jsonl:7, my.jsonl:8" in (
        found.stdout)  # fmt: skip


MIXED = [*chat(TALK, TALK), *FORMS["alpaca"].rows[:1]]


@pytest.mark.parametrize(("rows", "words"), [
    (MIXED, "row 3 ends the run: `messages` is not a list of turns"),
    ([*FORMS["alpaca"].rows * 2000, {"instruction": "q", "input": "", "output": 5}],
     "`output` is a number at my.jsonl:4001 and text before; a column has only one type; LLaMA-Factory stops"),
    ([*chat(TALK) * 1200, {"messages": None}], "my.jsonl:1201: `messages` is not a list of turns; LLaMA-Factory stops"),
])  # fmt: skip
def test_rows_that_stop_the_run_are_refused(rows: list[dict[str, Any]], words: str) -> None:
    path = write(Path(), Form(rows, {}))
    with pytest.raises(RecipeError, match=re.escape(words)):
        user_input.register_data(path, "my")
    assert not Path("data").exists()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("rows", [MIXED, [*FORMS["alpaca"].rows * 2000, {"instruction": "q", "output": 5}]])
def test_the_real_converter_stops_there(rows: list[dict[str, Any]], folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = write(folder, Form(rows, {}))
    said({"file_name": "../my.jsonl", **(FORMS["messages"].entry if rows is MIXED else {})}, "sft")
    with pytest.raises((TypeError, datasets.exceptions.DatasetGenerationError)):
        list(samples(Form(rows, {}), path))


@pytest.mark.parametrize(("more", "words"), [
    ({}, ["data set `my`: row 3 ends the run: `messages` is not a list of turns; correct the rows"]),
    ({"num_samples": 2}, []),
])  # fmt: skip
def test_check_tells_of_one_row_that_stops_the_run(more: dict[str, Any], words: list[str]) -> None:
    write(Path(), Form(MIXED, {}))
    assert said({"file_name": "../my.jsonl", **FORMS["messages"].entry, **more}, "sft") == words


def test_where_no_columns_help_none_are_asked_for() -> None:
    write(Path(), Form([{"x": 1, "y": "2"}], {}))
    (error,) = said({"file_name": "../my.jsonl"}, "sft")
    assert "nor a prompt as text" in error
    assert "name its columns" not in error


@pytest.mark.parametrize(("rows", "words"), [
    (FORMS["messages with tool calls"].rows, "no other formatting reads `tool_calls`"),
    (FORMS["sharegpt with tools"].rows, "calls of tools are written in the format of `template`"),
    (FORMS["images in messages"].rows, "files in `images` are looked for in `media_dir`"),
    ([{"instruction": "<image>q", "output": "a"}], "rows hold <image> and no column `images`"),
    ([{"instruction": "q", "output": "<think>b</think>a"}], "answers hold <think>"),
    ([{"prompt": "q", "response": "a", "rejected_response": "b"}], "not used: `rejected_response`"),
    ([{"instruction": "q", "output": "a", "reasoning_content": "one two three four", "url": "u", "id": "7"}],
     "not used: `reasoning_content`"),
    (chat([TALK[0], {**TALK[1], "reasoning_content": "r"}]), "not used: `reasoning_content`"),
    ([{"prompt": "q", "response": "a", "label": "good"}], "not used: `label`"),
    ([{"question": "q", "answer": "a", "id": "7", "source": "a b"}], ""),
    (FORMS["alpaca"].rows, ""),
])  # fmt: skip
def test_what_a_recipe_should_heed(rows: list[dict[str, Any]], words: str) -> None:
    notes = user_input.read_user_data(write(Path(), Form(rows, {}))).notes
    assert any(words in note for note in notes) if words else notes == ()


def pictures(text: str, images: list[str] | str | None, **more: Any) -> list[dict[str, Any]]:
    turns = [{"role": "user", "content": text}, TALK[1]]
    return [{"messages": turns, "images": each, **more} for each in (["a.png"] * text.count("<image>"), images)]


COUNTS = [
    (pictures("<image>q", ["a.png"]), ""),
    (pictures("<image>q", "a.png"), ""),
    (pictures("<image>q", []), "row 2 has 0 images and 1 <image> in its turns"),
    (pictures("<image>q", None), "row 2 has 0 images and 1 <image> in its turns"),
    (pictures("<image>q", ["a.png", "b.png"]), "row 2 has 2 images and 1 <image> in its turns"),
    (pictures("q", ["a.png"]), "row 2 has 1 images and 0 <image> in its turns"),
]
MARKED = {**CHAT, "columns": {"messages": "messages", "images": "images"}}


@pytest.mark.parametrize(("rows", "words"), COUNTS)
def test_each_picture_has_a_mark(rows: list[dict[str, Any]], words: str) -> None:
    assert first_media_fault(DatasetAttr.from_entry(MARKED), "sft", rows, "images").startswith(words)
    assert bool(first_media_fault(DatasetAttr.from_entry(MARKED), "sft", rows, "images")) is bool(words)
    notes = user_input.read_user_data(write(Path(), Form(rows, {}))).notes
    assert any(words in note for note in notes if "LLaMA-Factory stops" in note) is bool(words)
    for name in ("a.png", "b.png"):
        Path(name).write_bytes(b"P5 640 480 255\n")
    entry = {"file_name": "../my.jsonl", **MARKED}
    errors = said(entry, "sft", template="qwen3_vl", media_dir=".")
    assert bool(errors) is bool(words), errors
    assert all(words in error for error in errors)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.sample(one_in=3)
@pytest.mark.parametrize(("rows", "words"), COUNTS)
def test_the_real_plugin_counts_the_same(rows: list[dict[str, Any]], words: str) -> None:
    plugins = pytest.importorskip("llamafactory.data.mm_plugin")
    plugin = plugins.get_mm_plugin("qwen2_vl", image_token="<|image_pad|>", video_token="<|video_pad|>")
    images = rows[1]["images"] or []
    images = images if isinstance(images, list) else [images]
    context = pytest.raises(ValueError, match="The number of images does not match") if words else nullcontext()
    with context:
        plugin._validate_messages(rows[1]["messages"], images, [], [])


@pytest.mark.parametrize(("name", "words"), [
    ("my.JSONL", "; rename it to `my.jsonl`"),
    ("my.tsv", "; save it as csv"),
    ("my.md", "; save it as jsonl"),
])  # fmt: skip
def test_other_files_are_told_what_to_become(name: str, words: str) -> None:
    Path(name).touch()
    with pytest.raises(RecipeError, match=f"{re.escape(words)}$"):
        user_input.register_data(Path(name), "my")


def test_a_folder_is_one_data_set() -> None:
    Path("set").mkdir()
    for name in ("1.jsonl", "2.jsonl"):
        write(Path("set"), FORMS["messages"]._replace(name=name))
    done = user_input.register_data(Path("set"), "my")
    assert (done.entry["file_name"], done.rows) == ("../set", 6)


def test_a_folder_holds_files_of_one_type() -> None:
    Path("set").mkdir()
    for name in ("1.jsonl", "2.csv"):
        write(Path("set"), FORMS["alpaca"]._replace(name=name))
    with pytest.raises(RecipeError, match="; keep files of one type in the folder"):
        user_input.register_data(Path("set"), "my")


def test_what_it_prints() -> None:
    write(Path(), FORMS["pairs"])
    found = CliRunner().invoke(group, ["data", "my.jsonl", "--register", "my"])
    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        'data/dataset_info.json: added "my": {"file_name": "../my.jsonl", "columns": {"prompt": "prompt", '
        '"chosen": "chosen", "rejected": "rejected"}, "ranking": true}',
        "in the recipe:",
        "  dataset: my",
        "  stage: dpo",
        "then, with that recipe: lmf-recipes data RECIPE; without one: lmf-recipes plan --model M --machine MACHINE "
        "--data my.jsonl --write mine.yaml",
    ]
    found = CliRunner().invoke(group, ["data", "my.jsonl", "--register", "my", "--format", "json"])
    answer = json.loads(found.stdout)
    assert (answer["path"], answer["added"], answer["settings"]) == (
        "data/dataset_info.json", False, {"dataset": "my", "stage": "dpo"})  # fmt: skip


PARTS = {"prompt": "instruction", "query": "input", "response": "output"}


@pytest.mark.parametrize(
    ("answer", "entry", "wrong"),
    [
        ("a", {}, False),
        ("a", {"columns": {**PARTS, "system": 0}}, False),
        ("a", {"columns": {**PARTS, "system": 1}}, True),
        ("a", {"columns": ["instruction"]}, True),
        ("a", {"tags": None}, True),
        ("a", {"num_samples": "3"}, True),
        ("a", {"formatting": "Alpaca"}, True),
        ("a", {"ranking": True}, True),
        ("NA", {}, True),
        ("null", {}, True),
        ("7", {}, True),
    ],
)
def test_check_and_data_say_the_same_of_an_entry(answer: str, entry: dict[str, Any], wrong: bool) -> None:
    Path("my.csv").write_text(f"instruction,input,output\nq,,{answer}\n")
    errors = said({"file_name": "../my.csv", **entry}, "sft")
    assert bool(errors) is wrong, errors
    done = CliRunner().invoke(group, ["data", "r.yaml"])
    assert done.exit_code == int(wrong), done.output
