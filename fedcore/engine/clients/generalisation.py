"""Trained models beyond their training: asked about other class names, and adapted by unseen clients."""

from collections.abc import Callable
from dataclasses import replace

from fedcore.engine.clients.cohorts import Cohort
from fedcore.engine.clients.contract import initial_state, run
from fedcore.engine.clients.executor import Chunk, Worker
from fedcore.engine.clients.hooks import make, planned
from fedcore.federation import Federation
from fedcore.lazy import torch
from fedcore.methods.base import STATE_PARTS, Method, State, overrides
from fedcore.records.codes import AFTER_AGGREGATION, GLOBAL, TEST
from fedcore.records.events import Cell


def reason_without_value(method: Method) -> str:
    """Return why a trained model has no value on new classes; empty if it has one.

    A method of the user's own may have forgotten ``class_axes``. Where as many classes are new as were
    trained on, its scores would then have the right shape and mean nothing.
    """
    reason: str = planned(type(method), "bound_to_classes", method.config)
    if reason:
        return reason
    if overrides(type(method), "retarget"):
        return ""
    undeclared = sorted(set(entries_by_class(method)) - set(method.class_axes))
    if not undeclared:
        return ""
    names = ", ".join(f"'{name}'" for name in undeclared)
    return f"its parameter {names} depends on the number of classes; name it in class_axes"


def entries_by_class(method: Method) -> tuple[str, ...]:
    """Return the parameters that have an entry for each class: those whose shape one class fewer changes."""
    problem = method.problem
    fewer = replace(problem, classes=problem.classes[:-1], class_counts=problem.class_counts[:, :-1])
    states = [initial_state(m) for m in (method, make(type(method), method.config, fewer))]
    found = []
    for part in STATE_PARTS:
        one, other = (getattr(state, part) for state in states)
        found += [name for name, value in one.items() if value.shape != other[name].shape]
    return tuple(dict.fromkeys(found))


def reason_without_adaptation(method: Method, newcomers: Federation) -> str:
    """Return why a client that never took part cannot adapt the trained model; empty if it can."""
    if not method.trains:
        return ""
    reason: str = planned(type(method), "bound_to_clients", method.config)
    if reason:
        return reason
    ours, theirs = initial_state(method), initial_state(_made_for(method, newcomers))
    if ours.personal:
        return "the server makes parameters for each client that takes part"
    other = [n for n, v in ours.shared.items() if v.shape != theirs.shared[n].shape]
    return f"its shared parameter '{other[0]}' depends on the number of clients" if other else ""


def adapted_cells(
    method: Method,
    federation: Federation,
    state: State,
    cells: list[Cell],
    chunk: int,
    should_stop: Callable[[], bool],
) -> list[Cell]:
    """Train each unseen client once, as a participant of one more round, and test its model on its samples.

    It begins with the shared parameters and with local ones as before round 1, and trains at the method's
    learning rate; nothing of it is uploaded.

    Args:
        cells: of the last round; of a method that trains nothing, the global model's accuracy stands again
            if it has a global model.
    """
    new = federation.newcomers
    if new is None:
        return []
    sets = [code for code, s in enumerate(federation.test_sets, start=1) if s.kind == "unseen"]
    first = first_adapted_code(federation)
    if not method.trains and method.models(state).global_model is not None:
        of_set = {
            c.test_set: c for c in cells if (c.model, c.split, c.stage) == (GLOBAL, TEST, AFTER_AGGREGATION)
        }
        return [of_set[s]._replace(model=first + i) for i, s in enumerate(sets) if s in of_set]
    theirs = _made_for(method, new)
    everyone = torch.arange(len(sets))
    with torch.no_grad():
        start = replace(state, local=theirs.init(new.problem.generator).local)
    worker = Worker((Cohort(theirs, new, range(len(sets))),))
    found: list[Cell] = []
    for clients in everyone.split(chunk):
        given = Chunk(
            cohort=0,
            clients=clients,
            round=1,
            received=run(theirs, "sends", start, clients),
            local={name: value[clients.to(value.device)] for name, value in start.local.items()},
            moments={},
            lr=method.config.lr if method.trains else None,
            evaluate=True,
            only_means=False,
        )
        for c in worker.train(given, should_stop).cells:
            client = c.model - 1
            found.append(c._replace(stage=AFTER_AGGREGATION, model=first + client, test_set=sets[client]))
    return found


def first_adapted_code(federation: Federation) -> int:
    """Return the entity code of the first unseen client's adapted model: after all test sets."""
    class_sets = 0 if federation.class_sets is None else len(federation.problem.clients)
    return 1 + len(federation.test_sets) + class_sets


def _made_for(method: Method, newcomers: Federation) -> Method:
    return make(type(method), method.config, newcomers.problem)
