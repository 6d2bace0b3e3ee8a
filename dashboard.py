"""The dashboard's entry script, which runs at every visit: navigation, then the page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from pages.widgets import common

ICON = Path(__file__).parent / "pages" / "widgets" / "icon.svg"
st.logo(str(ICON.with_name("logo.svg")), size="large")
page = st.navigation(common.pages(), position="top")
st.set_page_config(page_title=f"{page.title} - FedLens", page_icon=str(ICON), layout="wide")
common.style()
if common.open_database():
    page.run()
