"""Settings of a team: where they are found, what they mean in each command, and files that cannot be used."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support import program
from support.clean_recipe import RECIPE

from validator import configuration
from validator.configuration import find_configuration
from validator.errors import ConfigurationError
from validator.recipe import known_folders
from validator.recipe.recipe_file import load_recipe

AWAY = "model_name_or_path: /mnt/models/Qwen2.5-7B-Instruct"


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a recipe, its data set registry and a DeepSpeed file."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write(".git/HEAD", "")
    write("data/dataset_info.json", '{"alpaca_gpt4_en": {"hf_hub_url": "llamafactory/alpaca_gpt4_en"}}')
    write("configs/a.yaml", RECIPE)
    return folder


def write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    configuration._read_folder.cache_clear()


def codes(*words: str) -> set[str]:
    """The codes that `check` finds."""
    files = json.loads(program.run("check", "--format", "json", *words).stdout)["files"]
    return {each["code"] for file in files for each in file["diagnostics"]}


def toml(text: str) -> None:
    write("pyproject.toml", f"[project]\nname = 'x'\n\n[tool.lmf-recipes]\n{text}")


TABLE = "[tool.lmf-recipes]\n"
FOUND = [
    ({"pyproject.toml": f"{TABLE}machine = '1xa100-80g'"}, "1xa100-80g"),
    ({".lmf-recipes.yaml": "machine: 1xa100-80g"}, "1xa100-80g"),
    ({"pyproject.toml": f"{TABLE}machine = '1xt4-16g'", ".lmf-recipes.yaml": "machine: 1xl40s-48g"}, "1xl40s-48g"),
    ({"pyproject.toml": "[tool.ruff]\nx = 1\n", "../pyproject.toml": ""}, None),
    ({"configs/pyproject.toml": "[tool.ruff]", "pyproject.toml": f"{TABLE}machine = '1xt4-16g'"}, "1xt4-16g"),
    ({"configs/.lmf-recipes.yaml": "host-ram: 64", ".lmf-recipes.yaml": "machine: 1xt4-16g"}, None),
    ({"../.lmf-recipes.yaml": "machine: 1xt4-16g"}, None),  # outside of the repository
    ({".lmf-recipes.yaml": ""}, None),
    ({"pyproject.toml": f"{TABLE}machine = '1xt4-16g'", ".lmf-recipes.yml": "machine: 1xl40s-48g"}, "1xl40s-48g"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "machine"), FOUND)
def test_the_nearest_file_above_the_recipe_counts_alone(files: dict[str, str], machine: str | None) -> None:
    for name, text in files.items():
        write(name, text)
    assert find_configuration("configs/a.yaml").settings.get("machine") == machine


def test_a_section_holds_for_its_folder_and_later_ones_win() -> None:
    toml(
        "machine = '8xa100-80g'\nignore = ['TRA4']\n"
        "[tool.lmf-recipes.releases]\ntorch = '2.7'\n"
        "[tool.lmf-recipes.per-folder.'configs']\nignore = ['TRA9']\nreleases = {deepspeed = '0.17'}\n"
        "[tool.lmf-recipes.per-folder.'*/asc*']\nmachine = '8xascend-910b-64g'\n"
        "[tool.lmf-recipes.per-folder.'configs/ascend/one.yaml']\nhost-ram = 512\n"
    )
    found = find_configuration("configs/ascend/one.yaml")
    assert found.sections == ("configs", "*/asc*", "configs/ascend/one.yaml")
    assert (found.settings["machine"], found.settings["host-ram"]) == ("8xascend-910b-64g", 512)
    assert found.settings["ignore"] == ("TRA4", "TRA9")
    assert found.settings["releases"] == {"torch": "2.7", "deepspeed": "0.17"}
    assert find_configuration("other/b.yaml").settings["ignore"] == ("TRA4",)


def test_a_hook_judges_memory_without_arguments() -> None:
    assert not codes("--hook", "configs/a.yaml") & {"FIT001"}
    toml("machine = '1xrtx-3060-12g'\nhost-ram = 1024")
    assert "FIT001" in codes("--hook", "configs/a.yaml")
    assert program.run("check", "--hook", "configs/a.yaml").exit_code == 1
    # The command line wins, and so does the header block of the recipe.
    assert "FIT001" not in codes("--hook", "configs/a.yaml", "--machine", "1xh200-141g")
    write("configs/a.yaml", "# /// recipe\n# machine: 8xmi300x\n# ///\n" + RECIPE)
    assert "8 x mi300x" in program.run("explain", "configs/a.yaml").output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check", ["configs/a.yaml", "--format", "json"]),
        ("explain", ["configs/a.yaml"]),
        ("train", ["configs/a.yaml", "--dry-run"]),
        ("submit", ["configs/a.yaml", "--to", "slurm", "--dry-run"]),
        ("doctor", ["configs/a.yaml"]),
    ],
)
def test_every_command_that_judges_a_recipe_takes_its_machine(command: str, words: list[str]) -> None:
    without = program.run(command, *words)
    toml("machine = '1xrtx-3060-12g'\nhost-ram = 32")
    assert program.run(command, *words).output != without.output


def test_codes_that_are_ignored_and_those_of_the_command_line() -> None:
    write("configs/a.yaml", RECIPE + "ddp_timeout: 180000000\nlearning_rat: 1\n")
    assert {"TRA011", "SCH001"} <= codes("configs/a.yaml")
    toml("ignore = ['TRA0', 'sch']")
    assert not codes("configs/a.yaml") & {"TRA011", "SCH001"}
    assert program.run("check", "configs/a.yaml").exit_code == 0
    assert {"TRA011", "SCH001"} <= codes("configs/a.yaml", "--ignore", "TRA4")
    assert codes("configs/a.yaml", "--select", "TRA011") == {"TRA011"}
    # An error in reading a file cannot be hidden.
    toml("ignore = ['LOA']")
    write("configs/a.yaml", "a: [")
    assert codes("configs/a.yaml") == {"LOA002"}


def test_every_field_of_a_header_block_is_taken_as_if_it_stood_there() -> None:
    toml(
        "machine = '2x8xa100-80g'\nhost-ram = 1024\nnetwork = 'infiniband-400g'\nprice = '1.99 USD'\n"
        "packages = ['flash-linear-attention']\nreleases = {llamafactory = '0.9.3', torch = '2.7'}\n"
        "per-folder.configs.packages = ['bitsandbytes==0.48.2']\n"
    )
    header = configuration.configured(load_recipe("configs/a.yaml")).header
    assert header == {
        "machine": "2x8xa100-80g",
        "host_ram_gib": 1024.0,
        "network": "infiniband-400g",
        "price": "1.99 USD",
        "packages": ["flash-linear-attention", "bitsandbytes==0.48.2"],
        "llamafactory": "0.9.3",
        "torch": "2.7",
    }
    assert not codes("configs/a.yaml") & {"LOA010", "LOA011", "CUR002"}


def test_no_file_counts_where_none_is_asked_for() -> None:
    write("configs/a.yaml", RECIPE + "ddp_timeout: 180000000\n")
    toml("ignore = ['TRA011']")
    assert "TRA011" not in codes("configs/a.yaml")
    assert "TRA011" in codes("configs/a.yaml", "--isolated")
    assert "configuration  none" in program.run("check", "--show-config", "--isolated", "configs/a.yaml").output
    toml("machin = 'x'")
    assert program.run("check", "--isolated", "configs/a.yaml").exit_code == 0


def test_ignored_codes_are_not_fixed() -> None:
    write("configs/a.yaml", RECIPE + "ddp_timeout: 180000000\n")
    toml("ignore = ['TRA011']")
    program.run("check", "--fix", "configs/a.yaml")
    assert "180000000" in Path("configs/a.yaml").read_text()
    program.run("check", "--fix", "configs/a.yaml", "--select", "TRA011")
    assert "604800" in Path("configs/a.yaml").read_text()


# What a line of a recipe adds: the error of `check` by hand, and whether a hook finds it, too.
PATHS = [
    (AWAY, "PTH006", False),
    ("model_name_or_path: ../models/Qwen2.5-7B", "PTH006", False),
    ("model_name_or_path: ./models/Qwen2.5-7B", "PTH006", False),  # no repository holds a model
    ("adapter_name_or_path: saves/first", "PTH008", False),
    ("resume_from_checkpoint: /mnt/out/checkpoint-100", "PTH014", False),
    ("deepspeed: /mnt/share/ds_z3.json", "PTH001", False),
    ("deepspeed: ../ds_z3.json", "PTH001", False),
    ("deepspeed: deepspeed/ds_z3.json", "PTH001", True),
    ("dataset_dir: /mnt/data", "PTH101", False),
    ("dataset_dir: sets", "PTH101", True),
    ("dataset: alpaca_gpt4_zh", "PTH103", True),
    ("fsdp_config: /mnt/share/fsdp.json", "PTH013", False),
    ("fsdp_config: fsdp.json", "PTH013", True),
    ("model_name_or_path: ~/models/Qwen2.5-7B", "PTH004", True),  # which LLaMA-Factory never finds
    ("model_name_or_path: <your_model>", "PTH017", True),
]


@pytest.mark.parametrize(("line", "code", "everywhere"), PATHS)
def test_a_hook_knows_no_paths_of_the_training_machine(line: str, code: str, everywhere: bool) -> None:
    key = line.partition(":")[0]
    kept = [each for each in RECIPE.splitlines() if not each.startswith(f"{key}:")]
    write("configs/a.yaml", "\n".join([*kept, line, ""]))
    by_hand, hook = codes("configs/a.yaml"), codes("--hook", "configs/a.yaml")
    assert code in by_hand
    assert (code in hook, "PTH030" in hook) == (everywhere, not everywhere)
    assert code in codes("--hook", "--paths", "error", "configs/a.yaml")
    assert (code in codes("--paths", "note", "configs/a.yaml")) is everywhere
    toml("paths = 'note'")
    assert (code in codes("configs/a.yaml")) is everywhere
    assert code in codes("configs/a.yaml", "--paths", "error")


def test_an_absolute_path_into_the_repository_is_looked_for(repository: Path) -> None:
    write("configs/a.yaml", RECIPE + f"deepspeed: {repository}/ds.json\n")
    assert "PTH001" in codes("--hook", "configs/a.yaml")


def test_paths_below_a_prefix_are_those_of_the_training_machine() -> None:
    text = RECIPE.replace("model_name_or_path: Qwen/Qwen2.5-7B-Instruct", AWAY)
    toml("path-prefixes = ['/mnt/models/']")
    write("configs/a.yaml", text)
    assert "PTH006" not in codes("configs/a.yaml")
    write("configs/a.yaml", text.replace("/mnt/models", "/mnt/models-old"))
    assert "PTH006" in codes("configs/a.yaml")
    write("configs/a.yaml", text)
    assert "PTH006" not in codes("configs/a.yaml", "--paths", "error")
    # a run that starts here needs them here
    started = program.run("train", "configs/a.yaml", "--dry-run", "--machine", "1xa100-80g")
    assert (started.exit_code, "[PTH006]" in started.output) == (1, True)


# .gitignore, `path-prefixes`, and whether `check` by hand and `check --hook` find that a data file is missing
IGNORED = [
    ("", [], True, True),
    ("*.json\n!dataset_info.json", [], True, False),
    ("/train/sets/*.json\n!/train/sets/mine.json", [], True, True),
    ("train/sets/", [], True, False),
    ("/sets/\ntrain/*.json", [], True, True),
    ("", ["train/sets"], False, False),
    ("", ["sets"], True, True),
]


@pytest.mark.parametrize(("ignored", "prefixes", "by_hand", "hook"), IGNORED)
def test_a_data_file_that_no_clone_has(ignored: str, prefixes: list[str], by_hand: bool, hook: bool) -> None:
    write(".gitignore", ignored)
    write(".lmf-recipes.yaml", f"path-prefixes: {prefixes}")
    write("train/sets/dataset_info.json", '{"mine": {"file_name": "mine.json"}}')
    write("train/a.yaml", RECIPE.replace("dataset: alpaca_gpt4_en", "dataset: mine\ndataset_dir: sets"))
    known_folders._ignored_patterns.cache_clear()
    known_folders._is_ignored_itself.cache_clear()
    assert ["PTH105" in codes("train/a.yaml", *words) for words in ([], ["--hook"])] == [by_hand, hook]
    assert ("LOA013" in codes("train/sets/dataset_info.json")) == by_hand
    # a run that starts here needs the file here, whatever the configuration says
    told = program.run("train", "train/a.yaml", "--dry-run", "--machine", "1xa100-80g").output
    assert "[PTH105]" in told
    assert "path-prefixes" not in told


STRICT = [
    ("", (), 0),
    ("", ("--strict",), 1),
    ("strict = true", (), 1),
    ("strict = ['TRA605', 'FIT011']", (), 1),
    ("strict = ['tra6']", ("--hook",), 1),
    ("strict = ['FIT011']", (), 0),
    ("strict = ['FIT011']", ("--strict",), 1),
    ("strict = false", (), 0),
    ("strict = true\nignore = ['TRA605']", (), 0),
    ("strict = true\n[tool.lmf-recipes.per-folder.configs]\nstrict = ['FIT']", (), 0),
    ("strict = true", ("--fix",), 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words", "code"), STRICT)
def test_warnings_fail_a_check_where_strict_says_so(text: str, words: tuple[str, ...], code: int) -> None:
    toml(text)
    write("configs/a.yaml", RECIPE.replace("template: qwen", "template: llama3"))
    done = program.run("check", "configs/a.yaml", *words)
    assert done.exit_code == code
    for form, error in (
        ("text", ": error: "),
        ("github", "::error "),
        ("sarif", '"level": "error"'),
        ("json", '"errors": 1'),
    ):
        assert (error in program.run("check", "configs/a.yaml", *words, "--format", form).output) == bool(code)


def test_warnings_of_other_files_fail_a_check_too() -> None:
    toml("strict = true")
    write("data/dataset_info.json", '{"a": {"hf_hub_url": "x/y", "columms": {}}}')
    assert program.run("check", "data/dataset_info.json").exit_code == 1
    assert program.run("check", "data/dataset_info.json", "--fix").exit_code == 1


CONFIGURATIONS = [
    ("pyproject.toml", "[tool.lmf-recipes]\nmachine = '8xa999'\n", False),
    ("pyproject.toml", "[tool.lmf-recipes]\nmachine = '8xa100-80g'\n", True),
    ("pyproject.toml", "[tool.ruff]\nline-length = 120\n", True),
    ("pyproject.toml", "no toml", True),
    ("configs/.lmf-recipes.yaml", "machin: 8xa100-80g\n", False),
    ("configs/.lmf-recipes.yaml", "host-ram: 64\n", True),
    (".lmf-recipes.yaml", "ignore: [\n", False),
]


@pytest.mark.parametrize(("name", "text", "usable"), CONFIGURATIONS)
def test_a_hook_fails_for_a_configuration_that_cannot_be_used(name: str, text: str, usable: bool) -> None:
    write(name, text)
    done = program.run("check", "--hook", name)
    assert (done.exit_code, type(done.exception)) == ((0, type(None)) if usable else (1, ConfigurationError))
    assert "LOA" not in done.output
    alone = program.run("check", name)
    assert (alone.exit_code, type(alone.exception)) == (done.exit_code, type(done.exception))
    assert ("is a configuration file" in alone.output) == usable


def test_a_hook_looks_into_folders() -> None:
    write("configs/a.yaml", RECIPE + "ddp_timeout: 180000000\nlearning_rat: 1\n")
    assert "SCH001" in codes("--hook", "configs/")
    program.run("check", "--hook", "--fix", ".")
    assert "604800" in Path("configs/a.yaml").read_text()


def test_a_mistyped_folder_of_the_training_machine_fails_a_hook_with_paths_error() -> None:
    toml("paths = 'error'\npath-prefixes = ['/mnt/nas']")
    for folder, code in (("/mnt/nas", 0), ("/mnt/nsa", 1)):
        write("configs/a.yaml", RECIPE.replace("Qwen/Qwen2.5-7B-Instruct", f"{folder}/Qwen2.5-7B-Instruct"))
        done = program.run("check", "--hook", "configs/a.yaml")
        assert (done.exit_code, "name its folder in `path-prefixes`" in done.output) == (code, bool(code))


def test_notes_on_what_is_fine_are_shown_if_asked_for() -> None:
    write("deepspeed/ds_z2.json", '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}')
    write("configs/a.yaml", RECIPE + "deepspeed: deepspeed/ds_z2.json\n")
    words = ("configs/a.yaml", "--machine", "1xa100-80g")
    assert "PAR006" not in codes(*words)
    assert "PAR006" in codes(*words, "--pedantic")
    assert codes(*words, "--select", "PAR006") == {"PAR006"}
    toml("pedantic = true")
    assert "PAR006" in codes(*words)


def test_notes_that_several_files_have_are_shown_once_at_the_end() -> None:
    for name in "abc":
        write(f"configs/{name}.yaml", RECIPE.replace("saves/x", f"saves/{name}") + "ddp_timeout: 180000000\n")
    shown = program.run("check", "configs").output
    assert shown.count("[TRA011]") == 1
    (line,) = (each for each in shown.splitlines() if "[TRA011]" in each)
    assert line.startswith("3 files: note: ")
    assert line.endswith("at configs/a.yaml:18:14, configs/b.yaml:18:14, configs/c.yaml:18:14")
    assert shown.splitlines()[-2].startswith("3 files: 0 errors, 0 warnings; memory not judged in 3")
    one = program.run("check", "configs/a.yaml").output
    assert one.startswith("configs/a.yaml:")


def test_the_paths_of_each_of_several_files_are_named() -> None:
    for name in "abcde":
        path = RECIPE.replace("saves/x", f"saves/{name}").replace("Qwen/Qwen2.5-7B-Instruct", f"/mnt/{name}/Qwen2.5-7B")
        write(f"configs/{name}.yaml", path)
    shown = [line for line in program.run("check", "--hook", "configs").output.splitlines() if "[PTH030]" in line]
    assert [f"`/mnt/{name}/Qwen2.5-7B`" in line for name, line in zip("abc", shown, strict=False)] == [True] * 3
    assert shown[3:] == [
        "2 files: note: the same with other values [PTH030] at configs/d.yaml:1:1, configs/e.yaml:1:1",
    ]


def test_the_settings_that_hold_are_shown() -> None:
    toml("machine = '8xa100-80g'\nignore = ['TRA011']\n[tool.lmf-recipes.per-folder.configs]\nhost-ram = 512\n")
    shown = program.run("check", "--show-config", "configs/a.yaml", "--hook")
    assert shown.output.splitlines() == [
        "configs/a.yaml",
        "  configuration  pyproject.toml, per-folder `configs`",
        "  machine        8xa100-80g",
        "  host-ram       512",
        "  ignore         TRA011",
        "  paths          note",
    ]
    plain = program.run("check", "--show-config", "configs/a.yaml", "--machine", "1xt4-16g", "--paths", "error").output
    assert ("1xt4-16g" in plain, "paths          error" in plain) == (True, True)
    assert "configuration  pyproject.toml\n" in program.run("check", "--show-config").output


BAD = [
    ("machin = '8xa100-80g'", "setting `machin` is not known; did you mean `machine`?"),
    ("host_ram = 1", "setting `host_ram` is not known; did you mean `host-ram`?"),
    ("machine = '8xa999'", "`machine`: "),
    ("machine = 8", "`machine`: 8 is no text"),
    ("machine = 'auto'", "`machine`: device `auto` is not known"),  # which would start the drivers' programs
    ("host-ram = 'much'", '`host-ram`: "much" is no main memory'),
    ("host-ram = nan", "`host-ram`: nan is no main memory"),
    ("host-ram = true", "`host-ram`: true is no main memory"),
    ("ignore = 'TRA011'", '`ignore`: "TRA011" is no list'),
    ("ignore = ['XYZ']", "`ignore`: no rule begins with `XYZ`"),
    ("ignore = [1]", "`ignore`: 1 is no text"),
    ("paths = 'warning'", '`paths`: "warning" is neither "error" nor "note"'),
    ("path-prefixes = ['~/models']", '`path-prefixes`: "~/models" is no folder of the training machine'),
    ("path-prefixes = ['a/..']", '`path-prefixes`: "a/.." is no folder'),
    ("path-prefixes = ['/']", '`path-prefixes`: "/" is no folder'),
    ("releases = {vllm = '1'}", "`releases`: package `vllm` is not known"),
    ("releases = {torch = 'new'}", "`releases`: `torch`: "),
    ("price = 'cheap'", '`price`: "cheap" is no amount'),
    ("network = 'fast'", "`network`: network `fast` is not known"),
    ("strict = 'yes'", '`strict`: "yes" is neither true nor a list of codes'),
    ("strict = ['TRA6O5']", "`strict`: no rule begins with `TRA6O5`"),
    ("strict = ['TRA605', 'TRA925']", "`strict`: `TRA925` is a note, and notes fail no check"),
    ("pedantic = 'yes'", '`pedantic`: "yes" is neither true nor false'),
    ("per-folder = ['a']", "`per-folder` takes sections by folder"),
    ("per-folder = {a = 1}", "per-folder.a is no table of settings"),
    ("per-folder.a.per-folder.b.machine = '1xt4-16g'", "setting of `per-folder.a` `per-folder` is not known"),
    ("[tool.lmf_recipes]\nmachine = '1xt4-16g'", "[tool.lmf_recipes] is read by nothing; write [tool.lmf-recipes]"),
    ("machine = ", "is not valid TOML"),
    ("machine = '1xt4-16g'\nmachine = '1xt4-16g'", "is not valid TOML"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_setting_that_cannot_be_used_is_one_message(text: str, message: str) -> None:
    toml(text)
    with pytest.raises(ConfigurationError) as caught:
        find_configuration("configs/a.yaml")
    assert str(caught.value).startswith("pyproject.toml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def hostile_yaml() -> dict[str, str]:
    doubling = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    return {
        "tag": "machine: !!python/object/apply:os.system ['touch ran']",
        "bomb": f"a0: &a0 [x]\n{doubling}",
        "deep": "[" * 50_000,
        "long": "ignore: [" + "TRA011, " * 100_000 + "]",
        "list": "- machine",
        "nul": "machine: \0",
        "keys": "".join(f"k{i}: 1\n" for i in range(5_000)),
        "pattern": f"per-folder: {{'{'*a' * 90}': {{machine: 1xt4-16g}}}}",
    }


@pytest.mark.parametrize("name", hostile_yaml())
def test_nothing_in_a_hostile_file_runs_or_takes_long(name: str) -> None:
    write(".lmf-recipes.yaml", hostile_yaml()[name])
    write("configs/" + "a" * 200 + ".yaml", RECIPE)
    begun, said = time.monotonic(), ""
    try:
        find_configuration("configs/" + "a" * 200 + ".yaml")
    except ConfigurationError as err:
        said = str(err)
    assert len(said) < 1_000
    assert time.monotonic() - begun < 5  # seconds
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "text", ["a." * 30_000 + "a = 1", "a = " + "[" * 60_000, "a = " + "{a = " * 10_000, "x" * 70_000]
)
def test_a_hostile_pyproject_is_refused_at_once(text: str) -> None:
    write("pyproject.toml", f"{text}\n[tool.lmf-recipes]\nmachine = '1xt4-16g'\n")
    begun = time.monotonic()
    with pytest.raises(ConfigurationError):
        find_configuration("configs/a.yaml")
    assert time.monotonic() - begun < 5  # seconds


def test_a_link_out_of_the_repository_is_not_quoted(repository: Path) -> None:
    secret = repository.parent / "secret.yaml"
    secret.write_text("token: hunter2\n")
    Path(".lmf-recipes.yaml").symlink_to(secret)
    with pytest.raises(ConfigurationError, match="is a link that leads out of the repository") as caught:
        find_configuration("configs/a.yaml")
    assert "hunter2" not in str(caught.value)


def test_a_pipe_is_not_waited_for() -> None:
    os.mkfifo(".lmf-recipes.yaml")
    with pytest.raises(ConfigurationError, match="is a pipe"):
        find_configuration("configs/a.yaml")


@pytest.mark.parametrize("words", ["check configs/a.yaml", "check --hook configs/a.yaml", "explain configs/a.yaml"])
def test_the_exit_code_is_that_of_wrong_usage(words: str, repository: Path) -> None:
    toml("machin = '8xa100-80g'")
    done = program.answer(*words.split(), cwd=repository)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"lmf-recipes: pyproject.toml: setting `machin` is not known; did you mean `machine`?\n"


def test_the_page_describes_every_key() -> None:
    page = (program.ROOT / "docs/reference/configuration.md").read_text("utf-8")
    rows = [line.split("`")[1] for line in page.partition("| key |")[2].partition("## ")[0].splitlines() if "`" in line]
    assert rows == [*configuration._PARSERS, "per-folder"]
