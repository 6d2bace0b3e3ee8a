"""The page Papers: tables, dialog, all papers and rehearsal, with made-up runs in the store."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Markdown

from fedcore.base.errors import FedLensError
from fedcore.papers import adding, experiments, layout, library, pasted, published
from fedcore.papers.cells import Availability, TableCell, fillings, table_cells
from fedcore.papers.getting import task_arguments
from fedcore.papers.layout import all_tables
from fedcore.papers.mini import DATA
from fedcore.papers.published import PublishedValue
from fedcore.papers.recorded import RecordedRuns
from fedcore.results.comparison import compare
from fedcore.store import Store
from fedcore.store.experiments import Experiments
from pages.papers_view import fill as papers_fill
from pages.widgets import session
from tests.support import fill
from tests.support.papers import finish, finish_readings, queue
from tests.support.web.live import charts
from tests.support.web.markup import tables
from tests.support.web.pages import Opened, button, html, work_off

TABLE = next(table for table in all_tables() if table.name == "feddeap-5")


def grid(app: AppTest) -> str:
    """The HTML of the table."""
    found = [element.proto for element in app.get("bidi_component")]
    (mine,) = [proto for proto in found if "grid" in proto.component_name]
    return str(json.loads(mine.json)["html"])


def open_dialog(app: AppTest, table: str, choice: str) -> AppTest:
    """Open the dialog of a click in a table."""
    app.session_state[papers_fill.OPEN] = (table, choice)
    app = app.run()
    assert not app.exception
    return app


def shown(caption: Markdown) -> str:
    """The text of a caption without its marks."""
    return str(caption.value).replace("**", "")


def rehearsed(store: Store, values: Sequence[PublishedValue] = TABLE.values) -> dict[object, TableCell]:
    return table_cells(RecordedRuns(store, {DATA}), values, Availability({}), True)


@pytest.fixture
def filled_table(db: Path) -> Store:
    """A store with a finished rehearsal of FedDEAP's Table 5."""
    store = Store(db)
    (filling,) = fillings(rehearsed(store).values(), Availability({}))
    created = queue(store, filling)
    finish(store.path, created.experiment_id)
    return store


def test_a_table_shows_what_is_printed_and_what_is_missing(open_page: Opened) -> None:
    app = open_page("papers", table="sdfed-1")
    assert app.selectbox(key="table_shown").value == "sdfed-1"
    html = grid(app)
    assert "83.23 ± 0.65" in html
    assert "- no data" in html
    assert "- no method" in html
    for said in (
        "Powder cannot be run: it learns a sequence of tasks without CLIP",
        "GPT-FL cannot be run: it trains on images of a text-to-image generator",
        "UOPP cannot be run: neither its paper nor its code is public.",
    ):
        assert any(shown(caption).replace("\\", "").startswith(said) for caption in app.caption)
    assert any("0 of 60 measured" in text.value for text in app.markdown)


