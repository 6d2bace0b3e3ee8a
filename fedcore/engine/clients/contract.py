"""The contract of a method, checked during the first step of a run; faults are reported by file and line.

The first real step is checked rather than a trial before the run, because it costs no extra pass and sees
the real parameters and samples. Later steps are not checked, because walking the autograd graph can take
longer than a small step. The check looks at shapes, names and the graph rather than at values: a gradient
may well be zero in the first step (LoRA's A while B is zero), but a parameter outside the graph would never
train. Only whether a client's loss depends on another client's parameters is read from a gradient.
"""

import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from traceback import walk_tb
from types import CodeType

from fedcore.errors import FedLensError, explain, first_line
from fedcore.lazy import Tensor, torch
from fedcore.methods import declarations, registry
from fedcore.methods.base import (
    STATE_PARTS,
    Batch,
    FedLensMethodError,
    Method,
    Models,
    Params,
    Phase,
    State,
    Step,
    overrides,
)

MAX_SHAPES = 8
"""Maximum number of tensors whose shapes an error of a method's own code lists."""


def check_state(method: Method, state: object) -> State:
    """Check the state before round 1, and return it."""
    where = _line_of(method.init, "State")
    if fault := declarations.fault_of_object(method):
        raise FedLensMethodError(f"{_line_of(type(method).__init__)}: {fault}")
    if not isinstance(state, State):
        raise FedLensMethodError(f"{where}: it returns {_kind(state)}; return State(shared={{...}})")
    _check_parts(where, state)
    clients = len(method.problem.clients)
    _check_rows(where, "the personal '{0}'", state.personal, clients, "clients")
    remedy = "; write State(local=self.repeat({{'{0}': value}})) to give all clients the same start"
    _check_rows(where, "the local '{0}'", state.local, clients, "clients" + remedy)
    averages = method.trains and not overrides(type(method), "upload", "aggregate")
    if averages and set(method.shared) != set(state.shared):
        raise FedLensMethodError(
            f"{where}: the state shares {_names(state.shared)}, but {type(method).__name__}.shared names "
            f"{_names(method.shared)}, which are sent and averaged; name the same parameters in both"
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
                f"{where}: State.{part} is {_kind(values)}; it takes tensors by name, {part}={{...}}"
            )
        for name, value in values.items():
            if not isinstance(name, str) or not torch.is_tensor(value):
                raise FedLensMethodError(
                    f"{where}: State.{part} has {name!r}: {_kind(value)}; it takes tensors by name"
                )
        names += values if part != "server" else ()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FedLensMethodError(
            f"{where}: {_names(twice)} is in two parts of the state, of which clients would hold one; give "
            "each a different name"
        )


