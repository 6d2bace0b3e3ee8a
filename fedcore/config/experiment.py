"""Experiments from plain values and TOML files, and the runs that follow from them."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedcore.config import former_names, sweeps
from fedcore.config.models import Experiment, RunConfig
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.registry import first_error
from fedcore.paths import read_text


def parse(content: dict[str, Any]) -> Experiment:
    """Return the experiment that plain values describe, with its sweep checked.

    Raises:
        FedLensError: naming the first field that is wrong.
    """
    if isinstance(content, dict) and content.get("sweep"):
        content = sweeps.normalised(content)
    with named_errors():
        return Experiment.model_validate(content)


@contextmanager
def named_errors(field: str = "") -> Iterator[None]:
    """Turn pydantic's errors into one line about the first wrong field, whose name begins with ``field``."""
    try:
        yield
    except ValidationError as error:
        raise first_error(error, field) from error


def load(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file.

    Raises:
        FedLensError: when the file is missing, is not TOML, or has a wrong field.
    """
    return loads(read_text(path, "an experiment file", None), str(path))


def loads(text: str, where: str = "the TOML text") -> Experiment:
    """Read an experiment from TOML text.

    Raises:
        FedLensError: when the text is not TOML or has a wrong field.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own, and a number of too many digits
        raise FedLensError(f"{where} is not valid TOML: {error}") from error
    if former := former_names.notice(content):
        warnings.warn(f"{where}: {former}", FutureWarning, stacklevel=2)
    return parse(content)


def dumps(experiment: Experiment) -> str:
    """Write an experiment as TOML text that ``loads`` reads back to an equal one.

    A hyper-parameter that is None is left out where None is its default.

    Raises:
        FedLensError: for any other None among the hyper-parameters: TOML has no word for it.
    """
    for i, entry in enumerate(experiment.methods):
        known = registry.known().get(entry.name)
        for name, value in entry.config.items():
            field = known.Config.model_fields.get(name) if known is not None and value is None else None
            if _holds_none(value) or (field is not None and field.get_default() is not None):
                raise FedLensError(
                    "a TOML file cannot hold None; give a value, or leave the field out",
                    f"methods.{i}.config.{name}",
                )
    content = experiment.model_dump(mode="json", exclude_none=True)
    for name in ("sweep", "cohorts", "reproduces"):
        if not content[name]:
            del content[name]
    if experiment.keep_checkpoints == Experiment.model_fields["keep_checkpoints"].default:
        del content["keep_checkpoints"]
    for entry in content["methods"]:
        entry["config"] = {name: value for name, value in entry["config"].items() if value is not None}
    return tomli_w.dumps(content)


def _holds_none(value: object) -> bool:
    """Return whether a list or table has None somewhere within it."""
    if not isinstance(value, (dict, list, tuple)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(item is None or _holds_none(item) for item in items)


def expand(experiment: Experiment, domains: tuple[str, ...] = ()) -> list[RunConfig]:
    """Return the runs of an experiment.

    The nesting, from the outside: held-out domain, seed, combination of swept values, method.

    Args:
        domains: the data set's domains, for ``held_out = ["each"]``.

    Raises:
        FedLensError: for a sweep that does not fit the experiment.
    """
    each = experiment.held_out == ("each",)
    held_out: tuple[str | None, ...] = domains if each else experiment.held_out or (None,)
    variants = sweeps.variants(experiment)
    return [
        RunConfig(**variant.shared, method=variant.entry, seed=seed, held_out=domain)
        for domain in held_out
        for seed in experiment.seeds
        for variant in variants
    ]
