"""The tab Summary of the page Compare: tables in which every number opens to the runs behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from fedcore.base.progress import counted, first_few
from fedcore.config.field_names import field_title, value_text
from fedcore.results.comparison import Comparison
from fedcore.results.finding import findings
from fedcore.results.metrics import BREAKDOWNS, METRICS, RULES, Breakdown, Metric
from fedcore.results.progress import budget_text
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import TESTS, group_by, signed
from fedcore.results.summary import Summary, SummaryRow, SummaryTable
from pages.compare_view.charts import draw_best
from pages.compare_view.controls import MARKS, SORT, ShownComparison
from pages.widgets import background, markup

DIGITS = 1
"""Decimals of the accuracies; the runs behind a number show two."""
MANY_NAMES = 12
"""Domains or clients above which their table scrolls."""
MANY_SETTINGS = 3
"""Settings above which the findings of the others are folded, and the tab has tables only."""
MAX_NAMES = 6
"""Printed methods without a row that are named; the others are counted."""
_headings = st.components.v2.component(
    "sortable_headings", html="<i></i>", js=Path(__file__).with_name("table.js").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class SummaryColumn:
    """A column of the summary.

    Attributes:
        cell: row -> HTML.
        value: row -> the value to sort by; rows with None come last.
        help: the meaning of its values, shown when the pointer rests on the heading.
    """

    key: str
    title: str
    cell: Callable[[SummaryRow], str]
    value: Callable[[SummaryRow], float | str | None]
    help: str = ""
    css: str = "num"


def draw_findings(shown: ShownComparison) -> None:
    """Draw what the comparison has found in words, above the tabs."""
    found = findings(shown.means(DIGITS)) | findings(shown.summary(DIGITS))
    several = len(shown.comparison.settings) > 1
    texts = [
        f"**{markup.md(title)}:** {markup.md(text)}" if several else markup.md(text)
        for title, text in found.items()
    ]
    markup.show_finding(texts[:MANY_SETTINGS])
    if texts[MANY_SETTINGS:]:
        with st.expander(f"Findings in {counted(len(texts) - MANY_SETTINGS, 'more setting')}"):
            st.markdown("  \n".join(texts[MANY_SETTINGS:]))


def draw(shown: ShownComparison) -> None:
    """Draw mean and spread of every method, a table per setting."""
    choice, summary, means = shown.choice, shown.summary(DIGITS), shown.means(DIGITS)
    hidden, sort = shown.hidden_rows, st.query_params.get(SORT, "")
    follow_clicks()
    charted = shown.visible.comparison.settings if len(summary.tables) <= MANY_SETTINGS else {}
    tables = [(of, table) for of in (means, summary) for table in of.tables]
    for i, (of, table) in enumerate(tables):
        st.markdown(f"**{markup.md(table.title)}**")
        if of is summary and table.setting in charted:
            draw_best(shown, table.setting, i)
        if i == 0:
            with st.container(horizontal=True, horizontal_alignment="right"):
                background.csv_button(shown.experiments, choice)
        columns = [c for c in columns_of(of, table) if c.key not in shown.hidden_columns]
        columns += map(_field_column, shown.fields)
        head = "".join(_heading(column, sort) for column in columns)
        body = f"<thead><tr>{head}</tr></thead>"
        drawn = [row for row in table.rows if row.row.label not in hidden]
        for title, members in _sections(drawn, shown.group).items():
            start, span = markup.esc(title), len(columns)
            above = f'<tr><th scope="rowgroup" class="fl-section" colspan="{span}">{start}</th></tr>'
            body += f"<tbody>{above if shown.group else ''}"
            for row in _ordered(members, columns, sort):
                cells = "".join(f'<td class="{c.css}">{c.cell(row)}</td>' for c in columns)
                body += f"<tr>{cells}</tr>"
            body += "</tbody>"
        st.html(markup.scrolled_table(body, f"Summary of {table.title}"))
        rows = [row.row for row in table.rows]
        if labels := [row.label for row in rows if row.label in hidden]:
            named = ", ".join(markup.md(markup.clipped(label)) for label in labels)
            st.caption(f"Hidden, but counted for best values and p: {named}.")
        if presets := table.printed.presets_text(rows):
            st.caption(markup.md(presets))
        if choice.baseline is not None and table.baseline is None and of is summary:
            label = markup.md(markup.clipped(choice.baseline))
            st.caption(f"The baseline {label} has no run in this setting.")
        _draw_breakdowns(rows, i)
    for note in means.comparison.notes:
        st.caption(f":material/info: {markup.md(note)}")
    st.caption(
        f"{markup.md(' '.join(summary.notes))} Click a number for its runs, or a heading to sort; hover over "
        "a heading for its meaning."
    )
    # the papers behind the printed values, and the printed methods that have no row
    printed = summary.printed
    notes = [markup.md(note) for note in printed.notes]
    if notes:
        rule = RULES[summary.comparison.rule]
        notes.append(f"Ours: {rule}; the page Papers shows ours measured as in each paper.")
    if printed.reasons:
        notes.append("Open a printed value for the reasons.")
    for why, names in group_by(printed.missing, printed.missing.__getitem__).items():
        notes.append(f"Printed, {why} here: {markup.md(first_few(names, MAX_NAMES))}.")
    if notes:
        st.caption(" ".join(notes))
    _draw_sources(shown.comparison)


def columns_of(summary: Summary, table: SummaryTable) -> list[SummaryColumn]:
    """Return the columns of a setting's table: method, metrics, difference from the baseline, counts."""
    columns = [SummaryColumn("label", "Method", lambda r: _name(r.row), lambda r: r.row.label, css="wide")]
    for metric in table.metrics:
        columns.append(_mean_column(summary, metric))
        if metric in table.printed_metrics:
            columns.append(_printed_column(summary, metric))
    if table.baseline is not None:
        columns += _difference_columns(summary)
    seeds = SummaryColumn(
        "seeds",
        "Seeds (n)",
        lambda r: r.seeds,
        lambda r: max((r.row.stats[m].n for m in table.metrics if m in r.row.stats), default=0),
        "Number of seeds behind each mean",
    )
    rounds = SummaryColumn(
        "rounds",
        "Rounds",
        lambda r: r.rounds,
        lambda r: r.row.config.rounds,
        "Rounds that the runs have done, of those that their config asks for",
    )
    tuning = SummaryColumn(
        "tuning",
        "Tuning",
        lambda r: budget_text(r.row.config) or "-",
        lambda r: r.row.config.method.tuned.draws if r.row.config.method.tuned else 0,
        "Draws of the search that selected the hyper-parameters on validation samples",
    )
    tuned = any(r.row.config.method.tuned for r in table.rows)
    return [*columns, seeds, rounds, *([tuning] if tuned else [])]


