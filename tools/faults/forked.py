"""Processes forked from the campaign's, which has loaded torch and the model with a single thread.

An attempt then starts in milliseconds. The processes do what ``fedlens run``, ``fedlens worker`` and
``fedlens job`` do, and signals reach them as they would reach those.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

POLL_SECONDS = 0.005
LIVING: set[Forked] = set()
"""Processes that were started and not yet seen to end."""


class Forked:
    """A process that calls a function; its interface is that of ``subprocess.Popen``, as far as it goes.

    Args:
        function: what it does; its result is the exit status, None is 0.
        log: file to which its output is appended.
    """

    def __init__(self, function: Callable[[], int | None], log: Path) -> None:
        self.log = log
        self.returncode: int | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        self.pid = os.fork()
        if self.pid == 0:
            _be(function, log)
        LIVING.add(self)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                LIVING.discard(self)
        return self.returncode

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its end; returns the exit status.

        Raises:
            subprocess.TimeoutExpired: when it goes on.
        """
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(POLL_SECONDS)
        return code

    def kill(self) -> None:
        """Send signal 9; returns when it is gone."""
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
                self.wait()


def _be(function: Callable[[], int | None], log: Path) -> None:
    """Be the new process: call the function with its output in the log, and exit."""
    code = 1
    try:
        os.setsid()
        gc.freeze()  # a file object of the other process that is deleted here would close one of ours
        target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (target, 1), (target, 2)):
            os.dup2(old, new)
        os.closerange(3, 1024)  # as between any two programs, no lock is inherited
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        LIVING.clear()
        code = function() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - it is the campaign that judges it
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def end_all(folder: Path) -> None:
    """Kill every process that still lives, also those that a job has started on a database of this folder."""
    for process in list(LIVING):
        process.kill()
    for other in psutil.process_iter(["cmdline"]):
        command = other.info["cmdline"] or ()
        if "fedcore" in command and any(str(folder) in argument for argument in command):
            with suppress(psutil.NoSuchProcess):
                other.kill()
