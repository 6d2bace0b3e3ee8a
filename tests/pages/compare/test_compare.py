"""The Compare page: what stands on the screen is what the report says and what the files hold."""

import csv
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore.base.progress import Progress, Work, result_of
from fedcore.config import Experiment, parse
from fedcore.results import exports as files
from fedcore.results import sweeps
from fedcore.results.comparison import compare
from fedcore.results.finding import findings
from fedcore.results.matrices import method_by_domain_panel
from fedcore.results.metrics import METRICS, value_per_seed
from fedcore.results.summary import summarise
from fedcore.share.checked import CheckedComparison, checked_comparison
from fedcore.share.content import Wording, read_report
from fedcore.share.views import View, cost, views
from fedcore.store import Store, database
from pages.widgets import markup
from tests.support import fill
from tests.support.exported import exported
from tests.support.web.compare import show, table
from tests.support.web.live import charts
from tests.support.web.pages import Opened, button, html, widget

NAME = """<img src=x onerror="alert(1)"> *a* $\\alpha$ :red[r] '" 😀 """ + "n" * 430


def test_files_hold_the_numbers_of_the_screen(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"], baseline="PromptFL", rule="best on validation")
    head, *rows = table(app, "Summary of")
    text = exported(Store(seeds), [1], rule="best", baseline="PromptFL")
    filed = {(r["label"], METRICS[r["metric"]].title): r for r in csv.DictReader(io.StringIO(text))}
    titles = {f"{m.heading}, %": m.title for m in METRICS.values()}
    compared = 0
    for row in rows:
        for title, cell in zip(head, row, strict=True):
            if title in titles and cell != "-":
                mean, std = (float(part) for part in cell.split(" ± "))
                entry = filed[row[0], titles[title]]
                assert mean == pytest.approx(float(entry["mean"]), abs=0.0551)
                assert std == pytest.approx(float(entry["std"]), abs=0.0551)
                compared += 1
        entry = filed[row[0], "Personal accuracy"]
        if row[0] != "PromptFL":
            gap = float(row[head.index("Personal: difference, points")].rstrip("*\xa0"))
            assert gap == pytest.approx(float(entry["difference"]), abs=0.0551)
            p = row[head.index("p")].removeprefix("< ")
            assert float(p) == pytest.approx(float(entry["p_holm"]), abs=0.00101)
        assert row[head.index("Seeds (n)")] == entry["n"] == "4"
    assert compared == len(rows) * len([t for t in head if t in titles]) >= 15


def test_a_number_opens_to_its_seeds_runs_and_rule(open_page: Opened, seeds: Path) -> None:
    text = html(open_page("compare", ids=["1"]))
    group = next(g for g in compare(Store(seeds), [1]).rows if g.label == "FedOT")
    (cell,) = re.findall(
        rf"<details[^>]*><summary><b>{re.escape(group.stats['personal'].text())}</b></summary>"
        r"<small>(seed 1: .*?)</small>",
        text,
    )[:1]
    for value in group.runs:
        accuracy = value_per_seed(group.runs, "personal")[value.run.seed]
        assert f'seed {value.run.seed}: <b>{accuracy:.2f}</b>, run <a href="/run?id={value.run.id}"' in cell
    assert "last round; the run's page has the command that repeats it" in cell


def test_a_clear_difference_is_marked(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"], baseline="PromptFL")
    text = html(app)
    assert text.count("<b>*</b>") == 2
    (found,) = findings(summarise(compare(Store(seeds), [1]), "PromptFL")).values()
    assert found.count(" points, p ") == 2 and app.info[0].value == markup.md(found)
    said = r"paired t-test over 4 seeds; uncorrected p"
    assert re.search(said, text)


def test_all_runs_have_no_column_that_says_nothing(open_page: Opened, seeds: Path) -> None:
    app = show(open_page("compare", ids=["1"]), "Summary", compare_runs=True)
    head, *rows = table(app, "Runs behind the numbers")
    assert "Held out" not in head and len(rows) == 12
    fill.done(seeds, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1, held_out=fill.CLIENTS[:2]))
    app = show(open_page("compare", ids=["1", "2"]), "Summary", compare_runs=True)
    head, *rows = table(app, "Runs behind the numbers")
    assert {r[head.index("Held out")] for r in rows} == {"-", *fill.CLIENTS[:2]}


def test_domains_behind_a_mean(open_page: Opened, seeds: Path) -> None:
    app = show(open_page("compare", ids=["1"]), "Summary", compare_parts_0=True)
    group = next(g for g in compare(Store(seeds), [1]).rows if g.label == "SDFed")
    head, *rows = table(app, "Personal accuracy by domain")
    assert head == ["Method", *fill.CLIENTS]
    shown = next(r for r in rows if r[0] == "SDFed")
    assert shown[1:] == [group.breakdowns["domain"][d].text() for d in fill.CLIENTS]


def test_leave_one_domain_out_has_g_p_and_c(open_page: Opened, db: Path) -> None:
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=1, held_out=fill.CLIENTS[:2]))
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    app = open_page("compare", ids=["1"])
    head, row = table(app, "Summary of")
    assert head[1:4] == ["G, %", "P, %", "C, %"]
    assert "Personal, %" not in head, "it is P"
    (group,) = compare(Store(db), [1]).rows
    names = ("generalisation", "personalisation", "comprehensive")
    assert row[1:4] == [group.stats[m].text() for m in names]
    assert any("2 of 6 domains held out" in c.value for c in app.caption)
    app = show(app, "Heatmaps")
    assert app.selectbox(key="matrix").value == "held_out" and len(charts(app)) == 1
    app = app.multiselect(key="compare_ids").set_value([2]).run()
    assert app.selectbox(key="matrix").value == "models" and len(charts(app)) == 1


