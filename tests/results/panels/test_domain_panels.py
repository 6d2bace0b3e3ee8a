"""Matrices of domains, attention, gaps and diagnostics against values worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.base.events import ClientRound, Diagnostic
from fedcore.results import curves
from fedcore.results.charts import heatmaps
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.theme import Theme
from fedcore.results.comparison import compare
from fedcore.results.matrices import method_by_domain_panel, row_panels, run_panel, run_panels
from fedcore.results.panels import Panel
from fedcore.store import Recorder, Store
from tests.support import fill

DOMAINS = {"a1": "art", "a2": "art", "s1": "sketch"}
CORRECT = {"a1": 8, "a2": 6, "s1": 9}


def accuracy(shift: int = 0) -> dict[tuple[str, str], tuple[int, int]]:
    """Counts of three clients, two of them of one domain; a model's own samples are told apart by OWN."""
    cells = {(m, t): (CORRECT[m] if m == t else 2, 10) for m in DOMAINS for t in DOMAINS}
    on_domains = {("a1", "art"): 14, ("a2", "art"): 10, ("s1", "art"): 4}
    on_domains |= {("a1", "sketch"): 3, ("a2", "sketch"): 5, ("s1", "sketch"): 18}
    cells |= {pair: (right, 20) for pair, right in on_domains.items()}
    cells |= {("global", "art"): (12, 20), ("global", "sketch"): (8, 20)}
    return {pair: (right + shift, n) for pair, (right, n) in cells.items()}


def record(db: Path, seed: int, cells: dict, **more: object) -> None:
    with Recorder(
        db,
        method="mine",
        seed=seed,
        dataset="pacs",
        experiment="Domains",
        domain_sets=("art", "sketch"),
        domains=DOMAINS,
        rounds_total=1,
        **more,
    ) as run:
        run.round(1, cells)


@pytest.fixture
def two_seeds(tmp_path: Path) -> Path:
    """Seed 2 is right once more in every cell."""
    for seed in (1, 2):
        record(tmp_path / "runs.db", seed, accuracy(seed - 1))
    return tmp_path / "runs.db"


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    """Art held out (client s1 trains), then sketch (clients a1 and a2)."""
    without_art = {("s1", "s1"): (9, 10), ("s1", "art"): (4, 20), ("global", "art"): (12, 20)}
    without_sketch = {("a1", "a1"): (8, 10), ("a2", "a2"): (6, 10), ("global", "sketch"): (8, 20)}
    record(tmp_path / "runs.db", 1, without_art | {("global", "sketch"): (1, 20)}, held_out="art")
    record(tmp_path / "runs.db", 1, without_sketch | {("global", "art"): (1, 20)}, held_out="sketch")
    return tmp_path / "runs.db"


def only(found: dict[str, Panel]) -> Panel:
    (panel,) = found.values()
    return panel


def test_domain_of_the_model_by_domain_of_the_images(two_seeds: Path) -> None:
    found = compare(Store(two_seeds), [1])
    panel = only(row_panels(Store(two_seeds), found, found.rows[0].setting, "domains"))
    assert (panel.rows, panel.columns) == (("art", "sketch"), ("art", "sketch"))
    # seed 1: (14/20 + 10/20) / 2 = 60 %, (3/20 + 5/20) / 2 = 20 %; seed 2 has 5 points more everywhere
    np.testing.assert_allclose(panel.values, [[62.5, 22.5], [22.5, 92.5]])
    assert panel.correct[0].tolist() == [14 + 10 + 15 + 11, 3 + 5 + 4 + 6]
    assert panel.total.tolist() == [[80, 80], [40, 40]]


def test_one_run_by_domains_is_the_row_of_one_seed(two_seeds: Path) -> None:
    run = next(r for r in Store(two_seeds).runs.of_experiments([1]) if r.seed == 1)
    panel = run_panel(Store(two_seeds), run, "domains")
    np.testing.assert_allclose(panel.values, [[60, 20], [20, 90]])


def test_without_test_sets_of_domains_the_clients_samples_stand_for_them(tmp_path: Path) -> None:
    cells = {pair: n for pair, n in accuracy().items() if pair[1] in DOMAINS}
    record(tmp_path / "runs.db", 1, cells)
    run = Store(tmp_path / "runs.db").runs.of_experiments([1])[0]
    panel = run_panel(Store(tmp_path / "runs.db"), run, "domains")
    # art on art: a1 on (a1, a2) = (8/10 + 2/10) / 2, a2 on (a1, a2) = (2/10 + 6/10) / 2, mean 45 %
    np.testing.assert_allclose(panel.values, [[45, 20], [20, 90]])


