"""What the heatmaps and curves show is what was recorded."""

from pathlib import Path

import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.presentation import built_in
from fedcore.papers import experiments
from fedcore.results import curves, matrices
from fedcore.results.charts import heatmaps
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.theme import NARROW_PIXELS, STYLES, WIDE_PIXELS, Theme, style
from fedcore.results.comparison import compare
from fedcore.results.costs import row_costs
from fedcore.results.matrices import (
    Recorded,
    difference_panel,
    matrix_views,
    over_common_seeds,
    paired_panels,
    row_panels,
    run_panel,
)
from fedcore.results.panels import Panel, accuracy_panel
from fedcore.share.views import ViewSource
from fedcore.share.views.matrices import figures
from fedcore.store import Recorder, RunRow, Store
from fedcore.store.database import writing
from fedcore.store.rounds import CODED, EntityRow
from tests.support import fill


def coded(*cells: tuple[int, ...]) -> np.recarray:
    """The cells as ``Cells.coded`` returns them."""
    return np.rec.fromrecords(list(cells), dtype=CODED)


def run_called(db: Path, experiment: int, label: str) -> RunRow:
    return next(r for r in Store(db).runs.of_experiments([experiment]) if r.label == label)


def test_live_panel_is_the_newest_matrix(filled: Path) -> None:
    run = run_called(filled, 2, "FedOT")
    panel = run_panel(Store(filled), run)
    assert panel.title == "FedOT: round 7/20"
    assert panel.rows == ("global", *fill.CLIENTS)
    assert panel.columns == fill.CLIENTS, "a domain that one client holds alone is not shown twice"
    codes = {c: i for i, c in enumerate(("global", *fill.CLIENTS))}
    cells = {(c.model, c.test_set): c for c in Store(filled).cells.coded({run.id: [7]})}
    for i, model in enumerate(panel.rows):
        for j, test_set in enumerate(panel.columns):
            cell = cells[codes[model], codes[test_set]]
            assert panel.values[i, j] == pytest.approx(100 * cell.correct / cell.total)
            assert panel.total[i, j] == cell.total
    assert panel.own_mean == pytest.approx(
        100 * Store(filled).rounds.mean_accuracy([run.id])[-1].personal_mean
    )


def test_of_very_many_clients_a_panel_has_only_the_evaluated_ones(db, monkeypatch) -> None:
    clients, some = tuple(f"c{i}" for i in range(5)), ("c1", "c3")
    with Recorder(db, method="fedot", seed=1, domain_sets=["photo"]) as recorder:
        recorder.round(0, {(c, t): (1, 2) for c in clients for t in (c, "photo")})
        recorder.round(1, {(c, t): (1, 2) for c in some for t in (*some, "photo")})
    (run,) = Store(db).runs.get([recorder.run_id])
    last = Recorded(Store(db), [run], {run.id: [1]})
    panel = last.panel("matrix", "", "fedot")
    assert panel.rows == some and set(panel.columns) == {*clients, "photo"}
    assert last.panel("clients", "", "fedot").rows == clients
    monkeypatch.setattr("fedcore.store.rounds.MAX_EVALUATED_CLIENTS", 4)
    panel = last.panel("matrix", "", "fedot")
    assert panel.columns == ("photo", *some) and panel.own_columns == (1, 2)
    assert not np.isnan(panel.values).any()
    assert last.panel("clients", "", "fedot").rows == some
    early = Recorded(Store(db), [run], {run.id: []})
    assert early.panel("matrix", "", "fedot").values.size == 0, "of 10,000 clients, no matrix of gaps"


def test_a_run_that_waits_has_a_panel_that_says_so(filled: Path) -> None:
    panel = run_panel(Store(filled), run_called(filled, 2, "FedAlign"))
    assert panel.title == "FedAlign: waiting"
    chart = heatmaps.heatmap_grid([panel], Theme())
    assert "no data yet" in chart.alt


