"""Whether a checkpoint was written to its end. `python3 - FOLDER` gives those in a folder that were not another name:
jobs carry this file to nodes, which have Python's own library alone, 3.8 or later.

transformers/trainer.py, Trainer._save_checkpoint; deepspeed/runtime/engine.py, save_checkpoint."""

from __future__ import annotations

import itertools
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = re.compile(r"checkpoint-(\d+)")
STATE, INDEX = "trainer_state.json", "model.safetensors.index.json"
# extras/constants.py of LLaMA-Factory, CHECKPOINT_NAMES
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "model.safetensors", INDEX, "pytorch_model.bin",
           "pytorch_model.bin.index.json")  # fmt: skip
# What a checkpoint taken at SIGTERM holds until it is written (transformers/trainer_jit_checkpoint.py).
_MARK = "checkpoint-is-incomplete.txt"


def flaw(folder: Path) -> str | None:
    """Why it is half-written, in words; None where it is whole."""
    try:
        return next(_flaws(folder), None)
    except OSError as err:
        return f"cannot be read: {(err.strerror or str(err)).lower()}"


def mapping(file: Path) -> Mapping[str, Any]:
    """What a JSON file holds; nothing where it cannot be read."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def aside(folder: Path) -> Path:
    """A free name under which neither LLaMA-Factory nor the Trainer counts it: what begins with `checkpoint-` takes a
    place of `save_total_limit`, whatever follows (transformers/trainer_utils.py, sort_checkpoints)."""
    places = (folder.with_name(f"incomplete-{folder.name}{f'-{n}' if n else ''}") for n in itertools.count())
    return next(place for place in places if not place.exists())


def _flaws(folder: Path) -> Iterator[str]:
    """The Trainer writes its state last; where the node itself died, files can be shorter than they were written."""
    if (folder / _MARK).exists():
        yield f"its {_MARK} is still there"
    if not mapping(folder / STATE):
        yield f"{STATE} is cut off" if (folder / STATE).is_file() else f"no {STATE}"
    engine = any(folder.glob("global_step*"))  # DeepSpeed loads its own states
    spread = any(folder.glob("*model*_0/")) or any(folder.glob("*/adapter_model.*"))  # by FSDP; several adapters
    if not (engine or spread or any((folder / name).is_file() for name in WEIGHTS)):
        yield "no weights"
    if (folder / INDEX).is_file():
        yield from _missing(folder)
    yield from (f"{file.name} is cut off" for file in folder.rglob("*.safetensors") if not _full(file))
    archives = (*folder.glob("optimizer.*"), *folder.glob("global_step*/*.pt"))
    yield from (f"{file.name} is cut off" for file in archives if not zipfile.is_zipfile(file))
    yield from _shards(folder) if engine else ()


def _missing(folder: Path) -> Iterator[str]:
    """Files that the index names."""
    files = mapping(folder / INDEX).get("weight_map")
    if not isinstance(files, dict):
        yield f"{INDEX} is cut off"
    else:
        yield from (f"{name} is missing" for name in map(str, files.values()) if not (folder / name).is_file())


def _full(file: Path) -> bool:
    """Whether it is as long as its head says: eight bytes of the head's length, the head, the tensors."""
    with file.open("rb") as content:
        told = int.from_bytes(content.read(8), "little")
        head = content.read(min(told, file.stat().st_size))
    try:
        ends = [tensor["data_offsets"][1] for name, tensor in json.loads(head).items() if name != "__metadata__"]
        return file.stat().st_size == 8 + told + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def _shards(folder: Path) -> Iterator[str]:
    """`latest` is written when all processes are done. On disks of their own nodes have some of the files each."""
    if not (folder / "latest").is_file():
        yield "no file `latest`"
    files = folder.glob("global_step*/*_optim_states.pt")
    ranks = {int(match[1]) for match in (re.search(r"_pp_rank_(\d+)_", file.name) for file in files) if match}
    for rank in range(min(ranks, default=0), max(ranks, default=0)):
        if rank not in ranks:
            yield f"the optimizer states of process {rank} are missing"


def main(output: str) -> None:
    """Set aside what is half-written."""
    for folder in Path(output).glob("checkpoint-*"):
        why = flaw(folder) if NAME.fullmatch(folder.name) and folder.is_dir() else None
        if why:
            place = aside(folder)
            with suppress(FileNotFoundError):  # another node was faster
                folder.rename(place)
                sys.stderr.write(f"lmf-recipes: {folder} was not written to its end ({why}); it is now {place.name}\n")


if __name__ == "__main__":
    main(sys.argv[1])