def test_every_matrix_is_drawn_or_said_to_be_absent(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"])
    there = {"models": 1, "methods": 1, "rounds": 1, "domains": 1, "held_out": 0, "attention": 0}
    for view, count in there.items():
        app = show(app, "Heatmaps", matrix=view)
        assert len(charts(app)) == count, view
        assert len(app.info) == 1 + (not count), view
    comparison = compare(Store(seeds), [1])
    panel = method_by_domain_panel(Store(seeds), comparison, comparison.rows[0].setting)
    assert panel.values.shape == (3, 6)


def test_the_pareto_front_is_named(open_page: Opened, seeds: Path) -> None:
    app = show(open_page("compare", ids=["1"]), "Cost")
    head, *rows = table(app, "Cost on")
    front = {r[head.index("Method")] for r in rows if r[head.index("Front")] == "yes"}
    assert front == {"FedOT", "PromptFL"}, "SDFed sends more than FedOT and reaches less"
    spec = charts(app)[0]["figure"]
    (line,) = [t for t in spec["data"] if t.get("name") == "Pareto front"]
    assert len(line["x"]) == 2


def test_a_chart_is_one_view_for_the_page_and_the_report(
    open_page: Opened, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that has no controls of its own is a tab of Compare, and a figure of the report's HTML."""
    mine = View("My view", lambda source, setting: cost.figures(source, setting)[:1], "Nothing to show.")
    monkeypatch.setitem(views(), "mine", mine)
    app = show(open_page("compare", ids=["1"]), "My view")
    assert len(charts(app)) == 1 and "My view" in [tab.label for tab in app.tabs]
    with checked_comparison(Store(seeds), [1]) as checked:
        figures = result_of(read_report(checked)).sections[0].figures
    assert [f.name for f in figures].count("cost-traffic") == 2, "of Cost, and of my view"


def test_a_sweep_is_drawn_four_ways(open_page: Opened, db: Path) -> None:
    plain = fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2), rounds=1).model_dump()
    sweep = {"methods.fedot.blocks": [1, 2], "partition.alpha": [0.1, 0.5]}
    fill.done(db, parse({**plain, "sweep": sweep}))
    app = show(open_page("compare", ids=["1"]), "Sweep")
    kinds = [c["figure"]["data"][0]["type"] for c in charts(app)]
    assert kinds == ["scatter", "box", "heatmap", "parcoords"]
    family = sweeps.sweep_families(compare(Store(db), [1]), "personal", [sweep])[0]
    heat = charts(app)[2]["figure"]["data"][0]
    shown = {t for row in heat["text"] for t in row}
    assert shown == {p.stat.text() for p in family.rows}
    app = show(app, "Sweep", as_tables=True)
    assert not charts(app) and len(app.dataframe) == 4
    assert len(app.dataframe[3].value) == 6, "four of FedOT, two of PromptFL"


