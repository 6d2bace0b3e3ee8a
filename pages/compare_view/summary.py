"""The tab Summary of the page Compare: tables in which every number opens to the runs behind it."""

from collections.abc import Sequence

import streamlit as st

from fedcore.base.progress import counted, first_few
from fedcore.results.comparison import Comparison
from fedcore.results.finding import findings
from fedcore.results.metrics import (
    BREAKDOWNS,
    METRICS,
    RULES,
    Breakdown,
    Metric,
)
from fedcore.results.progress import budget_text
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import TESTS, Stat, signed
from fedcore.results.summary import MeanCell, PrintedValue, Summary, SummaryRow, SummaryTable, summarise
from pages.compare_view import table as tables
from pages.compare_view.controls import ComparedState, ShownComparison
from pages.compare_view.table import SummaryColumn
from pages.widgets import markup

DIGITS = 1
"""Decimals of the accuracies; the runs behind a number show two."""
MANY_NAMES = 12
"""Domains or clients above which their table scrolls."""
MANY_SETTINGS = 3
"""Settings above which the findings of the others are folded."""
MAX_NAMES = 6
"""Printed methods without a row that are named; the others are counted."""


@st.cache_data(max_entries=32, show_spinner=False)
def _findings(_shown: ShownComparison, of: ComparedState, *choices: object) -> dict[str, str]:
    return findings(_summary(_shown))


def draw_findings(shown: ShownComparison) -> None:
    """Draw what the comparison has found in words, above the tabs."""
    choice = shown.choice
    found = _findings(shown, shown.version, choice.baseline, choice.test, shown.metric)
    several = len(shown.comparison.settings) > 1
    texts = [
        f"**{markup.md(title)}:** {markup.md(text)}" if several else markup.md(text)
        for title, text in found.items()
    ]
    markup.show_finding(texts[:MANY_SETTINGS])
    if texts[MANY_SETTINGS:]:
        with st.expander(f"Findings in {counted(len(texts) - MANY_SETTINGS, 'more setting')}"):
            st.markdown("  \n".join(texts[MANY_SETTINGS:]))


def _summary(shown: ShownComparison) -> Summary:
    choice = shown.choice
    return summarise(
        shown.comparison,
        choice.baseline,
        choice.test,
        shown.printed,
        metric=shown.metric,
        tested=[shown.metric],
        digits=DIGITS,
    )


def draw(shown: ShownComparison) -> None:
    """Draw mean and spread of every method, a table per setting."""
    choice, layout, summary = shown.choice, shown.layout, _summary(shown)
    tables.follow_clicks()
    for i, table in enumerate(summary.tables):
        st.markdown(f"**{markup.md(table.title)}**")
        columns = [c for c in _columns(summary, table) if c.key not in layout.hidden_columns]
        columns += [tables.field_column(name) for name in layout.fields]
        st.html(tables.table_html(table.rows, columns, layout, f"Summary of {table.title}"))
        labels = [row.row.label for row in table.rows if row.row.label in layout.hidden_rows]
        if labels:
            hidden = ", ".join(markup.md(markup.clipped(label)) for label in labels)
            st.caption(f"Hidden, but counted for best values and p: {hidden}.")
        if presets := table.printed.presets_text([row.row for row in table.rows]):
            st.caption(markup.md(presets))
        if choice.baseline is not None and table.baseline is None:
            label = markup.md(markup.clipped(choice.baseline))
            st.caption(f"The baseline {label} has no run in this setting.")
        _draw_breakdowns([row.row for row in table.rows], i)
    st.caption(
        f"{markup.md(' '.join(summary.notes))} Click a number for its runs, or a heading to sort; hover over "
        "a heading for its meaning."
    )
    _draw_printed_notes(summary)
    sources(shown.comparison)


