"""The dashboard's entry script, which Streamlit runs at every visit and click, before the page itself."""

from __future__ import annotations

# plotly takes pandas from sys.modules, where another session's thread may have imported only half of it
import pandas  # noqa: F401
import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.store import Store
from pages.widgets import background, browser, charts, markup, session

ICON = session.ASSETS / "icon.svg"
DAMAGE_CHECK_SECONDS = 20.0
"""Seconds after which an open page asks again whether a background check has found damage."""


# for 20 s only: permissions and disks change; ``exists`` is part of the key for a database that was deleted
@st.cache_resource(ttl=20, show_spinner=False)
def prepared(path: str, exists: bool) -> str:
    """Create the database, or open it; return why it cannot be written, see ``Store.prepare``."""
    return Store(path).prepare()


def open_database() -> bool:
    """Prepare the database, and start the worker if runs are queued; problems are shown on the page.

    Returns: whether pages can read the database.
    """
    store = session.store()
    try:
        why = prepared(str(store.path), store.path.exists())
        st.session_state["writable"] = not why
        background.keep_working()
        if why:
            st.warning(markup.md(why), icon=":material/lock:")
    except FedLensError as error:
        markup.show_error(error)
        return False
    return True


@markup.fragment(run_every=DAMAGE_CHECK_SECONDS)
def warn_of_damage() -> None:
    """Report damage to the database on every page, as soon as a background check has found it."""
    if warning := session.store().integrity.watched():
        markup.show_error(FedLensError(warning))


st.logo(str(ICON.with_name("logo.svg")), size="large")
page = st.navigation(session.pages(), position="top")
session.keep_colours()
st.set_page_config(page_title=f"{page.title} - FedLens", page_icon=str(ICON), layout="wide")
st.html(session.ASSETS / "style.css")
with st.container(key="chart_library_place"):  # style.css hides it
    st.html(charts.fetching(page.url_path), unsafe_allow_javascript=True)
if open_database():
    warn_of_damage()
    with markup.errors_shown(), session.store().one_connection():
        page.run()
browser.scripts_of_every_page()
