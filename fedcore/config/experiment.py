"""Read experiments from plain values and TOML files, and expand them into runs.

An error for an unknown field names the table where the field belongs, or the most similar name.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_origin

import tomli_w
from pydantic import ValidationError

from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.files import read_text
from fedcore.config import sweeps, tuning
from fedcore.config.models import TABLES, Experiment, RunConfig
from fedcore.methods import registry
from fedcore.methods.registry import first_error

KEY_PARTS = 100
"""Keys with this many dotted parts are refused: tomllib takes seconds for thousands of them."""
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{KEY_PARTS - 1}}}""")
MOST_TABLES = 2
"""A name that more tables than these share, such as ``name``, does not tell which one was meant."""


def parse(content: dict[str, Any]) -> Experiment:
    """Return the experiment that plain values describe, with its sweep checked."""
    if isinstance(content, dict) and content.get("sweep"):
        content = sweeps.normalised(content)
    try:
        experiment = Experiment.model_validate(content)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        if detail["type"] == "extra_forbidden":
            raise unknown_field(detail["loc"], content) from error
        raise first_error(error) from error
    for i, entry in enumerate(experiment.methods):
        suspects = [name for name in entry.config if 0 < len(_tables_with(name)) <= MOST_TABLES]
        if not suspects:
            continue
        method = registry.find(entry.name)
        for name in suspects:  # a field of another table, which a method's config was given
            if method is not None and name not in method.Config.model_fields:
                raise unknown_field(("methods", i, "config", name))
    tuning.check(experiment)
    return experiment


def unknown_field(location: Sequence[str | int], content: Mapping[str, Any] | None = None) -> FedLensError:
    """Return the error for a field that its table does not have.

    Args:
        location: the keys that lead to the field, as in pydantic's errors: ``("methods", 0, "block")``.
        content: the experiment, in which the entry of a method says whose field it is.
    """
    name, tables = str(location[-1]), [str(part) for part in location[:-1] if not isinstance(part, int)]
    model = TABLES.get(tables[-1] if tables else "", TABLES["methods"])  # a config is a method's
    # "seed" at the top is a slip for "seeds", although [tuning] has a seed
    is_number_slip = name.rstrip("s") in {field.rstrip("s") for field in model.model_fields}
    places = [] if is_number_slip else _tables_with(name, excluded=model)
    owners = [n for n, method in registry.loaded().items() if name in method.Config.model_fields]
    if owners and not is_number_slip:
        places.append(f"in the config of a method that has it ({owners[0]}): config = {{ {name} = ... }}")
    hint = did_you_mean(name, model.model_fields, "docs/experiment.md lists the fields")
    if 0 < len(places) <= MOST_TABLES:
        hint = f"'{name}' belongs {' or '.join(places)}"
    if content and len(location) == 3 and location[0] == "methods":
        entry = str(content["methods"][location[1]].get("name"))
        method = registry.registered().get(entry)
        if method is not None and name in method.Config.model_fields:
            hint = f"'{name}' belongs in {entry}'s config: config = {{ {name} = ... }}, or [methods.config]"
    return FedLensError(f"no such field; {hint}", ".".join(map(str, location)))


def _tables_with(name: str, excluded: object = None) -> list[str]:
    """Return in words where a field of this name may stand."""
    places = []
    for table, model in TABLES.items():
        if model is not excluded and name in model.model_fields:
            listed = table and get_origin(Experiment.model_fields[table].annotation) is tuple
            place = f"in [[{table}]]" if listed else f"in [{table}]"
            places.append(place if table else "at the top of the file, before the first table")
    return places


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn pydantic's errors into a ``FedLensError`` about the first invalid field."""
    try:
        yield
    except ValidationError as error:
        raise first_error(error) from error


def load(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file."""
    return loads(read_text(path, "an experiment file", None), str(path))


def loads(text: str, where: str = "the TOML text") -> Experiment:
    """Read an experiment from TOML text."""
    if _LONG_KEY.search(text):
        raise FedLensError(f"{where} is not valid: a key has {KEY_PARTS} parts or more")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # invalid TOML, or a number with too many digits
        raise FedLensError(f"{where} is not valid TOML: {error}") from error
    return parse(content)


def dumps(experiment: Experiment) -> str:
    """Return an experiment as TOML text, from which ``loads`` reads an equal one.

    A hyper-parameter that is None is left out if None is its default.
    """
    for i, entry in enumerate(experiment.methods):
        method = registry.find(entry.name)
        for name, value in entry.config.items():
            field = method.Config.model_fields.get(name) if method is not None and value is None else None
            if _holds_none(value) or (field is not None and field.get_default() is not None):
                raise FedLensError(
                    "a TOML file cannot hold None; give a value, or leave the field out",
                    f"methods.{i}.config.{name}",
                )
    content = experiment.model_dump(mode="json", exclude_none=True)
    rare = ("cohorts", "further_data", "held_out_share", "keep_checkpoints", "order", "reproduces", "sweep")
    for name in {*rare, "transfer"} - experiment.model_dump(exclude_defaults=True).keys():
        del content[name]
    if experiment.tuning is not None:  # a repeated search has its own result
        content["tuning"].pop("final", None)
    for entry in content["methods"]:
        entry["config"] = {name: value for name, value in entry["config"].items() if value is not None}
    return tomli_w.dumps(content)


def _holds_none(value: object) -> bool:
    if not isinstance(value, (dict, list, tuple)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(item is None or _holds_none(item) for item in items)


def expand(experiment: Experiment, domains: tuple[str, ...] = ()) -> list[RunConfig]:
    """Return the runs of an experiment, nested by held-out domain, seed, swept values and method.

    Of an experiment with a search they are the first draws; the other runs follow when these have ended.

    Args:
        domains: the data set's domains, for ``held_out = ["each"]``.
    """
    if experiment.tuning is not None:
        experiment, _ = tuning.search_of(experiment)
    each = experiment.held_out == ("each",)
    held_out: tuple[str | None, ...] = domains if each else experiment.held_out or (None,)
    variants = sweeps.variants(experiment)
    total = len(held_out) * len(experiment.seeds) * len(variants)
    if total > sweeps.MAX_RUNS:
        raise FedLensError(
            f"{total:,} runs, more than {sweeps.MAX_RUNS:,}; name fewer seeds, or make several experiments",
            "seeds",
        )
    return [
        RunConfig(**variant.shared, method=variant.entry, seed=seed, held_out=domain)
        for domain in held_out
        for seed in experiment.seeds
        for variant in variants
    ]
