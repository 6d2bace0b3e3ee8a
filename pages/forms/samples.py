"""Sample images of a data set: of the built-in ones at once, of others as their check has found them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st
from PIL import Image

from fedcore.data import catalog
from fedcore.data.check import contact_sheet
from fedcore.errors import FedLensError
from fedcore.paths import user_path
from fedcore.results.run_files import DataCounts, count_images
from pages.forms.dataset import check_key, is_own_data
from pages.widgets import background, markup, session


@st.cache_data(show_spinner="Reading the data set…", max_entries=8, ttl=600)
def counts_and_samples(name: str) -> tuple[DataCounts, Image.Image]:
    """Return the image counts and the sample pictures of a built-in data set."""
    images, _ = catalog.load_checked(name)
    return count_images(images), contact_sheet(images)


def sample_images(data: Mapping[str, Any]) -> None:
    """Draw an expander with an image of each domain and class of the form's data set.

    Opening it starts the check of a folder that was not checked yet, since a page reads no large folder.
    """
    box = st.expander(
        "Sample images", icon=":material/photo_library:", key="partition_samples", on_change="rerun"
    )
    if not box.open:
        return
    entry = next(e for e in catalog.entries() if e.name == data["name"])
    with box:
        if entry.embedded:
            _draw(counts_and_samples(entry.name)[1])
            return
        name, root = None if is_own_data(entry) else entry.name, str(data["root"])
        columns = data.get("columns") or {}
        key = check_key(name, root, columns)
        task = session.store().tasks.find("check", key)
        if task is None and session.writable():
            args = {"name": name, "root": str(user_path(root, "data.root")), "columns": columns}
            background.submit("check", key, args)
            task = session.store().tasks.find("check", key)
        sheet = task.arrays().get("sheet") if task is not None and task.status == "done" else None
        if sheet is not None:
            _draw(sheet)
        elif task is None or task.status == "done":
            markup.show_error(FedLensError("there are no sample images; see the report on Data & models"))
        else:
            background.show_task(task, f"Checking {root}")


def _draw(sheet: Any) -> None:
    st.image(
        sheet, caption="A row for each domain, a column for each class", alt="Sample images", width="stretch"
    )
