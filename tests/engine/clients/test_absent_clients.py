"""A round makes nothing with a row for each client, so it costs as much with 10,000 clients as with 1,000."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedcore.base.events import RoundFinished
from fedcore.engine import checkpoint
from fedcore.engine.clients import evaluator
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods import registry
from fedcore.methods.base import State, Uploads
from fedcore.methods.baselines.fedclip import FedCLIP
from fedcore.methods.baselines.prompts import pfedmoap
from tests.support.against import build_small, federation_for
from tests.support.method_cases import TRAINED

CLIENTS = 13
"""A number that no other axis has, so that an axis of this length is that of the clients."""
NUMBERS = 8
"""Numbers that a round may make for each absent client, such as the rounds in which it took part."""


class RowsOfAllClients(TorchDispatchMode):
    """Collects operations that write a new tensor with more than a few numbers for each client."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in _tensors([*args, *(kwargs or {}).values()])}
        result = operation(*args, **(kwargs or {}))
        for tensor in _tensors([result]):
            storage = tensor.untyped_storage()
            rows = tensor.shape[0] if tensor.dim() else 0
            enough = storage.nbytes() > CLIENTS * NUMBERS * tensor.element_size()
            if rows == CLIENTS and enough and storage.data_ptr() not in given:
                self.found.add(f"{operation} {tuple(tensor.shape)}")
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in lists of tensors or lists of them."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [t for v in values for t in _tensors(v)] if isinstance(values, list | tuple) else []


def rows_of_all_clients(method, federation, monkeypatch) -> set[str]:
    """Return what a round of three clients makes for all clients; the evaluation is before and after it."""
    monkeypatch.setattr(evaluator, "MAX_EVALUATED_CLIENTS", 2)
    loop = Server(method, federation, 2, participation=3 / CLIENTS, evaluate_every=2)
    events = (event for event in all_rounds(loop) if isinstance(event, RoundFinished))
    next(events)
    with RowsOfAllClients() as made:
        assert len(next(events).clients) == 3
    return made.found


SENT = {"fedapt": "(13, 16)"}
"""Values with a row for each client that clients send: FedAPT's query tells them apart."""


@pytest.mark.parametrize("name", TRAINED)
def test_a_round_makes_no_rows_of_absent_clients(name, monkeypatch):
    monkeypatch.setattr(checkpoint, "IN_MEMORY", 0)
    monkeypatch.setattr(pfedmoap, "COMPARED", CLIENTS - 1)
    federation = federation_for(name, samples=(4,) * CLIENTS)
    method = build_small(name, federation, batch_size=4)
    found = rows_of_all_clients(method, federation, monkeypatch)
    assert [made for made in found if SENT.get(name, "nothing") not in made] == []


def test_a_server_that_repeats_its_model_for_all_clients_is_found(monkeypatch):
    class Repeating(FedCLIP):
        def aggregate(self, state: State, uploads: Uploads, generator: Any) -> State:
            after = super().aggregate(state, uploads, generator)
            assert all(len(v.repeat(CLIENTS, 1, 1)) == CLIENTS for v in after.shared.values())
            return after

    federation = federation_for("fedclip", samples=(4,) * CLIENTS)
    method = Repeating(registry.build_config("fedclip", {}), federation.problem)
    assert rows_of_all_clients(method, federation, monkeypatch)
