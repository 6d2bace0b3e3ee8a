"""Calls of a method's hooks: without side effects, and with errors that name file and line.

A method may be a file of the user's own. Its mistakes are told in one sentence each, in the browser too, so
nothing here loads torch before a run does.
"""

import dis
import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields
from traceback import walk_tb
from types import CodeType
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from fedcore.base.errors import FedLensError, explain, first_line
from fedcore.base.lazy import Tensor, torch
from fedcore.methods import declarations, registry
from fedcore.methods.base import Batch, FedLensMethodError, Method, Ragged, State, Uploads
from fedcore.methods.federation import Problem

Result = TypeVar("Result")
MAX_SHAPES = 8
"""Maximum number of tensors whose shapes an error of a method's own code lists."""


def make(cls: type[Method], config: BaseModel, problem: Problem) -> Method:
    """Make the method of a run, and check what its ``__init__`` has set."""
    recorded = config.model_copy(deep=True)
    method = cls(config, problem)
    fault = None
    if not hasattr(method, "config") or not hasattr(method, "problem"):
        fault = (
            "the method has no config or no problem afterwards; begin with super().__init__(config, problem)"
        )
    elif method.config != recorded:
        fault = (
            "the method has another config than the recorded one, under which its results would be shown; "
            "keep config as it is, and what follows from it in another attribute"
        )
    if fault := fault or declarations.fault_of_object(method):
        raise FedLensMethodError(f"{line_of(cls.__init__)}: {fault}")
    _check_class_features(cls.__init__, problem)
    return method


def call(hook: Callable[..., Result], *given: Any, writable: Collection[int] = ()) -> Result:
    """Call a hook of a method, and refuse side effects that would change numbers in silence.

    A tensor or dict that the hook was given may be read again: by the next hook, in the next round, or by the
    server while the clients train. Draws from a global generator are other ones in a repeated or resumed run,
    and in another process.

    Args:
        writable: positions of arguments that nobody reads again.
    """
    before = _placed(given)
    versions = [_version(tensor) for tensor in before.values()]
    draws = None if is_built_in(getattr(hook, "__self__", None)) else _global_draws()
    result = hook(*given)
    after = _placed(given)
    written = [at for at, n in zip(before, versions, strict=True) if _version(before[at]) != n]
    written += [at for at in before | after if before.get(at) is not after.get(at)]  # an entry of a dict
    if written := [at for at in written if at[0] not in writable]:
        names = list(inspect.signature(hook).parameters)  # the last may be *args
        places = {names[min(i, len(names) - 1)] + place for i, place in written}
        raise _written(hook, ", ".join(sorted(places)))
    if isinstance(problem := getattr(getattr(hook, "__self__", None), "problem", None), Problem):
        _check_class_features(hook, problem)
    if draws is not None and (drawn := [name for name, now in _global_draws().items() if now != draws[name]]):
        raise FedLensMethodError(
            f"{line_of(hook)}: it draws from the global generator of {drawn[0]}, or seeds it, so that a "
            "repeated or resumed run can have other numbers; draw with "
            'generator=self.problem.generator("purpose")'
        )
    return result


def _check_class_features(hook: Callable[..., Any], problem: Problem) -> None:
    """Refuse that a hook has written into the class features, which all methods of a problem share."""
    features = vars(problem).get("class_features")  # made when it is first read, by operations that copy
    if features is not None and _version(features):
        raise _written(hook, "self.problem.class_features")


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was written into; what ``torch.inference_mode`` makes does not count it."""
    return 0 if tensor.is_inference() else tensor._version


def _written(hook: Callable[..., Any], tensors: str) -> FedLensMethodError:
    return FedLensMethodError(
        f"{line_of(hook)}: it writes into {tensors}, which is read again; compute a new tensor, or write "
        "into a copy: value.clone(), or {**params, name: value} of a dict"
    )


def is_built_in(method: object) -> bool:
    """Return whether a method comes with FedLens, whose tests hold it to the contract."""
    return type(method).__module__.startswith("fedcore.")


def _placed(given: tuple[Any, ...]) -> dict[tuple[int, str], Tensor]:
    """Return the tensors in the arguments of a hook by the position of the argument and the place in it."""
    return {(i, place): tensor for i, value in enumerate(given) for place, tensor in _tensors(value)}


def _tensors(value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in an argument of a hook, with the place of each in it."""
    if torch.is_tensor(value):
        yield "", value
    elif isinstance(value, dict):
        for name, part in value.items():
            for place, tensor in _tensors(part):
                yield f"['{name}']{place}", tensor
    elif isinstance(value, (State, Batch, Uploads, Ragged)):
        for field in fields(value):
            for place, tensor in _tensors(getattr(value, field.name)):
                yield f".{field.name}{place}", tensor


