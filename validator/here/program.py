"""The programs that come with the drivers, run as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from threading import Lock

from validator.diagnostic import RecipeError

_LIMIT = 30  # seconds: without its persistence daemon a server's eight devices take ten to wake
# Where installers put these programs without adding the folder to PATH: ROCm, the Ascend driver, WSL.
_FOLDERS = ("/opt/rocm/bin", "/usr/local/sbin", "/usr/lib/wsl/lib")

# Checks run at once, and several want the same answer.
_ASKED: defaultdict[str, Lock] = defaultdict(Lock)


def output(name: str, *words: str) -> str | None:
    """What the program prints, its complaint where that is all; None where it is not installed. Its exit code does not
    matter: rocm-smi ends with 2 where one of many figures is missing. Raises RecipeError where it does not answer.

    It is asked once in the life of this process, however many want the answer."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))
    if path is None:
        return None
    with _ASKED[path]:
        said = _said(path, *words)
    if isinstance(said, RecipeError):
        raise RecipeError(str(said))
    return said


@cache
def _said(path: str, *words: str) -> str | RecipeError:
    name = Path(path).name
    try:
        done = subprocess.run([path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=_LIMIT, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return RecipeError(f"{name} does not answer within {_LIMIT} seconds")
    except OSError as err:
        return RecipeError(f"{name} cannot be started: {err.strerror}")
    return done.stdout if done.stdout.strip() else done.stderr


def fault(name: str, text: str) -> RecipeError:
    """The error where the program shows no device: what it says instead, in one line."""
    said = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    return RecipeError(f"{name} shows no device: {said[:200] or 'it prints nothing'}")
