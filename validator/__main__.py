"""The start of the program: `lmf-recipes`, which `python -m validator` is, too."""

from __future__ import annotations

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the click program."""
    # A check makes some 100,000 objects and hardly a cycle: looking for cycles among them takes a tenth of its time. A
    # part of that falls on the import of click, which therefore comes after.
    gc.set_threshold(100_000)
    from validator import cli

    cli.main()


if __name__ == "__main__":
    main()
