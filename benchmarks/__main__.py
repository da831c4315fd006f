"""Each benchmark by one command.

python -m benchmarks                          what can be asked: an area a line
python -m benchmarks AREA                     print its report
python -m benchmarks AREA --check             compare the report with evidence/figures.yaml and with what the docs say
python -m benchmarks AREA --record [WORD ...] measure anew, then write figures and the tables in the docs; the words go
                                              to the program that measures, where AREA asks for them
python -m benchmarks all --check              every area, one after the other
python -m benchmarks AREA PROGRAM [WORD ...]  one program of an area by itself: benchmarks/FOLDER/PROGRAM.py

Exit code 1: a bar is missed, or something differs; 2: no such area.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
# Python has put the repository there, whose folders deepspeed/, accelerate/ and data/ would pass for packages. Areas
# import each other from benchmarks/, and what they share with the tests (`support`, `fuzz`) from tests/.
sys.path[:] = [
    str(BENCHMARKS), str(ROOT / "tests"), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)
]  # fmt: skip

import figures  # noqa: E402

GPU = BENCHMARKS / "evidence" / "gpu" / "h200.csv"


class Area(NamedTuple):
    """What an area answers, its folder, the programs that print its report, each with its words, and those that
    measure."""

    answers: str
    folder: str
    report: tuple[str, ...]
    record: tuple[str, ...] = ()


AREAS = {
    "memory": Area("how far predicted memory is from published runs", "accuracy_memory", ("report",), ("rivals",)),
    "time": Area(
        "how far predicted time is from published runs", "accuracy_time", ("report", "claims", "runs"),
        ("paced", "refit"),
    ),
    "conformity": Area(
        "whether LLaMA-Factory does what check says, on made recipes", "conformity", ("report",),
        ("report --record demo/tiny-qwen3",),
    ),
    "simulator": Area(
        "how far the memory formulas are from peaks of the simulator", "simulation",
        ("grid --compare", "vision --compare", "releases --compare"), ("grid", "vision", "releases"),
    ),
    "training": Area(
        "whether a shrunk twin of every recipe trains (hours to record)", "training_twins", ("report",),
        ("report --record",),
    ),
    "files": Area(
        "check beside LLaMA-Factory on strangers' files (--record FOLDER)", "public_files",
        ("recipes", "deepspeed_files"), ("recipes --record", "deepspeed_files --record"),
    ),
    "reports": Area("what check says of 60 public reports of 2025 and 2026", "public_reports", ("replay",)),
    "reliability": Area(
        "what odd, huge and hostile input does (--record inputs files data ...)", "robustness", ("report",),
        ("report --record",),
    ),
    "gpu": Area(
        "memory and time of real runs on an NVIDIA GPU", "gpu", (),
        ("measure --out benchmarks/evidence/gpu/h200.csv",),
    ),
    "speed": Area("how long check and explain take, beside yamllint", "performance", ("speed 5",), ("speed record",)),
    "data": Area(
        "findings of data in planted faults and broken files; data data million: gigabytes", "performance",
        ("data faults broken",),
    ),
}  # fmt: skip
NEEDS_WORDS = ("files", "reliability")


def run(folder: str, program: str, *words: str) -> int:
    """The exit code of a program of a folder, which gets the words as if it had been started by itself."""
    sys.argv = [f"benchmarks/{folder}/{program}.py", *words]
    try:
        import_module(f"{folder}.{program}").main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0


def measured(name: str) -> tuple[dict[str, float], str, int]:
    """The figures of an area, its report, and the worst exit code of the programs that print it."""
    folder, lines = AREAS[name].folder, [line.split() for line in AREAS[name].report]
    with redirect_stdout(io.StringIO()) as out:
        code = max([run(folder, *line) for line in lines], default=0)
    found: dict[str, float] = {}
    for program, *_ in lines:
        module = import_module(f"{folder}.{program}")
        found |= module.recorded_figures() if hasattr(module, "recorded_figures") else {}
    return found, out.getvalue(), code


def check(name: str) -> int:
    """1 where a bar is missed, or where figures or tables differ from what is recorded and what the docs say."""
    computed, report, code = measured(name)
    wrong = [f"a bar is missed: `python -m benchmarks {name}` shows it"] if code else []
    wrong += figures.differences(name, computed, report)
    print(*(f"{name}: {line}" for line in wrong or ["as recorded, and as the docs say"]), sep="\n")
    return int(bool(wrong))


def record(name: str, words: list[str]) -> int:
    """Measure, and write what came of it: the evidence, the figures, and the tables in the docs."""
    if name in NEEDS_WORDS and not words:
        print(f"{name} --record: say what, as `python -m benchmarks {name}` and its docs tell", file=sys.stderr)
        return 2
    for line in AREAS[name].record:
        if code := run(AREAS[name].folder, *line.split(), *words):
            return code
    computed, report, _ = measured(name)
    figures.write(name, computed, report)
    return 0


def main() -> int:
    name, *words = sys.argv[1:] or [""]
    if not name or name in ("-h", "--help"):
        print(__doc__)
        print(*(f"{each:12} {area.answers}" for each, area in AREAS.items()), sep="\n")
        return 0
    if name == "all" and words == ["--check"]:
        command = [sys.executable, "-m", "benchmarks"]
        return max([subprocess.call([*command, each, "--check"], cwd=ROOT) for each in AREAS])
    if name not in AREAS:
        print(f"{name}: no such area; there are {', '.join(AREAS)}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    if name == "gpu" and words in ([], ["--check"]) and not GPU.exists():
        print(f"gpu: there is no record ({GPU.relative_to(ROOT)}): nothing was measured on a GPU")
        return 0
    match words:
        case []:
            return max([run(AREAS[name].folder, *line.split()) for line in AREAS[name].report], default=0)
        case ["--check"]:
            return check(name)
        case ["--record", *more]:
            return record(name, more)
        case [program, *more] if (BENCHMARKS / AREAS[name].folder / f"{program}.py").is_file():
            return run(AREAS[name].folder, program, *more)
    print(f"{name} {' '.join(words)}: neither --check, --record nor a program of the area", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
