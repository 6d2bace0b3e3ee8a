"""The list of cached encodings, their deletion, and the form that encodes a data set ahead of a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.clip import encodings
from fedcore.clip.specs import MINI_MODELS, backbone_spec, config_files
from fedcore.config import BackboneConfig, DataConfig
from fedcore.config.field_names import data_title, size_text
from fedcore.data import catalog
from fedcore.jobs.retention import delete_encoding
from fedcore.results.run_files import (
    Encoding,
    cached_encodings,
    encoding_differences,
)
from pages.widgets import background, markup, session

TABLE = "encodings_table"


def section() -> None:
    """Draw the list of cached encodings, then the form that makes more."""
    st.header(
        "Cached encodings",
        help="Each image is encoded once for each backbone and layer; later runs reuse the result. Encodings "
        "can be deleted; FedLens creates them again when a run needs them.",
    )
    cached = cached_encodings(session.store())
    if cached:
        _table(cached)
    else:
        st.info(
            "No encodings yet. The first run on a data set creates them, or you can create them below.",
            icon=":material/image_search:",
        )
    st.header("Encode a data set")
    _form()
    for task in session.store().tasks.recent("encode", 5):
        background.show_task(task, f"Encoding {_encoding_text(task.args)}")
        if task.result is not None and task.result["file"] in {f"{e.name}.npy" for e in cached}:
            images = f"{task.result['images']:,} images of {_encoding_text(task.args)}"
            size = size_text(task.result["bytes"])
            st.success(markup.md(f"Encoded {images} ({size})."), icon=":material/check:")


def _encoding_text(args: Mapping[str, Any]) -> str:
    """Describe an encoding task by its data, its model, and options that differ from the defaults."""
    defaults = {"embedding", "fp32", "full"}
    changed = [args[k] for k in ("reads", "precision", "decode") if args.get(k) and args[k] not in defaults]
    data = data_title(DataConfig(name=args["name"], root=args.get("root")))
    return ", ".join([f"{data} with {args['backbone']}", *changed])


def _table(cached: list[Encoding]) -> None:
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
        key=TABLE,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            "Images": st.column_config.TextColumn(alignment="right"),
            "Size (MB)": st.column_config.NumberColumn(format="%.3g"),
        },
    )
    chosen = [(cached[i], differ[i]) for i in event["selection"]["rows"] if i < len(cached)]
    left, right = st.columns([1, 4], vertical_alignment="center")
    total = size_text(sum(e.megabytes for e in cached) * 1e6)
    right.caption(f"{total} in total. Select rows in the first column to delete them.")
    if left.button(
        "Delete",
        icon=":material/delete:",
        disabled=not chosen or not session.writable(),
        key="delete_encodings",
    ):
        confirm(chosen)


@markup.dialog("Delete these encodings?")
def confirm(chosen: Sequence[tuple[Encoding, str]]) -> None:
    """Ask before the chosen encodings are deleted."""
    for item, difference in chosen:
        name = f"{item.title} with {item.backbone}, {item.reads}" if item.data else item.name
        name += f" ({difference})" if difference else ""
        st.markdown(f"{markup.md(name)}: {size_text(item.megabytes * 1e6)}")
    st.caption(
        "FedLens creates them again when a run needs them. An encoding that a run is using cannot be deleted."
    )
    if st.button("Delete", type="primary", key="delete_encodings_confirmed"):
        freed = sum(delete_encoding(session.store(), item.name) for item, _ in chosen)
        st.session_state.pop(TABLE, None)
        st.toast(f"{size_text(freed * 1e6)} freed.")
        st.rerun()


@st.cache_data(show_spinner=False, max_entries=8)
def _size(name: str) -> int:
    return len(catalog.load(name))


@dataclass(frozen=True)
class Encodable:
    """A data set that can be encoded: a built-in one without ``root``, or a checked one with it."""

    name: str
    root: str | None
    images: int
    columns: dict[str, str]


def _encodable() -> dict[str, Encodable]:
    available = {e.title: Encodable(e.name, None, _size(e.name), {}) for e in catalog.entries() if e.embedded}
    for task in session.store().tasks.recent("check"):
        report = (task.result or {}).get("report", {})
        if task.status == "done" and task.result is not None and report and not report["error"]:
            name, columns = task.result["name"], task.args.get("columns") or {}
            named = "".join(f", {field} = {column}" for field, column in columns.items())
            root = task.args["root"]  # for a manifest, the report's root is the folder of its images
            available.setdefault(f"{root} ({name}{named})", Encodable(name, root, report["images"], columns))
    return available


def _form() -> None:
    available = _encodable()
    first, second, third, fourth, fifth, sixth = st.columns([4, 3, 3, 3, 3, 2])
    data = available[
        first.selectbox(
            "Data set",
            list(available),
            key="encode_data",
            help="Built-in data sets, and those checked under Data sets",
        )
    ]
    backbone = second.selectbox("Backbone", list(config_files()), key="encode_backbone")
    tag = third.text_input(
        "Weights", key="encode_weights", placeholder="open_clip tag or file", disabled=backbone in MINI_MODELS
    )
    reads = fourth.text_input(
        "Representation",
        value="embedding",
        key="encode_reads",
        help="What methods read of each image: `embedding`, the output of CLIP's image encoder; "
        "`layer:k`, the activations that enter layer k; `patches`, the patch embeddings without positions",
    )
    more = _run_options(data, fifth, sixth)
    problem = _problem(backbone, tag, reads.strip(), data.images)
    if st.button(
        "Encode now",
        icon=":material/play_arrow:",
        disabled=problem is not None or not session.writable(),
        key="encode_now",
    ):
        args = {
            "name": data.name,
            "root": data.root,
            "backbone": backbone,
            "pretrained": tag.strip() or None if backbone not in MINI_MODELS else None,
            "reads": reads.strip(),
            **more,
        }
        background.submit("encode", json.dumps(args, sort_keys=True), args)
        st.rerun()


def _run_options(data: Encodable, left: DeltaGenerator, right: DeltaGenerator) -> dict[str, object]:
    """Draw the options of a run that lead to a different encoding, and return them.

    Column names come from the data set's check. Draft decoding is offered only for image files.
    """
    field = BackboneConfig.model_fields["precision"]
    options: dict[str, object] = {
        "precision": left.selectbox(
            "Precision", get_args(field.annotation), key="encode_precision", help=field.description
        )
    }
    if data.root is not None:
        field = DataConfig.model_fields["decode"]
        options["decode"] = right.selectbox(
            "Decode", get_args(field.annotation), key="encode_decode", help=field.description
        )
    if data.columns:
        options["columns"] = data.columns
    return options


def _problem(backbone: str, tag: str, reads: str, images: int) -> FedLensError | None:
    """Show the size of the encoding, or show and return the error that prevents it."""
    try:
        if backbone not in MINI_MODELS and not tag.strip():
            raise FedLensError(f"{backbone} needs weights: an open_clip tag such as openai, or a file")
        size = encodings.estimate(backbone_spec(backbone), images, reads)
        encodings.check_disk_space(size, counted(images, "image"), session.store().path.parent)
        st.caption(f"{counted(images, 'image')} will take {size_text(size)}.")
    except FedLensError as error:
        st.caption(f":material/error: {markup.md(str(error))}")
        return error
    return None
