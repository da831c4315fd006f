"""The questions that both trees are asked: words of the command line, and the files that lie where they are asked.

Questions on what the repository brings are asked in one folder, the catalogue, which nothing writes to. It holds
recipes/, deepspeed/, data/, accelerate/, demo/, the refused setups of tests/, and the examples of LLaMA-Factory and the
published whole runs of benchmarks/evidence. Every other question has a folder of its own. The id of a question is
COMMAND/KIND/NAME. A sample holds one in so many questions of each COMMAND/KIND, and at least one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from random import Random
from typing import Any

import trees
import yaml

ASKED, DAMAGED = 40, 12  # plans, and inputs of each kind of damage
COMMANDS = ("check", "copy", "data", "diff", "doctor", "explain", "list", "plan", "rule", "submit")
SHARED = ("accelerate", "data", "deepspeed")
Words = tuple[str, ...]
_JSON: Words = ("--format", "json")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Question:
    """Words of a command line, and where they are asked: without `files` in the catalogue, else in a folder that holds
    the files. With `linked`, that folder also has the catalogue's accelerate/, data/ and deepspeed/ where `files` has
    none. `<here>` in the environment stands for the folder."""

    id: str
    words: Words
    files: Mapping[str, bytes] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    input: str = ""
    linked: bool = False

    @property
    def kind(self) -> str:
        """COMMAND/KIND."""
        return _kind(self.id)


Made = tuple[str, Question | Callable[[], Question]]  # an id, and the question or what makes it


class Corpus:
    """Every question of a repository."""

    def __init__(self, root: Path, drawn: int = 800) -> None:
        self.root, self.drawn = root, drawn
        self.catalogue = dict(_catalogue(root))
        self.recipes = sorted(name for name in self.catalogue if re.fullmatch(r"recipes/[^/]+\.yaml", name))
        texts = [self.catalogue[name].decode() for name in self.recipes]
        self.machines = _distinct(re.findall(r"(?m)^# machine: (\S+)$", "\n".join(texts)))
        self.models = _distinct(re.findall(r"(?m)^model_name_or_path: (\S+)$", "\n".join(texts)))

    def questions(self, patterns: Sequence[str] = ("*",), one_in: int = 1) -> list[Question]:
        """The questions whose id is like one of the patterns; one in so many of each kind, the same ones each time."""
        kinds: dict[str, list[Made]] = defaultdict(list)
        every: Iterator[Made] = chain(((question.id, question) for question in self._all()), self._damaged())
        for name, question in every:
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                kinds[_kind(name)].append((name, question))
        chosen = []
        for members in kinds.values():
            members.sort(key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
            chosen += members[: -(-len(members) // one_in)]
        made = [each if isinstance(each, Question) else each() for _, each in sorted(chosen, key=lambda pair: pair[0])]
        return [question for question in made if _is_safe(question.words)]

    def warm_up(self) -> tuple[dict[str, bytes], list[Words]]:
        """Questions whose answers are not compared, and their files. They share no path with other questions, so that
        nothing that the program remembers of a file can be of another file."""
        files = {
            re.sub(r"^(\w+)/", r"warm-\1/", name): _warm(content) if name.startswith("recipes/") else content
            for name, content in self.catalogue.items()
            if name.startswith(("recipes/", *SHARED))
        }
        warm = [name.replace("recipes/", "warm-recipes/") for name in self.recipes[::12]]
        words: list[Words] = [("explain", name, *_JSON) for name in warm]
        words += [("check", name) for name in warm[::4]]
        for name in warm[:2]:
            stem = Path(name).stem
            words += [("explain", name), ("check", name, *_JSON), ("diff", stem, name)]
            words += [("submit", name, "--dry-run", "--to", to) for to in ("slurm", "skypilot", "kubernetes")]
        words += [("plan", "--machine", self.machines[0], "--model", self.models[0]), ("rule",), ("--help",)]
        words += [("data", "warm-data/tiny_demo.json", "--model", self.models[0])]
        words += [(command, "--help") for command in COMMANDS]
        return files, words

    def _all(self) -> Iterator[Question]:
        yield from self._on_recipes()
        yield from self._on_the_whole()
        yield from self._written()
        yield from self._plans()
        yield from self._cases()
        yield from self._published()
        yield from self._drawn()
        yield from self._recorded()
        yield from self._fuzzed()

    def _on_recipes(self) -> Iterator[Question]:
        engines = cycle(("slurm", "skypilot", "kubernetes"))
        for at, path in enumerate(self.recipes):
            name, after = Path(path).stem, self.recipes[(at + 1) % len(self.recipes)]
            yield Question(f"explain/json/{name}", ("explain", path, *_JSON))
            if at % 4 == 0:
                yield Question(f"explain/text/{name}", ("explain", path))
                yield Question(f"explain/full/{name}", ("explain", path, "--full"))
                yield Question(f"diff/text/{name}", ("diff", name, after))
            elif at % 4 == 1:
                yield Question(f"diff/json/{name}", ("diff", name, after, *_JSON))
                yield Question(f"check/text/{name}", ("check", path, "--strict"))
            if at % 2 == 0:
                engine = next(engines)
                yield Question(f"submit/{engine}/{name}", ("submit", path, "--dry-run", "--to", engine))

    def _on_the_whole(self) -> Iterator[Question]:
        yield Question("check/json/recipes", ("check", "recipes", *_JSON))
        yield Question("check/json/refused", ("check", "tests/fixtures/refused", *_JSON))
        yield Question("check/text/refused", ("check", "tests/fixtures/refused"))
        yield Question("check/paths/refused", ("check", "tests/fixtures/refused", "--paths", "note", *_JSON))
        yield Question("check/pedantic/recipes", ("check", "recipes", "--pedantic"))
        yield Question("check/config/recipes", ("check", "--show-config", "recipes", *_JSON))
        yield Question("check/github/refused", ("check", "tests/fixtures/refused", "--format", "github"))
        yield Question("check/sarif/refused", ("check", "tests/fixtures/refused", "--format", "sarif"))
        for path in sorted(name for name in self.catalogue if name.startswith("deepspeed/") and name.endswith(".json")):
            yield Question(f"check/deepspeed/{Path(path).stem}", ("check", path, *_JSON))
        for path in ("accelerate/fsdp.yaml", "accelerate", "data/dataset_info.json", "data"):
            yield Question(f"check/file/{path.replace('/', '-')}", ("check", path, *_JSON))
        yield Question("list/text/all", ("list",))
        yield Question("list/json/all", ("list", *_JSON))
        for machine in self.machines[::30]:
            yield Question(f"list/machine/{machine}", ("list", "--machine", machine))
        yield Question("rule/list/all", ("rule",))
        for words in ("nccl", "nan", "out of memory", "flash attention"):
            yield Question(f"rule/words/{words.replace(' ', '-')}", ("rule", words))
        for code in sorted(path.stem for path in (self.root / "tests" / "rules" / "cases").glob("*.yml")):
            yield Question(f"rule/page/{code}", ("rule", code))
        for form, words in (("text", ()), ("json", _JSON)):
            yield Question(f"data/{form}/tiny", ("data", "recipes/tiny-cpu-lora.yaml", *words))
            yield Question(f"data/{form}/file", ("data", "data/tiny_demo.json", "--model", "qwen3-8b", *words))
            yield Question(f"data/{form}/absent", ("data", self.recipes[0], *words))
        for command in COMMANDS:
            yield Question(f"help/page/{command}", (command, "--help"))
            yield Question(f"help/usage/{command}", (command, "--no-such-option"))
        yield Question("help/page/all", ("--help",))
        yield Question("help/usage/all", ("no-such-command",))

    def _written(self) -> Iterator[Question]:
        """What is written: copies, plans, fixes."""
        for path in self.recipes[::16]:
            yield Question(f"copy/recipe/{Path(path).stem}", ("copy", Path(path).stem, "mine/"), {"mine/": b""})
        yield Question("copy/deepspeed/z2", ("copy", "ds_z2.json", "."), {})
        yield Question("copy/refused/there", ("copy", Path(self.recipes[0]).stem, "a.yaml"), {"a.yaml": b""})
        yield Question("copy/refused/unknown", ("copy", "no-such-recipe", "."), {})
        for machine, model in zip(self.machines[::8], self.models, strict=False):
            words = ("plan", "--machine", machine, "--model", model, "--write", "mine.yaml")
            yield Question(f"plan/written/{machine}", words, {})
        own = {"own.jsonl": b'{"instruction": "a", "output": "b"}\n' * 20}
        yield Question("data/register/own", ("data", "own.jsonl", "--register", "mine"), own)
        yield Question("copy/data/own", ("copy", Path(self.recipes[0]).stem, ".", "--data", "own.jsonl"), own)
        yield Question("check/input/standard", ("check", "-"), input=self.catalogue[self.recipes[0]].decode())

    def _plans(self) -> Iterator[Question]:
        for machine in (*self.machines[::15], "1x48g"):
            yield Question(f"plan/machine/{machine}", ("plan", "--machine", machine))
        yield Question(
            "plan/scale/first", ("plan", "--machine", self.machines[0], "--model", self.models[0], "--scale")
        )
        yield Question("plan/machines", ("plan", "--machines", "h100,4090,8x910b", "--model", self.models[0]))
        for number in range(ASKED):
            chance = Random(f"plan {number}")
            words: Words = ("plan", "--machine", chance.choice([*self.machines, "1x48g", "8x80g"]))
            words += ("--model", chance.choice(self.models))
            for option, values in _PLANNED.items():
                value = chance.choice(values)
                words += (option, value) if value else ()
            words += ("--fsdp",) if chance.random() < 0.1 else ()
            yield Question(f"plan/asked/{number:03}", words + (_JSON if number % 3 else ()))

    def _cases(self) -> Iterator[Question]:
        """The cases of the rules: all as JSON, one in eight as text, and the fixes of one in eight."""
        from support import cases

        for at, case in enumerate(cases.read(self.root / "tests" / "rules" / "cases")):
            ask = partial(Question, files=dict(case.files), environment=dict(case.environment), linked=True)
            yield ask(f"check/case/{case.code}-{case.kind}-{case.name}", ("check", case.path, *_JSON))
            if at % 8 == 0:
                yield ask(f"check/case-text/{case.code}-{case.kind}-{case.name}", ("check", case.path))
            elif at % 8 == 4:
                words = ("check", "--fix", "--unsafe-fixes", case.path)
                yield ask(f"check/case-fixed/{case.code}-{case.kind}-{case.name}", words)

    def _published(self) -> Iterator[Question]:
        """The setups of field reports, the examples of LLaMA-Factory, and whole runs whose hours were published."""
        rows = yaml.load((self.root / "tests" / "fixtures" / "fields.yaml").read_bytes(), _Loader)
        for at, row in enumerate(rows):
            words = (row["file"], *row.get("set", ()))
            yield Question(f"explain/fields/{row['id']}-{at:02}", ("explain", *words, *_JSON))
            if "job" in row:
                yield Question(f"submit/fields/{row['id']}-{at:02}", ("submit", *words, "--to", "slurm", "--dry-run"))
        for path in sorted(name for name in self.catalogue if name.startswith("strangers/")):
            name = Path(path).stem
            if path.startswith("strangers/runs/"):
                yield Question(f"explain/runs/{name}", ("explain", path, *_JSON))
            else:
                yield Question(f"check/strangers/{name}", ("check", path, "--machine", "8xa100-80g", *_JSON))

    def _drawn(self) -> Iterator[Question]:
        """Recipes of the catalogue with other settings, on other machines. Each recipe, machine and value comes about
        as often as every other."""
        chance = Random("drawn recipes")
        bases, machines = _shuffled(chance, self.recipes), _shuffled(chance, self.machines)
        settings = {
            key: _shuffled(chance, values) for key, values in {**_SETTINGS, "model_name_or_path": self.models}.items()
        }
        for number in range(self.drawn):
            words: Words = ("explain", next(bases))
            if chance.random() < 0.6:
                words += ("--machine", next(machines))
            for key, values in settings.items():
                if chance.random() < _OFTEN.get(key, 0.12):
                    words += (f"{key}={next(values)}",)
            yield Question(f"explain/drawn/{number:04}", words + _JSON)

    def _recorded(self) -> Iterator[Question]:
        """Machines as their drivers' programs showed them."""
        folders = sorted(path for path in (self.root / "tests" / "fixtures" / "recorded").iterdir() if path.is_dir())
        for at, folder in enumerate(folders):
            files = {f"bin/{path.name}": path.read_bytes() for path in folder.iterdir()}
            path = {"PATH": "<here>/bin:/usr/bin:/bin"}
            if at % 2 == 0:  # it takes a second
                form = _JSON if at % 6 == 0 else ()
                yield Question(f"doctor/recorded/{folder.name}", ("doctor", *form), files, path)
            recipe = {"recipe.yaml": self.catalogue[self.recipes[at * 7 % len(self.recipes)]]}
            words = ("check", "--machine", "auto", "recipe.yaml", *_JSON)
            yield Question(f"check/recorded/{folder.name}", words, files | recipe, path, linked=True)
            if at % 12 == 0:
                words = ("doctor", "recipe.yaml")
                yield Question(f"doctor/recipe/{folder.name}", words, files | recipe, path, linked=True)

    def _fuzzed(self) -> Iterator[Question]:
        """Inputs that were answered wrongly once."""
        from fuzz import kept

        for path in kept.every():
            given = kept.load(path)
            yield Question(f"{given.words[0]}/fuzzed/{path.parent.name}-{path.stem}", given.words, dict(given.files))

    def _damaged(self) -> Iterator[Made]:
        """Damaged inputs by number, each made only where it is asked. What drivers print is in tests/fixtures, too."""
        from fuzz import kinds

        def made(kind: str, number: int) -> Question:
            given = kinds.made(kind, number)
            return Question(f"damaged/{kind}/{number:02}", given.words, dict(given.files))

        for kind in kinds.KINDS:
            if kind != "driver":
                for number in range(DAMAGED):
                    yield f"damaged/{kind}/{number:02}", partial(made, kind, number)


