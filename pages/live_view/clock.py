"""Redrawing on the pages Live and Papers: what follows the runs is redrawn only when they have changed.

``st.fragment(run_every=2)`` reruns its part every two seconds, and each rerun has the browser go through all
widgets of the page (about 0.1 s of processor time). Here the browser asks ``pulse``'s address instead.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from pages.live_view import pulse

_component = st.components.v2.component(
    "live_clock", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)
HIDDEN = "<style>.st-key-live_clock { display: none; }</style>"


def rerun_on_change(experiment: int | None, seen: str, every: float, longest: float | None) -> None:
    """Rerun the calling fragment as soon as the experiment has changed.

    Args:
        experiment: None for all experiments together.
        seen: the experiment's pulse, read before what is drawn: what changes meanwhile is news.
        every: seconds between two looks.
        longest: seconds after which it runs again without news; None: never.
    """
    with st.container(key="live_clock"):
        st.html(HIDDEN)
        _component(
            key="live_news",
            data={
                "address": pulse.address(experiment),
                "seen": seen,
                "every": every,
                "longest": longest,
            },
            on_news_change=_ignore,
        )


def _ignore() -> None:
    """Do nothing: Streamlit reruns the fragment by itself."""