def test_client_by_round(filled: Path) -> None:
    run = run_called(filled, 1, "SDFed")
    panel = run_panel(Store(filled), run, "clients")
    assert panel.values.shape == (6, 11)
    personal = [o for o in Store(filled).cells.own_accuracy(run.id) if o.round == 4]
    assert panel.values[:, 4] == pytest.approx([100 * o.correct / o.total for o in personal])


def test_compared_panel_is_the_mean_over_seeds(filled: Path) -> None:
    found = compare(Store(filled), [1])
    group = next(g for g in found.rows if g.label == "FedOT")
    panel = row_panels(Store(filled), found, group.setting)[group.key]
    singles = [run_panel(Store(filled), v.run).values for v in group.runs]
    np.testing.assert_allclose(panel.values, np.mean(singles, axis=0))
    assert panel.own_mean == pytest.approx(group.stats["personal"].mean), "the table and the heatmap agree"


def test_difference_is_cell_by_cell(filled: Path) -> None:
    found = compare(Store(filled), [1])
    by_label = {p.title: p for p in row_panels(Store(filled), found, found.rows[0].setting).values()}
    gap = difference_panel(by_label["FedOT"], by_label["PromptFL"])
    np.testing.assert_allclose(gap.values, by_label["FedOT"].values - by_label["PromptFL"].values)


def test_differences_are_means_over_the_seeds_that_both_rows_have(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    correct = {("ours", 1): 50, ("ours", 2): 50, ("theirs", 1): 60, ("theirs", 3): 0, ("other", 4): 70}
    for (method, seed), right in correct.items():
        with Recorder(db, method=method, seed=seed, dataset="rotated-digits", experiment="Mine") as run:
            run.round(1, accuracy={("a", "a"): (right, 100)})
    found = compare(Store(db), [1])
    rows = {row.label: row for row in found.rows}
    setting = rows["ours"].setting
    panels = row_panels(Store(db), found, setting)
    assert panels[rows["ours"].key].values.item() > panels[rows["theirs"].key].values.item()
    pairs = paired_panels(matrix_views()["models"], Store(db), found, panels, rows["theirs"])
    assert pairs.keys() == {rows["ours"].key}, "no seed in common, no difference"
    assert difference_panel(*pairs[rows["ours"].key]).values.item() == pytest.approx(-10)
    drawn = {f.name: f for f in figures(ViewSource(Store(db), found, "personal", "theirs"), setting)}
    assert drawn["models-difference"].title.endswith("difference from theirs over the seeds that both have")
    assert over_common_seeds([rows["ours"]], rows["ours"]) == "", (
        "the cells are the differences of those shown"
    )
    ((_, numbers),) = drawn["models-difference"].numbers()
    assert [value for (value,) in numbers.values() if isinstance(value, float)] == pytest.approx([-10])


def test_one_colour_axis_for_all_panels(filled: Path) -> None:
    shown = [run_panel(Store(filled), r) for r in Store(filled).runs.of_experiments([2])]
    figure = heatmaps.heatmap_grid(shown, Theme()).figure
    heat = [t for t in figure.data if t.type == "heatmap"]
    assert len(heat) == 5
    assert {t.coloraxis for t in heat} == {"coloraxis"}
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 100)
    titles = {a.text for a in figure.layout.annotations}
    assert "<b>FedOT: round 7/20</b>" in titles


def test_fitted_colours_span_the_values(filled: Path) -> None:
    shown = [run_panel(Store(filled), run_called(filled, 1, "FedOT"))]
    axis = heatmaps.heatmap_grid(shown, Theme(), fitted=True).figure.layout.coloraxis
    assert axis.cmin <= shown[0].values.min() < shown[0].values.max() <= axis.cmax
    assert axis.cmax - axis.cmin < 60


def test_names_are_shown_as_text(db: Path) -> None:
    names = ('<a href="http://x">a</a>', "<b>b</b>")
    _, writers = fill.start(db, fill.an_experiment("n", methods=("fedot",), seeds=(1,), rounds=2))
    fill.train(writers[0], clients=names)
    run = Store(db).runs.get([writers[0].run_id])[0]
    text = heatmaps.heatmap_grid([run_panel(Store(db), run)], Theme()).figure.to_json()
    assert "<a href" not in text
    assert "\\u003ca href" not in text.lower()


