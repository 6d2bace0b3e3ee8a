"""Curves and costs of runs whose time and traffic are not all known."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from scipy import stats

from fedcore.results import curves
from fedcore.results.charts.cost import (
    NARROW_COST_PLOTS,
    PLOT_HEIGHT,
    WIDE_COST_PLOTS,
    Scale,
    cost_chart,
    cost_scale,
)
from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.charts.theme import TOOLBAR, Chart, Theme
from fedcore.results.comparison import compare
from fedcore.results.costs import Cost, pareto_front, reaching, row_costs
from fedcore.results.curves import Series, smoothed, with_band
from fedcore.store import Recorder, Store
from tests.support import fill
from tests.support.web import markup


def test_costs_that_nobody_measured_are_unknown_not_zero(db):
    accuracy = {("a", "a"): (1, 2), ("b", "b"): (2, 2)}
    with Recorder(db, method="silent", seed=1, dataset="d", experiment="x") as run:
        run.round(1, accuracy=accuracy)
        run.round(2, accuracy=accuracy)
    with Recorder(db, method="measured", seed=1, dataset="d", experiment="x") as run:
        run.round(1, accuracy=accuracy, seconds=2.0, bytes_up=1_000_000, bytes_down=0)
        run.round(2, accuracy=accuracy, seconds=3.0, bytes_up=1_000_000, bytes_down=0)
    found = compare(Store(db), [1], "last")
    (setting,) = found.settings
    costs = {c.label: c for c in row_costs(Store(db), found, setting)}
    assert costs["silent"].megabytes is None
    assert costs["silent"].seconds is None
    assert costs["measured"].megabytes_up == 2.0
    assert costs["measured"].megabytes_down == 0.0
    assert costs["measured"].seconds == 5.0
    drawn = {s.label: s.x for s in curves.mean_lines(Store(db), found, setting, "personal", "megabytes")}
    assert drawn == {"measured": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("recorded", "unmeasured", "seconds", "late"),
    [
        # the rounds that were measured are less than the whole run, and than the way to a target; the time
        # is with that of round 0, which the script gave
        ({0: 10, 1: 20, 2: 30, 3: 60, 4: 60}, (0, 2), 7.5, (3, None, 6.0)),
        # a script that records the rounds in which it evaluates gives the traffic of these alone
        ({0: 10, 1: 20, 3: 40, 5: 60}, (0,), None, (5, None, None)),
    ],
)
def test_a_cost_without_some_round_is_unknown(
    db: Path, recorded: dict[int, int], unmeasured: tuple[int, ...], seconds: float | None, late: tuple
) -> None:
    with Recorder(db, method="gap", seed=1, dataset="rotated-digits", experiment="x") as run:
        for round_, correct in recorded.items():
            sent = {} if round_ in unmeasured else {"bytes_up": 1_000_000, "bytes_down": 2_000_000}
            run.round(round_, accuracy={("a", "a"): (correct, 100)}, seconds=1.5, **sent)
    found = compare(Store(db), [1])
    (setting,) = found.settings
    assert curves.cumulative_cost(Store(db), [1], "megabytes") == {1: {1: 3.0}}
    (cost,) = row_costs(Store(db), found, setting)
    assert (cost.megabytes_up, cost.megabytes, cost.seconds_train, cost.seconds) == (
        None,
        None,
        *2 * [seconds],
    )
    sent = Store(db).rounds.totals([1], "bytes_up", "bytes_down")
    assert sent == {1: (None, None)}, "Live says what the costs say"
    early, at_end = reaching(Store(db), found, setting, "personal", (33, 99))
    assert [(seed.rounds, seed.megabytes) for seed in early.rows[0].seeds] == [(1, 3.0)]
    assert [(seed.rounds, seed.megabytes, seed.seconds) for seed in at_end.rows[0].seeds] == [late]


def test_traffic_that_was_recorded_in_one_direction_is_not_the_traffic_up_and_down(db: Path) -> None:
    """It was drawn, and compared, as if nothing went the other way."""
    with Recorder(db, method="up", seed=1, dataset="rotated-digits", experiment="x") as run:
        run.round(1, accuracy={("a", "a"): (10, 100)}, bytes_up=1_000_000)
    found = compare(Store(db), [1])
    (setting,) = found.settings
    (cost,) = row_costs(Store(db), found, setting)
    assert (cost.megabytes_up, cost.megabytes_down, cost.megabytes) == (1.0, None, None)
    assert pareto_front([cost], "megabytes") == []
    assert curves.run_lines(Store(db), {1: 1}, "traffic") == []


def test_runs_of_one_label_with_other_hyper_parameters_are_not_further_seeds(db: Path) -> None:
    for seed, lr, correct in ((1, 0.1, 20), (2, 0.1, 40), (1, 0.5, 90)):
        with Recorder(
            db, method="own", seed=seed, dataset="rotated-digits", experiment="x", config={"lr": lr}
        ) as run:
            run.round(1, accuracy={("a", "a"): (correct, 100)}, diagnostics={"norm": correct})
    of_runs = curves.run_lines(Store(db), {1: 1, 2: 1, 3: 1})
    means = curves.lines_over_seeds(of_runs)
    assert [(line.n, line.y) for line in means] == [(2, (pytest.approx(30),)), (1, (90,))]
    (chart,) = curves.recorded_charts(Store(db), Store(db).runs.get([1]))
    recorded = curves.diagnostic_series(Store(db), {1: 1, 2: 1, 3: 1}, chart)
    assert [line.n for line in curves.lines_over_seeds(recorded)] == [2, 1]
    names = ["own (learning rate 0.1)", "own (learning rate 0.5)"]
    assert [line.label for line in means] == names, "one name in the legend could be either line"
    assert list(curves.run_labels(Store(db), Store(db).runs.get([1, 2]))) == [1, 2]
    assert set(curves.run_labels(Store(db), Store(db).runs.get([1, 2])).values()) == {"own"}


def a_cost(label: str, accuracy: float | None, up: float | None, seconds: float | None = 1.0) -> Cost:
    return Cost(label, "fedot", accuracy, up, up, seconds, None, None)


def drawn(
    costs: list[Cost], widths: tuple[float, ...] = WIDE_COST_PLOTS, scale: Scale = "automatic"
) -> Chart:
    """Accuracy against traffic."""
    front = pareto_front(costs, "megabytes")
    return cost_chart(costs, front, Theme(), "megabytes", "Personal accuracy", "%", widths, scale)


def test_the_front_by_hand():
    """b costs more than a and does worse; d equals c; e has no accuracy; f costs nothing known."""
    found = [
        a_cost("c", 80.0, 10.0),
        a_cost("a", 70.0, 1.0),
        a_cost("b", 69.0, 2.0),
        a_cost("d", 80.0, 10.0),
        a_cost("e", None, 0.1),
        a_cost("f", 99.0, None),
        a_cost("g", 80.0, 11.0),
        a_cost("h", 79.0, 10.0),
    ]
    assert [c.label for c in pareto_front(found, "megabytes")] == ["a", "c", "d"]
    assert [c.label for c in pareto_front(found, "seconds")] == ["f"], "all took one second"
    assert pareto_front([], "seconds") == []


def test_the_front_is_drawn_cheapest_first():
    found = [a_cost("dear", 80.0, 10.0), a_cost("cheap <b>", 70.0, 1.0), a_cost("poor", 60.0, 5.0)]
    chart = drawn(found)
    line, *points = chart.figure.data
    assert (list(line.x), list(line.y)) == ([2.0, 20.0], [70.0, 80.0])
    assert [p.text[0] for p in points] == ["<b>dear</b>", "<b>cheap &lt;b&gt;</b>", "poor"]
    assert "cheap <b> 70.0 % at 2.00 (front); poor 60.0 % at 10.00." in chart.alt


def test_names_alike_once_cut_are_not_written_over_each_other() -> None:
    """A sweep's rows begin alike; their marks stand close, and say their whole names under the pointer."""
    labels = (
        "FedOT (alpha 0.3, leftover spread, blocks 1)",
        "FedOT (alpha 0.3, leftover spread, blocks 4)",
        "PromptFL",
    )
    found = [a_cost(label, 70.0 + i, 1.0 + i, 1.0) for i, label in enumerate(labels)]
    figure = drawn(found).figure
    marks = {t.name: t.text[0] for t in figure.data if t.mode == "markers+text"}
    assert [markup.text(marks[label]) for label in labels[:2]] == ["1", "2"], "their numbers in the table"
    assert "PromptFL" in marks["PromptFL"]