def test_a_narrow_page_keeps_the_signs_for_a_help_text(
    open_page: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fill the telephone's screen before the table begins."""
    app = open_page("papers", table="nothing")
    assert app.selectbox(key="table_shown").value == "fedot-1", "a link to no table shows the first"
    wide = [caption for caption in app.caption if "= comparable" in shown(caption)]
    monkeypatch.setattr(session, "is_narrow", lambda: True)
    narrow = open_page("papers").caption
    assert len(wide) == 1 and not [caption for caption in narrow if "= comparable" in shown(caption)]
    assert [caption for caption in narrow if "**=** comparable" in caption.help]


def test_a_rehearsal_is_marked_on_every_cell(open_page: Opened, filled_table: Store) -> None:
    app = open_page("papers", table="feddeap-5", rehearsal="true")
    assert "our numbers say nothing about the paper" in app.warning[0].value
    html = grid(app)
    assert html.count("no evidence</span>") == len(TABLE.values)
    for cell in rehearsed(filled_table).values():
        assert cell.stat.text(cell.value.digits) in html
    real = grid(open_page("papers", table="feddeap-5"))
    assert "no evidence" not in real


def test_the_dialog_queues_exactly_the_missing_runs(open_page: Opened, tmp_path: Path) -> None:
    app = open_dialog(open_page("papers", table="feddeap-5", rehearsal="true"), "feddeap-5", "row 0 1")
    app = button(app, "Queue 3 runs").click().run()
    assert not app.exception
    (experiment,) = Store(tmp_path / "runs.db").experiments.all()
    assert [(r.seed, r.state) for r in experiment.runs] == [(seed, "queued") for seed in (1, 2, 3)]
    assert "queued" in grid(app)
    app = button(app, "Fill the table").click().run()
    assert button(app, "Queue 6 runs")


def test_the_dialog_gets_what_runs_lack_and_queues_them(open_page: Opened, db: Path) -> None:
    app = open_dialog(open_page("papers", table="feddeap-1"), "feddeap-1", "row 0 0")
    assert "This machine lacks the data set Office" in app.warning[0].value.replace("\\", "")
    terms = next(m.value for m in app.markdown if "to download from" in m.value).replace("\\", "")
    assert "PACS: 191 MB to download from huggingface.co/datasets/flwrlabs/pacs" in terms
    assert "The weights 'openai' of ViT-B-32, from huggingface.co." in terms
    get = next(b for b in app.button if b.label.startswith("Get 2 data sets (at least 19 GB) and queue "))
    app = get.click().run()
    (task,) = Store(db).tasks.recent("fill")
    assert task.args["data"] == ["pacs", "domainnet-126"] and task.args["weights"] == [["ViT-B-32", "openai"]]
    assert not Store(db).experiments.all(), "they cannot be planned before the images are here"
    assert "Get and queue" in app.get("progress")[0].proto.text
    app = open_dialog(app, "feddeap-1", "row 0 0")
    assert any("on their way" in info.value for info in app.info)


def test_the_task_queues_the_wanted_runs_or_none(db: Path) -> None:
    store = Store(db)
    (filling,) = fillings(rehearsed(store).values(), Availability({}))
    asked = task_arguments([filling])
    store.tasks.submit("fill", "without VLCS", asked | {"data": ["vlcs"]})
    assert work_off(db) == ["failed"] and not store.experiments.all()
    assert "VLCS has no automatic download" in str(store.tasks.recent("fill")[0].error)
    store.tasks.submit("fill", "rehearsal", asked)
    assert work_off(db) == ["done"]
    (experiment,) = store.experiments.all()
    assert {(r.label, r.seed, r.held_out) for r in experiment.runs} == filling.wanted
    assert store.tasks.recent("fill")[0].result == {"runs": len(filling.wanted)}


@pytest.mark.parametrize(
    ("table", "method", "target", "expected"),
    [
        (
            "fedot-9",
            "FedGH (CLIP)",
            "A",
            "the paper's Tables 5 and 7 give 64.70 for this cell, which prints 71.40",
        ),
        (
            "fedot-9",
            "Zero Shot",
            "A",
            "every accuracy printed for a domain is a fraction of 409, 468, 334 or 785 test images",
        ),
        ("feddeap-1", "FedDEAP", "a", "mean image embedding: the paper does not say of which images it is"),
    ],
)
def test_the_dialog_says_what_speaks_for_and_against_comparing(
    open_page: Opened, table: str, method: str, target: str, expected: str
) -> None:
    values = next(t for t in all_tables() if t.name == table).values
    names = [(v.method, v.target, v.dataset) for v in values]
    place = names.index((method, target, "PACS"))
    app = open_dialog(open_page("papers", table=table), table, f"cell {place}")
    said = [shown(caption).replace("\\", "") for caption in app.caption]
    assert any(expected in text for text in said), said
    address = library.find(values[place].paper).address
    assert any(f'<a href="{address}"' in html.proto.body for html in app.get("html"))


def test_runs_that_another_tab_has_queued_are_not_queued_again(open_page: Opened, tmp_path: Path) -> None:
    first, second = (open_page("papers", table="feddeap-5", rehearsal="true") for _ in range(2))
    for app in (first, second):
        open_dialog(app, "feddeap-5", "all")
    button(first, "Queue 9 runs").click().run()
    button(second, "Queue 9 runs").click().run()
    assert not second.exception
    assert len(Store(tmp_path / "runs.db").experiments.all()) == 1


def test_what_cannot_run_here_says_how_to_get_it(open_page: Opened) -> None:
    app = open_dialog(open_page("papers", table="fedot-1"), "fedot-1", "cell 3")
    assert any("This machine lacks the data set VLCS" in warning.value for warning in app.warning)
    assert not any(b.label.startswith("Queue") for b in app.button)


def test_all_papers_are_listed_with_the_share_of_their_values(open_page: Opened, filled_table: Store) -> None:
    app = open_page("papers", papers_view="All papers", rehearsal="true")
    assert any("of 9,213 rehearsed" in text.value for text in app.markdown)
    table = app.dataframe[0].value.set_index("paper")
    assert table["values"].sum() == 9213
    values = [value for table in all_tables() for value in table.values]
    found = rehearsed(filled_table, values)
    number = sum(found[value].status == "rehearsed" for value in values)
    assert table["rehearsed"].sum() == table["rehearsed"]["FedDEAP"] == number
    assert table["share"]["FedDEAP"] == f"{number / table['values']['FedDEAP']:.1%}"


def test_a_source_that_cannot_be_run_says_why_and_names_its_audits(open_page: Opened) -> None:
    app = open_page("papers", table="fedmgp-11")
    assert any("FedLens cannot run this table: " in info.value for info in app.info)
    html = grid(app)
    assert html.count("⚠ impossible ±") == 5
    assert "prints 6.29 ± 6.45 for PromptFL; the paragraph below it says" in html
    assert "no method" not in html and not [b for b in app.button if b.label == "Fill the table"]
    assert any(e.label == "Audits: 5 impossible ±" for e in app.expander)
    assert not any("Nobody has compared" in c.value for c in app.caption)
    app = open_page("papers", table="transagent-1")
    assert "⚠" not in grid(app) and any("Nobody has compared" in c.value for c in app.caption)
    quoted = open_page("papers", table="trip-Office-Home")
    assert "⚠" not in grid(quoted) and any("quoted from" in e.label for e in quoted.expander)


def test_a_baseline_on_a_data_set_shows_every_source(open_page: Opened) -> None:
    app = open_page("papers", papers_view="Baselines", baseline="PromptFL", dataset="DomainNet")
    text = "two sources; mean over clients 14.79 to 24.48. No stated part of the settings explains"
    assert any(text in shown(line).replace("\\", "") for line in app.markdown)
    html = grid(app)
    assert "14.79 ± 14.18" in html and "24.48 ± 12.52" in html
    app.selectbox(key="pair_baseline").set_value("CoCoOp").run()
    assert app.query_params["baseline"] == "CoCoOp" and not app.exception


def test_a_table_is_added_in_the_browser(open_page: Opened, tmp_path: Path) -> None:
    app = open_page("papers", papers_view="Add a paper")
    app.text_area(key="add_text").set_value("Method\tDTD\nPromptFL\t80.1\nFedOTP\teighty\nX\t71.0").run()
    assert not app.error and "<s>eighty</s>" in html(app)
    assert any(
        "- line 3, column 'DTD': 'eighty' is not a number" in m.value.replace("\\", "") for m in app.markdown
    )
    app.text_area(key="add_text").set_value("Method\tDTD\nPromptFL\t80.00\nFedOTP\t70.10").run()
    assert "80.00" in grid(app)
    button(app, "Save").click().run()
    assert any("short title" in error.value for error in app.error)
    app.text_input(key="add_title").set_value("Mine").run()
    app.text_input(key="add_citation").set_value("Me, 2026").run()
    button(app, "Save").click().run()
    assert not app.exception and app.selectbox(key="table_shown").value == "mine-1"
    (made,) = tmp_path.glob("*.papers/mine")
    assert (made / "values.csv").read_text(encoding="utf-8").count("\n") == 3
    assert any("audits found nothing" in caption.value for caption in app.caption)
    (made / "findings.csv").unlink()
    assert any("was not audited; run `fedlens papers add" in caption.value for caption in app.run().caption)
    shutil.rmtree(made)
    adding.use(session.store().path)  # the process forgets the paper


@pytest.fixture
def added(db: Path) -> Iterator[Path]:
    """A database with runs of two methods, and with an added paper that prints values of them."""
    fill.done(db, fill.an_experiment("Runs", methods=("fedot", "promptfl"), seeds=(1, 2), rounds=4))
    fields = {"title": "Mine", "citation": "Me, 2026", "licence": "facts", "kind": "README"}
    grids = [pasted.read(f"Method\tDigits\nFedOT\t{n}0.10\nOther\t{n}1.20")[0] for n in (8, 7)]
    for table, grid in enumerate(grids, 1):
        common = {"table": str(table), "metric": "accuracy"}
        values = pasted.values(grid, pasted.guess(grid), common, "mine").values
        adding.write("mine", fields, values, {str(table): {"caption": "Some"}}, {}, db)
    yield db
    shutil.rmtree(library.added_folder(db), ignore_errors=True)
    adding.use(db)


def test_an_added_table_is_matched_with_my_runs_by_a_form(open_page: Opened, added: Path) -> None:
    app = open_page("papers", table="mine-1")
    assert not any("measured" in m.value for m in app.markdown)
    app.session_state["table_match"] = True
    app = button(app.run(), "Match").click().run()
    assert not app.exception and not app.error
    mean = next(row for row in compare(Store(added), [1]).rows if row.label == "FedOT").stats["personal"]
    assert f"{mean.text(2)} (2)" in grid(app), "ours below the printed value"
    assert any("1 of 2 measured" in m.value for m in app.markdown)
    values = tuple(replace(value, backbone="ViT-B-16") for value in published.load("mine"))
    table = replace(next(t for t in layout.tables("mine") if t.table == "1"), values=values)
    config = Store(added).experiments.get(1).config
    with pytest.raises(FedLensError, match="the table is of ViT-B-16 and the experiment of mini-vit"):
        adding.match(table, "Digits", "", config, {"FedOT": 0}, added)
    app = button(open_page("papers", table="mine-1"), "Delete").click().run()
    assert "mine-1" not in [table.name for table in layout.tables("mine")]
    assert experiments.experiments(library.find("mine")) == {}, "nor runs of a table that is gone"


def test_experiments_to_match_are_told_apart_and_a_reader_may_only_look(
    open_page: Opened, added: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill.done(added, fill.an_experiment("Runs", methods=("fedot",), seeds=(1,), rounds=2))
    fill.done(added, fill.an_experiment("Rates", ("fedot",), (1,), 2, sweep={"methods.fedot.lr": [0.1, 0.2]}))
    monkeypatch.setattr(Experiments, "all", lambda *_: pytest.fail("every experiment is parsed"))
    app = open_page("papers", table="mine-1")
    app.session_state["table_match"] = True
    choice = app.run().selectbox(key="match_experiment")
    assert choice.options == ["Rates (no. 3)", "Runs (no. 2)", "Runs (no. 1)"]
    assert any("without a sweep or a search" in info.value for info in app.info)
    assert not any(b.label == "Match" for b in app.button)
    app = choice.set_value(1).run()
    assert not button(app, "Match").disabled
    monkeypatch.setattr(session, "writable", lambda: False)
    app = app.run()
    assert button(app, "Match").disabled and app.selectbox(key="match_experiment").value == 1


def test_an_added_table_is_edited_and_deleted_and_deleting_is_undone(open_page: Opened, added: Path) -> None:
    app = button(open_page("papers", table="mine-2"), "Edit").click().run()
    text = app.text_area(key="add_text")
    assert "Digits,,,Other,avg,accuracy,71.20" in text.value
    app = text.set_value(text.value.replace("71.20", "75.50")).run()
    app = button(app, "Save").click().run()
    assert not app.exception and not app.error and app.selectbox(key="table_shown").value == "mine-2"
    assert [v.text for v in published.load("mine")] == ["80.10", "81.20", "70.10", "75.50"]
    assert library.find("mine").tables["2"].caption == "Some"
    for left in (["mine-1"], []):
        app = button(app, "Delete").click().run()
        assert [t.name for t in layout.all_tables() if t.paper == "mine"] == left
    app = button(app, "Undo").click().run()
    assert [t.name for t in layout.all_tables() if t.paper == "mine"] == ["mine-1"], "the last one that went"
    assert not any(b.label == "Delete" for b in open_page("papers", table="sdfed-1").button)


def test_a_table_is_run_and_shown_under_every_reading(open_page: Opened, tmp_path: Path) -> None:
    app = open_page("papers", table="feddeap-5", rehearsal="true")
    assert "What the paper leaves open" in [element.value for element in app.subheader]
    assert any("The curve appears when the runs of two readings are done" in i.value for i in app.info)
    assert not charts(app)
    app = button(app, "Run all readings of the table").click().run()
    assert not app.exception
    assert button(app, "Queue 576 runs"), "three rows of 64 variants with three seeds"
    finish_readings(tmp_path / "runs.db")
    app = open_page("papers", table="feddeap-5", rehearsal="true")
    assert not app.exception
    assert len(charts(app)) == 1
    assert any("FedDEAP is first in 7 of 7 readings" in text.value for text in app.markdown), (
        "FedLens's and six changes"
    )
    app = app.toggle(key="as_tables").set_value(True).run()
    assert not charts(app)
    assert len(app.dataframe[0].value) == 7, "a row of numbers per reading"


def test_a_paper_that_names_no_choice_shows_none(open_page: Opened) -> None:
    app = open_page("papers", table="fedmgp-2")
    assert "What the paper leaves open" not in [element.value for element in app.subheader]


def test_a_table_of_text_and_a_count_stand_without_runs(open_page: Opened) -> None:
    app = open_page("papers", table="sdfed-9")
    (table,) = [t for t in tables(html(app)) if t.label == "Table 9"]
    assert table.rows[3] == ["Weak", "5", "ResNet50", "8", "1", "50"]
    assert not any("Reported round" in text.value for text in app.caption), "there are none to choose from"
    for name, fillable in (("fedalign-4", False), ("feddeap-4", True)):
        app = open_page("papers", table=name)
        assert "(computed)" in grid(app)
        assert ("Fill the table" in [b.label for b in app.button]) == fillable
