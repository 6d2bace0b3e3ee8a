"""The state of a run between two rounds, in memory and as its checkpoints keep it.

If what belongs to single clients (local parameters, ``Method.client_rows`` and optimisers) is large,
writing all of it every round would cost more than training. ``rows-N.safetensors`` then holds the rows of
the clients that changed in round N, and the checkpoint of a round names, for each client, the file with its
row. A client that has never trained has no row; its initial parameters follow from the seed. Row files are
deleted with the last checkpoint that needs them. So that a checkpoint never needs more and more of them, a
round also rewrites the rows of the oldest file as soon as all clients could have trained since.

No generator state is stored: every draw is keyed by (seed, purpose, round, client), so the next round draws
the same numbers after a restart as without one. Files are written whole or not at all, and read with a digest
of all their bytes.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import make_folder, new_digest, publish
from fedcore.base.lazy import Tensor, torch
from fedcore.engine.clients.contract import initial_state
from fedcore.engine.clients.local import size_of
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.methods.base import STATE_PARTS, Method, Params, State

LARGE = 2**28
"""Bytes of clients' rows and optimiser states from which on a round writes only the rows that changed."""
IN_MEMORY = 2**28
"""Bytes of clients' rows that stay in memory; larger ones are mapped from a file."""


class ClientRows:
    """Parameters with a row for each client, in tensors whose rows are written in place.

    A round writes its participants' rows only, so it costs as much with 10,000 clients as with 1,000. In a
    file, if all clients begin with the same row, each row is written when it is first needed: of 10,000
    clients with a megabyte each, a run of 20 rounds writes those that take part or are evaluated.

    Attributes:
        values: the parameters; rows that were never needed may be zeros. Shape: (clients, ...).
    """

    def __init__(self, first: Params, folder: Path | None) -> None:
        """Copy parameters.

        Args:
            folder: where a file is made if they are large; the file has no name, so it disappears with the
                process. None: the folder of temporary files.

        Shape: first (clients, ...).
        """
        self._first: Params = {}
        self._missing = torch.ones(max((len(v) for v in first.values()), default=0), dtype=torch.bool)
        if size_of(first) <= IN_MEMORY or sys.platform == "win32":  # Windows cannot delete a file in use
            self.values = {n: v.clone(memory_format=torch.contiguous_format) for n, v in first.items()}
            return
        self.values = {name: _mapped(value, folder) for name, value in first.items()}
        for name, value in first.items():
            if value.stride(0) == 0:  # ``Method.repeat`` has broadcast one row to all clients
                self._first[name] = value[0].clone()
            else:
                self.values[name].copy_(value)

    def need(self, clients: Tensor) -> None:
        """Write the initial rows of clients that have none yet. Shape: clients (some,)."""
        if not self._first:
            return
        new = clients[self._missing[clients]]
        for name, first in self._first.items():
            self.values[name][new.to(first.device)] = first
        self._missing[new] = False

    def write(self, clients: Tensor, trained: Params) -> None:
        """Write the rows of the clients that have trained. Shape: clients (some,), trained (some, ...)."""
        for name, rows in self.values.items():
            rows.index_copy_(0, clients.to(rows.device), trained[name])


def zero_rows(like: Tensor, clients: int, folder: Path | None) -> Tensor:
    """Return a row of zeros for each client; in a file, if they are large, a row takes memory once written.

    Args:
        folder: see ``ClientRows``.

    Shape: like (any, ...) -> (clients, ...).
    """
    row_bytes = like[:1].numel() * like.element_size()
    if clients * row_bytes <= IN_MEMORY or sys.platform == "win32":
        return like.new_zeros(clients, *like.shape[1:])
    return _mapped(like[:1].expand(clients, *like.shape[1:]), folder)


def _mapped(like: Tensor, folder: Path | None) -> Tensor:
    """Return a contiguous tensor of this shape and type, in a file that only this process can reach."""
    if like.device.type != "cpu":
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    if folder is not None:
        make_folder(folder)
    handle, name = tempfile.mkstemp(prefix=".local-", dir=folder)
    try:
        size = like.numel() * like.element_size()
        if sys.platform == "linux":
            os.posix_fallocate(handle, 0, size)  # so that a full disk is an error here, not a SIGBUS later
        else:
            os.truncate(handle, size)
        return torch.from_file(name, shared=True, size=like.numel(), dtype=like.dtype).view(like.shape)
    finally:
        os.close(handle)
        Path(name).unlink()


