"""Data sets, a check of the user's own folder, cached encodings, backbones."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from PIL import Image

from fedcore.clip.facts import MINI_MODELS, facts
from fedcore.data import catalog
from fedcore.data.entries import Entry
from fedcore.errors import FedLensError
from fedcore.report import inventory
from fedcore.report.inventory import DataCounts
from pages.parts import common, drafts

BACKBONES = (*MINI_MODELS, "ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50")


@st.cache_data(show_spinner="Reading the data set…", max_entries=8, ttl=600)
def look_at(
    name: str, root: str | None
) -> tuple[DataCounts, list[str], Image.Image] | tuple[str, str | None]:
    """Counts, warnings and sample pictures; or what is wrong and where."""
    try:
        images, warnings = catalog.load_checked(name, root)
        return inventory.count(images), warnings, inventory.contact_sheet(images)
    except FedLensError as error:
        return str(error), error.field


def show_data(name: str, title: str, root: str | None = None) -> bool:
    """Counts and sample pictures of a data set. Returns: whether it can be used."""
    found = look_at(name, root)
    if isinstance(found[0], str):
        common.show_error(FedLensError(found[0]))
        return False
    counts, warnings, sheet = found
    for line in warnings:
        st.warning(common.md(line), icon=":material/warning:")
    total = int(counts.counts.sum())
    st.markdown(
        f"**{total:,} images**, {len(counts.classes)} classes, {len(counts.domains)} domains: "
        + common.md(", ".join(counts.domains))
    )
    left, right = st.columns([2, 3])
    left.image(sheet, caption=f"{title}: a row per domain, a column per class", width="content")
    table = {"domain": list(counts.domains)}
    table.update({c: counts.counts[:, j].tolist() for j, c in enumerate(counts.classes)})
    right.dataframe(table, hide_index=True, key=f"counts_{name}_{root}")
    return True


def own_folder() -> None:
    """Type a folder, see it checked, start with it."""
    st.subheader("Add a folder")
    st.write("A folder of `domain/class/image` or `class/image`. It stays where it is; nothing is copied.")
    root = st.text_input("Folder on this machine", key="own_folder", placeholder="/data/my-pictures").strip()
    if (
        root
        and show_data("folder", Path(root).name or root, root)
        and st.button(
            "New experiment with it", type="primary", icon=":material/add:", disabled=not common.writable()
        )
    ):
        demo = drafts.read_preset("demo")
        data = {"name": "folder", "root": root}
        draft = demo.model_copy(update={"name": Path(root).name, "data": type(demo.data)(**data)})
        drafts.use(draft, "folder")
        st.switch_page("pages/new.py")


def known_sets() -> None:
    """The catalog."""
    st.subheader("Data sets")
    entries = catalog.entries()
    header = [("Name", ""), ("Images from", "wide"), ("Domains", "wide"), ("Terms", "wide"), ("Here?", "")]
    rows = [
        [common.esc(e.title), common.esc(e.source), domains(e), common.esc(e.licence), here(e)]
        for e in entries
    ]
    st.html(common.table_html(header, rows, "Data sets"))
    titles = {e.name: e.title for e in entries if e.embedded}
    chosen = st.segmented_control(
        "Look at",
        list(titles),
        format_func=titles.get,
        default=next(iter(titles)),
        required=True,
        key="data_shown",
    )
    show_data(chosen, titles[chosen])


def domains(entry: Entry) -> str:
    """Names of the domains, or that any will do."""
    return common.esc(", ".join(entry.domains)) or "any"


def here(entry: Entry) -> str:
    """Whether a data set is on this machine already."""
    return (
        "✓ comes with FedLens" if entry.embedded else f'<span class="fl-faint">{common.esc(entry.how)}</span>'
    )


def backbones() -> None:
    """What CLIPs there are, and which need weights."""
    st.subheader("Backbones")
    header = [
        ("Name", ""),
        ("Image tower", ""),
        ("Embedding width", "num"),
        ("Image", "num"),
        ("Weights", "wide"),
    ]
    rows = []
    for name in BACKBONES:
        f = facts(name)
        weights = (
            "✓ come with FedLens"
            if name in MINI_MODELS
            else "an open_clip tag (downloaded at first use) or a file"
        )
        tower = {"vit": f"ViT, {f.vision_layers} layers", "resnet": "ResNet"}.get(f.vision, f.vision)
        rows.append([name, tower, str(f.embed_dim), f"{f.image_size} px", weights])
    st.html(common.table_html(header, rows, "Backbones"))
    st.caption("Any other model of open_clip can be chosen by its name when an experiment is made.")


def cache() -> None:
    """Encoded images, which can be deleted at any time."""
    st.subheader("Cached encodings")
    found = inventory.encodings(common.database())
    if not found:
        st.caption(
            "None yet. Every image is encoded once for each backbone; the result is kept beside the database."
        )
        return
    header = [("File", "wide"), ("Size, MB", "num"), ("Written", "")]
    rows = [[common.esc(e.name), f"{e.megabytes:.1f}", e.written] for e in found]
    st.html(common.table_html(header, rows, "Cached encodings"))
    st.caption(
        f"{sum(e.megabytes for e in found):.1f} MB. Files may be deleted: they are made again when needed."
    )


def page() -> None:
    """The page."""
    st.title("Data & models")
    own_folder()
    known_sets()
    backbones()
    cache()


common.through_app()
page()
