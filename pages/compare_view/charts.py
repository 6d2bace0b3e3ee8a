"""The tabs Heatmaps, Curves, Cost and Sweep of the page Compare, whose charts have controls of their own."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import streamlit as st

from fedcore.base.progress import counted
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.results import curves, sweeps
from fedcore.results.charts.cost import SCALES
from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.charts.ranks import bar_chart
from fedcore.results.charts.sweep import client_chart, colour_range, sweep_heatmap
from fedcore.results.costs import (
    SHARES,
    USUAL_SHARE,
    Cost,
    CostAxis,
    Reaching,
    pareto_front,
    reaching,
    row_costs,
)
from fedcore.results.curves import AXES, BANDS, Band
from fedcore.results.matrices import (
    Panels,
    difference_panel,
    first_matrix,
    matrix_views,
    over_common_seeds,
    paired_panels,
    shown_panels,
)
from fedcore.results.metrics import BY_ROUND, METRICS, RULES, Metric
from fedcore.results.panels import ORDERS, ordered_panels
from fedcore.results.sweeps import SweepFamily
from fedcore.share.views import Heatmaps
from fedcore.share.views.cost import AGAINST, cost_figure, reach_table
from fedcore.share.views.curves import LOSS, lines_of, recorded_values
from fedcore.share.views.sweep import MAX_LINES, VIEW, families_of, joint_figure, line_figure, parallel_figure
from pages.compare_view import two_runs
from pages.compare_view.controls import BY_VERSION, ShownComparison
from pages.widgets import charts, markup, session

MOST_BARS, MOST_PANELS = 20, 6
"""Rows of the summary's bars and heatmaps."""
FEW_LINES = 10
"""Rows up to which all lines of a chart are shown at first."""
COSTS = {
    "Up, MB": "megabytes_up",
    "Down, MB": "megabytes_down",
    "Training, s": "seconds_train",
    "Aggregation, s": "seconds_aggregate",
    "Evaluation, s": "seconds_evaluate",
}
WITH_SEARCH = {"With its search, MB": "megabytes_with_search", "With its search, s": "seconds_with_search"}
"""Heading of a column -> its number in ``Cost``; the second if a row's hyper-parameters were searched."""
MEANING_OF_BANDS = {
    "std": "Band: one sample standard deviation over seeds.",
    "se": "Band: one standard error of the mean over seeds.",
    "ci95": "Band: 95 % interval of the mean over seeds (Student's t).",
}


@st.cache_data(hash_funcs=BY_VERSION, max_entries=64, show_spinner=False)
def panels_of(shown: ShownComparison, setting: str, view: str) -> Panels:
    """Return the panels of a view by row."""
    return shown_panels(matrix_views()[view], shown.store, shown.comparison, setting)


def draw_best(shown: ShownComparison, setting: str, number: int) -> None:
    """Draw the means of a setting's rows as bars, and the heatmaps of the first of them side by side."""
    shown = shown.visible
    rows = shown.comparison.rows_in(setting)
    view = first_matrix(rows)
    by_key = panels_of(shown, setting, view)
    panels = tuple(by_key[row.key] for row in rows if row.key in by_key)
    if not st.session_state.get("as_tables"):  # the table has these numbers
        charts.draw(bar_chart(rows[:MOST_BARS], shown.metric, session.theme()), f"summary_bars_{number}")
    if panels:
        most = panels[:MOST_PANELS]
        figure = Heatmaps(view, matrix_views()[view].title, most, columns=session.in_a_row(len(most)))
        charts.draw_figure(figure, f"summary_heat_{number}")
    if len(rows) > MOST_BARS or len(panels) > MOST_PANELS:
        st.caption("The first rows only; the table below and the tab Heatmaps have all of them.")


