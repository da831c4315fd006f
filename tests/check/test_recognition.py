"""Files that are judged are told from others by what they hold, in folders and in commits."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from support.count_calls import calls

from validator.check import checking, find_files
from validator.check.find_files import find_in_folder, is_ours

ROOT = Path(__file__).parents[2]
RECIPE = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\nfinetuning_type: lora\ntemplate: qwen3\n"
ENGINE = '{"train_batch_size": "auto", "zero_optimization": {"stage": 2}}'

OURS: dict[str, str | bytes] = {
    "a recipe.yaml": RECIPE,
    "least.yaml": "model_name_or_path: x/y\ndataset: mine\ntemplate: qwen3\n",
    "misspelled.yaml": RECIPE.replace("model_name_or_path", "model_name_or_pth"),
    "broken.yaml": RECIPE + "a: [\n",
    "twice.yaml": RECIPE + RECIPE,
    "header.yaml": "# /// recipe\n# machine: 8xa100-80g\n# ///\nlearing_rate: 1\n",
    "windows.yml": RECIPE.replace("\n", "\r\n"),
    "latin.yaml": (RECIPE + "run_name: größe\n").encode("latin-1"),
    "quoted.yaml": '"model_name_or_path": x\n"stage": "dpo"\n"cutoff_len": 2048\n',
    "chat.yaml": "model_name_or_path: x/y\ntemplate: llama3\nfinetuning_type: lora\ninfer_backend: vllm\n",
    "export.yaml": "model_name_or_path: x/y\nadapter_name_or_path: z\ntemplate: llama3\nexport_dir: out\n",
    "run.json": '{"model_name_or_path": "x/y", "stage": "sft", "do_train": true, "dataset": "mine"}',
    "dataset_info.json": '{"mine": {"file_name": "mine.json"}}',
    "fsdp.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n",
    "zero.json": ENGINE,
    "broken.json": ENGINE.replace("}}", "},}"),
}
OTHERS: dict[str, str | bytes] = {
    "compose.yaml": "services:\n  web:\n    image: nginx\n",
    "workflow.yml": "on: push\njobs:\n  test:\n    runs-on: ubuntu-latest\n    steps: [{run: make}]\n",
    "mkdocs.yml": "site_name: x\nmarkdown_extensions:\n  - toc: {slugify: !!python/name:x.y}\n",
    "several.yaml": "kind: Pod\n---\nkind: Service\n---\nspec: {template: {}}\n",
    "helm.yaml": "{{- if .Values.on }}\ntemplate: {{ .Values.template }}\n{{- end }}\n",
    "gitlab.yml": "stages: [build]\nbuild:\n  stage: build\n  script: make\n",
    "trl.yaml": "model_name_or_path: x/y\ndataset_name: z\ndo_train: true\nlearning_rate: 1e-4\noutput_dir: out\n",
    "nested.yaml": "runs:\n" + "".join(f"  {line}\n" for line in RECIPE.splitlines()),
    "comment.yaml": "".join(f"# {line}\n" for line in RECIPE.splitlines()) + "a: 1\n",
    "utf16.yaml": "services: größe".encode("utf-16"),
    "picture.yaml": bytes(range(256)),
    "empty.yaml": "",
    "package.json": '{"name": "x", "scripts": {"test": "jest"}}',
    "tsconfig.json": '{\n  // with comments\n  "compilerOptions": {},\n}',
    "rows.json": '[{"instruction": "write a file", "output": "{\\"zero_optimization\\": {}}"}]',
    "wrapped.json": '{"engine": {"zero_optimization": {}}}',
    "list.json": '[{"zero_optimization": {}}]',
}


def write(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("name", OURS)
def test_ours(tmp_path: Path, name: str) -> None:
    assert is_ours(write(tmp_path / name, OURS[name]))


@pytest.mark.parametrize("name", OTHERS)
def test_others(tmp_path: Path, name: str) -> None:
    assert not is_ours(write(tmp_path / name, OTHERS[name]))


@pytest.mark.parametrize("folder", ["recipes", "deepspeed"])
def test_every_file_of_this_repository_is_recognised(folder: str) -> None:
    files = [str(path) for path in (ROOT / folder).iterdir() if path.suffix in (".yaml", ".json")]
    assert find_in_folder(str(ROOT / folder)) == sorted(files)


def test_what_is_not_there_is_not_ours(tmp_path: Path) -> None:
    assert not is_ours(str(tmp_path / "none.yaml"))


def test_folders_are_looked_through_in_order(tmp_path: Path) -> None:
    wanted = [write(tmp_path / name, RECIPE) for name in ("a.yaml", "b/c/d.yml", "b/e.yaml")]
    wanted.append(write(tmp_path / "deepspeed/z.json", ENGINE))
    for folder in (".git", "node_modules/x", "run/checkpoint-10", "checkpoints/x", "lib/site-packages"):
        write(tmp_path / folder / "x.yaml", RECIPE)
    write(tmp_path / "env/pyvenv.cfg", "")
    write(tmp_path / "env/x.yaml", RECIPE)
    write(tmp_path / "notes.txt", RECIPE)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "b/loop").symlink_to(tmp_path)
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nothing")
    for name, content in OTHERS.items():
        write(tmp_path / "others" / name, content)
    assert find_in_folder(str(tmp_path)) == wanted


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipes that read a DeepSpeed file, and one that does not."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "deepspeed", "deepspeed")
    write(Path("train/zero2.yaml"), RECIPE + "deepspeed: deepspeed/ds_z2.json\n")
    write(Path("train/zero3.yaml"), RECIPE + "deepspeed: deepspeed/ds_z3.json\ndataset: mine\n")
    write(Path("train/alone.yaml"), RECIPE)
    write(Path("data/dataset_info.json"), OURS["dataset_info.json"])
    write(Path("fsdp.yaml"), OURS["fsdp.yaml"])
    write(Path("train/fsdp.yaml"), "# /// recipe\n# accelerate: fsdp.yaml\n# ///\n" + RECIPE)
    return tmp_path


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("changed", "checked"),
    [
        ([], []),
        (["README.md", "compose.yaml"], []),
        (["train/alone.yaml"], ["train/alone.yaml"]),
        (["deepspeed/ds_z2.json"], ["deepspeed/ds_z2.json", "train/zero2.yaml"]),
        (["train/zero2.yaml", "deepspeed/ds_z2.json"], ["train/zero2.yaml", "deepspeed/ds_z2.json"]),
        (["deepspeed/ds_z0.json"], ["deepspeed/ds_z0.json"]),
        (["data/dataset_info.json"], ["data/dataset_info.json", "train/zero3.yaml"]),
        (["fsdp.yaml"], ["fsdp.yaml", "train/fsdp.yaml"]),
    ],
)
def test_a_commit_asks_for_its_own_files_and_the_recipes_that_read_them(changed: list[str], checked: list[str]) -> None:
    assert find_files.files_to_check(changed) == checked


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("old", "new", "recipe"),
    [
        ("deepspeed/ds_z2.json", "deepspeed/zero2.json", "train/zero2.yaml"),
        ("data/dataset_info.json", "sets/dataset_info.json", "train/zero3.yaml"),
    ],
)
def test_a_commit_that_moves_a_file_asks_for_the_recipes_that_still_name_the_old_place(
    old: str, new: str, recipe: str
) -> None:
    Path(new).parent.mkdir(exist_ok=True)
    Path(old).rename(new)
    assert find_files.files_to_check([new]) == [new, recipe]


def test_folders_that_cannot_be_listed_are_told_and_the_others_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "open/a.yaml", RECIPE)
    write(tmp_path / "closed/b.yaml", RECIPE)
    real = os.scandir

    def scandir(folder: str) -> object:
        if folder.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    first, second = checking.check_files([str(tmp_path)]).files
    assert first.path == str(tmp_path / "open/a.yaml")
    assert second.path == str(tmp_path / "closed")
    assert second.diagnostics[0].code == "LOA001"
    assert "a folder that cannot be listed: permission denied" in second.diagnostics[0].message


def test_nothing_odd_in_a_folder_stops_it(tmp_path: Path) -> None:
    wanted = [write(tmp_path / name, RECIPE) for name in ("a.yaml", "\udcff.yaml")]
    (tmp_path / "long.yaml").symlink_to("x" * 300)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    deep = tmp_path
    for _ in range(30):
        deep = deep / ("d" * 100)
    deep.mkdir(parents=True)
    wanted.append(write(deep / "z.yaml", RECIPE))
    assert find_in_folder(str(tmp_path)) == sorted(wanted)


def test_among_many_files_only_those_called_like_ours_are_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", RECIPE)
    few = calls(lambda: find_in_folder(str(tmp_path)))
    for number in range(500):
        (tmp_path / f"{number}.txt").touch()
    assert calls(lambda: find_in_folder(str(tmp_path))) < few + 500 * 4


def test_an_environment_is_passed_by_unless_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "env/pyvenv.cfg", "")
    recipe = write(tmp_path / "env/x.yaml", RECIPE)
    assert find_in_folder(str(tmp_path)) == []
    assert find_in_folder(str(tmp_path / "env")) == [recipe]
