"""The Published tab of Compare: the figures that a paper prints, ours beside them."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.errors import FedLensError
from fedcore.papers import beside
from fedcore.papers.beside import Beside
from fedcore.papers.printed import source
from fedcore.results.comparison import CAVEAT_MARK
from fedcore.store import ExperimentRow, Store
from pages.widgets import common

MANY = 15
"""Rows above which the table scrolls by itself: one preset names up to 500 figures."""
TARGETS = {"avg": "mean"}


def draw(path: str, experiments: Sequence[ExperimentRow], token: object) -> None:
    """A table for each experiment that names printed figures."""
    naming = [e for e in experiments if e.config.reproduces]
    if not naming:
        st.info(
            "None of these experiments names published figures. Those made from *A table or figure of a "
            "paper* on the page New do; in a TOML file, `[[reproduces]]` names paper and table.",
            icon=":material/menu_book:",
        )
        return
    only = st.segmented_control(
        "Figures", ["all", "with ours"], default="all", required=True, key="published_only",
        label_visibility="collapsed", format_func=lambda o: {"all": "All", "with ours": "With ours"}[o],
    )  # fmt: skip
    for experiment in naming:
        st.markdown(f"**{common.md(experiment.name)}**")
        try:
            rows = _rows(path, experiment.config.model_dump_json(), token, experiment.config)
        except FedLensError as error:
            common.show_error(error)
            continue
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.status] = counts.get(row.status, 0) + 1
        st.caption(
            f"{len(rows)} printed figures: "
            + ", ".join(f"{n} {status}" for status, n in counts.items())
            + "."
        )
        caveats = dict.fromkeys(r.why for r in rows if r.status == "measured with a caveat")
        for why in caveats:
            st.caption(f"{CAVEAT_MARK} {common.md(why)}")
        shown = [r for r in rows if only == "all" or r.ours is not None]
        if shown:
            with st.container(height=700 if len(shown) > MANY else "content"):
                st.html(_table(shown, experiment.name, said=list(caveats) if len(caveats) == 1 else ()))
        else:
            st.info("None of these figures has been measured here yet.", icon=":material/hourglass:")
    st.caption(
        "Per cent unless the metric says otherwise; ours: mean ± sample standard deviation over n seeds, the "
        "round chosen as the paper does. A run of any experiment counts where data, partition, backbone, "
        "rounds and the method's whole config are this one's; written descriptions of classes may be any."
    )


@st.cache_data(max_entries=16, show_spinner="Reading the printed figures…")
def _rows(path: str, config: str, token: object, _experiment: object) -> list[Beside]:
    """Computed again when the config or a run has changed."""
    return beside.beside(Store(path), _experiment)  # type: ignore[arg-type]


def _table(rows: Sequence[Beside], name: str, said: Sequence[str]) -> str:
    """said: reasons that stand above the table already."""
    header = [
        ("Table", "wide"),
        ("Data set", "name"),
        ("Setting", "wide"),
        ("Method", "wide"),
        ("Of", ""),
        ("Metric", ""),
    ]
    header += [("Printed", "num"), ("Ours", "num"), ("n", "num"), ("Difference", "num"), ("Status", "wide")]
    cells = [
        [
            common.esc(source(r.figure)),
            common.esc(r.figure.dataset),
            common.esc(r.figure.setting or "-"),
            common.esc(r.figure.method),
            common.esc(TARGETS.get(r.figure.target, r.figure.target)),
            common.esc(r.figure.metric),
            common.esc(r.printed),
            "-" if r.ours is None else f"<b>{common.esc(r.text)}</b>",
            "0" if r.ours is None else str(r.ours.n),
            common.esc(r.difference or "-"),
            common.esc(r.status) + (f": {common.faint(r.why)}" if r.why and r.why not in said else ""),
        ]
        for r in rows
    ]
    return common.table_html(header, cells, f"Published figures of {name}")
