"""Small data sets of every form LLaMA-Factory reads, broken rows included: what they hold and how recipes use them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
RECIPE = {
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "template": "qwen",
    "cutoff_len": 128,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 3,
    "warmup_steps": 0.1,
    "seed": 42,
    "use_cpu": True,
}
# Alternating tags of a conversation, and OpenAI's names for them.
OPENAI = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
          "observation_tag": "tool", "function_tag": "function", "system_tag": "system"}  # fmt: skip
PAIRS = {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}
KTO = {"prompt": "instruction", "query": "input", "response": "output", "kto_tag": "label"}
TALK = {"messages": "conversations"}


@dataclass(frozen=True)
class Case:
    """Files by name, entries of dataset_info.json by name, and the recipe's own keys."""

    files: dict[str, bytes | str | Rows]
    entries: dict[str, dict[str, Any]]
    recipe: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> dict[str, Any]:
        """Lay the files out under `folder`; the recipe that trains on them, without its model."""
        for name, held in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_bytes(name, held))
        (folder / "dataset_info.json").write_text(json.dumps(self.entries), "utf-8")
        names = [name for name in self.entries if not name.startswith("eval")]
        return {**RECIPE, "dataset": ",".join(names), "dataset_dir": str(folder), **self.recipe}


def _bytes(name: str, held: bytes | str | Rows) -> bytes:
    if isinstance(held, bytes):
        return held
    if isinstance(held, str):
        return held.encode()
    if name.endswith((".parquet", ".arrow")):
        return _columnar(name, held)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in held)
    return (lines if name.endswith(".jsonl") else json.dumps(held, ensure_ascii=False)).encode()


def _columnar(name: str, rows: Rows) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, sink = pa.Table.from_pylist(rows), pa.BufferOutputStream()
    if name.endswith(".parquet"):
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return bytes(sink.getvalue())


def alpaca(count: int, start: int = 0) -> Rows:
    """Rows whose lengths differ, some beyond the recipe's `cutoff_len`."""
    return [{"instruction": f"Count to {i}.", "input": "in words" if i % 3 else "",
             "output": " ".join(str(n) for n in range(i % 40 + 1))} for i in range(start, start + count)]  # fmt: skip


def talk(*roles: str, **extra: Any) -> dict[str, Any]:
    """One conversation with a turn for each role."""
    return {"conversations": [{"from": role, "value": f"{role} says {i}"} for i, role in enumerate(roles)], **extra}


