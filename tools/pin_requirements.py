"""Write what names the packages that a check needs: release/requirements.txt, with hashes, and
release/sbom.cdx.json for the wheel.

python tools/pin_requirements.py

The releases are those of release/constraints.txt. To install nothing else:
pip install --require-hashes -r release/requirements.txt
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from importlib.metadata import metadata
from pathlib import Path

from try_pythons import BUILD, uv

from validator import __version__

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "release"
REQUIREMENTS = RELEASE / "requirements.txt"
SBOM = RELEASE / "sbom.cdx.json"
HEAD = """\
# All that a check needs, each file by its hash: pip install --require-hashes -r release/requirements.txt, then this
# package itself with pip install --no-deps. Written by tools/pin_requirements.py, of the releases in
# release/constraints.txt.
"""


def requirements() -> str:
    """The pinned run-time dependencies, for each system and Python, with the hashes of all their files."""
    words = ["--constraint", "release/constraints.txt", "--universal", "--python-version", "3.11", "--generate-hashes"]
    words += ["--no-header", "--no-annotate", "--quiet"]
    BUILD.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([uv(), "pip", "compile", "pyproject.toml", *words], cwd=ROOT, capture_output=True, check=True)
    return HEAD + done.stdout.decode()


def sbom(text: str) -> str:
    """Return the pinned packages as CycloneDX 1.6, each with the hashes of its files. The document has no time and no
    number of its own: the same contents are the same file."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    main = _component("application", own["name"], __version__, own["license"])
    parts = [
        {**_component("library", name, release, _license(name)), "externalReferences": [_files(name, lines)]}
        for name, release, lines in re.findall(r"(?m)^([\w.-]+)==([^\s;]+)((?:.*\\\n)+.*)", text)
    ]
    links = [{"ref": main["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}]
    links += [{"ref": part["bom-ref"], "dependsOn": []} for part in parts]
    whole = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": main}}
    return json.dumps({**whole, "components": parts, "dependencies": links}, indent=2) + "\n"


def _component(kind: str, name: str, release: str, licence: str) -> dict[str, object]:
    purl = f"pkg:pypi/{name}@{release}"
    licences = [{"license": {"id": licence}}]
    return {"type": kind, "bom-ref": purl, "name": name, "version": release, "licenses": licences, "purl": purl}


def _files(name: str, lines: str) -> dict[str, object]:
    """Return a package's files on the index, of which one is installed."""
    hashes = [{"alg": "SHA-256", "content": each} for each in re.findall(r"--hash=sha256:(\w+)", lines)]
    return {"type": "distribution", "url": f"https://pypi.org/simple/{name}/", "hashes": hashes}


def _license(name: str) -> str:
    """By SPDX, of the package that is installed; older packages tell the name, or the whole text."""
    told = metadata(name)
    return told["License-Expression"] or told["License"].split()[0]


if __name__ == "__main__":
    REQUIREMENTS.write_text(requirements(), "utf-8")
    SBOM.write_text(sbom(REQUIREMENTS.read_text("utf-8")), "utf-8")
