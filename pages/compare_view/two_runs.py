"""Two runs of the page Compare: the tab Two runs, and the pictures behind a difference of the heatmaps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import streamlit as st

from fedcore.base.progress import counted
from fedcore.config.field_names import field_title, value_text
from fedcore.jobs import analysis
from fedcore.results import curves
from fedcore.results.analyses import (
    EVERYONE,
    Disagreement,
    class_table,
    count_disagreement,
    paired_predictions,
    same_test_samples,
    shown_of,
)
from fedcore.results.charts.analyses import overlays
from fedcore.results.charts.heatmaps import Place
from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.matrices import difference_panel, run_panel
from fedcore.results.metrics import METRICS, RunResult
from fedcore.results.panels import Panel
from fedcore.results.rows import ComparisonRow, difference_of_rows
from fedcore.results.run_files import environment_texts
from fedcore.results.settings import config_for_display
from fedcore.results.statistics import signed
from fedcore.share.views import Heatmaps
from fedcore.store import RunRow, Store, TaskRow
from pages.compare_view.controls import ShownComparison
from pages.widgets import background, charts, markup, session

BESIDE_EACH_OTHER = 3
"""Pictures in a row."""
Side = tuple[ComparisonRow, RunResult]
Runs = tuple[RunRow, RunRow]
Names = tuple[str, str]


def draw(shown: ShownComparison) -> None:
    """Draw the choice of two runs, and the runs side by side: config, values, curves, cells, predictions."""
    store = shown.store
    sides: dict[str, Side] = {}
    for row in shown.comparison.rows:
        for result in row.runs:
            name = markup.seed_text(result.run.seed, result.run.held_out)
            sides[f"{markup.clipped(row.label)}, {name} (run {result.run.id})"] = (row, result)
    if len(sides) < 2:
        st.info("This tab compares two runs, and there is only one.", icon=":material/compare_arrows:")
        return
    left, right = st.columns(2)
    one = session.choose(left.selectbox, "Run", list(sides), "run_a")
    rest = [name for name in sides if name != one]
    of_same_seed = [n for n in rest if sides[n][1].run.seed == sides[one][1].run.seed]
    first = rest.index((of_same_seed or rest)[0])
    two = session.choose(right.selectbox, "Beside", rest, "run_b", index=first)
    a, b = sides[one], sides[two]
    elsewhere, other = (b, a) if a[0].trained_by_fedlens else (a, b)
    apart = difference_of_rows(*(replace(g, runs=(r,)) for g, r in (elsewhere, other)))
    apart = f"{_name(elsewhere)}: {apart}" if apart else ""
    _values(a, b, apart)
    _config(store, a, b)
    _curves(store, a, b)
    _cells(store, a, b, apart)
    if a[0].trained_by_fedlens and b[0].trained_by_fedlens:
        _predictions(store, (a[1].run, b[1].run), (_name(a), _name(b)))


def _name(side: Side) -> str:
    return f"{markup.clipped(side[0].label)}, seed {side[1].run.seed}"


def _values(a: Side, b: Side, apart: str) -> None:
    """Draw the metrics of both runs in their reported rounds, and the differences.

    If the test sets of the runs are ``apart``, no difference is shown.
    """
    header = [("Metric", "wide"), (_name(a), "num"), (_name(b), "num"), ("Difference, points", "num")]
    rows = [["Reported round", markup.esc(a[1].rounds_text), markup.esc(b[1].rounds_text), ""]]
    for metric, facts in METRICS.items():
        ours, theirs = a[1].values.get(metric), b[1].values.get(metric)
        if ours is None and theirs is None:
            continue
        gap = "-" if apart or ours is None or theirs is None else signed(ours - theirs, 2)
        title = markup.esc(f"{facts.title}, {facts.unit}")
        rows.append([title, markup.number(ours, 2), markup.number(theirs, 2), gap])
    rows.append(["Page of the run", _link(a), _link(b), ""])
    st.html(markup.table_html(header, rows, "Values of both runs"))
    st.caption(
        "These are single runs: a difference between two runs is not evidence that one method is better. The "
        "summary and the Leaderboard test over seeds."
    )
    if apart:
        st.caption(f"No difference is taken. {markup.md(apart)}.")


def _link(side: Side) -> str:
    run = side[1].run.id
    page = markup.run_link(run, f"run {run}")
    if not side[0].trained_by_fedlens:
        return page
    address = session.link("run", run)
    return f'{page}, <a href="{address}&amp;run_tab=Predictions" target="_self">its predictions</a>'


def _config(store: Store, a: Side, b: Side) -> None:
    """Draw the fields of config and environment in which the runs differ."""
    st.markdown("**Differences in config and environment**")
    configs = [config_for_display(store.runs.config(r.run.id), g.trained_by_fedlens) for g, r in (a, b)]
    surroundings = [environment_texts(store.runs.environment(r.run.id)) for _, r in (a, b)]

    def differing(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
        return [n for n in {**first, **second} if first.get(n) != second.get(n) and n != "method.label"]

    rows = [
        [field_html(name), *(markup.esc(value_text(name, c[name])) if name in c else "-" for c in configs)]
        for name in differing(*configs)
    ]
    rows += [
        [markup.esc(name), *(markup.esc(texts.get(name, "-")) for texts in surroundings)]
        for name in differing(*surroundings)
    ]
    if not rows:
        st.caption("None: one run repeats the other.")
        return
    header = [("Field", "name"), (_name(a), "wide"), (_name(b), "wide")]
    st.html(markup.table_html(header, rows, "Differences between the runs"))


def _curves(store: Store, a: Side, b: Side) -> None:
    columns = st.columns(1 if session.is_narrow() else 2)
    names: dict[curves.CurveValue, str] = {"personal": "Personal accuracy", "loss": "Training loss"}
    for i, (value, title) in enumerate(names.items()):
        lines = [
            replace(line, label=_name(side))
            for side in (a, b)
            for line in curves.run_lines(store, {side[1].run.id: side[1].run.rounds_total}, value)
        ]
        if lines:
            chart = line_chart(lines, session.theme(), "Round", "", per_cent=i == 0, height=320, name=title)
            with columns[i % len(columns)]:
                numbers = series_table(lines, "round", "" if i else "%")
                charts.draw(chart, f"two_runs_{i}", dict(numbers))
                st.caption(markup.md(chart.alt))


def _cells(store: Store, a: Side, b: Side, apart: str) -> None:
    """Draw the cells of both runs' last rounds, and the difference of each."""
    panels = tuple(replace(run_panel(store, side[1].run), title=_name(side)) for side in (a, b))
    if not all(p.rows and p.columns for p in panels):
        return
    title, columns = "Model by test set", session.in_a_row(len(panels))
    st.markdown(f"**{title}**")
    charts.draw_figure(Heatmaps("models", title, panels, columns=columns), "two_runs_cells")
    if not apart:
        st.markdown("**Difference, percentage points**")
        gap = Heatmaps("gap", "Difference of the two runs", (difference_panel(*panels),), "difference")
        charts.draw_figure(gap, "two_runs_gap", with_alt=True)


