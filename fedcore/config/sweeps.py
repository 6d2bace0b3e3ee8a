"""Sweeps: fields that take several values in one experiment, and the variants of runs that result.

``[sweep]`` maps the dotted path of a field to its values: ``rounds``, ``data.shots``, ``partition.alpha``,
``methods.fedot.blocks`` (a method by its name or label) or ``methods.*.lr`` (every method that has the
field). Every combination is run, but a method is not repeated for another method's values. The sweep is
resolved when runs are planned, so the config of a run contains only its own values.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.progress import shortened
from fedcore.config.field_names import field_phrase
from fedcore.config.models import TABLES, Experiment, MethodEntry, kinds_using
from fedcore.methods import registry
from fedcore.methods.hyperparameters import check_number
from fedcore.methods.registry import first_error

PLAIN = ("rounds", "participation")
PARTS = {name: TABLES[name] for name in ("data", "partition", "backbone")}
FIXED = ("data.name", "data.root", "data.domains", "data.columns", "data.classes")
"""Fields that cannot be swept: all runs of a comparison have one data set, and so the same classes."""
LONGEST_SHOWN = 101
"""Maximum length of a value in an error, in characters."""
MAX_RUNS = 10_000


@dataclass(frozen=True)
class Variant:
    """One combination of values for one method.

    Attributes:
        index: position of the method in the experiment.
        values: path -> swept value, for the fields that apply to this method, in the order of the sweep.
        shared: data, partition, backbone and the other fields that a run has in common with its experiment.
        entry: the method with its swept hyper-parameters, and a label that names all values.
    """

    index: int
    values: dict[str, Any]
    shared: dict[str, Any]
    entry: MethodEntry

    def located(self, error: FedLensError) -> FedLensError:
        """Add the values of this combination to an error, and name its field as the sweep does."""
        if not self.values:
            return error
        field = error.field
        for path in self.values:
            name = path.rpartition(".")[2]
            if field in (path, f"methods.{self.index}.config.{name}" if _of_method(path) else path):
                field = f"sweep.{path}"
        return FedLensError(f"{error} (with {describe(self.values)})", field)


def normalised(content: dict[str, Any]) -> dict[str, Any]:
    """Return the raw content of an experiment with its sweep flattened, checked and converted.

    A partition field that only the sweep sets takes its first value, because the partition must be valid.
    """
    flat = dict(_flat(content["sweep"]))
    sweep = {path: _values(path, values) for path, values in flat.items()}
    content = {**content, "sweep": sweep}
    if isinstance(content.get("partition"), dict):
        first = {
            path.removeprefix("partition."): values[0]
            for path, values in sweep.items()
            if path.startswith("partition.")
        }
        given = {name: value for name, value in content["partition"].items() if value is not None}
        content["partition"] = {**first, **given}
    return content


def _flat(table: object, before: str = "") -> Iterator[tuple[str, object]]:
    """Flatten nested tables to dotted paths; TOML parses ``partition.alpha = [...]`` as a table."""
    if not isinstance(table, dict):
        raise FedLensError("a sweep is a table of fields with lists of values", "sweep")
    seen: set[str] = set()
    for key, value in table.items():
        path = f"{before}{key}"
        inner = list(_flat(value, f"{path}.")) if isinstance(value, dict) else [(path, value)]
        for name, values in inner:
            if name in seen:
                raise FedLensError("this field is swept twice; name it once", f"sweep.{name}")
            seen.add(name)
            yield name, values


def _values(path: str, values: object) -> tuple[Any, ...]:
    """Check the values of one field, and convert those of data, partition and backbone to its type."""
    field = f"sweep.{path}"
    if not isinstance(values, (list, tuple)):
        raise FedLensError(f"give a list of values, e.g. [{shortened(_shown(values), LONGEST_SHOWN)}]", field)
    if not values:
        raise FedLensError("the list is empty; give at least one value, or leave the field out", field)
    odd = [v for v in values if not isinstance(v, (bool, int, float, str))]
    if odd:
        raise FedLensError(
            f"a sweep takes numbers, texts, true and false, not {type(odd[0]).__name__}", field
        )
    info, converted = _field_of(path), tuple(values)
    if info is not None:
        annotation: Any = Annotated[info.annotation, info]
        try:
            for value in values:
                check_number(value, info.annotation)
            converted = tuple(map(TypeAdapter(annotation).validate_python, values))
        except ValidationError as error:
            raise FedLensError(str(first_error(error)), field) from error
        except ValueError as error:
            raise FedLensError(str(error), field) from error
    distinct = [(isinstance(value, bool), value) for value in converted]  # 1 is 1.0, but not true
    for i, value in enumerate(converted):
        if distinct[i] in distinct[:i]:
            shown = shortened(_shown(value), LONGEST_SHOWN)
            raise FedLensError(f"the value {shown} is named twice; name each once", field)
    return converted


def _field_of(path: str) -> FieldInfo | None:
    """Return a field of the experiment; None for a method's field, which is checked later."""
    part, _, name = path.partition(".")
    if path in FIXED:
        raise FedLensError(
            f"{path} is the same for a whole experiment; make an experiment for each value", f"sweep.{path}"
        )
    if _of_method(path):
        if path.count(".") < 2:
            raise FedLensError(
                "name the field too: methods.<method>.<field>, or methods.*.<field>", f"sweep.{path}"
            )
        return None
    model: type[BaseModel] | None = Experiment if path in PLAIN else PARTS.get(part)
    name = name or part
    if model is None or name not in model.model_fields:
        fields = [*PLAIN, *(f"{part}.{n}" for part, model in PARTS.items() for n in model.model_fields)]
        namesakes = [f for f in fields if f.rpartition(".")[2] == name]
        hint = did_you_mean(
            path,
            namesakes or [f for f in fields if f not in FIXED],
            f"there are {', '.join(PLAIN)}, the fields of {', '.join(PARTS)} (e.g. partition.alpha) and of "
            "the methods (e.g. methods.fedot.blocks)",
        )
        raise FedLensError(f"no such field to sweep; {hint}", f"sweep.{path}")
    return model.model_fields[name]