def test_curves_hold_mean_and_spread_over_seeds(filled: Path) -> None:
    found = compare(Store(filled), [1])
    setting = found.rows[0].setting
    line = next(s for s in curves.mean_lines(Store(filled), found, setting, "personal") if s.label == "FedOT")
    assert line.x == tuple(range(11))
    group = next(g for g in found.rows if g.label == "FedOT")
    assert line.y[-1] == pytest.approx(group.stats["personal"].mean)
    assert line.std[-1] == pytest.approx(group.stats["personal"].std)
    sent = next(
        s
        for s in curves.mean_lines(Store(filled), found, setting, "personal", "megabytes")
        if s.label == "FedOT"
    )
    assert sent.x[-1] == pytest.approx(10 * 6 * 2 * fill.BYTES["fedot"] / 1e6)
    chart = line_chart([line], Theme(), "Round", "Personal accuracy")
    assert f"FedOT {line.y[-1]:.1f} %" in chart.alt


def test_cost_is_the_mean_over_runs(filled: Path) -> None:
    found = compare(Store(filled), [1])
    cost = next(c for c in row_costs(Store(filled), found, found.rows[0].setting) if c.label == "SDFed")
    assert cost.megabytes_up == pytest.approx(10 * 6 * fill.BYTES["sdfed"] / 1e6)
    assert cost.seconds_train == pytest.approx(8.0)


def test_methods_look_alike_everywhere_and_apart_from_each_other() -> None:
    names = "fedot", "sdfed", "fedalign", "feddeap", "zero-shot", "promptfl"
    first = {name: style(name) for name in names}
    for name, personal in first.items():
        assert (Theme().colour(name), Theme(dark=True).colour(name)) == (personal.light, personal.dark)
    assert len({s.marker for s in first.values()}) == len(first), "a second code beside colour"
    assert len({s.dash for s in first.values()}) == len(first)
    assert style("fedot").light == "#0072B2" and style("pfedmma").marker == "diamond-tall-open", "as printed"
    assert Theme().colour("my-method") == Theme().colour("my-method")


def test_baselines_differ_by_marker_and_where_a_paper_compares_them_by_colour_too() -> None:
    assert len(built_in()) <= len(STYLES), "a method without a style of its own"
    markers = [style.marker for style in STYLES]
    assert sorted(set(markers)) == sorted(markers), "two methods have one marker"
    for experiment in experiments.published().values():
        names = {entry.name for entry in experiment.methods}
        for colours in zip(*(style(name)[:2] for name in names), strict=True):
            assert len(set(colours)) == len(names), experiment.name


@pytest.mark.parametrize("dark", [False, True])
def test_the_colours_of_baselines_can_be_seen_on_the_page(dark: bool) -> None:
    theme = Theme(dark=dark)
    for name in list(built_in())[6:]:
        light, deep = sorted((luminance(theme.colour(name)), luminance(theme.paper)), reverse=True)
        assert (light + 0.05) / (deep + 0.05) >= 4.5, name


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_differences_can_be_read_on_their_colour(dark: bool) -> None:
    """White text on the light blue of a middling difference had a contrast below 3:1."""
    values = np.array([[-20.0, -10.0, 0.0, 10.0, 20.0]])
    names = [str(v) for v in values[0]]
    none = np.zeros((1, 5), dtype=int)
    panel = Panel("a", "fedot", ("all",), tuple(names), values, none, none)
    figure = heatmaps.difference_grid([panel], Theme(dark=dark)).figure
    grounds = [colour for _, colour in figure.layout.coloraxis.colorscale]
    for ground, ink in zip(grounds, figure.data[1].textfont.color, strict=True):
        light, deep = sorted((luminance(ground), luminance(ink)), reverse=True)
        assert (light + 0.05) / (deep + 0.05) >= 4.5, f"{ink} on {ground}"


