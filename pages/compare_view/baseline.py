"""The baseline of the page Compare, which stays pinned to its rows when their label changes."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.results.comparison import Group
from pages.widgets import markup

KEY = "baseline"
_PINNED = "baseline_pinned"
"""Label and keys of the baseline's rows as last chosen."""


def choose(groups: Sequence[Group]) -> str | None:
    """Draw the choice of a baseline, kept in the URL, and return its label.

    A label tells rows apart, so it may change when experiments are added or removed; the baseline then is the
    row that it was. Where that row is not among these experiments, the page says so, and takes it again
    once it is back.
    """
    labels = list(dict.fromkeys(g.label for g in groups))
    lost = _follow(groups, labels)
    chosen: str | None = st.selectbox(
        "Baseline", labels, index=None, placeholder="none", key=KEY, bind="query-params",
        on_change=st.session_state.pop, args=(_PINNED, None),
        help="Shows differences from this method in points, on the same data, clients and backbone",
    )  # fmt: skip
    if chosen is not None:
        st.session_state[_PINNED] = chosen, tuple(g.key for g in groups if g.label == chosen)
    elif lost:
        st.caption(f":material/info: The baseline {markup.md(markup.clipped(lost))} has no row here.")
    return chosen


def _follow(groups: Sequence[Group], labels: Sequence[str]) -> str:
    """Write the baseline's present label where it is chosen; return the label of one that has no row."""
    asked = st.session_state.get(KEY) or st.query_params.get(KEY)
    pinned, keys = st.session_state.get(_PINNED, (asked, ()))
    if asked in labels or not (asked or pinned):
        return ""
    now = dict.fromkeys(g.label for g in groups if g.key in keys)
    if not keys:  # a link from a time when the row had another label
        now = dict.fromkeys(
            g.label for g in groups if asked and g.label.startswith((f"{asked} ", f"{asked},"))
        )
    if len(now) != 1:
        return str(pinned or asked)
    st.session_state[KEY] = next(iter(now))
    return ""
