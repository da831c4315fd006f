"""The settings of a site: each key that is wrong is told, with what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.submit import site_file

WHOLE = """
environment: {NCCL_DEBUG: INFO, OMP_NUM_THREADS: 8}
setup: [source /opt/venv/bin/activate]
slurm:
  partition: gpu
  account: nlp
  devices: gpu:a100:{devices}
  exclusive: true
  hours: 24
  modules: [cuda/12.4]
  options: [--mail-type=FAIL]
skypilot:
  resources: {infra: kubernetes, use_spot: true}
  mounts: {saves: {source: "s3://mine", mode: MOUNT_CACHED}}
kubernetes:
  claim: data
  setup: [pip list]
  tolerations: [{key: team, operator: Exists}]
  node_selector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, rank: 3}
  secrets: {WANDB_API_KEY: wandb}
  pod: {priorityClassName: high}
"""


def read(tmp_path: Path, text: str) -> site_file.Site:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    return site_file.read_site(file)


def test_reads_what_it_holds(tmp_path: Path) -> None:
    there = read(tmp_path, WHOLE)
    assert there.environment == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}
    assert there.setup == ("source /opt/venv/bin/activate",)
    assert there.slurm == site_file.Slurm(
        partition="gpu", account="nlp", devices="gpu:a100:{devices}", exclusive=True, hours=24.0,
        modules=("cuda/12.4",), options=("--mail-type=FAIL",),
    )  # fmt: skip
    assert there.skypilot == site_file.SkyPilot(
        resources={"infra": "kubernetes", "use_spot": True},
        mounts={"saves": {"source": "s3://mine", "mode": "MOUNT_CACHED"}},
    )
    assert there.kubernetes == site_file.Kubernetes(
        claim="data", setup=("pip list",), tolerations=({"key": "team", "operator": "Exists"},),
        node_selector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "rank": "3"},
        secrets={"WANDB_API_KEY": "wandb"}, pod={"priorityClassName": "high"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slurm: {partiton: gpu}", "`slurm` setting `partiton` is not known; did you mean `partition`?"),
        ("queue: gpu", "site setting `queue` is not known; known are environment, setup, start_wait_minutes, slurm"),
        ("slurm: gpu", "`slurm` is `gpu`; it holds keys: partition, account"),
        ("slurm: {partition: 3}", "`slurm.partition` is `3`; it takes a text of one line"),
        ("slurm: {partition: [a, b]}", "`slurm.partition` is a list; it takes a text"),
        ("slurm: {exclusive: 1}", "`slurm.exclusive` is `1`; it takes true or false"),
        ("slurm: {hours: 1-00:00:00}", "`slurm.hours` is `1-00:00:00`; it takes a number above 0"),
        ("slurm: {hours: .inf}", "`slurm.hours` is `inf`; it takes a number above 0"),
        ('setup: ["a\\nb"]', "`setup[0]` is a long text; it takes a text of one line"),
        ("slurm: {hours: 0}", "`slurm.hours` is `0`; it takes a number above 0"),
        ("slurm: {modules: cuda}", "`slurm.modules` is `cuda`; it takes a list of texts"),
        ("slurm: {modules: [1.2]}", "`slurm.modules[0]` is `1.2`; it takes a text"),
        ("environment: [A=1]", "`environment` is a list; it takes a mapping"),
        ("environment: {A-B: x}", "`environment` names `A-B`, which is no name of a variable"),
        ("environment: {HF_HUB_OFFLINE: yes}", "`environment.HF_HUB_OFFLINE` is `True`; it takes a text"),
        ("skypilot: {resources: a100}", "`skypilot.resources` is `a100`; it takes a mapping"),
        ("skypilot: {managed: 1}", "`skypilot.managed` is `1`; it takes true or false"),
        ("kubernetes: {claims: data}", "`kubernetes` setting `claims` is not known; did you mean `claim`?"),
        ("kubernetes: {tolerations: {key: gpu}}", "`kubernetes.tolerations` is a mapping; it takes a list of mappings"),
        ("kubernetes: {labels: {team: true}}", "`kubernetes.labels.team` is `True`; it takes a text"),
        ("kubernetes: {secrets: {A-B: x}}", "`kubernetes.secrets` names `A-B`, which is no name of a variable"),
        ("kubernetes: {tolerations: [gpu]}", "`kubernetes.tolerations[0]` is `gpu`; it takes a mapping"),
        ("- slurm", "the file is a list; it holds keys: environment"),
        ("slurm: [", "not valid YAML"),
    ],
)
def test_a_wrong_key_is_told_with_what_it_takes(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "site.yaml"))
    assert said in str(caught.value)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read: no such file"):
        site_file.read_site(tmp_path / "none.yaml")


def test_without_a_file_nothing_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert site_file.read_site(None) == site_file.Site()
    path = site_file.site_file_path()
    assert path
    path.parent.mkdir()
    path.write_text("slurm: {partition: gpu}")
    assert site_file.read_site(None).slurm.partition == "gpu"