def test_a_mark_at_round_0_is_whole(filled: Path) -> None:
    experiment = Store(filled).experiments.all()[-1]
    rounds = {r.id: r.rounds_total for r in experiment.runs}
    chart = line_chart(curves.run_lines(Store(filled), rounds), Theme(), "Round", "")
    axis = chart.figure.layout.xaxis
    assert axis.rangemode != "tozero"  # which ends the axis at the middle of the mark
    assert axis.autorangeoptions.include == 0 and axis.autorangeoptions.clipmin is None
    begun = line_chart(curves.run_lines(Store(filled), dict.fromkeys(rounds, 0)), Theme(), "Round", "")
    assert begun.figure.layout.xaxis.autorangeoptions.clipmin < 0, "from round 0 on, with room for its mark"


def test_axes_are_written_in_the_colour_of_text(filled: Path) -> None:
    chart = line_chart([], Theme(), "Round", "Accuracy")
    for axis in (chart.figure.layout.xaxis, chart.figure.layout.yaxis):
        assert axis.color == Theme().ink


def test_a_long_title_keeps_its_round_and_its_panel(filled: Path) -> None:
    none = np.zeros((1, 1), dtype=int)
    title = f"{'P' * 300}: round 4/10"
    panel = Panel(title, "fedot", ("all",), ("a",), np.ones((1, 1)), none, none)
    (drawn,) = (a.text for a in heatmaps.heatmap_grid([panel], Theme()).figure.layout.annotations)
    assert drawn.endswith("P: round 4/10</b>") and "…" in drawn and len(drawn) < 170


def test_titles_of_neighbours_do_not_touch_whatever_their_letters(filled: Path) -> None:
    none = np.zeros((1, 1), dtype=int)
    for letter, most in (("i", 60), ("W", 40), ("é😀", 45)):
        shown = [
            Panel(f"{letter * 80}: round 4/10", "fedot", ("all",), ("a",), np.ones((1, 1)), none, none)
        ] * 3
        for width, columns in ((WIDE_PIXELS, 3), (NARROW_PIXELS, 1)):
            figure = heatmaps.heatmap_grid(shown, Theme(), columns, width=width).figure
            drawn = {a.text.removeprefix("<b>").removesuffix("</b>") for a in figure.layout.annotations}
            (title,) = drawn
            assert title.endswith(": round 4/10") and "…" in title
            assert len(title) < most * (1 if width == WIDE_PIXELS else 0.75)


def test_values_are_printed_where_a_cell_has_room(filled: Path) -> None:
    """Twelve clients: on a screen in three panels beside each other, on a telephone not even in one."""
    names = tuple(f"client {i:02d}" for i in range(12))
    none = np.zeros((12, 12), dtype=int)
    panel = Panel("FedOT", "fedot", names, names, np.full((12, 12), 50.0), none, none)

    def printed(*args: int, width: int) -> int:
        figure = heatmaps.heatmap_grid([panel] * 3, Theme(), *args, width=width).figure
        return sum(t.type == "scatter" for t in figure.data)

    assert printed(3, width=WIDE_PIXELS) == 3
    assert printed(4, width=WIDE_PIXELS) == 3  # three panels: three columns
    assert printed(1, width=NARROW_PIXELS) == 0