def draw_matrices(shown: ShownComparison) -> None:
    """Draw the matrices of all methods on one colour scale, and their differences from the baseline."""
    views, visible = matrix_views(), shown.visible
    compared = visible.comparison
    titles = {
        name: f"{v.title} ({curves.recording_methods(name)})" if v.recorded else v.title
        for name, v in views.items()
    }
    with st.container(horizontal=True, vertical_alignment="bottom"):
        first = first_matrix(compared.rows)
        if st.session_state.get("matrix") == st.session_state.get("matrix_first") != first:
            st.session_state["matrix"] = first  # nobody chose the former one
        st.session_state["matrix_first"] = first
        titles = {first: titles[first], **titles}
        view = session.choose(st.selectbox, "Matrix", titles, "matrix", width=380)
        fitted = st.toggle(
            "Fit colours to the values",
            key="compare_fitted",
            bind="query-params",
            disabled=views[view].recorded,
        )
        order = session.choose(st.selectbox, "Order of rows", ORDERS, "rows", width=220)
    with_differences = views[view].differences != "nowhere"
    found = False
    for i, (setting, title) in enumerate(compared.settings.items()):
        by_key = panels_of(visible, setting, view)
        if not by_key:
            continue
        found = True
        panels = ordered_panels(list(by_key.values()), order)
        st.markdown(f"**{markup.md(title)}**")
        beside = 1 if view == "methods" else session.in_a_row(len(panels))
        matrices = Heatmaps(view, titles[view], tuple(panels), fitted=fitted, columns=beside)
        charts.draw_figure(matrices, f"compare_heat_{view}_{i}")
        rows, baseline = compared.rows_in(setting), shown.source.baseline_in(setting)
        if baseline is None or not with_differences:
            continue
        by_key = dict(zip(by_key, panels, strict=True))
        every = panels_of(shown, setting, view)  # of hidden rows, too: one of them may be the baseline
        pairs = paired_panels(views[view], shown.store, shown.comparison, every, baseline)
        gaps = {k: difference_panel(*pairs[k], shown=panel) for k, panel in by_key.items() if k in pairs}
        if gaps:
            seeds = over_common_seeds((row for row in rows if row.key in gaps), baseline)
            heading = f"Difference from {markup.clipped(baseline.label)}{seeds}, percentage points"
            st.markdown(f"**{markup.md(heading)}**")
            key = f"compare_gap_{view}_{i}"
            drawn = Heatmaps(view, heading, tuple(gaps.values()), "difference")
            if view == "models":
                two_runs.draw_differences(shown.store, rows, baseline, gaps, drawn, key)
            else:
                charts.draw_figure(replace(drawn, columns=session.in_a_row(len(gaps))), key)
    if not found:
        why = views[view].absent
        st.info(f"None of these runs has this matrix. {why}", icon=":material/grid_off:")
    elif shown.choice.baseline is None and with_differences:
        st.caption("Choose a baseline above to see the differences, cell by cell.")


def draw_curves(shown: ShownComparison) -> None:
    """Draw the mean over seeds with its band, a chart per setting."""
    compared, source = shown.visible.comparison, shown.visible.source
    recorded = recorded_values(source)
    titles: dict[str, str] = {m: METRICS[m].title for m in BY_ROUND if m in compared.metrics}
    titles |= {LOSS: "Training loss"} | {key: chart.heading for key, chart in recorded.items()}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        value = session.choose(st.selectbox, "Value", titles, "curve")
        axis = session.choose(st.selectbox, "Against", AXES, "axis")
        band: Band = session.choose(st.selectbox, "Band", BANDS, "band")
        highlighted = session.choose(
            st.selectbox,
            "Highlight",
            [row.drawn_label for row in compared.rows],
            "highlight",
            index=None,
            placeholder="none",
            help="This line stands out, and the others fade. The pointer over a line does so for a moment.",
        )
        best, most = None, max(len(compared.rows_in(s)) for s in compared.settings)
        if most > FEW_LINES:
            best = st.number_input(
                "Best rows shown",
                min_value=1,
                max_value=most,
                value=FEW_LINES,
                key="best_lines",
                bind="query-params",
                width=160,
                help=f"The rows with the {'lowest' if value == LOSS else 'highest'} last values. A click on "
                "a name in the legend shows or hides a row, a double click shows it alone; the pointer over "
                "a line or a name brings it out.",
            )
        with st.popover("Axes and smoothing", icon=":material/show_chart:"):
            scales: list[Literal["x", "y"]] = []
            scales += ["x"] if st.toggle("Logarithmic, horizontal", key="log_x", bind="query-params") else []
            scales += ["y"] if st.toggle("Logarithmic, vertical", key="log_y", bind="query-params") else []
            weight = st.slider(
                "Smoothing",
                0.0,
                0.95,
                0.0,
                0.05,
                key="smoothing",
                bind="query-params",
                help="Exponential moving average; the raw line stays visible behind it.",
            )
    in_per_cent = value in METRICS or (value in recorded and recorded[value].unit == "%")
    for i, (setting, title) in enumerate(compared.settings.items()):
        st.markdown(f"**{markup.md(title)}**")
        lines = lines_of(source, setting, value, axis, recorded)
        if not lines:
            st.info("No row here has recorded this value.", icon=":material/hourglass_empty:")
            continue
        smooth = [curves.smoothed(curves.with_band(line, band), weight) for line in lines]
        chart = line_chart(
            smooth,
            session.theme(),
            AXES[axis],
            titles[value],
            per_cent=in_per_cent,
            height=460,
            best=best,
            logarithmic=scales,
            lower_is_better=value == LOSS,
            highlighted=highlighted,
        )
        unit = "%" if in_per_cent else ""
        if st.session_state.get("as_tables"):
            charts.draw_tables([(titles[value], series_table(smooth, AXES[axis], unit, band))])
        else:
            charts.draw(chart, f"compare_curves_{i}")
        st.caption(markup.md(chart.alt))
    said = MEANING_OF_BANDS[band]
    said += f" Thick: smoothed with weight {weight:g}; faint: as measured." if weight else " No smoothing."
    if value in recorded:
        said = f"{said} {markup.md(recorded[value].explanation)}".strip()
    st.caption(said)


