"""The connection of this process to a Ray cluster: token, address and nodes; and the user's choice of one.

The choice that a user has made on the page, and the reason if that cluster could not be joined, are in small
files beside the database, which the worker of the dashboard reads.
"""

import importlib
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import read_texts, write_texts

AUTO = "auto"
"""The address of a cluster that already runs on this machine."""
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"""Environment variables of every process that talks to Ray.

Tokens are on and usage reports off. Ray's output in the supervisor is suppressed: it fills pages for a lost
node, and our log reports the same in one line.
"""
CHOICE, PROBLEM = "cluster.json", "cluster-problem.json"
MAX_PORT = 65535
MAX_OVER = 64
"""Devices over which a run can be spread from the page."""
HEAD_SECONDS = 10.0
"""Seconds that a head may take to accept a connection."""
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of a client of gRPC: the preface of HTTP/2 and empty settings (RFC 9113, section 3.4)."""
_SETTINGS_FRAME = b"\x04"


@dataclass(frozen=True)
class Node:
    """A living node of the cluster, as Ray describes it.

    Attributes:
        id: Ray's id, which changes when the node is started again.
        name: its host name; of several nodes with the same one, the second is ``name-2``.
        cpus, gpus, memory: what Ray may give to tasks; a node without CPUs and GPUs is not listed.
        is_local: whether it runs on the machine of this process.
        held: how many of them the tasks of all jobs of the cluster leave free, where some are reserved.
    """

    id: str
    name: str
    cpus: int
    gpus: int
    memory: int
    is_local: bool
    held: tuple[str, ...] = ()


def _check_token() -> None:
    """Refuse a token file that is missing, or that other accounts can read; Ray writes it with mode 644."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise FedLensError(
            f"there is no token for Ray on this machine ({file}); make one with `ray get-auth-token "
            f"--generate`, then `chmod 600 {file}`, and copy it to every node",
            "ray",
        ) from error
    if sys.platform != "win32" and mode & 0o077:
        raise FedLensError(
            f"other accounts can read Ray's token, and with it run programs as you: `chmod 600 {file}`", "ray"
        )


def resolve(address: str) -> str:
    """Return the address of a head; ``auto`` is RAY_ADDRESS, else that of this account's nodes here.

    Ray itself would believe a file in a folder to which every account can write, and send the token there.
    """
    if address != AUTO:
        return address
    if named := os.environ.get("RAY_ADDRESS", "").removeprefix(AUTO):
        return named
    found: set[str] = set()
    for process in psutil.process_iter(["name", "uids", "cmdline"]):
        uids, line = process.info["uids"], process.info["cmdline"] or []
        if process.info["name"] == "raylet" and uids is not None and set(uids) == {os.getuid()}:
            found.update(part.partition("=")[2] for part in line if part.startswith("--gcs-address="))
    if len(found) == 1:
        return found.pop()
    many = f"nodes of several Ray clusters run on this machine ({', '.join(sorted(found))}); give one address"
    none = "your account has started no node of a Ray cluster on this machine; start one with `ray start "
    none += "--head`, or give the address of a head"
    raise FedLensError(many if found else none, "ray")


def connect(address: str = AUTO) -> Any:
    """Connect this process to a running cluster; returns the module ``ray``.

    It never starts a head, because opening ports on a machine is the user's decision.
    """
    os.environ.update(SETTINGS)
    _check_token()
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        return ray
    address = resolve(address)
    _look_for_head(address)
    for name in ("ray", "ray._private.worker"):  # our log reports a lost node in one line instead
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryFile() as written:
        try:
            with _errors_to(written):
                ray.init(
                    address=address,
                    namespace="fedlens",
                    # Nodes would import from the folder in which this process was started; Ray leaves it out
                    # for processes that connect through its client only.
                    job_config=ray.job_config.JobConfig(_client_job=True),
                    log_to_driver=False,
                    configure_logging=False,
                    logging_level=logging.CRITICAL,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            written.seek(0)
            is_refused = b"InvalidAuthToken" in written.read()
            why = "it has another token than this machine" if is_refused else first_line(error)
            raise FedLensError(
                f"cannot join the Ray cluster at {address} ({why}); docs/cluster.md says more about "
                "tokens and ports",
                "ray",
            ) from error
    return ray


@contextmanager
def _errors_to(file: IO[bytes]) -> Iterator[None]:
    """Write this process's errors to a file: Ray's library repeats there each second why it was refused."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _look_for_head(address: str) -> None:
    """Refuse an address at which nothing answers, or another service; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # something that Ray explains
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), HEAD_SECONDS) as head:
            if os.environ.get("RAY_USE_TLS") != "1":
                head.sendall(_HTTP2)
                if head.recv(4)[3:] != _SETTINGS_FRAME:
                    raise OSError("another service than Ray's listens there")
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FedLensError(
            f"no head of a Ray cluster answers at {address} ({reason}); is it started there with "
            "`ray start --head`, and may this machine reach its ports?",
            "ray",
        ) from error


def list_nodes(ray: Any, before: Mapping[str, str] | None = None) -> list[Node]:
    """Return the living nodes that have CPUs or GPUs to give, by name.

    Args:
        before: names by id; nodes that share a host keep them, and one that is started again gets a free one.
    """
    try:
        described = [row for row in ray.nodes() if row["Alive"]]
        free = ray._private.state.available_resources_per_node()
        our_id = ray.get_runtime_context().get_node_id()
    except Exception as error:  # Ray's errors have no common class
        raise FedLensError(f"the head of the Ray cluster does not answer ({first_line(error)})") from error
    names = _names(described, before or {})
    nodes = []
    for row in described:
        number, left = row["NodeID"], free.get(row["NodeID"], {})
        cpus, gpus, memory = (int(row["Resources"].get(name, 0)) for name in ("CPU", "GPU", "memory"))
        held = tuple(
            f"{left.get(kind, 0.0):g} of {most} {kind}s free in Ray"
            for kind, most in (("CPU", cpus), ("GPU", gpus))
            if left.get(kind, 0.0) < most
        )
        nodes.append(Node(number, names[number], cpus, gpus, memory, number == our_id, held))
    return sorted((n for n in nodes if n.cpus or n.gpus), key=lambda node: node.name)


def _names(described: Sequence[dict[str, Any]], before: Mapping[str, str]) -> dict[str, str]:
    """Return by id the names that nodes were given (``ray start --node-name``), or those of their hosts."""
    hosts = {}
    for row in sorted(described, key=lambda row: (row["NodeID"] not in before, row["NodeManagerPort"])):
        is_given = row["NodeName"] != row["NodeManagerAddress"]
        hosts[row["NodeID"]] = row["NodeName"] if is_given else row["NodeManagerHostname"]
    names: dict[str, str] = {}
    for node_id, host in hosts.items():
        free = (host if i == 1 else f"{host}-{i}" for i in count(1))
        keeps = node_id in before and list(hosts.values()).count(host) > 1
        names[node_id] = before[node_id] if keeps else next(n for n in free if n not in names.values())
    return names


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
