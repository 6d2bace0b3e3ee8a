"""The summary table of the page Compare: which rows and columns it has, in which order and sections."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from fedcore.config.field_names import field_title, value_text
from fedcore.results.comparison import Comparison
from fedcore.results.metrics import METRICS
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import is_compared
from fedcore.results.summary import SummaryRow
from pages.widgets import markup, session

SORT = "sort"
"""Parameter of the address: the column that rows are sorted by, with a minus for the largest first."""
MARKS = {"tags": "Tags", "notes": "Notes"}
"""Columns with the user's tags and notes on the runs of a row; hidden by default."""
STANDARD = {"difference": "Difference", "p": "p", "seeds": "Seeds (n)", "rounds": "Rounds"}
"""Other columns than metrics that can be hidden."""
_headings = st.components.v2.component(
    "sortable_headings", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class SummaryLayout:
    """The layout of the summary.

    Attributes:
        hidden_rows: labels of hidden rows, which still count for best values and tests.
        fields: config fields, or ``MARKS``, to show as columns.
        group: config field that divides the rows into sections; empty for none.
        sort: key of a column, with a minus for the largest first; empty for the order of the experiments.
    """

    hidden_rows: tuple[str, ...] = ()
    hidden_columns: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    group: str = ""
    sort: str = ""


@dataclass(frozen=True)
class SummaryColumn:
    """A column of the summary.

    Attributes:
        help: the meaning of its values, shown when the pointer rests on the heading.
        cell: row -> HTML.
        value: row -> the value to sort by; rows with None come last.
    """

    key: str
    title: str
    cell: Callable[[SummaryRow], str]
    value: Callable[[SummaryRow], float | str | None]
    help: str = ""
    css: str = "num"


def choose_layout(compared: Comparison) -> SummaryLayout:
    """Draw the choice of rows, columns and sections, kept in the address."""
    names = [n for n in _fields(compared) if is_compared(n)]
    titles = _titles(names)
    columns = MARKS | titles
    standard = {m: METRICS[m].heading for m in compared.metrics if not METRICS[m].on_request} | STANDARD
    fields = session.choose(st.multiselect, "More columns", columns, "fields", placeholder="none")
    hidden_columns = session.choose(
        st.multiselect, "Hidden columns", standard, "hidden_columns", placeholder="none"
    )
    hidden_rows = st.multiselect(
        "Hidden rows",
        list(dict.fromkeys(g.label for g in compared.rows)),
        key="hidden_rows",
        bind="query-params",
        placeholder="none",
        help="Hidden rows still count for the best value and for the correction of p.",
    )
    group = session.choose(
        st.selectbox,
        "Sections by",
        titles,
        "sections",
        index=None,
        placeholder="none",
        help="Puts the rows of each value of a config field under a heading.",
    )
    return SummaryLayout(
        tuple(hidden_rows), tuple(hidden_columns), tuple(fields), group or "", st.query_params.get(SORT, "")
    )


def _fields(compared: Comparison) -> list[str]:
    """Return the names of all config fields, those that differ between rows first."""
    values: dict[str, list[str]] = {}
    for row in compared.rows:
        for name, value in row.fields.items():
            values.setdefault(name, []).append(str(value))
    count = len(compared.rows)
    return sorted(values, key=lambda n: len(set(values[n])) == 1 and len(values[n]) == count)


def _titles(names: Sequence[str]) -> dict[str, str]:
    """Return a title per field; equal titles are followed by the field's name."""
    titles = {name: field_title(name) for name in names}
    counts = list(titles.values())
    return {n: t if counts.count(t) == 1 else f"{t} ({n})" for n, t in titles.items()}


def field_column(name: str) -> SummaryColumn:
    """Return the column of a config field or mark; a method without the field has a dash."""
    if name in MARKS:
        return SummaryColumn(
            name,
            MARKS[name],
            lambda r: markup.esc(_marks(r.row, name)) or "-",
            lambda r: _marks(r.row, name) or None,
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


def _marks(row: ComparisonRow, name: str) -> str:
    """Return the tags or notes of a row's runs, each once."""
    runs = [result.run for result in row.runs]
    texts = [tag for r in runs for tag in r.tags] if name == "tags" else [r.notes for r in runs]
    return ", ".join(dict.fromkeys(text for text in texts if text))


def follow_clicks() -> None:
    """Sort by a clicked heading; a second click reverses the order, a third one ends it."""

    def clicked() -> None:
        key = (st.session_state.get("summary_headings") or {}).get("sorted")
        if not key:
            return
        first, second = (f"-{key}", key) if key != "label" else (key, f"-{key}")
        now = st.query_params.get(SORT, "")
        following = {first: second, second: ""}.get(now, first)
        if following:
            st.query_params[SORT] = following
        else:
            st.query_params.pop(SORT, None)

    with st.container(key="summary_headings_place"):
        _headings(key="summary_headings", on_sorted_change=clicked)


def ordered(rows: Sequence[SummaryRow], columns: Sequence[SummaryColumn], sort: str) -> list[SummaryRow]:
    """Return rows sorted by a column; rows without a value come last, and equal rows keep their order."""
    key, descending = sort.removeprefix("-"), sort.startswith("-")
    column = next((c for c in columns if c.key == key), None)
    if column is None:
        return list(rows)
    valued = [(value, row) for row in rows if (value := column.value(row)) is not None]
    numeric = all(isinstance(value, int | float) for value, _ in valued)

    def rank(item: tuple[Any, SummaryRow]) -> Any:
        return item[0] if numeric else str(item[0]).lower()

    empty = [row for row in rows if column.value(row) is None]
    return [row for _, row in sorted(valued, key=rank, reverse=descending)] + empty


def table_html(
    rows: Sequence[SummaryRow], columns: Sequence[SummaryColumn], layout: SummaryLayout, label: str
) -> str:
    """Return the table, with headings to sort by and a heading above each section."""
    head = "".join(_heading(column, layout.sort) for column in columns)
    shown = [row for row in rows if row.row.label not in layout.hidden_rows]
    body = ""
    for title, members in sections(shown, layout.group).items():
        body += "<tbody>"
        if layout.group:
            body += (
                f'<tr><th scope="rowgroup" class="fl-section" colspan="{len(columns)}">'
                f"{markup.esc(title)}</th></tr>"
            )
        for row in ordered(members, columns, layout.sort):
            cells = "".join(f'<td class="{c.css}">{c.cell(row)}</td>' for c in columns)
            body += f"<tr>{cells}</tr>"
        body += "</tbody>"
    return markup.scrolled_table(f"<thead><tr>{head}</tr></thead>{body}", label)


def sections(rows: Sequence[SummaryRow], name: str) -> Mapping[str, list[SummaryRow]]:
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
        numbers = sorted((text for text in parts if values[text] is not None), key=values.__getitem__)
        return {text: parts[text] for text in [*numbers, *(t for t in parts if values[t] is None)]}
    return parts


def _heading(column: SummaryColumn, sort: str) -> str:
    direction = {column.key: "ascending", f"-{column.key}": "descending"}.get(sort)
    arrow = {"ascending": " ▲", "descending": " ▼", None: ""}[direction]
    state = f' aria-sort="{direction}"' if direction else ""
    mark = f'<span aria-hidden="true">{arrow}</span>' if arrow else ""
    title = f' title="{markup.esc(column.help)}"' if column.help else ""
    return (
        f'<th scope="col" class="{column.css}"{state}>'
        f'<button type="button" data-sort="{markup.esc(column.key)}"{title}>'
        f"{markup.esc(column.title)}{mark}</button></th>"
    )
