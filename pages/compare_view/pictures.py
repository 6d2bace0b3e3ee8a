"""The pictures behind a difference: test images that one of two methods, or both, get wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import streamlit as st

from fedcore import jobs
from fedcore.base.progress import counted
from fedcore.jobs import analysis
from fedcore.results.analyses import Disagreement, WrongKind, count_disagreement, shown_of
from fedcore.results.charts.analyses import overlays
from fedcore.results.panels import Panel
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import signed
from fedcore.store import RunRow, Store, TaskRow
from pages.widgets import background, browser, markup, session

BESIDE_EACH_OTHER = 6


@dataclass(frozen=True)
class Question:
    """Two runs, of a method and of the baseline, with entity codes of a model and a test set of both.

    Attributes:
        rounds: the (last) rounds of both runs that the difference shows.
    """

    first: RunRow
    second: RunRow
    model: int
    test_set: int
    place: str
    rounds: analysis.RoundPair


def draw(
    store: Store,
    groups: Sequence[ComparisonRow],
    reference: ComparisonRow,
    gaps: Mapping[str, Panel],
    chart_key: str,
) -> None:
    """Let the reader choose a cell of the difference heatmaps, and draw the images behind it."""
    rows = {g.key: g for g in groups if g.key in gaps}
    key = f"pictures_{chart_key}"
    order = list(gaps)

    def chosen(cell: browser.CellClick) -> None:
        if cell.panel < len(order):
            panel = gaps[order[cell.panel]]
            st.session_state[f"{key}_method"] = order[cell.panel]
            st.session_state[f"{key}_model"] = panel.rows[cell.row]
            st.session_state[f"{key}_set"] = panel.columns[cell.column]
            st.session_state[f"{key}_open"] = st.session_state[f"{key}_search"] = True

    browser.on_cell_click(chart_key, chosen)
    box = st.expander(
        "The pictures behind a difference",
        icon=":material/image_search:",
        key=f"{key}_open",
        on_change="rerun",
    )
    if not box.open:
        return
    with box:
        st.caption(
            "Click a cell above, or choose here: test images that one of the two methods, or both, get wrong."
        )
        question = choose(store, rows, reference, gaps, key)
        if question is not None:
            answer(store, question, reference.label, key)


def choose(
    store: Store,
    rows: Mapping[str, ComparisonRow],
    reference: ComparisonRow,
    gaps: Mapping[str, Panel],
    key: str,
) -> Question | None:
    """Draw the choice of method, model, test set and seed; None if no two runs can be compared."""
    columns = st.columns(4)
    method = columns[0].selectbox(
        "Method", list(rows), format_func=lambda k: rows[k].label, key=f"{key}_method"
    )
    if method is None:
        return None
    panel = gaps[method]
    for name, names in (("model", panel.rows), ("set", panel.columns)):
        if st.session_state.get(f"{key}_{name}") not in names:
            st.session_state.pop(f"{key}_{name}", None)  # another method's
    model = columns[1].selectbox("Model of", panel.rows, key=f"{key}_model")
    test_set = columns[2].selectbox("Test set", panel.columns, key=f"{key}_set")
    pairs = run_pairs(rows[method], reference)
    pair = columns[3].selectbox("Seed", list(pairs), key=f"{key}_seed")
    if pair is None:
        st.info("The two methods have no seed in common that FedLens trained.", icon=":material/info:")
        return None
    first, second = pairs[pair]
    code = model_and_test_set(store, first, model, test_set)
    if code is None or code != model_and_test_set(store, second, model, test_set):
        st.info("One of the two runs has no such model or test set.", icon=":material/info:")
        return None
    rounds = {v.run.id: v.rounds[-1] for g in (rows[method], reference) for v in g.runs if v.rounds}
    shown = (rounds.get(first.id), rounds.get(second.id))
    return Question(first, second, *code, f"model {model} on {test_set}, {pair}", shown)


def run_pairs(row: ComparisonRow, reference: ComparisonRow) -> dict[str, tuple[RunRow, RunRow]]:
    """Return the runs of two rows that FedLens trained with the same seed and held-out domain, by name."""
    ours, theirs = (
        {(v.run.seed, v.run.held_out): v.run for v in g.runs if v.run.origin == "engine"}
        for g in (row, reference)
    )
    return {
        f"seed {seed}{f', without {held_out}' if held_out else ''}": (run, theirs[seed, held_out])
        for (seed, held_out), run in ours.items()
        if (seed, held_out) in theirs
    }


def model_and_test_set(store: Store, run: RunRow, model: str, test_set: str) -> tuple[int, int] | None:
    """Return the entity codes of a cell of the heatmap in a run; None if the run lacks the cell."""
    codes: dict[tuple[str, str], int] = {}
    for e in store.cells.entities(run.id):
        codes.setdefault((e.kind, e.name), e.entity)
    first = codes.get(("client", model), codes.get(("global", model)))
    second = codes.get(("client", test_set), codes.get(("domain", test_set)))
    return None if first is None or second is None else (first, second)


def answer(store: Store, question: Question, baseline: str, key: str) -> None:
    """Draw the images, or else the search's progress, its error, or the button that starts it.

    The click on a cell has asked for the search already.
    """
    against = analysis.Against(question.second.id, question.rounds)
    asked = (question.first.id, against, question.model, question.test_set)
    task = analysis.find(store, *asked)
    arrays = task.arrays() if task is not None and task.status == "done" else {}
    if task is not None and arrays and not other_data(store, question.first, question.second):
        draw_answer(task, arrays, question, baseline)
        return
    obstacles = [obstacle_of(store, run) for run in (question.first, question.second)]
    obstacle = next(filter(None, [other_data(store, question.first, question.second), *obstacles]), "")
    if obstacle:
        st.info(obstacle, icon=":material/search_off:")
    if task is not None and task.status != "done":
        background.show_task(task, "Looking for the images")
    possible = not obstacle and session.writable()
    clicked = st.session_state.pop(f"{key}_search", False) and possible and task is None
    if clicked or (
        (task is None or task.ended)
        and st.button(
            "Find the pictures",
            key=f"{key}_ask",
            type="primary",
            disabled=not possible,
            icon=":material/image_search:",
        )
    ):
        analysis.submit(store, *asked, again=True)
        jobs.ensure_worker(store)
        st.rerun()


def obstacle_of(store: Store, run: RunRow) -> str:
    """Return the reason why the images of a run cannot be predicted; empty if they can be."""
    return markup.md(analysis.obstacle(store, run.id, f"Run {run.id} ({run.label})"))


def other_data(store: Store, first: RunRow, second: RunRow) -> str:
    """Return a warning if two runs read different data under one name; empty if the data agree."""
    ours, theirs = (store.runs.environment(run.id) for run in (first, second))
    recorded = [name for name in ("data", "pixels") if name in ours and name in theirs]
    if all(ours[name] == theirs[name] for name in recorded):
        return ""
    return (
        f"Runs {first.id} and {second.id} read different images, although their data set has one name: "
        "its files were changed in between. No image can be compared; repeat one of the runs."
    )


def round_note(result: Mapping[str, object], wanted: analysis.RoundPair) -> str:
    """Name the rounds of the models, and the reported rounds if these are others."""
    used = (result["round"], result["other_round"])
    note = f"Predicted from the checkpoints after rounds {used[0]} and {used[1]}"
    if all(w is None or w == u for w, u in zip(wanted, used, strict=True)):
        return note + ", as reported above"
    return (
        note + f"; the difference above is between rounds {wanted[0]} and {wanted[1]}, for which not all "
        "checkpoints are kept (`keep_checkpoints`)"
    )


def draw_answer(task: TaskRow, arrays: Mapping[str, np.ndarray], question: Question, baseline: str) -> None:
    """Draw the counts, the test, and the images of both kinds."""
    found = count_disagreement(arrays)
    names = (question.first.label, baseline)
    draw_counts(found, names, f"Test images, {question.place}")
    result = task.result or {}
    classes: list[str] = result["classes"]
    kinds: tuple[tuple[WrongKind, str, int], ...] = (
        ("only_first", f"Only {names[0]} is right", found.only_first),
        ("only_second", f"Only {names[1]} is right", found.only_second),
        ("both_wrong", "Both are wrong", found.both_wrong),
    )
    for kind, title, count in kinds:
        shown = shown_of(arrays, kind)
        if shown:
            st.markdown(f"**{markup.md(title)}**: {len(shown)} of {counted(count, 'image')}")
            draw_images(arrays, shown, classes, names)
    st.caption(
        f"{round_note(result, question.rounds)}; the cell is the mean over seeds in the reported round. "
        "McNemar's test is exact and two-sided, over test images as they were drawn; it does not cover other "
        "seeds. "
        "Bright colours mark the parts of an image that support the prediction (Grad-CAM), relative to the "
        "maximum in that image."
    )


def draw_counts(found: Disagreement, names: tuple[str, str], label: str) -> None:
    """Draw the counts as a sentence and as a table of two by two."""
    st.markdown(markup.md(finding(found, names)))
    header = [("", "wide"), (f"{names[1]} right", "num"), (f"{names[1]} wrong", "num")]
    rows = [
        [f"{markup.esc(names[0])} right", str(found.both_right), f"<b>{found.only_first}</b>"],
        [f"{markup.esc(names[0])} wrong", f"<b>{found.only_second}</b>", str(found.both_wrong)],
    ]
    st.html(markup.table_html(header, rows, label))


def finding(found: Disagreement, names: tuple[str, str]) -> str:
    """Return the counts and McNemar's p in a sentence."""
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    return (
        f"Of {found.total} test images, {found.only_first} are right with {names[0]} only and "
        f"{found.only_second} with {names[1]} only: {signed(found.difference)} points, McNemar's {p}."
    )


