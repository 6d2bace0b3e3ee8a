"""The contract of a method, checked while a run trains; faults are reported by file and line.

What a hook of a round returns is checked in every round, a training step only when the first one is taken.
This first real step is checked rather than a trial before the run, because it costs no extra pass and sees
the real parameters and samples. Later steps are not checked, because walking the autograd graph can take
longer than a small step. The check looks at shapes, names and the graph rather than at values: a gradient
may well be zero in the first step (LoRA's A while B is zero), but a parameter outside the graph would never
train. Only whether a client's loss depends on another client's parameters is read from a gradient.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from numbers import Real

import numpy as np

from fedcore.engine.clients.hooks import (
    call,
    check_texts,
    is_built_in,
    kind,
    line_of,
    place_of,
    quoted,
    shape,
)
from fedcore.federation import LocalData
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import (
    STATE_PARTS,
    Batch,
    FedLensMethodError,
    Method,
    Models,
    Params,
    Phase,
    Ragged,
    State,
    Step,
    overrides,
)


def received_by(method: Method, state: State, clients: Tensor) -> Params:
    """Return what the server sends to the participants, checked."""
    received = call(method.sends, state, clients)
    if overrides(type(method), "sends"):
        _check_tensors(line_of(method.sends), received, len(clients))
        missing = [name for name in method.shared if name not in received]
        if missing:
            raise FedLensMethodError(
                f"{line_of(method.sends)}: it does not send {quoted(missing)}, which clients share; send "
                "{**super().sends(state, clients), ...}"
            )
    return received


def constants(method: Method, params: Params, data: LocalData) -> Params:
    """Return what stays constant during a round of the participants, checked."""
    const = call(method.round_constants, params, data)
    if overrides(type(method), "round_constants"):
        _check_tensors(line_of(method.round_constants), const, len(data.clients))
    return const


def lr_factors(method: Method, held: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the multiples of the learning rate, checked.

    Args:
        held: the parameters of the clients.
    """
    factors = method.lr_factors()
    where = line_of(method.lr_factors)
    if not isinstance(factors, dict):
        raise FedLensMethodError(f"{where}: it returns {kind(factors)}; return {{name: factor}}")
    for name, factor in factors.items():
        if name not in held:
            raise FedLensMethodError(
                f"{where}: it has a factor for {name!r}, but the clients hold {quoted(held)}; take one"
            )
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= factor < float("inf"):
            raise FedLensMethodError(
                f"{where}: the factor of '{name}' is {factor!r}; give a number that is not negative"
            )
    return factors


def initial_state(method: Method) -> State:
    """Return the state before round 1, checked."""
    with torch.no_grad():
        return check_state(method, call(method.init, method.problem.generator))


def check_state(method: Method, state: object) -> State:
    """Check the state before round 1, and return it."""
    where = line_of(method.init, "State")
    if not isinstance(state, State):
        raise FedLensMethodError(f"{where}: it returns {kind(state)}; return State(shared={{...}})")
    _check_parts(where, state)
    clients = len(method.problem.clients)
    _check_rows(where, "the personal '{0}'", state.personal, clients, "clients")
    remedy = "; write State(local=self.repeat({{'{0}': value}})) to give all clients the same start"
    _check_rows(where, "the local '{0}'", state.local, clients, "clients" + remedy)
    averages = method.trains and not overrides(type(method), "upload", "aggregate")
    if averages and set(method.shared) != set(state.shared):
        raise FedLensMethodError(
            f"{where}: the state shares {quoted(state.shared)}, but {type(method).__name__}.shared names "
            f"{quoted(method.shared)}, which are sent and averaged; name the same parameters in both"
        )
    _check_declared_names(where, method, state)
    return state


