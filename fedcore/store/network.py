"""Detect network file systems, where SQLite's write-ahead log is not safe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

NETWORK_SYSTEMS = frozenset(
    {"nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ncpfs", "ceph", "glusterfs", "lustre"}
    | {"gpfs", "beegfs", "9p", "afpfs", "webdav", "davfs", "davfs2"}
    | {f"fuse.{name}" for name in ("sshfs", "glusterfs", "rclone", "s3fs", "gcsfuse", "davfs2", "ceph")}
)


def network_file_system(path: Path, mounts: Iterable[tuple[str, str]] | None = None) -> str | None:
    """Return the type of the network file system that holds a path, None on a local disk.

    WAL needs shared memory between processes of one machine; on NFS and the like the database corrupts.

    Args:
        mounts: mount points with their types; default: those of this machine.
    """
    if mounts is None:
        mounts = [(p.mountpoint, p.fstype.lower()) for p in psutil.disk_partitions(all=True)]
    target = next(p for p in (path.resolve(), *path.resolve().parents) if p.exists())
    # the deepest mount point holds the path; of two on one point the later hides the earlier
    holding = [
        (len(Path(p).parts), i, kind) for i, (p, kind) in enumerate(mounts) if target.is_relative_to(p)
    ]
    kind = max(holding)[2] if holding else ""
    return kind if kind in NETWORK_SYSTEMS else None
