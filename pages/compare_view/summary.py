"""The tab Summary of the page Compare: tables in which every number opens to the runs behind it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.progress import counted
from fedcore.results.comparison import (
    Comparison,
    ComparisonRow,
    difference,
    ranks,
    reason_not_comparable,
    shown_metrics,
    significance,
)
from fedcore.results.metrics import (
    BREAKDOWNS,
    METRIC_HEADINGS,
    METRIC_HELP,
    METRICS,
    RULES,
    Breakdown,
    Metric,
    value_per_seed,
)
from fedcore.results.printed import MARKS, PrintedValue, PrintedValues
from fedcore.results.statistics import TESTS, PairedTest, Stat, Test, signed
from pages.compare_view import table
from pages.compare_view.controls import ShownComparison
from pages.compare_view.table import SummaryColumn
from pages.widgets import marks, markup, session
from pages.widgets.marks import STAR

MANY_NAMES = 12
"""Domains or clients above which their table scrolls."""
MAX_NAMES = 6
"""Printed methods without a row that are named; the others are counted."""


def draw(shown: ShownComparison) -> None:
    """Draw mean and spread of every method, a table per setting."""
    compared, printed, layout = shown.comparison, shown.printed, shown.layout
    baseline, metric, test = shown.choice.baseline, shown.metric, shown.choice.test
    table.follow_clicks()
    for i, (setting, title) in enumerate(compared.settings.items()):
        groups = compared.rows_in(setting)
        reference = next((g for g in groups if g.label == baseline), None)
        st.markdown(f"**{markup.md(title)}**")
        columns = _columns(compared, groups, reference, metric, test, printed)
        columns = [c for c in columns if c.key not in layout.hidden_columns]
        columns += [table.field_column(name) for name in layout.fields]
        st.html(table.table_html(groups, columns, layout, f"Summary of {title}"))
        hidden = [markup.md(markup.clipped(g.label)) for g in groups if g.label in layout.hidden_rows]
        if hidden:
            st.caption(f"Hidden, but counted for best values and p: {', '.join(hidden)}.")
        if baseline is not None and reference is None:
            st.caption(f"The baseline {markup.md(markup.clipped(baseline))} has no run in this setting.")
        _parts(groups, i)
    several = any(len(g.seeds) > 1 for g in compared.rows)
    spread = (
        "mean ± sample standard deviation over seeds" if several else "one seed, so no standard deviation"
    )
    st.caption(
        f"Test accuracy, {spread}; reported round: {RULES[compared.rule]}. **Bold**: best; underlined: "
        "second best; rows of one seed are not marked beside rows of several. Click a number for its runs, "
        "or a heading to sort; hover over a heading for its meaning."
    )
    if baseline is not None:
        st.caption(f"\\* significant at 5 %: {TESTS[test]}, two-sided, Holm-corrected.")
    _printed_sources(compared, printed)
    sources(compared)


def _printed_sources(compared: Comparison, printed: PrintedValues) -> None:
    """Name the papers behind the printed values, and the printed methods that have no row."""
    if not printed.values and not printed.missing:
        return
    said = []
    if printed.sources:
        said.append(
            f"*Printed*: {markup.md('; '.join(printed.sources))}, with the round that the paper reports in "
            f"brackets. Ours: {RULES[compared.rule]}; the tab Published shows ours measured as in each paper."
        )
    if MARKS["with a caveat"] in (marks := {v.comparability.mark for v in printed.all}):
        said.append(f"{MARKS['with a caveat']} With a caveat: the paper can be read in more than one way.")
    if MARKS["not comparable"] in marks:
        said.append(f"{MARKS['not comparable']} Not comparable: ours measures something else.")
    if marks - {""}:
        said.append("Open a printed value for the reasons.")
    for why in dict.fromkeys(printed.missing.values()):
        names = [name for name, reason in printed.missing.items() if reason == why]
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        said.append(f"Printed, {why} here: {markup.md(', '.join(names[:MAX_NAMES]))}{more}.")
    st.caption(" ".join(said))


def _columns(
    compared: Comparison,
    groups: Sequence[ComparisonRow],
    reference: ComparisonRow | None,
    metric: Metric,
    test: Test,
    printed: PrintedValues,
) -> list[SummaryColumn]:
    """Return the columns of a setting's table: method, metrics, difference from the baseline, counts."""
    metrics, printed_metrics = shown_metrics(groups), printed.metrics(groups)
    columns = [SummaryColumn("label", "Method", _name, lambda g: g.label, css="wide")]
    for m in metrics:
        columns.append(_metric_column(compared, m, ranks(groups, m)))
        columns += [_printed_column(compared, m, printed)] if m in printed_metrics else []
    columns += _test_columns(groups, reference, metric, test) if reference else []
    seeds = {
        g.key: sorted({s.n for m in metrics if (s := g.stats.get(m)) is not None}, reverse=True)
        for g in groups
    }
    return [
        *columns,
        SummaryColumn(
            "seeds", "Seeds (n)", lambda g: "/".join(map(str, seeds[g.key])) or "0",
            lambda g: max(seeds[g.key], default=0), "Number of seeds behind each mean",
        ),
        SummaryColumn(
            "rounds", "Rounds", _rounds, lambda g: g.config.rounds,
            "Rounds that the runs have done, of those that their config asks for",
        ),
    ]  # fmt: skip


