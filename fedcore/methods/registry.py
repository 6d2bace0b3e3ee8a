"""Methods register by name with the decorator ``@method``: those of this package, and those of the user."""

import csv
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedcore.base import consent
from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.files import ASSETS, user_path
from fedcore.base.presentation import built_in
from fedcore.base.progress import shortened
from fedcore.methods import declarations
from fedcore.methods.base import Method
from fedcore.methods.hyperparameters import MethodConfig, check_number

PLAIN = {
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_type": "must be a text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} value",
    "too_long": "must have at most {max_length} values",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a table of names and values",
    "model_type": "must be a table of names and values",
    "missing": "is missing",
}
"""Our words for pydantic's errors, by the beginning of their type."""
ROUNDING = ASSETS / "rounding.csv"
"""What TF32 and bf16 change in each method, as ``tools.benchmarks.rounding`` has measured it."""
LONGEST_VALUE = 60
"""Characters of a refused value that an error repeats."""
_METHODS: dict[str, type[Method]] = {}
_FILES: dict[str, str] = {}


def method(cls: type[Method] | None = None) -> type[Method]:
    """Class decorator: register a method under its ``name``.

    A class with a public member outside the contract is refused, since that is most likely a misspelt hook,
    which the engine would never call; so are a hook that cannot be called with the arguments of the contract
    and a declaration that has a wrong value.
    """
    if not (
        isinstance(cls, type) and issubclass(cls, Method) and isinstance(getattr(cls, "name", None), str)
    ):
        raise FedLensError(
            f"@method takes no arguments and stands above a subclass of Method with a name; this is {cls!r}",
            "methods",
        )
    ours, other = built_in().get(cls.name), _METHODS.get(cls.name)  # ours need not be loaded
    if ours is not None and ours.module == cls.__module__:
        cls.about = replace(cls.about, title=ours.title)
    if fault := declarations.fault_of_class(cls):
        raise FedLensError(f"method '{cls.name}' does not keep the contract: {fault}", "methods")
    taken = ours.module if ours is not None else cls.__module__ if other is None else other.__module__
    if taken != cls.__module__:
        raise FedLensError(f"two methods are called '{cls.name}' ({taken}, {cls.__module__}); rename one")
    _METHODS[cls.name] = cls
    return cls


def load_file(path: str | Path) -> list[str]:
    """Load methods from a Python file that the user names, and return the names that it registered.

    The file may be an encoder instead, to which the user agrees by naming it; then it has none.
    """
    file, content = consent.read(path)
    consent.agree(file, consent.digest(content))
    return _run(file, content)


def load_agreed(path: str | Path, sha256: str | None = None) -> list[str]:
    """Load methods from a file that an experiment names, and return the names that it registered.

    Args:
        sha256: of the content that a run was planned with.

    Raises:
        NotAgreed: when the user has not agreed to run the file as it is now.
    """
    return _run(*consent.agreed(path, sha256))


@cache
def unchanged_by_tf32(field: str) -> frozenset[str]:
    """Return the methods in which TF32 changed no count of correct predictions in the demonstration.

    Args:
        field: ``arithmetic`` of local training, or ``precision`` of the image encoder.
    """
    with ROUNDING.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["field"], row["value"]) == (field, "tf32")]
    return frozenset(row["method"] for row in rows if row["counts_changed"] == "0")


def forget_received() -> None:
    """Unregister the methods that came with earlier runs, so that the next run may use their names."""
    files = {str(file) for file in consent.RECEIVED}
    for name in [name for name, file in _FILES.items() if file in files]:
        del _FILES[name]
        sys.modules.pop(_METHODS.pop(name).__module__, None)
    consent.RECEIVED.clear()


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a method file's content."""
    return consent.digest(consent.read(path)[1])


def _run(file: Path, content: bytes) -> list[str]:
    """Run a method file's content, and return the names of the methods that it registered."""
    before = set(_METHODS)
    module = consent.run(file, content)
    names = [
        name
        for name, cls in _METHODS.items()
        if cls.__module__ == module.__name__
        or (name not in before and not cls.__module__.startswith("fedcore."))  # one of ours that it imports
    ]
    if not names and not callable(getattr(module, "encode", None)):
        raise FedLensError(f"{file} registers no method; put @method above a Method class", "methods")
    _FILES.update({n: str(file) for n in names})
    return names


