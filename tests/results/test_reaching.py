"""Rounds: when a target is reached at which cost, and the accuracy of single clients round by round."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fedcore.base.events import ClientRound
from fedcore.results.charts import heatmaps
from fedcore.results.charts.theme import Theme
from fedcore.results.comparison import Comparison, compare
from fedcore.results.costs import reaching
from fedcore.results.curves import mean_lines
from fedcore.results.matrices import row_panels
from fedcore.results.summary import offered_metrics, summarise
from fedcore.share.checked import WRITERS, ComparisonChoices, checked_comparison
from fedcore.share.views import ViewSource
from fedcore.share.views.cost import figures
from fedcore.store import Store
from tests.support import fill
from tests.support.exported import table_of

PERSONAL = {  # correct of 20 by round, of both clients alike
    ("fedot", 1): (8, 10, 16, 18),
    ("fedot", 2): (8, 15, 17, 20),
    ("promptfl", 1): (8, 8, 12, 18),
    ("promptfl", 2): (8, 8, 12, 14),
    ("zero-shot", 1): (8,),
    ("zero-shot", 2): (8,),
}
GLOBAL = 12
"""Correct of 20 with the global model, in every round."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Each round costs 2 MB up and 1 MB down and takes 3 s; the second round was not evaluated."""
    db = tmp_path_factory.mktemp("runs") / "runs.db"
    methods = ("fedot", "promptfl", "zero-shot")
    _, writers = fill.start(db, fill.an_experiment(methods=methods, seeds=(1, 2), rounds=4))
    names = ((0, "global", "global"), (1, "client", "a"), (2, "client", "b"))
    for writer, (seed, method) in zip(writers, ((s, m) for s in (1, 2) for m in methods), strict=True):
        evaluated = dict(zip((0, 1, 3, 4), PERSONAL[method, seed], strict=False))
        cells = {
            r: [fill.cell(m, i, n, 20) for i in (1, 2) for m, n in ((i, evaluated[r]), (0, GLOBAL))]
            for r in evaluated
        }
        rounds = {r: cells.get(r, []) for r in range(5 if method != "zero-shot" else 1)}
        traffic = {"bytes_up": 2_000_000, "bytes_down": 1_000_000}
        fill.record(writer, names, rounds, 4, seconds_train=2.0, seconds_aggregate=1.0, **traffic)
    return Store(db)


@pytest.fixture(scope="module")
def comparison(store: Store) -> Comparison:
    return compare(store, [1])


def test_a_seed_has_reached_the_target_in_the_first_evaluated_round_that_is_so_good(
    store: Store, comparison: Comparison
):
    """The best is FedOT with 95 %; 80 % of it are 76 %, which are 16 of 20."""
    (setting,) = comparison.settings
    found, low, whole = reaching(store, comparison, setting, "personal", (80, 40, 100))
    assert (found.best, found.target) == ("FedOT", pytest.approx(76))
    by_method = {reach.row.method: reach for reach in found.rows}
    fedot, promptfl, zero = (by_method[m] for m in ("fedot", "promptfl", "zero-shot"))
    assert [(s.rounds, s.megabytes, s.seconds) for s in fedot.seeds] == [(3, 9.0, 9.0), (3, 9.0, 9.0)]
    assert [s.rounds for s in promptfl.seeds] == [4, None] and promptfl.text == "1 of 2"
    assert promptfl.stat("megabytes").mean == 12 and promptfl.stat("seconds").n == 1
    assert zero.text == "never" and zero.stat("rounds") is None
    assert [s.rounds for s in low.rows[0].seeds] == [0, 0]
    assert [s.megabytes for s in low.rows[0].seeds] == [0, 0], "before training nothing was sent"
    assert [s.rounds for s in whole.rows[0].seeds] == [None, 4]
    assert reaching(store, comparison, setting, "new", (80,)) == []


def test_a_curve_that_begins_after_the_first_round_hides_when_the_target_was_reached(tmp_path: Path) -> None:
    """As a leaderboard gives it; a run that was evaluated from the first round on stands beside it."""
    _, writers = fill.start(
        tmp_path / "runs.db", fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=4)
    )
    for writer, evaluated in zip(writers, ({1: 18, 4: 18}, {4: 18}), strict=True):
        rounds = {r: [fill.cell(1, 1, evaluated[r], 20)] if r in evaluated else [] for r in range(1, 5)}
        fill.record(writer, [(0, "global", "global"), (1, "client", "a")], rounds)
    store = Store(tmp_path / "runs.db")
    compared = compare(store, [1])
    (found,) = reaching(store, compared, *compared.settings, "personal", (80,))
    assert len(compared.rows) == 2
    assert [(r.row.method, r.seeds[0].rounds) for r in found.rows] == [("fedot", 1)]