@st.cache_resource(hash_funcs=BY_VERSION, max_entries=64, show_spinner=False)
def costs_of(
    shown: ShownComparison, setting: str, metric: Metric, share: int
) -> tuple[list[Cost], list[Reaching]]:
    """Return the costs of a setting's rows, and those to reach a share of the best."""
    reached = reaching(shown.store, shown.comparison, setting, metric, (share,))
    return row_costs(shown.store, shown.comparison, setting, metric), reached


def draw_cost(shown: ShownComparison) -> None:
    """Draw accuracy against cost, with the Pareto front, and the cost to reach a target."""
    compared, metric, hidden = shown.comparison, shown.metric, shown.hidden_rows
    with st.container(horizontal=True):
        titles = {axis: text.capitalize() for axis, text in AGAINST.items()}
        against: CostAxis = session.choose(
            st.segmented_control, "Against", titles, "cost", default="megabytes", required=True
        )
        scale = session.choose(
            st.segmented_control,
            "Axis of the cost",
            SCALES,
            "cost_scale",
            default="automatic",
            required=True,
            help="Automatic: logarithmic if the costs span a factor of ten. A logarithmic axis draws a cost "
            "of 0 at its left edge.",
        )
        share = session.choose(
            st.segmented_control,
            "Cost to reach",
            {share: f"{share} %" for share in SHARES},
            "cost_share",
            default=USUAL_SHARE,
            required=True,
            help="A share of the highest mean in the setting. A second table shows what each row needed.",
        )
    for i, (setting, title) in enumerate(shown.visible.comparison.settings.items()):
        every, reached = costs_of(shown, setting, metric, share)
        rows = zip(compared.rows_in(setting), every, strict=True)
        costs = [cost for row, cost in rows if row.label not in hidden]
        front = [cost for cost in pareto_front(every, against) if cost in costs]
        figure = cost_figure(shown.source, costs, front, against, scale)
        st.markdown(f"**{markup.md(title)}**")
        if figure is None:
            st.info(
                f"None of these runs has recorded its {AGAINST[against]} in every round"
                f"{', up and down' if against == 'megabytes' else ''}; imported results often have none.",
                icon=":material/hourglass_empty:",
            )
            continue
        charts.draw_figure(figure, f"compare_cost_{i}")
        if not st.session_state.get("as_tables"):
            columns = COSTS | (WITH_SEARCH if any(c.tuned is not None for c in costs) else {})
            numbers = [f"{METRICS[metric].title}, {METRICS[metric].unit}", *columns]
            header = [("No.", "num"), ("Method", "wide"), *((name, "num") for name in numbers), ("Front", "")]
            lines = [
                [
                    str(number),
                    markup.method_html(c.label, c.method),
                    markup.number(c.accuracy, 1),
                    *(markup.number(getattr(c, name), 2) for name in columns.values()),
                    "yes" if c in front else "",
                ]
                for number, c in enumerate(costs, 1)
            ]
            st.html(markup.table_html(header, lines, f"Cost on {title}"))
        if not reached:
            st.caption(f"{METRICS[metric].title} was not recorded by round, so its cost to reach is unknown.")
        for of_all in reached:
            found = replace(of_all, rows=tuple(r for r in of_all.rows if r.row.label not in hidden))
            _draw_reaching(found, title)
    st.caption(
        "Hover over a point for its name; where a name has no room, the point has its number in the table. "
        "Front: no other row, shown or hidden, reaches more without costing more. "
        "Traffic: all clients over all rounds, up and down (1 MB = 1,000,000 bytes); unknown if a script "
        "recorded one direction only. Time: training and aggregation of all rounds. "
        "The column of evaluation includes diagnostics and checkpoints; no column includes "
        "loading. All are means over runs; with its search: one run and all draws of the search "
        "that selected its hyper-parameters."
    )


