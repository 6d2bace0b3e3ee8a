"""The memory that this process may use: the machine's, or less if a limit is set. Torch is not loaded."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from fedcore.errors import FedLensError

SHARE = "FEDLENS_MEMORY"
"""Environment variable: the bytes that a run may count on; the supervisor divides memory among runs."""
_MOUNT, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and use of a control group, as versions 2 and 1 name their files."""
_RECLAIMABLE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)
"""Cached files in ``memory.stat``, which make room when a process asks for memory; the last line counts."""


class ControlGroup(NamedTuple):
    """A control group of this process that has a limit. used: bytes, without those that can be reclaimed."""

    limit: int
    used: int


def total() -> int:
    """Return the bytes that this process may use: the machine's memory, or the lowest of its limits."""
    return min([psutil.virtual_memory().total, *(g.limit for g in limited_groups()), *_process_limits()])


def available() -> int:
    """Return the bytes that are free for a process of this machine, within its control groups."""
    free = psutil.virtual_memory().available
    return max(0, min([free, *(g.limit - g.used for g in limited_groups())]))


def share() -> int:
    """Return the bytes that a run may count on.

    It decides the chunks of a run and thereby the last bits of its numbers, so it must not depend on how much
    memory is free at the moment.
    """
    given = os.environ.get(SHARE, "")
    if given and not re.fullmatch(r"[1-9][0-9]{0,17}", given):
        raise FedLensError(f"{SHARE} is '{given[:40]}'; give a number of bytes, e.g. 8000000000")
    return min(total(), int(given)) if given else total()


def limited_groups(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> list[ControlGroup]:
    """Return the control groups that limit the memory of this process, outer ones included."""
    found = []
    for folder in _folders(mount, membership):
        for limit_file, used_file in _FILES:
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None:
                cached = _RECLAIMABLE.findall(_text(folder / "memory.stat"))
                found.append(ControlGroup(limit, max(0, used - int(cached[-1] if cached else 0))))
    return found


def _folders(mount: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, innermost first; some may not exist.

    In a container the path may be that of the host. Then only the outermost folder exists, and it is the
    container's.
    """
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        outermost = mount / "memory" if controllers else mount
        folder = outermost / path.lstrip("/")
        yield folder
        if folder != outermost:
            yield from (p for p in folder.parents if p.is_relative_to(outermost))


def _process_limits() -> Iterator[int]:
    """Yield the limits that ``ulimit -v`` and ``ulimit -d`` set."""
    if sys.platform == "win32":
        return
    import resource

    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit


def _number(file: Path) -> int | None:
    """Return the number in a file; None if it holds none, as in a group without a limit."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:  # not Linux, or another version of control groups
        return ""
