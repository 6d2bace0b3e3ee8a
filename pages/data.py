"""The page Data & models: data sets, cached encodings, checkpoints of finished runs, backbones."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from fedcore.base.progress import counted
from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS, backbone_spec, known_names
from fedcore.config.field_names import size_text
from fedcore.config.models import KeepCheckpoints
from fedcore.jobs.retention import (
    RunCheckpoints,
    artifacts_size,
    delete,
    delete_encoding,
    finished,
    surplus,
)
from fedcore.results.run_files import Encoding, cached_encodings, encoding_differences
from pages.forms import library
from pages.forms.fields import COMMON_BACKBONES
from pages.widgets import background, markup, session

ENCODINGS_TABLE = "encodings_table"
KEEP: dict[KeepCheckpoints, str] = {
    "all": "everything",
    "best": "each run's best round",
    "last": "each run's last round",
    "none": "none",
}


def encodings() -> None:
    """Draw the list of cached encodings, with their deletion."""
    st.header(
        "Cached encodings",
        help="Each image is encoded once for each backbone and layer; later runs reuse the result. Encodings "
        "can be deleted; FedLens creates them again when a run needs them.",
    )
    cached = cached_encodings(session.store())
    if not cached:
        none = "No encodings yet. The first run on a data set creates them, or `fedlens data encode NAME`."
        st.info(none, icon=":material/image_search:")
        return
    differ = encoding_differences(cached)
    rows = {
        "Data": [e.title for e in cached],
        "Backbone": [e.backbone or "-" for e in cached],
        "Representation": [e.reads or "-" for e in cached],
        "Images": [f"{e.images:,}" if e.complete else f"{e.images:,} of {e.total:,}" for e in cached],
        "Size (MB)": [e.megabytes for e in cached],
        "Written": [e.written for e in cached],
    }
    if any(differ):
        rows["Difference"] = differ
    event = st.dataframe(
        rows,
        key=ENCODINGS_TABLE,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            "Images": st.column_config.TextColumn(alignment="right"),
            "Size (MB)": st.column_config.NumberColumn(format="%.3g"),
        },
    )
    chosen = [(cached[i], differ[i]) for i in event["selection"]["rows"] if i < len(cached)]
    total = size_text(sum(e.megabytes for e in cached) * 1e6)
    caption = f"{total} in total. Select rows in the first column to delete them."
    if delete_asked(bool(chosen), caption, "encodings"):
        confirm_encodings(chosen)


@markup.dialog("Delete these encodings?")
def confirm_encodings(chosen: Sequence[tuple[Encoding, str]]) -> None:
    """Ask before the chosen encodings are deleted."""
    for item, difference in chosen:
        name = f"{item.title} with {item.backbone}, {item.reads}" if item.data else item.name
        name += f" ({difference})" if difference else ""
        st.markdown(f"{markup.md(name)}: {size_text(item.megabytes * 1e6)}")
    st.caption(
        "FedLens creates them again when a run needs them. An encoding that a run is using cannot be deleted."
    )
    if markup.confirmed("Delete", "delete_encodings"):
        freed = sum(delete_encoding(session.store(), item.name) for item, _ in chosen)
        st.session_state.pop(ENCODINGS_TABLE, None)
        st.toast(f"{size_text(freed * 1e6)} freed.")
        st.rerun()


def delete_asked(possible: bool, caption: str, what: str) -> bool:
    """Draw a caption below a list and the button that deletes from it; return whether it was pressed."""
    left, right = st.columns([1, 4], vertical_alignment="center")
    right.caption(caption)
    return markup.write_button("Delete", "delete", f"delete_{what}", possible, left)


def checkpoints() -> None:
    """Draw the choice of checkpoints to keep, the list of the others, and the button that deletes these."""
    st.header(
        "Checkpoints of finished runs",
        help="Analyses of a run (predictions, feature space, Grad-CAM) need a checkpoint; results do not. "
        "Unfinished runs keep their checkpoints, because resuming needs them.",
    )
    store = session.store()
    left, right = st.columns([2, 1])
    options: dict[str, Any] = {"default": "all", "required": True, "format_func": KEEP.__getitem__}
    keep = left.segmented_control("Keep", list(KEEP), key="checkpoints_keep", **options)
    quota = right.number_input(
        "Quota of all files (GB)",
        min_value=0.0,
        value=None,
        key="checkpoints_quota",
        placeholder="no limit",
        help="Checkpoints of the oldest runs are deleted first, until all files fit into the quota.",
        disabled=keep == "all",
    )
    limit = None if quota is None else quota * 1e9
    listed = finished(store) if keep == "all" else surplus(store, keep, limit)
    if listed:
        rows = {
            "Run": [item.run.id for item in listed],
            "Method": [item.run.label for item in listed],
            "Experiment": [item.experiment for item in listed],
            "Rounds": [", ".join(map(str, sorted(item.sizes))) for item in listed],
            "Size (MB)": [item.size / 1e6 for item in listed],
        }
        sizes = {"Size (MB)": st.column_config.NumberColumn(format="%.3g")}
        st.dataframe(rows, key="checkpoints_table", hide_index=True, column_config=sizes)
    else:
        text = "No finished run has a checkpoint." if keep == "all" else "Nothing to delete."
        st.info(text, icon=":material/save:")
    size = size_text(sum(item.size for item in listed))
    total = f"{size_text(artifacts_size(store))} in all files beside the database."
    caption = f"{size} {'in this list' if keep == 'all' else 'would be deleted'}, {total}"
    if delete_asked(keep != "all" and bool(listed), caption, "checkpoints"):
        confirm_checkpoints(listed)


@markup.dialog("Delete these checkpoints?")
def confirm_checkpoints(listed: Sequence[RunCheckpoints]) -> None:
    """Ask before the listed checkpoints are deleted."""
    runs = counted(len(listed), "run")
    size = size_text(sum(item.size for item in listed))
    st.markdown(f"{size} of {runs}: {markup.md(', '.join(f'run {item.run.id}' for item in listed[:12]))}")
    st.caption("A run without a checkpoint cannot be analysed unless it is trained again.")
    if markup.confirmed("Delete", "delete_checkpoints"):
        st.toast(f"{size_text(delete(session.store(), listed))} freed.")
        st.rerun()


def backbones() -> None:
    """Draw a card for each common CLIP model, and the download of weights, which only a click starts."""
    st.header(
        "Backbones",
        help="Every other model of open_clip and timm can be chosen by name in a new experiment. Weights can "
        "also be a file (.pt or .safetensors).",
    )
    cards = [card_of_backbone(name) for name in (*MINI_MODELS, *COMMON_BACKBONES)]
    if chosen := library.draw_cards(cards, "backbone_cards"):
        st.session_state["model"] = chosen
    models = [name for name in known_names() if name not in MINI_MODELS and tags.tags(name)]
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    first = models.index(library.PROPOSED)
    model = session.choose(left.selectbox, "Model", models, "model", index=first)
    tag = middle.selectbox("Weights", tags.tags(model), key="tag")
    file = tags.cached(model, tag)
    if markup.write_button("Get", "download", None, file is None, right, width="stretch"):
        background.submit("weights", f"{model} {tag}", {"name": model, "tag": tag})
        st.rerun()
    if file is not None:
        st.caption(f"✓ on this machine: {markup.md(str(file))}")
    else:
        repository = markup.md(f"huggingface.co/{tags.repository(model, tag)[0]}")
        st.caption(f"From {repository}, whose card names their licence, into the Hugging Face cache.")
    for task in session.store().tasks.recent("weights", 3):
        background.show_task(task, f"Weights {task.args['tag']} of {task.args['name']}")


def card_of_backbone(name: str) -> str:
    """Return the card of a CLIP model as HTML, with the weights that are on this machine."""
    spec = backbone_spec(name)
    tower = "ResNet" if spec.vision == "resnet" else f"ViT, {spec.vision_layers} layers"
    about, numbers = f"{tower}, input of {spec.image_size} px", f"embedding width {spec.embed_dim}"
    if name in MINI_MODELS:
        return library.card("", name, None, about, numbers, "trained on drawings and digits", "✓ included")
    here = [(tag, file) for tag in tags.tags(name) if (file := tags.cached(name, tag)) is not None]
    if not here:
        return library.card(name, name, None, about, numbers, "no weights here", "", "Get weights")
    size = size_text(sum(file.stat().st_size for _, file in here))
    return library.card(name, name, None, about, numbers, size, f"✓ {', '.join(tag for tag, _ in here)}")


SECTIONS = {
    "Data sets": library.section,
    "Encodings": encodings,
    "Checkpoints": checkpoints,
    "Backbones": backbones,
}


def page() -> None:
    """Draw the page."""
    row = st.container(horizontal=not session.is_narrow(), vertical_alignment="center", gap="medium")
    row.title("Data & models", width="content")
    options = {"default": "Data sets", "required": True, "label_visibility": "collapsed"}
    shown = session.choose(row.segmented_control, "Section", list(SECTIONS), "section", **options)
    with markup.errors_shown():
        SECTIONS[shown]()


session.through_app()
page()
