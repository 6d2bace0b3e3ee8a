"""The statistics of comparisons, against numpy on the very rows that were recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcore.config import MethodEntry
from fedcore.report import tables
from fedcore.report.tables import chosen_rounds, compare, spread
from fedcore.runs import queries
from tests import fill


def shares(db: Path, run_id: int, round_: int) -> np.ndarray:
    """Own accuracy of every client, per cent, straight from the recorded counts."""
    found = [o for o in queries.own_accuracy(db, run_id) if o.round == round_]
    return np.array([100 * o.correct / o.total for o in found])


def test_spread_is_the_sample_standard_deviation() -> None:
    values = [81.5, 79.25, 90.0]
    stat = spread(values)
    assert stat is not None
    assert stat.mean == pytest.approx(np.mean(values))
    assert stat.std == pytest.approx(np.std(values, ddof=1))
    assert stat.n == 3


def test_one_seed_has_no_spread() -> None:
    stat = spread([80.0, None])
    assert stat == tables.Stat(80.0, None, 1)
    assert stat.text() == "80.0"


def test_nothing_has_no_statistics() -> None:
    assert spread([None, float("nan")]) is None


def test_rules_choose_rounds() -> None:
    assert chosen_rounds([0, 1, 2, 3], 2, "last") == (3,)
    assert chosen_rounds([0, 1, 2, 3], 2, "best") == (2,)
    assert chosen_rounds([0, 1, 2, 3], None, "best") == ()
    assert chosen_rounds(range(15), 2, "mean10") == tuple(range(5, 15))
    assert chosen_rounds([0, 1, 2], 2, "mean10") == (1, 2), "round 0 is no training round"
    assert chosen_rounds([], 2, "last") == ()


def test_last_round_is_mean_over_clients_then_over_seeds(filled: Path) -> None:
    group = next(g for g in compare(filled, [1], "last").groups if g.label == "FedOT")
    per_seed = [shares(filled, v.run.id, 10).mean() for v in group.runs]
    assert len(per_seed) == 3
    assert group.stats["personal"].mean == pytest.approx(np.mean(per_seed))
    assert group.stats["personal"].std == pytest.approx(np.std(per_seed, ddof=1))
    worst = [shares(filled, v.run.id, 10).min() for v in group.runs]
    assert group.stats["worst"].mean == pytest.approx(np.mean(worst))


def test_best_on_validation_reads_test_at_the_validated_round(filled: Path) -> None:
    group = next(g for g in compare(filled, [1], "best").groups if g.label == "PromptFL")
    expected = []
    for value in group.runs:
        by_round = {
            p.round: p.personal_mean for p in queries.curves(filled, [value.run.id], split=queries.VALIDATION)
        }
        best = min(r for r, v in by_round.items() if v == max(by_round.values()))
        assert value.rounds == (best,)
        expected.append(shares(filled, value.run.id, best).mean())
    assert group.stats["personal"].mean == pytest.approx(np.mean(expected))


def test_mean_of_last_ten(filled: Path) -> None:
    group = next(g for g in compare(filled, [1], "mean10").groups if g.label == "SDFed")
    expected = [np.mean([shares(filled, v.run.id, r).mean() for r in range(1, 11)]) for v in group.runs]
    assert group.stats["personal"].mean == pytest.approx(np.mean(expected))
    assert group.stats["personal"].std == pytest.approx(np.std(expected, ddof=1))


def test_unfinished_runs_are_left_out_and_said(filled: Path) -> None:
    found = compare(filled, [2])
    assert [g.label for g in found.groups] == ["Zero-shot CLIP"]
    assert found.notes == ("4 runs are not finished and left out",)
    more = compare(filled, [2], unfinished=True)
    assert {g.label for g in more.groups} == {"Zero-shot CLIP", "FedOT", "PromptFL", "SDFed"}


def test_a_repeated_seed_is_no_further_evidence(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2)
    first, second = fill.done(db, experiment), fill.done(db, experiment)
    found = compare(db, [first, second])
    assert found.groups[0].stats["personal"].n == 1
    assert found.groups[0].runs[0].run.experiment_id == second
    assert "repeat" in found.notes[0]


def test_two_configs_of_one_method_are_two_rows_with_names_that_tell(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2)
    entries = tuple(MethodEntry(name="fedot", label="FedOT", config={"blocks": b}) for b in (1, 4))
    found = compare(db, [fill.done(db, experiment.model_copy(update={"methods": entries}))])
    assert [g.label for g in found.groups] == ["FedOT (blocks 1)", "FedOT (blocks 4)"]
    assert tables.config_differences(found.groups) == {"method.config.blocks": ["1", "4"]}


def test_held_out_domains_are_averaged_within_a_seed_first(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    clients = fill.CLIENTS
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=2, held_out=clients[:2])
    found = compare(db, [fill.done(db, experiment)])
    (group,) = found.groups
    assert group.stats["personal"].n == 2, "seeds, not runs"
    values = {s: [v.values["personal"] for v in group.runs if v.run.seed == s] for s in (1, 2)}
    assert group.stats["personal"].std == pytest.approx(np.std([np.mean(v) for v in values.values()], ddof=1))
    run = group.runs[0]
    cells = queries.cells_at(db, {run.run.id: run.rounds[0]})
    (cell,) = [
        c
        for c in cells
        if c.model_kind == "global" and c.test_set_kind == "domain" and c.test_set == run.run.held_out
    ]
    assert run.values["held_out"] == pytest.approx(100 * cell.correct / cell.total)


def test_differences_only_within_one_setting(tmp_path: Path, filled: Path) -> None:
    found = compare(filled, [1])
    by_label = {g.label: g for g in found.groups}
    gap = tables.difference(by_label["FedOT"], by_label["PromptFL"], "personal")
    expected = by_label["FedOT"].stats["personal"].mean - by_label["PromptFL"].stats["personal"].mean
    assert gap == pytest.approx(expected)
    assert tables.difference(by_label["PromptFL"], by_label["PromptFL"], "personal") is None
    other = tmp_path / "runs.db"
    shapes = compare(
        other, [fill.done(other, fill.an_experiment(methods=("promptfl",), data="shapes", rounds=2))]
    )
    assert tables.difference(by_label["FedOT"], shapes.groups[0], "personal") is None


def test_best_and_second_as_printed(filled: Path) -> None:
    found = compare(filled, [1])
    names = {g.key: g.label for g in found.groups}
    best, second = tables.ranks(found.groups, "personal")
    assert {names[k] for k in best} == {"FedOT"}
    assert {names[k] for k in second} == {"FedAlign"}
