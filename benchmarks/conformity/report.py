"""Our verdict beside what LLaMA-Factory does: the same recipes through both.

    python -m benchmarks conformity                            # the table, from recorded outcomes
    python -m benchmarks conformity report --record demo/tiny-qwen3  # run what has no outcome yet (needs LLaMA-Factory)
    python -m benchmarks conformity report --again 8 --record demo/tiny-qwen3
                                                            # compare 8 recorded outcomes with new ones

Each recipe goes through LLaMA-Factory's real parser in a fork of one process that has imported it. Those that parse and
need neither FSDP nor a real model, train on the CPU to the end of a run of one or two steps, with DeepSpeed where they
ask for it. Three things make the comparison fair on a machine with one CPU and without optional packages: the parser
takes every package it asks for as installed, and a run that stops for want of one is counted apart (lacking); our side
judges the machine 1xcpu where the tiny model is named, else no machine, and there the parser takes the device to have
bf16; DeepSpeed and FSDP find the environment that torchrun makes for one process. Wrong types and choices were run by
values.py; its outcomes are rows here, and our verdict on types is read from the same file, so they show only
that it is read rightly.
Delete evidence/conformity/conformity.csv to record everything anew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import records
from conformity import entries as conformity_entries
from conformity import values as harness
from conformity.cases import GROUPS, Settings, rule_files, values

from validator.check.checking import check_file
from validator.finding import Severity

EVIDENCE = records.EVIDENCE / "conformity" / "conformity.csv"
CONFIG = records.EVIDENCE / "conformity" / "tiny-config.json"
# whose releases are noted, where they are installed
PACKAGES = (
    "llamafactory", "transformers", "torch", "peft", "trl", "accelerate", "datasets", "deepspeed", "bitsandbytes",
    "galore-torch", "apollo-torch", "badam", "adam-mini", "jieba", "nltk", "rouge-chinese",
)  # fmt: skip
OPERATORS = harness.ROOT / ".cache" / "torch_extensions"  # which DeepSpeed compiles on first use
LATE = "dmtsevhn"  # phases after parsing, letters of values.py
MISSING = (
    "PackageNotFoundError",
    "ImportError",
    "ModuleNotFoundError",
    "NameError: name 'jieba'",
    "ValueError: Can't find 'adapter_config.json' at",
    "ValueError: This op had not been implemented on CPU backend",
)
UNINSTALLED = "to be installed"
# Why a failure is not foretold.
_NO_SPARE_ROWS = "the template adds tokens, for which the tiny model alone has no spare rows"
REASONS = dict.fromkeys(("TRA605-fail-llama3-on-qwen", "TRA601-fail-not-in-an-older-release"), _NO_SPARE_ROWS)
BARS = {"parse": 1.0, "later": 0.95}


@dataclass
class Row:
    """One recipe. `outcome` is a letter of values.py, x where a package is missing, empty before any run."""

    group: str
    name: str
    settings: Settings
    outcome: str = ""
    message: str = ""

    @property
    def late(self) -> bool:
        """Whether it failed after parsing."""
        return bool(self.outcome) and self.outcome in LATE


def read() -> list[Row]:
    """The recorded rows."""
    return [Row(**{**row, "settings": json.loads(row["settings"])}) for row in records.read(EVIDENCE)]


def write(rows: list[Row]) -> None:
    """Store the rows that have an outcome."""
    ready = [{**asdict(row), "settings": json.dumps(row.settings)} for row in rows if row.outcome]
    records.write(ready, EVIDENCE, PACKAGES)


def lay_out(folder: Path, model: Path | None) -> None:
    """What the recipes name: data, the DeepSpeed files, the tiny model (only its config.json where None is given)."""
    harness.write_data(folder)
    conformity_entries.add(folder / "data")
    (folder / "deepspeed").symlink_to(harness.ROOT / "deepspeed")
    for path, content in rule_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    if model:
        (folder / "model").symlink_to(model.resolve())
    else:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(CONFIG.read_text())


def verdict(settings: Settings) -> list[str]:
    """Codes of the errors our checks give, in the working directory that lay_out made."""
    machine = "1xcpu" if tiny(settings) else None
    report = check_file(write_recipe(settings), machine, 64.0 if machine else None)
    return sorted({found.code for found in report.diagnostics if found.severity is Severity.ERROR})


def tiny(settings: Settings) -> bool:
    """Whether the recipe names the tiny model, as all that are texts do."""
    return "bytes" in settings or settings.get("model_name_or_path") == "model"


def write_recipe(settings: Settings) -> str:
    """The name of the recipe, written into the working directory: byte for byte, or as JSON, which is YAML too."""
    plain = re.sub(r"(?m)(: -?)(NaN|Infinity)(,?)$", _in_yaml, json.dumps(settings, indent=0))
    text = settings["bytes"].encode("latin-1") if "bytes" in settings else plain.encode()
    Path("recipe.yaml").write_bytes(text)
    return "recipe.yaml"


def _in_yaml(found: re.Match[str]) -> str:
    """NaN and infinity, for which JSON and YAML have different words."""
    return found[1] + {"NaN": ".nan", "Infinity": ".inf"}[found[2]] + found[3]


def rows() -> list[Row]:
    """Every case, with the outcome recorded for exactly these settings."""
    known = {(row.group, row.name, json.dumps(row.settings)): row for row in read()}
    made = [Row(group, name, settings) for group, cases in GROUPS.items() for name, settings in cases()]
    return [known.get((row.group, row.name, json.dumps(row.settings)), row) for row in made]


def runnable(row: Row) -> bool:
    """Whether the recipe can train here: the tiny model, no FSDP, which refuses CPUs."""
    return tiny(row.settings) and "fsdp" not in row.settings


def record(model: Path, minutes: float) -> None:
    """Parse what has no outcome, then train what parses. The order is drawn at random, so that what is recorded when
    time is up is a fair sample."""
    end = time.monotonic() + 60 * minutes
    found = rows()
    with workplace(model):
        for row in found:
            if not row.outcome:
                run(row, train=False)
        write(found)
        CONFIG.write_text(Path("model/config.json").read_text())
        waiting = [row for row in found if row.outcome in ("r", "x") and runnable(row)]
        for row in random.Random(0).sample(waiting, len(waiting)):
            if time.monotonic() > end:
                break
            run(row, train=True)
            write(found)


def again(model: Path, size: int) -> list[tuple[Row, Row]]:
    """Recorded and new outcome of some recipes drawn at random, without DeepSpeed, which compiles for minutes, and
    without runs that never end."""
    every = [*rows(), *(Row("value", *case) for case in values())]
    recorded = [row for row in every if (row.late or row.outcome in (".", "p")) and runnable(row)]
    quick = [row for row in recorded if row.outcome != "h" and "deepspeed" not in row.settings]
    drawn = random.Random(0).sample(quick, size)
    fresh = [replace(row, outcome="", message="") for row in drawn]
    with workplace(model):
        for row in fresh:
            run(row, train=False)
            if row.outcome == "r":
                run(row, train=True)
    return list(zip(drawn, fresh, strict=True))


@contextmanager
def workplace(model: Path) -> Iterator[None]:
    """The folder where recipes run, with LLaMA-Factory imported."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(OPERATORS))
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        lay_out(Path(name), model)
        os.chdir(name)
        import_llamafactory()
        try:
            yield
        finally:
            os.chdir(before)


