"""The tabs of the page Run: what was recorded, and analyses of the trained model, which are stored."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import streamlit as st

from fedcore.base.presentation import FieldChart
from fedcore.base.progress import shortened
from fedcore.data.images import EMBEDDINGS
from fedcore.jobs import analysis
from fedcore.methods import registry
from fedcore.methods.base import overrides
from fedcore.results import progress
from fedcore.results.analyses import EVERYONE, FieldRow, confusion, field_table, rows_by_field, space_table
from fedcore.results.charts import analyses
from fedcore.results.comparison import compare
from fedcore.results.matrices import run_panel
from fedcore.results.run_files import environment_texts, repeat_command, run_toml, stored_files, trained_with
from fedcore.store import RunRow, TaskRow
from pages.widgets import background, charts, markup, session

LOG_LINES = 400
MANY_CLIENTS = 15
"""Clients above which their table scrolls."""
OWN_SAMPLES = "its own test samples"
CLASS_NAME = 30
"""Characters of a class name below a small image, whose text alternative has the whole name."""


def clients(run: RunRow) -> None:
    """Draw a table of the clients' data, accuracy, rounds and traffic."""
    store = session.store()
    entities = [e for e in store.cells.entities(run.id) if e.kind == "client"]
    if not entities:
        no_round_yet(run)
        return
    last = {o.client: o for o in store.cells.own_accuracy(run.id)}
    took_part = store.rounds.clients(run.id)
    # of a script's runs nobody recorded who took part, which is not the same as nobody
    is_recorded = bool(took_part) or run.origin == "engine"
    traffic: Counter[int] = Counter()
    rounds: Counter[int] = Counter()
    for row in took_part:
        traffic[row.client] += (row.bytes_up or 0) + (row.bytes_down or 0)
        rounds[row.client] += 1
    accuracies = [last.get(e.entity) for e in entities]
    columns: dict[str, list[object]] = {
        "Client": [e.name for e in entities],
        "Domain": [e.domain or "mixed" for e in entities],
        "Training samples": [e.samples for e in entities],
        "Own accuracy, %": [
            None if o is None else markup.rounded_alike(100 * o.correct / o.total, 1) for o in accuracies
        ],
        "Test samples": [None if o is None else o.total for o in accuracies],
        "Rounds": [rounds[e.entity] if is_recorded else None for e in entities],
        "Traffic, MB": [traffic[e.entity] / progress.MEGABYTE if is_recorded else None for e in entities],
    }
    number = st.column_config.NumberColumn
    st.dataframe(
        columns,
        hide_index=True,
        height=600 if len(entities) > MANY_CLIENTS else "content",
        key="run_clients",
        column_config={"Own accuracy, %": number(format="%.1f"), "Traffic, MB": number(format="%.2f")},
        placeholder="-",
        alt="Clients",
    )


def no_round_yet(run: RunRow) -> None:
    """Say that no round has been evaluated."""
    ended = "This run ended before any round was evaluated."
    st.info(ended if run.ended else "No round has been evaluated yet.", icon=":material/hourglass:")


def log(run: RunRow) -> None:
    """Draw the notices, the error, the end of the log, and the files of a run."""
    store = session.store()
    for note in run.notices:
        st.markdown(f"- {markup.md(note.message)}")
    trace, tail = store.runs.error(run.id), progress.log_tail(store, run.id, LOG_LINES)
    if trace and trace.strip() not in tail:
        st.code(trace, language=None, wrap_lines=True)
    if tail:
        st.code(tail, language=None, wrap_lines=True)
        st.caption(f"At most the last {LOG_LINES} lines of the log, read at {time.strftime('%H:%M:%S')}.")
    else:
        why = ": it was trained elsewhere, or its files were deleted" if run.rounds_done and run.ended else ""
        st.info(f"This run has no log here{why}.", icon=":material/description:")
    path = store.runs.log_path(run.id)
    if not run.ended:
        st.button("Refresh", icon=":material/refresh:", key="run_log_refresh")
    if files := stored_files(store, run.id):
        columns = {
            "File": [markup.md(f.name) for f in files],
            "Kind": [f.kind for f in files],
            "MB": [f"{f.megabytes:.2f}" for f in files],
            "Written": [f.written for f in files],
        }
        markup.table(columns, "Files of this run")
        st.caption(markup.md(f"In {path.parent}"))


