"""What the real Trainer and DeepSpeed do, each time in a fork of one process that has imported them.

    python tests/support/real_engine.py

Reads questions as JSON, each a list of a function's name and its arguments. Its last line is a list of what they gave.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import deepspeed

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import forks

MODULES, ANSWER, LOG, LIMIT = Path("modules"), Path("answer"), Path("log"), 600


def trained(configuration: str) -> str:
    """Why the Trainer stops with this DeepSpeed file; empty where it trains a step of a made model of one layer."""
    small = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 2
    try:
        arguments = TrainingArguments(
            "out", deepspeed=configuration, max_steps=1, warmup_steps=1, learning_rate=5.0e-5,
            per_device_train_batch_size=1, bf16=False, report_to="none", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        Trainer(LlamaForCausalLM(small), arguments, train_dataset=rows).train()
    except BaseException as error:  # it also exits
        return f"{type(error).__name__}: {error}"
    return ""


def moved(stage: int, offload: bool) -> list[bool]:
    """Which of four micro batches, accumulated, move the weights. Each is a unit vector, so that it alone moves its
    column of the first matrix: by 2/4 in each of four rows, as the second matrix is of ones."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2, bias=False))
    torch.nn.init.ones_(model[1].weight)
    before = model[0].weight.detach().clone()
    zero: dict[str, Any] = {"stage": stage}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    configuration = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "zero_optimization": zero,
        "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)
    for place, row in enumerate(torch.eye(4, dtype=torch.bfloat16)):
        engine.set_gradient_accumulation_boundary(place == 3)
        engine.backward(engine(row[None]).float().sum())
    engine.step()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        after = engine.module[0].weight.detach().float().clone()
    return [bool(each > 1) for each in (after - before).abs().sum(0)]


ASKED: dict[str, Callable[..., object]] = {"trained": trained, "moved": moved}


def answered(name: str, *words: object) -> object:
    """What a fork says of one question."""

    def run() -> int:
        ANSWER.write_text(json.dumps(ASKED[name](*words)))
        forks.leave(MODULES)
        return 0

    codes = forks.wait([forks.start(run, LOG, {}, LIMIT)])
    assert codes == [0], LOG.read_text(errors="replace")[-5000:]
    forks.take(MODULES)
    return json.loads(ANSWER.read_text())


def main() -> None:
    # The one rank of a process group, at a port that it has chosen itself.
    process = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update(process, CUDA_VISIBLE_DEVICES="")
    sys.stdout.write(json.dumps([answered(*each) for each in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
