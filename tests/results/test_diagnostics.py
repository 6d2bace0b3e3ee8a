"""Charts of recorded figures: described by the methods, one line per name, a fallback for the rest."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.base.events import Diagnostic
from fedcore.methods import About, DiagnosticChart, MatrixChart, Method, registry
from fedcore.results import curves
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.theme import Theme
from fedcore.store import Store
from tests.support import fill


def recorded(db: Path, figures: dict[str, tuple[str, ...]]) -> list[DiagnosticChart]:
    """The charts of one run for each method, with these names recorded in its last round."""
    for name, values in figures.items():
        _, (writer,) = fill.start(db, fill.an_experiment(name, methods=(name,), seeds=(1,), rounds=1))
        fill.train(writer, until=0)
        event = fill.a_round(name, 1, 1, 1)
        writer.write_round(replace(event, diagnostics=tuple(Diagnostic(v, 0.5) for v in values)))
    return curves.recorded_charts(Store(db), Store(db).runs.get(range(1, len(figures) + 1)))


def test_a_new_method_brings_titles_units_and_notes(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drift = DiagnosticChart(
        "Drift", {"drift": "", "drift_bound": "bound"}, "px", "lower", "Of the head.", True
    )

    class Mine(Method):
        name = "mine"
        about = About("Mine", charts=(DiagnosticChart("Other", {"other": ""}), drift))

    monkeypatch.setitem(registry._METHODS, "mine", Mine)
    found = recorded(db, {"mine": ("other", "drift")})
    assert [(c.heading, c.lines) for c in found] == [("Drift (px)", {"drift": ""}), ("Other", {"other": ""})]
    assert found[0].explanation == "Of the head. Lower is better."
    assert curves.default_charts(found) == found[:1]


def test_loss_terms_of_two_methods_share_a_chart(tmp_path: Path) -> None:
    found = recorded(
        tmp_path / "runs.db",
        {"fedalign": ("cross_entropy", "orthogonality"), "fedprox-lora": ("cross_entropy", "proximal")},
    )
    assert [c.title for c in found] == ["Loss terms"]
    assert list(found[0].lines.values()) == ["cross-entropy", "orthogonality", "proximal"]
    assert curves.default_charts(found) == found


def test_a_name_belongs_to_the_runs_own_method_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Method):
        name = "zz"
        about = About("Mine", charts=(DiagnosticChart("Mine alone", {"orthogonality": ""}),))

    monkeypatch.setitem(registry._METHODS, "zz", Mine)
    assert [c.title for c in recorded(tmp_path / "runs.db", {"zz": ("orthogonality",)})] == ["Mine alone"]


@pytest.mark.parametrize(
    ("name", "heading"),
    [("drift_of-the.head", "Drift of the head"), ("FIM trace", "FIM trace"), ("___", "___")],
)
def test_what_nobody_described_is_called_after_its_name(tmp_path: Path, name: str, heading: str) -> None:
    assert [c.heading for c in recorded(tmp_path / "runs.db", {"fedot": (name,)})] == [heading]


def test_what_is_known_is_described_for_a_script_s_own_method_too(tmp_path: Path) -> None:
    (chart,) = recorded(tmp_path / "runs.db", {"zero-shot": ("gradient_conflict",)})
    assert chart.heading == "Agreement of updates (mean cosine)"


def test_shares_are_drawn_as_per_cent(db: Path) -> None:
    (chart,) = recorded(db, {"feddeap": ("semantic_shared_accuracy",)})
    (line,) = curves.diagnostic_series(Store(db), {1: 1}, chart)
    assert (chart.unit, chart.heading) == ("%", "How well the networks tell classes and domains")
    assert line.y[-1] == 50 and line.label.endswith(", semantic")


def test_a_matrix_is_as_the_runs_own_method_says(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Method):
        name = "zz"
        about = About("Mine", matrices=(MatrixChart("attention", "Mine alone"), MatrixChart("a", "A")))

    monkeypatch.setitem(registry._METHODS, "zz", Mine)
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("zz",), seeds=(1,), rounds=1))
    fill.train(writer, until=0)
    pairs = (
        Diagnostic("attention", 0.5, client_a=1, client_b=2),
        Diagnostic("nobody_s", 0.5, client_a=1, client_b=2),
    )
    writer.write_round(replace(fill.a_round("zz", 1, 1, 1), diagnostics=pairs))
    runs = Store(db).runs.of_experiments([1])
    found = curves.recorded_matrix_charts(Store(db), runs)
    assert {name: m.title for name, m in found.items()} == {"attention": "Mine alone"}
    assert curves.matrix_charts()["attention"].title.startswith("Attention"), "FedAlign's"
    assert curves.recording_methods("attention") == "FedAlign, Mine"


def test_bands_of_many_lines_of_one_colour_are_under_the_pointer() -> None:
    chart = DiagnosticChart("Terms", {"a": ""}, better="lower")
    reach = [curves.Series(str(i), "feddeap", (1.0,), (2.0,), (None,), 1, (1.0,), (3.0,)) for i in range(3)]
    for lines, bands, how in (
        (reach[:2], 2, "Lower is better. Line: mean over clients, band: minimum to maximum."),
        (reach, 0, "Lower is better. Line: mean over clients; hover over it for minimum and maximum."),
    ):
        figure = line_chart(lines, Theme(), "Round", "", per_cent=False, name="Terms").figure
        assert sum(t.fill == "toself" for t in figure.data) == bands
        assert curves.chart_note(chart, lines) == how
        assert figure.data[-1].customdata[0] == " (1.00 to 3.00)"
    single = [replace(reach[0], y=(2e-6,), low=(), high=())]
    figure = line_chart(single, Theme(), "Round", "", per_cent=False, name="Error").figure
    assert curves.chart_note(chart, single) == "Lower is better."
    assert figure.layout.showlegend is False, "the title says what one line is"
    assert figure.layout.yaxis.exponentformat == "power", "no 2µ"
    assert figure.data[0].hovertemplate == "%{y:.2e}%{customdata}", "nor 0.00"
    chart = line_chart(single, Theme(), "Round", "", per_cent=False, name="Error")
    assert chart.alt == "Error at the end: 0 2e-06."


def test_no_method_describes_a_name_twice() -> None:
    for name, cls in registry.load_all().items():
        names = [n for chart in cls.about.charts for n in chart.lines] + [m.name for m in cls.about.matrices]
        assert len(names) == len(set(names)) and all(chart.lines for chart in cls.about.charts), name
