"""The Run page in the states that a run can be in."""

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.base.events import RoundFinished
from fedcore.methods import registry
from fedcore.store import Recorder, RunRow, Store
from fedcore.store.database import writing
from fedcore.store.writer import set_config
from tests.support import fill
from tests.support.jobs import wait_for
from tests.support.web.live import charts
from tests.support.web.pages import Opened, button, html, keep_checkpoint


def of_state(db: Path, state: str) -> RunRow:
    return next(r for r in Store(db).experiments.get(2).runs if r.state == state)


def labels(app: AppTest) -> list[str]:
    return [b.label for b in app.button]


@pytest.mark.parametrize("asked", ["9" * 23, "<b>1</b>"])
def test_a_run_that_is_not_here_is_named(open_page: Opened, filled: Path, asked: str) -> None:
    app = open_page("run", id=asked)
    (said,) = app.info
    assert f"no run {asked[:20]}" in said.value.replace("\\", "")
    assert "<b>" not in said.value
    assert labels(app) == ["Experiments"]


def test_without_an_id_nothing_is_missing(open_page: Opened, filled: Path) -> None:
    (said,) = open_page("run").info
    assert said.value == "Choose an experiment to see its runs."


def test_a_failed_run_says_why_and_what_can_be_done(open_page: Opened, filled: Path) -> None:
    run = of_state(filled, "failed").id
    app = open_page("run", id=str(run))
    assert "*Restart* trains it again from the beginning, because its ch" in app.error[0].value
    app = button(app, "Restart").click().run()
    assert any("3 rounds are deleted" in c.value for c in app.caption)
    assert of_state(filled, "failed").rounds_done == 3, "nothing was deleted yet"
    keep_checkpoint(filled, run, 3)
    app = open_page("run", id=str(run))
    (said,) = app.error
    assert "choose a smaller batch" in said.value.replace("\\", "")
    assert "continues after round 3" in said.value
    assert {"Clone", "Resume"} <= set(labels(app))


def test_a_failed_run_with_a_damaged_config_still_has_its_record(open_page: Opened, filled: Path) -> None:
    run = of_state(filled, "failed").id
    fill.alter(filled, f"UPDATE runs SET config='{{}}' WHERE id={run}")
    link = {"id": str(run), "run_tab": "Log and files"}
    wait_for(lambda: len(open_page("run", **link).error) == 2)  # the database is checked beside the page
    app = open_page("run", **link)
    damaged, failed = (error.value for error in app.error)
    assert "its config, names or models differ" in damaged and "CUDA out of memory" in failed
    assert {"Clone", "Restart"} <= set(labels(app)) and len(app.metric) == 5


@pytest.mark.parametrize("rounds", [0, 3])
def test_one_button_runs_the_corrected_file_of_a_method(
    open_page: Opened, filled: Path, tmp_path: Path, rounds: int
) -> None:
    file, run = tmp_path / "mine.py", of_state(filled, "failed").id
    file.write_text("# wrong")
    config = Store(filled).runs.config(run)
    planned = {"file": str(file), "sha256": registry.file_hash(file)}
    method = config.method.model_copy(update=planned)
    with writing(filled) as database:
        set_config(database, run, config.model_copy(update={"method": method}))
        database.execute("UPDATE runs SET rounds_done=? WHERE id=?", [rounds, run])
    keep_checkpoint(filled, run, 3)
    app = open_page("run", id=str(run))
    assert "correct its file, and this page offers to run it" in app.error[0].value
    assert "Resume" in labels(app) and "Restart" not in labels(app)

    file.write_text("# right")
    app = button(app.run(), "Restart" if rounds else "Resume").click().run()
    assert "# right" in [c.value for c in app.code]
    assert any("3 rounds are deleted" in c.value for c in app.caption) == bool(rounds)
    assert "I have read it: run it" in labels(app), "tests/browser/test_journeys.py presses it"


