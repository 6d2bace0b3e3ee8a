"""Notify a command or a web address when all runs of an experiment have ended.

Nothing is sent unless the user has named a target. Failures are logged in one line by the supervisor.
"""

import json
import logging
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import write_whole
from fedcore.store import ExperimentRow, Store

VARIABLE = "FEDLENS_ON_FINISH"
"""Environment variable with the target of supervisors without ``--on-finish``, such as the dashboard's."""
_EXPERIMENTS = TypeAdapter(dict[int, str])
"""Unfinished experiments: id -> uuid."""
COMMAND_SECONDS, WEB_SECONDS = 300.0, 20.0
PAUSES = (2.0, 10.0)
"""Seconds before the second and the third attempt to post to an address."""
Send = Callable[[bytes], None]
logger = logging.getLogger(__name__)


class FinishWatch:
    """Notices when the last run of an experiment has ended, and notifies the target once for each.

    Unfinished experiments are recorded in a file beside the database, so that the next worker reports those
    that end while no worker is running. The target is a command, which gets JSON on its standard input, or an
    address, to which the same JSON is posted.
    """

    def __init__(self, store: Store, target: str) -> None:
        self._store = store
        self._send = sender(target)
        self._file = store.path.with_name(f"{store.path.name}.unfinished")
        self._active: dict[int, str] = {}  # id -> uuid
        self._has_read_file = False
        self._sending = ThreadPoolExecutor(1, "on-finish")  # a slow target must not delay the queue

    def follow(self) -> None:
        """Record unfinished experiments without notifying, while another worker serves the database."""
        self._active |= self._store.runs.active_experiments()

    def look(self) -> None:
        """Notify the target, in the background, of experiments that ended since the last call."""
        active = self._store.runs.active_experiments()
        before = self._active
        if not self._has_read_file:
            before = self._recorded_experiments() | before
        ended = sorted(before.items() - active.items())
        self._active = active
        # The file is written before the notification is sent: if the worker dies in between, one notification
        # is lost, but none is sent twice (the receiver may start a job for each).
        if not self._has_read_file or active != before:
            try:
                write_whole(self._file, json.dumps(active).encode())
            except OSError as error:  # the queue goes on
                logger.warning("%s cannot be written: %s", self._file, first_line(error))
        self._has_read_file = True
        for number, uuid in ended:
            try:
                experiment = self._store.experiments.get(number)
                if experiment.uuid != uuid:  # the database was replaced since the file was written
                    continue
                content = notification(self._store, experiment)
            except FedLensError as error:  # it may have been deleted in the meantime
                logger.warning("the end of experiment %d could not be reported: %s", number, error)
                continue
            self._sending.submit(self._notify, number, content)

    def _recorded_experiments(self) -> dict[int, str]:
        """Return the unfinished experiments that an earlier worker recorded."""
        try:
            return _EXPERIMENTS.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read and is ignored: %s", self._file, first_line(error))
            return {}

    def _notify(self, number: int, content: dict[str, Any]) -> None:
        try:
            self._send(json.dumps(content).encode())
        except Exception as error:  # noqa: BLE001 - no fault of the target may stop the queue
            logger.warning("the end of experiment %d could not be reported: %s", number, first_line(error))
        else:
            logger.info("the end of experiment %d was reported", number)


def notification(store: Store, row: ExperimentRow) -> dict[str, Any]:
    """Return the content of a notification; accuracies are in per cent. Chat services show only ``text``."""
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
                "run": run.id,
                "method": run.method,
                "label": run.label,
                "seed": run.seed,
                "held_out": run.held_out,
                "state": run.state,
                "rounds": run.rounds_done,
                "personal_accuracy": None if run.last_test is None else round(100 * run.last_test, 2),
                "reason": run.status_text,
            }
            for run in row.runs
        ],
    }


def sender(target: str) -> Send:
    """Return the function that sends JSON to a command or an address."""
    if target.startswith(("http://", "https://")):
        try:
            address = urlsplit(target)
        except ValueError:  # an unfinished IPv6 address
            address = urlsplit("")
        if "@" in address.netloc:  # urllib would not send them, and its error would show them
            raise FedLensError("an address takes no user name and password; give one without", "on-finish")
        if not address.hostname:
            raise FedLensError("the address names no host; write https://host/path", "on-finish")
        return lambda content: post(target, content)
    try:
        command = shlex.split(target)
    except ValueError as error:
        raise FedLensError(f"the command cannot be read: {error}", "on-finish") from error
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else target
        raise FedLensError(
            f"the command '{name}' was not found; name a program, or an address with https://", "on-finish"
        )
    return lambda content: run(command, content)


def run(command: list[str], content: bytes) -> None:
    """Run a command, without a shell, with the JSON on its standard input."""
    done = subprocess.run(
        command, input=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS
    )
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise RuntimeError(f"{command[0]} ended with exit status {done.returncode}: {' '.join(said[-1:])}")


def post(address: str, content: bytes) -> None:
    """Post JSON to an address; redirections are not followed.

    It is sent again, at most twice, if the server refused it (429, 5xx) or could not be reached. After a
    timeout the server may have accepted it, so it is not sent again.
    """
    import urllib.error
    import urllib.request  # with ssl, which every worker and job would load

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    request = urllib.request.Request(address, content, {"Content-Type": "application/json"}, method="POST")
    for pause in (*PAUSES, None):
        try:
            with urllib.request.build_opener(NoRedirect).open(request, timeout=WEB_SECONDS) as answer:
                answer.read(1)
            return
        except urllib.error.URLError as error:  # a server that does not answer raises TimeoutError
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if pause is None or refused:
                raise
        time.sleep(pause)