def _draw_printed_notes(summary: Summary) -> None:
    """Name the papers behind the printed values, and the printed methods that have no row."""
    printed = summary.printed
    notes = [markup.md(note) for note in printed.notes]
    if notes:
        rule = RULES[summary.comparison.rule]
        notes.append(f"Ours: {rule}; the tab Published shows ours measured as in each paper.")
    if printed.reasons:
        notes.append("Open a printed value for the reasons.")
    for why in dict.fromkeys(printed.missing.values()):
        names = [name for name, reason in printed.missing.items() if reason == why]
        notes.append(f"Printed, {why} here: {markup.md(first_few(names, MAX_NAMES))}.")
    if notes:
        st.caption(" ".join(notes))


def _columns(summary: Summary, table: SummaryTable) -> list[SummaryColumn]:
    """Return the columns of a setting's table: method, metrics, difference from the baseline, counts."""
    columns = [SummaryColumn("label", "Method", lambda r: _name(r.row), lambda r: r.row.label, css="wide")]
    for metric in table.metrics:
        columns.append(_mean_column(summary, metric))
        columns += [_printed_column(summary, metric)] if metric in table.printed_metrics else []
    columns += _difference_columns(summary) if table.baseline is not None else []
    return [
        *columns,
        SummaryColumn(
            "seeds",
            "Seeds (n)",
            lambda r: r.seeds,
            lambda r: max((r.means[m].stat.n for m in table.metrics if m in r.means), default=0),
            "Number of seeds behind each mean",
        ),
        SummaryColumn(
            "rounds",
            "Rounds",
            lambda r: r.rounds,
            lambda r: r.row.config.rounds,
            "Rounds that the runs have done, of those that their config asks for",
        ),
        *(
            [
                SummaryColumn(
                    "tuning",
                    "Tuning",
                    lambda r: budget_text(r.row.config) or "-",
                    lambda r: r.row.config.method.tuned.draws if r.row.config.method.tuned else 0,
                    "Draws of the search that selected the hyper-parameters on validation samples",
                )
            ]
            if any(r.row.config.method.tuned for r in table.rows)
            else []
        ),
    ]


def _name(row: ComparisonRow) -> str:
    mark = f' <span title="{markup.esc(row.remark)}">{row.mark}</span>' if row.mark else ""
    starred = any(result.run.starred for result in row.runs)
    star = f' <span aria-label="starred">{markup.STAR}</span>' if starred else ""
    return markup.method_html(row.label, row.method) + mark + star


def _mean_column(summary: Summary, metric: Metric) -> SummaryColumn:
    rule = RULES[summary.comparison.rule]
    return SummaryColumn(
        metric,
        f"{METRICS[metric].heading}, {METRICS[metric].unit}",
        lambda r: _mean_cell(r.row, r.means[metric], rule) if metric in r.means else "-",
        lambda r: r.means[metric].stat.mean if metric in r.means else None,
        f"{METRICS[metric].title}: {METRICS[metric].help}",
    )


def _mean_cell(row: ComparisonRow, cell: MeanCell, rule: str) -> str:
    """Return a number as HTML that opens to its seeds, runs, rounds and rule."""
    tag = {"best": "b", "second": "u", "": ""}[cell.mark]
    text = cell.stat.text(DIGITS)
    lines = []
    for seed, value in cell.by_seed.items():
        results = [result for result in row.runs if result.run.seed == seed]
        out = {r.run.id: f" ({markup.esc(r.run.held_out)})" if r.run.held_out else "" for r in results}
        links = ", ".join(markup.run_link(number) + text for number, text in out.items())
        rounds = " / ".join(dict.fromkeys(result.rounds_text for result in results))
        lines.append(f"seed {seed}: <b>{value:.2f}</b>, run {links}, round {markup.esc(rounds)}")
    lines.append(f"{rule}; the run's page has the command that repeats it")
    return _details(f"<{tag}>{text}</{tag}>" if tag else text, lines)


def _details(summary: str, lines: Sequence[str]) -> str:
    return (
        f'<details class="fl-cell"><summary>{summary}</summary><small>{"<br>".join(lines)}</small></details>'
    )


def _printed_column(summary: Summary, metric: Metric) -> SummaryColumn:
    return SummaryColumn(
        f"{metric}_printed",
        f"{METRICS[metric].heading} printed, %",
        lambda r: _printed_cell(summary, r, metric),
        lambda r: r.printed[metric][0].value if r.printed[metric] else None,
        "What papers print for this row",
    )


