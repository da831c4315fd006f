"""The batch scripts, to the letter, and run by a real bash, with programs of SLURM that stand in for it.

`pytest tests/submit/test_slurm.py --golden` writes the scripts anew, to be read as a diff."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from validator.errors import RecipeError
from validator.knowledge.devices import find_device
from validator.physics import Band
from validator.recipe.recipe_file import load_recipe, parse_recipe
from validator.run.settings import resolve
from validator.submit import cluster_job, node_script, slurm
from validator.submit.cluster_job import ClusterJob, RunToSubmit, build_cluster_job
from validator.submit.site_file import Site, Slurm

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/submit/*"])

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "slurm"
BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")
# A run on two nodes, as nothing but these tests says it.
TWO = ClusterJob(
    name="qwen7b-lora",
    machine="2x8xa100-80g",
    recipe=Path("/home/me/qwen7b-lora.yaml"),
    overrides=("learning_rate=1e-4", "output_dir=/home/me/saves/qwen7b"),
    starter=("llamafactory-cli", "train"),
    launcher="torchrun",
    nodes=2,
    devices=8,
    device=find_device("a100-80g")[0],
    cpus=48,
    memory_gib=96,
    shm_gib=10,
    disk_gib=40,
    out_of_memory_hint="",
    hours=Band(2.0, 4.0, 7.5),
    time_limit_h=None,
    checkpoint_write_s=20.0,
    checkpoint_interval_s=600.0,
    environment={"HF_ENDPOINT": "https://hf.example"},
    output=Path("/home/me/saves/qwen7b"),
    separate_output_dirs=False,
    torch_words=(),
    pip_requirements=(),
    can_resume=True,
    discards_old_checkpoints=False,
    resume_overrides=(),
)
ONE = replace(TWO, machine="1xa100-80g", nodes=1, devices=1, launcher="python", cpus=16)
NPU = replace(
    TWO, machine="2x8xascend-910b-64g", device=find_device("910b")[0], environment={"HCCL_CONNECT_TIMEOUT": "1800"}
)
LAUNCH = ("accelerate", "launch", "--config_file", "/home/me/fsdp2.yaml", "--num_processes", "16", "--num_machines",
          "2", "--machine_rank", "NODE_RANK", "--main_process_ip", "MASTER_ADDR", "--main_process_port", "MASTER_PORT",
          "-m", "llamafactory.launcher")  # fmt: skip
SITE = Site(
    setup=("source /opt/venv/bin/activate",),
    slurm=Slurm(
        partition="gpu", account="nlp", qos="long", constraint="ib", reservation="r1", devices="gpu:a100:{devices}",
        exclusive=True, hours=24, modules=("cuda/12.4",), container="/images/lf.sqsh", mounts=("/home/me",),
        options=("--mail-type=FAIL",), logs="/home/me/logs", setup=("export UCX_TLS=rc",),
    ),
)  # fmt: skip
CASES: dict[str, tuple[list[ClusterJob], Site]] = {
    "one-device": ([ONE], Site()),
    "one-node": ([replace(TWO, machine="8xa100-80g", nodes=1)], Site()),
    "two-nodes": ([TWO], Site()),
    "site": ([TWO], SITE),
    "accelerate": ([replace(TWO, launcher="accelerate", starter=LAUNCH)], Site()),
    "ascend": ([NPU], Site()),
    "ascend-part": ([replace(NPU, machine="2xascend-910b-64g", nodes=1, devices=2)], Site()),
    "ascend-container": ([NPU], Site(slurm=Slurm(container="/images/lf.sqsh", mounts=("/home/me",)))),
    "ascend-part-container": (
        [replace(NPU, machine="2xascend-910b-64g", nodes=1, devices=2)], Site(slurm=Slurm(container="/images/lf.sqsh")),
    ),
    "folders-of-their-own": ([replace(TWO, separate_output_dirs=True)], Site()),
    "reward": ([replace(ONE, can_resume=False)], Site()),
    "array": (
        [
            replace(ONE, recipe=Path("/home/me/sweep/a.yaml"), name="a"),
            replace(ONE, recipe=Path("/home/me/sweep/b.yaml"), name="b", output=Path("/home/me/saves/b"),
                    memory_gib=200, hours=Band(1, 2, 9), discards_old_checkpoints=True,
                    resume_overrides=("overwrite_output_dir=false", "resume_from_checkpoint=null")),
        ],
        Site(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_script(case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_script, "program_name", lambda: "job_HASH")
    text, golden = slurm.batch_script(*CASES[case]), GOLDEN / f"{case}.sh"
    if request.config.getoption("--golden"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
def test_the_script_is_short_and_shellcheck_finds_nothing(case: str) -> None:
    text = slurm.batch_script(*CASES[case])
    assert text.count("\n") <= 90
    words = ["shellcheck", "--exclude=SC2239,SC1091", "-"]  # what `#!/bin/bash -l` is, and files of the site
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("hours", "written"), [(0.001, "00:01:00"), (1.5, "01:30:00"), (24, "1-00:00:00"), (30.01, "1-06:01:00")]
)
def test_time_is_written_as_slurm_reads_it(hours: float, written: str) -> None:
    assert slurm.slurm_time(hours) == written


@pytest.mark.parametrize(
    ("form", "option"),
    [
        ("", "--gres=gpu:8"),
        ("gpu:a100:{devices}", "--gres=gpu:a100:8"),
        ("--gpus-per-node={devices}", "--gpus-per-node=8"),
    ],
)
def test_devices_are_asked_for_in_the_form_of_the_site(form: str, option: str) -> None:
    assert f"#SBATCH {option}" in slurm.directive_lines(TWO, Slurm(devices=form), 1.0)


def test_what_bash_or_sbatch_would_split_is_quoted() -> None:
    lines = slurm.directive_lines(
        replace(TWO, name="my run"), Slurm(constraint="a100|h100", options=("--comment='a b'",)), 1.0
    )
    assert "#SBATCH '--job-name=my run'" in lines
    assert "#SBATCH '--constraint=a100|h100'" in lines
    assert lines[-1] == "#SBATCH --comment='a b'"


def test_a_machine_without_devices_asks_for_none() -> None:
    cpu = replace(TWO, device=find_device("cpu")[0])
    assert not [line for line in slurm.directive_lines(cpu, Slurm(), 1.0) if "gres" in line]


def test_memory_that_is_not_known_is_the_whole_node() -> None:
    assert "#SBATCH --mem=0" in slurm.directive_lines(replace(TWO, memory_gib=None), Slurm(), 1.0)


@pytest.mark.parametrize(
    ("change", "most", "hours"),
    [
        ({}, 0, 8),
        ({}, 5, 5),
        ({}, 24, 8),
        ({"time_limit_h": 3.0}, 24, 3.0),
        ({"hours": None}, 24, 24),
        ({"hours": Band(20, 50, 269)}, 0, 100),
        ({"hours": Band(20, 50, 269)}, 72, 72),
        ({"hours": Band(20, 50, 269), "can_resume": False}, 0, 269),
        ({"hours": Band(20, 50, 269), "checkpoint_interval_s": math.inf}, 0, 269),
        ({"hours": Band(0.01, 0.02, 0.03)}, 0, 0.5),
    ],
)
def test_the_limit_that_is_asked_for(change: dict[str, Any], most: float, hours: float) -> None:
    assert slurm.limit_hours(replace(TWO, **change), most) == hours


def test_hours_that_nobody_knows_are_asked_for() -> None:
    with pytest.raises(RecipeError, match="how long qwen7b-lora takes is not known; say `--hours H`"):
        slurm.batch_script([replace(TWO, hours=None)], Site())


@pytest.mark.parametrize(
    ("change", "hours", "said"),
    [
        ({}, 7.5, ""),
        ({}, 3.0, "takes 4.0 h (2.0 to 7.5 h) and the limit is 3.0 h: it is queued again 1 to 2 times and goes on"),
        ({}, 4.0, "it is queued again 0 to 1 times"),
        (
            {"checkpoint_interval_s": 4 * 3600.0},
            3.0,
            "checkpoints lie up to 4.0 h apart, so that it may start anew each time",
        ),
        ({"checkpoint_interval_s": float("inf")}, 3.0, "the first checkpoint is written at the end"),
        ({"checkpoint_interval_s": None}, 3.0, "it is queued again"),
        ({"can_resume": False}, 3.0, "it cannot go on from a checkpoint; ask for more by `--hours`"),
        ({"hours": None}, 3.0, ""),
    ],
)
def test_what_a_limit_means_for_the_run(change: dict[str, Any], hours: float, said: str) -> None:
    notes = list(slurm.limit_notes(replace(TWO, **change), hours))
    assert len(notes) == bool(said)
    assert said in "".join(notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "loses up to 10 min where it is preempted or a node fails: checkpoints lie so far apart, and the first"),
        ({"checkpoint_interval_s": math.inf}, "loses all where it is preempted or a node fails: the first checkpoint"),
        ({"can_resume": False}, "loses all where it is preempted or a node fails: it cannot go on from a checkpoint"),
        ({"checkpoint_interval_s": None}, ""),
    ],
)
def test_what_a_kill_costs_is_told_whatever_the_limit(change: dict[str, Any], said: str) -> None:
    assert said in "".join(cluster_job.loss_notes(replace(TWO, **change)))


@pytest.mark.parametrize(
    ("change", "hours", "seconds"),
    [
        ({}, 10, 680),
        ({}, 0.5, 600),
        ({"checkpoint_interval_s": None}, 10, 600),
        ({"checkpoint_interval_s": float("inf")}, 10, 600),
    ],
)
def test_the_notice_covers_another_checkpoint(change: dict[str, Any], hours: float, seconds: int) -> None:
    assert slurm.requeue_notice_s(replace(TWO, **change), hours) == seconds


def test_an_array_is_of_runs_that_are_alike() -> None:
    with pytest.raises(RecipeError, match="qwen7b-lora is for 2 nodes of 8 a100-80g by torchrun, b for 1 node of 1 a1"):
        slurm.batch_script([TWO, replace(ONE, name="b")], Site())


def test_a_path_that_the_container_does_not_see_is_told() -> None:
    site = Site(slurm=Slurm(container="image", mounts=("/home/me/saves:/home/me/saves",)))
    lost, *mounts = slurm.submission_notes([replace(TWO, checkpoint_interval_s=1800.0, can_resume=True)], site)
    assert lost.startswith("qwen7b-lora loses up to 30 min where it is preempted or a node fails: ")
    assert mounts == [
        "`/home/me/qwen7b-lora.yaml` is in no mount of the container; add its folder to `slurm.mounts` of the site file"
    ]


def sbatch(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for sbatch, alone on the path."""
    folder.mkdir()
    (folder / "sbatch").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def handed(output: Path) -> list[str]:
    job = resolve(parse_recipe("qwen7b-lora.yaml", f"do_train: true\nnum_train_epochs: 1\noutput_dir: {output}\n"))
    return list(slurm.prepare([RunToSubmit(job, (), replace(TWO, output=output))], Site()).submit())


