"""Analyses on the page Run: submitted, waited for, failed, damaged, finished; damaged ones on Compare too."""

from pathlib import Path

import numpy as np
import pytest

from fedcore.config import MethodEntry
from fedcore.jobs import analysis
from fedcore.jobs.handlers import Job
from fedcore.store import Store
from fedcore.store.database import writing
from fedcore.store.jobs import ARRAYS_NAME
from tests.support import fill
from tests.support.web.live import charts
from tests.support.web.pages import Opened, begin_task, button, keep_checkpoint, widget

CLASSES = ["zero", "<i>one</i>", "two"]


def answer(
    db: Path, run: int, what: analysis.AnalysisKind, arrays: dict[str, np.ndarray], model: int | None = 0
) -> None:
    """As the background would: arrays beside the row, the rest in it."""
    analysis.submit(Store(db), run, what, model)
    claimed = begin_task(db)
    Job(claimed, {}, claimed.folder).write_arrays(**arrays)
    claimed.finish("done", result={"round": 4, "classes": CLASSES})


@pytest.mark.parametrize(
    ("tab", "what", "label"),
    [
        ("Predictions", "predictions", "Compute predictions"),
        ("Feature space", "feature_space", "Compute the t-SNE plot"),
        ("Evidence", "evidence", "Compute the maps"),
    ],
)
def test_a_click_asks_and_the_page_waits(
    open_page: Opened, filled: Path, tab: str, what: str, label: str
) -> None:
    keep_checkpoint(filled, 1, 4)
    app = open_page("run", id="1", run_tab=tab)
    assert Store(filled).tasks.recent() == []
    app = button(app, label).click().run()
    assert not app.exception
    (task,) = Store(filled).tasks.recent()
    assert (task.kind, task.run_id, task.args["what"], task.status) == ("analyse", 1, what, "queued")
    assert label not in [b.label for b in app.button], "one question is asked once"


def test_what_went_wrong_is_said_and_can_be_asked_again(open_page: Opened, filled: Path) -> None:
    analysis.submit(Store(filled), 1, "predictions")
    begin_task(filled).finish("failed", "run 1 has <b>no</b> checkpoint")
    keep_checkpoint(filled, 1, 4)
    app = open_page("run", id="1", run_tab="Predictions")
    assert "no\\</b\\> checkpoint" in app.error[0].value
    button(app, "Try again").click().run()
    assert Store(filled).tasks.recent()[0].status == "queued"


def test_predictions_are_drawn_as_counted(open_page: Opened, filled: Path) -> None:
    arrays = {
        "model": np.array([1, 1, 2, 2, 0]),
        "test_set": np.array([1, 1, 2, 2, 7]),
        "label": np.array([0, 1, 1, 2, 2]),
        "predicted": np.array([0, 0, 1, 2, 2]),
        "sample": np.arange(5),
    }
    answer(filled, 1, "predictions", arrays)
    app = open_page("run", id="1", run_tab="Predictions")
    alts = [c["alt"] for c in charts(app)]
    assert any("4 predictions, 75.0 % correct" in alt for alt in alts)
    app.session_state["as_tables"] = True
    app.run()
    matrix, by_class = (d.value for d in app.dataframe)
    assert matrix["zero"].tolist() == [1, 1, 0]
    assert by_class["correct"].tolist() == [1, 1, 1]


def test_all_clients_feature_space_shows_one_class_in_the_colours_of_clients(
    open_page: Opened, filled: Path
) -> None:
    """FedDEAP's Figure 7: of two classes the chosen one, its points by client."""
    arrays = {
        "xy": np.arange(12.0).reshape(6, 2),
        "kind": np.array([0, 0, 0, 1, 1, 1]),
        "label": np.array([1, 0, 1, 1, 0, 1]),
        "predicted": np.array([1, 0, 0, -1, -1, -1]),
        "client": np.array([0, 1, 1, 0, 1, 1]),
        "sample": np.arange(3),
    }
    answer(filled, 1, "feature_space", arrays, model=None)
    app = open_page("run", id="1", run_tab="Feature space", space_of="All clients, one class")
    assert [c["alt"] for c in charts(app)] == ["t-SNE of 1 image and 1 class feature."]
    app.session_state["as_tables"] = True
    widget(app, "Class", "selectbox").set_value(1).run()
    assert not app.exception
    (shown,) = (d.value for d in app.dataframe)
    assert shown["x"].tolist() == [0, 4, 6, 10]
    assert shown["client"].tolist() == [fill.CLIENTS[0], fill.CLIENTS[1]] * 2


def test_deleted_arrays_can_be_computed_again(open_page: Opened, filled: Path) -> None:
    one = np.array([1])
    answer(filled, 1, "predictions", {"model": one, "label": one, "predicted": one})
    (task,) = Store(filled).tasks.recent()
    (task.folder / ARRAYS_NAME).unlink()
    keep_checkpoint(filled, 1, 4)
    app = open_page("run", id="1", run_tab="Predictions")
    assert "results are missing" in app.warning[0].value
    button(app, "Try again").click().run()
    assert Store(filled).tasks.recent()[0].status == "queued"


