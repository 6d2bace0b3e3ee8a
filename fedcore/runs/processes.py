"""Starting our own processes: detached, without a shell, with their output in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fedcore.runs.database import PROJECT


def start(
    arguments: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``python -m <arguments>`` in a session of its own.

    It outlives a closed terminal, Ctrl-C and the process that started it. Output is appended to ``log``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
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
