"""What LLaMA-Factory itself makes of the named cases of small_sets.py and nasty_sets.py, as JSON on the last line:
rows kept, tokens, dropped rows, and the Trainer's steps. A program of its own, because the caches it must not touch are
chosen by environment."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import nasty_sets, small_sets

FOLDER, MODEL, NAMES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(FOLDER / "hf"), "HF_DATASETS_CACHE": str(FOLDER / "cache")}


def measure(case: small_sets.Case, name: str) -> dict[str, Any]:
    """The figures of one case, or the error that ended it."""
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer, template
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    folder = FOLDER / name
    folder.mkdir()
    recipe = {**case.write(folder), "model_name_or_path": MODEL, "output_dir": str(FOLDER / "out" / name)}
    log, templates = io.StringIO(), copy.deepcopy(template.TEMPLATES)
    try:
        with contextlib.redirect_stdout(log), logged(log):
            model, data, training, tuning, _ = get_train_args(recipe)
            module = load_tokenizer(model)
            chat = get_template_and_fix_tokenizer(module["tokenizer"], data)
            stage = "rm" if tuning.stage == "dpo" else tuning.stage
            found = get_dataset(chat, model, data, training, stage=stage, **module)
            steps = trainer_steps(training, found["train_dataset"])
    except Exception as err:
        return {"error": f"{type(err).__name__}: {err}"}
    finally:  # recipes write their settings into the templates
        template.TEMPLATES.update(templates)
    return {"rows": len(found["train_dataset"]), "evaluated": len(found.get("eval_dataset") or ()),
            "tokens": tokens(found["train_dataset"]), "dropped": log.getvalue().count("Dropped invalid example"),
            **steps}  # fmt: skip


@contextlib.contextmanager
def logged(log: io.StringIO) -> Any:
    """LLaMA-Factory's log goes to `log`."""
    import logging

    handler = logging.StreamHandler(log)
    logger = logging.getLogger("llamafactory")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def tokens(found: Any) -> int:
    """Training tokens; of a pair the prompt once and the longer answer."""
    if "input_ids" in found.column_names:
        return sum(map(len, found["input_ids"]))
    return sum(max(map(len, pair)) for pair in zip(found["chosen_input_ids"], found["rejected_input_ids"], strict=True))


def trainer_steps(arguments: Any, rows: Any) -> dict[str, Any]:
    """The figures that the Trainer logs before its first step."""
    import torch
    from transformers import Trainer

    trainer = Trainer(model=torch.nn.Linear(1, 1), args=arguments, train_dataset=rows)
    loader = trainer.get_train_dataloader()
    _, per_epoch, examples, _, batch, _, total = trainer.set_initial_training_values(arguments, loader)
    return {"per_epoch": per_epoch, "examples": examples, "batch": batch, "total": total,
            "warmup": arguments.get_warmup_steps(total)}  # fmt: skip


if __name__ == "__main__":
    import datasets

    datasets.disable_progress_bars()
    cases = small_sets.CASES | nasty_sets.CASES
    sys.stdout.write("\n" + json.dumps({name: measure(cases[name], name) for name in NAMES}) + "\n")
