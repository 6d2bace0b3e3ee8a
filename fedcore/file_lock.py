"""Locks on files, which the operating system frees when their holder closes the file or dies."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path


def open_lock(path: Path) -> int:
    """Open a lock file that no other account can open, and create it if it is missing."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    keep_private(file)
    return file


def keep_private(file: int) -> None:
    """Take the rights of other accounts from an open file of this account (mode 0600)."""
    # An account that may open a file, even only for reading, may lock it, and could block us forever.
    if sys.platform == "win32":  # the folder's access control list keeps others out
        return
    about = os.fstat(file)
    if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) & 0o077:
        with suppress(OSError):  # a file system without access rights
            os.fchmod(file, 0o600)


def try_lock(file: int, exclusive: bool) -> bool:
    """Try to lock an open file until it is closed, without waiting; the branch for Windows is untested.

    The lock is ``flock``'s, which belongs to the open file and not to the process: copies of the descriptor
    hold it too, also in a child process, and it is free once the last of them is closed.

    Raises:
        OSError: on a file system that has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            if not exclusive:
                msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
