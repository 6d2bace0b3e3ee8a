"""The cluster that a user has chosen on the page, and the reason if it could not be joined, in small files.

The worker that the dashboard starts reads them. Each function takes the path of the database.
"""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedcore.base.errors import FedLensError
from fedcore.base.files import read_texts, write_texts
from fedlens_ray.connection import AUTO

CHOICE, PROBLEM = "cluster.json", "cluster-problem.json"
MAX_PORT = 65535
MAX_OVER = 64
"""Devices over which a run can be spread from the page."""


class Choice(NamedTuple):
    """A head's address, or ``auto``, and the devices over which each run is spread (None: one trains it)."""

    address: str
    over: int | None = None


def chosen(db: Path) -> Choice | None:
    """Return the chosen cluster; None for this machine alone."""
    found = read_texts(_file(db, CHOICE))
    if "address" not in found:
        return None
    over = found.get("over", "")
    is_number = over.isascii() and over.isdecimal() and 1 < int(over) <= MAX_OVER
    return Choice(found["address"], int(over) if is_number else None)


def choose(db: Path, address: str, over: int | None = None) -> None:
    """Let the worker of this database use a cluster, and forget the problem of an earlier one.

    Args:
        address: ``host:port`` of the head; empty or ``auto`` for the cluster of this machine.
    """
    address = address.strip() or AUTO
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and 0 < int(port) <= MAX_PORT
    if address != AUTO and (not host or not is_port or any(c.isspace() or c == "/" for c in host)):
        raise FedLensError(
            f"'{address}' is not host:port of a cluster's head, as in 10.0.0.1:6379; "
            "leave it empty for the cluster of this machine",
            "ray",
        )
    record_problem(db, address, None)
    path = _file(db, CHOICE)
    try:
        write_texts(path, {"address": address} | ({} if over is None else {"over": str(over)}))
    except OSError as error:
        raise FedLensError(f"{path} cannot be written ({error.strerror})", "ray") from error


def leave(db: Path) -> None:
    """Let runs train on this machine again; those on the nodes end there first."""
    for name in (CHOICE, PROBLEM):
        try:
            _file(db, name).unlink(missing_ok=True)
        except OSError as error:
            raise FedLensError(f"the choice cannot be deleted ({error.strerror})", "ray") from error


def record_problem(db: Path, address: str, problem: str | None) -> None:
    """Record why the chosen cluster could not be joined; ``problem`` is None once it was joined."""
    with suppress(OSError):  # pages then show less
        if problem is None:
            _file(db, PROBLEM).unlink(missing_ok=True)
        else:
            write_texts(_file(db, PROBLEM), {"address": address, "problem": problem})


def problem_of(db: Path) -> str | None:
    """Return why the chosen cluster could not be joined at the last attempt; None if it was joined."""
    content, now = read_texts(_file(db, PROBLEM)), chosen(db)
    return content.get("problem") if now is not None and content.get("address") == now.address else None


def _file(db: Path, name: str) -> Path:
    """Return a file of one database; several may share the folder of artifacts."""
    return db.parent / "artifacts" / f"{db.name}.{name}"
