"""Jobs of the engines that start one script on each node, and what their own parsers say of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from validator.recipe.recipe_file import load_recipe, parse_recipe, with_overrides
from validator.run.settings import resolve
from validator.submit import kubernetes, node_script, skypilot
from validator.submit.cluster_job import RunToSubmit, build_cluster_job
from validator.submit.site_file import Kubernetes, Site, SkyPilot
from validator.submit.uploads import Uploads

ROOT = Path(__file__).parents[2]
PARSERS = Path(sys.prefix, "engines", "bin", "python")
needs_parsers = pytest.mark.skipif(not PARSERS.exists(), reason="`make .venv/engines.done` installs the parsers")

RECIPE = """\
# /// recipe
# machine: {machine}
# host_ram_gib: {ram}
# samples: 20000
# lengths: {{typical: 800}}
# ///
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
template: qwen
dataset: own
cutoff_len: 2048
bf16: true
output_dir: saves/mine
"""


TINY = "recipes/tiny-cpu-lora.yaml"
# Four steps of it.
SHORT = ("max_steps=4", "save_steps=2", "logging_steps=1", "plot_loss=false")


class Job(NamedTuple):
    """A job of an engine; `name` says which."""

    name: str
    engine: str
    text: str


def run(path: str, site: Site, *overrides: str, limit: float | None = None, machine: str | None = None) -> RunToSubmit:
    """A recipe in a file, with overrides, on the site."""
    job = resolve(with_overrides(load_recipe(path), overrides), machine)
    return RunToSubmit(job, overrides, build_cluster_job(job, site, overrides, limit))


def written(folder: Path, more: str = "", machine: str = "2x8xa100-80g", ram: int = 1024) -> str:
    """A recipe's file in a folder."""
    file = folder / "mine.yaml"
    file.write_text(RECIPE.format(machine=machine, ram=ram) + more)
    assert parse_recipe(str(file), file.read_text()).readable
    return str(file)


def cloud(**settings: Any) -> Site:
    return Site(skypilot=SkyPilot(**settings))


def cluster(**settings: Any) -> Site:
    return Site(kubernetes=Kubernetes(**{"claim": "data", **settings}))


def task(run: RunToSubmit, site: Site) -> str:
    return skypilot.prepare([run], site).text


def job(run: RunToSubmit, site: Site) -> str:
    return kubernetes.prepare([run], site).text


def lmf(*words: str, path: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """`lmf-recipes`, from the repository root; `path`: where alone it finds programs."""
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HF_TOKEN", "WANDB_API_KEY", "XDG_CONFIG_HOME")
    }
    own |= {"XDG_CONFIG_HOME": "/nowhere", **({"PATH": path} if path else {}), **variables}
    command = [sys.executable, "-m", "validator", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=own)


def stand_in(folder: Path, name: str, body: str) -> str:
    """A program in place of an engine's client, and the PATH by which it is found first."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/bash\n{body}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def sent(parcel: Uploads, folder: Path) -> None:
    """A folder that holds what a node is given, and nothing else. Paths of the parcel count from the working
    directory."""
    for place, source in {**parcel.files, **parcel.data}.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / place)
    shutil.copytree(node_script.program_folder(), folder / ".lmf-recipes" / "job")


def together(script: str, folder: Path, nodes: Sequence[Mapping[str, str]]) -> list[str]:
    """What each of several nodes says that run a script with their variables, here processes that share a folder. They
    have no lmf-recipes, which would refuse nodes that meet at 127.0.0.1."""
    programs = folder.parent / "programs"
    programs.mkdir()
    for name in ("llamafactory-cli", "torchrun", "python3"):
        (programs / name).symlink_to(Path(sys.executable).parent / name)
    processes = [started(script, folder, f"{programs}:/usr/bin:/bin", node) for node in nodes]
    said = [process.communicate(timeout=800)[0] for process in processes]
    assert {process.returncode for process in processes} == {0}, "\n\n".join(said)[-6000:]
    return said


def started(script: str, folder: Path, path: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """A node that runs a script, and finds programs there alone."""
    own = {
        **os.environ,
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "tests" / "support" / "ending"),
        **variables,
    }
    return subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def interrupted(output: Path, job: str) -> None:
    """What a job leaves that was interrupted while it wrote its first checkpoint."""
    for name in ("checkpoint-1", f"earlier-{job}"):
        (output / name).mkdir(parents=True)


def trained(output: Path, said: Sequence[str]) -> None:
    """Asserts that two nodes made four steps after that."""
    rows = [json.loads(line) for line in (output / "trainer_log.jsonl").read_text().splitlines()]
    assert [row["current_steps"] for row in rows if "loss" in row] == [1, 2, 3, 4]
    assert (output / "checkpoint-4/trainer_state.json").is_file()
    assert (output / "adapter_model.safetensors").is_file()
    assert (output / "incomplete-checkpoint-1").is_dir()
    assert ["was not written to its end" in each for each in said] == [True, False]  # once, on the first node


def problems(jobs: Sequence[Job], home: Path) -> list[str]:
    """What the parsers find wrong with each, all in one process; an empty text where nothing is."""
    asked = json.dumps([[each.engine, each.text] for each in jobs])
    own = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    words = [str(PARSERS), str(ROOT / "tests" / "support" / "engine_parsers.py")]
    ended = subprocess.run(words, input=asked, capture_output=True, text=True, check=False, cwd=ROOT, env=own)
    assert ended.returncode == 0, ended.stderr
    answers: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return answers


def scripts(text: str) -> list[str]:
    """The scripts of bash in a job."""
    import yaml

    documents = [*yaml.safe_load_all(text)]
    task = documents[0]
    found = [task.get("setup"), task.get("run"), *(each.get("data", {}).get("run.sh") for each in documents)]
    return [each for each in found if each]
