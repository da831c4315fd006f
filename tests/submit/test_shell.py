"""Lines of bash that jobs share, read by a real bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support import engine_jobs

from validator.submit import node_script
from validator.submit.site_file import Site

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine"),
]


@pytest.mark.parametrize(
    "file", sorted((Path(node_script.__file__).parent / "script").glob("*.sh")), ids=lambda file: file.name
)
def test_bash_reads_each_piece(file: Path) -> None:
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("image", ["", "docker:mine"])
def test_shellcheck_finds_nothing_in_scripts_of_pods_and_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """Those of SLURM: test_slurm.py."""
    monkeypatch.chdir(tmp_path)
    claimed, cloud = engine_jobs.cluster(image=image), engine_jobs.cloud(resources={"image_id": image} if image else {})
    one = engine_jobs.run(engine_jobs.written(tmp_path), Site(environment={"CACHE": "$HOME/cache"}))
    for script in (
        *engine_jobs.scripts(engine_jobs.job(one, claimed)),
        *engine_jobs.scripts(engine_jobs.task(one, cloud)),
    ):
        done = subprocess.run(
            ["shellcheck", "-s", "bash", "-"], input=script, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
