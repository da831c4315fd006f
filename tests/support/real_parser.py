"""Parse recipes with LLaMA-Factory's own parser, each in a fork of one process that has imported it.

    python tests/support/real_parser.py

Reads a JSON line for each recipe, of the folder to parse it in and its path with KEY=VALUE overrides behind it, and
answers each with one: path, and error or the values that were resolved. `Parser` starts it and asks.

Faked is only what this machine lacks: a GPU that can compute in bf16 (the answer to one question), packages that need a
GPU, and the target's processes (one under torchrun's variables stands for all of them).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Imported while parsing; here, so that the forks need not.
LATE = ("deepspeed", "deepspeed.comm", "matplotlib", "torch.distributed.distributed_c10d")
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
NEED_A_GPU = ("liger-kernel",)
ANEW = ("deepspeed_plugin", "hf_deepspeed_config", "distributed_state", "accelerator_config")
SHOWN = ("deepspeed", "fsdp", "bf16", "fp16", "learning_rate", "save_total_limit", "max_grad_norm")


def parse(words: str) -> dict[str, Any]:
    """What the parser makes of one recipe, with the overrides behind its path."""
    from llamafactory.hparams import get_train_args

    path, *overrides = shlex.split(words)
    sys.argv = ["llamafactory-cli", path, *overrides]
    if alone(path):
        for name in TORCHRUN:
            del os.environ[name]
    with (
        patch("transformers.training_args.is_torch_bf16_gpu_available", lambda: True),
        patch("llamafactory.hparams.parser.is_torch_bf16_gpu_available", lambda: True, create=True),
        patch("llamafactory.hparams.parser.check_version", installed),
    ):
        model, data, training, finetuning, _ = get_train_args()
    return {
        **{name: getattr(training, name) for name in SHOWN},
        "warmup": training.get_warmup_steps(1000),
        "distributed": training.parallel_mode.name == "DISTRIBUTED",
        "compute_dtype": str(model.compute_dtype),
        "template": data.template,
        "packs": data.packing,
        "neat": model.block_diag_attn,
        "cutoff_len": data.cutoff_len,
        "evaluates": training.do_eval,
        "eval_strategy": training.eval_strategy,
        "compares": finetuning.use_ref_model,
        "resolved": {
            name: str(value) for part in (model, data, training, finetuning) for name, value in settings(part)
        },
    }


def settings(arguments: object) -> list[tuple[str, object]]:
    """What one of the parser's dataclasses holds, without what each run has anew."""
    return [(name, value) for name, value in vars(arguments).items() if name not in ANEW and not name.startswith("_")]


def alone(path: str) -> bool:
    """Whether llamafactory-cli trains in its own process: one device and no DeepSpeed."""
    text = Path(path).read_text("utf-8")
    return bool(re.search(r"(?m)^# machine: 1x", text)) and not re.search(r"(?m)^(deepspeed|fsdp):", text)


def installed(requirement: str, mandatory: bool = False) -> None:
    """LLaMA-Factory's own question whether a package is there, but for those that need a GPU to be installed."""
    from llamafactory.extras.misc import check_version

    if requirement not in NEED_A_GPU:
        check_version(requirement, mandatory)


class Parser:
    """The process that parses, for all tests that ask: it takes eight seconds to import what it needs."""

    def __init__(self) -> None:
        words = [sys.executable, __file__]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, folder: Path, *recipes: str | Path) -> list[dict[str, Any]]:
        """What it makes of each, in their order. A recipe is a path or `RECIPE KEY=VALUE...`."""
        return [self._answer(folder, str(recipe)) for recipe in recipes]

    def _answer(self, folder: Path, recipe: str) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([str(folder), recipe]) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate()


def in_fork(folder: str, path: str) -> dict[str, Any]:
    """The result of a child process, so that no recipe sees the state another left behind."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            os.chdir(folder)
            os.write(writer, json.dumps({"path": path, **guarded(path)}, default=str).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"path": path, "error": "the parser's process died"}


def guarded(path: str) -> dict[str, Any]:
    try:
        return parse(path)
    except BaseException as error:  # the parser also exits
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    os.environ.update(
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
        LLAMAFACTORY_VERBOSITY="ERROR",
        OMP_NUM_THREADS="1",
    )
    output, sys.stdout = sys.stdout, sys.stderr
    for module in ("llamafactory.hparams", *LATE):
        import_module(module)
    for line in sys.stdin:
        print(json.dumps(in_fork(*json.loads(line))), file=output, flush=True)


if __name__ == "__main__":
    main()
