"""What people type first, before they have read the help: the last line leads on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import program

RECIPE = "qwen3-8b-4090x1-lora"
# Command line, exit code, and what the last line says.
TYPED = [
    ("", 2, "Start with `lmf-recipes plan --machine 2xrtx-4090`"),
    ("help", 0, "Start with `lmf-recipes plan --machine 2xrtx-4090`"),
    ("help train", 0, "Show this message and exit."),
    ("run x.yaml", 2, "did you mean `lmf-recipes train`?"),
    ("finetune", 2, "did you mean `lmf-recipes train`?"),
    ("validate x.yaml", 2, "did you mean `lmf-recipes check`?"),
    ("vram qwen3-8b", 2, "did you mean `lmf-recipes explain`?"),
    ("init", 2, "did you mean `lmf-recipes plan`?"),
    ("recipes", 2, "did you mean `lmf-recipes list`?"),
    ("lst", 2, "did you mean `lmf-recipes list`?"),
    ("explian x.yaml", 2, "did you mean `lmf-recipes explain`?"),
    ("qwen3-8b", 2, "`lmf-recipes --help` shows all"),
    ("x.yaml", 2, "`lmf-recipes check x.yaml` checks a file, `lmf-recipes train x.yaml` trains by it"),
    ("--hepl", 2, "Did you mean '--help'?"),
    ("list qwen3", 2, "a model is named by `--model`"),
    ("plan qwen3-8b --machine 1xrtx-4090", 2, "a model is named by `--model`"),
    ("train", 2, "a name that `lmf-recipes list` shows"),
    ("train qwen3-8b", 1, "see `lmf-recipes list --model qwen3-8b`"),
    ("train x.yaml", 1, "x.yaml"),
    ("explain", 2, "a name that `lmf-recipes list` shows"),
    ("explain https://example.org/x.yaml", 1, "download it, and give the file"),
    ("explain qwen3-8b", 1, "see `lmf-recipes list --model qwen3-8b`"),
    ("copy", 2, "a name that `lmf-recipes list` shows"),
    (f"copy {RECIPE}", 0, f"run: lmf-recipes train {RECIPE}.yaml"),
    ("copy nothing", 1, "`lmf-recipes list` shows all"),
    ("check", 2, "give a recipe, a folder, or a name of the catalogue"),
    (f"check {RECIPE}", 0, "1 file: 0 errors, 0 warnings"),
    ("data", 2, "or a file of data such as `chats.jsonl`"),
    ("diff mine.yaml", 2, "Give the file that was copied from the recipe."),
    ("submit", 2, "a name that `lmf-recipes list` shows"),
    (f"submit {RECIPE} --to k8s", 2, "'kubernetes'"),
    ("calibrate", 2, "a name that `lmf-recipes list` shows"),
]


@pytest.mark.parametrize(("line", "code", "last"), TYPED, ids=[line for line, _, _ in TYPED])
def test_the_last_line_leads_on(line: str, code: int, last: str, tmp_path: Path) -> None:
    answer = program.answer(*line.split(), cwd=tmp_path)
    said = (answer.stdout + answer.stderr).decode().strip().splitlines()
    assert answer.returncode == code
    assert last in " ".join(" ".join(said[-3:]).split())
