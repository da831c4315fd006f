"""What `train` makes of this machine: recorded ones (tests/fixtures/recorded/) against what recipes assume."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support import program
from support.clean_recipe import RECIPE
from support.recordings import RECORDED, show_all

from validator.cli import group
from validator.doctor import start_checks, torch_build
from validator.launch import local_launch
from validator.machine import host

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's root, 1,000 GiB of main memory and of disk, and no variable that counts."""
    show_all(monkeypatch)
    for name in ("NPROC_PER_NODE", "NNODES", "NODE_RANK", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(host, "memory_gib", lambda: 1000.0)
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: 1000.0)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


def write(recipe: Path, machine: str | None, ram: int = 512) -> None:
    block = f"# /// recipe\n# machine: {machine}\n# host_ram_gib: {ram}\n# ///\n" if machine else ""
    recipe.write_text(block + RECIPE)


def train(monkeypatch: pytest.MonkeyPatch, folder: str, *words: str) -> Result:
    """`train --dry-run` on a recorded machine, to which packages and llamafactory-cli are no obstacle."""
    monkeypatch.setattr(start_checks, "PREFLIGHT", start_checks.PREFLIGHT[:1])
    monkeypatch.setattr(local_launch, "check_can_start", lambda _prepared, **_more: None)
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    return CliRunner().invoke(group, ["train", "--dry-run", *words])