def test_a_mean_over_runs_is_by_name_whatever_the_codes_and_weighs_seeds_equally() -> None:
    entities = {
        1: [EntityRow(0, "global", "global", None, None), EntityRow(1, "client", "a", None, 9)],
        2: [
            EntityRow(0, "global", "global", None, None),
            EntityRow(7, "client", "b", None, 9),
            EntityRow(8, "client", "a", None, 9),
        ],
    }
    cells = [(1, 0, 1, 1, 2), (1, 1, 1, 1, 4), (1, 1, 1, 2, 4), (2, 8, 8, 9, 10), (2, 7, 8, 0, 10)]
    panel = accuracy_panel("", "fedot", coded(*cells), entities, {1: 1, 2: 2})
    assert (panel.rows, panel.columns) == (("global", "a", "b"), ("a", "b"))
    assert panel.values[:, 0].tolist() == [50, pytest.approx(100 * ((0.25 + 0.5) / 2 + 0.9) / 2), 0]
    assert (panel.correct[1, 0], panel.total[1, 0]) == (12, 18)
    assert np.isnan(panel.values[:, 1]).all() and panel.own_columns == (-1, 0, 1)
    one_seed = accuracy_panel(
        "", "fedot", coded(*cells, (3, 1, 1, 1, 1)), entities | {3: entities[1]}, {1: 1, 2: 2, 3: 1}
    )
    assert one_seed.values[1, 0] == pytest.approx(100 * ((0.375 + 1) / 2 + 0.9) / 2), (
        "as two held-out domains"
    )
    for stray in ((1, 7, 1, 1, 2), (2, 8, 3, 1, 2), (2, 8, 99, 1, 2)):
        with pytest.raises(FedLensError, match="belongs to no model or test set"):
            accuracy_panel("", "fedot", coded(*cells, stray), entities, {1: 1, 2: 2})


def test_a_client_without_a_row_is_damage_in_a_panel_of_rounds(tmp_path: Path) -> None:
    """It was a KeyError."""
    store = Store(tmp_path / "runs.db")
    fill.done(store.path, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    with writing(store.path) as database:
        database.execute("DELETE FROM entities WHERE entity=3")
    (run,) = store.runs.get([1])
    with pytest.raises(FedLensError, match="belongs to no model or test set"):
        Recorded(store, [run], {1: [0, 1]}).panel("clients", "", "fedot")


def test_panels_stand_in_rows_without_touching(filled: Path) -> None:
    shown = [run_panel(Store(filled), r) for r in Store(filled).runs.of_experiments([2])]
    layout = heatmaps.heatmap_grid(shown, Theme(), columns=3).figure.layout
    boxes = [(layout[f"xaxis{n}"].domain, layout[f"yaxis{n}"].domain) for n in ("", "2", "3", "4", "5")]
    for (left, right), (low, high) in boxes:
        assert 0 <= left < right <= 1 and 0 <= low < high <= 1
    assert boxes[0][0][1] < boxes[1][0][0] and boxes[1][0][1] < boxes[2][0][0], "three in the first row"
    assert boxes[3][0] == boxes[0][0] and boxes[3][1][1] < boxes[0][1][0], "the fourth below the first"
    titles = {a.text: (a.x, a.y) for a in layout.annotations if a.xref == "paper"}
    for panel, ((left, right), (_, high)) in zip(shown, boxes, strict=True):
        assert titles[f"<b>{panel.title}</b>"] == (pytest.approx((left + right) / 2), high)


def test_of_very_many_rounds_some_share_a_column_but_not_the_first_and_the_last(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Store(filled).runs.of_experiments([1])[0]
    every = run_panel(Store(filled), run, "clients")
    monkeypatch.setattr(matrices, "MOST_COLUMNS", 4)
    some = run_panel(Store(filled), run, "clients")
    assert len(every.columns) == 11 and some.columns == ("0", "1 to 5", "6 to 9", "10"), (
        "round 0 is before training, and not averaged with trained rounds"
    )
    assert np.allclose(some.values[:, 1], every.values[:, 1:6].mean(1))
    assert (some.total[:, 2] == every.total[:, 6:10].sum(1)).all()
    assert (some.values[:, 0] == every.values[:, 0]).all()
    assert (some.values[:, -1] == every.values[:, -1]).all() and some.own_mean == every.own_mean


def test_columns_of_rounds_are_few_and_hold_every_round() -> None:
    for count in (0, 1, 2, 399, 400, 401, 800, 10_001):
        columns = matrices.binned_rounds(range(count))
        assert list(columns) == list(range(count))
        assert len(set(columns.values())) <= matrices.MOST_COLUMNS
        assert count == 0 or list(columns.values()).count(str(count - 1)) == 1
        assert count == 0 or list(columns.values()).count("0") == 1
