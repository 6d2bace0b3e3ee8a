"""Base and new classes in tables, curves, heatmaps and exports, from recorded counts."""

import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedcore.base.events import NO_VALUE
from fedcore.results.charts.ranks import rank_chart, rank_table
from fedcore.results.charts.theme import Theme
from fedcore.results.comparison import Comparison, compare
from fedcore.results.costs import Cost
from fedcore.results.curves import run_lines
from fedcore.results.exports import rows_csv, summary_rows
from fedcore.results.finding import findings
from fedcore.results.frames import cell_frame, round_metrics, with_harmonic_means
from fedcore.results.leaderboard import board, board_settings
from fedcore.results.matrices import run_panel
from fedcore.results.sharing import summary_latex
from fedcore.results.statistics import signed
from fedcore.results.summary import summarise
from fedcore.share.content import summary_table
from fedcore.share.views import ViewSource
from fedcore.share.views.cost import cost_figure
from fedcore.store import NamedCell, Store
from pages.compare_view.summary import columns_of
from tests.support import fill
from tests.support.exported import table_of

NAMES = (
    (0, "global", "global"),
    (1, "client", "a"),
    (2, "client", "b"),
    (3, "base", "base classes"),
    (4, "new", "new classes"),
)
REASON = f"{NO_VALUE}on new classes: its classifier starts at random"
COUNTS: dict[tuple[str, int], dict[tuple[int, int], tuple[int, int]]] = {
    ("zero-shot", 1): {(0, 3): (30, 60), (0, 4): (28, 40)},
    ("zero-shot", 2): {(0, 3): (32, 60), (0, 4): (20, 40)},
    ("promptfl", 1): {(0, 3): (45, 60), (0, 4): (21, 40)},
    ("promptfl", 2): {(0, 3): (50, 60), (0, 4): (25, 40)},
    ("clip-fc", 1): {(0, 3): (50, 60)},
    ("clip-fc", 2): {(0, 3): (51, 60)},
    ("coop", 1): {(1, 3): (30, 60), (2, 3): (15, 60), (1, 4): (20, 40), (2, 4): (10, 40)},
    ("coop", 2): {(1, 3): (30, 60), (2, 3): (30, 60), (1, 4): (0, 40), (2, 4): (0, 40)},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Each client has 3 of 4 own samples right; before training every model has half of all."""
    db = tmp_path_factory.mktemp("runs") / "runs.db"
    methods = ("zero-shot", "promptfl", "clip-fc", "coop")
    _, writers = fill.start(db, fill.an_experiment(methods=methods, seeds=(1, 2), rounds=1))
    for writer, (seed, method) in zip(writers, ((s, m) for s in (1, 2) for m in methods), strict=True):
        if method == "clip-fc":
            writer.notice(REASON, True)
        counts = COUNTS[method, seed]
        diagonal = [fill.cell(i, i, 3, 4) for i in (1, 2)]
        start = [fill.cell(*at, total // 2, total) for at, (_, total) in counts.items()]
        after = [fill.cell(*at, *right) for at, right in counts.items()]
        fill.record(writer, NAMES, {0: (*diagonal, *start), 1: (*diagonal, *after)})
    return Store(db)


@pytest.fixture(scope="module")
def comparison(store: Store) -> Comparison:
    return compare(store, [1])


def hm(*shares: Fraction) -> Fraction:
    return len(shares) / sum(1 / share for share in shares)


def test_a_harmonic_mean_is_that_of_exact_fractions():
    table = pd.DataFrame({"base": [75.0, 0.0, None], "new": [52.5, 80.0, 80.0]})
    exact, zero, unknown = with_harmonic_means(table).harmonic
    assert exact == pytest.approx(float(hm(Fraction(75), Fraction(105, 2))), rel=1e-15)
    assert zero == 0.0 and math.isnan(unknown)


def test_the_harmonic_mean_is_taken_for_each_seed_and_then_averaged(comparison: Comparison):
    stats = {row.method: row.stats for row in comparison.rows}["promptfl"]
    of_seeds = [hm(Fraction(45, 60), Fraction(21, 40)), hm(Fraction(50, 60), Fraction(25, 40))]
    assert stats["harmonic"].mean == pytest.approx(float(100 * sum(of_seeds) / 2), rel=1e-12)
    of_means = hm(Fraction(45 + 50, 120), Fraction(21 + 25, 80))
    assert stats["harmonic"].mean != pytest.approx(float(100 * of_means), abs=1e-3), "another number"
    assert stats["base"].mean == pytest.approx(100 * 95 / 120) and stats["new"].mean == pytest.approx(57.5)


def test_the_gain_on_new_classes_is_over_zero_shot_clip_of_the_same_seed(comparison: Comparison):
    gains = {row.method: row.stats["new_gain"] for row in comparison.rows if "new_gain" in row.stats}
    assert gains["promptfl"].mean == pytest.approx((21 - 28 + 25 - 20) / 40 * 100 / 2)
    assert gains["promptfl"].std == pytest.approx(abs((21 - 28) - (25 - 20)) / 40 * 100 / 2**0.5)
    assert gains["zero-shot"].mean == 0 and set(gains) == {"promptfl", "zero-shot"}


def test_own_models_have_a_harmonic_mean_of_three(comparison: Comparison):
    stats = {row.method: row.stats for row in comparison.rows}["coop"]
    of_seed_1 = hm(Fraction(3, 4), Fraction(45, 120), Fraction(30, 80))
    assert stats["harmonic3"].mean == pytest.approx(float(100 * of_seed_1 / 2)), "0 of seed 2 counts"
    assert stats["own_base"].mean == pytest.approx((37.5 + 50) / 2) and "base" not in stats


def test_a_method_without_a_value_is_empty_and_says_why_everywhere(store: Store, comparison: Comparison):
    row = next(row for row in comparison.rows if row.method == "clip-fc")
    assert "base" in row.stats and not {"new", "harmonic", "new_gain"} & set(row.stats)
    assert row.remark == REASON and any(REASON in note for note in comparison.notes)
    summary = summarise(comparison)
    written = [r for r in table_of(rows_csv(summary_rows(summary))) if r["method"] == "clip-fc"]
    empty = [r for r in written if r["metric"] in ("new", "harmonic")]
    assert len(empty) == 2 and all(r["mean"] == "" and r["remark"] == REASON for r in empty)
    assert REASON in summary_latex(summary)
    panel = run_panel(store, row.runs[0].run)
    assert panel.columns == ("a", "b", "base classes", "new classes")
    assert panel.values[panel.rows.index("global"), 2] == pytest.approx(100 * 50 / 60)
    assert panel.total[:, 3].sum() == 0


def test_both_halves_have_curves(store: Store):
    runs = {run.id: run.method for run in store.runs.of_experiments([1]) if run.seed == 1}
    new = {line.method: line.y for line in run_lines(store, dict.fromkeys(runs, 1), "new")}
    assert new == {"zero-shot": (50.0, 70.0), "promptfl": (50.0, 52.5)}
    both = {line.method: line.y for line in run_lines(store, dict.fromkeys(runs, 1), "harmonic")}
    assert both["promptfl"][1] == pytest.approx(float(100 * hm(Fraction(3, 4), Fraction(21, 40))))


def test_runs_on_all_classes_have_none_of_it(filled: Path):
    metrics = compare(Store(filled), [1]).metrics
    assert "whole" in metrics and not {"base", "new", "harmonic", "new_gain", "own_new"} & set(metrics)


def test_unseen_clients_weigh_equally_before_and_after_they_adapt():
    def cell(kind: str, model: str, test_set: str, correct: int, total: int) -> NamedCell:
        return NamedCell(1, 2, 1, 5, model, kind, test_set, "unseen", None, correct, total, None)

    cells = [
        cell("global", "global", "unseen c", 1, 4),
        cell("global", "global", "unseen d", 6, 8),
        cell("adapted", "c, adapted", "unseen c", 3, 4),
        cell("adapted", "d, adapted", "unseen d", 8, 8),
        cell("client", "a", "unseen c", 0, 4),
    ]
    (row,) = round_metrics(cell_frame(cells, [SimpleNamespace(id=1, seed=1, held_out=None)])).to_dict(
        "records"
    )
    assert row["unseen"] == 0.5 and row["adapted"] == 0.875 and "own_new" not in row


def test_a_finding_gives_the_gain_over_zero_shot_in_points(comparison: Comparison) -> None:
    (text,) = findings(summarise(comparison, tested=(), metric="new_gain")).values()
    highest = max(row.stats["new_gain"].mean for row in comparison.rows if "new_gain" in row.stats)
    assert f"by the gain over zero-shot on new classes ({signed(highest)} points)" in text


def test_tables_and_charts_call_the_gain_over_zero_shot_points(store: Store, comparison: Comparison) -> None:
    summary = summarise(comparison, tested=(), metric="new_gain")
    (table,) = summary.tables
    assert {"New, %", "New, gain, points"} <= {title for title, _ in summary_table(summary, table).columns}
    assert "& New & HM & New, gain, points &" in summary_latex(summary)
    columns = {c.key: c.title for c in columns_of(summary, table)}
    assert columns["new_gain"] == "New, gain, points" and columns["harmonic"] == "HM, %"
    source = ViewSource(store, comparison, "new_gain", None)
    costs = [Cost("PromptFL", "promptfl", -2.5, *[1.0] * 5)]
    figure = cost_figure(source, costs, costs, "megabytes")
    assert figure is not None and "-2.5 points at 2.00 (front)" in figure.chart(Theme(), 900).alt
    assert "accuracy, points" in dict(figure.numbers()[0][1])
    (setting,) = board_settings(store, store.runs.of_experiments([1]))
    made = board(store, setting, "new_gain")
    assert rank_table(made)["mean, points"] and "points, n = 2" in str(rank_chart(made, Theme()).figure.data)