# Options of `plan` and settings of recipes that are drawn from.
_PLANNED: Mapping[str, Sequence[str]] = {
    "--cutoff-len": ("", "512", "4096", "8192"),
    "--stage": ("", "", "sft", "dpo", "kto", "rm", "pt"),
    "--method": ("", "", "lora", "qlora", "full", "freeze"),
    "--host-ram": ("", "64", "512"),
    "--samples": ("", "", "20000"),
    "--network": ("", "", "ethernet-25g"),
    "--price": ("", "", "2 USD"),
}
_SETTINGS: Mapping[str, Sequence[str]] = {
    "finetuning_type": ("lora", "full", "freeze", "oft"),
    "stage": ("sft", "dpo", "kto", "rm", "pt", "ppo"),
    "deepspeed": (
        *("null", "deepspeed/ds_z0.json", "deepspeed/ds_z1.json", "deepspeed/ds_z2.json", "deepspeed/ds_z3.json"),
        *("deepspeed/ds_z2_offload.json", "deepspeed/ds_z3_offload.json", "deepspeed/ds_z3_offload_all_nopin.json"),
    ),
    "cutoff_len": ("512", "1024", "2048", "4096", "8192", "32768", "131072"),
    "per_device_train_batch_size": ("1", "2", "3", "4", "8", "16"),
    "gradient_accumulation_steps": ("1", "2", "8", "64"),
    "optim": ("adamw_torch", "adamw_8bit", "adafactor", "sgd", "paged_adamw_32bit", "lion_8bit"),
    "lora_rank": ("4", "16", "64", "256"),
    "lora_target": ("all", "q_proj,v_proj"),
    "quantization_bit": ("4", "8", "null"),
    "flash_attn": ("auto", "fa2", "sdpa", "disabled"),
    "enable_liger_kernel": ("true", "false"),
    "disable_gradient_checkpointing": ("true", "false"),
    "pure_bf16": ("true", "false"),
    "packing": ("true", "false"),
    "num_train_epochs": ("1.0", "10.0"),
    "dataloader_num_workers": ("0", "16"),
    "use_dora": ("true",),
    "use_galore": ("true",),
    "use_unsloth_gc": ("true",),
    "freeze_trainable_layers": ("1", "8"),
    "max_samples": ("100", "50000"),
}
_OFTEN = {
    **{"cutoff_len": 0.5, "per_device_train_batch_size": 0.5, "deepspeed": 0.3, "finetuning_type": 0.2},
    **{"model_name_or_path": 0.15, "use_dora": 0.03, "use_galore": 0.03, "use_unsloth_gc": 0.03},
}