def _global_draws() -> dict[str, object]:
    """Return the states of the generators that a method must not draw from."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002, which draws nothing
    return {
        "torch": torch.random.get_rng_state().numpy().tobytes(),
        "numpy": (name, np.asarray(keys).tobytes(), *rest),
        "random": random.getstate(),
    }


@contextmanager
def faults_named(method: str) -> Iterator[None]:
    """Name the file and line in an error that a method's own code raises.

    Errors of the machine (a full disk, no memory, a GPU) pass unchanged, as do errors without a line of the
    method's file in their traceback.
    """
    try:
        yield
    except FedLensError:
        raise
    except (Exception, SystemExit) as error:
        place, shapes = _last_line(registry.registered().get(method), error)
        if place is None or explain(error, None) is not None:
            raise
        said = f"{place}: the method '{method}' raised {first_line(error)}"
        if shapes and isinstance(error, (RuntimeError, IndexError)):  # what torch raises for shapes
            said += f"; the shapes there are {shapes}. The first axis counts clients, or models in logits"
        elif shapes and isinstance(error, KeyError):
            said += f"; what there is: {shapes}"
        elif isinstance(error, AttributeError) and isinstance(
            of := error.obj, (BaseModel, Batch, Problem, State, Uploads)
        ):
            names = getattr(type(of), "model_fields", [name for name in dir(of) if not name.startswith("_")])
            said += f"; it has {', '.join(names)}"
        raise FedLensMethodError(said) from error


def _last_line(cls: type[Method] | None, error: BaseException) -> tuple[str | None, str]:
    """Return the innermost line of a method's file in an error's traceback, or None, and its tensors."""
    if isinstance(error.__cause__, StopIteration):  # Python replaces it where it leaves a generator
        error = error.__cause__
    classes = [c for c in cls.__mro__ if issubclass(c, Method) and c is not Method] if cls is not None else []
    files = {getattr(sys.modules.get(c.__module__), "__file__", None) for c in classes}
    every = list(walk_tb(error.__traceback__))
    if isinstance(error, SystemExit):  # by a handler of a signal it ends the process, wherever that was
        every = every[-1:]
    lines = [(f, line) for f, line in every if f.f_code.co_filename in files]
    if not lines:
        return None, ""
    frame, line = lines[-1]
    known = frame.f_locals.items() if "torch" in sys.modules else ()
    shapes = [f"{name}{place} {shape(tensor)}" for name, value in known for place, tensor in _tensors(value)]
    return place_of(frame.f_code, line), ", ".join(shapes[:MAX_SHAPES])


def line_of(function: Callable[..., object], makes: str = "") -> str:
    """Return file, line and name of a function; the line that calls ``makes``, if exactly one does."""
    plain = inspect.unwrap(function)
    code: CodeType | None = getattr(getattr(plain, "__func__", plain), "__code__", None)
    if code is None:
        return getattr(function, "__name__", type(function).__name__)
    lines = {i.positions.lineno for i in dis.get_instructions(code) if i.argval == makes and i.positions}
    (line,) = lines if len(lines) == 1 else (code.co_firstlineno,)
    return place_of(code, line)


def place_of(code: CodeType, line: int | None) -> str:
    """Return file, line and name of code."""
    return f"{code.co_filename}:{line}, in {code.co_name}"


def quoted(names: object) -> str:
    """Return names as quoted in a sentence: 'a', 'b'."""
    return ", ".join(f"'{name}'" for name in names) or "nothing"  # type: ignore[attr-defined]


def shape(value: Tensor) -> str:
    """Return a shape as a sentence writes it."""
    return str(tuple(value.shape))


def kind(value: object) -> str:
    """Return the kind of a value in words."""
    if "torch" in sys.modules and torch.is_tensor(value):
        return f"a tensor of shape {shape(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