def covered(figure: go.Figure, width: float) -> list[tuple[str, str]]:
    """Names that lie over one another, as plotly sets them: 7 pixels a letter, 17 a line."""
    boxes = []
    (x0, x1), (y0, y1) = figure.layout.xaxis.range, figure.layout.yaxis.range
    for t in figure.data:
        name = markup.text(t.text[0]) if t.text else ""
        if name:
            vertical, side = t.textposition.split()
            x = math.log10(t.x[0]) if figure.layout.xaxis.type == "log" else t.x[0]
            u, v = width * (x - x0) / (x1 - x0), PLOT_HEIGHT * (y1 - t.y[0]) / (y1 - y0)
            size = 7 * len(name)
            left = u + {"left": -10 - size, "center": -size / 2, "right": 10}[side]
            top = v + {"top": -27, "middle": -8.5, "bottom": 10}[vertical]
            boxes.append((name, left, top, left + size, top + 17))
    return [
        (a[0], b[0])
        for a, b in itertools.combinations(boxes, 2)
        if a[1] < b[3] and b[1] < a[3] and a[2] < b[4] and b[2] < a[4]
    ]


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("widths", [WIDE_COST_PLOTS, NARROW_COST_PLOTS])
def test_names_of_marks_that_lie_close_do_not_cover_each_other(
    widths: tuple[float, ...], scale: Scale
) -> None:
    """Six methods of which four reach the same for the same; the front's two keep their names."""
    found = [
        a_cost("Zero-shot CLIP", 52.0, 0.0),
        a_cost("FedOT", 86.0, 1.0),
        a_cost("FedDEAP", 85.8, 1.02),
        a_cost("FedAlign", 85.9, 1.03),
        a_cost("SDFed", 85.7, 1.01),
        a_cost("PromptFL", 66.0, 0.4),
    ]
    figure = drawn(found, widths, scale).figure
    assert not any(covered(figure, width) for width in widths), "a window of any size shows this chart"
    named = [t.text[0] for t in figure.data if t.text and t.text[0]]
    assert "<b>FedOT</b>" in named and len(named) >= (4 if widths == WIDE_COST_PLOTS else 3)
    if scale == "linear":
        assert figure.layout.xaxis.range[0] < 0, "a mark at 0 is whole"


