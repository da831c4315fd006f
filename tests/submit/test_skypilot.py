"""Tasks of SkyPilot: what they ask for and run. That SkyPilot takes them: tests/submit/test_engines.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import engine_jobs
from support.engine_jobs import ROOT, TINY, cloud, lmf, run, stand_in, task, written

from validator.errors import RecipeError
from validator.knowledge.devices import device_ids
from validator.knowledge.tables import yaml_table
from validator.submit import skypilot
from validator.submit.site_file import Site, Slurm
from validator.submit.uploads import collect_uploads

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/submit/*"])

JOB = "sky-managed-2026-11-22-10-00-00-000000_tiny-cpu-lora_1-0"
# Of a program in place of SkyPilot's client: what it is given.
KEEPS = 'printf "%s\\n" "$@" >{0}/words; cp "${{@: -1}}" {0}/task'


def made(path: str, site: Site, *overrides: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(task(run(path, site, *overrides), site))
    return document


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_asks_for_what_each_node_is_predicted_to_need(there: Path) -> None:
    asked = made(written(there), cloud())
    assert (asked["name"], asked["num_nodes"]) == ("mine", 2)
    assert asked["resources"]["accelerators"] == {"A100-80GB": 8, "A100-80GB-SXM": 8}
    assert re.fullmatch(r"\d+\+", asked["resources"]["cpus"])
    assert 20 < int(asked["resources"]["memory"].removesuffix("+")) < 1024
    assert "export FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8" in asked["run"]
    assert "install --quiet torch==2.8.0 torchvision==0.23.0 torchaudio==2.8.0 --index-url" in asked["setup"]
    assert "llamafactory==" in asked["setup"]
    assert "deepspeed" not in asked["setup"]
    sharded = made(written(there, 'deepspeed: "{\\"zero_optimization\\": {\\"stage\\": 2}}"\n'), cloud())
    assert "'deepspeed<=0.18.4'" in sharded["setup"]


def test_a_site_decides_what_it_names(there: Path) -> None:
    named = {"infra": "kubernetes", "cpus": 8, "accelerators": "H100:8", "image_id": "docker:mine"}
    asked = made(written(there), cloud(resources=named))
    assert asked["resources"] | named == asked["resources"]
    assert "if ! command -v llamafactory-cli" in asked["setup"]  # the image may have it


@pytest.mark.parametrize(
    ("machine", "named", "problem"),
    [
        ("8xascend-910b-64g", {}, "SkyPilot knows no Ascend 910B"),
        ("8xh20-96g", {}, "SkyPilot knows no NVIDIA H20"),
        ("8xh20-96g", {"accelerator": "H20"}, None),
        ("8xascend-910b-64g", {"accelerator": "A2"}, "such as docker:hiyouga/llamafactory:0.9.5-npu-a2"),
        ("8xmi300x-192g", {}, None),
    ],
)  # fmt: skip
def test_devices_that_it_does_not_know(there: Path, machine: str, named: dict[str, Any], problem: str | None) -> None:
    site = cloud(**named)
    one = run(written(there, machine=machine), site)
    if problem is None:
        assert task(one, site)
        return
    with pytest.raises(RecipeError, match=problem) as caught:
        task(one, site)
    assert "site file" in str(caught.value)


def test_the_setup_brings_the_torch_of_the_device_and_of_the_header_block(there: Path) -> None:
    amd = made(written(there, machine="8xmi300x-192g"), cloud())["setup"]
    assert amd.index("https://download.pytorch.org/whl/rocm6.4") < amd.index("llamafactory==")
    older = Path(written(there))
    older.write_text(older.read_text().replace("# samples:", "# torch: 2.6.0\n# samples:"))
    assert "torch==2.6.0 torchvision torchaudio --index-url" in made(str(older), cloud())["setup"]


@pytest.mark.parametrize("has", ["", "llamafactory-cli", "torch"])
def test_an_image_keeps_its_own_llamafactory_and_torch(there: Path, has: str) -> None:
    script = made(written(there), cloud(resources={"image_id": "docker:mine"}))["setup"]
    stand_in(
        there, "python3", f'case "$*" in *import*) {"true" if has == "torch" else "false"} ;; *) echo "$@" ;; esac'
    )
    stand_in(there, "llamafactory-cli" if has == "llamafactory-cli" else "other", "true")
    path = f"{there}/bin:/usr/bin:/bin"
    said = subprocess.run(["bash", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=True).stdout
    brought = [name for name in ("torch", "llamafactory") if f"install --quiet {name}==" in said]
    assert brought == {"": ["torch", "llamafactory"], "torch": ["llamafactory"], "llamafactory-cli": []}[has]


def test_lines_of_the_site_for_all_and_for_this_engine(there: Path) -> None:
    site = replace(cloud(setup=("module purge",)), setup=("export A=1",), slurm=Slurm(setup=("export B=1",)))
    asked = made(written(there), site)
    for script in (asked["setup"], asked["run"]):
        assert script.startswith("set -eo pipefail\nexport A=1\nmodule purge\nset -u\n")


def test_nodes_that_stay_cost(there: Path) -> None:
    path, stays = written(there), {"managed": False, "volumes": {"saves": "mine"}}
    note, _loss = skypilot.prepare([run(path, Site())], cloud(**stays)).notes
    assert "sky down" in note
    (_loss,) = skypilot.prepare([run(path, Site())], cloud(**stays, resources={"autostop": 10})).notes


@pytest.mark.parametrize(
    ("infra", "managed", "told"), [("k8s/mine", True, True), ("k8s", False, False), ("aws", True, False)]
)
def test_machines_of_ones_own_may_have_no_bucket(there: Path, infra: str, managed: bool, told: bool) -> None:
    site = cloud(managed=managed, resources={"infra": infra, "autostop": 10}, volumes={"saves": "mine"})
    *notes, _loss = skypilot.prepare([run(written(there), site)], site).notes
    assert len(notes) == told
    assert not told or "managed: false" in notes[0]


def test_nodes_have_no_cache_of_this_machine(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "https://mirror"}.items():
        monkeypatch.setenv(name, value)
    path = written(there)
    script = made(path, Site())["run"]
    assert "export HF_ENDPOINT=https://mirror\n" in script
    assert "HF_HUB_OFFLINE" not in script
    assert 'export HF_HUB_OFFLINE="1"\n' in made(path, Site(environment={"HF_HUB_OFFLINE": "1"}))["run"]


def test_hours_that_the_user_admits_end_the_run(there: Path) -> None:
    path = written(there)
    scripts = [yaml.safe_load(task(run(path, Site(), limit=limit), Site()))["run"] for limit in (None, 1.5)]
    commands = [script.partition("command=(")[2].split()[:4] for script in scripts]
    assert commands == [
        ["llamafactory-cli", "train", "mine.yaml", ")"],
        ["timeout", "5400", "llamafactory-cli", "train"],
    ]


def test_accelerators_are_of_devices_that_there_are() -> None:
    assert {*yaml_table("engines")} <= {*device_ids()}


def test_an_array_is_for_slurm(there: Path) -> None:
    one = run(written(there), Site())
    with pytest.raises(RecipeError, match="2 recipes are an array job"):
        skypilot.prepare([one, one], Site())


@pytest.mark.parametrize(
    ("named", "lost"),
    [
        ({}, True),
        ({"mounts": {"saves": {"source": "s3://mine", "mode": "MOUNT_CACHED"}}}, False),
        ({"mounts": {"~/sky_workdir/saves": {"source": "s3://mine"}}}, False),
        ({"mounts": {"data": {"source": "s3://mine"}}}, True),
        ({"volumes": {"saves": "mine"}}, False),
    ],
)
def test_says_where_what_was_trained_would_be_lost(there: Path, named: dict[str, Any], lost: bool) -> None:
    site = cloud(**named)
    order = skypilot.prepare([run(written(there), site)], site)
    (note,) = order.notes
    assert ("is lost where" in note, "loses all where" in note) == (lost, not lost)
    document = yaml.safe_load(order.text)
    assert ("job_recovery" in document["resources"]) is not lost
    assert {**document["file_mounts"], **named.get("mounts", {})} == document["file_mounts"]
    assert document.get("volumes", {}) == named.get("volumes", {})


@pytest.mark.parametrize(
    ("more", "relief"),
    [
        ("preprocessing_num_workers: 16\n", "fewer `preprocessing_num_workers` than 16"),
        ("deepspeed: deepspeed/ds_z3_offload.json\n", "offloads nothing"),
        ("", "what does: nodes with more main memory."),
    ],
)
def test_says_what_cures_exit_code_9(there: Path, more: str, relief: str) -> None:
    shutil.copytree(ROOT / "deepspeed", there / "deepspeed")
    text = " ".join(task(run(written(there, more), Site()), Site()).replace("\n  #", "").split())
    assert "A larger /dev/shm does not help" in text
    assert relief in text


@pytest.mark.sample(one_in=3)
@pytest.mark.parametrize(
    ("ends", "managed", "words", "code", "said"),
    [
        (0, True, ["jobs", "launch", "--detach-run"], 0, "log: sky jobs logs --name tiny-cpu-lora"),
        (0, False, ["launch", "--cluster", "tiny-cpu-lora", "--detach-run"], 0, "cancel: sky down tiny-cpu-lora"),
        (3, True, ["jobs", "launch", "--detach-run"], 1, "sky did not take the job (exit code 3)"),
    ],
)
def test_hands_the_task_to_sky(there: Path, ends: int, managed: bool, words: list[str], code: int, said: str) -> None:
    path = engine_jobs.stand_in(there, "sky", f"{KEEPS.format(there)}; exit {ends}")
    (there / "site.yaml").write_text(f"skypilot: {{managed: {str(managed).lower()}}}")
    ended = lmf("submit", TINY, "--to", "skypilot", "--site", str(there / "site.yaml"), path=path)
    assert ended.returncode == code
    assert said in (ended.stderr if code else ended.stdout)
    *given, file = (there / "words").read_text().splitlines()
    assert given == words
    assert not Path(file).exists()  # the task went with it
    assert yaml.safe_load((there / "task").read_text())["name"] == "tiny-cpu-lora"


def test_says_where_sky_is_not_installed(there: Path) -> None:
    ended = lmf("submit", TINY, "--to", "skypilot", path=str(there))
    assert ended.returncode == 1
    assert "sky is not installed here; pip install skypilot" in ended.stderr.splitlines()[-1]


def test_tokens_go_by_name_and_not_into_the_task(there: Path) -> None:
    path = engine_jobs.stand_in(there, "sky", KEEPS.format(there))
    tokens = {"HF_TOKEN": "hf_secret", "WANDB_API_KEY": "wb_secret"}
    assert lmf("submit", TINY, "--to", "skypilot", path=path, **tokens).returncode == 0
    assert "--secret\nHF_TOKEN\n--secret\nWANDB_API_KEY\n" in (there / "words").read_text()
    text = (there / "task").read_text()
    assert "`--secret HF_TOKEN --secret WANDB_API_KEY` hands over the tokens" in text
    assert not any(value in text for value in tokens.values())


@pytest.mark.parametrize(
    ("machine", "named", "tier"),
    [
        ("2x8xa100-80g", {}, "best"),
        ("2x8xa100-80g", {"infra": "aws/us-east-1", "image_id": "docker:mine"}, "best"),
        ("2x8xa100-80g", {"network_tier": "standard"}, "standard"),
        # SkyPilot would refuse it.
        ("2x8xa100-80g", {"infra": "lambda"}, None),
        ("2x8xa100-80g", {"infra": "k8s/mine"}, None),
        ("2x8xa100-80g", {"image_id": "ami-1"}, None),
        ("8xa100-80g", {}, None),
    ],
)
def test_several_nodes_ask_for_the_fastest_network(there: Path, machine: str, named: Any, tier: str | None) -> None:
    assert made(written(there, machine=machine), cloud(resources=named))["resources"].get("network_tier") == tier


def test_a_node_that_is_not_fit_starts_nothing(there: Path) -> None:
    """The doctor of the node speaks first: nodes that meet at 127.0.0.1 would each meet themselves."""
    script, home = tiny(there)
    process = engine_jobs.started(script, home, f"{Path(sys.executable).parent}:{os.environ['PATH']}", node(1))
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "MASTER_ADDR=127.0.0.1" in said
    assert not [*home.glob("saves/tiny-cpu-lora/*")]


@pytest.mark.sample(one_in=6, whole_for=["release/constraints.txt", "validator/submit/*"])
@pytest.mark.training
def test_two_nodes_train_with_what_was_sent(there: Path) -> None:
    """The run block as SkyPilot starts it."""
    script, home = tiny(there)
    output = home / "saves/tiny-cpu-lora"
    engine_jobs.interrupted(output, JOB)
    engine_jobs.trained(output, engine_jobs.together(script, home, [node(0), node(1)]))


def tiny(folder: Path) -> tuple[str, Path]:
    """The run block for two nodes, and a folder with what they are sent."""
    home = folder / "sky_workdir"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        one = run(TINY, Site(), *engine_jobs.SHORT, machine="2x1xcpu")
        engine_jobs.sent(collect_uploads(one)[1], home)
        return yaml.safe_load(task(one, Site()))["run"], home


def node(rank: int) -> dict[str, str]:
    return {"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "SKYPILOT_TASK_ID": JOB, "SKYPILOT_NODE_RANK": str(rank)}