def import_llamafactory() -> None:
    """What every run imports, and a parser that takes all packages as installed."""
    for name in ("llamafactory.train.tuner", "deepspeed"):
        import_module(name)
    import_module("torch").set_num_threads(1)
    import_module("llamafactory.hparams.parser").check_version = lambda *_args, **_options: None
    harness.BASE["model_name_or_path"] = "model"
    harness.warm()


def run(row: Row, train: bool) -> None:
    """One recipe through LLaMA-Factory; the environment is that of torchrun where DeepSpeed needs it."""
    if "deepspeed" in row.settings or "fsdp" in row.settings:
        port = str(20000 + os.getpid() % 20000)
        torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    else:
        torchrun = {}
    os.environ |= torchrun
    parser = sys.modules["llamafactory.hparams.parser"]
    parser.is_torch_bf16_gpu_available = lambda: not tiny(row.settings)
    recipe = write_recipe(row.settings) if "bytes" in row.settings else row.settings
    letter, row.message = harness.attempt(recipe, train)
    for name in torchrun:
        del os.environ[name]
    parsed = "." if train else "r"
    row.outcome = parsed if letter == "." else "p" if not train and letter == "t" else letter
    if row.message.startswith(MISSING) or UNINSTALLED in row.message:
        row.outcome = "x"
    print(f"{row.group} {row.name}: {row.outcome} {row.message}", file=sys.stderr, flush=True)


