"""Tests of whether a checkpoint was written completely. Sources: transformers/trainer.py, Trainer._save_checkpoint;
deepspeed/runtime/engine.py, save_checkpoint."""

import errno
import itertools
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
TRAINER_STATE, WEIGHTS_INDEX = "trainer_state.json", "model.safetensors.index.json"
# extras/constants.py of LLaMA-Factory, CHECKPOINT_NAMES
WEIGHT_FILES = (
    "adapter_model.safetensors",
    "adapter_model.bin",
    "model.safetensors",
    WEIGHTS_INDEX,
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# What a checkpoint taken at SIGTERM holds until it is written (transformers/trainer_jit_checkpoint.py).
_INCOMPLETE_MARK = "checkpoint-is-incomplete.txt"
# Bytes of a file's head that safetensors takes (safetensors, tensor.rs, MAX_HEADER_SIZE); of JSON far more than a state
# of a million logged steps.
_MAX_HEAD_BYTES, _MAX_JSON_BYTES = 100_000_000, 1 << 28


def integrity_problem(folder: Path) -> Optional[str]:
    """Return the first reason why a checkpoint is incomplete, as text for a message; None if the checkpoint is
    complete."""
    try:
        return next(_integrity_problems(folder), None)
    except OSError as err:
        return f"cannot be read: {os_reason(err)}"


def result_problem(folder: Path) -> Optional[str]:
    """Return which weight file directly in the output folder is cut off or missing, as text for a message. A run saves
    its final model there. None if all weight files are complete."""
    try:
        return next(_result_problems(folder), None)
    except OSError as err:
        return f"cannot be read: {os_reason(err)}"


def os_reason(err: OSError) -> str:
    """Return the operating system's text for an error. Repeats `errors.os_reason`, because this package is not
    installed on the nodes of a job."""
    return (err.strerror or str(err)).lower()


def read_json_mapping(file: Path) -> Mapping[str, Any]:
    """Return the object in a JSON file; an empty mapping if the file cannot be read or does not hold a JSON object."""
    try:
        if not file.is_file() or file.stat().st_size > _MAX_JSON_BYTES:  # a pipe is not waited for
            return {}
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def quarantine_path(folder: Path) -> Path:
    """Return a free path to which an incomplete checkpoint can be renamed. Its name begins with `incomplete-`, so
    neither LLaMA-Factory nor the Trainer takes the folder for a checkpoint. A name that begins with `checkpoint-` would
    count towards `save_total_limit` (transformers/trainer_utils.py, sort_checkpoints)."""
    places = (folder.with_name(f"incomplete-{folder.name}{f'-{n}' if n else ''}") for n in itertools.count())
    return next(place for place in places if not os.path.lexists(place))


def quarantine(folder: Path) -> Optional[Path]:
    """Rename a checkpoint to its quarantine path and return that path; None if another node has already renamed the
    checkpoint. Raises OSError if the folder cannot be renamed."""
    while True:
        place = quarantine_path(folder)
        try:
            folder.rename(place)
            return place
        except FileNotFoundError:
            return None
        except OSError as err:
            if err.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else another process took the name just now
                raise


def _integrity_problems(folder: Path) -> Iterator[str]:
    """Yield the reasons why a checkpoint is incomplete. The Trainer writes trainer_state.json last, but a node that
    lost power may have left files shorter than they were written."""
    if (folder / _INCOMPLETE_MARK).exists():
        yield f"its {_INCOMPLETE_MARK} is still there"
    if not read_json_mapping(folder / TRAINER_STATE):
        yield f"{TRAINER_STATE} is cut off" if (folder / TRAINER_STATE).is_file() else f"no {TRAINER_STATE}"
    engine = any(folder.glob("global_step*"))  # DeepSpeed loads its own states
    spread = any(folder.glob("*model*_0/")) or any(folder.glob("*/adapter_model.*"))  # by FSDP; several adapters
    if not (engine or spread or any((folder / name).is_file() for name in WEIGHT_FILES)):
        yield "no weights"
    if (folder / WEIGHTS_INDEX).is_file():
        yield from _missing_weight_files(folder)
    yield from (f"{file.name} is cut off" for file in folder.rglob("*.safetensors") if not _is_full_length(file))
    archives = (*folder.glob("optimizer.*"), *folder.glob("global_step*/*.pt"))
    yield from (f"{file.name} is cut off" for file in archives if not _is_whole_archive(file))
    yield from _shard_problems(folder) if engine else ()


def _result_problems(folder: Path) -> Iterator[str]:
    if (folder / WEIGHTS_INDEX).is_file():
        yield from _missing_weight_files(folder)
    yield from (f"{file.name} is cut off" for file in folder.glob("*.safetensors") if not _is_full_length(file))
    archives = (file for form in ("adapter_model*.bin", "pytorch_model*.bin") for file in folder.glob(form))
    yield from (f"{file.name} is cut off" for file in archives if not _is_whole_archive(file))


def _missing_weight_files(folder: Path) -> Iterator[str]:
    """Yield a problem for each weight file that model.safetensors.index.json lists and that is not in the folder."""
    files = read_json_mapping(folder / WEIGHTS_INDEX).get("weight_map")
    if not isinstance(files, dict):
        yield f"{WEIGHTS_INDEX} is cut off"
    else:
        yield from (f"{name} is missing" for name in map(str, files.values()) if not (folder / name).is_file())


def _is_full_length(file: Path) -> bool:
    """True if a safetensors file has the length that its header states: eight bytes for the header's length, the
    header, and the tensors."""
    if not file.is_file():  # a pipe is not waited for
        return False
    with file.open("rb") as content:
        header_length = int.from_bytes(content.read(8), "little")
        if header_length > min(_MAX_HEAD_BYTES, file.stat().st_size):
            return False
        head = content.read(header_length)
    try:
        ends = [tensor["data_offsets"][1] for name, tensor in json.loads(head).items() if name != "__metadata__"]
        return file.stat().st_size == 8 + header_length + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _is_whole_archive(file: Path) -> bool:
    return file.is_file() and zipfile.is_zipfile(file)


def _shard_problems(folder: Path) -> Iterator[str]:
    """Yield what is missing from the optimizer states that DeepSpeed saved, as text for a message. DeepSpeed writes the
    file `latest` after all processes have saved. A node with its own disk has only the files of its own processes, so a
    process's file counts as missing only if files of lower and of higher ranks exist."""
    if not (folder / "latest").is_file():
        yield "no file `latest`"
    files = folder.glob("global_step*/*_optim_states.pt")
    ranks = {int(match[1]) for match in (re.search(r"_pp_rank_(\d+)_", file.name) for file in files) if match}
    for rank in range(min(ranks, default=0), max(ranks, default=0)):
        if rank not in ranks:
            yield f"the optimizer states of process {rank} are missing"


def quarantine_incomplete(output: Path) -> Iterator[str]:
    """Rename the incomplete checkpoints in a run's output folder, and yield a message for each. Raises OSError if one
    cannot be renamed, because the run would resume from it."""
    for folder in output.glob("checkpoint-*"):
        why = integrity_problem(folder) if CHECKPOINT_NAME.fullmatch(folder.name) and folder.is_dir() else None
        place = quarantine(folder) if why else None
        if place:
            yield f"{folder} was not written to its end ({why}); it is now {place.name}"
