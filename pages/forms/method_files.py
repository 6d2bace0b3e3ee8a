"""The question whether a method file that an experiment names may run."""

from __future__ import annotations

import streamlit as st

from fedcore.methods import consent
from pages.widgets import markup, session


def ask(error: consent.NotAgreed) -> None:
    """Show a method file, and let the user agree to run it as it is."""
    with st.container(border=True):
        st.markdown(f"**Run {markup.md(error.file.name)}?**")
        st.markdown(
            f"The experiment names the method file {markup.md(str(error.file))}. It runs as a program of "
            "your account and can do whatever you can do: read it first, above all if you did not write it."
        )
        try:
            content = error.file.read_bytes()
        except OSError:
            content = b""
        if consent.digest(content) != error.sha256:
            st.caption("The file has just changed; the plan is made again in a moment.")
            return
        with st.expander("Read the file", icon=":material/code:", key=f"method_file_{error.sha256}"):
            st.code(content.decode("utf-8", "replace"), language="python", wrap_lines=True)
        if st.button(
            "I have read it: run it",
            icon=":material/check:",
            key="method_file_agreed",
            disabled=not session.writable(),
        ):
            consent.agree(error.file, error.sha256)
            st.rerun()
