"""What `data` is asked about: a recipe, or a file of data as a recipe would use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.job import datasets
from validator.job.job import Job, resolve
from validator.read.override import with_overrides
from validator.read.recipe import load
from validator.study import reading
from validator.study.values import UnreadableError
from validator.tables import models

_QUESTIONS = ("instruction", "prompt", "question", "query", "problem")
_ANSWERS = ("output", "response", "answer", "completion", "solution")
_OPENAI = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
           "observation_tag": "tool", "function_tag": "function", "system_tag": "system"}  # fmt: skip


def job(path: str, model: str | None, overrides: Sequence[str] = ()) -> Job:
    """The job behind a recipe, after the overrides, or a data file. Raises RecipeError for what is neither."""
    if path == "-" or path.endswith((".yaml", ".yml")):
        document = load(path)
        if not document.readable:
            raise RecipeError(f"{path}: {document.problems[0].message}")
        return resolve(with_overrides(document, [*overrides, *([f"model_name_or_path={model}"] if model else [])]))
    return _of_file(Path(path), model)


def _of_file(path: Path, model: str | None) -> Job:
    if not path.exists():
        raise RecipeError(f"`{path}` does not exist; give a recipe (.yaml) or a data file")
    first = next((file for file in path.iterdir() if file.is_file()), None) if path.is_dir() else path
    if first is None:
        raise RecipeError(f"`{path}` is a folder without files")
    if first.suffix[1:] not in datasets.suffixes():
        raise RecipeError(f"`{path}` is no data file; LLaMA-Factory reads {', '.join(datasets.suffixes())}")
    entry, values = _guess(first)
    values |= {"do_train": True, "finetuning_type": "lora", "dataset": path.stem,
               "dataset_dir": {path.stem: {**entry, "file_name": str(path)}}}  # fmt: skip
    if model:
        values |= {"model_name_or_path": model, "template": models.model(model).template}
    return Job(values, path=str(path), folders=(Path.cwd(),))


def _guess(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entry of dataset_info.json and the stage that the first row suggests."""
    try:
        row = next((row for _, row in reading.rows(path)), {})
    except UnreadableError:
        row = {}
    turns = next((name for name in ("messages", "conversations", "conversation") if name in row), None)
    if turns:
        return _conversation(row, turns)
    if set(row) == {"text"}:
        return {"columns": {"prompt": "text"}}, {"stage": "pt"}
    return _question(row)


def _conversation(row: Mapping[str, Any], turns: str) -> tuple[dict[str, Any], dict[str, Any]]:
    first = row[turns][0] if isinstance(row[turns], list) and row[turns] else {}
    entry: dict[str, Any] = {"formatting": "sharegpt", "columns": {"messages": turns}}
    if isinstance(first, dict) and "role" in first:
        entry["tags"] = _OPENAI
    return _preference(row, entry, ("system", "tools"))


def _question(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    asked = next((name for name in _QUESTIONS if name in row), None)
    answered = next((name for name in _ANSWERS if name in row), None)
    columns = {"prompt": asked, "query": "input" if "input" in row else None, "response": answered}
    if len(row) == 1 and isinstance(next(iter(row.values())), list):
        raise RecipeError(f"the file is one object; its rows stand in `{next(iter(row))}`: save that list alone")
    if row and (not asked or not (answered or "chosen" in row)):
        raise RecipeError(f"the columns {', '.join(row)} are of no known form; describe them in a dataset_info.json, "
                          "name it in a recipe, and give the recipe")  # fmt: skip
    known = {part: name for part, name in columns.items() if name} or {"prompt": "instruction", "response": "output"}
    return _preference(row, {"columns": known}, ("system", "history"))


def _preference(
    row: Mapping[str, Any], entry: dict[str, Any], more: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pairs and labels, which need a stage of their own."""
    entry["columns"] |= {name: name for name in more if name in row}
    if "chosen" in row and "rejected" in row:
        entry["columns"] |= {"chosen": "chosen", "rejected": "rejected"}
        return {**entry, "ranking": True}, {"stage": "dpo"}
    label = next((name for name in ("label", "kto_tag") if isinstance(row.get(name), bool)), None)
    if label:
        entry["columns"]["kto_tag"] = label
        return entry, {"stage": "kto"}
    return entry, {"stage": "sft"}
