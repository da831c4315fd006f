"""Entry point of `lmf-recipes` and `python -m validator`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` puts the working folder first, where a pull request may have put a yaml.py.
    del sys.path[0]

import gc
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn


def main() -> NoReturn:
    """Run the program on the words of the command line."""
    # A check makes some 100,000 objects and hardly a cycle: looking for cycles among them takes a tenth of its time. A
    # part of that falls on imports, which therefore come after.
    gc.set_threshold(100_000)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends imports without a word, until `edge` handles it
    from validator import entry

    entry.run_program(lambda: command(sys.argv[1:])())


def command(words: Sequence[str]) -> Callable[[], object]:
    """Run the command that the words name. A check of files without options, as hooks run it, starts without click,
    because importing click takes as long as the check."""
    if len(words) > 1 and words[0] == "check" and not any(word.startswith("-") for word in words):
        from validator.commands import check_files

        return partial(check_files.check_and_exit, words[1:])
    from validator import cli

    return partial(cli.run_cli, words)


if __name__ == "__main__":
    main()
