"""`diff`: what a copy changed against the catalogue, and what that does to memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import RecipeError, Severity
from validator.job import job
from validator.job.job import GIB, Job
from validator.read import loader
from validator.recipes import copying
from validator.tables.checkout import home

_FIELDS = ("machine", "host_ram_gib", "samples")


def compare(name: str, path: str) -> dict[str, Any]:
    """Keys changed, added and removed, and GiB (2^30 bytes) and verdict of both. Raises RecipeError for bad input."""
    before, after = _job(str(copying.find(name))), _job(path)
    before.folders = (home(),)  # never the working directory's own DeepSpeed file
    same_file = before.get("deepspeed") == after.get("deepspeed")
    old, new = _settings(before, same_file), _settings(after, same_file)
    return {
        "recipe": name.removesuffix(".yaml"),
        "path": path,
        "changed": {key: [old[key], new[key]] for key in old if key in new and old[key] != new[key]},
        "added": {key: new[key] for key in new if key not in old},
        "removed": {key: old[key] for key in old if key not in new},
        "before": _judged(before),
        "after": _judged(after),
    }


def _job(path: str) -> Job:
    document = loader.load(path)
    for problem in document.problems:
        if problem.severity is Severity.ERROR:
            raise RecipeError(f"{path}:{problem.line}:{problem.column}: {problem.message} [{problem.code}]")
    return job.resolve(document)


def _settings(found: Job, engine_too: bool) -> dict[str, Any]:
    """The recipe's keys, the header fields that decide its verdict, and what the DeepSpeed file says."""
    header = {f"(header) {field}": found.header[field] for field in _FIELDS if field in found.header}
    inside = _flat(found.zero.config) if found.zero and engine_too else ()
    return {**header, **found.values, **{f"(deepspeed file) {key}": value for key, value in inside}}


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _judged(found: Job) -> dict[str, Any]:
    device, host = found.device_memory, found.host_memory
    return {
        "verdict": found.verdict,
        "device_gib": round(device.expected / GIB, 1) if device else None,
        "host_gib": round(host.expected / GIB, 1) if host else None,
    }


def text(found: Mapping[str, Any]) -> str:
    """The comparison as lines of text."""
    lines = [f"  {key}: {_written(old)} -> {_written(new)}" for key, (old, new) in found["changed"].items()]
    lines += [f"+ {key}: {_written(value)}" for key, value in found["added"].items()]
    lines += [f"- {key}: {_written(value)}" for key, value in found["removed"].items()]
    lines = lines or ["  no setting differs"]
    return "\n".join([*lines, _memory("before", found["before"]), _memory("after", found["after"])]) + "\n"


def _memory(when: str, judged: Mapping[str, Any]) -> str:
    if judged["device_gib"] is None:
        return f"{when}: memory is not known"
    return f"{when}: {judged['device_gib']} GiB per device, {judged['host_gib']} per node, {judged['verdict']}"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
