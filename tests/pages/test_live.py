"""The Live page, driven without a browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedcore.base.events import AFTER_AGGREGATION, TEST, Diagnostic
from fedcore.methods import About, MatrixChart, Method, registry
from fedcore.store import Store
from fedcore.store.runs import Runs
from pages.live_view import actions, controls
from pages.widgets.charts import fetching
from tests.support import fill
from tests.support.web.live import charts, widget
from tests.support.web.pages import Opened, button, html

NOTE_LETTERS = 12
LOAD = "Load of CPU and GPU"


def titles(figure: dict[str, Any]) -> list[str]:
    """Titles of the panels, and the texts of empty ones."""
    texts = [a["text"] for a in figure["layout"]["annotations"] if a["font"]["size"] > NOTE_LETTERS]
    return [text.removeprefix("<b>").removesuffix("</b>") for text in texts]


def test_a_panel_per_method_under_one_colour_axis(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="2")
    grid = charts(app)[0]
    heat = [t for t in grid["figure"]["data"] if t["type"] == "heatmap"]
    assert len(heat) == 5
    axis = grid["figure"]["layout"]["coloraxis"]
    assert (axis["cmin"], axis["cmax"]) == (0, 100)
    assert "FedOT: round 7/20" in titles(grid["figure"])
    assert grid["alt"].startswith("Accuracy heatmaps.")
    table = html(app)
    for word in ("running", "done", "failed", "stopped", "queued", "CUDA out of memory"):
        assert word in table
    sent = 7 * 6 * fill.BYTES["fedot"] / 1e6
    assert f"{sent:.2f}" in table


def test_models_that_agree_by_chance_are_not_called_one(open_page: Opened, db: Path) -> None:
    """The engine records whose clients predict with the global model; equal counts alone prove nothing."""
    methods = ("promptfl", "fedalign")
    _, writers = fill.start(db, fill.an_experiment(methods=methods, seeds=(1,), rounds=1))
    for writer, method in zip(writers, methods, strict=True):
        fill.train(writer, until=0, environment={"common_model": method == "promptfl"})
        learned = fill.a_round(method, 1, 1, 1)
        alike = [c._replace(correct=23, total=25) for c in learned.cells]
        writer.write_round(replace(learned, cells=tuple(alike)))
    app = open_page("live", id="1")
    assert sum("where personal rows equal" in c.value for c in app.caption) == 1
    grids = [trace["z"] for trace in charts(app)[0]["figure"]["data"] if "z" in trace]
    assert [grid["shape"] for grid in grids] == ["1, 6", "7, 6"], "six clients and the global model"


def test_the_replay_shows_a_round_of_the_past_everywhere(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="2")
    widget(app.select_slider, "live_until").set_value(2)
    grid, *curves = charts(app.run())
    assert set(titles(grid["figure"])) == {
        "Zero-shot CLIP: round 2/20",
        "FedOT: round 2/20",
        "PromptFL: round 2/20",
        "SDFed: round 2/20",
        "FedAlign: waiting",
        "no round yet",
    }
    run = next(r for r in Store(filled).runs.of_experiments([2]) if r.label == "FedOT")
    past = [p.personal_mean for p in Store(filled).rounds.mean_accuracy([run.id]) if p.round == 2]
    assert f"FedOT: round 2/20, own accuracy {100 * past[0]:.1f} %" in grid["alt"]
    assert all(max(t["x"], default=0) <= 2 for c in curves for t in c["figure"]["data"] if t.get("mode"))


def test_a_replay_begins_with_the_first_round_and_can_be_paused(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="2")
    button(app, "Play").click().run()
    assert app.query_params["live_until"] == "round 0"
    assert "FedOT: round 0/20" in titles(charts(app)[0]["figure"])
    app.run()
    assert widget(app.select_slider, "live_until").value == 0, "the page as a whole does not step"
    widget(app.select_slider, "live_until").set_value(3)
    button(app.run(), "Pause").click().run()
    assert widget(app.select_slider, "live_until").value == 3
    button(app, "Play").click().run()
    assert widget(app.select_slider, "live_until").value == 3, "it goes on where it was"


def test_a_replay_shows_fewer_than_all_rounds_of_a_long_training(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLENS_DB", str(filled))
    ids = [r.id for r in Store(filled).runs.of_experiments([2])]
    assert controls.steps(ids, TEST, AFTER_AGGREGATION) == list(range(20))
    monkeypatch.setattr(controls, "MAX_STEPS", 4)
    assert controls.steps(ids, TEST, AFTER_AGGREGATION) == [0, 6, 12, 18]
    assert controls.steps([], TEST, AFTER_AGGREGATION) == []


@pytest.mark.parametrize(("page", "how"), [("live", "fetchLibrary("), ("data", "fetchLibraryWhenIdle(")])
def test_plotly_js_is_asked_for_before_any_chart(open_page: Opened, page: str, how: str) -> None:
    """Fetched and compiled beside the text, or later on a page without charts, for the next page."""
    (script,) = (e.proto.body for e in open_page(page).get("html") if "<script>" in e.proto.body)
    assert script == fetching(page)
    assert script.splitlines()[-1].startswith(how)


@pytest.mark.parametrize("asked", ["3", pytest.param("<b>1</b>", marks=pytest.mark.slow)])
def test_the_link_of_a_deleted_experiment_says_so_and_shows_no_other(
    open_page: Opened, filled: Path, asked: str
) -> None:
    """Even where another one was made since: numbers are given once."""
    Store(filled).experiments.delete(fill.done(filled, fill.an_experiment("Was here", ("fedot",), (1,), 2)))
    newer = fill.done(filled, fill.an_experiment("Came later", ("fedot",), (1,), 2))
    assert newer == 4
    app = open_page("live", id=asked)
    (said,) = app.info
    assert f"Experiment {asked} does not exist" in said.value.replace("\\", "")
    assert not charts(app) and app.query_params["id"] == asked
    choice = widget(app.selectbox, "live_choice")
    assert choice.value is None and "Came later (no. 4)" in choice.options
    app = choice.set_value(newer).run()
    assert app.query_params["id"] == "4" and charts(app)
    gone = open_page("run", id="10")
    assert "no run 10" in gone.info[0].value


def test_an_experiment_that_is_deleted_elsewhere_meanwhile_is_said_to_be_gone(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Runs.digest

    def looking(runs: Runs, experiment: int | None = None) -> str:
        seen = look(runs, experiment)
        assert experiment is not None
        Store(filled).experiments.delete(experiment)
        return seen

    gone = fill.done(filled, fill.an_experiment("Was here", ("fedot",), (1,), 2))
    monkeypatch.setattr(Runs, "digest", looking)
    app = open_page("live", id=str(gone))
    assert [said.value for said in app.info] == [
        f"Experiment {gone} does not exist; it may have been deleted."
    ]
    assert not app.error


def test_of_two_experiments_with_one_name_the_chosen_one_is_shown(open_page: Opened, db: Path) -> None:
    for rounds in (2, 3):
        fill.done(db, fill.an_experiment("Try it", ("fedot",), (1,), rounds))
    app = open_page("live", id="1")
    choice = widget(app.selectbox, "live_choice")
    assert choice.options == ["Try it (no. 2)", "Try it (no. 1)"]
    assert titles(charts(app)[0]["figure"]) == ["FedOT: round 2/2"]
    app = choice.set_value(2).run()
    assert titles(charts(app)[0]["figure"]) == ["FedOT: round 3/3"]


def test_runs_to_choose_from_have_names_of_their_own(open_page: Opened, db: Path) -> None:
    """A domain that was held out, and the number where nothing else tells two apart."""
    held = fill.an_experiment("held", ("fedot",), (1,), 2, held_out=fill.CLIENTS[:2])
    Store(db).experiments.create(held, device="none")
    app = open_page("live", id="1", live_view="Held-out domain by domain")
    app = button(app, "Stop").click().run()
    offers = next(r for r in app.radio if r.label == "Runs")
    assert offers.options == ["All: 2 runs", actions.CHOOSE]
    (run, other) = Store(db).runs.of_experiments([1])
    assert list(actions.run_names([run, other]).values()) == [
        "FedOT, seed 1, without 0°",
        "FedOT, seed 1, without 15°",
    ]
    assert actions.run_names([run, replace(other, held_out="0°")]) == {
        1: "FedOT, seed 1, without 0° (run 1)",
        2: "FedOT, seed 1, without 0° (run 2)",
    }


def test_an_archived_experiment_opens_by_its_link_alone(open_page: Opened, filled: Path) -> None:
    Store(filled).experiments.edit(2, archived=True)
    assert widget(open_page("live").selectbox, "live_choice").options == ["Made up (no. 1)"]
    assert widget(open_page("live", id="2").selectbox, "live_choice").value == 2


def test_the_url_says_how_it_is_drawn(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="2", live_charts=["Training loss"], live_view="Client by round")
    grid, *curves = charts(app)
    assert len(curves) == 1
    assert curves[0]["alt"].startswith("Training loss at the end")
    titles_across = {a["title"]["text"] for n, a in grid["figure"]["layout"].items() if n.startswith("xaxis")}
    assert titles_across == {"round", ""}, "the last panel of each column has it"


def test_what_a_run_records_is_drawn_unasked(open_page: Opened, db: Path) -> None:
    """A known figure with its title; every other one can be chosen by its own name."""
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=3))
    fill.train(writers[0], until=0)
    figures = [
        Diagnostic("condition_number", 1.5, client_a=1),
        Diagnostic("condition_number", 2.5, client_a=2),
    ]
    figures += [Diagnostic("my_own_figure", 7.0), Diagnostic("attention", 0.5, client_a=1, client_b=2)]
    writers[0].write_round(replace(fill.a_round("fedot", 1, 1, 3), diagnostics=tuple(figures)))
    app = open_page("live", id="1")
    alts = [c["alt"] for c in charts(app)]
    assert "Condition number kappa of the transforms at the end: FedOT 2.0." in alts
    chosen = widget(app.multiselect, "live_charts")
    assert "My own figure" in chosen.options
    assert not any("ttention" in o for o in chosen.options), "a matrix is a heatmap"
    assert "Attention: who learns from whom" in widget(app.radio, "live_view").options


def test_a_new_method_s_matrix_is_drawn_on_every_page(
    open_page: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(Method):
        name = "mine"
        about = About(
            "Mine",
            matrices=(
                MatrixChart(
                    "alike",
                    "Who is like whom",
                    "Cosine of updates.",
                    "is like",
                    unit="Cosine",
                    color_range=(-1, 1),
                ),
            ),
        )

    monkeypatch.setitem(registry._METHODS, "mine", Mine)
    _, (writer,) = fill.start(
        tmp_path / "runs.db", fill.an_experiment(methods=("mine",), seeds=(1,), rounds=1)
    )
    fill.train(writer, until=0)
    pairs = tuple(Diagnostic("alike", a - b, client_a=a, client_b=b) for a in (1, 2) for b in (1, 2))
    writer.write_round(replace(fill.a_round("mine", 1, 1, 1), diagnostics=pairs))
    writer.claim.finish("done")
    app = open_page("live", id="1", live_view="Who is like whom")
    grid = charts(app)[0]
    assert grid["alt"].startswith("Who is like whom. Mine: round 1/1, cosine between clients -1.00 to 1.00")
    axis = grid["figure"]["layout"]["coloraxis"]
    assert (axis["cmin"], axis["cmax"], axis["colorbar"]["title"]["text"]) == (-1, 1, "Cosine")
    assert "Cosine of updates. All heatmaps share one colour scale." in [c.value for c in app.caption]
    app = open_page("compare", ids=["1"], tab="Heatmaps", matrix="Who is like whom (Mine)")
    assert [c["alt"].split(".")[0] for c in charts(app)] == ["Who is like whom"]
    app = open_page("run", id="1", run_tab="Diagnostics")
    assert any(c["alt"].startswith("Who is like whom") for c in charts(app))


def test_charts_can_be_read_as_tables(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="2")
    next(t for t in app.toggle if t.label == "Show as table").set_value(True).run()
    assert not charts(app)
    assert len(app.dataframe) == 5 + 2 + 1


def test_samples_of_test_sets_are_said_with_their_standard_error(open_page: Opened, tmp_path: Path) -> None:
    for samples in (20, None):
        wanted = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1, test_sample=samples)
        fill.done(tmp_path / "runs.db", wanted)
    said = [c.value for c in open_page("live", id="1").caption if "standard error" in c.value]
    assert len(said) == 1 and "at most 20 samples" in said[0] and "at most 11.2 points" in said[0]
    assert not any("standard error" in c.value for c in open_page("live", id="2").caption)


def test_only_actions_that_can_be_used_are_shown(open_page: Opened, filled: Path) -> None:
    ended = {b.label for b in open_page("live", id="1").button}
    assert not {"Stop", "Resume"} & ended
    assert "Compare" in ended
    going = open_page("live", id="2")
    assert widget(going.toggle, "live_paused")
    assert not button(going, "Stop").disabled and not button(going, "Resume").disabled
    button(going, "Resume").click().run()
    states = {r.label: r.state for r in Store(filled).runs.of_experiments([2])}
    assert states["PromptFL"] == states["SDFed"] == "queued"


def test_a_failed_run_shows_its_error_and_the_log_of_others_opens_on_a_click(
    open_page: Opened, filled: Path
) -> None:
    app = open_page("live", id="2")
    assert any("out of memory" in c.value for c in app.code)
    app = open_page("live", id="1")
    assert not app.code
    assert not app.markdown, "Streamlit writes a page's bare strings to the page"
    box = next(e for e in app.expander if e.label == "Log")
    app.session_state[box.key] = True
    app = app.run()
    assert [c.value for c in app.code] == ["No output yet."]
    widget(app.selectbox, "live_log").set_value(2)
    app = button(app.run(), "Open run").click().run()
    assert app.title[0].value == "PromptFL, seed 1"


def test_rows_can_stand_beside_those_they_are_like(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="1", live_rows="Highest mean first")
    app = next(t for t in app.toggle if t.key == "as_tables").set_value(True).run()
    table, other = (drawn.value for drawn in app.dataframe[:2])
    means = [(t.iloc[1:, 1:].mean(axis=1)).tolist() for t in (table, other)]
    assert table.iloc[0, 0] == "global"
    assert sorted(table.iloc[1:, 0]) == sorted(fill.CLIENTS)
    assert list(table.columns[1:7]) == list(table.iloc[1:, 0]), "own accuracies stay on the diagonal"
    both = [a + b for a, b in zip(*means, strict=True)]
    assert both == sorted(both, reverse=True), "one order for all panels"


def test_who_helps_whom_is_drawn_said_and_moves_with_the_replay(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="1", live_view="Who helps whom")
    said = [c.value for c in app.caption if "start, on average" in c.value]
    assert len(said) == 1 and "FedOT" in said[0] and "PromptFL" in said[0]
    earlier = app.select_slider(key="live_until").set_value(1).run()
    (before,) = [c.value for c in earlier.caption if "start, on average" in c.value]
    assert "round 1/4" in before and before != said[0]
    table = next(t for t in app.toggle if t.key == "as_tables").set_value(True).run().dataframe[0].value
    assert list(table.columns) == ["model of", *fill.CLIENTS]


def test_the_load_of_the_devices_is_drawn_over_time(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = min(r.started_at for r in Store(filled).experiments.get(2).runs if r.started_at)
    samples = [(began - 60, {"CPU": 0.9}), *((began + 5 * i, {"CPU": 0.5, "H200": i / 10}) for i in range(6))]
    monkeypatch.setattr("fedcore.base.devices.recorded_loads", lambda: samples)
    app = open_page("live", id="2")
    app.session_state["live_load"] = True
    lines = charts(app.run())[-1]["figure"]["data"]
    shown = {line["name"]: line["y"] for line in lines if line.get("name") in ("CPU", "H200")}
    assert shown == {"CPU": [50.0] * 6, "H200": [0, 10, 20, 30, 40, 50]}, "while its runs trained"
    samples[:] = [(began + i / 120, {"CPU": 1.0 if i == 1_501 else 0.2}) for i in range(3_000)]
    (line,) = charts(app.run())[-1]["figure"]["data"]
    assert max(line["y"]) == 100, "no spike is lost"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("fedcore.store.liveness.host_id", lambda: "another")
        assert not any(box.label == LOAD for box in open_page("live", id="2").expander), (
            "it trained elsewhere"
        )
    monkeypatch.setattr("fedcore.base.devices.recorded_loads", list)
    assert not any(box.label == LOAD for box in open_page("live", id="2").expander)


def test_all_methods_hidden_is_said(open_page: Opened, filled: Path) -> None:
    labels = list(dict.fromkeys(r.label for r in Store(filled).experiments.get(2).runs))
    app = open_page("live", id="2", hidden_rows=labels)
    assert "All methods are hidden; *View* above, under *Hidden methods*, shows them again." in [
        i.value for i in app.info
    ]
    assert not charts(app) and not any(box.label == LOAD for box in app.expander)
    assert titles(charts(open_page("live", id="2", hidden_rows=labels[1:]))[0]["figure"])
