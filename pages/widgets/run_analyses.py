"""The Run page's looks into a trained model: asked for with a click, computed in the background, kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import streamlit as st

from fedcore import jobs
from fedcore.jobs import analysis
from fedcore.methods import registry
from fedcore.methods.optional import LearnedPrompts
from fedcore.plots import analyses
from fedcore.results.analyses import confusion, freedom_by_blocks, freedom_table, space_table
from fedcore.results.comparison import compare
from fedcore.results.panels.runs import run_panel
from fedcore.store import RunRow, TaskRow
from pages.widgets import background, common

EVERYONE = "all clients, each on its own test samples"
OWN = "its own test samples"
CLASS_NAME = 30  # characters
PROMPTS = {"p_s": "shared", "p_d": "domain"}  # FedDEAP's, by their symbols in the paper


@dataclass(frozen=True)
class Asked:
    """One question to the background: which look at which model on which test set."""

    run: RunRow
    what: analysis.What
    model: int = 0
    test_set: int = 0

    @property
    def key(self) -> str:
        """Distinct on the page."""
        return f"{self.run.id}_{self.what}_{self.model}_{self.test_set}"


def tabs_of(run: RunRow) -> dict[str, Callable[[RunRow], None]]:
    """The tabs that this run can fill."""
    if run.origin != "engine":
        return {}
    found = {"Predictions": predictions, "Feature space": feature_space, "Evidence": evidence}
    method = registry.load_all().get(run.method)
    if method is None or issubclass(method, LearnedPrompts):
        found["Prompt words"] = prompt_words
    if run.method == "fedot":
        found["Degrees of freedom"] = freedom
    return found


def answered(asked: Asked, button: str, says: str) -> TaskRow | None:
    """The finished answer; else the button that asks, the progress, or what went wrong."""
    store = common.store()
    task = analysis.find(store, asked.run.id, asked.what, asked.model, asked.test_set)
    lost = task is not None and task.status == "done" and not _complete(task)
    if task is not None and task.status == "done" and not lost:
        return task
    if lost:
        st.warning("The results are missing; compute them again.", icon=":material/folder_off:")
    elif task is not None:
        background.follow(task, "Analysis")
    else:
        st.caption(says)
    unfit = unfit_to_look_into(asked.run)
    if unfit:
        st.info(unfit, icon=":material/search_off:")
    if (task is None or task.ended) and st.button(
        button if task is None else "Try again",
        key=f"ask_{asked.key}",
        type="primary",
        disabled=bool(unfit) or not common.writable(),
        icon=":material/search_insights:",
    ):
        analysis.submit(store, asked.run.id, asked.what, asked.model, asked.test_set, again=True)
        jobs.ensure_worker(store)
        st.rerun()
    return None


def unfit_to_look_into(run: RunRow) -> str:
    """Why nothing can be computed of a run; empty where it can."""
    store = common.store()
    if not store.rounds.evaluated(run.id):
        return "Analyses need at least one evaluated round."
    if store.runs.newest_checkpoint(run.id) is None:
        return (
            "This run has no checkpoint here: it was trained elsewhere, or its files were deleted. "
            "*Clone* it and run it again to analyse it."
        )
    return ""


def _complete(task: TaskRow) -> bool:
    """Whether all of an answer is there: the files of a run can be deleted while its row stays."""
    return task.args.get("what") == "nearest_words" or bool(task.arrays())


def again(asked: Asked, task: TaskRow) -> None:
    """Of which round the answer is, and how to ask once more."""
    result = task.result or {}
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.caption(f"Computed from the checkpoint after round {result.get('round')} and kept with the run.")
    lost = bool(unfit_to_look_into(asked.run))
    if right.button("Compute again", key=f"again_{asked.key}", disabled=lost or not common.writable()):
        analysis.submit(common.store(), asked.run.id, asked.what, asked.model, asked.test_set, again=True)
        jobs.ensure_worker(common.store())
        st.rerun()


def models(run: RunRow) -> dict[str, int]:
    """Names of the models that were evaluated, with their entity codes."""
    store = common.store()
    rows = run_panel(store, run).rows
    codes = {e.name: e.entity for e in store.cells.entities(run.id) if e.kind in ("global", "client")}
    return {name: codes[name] for name in rows if name in codes}


def choose(run: RunRow, key: str, test_set: bool = True) -> tuple[int, int]:
    """The model and the test set to look at, kept in the URL."""
    known = models(run)
    left, right = st.columns(2)
    first = next((i for i, name in enumerate(known) if known[name] != 0), 0)
    name = left.selectbox("Model", list(known), index=first, key=f"{key}_model", bind="query-params")
    model = known.get(name or "", 0)
    if not test_set or name is None:
        return model, 0
    entities = common.store().cells.entities(run.id)
    sets = {f"{e.name} ({e.kind})": e.entity for e in entities if e.kind in ("client", "domain")}
    if model:  # a global model has no samples of its own
        sets = {OWN: model, **sets}
    chosen = right.selectbox("Test set", list(sets), key=f"{key}_set", bind="query-params")
    return model, sets.get(chosen or "", 0)


def predictions(run: RunRow) -> None:
    """Confusion matrix and accuracy by class."""
    asked = Asked(run, "predictions")
    task = answered(
        asked,
        "Compute predictions",
        "Predicts all test samples with the newest checkpoint and shows which classes are confused.",
    )
    if task is None:
        return
    arrays = task.arrays()
    names = {EVERYONE: None, **{n: c for n, c in models(run).items() if (arrays["model"] == c).any()}}
    whose = st.selectbox("Predictions of", list(names), key="predictions_of", bind="query-params")
    found = confusion(arrays, (task.result or {})["classes"], names[whose])
    left, right = st.columns([3, 2])
    with left:
        st.markdown("**Confusion matrix**")
        common.draw(
            analyses.confusion_chart(found, common.theme(), common.narrow()),
            "confusion",
            found.matrix_table(),
        )
    with right:
        st.markdown("**Accuracy by class**")
        common.draw(analyses.class_chart(found, common.theme(), run.method), "by_class", found.table())
    again(asked, task)


def feature_space(run: RunRow) -> None:
    """t-SNE of images, classes and centroids."""
    model, test_set = choose(run, "space")
    asked = Asked(run, "feature_space", model, test_set)
    says = "A t-SNE plot of image features, class features and class centroids as this model compares them."
    task = answered(asked, "Compute the t-SNE plot", says)
    if task is None:
        return
    arrays, classes = task.arrays(), (task.result or {})["classes"]
    common.draw(analyses.space_chart(arrays, classes, common.theme()), "space", space_table(arrays, classes))
    st.caption(
        "Dots: images. Stars: the class features that the model compares them with. Crosses: centroids of "
        "each class's images. t-SNE keeps neighbourhoods; distances between distant groups have no meaning."
    )
    again(asked, task)


def evidence(run: RunRow) -> None:
    """Grad-CAM pictures."""
    model, test_set = choose(run, "cam")
    asked = Asked(run, "evidence", model, test_set)
    says = "Grad-CAM maps show which parts of an image support the prediction and the method's other scores."
    task = answered(asked, "Compute the maps", says)
    if task is None:
        return
    draw_evidence(task.arrays(), (task.result or {})["classes"])
    st.caption(
        "The first test samples as the model sees them. Bright colours mark the parts of an image that "
        "support a score, relative to the maximum in that image."
    )
    again(asked, task)


def draw_evidence(arrays: Mapping[str, np.ndarray], classes: list[str]) -> None:
    """A column of pictures per image: as the model saw it, then one map per score."""
    pictures = analyses.overlays(arrays)
    labels, predicted = arrays["label"].tolist(), arrays["predicted"].tolist()
    shown = 2 if common.narrow() else 4
    for first in range(0, len(labels), shown):
        columns = st.columns(shown, wrap=False)
        for column, i in zip(columns, range(first, min(first + shown, len(labels))), strict=False):
            with column:
                right = predicted[i] == labels[i]
                guess, true = (named(classes[c]) for c in (predicted[i], labels[i]))
                st.caption(common.md(f"{'✓' if right else '✕'} {guess} (true: {true})"))
                for name, images in pictures.items():
                    said = f"{name}, image {i + 1}: {classes[labels[i]]}, predicted {classes[predicted[i]]}"
                    st.image(images[i], caption=name, alt=said)


def named(text: str) -> str:
    """A class's name below a small picture; the picture's text alternative has all of it."""
    return text if len(text) <= CLASS_NAME else f"{text[: CLASS_NAME - 1]}…"


def prompt_words(run: RunRow) -> None:
    """The vocabulary's words nearest to learned prompts."""
    model, _ = choose(run, "words", test_set=False)
    asked = Asked(run, "nearest_words", model)
    task = answered(
        asked, "Find the words", "Finds the words of CLIP's vocabulary nearest to each learned prompt vector."
    )
    if task is None:
        return
    rows = (task.result or {})["rows"]
    columns = {
        "Position": [r["position"] for r in rows],
        "Nearest words": [", ".join(r["words"]) for r in rows],
        "Distance of the first": [r["distances"][0] for r in rows],
        "Prompt": [PROMPTS.get(r["prompt"], r["prompt"]).replace("_", " ") for r in rows],
        "Class": [r["class"] or "all" for r in rows],
    }
    widths = {
        "Position": st.column_config.NumberColumn(width=70),
        "Nearest words": st.column_config.TextColumn(width=240 if common.narrow() else 420),
        "Class": st.column_config.TextColumn(width=200),
    }
    st.dataframe(columns, hide_index=True, key=f"words_{asked.key}", column_config=widths)
    st.caption(
        "Euclidean distance in token space, as CoOp reports it; ~ marks a token that does not end its word. "
        "A vector far from every word cannot be read as one."
    )
    again(asked, task)


def freedom(run: RunRow) -> None:
    """Accuracy against degrees of freedom over the experiment's numbers of blocks."""
    store = common.store()
    shown = compare(store, [run.experiment_id], "last")
    degrees = {}
    for value in (v for g in shown.groups if g.method == "fedot" for v in g.runs):
        recorded = [d.value for d in store.diagnostics.of_run(value.run.id, "degrees_of_freedom")]
        if recorded and recorded[-1] is not None:
            degrees[value.run.id] = recorded[-1]
    rows = freedom_by_blocks(shown, degrees)
    if len(rows) < 2:
        st.info(
            "This plot compares numbers of blocks: launch an experiment with several of them, e.g. a sweep "
            "over FedOT's blocks 1, 2, 4, 8.",
            icon=":material/stacked_line_chart:",
        )
        return
    chart = analyses.freedom_chart(rows, common.theme())
    common.draw(chart, "freedom", freedom_table(rows))
    st.caption(f"{common.md(chart.alt)} Last round, mean over clients and seeds.")
