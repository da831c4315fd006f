"""Writing for a user: whole or not at all, and nothing of theirs is lost."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from validator.errors import RecipeError
from validator.recipe import atomic_write
from validator.recipe.atomic_write import scratch_folder
from validator.rows import registry_edits

ENTRY = {"file_name": "mine.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"}}


@pytest.fixture(params=[0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_comes_with_its_folders_and_the_users_mask(tmp_path: Path, umask: int) -> None:
    target = tmp_path / "a/b/recipe.yaml"
    atomic_write.create_file(target, "stage: sft\n")
    assert target.read_text() == "stage: sft\n"
    assert mode(target) == 0o666 & ~umask
    assert [path.name for path in target.parent.iterdir()] == ["recipe.yaml"]


def test_what_is_there_is_not_created_again(tmp_path: Path) -> None:
    target = tmp_path / "recipe.yaml"
    target.write_text("mine")
    with pytest.raises(RecipeError, match="exists and is not overwritten"):
        atomic_write.create_file(target, "theirs")
    assert target.read_text() == "mine"


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(RecipeError, match="cannot be made: file exists"):
        atomic_write.create_file(tmp_path / "data/dataset_info.json", "{}")


def test_a_file_is_replaced_with_its_mode_and_through_links(tmp_path: Path) -> None:
    target, link = tmp_path / "page.html", tmp_path / "link.html"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    atomic_write.replace_file(link, "new")
    assert target.read_text() == "new"
    assert mode(target) == 0o640
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "mine").chmod(0o444)
    for name, why in {
        "folder": "is there and is no file",
        "pipe": "is there and is no file",
        "nowhere/file": "cannot be written: no such file",
        "mine": "is read-only; nothing is written to it",
        "x" * 300: "cannot be written: file name too long",
    }.items():
        with pytest.raises(RecipeError, match=why):
            atomic_write.replace_file(tmp_path / name, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "mine", "pipe"]
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_longest_name_is_written(tmp_path: Path) -> None:
    for name in ("x" * 255, "配" * 85):
        atomic_write.create_file(tmp_path / name, "text")
    assert len(list(tmp_path.iterdir())) == 2


def test_text_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a name that is not UTF-8"):
        atomic_write.create_file(tmp_path / "recipe.yaml", "model_name_or_path: \udcff\n")
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(RecipeError, match="exists and is not overwritten"):
        atomic_write.create_file(tmp_path / "link.yaml", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["link.yaml"]


@pytest.fixture
def attributed(tmp_path: Path) -> Path:
    """A file with an extended attribute."""
    target = tmp_path / "recipe.yaml"
    target.write_text("old")
    if sys.platform != "linux":
        pytest.skip("extended attributes are kept on Linux only")
    try:
        os.setxattr(target, "user.origin", b"mine")
    except OSError as err:
        pytest.skip(f"the file system of {tmp_path} holds no extended attributes: {err}")
    return target


def test_attributes_stay(attributed: Path) -> None:
    attributed.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(attributed, 12345, 54321)
    before = attributed.stat()
    atomic_write.replace_file(attributed, "new")
    now = attributed.stat()
    assert (now.st_uid, now.st_gid, now.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert now.st_ino != before.st_ino  # another file, which took its place in one step
    assert attributed.read_text() == "new"
    assert os.getxattr(attributed, "user.origin") == b"mine"


def access(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX access control list of entries of tag, permissions and id (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NOBODY = 0xFFFFFFFF
LIST = access((1, 6, NOBODY), (2, 6, 1234), (4, 4, NOBODY), (0x10, 6, NOBODY), (0x20, 0, NOBODY))


@pytest.mark.parametrize("owned", [True, False])
def test_an_access_control_list_is_that_of_the_file_and_not_of_its_folder(attributed: Path, owned: bool) -> None:
    try:
        os.setxattr(attributed.parent, "system.posix_acl_default", LIST)
        if owned:
            os.setxattr(attributed, "system.posix_acl_access", LIST)
    except OSError as err:
        pytest.skip(f"the file system of {attributed.parent} holds no access control lists: {err}")
    before = attributed.stat()
    atomic_write.replace_file(attributed, "new")
    assert ("system.posix_acl_access" in os.listxattr(attributed)) is owned
    assert not owned or os.getxattr(attributed, "system.posix_acl_access") == LIST
    assert attributed.stat().st_mode == before.st_mode
    assert attributed.stat().st_ino != before.st_ino


def linked_twice(target: Path, _: pytest.MonkeyPatch) -> None:
    (target.parent / "other.yaml").hardlink_to(target)


def of_somebody_else(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(target, 12345, 54321)
    monkeypatch.setattr(os, "fchown", no_links)


def with_a_fixed_attribute(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setxattr", no_links)


WAYS = [linked_twice, of_somebody_else, with_a_fixed_attribute]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("content", ["n", "new and longer"])
def test_a_file_that_no_new_one_can_stand_for_is_written_in_place(
    attributed: Path, way: Callable[[Path, pytest.MonkeyPatch], None], content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    way(attributed, monkeypatch)
    before, names = attributed.stat(), sorted(attributed.parent.iterdir())
    atomic_write.replace_file(attributed, content)
    now = attributed.stat()
    assert (now.st_ino, now.st_nlink, now.st_uid, now.st_mode) == (
        before.st_ino, before.st_nlink, before.st_uid, before.st_mode
    )  # fmt: skip
    assert {path.read_text() for path in names} == {content}
    assert os.getxattr(attributed, "user.origin") == b"mine"
    assert sorted(attributed.parent.iterdir()) == names


def linked_file(folder: Path) -> Path:
    target = folder / "recipe.yaml"
    target.write_text("old")
    (folder / "other.yaml").hardlink_to(target)
    return target


def test_a_write_in_place_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, write = linked_file(tmp_path), atomic_write._overwrite

    def full(file: Path, content: bytes) -> None:
        write(file, content[:2])
        if content != b"old" or broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(atomic_write, "_overwrite", full)
    broken = False
    with pytest.raises(RecipeError, match="cannot be written: no space left on device"):
        atomic_write.replace_file(target, "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"recipe.yaml": "old", "other.yaml": "old"}
    broken = True
    with pytest.raises(RecipeError, match=r"is written in part: no space left on device; .* `.*/\.recipe\.yaml\.old`"):
        atomic_write.replace_file(target, "new")
    assert (tmp_path / ".recipe.yaml.old").read_text() == "old"


def test_a_write_in_place_that_is_killed_leaves_what_was_there(tmp_path: Path) -> None:
    target = linked_file(tmp_path)
    target.chmod(0o644)

    def killed(file: Path, content: bytes) -> None:
        file.write_bytes(content[:1])
        os._exit(9)

    if not (child := os.fork()):
        try:
            atomic_write._overwrite = killed
            atomic_write.replace_file(target, "new")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = tmp_path / ".recipe.yaml.old"
    assert (target.read_text(), left.read_text(), mode(left)) == ("n", "old", 0o600)
    with pytest.raises(
        RecipeError, match=r"`.*/\.recipe\.yaml\.old` holds the old content of .* cut short; compare the two"
    ):
        atomic_write.replace_file(target, "new")
    assert (target.read_text(), left.read_text()) == ("n", "old")


def test_what_was_changed_in_the_meantime_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "recipe.yaml"
    target.write_text("old")

    def slow(_: bytes | None) -> str:
        target.write_text("theirs")
        return "ours"

    with pytest.raises(RecipeError, match="was changed in the meantime"):
        atomic_write.edit_file(target, slow)
    assert target.read_text() == "theirs"
    target.unlink()
    with pytest.raises(RecipeError, match="exists and is not overwritten"):
        atomic_write.edit_file(target, slow)
    assert target.read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def leftover(part: Path, _: Path) -> None:
    part.write_text("half of it")


def linked(part: Path, target: Path) -> None:
    """As a process leaves it that is killed when the file has its name."""
    part.hardlink_to(target)


@pytest.mark.parametrize("left", [leftover, linked])
def test_what_a_killed_process_left_is_taken_away(tmp_path: Path, left: Callable[[Path, Path], None]) -> None:
    target = tmp_path / "recipe.yaml"
    target.write_text("old")
    left(tmp_path / ".recipe.yaml.part", target)
    atomic_write.replace_file(target, "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"recipe.yaml": "new"}


def piped(part: Path) -> None:
    os.mkfifo(part)


def foreign(part: Path) -> None:
    part.symlink_to(part.with_name("mine"))


def foldered(part: Path) -> None:
    part.mkdir()


@pytest.mark.parametrize(("lay", "why"), [(foreign, "is in the way"), (foldered, "is in the way"), (piped, None)])
def test_what_lies_where_the_new_file_is_written(tmp_path: Path, lay: Callable[[Path], None], why: str | None) -> None:
    (tmp_path / "mine").write_text("mine")
    lay(tmp_path / ".recipe.yaml.part")
    if why is None:
        atomic_write.create_file(tmp_path / "recipe.yaml", "text")
    else:
        with pytest.raises(RecipeError, match=why):
            atomic_write.create_file(tmp_path / "recipe.yaml", "text")
    assert (tmp_path / "mine").read_text() == "mine"


def test_another_process_is_waited_for_and_then_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(atomic_write, "time", SimpleNamespace(sleep=waits.append))
    with (
        atomic_write.locked_part_file(tmp_path / "recipe.yaml"),
        pytest.raises(RecipeError, match=r"\.recipe\.yaml\.part` belongs to another process"),
    ):
        atomic_write.create_file(tmp_path / "recipe.yaml", "text")
    assert sum(waits) == pytest.approx(10.0)  # seconds
    assert list(tmp_path.iterdir()) == []
    atomic_write.create_file(tmp_path / "recipe.yaml", "text")


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_where_there_are_no_locks_a_leftover_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", no_locks)
    atomic_write.create_file(tmp_path / "recipe.yaml", "text")
    atomic_write.replace_file(tmp_path / "recipe.yaml", "other")
    (tmp_path / ".recipe.yaml.part").write_text("half")
    with pytest.raises(RecipeError, match=r"is in the way \(no locks available\); remove it"):
        atomic_write.replace_file(tmp_path / "recipe.yaml", "third")
    assert (tmp_path / "recipe.yaml").read_text() == "other"


def no_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "hardlink_to", no_links)
    atomic_write.create_file(tmp_path / "recipe.yaml", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]

    def slow(_: bytes | None) -> str:
        (tmp_path / "new.yaml").write_text("theirs")
        return "ours"

    with pytest.raises(RecipeError, match="exists and is not overwritten"):
        atomic_write.edit_file(tmp_path / "new.yaml", slow)
    assert (tmp_path / "new.yaml").read_text() == "theirs"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{\n}\n",
        '{"a": {"file_name": "a.json"}}',
        '{\n    "a": {\n        "file_name": "a.json"\n    }\n}\n\n',
        '{\n\t"a": {"file_name": "}"}\n}',
        '{\r\n  "a": {"file_name": "a.json"}\r\n}\r\n',
    ],
)
def test_entries_are_added_and_all_else_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dataset_info.json"
    path.write_bytes(text.encode())
    assert registry_edits.add_entries(path, {"mine": ENTRY}) == {"mine": ENTRY}
    written = path.read_bytes().decode()
    assert json.loads(written) == {**json.loads(text), "mine": ENTRY}
    assert list(json.loads(written))[-1] == "mine"
    assert written.startswith(text.rstrip().removesuffix("}").rstrip())
    assert ("\r\n" in text) == ("\r\n" in written)
    assert "\n" not in written.replace("\r\n", "") if "\r\n" in text else True
    assert registry_edits.add_entries(path, {"mine": ENTRY}) == {}
    assert path.read_bytes().decode() == written


def test_a_registry_is_made(tmp_path: Path) -> None:
    registry_edits.add_entries(tmp_path / "data/dataset_info.json", {"mine": ENTRY})
    assert json.loads((tmp_path / "data/dataset_info.json").read_text()) == {"mine": ENTRY}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"mine": {"file_name": "other.json"}}', "defines `mine` for other data"),
        ("[]", "is not a JSON object"),
        ('{"mine": ', "is not valid JSON"),
        ("", "is not valid JSON"),
    ],
)
def test_what_stands_there_is_never_changed(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "dataset_info.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=why):
        registry_edits.add_entries(path, {"mine": ENTRY, "more": ENTRY})
    assert path.read_text() == text


def test_a_folder_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as folder:
        (folder / "task.yaml").write_text("text")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(RecipeError, match="no temporary folder can be made: no such file"), scratch_folder():
        pass
