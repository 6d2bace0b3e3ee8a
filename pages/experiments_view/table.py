"""The table of experiments, its columns, which the reader chooses, and the actions of clicks in it."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import streamlit as st
from streamlit.elements.arrow import DataframeStateInput

from fedcore.base.progress import duration, first_few
from fedcore.results.charts.partition import thumbnail
from fedcore.results.charts.theme import STATUS
from fedcore.results.progress import ExperimentSummary, last_matrices
from fedcore.store import Store
from pages.experiments_view import actions
from pages.widgets import markup, session

TABLE, MENU, OPEN = "experiment_table", "experiment_menu", "experiment_open"
CLICKED = "clicked_action"
FEW_ROWS, HEIGHT = 10, 544  # pixels: 14 rows, and half of one as a hint to scroll
LETTER_WIDTH = 7.2  # pixels, about
WIDTHS = {False: (100, 180), True: (135, 145)}
"""Pixels of status and name, without and with archived experiments."""
MENU_WIDTH, WIDEST_BEST = 44, 125
METHOD_LETTERS = 22
"""Number of letters that fit into the column of methods."""


class Column(NamedTuple):
    """A column that the reader can choose; those ``shown`` by default fit into a window of 1440 pixels."""

    value: Callable[[ExperimentSummary], object]
    config: Any
    shown: bool


_text, _number = st.column_config.TextColumn, st.column_config.NumberColumn
_per_cent = partial(_number, format="%.1f")
COLUMNS: dict[str, Column] = {
    "Methods": Column(lambda i: methods_text(i.methods), _text(width=160), True),
    "Data": Column(lambda i: i.data, _text(width=107), True),
    "Seeds": Column(lambda i: i.seeds, _text(width=70), False),
    "Rounds": Column(
        lambda i: 100 * i.share,
        st.column_config.ProgressColumn(format="%.0f %%", min_value=0, max_value=100, width=105),
        True,
    ),
    "Runs": Column(lambda i: f"{i.done}/{len(i.row.runs)}", _text(width=55), True),
    "Best": Column(lambda i: i.best_text, None, True),
    "Last": Column(
        lambda i: markup.rounded_alike(i.last, 1),
        _per_cent(width=60, help="Personal accuracy of the method under Best at the last round, %"),
        True,
    ),
    "Best on validation": Column(
        lambda i: markup.rounded_alike(i.best, 1),
        _per_cent(width=130, help="Personal accuracy of that method at its best validation round, %"),
        False,
    ),
    "Worst client": Column(
        lambda i: markup.rounded_alike(i.worst, 1),
        _per_cent(width=100, help="Lowest accuracy of a client at the last round of that method, %"),
        False,
    ),
    "Heatmap": Column(
        lambda i: None,
        st.column_config.ImageColumn(
            width=64, help="The last round of that method's first run: models by test sets, 0 to 100 %"
        ),
        True,
    ),
    "Curve": Column(
        lambda i: i.curve,
        st.column_config.LineChartColumn(
            help="Personal test accuracy of that method over the rounds, %", y_min=0, y_max=100, width=80
        ),
        True,
    ),
    "Duration": Column(lambda i: duration(i.seconds), _text(width=90), False),
    "Tags": Column(lambda i: list(i.row.tags), st.column_config.ListColumn(), False),
    "Notes": Column(lambda i: i.row.notes, _text(width=160), False),
    "Created": Column(
        lambda i: time.strftime("%Y-%m-%d %H:%M", time.localtime(i.row.created_at)), _text(width=125), True
    ),
}


def selectable_table(
    rows: Mapping[str, Sequence[object]],
    ids: Sequence[int],
    key: str,
    first: Sequence[int] = (),
    **options: Any,
) -> list[int]:
    """Draw a table (``st.dataframe``) with selectable rows, and return the ids of the selected ones.

    At first, the rows of ``first`` are selected.
    """
    # Streamlit stores a selection by position, so a new row above would move it to other rows. The selected
    # rows are looked up in the ids that were last on the screen, and selected at their new positions.
    before: list[int] = st.session_state.get(f"{key}_ids", [])
    state = st.session_state.get(key)
    if state is not None and before != list(ids):
        chosen = [before[row] for row in state["selection"]["rows"] if row < len(before)]
        st.session_state[key] = _selection(ids, chosen)
    st.session_state[f"{key}_ids"] = list(ids)
    event = st.dataframe(
        dict(rows),
        key=key,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default=_selection(ids, first),
        **options,
    )
    return [ids[row] for row in event["selection"]["rows"] if row < len(ids)]


def _selection(ids: Sequence[int], chosen: Sequence[int]) -> DataframeStateInput:
    places = {number: row for row, number in enumerate(ids)}
    rows = [places[i] for i in chosen if i in places]
    return {"selection": {"rows": rows, "columns": [], "cells": []}}


def methods_text(methods: Sequence[str]) -> str:
    """Name as many methods as the column has room for (at least one), and count the others."""
    texts = (first_few(methods, count) for count in range(len(methods), 0, -1))
    return next((text for text in texts if len(text) <= METHOD_LETTERS), first_few(methods, 1))


def choose_columns(noted: bool) -> list[str]:
    """Draw the choice of columns, kept in the URL, and return them in their order.

    Args:
        noted: whether the notes are among the columns at first.
    """
    first = [name for name, column in COLUMNS.items() if column.shown or (noted and name == "Notes")]
    about = "Status, name and menu are always the first columns."
    with st.popover("Columns", icon=":material/view_column:"):
        chosen = session.choose(
            st.multiselect, "Columns", list(COLUMNS), "columns", default=first, width=320, help=about
        )
    return [name for name in COLUMNS if name in chosen]


def draw(
    summaries: Sequence[ExperimentSummary], columns: Sequence[str], chosen: Sequence[int], group: str
) -> list[ExperimentSummary]:
    """Draw a table, and return the experiments that are selected in it.

    Args:
        chosen: numbers of those that are selected at first.
        group: what the experiments of this table have in common; empty if all are in one table.
    """
    key = f"{TABLE}{group}"
    rows: dict[str, Sequence[object]] = {
        "Status": [
            f"{STATUS[i.state][0]} {i.state}" + (", archived" if i.row.archived else "") for i in summaries
        ],
        "Experiment": [i.row.name for i in summaries],
        "": [[a.text for a in actions.ACTIONS if a.possible([i])] for i in summaries],
    }
    rows |= {name: [COLUMNS[name].value(i) for i in summaries] for name in columns}
    if "Heatmap" in columns:
        rows["Heatmap"] = thumbnails(session.store(), summaries)
    ids = [i.row.id for i in summaries]
    longest = max((len(i.best_text) for i in summaries), default=0)
    archived = any(i.row.archived for i in summaries)
    button = st.column_config.ButtonColumn
    config: dict[str, Any] = {
        "Status": _text(width=WIDTHS[archived][0]),
        "Experiment": button(
            width=WIDTHS[archived][1],
            type="tertiary",
            alignment="left",
            key=f"{OPEN}{group}",
            on_click=_remember,
            args=(OPEN, group),
            help="Click the name to open the experiment on Live",
        ),
        "": button(
            "⋮",
            type="tertiary",
            width=MENU_WIDTH,
            help="Actions for this experiment",
            key=f"{MENU}{group}",
            on_click=_remember,
            args=(MENU, group),
        ),
    }
    config |= {name: COLUMNS[name].config for name in columns if COLUMNS[name].config is not None}
    config["Best"] = _text(
        width=int(min(WIDEST_BEST, max(75, 24 + LETTER_WIDTH * longest))),
        help="The method with the highest validation accuracy; \\*: not selected, as there are no validation "
        "samples, but the one with the highest test accuracy at the last round",
    )
    selected = selectable_table(
        rows,
        ids,
        key,
        first=chosen,
        height=HEIGHT if len(ids) > FEW_ROWS and not session.is_narrow() else "auto",
        column_config=config,
        placeholder="-",
    )
    return [i for i in summaries if i.row.id in selected]


def thumbnails(store: Store, summaries: Sequence[ExperimentSummary]) -> list[str | None]:
    """Return a small heatmap of each experiment's best method; those of runs without a new round are kept."""
    drawn = _drawn_thumbnails(store)
    wanted = {i.best_run.id: i.best_run for i in summaries if i.best_run is not None}
    stale = [run for run in wanted.values() if drawn.get(run.id, ("",))[0] != run.version]
    made = last_matrices(store, stale)
    drawn |= {run.id: (run.version, thumbnail(made[run.id]) if run.id in made else None) for run in stale}
    return [None if i.best_run is None else drawn[i.best_run.id][1] for i in summaries]


@st.cache_resource(hash_funcs={Store: repr}, max_entries=4, show_spinner=False)
def _drawn_thumbnails(store: Store) -> dict[int, tuple[object, str | None]]:
    return {}


def _remember(event: str, group: str) -> None:
    """Callback: store the action and experiment of a click, since the rows may change before it is run."""
    click, ids = st.session_state[f"{event}{group}"], st.session_state[f"{TABLE}{group}_ids"]
    if click["row"] < len(ids):
        opened = actions.ACTIONS[0].text  # by a click on the name
        st.session_state[CLICKED] = (click["label"] if event == MENU else opened, ids[click["row"]])


def run_clicked_action(summaries: Sequence[ExperimentSummary]) -> None:
    """Run the action that was clicked in a row, if it is still possible."""
    label, number = st.session_state.pop(CLICKED, ("", 0))
    items = [i for i in summaries if i.row.id == number]
    for action in actions.ACTIONS:
        if action.text == label and action.possible(items):
            action.do(items)
