"""The dashboard's entry script, which runs at every visit: navigation, database, then the page."""

from __future__ import annotations

from pathlib import Path

import pandas  # noqa: F401 - whole before a chart is drawn: plotly uses what another thread has half imported
import streamlit as st

from fedcore import jobs
from fedcore.errors import FedLensError
from fedcore.store import Access, Store
from pages.components import line_focus, shortcuts, viewport
from pages.widgets import markup, session

ASSETS = Path(__file__).parent / "pages" / "assets"
ICON = ASSETS / "icon.svg"


@st.cache_resource(ttl=20, show_spinner=False)
def prepared(path: str, there: bool) -> Access:
    """Create or migrate the database; repeated from time to time, since permissions and disks change."""
    return Store(path).prepare()


def open_database() -> bool:
    """Prepare the database and start the worker if runs are queued; problems are shown on the page.

    Returns: whether there is a database that pages can read.
    """
    store = session.store()
    try:
        access = prepared(str(store.path), store.path.exists())
        if access.writable:
            jobs.ensure_worker(store)
            store.jobs.reconcile()
        else:
            st.warning(markup.md(access.why or ""), icon=":material/lock:")
    except FedLensError as error:
        markup.show_error(error)
        return False
    st.session_state["writable"] = access.writable
    return True


st.logo(str(ICON.with_name("logo.svg")), size="large")
page = st.navigation(session.pages(), position="top")
st.set_page_config(page_title=f"{page.title} - FedLens", page_icon=str(ICON), layout="wide")
st.html(ASSETS / "style.css")
if open_database():
    try:
        page.run()
    except FedLensError as error:
        markup.show_error(error)
viewport.measure()
line_focus.follow()
shortcuts.listen(session.base_path())