def _name(group: ComparisonRow) -> str:
    mark = f' <span title="{markup.esc(group.remark)}">{group.mark}</span>' if group.mark else ""
    star = f' <span aria-label="starred">{STAR}</span>' if any(v.run.starred for v in group.runs) else ""
    return markup.method_html(group.label, group.method) + mark + star


def _metric_column(compared: Comparison, metric: Metric, marks: tuple[set[str], set[str]]) -> SummaryColumn:
    return SummaryColumn(
        metric,
        f"{METRIC_HEADINGS[metric]}, %",
        lambda g: _cell(compared, g, metric, marks),
        lambda g: g.stats[metric].mean if metric in g.stats else None,
        f"{METRICS[metric]}: {METRIC_HELP[metric]}",
    )


def _printed_column(compared: Comparison, metric: Metric, printed: PrintedValues) -> SummaryColumn:
    return SummaryColumn(
        f"{metric}_printed",
        f"{METRIC_HEADINGS[metric]} printed, %",
        lambda g: _printed_cell(compared, g, metric, printed.of(g, metric)),
        lambda g: values[0].value if (values := printed.of(g, metric)) else None,
        "What papers print for this row",
    )


def _test_columns(
    groups: Sequence[ComparisonRow], reference: ComparisonRow, metric: Metric, test: Test
) -> list[SummaryColumn]:
    tested = significance(groups, reference, metric, test)
    cells = {g.key: _against(g, reference, metric, tested.get(g.key)) for g in groups}
    return [
        SummaryColumn(
            "difference", f"{METRIC_HEADINGS[metric]}: difference, points", lambda g: cells[g.key][0],
            lambda g: difference(g, reference, metric),
            "Mean minus the baseline's. Rows with other test sets, rounds or participation, or with "
            "unfinished runs, are not compared with the baseline.",
        ),
        SummaryColumn(
            "p", "p", lambda g: cells[g.key][1],
            lambda g: tested[g.key].adjusted if g.key in tested else None,
            f"{TESTS[test]}, two-sided, over the seeds that both rows have, Holm-corrected for all tested "
            "rows of the table. With fewer than three seeds nothing is called significant.",
        ),
    ]  # fmt: skip


def _cell(
    compared: Comparison, group: ComparisonRow, metric: Metric, marks: tuple[set[str], set[str]]
) -> str:
    """Return a number as HTML that opens to its seeds, runs, rounds and rule."""
    stat = group.stats.get(metric)
    if stat is None:
        return "-"
    text = stat.text()
    if group.key in marks[0]:
        text = f"<b>{text}</b>"
    elif group.key in marks[1]:
        text = f"<u>{text}</u>"
    lines = []
    for seed, value in value_per_seed(group.runs, metric).items():
        runs = [v for v in group.runs if v.run.seed == seed]
        links = ", ".join(
            _run_link(v.run.id) + (f" ({markup.esc(v.run.held_out)})" if v.run.held_out else "") for v in runs
        )
        taken = " / ".join(dict.fromkeys(v.rounds_text for v in runs))
        lines.append(f"seed {seed}: <b>{value:.2f}</b>, run {links}, round {markup.esc(taken)}")
    lines.append(f"{RULES[compared.rule]}; the run's page has the command that repeats it")
    return f'<details class="fl-cell"><summary>{text}</summary><small>{"<br>".join(lines)}</small></details>'


def _printed_cell(
    compared: Comparison, group: ComparisonRow, metric: Metric, values: Sequence[PrintedValue]
) -> str:
    """Return printed values as HTML that opens to their tables, and to ours where the rule is the same."""
    if not values:
        return markup.faint("not printed")
    texts = dict.fromkeys(f"{f.text(1)} {f.comparability.mark}".rstrip() for f in values)
    ours, lines = group.stats.get(metric), []
    for f in values:
        line = f"{markup.esc(f.source)}: {markup.esc(f.method)} <b>{f.text()}</b>"
        if ours is not None and f.rule == compared.rule and f.comparability.state != "not comparable":
            line += f", ours {signed(ours.mean - f.value, 2)}"
        line += "" if f.rule == compared.rule else f", {RULES[f.rule]}"
        lines.append(f"{line} ({markup.esc(f.comparability.text)})")
    return (
        f'<details class="fl-cell"><summary>{" / ".join(texts)}</summary>'
        f"<small>{'<br>'.join(lines)}</small></details>"
    )


