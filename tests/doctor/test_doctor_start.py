"""What `doctor` says of the recipe, of what `train` asks before a run, and of the hub."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.installed_packages import site

from validator.doctor import hub_checks, start_checks
from validator.doctor.check_result import CheckContext, CheckResult
from validator.machine import host
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.recipe.recipe_file import load_recipe, load_with_overrides, parse_recipe
from validator.run.settings import resolve

ROOT = Path(__file__).parents[2]
LORA = str(ROOT / "recipes" / "qwen3-8b-a100-lora.yaml")
TINY = str(ROOT / "recipes" / "tiny-cpu-lora.yaml")
MODEL = "Qwen/Qwen3-8B"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The repository's root, empty caches, llamafactory-cli on PATH, no variable that counts, and time for a hub."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(hub_checks, "_TIMEOUT_SECONDS", 600.0)
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_DATASETS_CACHE", "HF_ENDPOINT",
                 "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "USE_MODELSCOPE_HUB", "MODELSCOPE_CACHE", "NODE_RANK",
                 "MASTER_ADDR", "RDZV_ID", "NNODES", "RANK", "http_proxy", "HTTP_PROXY"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "llamafactory-cli").touch(0o755)
    site(tmp_path / "hf", {"llamafactory": "0.9.5"})
    find_installed.cache_clear()


def told(lines: Iterator[CheckResult]) -> list[str]:
    return [f"{line.state}: {line.what}: {line.found}" for line in lines]


# The recipe.


@pytest.mark.parametrize(
    ("text", "machine", "says"),
    [
        (None, None, ["ok: recipe: nothing is wrong with it"]),
        (None, "1xrtx-4090", ["note: recipe: `check` has 1 warning"]),
        (None, "1xt4-16g", ["error: recipe: the run needs", "error: recipe: t4-16g has no bf16"]),
        ("a: [1\n", None, ["error: recipe: not valid YAML"]),
        ("# nothing\n", None, ["error: recipe: holds no key"]),
    ],
)
def test_the_recipe_as_check_judges_it(text: str | None, machine: str | None, says: list[str]) -> None:
    document = load_recipe(LORA) if text is None else parse_recipe("x.yaml", text)
    found = told(start_checks.check_recipe(document, machine, None))
    assert len(found) >= len(says)
    assert all(any(part in line for line in found) for part in says)


def test_main_memory_is_told_once() -> None:
    assert told(start_checks.check_recipe(load_recipe(LORA), "8xa100-80g", 8.0)) == [
        "ok: recipe: nothing is wrong with it"
    ]


# What train asks.


def begun(*overrides: str, machine: str | None = None, **environment: str) -> list[str]:
    job = resolve(load_with_overrides(LORA, overrides), machine)
    return told(
        start_checks.check_start(job, CheckContext(environment=environment, site_packages=(os.environ["HF_HOME"],)))
    )


def test_nothing_stops_it() -> None:
    assert not begun()
    assert not told(start_checks.check_start(None, CheckContext()))


def test_a_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: {"llamafactory": "0.9.5"})
    (line,) = begun("enable_liger_kernel=true")
    assert line.startswith("error: package: `enable_liger_kernel` needs a package that is not installed")


def test_no_llamafactory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    (line,) = begun()
    assert line.startswith("error: start: llamafactory-cli is not ")
    assert not told(
        start_checks.check_start(resolve(load_recipe(LORA)), CheckContext(site_packages=("/none",)))
    )  # which is told of the packages


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (line,) = begun(f"model_name_or_path={tmp_path}")
    assert line.startswith("error: model: ")
    assert "holds no weights" in line


def test_where_the_model_lies(tmp_path: Path) -> None:
    (line,) = told(start_checks.check_start(resolve(load_recipe(TINY)), CheckContext(site_packages=("/none",))))
    assert line == f"ok: model: `demo/tiny-qwen3` lies in {ROOT}/demo/tiny-qwen3"
    place = tmp_path / "hf/hub/models--Qwen--Qwen3-8B"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("0123")
    (place / "snapshots/0123").mkdir(parents=True)
    (place / "snapshots/0123/model.safetensors").touch()
    assert begun() == [f"ok: model: `{MODEL}` lies in {place}/snapshots/0123"]


def test_a_model_that_is_not_there_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert begun()[0].startswith(f"error: model: HF_HUB_OFFLINE is set, and `{MODEL}` is in no folder")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({}, ""),
        ({"MASTER_ADDR": "10.0.0.1"}, ""),  # the command has the rank, as that of accelerate
        ({"RDZV_ID": "7", "MASTER_ADDR": "10.0.0.1"}, ""),
        ({"RDZV_ID": "7"}, "needs MASTER_ADDR"),
        ({"NODE_RANK": "0"}, "needs MASTER_ADDR"),
        ({"NODE_RANK": "2", "MASTER_ADDR": "10.0.0.1"}, "of 2 nodes it is a whole number from 0 to 1"),
    ],
)
def test_the_place_of_a_node_is_asked_for_where_a_job_tells_it(
    place: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    told = begun(machine="2x8xa100-80g", **place)
    assert len(told) == bool(says)
    assert says in "".join(told)


def test_data(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text('{"mine": {"file_name": "mine.json"}}')
    (tmp_path / "mine.json").write_text('[{"instruction": "a", "input": "", "output": "b"}]')
    job = resolve(load_with_overrides(TINY, (f"dataset_dir={tmp_path}", "dataset=mine")))
    assert told(start_checks.check_data(job))[0].startswith("ok: data: 1 of 1 rows trained")
    (tmp_path / "mine.json").write_text('[{"question": "a", "output": "b"}]')
    job = resolve(load_with_overrides(TINY, (f"dataset_dir={tmp_path}", "dataset=mine")))
    assert told(start_checks.check_data(job))[0].startswith("error: data: ")


# The hub.


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does, by the first part of the address."""

    def do_HEAD(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Location", "http://none.invalid/")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Hub) as there:
        Thread(target=there.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{there.server_port}"
        there.shutdown()


def asked(endpoint: str, *overrides: str) -> list[CheckResult]:
    job = resolve(load_with_overrides(LORA, overrides))
    return list(hub_checks.check_hub(job, CheckContext(environment={"HF_ENDPOINT": endpoint})))


@pytest.mark.parametrize(
    ("status", "state", "says"),
    [
        (200, "ok", "answers"),
        (302, "ok", "answers"),
        (307, "ok", "answers"),
        (401, "warning", "answers 401: the repository is gated"),
        (403, "warning", "answers 403: the repository is gated"),
        (404, "warning", "does not know it"),
    ],
)
def test_a_hub_that_answers(status: int, state: str, says: str, server: str) -> None:
    first = asked(f"{server}/{status}")[0]
    assert first.state == state
    assert says in first.found
    assert first.wanted == f"`{MODEL}`, not here yet"


def test_a_hub_that_refuses() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        first, *others = asked(f"http://127.0.0.1:{deaf.getsockname()[1]}")
    assert first.state == "error"
    assert first.found.endswith("cannot be reached: connection refused")
    assert "`llamafactory/alpaca_gpt4_en`" in first.wanted  # one line for all that it should give
    assert [line.what for line in others] == ["hub cache"]


def test_a_hub_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_checks, "_TIMEOUT_SECONDS", 0.01)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        first = asked(f"http://127.0.0.1:{silent.getsockname()[1]}")[0]
    assert (first.state, first.found.split(" ", 1)[1]) == ("error", "does not answer within 0 seconds")


def test_an_address_that_is_none() -> None:
    first = asked("huggingface.co")[0]
    assert first.state == "error"
    assert "unknown url type" in first.found


@pytest.mark.parametrize(("free", "state"), [(1.0, "error"), (100.0, "ok")])
def test_room_for_the_weights(free: float, state: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: free)
    line = asked(f"{server}/200")[-1]
    assert (line.state, line.what, line.wanted) == (state, "hub cache", "15.3 GiB of weights")


def test_no_hub_is_asked_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_checks, "_request_status", lambda _address: pytest.fail("nothing is to be downloaded"))
    assert not list(hub_checks.check_hub(None, CheckContext()))
    place = tmp_path / "hf/hub/models--Qwen--Qwen3-8B"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("0123")
    (place / "snapshots/0123").mkdir(parents=True)
    (place / "snapshots/0123/model.safetensors").touch()
    (tmp_path / "hf/datasets/llamafactory___alpaca_gpt4_en").mkdir(parents=True)
    (tmp_path / "hf/datasets/llamafactory___alpaca_gpt4_zh").mkdir(parents=True)
    assert not asked("http://none.invalid")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "other"))
    assert not asked("http://none.invalid")


def test_a_path_where_nothing_is_is_asked_of_no_hub(server: str) -> None:
    names = [line.wanted for line in asked(f"{server}/200", "model_name_or_path=./nope")]
    assert names
    assert not any("nope" in name for name in names)


def test_modelscope_is_asked_where_the_run_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []

    def answer(address: str) -> int:
        addresses.append(address)
        return 200

    monkeypatch.setattr(hub_checks, "_request_status", answer)
    monkeypatch.setenv("USE_MODELSCOPE_HUB", "1")
    assert [line.state for line in asked("http://none.invalid")] == ["ok"]
    assert addresses == [f"https://www.modelscope.cn/models/{MODEL}"]