@pytest.mark.parametrize(
    ("assumed", "folder", "code", "says"),
    [
        ("8xa100-80g", "nvidia-smi-8xa100", 0, ["8 x NVIDIA A100-SXM4-80GB (a100-80g), 1000 GiB of RAM\n"]),
        # What fails: the memory and the abilities of the devices that are here.
        ("1xa100-80g", "nvidia-smi-1xt4", 1,
         ["1 x Tesla T4 (t4-16g), 1000 GiB of RAM; the recipe assumes 1xa100-80g with 512 GiB of RAM",
          "t4-16g has 14.6 usable", "t4-16g has no bf16"]),
        # What differs and fits.
        ("1xa100-80g", "nvidia-smi-2x4090", 0,
         ["the recipe assumes 1xa100-80g", "runs on 1 of the 2 devices (0); NPROC_PER_NODE=2 takes all"]),
        ("4xrtx-4090", "nvidia-smi-2x4090", 0,
         ["runs on 2 devices instead of 4: 16 samples a step instead of 32; gradient_accumulation_steps=16 keeps it"]),
        ("2x8xa100-80g", "nvidia-smi-8xa100", 0, ["8 x NVIDIA A100"]),
        (None, "nvidia-smi-2x4090", 0, ["2 x NVIDIA GeForce RTX 4090 (rtx-4090), 1000 GiB of RAM\n"]),
        ("1x24g", "nvidia-smi-2xquadro", 1, ["Quadro RTX 4000 is not in the catalogue", "8g has 7.3 usable"]),
        # Devices that others use.
        ("2xrtx-5090", "nvidia-smi-2x5090-busy", 1, ["error: device 1 has 2.2 GiB free of 31.8, 29.6 are in use; the"]),
        ("4xascend-910b-64g", "npu-smi-8x910b2", 0, ["runs on 4 of the 8 devices (4, 5, 6, 7)"]),
        ("8xascend-910b-64g", "npu-smi-8x910b3-busy", 1, ["device 0 has 10.7 GiB free of 64.0, 53.3 are in use"]),
        # Nothing to compare with.
        ("8xa100-80g", "none", 0, ["the devices of this machine are not known", "judged for 8xa100-80g"]),
        ("8xa100-80g", "nvidia-smi-mismatch", 1,
         ["nvidia-smi shows no device: Failed to initialize NVML",
          "570.124; mend the driver; judged for 8xa100-80g\n", "start         would be refused: nvidia-smi"]),
    ],
)  # fmt: skip
def test_this_machine_against_the_recipe(
    assumed: str | None, folder: str, code: int, says: list[str], recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(recipe, assumed)
    shown = train(monkeypatch, folder, str(recipe))
    assert shown.exit_code == code, shown.stderr
    assert all(part in shown.stderr for part in says), shown.stderr
    assert bool(shown.stdout) == (code == 0 or "would be refused" in shown.stderr)


@pytest.mark.parametrize(
    ("assumed", "folder", "given", "variables"),
    [
        ("8xa100-80g", "nvidia-smi-8xa100", {}, {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "8"}),
        ("4xrtx-4090", "nvidia-smi-2x4090", {}, {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2"}),
        # LLaMA-Factory would start a process for each device that it sees.
        ("1xrtx-4090", "nvidia-smi-2x4090", {}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}),
        ("1xrtx-4090", "nvidia-smi-2x4090", {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "0"}),
        (None, "nvidia-smi-2x4090", {}, {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2"}),
        # The user's own number wins.
        ("1xrtx-4090", "nvidia-smi-2x4090", {"NPROC_PER_NODE": "2"}, {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2"}),
    ],
)  # fmt: skip
def test_the_devices_that_a_run_gets(
    assumed: str | None, folder: str, given: dict[str, str], variables: dict[str, str], recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write(recipe, assumed)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    shown = train(monkeypatch, folder, str(recipe))
    (line,) = shown.stdout.splitlines()
    before = line.partition(" llamafactory-cli")[0] if " llamafactory-cli" in line else ""
    assert dict(word.split("=", 1) for word in before.split()) == variables


@pytest.mark.parametrize(
    ("folder", "processes", "says"),
    [
        ("nvidia-smi-2x4090", "4", "NPROC_PER_NODE=4, 2 devices here"),
        ("nvidia-smi-mig", "2", "NPROC_PER_NODE=2, 1 device here"),
    ],
)
def test_more_processes_than_devices(
    folder: str, processes: str, says: str, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(recipe, None)
    monkeypatch.setenv("NPROC_PER_NODE", processes)
    shown = train(monkeypatch, folder, str(recipe))
    assert says in str(shown.exception)


def test_a_step_that_no_accumulation_keeps(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(recipe, "3xrtx-4090")
    shown = train(monkeypatch, "nvidia-smi-2x4090", str(recipe), "gradient_accumulation_steps=1")
    assert "runs on 2 devices instead of 3: 2 samples a step instead of 3\n" in shown.stderr


def test_the_processes_of_an_accelerate_file_do_not_count(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ddp.yaml"
    file.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    recipe.write_text(f"# /// recipe\n# machine: 4xrtx-4090\n# accelerate: {file}\n# ///\n{RECIPE}")
    assert "[PAR305]" in CliRunner().invoke(group, ["check", str(recipe), "--machine", "2xrtx-4090"]).stdout
    shown = train(monkeypatch, "nvidia-smi-2x4090", str(recipe))
    assert " --num_processes 2 " in shown.stdout
    assert "PAR305" not in shown.stderr


def test_each_node_is_compared_by_itself(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(recipe, "2x8xa100-80g")
    lines = train(monkeypatch, "nvidia-smi-8xa100", str(recipe)).stdout.splitlines()
    assert ["NNODES=2" in line and "NPROC_PER_NODE=8" in line for line in lines] == [True, True]


@pytest.mark.parametrize(
    ("words", "code"),
    [([], 1), (["--machine", "1xa100-80g"], 0), (["--machine", "auto"], 1)],
)
def test_a_machine_that_is_named_is_not_looked_at(
    words: list[str], code: int, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(recipe, "1xa100-80g")
    assert train(monkeypatch, "nvidia-smi-1xt4", str(recipe), *words).exit_code == code


def test_main_memory_is_that_of_this_machine(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(recipe, "8xa100-80g")
    monkeypatch.setattr(host, "memory_gib", lambda: 16.0)
    shown = train(monkeypatch, "nvidia-smi-8xa100", str(recipe))
    assert shown.exit_code == 1
    assert "16 GiB of RAM; the recipe assumes 8xa100-80g with 512 GiB of RAM" in shown.stderr
    assert "[FIT003]" in shown.stderr
    assert train(monkeypatch, "nvidia-smi-8xa100", str(recipe), "--host-ram", "512").exit_code == 0


@pytest.mark.parametrize(
    ("free", "words", "code", "says"),
    [
        (1.0, [], 0, ""),
        (0.1, [], 1, "error: 0.1 GiB are free on the disk of"),
        (0.3, [], 1, "3 checkpoints at once (a new one is written before the oldest is removed) take 0.7"),
        (0.3, ["max_steps=4", "save_steps=2"], 1, "2 checkpoints and the result take"),
        # Without a limit their number is an estimate.
        (0.3, ["save_total_limit=null", "save_steps=1", "max_steps=4"], 0, "warning: 0.3 GiB are free"),
    ],
)
def test_free_disk(
    free: float, words: list[str], code: int, says: str, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(recipe, "8xa100-80g")
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: free)
    shown = train(monkeypatch, "nvidia-smi-8xa100", str(recipe), *words)
    assert (shown.exit_code, says in shown.stderr) == (code, True), shown.stderr


def test_the_disk_of_another_machine_is_not_judged(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe for a server is tried on a laptop, which shows no device."""
    write(recipe, "8xa100-80g")
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: 0.1)
    shown = train(monkeypatch, "none", str(recipe))
    assert (shown.exit_code, "free on the disk" in shown.stderr) == (0, False), shown.stderr


def test_a_run_that_goes_on_replaces_its_checkpoints(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(recipe, "8xa100-80g")
    (tmp_path / "saves" / "checkpoint-100").mkdir(parents=True)
    monkeypatch.setattr(host, "free_disk_gib", lambda _folder: 0.3)
    shown = train(monkeypatch, "nvidia-smi-8xa100", str(recipe), f"output_dir={tmp_path}/saves")
    assert (shown.exit_code, "warning: 0.3 GiB are free" in shown.stderr) == (0, True), shown.stderr


@pytest.mark.parametrize(
    ("assumed", "folder", "started"),
    [
        ("8xa100-80g", "none", True),
        ("8xa100-80g", "nvidia-smi-no-driver", False),
        ("1xcpu", "nvidia-smi-no-driver", True),
        ("8xa100-80g", "nvidia-smi-8xa100", True),
    ],
)
def test_what_is_started(
    assumed: str, folder: str, started: bool, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a driver's program nothing is refused; where it is there and shows no device, the run would fail."""
    write(recipe, assumed)
    shown = run(monkeypatch, folder, tmp_path, str(recipe), *(["use_cpu=true"] if assumed == "1xcpu" else []))
    assert (tmp_path / "started").exists() == started, shown.output


def run(monkeypatch: pytest.MonkeyPatch, folder: str, scratch: Path, *words: str, cuda: str = "12.8") -> Result:
    """`train` on a recorded machine, with a trainer that leaves the devices that it sees in `scratch`/started.
    `cuda`: what torch is built for; empty for CPUs."""
    cli = scratch / "bin" / "llamafactory-cli"
    cli.parent.mkdir()
    cli.write_text(f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" > {scratch}/started\n')
    cli.chmod(0o755)
    monkeypatch.setenv("PATH", f"{RECORDED / folder}:{cli.parent}")
    build = torch_build.PackageBuild(f"2.8.0+{'cu128' if cuda else 'cpu'}", cuda, "")
    monkeypatch.setattr(torch_build, "read_build", lambda _, package: build if package == "torch" else None)
    return program.run("train", *words, f"output_dir={scratch / 'out'}")  # which no test beside this one uses


@pytest.mark.parametrize(
    ("assumed", "folder", "says"),
    [
        ("8xa100-80g", "nvidia-smi-8xa100", "+cpu is built for CPUs alone, and the devices are NVIDIA's"),
        ("8xascend-910b-64g", "npu-smi-8x910b2", "torch_npu is not installed, without which torch sees no NPU"),
        ("8xmi300x-192g", "rocm-smi-8xmi300x", "+cpu is built for CPUs alone, and the devices are AMD's"),
    ],
)
def test_nothing_is_started_that_would_train_on_the_processors(
    assumed: str, folder: str, says: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(recipe, assumed)
    shown = run(monkeypatch, folder, tmp_path, str(recipe), cuda="")
    assert says in shown.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("machine", "folder", "devices", "says"),
    [
        ("1xa100-80g", "nvidia-smi-2x4090", "0", ""),
        ("2xrtx-4090", "nvidia-smi-2x4090", "", ""),
        ("4xrtx-4090", "nvidia-smi-2x4090", None, "`--machine 4xrtx-4090` has 4 devices, 2 devices here"),
        ("2xrtx-5090", "nvidia-smi-2x5090-busy", None, "device 1 has 2.2 GiB free of 31.8"),
        # The user knows the machine, or only the devices are not known.
        ("8xa100-80g", "nvidia-smi-mismatch", "", "nvidia-smi shows no device"),
        ("8xa100-80g", "none", "", ""),
    ],
)
def test_a_run_for_a_machine_that_is_named(
    machine: str, folder: str, devices: str | None, says: str, recipe: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write(recipe, "8xa100-80g")
    shown = run(monkeypatch, folder, tmp_path, str(recipe), "--machine", machine)
    started = tmp_path / "started"
    assert (started.read_text().strip() if started.exists() else None) == devices, shown.output
    assert says in f"{shown.output}{shown.exception}"


def test_a_run_is_not_told_of_another_machine(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(recipe, "1xa100-80g")
    assert "judges by that" in train(monkeypatch, "nvidia-smi-2x4090", str(recipe)).stderr
    shown = run(monkeypatch, "nvidia-smi-2x4090", tmp_path, str(recipe))
    assert "the recipe assumes 1xa100-80g with 512 GiB of RAM\n" in shown.stderr