class RunState:
    """All that a run remembers between rounds.

    Attributes:
        state: the method's; clients' rows in it that were never needed may be zeros.
        optimiser: the clients' optimisers, used if they are kept across rounds.
        done: the last complete round; -1 before round 0, the evaluation before training.
    """

    def __init__(self, method: Method, always: Tensor, folder: Path | None) -> None:
        """Make the state before round 0.

        Args:
            always: clients whose rows are read before they train. Shape: (some,).
            folder: see ``ClientRows``.
        """
        self._method, self._always, self._folder = method, always, folder
        trained = torch.zeros(len(method.problem.clients), dtype=torch.int64)
        self._written = torch.full_like(trained, -1)  # the round whose row file has a client's row; -1: none
        self.state = replace(self._with_rows(initial_state(method)), rounds_trained=trained)
        self.optimiser = ClientOptimiser(method.config, len(trained), zeros=partial(zero_rows, folder=folder))
        self.done = -1

    def _rows_of(self, state: State) -> Params:
        """Return the parameters with a row for each client that only the client's own rounds change."""
        rows = self._method.client_rows
        names_by_part = {"personal": rows, "server": rows, "local": tuple(state.local)}
        return {
            f"{part}/{name}": value
            for part, names in names_by_part.items()
            for name, value in getattr(state, part).items()
            if name in names
        }

    def _with_rows(self, state: State) -> State:
        """Take over a state: its clients' rows lie in tensors that are written in place."""
        self._rows = ClientRows(self._rows_of(state), self._folder)
        self._rows.need(self._always)
        return _replaced(state, self._rows.values)

    def need(self, clients: Tensor | None = None) -> None:
        """Write the initial rows of some clients, or of all, unless they are there already."""
        self._rows.need(torch.arange(len(self._written)) if clients is None else clients)

    def advance(self, round_: int, after: State, clients: Tensor, trained: Params) -> State:
        """Take over the result of a round, and return the state; rows are replaced in former states too.

        Args:
            after: what the server made, with the participants' rows alone of ``Method.client_rows``.
            trained: the participants' parameters; of a method that needs only means, their local ones.
        """
        if self._method.trains:
            self._rows.write(clients, self._rows_of(after) | _named("local", trained))
            self._written[clients] = -1  # their optimisers too, which are all that some methods' clients keep
        self.state, self.done = _replaced(after, self._rows.values), round_
        return self.state

    def save(self, folder: Path, run: str, whole: bool = False) -> Path:
        """Write the checkpoint after the last complete round; when this returns, it survives a power failure.

        Args:
            run: identity of the run's config and content.
            whole: write one file in any case, because it travels between machines.
        """
        state, moments, trained = self.state, self.optimiser.moments, self.state.rounds_trained
        assert trained is not None, "set when the state is made"
        clients_own = self._rows.values | _named("optimiser", moments)
        in_files = not whole and size_of(clients_own) > LARGE
        if not in_files:
            self.need()
        tensors = {"taken": trained}
        for part in STATE_PARTS:
            named = _named(part, getattr(state, part))
            tensors |= {name: value for name, value in named.items() if name not in clients_own}
        if in_files:
            clients = due_rows(self._written, trained, self.done)
            if len(clients):
                # The row file comes first: a checkpoint must never name a row that is not on the disk yet.
                rows = {name: value[clients.to(value.device)] for name, value in clients_own.items()}
                path = row_file(folder, self.done)
                write(path, rows | {"clients": clients}, self.done, run)
            self._written[clients] = self.done
            tensors[WRITTEN] = self._written
        else:
            tensors |= clients_own
        return write(path_of(folder, self.done), tensors, self.done, run)

    def resume(self, path: Path, run: str) -> None:
        """Take over the state of a checkpoint; one of another config, weights or images is refused."""
        device = self._method.problem.device
        tensors, self.done = load(path, run, device)
        parts = _parts(tensors)
        self.optimiser.moments = parts.pop("optimiser")
        written = tensors.get(WRITTEN)
        state = State(**parts, rounds_trained=tensors["taken"].cpu())
        if written is not None:
            # Row files hold only the clients that have trained. The others get their initial rows, which
            # follow from the seed, before the stored rows are copied over them.
            state = _replaced(state, self._rows_of(initial_state(self._method)))
        # A file's order is random; a method's sums over its parameters go on in the order of ``init``.
        in_order: dict[str, Any] = {}
        for part in STATE_PARTS:
            first, loaded = getattr(self.state, part), getattr(state, part)
            in_order[part] = {n: loaded[n] for n in first | loaded if n in loaded}
        self.state = self._with_rows(replace(state, **in_order))
        self._written.fill_(-1)
        if written is None:
            return
        self._written.copy_(written)
        self.need((self._written >= 0).nonzero()[:, 0])
        for round_ in sorted(set(self._written[self._written >= 0].tolist())):
            # One file at a time is read and copied: together they may not fit into memory twice.
            content, _ = load(row_file(path.parent, round_), run, device)
            clients = content.pop("clients").cpu()
            current = self._written[clients] == round_  # no later file has their rows
            clients = clients[current]
            content = {name: rows[current.to(rows.device)] for name, rows in content.items()}
            for name in self._rows.values.keys() & content.keys():
                rows = self._rows.values[name]
                rows[clients.to(rows.device)] = content[name]
            self.optimiser.put(clients, _parts(content)["optimiser"])


