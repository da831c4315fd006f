"""The file system that a folder lies on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from validator.here.kernel import lines

_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "wekafs", "panfs", "afs",
}  # fmt: skip


class Mount(NamedTuple):
    """`kind` is the file system's, such as ext4; `source` the device or the server's folder."""

    kind: str
    source: str

    @property
    def network(self) -> bool:
        """Whether it is another machine's."""
        return self.kind in _NETWORK or self.kind.startswith("fuse.")


def mount(folder: Path, root: Path = Path("/")) -> Mount | None:
    """The one that holds the folder; None where the kernel does not tell, as outside Linux."""
    holding: tuple[int, Mount] | None = None
    for line in lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        point, (kind, source) = Path(_plain(left.split()[4])), right.split()[:2]
        depth = len(point.parts)
        if folder.is_relative_to(point) and (holding is None or depth >= holding[0]):
            holding = depth, Mount(kind, _plain(source))
    return holding[1] if holding else None


def _plain(text: str) -> str:
    """Blanks are written in octal."""
    return text.replace("\\040", " ")