def chat(*roles: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": f"{role} says {i}"} for i, role in enumerate(roles)]}


def one(name: str, held: bytes | str | Rows, recipe: dict[str, Any] | None = None, **entry: Any) -> Case:
    return Case({name: held}, {"mine": {"file_name": name.split("/")[0], **entry}}, recipe or {})


def pairs(count: int) -> Rows:
    return [{"instruction": f"Question {i}?", "input": "", "chosen": "yes " * (i + 1), "rejected": "no"}
            for i in range(count)]  # fmt: skip


def kto(count: int) -> Rows:
    return [{**row, "label": bool(i % 2)} for i, row in enumerate(alpaca(count))]


NULL: dict[str, Any] = {"instruction": "x", "input": "", "output": None}
EMPTY = {"instruction": "x", "input": "", "output": ""}
DPO = {"stage": "dpo", "pref_loss": "sigmoid"}
GOOD = [talk("human", "gpt"), talk("system", "human", "gpt"), talk("human", "gpt", "human", "gpt")]
ODD = [talk("human"), talk("gpt", "human"), talk("human", "human"), talk("human", "gpt", "human"), talk()]
CALL = {"conversations": [
    {"from": "human", "value": "weather?"},
    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
    {"from": "observation", "value": "sunny"},
    {"from": "gpt", "value": "It is sunny."}]}  # fmt: skip
CASES: dict[str, Case] = {
    "alpaca-list": one("a.json", alpaca(23)),
    "alpaca-lines": one("a.jsonl", alpaca(50)),
    "alpaca-null-and-empty-answers": one("a.jsonl", [*alpaca(9), NULL, EMPTY, NULL, *alpaca(4)]),
    "alpaca-null-answers-in-a-list": one("a.json", [NULL, *alpaca(9), NULL]),
    "alpaca-missing-key": one("a.jsonl", [*alpaca(5), {"instruction": "x", "input": ""}]),
    "alpaca-empty-prompt": one("a.json", [*alpaca(5), {"instruction": "", "input": "", "output": "y"}]),
    "alpaca-numbers-as-answers": one("a.jsonl", [{**row, "output": 7} for row in alpaca(4)]),
    "alpaca-dates-as-answers": one("a.jsonl", [{**row, "output": "2024-01-02"} for row in alpaca(4)]),
    "alpaca-numbers-and-text": one("a.jsonl", [*alpaca(4), {**alpaca(1)[0], "output": 7}]),
    "alpaca-no-input-column": one("a.json", [{"instruction": "x", "output": "y"}] * 4),
    "alpaca-columns-without-input": one("a.json", [{"q": f"x{i}", "a": "y"} for i in range(7)],
                                        columns={"prompt": "q", "response": "a"}),
    "alpaca-columns-without-response": one("a.json", alpaca(4), columns={"prompt": "instruction"}),
    "alpaca-history": one("a.jsonl", [{**row, "history": [["before", "answer"]] if i % 2 else []}
                                      for i, row in enumerate(alpaca(9))],
                          columns={"prompt": "instruction", "query": "input", "response": "output",
                                   "history": "history"}),
    "alpaca-system": one("a.json", [{**row, "system": "Be brief." if i else None} for i, row in enumerate(alpaca(6))],
                         columns={"prompt": "instruction", "query": "input", "response": "output",
                                  "system": "system"}),
    "max-samples": one("a.json", [NULL, *alpaca(20)], {"max_samples": 7}),
    "num-samples-fewer": one("a.json", [*alpaca(12), NULL, NULL, NULL], num_samples=9),
    "num-samples-more": one("a.json", [*alpaca(5), NULL], num_samples=17),
    "split-slice": one("a.jsonl", alpaca(20), split="train[3:11]"),
    "split-percent": one("a.jsonl", alpaca(23), split="train[:30%]"),
    "val-size-share": one("a.jsonl", [*alpaca(30), *[NULL] * 10], {"val_size": 0.25}),
    "val-size-count": one("a.jsonl", [*alpaca(30), *[NULL] * 10], {"val_size": 7}),
    "eval-dataset": Case({"a.json": alpaca(20), "b.json": [*alpaca(3), NULL]},
                         {"mine": {"file_name": "a.json"}, "eval": {"file_name": "b.json"}}, {"eval_dataset": "eval"}),
    "two-sets": Case({"a.json": alpaca(11), "b.jsonl": GOOD * 2 + ODD},
                     {"first": {"file_name": "a.json"}, "second": {"file_name": "b.jsonl", "formatting": "sharegpt"}},
                     {"max_samples": 9}),
    **{f"interleave-{end}{'-weighted' if weights else ''}": Case(
        {"a.json": alpaca(11), "b.json": [NULL, *alpaca(4)]},
        {"first": {"file_name": "a.json"}, "second": {"file_name": "b.json"}},
        {"mix_strategy": f"interleave_{end}", **({"interleave_probs": "0.7,0.3"} if weights else {})})
       for end in ("under", "over", "once") for weights in (False, True)},
    "folder": Case({"set/1.jsonl": alpaca(4), "set/2.jsonl": alpaca(5)}, {"mine": {"file_name": "set"}}),
    "folder-of-two-types": Case({"set/1.jsonl": alpaca(4), "set/2.csv": "a\n"}, {"mine": {"file_name": "set"}}),
    "parquet": one("a.parquet", [*alpaca(12), NULL]),
    "arrow": one("a.arrow", [*alpaca(12), NULL]),
    "csv": one("a.csv", 'instruction,input,output\nx,,"two\nlines"\ny,,NA\n\nz,q,3 apples\nw,,\n'),
    "csv-numbers": one("a.csv", "instruction,input,output\nx,,1\ny,,2\n"),
    "csv-ragged": one("a.csv", "instruction,input,output\nx,,1\ny,,2,3,4\n"),
    "pt-text": one("a.txt", "First line of text.\n\nThird line, a longer one, after a blank one.\n" * 9,
                   {"stage": "pt", "cutoff_len": 32}, columns={"prompt": "text"}),
    "pt-text-not-packed": one("a.txt", "First line of text.\n\nThird.\n", {"stage": "pt", "packing": False},
                              columns={"prompt": "text"}),
    "sharegpt": one("a.json", GOOD * 4, formatting="sharegpt"),
    "sharegpt-odd-turns": one("a.jsonl", GOOD * 4 + ODD, formatting="sharegpt"),
    "sharegpt-tools": one("a.json", [CALL] * 3 + GOOD, formatting="sharegpt"),
    "sharegpt-broken-call": one("a.json", [*GOOD, {"conversations": [
        {"from": "human", "value": "x"}, {"from": "function_call", "value": "not JSON"}]}], formatting="sharegpt"),
    "sharegpt-openai-tags": one("a.json", [chat("system", "user", "assistant"), chat("user", "assistant"),
                                           chat("user", "tool")] * 3,
                                formatting="sharegpt", columns={"messages": "messages"}, tags=OPENAI),
    "sharegpt-without-system-tag": one("a.json", [chat("system", "user", "assistant"), chat("user", "assistant")] * 3,
                                       formatting="sharegpt", columns={"messages": "messages"},
                                       tags={k: v for k, v in OPENAI.items() if k != "system_tag"}),
    "sharegpt-null-content": one("a.json", [*GOOD, {"conversations": [{"from": "human", "value": None},
                                                                     {"from": "gpt", "value": "x"}]}],
                                 formatting="sharegpt"),
    "sharegpt-null-conversation": one("a.jsonl", [*GOOD, {"conversations": None}], formatting="sharegpt"),
    "sharegpt-without-tags": one("a.json", [chat("user", "assistant")] * 3, formatting="sharegpt",
                                 columns={"messages": "messages"}),
    "sharegpt-of-user-and-assistant": one("a.json", [talk("user", "assistant")] * 3, formatting="sharegpt"),
    "openai": one("a.json", [chat("system", "user", "assistant"), chat("user", "assistant", "user")] * 3,
                  formatting="openai", columns={"messages": "messages"}, tags=OPENAI),
    "dpo": one("a.json", pairs(9), DPO, ranking=True, columns=PAIRS),
    "dpo-broken": one("a.json", [*pairs(9), {**pairs(1)[0], "rejected": None}], DPO, ranking=True, columns=PAIRS),
    "dpo-sharegpt": one("a.json", [{**talk(*turns), "chosen": {"from": "gpt", "value": "a"},
                                    "rejected": {"from": "gpt", "value": "b"}}
                                   for turns in (("human",), ("human", "gpt"), ("human", "gpt", "human"))] * 2,
                        DPO, formatting="sharegpt", ranking=True,
                        columns={**TALK, "chosen": "chosen", "rejected": "rejected"}),
    "dpo-without-ranking": one("a.json", pairs(4), DPO, columns=PAIRS),
    "kto": one("a.json", kto(9), {"stage": "kto"}, columns=KTO),
    "kto-null-label": one("a.jsonl", [*kto(9), {**kto(1)[0], "label": None}], {"stage": "kto"}, columns=KTO),
    "kto-data-in-sft": one("a.json", kto(5), columns=KTO),
    "kto-sharegpt": one("a.json", [talk("human", "gpt", label=True), talk("human", "gpt", label=False),
                                   talk("human", label=True)] * 2,
                        {"stage": "kto"}, formatting="sharegpt", columns={**TALK, "kto_tag": "label"}),
    "packing": one("a.json", [*alpaca(60), NULL], {"packing": True, "cutoff_len": 128}),
    "packing-neat": one("a.json", alpaca(60), {"neat_packing": True, "cutoff_len": 256}),
    "mask-history": one("a.json", GOOD * 4, {"mask_history": True}, formatting="sharegpt"),
    "max-steps": one("a.json", alpaca(10), {"max_steps": 7, "save_steps": 3}),
    "bom": one("a.jsonl", "\ufeff" + "".join(json.dumps(row) + "\n" for row in alpaca(4))),
    "bom-list": one("a.json", "\ufeff" + json.dumps(alpaca(4))),
    "half-a-line": one("a.jsonl", json.dumps(alpaca(1)[0]) + '\n{"instruction": "x", "inp'),
    "object-instead-of-list": one("a.json", json.dumps({"data": alpaca(4)})),
    "invalid-utf-8": one("a.jsonl", json.dumps(alpaca(1)[0]).encode() + b'\n{"instruction": "\xe9"}\n'),
    "empty": one("a.jsonl", ""),
    "empty-list": one("a.json", "[]"),
    "list-of-texts": one("a.json", '["x", "y"]'),
    "blank-lines": one("a.jsonl", "\n" + "\n\n".join(json.dumps(row) for row in alpaca(4)) + "\n\n"),
    "trailing-comma": one("a.json", "[" + json.dumps(alpaca(1)[0]) + ",]"),
    "unclosed-list": one("a.json", json.dumps(alpaca(3))[:-1]),
    "null-in-list": one("a.json", json.dumps([*alpaca(3), None])),
    "null-line": one("a.jsonl", json.dumps(alpaca(1)[0]) + "\nnull\n"),
    "null-turn": one("a.jsonl", [*GOOD, {"conversations": [None]}], formatting="sharegpt"),
    "objects-over-lines": one("a.json", "\n".join(json.dumps(row, indent=2) for row in alpaca(3))),
    "objects-on-one-line": one("a.jsonl", " ".join(json.dumps(row) for row in alpaca(3))),
    "numbers-as-questions": one("a.json", [{**row, "instruction": i} for i, row in enumerate(alpaca(4))]),
    "booleans-and-numbers": one("a.jsonl", [{**row, "x": i or False} for i, row in enumerate(alpaca(3))]),
    "dates-in-a-list": one("a.json", [{**row, "output": "2024-01-02"} for row in alpaca(4)]),
    "csv-labels": one("a.csv", "instruction,input,output,label\nx,,yes,True\ny,,no,False\nz,,no,\n", {"stage": "kto"},
                      columns=KTO),
    "kto-thinking": one("a.json", kto(9), {"stage": "kto", "template": "qwen3"}, columns=KTO),
    "dpo-thinking-off": one("a.json", pairs(9), {**DPO, "template": "qwen3", "enable_thinking": False}, ranking=True,
                            columns=PAIRS),
    "system-column": one("a.json", [{**talk("human", "gpt"), "prompt": "Be kind." if i else ""} for i in range(4)],
                         formatting="sharegpt", columns={**TALK, "system": "prompt"}),
    **{f"template-{name}": one("a.json", GOOD * 3, {"template": name}, formatting="sharegpt")
       for name in ("qwen3", "qwen3_nothink", "llama3", "llama2", "gemma", "glm4", "deepseek3", "empty", "default",
                    "mistral", "yi", "phi4", "intern2", "glmz1", "gpt_oss")},
    "template-default-system": one("a.json", alpaca(9), {"default_system": "Answer in rhyme."}),
    "thoughts": one("a.json", [{"conversations": [
        {"from": "human", "value": "x"}, {"from": "gpt", "value": "<think>\nhm\n</think>\n\ny"},
        {"from": "human", "value": "z"}, {"from": "gpt", "value": "<think>\nah\n</think>\n\nw"}]}, *GOOD],
        {"template": "qwen3", "enable_thinking": False}, formatting="sharegpt"),
    "thoughts-in-the-last-turn": one("a.json", [{"conversations": [
        {"from": "human", "value": "x"}, {"from": "gpt", "value": "<think>\nhm\n</think>\n\ny"},
        {"from": "human", "value": "z"}, {"from": "gpt", "value": "<think>\nah\n</think>\n\nw"}]}, *GOOD],
        {"template": "qwen3", "mask_history": True}, formatting="sharegpt"),
    "train-on-prompt": one("a.json", alpaca(9), {"train_on_prompt": True}),
    "packing-in-batches": one("a.json", [*alpaca(60), NULL], {
        "packing": True, "cutoff_len": 128, "preprocessing_batch_size": 7}),
    "packing-in-processes": one("a.json", alpaca(61), {
        "packing": True, "cutoff_len": 128, "preprocessing_num_workers": 2}),
    "pt-in-batches": one("a.txt", "A line of text that counts.\n" * 50, {
        "stage": "pt", "cutoff_len": 32, "preprocessing_batch_size": 8}, columns={"prompt": "text"}),
    "pt-packing-written": one("a.txt", "A line of text that counts.\n" * 50, {
        "stage": "pt", "cutoff_len": 33, "packing": True}, columns={"prompt": "text"}),
    "val-size-of-two-sets": Case({"a.json": [*alpaca(11), NULL], "b.json": alpaca(9)},
                                 {"first": {"file_name": "a.json"}, "second": {"file_name": "b.json"}},
                                 {"val_size": 0.3, "max_samples": 10}),
    "drawn-from-two-sets": Case({"a.json": [*alpaca(11), NULL, NULL], "b.json": [*alpaca(9), NULL]},
                                {"first": {"file_name": "a.json", "num_samples": 8},
                                 "second": {"file_name": "b.json", "num_samples": 14}}, {"seed": 7}),
    "epochs-in-part": one("a.json", alpaca(37), {"num_train_epochs": 2.5, "warmup_steps": 5}),
}  # fmt: skip