def test_config_has_titles_and_says_a_dash_only_where_there_is_one(open_page: Opened, db: Path) -> None:
    fill.done(db, fill.an_experiment(methods=("fedot", "promptfl", "zero-shot"), seeds=(1,), rounds=1))
    app = show(open_page("compare", ids=["1"]), "Config")
    head, *rows = table(app, "Config fields that differ")
    assert head == ["Field", "FedOT", "PromptFL", "Zero-shot CLIP"]
    assert ["Learning rate", "5e-05", "0.001", "-"] in rows
    assert not any("." in r[0] or "_" in r[0] for r in rows)
    dash = "A dash: the method has no such field."
    assert dash in [c.value for c in app.caption]
    fields = [r[1] for r in table(app, "Fields that only some methods have")[1:]]
    assert {"Blocks", "Momentum", "Context length"} <= set(fields)
    entries = [{"name": "fedot", "label": f"b{b}", "config": {"blocks": b}} for b in (1, 2)]
    plain = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1).model_dump()
    fill.done(db, Experiment.model_validate({**plain, "methods": entries}))
    app = show(open_page("compare", ids=["2"]), "Config")
    assert table(app, "Config fields that differ") == [["Field", "b1", "b2"], ["Blocks", "1", "2"]]
    assert dash not in [c.value for c in app.caption]


def test_of_two_data_sets_every_part_says_whose_it_is(open_page: Opened, seeds: Path) -> None:
    fill.done(seeds, fill.an_experiment(methods=("fedot", "sdfed"), data="shapes", seeds=(1,), rounds=2))
    app = open_page("compare", ids=["1", "2"], baseline="PromptFL")
    digits, shapes = compare(Store(seeds), [1, 2]).settings.values()
    mean = table(app, "Summary of Mean over 2 data sets (rotated-digits, shapes)")
    assert [row[0] for row in mean[1:]] == ["FedOT", "SDFed"]
    lacking = "PromptFL has no mean over data sets: no run on shapes"
    assert any(lacking in caption.value.replace("\\", "") for caption in app.caption)
    assert "Personal: difference, points" in table(app, f"Summary of {digits}")[0]
    assert "Personal: difference, points" not in table(app, f"Summary of {shapes}")[0]
    assert [c.value for c in app.caption].count("The baseline PromptFL has no run in this setting.") == 1
    app = show(app, "Config")
    head, *rows = table(app, "Config fields that differ")
    assert len(set(head)) == 6 and f"FedOT ({shapes})" in head
    assert ["Data set", *["rotated-digits"] * 3, "shapes", "shapes"] in rows
    named = [r[0] for r in table(app, "Fields that only some methods have")[1:] if r[0]]
    assert "FedOT" in named, "once, of whichever data"


def test_a_long_name_is_cut_in_cells(open_page: Opened, db: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)
    entry = experiment.methods[0].model_copy(update={"label": "a" * 480 + " at the end"})
    fill.done(db, experiment.model_copy(update={"methods": (entry,)}))
    app = open_page("compare", ids=["1"])
    (name,) = [r[0] for r in table(app, "Summary of")[1:]]
    assert len(name) <= 80 and name.endswith("…a at the end"), name
    assert f'title="{entry.label}"' in html(app)


