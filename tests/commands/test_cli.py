"""The program from outside: streams, exit codes, and one clear line for every kind of bad input. Ten processes
prove the edge; the rest is asked in this process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.clean_recipe import RECIPE as GOOD
from support.program import Answer, answer, path_without_devices, process

from validator.__main__ import main
from validator.check import checking
from validator.cli import COMMANDS as NAMES
from validator.cli import group

pytestmark = pytest.mark.sample(one_in=2, whole_for=["validator/cli.py", "validator/commands/*"])

ROOT = Path(__file__).parents[2]
TINY = ROOT / "recipes" / "tiny-cpu-lora.yaml"


def write(name: str, data: bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(data)
        return str(folder / name)

    return make


def empty_folder(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def with_json(text: bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "zero.json").write_bytes(text)
        (folder / "x.yaml").write_text(GOOD + f"deepspeed: {folder}/zero.json\n")
        return str(folder / "x.yaml")

    return make


def edited(old: str, new: str, head: str = "") -> Callable[[Path], str]:
    return write("x.yaml", (head + GOOD.replace(old, new)).encode())


MACHINE = "# /// recipe\n# machine: {}\n# ///\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
BAD: dict[str, tuple[Callable[[Path], str], str]] = {
    "empty file": (write("x.yaml", b""), "holds no key"),
    "only comments": (write("x.yaml", b"# nothing\n"), "holds no key"),
    "a list": (write("x.yaml", b"- a: 1\n- b: 2\n"), "a list, not a mapping"),
    "binary": (write("x.yaml", os.urandom(64) + b"\xff\xfe\x00"), "not UTF-8"),
    "missing": (lambda folder: str(folder / "none.yaml"), "no such file"),
    "name too long": (lambda folder: str(folder / ("x" * 300 + ".yaml")), "too long"),
    "folder without recipes": (empty_folder, "folder"),
    "10 MB": (write("x.yaml", b"key: value\n" * 1_000_000), "larger than 1 MiB"),
    "alias bomb": (write("x.yaml", BOMB.encode()), "10,000 values"),
    "deep nesting": (write("x.yaml", b"a: " + b"[" * 100_000), "100 levels"),
    "less deep nesting": (write("x.yaml", b"a: " + b"[" * 900 + b"]" * 900), "100 levels"),
    "not YAML": (write("x.yaml", b"a: [1, 2\nb: 3\n"), "not valid YAML"),
    "unknown device": (edited("", "", MACHINE.format("8xa1000")), "device `a1000` is not known"),
    "malformed machine": (edited("", "", MACHINE.format("eight A100")), "did you mean a100-40g"),
}
# What only a check reports; explain goes on without.
CHECKED: dict[str, tuple[Callable[[Path], str], str]] = {
    "JSON that is none": (with_json(b"{,"), "not valid JSON"),
    "JSON that is a list": (with_json(b"[1]"), "not a JSON object"),
    "binary JSON": (with_json(b"\xff\x00"), "not UTF-8"),
    "deep JSON": (with_json(b"[" * 100_000), "nested too deeply"),
    "huge number in JSON": (with_json(b'{"a": ' + b"9" * 5000 + b"}"), "too many digits"),
    "unknown key": (edited("template", "templat"), "did you mean `template`"),
}
COMMANDS = [["check"], ["explain"], ["train", "--dry-run"]]


def assert_one_clear_line(done: Answer, code: int, says: str) -> None:
    shown = (done.stdout + done.stderr).decode()
    assert done.returncode == code, shown
    assert "Traceback" not in shown
    assert "internal error" not in shown
    (line,) = [line for line in shown.splitlines() if says in line]
    assert len(line) < 500


@pytest.mark.parametrize(
    "command",
    [COMMANDS[0], *(pytest.param(words, marks=pytest.mark.slow) for words in COMMANDS[1:])],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("kind", BAD)
def test_bad_recipes(kind: str, command: list[str], tmp_path: Path) -> None:
    make, says = BAD[kind]
    done = answer(*command, make(tmp_path))
    assert_one_clear_line(done, 1, says)


@pytest.mark.parametrize("command", [["check"], ["train", "--dry-run"]], ids=lambda words: words[0])
@pytest.mark.parametrize("kind", CHECKED)
def test_bad_contents(kind: str, command: list[str], tmp_path: Path) -> None:
    make, says = CHECKED[kind]
    assert_one_clear_line(answer(*command, make(tmp_path)), 1, says)


def test_an_unknown_model_is_not_judged_and_cannot_be_explained(tmp_path: Path) -> None:
    path = edited("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instrukt")(tmp_path)
    checked = answer("check", path)
    assert checked.returncode == 0
    assert b"memory not judged (no machine named" in checked.stdout
    assert b"model `Qwen/Qwen2.5-7B-Instrukt` is not known; did you mean" in checked.stdout
    strict = answer("check", "--strict", "--ignore", "PTH028", "--machine", "8xa100-80g", path)
    assert strict.returncode == 0  # what is not known here is no fault of the recipe
    assert b"memory is not judged: model `Qwen/Qwen2.5-7B-Instrukt` is not known" in strict.stdout
    assert_one_clear_line(answer("explain", path), 1, "is not known; did you mean `Qwen/Qwen2.5-7B-Instruct`")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["check", "--machine", "8xa1000"], 2, "device `a1000` is not known"),
        (["explain", str(TINY), "--machine", "0xa100"], 2, "1 to 4096 nodes"),
        (["list", "--machine", "x"], 2, "not of the form"),
        (["list", "--model", "gwen7b"], 1, "did you mean `qwen7b`"),
        (["list", "--method", "lara"], 1, "no recipe matches"),
        (["check", "--host-ram", "-1"], 2, "--host-ram"),
        (["check", "--format", "xml"], 2, "--format"),
        (["explain"], 2, "Missing argument"),
        (["explain", str(TINY), "learning_rate"], 1, "KEY=VALUE"),
        (["explain", str(TINY), "cutoff_len=[1"], 1, "not valid YAML"),
        (["explain", "deepspeed/ds_z3.json"], 1, "is a DeepSpeed file, not a recipe"),
        (["train", "-"], 2, "save it first"),
        (["rule", "FIT999"], 1, "rule `FIT999` is not known"),
        (["chekc"], 2, "`chekc` is not a command; did you mean `lmf-recipes check`?"),
    ],
)
def test_wrong_usage(words: list[str], code: int, says: str) -> None:
    assert_one_clear_line(answer(*words), code, says)


def test_a_bare_check_says_what_to_give_where_there_are_no_recipes(tmp_path: Path) -> None:
    done = answer("check", cwd=tmp_path)
    assert done.returncode == 2
    assert b"there is no folder `recipes` here; give a recipe, a folder, or a name" in done.stderr
    shutil.copytree(ROOT / "deepspeed", tmp_path / "recipes")
    assert answer("check", cwd=tmp_path).returncode == 0


def test_one_bad_file_never_stops_the_others(tmp_path: Path) -> None:
    folders = {name: tmp_path / name.replace(" ", "-") for name in BAD}
    for folder in folders.values():
        folder.mkdir()
    bad = [make(folders[name]) for name, (make, _) in BAD.items()]
    done = answer("check", *bad, str(TINY), "--format", "json")
    assert done.returncode == 1
    files = json.loads(done.stdout)["files"]
    assert [file["path"] for file in files] == [*bad, str(TINY)]
    assert all(any(d["severity"] == "error" for d in file["diagnostics"]) for file in files[:-1])
    assert not [d for d in files[-1]["diagnostics"] if d["severity"] == "error"]


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_standard_input(form: str) -> None:
    ask = process if form == "text" else answer
    done = ask("check", "-", "--format", form, stdin=GOOD.replace("sft", "sfd").encode())
    assert done.returncode == 1
    assert b"did you mean `sft`?" in done.stdout
    assert done.stderr == b""


def test_standard_input_that_is_no_recipe() -> None:
    for data, says in [(b"", "holds no key"), (b"\xff\x00", "not UTF-8"), (b"a" * (2 << 20), "larger than 1 MiB")]:
        assert_one_clear_line(answer("check", "-", stdin=data), 1, says)


def test_explain_reads_standard_input_too() -> None:
    done = answer("explain", "-", "--machine", "1xa100-80g", "--format", "json", stdin=GOOD.encode())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "fits"


@pytest.mark.process
@pytest.mark.parametrize("words", ["check none.yaml", f"explain {TINY}", "list"])
def test_a_closed_pipe_ends_the_program_without_a_word(words: str) -> None:
    """`lmf-recipes … | head -0`, whose reader has gone before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-P", "-m", "validator", *words.split()]
    done = subprocess.run(line, cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_file_name_that_is_not_utf_8(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.yaml"
    Path(os.fsdecode(name)).write_text(GOOD)
    for form in ("json", "github", "sarif"):
        done = answer("check", os.fsdecode(name), "--format", form)
        assert done.returncode == 0, (form, done.stderr)
    done = process("check", os.fsdecode(name))
    assert done.returncode == 0, done.stderr


def test_a_terminal_that_claims_ascii_only() -> None:
    recipe = str(ROOT / "recipes" / "qwen3-8b-a100-lora.yaml")
    done = process("explain", recipe, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 0, done.stderr


def test_warnings_fail_only_when_strict(tmp_path: Path) -> None:
    path = write("x.yaml", (GOOD + 'plot_loss: "false"\n').encode())(tmp_path)
    assert answer("check", path).returncode == 0
    assert answer("check", path, "--strict").returncode == 1
    clean = write("y.yaml", GOOD.encode())(tmp_path)
    assert answer("check", clean, "--strict").returncode == 0


@pytest.mark.parametrize(
    "paths", [[str(TINY)], ["none.yaml"], [str(TINY), "none.yaml"], ["tests/fixtures/refused"], ["-x.yaml"]]
)
def test_a_check_without_options_is_that_with_their_defaults(paths: list[str]) -> None:
    """It does not wait for click, and must not be told apart."""
    short, long = answer("check", *paths), answer("check", "--format", "text", *paths)
    assert (short.returncode, short.stdout, short.stderr) == (long.returncode, long.stdout, long.stderr)


@pytest.mark.parametrize("options", [[], ["--format", "text"]])
def test_a_full_disk_is_told(options: list[str]) -> None:
    command = [sys.executable, "-m", "validator", "check", *options, str(TINY)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "lmf-recipes: the output cannot be written: no space left on device\n"


def test_a_check_without_options_does_not_import_click() -> None:
    code = "import sys; from validator.__main__ import command; command(['check', 'x']); print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_our_own_bug_is_exit_code_3_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_words: object) -> None:
        raise ZeroDivisionError("nobody expected this")

    monkeypatch.setattr(checking, "check_files", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["lmf-recipes", "check", str(TINY)])
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 3
    shown = capsys.readouterr()
    (log,) = tmp_path.iterdir()
    assert str(log) in shown.err
    assert "Traceback" not in shown.out + shown.err
    assert "nobody expected this" in log.read_text()


def test_train_dry_run_prints_the_command_and_runs_nothing(tmp_path: Path) -> None:
    done = answer("train", "--dry-run", str(TINY), "num_train_epochs=3", PATH=path_without_devices(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.decode().splitlines()
    assert f"llamafactory-cli train {TINY} num_train_epochs=3" in line


def test_an_override_is_judged(tmp_path: Path) -> None:
    path = write("x.yaml", (MACHINE.format("1xrtx-4090") + GOOD).encode())(tmp_path)
    tools = path_without_devices(tmp_path)
    assert answer("train", "--dry-run", path, PATH=tools).returncode == 0
    done = answer("train", "--dry-run", path, "finetuning_type=full", PATH=tools)
    assert done.returncode == 1
    assert b"[FIT001]" in done.stderr
    assert done.stdout == b""


def test_every_command_is_in_the_help_and_has_one() -> None:
    shown = CliRunner().invoke(group, ["--help"]).output
    context = click.Context(group)
    names = {path.stem for path in (ROOT / "validator" / "commands").glob("*.py")} - {
        "__init__",
        "check_files",
        "hints",
        "options",
        "preflight",
    }
    assert names == set(group.list_commands(context))
    for name in names:
        command = group.get_command(context, name)
        assert command
        assert command.help
        assert f"  {name} " in shown
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help


def test_the_help_names_the_commands_in_the_order_of_use_and_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(group, ["--help"]).output
    commands, _, start = shown.partition("Commands:\n")[2].partition("\n\n")
    assert [line.split()[0] for line in commands.splitlines()] == list(NAMES)
    assert "..." not in commands, "one line each"
    (first, *_) = re.findall("`lmf-recipes (.+?)`", start)
    assert CliRunner().invoke(group, first.split()).exit_code == 0


def test_version() -> None:
    assert b"lmf-recipes, version" in process("--version").stdout