@dataclass
class Judged:
    """A row and the codes of our errors."""

    row: Row
    codes: list[str]

    def __str__(self) -> str:
        ours = " ".join(self.codes) or "no error"
        reason = f" ({REASONS[self.row.name]})" if self.row.name in REASONS else ""
        return f"  {self.row.group} | {self.row.name} | {ours} | {self.row.outcome} {self.row.message[:110]}{reason}"


@cache
def judge(step: int = 1) -> list[Judged]:
    """Our verdict on every row that has an outcome, or on one of `step` of them."""
    table = [*rows(), *(Row("value", *case) for case in values())]
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        lay_out(Path(name), None)
        os.chdir(name)
        try:
            return [Judged(row, verdict(row.settings)) for row in [row for row in table if row.outcome][::step]]
        finally:
            os.chdir(before)


def faults(judged: list[Judged]) -> dict[str, list[Judged]]:
    """Rows on which the verdicts differ, by what is wrong with ours."""
    return {
        "refused at parse, no error from us": [each for each in judged if each.row.outcome == "p" and not each.codes],
        "failed later, no error from us": [each for each in judged if each.row.late and not each.codes],
        "ran to the end, an error from us": [each for each in judged if each.row.outcome == "." and each.codes],
        "parsed, an error from us, never trained": [each for each in judged if each.row.outcome == "r" and each.codes],
    }


def lines(judged: list[Judged]) -> Iterator[str]:
    """The table, then every row on which the verdicts differ."""
    columns = ("cases", "refused", "agreed", "later", "foretold", "ran", "false alarm", "only parsed", "lacking")
    yield f"{'':12}" + "".join(f"{column:>13}" for column in columns)
    for group in (*GROUPS, "value", ""):
        part = [each for each in judged if not group or each.row.group == group]
        yield f"{group or 'all':12}" + "".join(f"{count:13}" for count in counts(part))
    able = [each.row.outcome for each in judged if each.row.group in GROUPS and runnable(each.row)]
    yield f"\nof the recipes that parse and can train here, {able.count('r')} have not been trained yet (--record)"
    for title, wrong in faults(judged).items():
        yield f"\n{title}: {len(wrong)}"
        yield from map(str, wrong)


def counts(part: list[Judged]) -> tuple[int, ...]:
    """The figures of one group, in the order of the table's columns."""
    of = Counter("later" if each.row.late else each.row.outcome for each in part)
    told = Counter("later" if each.row.late else each.row.outcome for each in part if each.codes)
    return len(part), of["p"], told["p"], of["later"], told["later"], of["."], told["."], of["r"], of["x"]


def passed(judged: list[Judged]) -> bool:
    """Whether the bars are met."""
    _, refused, agreed, late, foretold, _, alarms, _, _ = counts(judged)
    return agreed >= BARS["parse"] * refused and foretold >= BARS["later"] * late and alarms == 0


def recorded_figures() -> dict[str, float]:
    """What LLaMA-Factory did with all recipes, and on how many of them we say the same."""
    names = ("cases", "refused", "agreed", "later", "foretold", "ran", "false_alarms")
    return dict(zip(names, counts(judge()), strict=False))


def main() -> None:
    """Record, or show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="MODEL", help="folder of the tiny model")
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop starting trainings")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="run N recorded recipes anew, write nothing")
    options = parser.parse_args()
    if options.record and options.again:
        pairs = again(options.record, options.again)
        differing = [(old, new) for old, new in pairs if new.outcome not in (old.outcome, "x")]
        for old, new in differing:
            print(f"{old.group} {old.name}: recorded {old.outcome}, now {new.outcome} {new.message}")
        sys.exit(bool(differing))
    if options.record:
        record(options.record, options.minutes)
    judged = judge()
    print("\n".join(lines(judged)))
    sys.exit(not passed(judged))
