"""Curves and costs of runs whose time and traffic are not all known."""

from fedcore.report import comparison_figures, curves, figures, tables
from fedcore.report.palette import Look
from fedcore.runs import Recorder


def test_costs_that_nobody_measured_are_unknown_not_zero(tmp_path):
    db = tmp_path / "runs.db"
    accuracy = {("a", "a"): (1, 2), ("b", "b"): (2, 2)}
    with Recorder(db, method="silent", seed=1, dataset="d", experiment="x") as run:
        run.round(1, accuracy=accuracy)
        run.round(2, accuracy=accuracy)
    with Recorder(db, method="measured", seed=1, dataset="d", experiment="x") as run:
        run.round(1, accuracy=accuracy, seconds=2.0, bytes_up=1_000_000)
        run.round(2, accuracy=accuracy, seconds=3.0, bytes_up=1_000_000)
    found = tables.compare(db, [1], "last")
    (setting,) = found.settings
    costs = {c.label: c for c in curves.costs(db, found, setting)}
    assert costs["silent"].megabytes is None
    assert costs["silent"].seconds is None
    assert costs["measured"].megabytes_up == 2.0
    assert costs["measured"].megabytes_down is None
    assert costs["measured"].seconds == 5.0
    drawn = {s.label: s.x for s in curves.compared(db, found, setting, "personal", "megabytes")}
    assert drawn == {"measured": (1.0, 2.0)}


def a_cost(label: str, accuracy: float | None, up: float | None, seconds: float | None = 1.0) -> curves.Cost:
    return curves.Cost(label, "fedot", accuracy, up, up, seconds, None, None)


def test_the_front_by_hand():
    """b costs more than a and does worse; d equals c; e has no accuracy; f costs nothing known."""
    found = [
        a_cost("c", 80.0, 10.0), a_cost("a", 70.0, 1.0), a_cost("b", 69.0, 2.0), a_cost("d", 80.0, 10.0),
        a_cost("e", None, 0.1), a_cost("f", 99.0, None), a_cost("g", 80.0, 11.0), a_cost("h", 79.0, 10.0),
    ]  # fmt: skip
    assert [c.label for c in curves.front(found, "megabytes")] == ["a", "c", "d"]
    assert [c.label for c in curves.front(found, "seconds")] == ["f"], "all took one second"
    assert curves.front([], "seconds") == []


def test_the_front_is_drawn_cheapest_first():
    found = [a_cost("dear", 80.0, 10.0), a_cost("cheap <b>", 70.0, 1.0), a_cost("poor", 60.0, 5.0)]
    chart = comparison_figures.cost_chart(found, Look(), "megabytes", "Personal accuracy, %")
    line, *points = chart.figure.data
    assert (list(line.x), list(line.y)) == ([2.0, 20.0], [70.0, 80.0])
    assert [p.text[0] for p in points] == ["<b>dear</b>", "<b>cheap &lt;b&gt;</b>", "poor"]
    assert "cheap <b> 70.0 % at 2.0 (front); poor 60.0 % at 10.0." in chart.alt


def test_names_alike_once_cut_are_not_written_over_each_other() -> None:
    """A sweep's rows begin alike; their marks stand close, and say their whole names under the pointer."""
    labels = (
        "FedOT (alpha 0.3, leftover spread, blocks 1)",
        "FedOT (alpha 0.3, leftover spread, blocks 4)",
        "PromptFL",
    )
    found = [a_cost(label, 70.0 + i, 1.0 + i, 1.0) for i, label in enumerate(labels)]
    figure = comparison_figures.cost_chart(found, Look(), "megabytes", "Personal accuracy, %").figure
    marks = {t.name: t.text[0] for t in figure.data if t.mode == "markers+text"}
    assert marks[labels[0]] == marks[labels[1]] == ""
    assert "PromptFL" in marks["PromptFL"]


def variants(count: int) -> list[curves.Series]:
    return [
        curves.Series(
            f"FedOT (alpha 0.3, blocks {i})", "fedot", (1.0, 2.0), (50.0, 60.0 + i), (None, None), 1
        )
        for i in range(count)
    ]


def test_sixteen_variants_of_a_method_stay_apart_and_leave_the_plot_its_height():
    few, many = (figures.curves(variants(n), Look(), "Round", "", height=300).figure for n in (1, 16))
    looks = [(t.line.dash, t.marker.symbol) for t in many.data]
    assert len(set(looks)) == 16
    assert few.layout.height == 300
    rows = 16  # names as long as these have a row each
    assert many.layout.height == 300 + 20 * (rows - 2)
    plot = many.layout.height - 130 - 20 * (rows - 1)
    assert plot >= 130
    assert many.layout.legend.y == -64 / plot