@pytest.mark.parametrize(("tab", "what"), [("Predictions", "predictions"), ("Prompt words", "nearest_words")])
def test_a_damaged_result_is_named_and_can_be_computed_again(
    open_page: Opened, filled: Path, tab: str, what: analysis.AnalysisKind
) -> None:
    """The page ended in a raw error of zipfile, or in a KeyError."""
    run = next(r for r in Store(filled).experiments.get(1).runs if r.method == "promptfl").id
    one = np.array([1])
    if what == "predictions":
        answer(filled, run, what, {"model": one, "label": one, "predicted": one})
        (task,) = Store(filled).tasks.recent()
        file = task.folder / ARRAYS_NAME
        file.write_bytes(file.read_bytes().replace(b"label", b"lapel"))
    else:
        analysis.submit(Store(filled), run, what, 1)
        begin_task(filled).finish("done", result={"round": 4, "rows": []})
        fill.alter(filled, "UPDATE tasks SET result=replace(result, 'rows', 'cows')")
    keep_checkpoint(filled, run, 4)
    app = open_page("run", id=str(run), run_tab=tab)
    assert not app.exception
    assert app.error[0].value.startswith("Analysis\\: its result was changed on the disk")
    button(app, "Try again").click().run()
    assert Store(filled).tasks.recent()[0].status == "queued"


def test_a_damaged_result_is_named_on_compare_and_can_be_computed_again(
    open_page: Opened, filled: Path
) -> None:
    """The tab ended in a raw error of zipfile."""
    runs = [r.id for r in Store(filled).experiments.get(1).runs if r.seed == 1]
    one = np.array([1])
    for run in runs:
        keep_checkpoint(filled, run, 4)
        columns = ("model", "test_set", "label", "predicted", "sample")
        answer(filled, run, "predictions", dict.fromkeys(columns, one))
    damaged = analysis.find(Store(filled), runs[0], "predictions")
    (damaged.folder / ARRAYS_NAME).write_bytes(b"PK")
    app = open_page("compare", ids=["1"], tab="Two runs")
    assert not app.exception
    (said,) = app.error
    assert said.value.startswith(f"Predictions of run {runs[0]}\\: its result was changed on the disk")
    button(app, "Try again").click().run()
    assert [Store(filled).tasks.get(i).status for i in (1, 2)] == ["queued", "done"]


def test_before_the_first_round_there_is_nothing_to_look_into(open_page: Opened, filled: Path) -> None:
    waiting = next(r for r in Store(filled).experiments.get(2).runs if r.state == "queued")
    app = open_page("run", id=str(waiting.id), run_tab="Predictions")
    assert button(app, "Compute predictions").disabled
    assert "Analyses need at least one evaluated round" in app.info[0].value


def test_a_run_from_elsewhere_offers_no_computation_that_would_fail(open_page: Opened, filled: Path) -> None:
    """Imported from another store: all that was recorded is here, its checkpoints are not."""
    app = open_page("run", id="1", run_tab="Predictions")
    assert button(app, "Compute predictions").disabled
    assert "This run has no checkpoint here: it was trained elsewhere" in app.info[0].value.replace("\\", "")
    one = np.array([1])
    answer(filled, 1, "predictions", {"model": one, "label": one, "predicted": one})
    app = open_page("run", id="1", run_tab="Predictions")
    assert charts(app) and button(app, "Compute again").disabled, "the answer is not lost"


def test_words_are_shown_beside_their_position(open_page: Opened, filled: Path) -> None:
    run = next(r for r in Store(filled).experiments.get(1).runs if r.method == "promptfl")
    app = open_page("run", id=str(run.id), run_tab="Prompt words")
    assert button(app, "Find the words")
    analysis.submit(Store(filled), run.id, "nearest_words", 1)
    row = {
        "prompt": "context",
        "class": None,
        "position": 1,
        "words": ["dog", "cat~"],
        "distances": [0.5, 0.6],
    }
    begin_task(filled).finish(
        "done", result={"round": 4, "classes": CLASSES, "rows": [row | {"distances": [0.5, 0.6]}]}
    )
    app = open_page("run", id=str(run.id), run_tab="Prompt words")
    table = app.dataframe[0].value
    assert table["Nearest words"].tolist() == ["dog, cat~"]
    assert table["Class"].tolist() == ["all"]


def test_only_fitting_tabs_are_there(open_page: Opened, filled: Path) -> None:
    by_method = {r.method: r for r in Store(filled).experiments.get(1).runs}
    fedot = [t.label for t in open_page("run", id=str(by_method["fedot"].id)).tabs]
    assert "Degrees of freedom" not in fedot, "one number of blocks is no picture"
    assert "Prompt words" not in fedot
    promptfl = [t.label for t in open_page("run", id=str(by_method["promptfl"].id)).tabs]
    assert "Prompt words" in promptfl


def test_accuracy_stands_over_the_values_of_a_sweep(open_page: Opened, filled: Path) -> None:
    sweep = fill.an_experiment("Blocks", ("fedot",), (1,), 2)
    entries = tuple(MethodEntry(name="fedot", label=f"b{b}", config={"blocks": b}) for b in (4, 1))
    number = fill.done(filled, sweep.model_copy(update={"methods": entries}))
    runs = Store(filled).experiments.get(number).runs
    with writing(filled) as database:
        for run, degrees in zip(runs, (504, 2016), strict=True):
            database.execute(
                "INSERT INTO diagnostics (run_id, name, round, value) VALUES (?, 'degrees_of_freedom', 2, ?)",
                (run.id, degrees),
            )
    app = open_page("run", id=str(runs[0].id), run_tab="Degrees of freedom")
    assert charts(app) and not app.info
    (said,) = (c.value for c in app.caption if "by blocks" in c.value)
    assert said.index("2,016") < said.index("504"), "the lowest value of the field comes first"
