"""Starting our own processes: detached, without a shell, with their output in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from fedcore.paths import IN_CHECKOUT, PROJECT

CUDA_CONTEXT = 600 * 2**20
"""What a process holds on a GPU beside torch's memory: CUDA's context and its libraries' kernels."""


def peak_memory(device: str) -> int:
    """Most bytes of a device's memory that this process has used so far; of the machine's for ``cpu``."""
    torch = sys.modules.get("torch")  # whoever trains has loaded it
    if device != "cpu" and torch is not None:
        return int(torch.cuda.max_memory_reserved()) + CUDA_CONTEXT
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def start(
    arguments: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``python -m <arguments>`` in a session of its own.

    It outlives a closed terminal, Ctrl-C and the process that started it. Output is appended to ``log``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    folders = [str(PROJECT) if IN_CHECKOUT else "", os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, folders))
    detached = (
        {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS}  # untested
        if sys.platform == "win32"
        else {"start_new_session": True}
    )
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            **detached,
        )