def _check_parts(where: str, state: State) -> None:
    """Refuse a part that is no dict of tensors, and a name in two parts that clients hold."""
    names: list[str] = []
    for part in STATE_PARTS:
        values: object = getattr(state, part)
        if not isinstance(values, dict):
            raise FedLensMethodError(
                f"{where}: State.{part} is {kind(values)}; it takes tensors by name, {part}={{...}}"
            )
        for name, value in values.items():
            if not isinstance(name, str) or not torch.is_tensor(value):
                raise FedLensMethodError(
                    f"{where}: State.{part} has {name!r}: {kind(value)}; it takes tensors by name"
                )
        names += values if part != "server" else ()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FedLensMethodError(
            f"{where}: {quoted(twice)} is in two parts of the state, of which clients would hold one; give "
            "each a different name"
        )


def _check_declared_names(where: str, method: Method, state: State) -> None:
    """Refuse ``client_rows`` without a parameter, and ``class_axes`` along another axis than the classes."""
    own = type(method).__name__
    rows = sorted(set(method.client_rows) - {*state.personal, *state.server})
    if rows:
        raise FedLensMethodError(
            f"{where}: {own}.client_rows names {quoted(rows)}, but the personal and server parts have "
            f"{quoted([*state.personal, *state.server])}; name parameters of these parts"
        )
    _check_rows(
        where,
        "'{0}', one of client_rows,",
        {n: v for n, v in state.server.items() if n in method.client_rows},
        len(method.problem.clients),
        "clients",
    )
    held: Params = {}
    for part in STATE_PARTS:
        held |= getattr(state, part)
    classes = len(method.problem.classes)
    for name, axis in method.class_axes.items():
        if name in held and (held[name].dim() < -axis or held[name].shape[axis] != classes):
            raise FedLensMethodError(
                f"{where}: {own}.class_axes says that axis {axis} of '{name}' counts the classes, but it has "
                f"shape {shape(held[name])} and there are {classes} classes; declare the axis of the classes "
                "from the end, and only parameters with an entry for each class"
            )


def phases_of(method: Method) -> tuple[Phase, ...]:
    """Return the training phases of a method, checked."""
    phases: object = method.phases
    if isinstance(phases, (tuple, list)) and phases and all(map(callable, phases)):
        return tuple(phases)
    defined = getattr(type(method).phases, "fget", None)
    raise FedLensMethodError(
        f"{line_of(defined or method.train_step)}: phases is {phases!r}; return the training phases in "
        "order, such as (self.train_step,)"
    )


class FirstStep:
    """The check of a method's first training step, over all its phases."""

    def __init__(self, method: Method, local: Params) -> None:
        self.method, self.local = method, set(local)
        self.trained: set[str] = set()
        self.done = False

    def phases(self) -> tuple[Phase, ...]:
        """Return the method's phases, which are checked until each has been called once."""
        if self.done:
            return self.method.phases
        phases = phases_of(self.method)
        return tuple(partial(self._checked, phase, phase is phases[-1]) for phase in phases)

    def _checked(self, phase: Phase, is_last: bool, params: Params, const: Params, batch: Batch) -> Step:
        step = phase(params, const, batch) if self.done else call(phase, params, const, batch)
        if self.done:
            return step
        where = line_of(phase, "Step")
        if not isinstance(step, Step):
            raise FedLensMethodError(
                f'{where}: it returns {kind(step)}; return Step({{("name", ...): loss}}), with the names of '
                "the parameters that the loss moves"
            )
        _check_parts_of_step(where, step, batch, is_last)
        clients = len(batch.clients)
        built_in = is_built_in(self.method)  # those are compared with training one by one
        for names, loss in [*step.losses.items(), *step.guides.items()]:
            _check_loss(where, names, loss, params, clients)
            if clients > 1 and not built_in:
                _check_isolated(where, names, loss, params)
        trained = {name for names in step.losses for name in names}
        astray = sorted({name for names in (*step.guides, *step.only) for name in names} - trained)
        if astray:
            raise FedLensMethodError(
                f"{where}: a guide, or only, is for {quoted(astray)}, which no loss moves; they change the "
                "steps of losses, so name parameters that a loss names"
            )
        moved = [*step.moved, *(name for names in step.losses for name in names)]
        twice = {name for name in moved if moved.count(name) > 1}
        if twice:
            raise FedLensMethodError(
                f"{where}: {quoted(sorted(twice))} is in two losses, or in a loss and in moved, of which "
                "only one would count; name it once, with the sum of its losses"
            )
        for name, value in step.moved.items():
            if name not in params or value.shape != params[name].shape:
                held = shape(params[name]) if name in params else "no such parameter"
                raise FedLensMethodError(
                    f"{where}: moved has '{name}' with shape {shape(value)}, the clients hold {held}; moved "
                    "takes new values of parameters, with the client axis first"
                )
        for name, value in step.terms.items():
            _check_per_client(where, f"the term '{name}'", value, clients)
        self.trained |= set(moved)
        self.done = is_last
        sent = () if overrides(type(self.method), "upload") else self.method.shared
        left = sorted((self.local | set(sent)) - self.trained)
        if is_last and left:
            raise FedLensMethodError(
                f"{where}: no loss moves {quoted(left)}, which would stay as init made it; add it to the "
                'names of a loss, or to Step(..., moved={"name": value}) if it follows no gradient; '
                "keep what is not trained in __init__ or round_constants, not in the state"
            )
        return replace(step, combine=partial(_combined, where, step.combine)) if step.guides else step