def variants(experiment: Experiment) -> list[Variant]:
    """Return each method with each combination of its values; without a sweep, each method once."""
    sweep = experiment.sweep
    method_paths = _paths_by_method(experiment)
    common = [path for path in sweep if not _of_method(path)]
    _refuse_unused(experiment)
    total = math.prod(len(sweep[p]) for p in common) * sum(
        math.prod(len(sweep[p]) for p in paths) for paths in method_paths
    )
    if total > MAX_RUNS:
        raise FedLensError(f"{total:,} combinations, more than {MAX_RUNS:,}; name fewer values", "sweep")
    listed = []
    for values in _combinations(sweep, common):
        shared = _shared(experiment, values)
        for index, entry in enumerate(experiment.methods):
            for hyper_parameters in _combinations(sweep, method_paths[index]):
                chosen = {**values, **hyper_parameters}
                in_order = {path: chosen[path] for path in sweep if path in chosen}
                update: dict[str, Any] = {}
                if in_order:  # a label that identifies the values; no search selected swept ones
                    label = entry.label or registry.title(entry.name)
                    update["label"] = f"{label} ({describe(in_order)})"
                if hyper_parameters:
                    given = {path.rpartition(".")[2]: value for path, value in hyper_parameters.items()}
                    update |= {"config": entry.config | given, "tuned": None}
                listed.append(Variant(index, in_order, shared, entry.model_copy(update=update)))
    return listed


