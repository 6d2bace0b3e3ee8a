"""Locks on files, which the operating system frees when their holder closes the file or dies."""

from __future__ import annotations

import sys


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