def test_report_and_export_have_the_costs(store: Store, comparison: Comparison):
    (setting,) = comparison.settings
    drawn = figures(ViewSource(store, comparison, "personal"), setting)
    titles = [title for figure in drawn for title, _ in figure.numbers()]
    assert len([t for t in titles if t.startswith("Cost to reach 95 % of the best")]) == 1
    with checked_comparison(store, [1], ComparisonChoices(metric="personal")) as checked:
        rows = table_of("".join(WRITERS["costs", "csv"](checked)))
    assert len(rows) == 3 * 2 * 4
    of = {(r["method"], r["seed"], r["share"]): r for r in rows}
    assert of["promptfl", "2", "80"]["reached"] == "false" and of["promptfl", "2", "80"]["seconds"] == ""
    reached = of["fedot", "1", "80"]
    assert (reached["rounds"], reached["megabytes"], reached["seconds"]) == ("3", "9.0", "9.0")


def test_the_harmonic_mean_of_global_and_personal_is_of_each_run_and_shown_on_request(
    store: Store, comparison: Comparison
):
    row = next(row for row in comparison.rows if row.method == "fedot")
    g = Fraction(GLOBAL, 20)
    of_seeds = [2 / (1 / g + 1 / Fraction(personal, 20)) for personal in (18, 20)]
    assert row.stats["dual"].mean == pytest.approx(float(100 * sum(of_seeds) / 2), rel=1e-12)
    of_means = 2 / (1 / g + 1 / Fraction(19, 20))
    assert row.stats["dual"].mean != pytest.approx(float(100 * of_means), abs=1e-3), "another number"
    assert "dual" in offered_metrics(comparison.rows)
    (plain,), (chosen,) = (
        summarise(comparison, tested=(), metric=metric).tables for metric in ("personal", "dual")
    )
    assert "dual" not in plain.metrics and "dual" in chosen.metrics
    line = mean_lines(store, comparison, plain.setting, "dual")[0]
    assert line.y[-1] == pytest.approx(row.stats["dual"].mean)


def test_it_is_the_mean_over_seeds_and_ends_at_the_table(filled: Path) -> None:
    found = compare(Store(filled), [1])
    group = next(g for g in found.rows if g.label == "SDFed")
    panel = row_panels(Store(filled), found, group.setting, "clients")[group.key]
    assert panel.rows == fill.CLIENTS and panel.columns == tuple(map(str, range(11)))
    expected = np.zeros((6, 11))
    for value in group.runs:
        for personal in Store(filled).cells.own_accuracy(value.run.id):
            expected[personal.client - 1, personal.round] += 100 * personal.correct / personal.total / 3
    np.testing.assert_allclose(panel.values, expected)
    assert panel.own_mean == pytest.approx(group.stats["personal"].mean), "the last round, as in the table"
    assert "SDFed, own accuracy" in heatmaps.heatmap_grid([panel], Theme()).alt


def test_a_client_that_took_no_part_is_a_gap(db: Path) -> None:
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=1))
    for writer, there in zip(writers, ((1, 2, 4, 5, 6), (1, 2, 4, 5)), strict=True):
        fill.train(writer, until=0)
        row = fill.a_round("fedot", fill.config_of(writer).seed, 1, 1)
        writer.write_round(
            replace(
                row,
                clients=tuple(
                    ClientRound(client=c, steps=12, train_loss=1.0, bytes_up=0, bytes_down=0) for c in there
                ),
            )
        )
        writer.claim.finish("done")
    found = compare(Store(db), [1])
    (panel,) = row_panels(Store(db), found, found.rows[0].setting, "clients").values()
    assert np.argwhere(np.isnan(panel.values)).tolist() == [[2, 1]], "the third client, in no run of round 1"
    (personal,) = [
        o for o in Store(db).cells.own_accuracy(writers[0].run_id) if (o.client, o.round) == (6, 1)
    ]
    assert panel.values[5, 1] == pytest.approx(100 * personal.correct / personal.total), (
        "of the one run that has it"
    )
