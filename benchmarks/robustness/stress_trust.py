"""What a stranger's recipe makes the program show and run: files outside of the repository, code in it, secrets of the
environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from robustness import hostile_repository, outside
from robustness.report import Answer, Row, answer

_SHOWN = "nothing of it is shown"
_FORMS = ("text", "json")  # which hold all that the others do
_LINKS = {
    "x.yaml": f"learing_rate: {outside.WORD}\n",
    "y.yaml": f"{outside.WORD}: [\n",
    "z.json": f'{{"zero_optimization": {{"stage": "{outside.WORD}"}}}}',
}
_COMMANDS = (
    ("check", "recipes"), ("check", "--format", "sarif", "recipes"), ("check", "--fix", "recipes/known.yaml"),
    ("check", "--simulate", "--machine", "1xa100-80g", "recipes/remote.yaml"), ("list",),
    ("plan", "--model", "model", "--machine", "1xa100-80g"),
    ("explain", "recipes/known.yaml", "--machine", "1xa100-80g"), ("data", "recipes/known.yaml"),
    ("explain", "recipes/remote.yaml", "--simulate", "--machine", "1xa100-80g", "lora_target=in_proj"),
    ("train", "recipes/known.yaml", "--dry-run"), ("diff", "qwen3-8b-a100-lora", "recipes/known.yaml"),
    ("check", "--hook", "recipes/known.yaml", "recipes/tagged.yaml", "data/dataset_info.json", "conftest.py"),
)  # fmt: skip
_SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MODELSCOPE_API_TOKEN", "OWN")
_ADDRESSES = ("HF_ENDPOINT", "http_proxy", "https_proxy", "all_proxy")
ASKING = """\
# /// recipe
# machine: 1xa100-80g
# host_ram_gib: 64
# ///
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
template: qwen
dataset: org/data
dataset_dir: ONLINE
cutoff_len: 1024
max_steps: 10
bf16: true
run_name: $OWN ${oc.env:OWN} ${OWN}
output_dir: saves/${oc.env:OWN}
"""
_TOLD = (
    ("check", "x.yaml"), ("explain", "x.yaml"), ("data", "x.yaml"), ("train", "x.yaml", "--dry-run"),
    ("submit", "x.yaml", "--to", "slurm", "--dry-run"), ("submit", "x.yaml", "--to", "skypilot", "--dry-run"),
    ("doctor", "x.yaml"), ("plan", "--model", "qwen7b", "--machine", "1xa100-80g"),
)  # fmt: skip


def rows() -> Iterator[Row]:
    """Files outside by kind, links, code, secrets."""
    for kind, cases in groupby(outside.cases(), key=lambda case: case.kind):
        yield _outside(kind, list(cases))
    yield _links()
    yield _code()
    yield _secrets()


def _outside(kind: str, cases: Sequence[outside.Case]) -> Row:
    """All cases at once, in each format; a failure is a line that holds the word, or no answer."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name, "repo")
        for number, case in enumerate(cases):
            recipe = here / f"{number}" / "x.yaml"  # each alone: what trains a model is looked for beside
            recipe.parent.mkdir(parents=True)
            recipe.write_text(outside.laid_out(case, Path(name, f"{number}")), "utf-8")
        answers = [answer(["check", "--format", form, "."], here) for form in _FORMS]
    failed = sum(sum(outside.WORD in line for line in _lines(each)) + (each.code != 1) for each in answers)
    return _row(f"{kind} elsewhere, as text and as JSON", _SHOWN, len(cases) * len(_FORMS), failed, answers)


def _lines(given: Answer) -> list[str]:
    return (given.out + given.err).decode(errors="replace").splitlines()


def _links() -> Row:
    """Recipes and DeepSpeed files that are links, judged, fixed and shown as a difference."""
    answers, failed = [], 0
    with tempfile.TemporaryDirectory() as name:
        here, there = Path(name, "repo"), Path(name, "there")
        for folder in (here, there):
            folder.mkdir()
        for link, text in _LINKS.items():
            (there / link).write_text(text, "utf-8")
            (here / link).symlink_to(there / link)
            for words in (*(["--format", form] for form in _FORMS), ["--fix", "--unsafe-fixes"], ["--diff"]):
                answers.append(answer(["check", *words, link], here))
                failed += any(outside.WORD in line for line in _lines(answers[-1]))
            failed += (there / link).read_text("utf-8") != text
    return _row("recipes that are links out of the repository", f"{_SHOWN}, nor changed", len(answers), failed, answers)


def _code() -> Row:
    """Commands in a repository full of code."""
    answers, failed = [], 0
    for words in _COMMANDS:
        with tempfile.TemporaryDirectory() as name:
            here, ran = Path(name, "repo"), Path(name, "ran")
            hostile_repository.repository(here, ran)
            answers.append(answer(words, here, {**os.environ, "XDG_CACHE_HOME": name}))
            failed += bool([*ran.iterdir()]) or answers[-1].code not in (0, 1)
    what = f"{len(hostile_repository.MODULES)} modules, pickles, templates, tags, auto_map in the working folder"
    return _row(what, "none is run, also under --simulate", len(answers), failed, answers)


def _secrets() -> Row:
    """Commands with secrets in the environment, and a recipe that asks for one."""
    address = f"http://{outside.WORD}:{outside.WORD}@127.0.0.1:9"
    secrets = {**dict.fromkeys(_SECRETS, outside.WORD), **dict.fromkeys(_ADDRESSES, address)}
    answers, failed = [], 0
    with tempfile.TemporaryDirectory() as name:
        Path(name, "x.yaml").write_text(ASKING, "utf-8")
        for words in _TOLD:
            answers.append(answer(words, Path(name), {**os.environ, **secrets}))
            failed += any(outside.WORD in line for line in _lines(answers[-1])) or answers[-1].code not in (0, 1)
    what = f"{len(secrets)} secrets in the environment, a recipe that names one"
    return _row(what, "none is shown, nor put into a job", len(answers), failed, answers)


def _row(what: str, promise: str, tried: int, failed: int, answers: Sequence[Answer]) -> Row:
    worst = max(each.seconds for each in answers)
    return Row(what, promise, tried, failed, worst, max(each.mebibytes for each in answers))
