"""Plan and write the recipes that scripts/wishes.yaml asks for. Run `make tables` afterwards.

python scripts/recipes.py          write what is missing
python scripts/recipes.py --all    write every recipe of the table again, after the memory model has changed

How a recipe is chosen: the fastest speed class of the planner that fits and recomputes activations (copies are given
longer samples than their origin), at the longest usual length; of micro batches the largest that leaves a twentieth of
the device free at the upper end of the 90 % band. A recipe that is there already and was written by hand is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from validator.plan import search as plan
from validator.plan import upgrade, writing
from validator.plan.draft import Draft
from validator.read.tree import read_yaml
from validator.tables import machines, models
from validator.tables.machines import Machine
from validator.tables.models import Model
from validator.tables.savers import savers

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("dpo", "pt")
# Shorter samples than these are too short for most data.
LENGTHS = (2048, 1024)
SPARE = 0.05


@dataclass(frozen=True)
class Wish:
    """One recipe that is asked for: a model, a machine, and a method with its variant, such as lora-dpo or full-32k."""

    model: Model
    machine: Machine
    kind: str

    @property
    def words(self) -> list[str]:
        return self.kind.split("-")

    @property
    def start(self) -> Draft:
        """The draft with all that is asked for and nothing else decided."""
        words = self.words
        long = next((int(word[:-1]) * 1024 for word in words if word[:-1].isdigit() and word.endswith("k")), None)
        return Draft(
            self.model,
            self.machine,
            words[0],
            "fsdp" if "fsdp" in words else None,
            length=long or LENGTHS[0],
            stage=next((word for word in words if word in STAGES), "sft"),
            saver=next((word for word in words if word in savers()), None),
            public=True,
            evaluates=True,
        )


def wishes() -> Iterator[Wish]:
    """Every wish of the table."""
    for entry in read_yaml(str(ROOT / "scripts" / "wishes.yaml")):
        found = machines.machine(entry.pop("machine"), entry.pop("host_ram", None))
        machine = found if found.host_ram_gib else found._replace(host_ram_gib=upgrade.usual_ram(found))
        for kind, names in entry.items():
            for name in names:
                model = models.model(name)
                base = next((hub for hub in model.hub if models.model(hub).base), None)
                yield Wish(models.model(base) if base and "pt" in kind.split("-") else model, machine, kind)


def fulfil(wish: Wish) -> Draft | None:
    """The run that the recipe describes; None where nothing fits."""
    start = wish.start
    for length in LENGTHS if start.length == LENGTHS[0] else [start.length]:
        for speed in plan.SPEEDS[1:]:
            for found in plan.members(replace(start, length=length), speed):
                return roomy(found)
    return None


def roomy(found: Draft) -> Draft:
    """The draft with the largest micro batch that leaves room."""
    usable = found.machine.device.usable_gib or 0.0
    while found.micro > 1 and plan.Plan(found, "fast").headroom_gib < SPARE * usable:
        found = replace(found, micro=found.micro // 2)
    return found


def main() -> None:
    again = sys.argv[1:] == ["--all"]
    for wish in wishes():
        found = fulfil(wish)
        if found is None:
            print(f"does not fit: {wish.model.name} {wish.kind} on {wish.machine}")
            continue
        path = ROOT / "recipes" / f"{found.name}.yaml"
        if again or not path.exists():
            path.write_text(writing.text(found, planned=False), "utf-8")
            print(f"{path.name}: {found.engine}, micro {found.micro}, {found.length}, liger {found.liger}")


if __name__ == "__main__":
    main()
