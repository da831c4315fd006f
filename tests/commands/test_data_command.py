"""The `data` command as people call it: formats, exit codes, broken files, and what works without the extra."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from support import program

from validator import dataset
from validator.dataset import data_page, sample_guidance
from validator.errors import RecipeError
from validator.output import progress
from validator.run.settings import run_of_values

ROOT = Path(__file__).parents[2]
ROW = '{"instruction": "Say hi to all people.", "input": "", "output": "hi there"}'
TALK = '{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}'
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def run(*arguments: str) -> Result:
    return program.run("data", *arguments)


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "half a line": ("a.jsonl", f'{ROW}\n{{"instruction": "x", "out'.encode(),
                    "a.jsonl:2: error: line 2 ends in the middle"),
    "invalid UTF-8 in lines": ("a.jsonl", f"{ROW}\n".encode() + b'{"instruction": "\xe9"}\n',
                               "a.jsonl:2: error: line 2 is not UTF-8 text (byte 0xe9 at column 18); save it as UTF-8"),
    "invalid UTF-8 in csv": ("a.csv", b"instruction,output\na,b\nc,\"d\nd\"\ne,\xe9\n",
                             "a.csv:5: error: line 5 is not UTF-8 text (invalid continuation byte); save it as UTF-8"),
    "invalid UTF-8 in a list": ("a.json", f"[{ROW}, ".encode() + b'{"instruction": "\xe9"}]',
                                "a.json:1: error: row 2 is not UTF-8 text (byte 0xe9); save it as UTF-8"),
    "BOM": ("a.json", f"[{ROW}]".encode("utf-8-sig"), "a.json: error: is a list after a byte order mark"),
    "UTF-16": ("a.json", "[]".encode("utf-16"), "a.json: error: is UTF-16 text"),
    "nested nulls": ("a.jsonl", f'{TALK}\n{{"conversations": [null]}}\n'.encode(),
                     "a.jsonl:2: error: `conversations` is not a list of turns"),
    "nulls in a turn": ("a.jsonl", f'{TALK}\n{TALK.replace(chr(34) + "hi" + chr(34), "null")}\n'.encode(),
                        "a.jsonl:2: error: a turn holds something other than text"),
    "an empty file": ("a.jsonl", b"", "a.jsonl: error: holds no row"),
    "an empty list": ("a.json", b"[]", "a.json: error: holds no row"),
    "a list that does not end": ("a.json", f"[{ROW}".encode(), "a.json:1: error: row 2 is missing"),
    "a comma too many": ("a.json", f"[{ROW},]".encode(), "a.json:1: error: row 2 is not valid JSON: a comma too many"),
    "numbers": ("a.jsonl", b"1\n2\n", "a.jsonl:1: error: line 1 is no JSON object"),
    "gzip cut off": ("a.jsonl", gzip.compress(ROW.encode() * 50)[:60], "a.jsonl: error: is a damaged gzip file"),
    "no parquet": ("a.parquet", b"PAR1", "a.parquet: error: is not a valid parquet file"),
    "no arrow": ("a.arrow", b"xx", "a.arrow: error: is not a valid arrow file"),
    "ragged csv": ("a.csv", b"instruction,output\nx,y\nx,y,z\n", "a.csv:3: error: line 3 has 3 fields, the header 2"),
    "two types": ("a.jsonl", f'{ROW}\n{ROW.replace(chr(34) + "hi there" + chr(34), "7")}\n'.encode(),
                  "a.jsonl: error: `output` is a number at"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_input_gets_one_clear_message(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, held, said = BROKEN[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_bytes(held)
    found = run(file)
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert found.exit_code == 1
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1
    assert errors[0].startswith(said)


def test_rows_beside_the_examples_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS * 5))
    shown = run(str(tmp_path / "a.jsonl")).stdout
    assert re.search(r"5 dropped: .*a.jsonl:2, .*a.jsonl:5, .*a.jsonl:8, and 2 more\)", shown)
    assert re.search(r"  exact duplicates: 9 .*(\n      .* like .*){3}\n      and 6 more\n", shown)


DROPPED_ROW = {"instruction": "Which row is dropped?", "input": "", "output": None}
ROWS = [json.loads(ROW), DROPPED_ROW, json.loads(ROW)]
# By the file that holds the rows: its content, and the place of the dropped row in the answer.
PLACES: dict[str, tuple[str, str]] = {
    "lines.jsonl": ("\n\n".join(map(json.dumps, ROWS)), "lines.jsonl:3"),
    "list.json": (json.dumps(ROWS, indent=1), "list.json:7"),
    "objects.json": ("\n".join(json.dumps(row, indent=1) for row in ROWS), "objects.json:6"),
    "one-line.json": (json.dumps(ROWS), "row 2 of one-line.json"),
    "cells.csv": ('instruction,input,output\n"a\nb",,c\n\n"d\ne",,\n', "cells.csv:5"),
    "table.parquet": ("", "row 2 of table.parquet"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_is_a_line_of_the_file_or_says_that_it_is_a_row(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, place = PLACES[name]
    monkeypatch.chdir(tmp_path)
    if content:
        Path(name).write_text(content)
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), name)
    assert json.loads(run(name, "--format", "json").stdout)["drops"][0]["examples"] == [place]


@pytest.mark.parametrize(
    ("file", "held", "said"),
    [
        ("a.json", f'{{"data": [{ROW}]}}', "its rows are in `data`"),
        ("a.json", f'\n{{"data": [{ROW}\n]}}', "its rows are in `data`"),
        ("a.jsonl.gz", "x", "LLaMA-Factory does not read"),
        ("a.jsonl", '{"x": 1, "y": 2}\n', "the columns x, y are of no known form"),
    ],
)
def test_what_is_no_data_is_refused(
    file: str, held: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(held)
    found = run(file)
    assert isinstance(found.exception, RecipeError)
    assert said in str(found.exception)


@pytest.mark.parametrize("depth", [500, 990, 1010, 1100, 100_000])
@pytest.mark.parametrize("form", ["[{}]", '{{"deep": {}}}', '[{{"deep": {}}}]'])
def test_no_depth_is_too_much(form: str, depth: int, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(form.format("[" * depth + "]" * depth))
    found = run(str(tmp_path / "a.json"))
    assert found.exit_code == 1
    assert isinstance(found.exception, (RecipeError, SystemExit))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"val_size": float("nan")}, "`val_size: nan` of 1 row leaves none to train on"),
        ({"val_size": 5}, "`val_size: 5` of 1 row leaves none to train on"),
        ({"max_samples": -1}, "no row is left to train on"),
        ({"interleave_probs": "a,b"}, "`interleave_probs` holds something other than numbers"),
        ({"stage": "pt"}, "all rows together are shorter than one packed sequence of `cutoff_len` tokens"),
    ],
)
def test_recipes_that_leave_nothing(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(ROW)
    (tmp_path / "dataset_info.json").write_text('{"a": {"file_name": "a.jsonl"}}')
    recipe = {"dataset": "a", "dataset_dir": str(tmp_path), "do_train": True, **keys}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe).replace("NaN", ".nan"))
    found = run(str(tmp_path / "r.yaml"))
    assert found.exit_code == 1
    assert f"error: {said}" in found.stdout


def test_folders_without_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    found = run(str(tmp_path))
    assert "is a folder without files" in str(found.exception)


@pytest.mark.parametrize(
    ("row", "stage", "form"),
    [
        (ROW, "sft", "alpaca"),
        (TALK, "sft", "sharegpt"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}', "sft", "sharegpt"),
        ('{"prompt": "a", "chosen": "b", "rejected": "c"}', "dpo", "alpaca"),
        ('{"question": "a", "answer": "b"}', "sft", "alpaca"),
        ('{"prompt": "a", "completion": "b", "label": true}', "kto", "alpaca"),
        ('{"text": "a"}', "pt", "alpaca"),
    ],
)
def test_the_form_of_a_file_is_told_from_its_first_row(row: str, stage: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(row + "\n")
    found = json.loads(run(str(tmp_path / "a.jsonl"), "--format", "json").stdout)
    assert (found["stage"], found["sets"][0]["formatting"], found["rows"]["trained"]) == (stage, form, 1)


@pytest.mark.parametrize(
    ("row", "entry", "said", "right"),
    [
        (TALK.replace("from", "role").replace("value", "content"), {"formatting": "sharegpt"},
         "a.jsonl: error: the turns have no `from`, `value` (they have role, content); LLaMA-Factory stops;",
         '"tags": {'),
        (TALK.replace("human", "user"), {"formatting": "sharegpt"},
         "mine: error: no row is left to train on: the turns have the roles `user`, and the tags name human, gpt,",
         '"user_tag": "user", "assistant_tag": "gpt"'),
        (TALK, {}, "a.jsonl: error: has no column `instruction`, `input`, `output`; it has conversations",
         '"formatting": "sharegpt"}'),
        ('{"prompt": "a", "chosen": "b", "rejected": "c"}', {},
         "a.jsonl: error: has no column `instruction`, `input`, `output`; it has prompt, chosen, rejected",
         '"ranking": true}'),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named_with_the_right_one(
    row: str, entry: dict[str, Any], said: str, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(f"{row}\n" * 2)
    Path("dataset_info.json").write_text(json.dumps({"mine": {"file_name": "a.jsonl", **entry}}))
    Path("r.yaml").write_text("dataset: mine\ndataset_dir: .\ndo_train: true\n")
    found = run("r.yaml")
    (error,) = (line for line in found.stdout.splitlines() if ": error: " in line)
    assert error.startswith(said)
    assert 'write "mine": {"file_name": "a.jsonl", ' in error
    assert right in error


def test_hub_data_sets_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = json.loads(run("recipes/qwen7b-910b-lora.yaml", "--format", "json").stdout)
    assert all("not on this machine" in one["note"] for one in found["sets"])


def test_local_rows_are_judged_beside_a_hub_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f"{ROW}\n{ROW}\n")
    names = {"mine": {"file_name": "a.jsonl"}, "hub": {"hf_hub_url": "a/b"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(names))
    recipe = {"dataset": "mine,hub", "dataset_dir": str(tmp_path), "do_train": True}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    found = json.loads(run(str(tmp_path / "r.yaml"), "--format", "json").stdout)
    assert found["quality"][0]["kind"] == "exact duplicates"
    assert (found["steps"], found["amount"]["rows"], found["rows"]["exact"]) == (None, 0, False)
    assert "the rows of hub are not counted, because they are not on this machine" in found["notes"]


def test_a_name_that_the_registry_lacks_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text('{"mine": {"file_name": "a.jsonl"}}')
    (tmp_path / "r.yaml").write_text(json.dumps({"dataset": "mien", "dataset_dir": str(tmp_path), "do_train": True}))
    found = run(str(tmp_path / "r.yaml"))
    assert found.exit_code == 1
    assert "mien: error: is not defined in" in found.stdout
    assert "did you mean `mine`?" in found.stdout


def test_the_demo_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = run("recipes/tiny-cpu-lora.yaml", "--model", "qwen3-8b")
    assert found.exit_code == 0
    assert "rows: 200 read, 200 selected for training, 0 dropped, 200 trained" in found.stdout
    assert "steps: 25 an epoch of batch 8, 50 in all (2 epochs), 5 of warm-up, 2 saves" in found.stdout
    assert "200 different samples are few: enough to teach form and style" in found.stdout
    assert found.stderr == ""  # no bar where there is no terminal
    assert "in all (1 epochs)" in run("recipes/tiny-cpu-lora.yaml", "num_train_epochs=1").stdout


class Page(HTMLParser):
    """Whatever would fetch something, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        self.fetched += [tag] if tag in ("script", "link", "img", "iframe") or names & {"src", "href"} else []

    def handle_data(self, data: str) -> None:
        self.text += data


