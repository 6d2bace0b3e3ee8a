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

    Streamlit keeps a selection by position: where a new row arrives above, it would slide to others. What was
    chosen is therefore looked up in the ids that were on the screen, and chosen again where it stands now.

    Args:
        ids: of the rows, in their order.
        first: selected at first.
        options: of ``st.dataframe``.
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
    """Return the ids of a table's rows as last drawn, to which a click in it refers."""
    ids: list[int] = st.session_state.get(f"{key}_ids", [])
    return ids


def _selection(ids: Sequence[int], chosen: Sequence[int]) -> DataframeStateInput:
    places = {number: row for row, number in enumerate(ids)}
    rows = [places[i] for i in chosen if i in places]
    return {"selection": {"rows": rows, "columns": [], "cells": []}}
