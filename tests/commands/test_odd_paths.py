"""Whatever lies at a path that a user names, in any argument, option or key: an answer within seconds, which is no
traceback. The arguments and options are those that the commands have, the keys those of knowledge/path_keys.py."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import pytest
from support import program
from support.clean_recipe import RECIPE

from validator.cli import group
from validator.knowledge.path_keys import PATH_KEY_NAMES
from validator.machine import driver

pytestmark = [
    pytest.mark.sample(one_in=40, whole_for=["validator/recipe/safe_read.py", "validator/recipe/atomic_write.py"]),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="kinds of files that only POSIX has"),
]

# What each command needs beside the path that is tried. Of arguments, the one that is tried is left out.
NEEDED: Mapping[str, tuple[dict[str, str], list[str]]] = {
    "plan": ({}, ["--model", "qwen2.5-0.5b", "--machine", "1xrtx-4090"]),
    "list": ({}, []),
    "copy": ({"name": "qwen3-8b-a100-lora", "dest": "new.yaml"}, []),
    "data": ({"source": "r.yaml"}, []),
    "check": ({"paths": "r.yaml"}, []),
    "explain": ({"recipe": "r.yaml"}, ["--machine", "1xa100-80g"]),
    "calibrate": ({"recipe": "r.yaml"}, ["--log", "log.jsonl", "--machine", "1xa100-80g"]),
    "doctor": ({"recipe": "r.yaml"}, []),
    "train": ({"recipe": "r.yaml"}, ["--dry-run", "--machine", "1xa100-80g"]),
    "submit": ({"recipe": "r.yaml"}, ["--to", "slurm", "--dry-run", "--machine", "1xa100-80g"]),
    "diff": ({"name": "qwen3-8b-a100-lora", "file": "r.yaml"}, []),
    "rule": ({}, []),
}
NAME = 255  # bytes that a name may have
# A path for each kind, with a suffix or without.
KINDS: Mapping[str, Callable[[str], str]] = {
    "missing": "none{}".format,
    "empty": lambda _: "",
    "folder": "folder{}".format,
    "loop": "loop{}".format,
    "link to nothing": "nowhere{}".format,
    "pipe": "pipe{}".format,
    "socket": "socket{}".format,
    "zeros": "zeros{}".format,
    "null": "null{}".format,
    "full": "full{}".format,
    "locked file": "locked{}".format,
    "in a locked folder": "closed/x{}".format,
    "longest name": lambda suffix: "x" * (NAME - len(suffix)) + suffix,
    "longer name": lambda suffix: "x" * 300 + suffix,
    "long path": lambda suffix: "x/" * 2100 + f"x{suffix}",
    "not UTF-8": lambda suffix: os.fsdecode(b"\xff") + suffix,
    "not UTF-8, missing": lambda suffix: os.fsdecode(b"\xfe") + suffix,
    "through a file": "r.yaml/x{}".format,
    "terabyte": "terabyte{}".format,
}
SUFFIXES = ("", ".yaml", ".jsonl")
# A recipe without errors, and the files that it reads.
SOUND = RECIPE.replace("alpaca_gpt4_en", "rows")
GIVEN = {
    "data/dataset_info.json": '{"rows": {"file_name": "rows.jsonl"}}',
    "data/rows.jsonl": '{"instruction": "a", "input": "", "output": "b"}\n' * 20,
    "ds.json": (program.ROOT / "deepspeed/ds_z2.json").read_text("utf-8"),
    "model/config.json": (program.ROOT / "demo/tiny-qwen3/config.json").read_text("utf-8"),
    "out/checkpoint-10/trainer_state.json": '{"global_step": 10}',
    "log.jsonl": "".join(f'{{"current_steps": {n}, "elapsed_time": "0:{n:02}:00"}}\n' for n in range(2, 9)),
    "fsdp.yaml": "distributed_type: MULTI_GPU\nnum_processes: 8\n",
}
# Files in folders that a recipe or the environment names.
FILES = (
    *("model/config.json", "model/tokenizer.json", "model/tokenizer_config.json", "model/chat_template.jinja"),
    *("model/model.safetensors", "model/model.safetensors.index.json", "model/generation_config.json"),
    *("data/dataset_info.json", "data/rows.jsonl", "out/checkpoint-10/trainer_state.json", "out/trainer_log.jsonl"),
    *("out/checkpoint-10/model.safetensors", "out/checkpoint-10/adapter_config.json", "out/old.yaml"),
    *("ds.json", "fsdp.yaml", ".lmf-recipes.yaml", "pyproject.toml", ".git/info/exclude", ".gitignore"),
    *("home/lmf-recipes/measured.json", "home/lmf-recipes/site.yaml", "home/huggingface/hub/version.txt"),
)


def values(command: click.Command) -> Iterator[click.Parameter]:
    """The arguments and options that take any text, and with that perhaps a path."""
    for each in command.params:
        if isinstance(each.type, click.Path | click.types.StringParamType | click.types.FuncParamType):
            yield each


def every_value() -> Iterator[tuple[str, str]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        for each in values(group.get_command(context, name) or group):
            yield name, each.opts[0]


@contextmanager
def within_seconds() -> Iterator[None]:
    """Fail after 10 seconds of a processor, or after 60 of waiting, and at more than 1 GiB of memory."""

    def fail(_number: int, _frame: FrameType | None) -> NoReturn:
        pytest.fail("does not end")

    before = resource.getrlimit(resource.RLIMIT_DATA)
    held = int(Path("/proc/self/status").read_text("utf-8").partition("VmData:")[2].split()[0]) << 10
    old = {each: signal.signal(each, fail) for each in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, 10)
    signal.setitimer(signal.ITIMER_REAL, 60)
    resource.setrlimit(resource.RLIMIT_DATA, (held + (1 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in old.items():
            signal.signal(number, handler)


def make_kind(path: Path) -> None:
    """Make what lies at a path of one of the KINDS, by the path's name."""
    kind = path.name.partition(".")[0]
    devices = {"zeros": "/dev/zero", "null": "/dev/null", "full": "/dev/full", "nowhere": "none", "loop": path.name}
    if kind in devices:
        path.symlink_to(devices[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    elif kind == "terabyte":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind in ("locked", "\udcff") or len(kind) > 200:
        path.write_text(SOUND)
        path.chmod(0 if kind == "locked" else 0o644)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe, a log, and something of every kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("PATH", program.path_without_devices(tmp_path))
    monkeypatch.setattr(driver, "run_tool", lambda *_: None)

    def refuse(*_words: object, **_more: object) -> NoReturn:
        raise OSError(1, "not while paths are tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    (tmp_path / "r.yaml").write_text(SOUND)
    for name, text in GIVEN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/x").write_text("")
    for kind in KINDS.values():
        for suffix in SUFFIXES:
            with suppress(OSError):
                make_kind(tmp_path / kind(suffix)) if kind("") else None
    (tmp_path / "closed").chmod(0)
    return tmp_path


def ask(*words: str) -> None:
    """Ask the program, which ends by itself, with an exit code that it promises and at most one message."""
    with within_seconds():
        done = program.answer(*words, cwd=Path.cwd())
    shown = f"{' '.join(words)[:300]}\n{done.stdout.decode()}\n{done.stderr.decode()}"
    assert done.returncode in (0, 1, 2), shown
    for wrong in ("Traceback", "internal error", "memory does not suffice", "the output cannot be written"):
        assert wrong not in shown, shown
    assert len(re.findall("(?m)^(?:lmf-recipes|Error): ", shown)) <= (done.returncode > 0), shown
    assert done.returncode == 0 or done.stdout + done.stderr, shown


def test_every_command_has_what_it_needs() -> None:
    assert NEEDED.keys() == {name for name, _ in every_value()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("command", "value"), [*every_value()])
@pytest.mark.usefixtures("here")
def test_a_path_on_the_command_line(command: str, value: str, kind: str) -> None:
    arguments, rest = NEEDED[command]
    for suffix in SUFFIXES:
        path = KINDS[kind](suffix)
        given = {**arguments, **({value: path} if value in arguments else {})}
        if value.startswith("--"):
            ask(command, *given.values(), *rest, f"{value}={path}")
        elif value == "overrides":
            ask(command, *given.values(), *rest, f"output_dir={path}")
        else:
            ask(command, *rest, *(given.values() if value in given else [*given.values(), path]))


READERS = (
    ("check", "r.yaml"),
    ("explain", "r.yaml"),
    ("train", "--dry-run", "--machine", "1xa100-80g", "r.yaml"),
    ("submit", "--to", "slurm", "--dry-run", "--machine", "2x8xa100-80g", "r.yaml"),
    ("submit", "--to", "kubernetes", "--dry-run", "--machine", "8xa100-80g", "r.yaml"),
    ("data", "r.yaml"),
    ("doctor", "r.yaml"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [*sorted(PATH_KEY_NAMES), "cache_dir", "dataset", "accelerate"])
def test_a_path_in_a_recipe(key: str, kind: str, here: Path) -> None:
    for suffix in SUFFIXES[: 1 + (kind == "pipe")]:
        path = KINDS[kind](suffix).encode("utf-8", "replace").decode()
        text = re.sub(rf"(?m)^{key}: .*\n", "", SOUND) + f"{key}: '{path}'\n"
        if key == "accelerate":
            text = f"# /// recipe\n# machine: 8xa100-80g\n# accelerate: '{path}'\n# ///\n{SOUND}"
        (here / "r.yaml").write_text(text)
        for words in READERS:
            ask(*words)


@pytest.mark.parametrize("kind", ["folder", "loop", "nowhere", "pipe", "socket", "zeros", "null", "locked", "terabyte"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_in_a_folder_that_is_named(name: str, kind: str, here: Path) -> None:
    keys: dict[str, Any] = {
        **{"model_name_or_path": "model", "dataset_dir": "data", "dataset": "rows", "output_dir": "out"},
        **{"resume_from_checkpoint": "out/checkpoint-10", "deepspeed": "ds.json"},
    }
    text = re.sub(rf"(?m)^(?:{'|'.join(keys)}): .*\n", "", SOUND) + "".join(f"{k}: {v}\n" for k, v in keys.items())
    (here / "r.yaml").write_text(f"# /// recipe\n# accelerate: fsdp.yaml\n# ///\n{text}")
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    made = here / f"{kind}.made"
    with suppress(OSError):
        make_kind(made)
    (here / name).unlink(missing_ok=True)
    (here / name).symlink_to(made)
    calibrate = ("calibrate", "r.yaml", "--log", "log.jsonl", "--machine", "1xa100-80g", "model_name_or_path=qwen3-8b")
    for words in (
        *READERS,
        calibrate,
        ("calibrate", "--list"),
        ("plan", "--model", "model", "--machine", "1xrtx-4090"),
    ):
        ask(*words)
