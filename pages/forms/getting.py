"""A data set that can be got: its terms, shown before the first byte, the button, and the progress."""

import streamlit as st

from fedcore.config.field_names import size_text
from fedcore.data import catalog, getting
from fedcore.data.getting import Item
from pages.widgets import background, markup, session


def terms(offer: Item) -> str:
    """Return size, address and licence of a download as Markdown."""
    size = "size unknown" if offer.size is None else f"{size_text(offer.size)} to download"
    commit = offer.entry.hub.revision[:7] if offer.entry.hub is not None else ""
    where = f"{offer.address}, revision {commit}" if commit else offer.address
    return markup.md(f"{offer.entry.title}: {size} from {where}. {markup.sentence(offer.licence)}.")


def button(offer: Item, key: str) -> bool:
    """Draw the terms of a download and the button that starts it; return whether it was pressed."""
    st.markdown(terms(offer))
    size = "" if offer.size is None else f" {size_text(offer.size)}"
    pressed = markup.write_button(f"Get{size}", "download", key, type="primary")
    if pressed:
        background.submit("download", offer.entry.name, {"name": offer.entry.name})
    return pressed


def without_folder(name: str) -> None:
    """Draw what takes the place of a data set's folder in the form: the copy that was got, or the offer."""
    item = getting.item(name)
    if item.copy is not None:
        source = f"{item.copy.repo} {item.copy.revision[:7]}".strip() or "the authors' archive"
        st.caption(f"✓ on this machine, from {markup.md(source)}: no folder is needed.")
    elif item.address:
        progress(name)
        if button(item, "get_here"):
            st.rerun()


def progress(name: str | None = None) -> None:
    """Draw the downloads of one data set, or the newest ones, that run or have failed."""
    for task in session.store().tasks.recent("download", 3):
        if name in (None, task.args["name"]):
            background.show_task(task, catalog.entry(task.args["name"]).title)