SCRIPT = "<script>document.title = 'ran'</script>"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page on rows with two repeats, a drop, and a script where a column's name should be."""
    row = {"instruction": "Say hi to all people.", "input": "", "output": "hi there", SCRIPT: ""}
    rows: list[dict[str, Any]] = [row] * 3
    rows.append({**rows[0], "output": None})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(str(tmp_path / "a.jsonl"), "--model", "qwen3-8b", "--html", str(tmp_path / "a.html")).exit_code == 0
    return tmp_path / "a.html"


def test_the_page_needs_nothing_else(page: Path) -> None:
    parser = Page()
    parser.feed(page.read_text("utf-8"))
    assert parser.fetched == []
    assert SCRIPT in parser.text
    assert "exact duplicates" in parser.text
    assert "no answer: null, missing, or not text" in parser.text
    assert "too few" in parser.text


def test_a_page_is_replaced_and_nothing_else_is(page: Path) -> None:
    data, before = str(page.with_name("a.jsonl")), page.read_bytes()
    page.with_name("notes.html").write_text("<!doctype html>\nmine")
    assert run(data, "--html", str(page)).exit_code == 0
    assert page.read_bytes() != before
    for name, said in (
        ("notes.html", "is not a page of this command"),
        ("", "is not a page"),
        ("no/a.html", "no folder"),
    ):
        found = run(data, "--html", str(page.parent / name))
        assert isinstance(found.exception, RecipeError)
        assert said in str(found.exception)
    assert page.with_name("notes.html").read_text() == "<!doctype html>\nmine"
    assert {path.name for path in page.parent.iterdir()} == {"a.jsonl", "a.html", "notes.html"}