def fixed(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return an experiment in which fields have other values, each named by its path as in a sweep.

    A path ``methods.fedot.lr`` is left out if the experiment has no such method, and ``methods.*.lr`` if no
    method of it has the field. Methods that change are labelled with their values.

    Raises:
        FedLensError: naming the field as ``sweep.<path>``, for one that cannot be swept or a wrong value.
    """
    sweep = {path: _values(path, [value]) for path, value in values.items() if concerns(experiment, path)}
    content = experiment.model_dump()
    try:
        chosen = variants(Experiment.model_validate({**content, "sweep": sweep}))
        methods = [variant.entry for variant in chosen]
        return Experiment.model_validate({**content, **chosen[0].shared, "methods": methods, "sweep": {}})
    except ValidationError as error:
        raise FedLensError(str(first_error(error)), "sweep") from error


def concerns(experiment: Experiment, path: str) -> bool:
    """Return whether an experiment has the methods of a path; fields of other tables concern every one."""
    who, _, name = path.removeprefix("methods.").rpartition(".")
    if not _of_method(path):
        return True
    if who != "*":
        return any(who in (entry.name, entry.label) for entry in experiment.methods)
    return any(name in registry.get(entry.name).Config.model_fields for entry in experiment.methods)


def describe(values: dict[str, Any]) -> str:
    """Describe a combination: ``Dirichlet alpha 0.1, learning rate 0.001``."""
    return ", ".join(f"{field_phrase(path)} {_shown(value)}" for path, value in values.items())


def _of_method(path: str) -> bool:
    return path.partition(".")[0] == "methods"


def _combinations(sweep: dict[str, tuple[Any, ...]], paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    paths = list(paths)
    for values in itertools.product(*(sweep[p] for p in paths)):
        yield dict(zip(paths, values, strict=True))


def _paths_by_method(experiment: Experiment) -> list[list[str]]:
    """Return each method's swept paths; refuse a field that a method lacks, or has by two paths."""
    found: list[list[str]] = [[] for _ in experiment.methods]
    paths = [path for path in experiment.sweep if _of_method(path)]
    if paths:
        for entry in experiment.methods:
            if entry.file:
                registry.load_agreed(entry.file)
    for path in paths:
        who, _, name = path.removeprefix("methods.").rpartition(".")
        named = methods_called(experiment, who, f"sweep.{path}")
        configs = {i: registry.get(experiment.methods[i].name, f"methods.{i}.name").Config for i in named}
        having = [i for i in named if name in configs[i].model_fields]
        if not having or (who != "*" and len(having) < len(named)):
            whom = "no method of this experiment has" if who == "*" else f"{who} does not have"
            fields = [field for config in configs.values() for field in config.model_fields]
            hint = did_you_mean(name, fields, "`fedlens methods` shows them")
            raise FedLensError(f"{whom} a field '{name}'; {hint}", f"sweep.{path}")
        for i in having:
            twice = [p for p in found[i] if p.rpartition(".")[2] == name]
            if twice:
                raise FedLensError(
                    f"{experiment.methods[i].label or experiment.methods[i].name} is swept over '{name}' by "
                    f"{twice[0]} already; keep one of the two",
                    f"sweep.{path}",
                )
            found[i].append(path)
    return found


def methods_called(experiment: Experiment, who: str, field: str) -> list[int]:
    """Return the positions of the methods with a name or label, of all for ``*``; refuse an unknown one."""
    named = [i for i, e in enumerate(experiment.methods) if who in ("*", e.name, e.label)]
    if not named:
        names = ", ".join(dict.fromkeys(e.label or e.name for e in experiment.methods))
        raise FedLensError(f"this experiment has no method '{who}'; choose from {names}", field)
    return named


def _refuse_unused(experiment: Experiment) -> None:
    """Refuse a sweep over an unused field, which would repeat one result under several names."""
    kinds = experiment.sweep.get("partition.kind", (experiment.partition.kind,))
    for name in type(experiment.partition).model_fields:
        users = kinds_using(name)
        if f"partition.{name}" in experiment.sweep and users and not set(users) & set(kinds):
            raise FedLensError(
                f"a '{kinds[0]}' partition does not use {name}; take kind = \"{users[-1]}\", or leave it out",
                f"sweep.partition.{name}",
            )
    for path in experiment.sweep if experiment.cohorts else ():
        name = "backbone" if path.startswith("backbone.") else path.rpartition(".")[2]
        overridable = name == "backbone" or (_of_method(path) and name in ("batch_size", "local_epochs"))
        if overridable and all(getattr(cohort, name) is not None for cohort in experiment.cohorts):
            raise FedLensError(
                f"every cohort sets its own {name}, so these values would never be used; leave it out "
                "of the sweep or of the cohorts",
                f"sweep.{path}",
            )


def _shared(experiment: Experiment, values: dict[str, Any]) -> dict[str, Any]:
    shared = experiment.shared()
    for path, value in values.items():
        part, _, name = path.partition(".")
        if name:
            shared[part] = {**shared[part], name: value}
        else:
            shared[part] = value
    for part in [p for p in PARTS if any(path.startswith(f"{p}.") for path in values)]:
        model = type(getattr(experiment, part))
        try:
            shared[part] = model.model_validate(shared[part])
        except ValidationError as error:
            base = getattr(experiment, part).model_dump()
            paths = [path for path in values if path.startswith(f"{part}.")]
            invalid = [p for p in paths if not _is_valid(model, {**base, p.partition(".")[2]: values[p]})]
            text = f"{first_error(error)} (with {describe(values)})"
            raise FedLensError(text, f"sweep.{[*invalid, paths[-1]][0]}") from error
    return shared


def _is_valid(model: type[BaseModel], content: dict[str, Any]) -> bool:
    try:
        model.model_validate(content)
    except ValidationError:
        return False
    return True


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, default=repr)
