"""The contract of a method as a table of its hooks, checked while a run trains.

What a hook of a round returns is checked in every round, a training step only when the first one is taken.
This first real step is checked rather than a trial before the run, because it costs no extra pass and sees
the real parameters and samples. Later steps are not checked, because walking the autograd graph can take
longer than a small step. The check looks at shapes, names and the graph rather than at values: a gradient
may well be zero in the first step (LoRA's A while B is zero), but a parameter outside the graph would never
train. Only whether a client's loss depends on another client's parameters is read from a gradient.

A fault is a sentence that says what is wrong and what to do. Faults are found one after another, so that each
check may rely on those before it, and the first is raised with the file and line of the hook.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from fedcore.base.lazy import Tensor, torch
from fedcore.engine.clients.hooks import call, faults_named, is_built_in, kind, line_of, quoted, shape
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

Faults = Iterator[str]


def run(method: Method, hook: str, *given: Any, writable: tuple[int, ...] = (), **beside: Any) -> Any:
    """Call a hook of a method, and return its result once that is checked.

    Args:
        writable: see ``call``.
        beside: what the check needs and the hook is not given.
    """
    result = call(getattr(method, hook), *given, writable=writable)
    return checked(method, hook, result, *given, **beside)


def planned(cls: type[Method], name: str, *given: Any) -> Any:
    """Call a hook of planning by its name, and return its result once that is checked.

    Raises:
        FedLensMethodError: also if the hook raises another error than a ``FedLensError``.
    """
    with faults_named(cls.name):
        result = getattr(cls, name)(*given)
    return checked(cls, name, result)


def checked(method: Method | type[Method], hook: str, result: Any, *given: Any, **beside: Any) -> Any:
    """Return the result of a hook if it keeps the contract."""
    row = CONTRACT[hook]
    if row.fits(result):
        faults = row.faults(method, result, *given, **beside)
    else:
        faults = iter([f"it returns {kind(result)}; {row.remedy}"])
    _refuse(getattr(method, hook), row.makes, faults)
    return result


def _refuse(hook: Callable[..., object], makes: str, faults: Faults) -> None:
    """Raise the first fault, if there is any, with the file and line of a hook."""
    if fault := next(faults, None):
        raise FedLensMethodError(f"{line_of(hook, makes)}: {fault}")


def initial_state(method: Method) -> State:
    """Return the state before round 1, checked."""
    with torch.no_grad():
        state: State = run(method, "init", method.problem.generator)
    return state


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


def _start(method: Method, state: State, generator: object) -> Faults:
    yield from _parts(state)
    clients = len(method.problem.clients)
    yield from _rows("the personal '{0}'", state.personal, clients, "clients")
    counted = "clients; write State(local=self.repeat({{'{0}': value}})) to give all clients the same start"
    yield from _rows("the local '{0}'", state.local, clients, counted)
    own = type(method).__name__
    averages = method.trains and not overrides(type(method), "upload", "aggregate")
    if averages and set(method.shared) != set(state.shared):
        yield (
            f"the state shares {quoted(state.shared)}, but {own}.shared names {quoted(method.shared)}, which "
            "are sent and averaged; name the same parameters in both"
        )
    if rows := sorted(set(method.client_rows) - {*state.personal, *state.server}):
        yield (
            f"{own}.client_rows names {quoted(rows)}, but the personal and server parts have "
            f"{quoted([*state.personal, *state.server])}; name parameters of these parts"
        )
    of_clients = {n: v for n, v in state.server.items() if n in method.client_rows}
    yield from _rows("'{0}', one of client_rows,", of_clients, clients, "clients")
    held = {name: value for part in STATE_PARTS for name, value in getattr(state, part).items()}
    classes = len(method.problem.classes)
    for name, axis in method.class_axes.items():
        if name in held and (held[name].dim() < -axis or held[name].shape[axis] != classes):
            yield (
                f"{own}.class_axes says that axis {axis} of '{name}' counts the classes, but it has shape "
                f"{shape(held[name])} and there are {classes} classes; declare the axis of the classes from "
                "the end, and only parameters with an entry for each class"
            )


def _parts(state: State) -> Faults:
    names: list[str] = []
    for part in STATE_PARTS:
        values: object = getattr(state, part)
        if not isinstance(values, dict):
            yield f"State.{part} is {kind(values)}; it takes tensors by name, {part}={{...}}"
            return
        for name, value in values.items():
            if not isinstance(name, str) or not torch.is_tensor(value):
                yield f"State.{part} has {name!r}: {kind(value)}; it takes tensors by name"
        names += values if part != "server" else ()
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield (
            f"{quoted(twice)} is in two parts of the state, of which clients would hold one; give each a "
            "different name"
        )


def _received(method: Method, received: Params, state: State, clients: Tensor) -> Faults:
    yield from _rows("'{0}'", received, len(clients))
    if missing := [name for name in method.shared if name not in received]:
        yield (
            f"it does not send {quoted(missing)}, which clients share; send "
            "{**super().sends(state, clients), ...}"
        )


def _factors(method: Method, factors: Mapping[str, object], held: Params) -> Faults:
    for name, factor in factors.items():
        if name not in held:
            yield f"it has a factor for {name!r}, but the clients hold {quoted(held)}; take one"
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= float(factor) < float("inf"):
            yield f"the factor of '{name}' is {factor!r}; give a number that is not negative"


def _held(method: Method, held: object, trained: Params, *_: object) -> Faults:
    found = {n: kind(v) for n, v in held.items()} if isinstance(held, dict) else kind(held)
    if found != {name: kind(value) for name, value in trained.items()}:
        wanted = {name: shape(value) for name, value in trained.items()}
        yield f"it returns {found}, but the participants hold {wanted}; return the same names and shapes"


def _upload(method: Method, sent: Mapping[str, object], params: Params, record: Params, data: Any) -> Faults:
    clients = len(data.clients)
    yield from _sent(sent, clients)
    for name in () if overrides(type(method), "aggregate") else method.shared:
        value, wanted = sent.get(name), (clients, *params[name].shape[1:])
        if not torch.is_tensor(value) or tuple(value.shape) != wanted:
            found = "does not send it" if value is None else f"sends {kind(value)}"
            yield (
                f"the server averages the shared '{name}', of shape {wanted}, but upload {found}; send it, "
                "or write the server's step in aggregate"
            )


def _sent(sent: Mapping[str, object], clients: int) -> Faults:
    """Find what cannot be counted as traffic: tensors and ragged values have a row for each participant."""
    yield from _rows("'{0}'", {n: v for n, v in sent.items() if not isinstance(v, Ragged)}, clients)
    for name, value in sent.items():
        if not isinstance(value, Ragged):
            continue
        yield from _rows(f"{name}.{{0}}", {"values": value.values, "lengths": value.lengths}, clients)
        if value.values.dim() < 2 or value.lengths.dim() != 1:
            yield (
                f"'{name}' has values of shape {shape(value.values)} and lengths of shape "
                f"{shape(value.lengths)}; values are (clients, longest, ...), and a length is the number of "
                "rows that a client sends"
            )


def _aggregated(method: Method, after: State, before: State, uploads: Any, generator: object) -> Faults:
    if after.local:
        yield (
            f"it returns local parameters ({quoted(after.local)}), which the server cannot change; return "
            "what it makes for single clients as personal"
        )
    yield from _parts(after)
    for name, value in before.shared.items():
        found = after.shared.get(name)
        if found is None or found.shape != value.shape:
            held = "is missing" if found is None else f"has shape {shape(found)}"
            yield (
                f"the shared '{name}' {held} after the server's step, but had shape {shape(value)} before "
                "it; return all shared parameters"
            )
    if gone := sorted(before.server.keys() - after.server.keys()):
        yield (
            f"{quoted(gone)} of State.server is missing after the server's step, and the next round may read "
            "it; return server={**state.server, ...}"
        )
    of_all = {n: v for n, v in after.personal.items() if n not in method.client_rows}
    yield from _rows("the personal '{0}'", of_all, len(method.problem.clients), "clients")
    rows = {n: v for n, v in (after.personal | after.server).items() if n in method.client_rows}
    yield from _rows("'{0}', one of client_rows,", rows, len(uploads.clients))


def _diagnostics(
    method: Method, values: Mapping[Any, Any], *given: Any, terms: Mapping[str, Tensor]
) -> Faults:
    """Find what cannot be stored: a value of another shape would get the names of other clients."""
    clients = len(given[-1].clients)
    for name, value in values.items():
        if name in terms:
            yield f"'{name}' is a term of the steps too, of which only one would be stored; rename one"
        number = isinstance(value, Real) or torch.is_tensor(value)
        number = number or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")
        if not isinstance(name, str) or not number or np.shape(value) not in ((), (clients,), (clients,) * 2):
            yield (
                f"{name!r} is {kind(value)}; return one number, or one for each of the {clients} "
                f"participants, shape ({clients},), or for each pair, shape ({clients}, {clients})"
            )


def _models(method: Method, models: Models, state: State) -> Faults:
    one: Params = models.global_model or {}
    for of, values in (("global", one), ("clients'", models.clients)):
        if not isinstance(values, dict):
            yield (
                f"the {of} parameters are {kind(values)}; give tensors by name, or None if there is no "
                "global model"
            )
    yield from _rows("'{0}' of the global model", one, 1, "model; write {0}[None]")
    yield from _rows("'{0}' of the clients' models", models.clients, len(method.problem.clients), "clients")
    if method.clients_use_global and models.global_model is not None and not is_built_in(method):
        for name in sorted(one.keys() & models.clients.keys()):
            if not _is_repeated(one[name], models.clients[name]):
                yield (
                    f"'{name}' of a client differs from that of the global model, but "
                    f"{type(method).__name__}.clients_use_global says that all predict with the global one; "
                    "leave the declaration out"
                )


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


def _before_aggregation(method: Method, models: Params, *_: object, clients: int) -> Faults:
    if not models:
        yield f"it returns no parameters; {_MODELS}"
    yield from _rows("'{0}'", models, clients)


def _logits(method: Method, logits: object, models: int, samples: int) -> Faults:
    wanted = (models, samples, len(method.problem.classes))
    if tuple(getattr(logits, "shape", ())) != wanted:
        yield f"it returns {kind(logits)}, not (models, samples, classes) = {wanted}"


def _rows(what: str, values: Mapping[str, object], rows: int, counted: str = "participants") -> Faults:
    """Find a value that is not a tensor, or whose first axis does not count the clients or models.

    Args:
        what, counted: parts of the sentence, with {0} for the tensor's name.
    """
    for name, value in values.items():
        axis = f"first axis counts the {rows} {counted.format(name)}"
        if not torch.is_tensor(value):
            yield f"{what.format(name)} is {kind(value)}; give a tensor whose {axis}"
        elif value.dim() == 0 or len(value) != rows:
            yield f"{what.format(name)} has shape {shape(value)}, but its {axis}"


@dataclass(frozen=True)
class Row:
    """What a hook must return.

    Attributes:
        fits, remedy: whether a result is of the right kind, and what to do if it is not.
        faults: finds what else is wrong with a result, from what the hook was given too.
        makes: the call in the hook whose line an error names.
    """

    fits: Callable[[Any], bool] = lambda result: True
    remedy: str = ""
    faults: Callable[..., Faults] = lambda *_, **beside: iter(())
    makes: str = ""


def _is(cls: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, cls)


def _are_tensors(values: object) -> bool:
    return isinstance(values, dict) and all(map(torch.is_tensor, values.values()))


def _are_texts(lines: object) -> bool:
    return isinstance(lines, (list, tuple)) and all(isinstance(line, str) for line in lines)


_MODELS = "return the parameters of the participants' models, as logits takes them"

CONTRACT = {
    "check": Row(lambda result: result is None, "raise FedLensError to refuse a config"),
    "plan_warnings": Row(_are_texts, "return a list of texts"),
    "bound_to_classes": Row(_is(str), "return a text"),
    "bound_to_clients": Row(_is(str), "return a text"),
    "reads": Row(_is(str), "return a text"),
    "init": Row(_is(State), "return State(shared={...})", _start, "State"),
    "sends": Row(_is(dict), "return tensors by name, {...}", _received),
    "round_constants": Row(
        _is(dict),
        "return tensors by name, {...}",
        lambda method, const, params, data: _rows("'{0}'", const, len(data.clients)),
    ),
    "lr_factors": Row(_is(dict), "return {name: factor}", _factors),
    "after_training": Row(faults=_held),
    "upload": Row(_is(dict), "return {name: value}", _upload),
    "before_aggregation": Row(_is(dict), _MODELS, _before_aggregation),
    "aggregate": Row(_is(State), "return replace(state, shared={...})", _aggregated, "State"),
    "diagnostics": Row(_is(dict), "return {name: value}", _diagnostics),
    "downloads": Row(
        _is(dict),
        "return {name: value}",
        lambda method, sent, state, clients, received: _sent(sent, len(clients)),
    ),
    "round_log": Row(_are_texts, "return a list of texts"),
    "models": Row(_is(Models), "return Models(global, clients)", _models, "Models"),
    "retarget": Row(_is(State), "return replace(state, shared={...})"),
    "head": Row(_are_tensors, "return tensors by name"),
    "logits": Row(faults=_logits),
}
"""The hooks of planning, then those of a round in their order; ``FirstStep`` checks a training step."""


class FirstStep:
    """The check of a method's first training step, over all its phases."""

    def __init__(self, method: Method, local: Params) -> None:
        self.method, self.local = method, set(local)
        self.trained: set[str] = set()
        self.done = False

    def phases(self, ready: Callable[[Phase], Phase]) -> tuple[Phase, ...]:
        """Return the method's phases, which are checked until each has been called once.

        Args:
            ready: makes of a phase what trains. It may hide the graph, so the phase itself is checked.
        """
        if self.done:
            return tuple(map(ready, self.method.phases))
        phases = phases_of(self.method)
        return tuple(partial(self._checked, phase, ready(phase), phase is phases[-1]) for phase in phases)

    def _checked(
        self, phase: Phase, ready: Phase, is_last: bool, params: Params, const: Params, batch: Batch
    ) -> Step:
        if self.done:
            return ready(params, const, batch)
        step = call(phase, params, const, batch)
        _refuse(phase, "Step", self._faults(step, is_last, params, batch))
        self.done = is_last
        if ready is not phase:
            del step  # with its graph, beside which there may be no memory for another
            step = ready(params, const, batch)
        return replace(step, combine=partial(_combined, phase, step.combine)) if step.guides else step

    def _faults(self, step: Step, is_last: bool, params: Params, batch: Batch) -> Faults:
        if not isinstance(step, Step):
            yield (
                f'it returns {kind(step)}; return Step({{("name", ...): loss}}), with the names of the '
                "parameters that the loss moves"
            )
        for part in ("losses", "guides", "only", "moved", "record", "terms"):
            value: object = getattr(step, part)
            if not isinstance(value, dict):
                yield f"{part} of the step is {kind(value)}; it takes values by name, {{...}}"
        if is_last and not step.losses and step.moved:
            yield 'the step has no loss, which would be recorded; return Step({("name", ...): loss})'
        rows = tuple(batch.mask.shape)
        for name, value in step.record.items():
            if not torch.is_tensor(value) or tuple(value.shape[:2]) != rows:
                yield (
                    f"the record '{name}' is {kind(value)}; give a value for every sample of the batch, "
                    f"shape (clients, batch, ...), here ({rows[0]}, {rows[1]}, ...)"
                )
        clients = len(batch.clients)
        built_in = is_built_in(self.method)  # those are compared with training one by one
        for names, loss in [*step.losses.items(), *step.guides.items()]:
            yield from _loss(names, loss, params, clients)
            if clients > 1 and not built_in:
                yield from _isolated(names, loss, params)
        trained = [name for names in step.losses for name in names]
        guided = {name for names in (*step.guides, *step.only) for name in names}
        if astray := sorted(guided.difference(trained)):
            yield (
                f"a guide, or only, is for {quoted(astray)}, which no loss moves; they change the steps of "
                "losses, so name parameters that a loss names"
            )
        moved = [*step.moved, *trained]
        if twice := sorted({name for name in moved if moved.count(name) > 1}):
            yield (
                f"{quoted(twice)} is in two losses, or in a loss and in moved, of which only one would "
                "count; name it once, with the sum of its losses"
            )
        for name, value in step.moved.items():
            if name not in params or value.shape != params[name].shape:
                held = shape(params[name]) if name in params else "no such parameter"
                yield (
                    f"moved has '{name}' with shape {shape(value)}, the clients hold {held}; moved takes new "
                    "values of parameters, with the client axis first"
                )
        for name, value in step.terms.items():
            yield from _per_client(f"the term '{name}'", value, clients)
        self.trained |= set(moved)
        sent = () if overrides(type(self.method), "upload") else self.method.shared
        left = sorted((self.local | set(sent)) - self.trained)
        if is_last and left:
            yield (
                f"no loss moves {quoted(left)}, which would stay as init made it; add it to the names of a "
                'loss, or to Step(..., moved={"name": value}) if it follows no gradient; keep what is not '
                "trained in __init__ or round_constants, not in the state"
            )


