"""Tuning: the search that comes before an experiment's runs, after DomainBed's protocol.

Every method gets the same number of draws. Draw 1 is the method as written, so that a search never selects
less than what its paper states; the others come from the space that the method declares (``search`` of its
fields) or ``[tuning.space]`` gives. A draw depends on the seed, method, field and number alone: eight draws
are the first eight of sixteen, and another method in the experiment changes none.

Source: Gulrajani and Lopez-Paz, "In Search of Lost Domain Generalization", ICLR 2021, Section 4.
"""

import importlib.util
import math
import re
from typing import Any

from fedcore.base.errors import FedLensError, did_you_mean, first_repeated
from fedcore.base.seeds import numpy_generator
from fedcore.config.field_names import field_phrase, value_text
from fedcore.config.models import Experiment, MethodEntry, RunConfig, TuningConfig
from fedcore.config.sweeps import methods_called
from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.methods.hyperparameters import SearchRange, search_ranges

SearchSpace = dict[str, SearchRange]
"""Field of one method -> where it is searched; factors are resolved to ranges."""
BATCH = 4
"""Draws that TPE proposes at once, so that they can train side by side."""
DIGITS = 4
"""Significant digits of a drawn number, so that a table shows the value that was trained with."""


def check(experiment: Experiment) -> None:
    """Refuse fields that a search cannot be combined with, and the seed of an earlier search."""
    tuning = experiment.tuning
    for entry in experiment.methods:
        if entry.tuned is not None and entry.tuned.seed in experiment.seeds:
            raise FedLensError(
                f"the values of {entry.label or entry.name} were selected with seed {entry.tuned.seed}, on "
                "which no result may rest; leave that seed out",
                "seeds",
            )
    if tuning is None:
        return
    if tuning.seed in experiment.seeds:
        raise FedLensError(
            f"seed {tuning.seed} is one of the experiment's seeds, and the selected values need seeds that "
            "the search has not seen; choose another seed for the search",
            "tuning.seed",
        )
    if experiment.sweep:
        raise FedLensError("a search draws its values itself; remove the sweep, or the search", "tuning")
    if experiment.held_out:
        raise FedLensError(
            "the validation samples of a held-out domain would choose the values for the run that holds it "
            "out; tune on the other domains alone (data.domains), then set the selected values in an "
            "experiment that holds this one out",
            "tuning",
        )


def search_of(experiment: Experiment) -> tuple[Experiment, list[int]]:
    """Return the search as an experiment with a method per draw, and the position of each draw's method.

    It has the draws that can be made before any has ended: all random ones, the first batch of TPE.
    """
    tuning = experiment.tuning
    assert tuning is not None, "callers ask for experiments with a search"
    check(experiment)
    require_sampler(tuning)
    if twice := first_repeated([base_label(entry) for entry in experiment.methods]):
        raise FedLensError(f"two methods are called '{twice}'; give each its own label", "methods")
    draws = tuning.draws if tuning.sampler == "random" else min(tuning.draws, BATCH)
    entries, positions = [], []
    for i, entry in enumerate(experiment.methods):
        space = space_of(experiment, i)
        for number in range(1, (draws if space else 1) + 1):
            entries.append(draw_entry(entry, number, drawn(tuning, entry, space, number)))
            positions.append(i)
    if len(entries) == len(experiment.methods):
        raise FedLensError(
            "none of these methods has a hyper-parameter to search; give ranges in [tuning.space], or leave "
            "the search out",
            "tuning",
        )
    changes = {"methods": tuple(entries), "seeds": (tuning.seed,), "tuning": None}
    return experiment.model_copy(update=changes), positions


def base_label(entry: MethodEntry) -> str:
    """Return a method's name in tables, to which a draw adds its number."""
    return entry.label or _method_of(entry).about.title


def _method_of(entry: MethodEntry, field: str = "methods") -> type[Method]:
    """Return the method of an entry; a worker that follows a search has not loaded a user's file yet."""
    if entry.file and entry.name not in registry.registered():
        registry.load_agreed(entry.file)
    return registry.get(entry.name, field)


def method_label(label: str) -> str:
    """Return the label of a draw's method; that of any other run is unchanged."""
    return re.sub(r" \(draw \d+\)$", "", label)


def draw_entry(entry: MethodEntry, number: int, values: dict[str, Any]) -> MethodEntry:
    """Return a method with the values of a draw, named by its number."""
    label = f"{base_label(entry)} (draw {number})"
    return entry.model_copy(update={"config": {**entry.config, **values}, "label": label, "draw": number})