@pytest.mark.parametrize(("model", "zones"), [("qwen3-8b", 5), ("qwen72b", 4), ("other/unknown-model", 0)])
def test_zones_are_those_that_the_guidance_has_figures_for(model: str, zones: int) -> None:
    job = run_of_values({"model_name_or_path": model, "stage": "sft", "finetuning_type": "lora"})
    drawn = data_page.guidance_zones_svg(sample_guidance.judge_sample_count(job, 3000, 3.0))
    assert drawn.count("<rect") == zones
    assert ("saturated" in drawn) == (zones == 5)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
def test_the_page_in_a_browser(page: Path, tmp_path: Path) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
               "--disable-sync", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"]  # fmt: skip
    done = subprocess.run(
        [str(BROWSER), *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True
    )
    assert "exact duplicates" in done.stdout
    assert done.stdout.count('class="bar"') == 1
    assert "<title>ran</title>" not in done.stdout


class Terminal(io.StringIO):
    """An error stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_bar_is_shown_after_a_second_on_a_terminal(
    stream: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((0.0, 0.5, 2.0, 2.1, 3.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    monkeypatch.setattr("sys.stderr", stream)
    bar = progress.ProgressBar(100)
    bar(10)
    assert stream.getvalue() == ""
    bar(40)
    bar(40)
    bar(60)  # the second look at all rows
    bar.close()
    half = "█" * 15 + "░" * 15
    assert stream.getvalue().split("\r")[1:] == ([f"{half} 50 rows", f"{half} 150 rows", "\x1b[K"] if shown else [])


WITHOUT = f"""
import sys
for name in {dataset.PACKAGES}:
    sys.modules[name] = None
from validator.__main__ import main
sys.argv = ["lmf-recipes", *sys.argv[1:]]
main()
"""
NEEDED = f'needs {", ".join(dataset.PACKAGES)}, which this Python lacks; run `pip install "llamafactory-recipes[data]"`'


def without(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program in a Python that lacks the packages of the extra."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run([sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, env=environment,
                          check=False)  # fmt: skip


def test_the_extra_holds_what_data_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert [re.split(r"\W", each)[0] for each in extras["data"]] == list(dataset.PACKAGES)
    assert all("llamafactory-recipes[data,metrics]" in extras[name] for name in ("amd", "ascend"))
    assert "llamafactory-recipes[amd]" in extras["train"]


@pytest.mark.process
def test_without_the_extra_data_names_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f"{ROW}\n" * 20)
    done = without("data", str(tmp_path / "a.jsonl"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"`data` {NEEDED}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt", "parquet"])
def test_without_the_extra_a_copy_takes_what_is_no_table(kind: str, tmp_path: Path) -> None:
    held = {"csv": "instruction,output\nSay hi.,hi there\n", "txt": "a text\n"}
    (tmp_path / f"a.{kind}").write_text(held.get(kind, f"{ROW}\n"))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([json.loads(ROW)]), tmp_path / "a.parquet")
    name = "qwen3-8b-a100-full-pt" if kind == "txt" else "qwen7b-910b-lora"
    done = without("copy", name, str(tmp_path), "--data", str(tmp_path / f"a.{kind}"))
    assert done.returncode == (1 if kind == "parquet" else 0), done.stderr
    assert (f"`{tmp_path}/a.parquet` {NEEDED}" in done.stderr) is (kind == "parquet")


@pytest.mark.process
def test_without_the_extra_train_says_that_it_did_not_look(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f"{ROW}\n" * 20)
    (tmp_path / "dataset_info.json").write_text('{"a": {"file_name": "a.jsonl"}}')
    (tmp_path / "r.yaml").write_text(
        f"model_name_or_path: Qwen/Qwen3-8B\ntemplate: qwen3\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        f"dataset: a\ndataset_dir: {tmp_path}\noutput_dir: {tmp_path}/out\n"
    )
    done = without("train", str(tmp_path / "r.yaml"), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"data: not looked into: this {NEEDED}" in done.stderr


@pytest.mark.process
def test_check_imports_none_of_the_engines() -> None:
    engines = "{'numpy', 'orjson', 'pyarrow', 'rensa', 'tokenizers', 'xxhash', 'validator.dataset.data_files'}"
    code = (
        "import sys; from validator.check import checking; checking.check_files(['recipes/qwen32b-910b-lora.yaml']); "
        f"print(sorted(set(sys.modules) & {engines}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    assert done.stdout == "[]\n"


def timed(folder: Path, answers: int, more: dict[str, Any] | None = None, on: str = "1xrtx-4090") -> Any:
    """What is said of the time of 400 rows with answers of so many words."""
    rows = [json.dumps({"instruction": "Say this.", "input": "", "output": "word " * answers}) for _ in range(400)]
    (folder / "a.jsonl").write_text("\n".join(rows))
    (folder / "dataset_info.json").write_text('{"mine": {"file_name": "a.jsonl"}}')
    recipe = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "template": "qwen", "dataset": "mine", "do_train": True,
              "dataset_dir": str(folder), "finetuning_type": "lora", "bf16": True, **(more or {})}  # fmt: skip
    (folder / "r.yaml").write_text(json.dumps(recipe))
    return json.loads(run(str(folder / "r.yaml"), "--machine", on, "--format", "json").stdout)["time"]


def test_time_goes_by_the_lengths_that_samples_have(tmp_path: Path) -> None:
    short, long = (timed(tmp_path, words) for words in (20, 900))
    assert short["machine"] == "1xrtx-4090"
    assert short["step_seconds"]["expected"] < long["step_seconds"]["expected"]
    assert short["hours"]["low"] < short["hours"]["expected"] < long["hours"]["expected"] < long["hours"]["high"]
    packed = timed(tmp_path, 20, {"packing": True})
    assert packed["hours"]["expected"] < short["hours"]["expected"]
    assert timed(tmp_path, 20, on="1xcpu") is None
    assert "expected, " in run(str(tmp_path / "r.yaml"), "--machine", "1xrtx-4090").stdout