def _predictions(store: Store, runs: Runs, names: Names) -> None:
    """Draw on how many test images both runs, one of them or neither is right, in all and by class."""
    st.markdown(
        "**Predictions**",
        help="Of the newest checkpoint of each run. McNemar's test is exact and two-sided, over test images "
        "as they were drawn; it does not cover other seeds.",
    )
    if not same_test_samples(store.runs.config(runs[0].id), store.runs.config(runs[1].id)):
        st.info(
            "Predictions are compared only between runs with the same data, partition, held-out domain and "
            "seed, because other runs test on other images.",
            icon=":material/info:",
        )
        return
    if differ := _other_data(store, runs):
        st.info(differ, icon=":material/info:")
        return
    tasks = [analysis.find(store, run.id, "predictions") for run in runs]
    missing = [run for run, task in zip(runs, tasks, strict=True) if not _arrays(task)]
    if missing:
        wanted: dict[str, background.Asked] = {
            f"Predictions of run {run.id}": (run.id, "predictions", 0, 0) for run in missing
        }
        obstacles = _obstacles(store, missing)
        background.ask_for(store, wanted, obstacles, "Compute predictions", "two_predictions_ask")
        return
    arrays, others = map(_arrays, tasks)
    both = np.intersect1d(arrays["model"], others["model"]).tolist()
    models = {e.name: e.entity for e in store.cells.entities(runs[0].id) if e.kind in ("global", "client")}
    offered: dict[str, int | None] = {EVERYONE: None}
    offered |= {name: code for name, code in models.items() if code in both}
    model = session.choose(st.selectbox, "Predictions of", list(offered), "two_predictions_of")
    paired = paired_predictions(arrays, others, offered.get(model or EVERYONE))
    if paired is None:
        st.info("The two runs do not have the same test samples.", icon=":material/info:")
        return
    _draw_counts(count_disagreement(paired), names, f"Test images by correct run, {model}")
    titles = {"only first": f"only {names[0]} right", "only second": f"only {names[1]} right"}
    table = class_table(paired, ((tasks[0] and tasks[0].result) or {})["classes"])
    st.dataframe(
        {titles.get(k, k): v for k, v in table.items()}, hide_index=True, key="two_predictions_table"
    )