def _printed_cell(summary: Summary, row: SummaryRow, metric: Metric) -> str:
    """Return printed values as HTML that opens to their tables, and to ours where the rule is the same."""
    values = row.printed[metric]
    if not values:
        return markup.faint("not printed")
    texts = dict.fromkeys(f"{v.text(DIGITS)} {v.comparability.mark}".rstrip() for v in values)
    return _details(" / ".join(texts), [_printed_line(summary, row, metric, value) for value in values])


def _printed_line(summary: Summary, row: SummaryRow, metric: Metric, value: PrintedValue) -> str:
    rule, line = summary.comparison.rule, f"{markup.esc(value.source)}: {markup.esc(value.method)}"
    line += f" <b>{value.text()}</b>"
    if metric in row.means and value.rule == rule and value.comparability.state != "not comparable":
        line += f", ours {signed(row.means[metric].stat.mean - value.value, 2)}"
    line += "" if value.rule == rule else f", {RULES[value.rule]}"
    return f"{line} ({markup.esc(value.comparability.text)})"


def _difference_columns(summary: Summary) -> list[SummaryColumn]:
    metric = summary.metric

    def adjusted(row: SummaryRow) -> float | None:
        test = row.differences[metric].test
        return None if test is None else test.adjusted

    return [
        SummaryColumn(
            "difference",
            f"{METRICS[metric].heading}: difference, points",
            lambda r: _difference(r, metric),
            lambda r: r.differences[metric].points,
            "Mean of the differences from the baseline over the seeds that both rows have. Rows with other "
            "test sets, rounds or participation, or with unfinished runs, are not compared with it.",
        ),
        SummaryColumn(
            "p",
            "p",
            lambda r: _p(r, metric),
            adjusted,
            f"{TESTS[summary.test]}, two-sided, over the seeds that both rows have, Holm-corrected for all "
            "tested rows of the table. With fewer than three seeds nothing is called significant.",
        ),
    ]


def _difference(row: SummaryRow, metric: Metric) -> str:
    cell = row.differences[metric]
    star = "&nbsp;<b>*</b>" if cell.significant else ""
    return (cell.text(DIGITS) or "-") + star


def _p(row: SummaryRow, metric: Metric) -> str:
    cell = row.differences[metric]
    if cell.p_text is None:
        return "-"
    text = markup.esc(cell.p_text)
    return f'<span title="{markup.esc(cell.p_help)}">{text}</span>' if cell.p_help else text


def _draw_breakdowns(rows: Sequence[ComparisonRow], number: int) -> None:
    recorded = [part for part in BREAKDOWNS if any(part in row.breakdowns for row in rows)]
    if not recorded:
        return
    box = st.expander(
        "By domain and client", icon=":material/table_rows:", key=f"compare_parts_{number}", on_change="rerun"
    )
    if not box.open:
        return
    with box:
        part: Breakdown = st.segmented_control(
            "Numbers",
            recorded,
            default=recorded[0],
            required=True,
            format_func=BREAKDOWNS.__getitem__,
            key=f"part_{number}",
            label_visibility="collapsed",
        )
        stats = [row.breakdowns.get(part, {}) for row in rows]
        names = list(dict.fromkeys(name for by_name in stats for name in by_name))
        if len(names) > MANY_NAMES:
            columns = {"Method": [f"{row.label} {row.mark}".rstrip() for row in rows]}
            columns |= {name: [_text(by_name.get(name)) for by_name in stats] for name in names}
            st.dataframe(columns, hide_index=True, key=f"part_table_{number}")
        else:
            header = [("Method", "wide"), *((name, "num") for name in names)]
            cells = [
                [_name(row), *(_text(by_name.get(name)) for name in names)]
                for row, by_name in zip(rows, stats, strict=True)
            ]
            st.html(markup.table_html(header, cells, BREAKDOWNS[part]))


def _text(stat: Stat | None) -> str:
    return "-" if stat is None else stat.text(DIGITS)


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
            markup.run_link(v.run.id),
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
        markup.marks_editor([v.run for group in compared.rows for v in group.runs])