def _combined(
    phase: Phase, combine: Callable[[Params, Params], Params], gradients: Params, guides: Params
) -> Params:
    """Combine gradients as a step says, and check the result."""
    found: Params = combine(gradients, guides)
    kinds = {name: kind(value) for name, value in gradients.items()}
    if not isinstance(found, dict) or {n: kind(v) for n, v in found.items()} != kinds:
        wanted = {name: shape(value) for name, value in gradients.items()}
        fault = f"combine returns {kind(found)}; return the gradients by name, of shapes {wanted}"
        _refuse(phase, "Step", iter([fault]))
    return found


def _loss(names: tuple[str, ...], loss: Tensor, params: Params, clients: int) -> Faults:
    if not isinstance(names, tuple):
        yield f'a loss is for {names!r}, which is not a tuple of names; write ("{names}",) with a comma'
    what = f"the loss of {quoted(names)}"
    if unknown := [name for name in names if name not in params]:
        yield (
            f"{what} moves {quoted(unknown)}, but the clients hold {quoted(params)}; init decides what they "
            "hold"
        )
    yield from _per_client(what, loss, clients)
    if any(params[name].grad is not None for name in names):
        yield "it calls backward(); return the loss, which FedLens differentiates"
    if outside := [name for name in names if name not in _reached(loss, {n: params[n] for n in names})]:
        yield (
            f"{what} does not depend on {quoted(outside)}, which therefore would not train; compute the loss "
            "from params without detach(), no_grad() or item(), or define a train_step that names only what "
            "it depends on"
        )


def _isolated(names: tuple[str, ...], loss: Tensor, params: Params) -> Faults:
    """Find a loss of one client that depends on another client's parameters, such as their mean."""
    values = [params[name] for name in names]
    gradients = torch.autograd.grad(loss[0], values, retain_graph=True, allow_unused=True)
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None and bool((gradient[1:].nan_to_num() != 0).any()):
            yield (
                f"the first client's loss depends on '{name}' of other clients; the first axis of a "
                "parameter counts the clients, so average, sum or pick along the other axes only"
            )


def _per_client(what: str, value: Tensor, clients: int) -> Faults:
    if not torch.is_tensor(value) or value.shape != (clients,):
        yield (
            f"{what} is {kind(value)}, not one value per client, shape (clients,) = ({clients},); average "
            "over the samples of each client only, e.g. with cross_entropy(logits, batch.labels, "
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
