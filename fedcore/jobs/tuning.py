"""Queues what follows the ended draws of a search: TPE's next draws, or the runs with the selected values.

``fedlens run`` calls ``advance`` when its draws have ended, and the supervisor whenever a search waits: after
a kill between two steps the next worker goes on, and each step is made once (``store.experiments.Searches``).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedcore.base.errors import FedLensError
from fedcore.base.files import read_texts, write_texts
from fedcore.base.progress import counted
from fedcore.base.seeds import derive
from fedcore.config import Experiment, RunConfig, Tuned, TuningConfig
from fedcore.config.models import LONGEST_NOTES
from fedcore.config.tuning import (
    BATCH,
    SearchSpace,
    base_label,
    contains,
    draw_entry,
    require_sampler,
    rounded,
    space_of,
)
from fedcore.methods import registry
from fedcore.methods.hyperparameters import SearchRange
from fedcore.store import Created, Store
from fedcore.store.experiments import Claimer, Draw, best_draw


def advance(store: Store, experiment_id: int, claimer: Claimer | None = None) -> Created | None:
    """Queue what follows a search, or let the ``claimer`` train it; None if nothing follows now."""
    with store.checked([experiment_id], f"nothing is selected in experiment {experiment_id}") as sound:
        row, by_method = sound.experiments.get(experiment_id), sound.searches.draws(experiment_id)
    tuning = row.config.tuning
    draws = [draw for of_method in by_method.values() for draw in of_method]
    if tuning is None or tuning.final or any(draw.status not in ("done", "failed") for draw in draws):
        return None
    if tuning.sampler == "tpe" and (further := _further_draws(row.config, tuning, by_method)):
        return store.searches.add_draws(experiment_id, len(draws), further, claimer)
    if not any(map(best_draw, by_method.values())):
        raise FedLensError(
            f"all {counted(len(draws), 'draw')} of the search in experiment {experiment_id} failed, so no "
            "values can be selected; the logs of the runs say why"
        )
    final, runs = _final(row.uuid, row.config, tuning, by_method)
    return store.searches.conclude(experiment_id, final, runs, claimer)


def record_problems(store: Store, problems: Mapping[int, str]) -> None:
    """Record why searches cannot go on, by their experiment, for the pages that show them."""
    with suppress(OSError):  # the worker's log has them too
        write_texts(_problems(store), {str(search): problem for search, problem in problems.items()})


def problem_of(store: Store, search: int) -> str | None:
    """Return why a search that waits could not go on when the worker tried last; None if it could."""
    return read_texts(_problems(store)).get(str(search))


def _problems(store: Store) -> Path:
    """Return the file of one database; several may share the folder of artifacts."""
    return store.artifacts / f"{store.path.name}.searches.json"


def _final(
    search: str, config: Experiment, tuning: TuningConfig, by_method: Mapping[str, Sequence[Draw]]
) -> tuple[Experiment, list[RunConfig]]:
    """Return the experiment with the selected values, and its runs with their complete configs."""
    entries, templates, lines = [], [], []
    for i, entry in enumerate(config.methods):
        label = base_label(entry)
        draws = by_method.get(label, ())
        if (best := best_draw(draws)) is None:
            lines.append(f"{label}: no draw of the search succeeded, so it has no runs.")
            continue
        stored, values = best.config.method, {}
        if len({draw.config.method.sha256 for draw in draws}) > 1:
            lines.append(f"{label}: its file was changed during the search, so its draws ran different code.")
        if best.number > 1:  # the user may have deleted draw 1, with which it could be compared
            values = {name: stored.config[name] for name in space_of(config, i)}
        tuned = _provenance(search, tuning, draws, best) if draws[-1].number > 1 else None
        entries.append(
            entry.model_copy(
                update={"config": {**entry.config, **values}, "tuned": tuned, "file": stored.file}
            )
        )
        method = stored.model_copy(update={"label": label, "draw": None, "tuned": tuned})
        templates.append(best.config.model_copy(update={"method": method}))
    notes = "\n".join([*lines, config.notes]).strip() if lines else config.notes
    final = config.model_copy(
        update={"methods": tuple(entries), "tuning": None, "notes": notes[:LONGEST_NOTES]}
    )
    runs = [run.model_copy(update={"seed": seed}) for seed in config.seeds for run in templates]
    return final, runs


def _provenance(search: str, tuning: TuningConfig, draws: Sequence[Draw], best: Draw) -> Tuned:
    """Describe the search of one method and its costs; failed draws count, and deleted ones as draws."""
    assert best.validation is not None, "only draws with an accuracy are selected"
    sent = [draw.bytes for draw in draws if draw.bytes is not None]
    took = [draw.seconds for draw in draws if draw.seconds is not None]
    return Tuned(
        search=search,
        data=best.config.data.name,
        sampler=tuning.sampler,
        draws=tuning.draws,
        seed=tuning.seed,
        failed=sum(draw.validation is None for draw in draws),
        draw=best.number,
        validation=best.validation,
        rounds=sum(draw.rounds for draw in draws),
        bytes=sum(sent) if sent else None,
        seconds=round(sum(took), 3) if took else None,
    )


def _further_draws(
    config: Experiment, tuning: TuningConfig, by_method: Mapping[str, Sequence[Draw]]
) -> list[RunConfig]:
    """Return the next draws that TPE proposes for each method; none once all are made."""
    runs: list[RunConfig] = []
    for i, entry in enumerate(config.methods):
        draws, space = by_method.get(base_label(entry), ()), space_of(config, i)
        made = draws[-1].number if draws else tuning.draws
        numbers = range(made + 1, min(tuning.draws, made + BATCH) + 1)
        if not space or not numbers:
            continue
        first = draws[0].config  # with all defaults resolved; draws differ in searched values only
        method = first.method.model_copy(update={"label": base_label(entry)})
        proposed = propose(tuning, entry.name, space, draws, len(numbers))
        for number, values in zip(numbers, proposed, strict=True):
            runs.append(first.model_copy(update={"method": draw_entry(method, number, values)}))
    return runs


def propose(
    tuning: TuningConfig, name: str, space: SearchSpace, draws: Sequence[Draw], count: int
) -> list[dict[str, Any]]:
    """Return the values of the next draws after Optuna's TPE, which follow from seed and ended draws alone.

    The study is made anew from the recorded draws, so that nothing has to be kept between two batches.
    """
    require_sampler(tuning)
    import optuna  # an extra, which takes a second to load

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {field: _distribution(found) for field, found in space.items()}
    seed = derive(tuning.seed, "tpe", name, draws[-1].number + 1) % 2**32
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=BATCH, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for draw in draws:
        config = registry.build_config(name, draw.config.method.config)
        params = {field: getattr(config, field) for field in space}
        inside = all(contains(space[field], value) for field, value in params.items())
        if inside and draw.validation is not None:  # the method as written may lie outside of a given range
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=distributions, value=draw.validation)
            )
    asked = [study.ask(distributions).params for _ in range(count)]
    return [{field: rounded(space[field], value) for field, value in params.items()} for params in asked]


def _distribution(found: SearchRange) -> Any:
    from optuna import distributions

    if found.low is None or found.high is None:
        return distributions.CategoricalDistribution(found.choices)
    if isinstance(found.low, int):
        return distributions.IntDistribution(found.low, int(found.high), log=found.log)
    return distributions.FloatDistribution(found.low, found.high, log=found.log)
