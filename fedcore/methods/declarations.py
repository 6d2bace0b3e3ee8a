"""What is wrong with a method class: its hooks and declarations are checked before anything reads them.

The engine calls hooks by their names, and compares a declaration such as ``batch_order`` with other values or
asks only whether it is true, so that a wrong one would change what a run does without a word.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from types import FunctionType
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from fedcore.base.errors import did_you_mean
from fedcore.base.presentation import About
from fedcore.base.progress import shortened
from fedcore.methods.base import BatchOrder, Method
from fedcore.methods.hyperparameters import MethodConfig, check_number


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and value == value.strip() != ""


def _are_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


def _are_axes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and type(axis) is int and axis < 0 for name, axis in value.items()
    )


_BACKBONES: tuple[str, ...] = get_args(get_args(get_type_hints(Method)["backbones"])[0])
_DECLARATIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_name, 'a text without spaces around it, e.g. "fedot"'),
    "about": (lambda value: isinstance(value, About), "About(title=..., source=..., summary=...)"),
    "Config": (
        lambda value: isinstance(value, type) and issubclass(value, BaseModel),
        "a subclass of MethodConfig, not an object of it",
    ),
    "trains": (lambda value: isinstance(value, bool), "True or False"),
    "shared": (_are_names, 'names of parameters, e.g. ("prompt",) with a comma'),
    "client_rows": (_are_names, 'names of parameters, e.g. ("prompts",) with a comma'),
    "clients_use_global": (lambda value: isinstance(value, bool), "True or False"),
    "backbones": (lambda value: value in _BACKBONES, "one of " + ", ".join(map(repr, _BACKBONES))),
    "class_axes": (_are_axes, 'the axis of the classes by parameter, from the end, e.g. {"weight": -2}'),
    "batch_order": (
        lambda value: value is None or value in get_args(BatchOrder),
        "one of " + ", ".join(map(repr, (*get_args(BatchOrder), None))),
    ),
}
"""What each declaration may be: a test of a value, and the same in words."""
_LONGEST_VALUE = 80
"""Characters of a refused value that an error repeats."""
_MEMBERS = frozenset(name for name in (*vars(Method), *Method.__annotations__) if not name.startswith("_"))
"""Public members of a method class: the hooks and declarations of ``Method``."""


def fault_of_class(cls: type[Method]) -> str:
    """Return what is wrong with the hooks and declarations of a method class; empty if nothing is.

    A property has its value when the method has been made (``fault_of_object``).
    """
    values = {name: getattr(cls, name, None) for name in _DECLARATIONS}
    fixed = {name: value for name, value in values.items() if not isinstance(value, property)}
    return _fault_of_members(cls) or _fault(cls, fixed) or _fault_of_about(cls) or _fault_of_config(cls)


def _fault_of_members(cls: type[Method]) -> str:
    """Return which public member of a method class FedLens would ignore or call otherwise; else empty."""
    for base in (base for base in cls.__mro__ if base not in Method.__mro__):
        for name in (name for name in vars(base) if not name.startswith("_")):
            if name not in _MEMBERS:
                hint = did_you_mean(name, _MEMBERS, "fedcore/methods/base.py lists the hooks")
                hint = f"{hint} (the name of a helper begins with an underscore)"
                return f"FedLens would never use {base.__name__}.{name}; {hint}"
            is_replaced = vars(base)[name] is not inspect.getattr_static(cls, name)  # by a subclass
            if not is_replaced and (fault := _called_otherwise(base, name)):
                return f"FedLens {fault.format(base.__name__)}"
    return ""


def _called_otherwise(base: type, name: str) -> str:
    """Return how FedLens calls a hook, if a class defines it for other arguments; else an empty text."""
    given, hook = vars(base)[name], getattr(Method, name, None)
    if not isinstance(given, FunctionType | classmethod):
        return ""
    if not callable(hook):
        return f"reads {{}}.{name} as a value, but it is defined as a function"
    of_class = inspect.ismethod(hook)
    wanted = [part for part in inspect.signature(hook).parameters if part != "self"]
    function = given.__func__ if isinstance(given, classmethod) else given
    try:
        inspect.signature(function, follow_wrapped=False).bind(None, *wanted)
        fits = isinstance(given, classmethod) or not of_class
    except TypeError:
        fits = False
    if fits:
        return ""
    arguments = ", ".join(["cls" if of_class else "self", *wanted])
    kind = "as a class method (@classmethod)" if of_class else "as a method"
    return f"calls {{}}.{name}({arguments}) {kind}, but it is defined otherwise"


def fault_of_object(method: Method) -> str:
    """Return what is wrong with the declarations of a method that was made for a run; empty if nothing is."""
    return _fault(type(method), {name: getattr(method, name) for name in _DECLARATIONS})


def _fault(cls: type[Method], values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        is_allowed, wanted = _DECLARATIONS[name]
        if not is_allowed(value):
            return f"{cls.__name__}.{name} is {_said(value)}; declare {wanted}"
    return ""


def _fault_of_about(cls: type[Method]) -> str:
    """Return what is wrong inside of a presentation; otherwise the first page that draws it would fail."""
    if isinstance(cls.about, property):
        return f"{cls.__name__}.about is a property; pages read it from the class, so declare About(...)"
    try:
        _about().validate_python(asdict(cls.about))
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        return f"{cls.__name__}.about.{place} is wrong: {found['msg']} (got {_said(found['input'])})"
    for i, diagnostic in enumerate(cls.about.charts):
        if not diagnostic.lines:
            return f"{cls.__name__}.about.charts.{i} has no lines; name the recorded values, {{name: line}}"
    fields = getattr(cls.Config, "model_fields", {})
    for i, chart in enumerate(cls.about.field_charts):
        for name in (chart.over, *chart.only):
            if name not in fields:
                hint = did_you_mean(name, fields, "choose from " + ", ".join(fields))
                return f"{cls.__name__}.about.field_charts.{i} names {name!r}, no field of Config; {hint}"
    return "" if cls.about.title.strip() else f"{cls.__name__}.about.title is empty; give its name on pages"


@cache
def _about() -> TypeAdapter[About]:
    return TypeAdapter(About)


def _fault_of_config(cls: type[Method]) -> str:
    """Return what is wrong with the hyper-parameters' class: pydantic does not look at defaults."""
    config = cls.Config
    if cls.trains and not issubclass(config, MethodConfig):
        return (
            f"{cls.__name__}.Config is {config.__name__}, which has no learning rate; derive it from "
            "MethodConfig, or declare trains = False"
        )
    fields = {name: field for name, field in config.model_fields.items() if not field.is_required()}
    for name, field in fields.items():
        if field.default_factory_takes_validated_data:
            return (
                f"the default of {config.__name__}.{name} follows from other fields, which forms cannot "
                "show; give a value, such as None, and compute what it stands for in the method"
            )
    values = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    reason, place = "", ""
    try:
        for place, value in values.items():
            check_number(value, fields[place].annotation)
        made = config.model_validate(values)
        made.model_dump_json()
    except ValidationError as error:
        # Errors without a field come from a check of several fields, which every experiment makes.
        of_fields = [found for found in error.errors() if found["loc"] and found["loc"][0] in fields]
        if of_fields:
            place, reason = str(of_fields[0]["loc"][0]), of_fields[0]["msg"]
    except PydanticSerializationError as error:
        return (
            f"a default of {config.__name__} cannot be stored: {error}; take numbers, texts and lists of them"
        )
    except ValueError as error:
        reason = str(error)
    if not reason:
        return ""
    return f"the default of {config.__name__}.{place} is {_said(values[place])}, which is refused: {reason}"


def _said(value: object) -> str:
    return shortened(repr(value), _LONGEST_VALUE)
