"""The tab Published of the page Compare: the values that a paper prints beside ours."""

from collections.abc import Sequence

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.papers.cells import TableCell
from fedcore.papers.reproductions import outcome_counts, reasons, reproductions
from fedcore.store import Store
from pages.compare_view.controls import ShownComparison
from pages.widgets import markup

MANY = 15
"""Rows above which the table scrolls; a preset names up to 500 values."""
TARGETS = {"avg": "mean"}
NAMED = ("source", "dataset", "setting", "method")


def draw(shown: ShownComparison) -> None:
    """Draw a table for each experiment that names published values."""
    store = shown.store
    naming = [e for e in shown.experiments if e.config.reproduces]
    if not naming:
        st.info(
            "None of these experiments names published values. Start from *A table or figure of a paper* on "
            "the page New, or name a paper and its table under `[[reproduces]]` in a TOML file.",
            icon=":material/menu_book:",
        )
        return
    only = st.segmented_control(
        "Values",
        ["all", "with ours"],
        default="all",
        required=True,
        key="published_only",
        label_visibility="collapsed",
        format_func=lambda o: {"all": "All", "with ours": "With ours"}[o],
    )
    every = tuple(r.version for e in store.experiments.all() for r in e.runs)
    for experiment in naming:
        st.markdown(f"**{markup.md(experiment.name)}**")
        try:
            rows = _rows(store, experiment.config.model_dump_json(), every, experiment.config)
        except FedLensError as error:
            markup.show_error(error)
            continue
        counts = ", ".join(f"{count} {status}" for status, count in outcome_counts(rows).items())
        st.caption(f"{len(rows)} published values: {counts}.")
        wanted = [r for r in rows if only == "all" or r.stat is not None]
        if wanted:
            with st.container(height=700 if len(wanted) > MANY else "content"):
                st.html(_table(wanted, experiment.name))
            _draw_reasons(wanted)
        else:
            st.info("None of these values has been measured here yet.", icon=":material/hourglass:")
    st.caption(
        "Values are per cent unless the metric says otherwise. Ours: mean ± sample standard deviation over n "
        "seeds, at the round that the paper's rule selects. Runs of every experiment count if data, "
        "partition, backbone, rounds and all hyper-parameters are the same as here; only class descriptions "
        "may differ. With a caveat: the paper can be read in more than one way, and the reading may matter. "
        "Not comparable: ours measures something else."
    )


def _draw_reasons(rows: Sequence[TableCell]) -> None:
    """List the reasons against comparing, each with the methods that it is about."""
    against = reasons(rows)
    if not against:
        return
    with st.expander(f"Reasons against comparing ({len(against)})", icon=":material/balance:"):
        for mark, methods, text in against:
            st.markdown(f"{mark} **{markup.md(methods)}**: {markup.md(text)}")


@st.cache_data(hash_funcs={Store: repr}, max_entries=16, show_spinner="Reading the published values…")
def _rows(store: Store, config: str, token: object, _experiment: object) -> list[TableCell]:
    """Return the published values beside ours; computed again when the config or a run has changed."""
    return reproductions(store, _experiment)  # type: ignore[arg-type]


def _table(rows: Sequence[TableCell], name: str) -> str:
    header = [("Table", "wide"), ("Data set", "name"), ("Setting", "wide"), ("Method", "wide")]
    header += [("Target", ""), ("Metric", ""), ("Printed", "num"), ("Ours", "num"), ("n", "num")]
    header += [("Difference", "num"), ("Comparable", "wide"), ("Status", "wide")]
    cells = [
        [
            *(markup.esc(getattr(r.value, name) or "-") for name in NAMED),
            markup.esc(TARGETS.get(r.value.target, r.value.target)),
            markup.esc(r.value.metric),
            markup.esc(r.value.text),
            "-" if r.stat is None else f"<b>{markup.esc(r.outcome_text)}</b>",
            "0" if r.stat is None else str(r.stat.n),
            markup.esc(r.gap_text or "-"),
            _comparability_cell(r),
            markup.esc(r.outcome) + (f": {markup.faint(r.reason)}" if r.reason else ""),
        ]
        for r in rows
    ]
    return markup.table_html(header, cells, f"Published values of {name}")


def _comparability_cell(cell: TableCell) -> str:
    """Return the state as HTML; the reasons appear under the pointer."""
    value = cell.comparability
    if cell.judgement is None:
        return "-"
    state = {"comparable": "yes", "with a caveat": "with a caveat", "not comparable": "no"}[value.state]
    title = markup.esc("; ".join(text for _, text in value.reasons))
    return f'<span title="{title}">{markup.esc(f"{state} {value.mark}".rstrip())}</span>'
