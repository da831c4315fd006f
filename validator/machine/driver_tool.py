"""Runs a driver's tool (nvidia-smi, npu-smi, rocm-smi, amd-smi), once for each question and with a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from threading import Lock

from validator.errors import RecipeError, os_reason

_TIMEOUT_SECONDS = 30  # without its persistence daemon a server's eight devices take ten to wake
# Where installers put these programs without adding the folder to PATH: ROCm, the Ascend driver, WSL.
_EXTRA_FOLDERS = ("/opt/rocm/bin", "/usr/local/sbin", "/usr/lib/wsl/lib")

# doctor runs its checks at once, and several ask the same tool.
_TOOL_LOCKS: defaultdict[str, Lock] = defaultdict(Lock)


class DriverError(RecipeError):
    """A driver's tool shows no device that a run could use. `finding` is what it says, without the remedy."""

    def __init__(self, finding: str, remedy: str = "") -> None:
        super().__init__(f"{finding}; {remedy}" if remedy else finding)
        self.finding = finding


def run_tool(name: str, *words: str) -> str | None:
    """Return what the tool prints, or its complaint if it prints nothing else; None if it is not installed. The exit
    code is ignored: rocm-smi ends with 2 if one of many figures is missing. Raises DriverError if it does not answer.

    Each tool runs once for each question in the life of this process."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_EXTRA_FOLDERS]))
    if path is None:
        return None
    with _TOOL_LOCKS[path]:
        said = _cached_output(path, *words)
    if isinstance(said, DriverError):
        raise DriverError(said.finding)
    return said


@cache
def _cached_output(path: str, *words: str) -> str | DriverError:
    name = Path(path).name
    try:
        done = subprocess.run([path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=_TIMEOUT_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return DriverError(f"{name} does not answer within {_TIMEOUT_SECONDS} seconds")
    except OSError as err:
        return DriverError(f"{name} cannot be started: {os_reason(err)}")
    return done.stdout if done.stdout.strip() else done.stderr


def no_device_error(name: str, text: str) -> DriverError:
    """Return the error for a tool that shows no device: what it says instead, in one line."""
    said = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    return DriverError(f"{name} shows no device: {said[:200] or 'it prints nothing'}")
