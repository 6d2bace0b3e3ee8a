"""The cluster that a user has chosen on the page, and the reason if it could not be joined, in small files.

The worker that the dashboard starts reads them. Each function takes the path of the database.
"""

from contextlib import suppress
from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.files import read_texts, write_texts
from fedlens_ray.connection import AUTO

CHOICE, PROBLEM = "cluster.json", "cluster-problem.json"
MAX_PORT = 65535
MAX_OVER = 64
"""Devices over which a run can be spread from the page."""


def chosen(db: Path) -> str | None:
    """Return the address of the chosen cluster, ``host:port`` or ``auto``; None for this machine alone."""
    return read_texts(_file(db, CHOICE)).get("address")


def chosen_over(db: Path) -> int | None:
    """Return the number of devices over which each run is spread; None: one device trains each run."""
    over = read_texts(_file(db, CHOICE)).get("over", "")
    return int(over) if over.isascii() and over.isdecimal() and 1 < int(over) <= MAX_OVER else None


def choose(db: Path, address: str, over: int | None = None) -> None:
    """Let the worker of this database use the nodes of a cluster, and forget the problem of an earlier one.

    Args:
        address: ``host:port`` of the head; empty or ``auto`` for the cluster of this machine.
        over: devices over which each run is spread; None: one device trains each run.
    """
    address = checked(address)
    with suppress(OSError):
        _file(db, PROBLEM).unlink()
    _write(db, CHOICE, {"address": address} | ({} if over is None else {"over": str(over)}))


def leave(db: Path) -> None:
    """Let runs train on this machine again; those on the nodes end there first."""
    for name in (CHOICE, PROBLEM):
        try:
            _file(db, name).unlink(missing_ok=True)
        except OSError as error:
            raise FedLensError(f"the choice cannot be deleted ({error.strerror})", "ray") from error


def checked(address: str) -> str:
    """Return an address in the form that Ray takes."""
    address = address.strip() or AUTO
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and 0 < int(port) <= MAX_PORT
    if address != AUTO and (not host or not is_port or any(c.isspace() or c == "/" for c in host)):
        raise FedLensError(
            f"'{address}' is not host:port of a cluster's head, as in 10.0.0.1:6379; "
            "leave it empty for the cluster of this machine",
            "ray",
        )
    return address


def record_problem(db: Path, address: str, problem: str | None) -> None:
    """Record why the chosen cluster could not be joined; ``problem`` is None once it was joined."""
    with suppress(FedLensError):  # pages then show less
        if problem is None:
            _file(db, PROBLEM).unlink(missing_ok=True)
        else:
            _write(db, PROBLEM, {"address": address, "problem": problem})


def problem_of(db: Path) -> str | None:
    """Return why the chosen cluster could not be joined at the last attempt; None if it was joined."""
    content = read_texts(_file(db, PROBLEM))
    return content.get("problem") if content.get("address") == chosen(db) else None


def _file(db: Path, name: str) -> Path:
    """Return a file of one database; several may share the folder of artifacts."""
    return db.parent / "artifacts" / f"{db.name}.{name}"


def _write(db: Path, name: str, content: dict[str, str]) -> None:
    path = _file(db, name)
    try:
        write_texts(path, content)
    except OSError as error:
        raise FedLensError(f"{path} cannot be written ({error.strerror})", "ray") from error