def test_an_encoder_that_has_changed_is_shown_before_it_runs(
    open_page: Opened, filled: Path, tmp_path: Path
) -> None:
    file, run = tmp_path / "encoder.py", of_state(filled, "failed").id
    file.write_text("# as it is now")
    config = Store(filled).runs.config(run)
    own = config.backbone.model_copy(update={"name": "callable", "pretrained": str(file)})
    with writing(filled) as database:
        set_config(database, run, config.model_copy(update={"backbone": own}))
        database.execute("UPDATE runs SET rounds_done=0 WHERE id=?", [run])
    app = button(open_page("run", id=str(run)), "Resume").click().run()
    assert "# as it is now" in [c.value for c in app.code] and "I have read it: run it" in labels(app)


def test_a_failed_run_s_error_is_shown_once(open_page: Opened, filled: Path) -> None:
    run = of_state(filled, "failed").id
    app = open_page("run", id=str(run), run_tab="Log and files")
    assert [c.value.count("out of memory") for c in app.code] == [1]
    assert "trained elsewhere" in app.info[0].value and not any("read at" in c.value for c in app.caption)
    folder = Store(filled).runs.log_path(run).parent
    folder.mkdir(parents=True)
    Store(filled).runs.log_path(run).write_text(
        "2026-11-21 18:55:57 round 3\n2026-11-21 18:55:58 Traceback ...\nRuntimeError: out of memory\n"
    )
    app = open_page("run", id=str(run), run_tab="Log and files")
    assert [c.value.count("out of memory") for c in app.code] == [1], "the log has it"
    assert any("read at" in c.value for c in app.caption)


def test_a_stopped_run_says_so(open_page: Opened, filled: Path) -> None:
    app = open_page("run", id=str(of_state(filled, "stopped").id))
    assert app.warning[0].value == "Stop requested"


def test_a_queued_run_has_nothing_empty_and_is_stopped_after_its_name_was_confirmed(
    open_page: Opened, filled: Path
) -> None:
    waiting = of_state(filled, "queued")
    app = open_page("run", id=str(waiting.id), run_tab="Clients")
    assert app.info[0].value == "No round has been evaluated yet." and not app.dataframe
    app = open_page("run", id=str(waiting.id))
    assert not charts(app)
    assert app.info[0].value == "No round has been evaluated yet."
    app = button(app, "Stop").click().run()
    assert any(m.value == f"**{waiting.label}, seed 1**" for m in app.markdown)
    assert of_state(filled, "queued").id == waiting.id, "nothing was stopped yet"


def test_a_running_run_says_that_it_went_on(open_page: Opened, filled: Path) -> None:
    app = open_page("run", id=str(of_state(filled, "running").id))
    assert button(app, "Up to date").disabled


def test_an_archived_experiment_is_named_so(open_page: Opened, filled: Path) -> None:
    assert "archived" not in html(open_page("run", id="1"))
    Store(filled).experiments.edit(1, archived=True)
    assert "<span>archived</span>" in html(open_page("run", id="1"))


