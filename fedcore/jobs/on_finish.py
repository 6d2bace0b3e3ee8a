"""Tell a command or a web address that the runs of an experiment have ended.

Nothing is told unless the user has named a target. What goes wrong is one line of the supervisor's log.
"""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from fedcore.cache.durable import publish
from fedcore.errors import FedLensError, first_line
from fedcore.store import ExperimentRow, Store

VARIABLE = "FEDLENS_ON_FINISH"
"""Environment variable: the target where the supervisor was given none, as one that the dashboard starts."""
COMMAND_SECONDS, WEB_SECONDS = 300.0, 20.0
Send = Callable[[bytes], None]
logger = logging.getLogger(__name__)


class FinishWatch:
    """Looks for experiments whose last run has ended, and tells the target of each once.

    The experiments that have not ended are noted in a file beside the database, so that the next worker
    tells of those that end while none runs.

    Args:
        target: a command, which gets JSON on its standard input, or an address (``https://...``), to which
            the same JSON is posted.

    Raises:
        FedLensError: field ``on-finish``, for a command that is not found, or an incomplete address.
    """

    def __init__(self, store: Store, target: str) -> None:
        self._store = store
        self._send = sender(target)
        self._noted = store.path.with_name(f"{store.path.name}.unfinished")
        self._active: dict[int, str] = {}  # id -> uuid
        self._read_noted = False
        self._turns = ThreadPoolExecutor(1, "on-finish")  # a slow target must not keep the queue waiting

    def follow(self) -> None:
        """Note what has not ended, without telling: another worker serves the database until we do."""
        self._active |= self._store.runs.active_experiments()

    def look(self) -> None:
        """Look once; what has ended since the last look is told in the background."""
        active = self._store.runs.active_experiments()
        before = self._active
        if not self._read_noted:
            before = self._noted_experiments() | before
        ended = sorted(before.items() - active.items())
        self._active = active
        if (
            not self._read_noted or active != before
        ):  # before we tell: a worker that dies then tells nobody twice
            self._note(active)
        self._read_noted = True
        for number, uuid in ended:
            try:
                experiment = self._store.experiments.get(number)
                if experiment.uuid != uuid:  # another database has taken the place of the one of the file
                    continue
                content = finished(self._store, experiment)
            except FedLensError as error:  # deleted in the meantime, say
                logger.warning("the end of experiment %d could not be reported: %s", number, error)
                continue
            self._turns.submit(self._tell, number, content)

    def _noted_experiments(self) -> dict[int, str]:
        """Return what an earlier worker has noted: the ids and uuids of experiments that had not ended."""
        try:
            noted = json.loads(self._noted.read_text(encoding="utf-8"))
            return {int(number): str(uuid) for number, uuid in noted.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            logger.warning("%s cannot be read and is ignored: %s", self._noted, first_line(error))
            return {}

    def _note(self, active: dict[int, str]) -> None:
        try:
            part = self._noted.with_name(f"{self._noted.name}.part")
            part.write_text(json.dumps(active), encoding="utf-8")
            publish(part, self._noted)
        except OSError as error:  # the queue goes on
            logger.warning("%s cannot be written: %s", self._noted, first_line(error))

    def _tell(self, number: int, content: dict[str, Any]) -> None:
        try:
            self._send(json.dumps(content).encode())
        except Exception as error:  # noqa: BLE001 - whatever goes wrong there, the queue goes on
            logger.warning("the end of experiment %d could not be reported: %s", number, first_line(error))
        else:
            logger.info("the end of experiment %d was reported", number)


def finished(store: Store, row: ExperimentRow) -> dict[str, Any]:
    """Return what a target is told; accuracies are per cent. ``text`` alone is what chat services show."""
    states = Counter(run.state for run in row.runs)
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    return {
        "event": "experiment finished",
        "text": f"FedLens: {row.name}: {counted}",
        "experiment": row.id,
        "name": row.name,
        "database": str(store.path),
        "states": dict(states),
        "runs": [
            {
                "run": run.id, "method": run.method, "label": run.label, "seed": run.seed,
                "held_out": run.held_out, "state": run.state, "rounds": run.rounds_done,
                "personal_accuracy": None if run.last_test is None else round(100 * run.last_test, 2),
                "reason": run.status_text,
            }
            for run in row.runs
        ],
    }  # fmt: skip


def sender(target: str) -> Send:
    """Return the function that sends JSON to a command or an address.

    Raises:
        FedLensError: field ``on-finish``, when it is neither.
    """
    if target.startswith(("http://", "https://")):
        try:
            host = urlsplit(target).hostname
        except ValueError:  # an unfinished IPv6 address
            host = None
        if not host:
            raise FedLensError(f"'{target}' names no host; write https://host/path", "on-finish")
        return lambda content: post(target, content)
    try:
        command = shlex.split(target)
    except ValueError as error:
        raise FedLensError(f"the command '{target}' cannot be read: {error}", "on-finish") from error
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else target
        raise FedLensError(
            f"there is no command '{name}'; name a program, or an address with https://",
            "on-finish",
        )
    return lambda content: run(command, content)


def run(command: list[str], content: bytes) -> None:
    """Run a command, without a shell, with the JSON on its standard input; its output goes to our log."""
    done = subprocess.run(
        command, input=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS
    )
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise RuntimeError(f"{command[0]} ended with exit status {done.returncode}: {' '.join(said[-1:])}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is told goes to the named address and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(address: str, content: bytes) -> None:
    """Post JSON to an address; redirections are not followed."""
    request = urllib.request.Request(address, content, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=WEB_SECONDS) as answer:
        answer.read(1)