def test_the_job_is_handed_to_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch(tmp_path / "bin", f'cat > {tmp_path}/job; echo "$*" >> {tmp_path}/words; echo "77;cluster"', monkeypatch)
    output = tmp_path / "saves" / "qwen7b"
    assert handed(output) == [
        "job 77 is queued: squeue --job 77",
        f"log: tail -F {tmp_path}/saves/qwen7b-lora-77.out",
        f"logs of the nodes: tail -F {tmp_path}/saves/qwen7b-lora-77-*; the first failure: grep -A 8 'Root Cause' "
        f"{tmp_path}/saves/qwen7b-lora-77-*",
        "cancel: scancel 77",
    ]
    assert (tmp_path / "words").read_text() == "--test-only\n--parsable\n", "what no node can run is refused first"
    assert (tmp_path / "job").read_text() == slurm.batch_script([replace(TWO, output=output)], Site())
    assert (tmp_path / "saves").is_dir(), "SLURM makes no folder for logs"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("invalid partition\nspecified: gpu", "; `slurm.partition` of the site file names one that `sinfo` shows"),
        ("Batch job submission failed: Invalid generic resource (gres) specification", "; `slurm.devices` of the site"),
        (
            "Batch job submission failed: Requested node configuration is not available",
            "; no node that is up has as many devices",
        ),
        ("allocation failure: Requested partition configuration not available now", "; `--hours H` asks for less"),
        ("Batch job submission failed: Requested time limit is invalid", "; `--hours H` asks for less"),
        ("slurm is down", ""),
    ],
)
def test_what_sbatch_refuses_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, hint: str
) -> None:
    sbatch(tmp_path / "bin", f"echo 'sbatch: error: {words}' >&2; exit 1", monkeypatch)
    with pytest.raises(RecipeError) as caught:
        handed(tmp_path / "saves" / "qwen7b")
    said, told = str(caught.value), f"sbatch refuses the job: sbatch: error: {' '.join(words.split())}"
    assert said.startswith(told + hint)
    assert hint or said == told
    assert not (tmp_path / "saves").exists(), "a job that is refused leaves no folder"


