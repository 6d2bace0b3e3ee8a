"""Compare with printed figures beside ours, and without any."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from fedcore.results.comparison import compare
from fedcore.store import Store
from tests.support import fill, papers
from tests.support.web.compare import show, table
from tests.support.web.live import charts
from tests.support.web.pages import Opened, html


def test_the_summary_has_printed_figures_beside_ours(open_page: Opened, db: Path) -> None:
    preset = papers.preset("fedot/table1-pacs", ("FedOT", "FedOT(-o)"), seeds=(50,))
    papers.train(db, preset)
    app = open_page("compare", ids=["1"])
    head, *rows = table(app, "Summary of")
    assert head[1:7] == ["G, %", "G printed, %", "P, %", "P printed, %", "C, %", "C printed, %"]
    cells = {r[0]: dict(zip(head, r, strict=True)) for r in rows}
    assert cells["FedOT"]["G printed, %"] == "94.7 † / 94.3 †", "as FedOT and as FedOT(+B)"
    assert cells["FedOT(-o)"]["G printed, %"] == "94.5 †"
    assert cells["FedOT(-o)"]["P printed, %"] == "not printed", "never blank"
    text = html(app)
    assert "FedOT, Table 1: FedOT <b>94.68</b>, best on validation" in text, "ours here is the last round's"
    said = next(c.value for c in app.caption if c.value.startswith("Printed"))
    assert "FedOT, Tables 1, 2, 3, 5, 9" in said.replace("\\", "")
    assert "the page Papers shows ours measured as in each paper" in said
    assert "CoCoOp" in said and "with a caveat" in said
    assert "not run here: PromptFL" in said.replace("\\", "") or "not run here: Zero" in said.replace(
        "\\", ""
    )
    text = html(open_page("compare", ids=["1"], rule="best on validation"))
    ours = compare(Store(db), [1], "best").rows[0].stats["generalisation"].mean
    assert f"FedOT, Table 1: FedOT <b>94.68</b>, ours {ours - 94.68:+.2f}" in text


def test_without_printed_figures_there_is_no_such_column_and_that_is_said(
    open_page: Opened, seeds: Path
) -> None:
    app = open_page("compare", ids=["1"])
    assert not any("printed" in title for title in table(app, "Summary of")[0])
    assert not any("Printed" in c.value for c in app.caption)


def test_rows_of_other_rounds_have_no_difference(open_page: Opened, seeds: Path) -> None:
    fill.done(seeds, fill.an_experiment(methods=("fedalign",), seeds=(1, 2, 3, 4), rounds=3))
    app = open_page("compare", ids=["1", "2"], baseline="PromptFL")
    head, *rows = table(app, "Summary of")
    at = head.index("Personal: difference, points")
    cells = {r[0]: r[at : at + 2] for r in rows}
    assert cells["FedAlign"] == ["-", "not comparable"] and cells["FedOT"][0].startswith("+")
    assert "rounds 3 against 2" in html(app)
    app = show(app, "Heatmaps")
    gaps = charts(app)[1]["figure"]["layout"]["annotations"]
    assert {a["text"] for a in gaps} == {"<b>FedOT - PromptFL</b>", "<b>SDFed - PromptFL</b>"}


def latex_of(app: AppTest) -> str:
    return next(c.value for c in app.code if c.language == "latex")


def test_the_latex_table_has_printed_figures_unless_switched_off(open_page: Opened, db: Path) -> None:
    preset = papers.preset("fedot/table1-pacs", ("FedOT",), seeds=(50,))
    papers.train(db, preset)
    app = show(open_page("compare", ids=["1"]), "Export")
    (switch,) = [t for t in app.toggle if t.key == "latex_printed"]
    assert switch.value and "G, printed" in latex_of(app) and "94.68" in latex_of(app)
    app = switch.set_value(False).run()
    assert "printed" not in latex_of(app)