def _check_parts_of_step(where: str, step: Step, batch: Batch, is_last: bool) -> None:
    """Refuse parts that are no dict, a last phase without a loss, and records that are not of samples."""
    for part in ("losses", "guides", "only", "moved", "record", "terms"):
        value: object = getattr(step, part)
        if not isinstance(value, dict):
            raise FedLensMethodError(
                f"{where}: {part} of the step is {kind(value)}; it takes values by name, {{...}}"
            )
    if is_last and not step.losses and step.moved:
        raise FedLensMethodError(
            f'{where}: the step has no loss, which would be recorded; return Step({{("name", ...): loss}})'
        )
    rows = tuple(batch.mask.shape)
    for name, value in step.record.items():
        if not torch.is_tensor(value) or tuple(value.shape[:2]) != rows:
            raise FedLensMethodError(
                f"{where}: the record '{name}' is {kind(value)}; give a value for every sample of the batch, "
                f"shape (clients, batch, ...), here ({rows[0]}, {rows[1]}, ...)"
            )


def _combined(
    where: str, combine: Callable[[Params, Params], Params], gradients: Params, guides: Params
) -> Params:
    """Combine gradients as a step says, and check the result."""
    found: object = combine(gradients, guides)
    wanted = {name: shape(value) for name, value in gradients.items()}
    if not isinstance(found, dict) or {n: kind(v) for n, v in found.items()} != {
        name: f"a tensor of shape {text}" for name, text in wanted.items()
    }:
        raise FedLensMethodError(
            f"{where}: combine returns {kind(found)}; return the gradients by name, of shapes {wanted}"
        )
    return found


def check_head(method: Method, head: object) -> Params:
    """Check the constants of prediction, and return them."""
    if not isinstance(head, dict) or not all(torch.is_tensor(value) for value in head.values()):
        raise FedLensMethodError(f"{line_of(method.head)}: it returns {kind(head)}; return tensors by name")
    return head


def check_after_training(method: Method, held: object, trained: Params) -> Params:
    """Check what the participants hold after training, and return it."""
    if not overrides(type(method), "after_training"):
        return trained
    wanted = {name: shape(value) for name, value in trained.items()}
    found = {n: kind(v) for n, v in held.items()} if isinstance(held, dict) else kind(held)
    if found != {name: f"a tensor of shape {shape}" for name, shape in wanted.items()}:
        raise FedLensMethodError(
            f"{line_of(method.after_training)}: it returns {found}, but the participants hold {wanted}; "
            "return the same names and shapes"
        )
    return held  # type: ignore[return-value]