def test_a_trial_that_may_pass_does_not_stop_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'if [ "$1" = --test-only ]; then echo "allocation failure: Requested nodes are busy" >&2; exit 1; fi; echo 8'
    sbatch(tmp_path / "bin", body, monkeypatch)
    assert handed(tmp_path / "saves" / "qwen7b")[0] == "job 8 is queued: squeue --job 8"


def test_without_sbatch_the_script_can_be_taken_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecipeError, match="sbatch is not installed here; run this where jobs are submitted"):
        handed(tmp_path / "saves" / "qwen7b")


def test_a_folder_for_logs_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch(tmp_path / "bin", "echo 1", monkeypatch)
    (tmp_path / "saves").write_text("a file")
    with pytest.raises(RecipeError, match=r"the folder .* cannot be made"):
        handed(tmp_path / "saves" / "qwen7b")


@pytest.mark.sample(one_in=3, whole_for=["validator/submit/*"])
@BASH
@pytest.mark.process
@pytest.mark.slow
def test_every_recipe_of_the_catalogue_becomes_a_script() -> None:
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml")):
        text = slurm.batch_script([build_cluster_job(resolve(load_recipe(str(path))), Site(), limit=24.0)], Site())
        assert f"#SBATCH --job-name={path.stem}\n" in text
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path.stem


