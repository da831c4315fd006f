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

_TIMEOUT_SECONDS = 30  # seconds: without its persistence daemon a server's eight devices take ten to wake
# Where installers put these programs without adding the folder to PATH: ROCm, the Ascend driver, WSL.
_EXTRA_FOLDERS = ("/opt/rocm/bin", "/usr/local/sbin", "/usr/lib/wsl/lib")

# Checks run at once, and several want the same answer.
_TOOL_LOCKS: defaultdict[str, Lock] = defaultdict(Lock)


def run_tool(name: str, *words: str) -> str | None:
    """What the program prints, its complaint where that is all; None where it is not installed. Its exit code does not
    matter: rocm-smi ends with 2 where one of many figures is missing. Raises RecipeError where it does not answer.

    It is asked once in the life of this process, however many want the answer."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_EXTRA_FOLDERS]))
    if path is None:
        return None
    with _TOOL_LOCKS[path]:
        said = _cached_output(path, *words)
    if isinstance(said, RecipeError):
        raise RecipeError(str(said))
    return said


@cache
def _cached_output(path: str, *words: str) -> str | RecipeError:
    name = Path(path).name
    try:
        done = subprocess.run([path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=_TIMEOUT_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return RecipeError(f"{name} does not answer within {_TIMEOUT_SECONDS} seconds")
    except OSError as err:
        return RecipeError(f"{name} cannot be started: {os_reason(err)}")
    return done.stdout if done.stdout.strip() else done.stderr


def no_device_error(name: str, text: str) -> RecipeError:
    """The error where the program shows no device: what it says instead, in one line."""
    said = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    return RecipeError(f"{name} shows no device: {said[:200] or 'it prints nothing'}")