def check_upload(method: Method, sent: object, received: Params, clients: int) -> None:
    """Check what the participants send; the server's default step averages the shared parameters of it."""
    if not overrides(type(method), "upload"):
        return
    where = line_of(method.upload)
    if not isinstance(sent, dict):
        raise FedLensMethodError(f"{where}: it returns {kind(sent)}; return {{name: value}}")
    _check_sent(where, sent, clients)
    if overrides(type(method), "aggregate"):
        return
    for name in method.shared:
        value, wanted = sent.get(name), (clients, *received[name].shape[1:])
        if not torch.is_tensor(value) or tuple(value.shape) != wanted:
            found = "does not send it" if value is None else f"sends {kind(value)}"
            raise FedLensMethodError(
                f"{where}: the server averages the shared '{name}', of shape {wanted}, but upload {found}; "
                "send it, or write the server's step in aggregate"
            )


def _check_sent(where: str, sent: Mapping[str, object], clients: int) -> None:
    """Refuse what cannot be counted as traffic: tensors and ragged values have a row for each participant."""
    _check_rows(where, "'{0}'", {n: v for n, v in sent.items() if not isinstance(v, Ragged)}, clients)
    for name, value in sent.items():
        if not isinstance(value, Ragged):
            continue
        _check_rows(where, f"{name}.{{0}}", {"values": value.values, "lengths": value.lengths}, clients)
        if value.values.dim() < 2 or value.lengths.dim() != 1:
            raise FedLensMethodError(
                f"{where}: '{name}' has values of shape {shape(value.values)} and lengths of shape "
                f"{shape(value.lengths)}; values are (clients, longest, ...), and a length is the number of "
                "rows that a client sends"
            )


def check_downloads(method: Method, sent: object, clients: int) -> None:
    """Check what traffic to the participants is counted from."""
    if overrides(type(method), "downloads"):
        where = line_of(method.downloads)
        if not isinstance(sent, dict):
            raise FedLensMethodError(f"{where}: it returns {kind(sent)}; return {{name: value}}")
        _check_sent(where, sent, clients)


def check_diagnostics(method: Method, values: object, clients: int, terms: Collection[str]) -> None:
    """Check the values of a round that are to be stored: a value of another shape would get wrong names.

    Args:
        terms: names of the round's ``Step.terms``, which are stored too.
    """
    if not overrides(type(method), "diagnostics"):
        return
    where = line_of(method.diagnostics)
    if not isinstance(values, dict):
        raise FedLensMethodError(f"{where}: it returns {kind(values)}; return {{name: value}}")
    for name, value in values.items():
        if name in terms:
            raise FedLensMethodError(
                f"{where}: '{name}' is a term of the steps too, of which only one would be stored; rename one"
            )
        number = isinstance(value, Real) or torch.is_tensor(value)
        number = number or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")
        if not isinstance(name, str) or not number or np.shape(value) not in ((), (clients,), (clients,) * 2):
            raise FedLensMethodError(
                f"{where}: {name!r} is {kind(value)}; return one number, or one for each of the {clients} "
                f"participants, shape ({clients},), or for each pair, shape ({clients}, {clients})"
            )


def check_round_log(method: Method, lines: object) -> list[str]:
    """Check the lines for the log of a round, and return them."""
    return check_texts(line_of(method.round_log), lines)


def check_aggregated(method: Method, after: object, before: State, clients: int) -> State:
    """Check the state that the server's step makes, and return it."""
    where = line_of(method.aggregate, "State")
    if not isinstance(after, State):
        raise FedLensMethodError(f"{where}: it returns {kind(after)}; return replace(state, shared={{...}})")
    if after.local:
        raise FedLensMethodError(
            f"{where}: it returns local parameters ({quoted(after.local)}), which the server cannot change; "
            "return what it makes for single clients as personal"
        )
    _check_parts(where, after)
    for name, value in before.shared.items():
        found = after.shared.get(name)
        if found is None or found.shape != value.shape:
            held = "is missing" if found is None else f"has shape {shape(found)}"
            raise FedLensMethodError(
                f"{where}: the shared '{name}' {held} after the server's step, but had shape "
                f"{shape(value)} before it; return all shared parameters"
            )
    if gone := sorted(before.server.keys() - after.server.keys()):
        raise FedLensMethodError(
            f"{where}: {quoted(gone)} of State.server is missing after the server's step, and the next round "
            "may read it; return server={**state.server, ...}"
        )
    of_all = {n: v for n, v in after.personal.items() if n not in method.client_rows}
    _check_rows(where, "the personal '{0}'", of_all, len(method.problem.clients), "clients")
    rows = {n: v for n, v in (after.personal | after.server).items() if n in method.client_rows}
    _check_rows(where, "'{0}', one of client_rows,", rows, clients)
    return after


