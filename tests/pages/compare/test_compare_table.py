"""The table of the page Compare: filtered, sorted, saved, marked, and set against a baseline."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.base.progress import result_of
from fedcore.config import parse
from fedcore.results.comparison import compare
from fedcore.results.statistics import signed
from fedcore.results.summary import MARKS_NOTE
from fedcore.share.checked import WRITERS, ComparisonChoices, checked_comparison
from fedcore.share.content import read_report, summary_table
from fedcore.store import Recorder, Store
from tests.support import fill
from tests.support.exported import exported
from tests.support.web.live import charts
from tests.support.web.markup import elements, tables
from tests.support.web.pages import Opened, button, html, widget


@pytest.fixture(scope="module")
def swept_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    db = tmp_path_factory.mktemp("swept") / "runs.db"
    plain = fill.an_experiment(methods=("fedot", "promptfl", "sdfed"), seeds=(1, 2), rounds=2).model_dump()
    fill.done(db, parse({**plain, "sweep": {"methods.fedot.blocks": [1, 2]}}))
    fill.done(db, fill.an_experiment("One seed", methods=("fedalign",), seeds=(1,), rounds=2))
    return db.parent


@pytest.fixture
def swept(swept_once: Path, tmp_path: Path) -> Store:
    """FedOT with two numbers of blocks, PromptFL and SDFed on two seeds; FedAlign on one."""
    shutil.copytree(swept_once, tmp_path, dirs_exist_ok=True)
    return Store(tmp_path / "runs.db")


def summary(app: AppTest) -> list[list[str]]:
    return next(t.rows for t in tables(html(app)) if t.label.startswith("Summary of"))


def names(app: AppTest) -> list[str]:
    return [row[0] for row in summary(app)[1:]]


def test_a_filter_leaves_runs_out_of_the_page_and_its_files(open_page: Opened, swept: Store) -> None:
    app = open_page("compare", ids=["1"], where="blocks = 2 or method = promptfl")
    assert names(app) == ["FedOT (blocks 2)", "PromptFL"]
    assert any("4 runs are left out by the filter" in c.value for c in app.caption)
    where = "blocks = 2 or method = promptfl"
    for name in ("summary", "rounds", "clients"):
        text = exported(swept, [1], name, where=where)
        assert {r["method"] for r in csv.DictReader(io.StringIO(text))} == {"fedot", "promptfl"}
    assert "SDFed" not in exported(swept, [1], "summary", "latex", where=where)


def test_a_filter_that_cannot_be_read_is_said_and_leaves_nothing_out(open_page: Opened, swept: Store) -> None:
    app = open_page("compare", ids=["1"], where="data.blocks = 2")
    (error,) = app.error
    assert "did you mean 'method.config.blocks'" in error.value.replace("\\", "")
    assert len(names(app)) == 4
    app = open_page("compare", ids=["1"], where="seed = 9")
    assert app.info[0].value == "No finished run matches the filter."


def test_columns_and_rows_can_be_chosen(open_page: Opened, swept: Store) -> None:
    hidden = {"hidden_columns": ["Worst client", "Rounds"], "hidden_rows": ["SDFed"]}
    app = open_page("compare", ids=["1"], fields=["Blocks", "Rounds"], **hidden)
    head, *rows = summary(app)
    assert "Blocks" in head and "Worst client, %" not in head and head.count("Rounds") == 1
    assert [r[head.index("Blocks")] for r in rows] == ["1", "2", "-"]
    assert "SDFed" not in [r[0] for r in rows]
    assert "Hidden, but counted for best values and p: SDFed." in [c.value for c in app.caption]


@pytest.mark.parametrize("tab", ["Summary", "Heatmaps", "Curves", "Cost"])
def test_every_chart_leaves_hidden_rows_out(open_page: Opened, swept: Store, tab: str) -> None:
    shown = charts(open_page("compare", ids=["1"], tab=tab))
    assert shown and all("SDFed" in json.dumps(chart) for chart in shown)
    shown = charts(open_page("compare", ids=["1"], tab=tab, hidden_rows=["SDFed"]))
    assert shown and not any("SDFed" in json.dumps(chart) for chart in shown)


def test_hidden_rows_count_in_what_a_sweep_finds(open_page: Opened, swept: Store) -> None:
    """FedOT with one and two blocks: what is drawn changes, and neither the finding nor its correction."""
    (said,) = [m.value for m in open_page("compare", ids=["1"], tab="Sweep").markdown if "mean" in m.value]
    app = open_page("compare", ids=["1"], tab="Sweep", hidden_rows=["FedOT (blocks 2)"])
    assert said in [m.value for m in app.markdown]
    assert [line["x"] for line in charts(app)[0]["figure"]["data"]] == [[1]]


def test_a_sweep_whose_rows_are_hidden_is_not_called_absent(open_page: Opened, swept: Store) -> None:
    hidden = ["FedOT (blocks 1)", "FedOT (blocks 2)"]
    app = open_page("compare", ids=["1"], tab="Sweep", hidden_rows=hidden)
    assert "All rows of the sweep are hidden." in [i.value for i in app.info]


def test_a_setting_whose_rows_are_hidden_has_no_empty_charts(open_page: Opened, swept: Store) -> None:
    fill.done(swept.path, fill.an_experiment("Elsewhere", methods=("fedalign",), seeds=(1,), data="shapes"))
    shown, fewer = (
        charts(open_page("compare", ids=["1", "3"], hidden_rows=hidden)) for hidden in ([], ["FedAlign"])
    )
    assert len(fewer) == len(shown) - 2, "its bars and its heatmap"
    app = open_page("compare", ids=["1", "3"], tab="Curves", hidden_rows=["FedAlign"])
    assert len(charts(app)) == 1 and not app.info[1:]


def test_the_front_and_the_target_are_those_of_all_rows(open_page: Opened, swept: Store) -> None:
    """The best row, hidden, still beats the others and still sets the target."""

    def cost(**more: list[str]) -> tuple[dict[str, str], list[str]]:
        app = open_page("compare", ids=["1"], tab="Cost", **more)
        front = next(t.rows for t in tables(html(app)) if t.label.startswith("Cost on"))
        reach = [t for t in tables(html(app)) if t.label.startswith("Cost to reach")]
        return {row[1]: row[-1] for row in front[1:]}, [t.label for t in reach]

    front, target = cost()
    hidden = next(name for name in front if target[0].split("(")[1].startswith(name.split(" (")[0]))
    others, same_target = cost(hidden_rows=[hidden])
    assert front[hidden] == "yes" and same_target == target
    assert others == {name: on for name, on in front.items() if name != hidden}


def test_a_hidden_baseline_still_has_its_differences(open_page: Opened, swept: Store) -> None:
    def differences(**more: list[str]) -> list[dict[str, object]]:
        app = open_page("compare", ids=["1"], tab="Heatmaps", baseline="SDFed", **more)
        assert any("Difference from SDFed" in m.value for m in app.markdown)
        *others, drawn = (chart["figure"] for chart in charts(app))
        assert drawn["layout"]["clickmode"] == "event", "a click on a cell shows the pictures behind it"
        assert not any("clickmode" in other["layout"] for other in others)
        return drawn["data"]

    assert differences(hidden_rows=["SDFed"]) == differences()
    assert len(differences(hidden_rows=["SDFed", "PromptFL"])) < len(differences())


def test_two_runs_offers_hidden_rows_too(open_page: Opened, swept: Store) -> None:
    """A link to two runs shows these runs, whatever is hidden."""
    hidden = ["FedOT (blocks 1)", "FedOT (blocks 2)", "PromptFL", "SDFed"]
    app = open_page("compare", ids=["1"], tab="Two runs", hidden_rows=hidden)
    first, second = (widget(app, label, "selectbox") for label in ("Run", "Beside"))
    assert len(first.options) == 8 and len(second.options) == 7
    asked = next(name for name in first.options if name.startswith("SDFed"))
    app = open_page("compare", ids=["1"], tab="Two runs", hidden_rows=["SDFed"], run_a=asked)
    assert widget(app, "Run", "selectbox").value == asked


@pytest.mark.parametrize("tab", ["Summary", "Heatmaps", "Curves", "Cost", "Sweep", "Config"])
def test_a_tab_says_that_all_rows_are_hidden(open_page: Opened, swept: Store, tab: str) -> None:
    hidden = ["FedOT (blocks 1)", "FedOT (blocks 2)", "PromptFL", "SDFed"]
    app = open_page("compare", ids=["1"], tab=tab, hidden_rows=hidden)
    assert [i.value for i in app.info if "hidden" in i.value] == [
        "All rows are hidden; *View* above, under *Hidden rows*, shows them again."
    ]
    assert not charts(app)


def test_a_colour_of_a_method_holds_on_all_pages_until_it_is_reset(open_page: Opened, swept: Store) -> None:
    app = open_page("compare", ids=["1"])
    next(box for box in app.selectbox if box.key == "colour_of").select("promptfl").run()
    app.color_picker[0].pick("#ab12cd").run()
    assert "promptfl:ab12cd" in app.query_params["colour"]
    assert "#ab12cd" in json.dumps(charts(app)[0]) and "background:#ab12cd" in html(app)
    app.switch_page("pages/live.py")
    app.query_params["id"] = "1"
    app.run()
    assert "promptfl:ab12cd" in app.query_params["colour"], "its address can be shared"
    assert any("#ab12cd" in json.dumps(chart) for chart in charts(app))
    next(button for button in app.button if button.key == "colours_reset").click().run()
    assert "colour" not in app.query_params
    assert not any("#ab12cd" in json.dumps(chart) for chart in charts(app))
    app = open_page(
        "leaderboard", colour=["fedot:00ff00", "promptfl:red;x:url(http://a)", "My method (b): c:0000ff"]
    )
    assert "background:#00ff00" in html(app) and "url(" not in html(app)
    assert "My method (b): c:0000ff" in app.query_params["colour"], "recorded methods have any name"


def test_rows_stand_in_sections_by_a_config_field(open_page: Opened, swept: Store) -> None:
    app = open_page("compare", ids=["1"], sections="Blocks")
    rows = [r for r in summary(app) if len(r) == 1]
    assert rows == [["Blocks: 1"], ["Blocks: 2"], ["Without Blocks"]]


def test_fewer_than_three_seeds_are_not_marked(open_page: Opened, seeds: Path) -> None:
    """The best mean of two seeds is plain on the page, in the report and in LaTeX; all three say why."""
    store = Store(seeds)
    for where, marked in (("", True), ("seed < 4", True), ("seed < 3", False)):
        app = open_page("compare", ids=["1"], where=where)
        assert ("<summary><b>" in html(app)) == marked
        assert any(MARKS_NOTE in c.value.replace("\\", "") for c in app.caption)
        with checked_comparison(store, [1], ComparisonChoices(where=where)) as checked:
            report, latex = result_of(read_report(checked)), "".join(WRITERS["summary", "latex"](checked))
        made = summary_table(report.summary, report.sections[0].table)
        assert any(cell.mark for row in made.rows for cell in row) == marked
        assert MARKS_NOTE in made.notes and MARKS_NOTE in latex
        assert (r"\textbf" in latex) == (r"\underline" in latex) == marked


def test_a_view_is_saved_and_its_link_opens_it(open_page: Opened, swept: Store) -> None:
    app = open_page("compare", ids=["1"], where="blocks = 2", sort="-personal", by="Worst client")
    widget(app, "Save this view as", "text_input").set_value("<b>Two</b> blocks")
    button(app, "Save").click().run()
    (view,) = swept.saved_views.of_page("compare")
    assert view.name == "<b>Two</b> blocks"
    kept = {"ids": ["1"], "where": ["blocks = 2"], "sort": ["-personal"], "by": ["Worst client"]}
    assert parse_qs(view.query) == kept
    app = open_page("compare", **parse_qs(view.query))
    assert names(app) == ["FedOT (blocks 2)"]
    (anchor,) = [e for e in elements(html(app)) if (e.attributes.get("href") or "").startswith("/compare?")]
    assert anchor.attributes["href"] == f"/compare?{view.query}"
    button(app, "Delete").click().run()
    assert swept.saved_views.of_page("compare") == []


def test_stars_tags_and_notes_stand_beside_the_rows(open_page: Opened, swept: Store) -> None:
    group = next(g for g in compare(swept, [1]).rows if g.label == "SDFed")
    swept.runs.mark([v.run.id for v in group.runs], starred=True, tags=["<i>", "b"], notes="look")
    app = open_page("compare", ids=["1"], fields=["Tags", "Notes"], where="tags = b")
    head, row = summary(app)
    assert row[0] == "SDFed ★" and row[head.index("Tags")] == "<i>, b" and row[head.index("Notes")] == "look"
    assert "<i>" not in html(app)
    text = html(open_page("run", id=str(group.runs[0].run.id)))
    assert "★" in text and "&lt;i&gt;, b" in text and 'title="look"' in text


def test_curves_show_loss_and_recorded_values_with_a_band_of_choice(open_page: Opened, swept: Store) -> None:
    drawn = {"curve": "Training loss", "band": "Standard error", "log_y": "true", "smoothing": "0.5"}
    app = open_page("compare", ids=["1"], tab="Curves", **drawn)
    (chart,) = charts(app)
    layout = chart["figure"]["layout"]
    assert layout["yaxis"]["type"] == "log" and layout["yaxis"]["title"]["text"] == "Training loss"
    said = [c.value for c in app.caption]
    assert any("one standard error" in text and "weight 0.5; faint: as measured" in text for text in said)
    assert any("at the end" in text for text in said), "the finding stands below the chart"
    value = widget(app, "Value", "selectbox")
    recorded = next(o for o in value.options if o.startswith("Agreement of updates"))
    app = open_page("compare", ids=["1"], tab="Curves", curve=recorded)
    assert len(charts(app)) == 1 and not app.exception


def test_no_difference_is_taken_of_runs_that_were_evaluated_on_other_clients(
    open_page: Opened, tmp_path: Path
) -> None:
    number = fill.done(tmp_path / "runs.db", fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    for method, clients in (("all", fill.CLIENTS), ("two", fill.CLIENTS[:2])):
        with Recorder(tmp_path / "runs.db", method=method, seed=1, experiment=number) as run:
            run.round(2, accuracy={(c, c): (59, fill.TOTAL) for c in clients})
    for name, compared in (("all", True), ("two", False)):
        app = open_page("compare", ids=[str(number)], tab="Two runs", as_launched="true")
        beside = widget(app, "Beside", "selectbox")
        app = beside.select(next(o for o in beside.options if o.startswith(name))).run()
        values = next(t.rows for t in tables(html(app)) if t.label == "Values of both runs")
        (row,) = [r for r in values if r[0] == "Personal accuracy, %"]
        assert (row[3] != "-") is compared
        said = [c.value for c in app.caption if "No difference is taken" in c.value]
        assert bool(said) is not compared and all("evaluated on 2 of 6 clients" in text for text in said)
        assert any("Difference of the two runs" in c.value for c in app.caption) is compared


def test_two_runs_stand_beside_each_other(open_page: Opened, swept: Store) -> None:
    app = open_page("compare", ids=["1"], tab="Two runs")
    chosen = {s.label: s.value for s in app.selectbox if s.label in ("Run", "Beside")}
    assert chosen["Run"].startswith("FedOT (blocks 1), seed 1") and "seed 1" in chosen["Beside"]
    ids = [int(re.search(r"run (\d+)\)", name)[1]) for name in chosen.values()]
    groups = {v.run.id: v for g in compare(swept, [1]).rows for v in g.runs}
    found = {t.label: t.rows for t in tables(html(app))}
    (row,) = [r for r in found["Values of both runs"] if r[0] == "Worst client, %"]
    ours, theirs = (groups[i].values["worst"] for i in ids)
    assert row[1:] == [f"{ours:.2f}", f"{theirs:.2f}", signed(ours - theirs, 2)]
    differing = {r[0]: r[1:] for r in found["Differences between the runs"]}
    assert differing["Blocks"] == ["1", "2"] and "Seed" not in differing
    assert len(charts(app)) == 4, "accuracy, loss, cells of both, their difference"
    captions = [c.value for c in app.caption]
    assert any("Difference of the two runs" in c for c in captions), captions
    assert not any("Difference from the baseline" in c for c in captions)
    other = next(o for o in widget(app, "Beside", "selectbox").options if "PromptFL" in o)
    app = widget(app, "Beside", "selectbox").select(other).run()
    assert not app.exception
    app = widget(app, "Show as table", "toggle").set_value(True).run()
    assert not charts(app) and len(app.dataframe) == 5


def test_the_baseline_stays_pinned_when_its_label_changes(open_page: Opened, db: Path) -> None:
    """An added experiment has the same method with another value, so that labels name it."""
    methods = ("fedot", "promptfl")
    fill.done(db, fill.an_experiment("One", methods=methods, seeds=(1,), rounds=2))
    other = fill.an_experiment("Two", methods=("fedot",), seeds=(1,), rounds=2)
    faster = other.methods[0].model_copy(update={"config": {"lr": 0.5}, "label": None})
    fill.done(db, other.model_copy(update={"methods": (faster,)}))
    fill.done(db, fill.an_experiment("Three", methods=("promptfl",), seeds=(2,), rounds=3))
    app = open_page("compare", ids=["1"])
    chosen = widget(app, "Baseline", "selectbox")
    label = next(o for o in chosen.options if "FedOT" in o)
    app = chosen.select(label).run()

    app = widget(app, "Experiments").set_value([1, 2]).run()
    now = widget(app, "Baseline", "selectbox")
    assert now.value is not None and now.value in now.options and now.value.startswith("FedOT ")

    app = widget(app, "Experiments").set_value([3]).run()
    assert widget(app, "Baseline", "selectbox").value is None
    assert any("The baseline FedOT" in c.value and "has no row here" in c.value for c in app.caption)

    app = widget(app, "Experiments").set_value([1]).run()
    assert widget(app, "Baseline", "selectbox").value == label


@pytest.mark.parametrize(
    "read", [pytest.param(("a", "a"), marks=pytest.mark.slow), ("a", "b")], ids=["same", "changed"]
)
@pytest.mark.parametrize("tab", ["Two runs", "Heatmaps"])
def test_images_are_compared_only_where_both_runs_read_them(
    open_page: Opened, tmp_path: Path, tab: str, read: tuple[str, str]
) -> None:
    two = fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=2)
    _, writers = fill.start(tmp_path / "runs.db", two)
    for writer, data in zip(writers, read, strict=True):
        fill.train(writer, environment={"data": data, "pixels": data})
    fill.let_go(tmp_path / "runs.db", writers[0].claim.owner)
    app = open_page("compare", ids=["1"], baseline="PromptFL", tab=tab)
    assert not app.exception
    refused = [i.value for i in app.info if "read different images" in i.value]
    assert len(refused) == (read[0] != read[1]), [i.value for i in app.info]
    asked = [b for b in app.button if b.label in ("Find the pictures", "Compute predictions")]
    assert not refused or all(b.disabled for b in asked)