@pytest.mark.parametrize("widths", [WIDE_COST_PLOTS, NARROW_COST_PLOTS])
def test_every_method_of_the_demonstration_has_its_name(widths: tuple[float, ...]) -> None:
    found = [
        a_cost("Zero-shot CLIP", 47.7, 0.0),
        a_cost("FedOT", 92.4, 0.46),
        a_cost("PromptFL", 83.7, 0.74),
        a_cost("FedDEAP", 80.4, 25.2),
        a_cost("SDFed", 84.3, 0.74),
        a_cost("FedAlign", 89.4, 6.05),
    ]
    figure = drawn(found, widths).figure
    named = {markup.text(t.text[0]) for t in figure.data if t.text}
    assert named == {c.label for c in found}


def test_costs_that_span_a_factor_of_ten_have_a_logarithmic_axis_with_a_place_for_zero() -> None:
    found = [a_cost("free", 50.0, 0.0), a_cost("cheap", 60.0, 0.5), a_cost("dear", 80.0, 40.0)]
    figure = drawn(found).figure
    axis, marks = figure.layout.xaxis, {t.name: t for t in figure.data if t.customdata}
    assert axis.type == "log"
    at = {name: trace.x[0] for name, trace in marks.items()}
    assert 0 < at["free"] < at["cheap"] == 1.0 and at["dear"] == 80.0
    assert dict(zip(axis.tickvals, axis.ticktext, strict=True))[at["free"]] == "0"
    assert [marks[n].customdata[0] for n in ("free", "cheap", "dear")] == [0.0, 1.0, 80.0]
    assert axis.range[0] < math.log10(at["free"]) and math.log10(80.0) < axis.range[1]
    near = [a_cost("a", 60.0, 1.0), a_cost("b", 70.0, 4.0)]
    assert drawn(near).figure.layout.xaxis.type == "linear"
    assert not cost_scale([0.0], "log").log, "nothing but zeros has no logarithm"