def _name(row: ComparisonRow) -> str:
    mark = f' <span title="{markup.esc(row.remark)}">{row.mark}</span>' if row.mark else ""
    starred = any(result.run.starred for result in row.runs)
    star = f' <span aria-label="starred">{markup.STAR}</span>' if starred else ""
    return markup.method_html(row.label, row.method) + mark + star


def _mean_column(summary: Summary, metric: Metric) -> SummaryColumn:
    facts, rule = METRICS[metric], RULES[summary.comparison.rule]

    def cell(row: SummaryRow) -> str:
        """Return a number as HTML that opens to its seeds, runs, rounds and rule."""
        if metric not in row.row.stats:
            return "-"
        lines = []
        of_seed = group_by((r for part in row.row.parts for r in part.runs), lambda r: r.run.seed)
        for seed, value in row.row.by_seed[metric].items():
            results = of_seed[seed]
            out = {r.run.id: f" ({markup.esc(r.run.held_out)})" if r.run.held_out else "" for r in results}
            links = ", ".join(markup.run_link(number) + text for number, text in out.items())
            rounds = " / ".join(dict.fromkeys(result.rounds_text for result in results))
            lines.append(f"seed {seed}: <b>{value:.2f}</b>, run {links}, round {markup.esc(rounds)}")
        lines.append(f"{rule}; the run's page has the command that repeats it")
        tag = {"best": "b", "second": "u", "": ""}[row.marks[metric]]
        text = row.row.stats[metric].text(DIGITS)
        return markup.unfolding(f"<{tag}>{text}</{tag}>" if tag else text, lines)

    return SummaryColumn(
        metric,
        f"{facts.heading}, {facts.unit}",
        cell,
        lambda r: r.row.stats[metric].mean if metric in r.row.stats else None,
        f"{facts.title}: {facts.help}",
    )