# The whole script, with programs that stand in for SLURM's and for the training.

PROGRAMS = {
    "srun": """
        while [[ $1 == --* ]]; do shift; done
        for node in $(seq 0 $((SLURM_JOB_NUM_NODES - 1))); do
          SLURM_NODEID=$node SLURMD_NODENAME=n$node "$@" & all+=($!)
        done
        for one in "${all[@]}"; do wait "$one" || code=$?; done
        exit "${code:-0}" """,
    "scontrol": """
        case $2 in
        hostnames) echo n0; echo n1 ;;
        node) echo "NodeName=$3 NodeAddr=127.0.0.1 NodeHostName=$3" ;;
        job) echo "   Nodes=n0 CPU_IDs=0-3 Mem=0 GRES=npu:ascend:3(IDX:0-1,4)" ;;
        esac""",
    "llamafactory-cli": 'echo "$SLURM_NODEID: $*"; echo "npu ${ASCEND_RT_VISIBLE_DEVICES-}"; exit "${CODE:-0}"',
    "accelerate": 'echo "$SLURM_NODEID: $*"; exit "${CODE:-0}"',
}
_NUMBERS = itertools.count(os.getpid() * 10 % 20000)  # of jobs: each meets at a port of its own


def environment(folder: Path, nodes: int, **variables: str) -> dict[str, str]:
    """What SLURM sets for a job of its own number, with programs that stand in for others."""
    (folder / "bin").mkdir(exist_ok=True)
    job = {"SLURM_JOB_ID": str(next(_NUMBERS)), "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_NUM_NODES": str(nodes)}
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(folder), "SLURM_CPUS_PER_TASK": "4", **job, **variables}


