"""What is set before transformers and LLaMA-Factory are imported, so that they work beside a CPU build of torch."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from typing import Any

import torch

_VARIABLES = {
    "DISABLE_VERSION_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LLAMAFACTORY_VERBOSITY": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_DISABLE_TORCH_CHECK": "1",
}


@functools.cache
def prepare() -> None:
    """Once for the process: quiet libraries, a torchvision that imports, one autocast state for all devices."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore")
    _import_torchvision()
    enabled = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda _device_type=None: enabled("cpu")


def _import_torchvision() -> None:
    """A torchvision that was built for another torch fails at the registration of its operators, which nothing here
    calls: it is imported again without. Left out, it is not missed by models of text."""
    with contextlib.suppress(ModuleNotFoundError):
        try:
            import torchvision  # noqa: F401
        except ModuleNotFoundError:
            raise
        except Exception:
            _import_unregistered()


def _import_unregistered() -> None:
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    register = torch.library.register_fake

    def tolerant(operator: Any, *args: Any, **more: Any) -> Any:
        if isinstance(operator, str) and operator.startswith("torchvision::"):
            return lambda function: function
        return register(operator, *args, **more)

    torch.library.register_fake = tolerant
    try:
        import torchvision  # noqa: F401
    finally:
        torch.library.register_fake = register
