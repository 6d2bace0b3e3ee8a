"""The outcome of an experiment in words: who leads by which metric, and what that is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.results.verdict import more_seeds, verdict
from fedcore.store import Recorder, Store
from tests.support import fill

OWN, OTHERS = ("a", "b"), 100


def record(db: Path, method: str, seed: int, own: int, common: int, experiment: str = "x") -> int:
    """Record a run with so many right answers of its personal models and of its global model."""
    with Recorder(db, method=method, seed=seed, dataset="rotated-digits", experiment=experiment) as run:
        counts = {("global", client): (common, OTHERS) for client in OWN}
        run.round(1, counts | {(client, client): (own, OTHERS) for client in OWN})
    return run.experiment_id


def said(db: Path, experiment: int) -> str | None:
    store = Store(db)
    return verdict(store, store.experiments.get(experiment))


def test_each_metric_has_its_leader_and_one_seed_proves_nothing(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    record(db, "mine", 1, own=90, common=60)
    text = said(db, record(db, "yours", 1, own=80, common=70))
    assert text is not None
    assert "mine leads on personal accuracy (90.0 %), yours with its global model (70.0 %)." in text
    assert text.endswith("One seed: no difference is proven.")


@pytest.mark.parametrize(
    ("seeds", "end"),
    [
        (2, "2 seeds: no difference is proven."),
        (3, "Whether the differences could be chance is tested on Compare."),
    ],
)
def test_it_counts_the_seeds(tmp_path: Path, seeds: int, end: str) -> None:
    db = tmp_path / "runs.db"
    for seed in range(seeds):
        record(db, "mine", seed, own=90 + seed, common=60)
        experiment = record(db, "yours", seed, own=80, common=70)
    text = said(db, experiment)
    assert text is not None and text.endswith(end)


def test_nothing_is_said_while_a_run_trains(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    experiment = record(db, "mine", 1, own=90, common=60)
    training = Recorder(db, method="yours", seed=1, dataset="rotated-digits", experiment="x")
    assert said(db, experiment) is None
    training.finish()


def test_more_seeds_are_those_that_a_test_lacks_and_join_the_experiment(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    number = fill.done(db, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=2))
    store = Store(db)
    runs = more_seeds(store, store.experiments.get(number))
    assert [(run.method.name, run.seed) for run in runs] == [
        ("fedot", 2), ("promptfl", 2), ("fedot", 3), ("promptfl", 3)
    ]  # fmt: skip
    added = store.experiments.extend(number, runs)
    experiment = store.experiments.get(number)
    assert [run.id for run in experiment.runs][-4:] == list(added.run_ids)
    assert experiment.config.seeds == (1, 2, 3)
    assert len({run.group_hash for run in experiment.runs}) == 2, "a row per method, with three seeds"
    assert more_seeds(store, experiment) == []
    with store.checked([number]):
        pass


def test_runs_of_another_script_get_no_seeds_here(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    number = record(db, "mine", 1, own=90, common=60)
    assert more_seeds(Store(db), Store(db).experiments.get(number)) == []


def test_a_single_row_leads_nobody(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    text = said(db, record(db, "mine", 1, own=90, common=60))
    assert text is not None and "leads" not in text