def _check_declared_names(where: str, method: Method, state: State) -> None:
    """Refuse ``client_rows`` and ``class_axes`` for other parameters than the state has."""
    own = type(method).__name__
    rows = sorted(set(method.client_rows) - {*state.personal, *state.server})
    if rows:
        raise FedLensMethodError(
            f"{where}: {own}.client_rows names {_names(rows)}, but the personal and server parts have "
            f"{_names([*state.personal, *state.server])}; name parameters of these parts"
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
        if name not in held:
            found = f"the state has {_names(held)}"
        elif held[name].dim() < -axis or held[name].shape[axis] != classes:
            found = f"'{name}' has shape {_shape(held[name])} and there are {classes} classes"
        else:
            continue
        raise FedLensMethodError(
            f"{where}: {own}.class_axes says that axis {axis} of '{name}' counts the classes, but {found}; "
            "declare parameters with an entry for each class, and the axis from the end"
        )


class FirstStep:
    """The check of a method's first training step, over all its phases."""

    def __init__(self, method: Method, local: Params) -> None:
        self.method, self.local = method, set(local)
        self.trained: set[str] = set()
        self.done = False

    def phases(self) -> tuple[Phase, ...]:
        """Return the method's phases, which are checked until each has been called once."""
        phases = self.method.phases
        if self.done:
            return phases
        return tuple(partial(self._checked, phase, phase is phases[-1]) for phase in phases)

    def _checked(self, phase: Phase, is_last: bool, params: Params, const: Params, batch: Batch) -> Step:
        step = phase(params, const, batch)
        if self.done:
            return step
        where = _line_of(phase, "Step")
        if not isinstance(step, Step):
            raise FedLensMethodError(
                f'{where}: it returns {_kind(step)}; return Step({{("name", ...): loss}}), with the names of '
                "the parameters that the loss moves"
            )
        clients = len(batch.clients)
        built_in = type(self.method).__module__.startswith("fedcore.")  # compared with training one by one
        for names, loss in [*step.losses.items(), *step.guides.items()]:
            _check_loss(where, names, loss, params, clients)
            if clients > 1 and not built_in:
                _check_isolated(where, names, loss, params)
        trained = {name for names in step.losses for name in names}
        astray = sorted({name for names in step.guides for name in names} - trained)
        if astray:
            raise FedLensMethodError(
                f"{where}: a guide is for {_names(astray)}, which no loss moves; guides change the gradients "
                "of losses, so name parameters that a loss names"
            )
        moved = [*step.moved, *(name for names in step.losses for name in names)]
        twice = {name for name in moved if moved.count(name) > 1}
        if twice:
            raise FedLensMethodError(
                f"{where}: {_names(sorted(twice))} is in two losses, or in a loss and in moved, of which "
                "only one would count; name it once, with the sum of its losses"
            )
        for name, value in step.moved.items():
            if name not in params or value.shape != params[name].shape:
                held = _shape(params[name]) if name in params else "no such parameter"
                raise FedLensMethodError(
                    f"{where}: moved has '{name}' with shape {_shape(value)}, the clients hold {held}; moved "
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
                f"{where}: no loss moves {_names(left)}, which would stay as init made it; add it to the "
                'names of a loss, or to Step(..., moved={"name": value}) if it follows no gradient; '
                "keep what is not trained in __init__ or round_constants, not in the state"
            )
        return step


def check_after_training(method: Method, held: object, trained: Params) -> Params:
    """Check what the participants hold after training, and return it."""
    if not overrides(type(method), "after_training"):
        return trained
    wanted = {name: _shape(value) for name, value in trained.items()}
    found = {n: _kind(v) for n, v in held.items()} if isinstance(held, dict) else _kind(held)
    if found != {name: f"a tensor of shape {shape}" for name, shape in wanted.items()}:
        raise FedLensMethodError(
            f"{_line_of(method.after_training)}: it returns {found}, but the participants hold {wanted}; "
            "return the same names and shapes"
        )
    return held  # type: ignore[return-value]


def check_upload(method: Method, sent: object, received: Params, clients: int) -> None:
    """Check what the participants send; the server's default step averages the shared parameters of it."""
    if not overrides(type(method), "upload"):
        return
    where = _line_of(method.upload)
    if not isinstance(sent, dict):
        raise FedLensMethodError(f"{where}: it returns {_kind(sent)}; return {{name: value}}")
    _check_rows(where, "'{0}'", sent, clients)
    if overrides(type(method), "aggregate"):
        return
    for name in method.shared:
        value, wanted = sent.get(name), (clients, *received[name].shape[1:])
        if not torch.is_tensor(value) or tuple(value.shape) != wanted:
            found = "does not send it" if value is None else f"sends {_kind(value)}"
            raise FedLensMethodError(
                f"{where}: the server averages the shared '{name}', of shape {wanted}, but upload {found}; "
                "send it, or write the server's step in aggregate"
            )


def check_aggregated(method: Method, after: object, before: State, clients: int) -> State:
    """Check the state that the server's step makes, and return it."""
    where = _line_of(method.aggregate, "State")
    if not isinstance(after, State):
        raise FedLensMethodError(f"{where}: it returns {_kind(after)}; return replace(state, shared={{...}})")
    for name, value in before.shared.items():
        found = after.shared.get(name)
        if found is None or found.shape != value.shape:
            held = "is missing" if found is None else f"has shape {_shape(found)}"
            raise FedLensMethodError(
                f"{where}: the shared '{name}' {held} after the server's step, but had shape "
                f"{_shape(value)} before it; return all shared parameters"
            )
    rows = {n: v for n, v in (after.personal | after.server).items() if n in method.client_rows}
    _check_rows(where, "'{0}', one of client_rows,", rows, clients)
    return after


def check_models(method: Method, models: object) -> Models:
    """Check the models that are evaluated, and return them."""
    where, clients = _line_of(method.models, "Models"), len(method.problem.clients)
    if not isinstance(models, Models):
        raise FedLensMethodError(f"{where}: it returns {_kind(models)}; return Models(global, clients)")
    _check_rows(where, "'{0}' of the global model", models.global_model or {}, 1, "model")
    _check_rows(where, "'{0}' of the clients' models", models.clients, clients, "clients")
    return models


def check_before_aggregation(method: Method, models: object, clients: int) -> Params:
    """Check the participants' models before aggregation, and return them."""
    if not overrides(type(method), "before_aggregation"):
        return models  # type: ignore[return-value]
    where = _line_of(method.before_aggregation)
    if not isinstance(models, dict) or not models:
        raise FedLensMethodError(
            f"{where}: it returns {_kind(models) if models != {} else 'no parameters'}; return the "
            "parameters of the participants' models, as logits takes them"
        )
    _check_rows(where, "'{0}'", models, clients)
    return models


def _check_rows(
    where: str, what: str, values: Mapping[str, object], rows: int, counted: str = "participants"
) -> None:
    """Refuse a tensor whose first axis does not count the clients or models.

    Args:
        what, counted: parts of the sentence, with {0} for the tensor's name.
    """
    for name, value in values.items():
        if torch.is_tensor(value) and (value.dim() == 0 or len(value) != rows):
            raise FedLensMethodError(
                f"{where}: {what.format(name)} has shape {_shape(value)}, but its first axis counts the "
                f"{rows} {counted.format(name)}"
            )


class GlobalModel(dict[str, "Tensor"]):
    """The parameters of the global model; a missing one is reported with the remedy."""

    def __missing__(self, name: str) -> Tensor:
        frame = sys._getframe(1)
        raise FedLensMethodError(
            f"{_place(frame.f_code, frame.f_lineno)}: the global model has no '{name}', only "
            f"{_names(self)}: what is local stays with its client. Predict without it there "
            f'(if "{name}" in params: ...), or declare that there is no global model: def models(self, '
            "state): return Models(None, {**self.repeat(state.shared), **state.local})"
        )


def check_logits(method: Method, logits: Tensor, models: int, samples: int) -> None:
    """Check the shape of class scores."""
    wanted = (models, samples, len(method.problem.classes))
    if tuple(getattr(logits, "shape", ())) != wanted:
        raise FedLensMethodError(
            f"{_line_of(method.logits)}: it returns {_kind(logits)}, not (models, samples, classes) = "
            f"{wanted}"
        )


@contextmanager
def faults_named(method: str) -> Iterator[None]:
    """Name the file and line in an error that a method's own code raises.

    Errors of the machine (a full disk, no memory) pass unchanged, as do errors without a line of the method's
    file in their traceback.
    """
    try:
        yield
    except FedLensError:
        raise
    except Exception as error:
        place, shapes = _last_line(registry.registered().get(method), error)
        of_machine = explain(error, None) is not None or isinstance(
            error, (MemoryError, torch.OutOfMemoryError)
        )
        if place is None or of_machine:
            raise
        said = f"{place}: the method '{method}' raised {first_line(error)}"
        if shapes and isinstance(error, (RuntimeError, IndexError)):  # what torch raises for shapes
            said += f"; the shapes there are {shapes}. The first axis counts clients, or models in logits"
        raise FedLensMethodError(said) from error


def _last_line(cls: type[Method] | None, error: BaseException) -> tuple[str | None, str]:
    """Return the innermost line of a method's file in an error's traceback, or None, and its tensors."""
    classes = [c for c in cls.__mro__ if issubclass(c, Method) and c is not Method] if cls is not None else []
    files = {getattr(sys.modules.get(c.__module__), "__file__", None) for c in classes}
    lines = [(f, line) for f, line in walk_tb(error.__traceback__) if f.f_code.co_filename in files]
    if not lines:
        return None, ""
    frame, line = lines[-1]
    shapes = []
    for name, value in frame.f_locals.items():
        if torch.is_tensor(value):
            shapes.append(f"{name} {_shape(value)}")
        elif isinstance(value, dict):
            shapes += [f"{name}['{k}'] {_shape(v)}" for k, v in value.items() if torch.is_tensor(v)]
    return _place(frame.f_code, line), ", ".join(shapes[:MAX_SHAPES])


def _check_loss(where: str, names: tuple[str, ...], loss: Tensor, params: Params, clients: int) -> None:
    if not isinstance(names, tuple):
        raise FedLensMethodError(
            f"{where}: a loss is for {names!r}, which is not a tuple of names; "
            f'write ("{names}",) with a comma'
        )
    what = f"the loss of {_names(names)}"
    unknown = [name for name in names if name not in params]
    if unknown:
        raise FedLensMethodError(
            f"{where}: {what} moves {_names(unknown)}, but the clients hold {_names(params)}; init decides "
            "what they hold"
        )
    _check_per_client(where, what, loss, clients)
    outside = [name for name in names if name not in _reached(loss, {n: params[n] for n in names})]
    if outside:
        raise FedLensMethodError(
            f"{where}: {what} does not depend on {_names(outside)}, which therefore would not train; "
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
            f"{where}: {what} is {_kind(value)}, not one value per client, shape (clients,) = ({clients},); "
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


def _line_of(function: Callable[..., object], makes: str = "") -> str:
    """Return file, line and name of a function; the line that calls ``makes``, if exactly one does."""
    plain = inspect.unwrap(function)
    code: CodeType | None = getattr(getattr(plain, "__func__", plain), "__code__", None)
    if code is None:
        return getattr(function, "__name__", type(function).__name__)
    lines = {i.positions.lineno for i in dis.get_instructions(code) if i.argval == makes and i.positions}
    (line,) = lines if len(lines) == 1 else (code.co_firstlineno,)
    return _place(code, line)


def _place(code: CodeType, line: int | None) -> str:
    return f"{code.co_filename}:{line}, in {code.co_name}"


def _names(names: object) -> str:
    """Return names as quoted in a sentence: 'a', 'b'."""
    return ", ".join(f"'{name}'" for name in names) or "nothing"  # type: ignore[attr-defined]


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def _kind(value: object) -> str:
    return f"a tensor of shape {_shape(value)}" if torch.is_tensor(value) else f"a {type(value).__name__}"
