"""Detect network file systems, where SQLite's write-ahead log is not safe."""

from __future__ import annotations

from pathlib import Path

NETWORK_SYSTEMS = frozenset(
    {"nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ncpfs", "ceph", "glusterfs", "lustre"}
    | {"gpfs", "beegfs", "9p", "afpfs", "webdav", "davfs", "davfs2"}
    | {f"fuse.{name}" for name in ("sshfs", "glusterfs", "rclone", "s3fs", "gcsfuse", "davfs2", "ceph")}
)


def network_file_system(path: Path, mounts: str | None = None) -> str | None:
    """Return the type of the network file system that holds a path, None on a local disk.

    WAL needs shared memory between processes of one machine; on NFS and the like the database corrupts.

    Args:
        mounts: the text of /proc/mounts (for tests); where that file does not exist, psutil lists the mounts.
    """
    target = _existing(path.resolve())
    # the deepest mount point holds the path; of two on one point the later hides the earlier
    holding = [
        (len(p.parts), i, kind) for i, (p, kind) in enumerate(_mounts(mounts)) if target.is_relative_to(p)
    ]
    kind = max(holding)[2] if holding else ""
    return kind if kind in NETWORK_SYSTEMS else None


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _mounts(text: str | None) -> list[tuple[Path, str]]:
    table = Path("/proc/mounts")
    if text is None and table.exists():
        text = table.read_text(errors="replace")
    if text is not None:
        fields = [line.split() for line in text.splitlines()]
        return [(Path(f[1].replace("\\040", " ")), f[2]) for f in fields if len(f) >= 3]
    import psutil

    return [(Path(p.mountpoint), p.fstype.lower()) for p in psutil.disk_partitions(all=True)]