def test_methods_by_domain_agree_with_the_table(two_seeds: Path) -> None:
    found = compare(Store(two_seeds), [1])
    panel = method_by_domain_panel(Store(two_seeds), found, found.rows[0].setting)
    assert panel.rows == ("mine",)
    assert panel.columns == ("art", "sketch")
    # art: a1 80 and a2 60 with seed 1, ten points more with seed 2
    np.testing.assert_allclose(panel.values, [[75, 95]])
    assert panel.total.tolist() == [[40, 20]]
    stats = found.rows[0].breakdowns["domain"]
    np.testing.assert_allclose(panel.values[0], [stats["art"].mean, stats["sketch"].mean])


def test_held_out_matrix_has_g_on_the_diagonal_and_p_beside_it(held_out: Path) -> None:
    found = compare(Store(held_out), [1])
    group = found.rows[0]
    panel = only(row_panels(Store(held_out), found, group.setting, "held_out"))
    assert (panel.rows, panel.columns) == (("art", "sketch"), ("art", "sketch"))
    np.testing.assert_allclose(panel.values, [[60, 90], [70, 40]])
    assert panel.own_mean == pytest.approx(group.stats["generalisation"].mean)
    by_method = method_by_domain_panel(Store(held_out), found, group.setting)
    np.testing.assert_allclose(by_method.values, [[60, 40]])
    assert "G by held-out domain" in by_method.title
    chart = heatmaps.heatmap_grid([panel], Theme())
    assert "mine, G 50.0 %, P 80.0 %" in chart.alt
    printed = next(t.text for t in chart.figure.data if t.type == "scatter")
    assert list(printed) == ["60", "90", "70", "40"]
    (live,) = run_panels(Store(held_out), Store(held_out).runs.of_experiments([1]), "held_out")
    np.testing.assert_allclose(live.values, panel.values)
    assert live.title == "mine: round 1"


@pytest.fixture
def partly(db: Path) -> Path:
    """FedAlign, round 1: the third of six clients takes no part; attention among the first two."""
    _, writers = fill.start(db, fill.an_experiment(methods=("fedalign",), seeds=(1,), rounds=3))
    fill.train(writers[0], until=0)
    weights = {(1, 1): 0.75, (1, 2): 0.25, (2, 1): 0.4, (2, 2): 0.6}
    alpha = [Diagnostic("attention", w, client_a=a, client_b=b) for (a, b), w in weights.items()]
    counts = [Diagnostic("prototypes", float(n), client_a=c) for c, n in ((1, 4), (2, 8))]
    row = fill.a_round("fedalign", 1, 1, 3)
    there = tuple(
        ClientRound(client=c, steps=12, train_loss=1.0, bytes_up=0, bytes_down=0) for c in (1, 2, 4, 5, 6)
    )
    writers[0].write_round(replace(row, clients=there, diagnostics=(*alpha, *counts)))
    writers[0].write_round(replace(fill.a_round("fedalign", 1, 2, 3), diagnostics=()))
    writers[0].write_round(replace(fill.a_round("fedalign", 1, 3, 3), diagnostics=()))
    writers[0].claim.finish("done")
    return db


def test_attention_has_its_own_scale_and_gaps(partly: Path) -> None:
    run = Store(partly).runs.of_experiments([1])[0]
    panel = run_panel(Store(partly), run, "attention")
    assert panel.title == "FedAlign: round 1/3", "the last round that recorded it"
    np.testing.assert_allclose(panel.values[:2, :2], [[0.75, 0.25], [0.4, 0.6]])
    assert np.isnan(panel.values[2:]).all()
    assert np.isnan(panel.values[:, 2:]).all()
    chart = heatmaps.heatmap_grid([panel], Theme())
    axis = chart.figure.layout.coloraxis
    assert (axis.cmin, axis.cmax, axis.colorbar.title.text) == (0, 1, "Weight")
    accuracies = heatmaps.heatmap_grid([run_panel(Store(partly), run)], Theme()).figure.layout.coloraxis
    assert axis.colorscale != accuracies.colorscale
    assert chart.alt.endswith("a client's own weight 0.68 on average.")
    assert chart.figure.data[0].hovertemplate.startswith("%{y} learns from %{x}<br>")
    assert [t.name for t in chart.figure.data if t.showlegend] == ["did not take part, or not measured"]
    assert run_panel(Store(partly), run, "attention", until=0).values.size == 0
    found = compare(Store(partly), [1])
    compared = only(row_panels(Store(partly), found, found.rows[0].setting, panel.matrix))
    np.testing.assert_allclose(compared.values, panel.values)


