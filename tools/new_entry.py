"""Finish what was written by hand: an entry of validator/data/models.yaml or validator/data/devices.yaml, or a row of
tools/wanted_recipes.yaml. Says what an entry lacks; else writes the recipes that are asked for and the pages that
follow, and runs the tests that judge them. `make new` sets up what it needs and runs it; nothing of it needs torch.

python tools/new_entry.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from validator.errors import RecipeError
from validator.knowledge import families, models
from validator.knowledge.tables import REQUIRED_KEYS, yaml_table
from validator.physics import parameter_count

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/knowledge/test_models.py", "tests/knowledge/test_devices.py", "tests/knowledge/test_hand_kept_tables.py",
    "tests/catalogue/test_sensible.py", "tests/catalogue/test_recipes.py", "tests/tools/test_derive.py",
)  # fmt: skip
STEPS: dict[str, tuple[str, ...]] = {
    "recipes": ("tools/plan_catalogue.py", "--new"),
    "pages": ("tools/derive.py",),
    "tests": ("-m", "pytest", "--quiet", "-n", "2", *TESTS),
}


def faults() -> Iterator[str]:
    """Yield what is wrong with an entry of models.yaml or devices.yaml, with what to write."""
    for table in REQUIRED_KEYS:
        for key in yaml_table(table):
            try:
                entry = yaml_table(table)[key]
            except RecipeError as err:
                yield str(err)
                continue
            if table == "models" and families.has_known_shapes(entry["config"]):
                yield from miscounted(key, entry["parameters"])


def miscounted(key: str, parameters: int) -> Iterator[str]:
    """Yield the number of parameters that the shapes of a model count, if its entry has another one."""
    counted = parameter_count(models.find_model(key).arch)
    if counted != parameters:
        yield (
            f"validator/data/models.yaml: `{key}` has `parameters: {parameters}`, but its config counts {counted};"
            f" write `parameters: {counted}` if the model's own count agrees, else correct `config`"
        )


def main() -> None:
    if wrong := list(faults()):
        sys.exit("\n".join(wrong))
    start = monotonic()
    for name, words in STEPS.items():
        print(f"{name}: python {' '.join(words)}", flush=True)
        if code := subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode:
            sys.exit(code)
    print(f"done in {monotonic() - start:.0f} s; `git status` shows what was written")


if __name__ == "__main__":
    main()
