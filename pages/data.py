"""The Data & models page: data sets, own data, cached encodings, checkpoints of finished runs, backbones."""

from __future__ import annotations

import streamlit as st
from PIL import Image

from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS, backbone_spec, config_files
from fedcore.data import catalog
from fedcore.data.check import contact_sheet
from fedcore.data.entry import ONE_DOMAIN, Entry
from fedcore.errors import FedLensError
from fedcore.paths import user_path
from fedcore.results.run_files import DataCounts, count_images
from pages.data_view import checkpoints, encodings, own_data
from pages.widgets import background, markup, session

SECTIONS = ("Data sets", "Encodings", "Checkpoints", "Backbones")
BACKBONES = (*MINI_MODELS, "ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50")


@st.cache_data(show_spinner="Reading the data set…", max_entries=8, ttl=600)
def counts_and_samples(name: str) -> tuple[DataCounts, Image.Image]:
    """Return the image counts and the sample pictures of a built-in data set."""
    images, _ = catalog.load_checked(name)
    return count_images(images), contact_sheet(images)


def supported_sets() -> None:
    """List the data sets of the catalog."""
    st.header("Supported data sets")
    checked = _checked_folders()
    entries = [*(e for e in catalog.entries() if e.embedded), *own_data.catalog_sets()]
    columns = {
        "Name": [e.title for e in entries],
        "On this machine": [availability(e, checked.get(e.name, [])) for e in entries],
        "Domains": ["one" if e.domains == (ONE_DOMAIN,) else ", ".join(e.domains) or "any" for e in entries],
        "Classes": [str(len(e.classes) or e.class_count or "any") for e in entries],
        "Contents": [e.source for e in entries],
        "Licence": [e.licence for e in entries],
    }
    cells = {title: list(map(markup.md_with_code, texts)) for title, texts in columns.items()}
    markup.table(cells, "Data sets")


def embedded_sets() -> None:
    """Show the pictures and counts of a data set that comes with FedLens."""
    st.header("Built-in data sets")
    titles = {e.name: e.title for e in catalog.entries() if e.embedded}
    chosen = st.segmented_control(
        "Data set",
        list(titles),
        format_func=lambda name: titles[name],
        default=next(iter(titles)),
        required=True,
        key="data_shown",
        bind="query-params",
    )
    counts, pictures = counts_and_samples(chosen)
    domains, classes = counts.domains, counts.classes
    st.markdown(own_data.counts_text(int(counts.counts.sum()), classes, domains))
    layout = f"{titles[chosen]}: one row per domain, one column per class"
    table = counts.counts.tolist()
    own_data.draw_pictures_and_counts(pictures, layout, domains, classes, table, f"counts_{chosen}")


def download_data() -> None:
    """Draw the download of a data set through torchvision, which only a click starts."""
    st.header("Download a data set")
    entries = {e.title: e for e in catalog.entries() if e.torchvision}
    left, middle, right = st.columns([3, 6, 2], vertical_alignment="bottom")
    entry = entries[left.selectbox("Data set", list(entries), key="download")]
    root = middle.text_input("Target folder", key="download_to", placeholder="/data").strip()
    if right.button(
        "Download", icon=":material/download:", disabled=not root or not session.writable(), width="stretch"
    ):
        folder = str(user_path(root, "data.root"))
        background.submit("download", f"{entry.name} {folder}", {"name": entry.name, "root": folder})
        st.rerun()
    size = f"about {entry.megabytes:,} MB" if entry.megabytes else "size unknown"
    terms = entry.licence[:1].upper() + entry.licence[1:]
    st.caption(markup.md(f"Downloaded with torchvision, {size}. {terms}."))
    for task in session.store().tasks.recent("download", 3):
        title = catalog.entry(task.args["name"]).title
        background.show_task(task, title)
        if task.status == "done":
            st.success(markup.md(f"{title} is in {task.args['root']}."), icon=":material/check:")
            st.button(
                "Check it",
                icon=":material/fact_check:",
                key=f"check_{task.id}",
                on_click=own_data.fill_check_form,
                args=(title, task.args["root"]),
            )


def _checked_folders() -> dict[str, list[str]]:
    """Return the folders that passed a check, by data set name."""
    folders: dict[str, list[str]] = {}
    for task in session.store().tasks.recent("check"):
        if task.status == "done" and task.result and not task.result["report"]["error"]:
            folders.setdefault(task.result["name"], []).append(task.result["report"]["root"])
    return folders


def availability(entry: Entry, roots: list[str]) -> str:
    """Return where a data set is on this machine, or how to get it."""
    if entry.embedded:
        return "✓ comes with FedLens"
    return f"✓ {', '.join(roots)}" if roots else entry.how_to_get


def backbones() -> None:
    """List common CLIP models and the weights that are on this machine."""
    st.header(
        "Backbones",
        help="Every other model of open_clip can be chosen by name in a new experiment. Weights can also be "
        "a file (.pt or .safetensors).",
    )
    towers = {"vit": "ViT, {} layers", "resnet": "ResNet"}
    specs = [backbone_spec(name) for name in BACKBONES]
    columns: dict[str, list[object]] = {
        "Name": list(BACKBONES),
        "Weights on this machine": [_weights(name) for name in BACKBONES],
        "Image tower": [towers.get(s.vision, s.vision).format(s.vision_layers) for s in specs],
        "Embedding width": [s.embed_dim for s in specs],
        "Input size, px": [s.image_size for s in specs],
    }
    markup.table(columns, "Backbones")
    download_weights()


def _weights(name: str) -> str:
    if name in MINI_MODELS:
        return "✓ come with FedLens"
    downloaded = [tag for tag in tags.tags(name) if tags.cached(name, tag) is not None]
    return f"✓ {markup.md(', '.join(downloaded))}" if downloaded else "none yet"


def download_weights() -> None:
    """Draw the download of a model's weights, which only a click starts."""
    st.header("Download weights")
    models = [name for name in config_files() if name not in MINI_MODELS and tags.tags(name)]
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    model = left.selectbox("Model", models, index=models.index("ViT-B-32"), key="model", bind="query-params")
    tag = middle.selectbox("Tag", tags.tags(model), key="tag")
    file = tags.cached(model, tag)
    if right.button(
        "Download",
        icon=":material/download:",
        disabled=file is not None or not session.writable(),
        width="stretch",
    ):
        background.submit("weights", f"{model} {tag}", {"name": model, "tag": tag})
        st.rerun()
    if file is not None:
        st.caption(f"✓ on this machine: {markup.md(str(file))}")
    else:
        st.caption(
            f"From huggingface.co/{markup.md(tags.repository(model, tag)[0])} into the Hugging Face cache."
        )
    for task in session.store().tasks.recent("weights", 3):
        background.show_task(task, f"Weights {task.args['tag']} of {task.args['name']}")


def page() -> None:
    """Draw the page."""
    st.title("Data & models")
    shown = st.segmented_control(
        "Section", SECTIONS, default=SECTIONS[0], required=True, key="section", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    try:
        if shown == "Encodings":
            encodings.section()
        elif shown == "Checkpoints":
            checkpoints.section()
        elif shown == "Backbones":
            backbones()
        else:
            own_data.section()
            embedded_sets()
            supported_sets()
            download_data()
    except FedLensError as error:
        markup.show_error(error)


session.through_app()
page()
