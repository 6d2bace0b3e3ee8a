"""The page Data & models: data sets, cached encodings, checkpoints of finished runs, backbones."""

import streamlit as st

from pages.data_view import backbones, checkpoints, datasets, encodings
from pages.widgets import markup, session

SECTIONS = {
    "Data sets": datasets.section,
    "Encodings": encodings.section,
    "Checkpoints": checkpoints.section,
    "Backbones": backbones.section,
}


def page() -> None:
    """Draw the page."""
    st.title("Data & models")
    shown = st.segmented_control(
        "Section",
        list(SECTIONS),
        default="Data sets",
        required=True,
        key="section",
        bind="query-params",
        label_visibility="collapsed",
    )
    with markup.errors_shown():
        SECTIONS[shown]()


session.through_app()
page()
