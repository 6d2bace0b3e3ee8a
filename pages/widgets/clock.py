"""A component that reruns its fragment only when runs have changed, for the pages Live and Papers.

``st.fragment(run_every=2)`` would rerun the fragment every two seconds, and at each rerun the browser goes
through all widgets of the page (about 0.1 s of processor time). Polling ``pulse``'s address is cheaper.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from pages.widgets import pulse

_component = st.components.v2.component(
    "live_clock", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)
HIDDEN = "<style>.st-key-live_clock { display: none; }</style>"


def rerun_on_change(experiment: int | None, seen: str, every: float, longest: float | None) -> None:
    """Rerun the calling fragment as soon as an experiment has changed.

    Args:
        experiment: None for all experiments together.
        seen: the experiment's pulse, read before the data are drawn, so that a change while drawing counts.
        every: seconds between two polls.
        longest: seconds after which the fragment runs again even without a change; None: never.
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
    """Do nothing; without a callback Streamlit would not report the event."""
