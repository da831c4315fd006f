"""Odd files, paths and values in what a recipe names, and whether each command still answers.

python -m benchmarks reliability report --record files
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from robustness.report import Answer, Row, answer

ROOT = Path(__file__).parents[2]
READS = (["check"], ["explain"], ["train", "--dry-run", "--machine", "8xa100-80g"],
         ["submit", "--to", "slurm", "--dry-run"], ["diff", "qwen3-8b-a100-full"])  # fmt: skip
HEADER = {"summary": "odd", "machine": "8xa100-80g", "host_ram_gib": 1024, "samples": 80000}
ODD: tuple[Any, ...] = (
    None, True, -1, 1.5, 10**18, 10**400, "4", "x" * 5000, "a\0b", [1], {"a": [1]}, float("nan"),
)  # fmt: skip
# YAML that means a value of no kind, or more than there is.
SCALARS = ('!!bool x', '!!int ""', "!!int [1]", "!!float x", "!!binary x", "!!timestamp x", "!!omap x", "!!str [a]",
           "!!python/object/apply:os.system [id]", "9" * 5000, "0x" + "f" * 5000, "1:" * 3000 + "1", "1e400", ".nan",
           "{!!bool x: 1}", "{[a]: 1}", "&a [*a]", '"\\ud800"', "[" * 20_000)  # fmt: skip
PLACES = ("/dev/zero", "/dev/tty", "/proc/kmsg", "/proc/self/mem", "pipe", "socket", "loop", "nowhere", "folder",
          "locked/x", "x" * 300, "x/" * 3000, "a\0b", "~nosuchuser/x", "\ud800")  # fmt: skip
PATHS = ("model_name_or_path", "deepspeed", "dataset_dir", "output_dir", "tokenized_path", "media_dir", "cache_dir",
         "adapter_name_or_path", "resume_from_checkpoint", "reward_model", "accelerate")  # fmt: skip
MODEL = ("model_type", "num_hidden_layers", "vocab_size", "max_position_embeddings", "quantization_config", "head_dim")
ENTRY = ("file_name", "columns", "tags", "num_samples")
ZERO = ("stage", "offload_optimizer", "reduce_bucket_size")
ABSURD = ("cutoff_len", "per_device_train_batch_size", "gradient_accumulation_steps", "lora_rank", "num_train_epochs",
          "max_steps", "save_steps", "max_samples", "image_max_pixels", "preprocessing_num_workers")  # fmt: skip


class Try(NamedTuple):
    """Files by name, to be written beside each other, and the words that name the first."""

    files: Mapping[str, str]
    words: list[str]


def rows() -> Iterator[Row]:
    """One for each kind."""
    kinds: Mapping[str, tuple[str, Iterator[Try]]] = {
        "pipes, devices, sockets, folders and links to nowhere as a recipe": ("a finding, no waiting", _recipes()),
        "the same, and paths that no file can have, under each key that is a path": (
            "a verdict or a finding",
            _paths(),
        ),
        "YAML tags, numbers and nesting that mean nothing": ("a verdict or a finding", _scalars()),
        "values of the wrong kind in config.json": ("a verdict or a finding", _configs()),
        "values of the wrong kind in DeepSpeed files": ("a verdict or a finding", _zeros()),
        "values of the wrong kind in dataset_info.json": ("a verdict or a finding", _registries()),
        "overrides without end or form": ("a verdict or a finding", _overrides()),
        "numbers that are admitted and absurd": ("a verdict or a finding", _absurd()),
    }
    for what, (promise, tries) in kinds.items():
        answers = [_answer(one) for one in tries]
        failed = sum(each.code not in (0, 1, 2) or b"internal error" in each.err for each in answers)
        yield Row(what, promise, len(answers), failed, max(each.seconds for each in answers),
                  max(each.mebibytes for each in answers))  # fmt: skip


def _answer(one: Try) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.mkfifo(place / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / "socket"))
        for link, to in (("loop", "loop"), ("nowhere", "none")):
            (place / link).symlink_to(to)
        (place / "folder").mkdir()
        (place / "locked").mkdir(mode=0)
        for name, text in one.files.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text, "utf-8", errors="surrogatepass")
        return answer(one.words, cwd=place)


def _recipe(header: Mapping[str, Any] = HEADER, **values: Any) -> str:
    """The text of a recipe that is sound but for these values."""
    base = yaml.safe_load((ROOT / "recipes/qwen3-8b-a100-full.yaml").read_text("utf-8"))
    block = "".join(f"# {name}: {_flow(value)}\n" for name, value in header.items())
    body = "".join(f"{name}: {_flow(value)}\n" for name, value in {**base, **values}.items())
    return f"# /// recipe\n{block}# ///\n\n{body}"


def _flow(value: Any) -> str:
    """As JSON, which YAML reads, too."""
    return json.dumps(value).replace("NaN", ".nan").replace("Infinity", ".inf")


def _each(files: Mapping[str, str], number: int, recipe: str = "r.yaml") -> Try:
    """A command of those that read a recipe, in turn."""
    first, *more = READS[number % len(READS)]
    return Try(files, [first, *more, recipe])


def _recipes() -> Iterator[Try]:
    places = [place for place in PLACES if "\0" not in place and place.isascii()]
    yield from (_each({}, number, place) for place, number in product(places, range(len(READS) - 1)))


def _paths() -> Iterator[Try]:
    for number, (key, place) in enumerate(product(PATHS, PLACES)):
        header = {**HEADER, key: place} if key == "accelerate" else HEADER
        yield _each({"r.yaml": _recipe(header, **({} if key == "accelerate" else {key: place}))}, number)


def _scalars() -> Iterator[Try]:
    for number, scalar in enumerate(SCALARS):
        yield _each({"r.yaml": _recipe() + f"cutoff: {scalar}\n"}, number)
        yield _each({"r.yaml": _recipe().replace("# ///\n", f"# price: {scalar}\n# ///\n", 1)}, number)
        files = {"r.yaml": _recipe({**HEADER, "accelerate": "a.yaml"}), "a.yaml": f"fsdp_config: {scalar}\n"}
        yield _each(files, number)


def _configs() -> Iterator[Try]:
    good = {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
            "intermediate_size": 128, "num_attention_heads": 4}  # fmt: skip
    for number, (field, value) in enumerate(product(MODEL, ODD)):
        files = {"r.yaml": _recipe(model_name_or_path="m"), "m/config.json": json.dumps({**good, field: value})}
        yield _each(files, number)


def _zeros() -> Iterator[Try]:
    for number, (field, value) in enumerate(product(ZERO, ODD)):
        block = {"zero_optimization": {"stage": 3, field: value}}
        yield _each({"r.yaml": _recipe(deepspeed="z.json"), "z.json": json.dumps(block)}, number)


def _registries() -> Iterator[Try]:
    for number, (field, value) in enumerate(product(ENTRY, ODD)):
        entry = {"d": {"file_name": "d.json", field: value}}
        files = {"r.yaml": _recipe(dataset="d", dataset_dir="data"), "data/dataset_info.json": json.dumps(entry)}
        yield _each(files, number)


def _overrides() -> Iterator[Try]:
    words = ("x=" + "[" * 100_000, "a." * 50_000 + "a=1", "x=!!bool y", "x=0x" + "f" * 5000, "x={a: ",
             "cutoff_len=" + "9" * 5000, "=1", "x", "deepspeed.a.b=1", "x=&a [*a]")  # fmt: skip
    for command, word in product((["explain"], ["train", "--dry-run"]), words):
        yield Try({"r.yaml": _recipe()}, [command[0], "r.yaml", *command[1:], word])


def _absurd() -> Iterator[Try]:
    for number, (key, value) in enumerate(product(ABSURD, (10**12, 10**18, 10**300, 1e308, 5e-324))):
        yield _each({"r.yaml": _recipe(finetuning_type="lora", **{key: value})}, number)


sys.set_int_max_str_digits(0)  # the numbers of 5,000 digits are meant