def test_a_client_that_took_no_part_is_a_gap(partly: Path) -> None:
    run = Store(partly).runs.of_experiments([1])[0]
    panel = run_panel(Store(partly), run, "clients")
    assert panel.columns == ("0", "1", "2", "3")
    assert np.argwhere(np.isnan(panel.values)).tolist() == [[2, 1]], "client 3 in round 1, and no other"
    whole = heatmaps.heatmap_grid([run_panel(Store(partly), run)], Theme()).figure
    assert [t.name for t in whole.data if t.showlegend] == ["own test images"], "only of what is there"


def test_seeds_that_evaluated_other_rounds_are_averaged_where_they_have_a_round(db: Path) -> None:
    for seed, rounds in ((1, {0: 1, 10: 3}), (2, {0: 2, 5: 7, 10: 5})):
        with Recorder(db, method="mine", seed=seed, dataset="pacs", experiment="Seeds") as run:
            for number, right in rounds.items():
                run.round(number, {("a", "a"): (right, 10)})
    (panel,) = run_panels(Store(db), Store(db).runs.of_experiments([1]), "clients")
    assert (panel.title, panel.runs) == ("mine: 2 seeds, round 10", (1, 2))
    assert (panel.rows, panel.columns, panel.own_columns) == (("a",), ("0", "5", "10"), (2,))
    np.testing.assert_allclose(panel.values, [[15, 70, 40]])
    assert panel.total.tolist() == [[20, 10, 20]]
    (matrix,) = run_panels(Store(db), Store(db).runs.of_experiments([1]))
    assert matrix.values[0, 0] == pytest.approx(40), "the newest round of each"


def test_diagnostics_are_grouped_and_averaged(partly: Path) -> None:
    runs = Store(partly).runs.of_experiments([1])
    groups = curves.recorded_charts(Store(partly), runs)
    assert [g.key for g in groups] == ["prototypes"], "a matrix is a heatmap, not a line"
    (line,) = curves.diagnostic_series(Store(partly), {runs[0].id: 3}, groups[0])
    assert (line.x, line.y, line.low, line.high) == ((1.0,), (6.0,), (4.0,), (8.0,))
    assert not curves.diagnostic_series(Store(partly), {runs[0].id: 0}, groups[0])
    chart = line_chart([line], Theme(), "Round", "", per_cent=False, name=groups[0].title)
    assert "Prototypes a client sends at the end: FedAlign 6.0." in chart.alt


def test_figures_that_belong_together_share_a_chart(db: Path) -> None:
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    fill.train(writers[0], until=0)
    names = ("gradient_difference", "gradient_bound", "zeta", "condition_number")
    figures_ = tuple(Diagnostic(n, float(i)) for i, n in enumerate(names))
    writers[0].write_round(replace(fill.a_round("fedot", 1, 1, 1), diagnostics=figures_))
    groups = curves.recorded_charts(Store(db), Store(db).runs.of_experiments([1]))
    assert [list(g.lines) for g in groups] == [
        ["condition_number"],
        ["gradient_difference", "gradient_bound"],
        ["zeta"],
    ]
    assert [g.title for g in groups][-1] == "Zeta"
    assert "never tight" in groups[1].lines["gradient_bound"]
    lines = curves.diagnostic_series(Store(db), {writers[0].run_id: 1}, groups[1])
    assert [(s.label, s.y) for s in lines] == [
        ("FedOT, difference", (0.0,)),
        ("FedOT, bound, never tight", (1.0,)),
    ]
    assert [g.key for g in curves.default_charts(groups)] == ["condition_number"]


def test_traffic_adds_up_over_rounds(db: Path) -> None:
    fill.done(db, fill.an_experiment(methods=("fedot", "zero-shot"), seeds=(1,), rounds=3))
    until = {r.id: 2 for r in Store(db).runs.of_experiments([1])}
    (line,) = curves.run_lines(Store(db), until, "traffic")
    assert line.label == "FedOT", "zero-shot sends nothing"
    assert line.y[-1] == pytest.approx(2 * 6 * 2 * fill.BYTES["fedot"] / 1e6)
    assert line.x == (0.0, 1.0, 2.0)


def test_runs_of_one_method_are_told_apart_by_what_they_hold_out(held_out: Path) -> None:
    names = curves.run_labels(Store(held_out), Store(held_out).runs.of_experiments([1]))
    assert sorted(names.values()) == ["mine, without art", "mine, without sketch"]
