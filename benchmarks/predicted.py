"""Write what the tool computes into the `predicted` line of every recipe.

    python benchmarks/predicted.py

Run it after a change of a recipe or of the memory model; CUR003 reports the lines that have drifted, and the diff of
recipes/ shows what the change means for each of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from validator import catalogue
from validator.rules.curated import predicted

LINE = re.compile(r"(?m)^# predicted: .*$")


def main() -> None:
    for job in catalogue.jobs():
        values = predicted(job)
        if values is None:
            print(f"{job.path}: model or machine not known, left as it is")
            continue
        line = "# predicted: {" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
        path = Path(job.path)
        text = path.read_text("utf-8")
        if (changed := LINE.sub(line, text, count=1)) != text:
            path.write_text(changed, "utf-8")
            print(f"{path.name}: {line.removeprefix('# ')}")


if __name__ == "__main__":
    main()
