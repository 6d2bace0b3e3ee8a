"""The page Data & models: data sets, cached encodings, checkpoints of finished runs, backbones."""

from collections.abc import Sequence

import streamlit as st

from fedcore.base.progress import counted
from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS, backbone_spec, config_files
from fedcore.config.field_names import size_text
from fedcore.config.models import KeepCheckpoints
from fedcore.jobs.retention import RunCheckpoints, artifacts_size, delete, finished, surplus
from pages.data_view import datasets, encodings
from pages.widgets import background, markup, session

CHECKPOINTS_TABLE = "checkpoints_table"
KEEP: dict[KeepCheckpoints, str] = {
    "all": "everything",
    "best": "each run's best round",
    "last": "each run's last round",
    "none": "none",
}
BACKBONES = (*MINI_MODELS, "ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50")


def checkpoints() -> None:
    """Draw the choice of checkpoints to keep, the list of the others, and the button that deletes these."""
    st.header(
        "Checkpoints of finished runs",
        help="Analyses of a run (predictions, feature space, Grad-CAM) need a checkpoint; results do not. "
        "Unfinished runs keep their checkpoints, because resuming needs them.",
    )
    store = session.store()
    left, right = st.columns([2, 1])
    keep = left.segmented_control(
        "Keep",
        list(KEEP),
        format_func=KEEP.__getitem__,
        default="all",
        required=True,
        key="checkpoints_keep",
    )
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
        _checkpoint_table(listed)
    else:
        text = "No finished run has a checkpoint." if keep == "all" else "Nothing to delete."
        st.info(text, icon=":material/save:")
    size = size_text(sum(item.size for item in listed))
    left, right = st.columns([1, 4], vertical_alignment="center")
    total = f"{size_text(artifacts_size(store))} in all files beside the database."
    right.caption(f"{size} {'in this list' if keep == 'all' else 'would be deleted'}, {total}")
    impossible = keep == "all" or not listed or not session.writable()
    if left.button("Delete", icon=":material/delete:", disabled=impossible, key="delete_checkpoints"):
        confirm_deletion(listed)


def _checkpoint_table(listed: Sequence[RunCheckpoints]) -> None:
    st.dataframe(
        {
            "Run": [item.run.id for item in listed],
            "Method": [item.run.label for item in listed],
            "Experiment": [item.experiment for item in listed],
            "Rounds": [", ".join(map(str, sorted(item.sizes))) for item in listed],
            "Size (MB)": [item.size / 1e6 for item in listed],
        },
        key=CHECKPOINTS_TABLE,
        hide_index=True,
        column_config={"Size (MB)": st.column_config.NumberColumn(format="%.3g")},
    )


@markup.dialog("Delete these checkpoints?")
def confirm_deletion(listed: Sequence[RunCheckpoints]) -> None:
    """Ask before the listed checkpoints are deleted."""
    runs = counted(len(listed), "run")
    size = size_text(sum(item.size for item in listed))
    st.markdown(f"{size} of {runs}: {markup.md(', '.join(f'run {item.run.id}' for item in listed[:12]))}")
    st.caption("A run without a checkpoint cannot be analysed unless it is trained again.")
    if st.button("Delete", type="primary", key="delete_checkpoints_confirmed"):
        st.toast(f"{size_text(delete(session.store(), listed))} freed.")
        st.rerun()


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
        "Weights on this machine": [_weights_text(name) for name in BACKBONES],
        "Image tower": [towers.get(s.vision, s.vision).format(s.vision_layers) for s in specs],
        "Embedding width": [s.embed_dim for s in specs],
        "Input size, px": [s.image_size for s in specs],
    }
    markup.table(columns, "Backbones")
    download_weights_text()


def _weights_text(name: str) -> str:
    if name in MINI_MODELS:
        return "✓ come with FedLens"
    downloaded = [tag for tag in tags.tags(name) if tags.cached(name, tag) is not None]
    return f"✓ {markup.md(', '.join(downloaded))}" if downloaded else "none yet"


def download_weights_text() -> None:
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


SECTIONS = {
    "Data sets": datasets.section,
    "Encodings": encodings.section,
    "Checkpoints": checkpoints,
    "Backbones": backbones,
}


def page() -> None:
    """Draw the page."""
    st.title("Data & models")
    shown = st.segmented_control(
        "Section",
        list(SECTIONS),
        default="Data sets",
        required=True,
        key="section",
        bind="query-params",
        label_visibility="collapsed",
    )
    with markup.errors_shown():
        SECTIONS[shown]()


session.through_app()
page()