def _run_link(run_id: int) -> str:
    return f'<a href="{session.link("run", run_id)}" target="_self">{run_id}</a>'


def _against(
    group: ComparisonRow, reference: ComparisonRow, metric: Metric, tested: PairedTest | None
) -> list[str]:
    gap = difference(group, reference, metric)
    if group.key == reference.key:
        return ["baseline", ""]
    why = reason_not_comparable(group, reference)
    if why:
        return ["-", f'<span title="{markup.esc(why)}">not comparable</span>']
    if gap is None or tested is None:
        return ["-", "-"]
    star = "&nbsp;<b>*</b>" if tested.significant else ""
    title = f"{TESTS[tested.test]} over {counted(tested.n, 'seed')}"
    title += (
        "" if tested.difference is None else f", difference on these {signed(tested.difference, 2)} points"
    )
    title += "" if tested.p is None else f"; uncorrected p {tested.p:.3g}"
    text = tested.text.removeprefix("p = ").removeprefix("p ")
    return [f"{signed(gap)}{star}", f'<span title="{markup.esc(title)}">{markup.esc(text)}</span>']


def _rounds(group: ComparisonRow) -> str:
    done = {v.run.rounds_done for v in group.runs}
    asked = group.config.rounds
    return str(asked) if done == {asked} else f"{min(done)} of {asked}"


def _parts(groups: Sequence[ComparisonRow], number: int) -> None:
    """Draw the means by domain, by client and by held-out domain."""
    there = [p for p in BREAKDOWNS if any(p in g.breakdowns for g in groups)]
    if not there:
        return
    box = st.expander(
        "By domain and client", icon=":material/table_rows:", key=f"compare_parts_{number}", on_change="rerun"
    )
    if not box.open:
        return
    with box:
        part: Breakdown = st.segmented_control(
            "Numbers", there, default=there[0], required=True, format_func=BREAKDOWNS.__getitem__,
            key=f"part_{number}", label_visibility="collapsed",
        )  # fmt: skip
        rows = {g.key: g.breakdowns.get(part, {}) for g in groups}
        names = list(dict.fromkeys(n for stats in rows.values() for n in stats))
        if len(names) > MANY_NAMES:
            table = {"Method": [f"{g.label} {g.mark}".rstrip() for g in groups]}
            table.update({n: [_text(rows[g.key].get(n)) for g in groups] for n in names})
            st.dataframe(table, hide_index=True, key=f"part_table_{number}")
        else:
            header = [("Method", "wide"), *((n, "num") for n in names)]
            cells = [[_name(g), *(_text(rows[g.key].get(n)) for n in names)] for g in groups]
            st.html(markup.table_html(header, cells, BREAKDOWNS[part]))


def _text(stat: Stat | None) -> str:
    return "-" if stat is None else stat.text()


def sources(compared: Comparison) -> None:
    """Draw a table of all runs behind the summary."""
    box = st.expander(
        "All runs behind these numbers", icon=":material/fact_check:", key="compare_runs", on_change="rerun"
    )
    if not box.open:
        return
    held_out = any(v.run.held_out for g in compared.rows for v in g.runs)
    header = [("Method", "wide"), ("Run", "num"), ("Experiment", "num"), ("Seed", "num")]
    header += [("Held out", "")] if held_out else []
    header += [("Reported round", ""), ("Personal accuracy, %", "num"), ("State", ""), ("Repeat", "name")]
    rows = [
        [
            markup.method_html(group.label, group.method),
            _run_link(v.run.id),
            str(v.run.experiment_id),
            str(v.run.seed),
            *([markup.esc(v.run.held_out or "-")] if held_out else []),
            markup.esc(v.rounds_text),
            markup.number(v.values["personal"], 2),
            markup.status_html(v.run.state),
            f"<code>fedlens run run-{v.run.id}.toml</code>",
        ]
        for group in compared.rows
        for v in group.runs
    ]
    with box:
        st.html(markup.table_html(header, rows, "Runs behind the numbers"))
        st.caption("The run's page has the config file that the command needs.")
        st.markdown("**Star, tags and notes**")
        marks.editor([v.run for group in compared.rows for v in group.runs])
