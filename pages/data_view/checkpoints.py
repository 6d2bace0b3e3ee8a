"""The section Checkpoints of the page Data & models: those of finished runs, and which of them to delete."""

from collections.abc import Sequence

import streamlit as st

from fedcore.config.field_names import size_text
from fedcore.config.models import KeepCheckpoints
from fedcore.jobs.retention import RunCheckpoints, artifacts_size, delete, finished, surplus
from fedcore.progress import counted
from pages.widgets import markup, session

TABLE = "checkpoints_table"
KEEP: dict[KeepCheckpoints, str] = {
    "all": "everything",
    "best": "each run's best round",
    "last": "each run's last round",
    "none": "none",
}


def section() -> None:
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
        _table(listed)
    else:
        text = "No finished run has a checkpoint." if keep == "all" else "Nothing to delete."
        st.info(text, icon=":material/save:")
    size = size_text(sum(item.size for item in listed))
    left, right = st.columns([1, 4], vertical_alignment="center")
    total = f"{size_text(artifacts_size(store))} in all files beside the database."
    right.caption(f"{size} {'in this list' if keep == 'all' else 'would be deleted'}, {total}")
    impossible = keep == "all" or not listed or not session.writable()
    if left.button("Delete", icon=":material/delete:", disabled=impossible, key="delete_checkpoints"):
        confirm(listed)


def _table(listed: Sequence[RunCheckpoints]) -> None:
    st.dataframe(
        {
            "Run": [item.run.id for item in listed],
            "Method": [item.run.label for item in listed],
            "Experiment": [item.experiment for item in listed],
            "Rounds": [", ".join(map(str, sorted(item.sizes))) for item in listed],
            "Size (MB)": [item.size / 1e6 for item in listed],
        },
        key=TABLE,
        hide_index=True,
        column_config={"Size (MB)": st.column_config.NumberColumn(format="%.3g")},
    )


@markup.dialog("Delete these checkpoints?")
def confirm(listed: Sequence[RunCheckpoints]) -> None:
    """Ask before the listed checkpoints are deleted."""
    runs = counted(len(listed), "run")
    size = size_text(sum(item.size for item in listed))
    st.markdown(f"{size} of {runs}: {markup.md(', '.join(f'run {item.run.id}' for item in listed[:12]))}")
    st.caption("A run without a checkpoint cannot be analysed unless it is trained again.")
    if st.button("Delete", type="primary", key="delete_checkpoints_confirmed"):
        st.toast(f"{size_text(delete(session.store(), listed))} freed.")
        st.rerun()
