"""The pages, driven without a browser."""

import re
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from fedcore.papers.experiments import DEMO, preset
from fedcore.store import Store
from pages.widgets import markup
from tests.support import fill
from tests.support.web.pages import NASTY, Opened, button, html, open_form, widget

PAGES = ("experiments", "new", "live", "compare", "papers", "data", "run")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_on_an_empty_database(open_page: Opened, page: str) -> None:
    app = open_page(page)
    assert app.title[0].value
    assert not app.error


def test_a_newcomer_launches_with_one_click(open_page: Opened, tmp_path: Path) -> None:
    app = open_page()
    app = button(app, "Try it").click().run()
    assert not app.exception
    assert app.title[0].value == "Live"
    (experiment,) = Store(tmp_path / "runs.db").experiments.all()
    assert {r.state for r in experiment.runs} == {"queued"}
    assert experiment.config == preset(DEMO)


def test_reset_to_paper_forgets_what_the_preset_said(open_page: Opened, tmp_path: Path) -> None:
    app = open_page("new", preset="demo")
    assert any("0.01 *</b>" in e.proto.body for e in app.get("html"))
    app = open_form(app, "FedOT")
    assert widget(app, "Learning rate", "text_input").value == "0.01"
    app = button(app, "Reset to the paper's values").click().run()
    assert widget(app, "Learning rate", "text_input").value == "5e-05"
    button(app, "Launch").click().run()
    fedot = next(r for r in Store(tmp_path / "runs.db").runs.of_experiments([1]) if r.method == "fedot")
    assert Store(tmp_path / "runs.db").runs.config(fedot.id).method.config["lr"] == 5e-5


def test_what_was_typed_stays_when_the_form_is_closed_and_opened(open_page: Opened) -> None:
    app = open_form(open_page("new", preset="demo"), "FedOT")
    widget(app, "Blocks", "text_input").set_value("2")
    app.run()
    app = open_form(app, "FedOT")  # a second click closes it
    assert "Blocks" not in [w.label for w in app.text_input]
    assert re.search("blocks <b[^>]*>2 ", html(app))
    app = open_form(app, "FedOT")
    assert widget(app, "Blocks", "text_input").value == "2"


def test_a_variant_is_one_more_run(open_page: Opened, tmp_path: Path) -> None:
    app = open_form(open_page("new", preset="demo"), "FedOT")
    app = button(app, "Add a variant").click().run()
    app = button(app, "Launch").click().run()
    labels = [r.label for r in Store(tmp_path / "runs.db").runs.of_experiments([1]) if r.method == "fedot"]
    assert labels == ["FedOT", "FedOT (variant)"]


def test_a_plan_of_many_runs_asks_first(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    widget(app, "Seeds", "text_input").set_value("1, 2, 3, 4, 5")
    app.run()
    assert button(app, "Launch").disabled
    next(c for c in app.checkbox if "30 runs" in c.label).check().run()
    assert not button(app, "Launch").disabled


def test_names_are_text_on_live(open_page: Opened, db: Path) -> None:
    experiment = fill.an_experiment(NASTY, methods=("fedot",), seeds=(1,), rounds=2)
    entry = experiment.methods[0].model_copy(update={"label": NASTY})
    number = fill.done(db, experiment.model_copy(update={"methods": (entry,)}))
    app = open_page("live", id=str(number))
    assert "<b onclick" not in html(app)
    for element in [*app.markdown, *app.caption, *app.title]:
        unescaped = re.search(r"(?<!\\)(<b onclick|:red|\*a\*|\$)", element.value)
        assert not unescaped, element.value


def test_a_read_only_database_can_be_looked_at(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcore.store.Store.prepare", lambda store: "it cannot be written")
    st.cache_resource.clear()
    for page in PAGES:
        app = open_page(page, id="1", ids=["1"])
        if page == "experiments":  # AppTest runs the other pages without dashboard.py, which shows the banner
            assert app.warning[0].value == "it cannot be written"
        for label in ("New experiment", "Launch", "Stop", "Resume", "Clone", "Delete", "Archive"):
            for found in app.button:
                assert found.label != label or found.disabled, (page, label)
    st.cache_resource.clear()


def test_a_name_that_spells_an_icon_stays_text() -> None:
    """Streamlit draws an icon for it even where its colons are escaped."""
    assert ":material/" not in markup.md("my :material/home: run").replace("\\", "")


AUTOLINKS = (r"(https?:\/\/|www(?=\.))([-.\w]+)([^ \t\r\n]*)", r"([-.\w+]+)@([-\w]+(?:\.[-\w]+)+)")
"""What Streamlit's Markdown (mdast-util-gfm-autolink-literal) makes a link of, escaped or not."""


@pytest.mark.parametrize(
    "address", ["https://a.example/x", "HTTP://a.example", "www.a.example", "me@a.example"]
)
def test_an_address_in_a_name_does_not_become_a_link(address: str) -> None:
    shown = re.sub(r"\\(.)", r"\1", markup.md(f"see {address}."))
    assert not any(re.search(pattern, shown, re.I) for pattern in AUTOLINKS)
    assert shown.replace("\u2060", "") == f"see {address}."
    assert markup.md("fedot/table1-pacs@1") == "fedot/table1\\-pacs@1", "nothing else has joiners"


def a_part_that_fails() -> None:
    from fedcore.base.errors import DiskFull
    from pages.widgets import markup

    fails = DiskFull("the disk that holds runs.db is full; free some space")

    @markup.fragment
    def part() -> None:
        raise fails

    @markup.dialog("A dialog")
    def dialog() -> None:
        raise fails

    part()
    dialog()


def test_what_goes_wrong_in_a_part_of_a_page_that_is_redrawn_by_itself_is_a_sentence(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a part runs outside of dashboard.py, which shows the errors of pages."""
    monkeypatch.setenv("FEDLENS_DB", str(db))
    app = AppTest.from_function(a_part_that_fails).run()
    assert not app.exception
    told = [error.value for error in app.error]
    assert told == ["The disk that holds runs\\.db is full; free some space"] * 2


@pytest.mark.parametrize(
    "text", ["/data/x is no folder", "runs.db is full", "`fedlens doctor` says more", ""]
)
def test_an_error_that_begins_with_a_name_keeps_its_first_letter(text: str) -> None:
    assert markup.sentence(text) == text
    assert markup.sentence(f"no room: {text}") == f"No room: {text}"
