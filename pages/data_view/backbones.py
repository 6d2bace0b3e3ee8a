"""The section Backbones of the page Data & models: common models, and the weights on this machine."""

import streamlit as st

from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS, backbone_spec, config_files
from pages.widgets import background, markup, session

BACKBONES = (*MINI_MODELS, "ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50")


def section() -> None:
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