def test_names_of_any_kind_are_text_on_every_tab(open_page: Opened, db: Path) -> None:
    experiment = fill.an_experiment(NAME[:500], methods=("fedot", "promptfl"), seeds=(1, 2), rounds=1)
    entries = tuple(
        m.model_copy(update={"label": f"{i}{NAME}"[:500]}) for i, m in enumerate(experiment.methods)
    )
    fill.done(db, experiment.model_copy(update={"methods": entries}))
    app = open_page("compare", ids=["1"])
    labels = [g.label for g in compare(Store(db), [1]).rows]
    for tab in ("Summary", "Heatmaps", "Curves", "Cost", "Config", "Export"):
        app = show(app, tab, baseline=labels[0])
        assert "<img" not in html(app), tab
        for element in [*app.markdown, *app.caption, *app.info]:
            assert not re.search(r"(?<!\\)(<img|:red|\*a\*|\$)", element.value), (tab, element.value)
    for chart in charts(app):
        assert "<img" not in chart.proto.spec


def test_an_unfinished_experiment_says_where_to_look_and_failed_runs_are_not_awaited(
    open_page: Opened, db: Path
) -> None:
    created, _ = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,)))
    app = open_page("compare", ids=["1"])
    assert "No run has finished yet" in app.info[0].value
    button(app, "Watch them").click().run()
    assert app.title[0].value == "Live"
    with database.writing(db) as opened:
        opened.execute("update runs set status = 'failed' where id = ?", [created.run_ids[0]])
    app = open_page("compare", ids=["1"])
    assert "No run finished: 1 failed" in app.info[0].value
    assert not any("not finished" in c.value for c in app.caption), "said once"