def _printed_column(summary: Summary, metric: Metric) -> SummaryColumn:
    def cell(row: SummaryRow) -> str:
        """Return printed values as HTML that opens to their tables, and to ours if the rule is the same."""
        values = row.printed[metric]
        texts = dict.fromkeys(f"{v.text(DIGITS)} {v.comparability.mark}".rstrip() for v in values)
        lines = []
        for value in values:
            same_rule = value.rule == summary.comparison.rule
            line = f"{markup.esc(value.source)}: {markup.esc(value.method)} <b>{value.text()}</b>"
            if metric in row.row.stats and same_rule and value.comparability.state != "not comparable":
                line += f", ours {signed(row.row.stats[metric].mean - value.value, 2)}"
            line += "" if same_rule else f", {RULES[value.rule]}"
            lines.append(f"{line} ({markup.esc(value.comparability.text)})")
        return markup.unfolding(" / ".join(texts), lines) if values else markup.faint("not printed")

    return SummaryColumn(
        f"{metric}_printed",
        f"{METRICS[metric].heading} printed, %",
        cell,
        lambda r: r.printed[metric][0].value if r.printed[metric] else None,
        "What papers print for this row",
    )


def _difference_columns(summary: Summary) -> list[SummaryColumn]:
    metric = summary.metric

    def difference(row: SummaryRow) -> str:
        cell = row.differences[metric]
        return (cell.text(DIGITS) or "-") + ("&nbsp;<b>*</b>" if cell.significant else "")

    def p(row: SummaryRow) -> str:
        cell = row.differences[metric]
        text = "-" if cell.p_text is None else markup.esc(cell.p_text)
        return f'<span title="{markup.esc(cell.p_help)}">{text}</span>' if cell.p_help else text

    def adjusted(row: SummaryRow) -> float | None:
        test = row.differences[metric].test
        return None if test is None else test.adjusted

    return [
        SummaryColumn(
            "difference",
            f"{METRICS[metric].heading}: difference, points",
            difference,
            lambda r: r.differences[metric].points,
            "Mean of the differences from the baseline over the seeds that both rows have. Rows with other "
            "test sets, rounds or participation, or with unfinished runs, are not compared with it.",
        ),
        SummaryColumn(
            "p",
            "p",
            p,
            adjusted,
            f"{TESTS[summary.test]}, two-sided, over the seeds that both rows have, Holm-corrected for all "
            "tested rows of the table. With fewer than three seeds nothing is called significant.",
        ),
    ]


def _field_column(name: str) -> SummaryColumn:
    """Return the column of a config field or of ``MARKS``; a method without the field has a dash."""

    def marks_of(row: SummaryRow) -> str:
        runs = [result.run for result in row.row.runs]
        texts = [tag for r in runs for tag in r.tags] if name == "tags" else [r.notes for r in runs]
        return ", ".join(dict.fromkeys(text for text in texts if text))

    if name in MARKS:
        return SummaryColumn(
            name,
            MARKS[name],
            lambda r: markup.esc(marks_of(r)) or "-",
            lambda r: marks_of(r) or None,
            f"{MARKS[name]} of the row's runs; edit them under 'All runs behind these numbers'",
            "wide",
        )

    def value(row: SummaryRow) -> float | str | None:
        raw = row.row.fields.get(name)
        return raw if isinstance(raw, int | float) else None if raw is None else value_text(name, raw)

    def cell(row: SummaryRow) -> str:
        fields = row.row.fields
        return markup.esc(value_text(name, fields[name])) if name in fields else "-"

    return SummaryColumn(name, field_title(name), cell, value, f"Field {name} of the config")


def follow_clicks() -> None:
    """Sort by a clicked heading; a second click reverses the order, a third one ends it."""

    def clicked() -> None:
        key = (st.session_state.get("summary_headings") or {}).get("sorted")
        if not key:
            return
        first, second = (f"-{key}", key) if key != "label" else (key, f"-{key}")
        following = {first: second, second: ""}.get(st.query_params.get(SORT, ""), first)
        if following:
            st.query_params[SORT] = following
        else:
            st.query_params.pop(SORT, None)

    with st.container(key="summary_headings_place"):
        _headings(key="summary_headings", on_sorted_change=clicked)