@markup.fragment
def draw_differences(
    store: Store,
    groups: Sequence[ComparisonRow],
    reference: ComparisonRow,
    gaps: Mapping[str, Panel],
    figure: Heatmaps,
    chart_key: str,
) -> None:
    """Draw difference heatmaps, and beside them the images behind the cell that the reader has chosen.

    A fragment, so that a click draws only this again.
    """
    rows = {g.key: g for g in groups if g.key in gaps}
    key, order = f"pictures_{chart_key}", list(gaps)

    def chosen(cell: Place) -> None:
        panel, row, column = cell
        if panel < len(order):
            shown = gaps[order[panel]]
            names = {"method": order[panel], "model": shown.rows[row], "set": shown.columns[column]}
            st.session_state.update({f"{key}_{name}": value for name, value in names.items()})
            st.session_state[f"{key}_search"] = True

    left, right = st.columns([3, 2])
    with right.container(key=f"beside_{key}"):
        st.markdown(
            "**The pictures behind a difference**",
            help="Click a cell, or choose here: test images that one of the two methods, or both, get wrong.",
        )
        columns = st.columns(3)
        method = columns[0].selectbox(
            "Method", list(rows), format_func=lambda k: rows[k].label, key=f"{key}_method"
        )
        panel = gaps[method]
        for name, names in (("model", panel.rows), ("set", panel.columns)):
            if st.session_state.get(f"{key}_{name}") not in names:
                st.session_state.pop(f"{key}_{name}", None)  # another method's
        model = columns[1].selectbox("Model of", panel.rows, key=f"{key}_model")
        test_set = columns[2].selectbox("Test set", panel.columns, key=f"{key}_set")
        marked = order.index(method), panel.rows.index(model), panel.columns.index(test_set)
        _answer(store, rows[method], reference, model, test_set, key)
    with left:
        beside = 1 if session.is_narrow() else 2
        drawn = replace(figure, columns=beside, marked=marked)
        charts.draw_figure(drawn, chart_key, share=0.6, on_cell=chosen)


def _answer(
    store: Store, row: ComparisonRow, reference: ComparisonRow, model: str, test_set: str, key: str
) -> None:
    """Draw the images of a cell, or the search for them, which a click on it has asked for already."""
    ours, theirs = (  # the runs that FedLens trained, by seed and held-out domain
        {(v.run.seed, v.run.held_out): v.run for v in g.runs if v.run.origin == "engine"}
        for g in (row, reference)
    )
    pairs = {markup.seed_text(*seed): (run, theirs[seed]) for seed, run in ours.items() if seed in theirs}
    if not pairs:
        st.info("The two methods have no seed in common that FedLens trained.", icon=":material/info:")
        return
    seed = next(iter(pairs))
    if len(pairs) > 1:
        seed = st.segmented_control("Seed", list(pairs), default=seed, required=True, key=f"{key}_seed")
    runs = first, second = pairs[seed]
    entities = _entities(store, first, model, test_set)
    if entities is None or entities != _entities(store, second, model, test_set):
        st.info("One of the two runs has no such model or test set.", icon=":material/info:")
        return
    reported = {v.run.id: v.rounds[-1] for g in (row, reference) for v in g.runs if v.rounds}
    rounds = (reported.get(first.id), reported.get(second.id))
    asked: background.Asked = (first.id, analysis.Against(second.id, rounds), *entities)
    task, differ = analysis.find(store, *asked), _other_data(store, runs)
    if task is not None and _arrays(task) and not differ:
        place = f"model {model} on {test_set}, {seed}"
        _draw_answer(task, (first.label, reference.label), place, rounds)
        return
    obstacles = ([differ] if differ else _obstacles(store, runs))[:1]
    begin = st.session_state.pop(f"{key}_search", False)
    background.ask_for(
        store, {"Looking for the images": asked}, obstacles, "Find the pictures", f"{key}_ask", begin
    )


def _entities(store: Store, run: RunRow, model: str, test_set: str) -> tuple[int, int] | None:
    """Return the entity codes of a cell of the heatmap in a run; None if the run lacks the cell."""
    codes: dict[tuple[str, str], int] = {}
    for e in store.cells.entities(run.id):
        codes.setdefault((e.kind, e.name), e.entity)
    first = codes.get(("client", model), codes.get(("global", model)))
    second = codes.get(("client", test_set), codes.get(("domain", test_set)))
    return None if first is None or second is None else (first, second)