def test_results_from_elsewhere_promise_no_repetition(open_page: Opened, tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("method,seed,round,model,test_set,correct,total\nmine,1,0,a,a,5,10\nmine,1,1,a,a,6,10\n")
    Store(tmp_path / "runs.db").imports.csv(table, "Own", "pacs")
    app = open_page("run", id="1", run_tab="Reproduce")
    assert "recorded elsewhere" in html(app)
    assert "Clone" not in labels(app)
    assert not any("fedcore run" in c.value for c in app.code)
    app = open_page("run", id="1")
    assert not any("loss" in c["alt"].lower() for c in charts(app)), "none was recorded"


def test_reproduce_names_command_and_environment(open_page: Opened, filled: Path) -> None:
    app = open_page("run", id="1", run_tab="Reproduce")
    assert app.code[0].value == "FEDLENS_THREADS=1 fedlens run run-1.toml --device cpu"
    assert ["Threads", "1"] in app.table[0].value.to_numpy().tolist()


def test_diagnostics_are_drawn_where_there_are_some(open_page: Opened, filled: Path) -> None:
    app = open_page("run", id="1", run_tab="Diagnostics")
    (chart,) = charts(app)
    assert "Agreement of updates" in chart["alt"]
    waiting = open_page("run", id=str(of_state(filled, "queued").id))
    assert "Diagnostics" not in [t.label for t in waiting.tabs]


def test_tables_in_place_of_charts_are_named_as_these(open_page: Opened, filled: Path) -> None:
    app = open_page("run", id="1")
    app.session_state["as_tables"] = True
    app = app.run()
    titles = [m.value for m in app.markdown if m.value.startswith("**")]
    assert len(app.dataframe) == len(titles) == 4 and not charts(app)
    assert "**Personal accuracy, mean**" in titles and "**Training loss**" in titles


def test_files_are_listed(open_page: Opened, filled: Path) -> None:
    folder = Store(filled).runs.log_path(1).parent
    folder.mkdir(parents=True)
    (folder / "<b>x</b>.safetensors".replace("/", ":")).write_bytes(b"1")
    app = open_page("run", id="1", run_tab="Log and files")
    assert app.table[0].value["File"].tolist() == [r"\<b\>x\<\:b\>\.safetensors"]


def test_the_url_names_what_is_looked_at(open_page: Opened, filled: Path) -> None:
    app = open_page("run", id="1", run_tab="Feature space", space_model="30°", space_set="45° (client)")
    assert [s.value for s in app.selectbox] == ["30°", "45° (client)"]
    app = open_page("run", id="1", run_tab="Feature space", space_model="global")
    assert app.selectbox[1].value == "0° (client)", "a global model has no samples of its own"


def test_a_label_as_long_as_a_page_is_cut_in_the_heading(open_page: Opened, tmp_path: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)
    entry = experiment.methods[0].model_copy(update={"label": "L" * 500})
    fill.done(tmp_path / "runs.db", experiment.model_copy(update={"methods": (entry,)}))
    app = open_page("run", id="1", run_tab="Reproduce")
    assert app.title[0].value == "L" * 99 + "…, seed 1"
    assert any("L" * 500 in c.value for c in app.code)


def test_names_of_fills_are_text(
    open_page: Opened, db: Path, shown_as_text: Callable[[AppTest], None]
) -> None:
    names = tuple(f"<i>{i}</i> :red[x] $x$" for i in range(2))
    _, (writer,) = fill.start(db, fill.an_experiment("<i>e</i>", methods=("fedot",), seeds=(1,), rounds=2))
    writer.claim.update("status_text='<script>encoding</script>'")
    fill.train(writer, until=1, clients=names)
    for tab in ("Accuracy", "Clients", "Diagnostics", "Feature space", "Log and files", "Reproduce"):
        app = open_page("run", id=str(writer.run_id), run_tab=tab)
        assert "&lt;i&gt;e&lt;/i&gt;" in html(app), "the name is there, as text"
        shown_as_text(app)


def test_clients_have_their_own_accuracy_and_traffic(open_page: Opened, filled: Path) -> None:
    drawn = open_page("run", id="1", run_tab="Clients").dataframe[0].value
    assert drawn["Client"].tolist() == list(fill.CLIENTS)
    last = {o.client: 100 * o.correct / o.total for o in Store(filled).cells.own_accuracy(1)}
    assert drawn["Own accuracy, %"].tolist() == list(last.values())
    assert (drawn["Traffic, MB"] > 0).all() and drawn["Rounds"].tolist() == [4] * len(fill.CLIENTS)


def test_what_a_script_did_not_record_of_its_clients_is_unknown_and_not_0(
    open_page: Opened, db: Path
) -> None:
    with Recorder(db, method="own", seed=1, dataset="rotated-digits", experiment="Own") as run:
        run.round(1, accuracy={("a", "a"): (3, 4), ("b", "b"): (1, 4)}, bytes_up=1_000_000)
    drawn = open_page("run", id="1", run_tab="Clients").dataframe[0].value
    assert drawn["Own accuracy, %"].tolist() == [75, 25]
    assert drawn["Traffic, MB"].isna().all() and drawn["Rounds"].isna().all()


def test_the_last_accuracy_has_its_round_if_the_run_went_on_without_an_evaluation(
    open_page: Opened, db: Path
) -> None:
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=4))
    fill.train(writer, until=2)
    writer.write_round(RoundFinished(round=3))
    writer.claim.finish("stopped", "stop requested")
    (last,) = [m for m in open_page("run", id="1").metric if m.label == "Last round, %"]
    assert last.delta == "at round 2"
