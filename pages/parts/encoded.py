"""Cached encodings: what there is, deleting it, and encoding ahead of a run."""

from __future__ import annotations

import json

import streamlit as st

from fedcore.clip import encodings as files
from fedcore.clip.facts import MINI_MODELS, config_files, facts
from fedcore.data import catalog
from fedcore.errors import FedLensError
from fedcore.report import inventory
from fedcore.report.inventory import Encoding
from fedcore.runs import tasks
from pages.parts import background, common

TABLE = "encodings_table"


def section() -> None:
    """What is cached, then the form that makes more."""
    st.subheader("Cached encodings")
    st.write(
        "Every image is encoded once for each backbone and depth; later runs read the result. Encodings may "
        "be deleted: they are made again when they are needed."
    )
    found = inventory.encodings(common.database())
    if found:
        _table(found)
    else:
        st.info(
            "None yet: the first run of a data set makes one, or do it now.", icon=":material/image_search:"
        )
    st.subheader("Encode now")
    _form()
    for task in tasks.recent(common.database(), "encode", 5):
        background.follow(task, f"Encoding {task.args['name']} with {task.args['backbone']}")
        if task.result is not None and task.result["file"] in {f"{e.name}.npy" for e in found}:
            what = f"{task.result['images']:,} images of {task.args['name']}, {task.args['backbone']}"
            size = f"{task.result['bytes'] / 1e6:.1f} MB"
            st.success(common.md(f"Encoded: {what}, {size}."), icon=":material/check:")


def _table(found: list[Encoding]) -> None:
    rows = {
        "Data": [e.data or e.name for e in found],
        "Backbone": [e.backbone or "-" for e in found],
        "Reads": [e.reads or "-" for e in found],
        "Images": [f"{e.images:,}" if e.complete else f"{e.images:,} of {e.total:,}" for e in found],
        "Size, MB": [e.megabytes for e in found],
        "Written": [e.written for e in found],
    }
    event = st.dataframe(
        rows,
        key=TABLE,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            "Images": st.column_config.TextColumn(alignment="right"),
            "Size, MB": st.column_config.NumberColumn(format="%.1f"),
        },
    )
    chosen = [found[i] for i in event["selection"]["rows"] if i < len(found)]
    left, right = st.columns([1, 4], vertical_alignment="center")
    right.caption(f"{sum(e.megabytes for e in found):.1f} MB in all. Select in the first column to delete.")
    if left.button(
        "Delete",
        icon=":material/delete:",
        disabled=not chosen or not common.writable(),
        key="delete_encodings",
    ):
        confirm(chosen)


@st.dialog("Delete these encodings?")
def confirm(chosen: list[Encoding]) -> None:
    """Names them, and what is lost: time alone."""
    for item in chosen:
        of = f"{item.data} with {item.backbone}, {item.reads}" if item.data else item.name
        st.markdown(f"{common.md(of)}: {item.megabytes:.1f} MB")
    st.caption("They are made again when a run needs them. One that a run uses now is refused.")
    if st.button("Delete", type="primary", key="delete_encodings_confirmed"):
        try:
            freed = sum(inventory.delete_encoding(common.database(), item.name) for item in chosen)
        except FedLensError as error:
            common.show_error(error)
            return
        st.session_state.pop(TABLE, None)
        st.toast(f"{freed:.1f} MB freed.")
        st.rerun()


@st.cache_data(show_spinner=False, max_entries=8)
def _size(name: str) -> int:
    """Images of an embedded data set."""
    return len(catalog.load(name))


def _known() -> dict[str, tuple[str, str | None, int]]:
    """Title -> name, root and size of the data sets that can be encoded: embedded ones, checked folders."""
    found: dict[str, tuple[str, str | None, int]] = {
        e.title: (e.name, None, _size(e.name)) for e in catalog.entries() if e.embedded
    }
    for task in tasks.recent(common.database(), "check"):
        report = (task.result or {}).get("report", {})
        if task.status == "done" and report and not report["error"]:
            found[f"{report['root']} ({task.result['name']})"] = (
                task.result["name"], report["root"], report["images"],
            )  # fmt: skip
    return found


def _form() -> None:
    known = _known()
    first, second, third, fourth = st.columns([4, 3, 3, 2])
    data = first.selectbox(
        "Data set", list(known), key="encode_data", help="Embedded ones, and folders that were checked"
    )
    backbone = second.selectbox("Backbone", list(config_files()), key="encode_backbone")
    tag = third.text_input(
        "Weights", key="encode_weights", placeholder="open_clip tag or file", disabled=backbone in MINI_MODELS
    )
    reads = fourth.text_input(
        "Reads", value="embedding", key="encode_reads", help="`embedding`, `patches` or `layer:k`"
    )
    name, root, images = known[data]
    problem = _trouble(backbone, tag, reads.strip(), images)
    if st.button(
        "Encode now",
        icon=":material/play_arrow:",
        disabled=problem is not None or not common.writable(),
        key="encode_now",
    ):
        args = {
            "name": name,
            "root": root,
            "backbone": backbone,
            "pretrained": tag.strip() or None if backbone not in MINI_MODELS else None,
            "reads": reads.strip(),
        }
        background.ask("encode", json.dumps(args, sort_keys=True), args)
        st.rerun()


def _trouble(backbone: str, tag: str, reads: str, images: int) -> FedLensError | None:
    """What keeps it from being encoded, shown; otherwise its size is."""
    try:
        if backbone not in MINI_MODELS and not tag.strip():
            raise FedLensError(f"{backbone} needs weights: an open_clip tag such as openai, or a file")
        size = files.estimate(facts(backbone), images, reads)
        files.check_room(size, f"{images:,} images", common.database().parent)
        st.caption(f"{images:,} images will take {size / 1e6:,.1f} MB.")
    except FedLensError as error:
        st.caption(f":material/error: {common.md(str(error))}")
        return error
    return None
