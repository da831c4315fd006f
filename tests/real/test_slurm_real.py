"""Jobs that `lmf-recipes submit` writes, on a real SLURM cluster of two nodes: trained, stopped, gone on."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import cluster
from support.cluster import Cluster, wait
from support.holding import Hold

# What a job is made of.
MADE_OF = ["release/constraints.txt", "validator/submit/*", "validator/launch/*", "tests/support/cluster.py"]

pytestmark = [
    pytest.mark.training,
    pytest.mark.network,
    pytest.mark.process,
    pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing()),
    pytest.mark.sample(one_in=3, whole_for=MADE_OF, together=True),
]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "tiny-cpu-lora.yaml"
TWO_NODES = ("--machine", "2x1xcpu")
RUN = (
    "max_steps=70", "save_steps=20", "save_total_limit=null", "logging_steps=1", "per_device_train_batch_size=4",
    "plot_loss=false",
)  # fmt: skip
# Both nodes are this host, which others need not find by its name. DDP on the CPU resumes on `cpu`, not on `cpu:0`.
SITE = """\
environment:
  ACCELERATE_TORCH_DEVICE: cpu
  GLOO_SOCKET_IFNAME: lo
  HF_HUB_OFFLINE: 1
  HOLD: {holds}
  OMP_NUM_THREADS: 1
  PYTHONPATH: {ending}
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster.running() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all nodes see."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "holds").mkdir()
    site = SITE.format(ending=ROOT / "tests" / "support" / "ending", holds=folder / "holds")
    (folder / "site.yaml").write_text(site)
    # Python that a node with a FIFO for it waits to start.
    (folder / "late.yaml").write_text(site + f'  PATH: "{folder}/late:$PATH"\n')
    (folder / "late").mkdir()
    python = folder / "late" / "python3"
    waits = f'[ "$SLURMD_NODENAME" != n2 ] || [ ! -p {folder}/holds/checkpoint-0 ] || cat {folder}/holds/checkpoint-0'
    python.write_text(f'#!/bin/bash\n{waits}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder


@dataclass(frozen=True)
class Job:
    """A job that was submitted."""

    number: str
    log: Path
    output: Path

    @property
    def logs(self) -> list[Path]:
        """That of the job, and one of each node."""
        return sorted(self.log.parent.glob(f"{self.log.stem}*.out"))

    @property
    def text(self) -> str:
        return "".join(log.read_text(errors="replace") for log in self.logs)

    @property
    def lines(self) -> list[str]:
        log = self.output / "trainer_log.jsonl"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def losses(self) -> dict[int, float]:
        """By step; of steps that were taken again, the last."""
        lines = map(json.loads, self.lines)
        return {line["current_steps"]: line["loss"] for line in lines if "loss" in line}


def submit(slurm: Cluster, folder: Path, *words: str, site: str = "site.yaml") -> subprocess.CompletedProcess[str]:
    environment = {**slurm.environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{cluster.PATH}"}
    command = slurm.command("lmf-recipes", "submit", "--to", "slurm", "--site", str(folder / site), *words)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def submitted(slurm: Cluster, folder: Path, output: Path, *words: str, site: str = "site.yaml") -> Job:
    """A job of two nodes."""
    done = submit(slurm, folder, str(RECIPE), *TWO_NODES, f"output_dir={output}", *words, site=site)
    assert done.returncode == 0, done.stderr
    number, log = re.search(r"job (\d+)", done.stdout), re.search(r"tail -F (.+)", done.stdout)
    assert number, done.stdout
    assert log, done.stdout
    return Job(number[1], Path(log[1]), output)


@pytest.fixture(scope="module")
def unfit(slurm: Cluster, folder: Path) -> dict[str, Job]:
    """Jobs whose folders are not for all nodes, by what is said of that. One gives a slow file system a minute, beside
    the run that nothing befell."""
    if not slurm.own or not slurm.locked:
        return {}
    (folder / "logs.yaml").write_text((folder / "site.yaml").read_text() + f"slurm: {{logs: {folder}/logs}}\n")
    jobs = {
        f"n2 cannot write to {slurm.locked}/saves: read-only file system": (slurm.locked, "logs.yaml"),
        f"1 of 2 nodes share {slurm.own}/saves, without n2; name a folder": (slurm.own, "logs.yaml"),
        f"n2 does not see {slurm.own}/.lmf-recipes/job_": (slurm.own, "site.yaml"),
    }
    return {
        said: submitted(slurm, folder, place / "saves", "--hours", "1", site=site)
        for said, (place, site) in jobs.items()
    }


@pytest.fixture(scope="module")
def undisturbed(slurm: Cluster, folder: Path, unfit: dict[str, Job]) -> Job:  # noqa: ARG001
    """A run that nothing befell."""
    job = submitted(slurm, folder, folder / "undisturbed", "--hours", "1", *RUN)
    assert slurm.end(job.number) == "COMPLETED", job.text[-5000:]
    return job


def test_two_nodes_train_and_each_has_a_log(undisturbed: Job) -> None:
    assert (undisturbed.output / "adapter_model.safetensors").stat().st_size > 0
    assert list(undisturbed.losses) == [*range(1, 71)]
    assert undisturbed.losses[70] < undisturbed.losses[1]
    assert "world size: 2," in undisturbed.text
    names = [f"{undisturbed.log.stem}-{end}.out" for end in ("n1-0", "n2-1")]
    assert [log.name for log in undisturbed.logs] == [*names, undisturbed.log.name]
    assert all("world size: 2," in log.read_text() for log in undisturbed.logs[:2])
    assert not [*undisturbed.output.glob("_*")], "nothing of the job stays in the folder"


def comes_to(hold: Hold, slurm: Cluster, job: Job) -> None:
    """Return when the job is in the middle of that checkpoint, and stays there."""
    over = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
    wait(lambda: hold.taken() or slurm.state(job.number) in over, "no checkpoint")
    assert slurm.state(job.number) == "RUNNING", job.text[-5000:]


def test_a_run_goes_on_after_the_limit_and_the_loss_of_a_node(slurm: Cluster, folder: Path, undisturbed: Job) -> None:
    """Each time in the middle of a checkpoint, which is set aside. The losses are those of the undisturbed run, and a
    second job that would write to the same folder ends at once."""
    hold = Hold(folder / "holds", 40)
    # So short that the signal comes less than 90 s before the end; what the machine needs is more.
    job = submitted(slurm, folder, folder / "disturbed", "--hours", "0.06", *RUN)
    slurm.ask("scontrol", "update", f"JobId={job.number}", "TimeLimit=120")
    comes_to(hold, slurm, job)
    slurm.ask("scancel", "--batch", "--signal=USR1", job.number)
    slurm.queued_again(job.number, 1)
    hold.let_go()
    hold = Hold(folder / "holds", 60)
    slurm.hurry(job.number)
    comes_to(hold, slurm, job)
    second = submitted(slurm, folder, job.output, "--hours", "1", *RUN)
    assert slurm.end(second.number) == "FAILED"
    assert f"another run writes to `{job.output}`: SLURM job {job.number} on n1, since " in second.log.read_text()
    slurm.lose("n2")
    slurm.queued_again(job.number, 2)
    hold.let_go()
    slurm.start("n2")
    slurm.hurry(job.number)
    assert slurm.end(job.number) == "COMPLETED", job.text[-5000:]
    resumed = re.findall(rf"Resuming training from {job.output}/checkpoint-(\d+)\.", job.text)
    assert {*resumed} == {"20", "40"}
    aside = {each.name for each in job.output.glob("incomplete-checkpoint-*")}
    assert aside == {"incomplete-checkpoint-40", "incomplete-checkpoint-60"}
    assert job.losses == pytest.approx(undisturbed.losses, rel=1e-6)


def makes_steps(slurm: Cluster, job: Job, steps: int) -> None:
    """Return when the job has made so many steps more."""
    goal = len(job.lines) + steps
    wait(lambda: len(job.lines) >= goal or slurm.state(job.number) != "RUNNING", "no step is made")
    assert slurm.state(job.number) == "RUNNING", job.text[-5000:]


@pytest.mark.nightly
def test_a_run_goes_on_from_twenty_preemptions(slurm: Cluster, folder: Path, undisturbed: Job) -> None:
    """Each after a drawn number of steps: while nodes start, while they train, while they save. No checkpoint is lost,
    and the losses are those of the undisturbed run. One node comes late at first."""
    late = Hold(folder / "holds", 0)
    job = submitted(slurm, folder, folder / "preempted", "--hours", "2", *RUN, site="late.yaml")
    wait(lambda: "lmf-recipes: waiting for n2, 30 s of 600 s" in job.text, "nobody waits for the node")
    assert late.taken()
    late.let_go()
    drawn, kept = random.Random(20), 0
    for number in range(1, 21):
        makes_steps(slurm, job, drawn.choice((0, 0, 0, 1, 3, 5, 9, 15, 19, 21)))
        slurm.ask("scontrol", "requeue", job.number)
        slurm.queued_again(job.number, number)
        states = job.output.glob("checkpoint-*/trainer_state.json")
        whole = max((int(state.parent.name.removeprefix("checkpoint-")) for state in states), default=0)
        assert whole >= kept, "a checkpoint was lost"
        kept = whole
        slurm.hurry(job.number)
    assert slurm.end(job.number) == "COMPLETED", job.text[-5000:]
    assert job.losses == pytest.approx(undisturbed.losses, rel=1e-3)


def test_a_folder_is_an_array_and_a_smoke_run_is_two_steps(slurm: Cluster, folder: Path) -> None:
    recipes = folder / "recipes"
    recipes.mkdir()
    for name in ("one", "two"):
        text = RECIPE.read_text().replace("saves/tiny-cpu-lora", str(folder / name))
        text = text.replace("demo/tiny-qwen3", str(ROOT / "demo" / "tiny-qwen3"))
        (recipes / f"{name}.yaml").write_text(
            text + f"dataset_dir: {ROOT / 'data'}\nval_size: 0.1\neval_strategy: epoch\n"
        )
    done = submit(slurm, folder, str(recipes), "--smoke", "--hours", "1")
    assert done.returncode == 0, done.stderr
    number = re.search(r"job (\d+)", done.stdout)
    assert number, done.stdout
    for task, name in enumerate(("one", "two")):
        assert slurm.end(f"{number[1]}_{task}") == "COMPLETED"
        results = json.loads((folder / f"{name}-smoke" / "all_results.json").read_text())
        assert results["eval_loss"] > 0
        assert (folder / f"{name}-smoke" / "checkpoint-2" / "trainer_state.json").exists()


@pytest.mark.parametrize(
    ("site", "words", "said"),
    [
        ("slurm: {partition: nowhere}\n", TWO_NODES, "invalid partition"),
        ("", ("--machine", "3x1xcpu"), "node configuration is not available"),
        ("slurm: {options: [--licenses=gold]}\n", TWO_NODES, "icense"),
    ],
)
def test_what_the_scheduler_refuses_is_one_line(
    site: str, words: tuple[str, ...], said: str, slurm: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text(site)
    done = submit(slurm, tmp_path, str(RECIPE), "--hours", "1", *words)
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert "sbatch refuses the job: " in last
    assert said in last


def test_an_output_folder_that_not_all_nodes_share_or_may_write_to_is_one_line(
    slurm: Cluster, unfit: dict[str, Job]
) -> None:
    if not unfit:
        pytest.skip("no mounts of one's own on this machine")
    for said, job in unfit.items():
        assert slurm.end(job.number) == "FAILED"
        lines = [each for each in job.log.read_text().splitlines() if each.startswith("lmf-recipes: ")]
        assert len(lines) == 1, job.text[-5000:]
        assert lines[0].startswith(f"lmf-recipes: {said}")