def test_the_state_is_in_the_url(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"], baseline="SDFed", rule="mean of last ten rounds", by="Worst client")
    values = {s.label: s.value for s in app.selectbox}
    assert (values["Baseline"], values["Reported round"], values["Compare by"]) == (
        "SDFed",
        "mean10",
        "worst",
    )
    assert "Worst client: difference, points" in table(app, "Summary of")[0]


@pytest.mark.slow
def test_the_buttons_hand_out_the_files_of_the_page(
    open_page: Opened, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: dict[str, tuple[str, Callable[[], Any]]] = {}
    monkeypatch.setattr(
        "streamlit.download_button", lambda label, made, name, **_: handed.update({label: (name, made)})
    )
    monkeypatch.setattr(
        "fedcore.share.folder.pdf_file", lambda drawn: b"%PDF"
    )  # the report's tests draw them
    app = show(open_page("compare", ids=["1"], baseline="PromptFL", rule="mean of last ten rounds"), "Export")
    mark = files.fingerprint([Store(seeds).experiments.get(1)])
    for name, _ in handed.values():
        assert re.fullmatch(
            rf"fedlens-rotated-digits-made-up-[a-z]+-\d{{8}}-{mark}\.(csv|tex|json|html|zip)", name
        )
    app = button(app, "Make figures (ZIP)").click().run()
    button(app, "Make report folder (ZIP)").click().run()
    figures, report = (handed.pop(label)[1] for label in ("Figures (ZIP)", "Report folder (ZIP)"))
    with zipfile.ZipFile(io.BytesIO(report)) as archive:
        assert any(name.endswith("/report.html") for name in archive.namelist())
    with zipfile.ZipFile(io.BytesIO(figures)) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        (latex,) = (archive.read(n).decode() for n in archive.namelist() if n.endswith("/summary.tex"))
    assert {"summary.tex", "citation.bib"} < names and "report.html" not in names
    assert {name.rpartition(".")[2] for name in names if name.startswith("figures/")} == {"pdf", "svg"}
    contents = {label: made() for label, (_, made) in handed.items()}
    assert latex == contents["LaTeX table"]
    assert contents == {
        "Download CSV": exported(Store(seeds), [1], rule="mean10", baseline="PromptFL"),
        **{
            f"{name.capitalize()} CSV": exported(Store(seeds), [1], name, rule="mean10")
            for name in ("domains", "breakdowns", "costs", "configs")
        },
        "Rounds CSV": exported(Store(seeds), [1], "rounds"),
        "Clients CSV": exported(Store(seeds), [1], "clients"),
        "LaTeX table": exported(Store(seeds), [1], "summary", "latex", rule="mean10", baseline="PromptFL"),
        "Summary JSON": exported(Store(seeds), [1], "summary", "json", rule="mean10", baseline="PromptFL"),
        "Whole experiment JSON": Store(seeds).experiments.to_json([1]),
    }


def test_a_report_is_offered_until_its_runs_have_new_results_and_lends_its_title_to_no_other(
    open_page: Opened, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: dict[str, Any] = {}

    def written(checked: CheckedComparison, words: Wording) -> Work[str]:
        yield Progress("drawing the figures", 0, 1)
        return f"title: {words.title}"

    def page_of(written: str) -> Work[str]:
        yield Progress("drawing the figures", 1, 1)
        return written

    monkeypatch.setattr(
        "streamlit.download_button", lambda label, made, *_, **__: saved.update({label: made})
    )
    monkeypatch.setattr("pages.widgets.background.read_report", written)
    monkeypatch.setattr("fedcore.share.page.report_html", page_of)
    monkeypatch.setattr("fedcore.share.folder.report_files", written)
    monkeypatch.setattr("pages.compare_view.export.zipped", lambda files, folder: files)
    fill.done(seeds, fill.an_experiment("Another", methods=("fedot",), seeds=(1,), rounds=1))
    app = show(open_page("compare", ids=["1"]), "Export")
    widget(app, "Title", "text_input").set_value("My title")
    app = button(app, "Make report").click().run()
    button(app, "Make report folder (ZIP)").click().run()
    assert saved["Save report"] == saved["Report folder (ZIP)"] == "title: My title"

    with database.writing(seeds) as opened:
        opened.execute("UPDATE runs SET finished_at = finished_at + 1 WHERE id = 1")
    saved.clear()
    app.run()
    assert "Download CSV" in saved and "Save report" not in saved, "the report has numbers of before"

    other = show(
        open_page("compare", ids=["2"]), "Export", report_wording=app.session_state["report_wording"]
    )
    button(other, "Make report folder (ZIP)").click().run()
    assert saved["Report folder (ZIP)"] == "title: ", "the title is that of another comparison"


def test_what_was_cleared_stays_empty(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"])
    app = widget(app, "Experiments").set_value([]).run()
    assert widget(app, "Experiments").value == []
    assert "Choose experiments above" in app.info[0].value


def test_a_link_to_what_is_gone_says_so_and_shows_nothing_else(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["99", "<b>x</b>"])
    (said,) = app.warning
    assert "do not exist here: 99, <b\\>x</b\\>" in said.value.replace("\\<", "<")
    assert widget(app, "Experiments").value == []
    assert not app.get("html") or "Summary of" not in html(app)
    app = open_page("compare", ids=["1", "99"])
    assert "99" in app.warning[0].value and table(app, "Summary of")


def test_a_link_to_an_archived_experiment_shows_it(open_page: Opened, seeds: Path) -> None:
    fill.done(seeds, fill.an_experiment("Kept", methods=("fedot",), seeds=(1,), rounds=1))
    Store(seeds).experiments.edit(1, archived=True)
    app = open_page("compare", ids=["1"])
    chosen = widget(app, "Experiments")
    assert chosen.value == [1] and any("archived" in o for o in chosen.options)
    assert table(app, "Summary of") and not app.warning
    chosen = next(m for m in open_page("compare").multiselect if m.label == "Experiments")
    assert chosen.value == [2] and not any("archived" in o for o in chosen.options)
