"""Lines of bash that jobs share, read by a real bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from validator.submit import node_script

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
