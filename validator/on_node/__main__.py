"""Runs the program of a job from a copy of this folder, whatever the copy is called: `python3 FOLDER`."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    _FOLDER = Path(__file__).resolve().parent
    sys.path[0] = str(_FOLDER.parent)
    importlib.import_module(_FOLDER.name + ".main").main()