def ran(
    folder: Path, works: list[ClusterJob], programs: Mapping[str, str] = MappingProxyType({}), site: Site | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """The script, run with a recipe and an output folder that are there. `programs` stand in for others. The output has
    the logs of the nodes, too."""
    env, site = environment(folder, works[0].nodes, **variables), site or Site()
    for name, body in {**PROGRAMS, **programs}.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "run.yaml").touch()
    there = [replace(each, recipe=folder / "run.yaml", output=folder / each.name) for each in works]
    node_script.write_program(slurm.program_path(there[0], site.slurm))
    words = ["bash", "-c", slurm.batch_script(there, site)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
    logs = [log.read_text() for log in sorted(folder.glob("*.out"))]
    return subprocess.CompletedProcess(words, done.returncode, done.stdout + "".join(logs), done.stderr)


@BASH
@pytest.mark.process
@pytest.mark.sample(one_in=2, whole_for=["validator/submit/*", "validator/launch/*"])
@pytest.mark.parametrize(
    ("case", "code"),
    [
        *((name, 0) for name in CASES if not CASES[name][1].slurm.container),
        *((name, 7) for name in ("one-node", "two-nodes", "folders-of-their-own", "reward")),
    ],
)
def test_every_node_starts_the_run_and_its_end_is_that_of_the_job(tmp_path: Path, case: str, code: int) -> None:
    works = CASES[case][0]
    done = ran(tmp_path, works, CODE=str(code), SLURM_ARRAY_TASK_ID="1")
    assert done.returncode == code, done.stderr
    started = sorted(line for line in done.stdout.splitlines() if f"{tmp_path}/run.yaml learning_rate=1e-4" in line)
    assert [line.partition(":")[0] for line in started] == [str(node) for node in range(works[0].nodes)]
    assert done.stderr == ""


@BASH
@pytest.mark.process
def test_a_part_of_a_node_gets_the_devices_that_it_was_given(tmp_path: Path) -> None:
    done = ran(tmp_path, CASES["ascend-part"][0])
    assert "npu 0,1,4\n" in done.stdout
    assert "npu 3\n" in ran(tmp_path, CASES["ascend-part"][0], ASCEND_RT_VISIBLE_DEVICES="3").stdout


@BASH
@pytest.mark.process
@pytest.mark.parametrize("local", [False, True])
def test_a_job_that_is_started_again_goes_on(tmp_path: Path, local: bool) -> None:
    works = [
        replace(
            TWO,
            separate_output_dirs=local,
            discards_old_checkpoints=True,
            resume_overrides=("overwrite_output_dir=false",),
        )
    ]
    checkpoint(tmp_path / TWO.name, 10)
    first = ran(tmp_path, works)
    assert "overwrite_output_dir=false" not in first.stdout
    assert [path.name for path in (tmp_path / TWO.name).glob("earlier-*/*")] == ["checkpoint-10"]
    checkpoint(tmp_path / TWO.name, 20)
    (tmp_path / TWO.name / "checkpoint-30").mkdir()
    for log in tmp_path.glob("*.out"):
        log.unlink()
    (earlier,) = (tmp_path / TWO.name).glob("earlier-*")
    again = ran(tmp_path, works, SLURM_RESTART_COUNT="1", SLURM_JOB_ID=earlier.name.partition("-")[2])
    assert again.stdout.count("overwrite_output_dir=false") == TWO.nodes
    assert again.stderr.count("checkpoint-30 was not written to its end") == 1
    assert (tmp_path / TWO.name / "checkpoint-20").is_dir()


@BASH
@pytest.mark.process
def test_a_node_that_lacks_the_recipe_or_the_program_says_so(tmp_path: Path) -> None:
    ran(tmp_path, [ONE])
    (tmp_path / "bin" / "llamafactory-cli").unlink()
    work, env = replace(ONE, recipe=tmp_path / "run.yaml", output=tmp_path / "out"), environment(tmp_path, 1)
    for run, said in (
        (work, "llamafactory-cli is not in the path of n0"),
        (replace(work, recipe=tmp_path / "none.yaml"), f"n0 does not see {tmp_path / 'none.yaml'}"),
        (replace(work, output=tmp_path / "run.yaml" / "out"), f"n0 cannot write to {tmp_path / 'run.yaml' / 'out'}"),
    ):
        site = Site(slurm=Slurm(logs=str(tmp_path)))
        words = ["bash", "-c", slurm.batch_script([run], site)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 1
        assert f"lmf-recipes: {said}" in done.stderr


@BASH
@pytest.mark.process
@pytest.mark.parametrize(("end", "starts"), [(0, True), (1, False), (3, True)])
def test_a_node_that_the_doctor_refuses_starts_nothing_and_says_what_to_do(
    tmp_path: Path, end: int, starts: bool
) -> None:
    """Another end than 1 is the doctor's own fault, for which no run is lost."""
    done = ran(tmp_path, [ONE], {"lmf-recipes": f"exit {end}"})
    assert (done.returncode == 0, "learning_rate=1e-4" in done.stdout) == (starts, starts)
    assert ("if they are wrong, take `--machine` out of the job" in done.stderr) is not starts


def checkpoint(output: Path, step: int) -> None:
    """A checkpoint of a run of 100 steps."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(f'{{"global_step": {step}, "max_steps": 100}}')
    (folder / "adapter_model.bin").write_bytes(b"PK\x05\x06" + bytes(18))


@BASH
@pytest.mark.process
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("$SCRATCH/cache", "/scratch/me/cache"), ("/opt/tools:$PATH", "/opt/tools:"), ("${SCRATCH}x", "/scratch/mex"),
        ("$(touch ran)", "$(touch ran)"), ("`touch ran`", "`touch ran`"), ('a"b\\c', 'a"b\\c'), ("5 $", "5 $"),
        ("'$1'", "'$1'"),
    ],
)  # fmt: skip
def test_variables_of_the_site_may_use_those_of_the_node(tmp_path: Path, written: str, value: str) -> None:
    told = 'printf "%s" "$MINE"'
    site = Site(environment={"MINE": written})
    done = ran(tmp_path, [ONE], {"llamafactory-cli": told}, site, SCRATCH="/scratch/me")
    assert value in done.stdout
    assert not (tmp_path / "ran").exists()


def test_settings_of_the_site_go_by_device() -> None:
    by_device = {"a100-80g": {"partition": "a100", "options": ("--gres-flags=enforce-binding",)}}
    section = Slurm(partition="gpu", qos="long", by_device=by_device)
    for device, partition in (("a100-80g", "a100"), ("h100-80g", "gpu")):
        lines = slurm.directive_lines(ONE, section.for_device(device), 1.0)
        assert {f"#SBATCH --partition={partition}", "#SBATCH --qos=long"} <= {*lines}
        assert ("#SBATCH --gres-flags=enforce-binding" in lines) == (partition == "a100")


def test_an_array_has_the_limit_of_the_site() -> None:
    assert "#SBATCH --array=0-7%2" in slurm.directive_lines(ONE, Slurm(array_limit=2), 1.0, 8)