def _catalogue(root: Path) -> Iterator[tuple[str, bytes]]:
    for folder in ("recipes", *SHARED, "demo/tiny-qwen3", "tests/fixtures/refused"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(root)), path.read_bytes()
    evidence = root / "benchmarks" / "evidence"
    for name, values in json.loads((evidence / "conformity" / "examples.json").read_bytes())["examples"].items():
        if not name.endswith(".json"):
            yield f"strangers/{name.replace('/', '-')}", _text(values)
    for run in yaml.load((evidence / "time" / "runs.yaml").read_bytes(), _Loader):
        yield f"strangers/runs/{run['id']}.yaml", _text(run["set"], {key: run[key] for key in _HEADER if key in run})


_HEADER = ("machine", "network", "samples", "lengths")


def _text(values: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> bytes:
    """A recipe, with its header block."""
    block = "".join(f"# {key}: {json.dumps(value)}\n" for key, value in (header or {}).items())
    head = f"# /// recipe\n{block}# ///\n" if block else ""
    return (head + yaml.safe_dump(dict(values), sort_keys=False)).encode()


def _warm(recipe: bytes) -> bytes:
    return re.sub(rb"(?m)(: |\b)(deepspeed|data|accelerate)(/|$)", rb"\1warm-\2\3", recipe)


def _kind(name: str) -> str:
    return "/".join(name.split("/")[:2])


def _is_safe(words: Words) -> bool:
    """True where nothing is trained or timed."""
    return words[0] != "calibrate" and (words[0] != "train" or "--dry-run" in words)


def _distinct(names: Sequence[str]) -> list[str]:
    return sorted(set(names))


def _shuffled(chance: Random, values: Sequence[str]) -> Iterator[str]:
    """The values without end, all of them in a new order each time."""
    while True:
        yield from chance.sample(values, len(values))


def key(question: Question, catalogue: str) -> str:
    """A hash over what the answer depends on, but for the program; `catalogue` is that of its content."""
    seen = catalogue if question.files is None or question.linked else ""
    asked = json.dumps([question.words, sorted(question.environment.items()), question.input, seen])
    return trees.digest({"asked": asked.encode(), **{f"files/{n}": c for n, c in (question.files or {}).items()}})
