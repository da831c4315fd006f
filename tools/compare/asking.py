"""The answers of a tree: those that are known from earlier comparisons, and those of workers, on every core."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import corpus
import trees
from corpus import Question

_BATCH = 20  # questions in the catalogue that share a process
_WORTH = 100  # questions that a worker is worth its start for, and its warming up
Answer = Mapping[str, Any]


class Desk:
    """Asks the questions of a corpus. `build` is the folder for what is laid out, and for the answers."""

    def __init__(self, questions: corpus.Corpus, build: Path) -> None:
        self.build = build
        self.catalogue = trees.digest(questions.catalogue)
        self.folder = trees.lay_out(questions.catalogue, build / "catalogues" / self.catalogue)
        self._warm_files, self._warm_words = questions.warm_up()
        self.asked = build / "asked"
        self.asked.mkdir(exist_ok=True)
        self.seconds: Counter[str] = Counter()  # of the processor, by the kind of question
        self._around = trees.digest(
            {
                **{name: Path(__file__).with_name(name).read_bytes() for name in ("asking.py", "worker.py")},
                "python": sys.version.encode(),
                "packages": "\n".join(sorted(f"{each.name} {each.version}" for each in distributions())).encode(),
            }
        )

    def answers(self, both: Sequence[trees.Tree], questions: Sequence[Question]) -> list[dict[str, Answer]]:
        """The answers of each tree, by the id of the question."""
        keys = {question.id: corpus.key(question, self.catalogue) for question in questions}
        known = [self._known(tree) for tree in both]
        missing = [[question for question in questions if keys[question.id] not in held] for held in known]
        workers = max(1, (os.cpu_count() or 1) // sum(map(bool, missing))) if any(missing) else 0
        with ThreadPoolExecutor(max(1, 2 * workers)) as pool:
            jobs = []
            for tree, held, asked in zip(both, known, missing, strict=True):
                batches: SimpleQueue[list[Question]] = SimpleQueue()
                for batch in _batches(asked):
                    batches.put(batch)
                for _ in range(min(workers, -(-len(asked) // _WORTH))):
                    jobs.append((held, pool.submit(self._work, tree, batches, len(asked) >= _WORTH)))
            for held, job in jobs:
                held.update({keys[name]: answer for name, answer in job.result().items()})
        for tree, held, asked in zip(both, known, missing, strict=True):
            if asked:
                self._keep(tree, held)
        return [{name: held[key] for name, key in keys.items()} for held in known]

    def _work(self, tree: trees.Tree, batches: SimpleQueue[list[Question]], many: bool) -> dict[str, Answer]:
        """The answers that one worker gives to the batches, until there are no more."""
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(tree.folder)]
        found: dict[str, Answer] = {}
        with (
            tempfile.TemporaryDirectory(dir=self.asked) as place,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", cwd=place,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            ) as worker,
        ):  # fmt: skip
            assert worker.stdin
            assert worker.stdout
            trees.write({f"warm/{name}": content for name, content in self._warm_files.items()}, Path(place))
            warm = [_asked(words, Path(place), Path(place, "warm")) for words in self._warm_words if many]
            _tell(worker, warm)
            while batch := _next(batches):
                asked = [self.laid_out(question, Path(place)) for question in batch]
                _tell(worker, asked)
                answers = json.loads(worker.stdout.readline() or "[]")
                if not answers:
                    raise SystemExit(f"compare: the program of {tree.name} does not start (above)")
                for question, answer in zip(batch, answers, strict=True):
                    self.seconds[question.kind] += answer.pop("seconds", 0.0)
                    found[question.id] = answer
                for one in asked:
                    if one["own"]:
                        shutil.rmtree(one["folder"])
            with suppress(BrokenPipeError):
                worker.stdin.close()
        return found

    def laid_out(self, question: Question, place: Path) -> dict[str, Any]:
        """The question as a worker reads it, its files in place."""
        if question.files is None:
            return _asked(question.words, place, self.folder, question)
        folder = place / "own"
        trees.write({"./": b"", **question.files}, folder)
        for name in corpus.SHARED if question.linked else ():
            if not (folder / name).exists():
                (folder / name).symlink_to(self.folder / name)
        return _asked(question.words, place, folder, question)

    def _file(self, tree: trees.Tree) -> Path:
        return self.build / "answers" / f"{tree.content}-{self._around}.json.gz"

    def _known(self, tree: trees.Tree) -> dict[str, Answer]:
        """What the tree is known to answer, by the key of the question."""
        try:
            with gzip.open(self._file(tree), "rt", encoding="utf-8") as file:
                held: dict[str, Answer] = json.load(file)
                return held
        except (OSError, EOFError, ValueError):
            return {}

    def _keep(self, tree: trees.Tree, held: Mapping[str, Answer]) -> None:
        path = self._file(tree)
        path.parent.mkdir(exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        with gzip.open(half, "wt", compresslevel=1, encoding="utf-8") as file:
            json.dump(held, file)
        half.replace(path)


def _batches(questions: Sequence[Question]) -> Iterator[list[Question]]:
    """Those in the catalogue by the dozen, those in a folder of their own one by one."""
    shared = [question for question in questions if question.files is None]
    yield from (shared[start : start + _BATCH] for start in range(0, len(shared), _BATCH))
    yield from ([question] for question in questions if question.files is not None)


def _next(batches: SimpleQueue[list[Question]]) -> list[Question] | None:
    try:
        return batches.get_nowait()
    except Empty:
        return None


def _tell(worker: subprocess.Popen[str], questions: Sequence[Mapping[str, Any]]) -> None:
    """Send questions. A worker that has ended answers none, which is seen where the answers are read."""
    with suppress(BrokenPipeError):
        print(json.dumps(questions), file=worker.stdin, flush=True)


def _asked(words: corpus.Words, place: Path, folder: Path, question: Question | None = None) -> dict[str, Any]:
    """A question as a worker reads it. Home and temporary files are in `place`."""
    home, temporary = place / "home", place / "tmp"
    home.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    environment = {
        **{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC", "HF_HUB_OFFLINE": "1"},
        **{"HOME": str(home), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    }
    more = {k: v.replace("<here>", str(folder)) for k, v in question.environment.items()} if question else {}
    return {
        "words": words,
        "folder": str(folder),
        "environment": {**environment, **more},
        "input": question.input if question else "",
        "own": question is not None and question.files is not None,
    }
