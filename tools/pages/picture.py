"""The picture at the head of the READMEs: what `check` says of a recipe that would fail on two RTX 4090."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path

COMMAND = "lmf-recipes check mine.yaml --machine 2xrtx-4090"
RECIPE = """\
model_name_or_path: Qwen/Qwen3-14B
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset_dir: ONLINE
dataset: tatsu-lab/alpaca
template: qwen
cutoff_len: 4096
output_dir: saves/mine
per_device_train_batch_size: 2
per_device_eval_batch_size: 1
learning_rat: 1.0e-4
num_train_epochs: 3
val_size: 0.02
eval_strategy: steps
bf16: true
enable_liger_kernel: true
"""
COLUMNS = 96
LINE, CELL, EDGE = 20, 8.43, 18  # pixels: a line's height, a character's width, the margin
COLOURS = {"error": "#ff7b72", "warning": "#e3b341", "note": "#79c0ff", "caret": "#7ee787", "plain": "#e6edf3"}
FINDING = re.compile(r"(mine\.yaml:\d+:\d+: )(error|warning|note)(: .*)")


def finding() -> str:
    """Return the picture: the command and what it prints, as SVG."""
    rows = [[("caret", "$ "), ("plain", COMMAND)], *(row for line in printed().splitlines() for row in coloured(line))]
    texts = "".join(text(at, row) for at, row in enumerate(rows))
    width, height = round(COLUMNS * CELL) + 2 * EDGE, len(rows) * LINE + 2 * EDGE - 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">\n'
        f"<title>{escape(COMMAND)}</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n{texts}</svg>\n'
    )


def printed() -> str:
    """Return what the command prints in a folder that holds the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine.yaml").write_text(RECIPE, "utf-8")
        path = [str(Path(__file__).resolve().parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONPATH": os.pathsep.join(filter(None, path))}
        words = [sys.executable, "-m", "validator", *COMMAND.split()[1:]]
        return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def coloured(line: str) -> list[list[tuple[str, str]]]:
    """Return the rows that a line takes, each as pieces of text with their colours; a long one goes on indented."""
    found = FINDING.fullmatch(line)
    rows = textwrap.wrap(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False) if found else [line]
    colour = "caret" if line.strip() in ("^", "") else "plain"
    pieces = [[(colour, row)] for row in rows]
    if found:
        place, severity = found[1], found[2]
        after = rows[0][len(place + severity) :]
        pieces[0] = [("plain", place), (severity, severity), ("plain", after)]
    return pieces


def text(at: int, row: list[tuple[str, str]]) -> str:
    """Return one row as SVG text of a fixed length, so that columns agree in every font."""
    y = EDGE + 10 + at * LINE
    cells = round(sum(len(piece) for _, piece in row) * CELL, 1)
    spans = "".join(f'<tspan fill="{COLOURS[colour]}">{escape(piece)}</tspan>' for colour, piece in row)
    return f'<text x="{EDGE}" y="{y}" xml:space="preserve" textLength="{cells}">{spans}</text>\n' if cells else ""
