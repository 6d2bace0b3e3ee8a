"""Saved views of the page Compare, and the link that opens what is on the screen."""

from __future__ import annotations

from urllib.parse import urlencode

import streamlit as st

from fedcore.errors import FedLensError
from pages.widgets import markup, session

PAGE = "compare"


def draw() -> None:
    """Draw the link to this view, the saved views, and a field to save this one."""
    query = urlencode([(name, v) for name in st.query_params for v in st.query_params.get_all(name)])
    st.markdown("**Link to this view**")
    st.code(f"{(st.context.url or '').partition('?')[0]}?{query}", language=None, wrap_lines=True)
    st.markdown("**Saved views**")
    store, may = session.store(), session.writable()
    for view in store.views.of_page(PAGE):
        with st.container(horizontal=True, vertical_alignment="center"):
            address = f"{session.base_path()}/{PAGE}?{view.query}"
            st.html(f'<a href="{markup.esc(address)}" target="_self">{markup.esc(view.name)}</a>')
            if may and st.button(
                "Delete", icon=":material/delete:", type="tertiary", key=f"view_delete_{view.id}",
            ):  # fmt: skip
                store.views.delete(view.id)
                st.rerun()
    if not may:
        return
    with st.form("save_view", border=False):
        name = st.text_input("Save this view as", placeholder="name", max_chars=200)
        if st.form_submit_button("Save", icon=":material/bookmark:"):
            try:
                store.views.save(PAGE, name, query)
                st.rerun()
            except FedLensError as error:
                markup.show_error(error)