def test_a_name_without_room_is_under_the_pointer_alone() -> None:
    found = [a_cost(f"{i} of a dozen marks", 70.0, 1.0) for i in range(12)]
    figure = drawn(found).figure
    marks = [t for t in figure.data if t.mode == "markers+text"]
    assert len(marks) == 12 and 0 < sum(bool(t.text[0]) for t in marks) < 12
    assert not any(covered(figure, width) for width in WIDE_COST_PLOTS)
    assert all(t.name.endswith("of a dozen marks") for t in marks)


@pytest.mark.parametrize(
    ("values", "per_cent", "expected"),
    [
        ((1.0, 1.0), False, (0, 1.25)),
        ((1.0, 1.000001), False, (0, 1.25)),  # an orthogonal matrix's condition number, as float32 has it
        ((0.0, 0.0), False, (-0.08, 1)),
        ((-0.4, -0.4), False, (-0.5, 0)),
        ((96.0, 96.0), True, (0, 105)),
        ((1.0, 1.001), False, None),
        ((), False, None),
    ],
)
def test_a_line_that_does_not_move_stands_above_zero(
    values: tuple[float, ...], per_cent: bool, expected: tuple[float, float] | None
) -> None:
    rounds = tuple(float(i) for i in range(len(values)))
    line = curves.Series("a", "fedot", rounds, values, (None,) * len(values), 1)
    figure = line_chart([line], Theme(), "Round", "", per_cent=per_cent).figure
    assert figure.layout.yaxis.range is None
    found = figure.layout.yaxis.autorangeoptions.include
    assert found is None if expected is None else found == pytest.approx(expected)


def test_a_table_of_lines_has_what_the_chart_has_and_no_empty_column() -> None:
    reach = curves.Series("a", "fedot", (1.0, 2.0), (9.1e-7, 0.5), (None, None), 1, (8e-7, 0.4), (1e-6, 0.6))
    table = series_table([reach], "round")
    assert table == {
        "line": ["a", "a"],
        "round": [1.0, 2.0],
        "mean": [9.1e-7, 0.5],
        "minimum": [8e-7, 0.4],
        "maximum": [1e-6, 0.6],
    }
    seeds = curves.Series("a", "fedot", (1.0,), (70.123,), (0.456,), 3)
    assert series_table([seeds], "Round", "%") == {
        "line": ["a"],
        "Round": [1.0],
        "mean, %": [70.12],
        "std": [0.46],
    }


def variants(count: int) -> list[curves.Series]:
    return [
        curves.Series(
            f"FedOT (alpha 0.3, blocks {i})", "fedot", (1.0, 2.0), (50.0, 60.0 + i), (None, None), 1
        )
        for i in range(count)
    ]