def reproduce(run: RunRow) -> None:
    """Draw the config, the environment, and the command that repeats the run."""
    store = session.store()
    text, environment = run_toml(store, run.id), store.runs.environment(run.id)
    if run.origin == "engine":
        name = f"run-{run.id}.toml"
        markup.download(f"Download {name}", text, name)
        st.caption("Save the file in FedLens's folder, activate its environment, and run there:")
        st.code(repeat_command(name, environment), language="bash", wrap_lines=True)
        st.caption(
            f"{trained_with(environment)}. The config below lists all hyper-parameters.",
            help="The same machine, versions and config give the same numbers, in a new experiment beside "
            "this one.",
        )
    else:
        said = "These results were recorded by a script or imported, so FedLens cannot repeat them."
        st.info(f"{said} The config that came with them is below.", icon=":material/info:")
    st.code(text, language="toml", wrap_lines=True)
    if environment:
        texts = environment_texts(environment)
        columns = {"Environment": list(map(markup.md, texts)), "Value": list(map(markup.md, texts.values()))}
        markup.table(columns, "Environment of the run")


def analyses_of(run: RunRow) -> dict[str, Callable[[RunRow], None]]:
    """Return the analyses that a run allows, by the titles of their tabs."""
    tabs: dict[str, Callable[[RunRow], None]] = {}
    if run.origin != "engine":
        return tabs
    tabs |= {"Predictions": predictions, "Feature space": feature_space, "Evidence": evidence}
    method = registry.load_all().get(run.method)
    if method is None or overrides(method, "prompts"):
        tabs["Prompt words"] = prompt_words
    store = session.store()
    beside = store.experiments.get(run.experiment_id).runs
    several = len({r.group_hash for r in beside if r.method == run.method}) > 1
    for chart in method.about.field_charts if method is not None and several else ():
        rows = rows_by_field(store, compare(store, [run.experiment_id]), run, chart)
        if len(rows) > 1:
            tabs[chart.title] = partial(field_chart, chart=chart, rows=rows)
    return tabs


def analysed(
    run: RunRow,
    what: analysis.AnalysisKind,
    model: int | None,
    test_set: int,
    button: str,
    description: str,
    draw: Callable[[TaskRow], None],
) -> None:
    """Draw an analysis and the round it is of, or else its progress, its error or a button to start it."""
    store, asked = session.store(), (run.id, what, model, test_set)
    task, key = analysis.find(store, *asked), f"{run.id}_{what}_{model}_{test_set}"
    obstacle = analysis.obstacle(store, run.id)
    # the row of a finished task outlives its files, of which the words need none
    if task is None or task.status != "done" or not (what == "nearest_words" or task.arrays()):
        if task is None:
            st.caption(description)
        obstacles = [obstacle] if obstacle else []
        background.ask_for(store, {"Analysis": asked}, obstacles, button, f"ask_{key}")
        return
    draw(task)
    left, right = st.columns([5, 1], vertical_alignment="center")
    round_ = (task.result or {}).get("round")
    left.caption(f"Computed from the checkpoint after round {round_} and kept with the run.")
    impossible = bool(obstacle) or not session.writable()
    if right.button("Compute again", key=f"again_{key}", disabled=impossible):
        background.analyse(store, [asked])
        st.rerun()


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
    name = session.choose(left.selectbox, "Model", list(codes), f"{key}_model", index=first)
    model = codes.get(name or "", 0)
    if not test_set or name is None:
        return model, 0
    entities = session.store().cells.entities(run.id)
    sets = {f"{e.name} ({e.kind})": e.entity for e in entities if e.kind in ("client", "domain")}
    if model:  # the global model has no own samples
        sets = {OWN_SAMPLES: model, **sets}
    chosen = session.choose(right.selectbox, "Test set", list(sets), f"{key}_set")
    return model, sets.get(chosen or "", 0)


def predictions(run: RunRow) -> None:
    """Draw the confusion matrix and the accuracy of every class."""

    def draw(task: TaskRow) -> None:
        arrays = task.arrays()
        names = {EVERYONE: None, **{n: c for n, c in models(run).items() if (arrays["model"] == c).any()}}
        chosen = session.choose(st.selectbox, "Predictions of", list(names), "predictions_of")
        counts = confusion(arrays, (task.result or {})["classes"], names[chosen])
        matrix = analyses.confusion_chart(counts, session.theme(), session.is_narrow())
        left, right = st.columns([3, 2])
        with left:
            st.markdown("**Confusion matrix**")
            charts.draw(matrix, "confusion", counts.matrix_table())
        with right:
            st.markdown("**Accuracy by class**")
            by_class = analyses.class_chart(counts, session.theme(), run.method)
            charts.draw(by_class, "by_class", counts.table())

    about = "Predicts all test samples with the newest checkpoint and shows which classes are confused."
    analysed(run, "predictions", 0, 0, "Compute predictions", about, draw)