def due_rows(written: Tensor, trained: Tensor, round_: int) -> Tensor:
    """Return the clients whose rows a round writes.

    Args:
        written: the round whose row file has each client's row, -1 if the row is still to be written.
        trained: rounds in which each client took part.

    Shape: (clients,) each -> (rows,), ascending.
    """
    due = (trained > 0) & (written < 0)
    old = written[written >= 0]
    if len(old) and (round_ - int(old.min())) * int(due.sum()) > len(written):
        due = due | (written == old.min())
    return due.nonzero()[:, 0]


def _named(part: str, values: Params) -> Params:
    return {f"{part}/{name}": value for name, value in values.items()}


def _replaced(state: State, rows: Params) -> State:
    """Return the state with some of its parameters, named as in a file, replaced."""
    parts = _parts(rows)
    return replace(state, **{part: getattr(state, part) | parts[part] for part in STATE_PARTS})


def _parts(tensors: Params) -> dict[str, Params]:
    """Divide the tensors of a file by the part of the state that their names begin with."""
    parts: dict[str, Params] = {part: {} for part in (*STATE_PARTS, "optimiser")}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if rest:
            parts[part][rest] = tensor
    return parts


WRITTEN = "written"
"""Name of the tensor that holds, for each client, the round whose row file has its row; -1: none."""
_ROW_FILE = re.compile(r"rows-(\d+)\.safetensors")
_NO_DIGEST = "0" * 32
_DIGEST = re.compile(rb'"digest":"([0-9a-f]{32})"')