def load_all() -> dict[str, type[Method]]:
    """Load the methods of FedLens, and those of the files in FEDLENS_METHODS (a list like PATH).

    Baselines come last.
    """
    load_built_in()
    _load_named_files()
    return dict(sorted(_METHODS.items(), key=lambda item: (".baselines." in item[1].__module__, item[0])))


def _load_named_files() -> None:
    for path in filter(None, os.environ.get("FEDLENS_METHODS", "").split(os.pathsep)):
        if str(user_path(path, "methods").resolve()) not in _FILES.values():
            load_file(path)


@cache
def load_built_in() -> None:
    """Load the methods of FedLens."""
    for listed in built_in().values():
        importlib.import_module(listed.module)


@cache
def load_once(load: Callable[[], object]) -> None:
    """Load once: loading searches for files, and a page needs thousands of titles."""
    with suppress(FedLensError):  # an invalid method file is reported where methods are chosen
        load()


def loaded() -> dict[str, type[Method]]:
    """Return all methods by name, loaded by the first call."""
    load_once(load_all)
    return registered()


def registered() -> dict[str, type[Method]]:
    """Return the methods registered so far; unlike ``load_all`` it imports nothing."""
    return dict(_METHODS)


def find(name: str) -> type[Method] | None:
    """Return a method by name, or None; of the methods of FedLens, only this one is loaded."""
    if name not in _METHODS and name in built_in():
        importlib.import_module(built_in()[name].module)
    elif name not in _METHODS:
        load_once(_load_named_files)
    return _METHODS.get(name)


def get(name: str, field: str = "methods") -> type[Method]:
    """Return a method by name; ``field`` is named by the error for an unknown one."""
    if name not in _METHODS and name not in built_in():
        _load_named_files()
    found = find(name)
    if found is None:
        known = list(dict.fromkeys([*built_in(), *_METHODS]))
        hint = did_you_mean(name, known, "choose from " + ", ".join(known))
        raise FedLensError(f"unknown method '{name}'; {hint}", field)
    return found


def title(name: str) -> str:
    """Return a method's title, for which none of ours is loaded; its name if it is not known here."""
    if name in built_in():
        return built_in()[name].title
    found = find(name)
    return name if found is None else found.about.title


def file_of(name: str) -> str | None:
    """Return the file outside the package that a method came from, or None."""
    return _FILES.get(name)


def build_config(name: str, values: dict[str, object], field: str = "methods") -> MethodConfig:
    """Return a method's checked config; an error names ``field.<hyper-parameter>`` and what is allowed."""
    cls = get(name, field)
    for key in values.keys() & cls.Config.model_fields.keys():
        try:
            check_number(values[key], cls.Config.model_fields[key].annotation)
        except ValueError as error:
            raise FedLensError(str(error), f"{field}.{key}") from error
    try:
        return cast("MethodConfig", cls.Config(**values))  # only methods that train read its fields
    except ValidationError as error:
        raise first_error(error, field, list(cls.Config.model_fields)) from error


def first_error(error: ValidationError, prefix: str = "", fields: Sequence[str] = ()) -> FedLensError:
    """Return pydantic's first error in one line: the field, what is allowed, and the value given.

    Args:
        fields: the valid names, to suggest one for an unknown field.
    """
    detail = error.errors(include_url=False)[0]
    field = ".".join([p for p in (prefix, *map(str, detail["loc"])) if p]) or None
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, FedLensError) and cause.field:  # a check that named the field itself
        return cause
    if detail["type"] == "extra_forbidden":
        hint = did_you_mean(str(detail["loc"][-1]), fields, "see `fedlens methods` or docs for the names")
        return FedLensError(f"no such field; {hint}", field)
    given = detail.get("input")
    shown = (
        f" (got {shortened(repr(given), LONGEST_VALUE)})"
        if isinstance(given, (str, int, float, bool))
        else ""
    )
    return FedLensError(_plain(detail) + shown, field)


def _plain(detail: ErrorDetails) -> str:
    """Return pydantic's message in plain words."""
    kind, bounds = detail["type"], detail.get("ctx", {})
    if kind in ("tuple_type", "list_type") and isinstance(detail["input"], dict) and detail["loc"]:
        return (
            f"must be a list; in a TOML file its tables begin with [[{detail['loc'][-1]}]], in two brackets"
        )
    for prefix, words in PLAIN.items():
        if kind.startswith(prefix):
            return words.format(**bounds)
    return detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