def space_of(experiment: Experiment, position: int) -> SearchSpace:
    """Return the space of one method; empty if a search has nothing to vary.

    A field that the experiment itself sets stays as set, unless its range is a factor, which is then around
    that value, or ``[tuning.space]`` names the field.
    """
    assert experiment.tuning is not None, "callers ask for experiments with a search"
    entry = experiment.methods[position]
    model = _method_of(entry, f"methods.{position}.name").Config
    written = registry.build_config(entry.name, entry.config, f"methods.{position}.config").model_dump()
    ranges = {n: r for n, r in search_ranges(model).items() if r.factor or n not in entry.config}
    places = {name: f"methods.{position}.config.{name}" for name in ranges}
    for who, fields in _given(experiment, entry):
        ranges |= {n: r for n, r in fields.items() if n in model.model_fields}
        places |= {name: f"tuning.space.{who}.{name}" for name in fields}
    space = {}
    for name in (name for name in model.model_fields if name in ranges):
        found = _resolved(ranges[name], written[name], places[name])
        if found is None:
            continue
        tried = []
        for value in found.choices or (found.low, found.high):
            try:
                tried.append(getattr(registry.build_config(entry.name, {**entry.config, name: value}), name))
            except FedLensError as error:
                raise FedLensError(f"{value} cannot be tried: {error}", places[name]) from error
        # The ends get the field's own type; between whole ones, whole numbers are drawn.
        if not found.choices:
            found = found.model_copy(update={"low": tried[0], "high": tried[1]})
        space[name] = found
    return space


def _given(experiment: Experiment, entry: MethodEntry) -> list[tuple[str, dict[str, SearchRange]]]:
    """Return the tables of ``[tuning.space]`` that concern a method, the most special one last."""
    assert experiment.tuning is not None, "callers ask for experiments with a search"
    for who, fields in experiment.tuning.space.items():
        named = [experiment.methods[i] for i in methods_called(experiment, who, f"tuning.space.{who}")]
        declared = [n for e in named for n in _method_of(e).Config.model_fields]
        for name in fields:
            if name not in declared:
                hint = did_you_mean(name, declared, "`fedlens methods` shows them")
                raise FedLensError(
                    f"{who} does not have a field '{name}'; {hint}", f"tuning.space.{who}.{name}"
                )
    order = dict.fromkeys(("*", entry.name, entry.label))
    return [(who, experiment.tuning.space[who]) for who in order if who in experiment.tuning.space]


def _resolved(found: SearchRange, written: Any, place: str) -> SearchRange | None:
    """Return a range without factor; None for a factor around 0, which has no range."""
    if found.factor is None:
        return found
    if isinstance(written, bool) or not isinstance(written, int | float):
        raise FedLensError(f"a factor needs a number, and the value as written is {written}", place)
    if written <= 0:
        return None
    low, high = _to_digits(written / found.factor), _to_digits(written * found.factor)
    return SearchRange(low=low, high=high, log=True)


def drawn(tuning: TuningConfig, entry: MethodEntry, space: SearchSpace, number: int) -> dict[str, Any]:
    """Return the values of a random draw; none for draw 1, which is the method as written."""
    if number == 1:
        return {}
    values: dict[str, Any] = {}
    for name, found in space.items():
        generator = numpy_generator(tuning.seed, "tuning", entry.name, name, number)
        low, high = found.low, found.high
        if low is None or high is None:
            values[name] = found.choices[int(generator.integers(len(found.choices)))]
        elif isinstance(low, int) and not found.log:  # each whole number has as much of the range
            values[name] = math.floor(low + (high + 1 - low) * generator.random())
        else:
            share = generator.random()
            value = low * (high / low) ** share if found.log else low + (high - low) * share
            values[name] = round(value) if isinstance(low, int) else rounded(found, value)
    return values


def rounded(found: SearchRange, value: Any) -> Any:
    """Return a drawn number with ``DIGITS`` significant digits, within its range; other values unchanged."""
    if not isinstance(value, float) or found.low is None or found.high is None:
        return value
    return min(max(_to_digits(value), found.low), found.high)


def _to_digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def contains(found: SearchRange, value: Any) -> bool:
    """Return whether a value lies in a range or is one of the choices."""
    if found.low is None or found.high is None:
        return value in found.choices
    return isinstance(value, int | float) and found.low <= value <= found.high


def require_sampler(tuning: TuningConfig) -> None:
    """Refuse TPE where Optuna is not installed."""
    if tuning.sampler == "tpe" and importlib.util.find_spec("optuna") is None:
        raise FedLensError(
            "this sampler needs Optuna; install it with `pip install 'fedlens[tune]'`, or set "
            "sampler = random",
            "tuning.sampler",
        )


def space_text(entry: MethodEntry, space: SearchSpace) -> str:
    """Return a method's space in words, ``FedOT: learning rate 0.001 to 0.1 (log)``."""
    ranges = []
    for name, found in space.items():
        path = f"methods.{entry.name}.{name}"
        words = ", ".join(value_text(path, value) for value in found.choices)
        words = words or f"{found.low:g} to {found.high:g}{' (log)' if found.log else ''}"
        ranges.append(f"{field_phrase(path)} {words}")
    return f"{base_label(entry)}: {'; '.join(ranges) or 'nothing to search, so it is run as written'}"


def is_draw(run: RunConfig) -> bool:
    """Return whether a run is a draw of a search, and so no result."""
    return run.method.draw is not None
