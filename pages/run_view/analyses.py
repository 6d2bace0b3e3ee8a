"""The tabs of the page Run that analyse a trained model; the results are computed once and stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import streamlit as st

from fedcore import jobs
from fedcore.base.presentation import FieldChart
from fedcore.base.progress import shortened
from fedcore.config.field_names import field_phrase
from fedcore.jobs import analysis
from fedcore.methods import registry
from fedcore.methods.base import overrides
from fedcore.results.analyses import EVERYONE, confusion, field_table, rows_by_field, space_table
from fedcore.results.charts import analyses
from fedcore.results.comparison import compare
from fedcore.results.matrices import run_panel
from fedcore.store import RunRow, TaskRow
from pages.widgets import background, charts, markup, session

OWN_SAMPLES = "its own test samples"
CLASS_NAME = 30
"""Characters of a class name below a small image, whose text alternative has the whole name."""


@dataclass(frozen=True)
class Analysis:
    """One analysis of a run: its kind, the model and the test set, both by entity code."""

    run: RunRow
    what: analysis.AnalysisKind
    model: int = 0
    test_set: int = 0

    @property
    def key(self) -> str:
        return f"{self.run.id}_{self.what}_{self.model}_{self.test_set}"


def tabs_of(run: RunRow) -> dict[str, Callable[[RunRow], None]]:
    """Return the analyses that a run allows, by the titles of their tabs."""
    if run.origin != "engine":
        return {}
    tabs: dict[str, Callable[[RunRow], None]] = {
        "Predictions": predictions,
        "Feature space": feature_space,
        "Evidence": evidence,
    }
    method = registry.load_all().get(run.method)
    if method is None or overrides(method, "prompts"):
        tabs["Prompt words"] = prompt_words
    for chart in () if method is None else method.about.field_charts:
        tabs[chart.title] = partial(field_chart, chart=chart)
    return tabs


def finished_task(asked: Analysis, button: str, description: str) -> TaskRow | None:
    """Return the finished task of an analysis; without one, draw its button, progress or error instead."""
    store = session.store()
    task = analysis.find(store, asked.run.id, asked.what, asked.model, asked.test_set)
    done = task is not None and task.status == "done"
    # the row of a finished task outlives its files, of which the words need none
    if task is not None and done and (asked.what == "nearest_words" or task.arrays()):
        return task
    if done:
        st.warning("The results are missing; compute them again.", icon=":material/folder_off:")
    elif task is not None:
        background.show_task(task, "Analysis")
    else:
        st.caption(description)
    obstacle = analysis.obstacle(store, asked.run.id)
    if obstacle:
        st.info(markup.md(obstacle), icon=":material/search_off:")
    if (task is None or task.ended) and st.button(
        button if task is None else "Try again",
        key=f"ask_{asked.key}",
        type="primary",
        disabled=bool(obstacle) or not session.writable(),
        icon=":material/search_insights:",
    ):
        submit(asked)
    return None


def submit(asked: Analysis) -> None:
    """Queue an analysis, even if it was computed before, and redraw the page."""
    store = session.store()
    analysis.submit(store, asked.run.id, asked.what, asked.model, asked.test_set, again=True)
    jobs.ensure_worker(store)
    st.rerun()


def provenance(asked: Analysis, task: TaskRow) -> None:
    """Show from which round the results come, and offer to compute them again."""
    result = task.result or {}
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.caption(f"Computed from the checkpoint after round {result.get('round')} and kept with the run.")
    impossible = bool(analysis.obstacle(session.store(), asked.run.id)) or not session.writable()
    if right.button("Compute again", key=f"again_{asked.key}", disabled=impossible):
        submit(asked)


def models(run: RunRow) -> dict[str, int]:
    """Return the entity codes of the models that were evaluated, by name."""
    store = session.store()
    rows = run_panel(store, run).rows
    codes = {e.name: e.entity for e in store.cells.entities(run.id) if e.kind in ("global", "client")}
    return {name: codes[name] for name in rows if name in codes}


def choose(run: RunRow, key: str, test_set: bool = True) -> tuple[int, int]:
    """Let the reader choose a model and a test set; both are kept in the URL."""
    codes = models(run)
    left, right = st.columns(2)
    first = next((i for i, name in enumerate(codes) if codes[name] != 0), 0)
    name = left.selectbox("Model", list(codes), index=first, key=f"{key}_model", bind="query-params")
    model = codes.get(name or "", 0)
    if not test_set or name is None:
        return model, 0
    entities = session.store().cells.entities(run.id)
    sets = {f"{e.name} ({e.kind})": e.entity for e in entities if e.kind in ("client", "domain")}
    if model:  # the global model has no own samples
        sets = {OWN_SAMPLES: model, **sets}
    chosen = right.selectbox("Test set", list(sets), key=f"{key}_set", bind="query-params")
    return model, sets.get(chosen or "", 0)


def predictions(run: RunRow) -> None:
    """Draw the confusion matrix and the accuracy of every class."""
    asked = Analysis(run, "predictions")
    task = finished_task(
        asked,
        "Compute predictions",
        "Predicts all test samples with the newest checkpoint and shows which classes are confused.",
    )
    if task is None:
        return
    arrays = task.arrays()
    names = {EVERYONE: None, **{n: c for n, c in models(run).items() if (arrays["model"] == c).any()}}
    chosen = st.selectbox("Predictions of", list(names), key="predictions_of", bind="query-params")
    counts = confusion(arrays, (task.result or {})["classes"], names[chosen])
    left, right = st.columns([3, 2])
    with left:
        st.markdown("**Confusion matrix**")
        charts.draw(
            analyses.confusion_chart(counts, session.theme(), session.is_narrow()),
            "confusion",
            counts.matrix_table(),
        )
    with right:
        st.markdown("**Accuracy by class**")
        charts.draw(analyses.class_chart(counts, session.theme(), run.method), "by_class", counts.table())
    provenance(asked, task)


def feature_space(run: RunRow) -> None:
    """Draw the t-SNE plot of images, class features and centroids."""
    model, test_set = choose(run, "space")
    asked = Analysis(run, "feature_space", model, test_set)
    description = (
        "A t-SNE plot of image features, class features and class centroids as this model compares them."
    )
    task = finished_task(asked, "Compute the t-SNE plot", description)
    if task is None:
        return
    arrays, classes = task.arrays(), (task.result or {})["classes"]
    charts.draw(analyses.space_chart(arrays, classes, session.theme()), "space", space_table(arrays, classes))
    st.caption(
        "Dots: images. Stars: class features. Crosses: centroids of each class's images.",
        help="The model compares images with class features. t-SNE preserves neighbourhoods; distances "
        "between distant groups mean nothing.",
    )
    provenance(asked, task)


def evidence(run: RunRow) -> None:
    """Draw the Grad-CAM maps."""
    model, test_set = choose(run, "cam")
    asked = Analysis(run, "evidence", model, test_set)
    description = (
        "Grad-CAM maps show which parts of an image support the prediction and the method's other scores."
    )
    task = finished_task(asked, "Compute the maps", description)
    if task is None:
        return
    draw_evidence(task.arrays(), (task.result or {})["classes"])
    st.caption(
        "The first test samples as the model sees them. Bright parts of an image support a score.",
        help="Colours are relative to the maximum in that image.",
    )
    provenance(asked, task)


def draw_evidence(arrays: Mapping[str, np.ndarray], classes: list[str]) -> None:
    """Draw a column per image: the image as the model sees it, then one map per score."""
    pictures = analyses.overlays(arrays)
    labels, predicted = arrays["label"].tolist(), arrays["predicted"].tolist()
    shown = 2 if session.is_narrow() else 4
    for first in range(0, len(labels), shown):
        columns = st.columns(shown, wrap=False)
        for column, i in zip(columns, range(first, min(first + shown, len(labels))), strict=False):
            with column:
                right = predicted[i] == labels[i]
                guess, true = (shortened(classes[c], CLASS_NAME) for c in (predicted[i], labels[i]))
                st.caption(markup.md(f"{'✓' if right else '✕'} {guess} (true: {true})"))
                for name, images in pictures.items():
                    alt = f"{name}, image {i + 1}: {classes[labels[i]]}, predicted {classes[predicted[i]]}"
                    st.image(images[i], caption=name, alt=alt)


def prompt_words(run: RunRow) -> None:
    """Show the words of the vocabulary that are nearest to the learned prompts."""
    model, _ = choose(run, "words", test_set=False)
    asked = Analysis(run, "nearest_words", model)
    task = finished_task(
        asked, "Find the words", "Finds the words of CLIP's vocabulary nearest to each learned prompt vector."
    )
    if task is None:
        return
    rows = (task.result or {})["rows"]
    method = registry.load_all().get(run.method)
    titles = {} if method is None else method.about.prompts
    columns = {
        "Position": [r["position"] for r in rows],
        "Nearest words": [", ".join(r["words"]) for r in rows],
        "Distance of the nearest": [r["distances"][0] for r in rows],
        "Prompt": [titles.get(r["prompt"], r["prompt"]).replace("_", " ") for r in rows],
        "Class": [r["class"] or "all" for r in rows],
    }
    widths = {
        "Position": st.column_config.NumberColumn(width=70),
        "Nearest words": st.column_config.TextColumn(
            help="~ marks a token that does not end its word", width=240 if session.is_narrow() else 420
        ),
        "Distance of the nearest": st.column_config.NumberColumn(
            help="Euclidean, in token space, as CoOp reports it. A vector far from every word cannot be "
            "read as one"
        ),
        "Class": st.column_config.TextColumn(width=200),
    }
    st.dataframe(columns, hide_index=True, key=f"words_{asked.key}", column_config=widths)
    provenance(asked, task)


def field_chart(run: RunRow, chart: FieldChart) -> None:
    """Draw accuracy and a recorded value over the values that a field takes in the run's experiment."""
    comparison = compare(session.store(), [run.experiment_id], "last")
    rows = rows_by_field(session.store(), comparison, run, chart)
    if len(rows) < 2:
        field = field_phrase(chart.over)
        st.info(
            f"This plot needs finished runs of one experiment with at least two values of {field}: "
            f"launch an experiment with a sweep over {field}, or wait for the one that is running.",
            icon=":material/stacked_line_chart:",
        )
        return
    drawn = analyses.field_chart(rows, chart, session.theme(), run.method)
    charts.draw(drawn, "field_chart", field_table(rows, chart))
    st.caption(f"{markup.md(drawn.alt)} Last round, mean over clients and seeds.")
