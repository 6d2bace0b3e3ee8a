"""The Compare page: what stands on the screen is what the report says and what the files hold."""

from __future__ import annotations

import csv
import html as html_
import io
import json
import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.config import Experiment
from fedcore.report import export, panels, sweeps, tables
from fedcore.report.beside import beside
from fedcore.runs import queries, transfer
from tests import fill
from tests.pages.conftest import Opened
from tests.pages.test_pages import html
from tests.report import test_published

NAME = """<img src=x onerror="alert(1)"> *a* $\\alpha$ :red[r] '" 😀 """ + "n" * 430


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    """Three methods, four seeds."""
    db = tmp_path / "runs.db"
    fill.done(db, fill.an_experiment(methods=("fedot", "promptfl", "sdfed"), seeds=(1, 2, 3, 4), rounds=2))
    return db


def show(app: AppTest, tab: str, **state: object) -> AppTest:
    app.session_state["tab"] = tab
    for key, value in state.items():
        app.session_state[key] = value
    app = app.run()
    assert not app.exception, app.exception
    return app


def table(app: AppTest, label: str) -> list[list[str]]:
    """The cells of a table as a reader sees them (a number's details left out)."""
    body = next(e.proto.body for e in app.get("html") if f'aria-label="{label}' in e.proto.body)
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    shown = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [
        [html_.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<small>.*?</small>", "", c))) for c in row]
        for row in shown
    ]


def test_files_hold_the_numbers_of_the_screen(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"], baseline="PromptFL", rule="best on validation")
    head, *rows = table(app, "Summary of")
    text = export.summary_csv(seeds, [1], ("best",), "PromptFL")
    filed = {(r["method"], r["metric"]): r for r in csv.DictReader(io.StringIO(text)) if not r["of"]}
    titles = {f"{tables.METRIC_HEADS[m]}, %": title for m, title in tables.METRICS.items()}
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
            assert gap == pytest.approx(float(entry["difference_to_baseline"]), abs=0.0551)
            p = row[head.index("p")].removeprefix("< ")
            assert float(p) == pytest.approx(float(entry["p_holm"]), abs=0.00101)
        assert row[head.index("Seeds (n)")] == entry["n"] == "4"
    assert compared == len(rows) * len([t for t in head if t in titles]) >= 15


def test_a_number_opens_to_its_seeds_runs_and_rule(open_page: Opened, seeds: Path) -> None:
    text = html(open_page("compare", ids=["1"]))
    group = next(g for g in tables.compare(seeds, [1]).groups if g.label == "FedOT")
    (cell,) = re.findall(
        rf"<details[^>]*><summary><b>{re.escape(group.stats['personal'].text())}</b></summary>"
        r"<small>(seed 1: .*?)</small>",
        text,
    )[:1]
    for value in group.runs:
        own = tables.per_seed(group.runs, "personal")[value.run.seed]
        assert f'seed {value.run.seed}: <b>{own:.2f}</b>, run <a href="/run?id={value.run.id}"' in cell
    assert "last round; a run's page has the command that repeats it" in cell


@pytest.mark.parametrize(
    ("count", "test", "said"),
    [
        (2, "t", "n = 2: too few seeds"),
        (4, "wilcoxon", "n = 4 cannot reach below 0.12"),
    ],
)
def test_nothing_is_claimed_of_few_seeds(
    open_page: Opened, tmp_path: Path, count: int, test: str, said: str
) -> None:
    fill.done(
        tmp_path / "runs.db",
        fill.an_experiment(methods=("fedot", "promptfl"), seeds=range(1, count + 1), rounds=1),
    )
    app = open_page("compare", ids=["1"], baseline="PromptFL")
    app = show(app, "Summary", test=test)
    text = html(app)
    assert said in text
    assert "<b>*</b>" not in text


def test_a_clear_difference_is_marked(open_page: Opened, seeds: Path) -> None:
    text = html(open_page("compare", ids=["1"], baseline="PromptFL"))
    assert text.count("<b>*</b>") == 2
    assert "paired t-test over 4 seeds; p of this row alone" in text


def test_domains_behind_a_mean(open_page: Opened, seeds: Path) -> None:
    app = show(open_page("compare", ids=["1"]), "Summary", compare_parts_0=True)
    group = next(g for g in tables.compare(seeds, [1]).groups if g.label == "SDFed")
    head, *rows = table(app, "Personal accuracy by domain")
    assert head == ["Method", *fill.CLIENTS]
    shown = next(r for r in rows if r[0] == "SDFed")
    assert shown[1:] == [group.parts["domain"][d].text() for d in fill.CLIENTS]


def test_leave_one_domain_out_has_g_p_and_c(open_page: Opened, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=1, held_out=fill.CLIENTS[:2]))
    app = open_page("compare", ids=["1"])
    head, row = table(app, "Summary of")
    assert head[1:4] == ["G, %", "P, %", "C, %"]
    assert "Personal, %" not in head, "it is P"
    (group,) = tables.compare(db, [1]).groups
    names = ("generalisation", "personalisation", "comprehensive")
    assert row[1:4] == [group.stats[m].text() for m in names]
    assert any("2 of 6 domains held out" in c.value for c in app.caption)
    app = show(app, "Heatmaps", matrix="held_out")
    assert len(app.get("plotly_chart")) == 1


def test_every_matrix_is_drawn_or_said_to_be_absent(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"])
    for view, charts in (("models", 1), ("methods", 1), ("domains", 1), ("held_out", 0), ("attention", 0)):
        app = show(app, "Heatmaps", matrix=view)
        assert len(app.get("plotly_chart")) == charts, view
        assert len(app.info) == (not charts), view
    comparison = tables.compare(seeds, [1])
    panel = panels.method_by_domain(seeds, comparison, comparison.groups[0].setting)
    assert panel.values.shape == (3, 6)


def test_the_pareto_front_is_named(open_page: Opened, seeds: Path) -> None:
    app = show(open_page("compare", ids=["1"]), "Cost")
    head, *rows = table(app, "Cost on")
    front = {r[0] for r in rows if r[head.index("Front")] == "yes"}
    assert front == {"FedOT", "PromptFL"}, "SDFed sends more than FedOT and reaches less"
    spec = json.loads(app.get("plotly_chart")[0].proto.spec)
    (line,) = [t for t in spec["data"] if t.get("name") == "Pareto front"]
    assert len(line["x"]) == 2


def test_a_sweep_is_drawn_three_ways(open_page: Opened, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    plain = fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2), rounds=1).model_dump()
    sweep = {"methods.fedot.blocks": [1, 2], "partition.alpha": [0.1, 0.5]}
    fill.done(db, Experiment.model_validate({**plain, "sweep": sweep}))
    app = show(open_page("compare", ids=["1"]), "Sweep")
    kinds = [json.loads(c.proto.spec)["data"][0]["type"] for c in app.get("plotly_chart")]
    assert kinds == ["parcoords", "scatter", "heatmap"]
    family = sweeps.families(tables.compare(db, [1]), "personal", [sweep])[0]
    heat = json.loads(app.get("plotly_chart")[2].proto.spec)["data"][0]
    shown = {t for row in heat["text"] for t in row}
    assert shown == {p.stat.text() for p in family.points}
    app = show(app, "Sweep", as_tables=True)
    assert not app.get("plotly_chart") and len(app.dataframe) == 3
    assert len(app.dataframe[0].value) == 6, "four of FedOT, two of PromptFL"


def test_no_sweep_is_said(open_page: Opened, seeds: Path) -> None:
    app = show(open_page("compare", ids=["1"]), "Sweep")
    assert "No field takes several values" in app.info[0].value


def test_published_figures_stand_beside_ours(open_page: Opened, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    preset = test_published.preset("fedot/table1-pacs", ("FedOT", "Zero-shot CLIP"), seeds=(50, 77))
    test_published.train(db, preset)
    app = show(open_page("compare", ids=["1"]), "Published")
    head, *rows = table(app, "Published figures of")
    found = beside(db, preset)
    assert [r[head.index("Printed")] for r in rows] == [b.printed for b in found]
    assert {b.status for b in found} >= {"measured", "not implemented"}
    for row, entry in zip(rows, found, strict=True):
        assert all(row), "never blank"
        assert row[head.index("Status")].startswith(entry.status)
        ours = row[head.index("Ours")]
        assert ours == ("-" if entry.ours is None else entry.ours.text(2))
        if entry.ours is not None:
            gap = float(row[head.index("Difference")])
            assert gap == pytest.approx(entry.ours.mean - entry.figure.value, abs=0.0051)
    app = show(app, "Published", published_only="with ours")
    assert len(table(app, "Published figures of")) - 1 == sum(b.ours is not None for b in found)


def test_no_published_figures_is_said(open_page: Opened, seeds: Path) -> None:
    app = show(open_page("compare", ids=["1"]), "Published")
    assert "None of these experiments names published figures" in app.info[0].value


def test_names_of_any_kind_are_text_on_every_tab(open_page: Opened, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    experiment = fill.an_experiment(NAME[:500], methods=("fedot", "promptfl"), seeds=(1, 2), rounds=1)
    entries = tuple(
        m.model_copy(update={"label": f"{i}{NAME}"[:500]}) for i, m in enumerate(experiment.methods)
    )
    fill.done(db, experiment.model_copy(update={"methods": entries}))
    app = open_page("compare", ids=["1"])
    labels = [g.label for g in tables.compare(db, [1]).groups]
    for tab in ("Summary", "Heatmaps", "Curves", "Cost", "Config", "Export"):
        app = show(app, tab, baseline=labels[0])
        assert "<img" not in html(app), tab
        for element in [*app.markdown, *app.caption, *app.info]:
            assert not re.search(r"(?<!\\)(<img|:red|\*a\*|\$)", element.value), (tab, element.value)
    for chart in app.get("plotly_chart"):
        assert "<img" not in chart.proto.spec


def test_an_unfinished_experiment_says_where_to_look(open_page: Opened, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,)))
    app = open_page("compare", ids=["1"])
    assert "None of these runs is finished yet" in app.info[0].value
    next(b for b in app.button if b.label == "Watch them").click().run()
    assert app.title[0].value == "Live"


def test_the_state_is_in_the_url(open_page: Opened, seeds: Path) -> None:
    app = open_page("compare", ids=["1"], baseline="SDFed", rule="mean of last ten rounds", by="Worst client")
    values = {s.label: s.value for s in app.selectbox}
    assert (values["Baseline"], values["Round of a run"], values["Compare by"]) == (
        "SDFed",
        "mean10",
        "worst",
    )
    assert "Worst client: difference, points" in table(app, "Summary of")[0]


def test_the_buttons_hand_out_the_files_of_the_page(
    open_page: Opened, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, tuple[str, str]] = {}
    monkeypatch.setattr(
        "streamlit.download_button", lambda label, made, name, **_: files.update({label: (name, made())})
    )
    show(open_page("compare", ids=["1"], baseline="PromptFL", rule="mean of last ten rounds"), "Export")
    mark = export.fingerprint([queries.experiment(seeds, 1)])
    for name, _ in files.values():
        assert re.fullmatch(rf"fedlens-rotated-digits-made-up-[a-z]+-\d{{8}}-{mark}\.(csv|tex|json)", name)
    contents = {label: text for label, (_, text) in files.items()}
    assert contents == {
        "Summary CSV": export.summary_csv(seeds, [1], ("mean10",), "PromptFL"),
        "Rounds CSV": export.rounds_csv(seeds, [1]),
        "Clients CSV": export.clients_csv(seeds, [1]),
        "LaTeX table": export.summary_latex(seeds, [1], "mean10"),
        "Summary JSON": export.summary_json(seeds, [1], ("mean10",)),
        "Whole experiment JSON": transfer.experiments_json(seeds, [1]),
    }