def _arrays(task: TaskRow | None) -> Mapping[str, np.ndarray]:
    return task.arrays() if task is not None and task.status == "done" else {}


def _obstacles(store: Store, runs: Sequence[RunRow]) -> list[str]:
    """Return the reasons why the images of runs cannot be predicted."""
    texts = (analysis.obstacle(store, run.id, f"Run {run.id} ({run.label})") for run in runs)
    return list(filter(None, texts))


def _other_data(store: Store, runs: Runs) -> str:
    """Return a warning if two runs read different data under one name; empty if the data agree."""
    ours, theirs = (store.runs.environment(run.id) for run in runs)
    recorded = [name for name in ("data", "pixels") if name in ours and name in theirs]
    if all(ours[name] == theirs[name] for name in recorded):
        return ""
    return (
        f"Runs {runs[0].id} and {runs[1].id} read different images, although their data set has one name: "
        "its files were changed in between. No image can be compared; repeat one of the runs."
    )


def _draw_answer(task: TaskRow, names: Names, place: str, wanted: analysis.RoundPair) -> None:
    """Draw the counts, the test, and the images of each kind.

    Args:
        wanted: the (last) rounds of both runs that the difference shows.
    """
    arrays, result = task.arrays(), task.result or {}
    found = count_disagreement(arrays)
    _draw_counts(found, names, f"Test images, {place}")
    for first_right, second_right, title, count in (
        (True, False, f"Only {names[0]} is right", found.only_first),
        (False, True, f"Only {names[1]} is right", found.only_second),
        (False, False, "Both are wrong", found.both_wrong),
    ):
        shown = shown_of(arrays, first_right, second_right)
        if shown:
            st.markdown(f"**{markup.md(title)}**: {len(shown)} of {counted(count, 'image')}")
            _draw_images(arrays, shown, result["classes"], names)
    used = (result["round"], result["other_round"])
    note = ", as reported above"
    if any(w is not None and w != u for w, u in zip(wanted, used, strict=True)):
        note = (
            f"; the difference above is between rounds {wanted[0]} and {wanted[1]}, for which not all "
            "checkpoints are kept (`keep_checkpoints`)"
        )
    st.caption(
        f"Predicted from the checkpoints after rounds {used[0]} and {used[1]}{note}; the cell is the mean "
        "over seeds in the reported round. "
        "McNemar's test is exact and two-sided, over test images as they were drawn; it does not cover other "
        "seeds. "
        "Bright colours mark the parts of an image that support the prediction (Grad-CAM), relative to the "
        "maximum in that image."
    )


def _draw_counts(found: Disagreement, names: Names, label: str) -> None:
    """Draw the counts and McNemar's p as a sentence, and as a table of two by two."""
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    said = (
        f"Of {found.total} test images, {found.only_first} are right with {names[0]} only and "
        f"{found.only_second} with {names[1]} only: {signed(found.difference)} points, McNemar's {p}."
    )
    st.markdown(markup.md(said))
    header = [("", "wide"), (f"{names[1]} right", "num"), (f"{names[1]} wrong", "num")]
    rows = [
        [f"{markup.esc(names[0])} right", str(found.both_right), f"<b>{found.only_first}</b>"],
        [f"{markup.esc(names[0])} wrong", f"<b>{found.only_second}</b>", str(found.both_wrong)],
    ]
    st.html(markup.table_html(header, rows, label))


def _draw_images(
    arrays: Mapping[str, np.ndarray], shown: Sequence[int], classes: Sequence[str], names: Names
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
                said, alt = markup.md(f"true: {true}"), f"test image, class {true}"
                st.image(pictures["first"]["image"][k], caption=said, alt=alt, width="stretch")
                for who, name in zip(("first", "second"), names, strict=True):
                    guess = classes[int(arrays[who][i])]
                    mark = "✓" if guess == true else "✕"
                    share = 100 * float(arrays[f"{who}/probability"][k])
                    said = markup.md(f"{mark} {markup.clipped(name)}: {guess}, {share:.0f} %")
                    alt = f"Grad-CAM of {name}, predicted {guess}"
                    st.image(pictures[who]["map"][k], caption=said, alt=alt, width="stretch")


def field_html(path: str) -> str:
    """Return a field's title as HTML; its name in TOML files shows on hover."""
    return f'<span title="{markup.esc(path)}">{markup.esc(field_title(path))}</span>'
