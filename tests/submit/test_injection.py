"""What a recipe says is never a command: jobs of the three engines, with hostile words wherever a recipe has words,
read and run by a real bash."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from submit.test_slurm import PROGRAMS
from support.engine_jobs import cluster, job, run, scripts, task

from validator.errors import RecipeError
from validator.submit import node_script, slurm
from validator.submit.cluster_job import RunToSubmit
from validator.submit.site_file import Site, Slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine"),
]

RECIPE = """\
# /// recipe
# summary: {word}
# machine: {machine}
# host_ram_gib: 64
# ///
model_name_or_path: {word}
adapter_name_or_path: {word}
stage: sft
do_train: true
finetuning_type: lora
template: qwen
dataset: {word}
dataset_dir: {word}
tokenized_path: {word}
cutoff_len: 512
output_dir: {word}
run_name: {word}
"""
# Each leaves a file `ran` where bash takes it, or a part of it, for a command. `/` ends a name.
HOSTILE = {
    "substitution": "$(touch${IFS}ran)",
    "backquotes": "`touch${IFS}ran`",
    "single quote": "';touch${IFS}ran;'",
    "double quote": '";touch${IFS}ran;"',
    "line end": "\ntouch${IFS}ran\n",
    "of a here document": "\nNODE\ntouch${IFS}ran\n",
    "of YAML": '\n    touch${IFS}ran\n#"\n- run: touch${IFS}ran',
    "backslash": "\\\\\ntouch${IFS}ran;\\",
    "arithmetic": "a[$(touch${IFS}ran)]",
    "arithmetic of the job": "$((a[$(touch${IFS}ran)]))",
    "option": "-e;touch${IFS}ran",
    "directive": "x\n#SBATCH --wrap=touch",
    "brace": "{touch,ran}",
    "history": "!!;touch${IFS}ran&",
}
ENGINES = ("slurm", "skypilot", "kubernetes")


LISTS = 'printf \'<%s>\' "$0" "$@"'
# pip installs nothing, and finds no fault.
PYTHON = '[ "$2" = pip ] || exec /usr/bin/python3 "$@"'


@pytest.fixture(params=HOSTILE.values(), ids=list(HOSTILE))
def word(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def jobs(engine: str, run_: RunToSubmit) -> Iterator[str]:
    """The scripts of an engine's job."""
    if engine == "slurm":
        site = Site(slurm=Slurm(hours=1.0, logs="logs"))
        node_script.write_program(slurm.program_path(run_.work, site.slurm))
        yield slurm.batch_script([run_.work], site)
    else:
        site = cluster()
        for script in scripts(task(run_, site) if engine == "skypilot" else job(run_, site)):
            yield re.sub(r"/etc/lmf-recipes/job|\.lmf-recipes/job", str(node_script.program_folder()), script)


@pytest.mark.parametrize("machine", ["1xcpu", "2xa100-80g"])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_word_of_a_recipe_is_a_command(
    engine: str, machine: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = word.replace("/", "_")
    file = tmp_path / name / f"{name}.yaml"
    file.parent.mkdir()
    file.write_text(RECIPE.format(word=json.dumps(word), machine=machine))
    site = cluster() if engine == "kubernetes" else Site()
    words = f"run_name={json.dumps(word)}"
    if machine != "1xcpu" and any(map(str.isspace, word)):
        with pytest.raises(RecipeError, match="holds a space"):
            run(str(file), site, words)
        return
    started = ""
    for script in jobs(engine, run(str(file), site, words)):
        assert read(script) == ""
        started += ran(script, tmp_path)
        assert not [*tmp_path.rglob("ran")], script
    assert engine != "slurm" or str(file) in started  # the others go to folders of their nodes before


def read(script: str) -> str:
    """What bash says that only reads it."""
    return subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False).stderr


def ran(script: str, folder: Path) -> str:
    """What the programs of a job are started with, where bash runs it."""
    stubs = folder / "bin"
    stubs.mkdir(exist_ok=True)
    for name, body in {**PROGRAMS, "llamafactory-cli": LISTS, "torchrun": LISTS, "python3": PYTHON}.items():
        (stubs / name).write_text(f"#!/bin/bash\n{body}\n")
        (stubs / name).chmod(0o755)
    nodes = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n0", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    ranks = {"SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}
    own = {"PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(folder), **nodes, **ranks}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=own, capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout + done.stderr
