"""The tab Export of the page Compare: files for a paper, for pandas and for readers, made when asked for."""

from dataclasses import replace
from typing import Literal

import streamlit as st

from fedcore import jobs
from fedcore.base.files import zipped
from fedcore.base.progress import Work
from fedcore.results.exports import file_name
from fedcore.results.metrics import RULES
from fedcore.results.sharing import summary_latex
from fedcore.share import Format, TableName
from fedcore.share.checked import ComparisonChoices, checked_comparison
from fedcore.share.content import Wording, read_report
from pages.compare_view.controls import ShownComparison
from pages.widgets import background, markup

SAME_ROWS = "The column row is the same as in the summary"
FOR_PANDAS: tuple[tuple[str, TableName, Format, str], ...] = (
    ("Rounds CSV", "rounds", "csv", "One row per run, round, split, model and test set, with counts"),
    ("Clients CSV", "clients", "csv", "One row per run, round and client"),
    ("Domains CSV", "domains", "csv", f"One row per method, one column per domain. {SAME_ROWS}"),
    ("Breakdowns CSV", "breakdowns", "csv", f"One row per method and domain or client. {SAME_ROWS}"),
    ("Costs CSV", "costs", "csv", "One row per method, seed and share of the best: rounds, MB and seconds"),
    ("Configs CSV", "configs", "csv", f"One row per method with all fields. {SAME_ROWS}"),
    ("Summary JSON", "summary", "json", "The summary and its finding with numbers and null, for scripts"),
)
"""The button of each further file, its table and format, and what it holds."""


def draw(shown: ShownComparison) -> None:
    """Draw the files by their purpose: for a paper, for pandas, and for readers."""
    st.header("For my paper", anchor=False)
    wanted = True
    with st.container(horizontal=True, vertical_alignment="bottom"):
        digits = st.segmented_control(
            "Decimals in the LaTeX table", [0, 1, 2, 3], default=2, required=True, key="latex_digits"
        )
        if shown.printed.values:
            wanted = st.toggle(
                "Published values in the LaTeX table",
                value=True,
                key="latex_printed",
                bind="query-params",
                help="Adds a column with the values that the papers print, as in the summary",
            )
    choice = replace(shown.choice, digits=digits)
    shown = replace(shown, choice=choice)
    with st.container(horizontal=True):
        about = "The table below, with booktabs"
        background.file_button(
            shown.experiments, "LaTeX table", "summary", "latex", choice, wanted, help=about
        )
        _archive(
            shown,
            "figures",
            "Figures (ZIP)",
            "All charts as PDF and SVG at the width of one column and of two, the table, and BibTeX",
            with_printed=wanted,
        )
    if choice.baseline is None:
        st.caption("Choose a baseline above for columns with the differences and p.")
    st.code(summary_latex(shown.summary(digits, wanted)), language="latex", wrap_lines=True)
    st.header("For pandas", anchor=False)
    background.csv_button(shown.experiments, choice)
    with st.expander("More tables", icon=":material/table_rows:"):
        for label, table, format, about in FOR_PANDAS:
            with st.container(horizontal=True, vertical_alignment="center"):
                background.file_button(shown.experiments, label, table, format, choice, width=200)
                st.caption(about)
    st.header("For my supervisor", anchor=False)
    with st.container(horizontal=True):
        _archive(
            shown,
            "report",
            "Report folder (ZIP)",
            "The report, figures as PDF and SVG, LaTeX, CSV, JSON, and a script that repeats the runs",
            background.wording(shown.experiments),
        )
        background.file_button(
            shown.experiments,
            "Whole experiment JSON",
            "experiment",
            "json",
            choice,
            help="Everything that was recorded, for import into another FedLens (`fedlens import FILE.json`)",
        )
    st.caption(
        "*Report*, at the top of this page, makes the page alone; the folder has the same title and notes."
    )
    _draw_bundle(shown)
    st.caption(
        f"Reported round: {RULES[choice.rule]}, as on this page. To save a chart, use the camera in its menu."
    )


def _draw_bundle(shown: ShownComparison) -> None:
    """Draw the button that makes a bundle in the background, its progress, and the file once it is made."""
    from fedcore.share import make as bundles  # only this tab needs the engine

    st.header("For readers who check", anchor=False)
    store, ids = shown.store, [e.id for e in shown.experiments]
    choice = replace(shown.choice, unfinished=False, digits=ComparisonChoices.digits)
    made = bundles.find(store, ids, choice)
    file = None if made is None else bundles.made_file(store, made)
    if made is not None and not (made.status == "done" and file is None):
        background.show_task(made, "Bundle")
    with st.container(horizontal=True):
        if file is not None:
            name = file_name(shown.experiments, "bundle", "zip")
            markup.download("Bundle (ZIP)", file.read_bytes, name, "bundle_zip", ":material/folder_zip:")
        if (made is None or made.ended) and markup.write_button(
            "Make bundle" if file is None else "Make bundle again",
            "fact_check",
            "make_bundle",
            help="One ZIP file with the prediction for every test image in the reported rounds, from which "
            "`fedlens verify` recomputes every number without weights or training",
        ):
            bundles.submit(store, ids, choice)
            jobs.ensure_worker(store)
            st.rerun()
    if made is None or made.status != "done" or made.result is None:
        st.caption("Finished runs only. Each model is restored from its checkpoint and evaluated again.")
    elif file is None:
        st.caption("The runs have changed since the last bundle was made, or its file was deleted.")
    else:
        if lines := made.result["counts_only"]:
            listed = "".join(f"\n- {markup.md(line)}" for line in lines)
            st.warning(f"These have counts only, which nobody can recompute:\n{listed}")
        st.caption(f"Its digest, to print beside your numbers: `{made.result['digest']}`")


def _archive(
    shown: ShownComparison,
    name: Literal["figures", "report"],
    label: str,
    help_: str,
    words: Wording = Wording(),  # noqa: B008 - a frozen value
    with_printed: bool = True,
) -> None:
    """Draw the button that makes an archive, with a bar while it is made, and the archive once it is."""
    file, ids = file_name(shown.experiments, name, "zip"), [e.id for e in shown.experiments]

    def work() -> Work[bytes]:
        from fedcore.share.folder import paper_files, report_files

        with checked_comparison(shown.store, ids, shown.choice, with_printed) as checked:
            if name == "report":
                files = yield from report_files(checked, words)
            else:
                files = yield from paper_files(checked, (yield from read_report(checked, words)))
        return zipped(files, file.removesuffix(".zip"))

    asked = st.button(
        f"Make {label[:1].lower()}{label[1:]}", icon=":material/folder_zip:", key=f"make_{name}", help=help_
    )
    content = background.made(
        f"{name}_archive", (shown.version, shown.choice, words, with_printed), asked, work
    )
    if content is not None:
        markup.download(label, content, file, f"{name}_zip")