def feature_space(run: RunRow) -> None:
    """Draw the t-SNE plot of images, class features and centroids, or of one class by all clients' models."""
    views = {"model": "One model, all classes", "clients": "All clients, one class"}
    view = session.choose(st.segmented_control, "Points", views, "space_of", default="model", required=True)
    everyone = view == "clients"

    def draw(task: TaskRow) -> None:
        arrays, labels = task.arrays(), (task.result or {})["classes"]
        text = "Dots: images. Stars: class features. Crosses: centroids of each class's images."
        if everyone:
            number = st.selectbox("Class", range(len(labels)), 0, labels.__getitem__, "space_class")
            chosen = arrays["label"] == number
            arrays = {name: arrays[name][chosen] for name in ("xy", "kind", "client")}
            arrays |= {"label": arrays["client"], "predicted": np.full(chosen.sum(), -1)}
            labels = [e.name for e in session.store().cells.entities(run.id) if e.kind == "client"]
            text = "Dots: each client's own test images of the class."
            text += " Stars: the class's feature by its model."
        chart = analyses.space_chart(arrays, labels, session.theme())
        charts.draw(chart, "space", space_table(arrays, labels, "client" if everyone else "class"))
        st.caption(
            text,
            help="The model compares images with class features. t-SNE preserves neighbourhoods; distances "
            "between distant groups mean nothing.",
        )

    model, test_set = (None, 0) if everyone else choose(run, "space")
    about = "A t-SNE plot of image features, class features and class centroids as this model compares them."
    if everyone:
        about = "A t-SNE plot of all clients' test images and class features, of which one class is shown."
    analysed(run, "feature_space", model, test_set, "Compute the t-SNE plot", about, draw)


def evidence(run: RunRow) -> None:
    """Draw the Grad-CAM maps."""
    if session.store().runs.config(run.id).data.name == EMBEDDINGS:
        st.caption("There are no images to explain: the data set holds embeddings alone.")
        return

    def draw(task: TaskRow) -> None:
        arrays, classes = task.arrays(), (task.result or {})["classes"]
        labels, predicted = arrays["label"].tolist(), arrays["predicted"].tolist()
        pictures, shown = analyses.overlays(arrays), 2 if session.is_narrow() else 8
        for first in range(0, len(labels), shown):  # the image as the model sees it, then a map per score
            beside = range(first, min(first + shown, len(labels)))
            for column, i in zip(st.columns(shown, wrap=False), beside, strict=False):
                with column:
                    right = predicted[i] == labels[i]
                    guess, true = (shortened(classes[c], CLASS_NAME) for c in (predicted[i], labels[i]))
                    st.caption(markup.md(f"{'✓' if right else '✕'} {guess} (true: {true})"))
                    seen = f"image {i + 1}: {classes[labels[i]]}, predicted {classes[predicted[i]]}"
                    for name, images in pictures.items():
                        st.image(images[i], caption=name, alt=f"{name}, {seen}", width="stretch")
        st.caption(
            "The first test samples as the model sees them. Bright parts of an image support a score.",
            help="Colours are relative to the maximum in that image.",
        )

    about = "Grad-CAM maps show which parts of an image support the prediction and the method's other scores."
    analysed(run, "evidence", *choose(run, "cam"), "Compute the maps", about, draw)


def prompt_words(run: RunRow) -> None:
    """Show the words of the vocabulary that are nearest to the learned prompts."""
    model, _ = choose(run, "words", test_set=False)

    def draw(task: TaskRow) -> None:
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
        number, text = st.column_config.NumberColumn, st.column_config.TextColumn
        words, wide = "~ marks a token that does not end its word", 240 if session.is_narrow() else 420
        distance = (
            "Euclidean, in token space, as CoOp reports it. A vector far from every word cannot be "
            "read as one"
        )
        widths = {
            "Position": number(width=70),
            "Nearest words": text(help=words, width=wide),
            "Distance of the nearest": number(help=distance),
            "Class": text(width=200),
        }
        st.dataframe(columns, hide_index=True, key=f"words_{run.id}_{model}", column_config=widths)

    about = "Finds the words of CLIP's vocabulary nearest to each learned prompt vector."
    analysed(run, "nearest_words", model, 0, "Find the words", about, draw)


def field_chart(run: RunRow, chart: FieldChart, rows: Sequence[FieldRow]) -> None:
    """Draw accuracy and a recorded value over the values that a field takes in the run's experiment."""
    drawn = analyses.field_chart(rows, chart, session.theme(), run.method)
    charts.draw(drawn, "field_chart", field_table(rows, chart))
    st.caption(f"{markup.md(drawn.alt)} Last round, mean over clients and seeds.")