def _draw_reaching(found: Reaching, setting: str) -> None:
    """Draw what each row needed to reach a target."""
    if not found.rows:
        return
    st.markdown(f"**{markup.md(found.title)}**")
    header = [("Method", "wide"), ("Seeds that reach it", "num")]
    header += [("Rounds", "num"), ("Traffic, MB", "num"), ("Time, s", "num")]
    _, *reaches = reach_table(found).values()
    names = (markup.method_html(reach.row.label, reach.row.method) for reach in found.rows)
    texts = (["-" if value is None else markup.esc(value) for value in column] for column in reaches)
    cells = zip(names, *texts, strict=True)
    st.html(markup.table_html(header, cells, f"{found.title} on {setting}"))
    st.caption(
        "Counted to the first evaluated round in which the test accuracy is at least this high, as mean ± "
        "sample standard deviation over the seeds that reach it; if none does, no cost is given."
    )


def draw_sweep(shown: ShownComparison) -> None:
    """Draw all methods over one field, one method over one and over two, and all combinations."""
    compared, metric, hidden = shown.comparison, shown.metric, shown.hidden_rows
    every, families, found = families_of(compared, metric), list[SweepFamily](), list[str]()
    for family in every:
        if rows := tuple(row for row in family.rows if row.group.label not in hidden):
            families.append(replace(family, rows=rows))
            found += sweeps.findings(compared, family, metric, shown.choice.test)
    if not families:
        st.info("All rows of the sweep are hidden." if every else VIEW.absent, icon=":material/tune:")
        return
    for said in found:
        st.markdown(markup.md(said))
    joint, alone = sweeps.joint_families(families)
    for i, (field, together) in enumerate(joint.items()):
        figure = joint_figure(together, field, metric)
        st.markdown(f"**{markup.md(figure.title)}**")
        charts.draw_figure(figure, f"sweep_all_{i}", with_alt=True)
    if alone:
        _one_method(alone, metric, colour_range(families))
    figure = parallel_figure(families, metric)
    st.markdown(f"**{figure.title}**")
    charts.draw_figure(figure, "sweep_parallel", with_alt=True)
    st.caption("Drag along an axis to keep only the lines that pass through that range.")
    st.caption(f"Mean ± sample standard deviation over seeds; reported round: {RULES[compared.rule]}.")


def _one_method(families: Sequence[SweepFamily], metric: Metric, colours: tuple[int, int]) -> None:
    """Draw one of the methods that no chart of all methods has, over one of its fields and over two."""

    def name(index: int) -> str:  # unique, since titles may be equal where settings differ
        family = families[index]
        fields = ", ".join(field_phrase(f) for f in family.fields)
        return f"{family.title} over {fields} ({counted(len(family.rows), 'combination')})"

    family = families[0]
    if len(families) > 1:
        family = families[st.selectbox("Method", range(len(families)), format_func=name, key="sweep_family")]
    field = family.fields[0]
    if len(family.fields) > 1:
        field = st.selectbox("Plotted over", family.fields, format_func=field_title, key="sweep_over")
    charts.draw_figure(line_figure(family, field, metric), "sweep_line")
    lines = len(sweeps.sweep_lines(family, field))
    if lines > MAX_LINES:
        st.caption(f"{MAX_LINES} of {lines} lines are drawn; the chart of all combinations has the others.")
    if points := sweeps.client_points(family, field):
        st.markdown(f"**{markup.md(family.title)} by client over {markup.md(field_phrase(field))}**")
        names = ("client", field_phrase(field), "accuracy, %")
        columns = dict(zip(names, zip(*points, strict=True), strict=True))
        charts.draw(client_chart(points, session.theme(), field), "sweep_clients", columns)
        st.caption("Own test samples, in all runs with this value: median, quartiles, extremes and outliers.")
    if len(family.fields) == 1:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        row = st.selectbox("Rows", family.fields, format_func=field_title, key="sweep_row")
        rest = [f for f in family.fields if f != row]
        column = st.selectbox("Columns", rest, format_func=field_title, key="sweep_column")
        fixed = {
            f: st.selectbox(field_title(f), family.values(f), 0, partial(value_text, f), f"sweep_at_{f}")
            for f in rest
            if f != column
        }
    found = sweeps.sweep_grid(family, row, column, fixed)
    chart = sweep_heatmap(found, session.theme(), METRICS[metric].title, colours, METRICS[metric].unit)
    table: dict[str, list[object]] = {field_title(row): [value_text(row, v) for v in found.rows]}
    for value, stats in zip(found.columns, zip(*found.stats, strict=True), strict=True):
        heading = f"{field_phrase(column)} {value_text(column, value)}"
        table[heading] = [None if stat is None else stat.text() for stat in stats]
    charts.draw(chart, "sweep_grid", table)
    st.caption(markup.md(chart.alt))
