"""Locks on files, which the operating system frees when their holder closes the file or dies."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path


def open_lock(path: Path) -> int:
    """Open a file to be locked, which no other account can open; make it if there is none."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    keep_private(file)
    return file


def keep_private(file: int) -> None:
    """Take the rights of other accounts from an open file of this account.

    Whoever can open a file, if only to read it, can lock it, and so keep us waiting for as long as they like.
    """
    if sys.platform == "win32":  # others are kept out by the folder's access control list
        return
    about = os.fstat(file)
    if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) & 0o077:
        with suppress(OSError):  # a file system without rights
            os.fchmod(file, 0o600)


def try_lock(file: int, exclusive: bool) -> bool:
    """Try to lock an open file until it is closed, without waiting; the branch for Windows is untested.

    Copies of the descriptor, in a child process too, hold the same lock.

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
