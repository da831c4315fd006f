"""Nodes of a job that start at different times, and what they say of those that do not come."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from validator.on_node import meeting
from validator.on_node.meeting import MeetingError, MeetingPlace, host_meeting, join_meeting, local_address

NAMES = ("n0", "n1", "n2")
WORDS = ["overwrite_output_dir=false"]


def place(job: str = "7", patience: float = 60.0) -> MeetingPlace:
    """A port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return MeetingPlace("127.0.0.1", free.getsockname()[1], job, patience)


def met(
    where: MeetingPlace, shared: Path | None, joining: list[MeetingPlace]
) -> tuple[Future[None], list[Future[list[str]]]]:
    """What the first node and the others come to; these come before the first listens, and are tried again."""
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(join_meeting, each, rank) for rank, each in enumerate(joining, 1)]
        first = pool.submit(host_meeting, where, NAMES[: len(joining) + 1], WORDS, shared, lambda: None)
    return first, others


def test_all_start_with_the_words_of_the_first(tmp_path: Path) -> None:
    where = place()
    first, others = met(where, tmp_path, [where, where])
    assert first.exception() is None
    assert [other.result() for other in others] == [WORDS, WORDS]
    assert not [*tmp_path.iterdir()]


def test_nodes_of_another_job_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(patience=3)
    monkeypatch.setattr(meeting, "_REPORT_SECONDS", 1.0)
    said: list[str] = []
    monkeypatch.setattr(meeting, "say", said.append)
    first, others = met(where, None, [where, where._replace(job="8")])
    assert str(first.exception()).startswith("n2 did not come within 3 s; `start_wait_minutes` in the site file")
    assert said[0].startswith("waiting for n2, ")
    assert said[0].endswith(" of 3 s")
    assert str(others[0].exception()) == "", "the first node says it"
    assert "the first node, 127.0.0.1, did not answer within 3 s" in str(others[1].exception())


def test_a_folder_that_a_node_does_not_see_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_becomes_visible", lambda _: False)
    where = place()
    first, others = met(where, tmp_path, [where])
    assert f"1 of 2 nodes share {tmp_path}, without n1; name a folder that all see" in str(first.exception())
    assert str(others[0].exception()) == ""


def test_what_no_node_says_is_passed_over(tmp_path: Path) -> None:
    """Port scanners, and programs of other users."""
    where = place()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(host_meeting, where, NAMES[:2], WORDS, tmp_path, lambda: None)
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"job": "7", "rank": 9}\n', b""):
            while True:
                try:
                    with socket.create_connection((where.address, where.port)) as stranger:
                        stranger.sendall(said)
                    break
                except ConnectionRefusedError:
                    pass
        assert join_meeting(where, 1) == WORDS
    assert first.exception() is None


def test_a_port_that_another_has_is_told() -> None:
    where = place()
    with socket.socket() as other:
        other.bind(("", where.port))
        other.listen()
        with pytest.raises(MeetingError, match=f"port {where.port} of the first node cannot be used: .*another run"):
            host_meeting(where, NAMES[:2], WORDS, None, lambda: None)


def test_a_first_node_that_nobody_knows_is_told() -> None:
    assert local_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(MeetingError, match=r"the first node, nowhere\.invalid, is not known here"):
        local_address("nowhere.invalid", seconds=0)