def _heading(column: SummaryColumn, sort: str) -> str:
    sorts = {column.key: ("ascending", " ▲"), f"-{column.key}": ("descending", " ▼")}
    direction, arrow = sorts.get(sort, ("", ""))
    state = f' aria-sort="{direction}"' if direction else ""
    mark = f'<span aria-hidden="true">{arrow}</span>' if direction else ""
    title = f' title="{markup.esc(column.help)}"' if column.help else ""
    return (
        f'<th scope="col" class="{column.css}"{state}>'
        f'<button type="button" data-sort="{markup.esc(column.key)}"{title}>'
        f"{markup.esc(column.title)}{mark}</button></th>"
    )


def _ordered(rows: Sequence[SummaryRow], columns: Sequence[SummaryColumn], sort: str) -> list[SummaryRow]:
    """Return rows sorted by a column; rows without a value come last, and equal rows keep their order."""
    column = next((c for c in columns if c.key == sort.removeprefix("-")), None)
    if column is None:
        return list(rows)
    values = [column.value(row) for row in rows]
    if not all(isinstance(value, int | float | None) for value in values):
        values = [None if value is None else str(value).lower() for value in values]
    valued = [(value, row) for value, row in zip(values, rows, strict=True) if value is not None]
    valued.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in valued] + [r for v, r in zip(values, rows, strict=True) if v is None]


def _sections(rows: Sequence[SummaryRow], name: str) -> Mapping[str, list[SummaryRow]]:
    """Return the rows by a config field in words, by size if its values are numbers."""
    if not name:
        return {"": list(rows)}
    parts: dict[str, list[SummaryRow]] = {}
    values: dict[str, Any] = {}
    for row in rows:
        fields = row.row.fields
        text = f"Without {field_title(name)}"
        if name in fields:
            text = f"{field_title(name)}: {value_text(name, fields[name])}"
        parts.setdefault(text, []).append(row)
        values[text] = fields.get(name)
    if all(isinstance(value, int | float | None) for value in values.values()):
        by_size = sorted(parts, key=lambda text: (values[text] is None, values[text] or 0))
        return {text: parts[text] for text in by_size}
    return parts


def _draw_breakdowns(rows: Sequence[ComparisonRow], number: int) -> None:
    recorded = [part for part in BREAKDOWNS if any(part in row.breakdowns for row in rows)]
    if not recorded:
        return
    box = markup.opened("By domain and client", "table_rows", f"compare_parts_{number}")
    if box is None:
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
        texts = [[by[name].text(DIGITS) if name in by else "-" for name in names] for by in stats]
        if len(names) > MANY_NAMES:
            columns = {"Method": [f"{row.label} {row.mark}".rstrip() for row in rows]}
            columns |= dict(zip(names, map(list, zip(*texts, strict=True)), strict=True))
            st.dataframe(columns, hide_index=True, key=f"part_table_{number}")
        else:
            header = [("Method", "wide"), *((name, "num") for name in names)]
            cells = [[_name(row), *of_row] for row, of_row in zip(rows, texts, strict=True)]
            st.html(markup.table_html(header, cells, BREAKDOWNS[part]))


def _draw_sources(compared: Comparison) -> None:
    """Draw a table of all runs behind the summary."""
    box = markup.opened("All runs behind these numbers", "fact_check", "compare_runs")
    if box is None:
        return
    results = [(row, result) for row in compared.rows for result in row.runs]
    held_out = any(v.run.held_out for _, v in results)
    header = [("Method", "wide"), ("Run", "num"), ("Experiment", "num"), ("Seed", "num")]
    header += [("Held out", "")] if held_out else []
    header += [("Reported round", ""), ("Personal accuracy, %", "num"), ("State", ""), ("Repeat", "name")]
    rows = [
        [
            markup.method_html(row.label, row.method),
            markup.run_link(v.run.id),
            str(v.run.experiment_id),
            str(v.run.seed),
            *([markup.esc(v.run.held_out or "-")] if held_out else []),
            markup.esc(v.rounds_text),
            markup.number(v.values["personal"], 2),
            markup.status_html(v.run.state),
            f"<code>fedlens run run-{v.run.id}.toml</code>",
        ]
        for row, v in results
    ]
    with box:
        st.html(markup.table_html(header, rows, "Runs behind the numbers"))
        st.caption("The run's page has the config file that the command needs.")
        st.markdown("**Star, tags and notes**")
        markup.marks_editor([v.run for _, v in results])
