"""The state of a run between two rounds, in memory and as its checkpoints keep it.

If what belongs to single clients (local parameters, ``Method.client_rows`` and optimisers) is large,
writing all of it every round would cost more than training. ``rows-N.safetensors`` then holds the rows of
the clients that changed in round N, and the checkpoint of a round names, for each client, the file with its
row. A client that has never trained has no row; its initial parameters follow from the seed. Row files are
deleted with the last checkpoint that needs them. So that a checkpoint never needs more and more of them, a
round also rewrites the rows of the oldest file as soon as all clients could have trained since.

No generator state is stored: every draw is keyed by (seed, purpose, round, client), so the next round draws
the same numbers after a restart as without one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedcore.engine import checkpoint
from fedcore.engine.clients.contract import check_state
from fedcore.engine.clients.memory import ClientRows, size_of
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import STATE_PARTS, Method, Params, State

LARGE = 2**28
"""Bytes of clients' rows and optimiser states from which on a round writes only the rows that changed."""


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
        self.state = replace(self._with_rows(self._first()), rounds_trained=trained)
        self.optimiser = ClientOptimiser(method.config, len(trained))
        self.done = -1

    def _first(self) -> State:
        with torch.no_grad():
            return check_state(self._method, self._method.init(self._method.problem.generator))

    def _rows_of(self, state: State) -> Params:
        """Return the parameters with a row for each client that only the client's own rounds change."""
        own = dict.fromkeys(("personal", "server"), self._method.client_rows) | {"local": tuple(state.local)}
        return {
            f"{part}/{name}": value
            for part, names in own.items()
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
            trained: the participants' parameters; empty if the method trains nothing.
        """
        if trained:
            new = self._rows_of(after) | _named("local", trained)
            self._rows.write(clients, new)
            self._written[clients] = -1
        self.state, self.done = _replaced(after, self._rows.values), round_
        return self.state

    def save(self, folder: Path, run: str, whole: bool = False) -> Path:
        """Write the checkpoint after the last complete round; when this returns, it survives a power failure.

        Args:
            run: identity of the run's config and content.
            whole: write one file in any case, because it travels between machines.
        """
        state, slots, trained = self.state, self.optimiser.slots, self.state.rounds_trained
        assert trained is not None, "set when the state is made"
        clients_own = self._rows.values | _named("optimiser", slots)
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
                path = checkpoint.row_file(folder, self.done)
                checkpoint.write(path, rows | {"clients": clients}, self.done, run)
            self._written[clients] = self.done
            tensors[checkpoint.WRITTEN] = self._written
        else:
            tensors |= clients_own
        return checkpoint.write(checkpoint.path_of(folder, self.done), tensors, self.done, run)

    def resume(self, path: Path, run: str) -> None:
        """Take over the state of a checkpoint; one of another config, weights or images is refused."""
        device = self._method.problem.device
        tensors, self.done = checkpoint.load(path, run, device)
        parts = _parts(tensors)
        self.optimiser.slots = parts.pop("optimiser")
        written = tensors.get(checkpoint.WRITTEN)
        state = State(**parts, rounds_trained=tensors["taken"].cpu())
        if written is not None:
            # Row files hold only the clients that have trained. The others get their initial rows, which
            # follow from the seed, before the stored rows are copied over them.
            first = self._rows_of(self._first())
            state = _replaced(state, {name: rows for name, rows in first.items() if name not in tensors})
        self.state = self._with_rows(state)
        self._written.fill_(-1)
        if written is None:
            return
        self._written.copy_(written)
        self.need((self._written >= 0).nonzero()[:, 0])
        for round_ in sorted(set(self._written[self._written >= 0].tolist())):
            # One file at a time is read and copied: together they may not fit into memory twice.
            self._put_rows(round_, checkpoint.load(checkpoint.row_file(path.parent, round_), run, device)[0])

    def _put_rows(self, round_: int, content: Params) -> None:
        """Copy the rows of a row file that no later one has."""
        clients = content.pop("clients").cpu()
        current = self._written[clients] == round_
        content = {name: rows[current.to(rows.device)] for name, rows in content.items()}
        slots = _parts(content)["optimiser"]
        for name in self._rows.values.keys() & content.keys():
            rows = self._rows.values[name]
            rows[clients[current].to(rows.device)] = content[name]
        kept = ClientOptimiser(self.optimiser.config, int(current.sum()), slots)
        self.optimiser.put(clients[current], kept)


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