def check_models(method: Method, models: object) -> Models:
    """Check the models that are evaluated, and return them."""
    where, clients = line_of(method.models, "Models"), len(method.problem.clients)
    if not isinstance(models, Models):
        raise FedLensMethodError(f"{where}: it returns {kind(models)}; return Models(global, clients)")
    for of, values in (("global", models.global_model or {}), ("clients'", models.clients)):
        if not isinstance(values, dict):
            raise FedLensMethodError(
                f"{where}: the {of} parameters are {kind(values)}; give tensors by name, or None if there is "
                "no global model"
            )
    _check_rows(where, "'{0}' of the global model", models.global_model or {}, 1, "model")
    _check_rows(where, "'{0}' of the clients' models", models.clients, clients, "clients")
    if method.clients_use_global and models.global_model is not None and not is_built_in(method):
        for name in sorted(models.global_model.keys() & models.clients.keys()):
            if not _is_repeated(models.global_model[name], models.clients[name]):
                raise FedLensMethodError(
                    f"{where}: '{name}' of a client differs from that of the global model, but "
                    f"{type(method).__name__}.clients_use_global says that all predict with the global one; "
                    "leave the declaration out"
                )
    return models


def _is_repeated(one: Tensor, each: Tensor) -> bool:
    """Return whether all clients hold one model's value; what ``Method.repeat`` made is not read.

    It has a row in memory for all clients, and may hold NaN, which equals nothing.

    Shape: one (1, ...), each (clients, ...).
    """
    if each.shape[1:] != one.shape[1:]:
        return False
    if each.stride(0) == 0:
        each = each[:1]
        if each.data_ptr() == one.data_ptr() and each.stride()[1:] == one.stride()[1:]:
            return True
    return torch.equal(each, one.expand_as(each))


def check_retargeted(method: Method, state: object) -> State:
    """Check the state for other class names, and return it."""
    if not isinstance(state, State):
        raise FedLensMethodError(
            f"{line_of(method.retarget)}: it returns {kind(state)}; return replace(state, shared={{...}})"
        )
    return state


def check_before_aggregation(method: Method, models: object, clients: int) -> Params:
    """Check the participants' models before aggregation, and return them."""
    if not overrides(type(method), "before_aggregation"):
        return models  # type: ignore[return-value]
    where = line_of(method.before_aggregation)
    if not isinstance(models, dict) or not models:
        raise FedLensMethodError(
            f"{where}: it returns {kind(models) if models != {} else 'no parameters'}; return the "
            "parameters of the participants' models, as logits takes them"
        )
    _check_rows(where, "'{0}'", models, clients)
    return models


def _check_rows(
    where: str, what: str, values: Mapping[str, object], rows: int, counted: str = "participants"
) -> None:
    """Refuse a value that is no tensor, or whose first axis does not count the clients or models.

    Args:
        what, counted: parts of the sentence, with {0} for the tensor's name.
    """
    for name, value in values.items():
        if not torch.is_tensor(value):
            raise FedLensMethodError(
                f"{where}: {what.format(name)} is {kind(value)}; give a tensor whose first axis counts the "
                f"{rows} {counted.format(name)}"
            )
        if value.dim() == 0 or len(value) != rows:
            raise FedLensMethodError(
                f"{where}: {what.format(name)} has shape {shape(value)}, but its first axis counts the "
                f"{rows} {counted.format(name)}"
            )


