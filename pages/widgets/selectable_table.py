"""A table with selectable rows, whose selection follows the rows when they move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st
from streamlit.elements.arrow import DataframeStateInput


def selectable_table(
    rows: Mapping[str, Sequence[object]],
    ids: Sequence[int],
    key: str,
    first: Sequence[int] = (),
    **options: Any,
) -> list[int]:
    """Draw a table with selectable rows, and return the ids of the selected ones.

    Streamlit stores a selection by position, so a new row above would move it to other rows. The selected
    rows are therefore looked up in the ids that were last on the screen, and selected at their new positions.

    Args:
        ids: the ids of the rows, in their order.
        first: the ids that are selected at first.
        options: further arguments of ``st.dataframe``.
    """
    before, state = ids_on_screen(key), st.session_state.get(key)
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


def ids_on_screen(key: str) -> list[int]:
    """Return the ids of a table's rows as last drawn, since a click refers to those rows."""
    ids: list[int] = st.session_state.get(f"{key}_ids", [])
    return ids


def _selection(ids: Sequence[int], chosen: Sequence[int]) -> DataframeStateInput:
    places = {number: row for row, number in enumerate(ids)}
    rows = [places[i] for i in chosen if i in places]
    return {"selection": {"rows": rows, "columns": [], "cells": []}}