def draw_images(
    arrays: Mapping[str, np.ndarray], shown: Sequence[int], classes: Sequence[str], names: tuple[str, str]
) -> None:
    """Draw a column per image: the image, and below it each method's prediction with its map."""
    pictures = {
        who: overlays({"pixels": arrays[f"{who}/pixels"], "map/map": arrays[f"{who}/map"]})
        for who in ("first", "second")
    }
    beside = 2 if session.is_narrow() else BESIDE_EACH_OTHER
    for start in range(0, len(shown), beside):
        for column, k in zip(st.columns(beside, wrap=False), shown[start : start + beside], strict=False):
            i = int(arrays["shown"][k])
            true = classes[int(arrays["label"][i])]
            with column:
                st.image(
                    pictures["first"]["image"][k],
                    caption=markup.md(f"true: {true}"),
                    alt=f"test image, class {true}",
                    width="stretch",
                )
                for who, name in zip(("first", "second"), names, strict=True):
                    guess = classes[int(arrays[who][i])]
                    mark = "✓" if guess == true else "✕"
                    share = 100 * float(arrays[f"{who}/probability"][k])
                    said = markup.md(f"{mark} {markup.clipped(name)}: {guess}, {share:.0f} %")
                    alt = f"Grad-CAM of {name}, predicted {guess}"
                    st.image(pictures[who]["map"][k], caption=said, alt=alt, width="stretch")