def path_of(folder: Path, round_: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"round-{round_}.safetensors"


def row_file(folder: Path, round_: int) -> Path:
    """Return the path of the rows that changed in a round."""
    return folder / f"rows-{round_}.safetensors"


def row_files(folder: Path) -> dict[int, Path]:
    """Return the row files of a folder by round."""
    found = ((_ROW_FILE.fullmatch(path.name), path) for path in folder.glob("rows-*.safetensors"))
    return {int(match[1]): path for match, path in found if match}


def write(path: Path, tensors: dict[str, Tensor], round_: int, run: str) -> Path:
    """Write tensors of a round and of a run; when this returns, they survive a power failure."""
    from safetensors.torch import save as to_bytes

    content = to_bytes(
        {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()},
        metadata={"round": str(round_), "run": run, "digest": _NO_DIGEST},
    )
    make_folder(path.parent)
    part = path.with_name(f".{path.stem}.part")
    try:
        with part.open("wb") as file:
            file.writelines(with_digest(content))
        publish(part, path)
    except OSError:
        part.unlink(missing_ok=True)  # a full disk needs the space
        raise
    return path


def with_digest(content: bytes) -> tuple[memoryview, bytes, memoryview]:
    """Return the parts of a safetensors file, with its digest in the place reserved in the metadata."""
    place = _DIGEST.search(content)
    assert place is not None, "the metadata reserve a place for the digest"
    view = memoryview(content)
    return view[: place.start(1)], _digest(content, place).encode(), view[place.end(1) :]


def _digest(content: bytes, place: re.Match[bytes]) -> str:
    """Return the digest of a file's bytes, taken with zeros in the digest's own place."""
    view = memoryview(content)
    digest = new_digest(view[: place.start(1)])
    digest.update(_NO_DIGEST.encode())
    digest.update(view[place.end(1) :])
    return digest.hexdigest()


def prune(folder: Path, keep: Collection[int] | None) -> None:
    """Delete the checkpoints of a run except those after the rounds in ``keep``; None keeps all of them."""
    if keep is None:
        return
    retained = {path_of(folder, round_) for round_ in keep}
    for path in folder.glob("round-*.safetensors"):
        if path.is_file() and path not in retained:
            path.unlink(missing_ok=True)
    surplus = row_files(folder)
    try:
        for path in filter(Path.is_file, retained if surplus else ()):
            for needed in rows_needed(path):
                surplus.pop(needed, None)
    except FedLensError:  # a damaged checkpoint does not tell what it needs
        return
    for path in surplus.values():
        path.unlink(missing_ok=True)


def rows_needed(path: Path) -> list[int]:
    """Return the rounds whose row files a checkpoint needs, without reading its other tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            if WRITTEN not in file.keys():  # noqa: SIM118 - it is not a dict
                return []
            written = file.get_tensor(WRITTEN)
    except (OSError, SafetensorError) as error:
        raise FedLensError(f"{path.name} is damaged ({first_line(error)})") from error
    return sorted({int(round_) for round_ in written if round_ >= 0})


def files_of(path: Path) -> list[Path]:
    """Return a checkpoint and the row files that it needs."""
    return [path, *(row_file(path.parent, round_) for round_ in rows_needed(path))]


def newest_intact(files: Iterable[tuple[int, Path]]) -> tuple[tuple[int, Path] | None, list[str]]:
    """Return the newest intact checkpoint by its round, and what is wrong with those that are newer.

    Args:
        files: round and path, the newest first.
    """
    wrong: list[str] = []
    for round_, path in files:
        findings = verify(path)
        if not findings:
            return (round_, path), wrong
        wrong += findings
    return None, wrong


def verify(path: Path) -> list[str]:
    """Return what is wrong with a checkpoint, in one line each; its tensors are not loaded."""
    try:
        _read(path)
        for needed in files_of(path)[1:]:
            _read(needed)
    except FedLensError as error:
        return [str(error)]
    return []


def _read(path: Path) -> tuple[bytes, int, str]:
    """Return the bytes of a checkpoint, its round and its run, once its digest has been compared."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FedLensError(f"{path.name} is damaged ({first_line(error)})") from error
    place = _DIGEST.search(content)
    if place is None or place[1].decode() != _digest(content, place):
        raise FedLensError(f"{path.name} is damaged: its bytes are not those that were written")
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    metadata = json.loads(header)["__metadata__"]
    round_ = int(metadata["round"])
    if path not in (path_of(path.parent, round_), row_file(path.parent, round_)):
        raise FedLensError(f"{path.name} is the checkpoint after round {round_}; it was renamed")
    return content, round_, metadata["run"]


def load(path: Path, run: str, device: "torch.device") -> tuple[dict[str, Tensor], int]:
    """Return the tensors and the round of a file; one that is damaged or of another run is refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        content, round_, made_for = _read(path)
        tensors = {name: tensor.to(device) for name, tensor in from_bytes(content).items()}
    except (FedLensError, SafetensorError) as error:
        raise FedLensError(f"cannot resume from {path}: {error}; clone the run to start again") from error
    if made_for != run:
        raise FedLensError(
            f"{path} was made with another config, other weights or other images; "
            "clone the run to start again"
        )
    return tensors, round_