def _check_tensors(where: str, values: object, rows: int, counted: str = "participants") -> None:
    """Refuse what is no dict of tensors by name with one row for each client or model."""
    if not isinstance(values, dict):
        raise FedLensMethodError(f"{where}: it returns {kind(values)}; return tensors by name, {{...}}")
    _check_rows(where, "'{0}'", values, rows, counted)


class GlobalModel(dict[str, "Tensor"]):
    """The parameters of the global model; a missing one is reported with the remedy."""

    def __missing__(self, name: str) -> Tensor:
        frame = sys._getframe(1)
        raise FedLensMethodError(
            f"{place_of(frame.f_code, frame.f_lineno)}: the global model has no '{name}', only "
            f"{quoted(self)}: what is local stays with its client. Predict without it there "
            f'(if "{name}" in params: ...), or declare that there is no global model: def models(self, '
            "state): return Models(None, {**self.repeat(state.shared), **state.local})"
        )


def check_logits(method: Method, logits: Tensor, models: int, samples: int) -> None:
    """Check the shape of class scores."""
    wanted = (models, samples, len(method.problem.classes))
    if tuple(getattr(logits, "shape", ())) != wanted:
        raise FedLensMethodError(
            f"{line_of(method.logits)}: it returns {kind(logits)}, not (models, samples, classes) = {wanted}"
        )


def _check_loss(where: str, names: tuple[str, ...], loss: Tensor, params: Params, clients: int) -> None:
    if not isinstance(names, tuple):
        raise FedLensMethodError(
            f"{where}: a loss is for {names!r}, which is not a tuple of names; "
            f'write ("{names}",) with a comma'
        )
    what = f"the loss of {quoted(names)}"
    unknown = [name for name in names if name not in params]
    if unknown:
        raise FedLensMethodError(
            f"{where}: {what} moves {quoted(unknown)}, but the clients hold {quoted(params)}; init decides "
            "what they hold"
        )
    _check_per_client(where, what, loss, clients)
    if any(params[name].grad is not None for name in names):
        raise FedLensMethodError(
            f"{where}: it calls backward(); return the loss, which FedLens differentiates"
        )
    outside = [name for name in names if name not in _reached(loss, {n: params[n] for n in names})]
    if outside:
        raise FedLensMethodError(
            f"{where}: {what} does not depend on {quoted(outside)}, which therefore would not train; "
            "compute the loss from params without detach(), no_grad() or item(), or name only what it "
            "depends on"
        )


def _check_isolated(where: str, names: tuple[str, ...], loss: Tensor, params: Params) -> None:
    """Refuse a loss of one client that depends on another client's parameters, such as their mean."""
    values = [params[name] for name in names]
    gradients = torch.autograd.grad(loss[0], values, retain_graph=True, allow_unused=True)
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None and bool((gradient[1:].nan_to_num() != 0).any()):
            raise FedLensMethodError(
                f"{where}: the first client's loss depends on '{name}' of other clients; the first axis of a "
                "parameter counts the clients, so average, sum or pick along the other axes only"
            )


def _check_per_client(where: str, what: str, value: Tensor, clients: int) -> None:
    if not torch.is_tensor(value) or value.shape != (clients,):
        raise FedLensMethodError(
            f"{where}: {what} is {kind(value)}, not one value per client, shape (clients,) = ({clients},); "
            "average over the samples of each client only, e.g. with cross_entropy(logits, batch.labels, "
            "batch.mask): a mean over the clients would divide everyone's step by their number"
        )


def _reached(loss: Tensor, params: Params) -> set[str]:
    """Return the names of the parameters in the graph of a loss."""
    names = {id(value): name for name, value in params.items()}
    found = {names[id(loss)]} if id(loss) in names else set()
    seen, todo = set(), [loss.grad_fn]
    while todo and len(found) < len(names):
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = id(getattr(node, "variable", None))  # only the node of a leaf has this attribute
        if leaf in names:
            found.add(names[leaf])
        todo += [following for following, _ in node.next_functions]
    return found