def test_sixteen_variants_of_a_method_stay_apart_and_leave_the_plot_its_height():
    few, many = (line_chart(variants(n), Theme(), "Round", "", height=300).figure for n in (1, 16))
    looks = [(t.line.dash, t.marker.symbol) for t in many.data]
    assert len(set(looks)) == 16
    assert few.layout.height == 300 + TOOLBAR
    rows = 16  # names as long as these have a row each
    assert many.layout.height == 300 + TOOLBAR + 20 * (rows - 2)
    plot = many.layout.height - TOOLBAR - 130 - 20 * (rows - 1)
    assert plot >= 130
    assert many.layout.legend.y == -64 / plot


def test_a_band_is_a_standard_deviation_an_error_or_an_interval() -> None:
    line = Series("a", "fedot", (1.0, 2.0), (5.0, 6.0), (2.0, None), 4)
    assert with_band(line, "std") == line
    assert with_band(line, "se").std == (1.0, None)
    values = np.array([3.0, 4.0, 6.0, 7.0])
    line = replace(line, std=(float(values.std(ddof=1)), None))
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert with_band(line, "ci95").std[0] == pytest.approx((high - low) / 2)
    assert with_band(replace(line, n=1), "ci95").std == line.std


def test_smoothing_keeps_the_raw_values_and_begins_at_the_first() -> None:
    line = Series("a", "fedot", (1.0, 2.0, 3.0), (10.0, 0.0, 4.0), (None,) * 3, 1)
    calm = smoothed(line, 0.5)
    assert calm.y == line.y and calm.smooth == pytest.approx((10.0, 10 / 3, (2.5 + 4) / 1.75))
    assert smoothed(line, 0.0).smooth == ()
    constant = smoothed(replace(line, y=(2.0, 2.0, 2.0)), 0.9)
    assert constant.smooth == pytest.approx((2.0, 2.0, 2.0))
    chart = line_chart([calm], Theme(), "Round", "Loss", per_cent=False, logarithmic=["y"])
    raw, drawn = chart.figure.data
    assert tuple(raw.y) == line.y and raw.opacity < 0.5 and tuple(drawn.y) == calm.smooth
    assert chart.figure.layout.yaxis.type == "log" and chart.figure.layout.xaxis.type is None
    assert "4" in chart.alt, "the last value as measured"
    assert series_table([calm], "Round")["smoothed"][0] == 10.0


def test_a_band_ends_where_a_logarithmic_axis_does() -> None:
    line = Series("a", "fedot", (1.0, 2.0), (0.5, 1.0), (2.0, 0.1), 3)
    band, _ = line_chart([line], Theme(), "Round", "Loss", per_cent=False, logarithmic=["y"]).figure.data
    assert min(band.y) > 0


def test_loss_and_recorded_values_of_rows_are_means_over_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    fill.done(store.path, fill.an_experiment(methods=("fedot", "zero-shot"), seeds=(1, 2), rounds=3))
    compared = compare(store, [1])
    (setting,) = compared.settings
    runs = {r.id: r for r in store.runs.of_experiments([1]) if r.method == "fedot"}
    loss = next(s for s in curves.mean_lines(store, compared, setting, "loss") if s.method == "fedot")
    single = [s.y for s in curves.run_lines(store, dict.fromkeys(runs, 3), "loss")]
    assert loss.n == 2 and loss.y == pytest.approx(np.mean(single, axis=0))
    chart = curves.recorded_charts(store, list(runs.values()))[0]
    lines = curves.mean_diagnostics(store, compared, setting, chart)
    assert [(s.method, s.n) for s in lines] == [("fedot", 2), ("zero-shot", 2)]
    each = curves.diagnostic_series(store, dict.fromkeys(runs, 3), chart)
    assert lines[0].y == pytest.approx(np.mean([s.y for s in each[:2]], axis=0))
