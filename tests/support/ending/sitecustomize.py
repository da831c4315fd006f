"""On PYTHONPATH of processes that train together on the CPU: they end as soon as Python is through. After that gloo's
threads may still end them by SIGABRT (in about one of twenty runs with torch 2.13), which no run on a GPU meets."""

import atexit
import os
import sys


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_type") else 0)


if "LOCAL_RANK" in os.environ:
    atexit.register(_end)
